"""page: the extent header against the store's pinned bytes and its documentation, pieces, views, ids."""

import pathlib
import random
import re
import struct

import numpy as np
import pytest
import xxhash
from seeds import seed

from quire_kv import page
from quire_kv.page import Expectation, ExtentID, FormatError, Geometry, Header, Kind, View

ROOT = pathlib.Path(__file__).resolve().parents[2]
PINNED = bytes.fromhex("".join((ROOT / "store/page/testdata/header_v1.hex").read_text().split()))


def bytes_from(first: int, n: int = 32) -> bytes:
    return bytes(range(first, first + n))


def pinned_header() -> Header:
    """The header whose encoding is pinned; Go builds the same one (store/page/header_test.go)."""
    sums = np.frombuffer(PINNED[420:-16], dtype="<u8")
    return Header(
        bytes_from(0),
        3,
        bytes_from(0x20),
        bytes_from(0x40),
        bytes_from(0x40),
        bytes_from(0x80),
        page.FLAG_DURABLE | page.FLAG_STRICT,
        7,
        ExtentID(bytes_from(0xF0, 16), 0x0102030405060708, page.payload_digest(PINNED[420:-16])),
        View(2, 4, 1, 4),
        16,
        40000,
        4,
        6,
        "elements",
        2,
        bytes_from(0x60),
        1_800_000_000,
        1.5e12,
        1_900_000_000,
        b"engine=sglang 0.5.23",
        sums,
    )


def resealed(b: bytearray) -> bytes:
    """The bytes with a tail that is right again."""
    return bytes(b[:-16]) + xxhash.xxh3_128_digest(bytes(b[:-16]))


def test_pinned_header_encodes_and_decodes():
    assert page.encode_header(pinned_header()) == PINNED
    got = page.decode_header(PINNED)
    want = pinned_header()
    assert got._replace(sums=None) == want._replace(sums=None)
    assert (got.sums == want.sums).all() and len(got.sums) == got.pieces.count(2) == 6
    assert got.payload_bytes == 2 * 3 * 40000
    assert page.header_bytes(PINNED[:12]) == len(PINNED) == page.encoded_bytes(got.view, got.cell_bytes, 20)


def test_layout_is_the_documented_one():
    """Offsets and sizes of docs/formats/extent-header.md are those of the struct."""
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \|", (ROOT / "docs/formats/extent-header.md").read_text(), re.M)
    assert len(rows) == 39
    codes = []
    for count, code in re.findall(r"(\d*)([a-zA-Z])", page._FIXED.format):
        codes += [f"{count}s"] if code == "s" else [code] * int(count or 1)
    at = 0
    for (offset, size, name), code in zip(rows, codes, strict=True):
        assert (int(offset), int(size)) == (at, struct.calcsize("<" + code)), name
        at += int(size)
    assert at == page.FIXED_BYTES


def test_every_cut_and_every_flip_is_refused():
    for n in range(len(PINNED)):
        with pytest.raises(FormatError) as e:
            page.decode_header(PINNED[:n])
        assert e.value.kind is Kind.TRUNCATED
    with pytest.raises(FormatError) as e:
        page.decode_header(PINNED + b"\0")
    assert e.value.kind is Kind.TOO_LONG
    for at in range(len(PINNED)):
        b = bytearray(PINNED)
        b[at] ^= 1 << at % 8
        with pytest.raises(FormatError):
            page.decode_header(b)


