"""Pages that native code takes off a batch by itself: equal to what the general reader makes of them, whatever comes."""

from __future__ import annotations

import random
import weakref
from collections import deque

import numpy as np
import pytest
from test_shm import memfd, words

from quire_kv import kernels, proto, shm, wire
from quire_kv.errors import QuireError, Reason
from quire_kv.intake import Intake, Wanted
from quire_kv.layout import Layout, PageMemory, Rows
from quire_kv.page import ZERO32, Expectation, ExtentID, Geometry, Header, encode_header, payload_digest
from quire_kv.shm import Slabs

pytestmark = pytest.mark.skipif(not (shm.AVAILABLE and kernels.NATIVE), reason="no shared memory or no native code")

PAGES, SLOT = 4, 1 << 20


class Batch:
    """PAGES pages of a geometry in a slab, and the body of a batch that hands them out in chunks of some bytes."""

    def __init__(self, heads: int, layers: int, cell: int, chunk: int, *, flags: int = 0, parent: bytes = b"", provenance: bytes = b"p") -> None:
        self.geometry = Geometry(bytes(32), "kv", 16, heads, layers, cell, "elements", 32)
        self.view, size = self.geometry.whole, self.geometry.page_bytes
        assert size <= SLOT - 4096
        self.payloads = np.frombuffer(random.randbytes(PAGES * size), dtype=np.uint8).reshape(PAGES, size)
        self.keys = [random.randbytes(32) for _ in range(PAGES)]
        self.expect = Expectation(b"n" * 32, 3, b"", self.geometry)
        content, self.body, self.starts = bytearray(SLOT * PAGES), bytearray(), []
        for k in range(PAGES):
            at = k * SLOT + 4096
            content[at : at + size] = self.payloads[k].tobytes()
            sums = kernels.sums(self.payloads[k].ctypes.data, self.geometry, self.view)
            header = encode_header(Header(
                namespace=b"n" * 32, epoch=3, scope=ZERO32, group=bytes(32), hash=self.keys[k], parent=parent, flags=flags, depth=1,
                extent=ExtentID(b"w" * 16, k, payload_digest(sums.tobytes())), view=self.view, tokens=16, cell_bytes=cell, page_heads=heads,
                page_layers=layers, grade="elements", components=0, packing_id=ZERO32, created=7, declared_flops=1.5, expiry=0,
                provenance=provenance, sums=sums,
            ))  # fmt: skip
            self.starts.append(len(self.body))
            for off in range(0, size, chunk):
                n = min(chunk, size - off)
                head = proto.FetchResponse(page=k, offset=off, header=header if off == 0 else b"")
                if off + n == size:
                    head.trailer.outcome = 1
                wire.append_entry(self.body, head.SerializeToString(), n, wire.Reference(7, at + off, n, k + 1, 1))
        self.header_bytes = len(header)
        self.slabs = Slabs()
        generations = words(size=SLOT * PAGES, slot=SLOT, slots=PAGES, generations=tuple(range(1, PAGES + 1)))
        self.slabs.take(deque([memfd(bytes(content)), memfd(generations)]))

    def memory(self, strided: bool) -> tuple[np.ndarray, PageMemory]:
        """Room for the pages, in Quire's order or with tokens apart: the bytes as a payload each, and the memory."""
        g = self.geometry
        if not strided:
            target = np.zeros((PAGES, g.page_bytes), dtype=np.uint8)
            return target, PageMemory.flat(target, g, self.view)
        row = g.cell_bytes // 16
        target = np.zeros((PAGES, 16, g.heads, g.layers, row), dtype=np.uint8)
        strides = target.strides
        layout = Layout(g.heads, g.layers, (Rows(row, strides[2], strides[1], 16),))
        memory = PageMemory.strided(layout, target.ctypes.data, np.arange(PAGES) * strides[0], [0], np.arange(g.layers) * strides[3], target)
        return target, memory

    def right(self, target: np.ndarray, k: int) -> bool:
        flat = target[k] if target.ndim == 2 else target[k].transpose(1, 2, 0, 3)
        return bool(np.array_equal(flat.reshape(-1), self.payloads[k]))

    def read(self, body: bytes, strided: bool, native: bool) -> tuple[list[Wanted], np.ndarray, QuireError | None]:
        """What an intake makes of a body."""
        target, memory = self.memory(strided)
        pages = [Wanted(k) for k in self.keys]
        intake = Intake(pages, list(range(PAGES)), memory, self.geometry, self.view, self.expect, threads=1)
        intake.slabs = self.slabs
        try:
            stop = intake.batch(body)[0] if native else 0
            for e in wire.entries(body[stop:], 0) if stop < len(body) else []:
                intake.message(proto.parse(proto.FetchResponse, e.head), e.bytes, 0, e.reference)
            intake.flush()
        except QuireError as e:
            return pages, target, e
        return pages, target, None


def taken(batch: Batch, body: bytes, strided: bool = False) -> tuple[int, list[int]]:
    """How far native code goes in a body, and what it says of the pages."""
    _, memory = batch.memory(strided)
    tables = kernels.PageTables(batch.expect, b"".join(batch.keys), memory, range(PAGES), 2)
    table, _keep = batch.slabs.table()
    stop, *_ = kernels.fetched(body, 0, tables, -1, table)
    return stop, tables.status.tolist()


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize(
    ("heads", "layers", "cell"),
    [(1, 1, 4096), (2, 1, 4096), (3, 1, 4096), (16, 1, 4096), (17, 1, 4096), (29, 1, 4096), (30, 1, 4096), (31, 2, 4096), (4, 20, 4096), (1, 3, 1 << 17)],
)
def test_ordinary_pages_are_taken(heads, layers, cell, strided):
    """With as many sums as take each way through the digests."""
    for chunk in (1 << 20, 1 << 16):
        for more in ({}, {"flags": 4}, {"parent": b"h" * 32, "provenance": b"x" * 300}):
            if chunk < (1 << 20) and layers * cell % (1 << 16):
                continue  # chunks are whole pieces
            batch = Batch(heads, layers, cell, chunk, **more)
            assert taken(batch, bytes(batch.body), strided) == (len(batch.body), [kernels.FETCHED_OK] * PAGES)
            pages, target, error = batch.read(bytes(batch.body), strided, True)
            assert error is None and all(p.result.ok and batch.right(target, k) for k, p in enumerate(pages))


