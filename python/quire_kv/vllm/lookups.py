"""Lookups off the scheduler's thread, with bounds: so many at a time, so many waiting, none longer than its deadline."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable

__all__ = ["Background"]

_log = logging.getLogger(__name__)


class Background:
    """A bounded pool of threads. Work beyond `waiting` is refused, never queued without end."""

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._room = threading.Semaphore(threads + waiting)

    def submit(self, work: Callable[[], None]) -> bool:
        """Runs work soon; False where there is no room or the pool was closed. Work must end by a deadline of its own."""
        if not self._room.acquire(blocking=False):
            return False
        try:
            future = self._pool.submit(_guarded, work)
        except RuntimeError:  # closed
            self._room.release()
            return False
        future.add_done_callback(lambda _: self._room.release())
        return True

    def close(self) -> None:
        """Drops what waits and does not wait for what runs."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _guarded(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:  # a thread of the engine's process must live
        _log.exception("quire: background work failed")