@pytest.mark.parametrize(
    "offset, form, value, kind, field",
    [
        (0, "4s", b"QEXU", Kind.MAGIC, "magic"),
        (4, "H", 2, Kind.VERSION, "version"),
        (6, "H", 8, Kind.UNKNOWN_FLAGS, "flags"),
        (6, "H", 4, Kind.INVALID, "parent_bytes"),
        (8, "I", 415, Kind.TRUNCATED, "header_bytes"),
        (8, "I", page.MAX_HEADER_BYTES + 1, Kind.TOO_LONG, "header_bytes"),
        (12, "I", 5, Kind.INVALID, "header_bytes"),
        (12, "I", page.MAX_PIECES + 1, Kind.TOO_LONG, "piece_count"),
        (16, "Q", 1, Kind.INVALID, "payload_bytes"),
        (56, "Q", 0, Kind.INVALID, "epoch"),
        (128, "B", 15, Kind.INVALID, "hash"),
        (128, "B", 65, Kind.TOO_LONG, "hash"),
        (129, "B", 16, Kind.INVALID, "parent_hash"),
        (129, "B", 33, Kind.HASH_LEN, "parent_bytes"),
        (130, "H", 1025, Kind.TOO_LONG, "provenance_bytes"),
        (199, "B", 1, Kind.INVALID, "hash"),
        (288, "B", 0, Kind.CHECKSUM, "payload_digest"),
        (304, "H", 4, Kind.INVALID, "view"),
        (310, "H", 7, Kind.INVALID, "view"),
        (312, "I", 1, Kind.UNSUPPORTED, "token_start"),
        (316, "I", 1, Kind.UNSUPPORTED, "token_stride"),
        (320, "I", 1, Kind.UNSUPPORTED, "token_run"),
        (324, "H", 1, Kind.UNSUPPORTED, "shard"),
        (326, "H", 2, Kind.UNSUPPORTED, "shard"),
        (328, "I", 0, Kind.INVALID, "tokens"),
        (332, "I", 0, Kind.INVALID, "cell_bytes"),
        (340, "H", 0, Kind.INVALID, "grade"),
        (340, "H", 4, Kind.INVALID, "grade"),
        (384, "d", -1.0, Kind.INVALID, "declared_flops"),
        (384, "d", float("nan"), Kind.INVALID, "declared_flops"),
        (384, "d", float("inf"), Kind.INVALID, "declared_flops"),
        (396, "I", 1, Kind.INVALID, "reserved"),
    ],
)
def test_refusals_are_typed(offset, form, value, kind, field):
    b = bytearray(PINNED)
    struct.pack_into("<" + form, b, offset, value)
    with pytest.raises(FormatError) as e:
        page.decode_header(resealed(b))
    assert (e.value.kind, e.value.field) == (kind, field)
    assert field in str(e.value)
    # Through the fast way of a reader it is refused just so.
    with pytest.raises(FormatError) as e:
        expectation().read(resealed(b), bytes_from(0x40))
    assert (e.value.kind, e.value.field) == (kind, field)


@pytest.mark.parametrize(
    "change, kind",
    [
        ({"hash": b"short"}, Kind.HASH_LEN),
        ({"hash": bytes(65)}, Kind.TOO_LONG),
        ({"namespace": b"x"}, Kind.INVALID),
        ({"epoch": 1 << 64}, Kind.INVALID),
        ({"grade": "none"}, Kind.INVALID),
        ({"provenance": bytes(1025)}, Kind.TOO_LONG),
        ({"view": View(2, 2, 1, 4)}, Kind.INVALID),
        ({"sums": np.zeros(5, np.uint64)}, Kind.INVALID),
        ({"sums": np.zeros(6, np.uint64)}, Kind.CHECKSUM),
    ],
)
def test_encode_refuses_what_decode_would(change, kind):
    with pytest.raises(FormatError) as e:
        page.encode_header(pinned_header()._replace(**change))
    assert e.value.kind is kind


def geometry(**change) -> Geometry:
    g = dict(group=bytes_from(0x40), kind="full", page_tokens=16, heads=4, layers=6, cell_bytes=40000, grade="elements", hash_bytes=32)
    return Geometry(**{**g, **change})


def expectation(**change) -> Expectation:
    a = dict(namespace=bytes_from(0), epoch=3, scope=bytes_from(0x20), geometry=geometry())
    return Expectation(**{**a, **change})


