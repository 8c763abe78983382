"""Buffers that native code and sockets fill: aligned, reused, and known by their address."""

from __future__ import annotations

import ctypes

import numpy as np

__all__ = ["Buffer", "address_of_array", "address_of_bytes", "memory_at"]

_ALIGN = 4096
_first_of = ctypes.c_char.from_buffer


class Buffer:
    """`size` writable bytes at `address`, a multiple of 4096."""

    __slots__ = ("_room", "address", "bytes", "view")

    def __init__(self, size: int) -> None:
        self._room = np.empty(size + _ALIGN, dtype=np.uint8)
        at = int(self._room.__array_interface__["data"][0])
        skip = -at % _ALIGN
        self.address, self.bytes = at + skip, size
        self.view = memoryview(self._room)[skip : skip + size]  # type: ignore[arg-type]


def address_of_array(a: np.ndarray) -> int:
    """Where an array begins. The caller keeps it alive. `a.ctypes.data` is the same, and takes five times as long."""
    try:
        return ctypes.addressof(_first_of(a))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # read-only, with holes, or of no bytes
        return a.ctypes.data


def address_of_bytes(b: bytes) -> int:
    """Where the content of a bytes object lies. The caller keeps it alive."""
    return int(np.frombuffer(b, dtype=np.uint8).__array_interface__["data"][0]) if b else 0


def memory_at(address: int, size: int) -> memoryview:
    """A writable view of memory that the caller vouches for and keeps alive."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
