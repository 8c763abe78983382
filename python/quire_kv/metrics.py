"""Counters of one adapter in one process: plain numbers that engines' own metrics and the store's reports are made of."""

from __future__ import annotations

import threading

from .errors import Reason

__all__ = ["Counters"]

_NAMES = (
    "lookups",  # calls
    "lookup_keys",
    "hits",  # keys within the leading run of a lookup
    "loads",  # pages asked for
    "loaded_pages",
    "load_bytes",
    "saves",  # pages offered
    "saved_pages",  # stored now, or before
    "save_bytes",
    "recompute_fallbacks",  # pages that a lookup promised and a load did not bring
    "refused_open",  # calls that ended at once because the breaker was open
    "bad_hints",  # hints of requests that say nothing that can be understood
)


class Counters:
    """Cumulative from the start of the process; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values = dict.fromkeys(_NAMES, 0)
        self._failures = dict.fromkeys(Reason, 0)

    def add(self, **amounts: int) -> None:
        """Adds to named counters."""
        with self._lock:
            for name, amount in amounts.items():
                self._values[name] += amount

    def fail(self, reason: Reason, pages: int = 1) -> None:
        """Counts pages that were not served or not taken, but for plain absence."""
        with self._lock:
            self._failures[reason] += pages

    def snapshot(self) -> dict[str, int]:
        """All counters by name."""
        with self._lock:
            return dict(self._values)

    def failures(self) -> dict[Reason, int]:
        """Pages by reason, those that happened."""
        with self._lock:
            return {r: n for r, n in self._failures.items() if n}