def test_expectation_reads_what_was_asked_for():
    e = expectation()
    for _ in range(2):  # the first time learns the view
        x = e.read(memoryview(PINNED), bytes_from(0x40), View(3, 4, 2, 4))
        assert x.view == View(2, 4, 1, 4) and x.id == pinned_header().extent
        assert x.sums == PINNED[420:-16] and x.provenance == b"engine=sglang 0.5.23" and x.depth == 7
    root = pinned_header()._replace(parent=b"")
    assert e.read(page.encode_header(root), root.hash).flags == root.flags
    unknown = root._replace(flags=page.FLAG_PARENT_UNKNOWN)
    assert e.read(page.encode_header(unknown), root.hash).flags == page.FLAG_PARENT_UNKNOWN


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    "wanted, hash, view, field",
    [
        (dict(namespace=bytes_from(1)), 0x40, None, "namespace"),
        (dict(epoch=4), 0x40, None, "epoch"),
        (dict(scope=b""), 0x40, None, "scope"),
        (dict(geometry=geometry(group=bytes_from(0x41))), 0x40, None, "group"),
        (dict(geometry=geometry(heads=5)), 0x40, None, "page_heads"),
        (dict(geometry=geometry(layers=7)), 0x40, None, "page_layers"),
        (dict(geometry=geometry(page_tokens=32)), 0x40, None, "tokens"),
        (dict(geometry=geometry(grade="cell")), 0x40, None, "grade"),
        ({}, 0x41, None, "hash"),
        ({}, 0x40, View(1, 3, 1, 4), "view"),
        ({}, 0x40, View(2, 4, 0, 4), "view"),
    ],
)
def test_a_sound_header_of_something_else_is_a_mismatch(warm, wanted, hash, view, field):
    e = expectation(**wanted)
    if warm and not wanted:
        e.read(PINNED, bytes_from(0x40))
    with pytest.raises(FormatError) as x:
        e.read(PINNED, bytes_from(hash), view)
    assert (x.value.kind, x.value.field) == (Kind.MISMATCH, field)


def test_grade_whole_is_served_by_the_exact_view_alone():
    g = geometry(grade="whole")
    assert g.can_serve(g.whole, g.whole) and not g.can_serve(g.whole, View(0, 1, 0, 6))
    with pytest.raises(ValueError):
        g.check_view(View(0, 1, 0, 6))


def test_pieces_are_the_documented_ones():
    """The table of models at the end of docs/formats/pieces.md."""
    rows = re.findall(r"^\| [^|]+, \d+ \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", (ROOT / "docs/formats/pieces.md").read_text(), re.M)
    assert len(rows) == 5
    for heads, layers, cell, per_head, piece in (map(int, r) for r in rows):
        p = page.pieces_of(layers, cell)
        assert (p.per_head, p.piece_bytes) == (per_head, piece)
        assert p.count(heads) == heads * per_head


def test_pieces_tile_the_payload():
    rng = random.Random(seed())
    for _ in range(400):
        layers, heads = rng.randint(1, 9), rng.randint(1, 4)
        cell = rng.choice([1, 96, 4096, 18432, 65535, 65536, 65537, 147456, rng.randint(1, 200_000)])
        p, total = page.pieces_of(layers, cell), layers * heads * cell
        spans = [p.span(i) for i in range(p.count(heads))]
        at = 0
        for i, (offset, size) in enumerate(spans):
            assert offset == at and 0 < size <= page.MAX_PIECE_BYTES
            assert p.at(offset) == p.at(offset + size - 1) == i
            assert offset // p.head_bytes == (offset + size - 1) // p.head_bytes
            at += size
        assert at == total
        lo, hi = sorted((rng.randint(0, total), rng.randint(0, total)))
        first, end, cuts_first, cuts_last = p.touched(lo, hi - lo)
        touched = [i for i, (o, s) in enumerate(spans) if o < hi and lo < o + s] if hi > lo else []
        assert list(range(first, end)) == touched
        if touched:
            assert cuts_first == (spans[first][0] < lo or first == end - 1 and sum(spans[first]) > hi)
            assert cuts_last == (sum(spans[end - 1]) > hi or first == end - 1 and spans[first][0] < lo)


