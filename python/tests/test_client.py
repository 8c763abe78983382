"""The client's conformance suite: what an adapter may rely on, against a real server, over every transport alike."""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import engine_orders
import numpy as np
import pytest
import serving

from quire_kv import fetch, proto
from quire_kv.client import ROOT_PARENT, UNKNOWN_PARENT, Client, DeadlineError, Options, QuireError, Reason, Session, Tls
from quire_kv.errors import ConfigError
from quire_kv.layout import PageMemory
from quire_kv.page import View

TRANSPORTS = ("grpc", "data", "shm")
GUARD_SECONDS = 20.0

HEADS, LAYERS, WIDTH, TOKENS = 8, 12, 32, 16  # cells of 2 KiB: pieces of 12 layers, cut by every slice of layers
ROW = WIDTH * 2


def until(what: str, condition) -> None:
    deadline = time.monotonic() + GUARD_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.002)


def stand_still(server) -> None:
    """Pauses a server, and waits until it has stopped."""
    server.pause()

    def stopped() -> bool:
        tasks = f"/proc/{server.process.pid}/task"
        return all(open(f"{tasks}/{t}/stat").read().rpartition(")")[2].split()[0] == "T" for t in os.listdir(tasks))

    until("the server stopped", stopped)


def keys_of(n: int, size: int = 32) -> list[bytes]:
    return [os.urandom(size) for _ in range(n)]


def flat(session: Session, pages: int, view: View | None = None, seed: int | None = None) -> tuple[np.ndarray, PageMemory]:
    """Pages in head-major order: bytes, random with a seed, and the memory."""
    g = session.only
    v = view or g.whole
    room = np.zeros((pages, g.payload_bytes(v)), dtype=np.uint8)
    if seed is not None:
        room[:] = np.frombuffer(random.Random(seed).randbytes(room.nbytes), dtype=np.uint8).reshape(room.shape)
    return room, PageMemory.flat(list(room), g, v)


def good(pages) -> bool:
    return all(p.ok for p in pages)


def reasons(pages) -> list[Reason]:
    return [p.reason for p in pages]


@pytest.fixture(params=TRANSPORTS)
def transport(request) -> str:
    return request.param


@pytest.fixture
def client(quire_server, transport):
    with Client(Options(quire_server.address, transport=transport, call_timeout=GUARD_SECONDS)) as c:
        yield c
        assert c.transport == transport


@pytest.fixture
def session(client, spec_text):
    return client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))


def test_publish_then_fetch(session):
    keys = keys_of(5)
    source, memory = flat(session, 5, seed=1)
    assert session.exists(keys).present == [False] * 5
    assert session.fetch(keys, flat(session, 5)[1]) == [(False, Reason.ABSENT)] * 5
    assert good(session.publish(keys, memory, parent=ROOT_PARENT))
    there = session.exists([*keys, *keys_of(2)])
    assert there.present == [True] * 5 + [False] * 2 and there.leading == 5 and there.lease is None
    target, into = flat(session, 7)
    answers = session.fetch([*keys, *keys_of(2)], into)
    assert [p.ok for p in answers] == [True] * 5 + [False] * 2 and np.array_equal(target[:5], source)
    assert good(session.publish(keys, memory, parent=ROOT_PARENT)), "what is stored already is good"
    assert session.publish([], flat(session, 0)[1]) == [] and session.fetch([], flat(session, 0)[1]) == []
    hole = [keys[0], keys_of(1)[0], keys[2]]
    assert session.exists(hole).present == [True, False, True] and session.exists(hole).leading == 1


@pytest.mark.parametrize("order", engine_orders.ORDERS)
def test_orders_of_an_engine(session, order):
    g, keys = session.only, keys_of(3)
    writer = engine_orders.engine(order, 3, g.whole, HEADS, LAYERS, TOKENS, (ROW, ROW), random.Random(2))
    assert good(session.publish(keys, writer.memory))
    target, into = flat(session, 3)
    assert good(session.fetch(keys, into)) and np.array_equal(target, writer.head_major())
    reader = engine_orders.engine(engine_orders.ORDERS[-1], 3, g.whole, HEADS, LAYERS, TOKENS, (ROW, ROW), None)
    assert good(session.fetch(keys, reader.memory)) and np.array_equal(reader.head_major(), writer.head_major())


