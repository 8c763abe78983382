"""A hundred thousand calls of SGLang's storage controller, and of vLLM's scheduler and worker, leave nothing behind.

As test_leaks.py, which has the adapters that are driven by tasks: half of the calls meet a store that answers, half one
that is dead. The engines are the doubles of test_sglang_double.py and test_vllm_double.py, the cache and the store real.
"""

from __future__ import annotations

import hashlib
import itertools
import threading

import pytest
from doubles import sglang_engine, vllm_double_env
from doubles import vllm_double as vllm_engine
from doubles.sglang_world import SETTINGS, World, chain, same
from serving import spec_text
from test_leaks import CALLS, GROWTH, Counted, held
from waiting import wait_for

from quire_kv.cache import Cache

pytestmark = [pytest.mark.once, pytest.mark.limit(600)]

SECONDS = 20.0
TIMEOUTS = {"open_timeout_ms": 2000}
FRESH = 16  # of so many rounds one brings pages that nobody has


class Sglang:
    """A rank of the engine: its controller's four threads, and a host pool that is filled, saved, emptied and loaded."""

    PAGES = 3

    def __init__(self, monkeypatch, address: str) -> None:
        self.world = World(monkeypatch)
        spec = spec_text(2, 3, 8, 4)

        def make_cache(config, _, log, **how):
            self.cache = Cache(config, spec, log, **how)
            return self.cache

        cls = type("QuireHiCache", (self.world.module.QuireHiCache,), {"make_cache": staticmethod(make_cache)})
        self.counter = Counted(cls(sglang_engine.StorageConfig(extra_config={**SETTINGS, **TIMEOUTS, "server": address}), {}))
        self.pool = sglang_engine.Pool("page_first")
        self.controller = self.world.controller(self.pool, backend=self.counter)
        self.first = itertools.count(1, 1000)
        self.stored = chain(self.PAGES, next(self.first))
        self.bytes: list = []

    def start(self) -> None:
        assert self.cache.wait_ready(SECONDS), self.cache.state
        self.bytes = self._save(self.stored, 1)

    def _save(self, keys, seed: int) -> list:
        slots = self.pool.alloc(len(keys) * self.pool.page_size)
        self.pool.fill(slots, seed)
        self.written = self.controller.backup(keys, slots)
        pages = self.pool.read(slots)
        self.pool.free(slots)
        return pages

    def round(self, n: int, hits: bool) -> None:
        found, loaded, slots = self.controller.prefetch(self.stored)
        assert (found, loaded) == ((self.PAGES, self.PAGES) if hits else (0, 0)), self.cache.state
        if slots is not None:
            assert n % 64 or same(self.pool.read(slots), self.bytes)
            self.pool.free(slots)
        if n % FRESH == 0:
            keys = chain(self.PAGES, next(self.first))
            assert self.controller.prefetch(keys)[:2] == (0, 0)
            self._save(keys, n)
            assert (self.written == self.PAGES) == hits
        self._save(self.stored, 1)
        assert (self.written == self.PAGES) == hits
        self.counter.exists(self.stored[0])
        self.counter.batch_exists_v2(self.stored, [])
        self.counter.get_stats()

    def alive(self) -> bool:
        return self.controller.alive and not self.controller.died and self.cache._keeper.is_alive()

    def empty(self) -> bool:
        return len(self.pool._free) == self.pool.page_num

    def close(self) -> None:
        self.world.close()


