"""Where an engine keeps the bytes of KV pages, as addresses and strides.

A page in head-major order is [kv head][layer][component][token][dim] without holes (docs/formats/pieces.md). An engine
keeps the same bytes in an order of its own. `Layout` says how rows of contiguous bytes stand within a cell, and
`PageMemory` where the cells of each page are. Together they are enough to permute in one copy, in `kernels`.

The addresses of a batch are made by broadcasting, never by a loop over pages:

    offsets = page_numbers * page_stride            one for each page
    memory = PageMemory.strided(layout, base, offsets, [0, v_offset], layer_offsets, owner, regions)

Memory is never allocated or freed here. `owner` keeps it alive.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .buffers import address_of_array
from .page import Geometry, View

MAX_DIM = 1 << 16  # heads, layers and tokens of a layout; no product of its numbers can overflow
MAX_ROW_BYTES = 1 << 28
MAX_STRIDE = 1 << 44
MAX_COMPONENTS = 64
MAX_PAGE_BYTES = 1 << 40

Index: TypeAlias = slice | Sequence[int] | np.ndarray


@dataclass(frozen=True)
class Rows:
    """One component of a cell: rows of `row_bytes` contiguous bytes, one for each (head, token).

    The row of head h and token t is at address + h * head_stride + t * token_stride. Strides are bytes and not
    negative. ValueError for numbers out of bounds.
    """

    row_bytes: int
    head_stride: int
    token_stride: int
    tokens: int

    def __post_init__(self) -> None:
        if not (1 <= self.row_bytes <= MAX_ROW_BYTES and 1 <= self.tokens <= MAX_DIM):
            raise ValueError(f"{self.tokens} rows of {self.row_bytes} bytes")
        if not (0 <= self.head_stride <= MAX_STRIDE and 0 <= self.token_stride <= MAX_STRIDE):
            raise ValueError(f"rows with head stride {self.head_stride}, token stride {self.token_stride}")
        if self.tokens > 1 and self.token_stride < self.row_bytes:
            raise ValueError(f"rows of {self.row_bytes} bytes overlap at token stride {self.token_stride}")

    @property
    def bytes(self) -> int:
        """Bytes of one head's rows."""
        return self.row_bytes * self.tokens

    def span(self, heads: int) -> int:
        """Bytes from the address to behind the last row of `heads` heads."""
        return (heads - 1) * self.head_stride + (self.tokens - 1) * self.token_stride + self.row_bytes


@dataclass(frozen=True)
class Layout:
    """An engine's order of a view of `heads` x `layers`. A head-major cell is the rows of each component, one
    component behind the other, in the order of the spec.

    Grade `cell`: one Rows with row_bytes = cell_bytes and tokens = 1. Grade `whole`: heads = layers = 1 and one row.
    """

    heads: int
    layers: int
    rows: tuple[Rows, ...]

    def __post_init__(self) -> None:
        if not (1 <= self.heads <= MAX_DIM and 1 <= self.layers <= MAX_DIM):
            raise ValueError(f"layout of {self.heads} heads x {self.layers} layers")
        if not 1 <= len(self.rows) <= MAX_COMPONENTS:
            raise ValueError(f"layout of {len(self.rows)} components, want 1 to {MAX_COMPONENTS}")
        if self.heads * self.layers * self.cell_bytes > MAX_PAGE_BYTES:
            raise ValueError(f"layout of {self.heads} x {self.layers} cells of {self.cell_bytes} bytes")

    @functools.cached_property
    def cell_bytes(self) -> int:
        return sum(r.bytes for r in self.rows)

    @property
    def page_bytes(self) -> int:
        """Bytes of the view in head-major order."""
        return self.heads * self.layers * self.cell_bytes

    def table(self) -> np.ndarray:
        """The layout as the native kernels take it: int64 [2 + components, 4]."""
        return self._table

    @functools.cached_property
    def raw(self) -> tuple[int, int]:
        """Address and bytes of the table."""
        return self._table.ctypes.data, self._table.nbytes

    @functools.cached_property
    def _table(self) -> np.ndarray:
        head = [(self.heads, self.layers, len(self.rows), self.cell_bytes), (0, 0, 0, 0)]
        return np.array(head + [(r.row_bytes, r.head_stride, r.token_stride, r.tokens) for r in self.rows], dtype=np.int64)


