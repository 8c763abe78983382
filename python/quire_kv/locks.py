"""Which keys a lookup pinned with which lease, for engines that unlock key by key.

A lease of the store pins a run of pages and is given back whole. An engine that locks keys one by one unlocks some of them at
once and others after a load; the lease goes back with the last. Two lookups of one key have a lease each: an unlock counts for
the younger one, so that the lease of a lookup that was given up stays the old one, and ends by its time.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any

__all__ = ["Locks"]


class _Held:
    __slots__ = ("keys", "lease", "until")

    def __init__(self, lease: Any, keys: Iterable[Hashable], until: float) -> None:
        self.lease = lease
        self.keys = set(keys)
        self.until = until


class Locks:
    """At most `limit` leases at a time; what is over is not taken by its user in the first place. Thread-safe.

    Leases come out of here to be released by the caller, never under a lock.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._by_key: dict[Hashable, deque[_Held]] = {}

    def __len__(self) -> int:
        """Leases that are held."""
        return len(self._held)

    def room(self) -> bool:
        """Whether another lease may be taken."""
        return len(self._held) < self._limit

    def lock(self, lease: Any, keys: Iterable[Hashable], seconds: float) -> None:
        """Keeps a lease until all of its keys are unlocked, or for so many seconds."""
        held = _Held(lease, keys, self._clock() + seconds)
        with self._lock:
            self._held[id(held)] = held
            for key in held.keys:
                self._by_key.setdefault(key, deque()).append(held)

    def unlock(self, keys: Iterable[Hashable]) -> list[Any]:
        """The leases that nobody needs any more. Keys that are not locked are ignored."""
        over: list[Any] = []
        with self._lock:
            for key in keys:
                holders = self._by_key.get(key)
                if not holders:
                    continue
                held = holders.pop()
                if not holders:
                    del self._by_key[key]
                held.keys.discard(key)
                if not held.keys:
                    del self._held[id(held)]
                    over.append(held.lease)
        return over

    def expired(self) -> list[Any]:
        """The leases whose time is over; they are forgotten here, and have ended at the store or are about to."""
        now = self._clock()
        over: list[Any] = []
        with self._lock:
            for held in list(self._held.values()):
                if held.until > now:
                    break  # taken later, and all for the same time
                self._forget(held)
                over.append(held.lease)
        return over

    def drain(self) -> list[Any]:
        """All leases; nothing is locked then."""
        with self._lock:
            over = [held.lease for held in self._held.values()]
            self._held.clear()
            self._by_key.clear()
        return over

    def _forget(self, held: _Held) -> None:
        del self._held[id(held)]
        for key in held.keys:
            holders = self._by_key.get(key)
            if holders is not None:
                holders.remove(held)
                if not holders:
                    del self._by_key[key]
