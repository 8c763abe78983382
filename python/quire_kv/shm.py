"""Memory shared with a node of this host (docs/formats/shm.md): its slabs, read-only, and areas that it reads.

    slab    [slot 0][slot 1]...   mapped read-only      copied out of, then the generations are asked
    area    [ what we fill ]      a sealed memfd        named in WritePages, free again when released

A reader believes what it copied only when both generations of each reference still stand after its last byte. Mappings
are made by libc, not by mmap objects: those keep a descriptor each. Linux only; `AVAILABLE` says whether it is there.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import sys
import threading
from collections import deque

import numpy as np

from .errors import QuireError, Reason
from .layout import span_of
from .wire import Reference, protocol_error

__all__ = ["AVAILABLE", "Area", "Budget", "Slab", "Slabs", "Staging", "Stagings"]

MAX_SLABS = 16 << 10
MAX_SLAB_BYTES = 1 << 40  # of one: a large extent has a slab of its own
_GENERATIONS_HEAD = 64
_MAGIC = int.from_bytes(b"QURSLAB1", "little")
_GONE = (1 << 64) - 1
_TMPFS = 0x01021994
_PROT_NONE, _PROT_READ, _PROT_WRITE, _MAP_SHARED, _MAP_FIXED = 0, 1, 2, 1, 16
_MAP_RESERVE = 2 | 0x20 | 0x4000  # private, anonymous, no memory for it
_FAILED = ctypes.c_void_p(-1).value
_HUGE_PAGE = 2 << 20
_PAGE = mmap.PAGESIZE
_MADV_REMOVE, _MADV_HUGEPAGE = 9, 14
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1, 2, 4

AVAILABLE = sys.platform == "linux" and hasattr(os, "memfd_create")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def _map(fd: int, size: int, protection: int) -> int:
    at = _libc.mmap(None, size, protection, _MAP_SHARED, fd, 0)
    if at in (None, _FAILED):
        raise OSError(ctypes.get_errno(), f"map {size} bytes")
    return int(at)


def _map_slab(fd: int, size: int) -> int:
    """A read-only mapping at a multiple of a huge page: what the node has in huge pages is then mapped in them."""
    span = size + _HUGE_PAGE
    at = _libc.mmap(None, span, _PROT_NONE, _MAP_RESERVE, -1, 0)
    if at in (None, _FAILED):
        raise OSError(ctypes.get_errno(), f"reserve {span} bytes of addresses")
    base = (int(at) + _HUGE_PAGE - 1) // _HUGE_PAGE * _HUGE_PAGE
    if _libc.mmap(base, size, _PROT_READ, _MAP_SHARED | _MAP_FIXED, fd, 0) != base:
        error = OSError(ctypes.get_errno(), f"map {size} bytes")
        _libc.munmap(at, span)
        raise error
    end = base + -(-size // _PAGE) * _PAGE
    if base > at:
        _libc.munmap(at, base - at)
    if at + span > end:
        _libc.munmap(end, at + span - end)
    return base


def _checked(fd: int, *, hugetlb: bool) -> int:
    """The size of a descriptor that is safe to map: a memfd that cannot shrink, so that no access can fail."""
    try:
        seals = fcntl.fcntl(fd, _F_GET_SEALS)
    except OSError:
        seals = 0
    if not seals & _SEAL_SHRINK:
        raise protocol_error(f"a descriptor with seals {seals:#x}")
    size = os.fstat(fd).st_size
    if not 0 < size <= MAX_SLAB_BYTES:
        raise protocol_error(f"a slab of {size} bytes")
    if not hugetlb:
        room = (ctypes.c_long * 32)()
        if _libc.fstatfs(fd, room) != 0 or room[0] != _TMPFS:
            raise protocol_error(f"generations on file system {room[0]:#x}")
    return size


class Slab:
    """One slab of a node, mapped until the last reference to this object is dropped.

    Owns both descriptors only while it is made. QuireError for what is no slab.
    """

    def __init__(self, memory_fd: int, generations_fd: int) -> None:
        self.address = self._words_at = 0
        self.bytes = _checked(memory_fd, hugetlb=True)
        self._words_bytes = _checked(generations_fd, hugetlb=False)
        if self._words_bytes < _GENERATIONS_HEAD:
            raise protocol_error(f"generations of {self._words_bytes} bytes")
        try:
            self.address = _map_slab(memory_fd, self.bytes)
            self._words_at = _map(generations_fd, self._words_bytes, _PROT_READ)
        except OSError as e:
            raise QuireError(Reason.UNKNOWN, f"shared memory: {e}", broken=True) from None
        self._words = np.ctypeslib.as_array((ctypes.c_uint64 * (self._words_bytes // 8)).from_address(self._words_at))
        magic, self.number, size, self.slot_bytes, self.slots = (int(w) for w in self._words[:5])
        if (
            magic != _MAGIC
            or size != self.bytes
            or self.slot_bytes == 0
            or self.slots == 0
            or self.slots > (self._words_bytes - _GENERATIONS_HEAD) // 8
            or self.slots * self.slot_bytes > self.bytes
        ):
            raise protocol_error(f"generations of {self.slots} slots of {self.slot_bytes} bytes in {self.bytes}")

    @property
    def row(self) -> tuple[int, ...]:
        """The slab as native code takes it: number, address, bytes, address of the generations, slot bytes, slots."""
        return self.number, self.address, self.bytes, self._words_at, self.slot_bytes, self.slots

    @property
    def gone(self) -> bool:
        """Whether the node has taken the memory back."""
        return int(self._words[5]) == _GONE

    def valid(self, offset: int, slot_generation: int, slab_generation: int) -> bool:
        """Whether what was read before was what a reference with these numbers named. Each word is one aligned load;
        the caller has put a barrier behind its last byte."""
        slot = offset // self.slot_bytes
        return slot < self.slots and int(self._words[8 + slot]) == slot_generation and int(self._words[5]) == slab_generation

    def __del__(self) -> None:
        for at, n in ((self.address, getattr(self, "bytes", 0)), (self._words_at, getattr(self, "_words_bytes", 0))):
            if at:
                _libc.munmap(at, n)


class Slabs:
    """The slabs that a node has handed out, by number, over all connections of a client. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slabs: dict[int, Slab] = {}
        self._table: tuple[np.ndarray, list[Slab]] | None = None

    def table(self) -> tuple[np.ndarray, list[Slab]]:
        """All slabs as native code takes them, uint64 [n, 6], and what keeps them mapped. Immutable."""
        table = self._table
        if table is None:
            with self._lock:
                slabs = list(self._slabs.values())
                table = self._table = np.array([s.row for s in slabs], dtype=np.uint64).reshape(-1, 6), slabs
        return table

    def take(self, descriptors: deque[int]) -> None:
        """Maps what came: descriptors of memory and generations, in turns. Closes all of them."""
        if not descriptors:
            return
        try:
            with self._lock:
                for number in [n for n, s in self._slabs.items() if s.gone]:
                    del self._slabs[number]
                    self._table = None
            while len(descriptors) >= 2:
                slab = Slab(descriptors[0], descriptors[1])
                for _ in range(2):
                    os.close(descriptors.popleft())
                with self._lock:
                    if len(self._slabs) >= MAX_SLABS:
                        raise protocol_error(f"more than {MAX_SLABS} slabs")
                    self._slabs.setdefault(slab.number, slab)
                    self._table = None
            if descriptors:
                raise protocol_error("half a slab")
        finally:
            while descriptors:
                with contextlib.suppress(OSError):
                    os.close(descriptors.popleft())

    def resolve(self, r: Reference) -> Slab:
        """The slab that a reference of the node lies in. QuireError when there is none, or it leaves the slab."""
        slab = self._slabs.get(r.slab)
        if slab is None or r.offset >= slab.bytes or r.bytes > slab.bytes - r.offset:
            raise protocol_error(f"a reference to {r.bytes} bytes at {r.offset} of slab {r.slab}")
        return slab

    def clear(self) -> None:
        """Forgets all slabs; those in use are unmapped by their last user."""
        with self._lock:
            self._slabs.clear()
            self._table = None

    def barrier(self) -> None:
        """Orders loads: those before come before those after. A release followed by an acquire is one everywhere."""
        for _ in range(2):
            with self._lock:
                pass


