"""A hundred thousand calls of each adapter leave nothing behind: no thread, no descriptor, no memory, no lease.

Half of the calls meet a store that answers, half one that is dead. The cache alone is measured in test_chaos.py; the engines'
doubles are those of test_chaos_adapters.py.
"""

from __future__ import annotations

import gc
import os
import threading

import pytest
from test_chaos_adapters import ADAPTERS, PAGES, module_of  # noqa: F401
from waiting import wait_for

pytestmark = [pytest.mark.once, pytest.mark.limit(600)]

CALLS = 100_000
GROWTH = 24 << 20  # bytes: allocators keep some of what was freed


def held() -> tuple[int, int, int]:
    """Descriptors, threads and resident bytes of this process."""
    gc.collect()
    with open("/proc/self/statm") as f:
        return len(os.listdir("/proc/self/fd")), threading.active_count(), int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Counted:
    """An adapter whose calls are counted, whoever makes them."""

    def __init__(self, adapter) -> None:
        self._adapter = adapter
        self.calls = 0

    def __getattr__(self, name):
        what = getattr(self._adapter, name)
        if not callable(what):
            return what

        def call(*args, **kw):
            self.calls += 1
            return what(*args, **kw)

        return call


def counted(name, engine) -> Counted:
    if name == "lmcache":
        engine.loops.adapter = counter = Counted(engine.adapter)
    else:
        engine.manager.tier = counter = Counted(engine.manager.tier)
        engine.alive = lambda: counter._adapter._workers.alive
    return counter


def work(engine, counter, until: int, hits: bool, stored) -> None:
    """Requests of every kind: new pages, pages that are there, pages that are not, and requests that are given up."""
    n = 0
    while counter.calls < until:
        n += 1
        engine.load(*stored)
        if n % 4 == 0:
            engine.load(*engine.chain())
        if n % 2 == 0:
            engine.save(*(engine.chain() if n % 16 == 0 else stored))
    assert engine.load(*stored) == [hits] * PAGES


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_hundred_thousand_calls_leak_nothing(quire_server, module_of, name):  # noqa: F811
    engine, module, modules = ADAPTERS[name]
    before = held()
    e = engine(module_of(module, modules()), quire_server.address)
    try:
        counter = counted(name, e)
        wait_for(lambda: e.cache.ready, 20)
        stored = e.chain()
        assert e.save(*stored)
        work(e, counter, CALLS // 10, True, stored)
        fds, threads, resident = held()
        start = counter.calls
        work(e, counter, start + CALLS // 2, True, stored)
        wait_for(lambda: quire_server.metric("quire_read_leases") == 0, 20)
        assert len(e.adapter._locks if name == "lmcache" else counter._adapter._locks) == 0
        quire_server.kill()
        wait_for(lambda: not e.load(*stored)[0] and not e.cache.ready, 20)
        work(e, counter, start + CALLS, False, stored)
        assert e.alive()
        # the store is dead and asked now and then whether it is back: gRPC has a thread and files for as long as that takes
        wait_for(lambda: held()[0] <= fds and held()[1] <= threads, 20)
        assert held()[2] - resident < GROWTH, "memory grew"
    finally:
        e.close()
    wait_for(lambda: held()[1] <= before[1], 20)
    wait_for(lambda: held()[0] <= before[0], 20)
