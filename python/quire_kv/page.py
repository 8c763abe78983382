"""What a KV page is, byte for byte: views, geometry, pieces and the extent header.

The formats are docs/formats/pieces.md and docs/formats/extent-header.md. All numbers are little-endian; digests of
xxh3-128 are in the canonical (big-endian) form. Nothing here does I/O or keeps state.

Decoding is made for batches: `Expectation.read` reads one header with one struct, two hashes and a few compares of
bytes against what the reader already knows.
"""

from __future__ import annotations

import enum
import functools
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import xxhash

if TYPE_CHECKING:
    from .errors import Reason

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_PIECE_BYTES: Final = 64 << 10
MAX_PIECES: Final = 1 << 14
MAX_PROVENANCE: Final = 1 << 10
MIN_HASH_BYTES: Final = 16
MAX_HASH_BYTES: Final = 64
FIXED_BYTES: Final = 400
TAIL_BYTES: Final = 16
FRAME_BYTES: Final = 12  # magic to header_bytes: what header_bytes() needs
MAX_HEADER_BYTES: Final = FIXED_BYTES + MAX_PROVENANCE + 8 * MAX_PIECES + TAIL_BYTES
EXTENT_ID_BYTES: Final = 40

FLAG_DURABLE: Final = 1
FLAG_STRICT: Final = 2
FLAG_PARENT_UNKNOWN: Final = 4
_KNOWN_FLAGS: Final = FLAG_DURABLE | FLAG_STRICT | FLAG_PARENT_UNKNOWN

GRADES: Final = {"elements": 1, "cell": 2, "whole": 3}
_GRADE_NAMES: Final = {number: name for name, number in GRADES.items()}
ZERO32: Final = bytes(32)


class Kind(enum.Enum):
    """What is wrong with a header or a value."""

    INVALID = "invalid value"
    UNSUPPORTED = "unsupported"
    MAGIC = "not an extent header"
    VERSION = "unknown version"
    UNKNOWN_FLAGS = "unknown flags"
    TRUNCATED = "truncated"
    TOO_LONG = "too long"
    CHECKSUM = "checksum mismatch"
    MISMATCH = "mismatch"
    HASH_LEN = "page hash must be 16 to 64 bytes"


class FormatError(ValueError):
    """Which field is wrong, where it lies from the first byte of the header, what was found and what was wanted."""

    def __init__(self, kind: Kind, field: str, offset: int, got: object, want: object) -> None:
        super().__init__(f"extent header: {field} at offset {offset}: got {got}, want {want}: {kind.value}")
        self.kind, self.field, self.offset, self.got, self.want = kind, field, offset, got, want


class Page(NamedTuple):
    """The answer for one page of a batch; `reason` says why when `ok` is False."""

    ok: bool
    reason: Reason


class View(NamedTuple):
    """A rectangle of a page: kv heads [h0, h1) x layers [l0, l1), all tokens. Layers count in the group's own list."""

    h0: int
    h1: int
    l0: int
    l1: int

    @property
    def heads(self) -> int:
        return self.h1 - self.h0

    @property
    def layers(self) -> int:
        return self.l1 - self.l0

    @property
    def empty(self) -> bool:
        return self.h0 >= self.h1 or self.l0 >= self.l1

    @property
    def cells(self) -> int:
        return 0 if self.empty else (self.h1 - self.h0) * (self.l1 - self.l0)

    def contains(self, other: View) -> bool:
        """Whether every cell of `other` is in this view."""
        return other.empty or (self.h0 <= other.h0 and other.h1 <= self.h1 and self.l0 <= other.l0 and other.l1 <= self.l1)

    def intersect(self, other: View) -> View:
        """The common cells; the result may be empty."""
        return View(max(self.h0, other.h0), min(self.h1, other.h1), max(self.l0, other.l0), min(self.l1, other.l1))


def split_heads(heads: int, tp: int, rank: int) -> tuple[int, int]:
    """The kv heads [h0, h1) of a tensor-parallel rank; with more ranks than heads several hold the same one. One of heads
    and tp divides the other."""
    if tp >= heads:
        h0 = rank * heads // tp
        return h0, h0 + 1
    each = heads // tp
    return rank * each, (rank + 1) * each


