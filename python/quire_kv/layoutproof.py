"""Proves at start that an adapter's `PageMemory` describes the engine's memory.

A write and a read back by our own code prove nothing: a wrong permutation undoes itself. So the engine's own cache-write
operation fills pages with values that are a function of where they belong, `fill`; we take the pages out as for the store
and compare with the head-major payload that the function gives, `expected`. Every value differs from its neighbours on
every axis, so any wrong stride, order or address is seen, and `compare` says what was found where.

    for layer in layers:                                             the adapter, with the engine's own operation:
        engine.write(layer, slots, proof.fill(page, layer, 0), proof.fill(page, layer, 1))
    proof.prove(memory, geometry, view)                              raises LayoutError with one line

Where the engine packs the inside of a cell in a way of its own (grade `cell`) the values cannot be compared; there
`changed_cells` shows that a (head, layer) written anew changes its own cell and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import kernels
from .layout import PageMemory
from .page import Geometry, View

_GOLDEN = 0x9E3779B97F4A7C15


class LayoutError(ValueError):
    """The memory is not laid out as the adapter says. The text is one line."""


@dataclass(frozen=True)
class Component:
    """One component of a cell, in the order of the spec: `width` elements of `element_bytes` (1, 2, 4 or 8) in a row."""

    name: str
    width: int
    element_bytes: int

    @property
    def row_bytes(self) -> int:
        return self.width * self.element_bytes


@dataclass(frozen=True)
class Proof:
    """The canonical content of pages of `tokens` tokens with the given components."""

    components: tuple[Component, ...]
    tokens: int

    def fill(self, page: int, layer: int, component: int, heads: Sequence[int] | range) -> np.ndarray:
        """What the engine is to write: uint8 [tokens, heads, row bytes] for one page, layer and component, with absolute
        numbers of layer (in the group's own list) and heads (of the model). View it as the engine's dtype.

        The bytes are finite, normal numbers in every float type of that size, so that no copy changes them."""
        c = self.components[component]
        token = np.arange(self.tokens, dtype=np.uint64)[:, None, None]
        head = np.asarray(heads, dtype=np.uint64)[None, :, None]
        element = np.arange(c.width, dtype=np.uint64)[None, None, :]
        seed = np.uint64((((page * 64 + component) << 20) + layer) % (1 << 64))
        x = _mix(_mix(_mix(_mix(seed) + token) + head) + element)  # mixed before each sum: (1, 0) and (0, 1) differ
        raw = x.astype("<u8").view(np.uint8).reshape(self.tokens, len(heads), c.width, 8)[..., 8 - c.element_bytes :].copy()
        raw[..., -1] = raw[..., -1] & 0x9F | 0x20  # exponent neither all ones nor zero, from 8-bit floats to 64-bit ones
        return raw.reshape(self.tokens, len(heads), c.row_bytes)

    @property
    def cell_bytes(self) -> int:
        return self.tokens * sum(c.row_bytes for c in self.components)

    def expected(self, page: int, view: View) -> np.ndarray:
        """The head-major payload of `view`, uint8 [heads, layers, cell bytes]."""
        heads = range(view.h0, view.h1)
        out = np.empty((view.heads, view.layers, self.cell_bytes), dtype=np.uint8)
        for layer in range(view.layers):
            at = 0
            for i, c in enumerate(self.components):
                size = self.tokens * c.row_bytes
                rows = self.fill(page, view.l0 + layer, i, heads)
                out[:, layer, at : at + size] = rows.transpose(1, 0, 2).reshape(view.heads, size)
                at += size
        return out

    def prove(self, memory: PageMemory, geometry: Geometry, view: View, pages: Sequence[int] | None = None) -> None:
        """Takes every page of `memory` out and compares it with what `fill` gave for the page of that number (`pages`;
        by default its index). LayoutError names the first row that is wrong. Two pages or more prove the page stride too."""
        if geometry.cell_bytes != self.cell_bytes or geometry.page_tokens != self.tokens:
            raise LayoutError(
                f"cells of {geometry.cell_bytes} bytes for {geometry.page_tokens} tokens, but the components make {self.cell_bytes} for {self.tokens}"
            )
        numbers = range(len(memory)) if pages is None else pages
        payload = np.empty((len(memory), geometry.payload_bytes(view)), dtype=np.uint8)
        base = payload.__array_interface__["data"][0]
        out = np.uint64(base) + np.arange(len(memory), dtype=np.uint64) * np.uint64(payload.shape[1])
        try:
            sums = kernels.pack(memory, range(len(memory)), geometry, view, out)
        except ValueError as e:
            raise LayoutError(str(e)) from None
        for i, page in enumerate(numbers):
            why = self.compare(page, view, payload[i])
            if why:
                raise LayoutError(why)
            if not np.array_equal(sums[i], kernels.sums(int(out[i]), geometry, view)):
                raise LayoutError(f"page {page}: sums taken while copying differ from those of the copy")

    def compare(self, page: int, view: View, got: np.ndarray) -> str:
        """Empty if `got`, uint8 of the view's payload, is the canonical content of `page`; else one line that names the
        first row that differs, and what lies there instead when that is a row of the page too."""
        want = self.expected(page, view)
        have = np.asarray(got, dtype=np.uint8).reshape(want.shape)
        bad = np.argwhere((want != have).any(axis=2))
        if not len(bad):
            return ""
        head, layer = (int(n) for n in bad[0])
        at = int(np.argmax(want[head, layer] != have[head, layer]))
        component, token, start, size = self._row_at(at)
        found = self._find(want, have[head, layer, start : start + size], view)
        where = f"head {view.h0 + head}, layer {view.l0 + layer}, {self.components[component].name} of token {token}"
        return f"page {page}: {where} is not where the layout says; {found} lies there"

    def _row_at(self, at: int) -> tuple[int, int, int, int]:
        """Component, token, start and bytes of the row that holds byte `at` of a cell."""
        start = 0
        for i, c in enumerate(self.components):
            size = self.tokens * c.row_bytes
            if at < start + size:
                token = (at - start) // c.row_bytes
                return i, token, start + token * c.row_bytes, c.row_bytes
            start += size
        raise IndexError(at)

    def _find(self, want: np.ndarray, row: np.ndarray, view: View) -> str:
        start = 0
        for c in self.components:
            size = self.tokens * c.row_bytes
            if c.row_bytes == len(row):
                rows = want[:, :, start : start + size].reshape(view.heads, view.layers, self.tokens, c.row_bytes)
                hit = np.argwhere((rows == row).all(axis=3))
                if len(hit):
                    head, layer, token = (int(n) for n in hit[0])
                    return f"head {view.h0 + head}, layer {view.l0 + layer}, {c.name} of token {token}"
            start += size
        return "something else"


def changed_cells(before: np.ndarray, after: np.ndarray, geometry: Geometry, view: View) -> set[tuple[int, int]]:
    """The (head, layer), in absolute numbers, whose cells differ between two head-major payloads of one view."""
    shape = (view.heads, view.layers, geometry.cell_bytes)
    differs = (np.asarray(before).reshape(shape) != np.asarray(after).reshape(shape)).any(axis=2)
    return {(view.h0 + int(h), view.l0 + int(layer)) for h, layer in np.argwhere(differs)}


def _mix(x: Any) -> Any:
    """splitmix64's step: neighbours become unlike each other."""
    with np.errstate(over="ignore"):
        x = x * np.uint64(_GOLDEN) + np.uint64(_GOLDEN)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
