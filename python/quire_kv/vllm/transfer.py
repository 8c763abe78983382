"""A worker's side: pages into the engine's blocks, and blocks out of them. Two threads of its own beside the engine's.

    start_load_kv   loads ──> loader threads ──> the engine's blocks ──> get_transfer_results, always, good or not
    wait_for_save   full blocks ──copy──> slots (bounded) ──> publisher thread ──> the store

A save is a copy made before wait_for_save returns, so the engine may overwrite a block at any time afterwards: nothing
has to be fenced on preemption, and no block is held back when a request ends. Where the slots are full, pages are dropped
and reported to the scheduler's side, which offers them again.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from .. import client, kernels
from ..cache import Cache
from ..layout import PageMemory
from ..page import Geometry, View
from .memory import HostBlocks
from .meta import Load, Report, Save
from .ring import Slots

__all__ = ["BlockMemory", "HostMemory", "Transfer"]

_LOAD_THREADS = 2
_CHUNK_BYTES = 256 << 20  # of one fetch; each has the load timeout, and the rest is not fetched after a failure
_YIELD_SECONDS = 50e-6  # of a step without a forward, while a load runs: an engine in its caller's process spins
_BATCH_PAGES = 256  # of one publication


class BlockMemory(Protocol):
    """The engine's blocks on some device."""

    def fence(self) -> Any:
        """Marks what the engine has queued on the device so far. On the engine's thread."""

    def load(self, cache: Cache, keys: Sequence[bytes], blocks: Sequence[int], geometry: Geometry, view: View, scope: bytes, fence: Any) -> list[bool]:
        """Brings pages into blocks, after the fence; one answer a key. On a loader's thread."""

    def snapshot(self, blocks: Sequence[int], addresses: np.ndarray, geometry: Geometry, view: View) -> Callable[[], None] | None:
        """Copies blocks in head-major order to host addresses, or queues that before all later work of the engine; then
        the answer waits for it. On the engine's thread."""

    def adopt(self, slots: Slots) -> None:
        """Slots that snapshots go into."""

    def close(self) -> None:
        """Frees what it holds on the device."""


class HostMemory:
    """Blocks in host memory: pages are fetched right into them."""

    def __init__(self, blocks: HostBlocks) -> None:
        self.blocks = blocks

    def fence(self) -> Any:
        return None

    def load(self, cache: Cache, keys: Sequence[bytes], blocks: Sequence[int], geometry: Geometry, view: View, scope: bytes, fence: Any) -> list[bool]:
        return cache.load(keys, self.blocks.pages(blocks), scope=scope, view=view)

    def snapshot(self, blocks: Sequence[int], addresses: np.ndarray, geometry: Geometry, view: View) -> Callable[[], None] | None:
        kernels.pack(self.blocks.pages(blocks), range(len(blocks)), geometry, view, addresses)
        return None

    def adopt(self, slots: Slots) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


@dataclass
class _Loading:
    load: Load
    fence: Any
    given_up: bool = False
    bad: set[int] = field(default_factory=set)


@dataclass
class _Snapshot:
    save: Save
    slots: list[int]
    ready: Callable[[], None] | None


