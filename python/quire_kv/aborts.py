"""Gives back, after their call, the places of publications that ran out of time.

A publish ends by its deadline, also where that leaves granted pages behind. Until their lease ends, a moment later, nobody
else could publish them; the abort frees them at once. It is sent from a thread that lives while there is something to
send. What cannot be sent in time, or is too much, is left to the lease.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from .deadline import Call
from .errors import QuireError

__all__ = ["Aborts"]

_SECONDS = 1.0  # of one abort: by then the lease has ended as well
_MOST = 64  # that wait


class Aborts:
    """Aborts of one client that are still to be sent. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[float, Callable[[Call], object]]] = deque()
        self._thread: threading.Thread | None = None
        self._call: Call | None = None
        self._closed: QuireError | None = None

    def add(self, send: Callable[[Call], object]) -> None:
        """Has `send` called soon, with a call of its own that is a second long from now. Never waits."""
        with self._lock:
            if self._closed is not None or len(self._waiting) >= _MOST:
                return
            self._waiting.append((time.monotonic() + _SECONDS, send))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="quire-abort", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the process may have no more threads
                    self._waiting.clear()
                    return
                self._thread = thread

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._closed is not None or not self._waiting:
                    self._thread = self._call = None
                    return
                until, send = self._waiting.popleft()
                call = self._call = Call(until - time.monotonic())
            try:
                send(call)
            except QuireError:
                continue

    def close(self, why: QuireError, deadline: float) -> None:
        """Sends no more; waits for the thread until a monotonic time at most. Idempotent."""
        with self._lock:
            self._closed = why
            call, thread = self._call, self._thread
        if call is not None:
            call.cancel(why)
        if thread is not None:
            thread.join(max(0.0, deadline - time.monotonic()))
