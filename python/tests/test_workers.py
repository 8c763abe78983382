"""Bounded threads: every task is answered once, by its work or by its deadline."""

from __future__ import annotations

import threading
import time

import pytest
from waiting import wait_for

from quire_kv.locks import Locks
from quire_kv.workers import Lane, Workers


@pytest.fixture
def workers():
    made = []

    def make(clock=time.monotonic, **lanes):
        made.append(Workers("test", lanes or {"a": Lane(1, 2)}, clock))
        return made[-1]

    yield make
    for w in made:
        w.close(5)


class Clock:
    """Stands still until it is moved; whoever watches deadlines looks at it then."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, workers: Workers, seconds: float) -> None:
        """Returns when every deadline up to the new time has been judged."""

        def judged() -> bool:
            with workers._lock:
                return not workers._due or workers._due[0][0] > self.now

        self.now += seconds
        with workers._watch:
            workers._watch.notify()
        wait_for(judged)


class Held:
    """Work that has begun and goes on until it is let go."""

    def __init__(self) -> None:
        self.began, self.go = threading.Event(), threading.Event()

    def __call__(self, _: float) -> str:
        self.began.set()
        assert self.go.wait(30)
        return "done"


def test_answers_come_from_the_work_and_the_time_left_is_told(workers):
    w, got = workers(), []
    assert w.submit("a", lambda left: ("done", 0 < left <= 30), "miss", got.append, timeout=30)
    assert w.drain(30) and got == [("done", True)]


def test_a_queue_that_is_full_answers_at_once(workers):
    w, got, go = workers(a=Lane(1, 2)), [], threading.Event()
    w.submit("a", lambda _: go.wait(10), "miss", got.append, timeout=30)
    wait_for(lambda: w.queued()["a"] == 1)
    assert [w.submit("a", lambda _: "done", "miss", got.append, timeout=30) for _ in range(3)][-1] is False
    assert "miss" in got and w.refused >= 1
    go.set()
    assert w.drain(10)
    assert len(got) == 4


def test_an_overdue_task_is_answered_while_it_waits_and_never_run(workers):
    w, got, go, ran = workers(a=Lane(1, 8)), [], threading.Event(), []
    w.submit("a", lambda _: go.wait(10), "miss", got.append, timeout=30)
    w.submit("a", lambda _: ran.append(1), "late", got.append, timeout=0.02)
    wait_for(lambda: got == ["late"])
    go.set()
    assert w.drain(10) and not ran and w.overdue == 1


def test_a_task_that_touches_memory_is_not_answered_while_it_runs(workers):
    clock = Clock()
    w, got, held = workers(clock), [], Held()
    w.submit("a", held, "miss", got.append, timeout=1)
    assert held.began.wait(30)
    clock.pass_(w, 2)
    assert got == [] and w.overdue == 0
    held.go.set()
    assert w.drain(10) and got == ["done"]


def test_a_detached_task_is_answered_by_its_deadline_and_hands_over_what_comes_later(workers):
    clock = Clock()
    w, got, late, held = workers(clock), [], [], Held()
    w.submit("a", held, "miss", got.append, timeout=1, detached=True, late=late.append)
    assert held.began.wait(30)  # one that is still in the queue would never run
    clock.pass_(w, 2)
    wait_for(lambda: got == ["miss"])
    held.go.set()
    assert w.drain(10) and got == ["miss"] and late == ["done"]


def test_close_answers_what_waits_and_ends_the_threads(workers):
    w, got, held = workers(a=Lane(1, 8)), [], Held()
    w.submit("a", held, "miss", got.append, timeout=30)
    assert held.began.wait(10)
    for _ in range(3):
        w.submit("a", lambda _: "done", "miss", got.append, timeout=30)
    assert not w.close(0.05)  # one still runs
    assert got == ["miss"] * 3
    held.go.set()
    assert w.close(10) and sorted(got) == ["done", *["miss"] * 3]
    assert not w.submit("a", lambda _: "done", "miss", got.append, timeout=1) and got[-1] == "miss"
    assert not w.alive and w.drain(1)


def test_defects_of_work_and_of_callbacks_end_no_thread(workers):
    w, got = workers(), []
    w.submit("a", lambda _: 1 / 0, "miss", got.append, timeout=30)
    w.submit("a", lambda _: "done", "miss", lambda _: 1 / 0, timeout=30)
    assert w.drain(30)
    w.submit("a", lambda _: "done", "miss", got.append, timeout=30)
    assert w.drain(30) and got == ["miss", "done"] and w.alive


def test_many_tasks_from_many_threads_are_each_answered_once(workers):
    w, got, lock = workers(a=Lane(3, 50), b=Lane(2, 50)), {}, threading.Lock()

    def count(n):
        def deliver(_):
            with lock:
                got[n] = got.get(n, 0) + 1

        return deliver

    def send(first):
        for n in range(first, first + 500):
            w.submit("ab"[n % 2], lambda _: time.sleep(0), "miss", count(n), timeout=0.001 * (n % 7), detached=n % 3 == 0)

    senders = [threading.Thread(target=send, args=(i * 500,)) for i in range(4)]
    for t in senders:
        t.start()
    for t in senders:
        t.join()
    assert w.drain(20)
    wait_for(lambda: len(got) == 2000)
    assert set(got.values()) == {1}


def test_locks():
    now = [0.0]
    locks = Locks(2, clock=lambda: now[0])
    locks.lock("old", ["a", "b"], 10)
    now[0] = 5
    locks.lock("new", ["b", "c"], 10)
    assert not locks.room() and len(locks) == 2
    assert locks.unlock(["b", "x"]) == []  # counts for the new one
    assert locks.unlock(["c"]) == ["new"] and locks.room()
    now[0] = 11
    assert locks.expired() == ["old"] and len(locks) == 0
    assert locks.unlock(["a", "b"]) == [] and locks.expired() == []
    locks.lock("last", ["a"], 10)
    assert locks.drain() == ["last"] and locks.unlock(["a"]) == []
