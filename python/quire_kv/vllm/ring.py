"""Host memory of a fixed size for pages between a snapshot and its publication."""

from __future__ import annotations

import mmap
import threading

import numpy as np

__all__ = ["Slots"]


class Slots:
    """Page-sized slots of one anonymous mapping. Taken all or none; never waits. Thread-safe.

    The mapping takes memory of the machine only as far as slots have been used.
    """

    def __init__(self, slot_bytes: int, total_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self.count = total_bytes // slot_bytes
        self._lock = threading.Lock()
        self._free = list(range(self.count - 1, -1, -1))
        self.memory = mmap.mmap(-1, max(1, self.count) * slot_bytes)
        self.address = int(np.frombuffer(self.memory, dtype=np.uint8).__array_interface__["data"][0])

    def take(self, n: int) -> list[int] | None:
        """n slots, or None where there are not so many."""
        with self._lock:
            if n > len(self._free):
                return None
            taken = self._free[len(self._free) - n :]
            del self._free[len(self._free) - n :]
            return taken

    def give(self, slots: list[int]) -> None:
        """Slots that nothing reads or writes any more."""
        with self._lock:
            self._free += slots

    def addresses(self, slots: list[int]) -> np.ndarray:
        """Where they are, uint64."""
        return np.asarray(slots, dtype=np.uint64) * np.uint64(self.slot_bytes) + np.uint64(self.address)

    @property
    def free(self) -> int:
        with self._lock:
            return len(self._free)
