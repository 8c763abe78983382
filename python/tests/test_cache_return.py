"""A store that goes and comes back: the cache knows, whether anybody calls or not, and needs no restart."""

from __future__ import annotations

import hashlib
import logging
import threading
import time

import numpy as np
import pytest
from doubles.faults import Fault
from serving import spec_text
from waiting import PATIENT, wait_for

from quire_kv import cache as cache_module
from quire_kv.cache import Cache
from quire_kv.client import ROOT_PARENT
from quire_kv.config import Config
from quire_kv.errors import QuireError, Reason
from quire_kv.layout import PageMemory
from quire_kv.page import Page

pytestmark = pytest.mark.once

SECONDS = 20.0  # for what comes about by itself
NOTICED_SECONDS = cache_module._REPORT_SECONDS / 2  # sooner than any call of its own would tell an idle cache
BACK_SECONDS = 5.0  # of the promise: from the store's return to a hit
WAYS = ("grpc", "data", "shm")
log = logging.getLogger("quire_kv.test")


def chain(n: int, name: str) -> list[bytes]:
    return [hashlib.sha256(f"{name} {i}".encode()).digest() for i in range(n)]


class Rig:
    """A cache on a server, and pages of known bytes."""

    def __init__(self, address: str, spec: str = "", **settings):
        self.cache = Cache(Config.parse({"server": address, "open_timeout_ms": 1000, **PATIENT, **settings}), spec or spec_text(), log, adapter="test")
        assert self.cache.wait_ready(SECONDS), self.cache.state
        self.geometry = self.cache.geometry()

    def memory(self, n: int, seed: int | None = None) -> tuple[PageMemory, np.ndarray]:
        room = np.zeros((n, self.geometry.page_bytes), np.uint8)
        if seed is not None:
            room[:] = np.random.default_rng(seed).integers(0, 256, room.shape, np.uint8)
        return PageMemory.flat(list(room), self.geometry, self.geometry.whole), room

    def save(self, keys: list[bytes], seed: int = 1) -> np.ndarray:
        memory, room = self.memory(len(keys), seed)
        assert self.cache.save(keys, memory, parent=ROOT_PARENT) == [True] * len(keys), self.cache.stats()
        return room


@pytest.fixture
def rig_of():
    made = []

    def make(address, **settings):
        made.append(Rig(address, **settings))
        return made[-1]

    yield make
    for r in made:
        r.cache.close()


def hits(rig, keys) -> bool:
    return rig.cache.lookup(keys).leading == len(keys)


@pytest.mark.parametrize("kept", [True, False], ids=["with a directory", "in memory alone"])
@pytest.mark.parametrize("way", WAYS)
def test_case_c43_an_idle_cache_knows_that_its_store_went_and_is_back(server_factory, rig_of, way, kept):
    """Nobody calls. A store without a directory forgets its namespaces with its pages: they are opened again."""
    server = server_factory(**({"disk": "64MiB"} if kept else {"data": ""}))
    rig = rig_of(server.address, transport=way, durability="disk" if kept else None)
    keys = chain(3, "a")
    pages = rig.save(keys)
    server.kill()
    wait_for(lambda: not rig.cache.ready, NOTICED_SECONDS, "the breaker of an idle cache")
    assert rig.cache.state.startswith("away: ") and rig.cache.stats()["breaker_opened"] == 1
    lookups = rig.cache.stats()["lookups"]
    server.start()
    wait_for(lambda: rig.cache.ready, BACK_SECONDS, "the return of an idle cache")
    assert rig.cache.stats()["lookups"] == lookups, "nobody asked"
    wait_for(lambda: rig.cache.ready and rig.cache.session.boot == rig.cache._client.capabilities().boot, BACK_SECONDS, "the session of the new start")
    if kept:
        assert hits(rig, keys)
    else:
        assert not hits(rig, keys)
        pages = rig.save(keys)
    memory, room = rig.memory(3)
    assert rig.cache.load(keys, memory) == [True] * 3 and np.array_equal(room, pages)


@pytest.mark.parametrize("way", WAYS)
def test_case_c43_a_busy_cache_is_back_in_time(server_factory, rig_of, way):
    server = server_factory(disk="64MiB")
    rig = rig_of(server.address, transport=way, durability="disk")
    keys = chain(3, "a")
    rig.save(keys)
    ended, wrong = threading.Event(), []

    def calls():
        try:
            memory, _ = rig.memory(3)
            while not ended.is_set():
                rig.cache.lookup(keys)
                rig.cache.load(keys, memory)
        except BaseException as e:
            wrong.append(e)

    threads = [threading.Thread(target=calls) for _ in range(2)]
    for t in threads:
        t.start()
    try:
        for _ in range(2):
            server.kill()
            wait_for(lambda: not rig.cache.ready, NOTICED_SECONDS, "the breaker")
            server.start()
            wait_for(lambda: hits(rig, keys), BACK_SECONDS, "a hit after the store's return")
    finally:
        ended.set()
        for t in threads:
            t.join(SECONDS)
    assert not wrong, wrong


