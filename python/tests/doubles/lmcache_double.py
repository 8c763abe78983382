"""What quire_kv.lmcache touches of LMCache 0.5.6, and its two controller loops in their call order, without LMCache.

    store loop      L1 write finished -> submit_store_task -> poll the store event -> pop_completed_store_tasks -> unlock L1
    prefetch loop   lookup of all keys -> poll -> query once -> unlock of what is not wanted -> load of the good prefix -> poll
                    -> query once -> unlock of the prefix

Rules of the real one that matter: at most 8 prefetches in flight; a task that is never answered keeps its place for ever; an
exception of submit_unlock ends the prefetch thread; results are asked for only after an event.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import types
from collections import deque
from dataclasses import dataclass, field

MAX_IN_FLIGHT = 8


class Bitmap:
    def __init__(self, size: int) -> None:
        self.size = size
        self._bits = [False] * size

    def set(self, i: int) -> None:
        self._bits[i] = True

    def test(self, i: int) -> bool:
        return self._bits[i]

    def popcount(self) -> int:
        return sum(self._bits)


class L2StoreResult(int):
    def __new__(cls, success: bool, bytes_transferred: int) -> L2StoreResult:
        assert bytes_transferred >= 0
        return super().__new__(cls, bytes_transferred if success else -1)

    def is_successful(self) -> bool:
        return int(self) >= 0

    def bytes_transferred(self) -> int:
        return max(int(self), 0)


class EventNotifier:
    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._fd

    def notify(self) -> None:
        os.eventfd_write(self._fd, 1)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)


class L2AdapterInterface:
    def __init__(self, max_capacity_bytes: int = 0) -> None:
        self.total_bytes_used = 0
        self.accessed: list = []

    def _notify_keys_stored(self, keys, sizes) -> None:
        assert len(keys) == len(sizes)
        self.total_bytes_used += sum(sizes)

    def _notify_keys_accessed(self, keys) -> None:
        self.accessed += keys


@dataclass(frozen=True)
class ObjectKey:
    chunk_hash: bytes
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""


def kv_rank(world: int, rank: int) -> int:
    return world << 24 | rank << 16 | world << 8 | rank


@dataclass(frozen=True)
class MemoryLayoutDesc:
    shapes: list
    dtypes: list


class MemoryObj:
    """One object in L1: a logical size within memory that is larger, as an aligned allocator gives it."""

    def __init__(self, shape: tuple[int, ...], dtype: str, item: int) -> None:
        import ctypes
        import math

        self.shape, self.dtype, self.size = shape, dtype, math.prod(shape) * item
        self.raw = bytearray(-(-self.size // 4096) * 4096)
        self._pin = (ctypes.c_char * len(self.raw)).from_buffer(self.raw)
        self.data_ptr = ctypes.addressof(self._pin)

    def get_size(self) -> int:
        return self.size

    def get_shapes(self) -> list:
        return [self.shape]

    def get_dtypes(self) -> list:
        return [self.dtype]

    def fill(self, data: bytes) -> None:
        assert len(data) == self.size
        self.raw[: self.size] = data

    @property
    def bytes(self) -> bytes:
        return bytes(self.raw[: self.size])


def modules() -> dict[str, types.ModuleType]:
    """The modules to put into sys.modules."""
    names = (
        "lmcache",
        "lmcache.lmcache_native",
        "lmcache.logging",
        "lmcache.v1",
        "lmcache.v1.distributed",
        "lmcache.v1.distributed.internal_api",
        "lmcache.v1.distributed.l2_adapters",
        "lmcache.v1.distributed.l2_adapters.base",
        "lmcache.v1.platform",
    )
    made = {name: types.ModuleType(name) for name in names}
    made["lmcache.lmcache_native"].Bitmap = Bitmap
    made["lmcache.logging"].init_logger = logging.getLogger
    made["lmcache.v1.distributed.internal_api"].L2StoreResult = L2StoreResult
    made["lmcache.v1.distributed.l2_adapters.base"].L2AdapterInterface = L2AdapterInterface
    made["lmcache.v1.platform"].create_event_notifier = EventNotifier
    return made


def consume(fd: int) -> None:
    try:
        os.eventfd_read(fd)
    except BlockingIOError:
        pass


@dataclass
class Prefetch:
    """One request: rows of keys, one a rank, all of the same chunks. `given_up`: nobody loads after the lookup."""

    rows: list[list[ObjectKey]]
    objects: list[list[MemoryObj]]
    layout: MemoryLayoutDesc
    given_up: bool = False
    hit: list[bool] | None = None
    done: threading.Event = field(default_factory=threading.Event)
    good: int = 0
    task: int = -1
    phase: str = "lookup"

    @property
    def flat(self) -> list[ObjectKey]:
        return [k for row in self.rows for k in row]


class Controllers:
    """Both loops, each a thread, over one adapter. An exception of the adapter ends its loop, as there."""

    def __init__(self, adapter) -> None:
        self.adapter = adapter
        fds = [adapter.get_store_event_fd(), adapter.get_lookup_and_lock_event_fd(), adapter.get_load_event_fd()]
        assert len(set(fds)) == 3
        self._stop = False
        self._lock = threading.Lock()
        self._stores: deque = deque()
        self._prefetches: deque[Prefetch] = deque()
        self._wake = {"store": EventNotifier(), "prefetch": EventNotifier()}
        self._threads = {
            name: threading.Thread(target=run, name=name, daemon=True) for name, run in (("store", self._store_loop), ("prefetch", self._prefetch_loop))
        }
        for t in self._threads.values():
            t.start()

    def alive(self) -> bool:
        return all(t.is_alive() for t in self._threads.values())

    def store(self, keys, objects) -> threading.Event:
        """Gives an event whose `.result` is the answer once it is set."""
        done = threading.Event()
        with self._lock:
            self._stores.append((keys, objects, done))
        self._wake["store"].notify()
        return done

    def prefetch(self, request: Prefetch) -> Prefetch:
        with self._lock:
            self._prefetches.append(request)
        self._wake["prefetch"].notify()
        return request

    def stop(self) -> None:
        self._stop = True
        for w in self._wake.values():
            w.notify()
        for t in self._threads.values():
            t.join(10)
        for w in self._wake.values():
            w.close()

    def _store_loop(self) -> None:
        poller, fd, wake = select.poll(), self.adapter.get_store_event_fd(), self._wake["store"].fileno()
        poller.register(fd, select.POLLIN)
        poller.register(wake, select.POLLIN)
        flying = {}
        while not self._stop:
            for ready, _ in poller.poll(100):
                consume(ready)
            with self._lock:
                new, self._stores = self._stores, deque()
            for keys, objects, done in new:
                flying[self.adapter.submit_store_task(keys, objects)] = (done, keys, objects)
            for task, result in self.adapter.pop_completed_store_tasks().items():
                done = flying.pop(task)[0]  # KeyError: answered twice
                done.result = result
                done.set()

    def _prefetch_loop(self) -> None:
        poller, wake = select.poll(), self._wake["prefetch"].fileno()
        lookup_fd, load_fd = self.adapter.get_lookup_and_lock_event_fd(), self.adapter.get_load_event_fd()
        for fd in (wake, lookup_fd, load_fd):
            poller.register(fd, select.POLLIN)
        flying: list[Prefetch] = []
        while not self._stop:
            fired = set()
            for ready, _ in poller.poll(100):
                consume(ready)
                fired.add(ready)
            for p in list(flying):
                if p.phase == "lookup" and lookup_fd in fired:
                    self._looked_up(p)
                elif p.phase == "load" and load_fd in fired:
                    self._loaded(p)
                if p.phase == "end":
                    flying.remove(p)
                    p.done.set()
            with self._lock:
                while self._prefetches and len(flying) < MAX_IN_FLIGHT:
                    p = self._prefetches.popleft()
                    p.task = self.adapter.submit_lookup_and_lock_task(p.flat, {0: p.layout})
                    flying.append(p)

    def _looked_up(self, p: Prefetch) -> None:
        bits = self.adapter.query_lookup_and_lock_result(p.task)
        if bits is None:
            return
        assert self.adapter.query_lookup_and_lock_result(p.task) is None, "answered twice"
        flat, n = p.flat, len(p.rows[0])
        assert bits.size == len(flat)
        if p.given_up:
            p.hit, p.phase = [], "end"
            return
        found = [[bits.test(r * n + i) for i in range(n)] for r in range(len(p.rows))]
        p.good = next((i for i in range(n) if not all(row[i] for row in found)), n)
        unwanted = [p.rows[r][i] for r in range(len(p.rows)) for i in range(n) if found[r][i] and i >= p.good]
        if unwanted:
            self.adapter.submit_unlock(unwanted)
        if not p.good:
            p.hit, p.phase = [False] * n, "end"
            return
        p.phase = "load"
        p.task = self.adapter.submit_load_task([k for row in p.rows for k in row[: p.good]], [o for row in p.objects for o in row[: p.good]])

    def _loaded(self, p: Prefetch) -> None:
        bits = self.adapter.query_load_result(p.task)
        if bits is None:
            return
        assert self.adapter.query_load_result(p.task) is None, "answered twice"
        assert bits.size == p.good * len(p.rows)
        good = [all(bits.test(r * p.good + i) for r in range(len(p.rows))) for i in range(p.good)]
        p.hit = [all(good[: i + 1]) for i in range(p.good)] + [False] * (len(p.rows[0]) - p.good)
        self.adapter.submit_unlock([k for row in p.rows for k in row[: p.good]])
        p.phase = "end"
