"""Bounded threads between an engine that polls for answers and a cache that blocks up to its deadline.

    submit ──> lane (bounded queue) ──> thread ──run──> deliver(answer)
                  │                                        ^
                  └── full, closed, or overdue in the queue ── the answer given with the task

An engine that has no time limits of its own waits for ever for an answer that never comes, so every task is answered once:
by its work, or by its deadline. A task that touches the engine's memory is never answered while its work runs, whatever its
deadline: the engine frees that memory on the answer. Its work is bounded by the deadlines of the cache instead. One that
touches no memory of the engine (`detached`) is answered at its deadline, and what its work brings later is handed to `late`.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Lane", "Workers"]

_log = logging.getLogger(__name__)


class Lane:
    """How many threads serve one kind of task, and how many tasks may wait for them."""

    def __init__(self, threads: int, depth: int) -> None:
        if threads < 1 or depth < 1:
            raise ValueError(f"a lane of {threads} threads and {depth} places")
        self.threads = threads
        self.depth = depth
        self.queue: deque[_Task] = deque()
        self.running = 0


def _nothing(_: Any) -> None:
    """What an ended task holds."""


class _Task:
    __slots__ = ("answered", "deadline", "deliver", "detached", "late", "miss", "run", "started")

    def __init__(
        self, run: Callable[[float], Any], miss: Any, deliver: Callable[[Any], None], deadline: float, detached: bool, late: Callable[[Any], None] | None
    ) -> None:
        self.run = run
        self.miss = miss
        self.deliver = deliver
        self.deadline = deadline
        self.detached = detached
        self.late = late
        self.started = False
        self.answered = False


class Workers:
    """Named lanes of daemon threads, and one thread that watches deadlines. Thread-safe.

    `deliver` callbacks run on a thread of these, or on the caller's where a task is refused at once; they must not block
    and must not submit. No lock is held across them.
    """

    def __init__(self, name: str, lanes: Mapping[str, Lane], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lanes = dict(lanes)
        self._lock = threading.Lock()
        self._work = {lane: threading.Condition(self._lock) for lane in self._lanes}
        self._watch = threading.Condition(self._lock)
        self._idle = threading.Condition(self._lock)
        self._due: list[tuple[float, int, _Task]] = []
        self._serial = itertools.count()
        self._pending = 0  # tasks with work queued or running
        self._closed = False
        self.refused = 0  # tasks answered at once for want of room
        self.overdue = 0  # tasks answered by their deadline
        self._threads = [threading.Thread(target=self._watch_deadlines, name=f"{name}-deadlines", daemon=True)]
        for lane in self._lanes:
            for i in range(self._lanes[lane].threads):
                self._threads.append(threading.Thread(target=self._serve, args=(lane,), name=f"{name}-{lane}-{i}", daemon=True))
        for thread in self._threads:
            thread.start()

    def submit(
        self,
        lane: str,
        run: Callable[[float], Any],
        miss: Any,
        deliver: Callable[[Any], None],
        *,
        timeout: float,
        detached: bool = False,
        late: Callable[[Any], None] | None = None,
    ) -> bool:
        """Queues run(seconds left); `deliver` gets its answer, or `miss`, exactly once. Never blocks or raises.

        False when there was no room, or these are closed: `miss` was then delivered already.
        """
        task = _Task(run, miss, deliver, self._clock() + timeout, detached, late)
        with self._lock:
            places = self._lanes[lane]
            taken = not self._closed and len(places.queue) < places.depth
            if taken:
                places.queue.append(task)
                self._pending += 1
                heapq.heappush(self._due, (task.deadline, next(self._serial), task))
                if self._due[0][2] is task:
                    self._watch.notify()
                self._work[lane].notify()
            else:
                self.refused += 1
        if not taken:
            self._deliver(task, miss)
        return taken

    def queued(self) -> dict[str, int]:
        """Tasks that wait or run, by lane."""
        with self._lock:
            return {name: len(lane.queue) + lane.running for name, lane in self._lanes.items()}

    @property
    def alive(self) -> bool:
        """Whether all threads run."""
        return not self._closed and all(t.is_alive() for t in self._threads)

    def drain(self, timeout: float | None = None) -> bool:
        """Waits until no task waits or runs; False when time ran out first."""
        until = None if timeout is None else self._clock() + timeout
        with self._lock:
            while self._pending:
                left = None if until is None else until - self._clock()
                if left is not None and left <= 0:
                    return False
                self._idle.wait(left)
        return True

    def close(self, timeout: float) -> bool:
        """Answers what waits, and waits for what runs and for the threads. Idempotent. False when some still run."""
        until = self._clock() + timeout
        with self._lock:
            self._closed = True
            waiting = [task for lane in self._lanes.values() for task in lane.queue]
            for lane in self._lanes.values():
                lane.queue.clear()
            self._pending -= len(waiting)
            waiting = [task for task in waiting if not task.answered]
            self._due = []
            for condition in (*self._work.values(), self._watch, self._idle):
                condition.notify_all()
        for task in waiting:
            self._deliver(task, task.miss)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - self._clock()))
        return not any(t.is_alive() for t in self._threads)

    # -- threads -------------------------------------------------------------------------------------------------

    def _serve(self, name: str) -> None:
        lane, work = self._lanes[name], self._work[name]
        while True:
            with self._lock:
                while not lane.queue and not self._closed:
                    work.wait()
                if not lane.queue:
                    return
                task = lane.queue.popleft()
                if task.answered:  # by its deadline, while it waited
                    self._ended()
                    continue
                task.started = True
                lane.running += 1
            answer = task.miss
            try:
                answer = task.run(max(0.0, task.deadline - self._clock()))
            except Exception:  # a task's work answers misses by itself: this is a defect, and no reason to leave the engine waiting
                _log.exception("quire: a task failed")
            self._deliver(task, answer)
            task.run = task.late = _nothing  # the deadline's entry may outlive the task: not what it holds
            with self._lock:
                lane.running -= 1
                self._ended()

    def _ended(self) -> None:
        self._pending -= 1
        if not self._pending:
            self._idle.notify_all()

    def _watch_deadlines(self) -> None:
        while True:
            overdue: list[_Task] = []
            with self._lock:
                while not self._closed:
                    now = self._clock()
                    while self._due and (self._due[0][2].answered or self._due[0][0] <= now):
                        task = heapq.heappop(self._due)[2]
                        if not task.answered and (task.detached or not task.started):
                            overdue.append(task)
                    if overdue:
                        self.overdue += len(overdue)
                        break
                    self._watch.wait(self._due[0][0] - now if self._due else None)
                if self._closed and not overdue:
                    return
            for task in overdue:
                self._deliver(task, task.miss, overdue=True)

    def _deliver(self, task: _Task, answer: Any, overdue: bool = False) -> None:
        with self._lock:
            if overdue and task.started and not task.detached:
                return  # it began meanwhile: its work answers
            first = not task.answered
            task.answered = True
        try:
            if first:
                task.deliver(answer)
            elif task.late is not None and not overdue:
                task.late(answer)
        except Exception:
            _log.exception("quire: an answer could not be delivered")