def test_tables_keep_the_addresses_that_they_name():
    """Another stream of the same fetch, which asks for them at the same moment, makes them anew: writes would go anywhere."""
    batch = Batch(2, 2, 4096, 1 << 20)
    _, memory = batch.memory(False)
    kept = weakref.ref(memory.addresses)
    tables = kernels.PageTables(batch.expect, b"".join(batch.keys), memory, range(PAGES), 1)
    memory._addresses = None
    assert kept() is not None and tables.places[2] == kept().ctypes.data and memory.addresses is not kept()


def test_a_header_with_any_other_byte_is_left_to_the_reader():
    """Each bit of each byte, of the header of page 2."""
    batch = Batch(3, 2, 4096, 1 << 20)
    at = bytes(batch.body).index(b"QEXT", batch.starts[2])
    for i in range(batch.header_bytes):
        body = bytearray(batch.body)
        body[at + i] ^= 1 << i % 8
        assert taken(batch, bytes(body)) == (batch.starts[2], [1, 1, 0, 0]), i


def test_damage_and_memory_taken_back():
    batch = Batch(3, 2, 4096, 1 << 13)
    slab = batch.slabs.table()[1][0]
    table = batch.slabs.table()[0].copy()
    copy, generations = np.array(kernels.memory_at(slab.address, slab.bytes)), np.array(slab._words)
    table[:, 1], table[:, 3] = copy.ctypes.data, generations.ctypes.data
    batch.slabs._table = table, [slab]
    copy[SLOT + 4096 + 7000] ^= 4
    generations[8 + 2] += 1
    assert taken(batch, bytes(batch.body)) == (len(batch.body), [1, kernels.FETCHED_CORRUPT, kernels.FETCHED_STALE, 1])
    pages, target, error = batch.read(bytes(batch.body), False, True)
    assert error is None and pages[0].result.ok and pages[3].result.ok and batch.right(target, 0) and batch.right(target, 3)
    assert pages[1].result.reason is Reason.CORRUPT and len(pages[1].corrupt) == 1 and len(pages[1].corrupt[0]) == 40
    assert pages[2].result is None and pages[2].stale
    generations[8 + 1] += 1  # what was taken back is not said to be damaged
    assert taken(batch, bytes(batch.body))[1] == [1, kernels.FETCHED_STALE, kernels.FETCHED_STALE, 1]
    generations[5] += 1
    assert taken(batch, bytes(batch.body))[1] == [kernels.FETCHED_STALE] * PAGES


@pytest.mark.parametrize("strided", [False, True])
def test_it_agrees_with_the_general_reader(strided):
    """On bodies with bytes changed, cut out, doubled: equal answers, and never a wrong byte."""
    rnd = random.Random(11)
    batch = Batch(2, 3, 4096, 1 << 16)
    served = 0
    for _ in range(600):
        body = bytearray(batch.body)
        for _ in range(rnd.choice((0, 1, 1, 2))):
            what, at = rnd.randrange(4), rnd.randrange(len(body))
            if what == 0:
                body[at] ^= 1 << rnd.randrange(8)
            elif what == 1:
                del body[at : at + rnd.randrange(1, 60)]
            elif what == 2:
                body[at:at] = body[at : at + rnd.randrange(1, 60)]
            else:  # whole pages change places
                a, b = sorted(rnd.sample([*batch.starts, len(batch.body)], 2))
                body = body[:a] + body[b:] + body[a:b]
        pages, target, error = batch.read(bytes(body), strided, True)
        plain, _, refused = batch.read(bytes(body), strided, False)
        for k, p in enumerate(pages):
            assert not (p.result and p.result.ok) or batch.right(target, k)
            served += bool(p.result and p.result.ok)
        if refused is None:
            assert error is None
            assert [(p.result, p.stale, p.corrupt) for p in pages] == [(p.result, p.stale, p.corrupt) for p in plain]
    assert served > 1000


def test_a_wrong_table_is_refused():
    batch = Batch(2, 1, 4096, 1 << 20)
    _, memory = batch.memory(False)
    table, _keep = batch.slabs.table()
    hashes = b"".join(batch.keys)

    def take(hashes=hashes, index=range(PAGES), threads=1, start=0, slabs=table, spoil=None):
        tables = kernels.PageTables(batch.expect, hashes, memory, index, threads)
        if spoil is not None:
            before, after = tables._numbers
            tables._numbers = before, tuple(n + 1 if i == spoil else n for i, n in enumerate(after))
        return kernels.fetched(bytes(batch.body), start, tables, -1, slabs)

    assert take()[1] == PAGES - 1
    for wrong in (
        {"start": len(batch.body) + 1}, {"hashes": hashes[1:]}, {"slabs": table.reshape(-1)[1:]}, {"index": [0, 1, 2, PAGES]},
        {"index": [0, 1, 2, -1]}, {"spoil": 1}, {"spoil": 3}, {"spoil": 5}, {"threads": 0}, {"threads": 65},
    ):  # fmt: skip
        with pytest.raises(ValueError):
            take(**wrong)
