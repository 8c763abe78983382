"""What adapters rely on: a cache that opens by itself, never raises, and says of each page what is true."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading

import numpy as np
import pytest
from serving import spec_text
from waiting import PATIENT, wait_for

from quire_kv import visibility
from quire_kv.cache import Cache
from quire_kv.client import ROOT_PARENT, Page
from quire_kv.config import Config
from quire_kv.errors import ConfigError, Reason
from quire_kv.layout import PageMemory

SECONDS = 20.0  # for what comes about by itself
log = logging.getLogger("quire_kv.test")


def chain(n: int, name: str = "chain") -> list[bytes]:
    return [hashlib.sha256(f"{name} {i}".encode()).digest() for i in range(n)]


class Rig:
    """Caches on one server, and pages with known bytes."""

    def __init__(self, server):
        self.server = server
        self.made: list[Cache] = []

    def cache(self, spec=None, **settings) -> Cache:
        config = Config.parse({"server": self.server.address, **PATIENT, **settings})
        c = Cache(config, spec or spec_text(), log, adapter="test", engine="test 1.0")
        self.made.append(c)
        return c

    def ready(self, spec=None, **settings) -> Cache:
        c = self.cache(spec, **settings)
        assert c.wait_ready(SECONDS), c.state
        return c

    @staticmethod
    def memory(c: Cache, n: int, fill: int | None = None) -> tuple[PageMemory, np.ndarray]:
        g = c.geometry()
        room = np.zeros((n, g.page_bytes), np.uint8)
        if fill is not None:
            room[:] = np.random.default_rng(fill).integers(0, 256, room.shape, np.uint8)
        return PageMemory.flat(list(room), g, g.whole), room

    def save(self, c: Cache, keys: list[bytes], fill: int) -> np.ndarray:
        memory, room = self.memory(c, len(keys), fill)
        assert c.save(keys, memory, parent=ROOT_PARENT) == [True] * len(keys)
        return room


@pytest.fixture
def rig(server_factory):
    r = Rig(server_factory(disk="1GiB"))
    yield r
    for c in r.made:
        c.close()


def test_pages_come_back(rig):
    a, b = rig.ready(), rig.ready()
    keys = chain(5)
    written = rig.save(a, keys, fill=1)
    found = b.lookup([*keys, b"\1" * 32], lease=5.0)
    assert found.leading == 5 and list(found.present) == [True] * 5 + [False] and found.reason is Reason.NONE
    memory, room = rig.memory(b, 5)
    assert b.load(keys, memory, lease=found.lease) == [True] * 5
    found.lease.release()
    assert (room == written).all()
    stats = b.stats()
    assert stats["hits"] == 5 and stats["loaded_pages"] == 5 and stats["load_bytes"] == written.nbytes
    assert a.stats()["saved_pages"] == 5 and a.transport == "shm"


def test_shapes_without_a_store():
    c = Cache(Config.parse({"server": "127.0.0.1:1"}), spec_text(), log, adapter="test")
    try:
        keys = chain(3)
        assert not c.ready and c.geometry() is None
        found = c.lookup(keys, lease=1.0)
        assert (found.leading, list(found.present), found.lease) == (0, [False] * 3, None)
        memory = PageMemory.flat([np.zeros(8, np.uint8)] * 3, *_tiny())
        assert c.load(keys, memory) == [False] * 3 and c.save(keys, memory) == [False] * 3
        assert c.lookup([]).leading == 0 and c.load([], memory) == [] and c.save([], memory) == []
        wait_for(lambda: c.state != "opening", SECONDS, "a reason why it does not open")
        assert c.state.startswith("opening")
    finally:
        c.close()
    assert c.state == "closed" and c.lookup(keys).leading == 0


def _tiny():
    from quire_kv.page import Geometry, View

    return Geometry(b"g" * 32, "full", 4, 1, 1, 8, "elements", 32), View(0, 1, 0, 1)


def test_what_is_not_worth_its_room_is_no_failure(rig, caplog):
    """A full store takes what it would displace nothing better for: that is an answer, neither counted as a failure nor logged."""
    c = rig.ready()
    keys = chain(3)
    offered = []

    def refused(keys, memory, **how):
        offered.append(keys)
        return [Page(False, Reason.NOT_WORTH) for _ in keys]

    c.session.publish = refused  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        assert c.save(keys, rig.memory(c, 3)[0], parent=ROOT_PARENT) == [False] * 3
    assert offered == [keys] and c.ready and not caplog.records
    stats = c.stats()
    assert (stats["saves"], stats["saved_pages"]) == (3, 0) and not any(n for name, n in stats.items() if name.startswith("failures"))


def test_opens_when_the_store_comes_up(rig):
    address = rig.server.address
    rig.server.stop()
    c = rig.cache()
    wait_for(lambda: c.state != "opening", SECONDS, "a refused connection")
    assert not c.ready
    rig.server.start()
    assert rig.server.address == address
    assert c.wait_ready(SECONDS), c.state


@pytest.mark.parametrize("way", ["grpc", "data", "shm"])
def test_case_c43_killed_and_back(rig, way):
    """Store killed: few failures, then calls end at once without a message; it is back: so are hits, without a restart."""
    c = rig.ready(transport=way, durability="disk", open_timeout_ms=500)
    keys = chain(4)
    rig.save(c, keys, fill=2)
    rig.server.kill()
    calls = 0
    while c.ready:
        assert c.lookup(keys).leading == 0
        calls += 1
    assert calls <= 3  # none, where the end of the session's stream was noticed first
    before = c.counters.snapshot()["refused_open"]
    for _ in range(1000):
        assert c.lookup(keys).leading == 0
    assert c.counters.snapshot()["refused_open"] == before + 1000
    assert c.state.startswith("away: ") and c.stats()["breaker_open"] == 1
    rig.server.start()
    wait_for(lambda: c.lookup(keys).leading == 4, SECONDS, "a hit after the store's return")
    memory, _ = rig.memory(c, 4)
    assert c.load(keys, memory) == [True] * 4


def test_case_c49_clear_hides_from_this_instance_alone(rig):
    a, b = rig.ready(), rig.ready()
    keys = chain(6)
    rig.save(a, keys, fill=3)
    a.clear()
    a.clear()
    assert a.lookup(keys).leading == 0 and b.lookup(keys).leading == 6
    memory, _ = rig.memory(a, 3, fill=3)
    assert a.save(keys[:3], memory, parent=ROOT_PARENT) == [True] * 3  # they are stored: met again
    assert a.lookup(keys).leading == 3
    later = chain(2, "later")
    rig.save(a, later, fill=4)
    assert a.lookup(later).leading == 2


def test_a_load_that_failed_ends_lookups_there_for_a_while(rig, monkeypatch):
    c = rig.ready()
    keys = chain(4)
    rig.save(c, keys, fill=5)
    session = c.session
    session.delete(keys[2:3])
    memory, _ = rig.memory(c, 4)
    assert c.load(keys, memory)[:2] == [True, True]
    rig.save(rig.ready(), keys, fill=5)  # somebody stores it anew
    assert c.lookup(keys).leading == 2  # still distrusted here
    rig.save(c, keys, fill=5)
    assert c.lookup(keys).leading == 4  # its own save ends that
    assert c.stats()["recompute_fallbacks"] >= 1


def test_distrust_ends(rig, monkeypatch):
    monkeypatch.setattr(visibility, "_DISTRUST_SECONDS", 0.05)
    c, other = rig.ready(), rig.ready()
    keys = chain(2)
    memory, _ = rig.memory(c, 2)
    assert c.load(keys, memory) == [False, False]
    rig.save(other, keys, fill=6)
    wait_for(lambda: c.lookup(keys).leading == 2, SECONDS, "trust")


def test_case_c62_invalidate_stops_everything_and_reopen_begins_anew(rig):
    c = rig.ready()
    keys = chain(3)
    rig.save(c, keys, fill=7)
    memory, _ = rig.memory(c, 3, fill=8)
    c.invalidate("the weights were updated")
    assert c.state == "off: the weights were updated"
    assert c.lookup(keys).leading == 0 and c.load(keys, memory) == [False] * 3 and c.save(chain(3, "new"), memory) == [False] * 3
    c.reopen(spec_text(weights="sha256:" + "cd" * 32))
    assert c.wait_ready(SECONDS), c.state
    assert c.lookup(keys).leading == 0
    rig.save(c, chain(3, "new"), fill=8)
    assert rig.ready().lookup(chain(3, "new")).leading == 0


def test_a_save_across_an_invalidation_is_not_there(rig):
    """The identity ends while the bytes are on their way: the answer is no, and nobody finds the pages."""
    c, other = rig.ready(), rig.ready()
    keys = chain(3)
    memory, _ = rig.memory(c, 3, fill=9)
    publish = c.session.publish

    def slow(*args, **kw):
        return publish(*args, fence=lambda: (c.invalidate("updated"), True)[1], **kw)

    c.session.publish = slow  # type: ignore[method-assign]
    assert c.save(keys, memory, parent=ROOT_PARENT) == [False] * 3
    assert other.lookup(keys).leading == 0


def test_what_the_identity_refuses_is_one_line_and_off(rig, caplog):
    def refuse() -> str:
        raise ConfigError("quire: model_digest is not set; put one there")

    c = rig.cache(refuse)
    wait_for(lambda: c.state.startswith("off: "), SECONDS, "the refusal")
    assert "model_digest" in c.state
    c = rig.cache("model: {id: x}")
    wait_for(lambda: c.state.startswith("off: "), SECONDS, "the refusal")
    assert "refused the identity" in c.state
    c = rig.cache(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    wait_for(lambda: c.state.startswith("off: "), SECONDS, "the refusal")

    def lines() -> list[str]:
        return [r.getMessage() for r in caplog.records if "the cache is off" in r.getMessage()]

    wait_for(lambda: len(lines()) == 3, SECONDS, "a line for each")
    assert all("\n" not in line for line in lines())


def test_case_c72_another_seed_is_off_with_the_factor(rig):
    rig.save(rig.ready(), chain(2), fill=1)
    fork = spec_text().replace(hashlib.sha256(b"seed").hexdigest(), hashlib.sha256(b"another").hexdigest())
    assert fork != spec_text()
    c = rig.cache(fork)
    wait_for(lambda: c.state.startswith("off: "), SECONDS, "the refusal")
    assert "hash_contract_fork" in c.state and "hash.seed" in c.state


def test_a_purged_namespace_is_opened_again(rig):
    c = rig.ready()
    keys = chain(2)
    rig.save(c, keys, fill=1)
    rig.server.run("ns", "purge", c.session.namespace.hex())
    wait_for(lambda: c.lookup(keys).reason is Reason.NONE and c.ready, SECONDS, "a session on the new epoch")
    assert c.lookup(keys).leading == 0
    rig.save(c, keys, fill=1)
    assert c.lookup(keys).leading == 2


def test_busy_pages_are_offered_again(rig):
    """C48: what was refused for the moment is offered once more, and the answers are what the store holds."""
    c = rig.ready()
    keys = chain(4)
    memory, _ = rig.memory(c, 4, fill=1)
    publish, seen = c.session.publish, []

    def busy_once(ks, memory, **kw):
        seen.append((list(ks), kw["parent"]))
        if len(seen) == 1:
            done = publish(ks[:2], memory.select(slice(0, 2)), **kw)
            return [*done, type(done[0])(False, Reason.BUSY), type(done[0])(False, Reason.PARENT_MISSING)]
        return publish(ks, memory, **kw)

    c.session.publish = busy_once  # type: ignore[method-assign]
    assert c.save(keys, memory, parent=ROOT_PARENT) == [True] * 4
    assert seen == [(keys, ROOT_PARENT), (keys[2:], keys[1])]
    assert c.lookup(keys).leading == 4


def test_the_store_learns_who_uses_it(rig):
    c = rig.ready(instance="engine-7")
    keys = chain(3)
    rig.save(c, keys, fill=1)
    c.lookup(keys)

    def reported():
        with c._wake:
            c._wake.notify_all()
        text = rig.server.run("ns", "list", "-o", "json").stdout
        return "engine-7" in text

    wait_for(reported, SECONDS, "a report")
    assert json.loads(rig.server.run("ns", "list", "-o", "json").stdout)


def test_close_is_prompt_with_a_call_under_way(rig):
    c = rig.ready(load_timeout_ms=30000, lookup_timeout_ms=30000)
    keys = chain(2)
    rig.save(c, keys, fill=1)
    rig.server.pause()
    answers: list[int] = []
    caller = threading.Thread(target=lambda: answers.append(c.lookup(keys).leading))
    caller.start()
    wait_for(lambda: c.session is not None and c.session._calls, SECONDS, "a call under way")
    c.close(timeout=1.0)
    caller.join(SECONDS)
    rig.server.resume()
    assert answers == [0] and c.state == "closed"
    wait_for(lambda: not [t for t in threading.enumerate() if t.name.startswith("quire")], SECONDS, "the end of every thread")


def test_a_forked_child_opens_its_own_session(rig):
    c = rig.ready()
    keys = chain(2)
    rig.save(c, keys, fill=1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        ok = b"0"
        try:
            if c.wait_ready(SECONDS) and c.lookup(keys).leading == 2 and c.counters.snapshot()["lookups"] == 1:
                ok = b"1"
        finally:
            os.write(write, ok)
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as f:
        assert f.read() == b"1"
    os.waitpid(child, 0)
    assert c.lookup(keys).leading == 2


def test_errors_of_ours_are_misses(rig, caplog):
    c = rig.ready()
    memory, _ = rig.memory(c, 1)
    assert c.lookup([b"short"]).leading == 0
    assert c.load(chain(2), memory) == [False, False]  # memory for one page
    c.session.exists = None  # type: ignore[assignment, method-assign]
    assert c.lookup(chain(1)).leading == 0
    assert c.ready  # the store did nothing wrong
    assert any("TypeError" in r.getMessage() for r in caplog.records)
