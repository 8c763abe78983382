"""What is made once and kept, by what it depends on, in dictionaries with a bound: one that is full begins anew."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["MOST_KEPT", "keep"]

MOST_KEPT = 256  # of one dictionary

_K = TypeVar("_K")
_V = TypeVar("_V")


def keep(kept: dict[_K, _V], key: _K, value: _V) -> _V:
    """Puts a value, and returns it."""
    if len(kept) >= MOST_KEPT:
        kept.clear()
    kept[key] = value
    return value
