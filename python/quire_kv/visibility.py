"""Which keys one instance may look up: not those that it hid by a clear, and not those whose load failed lately.

    clear ──────────> all are hidden, until saved again
    a failed load ──> distrusted for some seconds, or until saved again: a lookup that promises them again would loop

Nothing is deleted: pages belong to everybody who shares the namespace. Memory is bounded; what is forgotten is hidden again.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Visibility"]

_REMEMBERED_KEYS = 1 << 18  # after a clear: keys seen again
_DISTRUSTED_KEYS = 1 << 12  # keys whose load failed lately
_DISTRUST_SECONDS = 5.0  # how long lookups end before such a key


class Visibility:
    """Thread-safe. Keys count by group and scope."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[bytes, None] | None = None  # after a clear: what this instance has met since
        self._distrusted: OrderedDict[bytes, float] = OrderedDict()  # key -> when it is trusted again

    def clear(self) -> None:
        """Hides every key until it is shown."""
        with self._lock:
            self._seen = OrderedDict()

    def leading(self, keys: Sequence[bytes], group: bytes | None, scope: bytes) -> int:
        """How many keys from the start may be looked up: up to the first that is hidden or distrusted."""
        if self._seen is None and not self._distrusted:
            return len(keys)
        now = time.monotonic()
        with self._lock:
            while self._distrusted and next(iter(self._distrusted.values())) <= now:
                self._distrusted.popitem(last=False)
            seen, distrusted = self._seen, self._distrusted
            if seen is None and not distrusted:
                return len(keys)
            for i, f in enumerate(_fingerprints(keys, group, scope)):
                if f in distrusted or (seen is not None and f not in seen):
                    return i
        return len(keys)

    def distrust(self, keys: Iterable[bytes], group: bytes | None, scope: bytes) -> None:
        """A load did not bring these."""
        until = time.monotonic() + _DISTRUST_SECONDS
        with self._lock:
            for f in _fingerprints(keys, group, scope):
                self._distrusted[f] = until
                self._distrusted.move_to_end(f)
            while len(self._distrusted) > _DISTRUSTED_KEYS:
                self._distrusted.popitem(last=False)

    def show(self, keys: Iterable[bytes], group: bytes | None, scope: bytes) -> None:
        """A save un-hides its pages, and ends the distrust of them."""
        if self._seen is None and not self._distrusted:
            return
        with self._lock:
            for f in _fingerprints(keys, group, scope):
                self._distrusted.pop(f, None)
                if self._seen is not None:
                    self._seen[f] = None
                    self._seen.move_to_end(f)
            while self._seen is not None and len(self._seen) > _REMEMBERED_KEYS:
                self._seen.popitem(last=False)


def _fingerprints(keys: Iterable[bytes], group: bytes | None, scope: bytes) -> Iterator[bytes]:
    """16 bytes for each key as it is in this group and scope."""
    place = hashlib.blake2b((group or b"") + b"/" + scope, digest_size=16).digest() if group or scope else b""
    return (hashlib.blake2b(key, digest_size=16, key=place).digest() for key in keys)
