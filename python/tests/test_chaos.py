"""The one promise to engines, held by the cache that all adapters stand on: whatever the store does, no call raises, none
outlives its deadline, every answer has the right length, and what is said to be loaded is right.

The store is a real one behind doubles.chaos, over each way in. Faults and methods: doubles.faults.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import logging
import os
import threading
import time

import numpy as np
import pytest
from doubles.faults import STATUS_CODES, TELLING, Fault, every_fault
from serving import spec_text
from waiting import PATIENT, wait_for

from quire_kv import breaker
from quire_kv.cache import Cache
from quire_kv.config import Config
from quire_kv.errors import QuireError, Reason
from quire_kv.layout import PageMemory

pytestmark = pytest.mark.once

WAYS = ("grpc", "data", "shm")
PAGES = 3
TIMEOUT_MS = 250
SLACK_SECONDS = 10.0  # of a busy machine; a call that waits for an answer that never comes would take for ever
RECOVERS_SECONDS = 15.0

log = logging.getLogger("quire_kv.test")


QUICK = {f"{call}_timeout_ms": TIMEOUT_MS for call in ("lookup", "load", "save")}


def config(address: str, way: str, timeouts: dict[str, int]) -> Config:
    return Config.parse({"server": address, "transport": way, "open_timeout_ms": 2000, **timeouts}, frozenset())


class Engine:
    """What an adapter does, on pages of its own: one chain after the other."""

    def __init__(self, address: str, way: str, timeouts: dict[str, int] = QUICK):
        self.cache = Cache(config(address, way, timeouts), spec_text(heads=2, layers=2, width=8, tokens=4), log, adapter="test", engine="test")
        self.chains = 0
        self.room: np.ndarray | None = None

    def start(self) -> Engine:
        assert self.cache.wait_ready(RECOVERS_SECONDS), self.cache.state
        geometry = self.cache.geometry()
        self.room = np.zeros((PAGES, geometry.page_bytes), np.uint8)
        self.memory = PageMemory.flat(list(self.room), geometry, geometry.whole)
        return self

    def chain(self) -> tuple[list[bytes], np.ndarray]:
        """Keys that nobody has used, and the pages that belong to them."""
        self.chains += 1
        keys = [hashlib.sha256(f"{id(self)} {self.chains} {i}".encode()).digest() for i in range(PAGES)]
        return keys, np.random.default_rng(self.chains).integers(0, 256, self.room.shape, np.uint8)

    def save(self, keys, pages) -> list[bool]:
        self.room[:] = pages
        return self._call(self.cache.save, keys, self.memory)

    def load(self, keys, pages) -> list[bool]:
        self.room[:] = 0xEE
        good = self._call(self.cache.load, keys, self.memory)
        for i, ok in enumerate(good):
            assert not ok or np.array_equal(self.room[i], pages[i]), f"page {i} is not what was stored"
        return good

    def lookup(self, keys, **kw):
        found = self._call(self.cache.lookup, keys, length=None, **kw)
        assert len(found.present) == len(keys)
        assert 0 <= found.leading <= len(keys) and all(found.present[: found.leading])
        if found.lease is not None:
            found.lease.release()
        return found

    def _call(self, call, keys, *args, length=PAGES, **kw):
        began = time.monotonic()
        answer = call(keys, *args, **kw)
        assert time.monotonic() - began < TIMEOUT_MS / 1000 + SLACK_SECONDS, f"{call.__name__} outlived its deadline"
        if length is not None:
            assert len(answer) == length and all(type(ok) is bool for ok in answer)
        return answer

    def stored(self, keys, pages) -> bool:
        """Saves where nothing is wrong: not to fail because the machine is busy."""
        self.room[:] = pages
        return self.cache.save(keys, self.memory, timeout=RECOVERS_SECONDS) == [True] * PAGES

    def served(self, keys, pages) -> bool:
        """Loads where nothing is wrong."""
        self.room[:] = 0xEE
        return self.cache.load(keys, self.memory, timeout=RECOVERS_SECONDS) == [True] * PAGES and np.array_equal(self.room, pages)

    def everything(self, stored, pages) -> None:
        """Each public call once, with no word on what it answers."""
        self.lookup(stored, lease=1.0)
        self.load(stored, pages)
        self.save(*self.chain())

    def close(self) -> None:
        began = time.monotonic()
        self.cache.close()
        assert time.monotonic() - began < 1.0 + SLACK_SECONDS


@pytest.fixture
def engine_of():
    engines = []

    def make(address, way, **timeouts):
        engines.append(Engine(address, way, timeouts or QUICK))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.mark.limit(300)
@pytest.mark.parametrize("way", WAYS)
def test_case_c42_no_fault_of_the_store_reaches_the_engine(chaos, engine_of, no_pauses, way):
    engine = engine_of(chaos.address, way).start()
    assert engine.cache.transport == way
    for fault in every_fault(reasons=tuple(Reason) if way == "grpc" else TELLING):
        keys, pages = engine.chain()
        assert engine.stored(keys, pages), f"before {fault}: {engine.cache.state}"
        struck = chaos.struck
        chaos.fault = fault
        began = time.monotonic()
        while True:
            opened = engine.cache.stats()["breaker_opened"]
            try:
                engine.everything(keys, pages)
            except AssertionError as wrong:
                raise AssertionError(f"{fault}: {wrong}") from wrong
            if chaos.struck > struck or fault.methods == {"ReleaseLease"}:
                break
            # on a busy machine a call before it ran out of time, and the breaker kept the others back
            assert engine.cache.stats()["breaker_opened"] > opened and time.monotonic() - began < RECOVERS_SECONDS, f"{fault} hit no call, and shows nothing"
            wait_for(lambda: engine.cache.ready, RECOVERS_SECONDS, f"recovery before {fault}")
        chaos.fault = None
        wait_for(lambda: engine.cache.ready, RECOVERS_SECONDS, f"recovery from {fault}")
        assert engine.served(keys, pages), f"after {fault}: {engine.cache.state}"
    assert engine.cache._keeper.is_alive()
    assert chaos.calls["ReleaseLease"] > 0


@pytest.mark.parametrize("way", WAYS)
def test_case_c42_the_client_raises_its_own_errors_alone(chaos, engine_of, no_pauses, way):
    """The cache would catch others too. What it does about a failure it decides by what the error says."""
    engine = engine_of(chaos.address, way).start()
    seconds = TIMEOUT_MS / 1000
    for fault in every_fault(reasons=(Reason.BUSY,)):
        keys, pages = engine.chain()
        engine.stored(keys, pages)
        session, (others, _) = engine.cache.session, engine.chain()
        chaos.fault = fault
        for call in (
            lambda s=session, k=keys: s.exists(k, lease=1.0, timeout=seconds),
            lambda s=session, k=keys: s.fetch(k, engine.memory, timeout=seconds),
            lambda s=session, k=others: s.publish(k, engine.memory, timeout=seconds),
        ):
            with contextlib.suppress(QuireError):
                call()
        chaos.fault = None
        wait_for(lambda: engine.cache.ready, RECOVERS_SECONDS, f"recovery from {fault}")


@pytest.mark.parametrize("way", WAYS)
def test_case_c42_a_store_that_refuses_at_the_door(chaos, engine_of, way):
    """Faults of opening: the cache says so, everything is a miss, and it opens by itself where that can help."""
    for fault in [Fault("code", frozenset({"Open"}), code) for code in STATUS_CODES] + [
        Fault(what, frozenset({method})) for what in ("garbage", "empty", "hang", "close") for method in ("Open", "GetCapabilities", "Attach")
    ]:
        chaos.fault = fault
        struck = chaos.struck  # before the cache begins: a refusal that is final comes once
        engine = engine_of(chaos.address, way)
        wait_for(lambda before=struck: chaos.struck > before, RECOVERS_SECONDS, f"{fault}")
        keys = [bytes(32)] * PAGES
        assert engine.lookup(keys).leading == 0 or engine.cache.ready
        chaos.fault = None
        wait_for(lambda e=engine: e.cache.ready or e.cache.state.startswith("off:"), RECOVERS_SECONDS, f"an end of {fault}")
        if fault.what != "code":
            assert engine.cache.ready, f"{fault}: {engine.cache.state}"
        engine.close()


@pytest.mark.parametrize("way", WAYS)
def test_case_c43_a_store_that_is_absent_at_the_start(chaos, engine_of, way):
    address = chaos.address
    chaos.down()
    engine = engine_of(address, way)
    keys = [bytes([i]) * 32 for i in range(PAGES)]
    for _ in range(100):
        assert engine.lookup(keys).leading == 0
        assert not engine.cache.ready
    chaos.up()
    engine.start()
    keys, pages = engine.chain()
    assert engine.stored(keys, pages) and engine.served(keys, pages)


def page_calls(chaos) -> int:
    return sum(n for method, n in chaos.calls.items() if method not in ("GetCapabilities", "Attach", "Report"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", ["hang", "close", "code"])
def test_case_c43_the_breaker_opens_and_calls_cost_nothing(chaos, engine_of, way, what):
    engine = engine_of(chaos.address, way).start()
    keys, pages = engine.chain()
    assert engine.stored(keys, pages)
    chaos.fault = Fault(what, number=14)  # UNAVAILABLE, where it is a code
    failed = 0
    while engine.cache.ready:
        failed += 1
        assert failed <= breaker.FAILURES, "the breaker did not open"
        assert engine.lookup(keys, timeout=1.0).leading == 0
    assert failed == 1 or what != "hang", "a deadline opens it at once"
    wait_for(lambda: chaos.struck >= failed, RECOVERS_SECONDS, "the arrival of what went out before")
    before, refused = page_calls(chaos), engine.cache.stats()["refused_open"]
    for _ in range(200):
        assert engine.lookup(keys).leading == 0
        assert engine.load(keys, pages) == [False] * PAGES
        assert engine.save(keys, pages) == [False] * PAGES
    assert page_calls(chaos) == before, "a call went out while the breaker was open"
    assert engine.cache.stats()["refused_open"] == refused + 600
    chaos.fault = None
    wait_for(lambda: engine.cache.ready, RECOVERS_SECONDS, "recovery")
    assert engine.served(keys, pages)


@pytest.mark.parametrize("way", WAYS)
def test_case_c43_a_store_that_dies_and_comes_back(quire_server, engine_of, way):
    """Killed in the middle of reads, stopped, and started again: nothing is restarted on the engine's side."""
    engine = engine_of(quire_server.address, way).start()
    keys, pages = engine.chain()
    assert engine.stored(keys, pages)
    ended = threading.Event()
    wrong: list[BaseException] = []

    def read():
        try:
            while not ended.is_set():
                engine.load(keys, pages)
        except BaseException as e:
            wrong.append(e)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        before = engine.cache.stats()["loaded_pages"]
        wait_for(lambda: engine.cache.stats()["loaded_pages"] > before + 30, RECOVERS_SECONDS, "reading")
        quire_server.kill()
        wait_for(lambda: not engine.cache.ready, RECOVERS_SECONDS, "the breaker")
    finally:
        ended.set()
        reader.join(10)
    assert not reader.is_alive() and not wrong, wrong
    quire_server.restart()
    wait_for(lambda: engine.cache.ready, RECOVERS_SECONDS, "recovery")
    wait_for(lambda: engine.stored(keys, pages), RECOVERS_SECONDS, "a page in the new store")
    assert engine.served(keys, pages)
    quire_server.pause()
    try:
        engine.everything(keys, pages)
        assert not engine.cache.ready
    finally:
        quire_server.resume()
    wait_for(lambda: engine.cache.ready, RECOVERS_SECONDS, "recovery")
    assert engine.served(keys, pages)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reason", [Reason.BUSY, Reason.HELD])