class Pieces(NamedTuple):
    """The pieces of an extent: whole cells of one head up to 64 KiB; a larger cell is cut every 64 KiB.

    Pieces are `piece_bytes` long, counted afresh in each unit of `unit_bytes` (a head's run of layers, or one cell
    when a cell is larger than a piece); the last piece of a unit may be shorter.
    """

    per_head: int
    piece_bytes: int
    per_unit: int
    unit_bytes: int
    head_bytes: int

    def count(self, heads: int) -> int:
        """Pieces, and so sums, of `heads` heads."""
        return heads * self.per_head

    def span(self, piece: int) -> tuple[int, int]:
        """Offset in the payload and bytes of one piece."""
        unit, k = divmod(piece, self.per_unit)
        return unit * self.unit_bytes + k * self.piece_bytes, min(self.piece_bytes, self.unit_bytes - k * self.piece_bytes)

    def at(self, offset: int) -> int:
        """The piece that holds the byte at `offset` of the payload."""
        unit, rest = divmod(offset, self.unit_bytes)
        return unit * self.per_unit + rest // self.piece_bytes

    def touched(self, offset: int, size: int) -> tuple[int, int, bool, bool]:
        """Which pieces the range [offset, offset + size) touches: first, end, and whether it holds the first and the
        last of them only in part. With one piece touched both tell of it; an empty range touches none."""
        first = self.at(offset)
        if size <= 0:
            return first, first, False, False
        last = self.at(offset + size - 1)
        last_at, last_bytes = self.span(last)
        cuts_first, cuts_last = self.span(first)[0] < offset, last_at + last_bytes > offset + size
        if first == last:
            cuts_first = cuts_last = cuts_first or cuts_last
        return first, last + 1, cuts_first, cuts_last