def views_of(tp: int, pp: int) -> list[View]:
    return [View(h * HEADS // tp, (h + 1) * HEADS // tp, p * LAYERS // pp, (p + 1) * LAYERS // pp) for h in range(tp) for p in range(pp)]


SPLITS = [(1, 1), (2, 1), (4, 1), (1, 3), (2, 2)]


@pytest.mark.parametrize("writers, readers", list(itertools.product(SPLITS, SPLITS)))
def test_views_in_every_pair(session, writers, readers):
    g, keys = session.only, keys_of(2)
    whole = np.frombuffer(random.Random(3).randbytes(2 * g.page_bytes), dtype=np.uint8).reshape(2, HEADS, LAYERS, g.cell_bytes)
    views = views_of(*writers)
    for i, v in enumerate(views):
        assert not any(session.exists(keys).present), "incomplete pages are absent"
        part = np.ascontiguousarray(whole[:, v.h0 : v.h1, v.l0 : v.l1]).reshape(2, -1)
        assert good(session.publish(keys, PageMemory.flat(list(part), g, v), view=v)), i
    assert session.exists(keys).leading == 2
    for v in views_of(*readers):
        target, into = flat(session, 2, v)
        assert good(session.fetch(keys, into, view=v))
        assert np.array_equal(target.reshape(2, v.heads, v.layers, -1), whole[:, v.h0 : v.h1, v.l0 : v.l1])
        order = engine_orders.engine("lpth", 2, v, HEADS, LAYERS, TOKENS, (ROW, ROW), None)
        assert good(session.fetch(keys, order.memory, view=v))
        assert np.array_equal(order.head_major(), target)


def test_overlapping_writers_fill_what_is_missing(session):
    """A second writer is granted only what is not there: here three rectangles around the first."""
    g, keys = session.only, keys_of(1)
    source, memory = flat(session, 1, seed=4)
    whole = source.reshape(HEADS, LAYERS, -1)
    v = View(2, 5, 3, 7)
    part = np.ascontiguousarray(whole[v.h0 : v.h1, v.l0 : v.l1]).reshape(1, -1)
    assert good(session.publish(keys, PageMemory.flat(list(part), g, v), view=v))
    assert good(session.publish(keys, memory))
    target, into = flat(session, 1)
    assert good(session.fetch(keys, into)) and np.array_equal(target, source)


@pytest.mark.parametrize(
    "shape", [
        {"heads": 1, "layers": 3, "width": 576, "tokens": 64, "components": ("latent",), "kind": "mla"},  # cells larger than a piece
        {"heads": 2, "layers": 2, "width": 8, "tokens": 16, "bits": 8},  # pages smaller than a piece
        {"heads": 4, "layers": 3, "width": 64, "tokens": 16, "grade": "cell"},
        {"heads": 2, "layers": 5, "width": 64, "tokens": 16, "grade": "whole"},
        {"heads": 2, "layers": 24, "width": 128, "tokens": 256},  # 6 MiB: more than a chunk
    ],
    ids=["mla", "small", "cell", "whole", "large"],
)  # fmt: skip
def test_shapes(client, spec_text, shape):
    session = client.open(spec_text(**shape))
    keys = keys_of(3)
    source, memory = flat(session, 3, seed=5)
    assert good(session.publish(keys, memory))
    target, into = flat(session, 3)
    assert good(session.fetch(keys, into)) and np.array_equal(target, source)


def test_a_view_of_whole_pages_is_refused(client, spec_text):
    session = client.open(spec_text(2, 4, 64, 16, grade="whole"))
    v = View(0, 1, 0, 4)
    for call in (session.fetch, session.publish):
        with pytest.raises(QuireError) as e:
            call(keys_of(1), flat(session, 1, v)[1], view=v)
        assert e.value.reason is Reason.INVALID_VIEW and not e.value.broken


def test_leases(session):
    keys = keys_of(4)
    source, memory = flat(session, 4, seed=6)
    session.publish(keys, memory)
    there = session.exists([*keys, *keys_of(1)], lease=30.0)
    lease = there.lease
    assert lease is not None and lease.covered == 4 and 0 < lease.remaining <= 30 and not lease.expired
    target, into = flat(session, 4)
    assert good(session.fetch(keys, into, lease=lease)) and np.array_equal(target, source)
    other = session.lease(lease.id, lease.ttl, lease.covered)  # as another process would
    assert good(session.fetch(keys, into, lease=other))
    lease.renew(50.0)
    assert 30 < lease.remaining <= 50
    lease.release_pages(keys[2:])
    lease.release()
    lease.release()
    assert lease.expired
    assert reasons(session.fetch(keys, into, lease=lease)) == [Reason.LEASE_EXPIRED] * 4
    assert all(r is not Reason.NONE for r in reasons(session.fetch(keys, into, lease=other))), "the server does not know it any more"
    assert session.exists(keys_of(2), lease=5.0).lease is None
    short = session.exists(keys, lease=0.05).lease
    assert short is not None
    until("the lease's end", lambda: short.expired)
    assert reasons(session.fetch(keys, into, lease=short)) == [Reason.LEASE_EXPIRED] * 4
    assert good(session.fetch(keys, into))


def held(server) -> tuple[int, int]:
    """Read leases and publications that a server holds."""
    said = server.run("status", "-o", "json").stdout
    found = [re.search(rf'"{name}": ?"?(\d+)', said) for name in ("read_leases", "publications")]
    return tuple(int(m[1]) if m else 0 for m in found)  # type: ignore[return-value]


def test_leases_end_with_their_session(client, session, quire_server, spec_text):
    keys = keys_of(2)
    session.publish(keys, flat(session, 2, seed=7)[1])
    with Client(client.options) as other:
        second = other.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))
        assert second.exists(keys, lease=60.0).lease is not None
        until("the lease is held", lambda: held(quire_server)[0] == 1)
    until("the lease went with its session", lambda: held(quire_server) == (0, 0))


