"""Waiting for what comes about by itself: never by sleeping for a time, always with a bound.

A busy machine may keep a thread, or a server, from running for longer than the timeouts of the configuration: where a test is
about what is found and not about how soon, its cache is PATIENT.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["PATIENT", "wait_for"]

PATIENT = {"lookup_timeout_ms": 20_000, "load_timeout_ms": 20_000, "save_timeout_ms": 20_000}


def wait_for(condition: Callable[[], Any], seconds: float = 30.0, what: str = "it") -> Any:
    """The first true answer of a condition; AssertionError when there is none in time."""
    until = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < until, f"{what} did not come about in {seconds} s"
        time.sleep(0.002)
    return answer