def test_case_c48_a_refusal_that_passes_is_tried_once_more(chaos, engine_of, way, reason):
    engine = engine_of(chaos.address, way).start()
    keys, pages = engine.chain()
    chaos.fault = Fault("reason", frozenset({"BeginPublish"}), reason, times=1)
    assert engine.stored(keys, pages), "one refusal, and the retry was not made"
    chaos.fault = Fault("reason", frozenset({"BeginPublish"}), reason)
    others, other_pages = engine.chain()
    before = chaos.calls["BeginPublish"]
    engine.room[:] = other_pages
    answers = engine.cache.save(others, engine.memory, timeout=RECOVERS_SECONDS)
    assert chaos.calls["BeginPublish"] - before == 2, "once more, and no more"
    chaos.fault = None
    assert answers == list(map(bool, engine.lookup(others, timeout=RECOVERS_SECONDS).present)), "the answers are what the store holds"
    assert not any(answers) and all(engine.lookup(keys, timeout=RECOVERS_SECONDS).present)


@pytest.mark.parametrize(
    "fault", [Fault("close", frozenset({"CommitPublish"})), Fault("cut", frozenset({"CommitPublish"})), Fault("hang", frozenset({"CommitPublish"}))], ids=str
)
def test_case_c48_a_commit_whose_answer_is_lost_is_not_claimed(chaos, engine_of, fault):
    """A page may then be stored and not be claimed. It is never claimed and not stored."""
    engine = engine_of(chaos.address, "data").start()
    keys, pages = engine.chain()
    chaos.fault = fault
    answers = engine.save(keys, pages)
    chaos.fault = None
    wait_for(lambda: engine.cache.ready, RECOVERS_SECONDS, "recovery")
    present = engine.lookup(keys, timeout=RECOVERS_SECONDS).present
    assert all(p for p, claimed in zip(present, answers, strict=True) if claimed)
    assert engine.stored(keys, pages), "and it can be published again"