class Transfer:
    """One per worker. start, save and results are called by the engine's thread; nothing in them waits for the store.

    The lock guards the queues between the engine's thread and the others.
    """

    def __init__(self, cache: Cache, log: logging.Logger, *, view: View, save_bytes: int, writes: Callable[[bytes], bool] = lambda key: True) -> None:
        """view: the heads and layers of this rank. save_bytes: of all snapshots under way. writes: whether this rank is
        the one of several with equal bytes that saves the run that begins with a key."""
        self._cache = cache
        self._log = log
        self._view = view
        self._save_bytes = save_bytes
        self._writes = writes
        self._memory: BlockMemory | None = None
        self._slots: Slots | None = None
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._loading: dict[str, _Loading] = {}
        self._ended: dict[str, set[int] | None] = {}  # request -> its blocks that failed; None: all of it
        self._snapshots: deque[_Snapshot] = deque()
        self._lost: list[tuple[bytes, bytes]] = []
        self._busy = False  # the publisher has a batch in hand
        self._closed = False
        self._off = ""
        self._told = False
        self.dropped = 0  # pages that found no slot
        self.failed_pages = 0  # that a load did not bring
        self._loaders = concurrent.futures.ThreadPoolExecutor(_LOAD_THREADS, thread_name_prefix="quire-load")
        self._publisher = threading.Thread(target=self._publish, name="quire-save", daemon=True)
        self._publisher.start()

    def attach(self, memory: BlockMemory) -> None:
        """The engine's blocks are there."""
        self._memory = memory

    def stop(self, why: str) -> None:
        """Loads fail and saves are dropped from now on."""
        if not self._off:
            self._off = why
            self._cache.invalidate(why)

    # -- loads ----------------------------------------------------------------------------------------------------

    def start(self, loads: Iterable[Load]) -> None:
        """Begins loads. Each ends in results, whatever happens."""
        for load in loads:
            loading = _Loading(load, None)
            with self._lock:
                self._loading[load.request] = loading
            if not load.blocks:
                self._end(loading, None)
                continue
            try:
                if self._memory is None or self._off or self._closed:
                    raise RuntimeError(self._off or "no KV memory is attached")
                loading.fence = self._memory.fence()
                self._loaders.submit(self._load, loading)
            except Exception as e:
                self._log.debug("quire: a load was not begun: %s", e)
                self._end(loading, set(load.blocks))

    def _load(self, loading: _Loading) -> None:
        bad = set(loading.load.blocks)
        try:
            bad = self._fetch(loading)
        except Exception:
            self._log.exception("quire: a load failed")
        finally:
            self._end(loading, bad)

    def _fetch(self, loading: _Loading) -> set[int]:
        """The blocks that were not brought."""
        load, memory, geometry = loading.load, self._memory, self._cache.geometry()
        bad = set(load.blocks)
        if memory is None or geometry is None or len(load.keys) != len(load.blocks):
            return bad
        step = max(1, _CHUNK_BYTES // geometry.payload_bytes(self._view))
        for at in range(0, len(load.keys), step):
            if loading.given_up or self._off:
                break
            keys, blocks = load.keys[at : at + step], load.blocks[at : at + step]
            good = memory.load(self._cache, keys, blocks, geometry, self._view, load.scope, loading.fence)
            bad.difference_update(b for b, ok in zip(blocks, good, strict=True) if ok)
            if not all(good):  # the engine recomputes from the first failed block on
                break
        return bad if not self._off else set(load.blocks)

    def _end(self, loading: _Loading, bad: set[int] | None) -> None:
        with self._lock:
            if self._loading.get(loading.load.request) is loading:
                del self._loading[loading.load.request]
            self._ended[loading.load.request] = bad
            self.failed_pages += len(bad or ())

    def results(self, finished: Iterable[str], *, idle: bool = False) -> dict[str, set[int] | None]:
        """Loads that have ended, with the blocks that were not brought; None where that is not known. Requests in
        `finished` are given up. idle: the step ran nothing else."""
        if idle and self._loading:
            time.sleep(_YIELD_SECONDS)
        with self._lock:
            for request in finished:
                loading = self._loading.get(request)
                if loading is not None:
                    loading.given_up = True
            ended, self._ended = self._ended, {}
        return ended

    # -- saves ----------------------------------------------------------------------------------------------------

    def save(self, saves: Sequence[Save]) -> None:
        """Copies blocks, and leaves the rest to the publisher."""
        geometry = self._cache.geometry()
        for save in saves:
            if self._closed or self._off or self._memory is None or geometry is None or not self._cache.ready:
                self._lose(save.scope, save.keys)
                continue
            for part in self._parts(save):
                try:
                    self._snapshot(part, geometry)
                except Exception:
                    self._log.exception("quire: a snapshot failed")
                    self._lose(part.scope, part.keys)

    def _parts(self, save: Save) -> Iterable[Save]:
        """Runs of blocks that this rank writes, none longer than a batch. Of several ranks with equal bytes one writes a
        run as a whole, so that a page's parent is never another rank's to write."""
        if save.keys and self._writes(save.keys[0]):
            for at in range(0, len(save.keys), _BATCH_PAGES):
                end = at + _BATCH_PAGES
                yield Save(save.scope, save.keys[at - 1] if at else save.parent, save.keys[at:end], save.blocks[at:end], save.hint)

    def _snapshot(self, save: Save, geometry: Geometry) -> None:
        assert self._memory is not None
        if self._slots is None:
            self._slots = Slots(geometry.payload_bytes(self._view), self._save_bytes)
            self._memory.adopt(self._slots)
        slots = self._slots.take(len(save.keys))
        if slots is None:
            self.dropped += len(save.keys)
            self._lose(save.scope, save.keys)
            return
        try:
            ready = self._memory.snapshot(save.blocks, self._slots.addresses(slots), geometry, self._view)
        except Exception:
            self._slots.give(slots)
            raise
        with self._work:
            self._snapshots.append(_Snapshot(save, slots, ready))
            self._work.notify_all()

    def _lose(self, scope: bytes, keys: Iterable[bytes]) -> None:
        with self._lock:
            self._lost += [(scope, k) for k in keys]

    def _publish(self) -> None:
        while True:
            with self._work:
                self._busy = False
                self._work.notify_all()
                while not self._snapshots:
                    if self._closed:
                        return
                    self._work.wait()
                snapshot = self._snapshots.popleft()
                self._busy = True
            try:
                good = self._offer(snapshot)
            except Exception:
                self._log.exception("quire: a save failed")
                good = [False] * len(snapshot.save.keys)
            assert self._slots is not None
            self._slots.give(snapshot.slots)
            self._lose(snapshot.save.scope, (k for k, ok in zip(snapshot.save.keys, good, strict=True) if not ok))

    def _offer(self, snapshot: _Snapshot) -> list[bool]:
        save, geometry, slots = snapshot.save, self._cache.geometry(), self._slots
        if snapshot.ready is not None:
            snapshot.ready()
        if geometry is None or slots is None:
            return [False] * len(save.keys)
        memory = PageMemory.flat_at(slots.addresses(snapshot.slots), geometry, self._view, slots)
        parent = client.ROOT_PARENT if save.parent is None else save.parent
        return self._cache.save(save.keys, memory, parent=parent, scope=save.scope, view=self._view, hint=save.hint)

    def report(self) -> Report | None:
        """What the scheduler's side has to know; None: nothing."""
        with self._lock:
            lost, self._lost = self._lost, []
        if not lost and (self._told or not self._off):
            return None
        self._told = bool(self._off)
        return Report(lost, self._off)

    # -- the end --------------------------------------------------------------------------------------------------

    def flush(self, timeout: float) -> bool:
        """Waits until snapshots made so far are published or given up; False when time ran out."""
        until = time.monotonic() + timeout
        with self._work:
            while self._snapshots or self._busy:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._work.wait(left)
        return True

    def close(self, timeout: float = 1.0) -> None:
        """Publishes what is under way as far as time allows, then ends the threads."""
        until = time.monotonic() + timeout
        if not self._off:
            self.flush(timeout)
        with self._work:
            self._closed = True
            self._snapshots.clear()
            for loading in self._loading.values():
                loading.given_up = True
            self._work.notify_all()
        self._loaders.shutdown(wait=False, cancel_futures=True)
        self._publisher.join(max(0.0, until - time.monotonic()))
        if self._memory is not None and not self._publisher.is_alive():
            self._memory.close()