class Budget:
    """Bytes that all areas of a client may take together. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._left = limit

    def take(self, size: int) -> bool:
        """Whether there was room for so many bytes; give them back."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def has(self, size: int) -> bool:
        """Whether there is room for so many bytes now."""
        return size <= self._left

    def give(self, size: int) -> None:
        with self._lock:
            self._left += size


class Area:
    """Memory that this process fills and a node reads: a memfd, sealed against any change of its size.

    close gives the memory back also where the node still has it mapped; it finds zeros. A forked child only unmaps.
    """

    def __init__(self, size: int, budget: Budget | None) -> None:
        """OSError where there is no such memory; a budget must have room already and gets it back at close."""
        self.bytes, self._budget, self._pid = size, budget, os.getpid()
        self.address = 0
        self.fd = os.memfd_create("quire-staging", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, size)
            fcntl.fcntl(self.fd, _F_ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW | _SEAL_SEAL)
            self.address = _map(self.fd, size, _PROT_READ | _PROT_WRITE)
        except OSError:
            os.close(self.fd)
            raise
        _libc.madvise(self.address, size, _MADV_HUGEPAGE)  # where shared memory may have them

    def close(self) -> None:
        """Nobody may be filling it. Idempotent."""
        at, self.address = self.address, 0
        if not at:
            return
        if os.getpid() == self._pid:
            _libc.madvise(at, self.bytes, _MADV_REMOVE)
            if self._budget is not None:
                self._budget.give(self.bytes)
        _libc.munmap(at, self.bytes)
        os.close(self.fd)

    def __del__(self) -> None:
        if getattr(self, "address", 0):
            self.close()


class Staging:
    """Memory that its owner fills and publishes from: over shared memory a node reads it where it lies, and nothing is
    copied on this side. Over every other transport it is memory like any other. Made by Client.staging.

    What is in it must not change from the begin of a publish out of it to its return; if it does, the page is refused.
    """

    def __init__(self, size: int, all_of_them: Stagings) -> None:
        self.area, self._all = Area(size, None), all_of_them
        self.address, self.bytes = self.area.address, size
        self.memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.address))
        self.serial = all_of_them.add(self)

    def close(self) -> None:
        """Gives the memory back: nothing may use `memory`, or publish from it, any more. Idempotent."""
        self._all.remove(self)
        self.area.close()


class Stagings:
    """The staging memory of a client. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[int, Staging] = {}
        self._made = 0

    def add(self, staging: Staging) -> int:
        with self._lock:
            self._made += 1
            self._all[self._made] = staging
            return self._made

    def remove(self, staging: Staging) -> None:
        with self._lock:
            self._all.pop(staging.serial, None)

    def find(self, addresses: np.ndarray, size: int) -> Staging | None:
        """The staging memory in which `size` bytes at each address, uint64, lie."""
        if not self._all or not len(addresses):
            return None
        low, high = span_of(addresses)
        high += size
        with self._lock:
            return next((s for s in self._all.values() if s.address <= low and high <= s.address + s.bytes), None)