CALLS = 100_000


def held() -> tuple[int, int, int]:
    """Descriptors, threads and resident bytes of this process."""
    gc.collect()
    with open("/proc/self/statm") as f:
        return len(os.listdir("/proc/self/fd")), threading.active_count(), int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.limit(600)
def test_a_hundred_thousand_calls_leak_nothing(quire_server, engine_of):
    """Half of them answered over shared memory, half refused by the open breaker: no more is held than after the first."""
    engine = engine_of(quire_server.address, "shm", **PATIENT).start()
    keys, pages = engine.chain()
    assert engine.stored(keys, pages)

    def calls(times: int) -> None:
        for n in range(times // 4):
            found = engine.cache.lookup(keys, lease=1.0 if n % 16 == 0 else None)
            if found.lease is not None:
                found.lease.release()
            engine.cache.lookup(keys)
            engine.cache.load(keys, engine.memory)
            engine.cache.save(keys, engine.memory)

    calls(CALLS // 20)
    assert engine.served(keys, pages), "the calls that are counted are answered"
    fds, threads, resident = held()
    calls(CALLS // 2)
    quire_server.kill()
    wait_for(lambda: not engine.cache.lookup(keys).leading and not engine.cache.ready, RECOVERS_SECONDS, "the breaker")
    calls(CALLS // 2)
    assert engine.cache.stats()["refused_open"] >= CALLS // 2
    # the store is dead and asked now and then whether it is back: gRPC has a thread and files for as long as that takes
    wait_for(lambda: held()[0] <= fds and held()[1] <= threads, RECOVERS_SECONDS, "the end of what a probe holds")
    assert held()[2] - resident < 16 << 20, "memory grew"
