"""layoutproof: what the engine wrote itself against what the adapter says; a wrong permutation is seen (case C81)."""

import dataclasses

import numpy as np
import pytest

from quire_kv import kernels
from quire_kv.layout import Layout, PageMemory, Rows, address_of
from quire_kv.layoutproof import Component, LayoutError, Proof, changed_cells
from quire_kv.page import Geometry, View

HEADS, LAYERS, TOKENS, DIM, PAGES = 4, 4, 4, 32, 2  # equal numbers, so that swapped axes keep all sizes
PROOF = Proof((Component("k", DIM, 2), Component("v", DIM, 2)), TOKENS)
GEOMETRY = Geometry(bytes(32), "full", TOKENS, HEADS, LAYERS, PROOF.cell_bytes, "elements", 32)
ROW = 2 * DIM


class PageFirst:
    """A toy engine: [k, v][token slot][layer][head][dim], written by token slot as engines do."""

    def __init__(self) -> None:
        self.pool = np.zeros((2, PAGES * TOKENS, LAYERS, HEADS, ROW), dtype=np.uint8)

    def write(self, layer: int, slots: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        self.pool[0, slots, layer] = k
        self.pool[1, slots, layer] = v

    def fill(self) -> "PageFirst":
        for page in range(PAGES):
            slots = np.arange(TOKENS) + page * TOKENS
            for layer in range(LAYERS):
                self.write(layer, slots, PROOF.fill(page, layer, 0, range(HEADS)), PROOF.fill(page, layer, 1, range(HEADS)))
        return self

    def memory(
        self,
        *,
        head: int = ROW,
        token: int = LAYERS * HEADS * ROW,
        layer: int = HEADS * ROW,
        swap: bool = False,
        shift: int = 0,
        page: int = TOKENS * LAYERS * HEADS * ROW,
    ) -> PageMemory:
        base = address_of(self.pool)[0]
        offsets = [0, self.pool.strides[0]]
        layout = Layout(HEADS, LAYERS, (Rows(ROW, head, token, TOKENS),) * 2)
        return PageMemory.strided(layout, base + shift, np.arange(PAGES) * page, offsets[::-1] if swap else offsets, np.arange(LAYERS) * layer, self.pool)


def test_the_right_layout_is_proved():
    PROOF.prove(PageFirst().fill().memory(), GEOMETRY, GEOMETRY.whole)


WRONG = {
    "heads and layers swapped": dict(head=HEADS * ROW, layer=ROW),
    "tokens and layers swapped": dict(token=HEADS * ROW, layer=LAYERS * HEADS * ROW),
    "tokens and heads swapped": dict(token=ROW, head=LAYERS * HEADS * ROW),
    "k and v swapped": dict(swap=True),
    "one row late": dict(shift=ROW),
    "one element late": dict(shift=2),
    "page stride of zero": dict(page=0),
    "layer stride of zero": dict(layer=0),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_case_c81_wrong_permutation_cannot_undo_itself(wrong):
    engine = PageFirst().fill()
    memory = engine.memory(**wrong)
    # By our own code alone it is never seen: what we take out and put back is what we took out.
    if not {"page", "layer"} & wrong.keys() or "head" in wrong or "token" in wrong:
        out = np.zeros((PAGES, GEOMETRY.page_bytes), np.uint8)
        at = np.array([address_of(o)[0] for o in out], np.uint64)
        before = engine.pool.copy()
        inner = range(PAGES - 1) if "shift" in wrong else range(PAGES)  # the last page would leave the pool
        sums = kernels.pack(memory, inner, GEOMETRY, GEOMETRY.whole, at[: len(inner)])
        jobs = np.zeros(len(inner), kernels.UNPACK)
        jobs["src"], jobs["bytes"], jobs["page"] = at[: len(inner)], GEOMETRY.page_bytes, list(inner)
        jobs["eh1"], jobs["el1"], jobs["first_sum"] = HEADS, LAYERS, np.arange(len(inner)) * sums.shape[1]
        kernels.unpack(jobs, memory, GEOMETRY, GEOMETRY.whole, sums.reshape(-1))
        assert not jobs["status"].any() and np.array_equal(engine.pool, before)
    # By what the engine wrote it is.
    pages = memory.select([0]) if "shift" in wrong else memory
    with pytest.raises(LayoutError, match="is not where the layout says"):
        PROOF.prove(pages, GEOMETRY, GEOMETRY.whole)


def test_the_message_says_what_lies_there():
    with pytest.raises(LayoutError) as e:
        PROOF.prove(PageFirst().fill().memory(swap=True), GEOMETRY, GEOMETRY.whole)
    assert str(e.value) == "page 0: head 0, layer 0, k of token 0 is not where the layout says; head 0, layer 0, v of token 0 lies there"
    with pytest.raises(LayoutError, match="layer 1, k of token 0 .* head 1, layer 0, k of token 0 lies there"):
        PROOF.prove(PageFirst().fill().memory(head=HEADS * ROW, layer=ROW), GEOMETRY, GEOMETRY.whole)
    engine = PageFirst().fill()
    engine.pool[0, 1, 2, 3, 5] ^= 1
    with pytest.raises(LayoutError, match="page 0: head 3, layer 2, k of token 1 .* something else"):
        PROOF.prove(engine.memory(), GEOMETRY, GEOMETRY.whole)


def test_a_view_is_proved_with_absolute_numbers():
    """A rank that holds heads [2, 4) and layers [1, 3) of the model, numbered from 0 in its own pool."""
    view = View(2, 4, 1, 3)
    pool = np.zeros((2, TOKENS, 2, 2, ROW), np.uint8)
    for layer in range(2):
        for c in range(2):
            pool[c, :, layer] = PROOF.fill(7, 1 + layer, c, range(2, 4))
    layout = Layout(2, 2, (Rows(ROW, ROW, 4 * ROW, TOKENS),) * 2)
    memory = PageMemory.strided(layout, address_of(pool)[0], [0], [0, pool.strides[0]], [0, 2 * ROW], pool)
    PROOF.prove(memory, GEOMETRY, view, [7])
    for wrong_view, number in ((View(0, 2, 1, 3), 7), (View(2, 4, 0, 2), 7), (view, 8)):
        with pytest.raises(LayoutError):
            PROOF.prove(memory, GEOMETRY, wrong_view, [number])


def test_sizes_that_do_not_fit_are_refused():
    memory = PageFirst().fill().memory()
    with pytest.raises(LayoutError, match="cells of 1"):
        PROOF.prove(memory, dataclasses.replace(GEOMETRY, cell_bytes=1), GEOMETRY.whole)
    with pytest.raises(LayoutError):
        PROOF.prove(memory, GEOMETRY, View(0, 1, 0, 1))


@pytest.mark.parametrize("width, size", [(128, 1), (64, 2), (64, 4), (16, 8)])
def test_values_differ_on_every_axis_and_are_normal_numbers(width, size):
    proof = Proof((Component("k", width, size), Component("v", width, size)), 8)
    rows = np.stack([np.stack([np.stack([proof.fill(p, la, c, range(4)) for c in range(2)]) for la in range(4)]) for p in range(2)])
    flat = rows.reshape(-1, width * size)
    assert len({r.tobytes() for r in flat}) == len(flat)  # no two rows of all pages, layers, components, tokens, heads
    if size > 1:
        elements = flat.view(f"<u{size}")
        assert all(len(set(r.tolist())) >= width - 2 for r in elements)
    if size in (2, 4, 8):
        number = flat.view(f"<f{size}")
        assert np.isfinite(number).all() and (np.abs(number) >= np.finfo(number.dtype).tiny).all()
        double = number.astype(np.float64)
        assert np.array_equal(double.astype(number.dtype).view(np.uint8), flat.reshape(-1).reshape(double.astype(number.dtype).view(np.uint8).shape))
    top = rows.reshape(-1, size)[:, -1]
    assert ((top & 0x60) == 0x20).all()


def test_changed_cells():
    before = PROOF.expected(0, GEOMETRY.whole)
    after = before.copy()
    after[1, 2, 7] ^= 1
    after[3, 0, 0] ^= 1
    assert changed_cells(before, after, GEOMETRY, GEOMETRY.whole) == {(1, 2), (3, 0)}
    assert changed_cells(before, before, GEOMETRY, GEOMETRY.whole) == set()
    view = View(1, 2, 2, 4)
    assert changed_cells(before[1:2, 2:4], after[1:2, 2:4], GEOMETRY, view) == {(1, 2)}
