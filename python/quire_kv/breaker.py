"""The breaker between an engine and its store: when the store is away, calls end at once instead of by their deadline.

    closed ──3 failures in a row, or 1 that is sure──> open ──a probe is due──> open, probing ──it came through──> closed
                                                         ^                             │
                                                         └───── it failed: wait longer ┘

Sure is a deadline, after which nobody may wait as long again, and a store that is gone: its stream ended and a probe failed.

Engine calls never probe: `allows` answers from one attribute. The cache's own thread does, so that a call never pays
for finding out that the store is still away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Breaker"]

FAILURES = 3  # in a row, that open it
FIRST_PAUSE = 0.25  # seconds before the first probe
LONGEST_PAUSE = 2.0  # seconds between probes; recovery takes this and one probe at most


class Breaker:
    """Thread-safe. `clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._pause = FIRST_PAUSE
        self._probe_at = 0.0
        self._open = False
        self.opened = 0  # times
        self.why = ""

    @property
    def allows(self) -> bool:
        """Whether calls may go out."""
        return not self._open

    def succeeded(self) -> bool:
        """The store answered. True when that closed the breaker."""
        if not self._open and self._failures == 0:
            return False
        with self._lock:
            closed = self._open
            self._open = False
            self._failures = 0
            self._pause = FIRST_PAUSE
            return closed

    def failed(self, why: str, *, sure: bool = False) -> bool:
        """The store did not answer. True when that opened the breaker, which one failure does that is sure."""
        with self._lock:
            self._failures += 1
            self.why = why
            if self._open or (self._failures < FAILURES and not sure):
                return False
            self._open = True
            self.opened += 1
            self._pause = FIRST_PAUSE
            self._probe_at = self._clock() + self._pause
            return True

    def probe_in(self) -> float | None:
        """Seconds until the next probe is due; None while closed."""
        with self._lock:
            return max(0.0, self._probe_at - self._clock()) if self._open else None

    def probe_failed(self, why: str) -> None:
        """A probe did not come through: the next one waits twice as long, up to LONGEST_PAUSE."""
        with self._lock:
            self.why = why
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._probe_at = self._clock() + self._pause
