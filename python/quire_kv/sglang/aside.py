"""Lookups for a thread that must not wait: asked aside, answered at once if the answer is quick, else at the next ask.

A decode instance asks for its prefixes on the scheduler's thread, where every millisecond is one of all requests.
Ending the call early would cost its connection, so it runs on a thread of its own to its end.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from ..workers import Lane, Workers

__all__ = ["Aside"]

_KEPT = 256  # late answers
_KEPT_SECONDS = 2.0  # that one is good for: pages come and go
_DEPTH = 16  # questions that wait


class Aside:
    """Thread-safe. `timeout` bounds one question."""

    def __init__(self, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout = timeout
        self._clock = clock
        self._lock = threading.Lock()
        self._late: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()
        self._asked: dict[Hashable, threading.Event] = {}
        self._epoch = 0
        self._workers = Workers("quire-lookup", {"lookup": Lane(1, _DEPTH)})

    def ask(self, key: Hashable, question: Callable[[], Any], wait: float) -> Any:
        """The answer to the question named by `key`, or None when it takes longer than `wait` seconds."""
        with self._lock:
            answered = self._asked.get(key)
            late = self._late.pop(key, None)
            if late is not None and late[0] > self._clock():
                return late[1]
            first = answered is None
            if answered is None:
                answered = self._asked[key] = threading.Event()
            epoch = self._epoch
        if first:
            self._workers.submit("lookup", lambda _: question(), None, lambda answer: self._deliver(key, epoch, answer), timeout=self._timeout)
        answered.wait(wait)
        with self._lock:
            late = self._late.pop(key, None)
        return late[1] if late is not None else None

    def _deliver(self, key: Hashable, epoch: int, answer: Any) -> None:
        with self._lock:
            event = self._asked.pop(key, None)
            if answer is not None and epoch == self._epoch:
                self._late[key] = (self._clock() + _KEPT_SECONDS, answer)
                while len(self._late) > _KEPT:
                    self._late.popitem(last=False)
        if event is not None:
            event.set()

    def forget(self) -> None:
        """Drops answers that nobody has asked for yet, also those under way."""
        with self._lock:
            self._late.clear()
            self._epoch += 1

    def close(self, timeout: float) -> None:
        """Ends the thread; later questions are answered None."""
        self._workers.close(timeout)
