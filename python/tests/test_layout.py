"""layout: addresses by broadcasting, bounds, selections, memory that is in head-major order already."""

import random

import numpy as np
import pytest
from engine_orders import ORDERS, engine, random_engine
from seeds import seed

from quire_kv.layout import Layout, PageMemory, Rows, address_of, regions_of
from quire_kv.page import Geometry, View

VIEW = View(0, 2, 0, 3)


def two_rows() -> Layout:
    return Layout(2, 3, (Rows(64, 64, 128, 4), Rows(32, 32, 64, 4)))


@pytest.mark.parametrize("order", ORDERS)
def test_strided_equals_the_addresses_of_numpy(order):
    e = engine(order, 3, VIEW, 2, 3, 4, (64, 64), random.Random(1))
    a, b = e.arrays
    stride = {axis: a.strides[i] for i, axis in enumerate(order)}
    base = a.__array_interface__["data"][0]
    second = b.__array_interface__["data"][0] - base  # may be negative
    got = PageMemory.strided(e.memory.layout, base, np.arange(3) * stride["p"], [0, second], np.arange(3) * stride["l"], a, None)
    assert np.array_equal(got.addresses, e.memory.addresses)
    by_layer = np.arange(3)[:, None] * stride["p"] + np.arange(3)[None, :] * stride["l"]
    same = PageMemory.strided(e.memory.layout, base, by_layer, [0, second], [0, 0, 0], a)
    assert np.array_equal(same.addresses, e.memory.addresses)


def test_one_byte_out_of_bounds_is_refused():
    raw = np.zeros(2 * 3 * 4 * 64, dtype=np.uint8)
    at, size = address_of(raw)
    layout = Layout(2, 3, (Rows(64, 64, 128, 4),))
    layers = np.arange(3) * 512
    regions = regions_of([raw])
    PageMemory.strided(layout, at, [0], [0], layers, raw, regions)
    for shift in (-1, 1, size, -size, 1 << 40):
        with pytest.raises(ValueError, match="page 0"):
            PageMemory.strided(layout, at + shift, [0], [0], layers, raw, regions)
    with pytest.raises(ValueError, match="page 1"):
        PageMemory.strided(layout, at, [0, 64], [0], layers, raw, regions)
    # Not in one region although its ends are in two.
    halves = regions_of([(at, size // 2), (at + size // 2 + 1, size)])
    with pytest.raises(ValueError, match="layer 1"):
        PageMemory.strided(layout, at, [0], [0], layers, raw, halves)


def test_addresses_that_are_none_are_refused():
    layout = Layout(1, 1, (Rows(64, 0, 0, 1),))
    for address in (0, 1, 4095, (1 << 64) - 1, (1 << 64) - 63):
        with pytest.raises(ValueError):
            PageMemory(layout, np.full((1, 1, 1), address, dtype=np.uint64), None)
    for shape in ((1, 1), (1, 2, 1), (1, 1, 2)):
        with pytest.raises(ValueError, match="shape"):
            PageMemory(layout, np.full(shape, 1 << 20, dtype=np.uint64), None)
    assert len(PageMemory(layout, np.empty((0, 1, 1), dtype=np.uint64), None)) == 0
    with pytest.raises(ValueError):
        regions_of([])


@pytest.mark.parametrize(
    "rows",
    [
        (0, 0, 0, 1),
        (1, 0, 0, 0),
        (-1, 0, 0, 1),
        (1, -1, 0, 1),
        (1, 0, -1, 1),
        (1, 1 << 45, 0, 1),
        (1, 0, 1 << 45, 1),
        (1 << 29, 0, 0, 1),
        (1, 0, 0, 1 << 17),
        (64, 0, 63, 2),
    ],
)
def test_rows_out_of_bounds(rows):
    with pytest.raises(ValueError):
        Rows(*rows)


def test_layouts_out_of_bounds():
    r = Rows(1 << 28, 0, 1 << 28, 1 << 10)
    for heads, layers, rows in ((0, 1, (r,)), (1, 0, (r,)), (1, 1, ()), (1, 1, (r,) * 65), (1 << 17, 1, (r,)), (8, 1 << 9, (r,))):
        with pytest.raises(ValueError):
            Layout(heads, layers, rows)


def test_select_keeps_the_order_asked_for():
    e = engine("ptlh", 5, VIEW, 2, 3, 4, (64,), random.Random(1))
    for pick in (slice(1, 4), [3, 0, 3], np.array([4]), []):
        want = e.memory.addresses[np.asarray(pick, dtype=np.int64) if not isinstance(pick, slice) else pick]
        got = e.memory.select(pick)
        assert np.array_equal(got.addresses, want) and got.owner is e.memory.owner and len(got) == len(want)
    with pytest.raises(IndexError):
        e.memory.select([5])


def test_flat_memory_is_contiguous():
    g = Geometry(bytes(32), "full", 4, 4, 6, 96, "elements", 32)
    view = View(1, 3, 2, 5)
    buffers = [bytearray(g.payload_bytes(view)) for _ in range(3)]
    mem = PageMemory.flat(buffers, g, view)
    assert mem.contiguous().tolist() == [address_of(b)[0] for b in buffers]
    assert (mem.layout.heads, mem.layout.layers, mem.layout.cell_bytes) == (2, 3, 96)
    for size in (0, g.payload_bytes(view) - 1, g.payload_bytes(view) + 1):
        with pytest.raises(ValueError, match="buffer 1"):
            PageMemory.flat([buffers[0], bytearray(size)], g, view)


def test_contiguous_is_right_about_random_orders():
    rng = random.Random(seed())
    found = 0
    for _ in range(300):
        e, _ = random_engine(rng)
        at = e.memory.contiguous()
        if at is not None:
            found += 1
            want = e.head_major()
            for i, address in enumerate(at.tolist()):
                raw = next(a for a in e.arrays if a.__array_interface__["data"][0] <= address < a.__array_interface__["data"][0] + a.nbytes)
                offset = address - raw.__array_interface__["data"][0]
                assert np.array_equal(raw.reshape(-1)[offset : offset + want.shape[1]], want[i])
    assert found
    # Cells in a row, but heads elsewhere, tokens apart, or components swapped: not contiguous.
    base = 1 << 20

    def mem(rows, offsets, layers=(0, 256)):
        return PageMemory.strided(Layout(2, 2, rows), base, [0], offsets, list(layers), None)

    k = Rows(32, 512, 32, 4)
    assert mem((k, k), (0, 128)).contiguous().tolist() == [base]
    assert mem((k, k), (128, 0)).contiguous() is None
    assert mem((Rows(32, 1024, 32, 4), k), (0, 128)).contiguous() is None
    assert mem((Rows(32, 512, 64, 4), k), (0, 128)).contiguous() is None
    assert mem((k, k), (0, 128), (256, 0)).contiguous() is None


def test_table_is_what_the_kernels_read():
    assert two_rows().table().tolist() == [[2, 3, 2, 384], [0, 0, 0, 0], [64, 64, 128, 4], [32, 32, 64, 4]]
