"""LMCache's and vLLM's loops (their doubles) over the adapters, the real cache, and a store that does everything wrong.

What the cache promises to all adapters is in test_chaos.py. Here it is the engines' side: every task is answered, in its shape,
the loops live, what is said to be loaded is right, and the next request is normal.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
import os
import sys

import pytest
from doubles import lmcache_double, vllm_tier_double
from doubles.faults import TELLING, every_fault
from serving import spec_text
from waiting import PATIENT, wait_for

from quire_kv.lmcache_models import Shape

pytestmark = [pytest.mark.once, pytest.mark.limit(300)]

HEADS, LAYERS, WIDTH, CHUNK, PAGES = 2, 2, 8, 4, 3
CODES = (1, 4, 7, 8, 13, 14)  # of gRPC: a kind each
TIMEOUTS = {**PATIENT, "open_timeout_ms": 2000}
QUICK = {"lookup_timeout_ms": 500, "load_timeout_ms": 500, "save_timeout_ms": 500}  # what hangs costs each test as much
ROW = {
    "digest": "sha256:" + "a" * 64, "format": "KV_2LTD", "dtype": "bfloat16", "engine": "vllm", "version": "0.32.0", "backend": "flash", "lora": "none",
    "weights": "frozen", "tp": 1, "pp": 1, "chunk_size": CHUNK,
}  # fmt: skip
Identity = collections.namedtuple("Identity", "spec differs")


def give(engine, timeouts: dict[str, int]) -> None:
    """Other timeouts from the next call on."""
    engine.cache._config = dataclasses.replace(engine.cache._config, **timeouts)
    if isinstance(engine, Lmcache):
        engine.adapter._lookup_timeout = engine.cache._config.lookup_timeout


def normal(engine) -> bool:
    """One request as if nothing had happened."""
    keys, contents = engine.chain()
    return engine.save(keys, contents) and engine.load(keys, contents) == [True] * PAGES


def faults():
    return [f for f in every_fault(reasons=TELLING) if f.what != "code" or f.number in CODES]


@pytest.fixture
def module_of(monkeypatch):
    """Imports an adapter where its engine is a double."""
    imported = []

    def load(name, modules):
        engine = next(iter(modules))
        for loaded in [n for n in sys.modules if n == engine or n.startswith(engine + ".")]:
            monkeypatch.delitem(sys.modules, loaded)
        for n, module in modules.items():
            monkeypatch.setitem(sys.modules, n, module)
        sys.modules.pop(name, None)
        imported.append(name)
        return importlib.import_module(name)

    yield load
    for name in imported:
        sys.modules.pop(name, None)


class Lmcache:
    """One adapter with both controller loops."""

    layout = lmcache_double.MemoryLayoutDesc([(2, LAYERS, CHUNK, HEADS * WIDTH)], ["bfloat16"])

    def __init__(self, module, address):
        def describe(row, config):
            return spec_text(HEADS, LAYERS, WIDTH, CHUNK), Shape(row, HEADS, LAYERS, (WIDTH, WIDTH))

        self.adapter = module.QuireL2Adapter({"server": address, "models": {"m": ROW}, "lease_seconds": 5, **TIMEOUTS}, describe=describe)
        self.loops = lmcache_double.Controllers(self.adapter)
        self.cache = self.adapter._models["m"].cache
        self.chains = 0

    def objects(self):
        return [lmcache_double.MemoryObj((2, LAYERS, CHUNK, HEADS * WIDTH), "bfloat16", 2) for _ in range(PAGES)]

    def chain(self):
        self.chains += 1
        keys = [lmcache_double.ObjectKey(os.urandom(32), "m", lmcache_double.kv_rank(1, 0)) for _ in range(PAGES)]
        objects = self.objects()
        for o in objects:
            o.fill(os.urandom(o.size))
        return keys, objects

    def save(self, keys, objects) -> bool:
        done = self.loops.store(keys, objects)
        assert done.wait(60), "a store is never answered"
        return done.result.is_successful()

    def load(self, keys, objects) -> list[bool]:
        back = self.objects()
        p = self.loops.prefetch(lmcache_double.Prefetch([keys], [back], self.layout))
        assert p.done.wait(60), "a prefetch is never answered"
        for hit, sent, got in zip(p.hit, objects, back, strict=True):
            assert not hit or sent.bytes == got.bytes, "a wrong byte"
        return p.hit

    def alive(self) -> bool:
        return self.loops.alive() and self.adapter.report_status()["is_healthy"]

    def close(self):
        self.loops.stop()
        self.adapter.close()


class Tier:
    """One tier under the tiering manager."""

    SIZE = 4096

    def __init__(self, module, address):
        spec = spec_text(1, 1, self.SIZE // 16 // 2, 16, 16, "whole", components=("bytes",))
        settings = {"server": address, "lookup_wait_ms": 10_000, **TIMEOUTS}
        self.manager = vllm_tier_double.Manager(
            lambda view: module.QuireTier(None, view, "QuireTier", describe=lambda *_: Identity(lambda: spec, lambda: ""), **settings), 4 * PAGES, self.SIZE
        )
        self.cache = self.manager.tier._cache
        self.requests = 0

    def chain(self):
        keys = [os.urandom(32) + bytes(4) for _ in range(PAGES)]
        return keys, {k: os.urandom(self.SIZE) for k in keys}

    def save(self, keys, contents) -> bool:
        m = self.manager
        job = m.store(contents)
        wait_for(lambda: m._reap() or job not in m._jobs, 60)
        m.drop_primary()
        return next(r for r in m.results if r.job_id == job).success

    def load(self, keys, contents) -> list[bool]:
        m = self.manager
        self.requests += 1
        name = f"r{self.requests}"
        request = m.new_request(name, keys)
        wait_for(lambda: m.step() or (request.hits is not None and not m._jobs), 60)
        for k in keys[: request.hits]:
            assert m.bytes_of(k) == contents[k], "a wrong byte"
        m.finish(name)
        m.drop_primary()
        return [i < request.hits for i in range(PAGES)]

    def alive(self) -> bool:
        return self.manager.tier._workers.alive

    def close(self):
        self.manager.shutdown()


ADAPTERS = {
    "lmcache": (Lmcache, "quire_kv.lmcache", lmcache_double.modules),
    "tier": (Tier, "quire_kv.vllm_tier", vllm_tier_double.modules),
}


@pytest.fixture
def engine_of(module_of):
    made = []

    def make(name, address):
        engine, module, modules = ADAPTERS[name]
        made.append(engine(module_of(module, modules()), address))
        wait_for(lambda: made[-1].cache.ready, 20)
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.mark.parametrize("name", ADAPTERS)
def test_case_c42_no_fault_of_the_store_reaches_the_engine(chaos, engine_of, no_pauses, name):
    engine = engine_of(name, chaos.address)
    for fault in faults():
        keys, contents = engine.chain()
        assert engine.save(keys, contents), f"before {fault}: {engine.cache.state}"
        chaos.fault = fault
        give(engine, QUICK)
        try:
            engine.load(keys, contents)
            engine.save(*engine.chain())
        except AssertionError as wrong:
            raise AssertionError(f"{fault}: {wrong}") from wrong
        chaos.fault = None
        wait_for(lambda: engine.cache.ready, 20)
        give(engine, PATIENT)
        assert engine.alive(), f"{fault} ended a thread"
        assert normal(engine), f"after {fault}: {engine.cache.state}"
    wait_for(lambda: chaos.server.metric("quire_read_leases") == 0, 20)


@pytest.mark.parametrize("name", ADAPTERS)
def test_case_c43_a_store_that_is_absent_at_the_start(chaos, module_of, name):
    chaos.down()
    engine, module, modules = ADAPTERS[name]
    e = engine(module_of(module, modules()), chaos.address)
    try:
        keys, contents = e.chain()
        assert not e.save(keys, contents) and e.load(keys, contents) == [False] * PAGES
        chaos.up()
        wait_for(lambda: e.cache.ready, 20)
        assert e.save(keys, contents) and e.load(keys, contents) == [True] * PAGES
    finally:
        e.close()