def test_parents(session):
    keys = keys_of(4)
    _, memory = flat(session, 4, seed=8)
    missing = session.publish(keys[1:], memory.select(slice(1, 4)), parent=keys[0])
    assert reasons(missing)[0] is Reason.PARENT_MISSING and not any(p.ok for p in missing)
    assert not any(session.exists(keys).present)
    assert good(session.publish(keys[1:], memory.select(slice(1, 4)), parent=keys[0], unlinked=True))
    assert session.exists(keys).present == [False, True, True, True]
    chain = keys_of(4)
    assert good(session.publish(chain[:2], memory.select(slice(0, 2)), parent=ROOT_PARENT))
    assert good(session.publish(chain[2:], memory.select(slice(2, 4)), parent=chain[1]))
    assert good(session.publish(keys_of(1), memory.select([0]), parent=UNKNOWN_PARENT))
    assert good(session.publish(keys_of(1), memory.select([0]), parent=None))
    with pytest.raises(QuireError) as e:
        session.publish(keys_of(1), memory.select([0]), parent=b"short")
    assert e.value.reason is Reason.SIZE_MISMATCH


def test_delete_and_publish_again(session):
    keys = keys_of(3)
    source, memory = flat(session, 3, seed=9)
    session.publish(keys, memory)
    assert good(session.touch(keys))
    assert good(session.delete(keys[1:2]))
    assert session.exists(keys).present == [True, False, True]
    assert reasons(session.delete([keys[1]]))[0] is not Reason.NONE
    assert reasons(session.fetch(keys, flat(session, 3)[1])) == [Reason.NONE, Reason.ABSENT, Reason.NONE]
    assert good(session.publish(keys, memory, parent=ROOT_PARENT))
    target, into = flat(session, 3)
    assert good(session.fetch(keys, into)) and np.array_equal(target, source)


def test_a_fence_keeps_pages_back(session):
    keys = keys_of(3)
    _, memory = flat(session, 3, seed=10)
    asked = []

    def fence(pages):
        asked.append(list(pages))
        return [p != 1 for p in pages]

    assert reasons(session.publish(keys, memory, fence=fence)) == [Reason.NONE, Reason.ABORTED, Reason.NONE]
    assert asked == [[0, 1, 2]] and session.exists(keys).present == [True, False, True]
    assert good(session.publish(keys, memory)), "what was kept back is free at once"


