"""What a client holds and when it lets go: threads, descriptors, memory, calls in flight, forks."""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import threading
import time
import traceback

import numpy as np
import pytest
from test_client import GUARD_SECONDS, HEADS, LAYERS, TOKENS, TRANSPORTS, WIDTH, flat, good, keys_of, stand_still, until

from quire_kv import shm
from quire_kv.client import Client, Options, QuireError, Reason

CLOSE_SECONDS = 1.0
SLACK_SECONDS = GUARD_SECONDS / 2  # of a busy machine; calls under way would take GUARD_SECONDS


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings() -> int:
    with open("/proc/self/maps") as f:
        return sum("memfd:" in line for line in f)


def python_threads() -> list[str]:
    return sorted(t.name for t in threading.enumerate())


@pytest.fixture(params=TRANSPORTS)
def options(request, quire_server) -> Options:
    return Options(quire_server.address, transport=request.param, call_timeout=GUARD_SECONDS)


def use(session, seed=1):
    keys = keys_of(4)
    source, memory = flat(session, 4, seed=seed)
    assert good(session.publish(keys, memory))
    target, into = flat(session, 4)
    lease = session.exists(keys, lease=10.0).lease
    assert good(session.fetch(keys, into, lease=lease)) and np.array_equal(target, source)
    lease.release()
    return keys, memory


def test_everything_goes_with_close(options, spec_text):
    with Client(options) as first:  # what gRPC and numpy keep for the process
        use(first.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS)))
    gc.collect()
    threads, files, maps = python_threads(), descriptors(), mappings()
    clients = []
    for seed in range(3):
        client = Client(options)
        assert python_threads() == threads, "a client that was not used has no thread"
        use(client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS)), seed)
        clients.append(client)
        threads_now = [t for t in python_threads() if t not in threads]
        assert set(threads_now) <= {"quire-attach", *[t for t in threads_now if options.transport == "grpc"]}
        client.close()
        client.close()
        with pytest.raises(QuireError) as e:
            client.open("x")
        assert e.value.reason is Reason.ABORTED
    del clients, client
    gc.collect()
    until("threads ended", lambda: python_threads() == threads)
    until("descriptors and mappings went", lambda: (descriptors(), mappings()) <= (files, maps))


def test_an_idle_client_has_one_thread(options, spec_text):
    before = threading.active_count()
    with Client(options) as client:
        use(client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS)))
        if options.transport != "grpc":
            until("the helpers ended", lambda: threading.active_count() == before + 1)
            assert client._channel._channel is None, "an idle client over frames holds no channel"


def test_short_calls_leak_nothing(options, spec_text):
    with Client(options) as client:
        session = client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))
        keys, memory = use(session)
        rounds = 10_000 if options.transport != "grpc" else 2_000
        for _ in range(500):
            session.exists(keys)
        files, threads = descriptors(), threading.active_count()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for i in range(rounds):
            assert session.exists(keys).leading == 4
            if i % 20 == 0:
                assert good(session.fetch(keys, memory))
        gc.collect()
        assert descriptors() <= files and threading.active_count() <= threads
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 20 << 10, "KiB"
        assert not session._calls


def test_calls_that_fail_leak_nothing(options, quire_server, spec_text):
    with Client(options) as client:
        session = client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))
        keys, memory = use(session)
        quire_server.kill()
        for call in (lambda: session.exists(keys, timeout=0.05), lambda: session.fetch(keys, memory, timeout=0.05)):
            with pytest.raises(QuireError):
                call()
        files = descriptors()
        for _ in range(50):
            with pytest.raises(QuireError) as e:
                session.fetch(keys, memory, timeout=0.05)
            assert e.value.broken and len(e.value.pages) == 4
        gc.collect()
        until("descriptors are given back", lambda: descriptors() <= files + 4)


@pytest.mark.parametrize("what", ["exists", "fetch", "publish"])
def test_close_with_calls_in_flight(options, quire_server, spec_text, what):
    client = Client(options)
    session = client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))
    keys, memory = use(session)
    calls = {"exists": lambda: session.exists(keys), "fetch": lambda: session.fetch(keys, memory), "publish": lambda: session.publish(keys_of(4), memory)}
    stand_still(quire_server)
    ended: list[object] = []

    def call() -> None:
        try:
            ended.append(calls[what]())
        except BaseException as e:
            ended.append(e)

    threads = [threading.Thread(target=call) for _ in range(6)]  # more than a transport carries at once
    for t in threads:
        t.start()
    until("the calls began", lambda: len(session._calls) == 6)
    began = time.monotonic()
    client.close(CLOSE_SECONDS)
    assert time.monotonic() - began < CLOSE_SECONDS + SLACK_SECONDS
    for t in threads:
        t.join(GUARD_SECONDS)
    assert len(ended) == 6 and all(isinstance(e, QuireError) and e.reason is Reason.ABORTED for e in ended), ended