def address_of(buffer: Any) -> tuple[int, int]:
    """Address and bytes of the memory of a contiguous buffer (bytes, bytearray, memoryview, mmap, numpy array), or
    such a pair as it is."""
    if isinstance(buffer, tuple):
        return int(buffer[0]), int(buffer[1])
    if type(buffer) is np.ndarray and buffer.flags.c_contiguous:
        return address_of_array(buffer), buffer.nbytes
    flat = np.frombuffer(buffer, dtype=np.uint8)
    return int(flat.__array_interface__["data"][0]), flat.nbytes


def span_of(addresses: np.ndarray) -> tuple[int, int]:
    """The lowest and the highest of some addresses, at least one. Of a few, numpy takes longer to begin than to look."""
    if addresses.size <= 16:
        few = addresses.ravel().tolist()
        return min(few), max(few)
    return int(addresses.min()), int(addresses.max())


def regions_of(buffers: Iterable[Any]) -> np.ndarray:
    """Memory that may be touched, uint64 [n, 2] of (start, end), ascending. Takes what `address_of` takes.
    ValueError for an empty list."""
    pairs = sorted(address_of(b) for b in buffers)
    if not pairs:
        raise ValueError("no memory")
    return np.array([(at, at + size) for at, size in pairs], dtype=np.uint64)


@functools.lru_cache(maxsize=256)
def _flat_layout(heads: int, layers: int, cell_bytes: int) -> tuple[Layout, np.ndarray]:
    """Head-major order, and where each layer of it begins, uint64 [1, 1, layers]."""
    starts = np.arange(layers, dtype=np.uint64) * np.uint64(cell_bytes)
    return Layout(heads, layers, (Rows(cell_bytes, layers * cell_bytes, 0, 1),)), starts[None, None, :]


