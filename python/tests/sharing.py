"""Several pytest processes that share one run: each test is run by the process that claims it first.

All of them are given the same tests, and in QUIRE_TESTS_SHARED the same empty folder, in which a claim is a file. Long tests, those
with a limit of their own, come first, so that none is begun when the others are through. A process claims the next test
before it runs one, for pytest keeps what both need.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
from collections.abc import Iterator

import pytest


def folder() -> pathlib.Path | None:
    named = os.environ.get("QUIRE_TESTS_SHARED")
    return pathlib.Path(named) if named else None


def long_first(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: -_limit(item))  # stable


def _limit(item: pytest.Item) -> float:
    mark = item.get_closest_marker("limit")
    return float(mark.args[0]) if mark else 0.0


def claimed(items: list[pytest.Item], claims: pathlib.Path) -> Iterator[pytest.Item]:
    """The tests that are this process's, each claimed when it is asked for."""
    for item in items:
        with contextlib.suppress(FileExistsError):
            (claims / hashlib.sha256(item.nodeid.encode()).hexdigest()).touch(exist_ok=False)
            yield item


def run(session: pytest.Session, claims: pathlib.Path) -> None:
    """As pytest's own loop, over the tests that this process claims."""
    mine = claimed(session.items, claims)
    item = next(mine, None)
    while item is not None:
        following = next(mine, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