def test_a_client_that_is_forgotten_is_no_leak(options, spec_text):
    with Client(options) as first:
        use(first.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS)))
    gc.collect()
    maps = mappings()
    for _ in range(3):
        client = Client(options)
        session = client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))
        use(session)
        client.close()
        del client, session
        gc.collect()
    assert mappings() <= maps


def in_child(work) -> None:
    """Runs work in a forked child; its failure is this test's."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            signal.alarm(int(GUARD_SECONDS))
            work()
            os.write(write, b"ok")
        except BaseException:
            os.write(write, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(0)
    os.close(write)
    said = b""
    while select.select([read], [], [], GUARD_SECONDS)[0]:
        more = os.read(read, 4096)
        if not more:
            break
        said += more
    os.close(read)
    os.waitpid(pid, 0)
    assert said == b"ok", said.decode() or "the child said nothing"


@pytest.mark.parametrize("transport", ["data", "shm", "auto"])
def test_fork(quire_server, spec_text, transport):
    """The child begins anew, and what it does to its copies does not touch the parent's."""
    options = Options(quire_server.address, transport=transport, call_timeout=GUARD_SECONDS)
    with Client(options) as client:
        session = client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))
        keys, memory = use(session)
        lease = session.exists(keys, lease=30.0).lease
        sockets = {os.readlink(f"/proc/self/fd/{f}") for f in os.listdir("/proc/self/fd") if _socket(f)}
        mine = {f for c in client._ways[0].transport._pool._all for f in [os.readlink(f"/proc/self/fd/{c.stream._sock.fileno()}")]}
        assert mine and mine <= sockets

        def child() -> None:
            left = {os.readlink(f"/proc/self/fd/{f}") for f in os.listdir("/proc/self/fd") if _socket(f)}
            assert not left & mine, "the parent's connections are closed here"
            try:
                session.exists(keys)
                raise AssertionError("a session of the parent answered")
            except QuireError as e:
                assert e.reason is Reason.ABORTED, e
            session.close()
            again = client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))
            assert again.exists(keys).leading == 4
            use(again, 2)
            assert client.transport != "grpc"
            client.close()

        in_child(child)
        target, into = flat(session, 4)
        assert good(session.fetch(keys, into, lease=lease)) and session.exists(keys).leading == 4
        use(session, 3)


def _socket(fd: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    except OSError:
        return False


def test_the_end_of_a_process_ends_its_session(quire_server, spec_text):
    """A writer that is killed leaves nothing held: what it was publishing can be published at once."""
    options = Options(quire_server.address, call_timeout=GUARD_SECONDS)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        client = Client(options)
        session = client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))

        def fence(pages):
            os.write(write, b"x")
            time.sleep(GUARD_SECONDS)
            return [True] * len(pages)

        session.publish([b"k" * 32], flat(session, 1, seed=5)[1], fence=fence)
        os._exit(0)
    try:
        assert select.select([read], [], [], GUARD_SECONDS)[0] and os.read(read, 1) == b"x"
        with Client(options) as client:
            session = client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))
            memory = flat(session, 1, seed=6)[1]
            assert session.publish([b"k" * 32], memory)[0].reason is Reason.HELD
            os.kill(pid, signal.SIGKILL)
            until("the publication went", lambda: session.publish([b"k" * 32], memory)[0].ok)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)
        os.close(write)


@pytest.mark.skipif(not shm.AVAILABLE, reason="no memfd")
def test_staging_is_bounded(quire_server, spec_text):
    """Pages larger than the staging memory go in frames; the memory of all connections stays in its bound."""
    options = Options(quire_server.address, transport="shm", staging_bytes=1 << 20, call_timeout=GUARD_SECONDS)
    with Client(options) as client:
        for layers in (2, 16, 64):  # 128 KiB, 1 MiB, 4 MiB
            session = client.open(spec_text(8, layers, 128, 16))
            keys = keys_of(6)
            source, memory = flat(session, 6, seed=layers)
            assert good(session.publish(keys, memory))
            target, into = flat(session, 6)
            assert good(session.fetch(keys, into)) and np.array_equal(target, source)
            assert 0 <= client._budget._left <= 1 << 20
    assert client._budget._left == 1 << 20
