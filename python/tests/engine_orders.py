"""Engine memories in numpy, for tests: pages filled with bytes, what they are in head-major order, and where they lie."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from quire_kv.layout import Layout, PageMemory, Rows, address_of, regions_of
from quire_kv.page import Geometry, View

# Axes of a component's buffer, outermost first: p page, h head, l layer, t token. The row is behind them.
ORDERS = ("ptlh", "lpth", "plth", "phtl", "phlt", "lpht", "hlpt", "tplh")


@dataclass
class Engine:
    """`arrays` hold one component each, uint8, axes as in `order` and the row; `memory` describes them."""

    order: str
    arrays: list[np.ndarray]
    geometry: Geometry
    view: View
    memory: PageMemory

    def head_major(self) -> np.ndarray:
        """uint8 [pages, payload bytes], by numpy's transpose: not by the code under test."""
        parts = []
        for a in self.arrays:
            t = a.transpose(*(self.order.index(axis) for axis in "phlt"), 4)
            parts.append(t.reshape(*t.shape[:3], -1))
        cells = np.concatenate(parts, axis=3)
        return np.ascontiguousarray(cells.reshape(len(cells), -1))


def engine(order: str, pages: int, view: View, heads: int, layers: int, tokens: int, rows: tuple[int, ...], rng: random.Random | None) -> Engine:
    """Memory of `pages` pages of a view; bytes are random, or zero without an `rng`."""
    extents = {"p": pages, "h": view.heads, "l": view.layers, "t": tokens}
    shape = [extents[axis] for axis in order]
    arrays, memories, layout_rows = [], [], []
    for row in rows:
        size = int(np.prod(shape)) * row
        skew = rng.choice((0, 0, 16, 1)) if rng else 0  # not every engine aligns its memory
        raw = np.zeros(size + 128, dtype=np.uint8)
        start = -address_of(raw)[0] % 64 + skew
        a = raw[start : start + size].reshape(*shape, row)
        if rng:
            a[...] = np.frombuffer(rng.randbytes(size), dtype=np.uint8).reshape(a.shape)
        strides = {axis: a.strides[i] for i, axis in enumerate(order)}
        layout_rows.append(Rows(row, strides["h"], strides["t"] if tokens > 1 else 0, tokens))
        base = np.uint64(a.__array_interface__["data"][0])
        offsets = np.arange(pages)[:, None] * strides["p"] + np.arange(view.layers)[None, :] * strides["l"]
        memories.append(base + offsets.astype(np.uint64))
        arrays.append(a)
    layout = Layout(view.heads, view.layers, tuple(layout_rows))
    regions = regions_of((a.__array_interface__["data"][0], a.nbytes) for a in arrays)
    memory = PageMemory(layout, np.stack(memories, axis=1), arrays, regions)
    geometry = Geometry(bytes(32), "full", tokens, heads, layers, layout.cell_bytes, "elements", 32)
    return Engine(order, arrays, geometry, view, memory)


def random_engine(rng: random.Random) -> tuple[Engine, Engine]:
    """A random engine and a zeroed one of the same view in an order of its own."""
    heads, layers, tokens = rng.randint(1, 5), rng.randint(1, 6), rng.choice((1, 2, 3, 16, 64))
    h0, l0 = rng.randrange(heads), rng.randrange(layers)
    view = View(h0, rng.randint(h0 + 1, heads), l0, rng.randint(l0 + 1, layers))
    sizes = (1, 2, 24, 64, 96, 128, 192, 256, 512, 1152, 3000)
    rows = tuple(rng.choice(sizes) for _ in range(rng.choice((1, 1, 2, 2, 3))))
    if rng.random() < 0.2:  # cells larger than a piece
        rows = tuple(rng.choice((1024, 1152, 1500, 4096)) for _ in rows)
        tokens = 64
    pages = rng.randint(1, 4)
    a = engine(rng.choice(ORDERS), pages, view, heads, layers, tokens, rows, rng)
    return a, engine(rng.choice(ORDERS), pages, view, heads, layers, tokens, rows, None)