class Vllm:
    """A scheduler and two workers: requests whose prefix is stored, new ones, and ones that are given up."""

    SETTINGS = {**vllm_double_env.SETTINGS, **TIMEOUTS, "lookup_wait_ms": 10_000}

    def __init__(self, monkeypatch, address: str) -> None:
        self._installed = vllm_double_env.installed(monkeypatch)
        vllm = next(self._installed)
        self.caches: list[Cache] = []
        spec = spec_text(2, 2, vllm_engine.WIDTH, vllm_engine.TOKENS, 32, "cell", packing="vllm-double")
        caches = self.caches

        class Connector(vllm.connector.QuireConnector):
            def _make_cache(self, config, given, adapter):
                caches.append(Cache(config, spec, self._log, adapter=adapter))
                return caches[-1]

        self.engine = vllm_engine.Engine(Connector, {**self.SETTINGS, "server": address}, tp=2)
        self.counters = [Counted(c) for c in (self.engine.connector, *(r.connector for r in self.engine.ranks))]
        self.engine.connector = self.counters[0]
        for rank, counter in zip(self.engine.ranks, self.counters[1:], strict=True):
            rank.connector = counter
        self.names = (f"r{n}" for n in itertools.count())
        self.prompts = itertools.count(1)
        self.cache = caches[-1]

    @property
    def counter(self) -> Vllm:
        return self

    @property
    def calls(self) -> int:
        return sum(c.calls for c in self.counters)

    def start(self) -> None:
        for c in self.caches:
            assert c.wait_ready(SECONDS), c.state
        self._run(vllm_double_env.PROMPT, 4)
        self.engine.flush()
        pools = [self.counters[0]._adapter._scheduling._pool._pool, *(c._adapter._transfer._loaders for c in self.counters[1:])]
        for pool in pools:  # each has its threads from now on
            together = threading.Barrier(pool._max_workers)
            for done in [pool.submit(together.wait, SECONDS) for _ in range(pool._max_workers)]:
                done.result()

    def _run(self, prompt, output: int):
        self.engine.forget()
        request = self.engine.add(next(self.names), prompt, output)
        self.engine.run()
        return request

    def _other(self) -> list[int]:
        digest = hashlib.sha256(str(next(self.prompts)).encode()).digest()
        return [1000 + b for b in digest[:9]]

    def round(self, n: int, hits: bool) -> None:
        request = self._run(vllm_double_env.PROMPT, 1)
        assert request.external == (20 if hits else 0), [c.state for c in self.caches]
        if n % FRESH == 0:
            assert self._run(self._other(), 2).external == 0
        if n % 4 == 0:  # given up before its lookup is answered, or in its load
            self.engine.forget()
            name = next(self.names)
            self.engine.add(name, vllm_double_env.PROMPT, 1)
            for _ in range(n // 4 % 3):
                self.engine.step()
            if name in self.engine.requests:
                self.engine.abort(name)
            self.engine.run()

    def alive(self) -> bool:
        return all(c._keeper.is_alive() for c in self.caches)

    def empty(self) -> bool:
        self.engine.step()
        scheduling = self.counters[0]._adapter._scheduling
        return not (self.engine.requests or scheduling._entries or scheduling._ending) and len(self.engine.pool.free) == len(self.engine.pool.blocks) - 1

    def close(self) -> None:
        self.engine.close()
        next(self._installed, None)


def work(engine, until: int, hits: bool) -> None:
    n = 0
    while engine.counter.calls < until:
        n += 1
        engine.round(n, hits)


@pytest.mark.parametrize("make", [Sglang, Vllm], ids=["sglang", "vllm"])
def test_a_hundred_thousand_calls_leak_nothing(quire_server, monkeypatch, make):
    before = held()
    e = make(monkeypatch, quire_server.address)
    try:
        e.start()
        work(e, CALLS // 10, True)
        fds, threads, resident = held()
        start = e.counter.calls
        work(e, start + CALLS // 2, True)
        wait_for(e.empty, SECONDS, "the end of every request")
        wait_for(lambda: quire_server.metric("quire_read_leases") == 0, SECONDS, "the release of every lease")
        quire_server.kill()
        wait_for(lambda: not e.cache.ready, SECONDS, "the breaker")
        work(e, start + CALLS, False)
        assert e.alive()
        wait_for(e.empty, SECONDS, "the end of every request")
        wait_for(lambda: held()[0] <= fds and held()[1] <= threads, SECONDS, "the end of what a probe holds")  # as in test_leaks.py
        assert held()[2] - resident < GROWTH, "memory grew"
    finally:
        e.close()
    wait_for(lambda: held()[1] <= before[1], SECONDS, "the end of every thread")
    wait_for(lambda: held()[0] <= before[0], SECONDS, "the end of every descriptor")