def test_a_restart_that_no_call_saw(server_factory, rig_of):
    """It is back before anybody could notice: what it forgot is opened again all the same."""
    server = server_factory(data="")
    rig = rig_of(server.address)
    keys = chain(2, "a")
    for n in range(3):
        rig.save(keys, seed=n)
        session = rig.cache.session
        server.restart()
        wait_for(lambda s=session: rig.cache.session not in (None, s), BACK_SECONDS, "another session")
        wait_for(lambda: rig.cache.ready, BACK_SECONDS, "the return")


def test_a_stream_that_ends_before_a_living_store_costs_nothing(chaos, rig_of):
    """A middlebox cuts what is long idle: the store answers, so nothing is off."""
    rig = rig_of(chaos.address, transport="data")
    keys = chain(2, "a")
    rig.save(keys)
    session = rig.cache.session
    before = chaos.calls["Attach"]
    for connection in list(session._client._ways[0].transport._long):
        connection.abort()
    wait_for(lambda: chaos.calls["Attach"] > before and session._session_id, SECONDS, "the stream, again")
    assert hits(rig, keys) and rig.cache.session is session and rig.cache.stats()["breaker_opened"] == 0


def test_a_store_that_ends_each_stream_at_once_is_not_asked_without_pause(quire_server, rig_of, monkeypatch):
    rig = rig_of(quire_server.address, transport="data")
    transport = rig.cache.session._client._ways[0].transport
    attempts: list[float] = []

    def attach(request, connect_seconds, life, up):
        attempts.append(time.monotonic())
        up(b"s" * 16)
        raise QuireError(Reason.UNKNOWN, "ended", broken=True)

    monkeypatch.setattr(transport, "attach", attach)
    for connection in list(transport._long):
        connection.abort()
    wait_for(lambda: len(attempts) >= 7, SECONDS, "some attempts")
    assert attempts[6] - attempts[0] > 1.0, "each pause is twice as long as the one before"
    assert rig.cache.ready and rig.cache.stats()["breaker_opened"] == 0


def test_a_load_that_broke_off_keeps_what_was_verified(chaos, rig_of):
    """The answer breaks off after each of its messages, again on each further stream: the pages before are right."""
    rig = rig_of(chaos.address, spec=spec_text(heads=8, layers=16, width=128), transport="data")
    keys = chain(6, "a")
    pages = rig.save(keys)
    seen = set()
    for after in range(3):
        chaos.fault = Fault("close", frozenset({"Fetch"}), after=after)
        memory, room = rig.memory(6)
        room[:] = 0xEE
        before = rig.cache.stats()
        good = rig.cache.load(keys, memory, timeout=SECONDS)
        chaos.fault = None
        for i, ok in enumerate(good):
            assert not ok or np.array_equal(room[i], pages[i]), "a page that is not what was stored"
        assert rig.cache.stats()["recompute_fallbacks"] - before["recompute_fallbacks"] == 6 - sum(good)
        assert rig.cache.stats()["loaded_pages"] - before["loaded_pages"] == sum(good)
        seen.add(sum(good))
        wait_for(lambda: hits(rig, keys), SECONDS, "recovery")
    assert 0 in seen and seen & set(range(1, 6)), seen


def test_pages_of_a_call_that_broke_off_are_answered_as_they_are(quire_server, rig_of):
    """By the error's own word, page by page; without one, or with one of another length, nothing is claimed."""
    rig = rig_of(quire_server.address)
    keys = chain(3, "a")
    rig.save(keys)
    memory, _ = rig.memory(3)
    known = [Page(True, Reason.NONE), Page(False, Reason.UNKNOWN), Page(True, Reason.NONE)]
    fetch, publish = rig.cache.session.fetch, rig.cache.session.publish
    for pages, want in ((known, [True, False, True]), ((), [False] * 3), (known[:2], [False] * 3)):

        def broke(*args, pages=pages, **kw):
            error = QuireError(Reason.INCOMPLETE, "broke off")
            error.pages = pages
            raise error

        rig.cache.session.fetch = rig.cache.session.publish = broke  # type: ignore[method-assign]
        before = rig.cache.stats()
        assert rig.cache.load(keys, memory) == want
        after = rig.cache.stats()
        assert after["loaded_pages"] - before["loaded_pages"] == sum(want)
        assert after["recompute_fallbacks"] - before["recompute_fallbacks"] == 3 - sum(want)
        assert after["failures_incomplete"] - before.get("failures_incomplete", 0) == 3 - sum(want)
        assert rig.cache.save(keys, memory) == want
    rig.cache.session.fetch, rig.cache.session.publish = fetch, publish  # type: ignore[method-assign]
    assert rig.cache.load(keys, memory) == [True] * 3