def test_a_fence_that_raises_publishes_nothing(session):
    keys = keys_of(2)
    _, memory = flat(session, 2, seed=11)

    def fence(pages):
        raise RuntimeError("the engine's fault")

    with pytest.raises(RuntimeError):
        session.publish(keys, memory, fence=fence)
    assert not any(session.exists(keys).present)
    assert good(session.publish(keys, memory))


def test_wrong_sizes(session):
    g = session.only
    for keys, memory, reason in (
        (keys_of(2), flat(session, 1)[1], Reason.BUFFER_SIZE),
        (keys_of(1), flat(session, 1, View(0, 1, 0, 1))[1], Reason.BUFFER_SIZE),
        ([b"short"], flat(session, 1)[1], Reason.SIZE_MISMATCH),
    ):
        for call in (session.fetch, session.publish):
            with pytest.raises(QuireError) as e:
                call(keys, memory)
            assert e.value.reason is reason and not e.value.broken
    for bad in (dict(group=bytes(32)), dict(scope=b"x"), dict(view=View(0, 99, 0, 1))):
        with pytest.raises(QuireError) as e:
            session.fetch(keys_of(1), flat(session, 1)[1], **bad)
        assert not e.value.broken
    with pytest.raises(QuireError):
        session.exists([b"short"])
    assert g.hash_bytes == 32


def test_scopes_are_apart(session):
    keys = keys_of(2)
    source, memory = flat(session, 2, seed=12)
    scope = os.urandom(32)
    assert good(session.publish(keys, memory, scope=scope))
    assert not any(session.exists(keys).present) and session.exists(keys, scope=scope).leading == 2
    target, into = flat(session, 2)
    assert good(session.fetch(keys, into, scope=scope)) and np.array_equal(target, source)
    assert reasons(session.fetch(keys, into)) == [Reason.ABSENT] * 2


def test_retire_and_purge(client, session, spec_text):
    keys = keys_of(2)
    _, memory = flat(session, 2, seed=13)
    session.publish(keys, memory)
    client.namespaces("Purge", proto.PurgeRequest(id=session.namespace))
    for call in (lambda: session.exists(keys), lambda: session.fetch(keys, memory), lambda: session.publish(keys, memory)):
        with pytest.raises(QuireError) as e:
            call()
        assert e.value.reason is Reason.STALE_EPOCH and not e.value.broken
    again = client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))
    assert again.epoch == session.epoch + 1 and not any(again.exists(keys).present)
    again.publish(keys, memory)
    client.namespaces("Drain", proto.DrainRequest(id=again.namespace))
    assert good(again.fetch(keys, memory)), "reads go on"
    with pytest.raises(QuireError) as e:
        again.publish(keys_of(2), memory)
    assert e.value.reason is Reason.DRAINING and not e.value.broken
    client.namespaces("Retire", proto.RetireRequest(id=again.namespace))
    with pytest.raises(QuireError) as e:
        again.publish(keys, memory)
    assert e.value.reason is Reason.RETIRED
    try:
        assert not any(p.ok for p in again.fetch(keys, memory))
    except QuireError as e2:
        assert not e2.broken


def test_invalidate(client, session, spec_text):
    keys = keys_of(2)
    source, memory = flat(session, 2, seed=14)
    session.publish(keys[:1], memory.select([0]))

    def fence(pages):
        done = threading.Thread(target=session.invalidate, args=("new weights",))
        done.start()
        until("the session noticed", lambda: session._ended is not None)
        return [True] * len(pages)

    with pytest.raises(QuireError) as e:
        session.publish(keys[1:], memory.select([1]), parent=keys[0], fence=fence)
    assert e.value.reason is Reason.STALE_EPOCH and not e.value.broken
    assert session.generation == 1
    assert session.exists(keys).present == [False, False]
    assert reasons(session.fetch(keys, memory)) == [Reason.STALE_EPOCH] * 2
    assert reasons(session.publish(keys, memory)) == [Reason.STALE_EPOCH] * 2
    again = client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))
    assert again.exists(keys).present == [True, False], "nothing of what was in flight became visible"


