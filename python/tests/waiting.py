"""Waiting for what comes about by itself: never by sleeping for a time, always with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["wait_for"]


def wait_for(condition: Callable[[], Any], seconds: float = 10.0, what: str = "it") -> Any:
    """The first true answer of a condition; AssertionError when there is none in time."""
    until = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < until, f"{what} did not come about in {seconds} s"
        time.sleep(0.002)
    return answer
