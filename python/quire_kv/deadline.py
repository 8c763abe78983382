"""One call: how long it may still take, and how it is ended from outside."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .errors import QuireError, Reason

__all__ = ["Call", "DeadlineError", "again"]


def again(error: QuireError) -> QuireError:
    """An equal error to be raised elsewhere: one that several threads raise must not be one object."""
    text = Exception.__str__(error)
    return QuireError(error.reason, text, broken=error.broken, path=error.path, differences=error.differences)


class DeadlineError(QuireError):
    """The call ran out of time: whether the server did what was asked is not known.

    `crowded`: most of its time went by while it waited for other calls of this client, so it says nothing of the server.
    """

    crowded = False

    def __init__(self, message: str = "the call ran out of time") -> None:
        super().__init__(Reason.UNKNOWN, message, broken=True)


class Call:
    """A call with an absolute deadline that another thread may cancel. What waits on behalf of the call (a socket, a
    gRPC future) is registered while it waits, so that cancel can wake it. Thread-safe."""

    __slots__ = ("_lock", "_wake", "_why", "deadline")

    def __init__(self, timeout: float) -> None:
        self.deadline = time.monotonic() + timeout
        self._lock = threading.Lock()
        self._why: QuireError | None = None
        self._wake: list[Callable[[], object]] = []

    def left(self) -> float:
        """Seconds left, above 0. QuireError when the call was cancelled, DeadlineError when there are none."""
        if self._why is not None:
            raise again(self._why)
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlineError
        return left

    @property
    def cancelled(self) -> QuireError | None:
        """Why the call was cancelled, an error of the asker's own; None: it was not."""
        return again(self._why) if self._why is not None else None

    def expired(self) -> bool:
        """Whether nothing may be begun any more for this call."""
        return self._why is not None or time.monotonic() >= self.deadline

    def cancel(self, why: QuireError) -> None:
        """Ends the call: whoever waits for it is woken, and left raises `why` from now on."""
        with self._lock:
            if self._why is None:
                self._why = why
            wake, self._wake = self._wake, []
        for w in wake:
            w()

    def register(self, wake: Callable[[], object]) -> None:
        """Has `wake` called when the call is cancelled, at once if it was."""
        with self._lock:
            if self._why is None:
                self._wake.append(wake)
                return
        wake()

    def unregister(self, wake: Callable[[], object]) -> None:
        """Forgets `wake`. It may be running on another thread at this moment."""
        with self._lock:
            if wake in self._wake:
                self._wake.remove(wake)