def test_workers_attach_by_id(client, session):
    keys = keys_of(2)
    source, memory = flat(session, 2, seed=15)
    worker = client.open_id(session.namespace, session.canonical_provenance)
    assert worker.provenance == session.provenance and worker.geometries == session.geometries
    assert good(worker.publish(keys, memory))
    reader = client.open_id(session.namespace)
    target, into = flat(session, 2)
    assert good(reader.fetch(keys, into)) and np.array_equal(target, source)
    with pytest.raises(QuireError) as e:
        reader.publish(keys, memory)
    assert e.value.reason is Reason.PROVENANCE
    with pytest.raises(QuireError) as e:
        client.open_id(bytes(32))
    assert e.value.reason is Reason.ABSENT and not e.value.broken


def test_reports(session, quire_server):
    counters = {
        "lookups": 3,
        "lookup_keys": 30,
        "hits": 20,
        "loaded_pages": 7,
        "load_bytes": 1000,
        "saved_pages": 2,
        "save_bytes": 10,
        "recompute_fallbacks": 1,
    }
    again = session.report(
        counters, {Reason.CORRUPT: 2, Reason.NONE: 5}, instance="gpu-7:1\n", engine="vllm 0", adapter="quire_kv.test", breaker="open", uptime=1.5
    )
    assert again >= 1.0
    assert (
        "gpu-7:1"
        in quire_server.run("ns", "get", session.namespace.hex(), "-o", "json", check=False).stdout + quire_server.run("ns", "list", "-o", "json").stdout
    )


def test_identity_refusals_name_what_differs(client, session, spec_text):
    keys = keys_of(1)
    session.publish(keys, flat(session, 1, seed=16)[1])
    with pytest.raises(QuireError) as e:
        client.open("model: {id: x}")
    assert e.value.reason is Reason.INVALID_SPEC and e.value.path and not e.value.broken
    forked = re.sub(r"seed: sha256:[0-9a-f]{64}", "seed: sha256:" + "ab" * 32, spec_text(HEADS, LAYERS, WIDTH, TOKENS))
    with pytest.raises(QuireError) as e:
        client.open(forked)
    assert e.value.reason is Reason.HASH_CONTRACT_FORK and any("seed" in d.path for d in e.value.differences) and "seed" in str(e.value)
    sibling = client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS, weights="sha256:" + "cd" * 32))
    assert sibling.namespace != session.namespace
    assert not any(sibling.exists(keys).present)


def test_limits_split_batches_unseen(server_factory, transport, spec_text):
    server = server_factory(max_keys="16", max_batch="1MiB", max_chunk="64KiB")
    with Client(Options(server.address, transport=transport, call_timeout=GUARD_SECONDS)) as client:
        session = client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))  # pages of 192 KiB: five a batch
        keys = keys_of(40)
        source, memory = flat(session, 40, seed=17)
        assert good(session.publish(keys, memory, parent=ROOT_PARENT))
        there = session.exists([*keys, *keys_of(3)], lease=10.0)
        assert there.leading == 40 and there.present == [True] * 40 + [False] * 3
        assert there.lease is not None and there.lease.covered == 16
        target, into = flat(session, 40)
        assert good(session.fetch(keys, into)) and np.array_equal(target, source)
        assert good(session.delete(keys))


def test_a_large_fetch_goes_over_several_connections(quire_server, spec_text, monkeypatch):
    monkeypatch.setattr(fetch, "_WORTH_A_STREAM", 1 << 20)
    monkeypatch.setattr(fetch, "_WORTH_A_SLOW_STREAM", 1 << 20)
    with Client(Options(quire_server.address, transport="data", data_connections=3, call_timeout=GUARD_SECONDS)) as client:
        session = client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))
        keys = keys_of(40)
        source, memory = flat(session, 40, seed=23)
        assert good(session.publish(keys, memory))

        def connections_of_a_fetch() -> int:
            target, into = flat(session, 40)
            assert good(session.fetch(keys, into)) and np.array_equal(target, source)
            return len(client._ways[0].transport._pool._all)

        until("a fetch over several connections", lambda: connections_of_a_fetch() > 1)
        assert connections_of_a_fetch() <= 3