def pieces_of(layers: int, cell_bytes: int) -> Pieces:
    """The pieces of an extent of `layers` cells of `cell_bytes` in each head. ValueError unless both are positive."""
    if layers < 1 or cell_bytes < 1:
        raise ValueError(f"pieces of {layers} layers of {cell_bytes} bytes")
    head = layers * cell_bytes
    if cell_bytes > MAX_PIECE_BYTES:
        per = -(-cell_bytes // MAX_PIECE_BYTES)
        return Pieces(per * layers, MAX_PIECE_BYTES, per, cell_bytes, head)
    cells = min(MAX_PIECE_BYTES // cell_bytes, layers)
    per = -(-layers // cells)
    return Pieces(per, cells * cell_bytes, per, head, head)


@dataclass(frozen=True)
class Geometry:
    """The shape of the pages of one group, as Open answers it.

    group       the 32-byte group id
    kind        "full", "window", "mla", ...
    cell_bytes  bytes of one (kv head, layer): all components, all tokens
    grade       "elements", "cell" or "whole": how far bytes may be cut and permuted
    hash_bytes  length of the engine's page hashes, 16 to 64
    """

    group: bytes
    kind: str
    page_tokens: int
    heads: int
    layers: int
    cell_bytes: int
    grade: str
    hash_bytes: int

    @functools.cached_property
    def whole(self) -> View:
        """The view of the whole page."""
        return View(0, self.heads, 0, self.layers)

    @functools.cached_property
    def page_bytes(self) -> int:
        return self.heads * self.layers * self.cell_bytes

    def payload_bytes(self, view: View) -> int:
        """Bytes of an extent of `view`."""
        return view.cells * self.cell_bytes

    def pieces(self, view: View) -> Pieces:
        """The pieces of an extent of `view`. ValueError for an empty one."""
        return pieces_of(view.layers, self.cell_bytes)

    def piece_count(self, view: View) -> int:
        return 0 if view.empty else self.pieces(view).count(view.heads)

    def can_serve(self, stored: View, view: View) -> bool:
        """Whether `view` can be taken out of an extent of view `stored`."""
        return stored == view if self.grade == "whole" else stored.contains(view)

    def check_view(self, view: View) -> None:
        """ValueError unless `view` is a part of a page that this geometry allows."""
        if view == self.whole and not view.empty:
            return
        if view.empty or not self.whole.contains(view) or not self.can_serve(self.whole, view):
            raise ValueError(f"view {tuple(view)} of a page of {self.heads} heads x {self.layers} layers, {self.grade}")


@dataclass(frozen=True)
class Runs:
    """`count` byte ranges of an extent's payload, each `size` long, the k-th at `offset + k * stride`."""

    offset: int
    size: int
    stride: int
    count: int


def runs(extent: View, take: View, cell_bytes: int) -> Runs:
    """Which bytes of an extent of view `extent` hold the cells of `take` (as far as they are in it). Heads that lie
    whole behind each other are one range. `count` is 0 when there is nothing."""
    take = take.intersect(extent)
    if take.empty:
        return Runs(0, 0, 0, 0)
    stride, size = extent.layers * cell_bytes, take.layers * cell_bytes
    offset = (take.h0 - extent.h0) * stride + (take.l0 - extent.l0) * cell_bytes
    if size == stride or take.heads == 1:
        return Runs(offset, size * take.heads, size * take.heads, 1)
    return Runs(offset, size, stride, take.heads)


class ExtentID(NamedTuple):
    """Names one committed body of bytes for ever: writer (16 bytes), the writer's sequence, payload digest (16)."""

    writer: bytes
    sequence: int
    digest: bytes

    def encode(self) -> bytes:
        """The 40 bytes of the wire."""
        return _EXTENT_ID.pack(self.writer, self.sequence, self.digest)

    def __str__(self) -> str:
        return f"{self.writer.hex()}-{self.sequence}-{self.digest.hex()}"


_EXTENT_ID = struct.Struct("<16sQ16s")


def decode_extent_id(b: Buffer) -> ExtentID:
    """The id in exactly 40 bytes; FormatError TRUNCATED or TOO_LONG otherwise."""
    if len(b) != EXTENT_ID_BYTES:
        kind = Kind.TRUNCATED if len(b) < EXTENT_ID_BYTES else Kind.TOO_LONG
        raise FormatError(kind, "extent_id", 0, len(b), EXTENT_ID_BYTES)
    return ExtentID(*_EXTENT_ID.unpack(b))


def parse_extent_id(text: str) -> ExtentID:
    """The id in its text form, writer-sequence-digest. FormatError INVALID for anything else."""
    parts = text.split("-")
    try:
        writer, sequence, digest = bytes.fromhex(parts[0]), int(parts[1]), bytes.fromhex(parts[2])
        if len(parts) == 3 and len(writer) == len(digest) == 16 and 0 <= sequence < 1 << 64:
            return ExtentID(writer, sequence, digest)
    except (ValueError, IndexError):
        pass
    raise FormatError(Kind.INVALID, "extent_id", 0, text[:120], "writer-sequence-digest")


def payload_digest(sums_le: Buffer) -> bytes:
    """The payload digest of an extent, 16 bytes: xxh3-128 of its sums as encoded, 8 bytes little-endian each."""
    return xxhash.xxh3_128_digest(sums_le)


# The fixed part of a header; docs/formats/extent-header.md has the drawing.
_FIXED = struct.Struct("<4sHHIIQ32sQ32s32sBBHI64s64s16sQ16sHHHHIIIHHIIHHHH32sQdII")
assert _FIXED.size == FIXED_BYTES
_FRAME = struct.Struct("<4sHHI")
_MAGIC: Final = b"QEXT"
_VERSION: Final = 1
_ZERO64: Final = bytes(64)


class Header(NamedTuple):
    """One extent header. `sums` is read-only uint64, one xxh3-64 for each piece; times are unix seconds.

    `parent` is empty at a root, and when `flags` has FLAG_PARENT_UNKNOWN. Equality of two headers is that of their
    encodings: compare `encode_header` of both, since `sums` is an array.
    """

    namespace: bytes
    epoch: int
    scope: bytes
    group: bytes
    hash: bytes
    parent: bytes
    flags: int
    depth: int
    extent: ExtentID
    view: View
    tokens: int
    cell_bytes: int
    page_heads: int
    page_layers: int
    grade: str
    components: int
    packing_id: bytes
    created: int
    declared_flops: float
    expiry: int
    provenance: bytes
    sums: np.ndarray

    @property
    def payload_bytes(self) -> int:
        return self.view.cells * self.cell_bytes

    @property
    def pieces(self) -> Pieces:
        return pieces_of(self.view.layers, self.cell_bytes)


def header_bytes(b: Buffer) -> int:
    """The size that a header says it has, from its first 12 bytes; within the bounds of the format, nothing else is
    checked. FormatError otherwise."""
    if len(b) < FRAME_BYTES:
        raise FormatError(Kind.TRUNCATED, "header_bytes", 8, len(b), "at least 12 bytes")
    magic, version, _, size = _FRAME.unpack_from(b)
    if magic != _MAGIC:
        raise FormatError(Kind.MAGIC, "magic", 0, magic.hex(), _MAGIC.hex())
    if version != _VERSION:
        raise FormatError(Kind.VERSION, "version", 4, version, _VERSION)
    if size < FIXED_BYTES + TAIL_BYTES:
        raise FormatError(Kind.TRUNCATED, "header_bytes", 8, size, "at least 416")
    if size > MAX_HEADER_BYTES:
        raise FormatError(Kind.TOO_LONG, "header_bytes", 8, size, MAX_HEADER_BYTES)
    return int(size)


def encoded_bytes(view: View, cell_bytes: int, provenance_bytes: int) -> int:
    """The size of the header of an extent of `view`."""
    return FIXED_BYTES + provenance_bytes + 8 * pieces_of(view.layers, cell_bytes).count(view.heads) + TAIL_BYTES


def encode_header(h: Header) -> bytes:
    """The encoding of `h`. The payload digest of `h.extent` must be that of `h.sums`. FormatError for a header that
    `decode_header` would refuse."""
    sums = np.ascontiguousarray(h.sums, dtype="<u8").tobytes()
    grade = GRADES.get(h.grade, 0)
    size = FIXED_BYTES + len(h.provenance) + len(sums) + TAIL_BYTES
    for name, offset, value, want in (
        ("namespace", 24, h.namespace, 32),
        ("scope", 64, h.scope, 32),
        ("group", 96, h.group, 32),
        ("packing_id", 344, h.packing_id, 32),
        ("writer", 264, h.extent.writer, 16),
        ("payload_digest", 288, h.extent.digest, 16),
    ):
        if len(value) != want:
            raise FormatError(Kind.INVALID, name, offset, f"{len(value)} bytes", f"{want} bytes")
    for name, offset, value in (("hash", 136, h.hash), ("parent_hash", 200, h.parent)):
        if len(value) > MAX_HASH_BYTES:
            raise FormatError(Kind.TOO_LONG, name, offset, len(value), MAX_HASH_BYTES)
    try:
        fixed = _FIXED.pack(
            _MAGIC,
            _VERSION,
            h.flags,
            size,
            len(sums) // 8,
            h.payload_bytes,
            h.namespace,
            h.epoch,
            h.scope,
            h.group,
            len(h.hash),
            len(h.parent),
            len(h.provenance),
            h.depth,
            h.hash,
            h.parent,
            *h.extent,
            *h.view,
            0,
            0,
            0,
            0,
            1,
            h.tokens,
            h.cell_bytes,
            h.page_heads,
            h.page_layers,
            grade,
            h.components,
            h.packing_id,
            h.created,
            h.declared_flops,
            h.expiry,
            0,
        )
    except struct.error as e:
        raise FormatError(Kind.INVALID, "header", 0, str(e), "numbers that fit their fields") from None
    _check_fields(_FIXED.unpack(fixed), fixed, sums)
    body = b"".join((fixed, h.provenance, sums))
    return body + xxhash.xxh3_128_digest(body)


def decode_header(b: Buffer) -> Header:
    """The header in exactly `b`. Lengths and tail are checked first, then every field. FormatError says what is wrong;
    nothing is allocated for a length that nobody vouched for. `sums` of the result refers to a copy of its own."""
    fields, provenance, sums = _open(b)
    fixed = bytes(b[:FIXED_BYTES])
    _check_fields(fields, fixed, sums)
    return _header(fields, provenance, sums)


def _open(b: Buffer) -> tuple[tuple, bytes, bytes]:
    """Holds the three lengths of `b` together, and its tail: the fixed fields, provenance and encoded sums."""
    n = header_bytes(b)
    if len(b) != n:
        raise FormatError(Kind.TRUNCATED if len(b) < n else Kind.TOO_LONG, "header_bytes", 8, len(b), n)
    fields = _FIXED.unpack_from(b)
    count, provenance_bytes = fields[4], fields[12]
    if provenance_bytes > MAX_PROVENANCE:
        raise FormatError(Kind.TOO_LONG, "provenance_bytes", 130, provenance_bytes, MAX_PROVENANCE)
    if count > MAX_PIECES:
        raise FormatError(Kind.TOO_LONG, "piece_count", 12, count, MAX_PIECES)
    at = FIXED_BYTES + provenance_bytes
    tail = at + 8 * count
    if n != tail + TAIL_BYTES:
        raise FormatError(Kind.INVALID, "header_bytes", 8, n, tail + TAIL_BYTES)
    m = memoryview(b)
    want = xxhash.xxh3_128_digest(m[:tail])
    if m[tail:] != want:
        raise FormatError(Kind.CHECKSUM, "tail", tail, bytes(m[tail:]).hex(), want.hex())
    return fields, bytes(m[FIXED_BYTES:at]), bytes(m[at:tail])


def _header(f: tuple, provenance: bytes, sums: bytes) -> Header:
    return Header(
        f[6],
        f[7],
        f[8],
        f[9],
        f[14][: f[10]],
        f[15][: f[11]],
        f[2],
        f[13],
        ExtentID(f[16], f[17], f[18]),
        View(f[19], f[20], f[21], f[22]),
        f[28],
        f[29],
        f[30],
        f[31],
        _GRADE_NAMES[f[32]],
        f[33],
        f[34],
        f[35],
        f[36],
        f[37],
        provenance,
        np.frombuffer(sums, dtype="<u8"),
    )


def _check_fields(f: tuple, fixed: bytes, sums: bytes) -> None:
    """Everything but lengths and tail, for both sides of the codec."""
    if f[2] & ~_KNOWN_FLAGS:
        raise FormatError(Kind.UNKNOWN_FLAGS, "flags", 6, f[2], _KNOWN_FLAGS)
    if f[38]:
        raise FormatError(Kind.INVALID, "reserved", 396, f[38], 0)
    for name, offset, n in (("hash", 136, f[10]), ("parent_hash", 200, f[11])):
        if n > MAX_HASH_BYTES:
            raise FormatError(Kind.TOO_LONG, name, offset, n, MAX_HASH_BYTES)
        if fixed[offset + n : offset + MAX_HASH_BYTES] != _ZERO64[n:]:
            raise FormatError(Kind.INVALID, name, offset + n, "bytes", "zeros (padding)")
    for name, offset, value in (("token_start", 312, f[23]), ("token_stride", 316, f[24]), ("token_run", 320, f[25])):
        if value:
            raise FormatError(Kind.UNSUPPORTED, name, offset, value, "0 (all tokens)")
    if (f[26], f[27]) != (0, 1):
        raise FormatError(Kind.UNSUPPORTED, "shard", 324, (f[26], f[27]), "0 of 1")
    _check_names(f)
    _check_geometry(f, sums)


def _check_names(f: tuple) -> None:
    if f[7] == 0:
        raise FormatError(Kind.INVALID, "epoch", 56, 0, "at least 1")
    if f[10] < MIN_HASH_BYTES:
        raise FormatError(Kind.HASH_LEN, "hash_bytes", 128, f[10], "16 to 64")
    if f[11] not in (0, f[10]):
        raise FormatError(Kind.HASH_LEN, "parent_bytes", 129, f[11], f[10])
    if f[2] & FLAG_PARENT_UNKNOWN and f[11]:
        raise FormatError(Kind.INVALID, "parent_bytes", 129, f[11], "0 (parent unknown)")
    if f[12] > MAX_PROVENANCE:
        raise FormatError(Kind.TOO_LONG, "provenance_bytes", 130, f[12], MAX_PROVENANCE)
    if not (math.isfinite(f[36]) and f[36] >= 0):
        raise FormatError(Kind.INVALID, "declared_flops", 384, f[36], "finite, not negative")


def _check_geometry(f: tuple, sums: bytes) -> None:
    for name, offset, value in (("tokens", 328, f[28]), ("cell_bytes", 332, f[29]), ("page_heads", 336, f[30]), ("page_layers", 338, f[31])):
        if value == 0:
            raise FormatError(Kind.INVALID, name, offset, 0, "at least 1")
    if f[32] not in _GRADE_NAMES:
        raise FormatError(Kind.INVALID, "grade", 340, f[32], "1 to 3")
    view, page = View(*f[19:23]), View(0, f[30], 0, f[31])
    if view.empty or not page.contains(view):
        raise FormatError(Kind.INVALID, "view", 304, tuple(view), f"not empty, inside of {tuple(page)}")
    if f[5] != view.cells * f[29]:
        raise FormatError(Kind.INVALID, "payload_bytes", 16, f[5], view.cells * f[29])
    count = pieces_of(view.layers, f[29]).count(view.heads)
    if count > MAX_PIECES:
        raise FormatError(Kind.TOO_LONG, "piece_count", 12, count, MAX_PIECES)
    if len(sums) != 8 * count:
        raise FormatError(Kind.INVALID, "piece_count", 12, len(sums) // 8, count)
    digest = payload_digest(sums)
    if digest != f[18]:
        raise FormatError(Kind.CHECKSUM, "payload_digest", 288, f[18].hex(), digest.hex())


class Extent(NamedTuple):
    """What a reader needs of a header that it checked: `sums` are the encoded bytes, 8 little-endian for each piece."""

    id: ExtentID
    view: View
    sums: bytes
    provenance: bytes
    flags: int
    depth: int


class Expectation:
    """What a reader knows of every extent of one request, so that a header is checked with a few compares of bytes.

    Immutable; use it from any thread. One for each (namespace, epoch, scope, geometry).
    """

    __slots__ = ("geometry", "ordinary", "_family", "_shape", "_counts")

    def __init__(self, namespace: bytes, epoch: int, scope: bytes, geometry: Geometry) -> None:
        """namespace: 32 bytes. scope: 32 bytes, or empty for plain requests."""
        g = geometry
        self.geometry = g
        self._family = struct.pack("<32sQ32s32sB", namespace, epoch, scope or ZERO32, g.group, g.hash_bytes)
        self._shape = struct.pack("<IIHHH", g.page_tokens, g.cell_bytes, g.heads, g.layers, GRADES[g.grade])
        self.ordinary = self._family + self._shape  # for native code, which reads headers of whole pages
        self._counts: dict[tuple[int, int, int, int], int] = {}

    def read(self, b: Buffer, page_hash: bytes, view: View | None = None) -> Extent:
        """The extent that the header in exactly `b` describes, when it is one of page `page_hash` that can serve
        `view` (None: any view). FormatError otherwise: MISMATCH for a sound header of something else."""
        fields, provenance, sums = _open(b)
        fixed = bytes(b[:FIXED_BYTES])
        stored = fields[19:23]
        if not (
            fixed[24:129] == self._family
            and fixed[328:342] == self._shape
            and fixed[136:200] == page_hash + _ZERO64[len(page_hash) :]
            and self._counts.get(stored) == fields[4]
            and not fields[2] & ~_KNOWN_FLAGS
            and fields[18] == payload_digest(sums)
            and fields[11] in ((0,) if fields[2] & FLAG_PARENT_UNKNOWN else (0, fields[10]))
            and not fields[15][fields[11] :].strip(b"\0")
            and not (fields[23] or fields[24] or fields[25] or fields[26] or fields[38])
            and fields[27] == 1
            and 0 <= fields[36] < math.inf
            and fields[5] == (stored[1] - stored[0]) * (stored[3] - stored[2]) * self.geometry.cell_bytes
        ):
            self._slow(fields, fixed, sums, page_hash)
        extent_view = View(*stored)
        if view is not None and not self.geometry.can_serve(extent_view, view):
            raise FormatError(Kind.MISMATCH, "view", 304, tuple(extent_view), tuple(view))
        return Extent(ExtentID(fields[16], fields[17], fields[18]), extent_view, sums, provenance, fields[2], fields[13])

    def _slow(self, f: tuple, fixed: bytes, sums: bytes, page_hash: bytes) -> None:
        """Names the first field that is wrong, or returns: a header of a view not seen before."""
        _check_fields(f, fixed, sums)
        g = self.geometry
        namespace, epoch, scope, group, hash_bytes = struct.unpack("<32sQ32s32sB", self._family)
        for name, offset, got, want in (
            ("namespace", 24, f[6].hex(), namespace.hex()),
            ("epoch", 56, f[7], epoch),
            ("scope", 64, f[8].hex(), scope.hex()),
            ("group", 96, f[9].hex(), group.hex()),
            ("hash_bytes", 128, f[10], hash_bytes),
            ("hash", 136, f[14][: f[10]].hex(), bytes(page_hash).hex()),
            ("page_heads", 336, f[30], g.heads),
            ("page_layers", 338, f[31], g.layers),
            ("cell_bytes", 332, f[29], g.cell_bytes),
            ("tokens", 328, f[28], g.page_tokens),
            ("grade", 340, _GRADE_NAMES[f[32]], g.grade),
        ):
            if got != want:
                raise FormatError(Kind.MISMATCH, name, offset, got, want)
        if len(self._counts) < 256:  # a page has at most 256 rectangles; more than that is not worth remembering
            self._counts[f[19:23]] = f[4]
