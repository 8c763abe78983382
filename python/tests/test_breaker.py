"""The breaker, on a clock of the test's own."""

from __future__ import annotations

from quire_kv.breaker import FAILURES, FIRST_PAUSE, LONGEST_PAUSE, Breaker


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_opens_after_failures_in_a_row():
    b = Breaker(Clock())
    for _ in range(FAILURES - 1):
        assert not b.failed("refused") and b.allows
    assert not b.succeeded()
    for _ in range(FAILURES - 1):
        assert not b.failed("refused")
    assert b.failed("refused") and not b.allows and b.opened == 1 and FAILURES <= 3


def test_opens_after_one_deadline():
    b = Breaker(Clock())
    assert b.failed("too late", sure=True) and not b.allows


def test_probes_are_spaced_and_bounded():
    clock = Clock()
    b = Breaker(clock)
    assert b.probe_in() is None
    b.failed("too late", sure=True)
    assert b.probe_in() == FIRST_PAUSE
    waits = []
    for _ in range(10):
        waits.append(b.probe_in())
        clock.now += waits[-1]
        assert b.probe_in() == 0
        b.probe_failed("still away")
    assert waits == sorted(waits) and waits[-1] == LONGEST_PAUSE < 5
    assert b.succeeded() and b.allows and b.probe_in() is None
    b.failed("too late", sure=True)
    assert b.probe_in() == FIRST_PAUSE