def test_many_keys_are_one_call(client, session, quire_server):
    def calls() -> float:
        return quire_server.metric("quire_requests_total", method="BatchExists")

    for n in (4096, 16384):
        before = calls()
        assert session.exists(keys_of(n)).present == [False] * n
        assert calls() - before == 1
    before = calls()
    assert session.exists(keys_of(16385)).leading == 0
    assert calls() - before == 2


def test_two_processes_share_a_namespace(quire_server, session, transport, spec_text, tmp_path):
    """One writes, the other reads; both open by the same spec."""
    keys = keys_of(8)
    source, memory = flat(session, 8, seed=18)
    script = (
        "import sys, numpy as np\n"
        "from quire_kv.client import *\n"
        "from quire_kv.layout import PageMemory\n"
        "address, transport, spec, hexes, out = sys.argv[1:]\n"
        "keys = [bytes.fromhex(h) for h in hexes.split(',')]\n"
        "with Client(Options(address, transport=transport, call_timeout=20)) as c:\n"
        "    s = c.open(open(spec).read())\n"
        "    room = np.zeros((len(keys), s.only.page_bytes), dtype=np.uint8)\n"
        "    there = s.exists(keys, lease=10.0)\n"
        "    answers = s.fetch(keys, PageMemory.flat(list(room), s.only, s.only.whole), lease=there.lease)\n"
        "    assert all(a.ok for a in answers), answers\n"
        "    room.tofile(out)\n"
    )
    assert good(session.publish(keys, memory))
    spec = tmp_path / "spec"
    spec.write_text(spec_text(HEADS, LAYERS, WIDTH, TOKENS))
    out = tmp_path / "pages"
    served = quire_server.read_counter()
    subprocess.run(
        [sys.executable, "-c", script, quire_server.address, transport, str(spec), ",".join(k.hex() for k in keys), str(out)], check=True, timeout=60
    )
    assert np.array_equal(np.fromfile(out, dtype=np.uint8).reshape(source.shape), source)
    assert quire_server.read_counter() - served == source.nbytes


def test_calls_side_by_side(session):
    """Many threads over few connections: everyone gets its own pages."""
    failures: list[object] = []

    def work(seed: int) -> None:
        try:
            keys = keys_of(6)
            source, memory = flat(session, 6, seed=seed)
            for _ in range(4):
                assert good(session.publish(keys, memory))
                target, into = flat(session, 6)
                assert good(session.fetch(keys, into)) and np.array_equal(target, source)
                assert session.exists(keys).leading == 6
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(100 + i,)) for i in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures[0]


def test_a_server_that_stands_still(quire_server, session):
    keys = keys_of(2)
    _, memory = flat(session, 2, seed=19)
    session.publish(keys, memory)
    stand_still(quire_server)
    try:
        for call in (
            lambda: session.exists(keys, timeout=0.2),
            lambda: session.fetch(keys, memory, timeout=0.2),
            lambda: session.publish(keys_of(2), memory, timeout=0.2),
        ):
            began = time.monotonic()
            with pytest.raises(DeadlineError) as e:
                call()
            assert e.value.broken and time.monotonic() - began < GUARD_SECONDS / 2
    finally:
        quire_server.resume()
    assert good(session.fetch(keys, memory))


def test_a_server_that_comes_back(quire_server, session):
    """Calls fail at once while it is away, and go on when it is back, also leases, without another open."""
    keys = keys_of(2)
    _, memory = flat(session, 2, seed=20)
    session.publish(keys, memory)
    quire_server.kill()
    with pytest.raises(QuireError) as e:
        session.exists(keys, timeout=5.0)
    assert e.value.broken
    quire_server.start()

    def answers() -> bool:
        try:
            return not any(session.exists(keys, timeout=1.0).present)  # its memory was lost
        except QuireError as e:
            assert e.broken
            return False

    until("the server's answer", answers)
    assert good(session.publish(keys, memory))
    until("another stream of the session", lambda: session._session_id != b"")
    assert session.exists(keys, lease=5.0).lease is not None


def test_nobody_listens(transport):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
        with Client(Options(address, transport=transport, call_timeout=GUARD_SECONDS)) as client:
            began = time.monotonic()
            with pytest.raises(QuireError) as e:
                client.open("model: {}", timeout=0.5)
            assert e.value.broken and time.monotonic() - began < GUARD_SECONDS / 2
            with pytest.raises(QuireError):
                client.capabilities(timeout=0.2)