def test_runs_are_the_bytes_of_the_view():
    rng = random.Random(seed())
    for _ in range(300):
        h, la, cell = rng.randint(1, 5), rng.randint(1, 5), rng.randint(1, 9)
        extent = View(rng.randint(0, 3), 0, rng.randint(0, 3), 0)
        extent = View(extent.h0, extent.h0 + h, extent.l0, extent.l0 + la)
        h0, l0 = rng.randint(0, 7), rng.randint(0, 7)
        take = View(h0, h0 + rng.randint(0, 5), l0, l0 + rng.randint(0, 5))
        want = [
            ((a - extent.h0) * la + b - extent.l0) * cell + i
            for a in range(*extent[:2])
            for b in range(*extent[2:])
            for i in range(cell)
            if take.h0 <= a < take.h1 and take.l0 <= b < take.l1
        ]
        r = page.runs(extent, take, cell)
        assert [r.offset + k * r.stride + i for k in range(r.count) for i in range(r.size)] == want


def test_extent_ids():
    x = pinned_header().extent
    assert x.encode() == PINNED[264:304] and page.decode_extent_id(x.encode()) == x and page.parse_extent_id(str(x)) == x
    for b, kind in ((x.encode()[:-1], Kind.TRUNCATED), (x.encode() + b"x", Kind.TOO_LONG)):
        with pytest.raises(FormatError) as e:
            page.decode_extent_id(b)
        assert e.value.kind is kind
    for text in ("", "a-b-c", str(x) + "-0", str(x)[2:], f"{'0' * 32}-{1 << 64}-{'0' * 32}", f"{'0' * 32}--1-{'0' * 32}"):
        with pytest.raises(FormatError):
            page.parse_extent_id(text)


def test_random_headers_round_trip():
    rng = random.Random(seed())
    for _ in range(200):
        heads, layers, cell = rng.randint(1, 9), rng.randint(1, 9), rng.randint(1, 150_000)
        h0, l0 = rng.randrange(heads), rng.randrange(layers)
        view = View(h0, rng.randint(h0 + 1, heads), l0, rng.randint(l0 + 1, layers))
        sums = np.frombuffer(rng.randbytes(8 * page.pieces_of(view.layers, cell).count(view.heads)), dtype="<u8")
        n = rng.randint(16, 64)
        unknown = rng.random() < 0.3
        h = Header(
            rng.randbytes(32),
            rng.randint(1, (1 << 64) - 1),
            rng.randbytes(32),
            rng.randbytes(32),
            rng.randbytes(n),
            b"" if unknown or rng.random() < 0.3 else rng.randbytes(n),
            rng.randint(0, 3) | 4 * unknown,
            rng.randint(0, 99),
            ExtentID(rng.randbytes(16), rng.randint(0, (1 << 64) - 1), page.payload_digest(sums.tobytes())),
            view,
            rng.randint(1, 999),
            cell,
            heads,
            layers,
            rng.choice(list(page.GRADES)),
            rng.randint(0, 4),
            rng.randbytes(32),
            rng.randint(0, 1 << 40),
            rng.random() * 1e15,
            rng.randint(0, 1 << 32 - 1),
            rng.randbytes(rng.randint(0, 1024)),
            sums,
        )
        b = page.encode_header(h)
        got = page.decode_header(b)
        assert got._replace(sums=None) == h._replace(sums=None) and (got.sums == h.sums).all()
        g = Geometry(h.group, "full", h.tokens, heads, layers, cell, h.grade, n)
        x = Expectation(h.namespace, h.epoch, h.scope, g).read(b, h.hash, view)
        assert (x.id, x.view, x.sums, x.provenance, x.flags, x.depth) == (h.extent, view, sums.tobytes(), h.provenance, h.flags, h.depth)