class PageMemory:
    """Pages of one view in an engine's memory.

    layout     order within a page
    addresses  uint64 [pages, components, layers]: first head of the view, token 0, of that page, component and layer
    owner      whatever owns the memory, kept alive

    With `regions` (see `regions_of`) every byte that the layout reaches is checked to lie in one of them, once, here:
    ValueError otherwise. Without, the caller vouches for the addresses. Immutable by convention.
    """

    __slots__ = ("layout", "owner", "_addresses", "_base")

    def __init__(self, layout: Layout, addresses: np.ndarray, owner: object, regions: np.ndarray | None = None) -> None:
        addresses = np.ascontiguousarray(addresses, dtype=np.uint64)
        if addresses.ndim != 3 or addresses.shape[1:] != (len(layout.rows), layout.layers):
            raise ValueError(f"addresses of shape {addresses.shape}, want (pages, {len(layout.rows)}, {layout.layers})")
        span = max(r.span(layout.heads) for r in layout.rows)
        if addresses.size:
            low, high = span_of(addresses)
            if not 4096 <= low <= high < (1 << 64) - span:
                raise ValueError("an address of the memory is none")
        self.layout, self.owner = layout, owner
        self._addresses: np.ndarray | None = addresses
        self._base: np.ndarray | None = None  # contiguous, where that is known from the start
        if regions is not None:
            self.check(regions)

    def __len__(self) -> int:
        return len(self._base if self._base is not None else self.addresses)

    @property
    def addresses(self) -> np.ndarray:
        """Threads that ask at once may each get an array of their own, equal ones: who gives native code its address keeps it."""
        addresses = self._addresses
        if addresses is None:
            base, layout = self._base, self.layout
            assert base is not None
            self._addresses = addresses = base[:, None, None] + _flat_layout(layout.heads, layout.layers, layout.cell_bytes)[1]
        return addresses

    def check(self, regions: np.ndarray) -> None:
        """ValueError, with the first page that leaves them, unless all of the memory lies in `regions`."""
        spans = np.array([r.span(self.layout.heads) for r in self.layout.rows], dtype=np.uint64)[None, :, None]
        at = np.searchsorted(regions[:, 0], self.addresses, side="right").astype(np.int64) - 1
        ends = regions[np.maximum(at, 0), 1]
        room = np.where((at >= 0) & (ends > self.addresses), ends - self.addresses, np.uint64(0))
        bad = np.argwhere(room < spans)
        if len(bad):
            page, component, layer = (int(i) for i in bad[0])
            raise ValueError(f"page {page}, component {component}, layer {layer} leaves the memory that it is in")

    def select(self, pages: Index) -> PageMemory:
        """The memory of some of the pages, in the order asked for."""
        index = pages if isinstance(pages, slice) else np.asarray(pages, dtype=np.int64)
        return PageMemory(self.layout, self.addresses[index], self.owner)

    def contiguous(self) -> np.ndarray | None:
        """uint64 [pages]: where each page lies in head-major order without holes; None when the engine's order is
        another one. Such memory can be received into and sent from as it is."""
        if self._base is not None:
            return self._base
        layout, a = self.layout, self.addresses
        cell, at = layout.cell_bytes, 0
        base = a[:, 0, 0]
        layers = np.arange(layout.layers, dtype=np.uint64) * np.uint64(cell)
        for c, r in enumerate(layout.rows):
            if r.tokens > 1 and r.token_stride != r.row_bytes:
                return None
            if layout.heads > 1 and r.head_stride != layout.layers * cell:
                return None
            if not np.array_equal(a[:, c, :], base[:, None] + layers[None, :] + np.uint64(at)):
                return None
            at += r.bytes
        return np.ascontiguousarray(base)

    @staticmethod
    def strided(
        layout: Layout,
        base: int,
        page_offsets: Any,
        component_offsets: Sequence[int],
        layer_offsets: Sequence[int] | np.ndarray,
        owner: object,
        regions: np.ndarray | None = None,
    ) -> PageMemory:
        """Pages at base + page offset + component offset + layer offset, all bytes, each a list or an int64 array.
        `page_offsets` may also be [pages, layers], for engines that keep a buffer for each layer."""
        pages = np.asarray(page_offsets, dtype=np.int64)
        pages = pages[:, None, :] if pages.ndim == 2 else pages[:, None, None]
        components = np.asarray(component_offsets, dtype=np.int64)[None, :, None]
        layers = np.asarray(layer_offsets, dtype=np.int64)[None, None, :]
        offsets = (pages + components + layers).astype(np.uint64)  # wraps like the addition below, so that offsets may be negative
        return PageMemory(layout, offsets + np.uint64(base), owner, regions)

    @staticmethod
    def flat(buffers: Sequence[Any], geometry: Geometry, view: View) -> PageMemory:
        """Pages that lie in head-major order, one buffer each. ValueError for a buffer of another size."""
        want = geometry.payload_bytes(view)
        pairs = [address_of(b) for b in buffers]
        for i, (_, size) in enumerate(pairs):
            if size != want:
                raise ValueError(f"buffer {i} has {size} bytes, want {want}")
        base = np.array([at for at, _ in pairs], dtype=np.uint64)
        return PageMemory.flat_at(base, geometry, view, buffers)

    @staticmethod
    def flat_at(addresses: np.ndarray, geometry: Geometry, view: View, owner: object) -> PageMemory:
        """Pages that lie in head-major order at the given addresses, uint64 [pages]; the caller vouches for them."""
        layout, _ = _flat_layout(view.heads, view.layers, geometry.cell_bytes)
        base = np.ascontiguousarray(addresses, dtype=np.uint64)
        if len(base):
            low, high = span_of(base)
            if not 4096 <= low <= high < (1 << 64) - layout.page_bytes:
                raise ValueError("an address of the memory is none")
        memory = PageMemory.__new__(PageMemory)
        memory.layout, memory.owner, memory._addresses, memory._base = layout, owner, None, base
        return memory