def test_options_name_what_is_wrong():
    for bad, word in (
        (dict(address="nowhere"), "address"), (dict(address="h:1", transport="pigeon"), "transport"), (dict(address="h:1", data_connections=0), "data_connections"),
        (dict(address="h:1", staging_bytes=1), "staging_bytes"), (dict(address="h:1", call_timeout=0), "call_timeout"),
        (dict(address="h:1", tls=Tls(cert="x")), "key"), (dict(address="h:1", tls=Tls(ca="x"), insecure=True), "insecure"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=word):
            Options(**bad)
    assert "secret" not in repr(Options("h:1", token="secret"))


def test_tokens(server_factory, transport, spec_text, tmp_path):
    server = server_factory(auth="token")
    operator = (server.directory / "data" / "operator.token").read_text().strip()
    with Client(Options(server.address, transport=transport, call_timeout=GUARD_SECONDS, token=operator)) as client:
        session = client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))
        assert client.transport == transport
        keys = keys_of(2)
        source, memory = flat(session, 2, seed=21)
        assert good(session.publish(keys, memory))
        target, into = flat(session, 2)
        assert good(session.fetch(keys, into)) and np.array_equal(target, source)
    for token in (None, "qk_wrong"):
        with Client(Options(server.address, transport=transport, call_timeout=GUARD_SECONDS, token=token)) as client:
            with pytest.raises(QuireError) as e:
                client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))
            assert e.value.reason is Reason.UNAUTHORIZED and not e.value.broken


@pytest.mark.parametrize("transport", ["grpc", "data"])
def test_mutual_tls(quire_bin, server_factory, transport, spec_text, tmp_path):
    certs = tmp_path / "certs"
    subprocess.run([quire_bin, "tls", "dev", str(certs)], check=True, capture_output=True)
    server = server_factory(auth="mtls", shm_socket="off", tls_cert=certs / "server.pem", tls_key=certs / "server-key.pem", tls_client_ca=certs / "ca.pem")
    mine = sorted(certs.glob("client-default-engine-*-key.pem"))[0]
    tls = Tls(ca=str(certs / "ca.pem"), cert=str(mine).replace("-key.pem", ".pem"), key=str(mine))
    with Client(Options(server.address, transport=transport, call_timeout=GUARD_SECONDS, tls=tls)) as client:
        session = client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))
        assert client.transport == transport
        keys = keys_of(30)
        source, memory = flat(session, 30, seed=22)
        assert good(session.publish(keys, memory))
        target, into = flat(session, 30)
        assert good(session.fetch(keys, into)) and np.array_equal(target, source)
    with Client(Options(server.address, transport=transport, tls=Tls(ca=str(certs / "ca.pem")))) as client:
        with pytest.raises(QuireError):
            client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS), timeout=2.0)


def test_auto_takes_the_best_and_falls_back(quire_server, spec_text):
    with Client(Options(quire_server.address, call_timeout=GUARD_SECONDS)) as client:
        session = client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))
        assert client.transport == "shm" and client.why == ""
        keys = keys_of(2)
        source, memory = flat(session, 2, seed=23)
        assert good(session.publish(keys, memory))
        os.rename(quire_server.socket, quire_server.socket + ".away")
        for c in list(client._ways[0].transport._pool._all):
            c.abort()
        target, into = flat(session, 2)
        assert good(session.fetch(keys, into)) and np.array_equal(target, source)
        assert client.transport == "data" and "shm" in client.why or client.transport == "data"


def test_a_signal_does_not_break_a_call(session):
    """Python's own handlers run between system calls; nothing is lost by it."""
    keys = keys_of(4)
    source, memory = flat(session, 4, seed=24)
    session.publish(keys, memory)
    hits = []
    before = signal.signal(signal.SIGALRM, lambda *_: hits.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for _ in range(50):
            target, into = flat(session, 4)
            assert good(session.fetch(keys, into)) and np.array_equal(target, source)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert hits


def test_the_suite_s_server_serves_all_ways(quire_server):
    assert isinstance(quire_server, serving.Server) and quire_server.data_address and os.path.exists(quire_server.socket)
