"""Copies between an engine's memory and head-major payloads, with sums: one call for a batch.

    receive   frames on a socket -> engine order
    publish   payloads -> sums, headers and frames on a socket
    pack      engine order -> head-major, xxh3-64 of each piece while it is hot
    unpack    received bytes -> engine order; writes nothing of a piece before its sum was found right
    verify    sums of bytes that are in place already
    sums      sums of one payload

With the native module each call is one call into C without the GIL. Without it (`why_not` says why;
QUIRE_KV_NATIVE=0 forces it) numpy does the same, with equal results and equal refusals, slower.

Addresses are trusted: what `PageMemory` was checked for is not checked again. Everything else of a table is checked
before a byte is read: a wrong table is a ValueError, a job that contradicts itself has status REFUSED.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Final, NamedTuple

import numpy as np
import xxhash

from .buffers import address_of_array, memory_at
from .layout import MAX_PAGE_BYTES, Layout, PageMemory, span_of
from .page import Expectation, Geometry, Pieces, View, pieces_of

# One run of bytes of one extent, and where it goes. 64 bytes.
UNPACK: Final = np.dtype(
    [
        ("src", "<u8"),  # address of the first byte
        ("offset", "<u8"),  # of it in the extent's payload
        ("bytes", "<u8"),
        ("first_sum", "<u8"),  # index in `sums` of the sum of piece 0 of the extent
        ("cut_sums", "<u8", (2,)),  # sums of the parts of pieces that the run holds only in part, in order
        ("page", "<u4"),  # index into the memory
        ("eh0", "<u2"),
        ("eh1", "<u2"),
        ("el0", "<u2"),
        ("el1", "<u2"),  # the extent's view, as in its header
        ("cuts", "u1"),  # how many cut_sums were given
        ("flags", "u1"),
        ("status", "<u2"),  # written by the call
    ]
)

# Flags of a job.
PRIVATE: Final = 1  # nobody else writes src while the call runs: summed where it lies, without a copy first
IN_PLACE: Final = 2  # the bytes are where they belong: summed there, not copied; page is not looked at

# Status of a job.
OK: Final = 0
CORRUPT: Final = 1  # a sum differs, or a piece is cut and no sum of its part was given
REFUSED: Final = 2  # the run leaves the extent, the page or the sums; nothing of it was touched

# Status of a page that `fetched` took.
FETCHED_OK: Final = 1
FETCHED_CORRUPT: Final = 2
FETCHED_STALE: Final = 3  # its memory was taken back before it was read to the end

# Why `receive` stopped, and its errors that are no errno.
LEFT_FRAME: Final = 0
LEFT_ENTRY: Final = 1
LEFT_ERROR: Final = 2
LEFT_NOTHING: Final = 3
ENDED: Final = -1  # the other end closed the connection
OVERDUE: Final = -3

# State of a `fetch`.
FETCH_OVER: Final = 1
FETCH_CUT_OFF: Final = 2

MAX_THREADS: Final = 64
_LOW: Final = 4096  # no address below is one
_TOP: Final = (1 << 64) - 1
_WINDOW: Final = 4 << 20  # bytes that numpy verifies before it writes them
_NO_AREA: Final = (0, 0, 0)
_NO_TABLES: Final = (0, 0, 0, 0, 0, 0)


def _load() -> tuple[ModuleType | None, str]:
    if os.environ.get("QUIRE_KV_NATIVE", "1") == "0":
        return None, "QUIRE_KV_NATIVE=0"
    try:
        from . import _native  # type: ignore[attr-defined]
    except ImportError as e:
        return None, str(e)
    return _native, ""


_module, why_not = _load()
NATIVE: bool = _module is not None


def pack(
    mem: PageMemory,
    pages: Sequence[int] | np.ndarray,
    geo: Geometry,
    view: View,
    out_addresses: np.ndarray,
    *,
    threads: int = 1,
) -> np.ndarray:
    """Writes the payload of each of `pages` (indices into `mem`) to its out address, uint64 [pages], where
    geo.payload_bytes(view) bytes are free. Returns the sums, uint64 [pages, pieces]."""
    pieces = _pieces(mem.layout, geo, view)
    index = np.ascontiguousarray(pages, dtype=np.int64)
    out = np.ascontiguousarray(out_addresses, dtype=np.uint64)
    if index.ndim != 1 or out.shape != index.shape:
        raise ValueError(f"{out.shape} addresses for {index.shape} pages")
    if len(index) and (int(np.min(index)) < 0 or int(np.max(index)) >= len(mem)):
        raise ValueError(f"page outside of a memory of {len(mem)} pages")
    low, high = span_of(out) if len(out) else (_LOW, _LOW)
    if not _LOW <= low <= high <= _TOP - MAX_PAGE_BYTES:
        raise ValueError("out address")
    result = np.empty((len(index), pieces.count(view.heads)), dtype=np.uint64)
    _check_threads(threads)
    if _module is not None:
        table, addresses = mem.layout.table(), mem.addresses
        _module.pack(*_raw(table), *_raw(addresses), *_raw(index), *_raw(out), *_raw(result), threads)
    else:
        for i, page in enumerate(index):
            _pack_page(mem.layout, mem.addresses[page], int(out[i]))
            _sum_payload(int(out[i]), pieces, result[i])
    return result


def unpack(jobs: np.ndarray, mem: PageMemory, geo: Geometry, view: View, sums: np.ndarray, *, threads: int = 1) -> None:
    """Runs the jobs (dtype UNPACK, writable) and writes their status. `view` is that of `mem`; bytes of cells outside
    of it are summed and not written. `sums` holds the sums of the extents, uint64, anywhere behind each other.

    A source that others may write to (shared memory) is copied to a buffer of the call first, summed there, and
    copied on from there, so that what was summed is what is written. Jobs must not overlap in their destinations when
    threads is above 1."""
    _pieces(mem.layout, geo, view)
    sums = _check_jobs(jobs, sums, threads)
    if _module is not None:
        table, addresses = mem.layout.table(), mem.addresses
        _module.unpack(*_raw(jobs), *_raw(table), *_raw(addresses), *_raw(sums), *view, geo.cell_bytes, threads)
        return
    for job in jobs:
        job["status"] = _run_job(job, mem, geo.cell_bytes, view, sums)


def verify(jobs: np.ndarray, geo: Geometry, sums: np.ndarray, *, threads: int = 1) -> None:
    """Sums the bytes of the jobs where they lie and writes their status, whatever their flags say."""
    sums = _check_jobs(jobs, sums, threads)
    if geo.cell_bytes < 1:
        raise ValueError(f"cells of {geo.cell_bytes} bytes")
    if _module is not None:
        _module.verify(*_raw(jobs), *_raw(sums), geo.cell_bytes, threads)
        return
    for job in jobs:
        job["status"] = _run_job(job, None, geo.cell_bytes, View(0, 0, 0, 0), sums)


class PageTables:
    """What native code needs of one stream of a Fetch of ordinary pages: whole pages of one extent, in references. `index` says
    where in the memory each page of the stream belongs."""

    __slots__ = ("_addresses", "_memory", "_numbers", "_room", "expect", "hashes", "pages")

    def __init__(self, expect: Expectation, hashes: bytes, mem: PageMemory, index: Sequence[int], threads: int) -> None:
        n = self.pages = len(index)
        room = self._room = np.zeros((3, max(n, 1)), dtype=np.int64)  # index, where, and status in bytes
        room[0, :n] = index
        self.expect, self.hashes, self._memory = expect, hashes, mem
        self._addresses = mem.addresses
        at, step = address_of_array(room), 8 * max(n, 1)
        self._numbers = (*mem.layout.raw, *_raw(self._addresses)), (at, 8 * n, at + 2 * step, n, at + step, 8 * n, threads)

    @property
    def status(self) -> np.ndarray:
        """uint8 [n]: 0 not taken yet, FETCHED_OK, FETCHED_CORRUPT or FETCHED_STALE."""
        return self._room[2].view(np.uint8)[: self.pages]

    @property
    def where(self) -> np.ndarray:
        """int64 [n]: of a page that was taken, place << 32 | bytes of its header in its batch."""
        return self._room[1, : self.pages]

    @property
    def places(self) -> tuple[int, ...]:
        """Layout, addresses, index and status as native code takes them."""
        before, after = self._numbers
        return (*before, *after[:4])

    def numbers(self, slabs: np.ndarray) -> tuple[int, ...]:
        """The tables as native code takes them; the caller keeps `slabs` alive."""
        before, after = self._numbers
        return (*before, *_raw(slabs), *after)


def fetched(body: bytes, start: int, pages: PageTables, after: int, slabs: np.ndarray) -> tuple[int, int, int]:
    """Takes ordinary pages off the body of a batch of a Fetch, from `start` on: pages of one extent that is all of the
    page, in references to `slabs` (Slabs.table), in the order asked for, after page `after` of the stream.

    Each is copied to its place, summed there, and the generations of its references are asked then. A page that is not
    FETCHED_OK has undefined bytes in its place. Returns where it stopped in the body, at an entry that is
    another case or at the end, the last page that it took, and how many references those had. Nothing without native code."""
    if _module is None:
        return start, after, 0
    out: tuple[int, int, int] = _module.fetched(body, pages.expect.ordinary, pages.hashes, after, *pages.numbers(slabs), start)
    return out


def receive(
    pages: PageTables, request: bytes, deadline: float, after: int, source: tuple[int, int, int, int, int, int, int]
) -> tuple[int, int, int, int, int, bytes, bytes, int, int]:
    """Sends a request, if any, and takes ordinary pages off the frames of a Fetch that come on a TCP socket, until a monotonic time
    at most: pages of one extent that is all of the page, their bytes in the frames, in the order asked for, after page `after` of the stream.
    `source` is the descriptor, the address of the seconds of its receive and its send timer, address and size of what was read
    ahead, from where to where it was not used yet, and the number of the call.

    Each is received into its place and summed there, or through a buffer where the engine's order is another one. A page
    that is not FETCHED_OK has undefined bytes in its place. Returns

        why it stopped    LEFT_FRAME: the frame that begins next is for others; LEFT_ENTRY: so is the rest of one; LEFT_ERROR;
                          LEFT_NOTHING: the stream ended well
        from, to          of what was read ahead
        page, got         the last page that it began, and how many of its bytes came while it is not whole
        header            of that page while it is not whole, or CORRUPT
        rest, data        the entries that are left, and the bytes of data that come for them
        error             an errno, or ENDED or OVERDUE

    Only with native code."""
    assert _module is not None
    out: tuple[int, int, int, int, int, bytes, bytes, int, int] = _module.receive(
        pages.expect.ordinary, pages.hashes, request, deadline, after, *source, *pages.places
    )
    return out


class Whole(NamedTuple):
    """Whole payloads of one view, on their way into a publication as the first grants of its pages, and their commit. Texts are
    encoded fields of requests, or extent headers."""

    begin: bytes  # the BeginPublishRequest, which is to be sent first; none: it was
    granted: bytes  # what its answer says of one page that is granted whole
    memory: PageMemory
    pages: np.ndarray  # int64 [n]: of the memory
    names: np.ndarray  # int64 [n]: of the pages in the Begin
    addresses: np.ndarray | None  # uint64 [n]: where the payloads lie in head-major order; None: the memory has another one
    geometry: Geometry
    view: View
    named: bytes  # what the first WritePagesRequest and the CommitPublishRequest say of the publication: its token, and the namespace
    templates: bytes  # headers that those of the first `lead` pages are made like, and those of the others, where there are such
    lead: int
    hashes: bytes  # of the pages, joined
    parents: bytes  # of those of them whose template has one, joined
    sequence: int  # of the first page's extent
    threads: int

    @property
    def commit_bytes(self) -> int:
        """That the CommitPublishRequest has at most."""
        return len(self.named) + len(self.pages) * (len(self.templates) + 24)


class Published(NamedTuple):
    """How far `publish` came."""

    error: int  # an errno or OVERDUE, in sending
    stored: int  # whether all answers came, and all pages are stored as what was sent
    start: int  # what was received and not used is room[start:end]
    end: int
    answers: tuple[bytes, ...]  # the first of BeginPublish, WritePages and CommitPublish, as far as they came and are no refusals
    commit: bytes  # the CommitPublishRequest that was sent, where an answer is missing
    state: int  # 0, or FETCH_CUT_OFF
    descriptors: bytes  # received, ints


def publish(
    whole: Whole, addresses: np.ndarray, packs: bool, area: tuple[int, int] | None, chunk_bytes: int,
    socket: tuple[int, int], call: int, deadline: float, room: tuple[int, int],
) -> Published:  # fmt: skip
    """Publishes over a connection, until a monotonic time at most: sends the requests of BeginPublish, if any, and WritePages,
    which is number `call`, the pages, END and the request of CommitPublish, and receives the answers, through the room
    (address, bytes), as far as they are no refusals.

    The pages lie at `addresses`, uint64 [n], or are packed there first. With an area, its number and address, the frames name
    them there; else they carry them. Sums are taken here, of what is sent. `socket` is the descriptor and the address of the
    seconds of its receive and its send timer. Native code only."""
    assert _module is not None
    at, names, mem, index = np.ascontiguousarray(addresses, dtype=np.uint64), whole.names, whole.memory, whole.pages
    engine = mem.addresses if packs else at
    packed = (*mem.layout.raw, *_raw(engine), *_raw(index)) if packs else _NO_TABLES
    named = (1, *area) if area is not None else _NO_AREA
    view = whole.view
    return Published(*_module.publish(
        whole.granted, whole.named, whole.templates, whole.hashes, whole.parents, whole.begin, deadline,
        *socket, call, *room, whole.lead, whole.sequence, *_raw(at), *_raw(names), view.h1 - view.h0, view.l1 - view.l0,
        whole.geometry.cell_bytes, chunk_bytes, whole.threads, *named, *packed,
    ))  # fmt: skip


class Fetched(NamedTuple):
    """How far `fetch` came, and what is left to do."""

    sent: int  # bytes of the request
    start: int  # what was received and not used is room[start:end]
    end: int
    page: int  # the last page that was taken
    references: int  # those pages had
    skip: int  # bytes of the body of the frame at `start` that were used; its header, then, is there too
    state: int  # 0: go on; FETCH_OVER: the server's part ended well; FETCH_CUT_OFF: descriptors were lost
    released: int  # whether the references were released
    descriptors: bytes  # received, ints


def fetch(request: bytes, pages: PageTables, slabs: np.ndarray, socket: int, call: int, deadline: float, room: tuple[int, int], releases: bool) -> Fetched:
    """Makes a Fetch over a connection of shared memory: sends the REQUEST frame, and takes ordinary pages as `fetched` does for as long
    as frames of nothing else come, into the room (address, bytes), and where it `releases`, lets go of what they refer to. It stops at the first thing that is another
    case, a page that is corrupt included, and when a receive or a send fails or `deadline`, of the monotonic clock, has passed: the caller goes on from there,
    and finds out what it is. Native code only."""
    assert _module is not None
    nanoseconds = max(0, int(deadline * 1e9))
    return Fetched(*_module.fetch(
        request, pages.expect.ordinary, pages.hashes, -1, socket, call, nanoseconds, *room, *pages.numbers(slabs), releases
    ))  # fmt: skip


def headers(template: bytes, hashes: bytes, parents: bytes, sequence: int, page_sums: np.ndarray) -> bytes | None:
    """Extent headers behind each other, that of each page as `template`, a sound header, but with its own hash, its own parent where
    the template has one, the next sequence from `sequence` on, its row of page_sums, uint64 [pages, pieces], and what
    follows from these. None without native code."""
    if _module is None:
        return None
    table = np.ascontiguousarray(page_sums, dtype=np.uint64)
    return bytes(_module.headers(template, hashes, parents, sequence, *_raw(table)))


def sums(address: int, geo: Geometry, view: View) -> np.ndarray:
    """The sums of the payload of an extent of `view` at `address`, uint64 [pieces]."""
    if not 0 <= address <= _TOP:
        raise ValueError(f"sums at {address:#x}")
    return sums_of(np.array([address], dtype=np.uint64), geo, view)[0]


def sums_of(addresses: np.ndarray, geo: Geometry, view: View, *, threads: int = 1) -> np.ndarray:
    """The sums of the payloads of extents of `view` at the addresses, uint64 [n]: uint64 [n, pieces]."""
    at = np.ascontiguousarray(addresses, dtype=np.uint64)
    low, high = span_of(at) if len(at) else (_LOW, _LOW)
    if view.empty or not _LOW <= low <= high <= _TOP - MAX_PAGE_BYTES:
        raise ValueError(f"sums of view {tuple(view)}")
    pieces = geo.pieces(view)
    result = np.empty((len(at), pieces.count(view.heads)), dtype=np.uint64)
    _check_threads(threads)
    if _module is not None:
        _module.sums(*_raw(at), view.heads, view.layers, geo.cell_bytes, *_raw(result), threads)
    else:
        for i, address in enumerate(at.tolist()):
            _sum_payload(address, pieces, result[i])
    return result


def xxh3_64(address: int, size: int) -> int:
    """xxh3-64, no seed, of `size` bytes at `address`."""
    if size < 0 or size and not _LOW <= address <= _TOP - size:
        raise ValueError(f"{size} bytes at {address:#x}")
    if _module is not None:
        return int(_module.xxh3_64(address, size))
    return xxhash.xxh3_64_intdigest(memory_at(address, size)) if size else xxhash.xxh3_64_intdigest(b"")


def digest128(data: bytes | bytearray | memoryview | np.ndarray) -> bytes:
    """xxh3-128 in canonical form, 16 bytes."""
    return xxhash.xxh3_128_digest(data)  # type: ignore[arg-type]


def instruction_set(name: str = "") -> str:
    """Chooses the native kernels of the whole process, "avx512", "avx2", "plain", or "" for the best there is, and
    returns what is in use; "numpy" without the native module. ValueError for what this machine has not. For tests and
    measurements."""
    if _module is None:
        if name not in ("", "numpy"):
            raise ValueError("the native module is not there: " + why_not)
        return "numpy"
    return str(_module.use(name))


def _raw(a: np.ndarray) -> tuple[int, int]:
    """Address and bytes of a contiguous array; the caller keeps it alive."""
    return address_of_array(a), a.nbytes


def _pieces(layout: Layout, geo: Geometry, view: View) -> Pieces:
    if (layout.heads, layout.layers, layout.cell_bytes) != (view.heads, view.layers, geo.cell_bytes):
        raise ValueError(
            f"layout of {layout.heads} x {layout.layers} cells of {layout.cell_bytes} bytes for a view of "
            f"{view.heads} x {view.layers} cells of {geo.cell_bytes}"
        )
    return pieces_of(view.layers, geo.cell_bytes)


def _check_threads(threads: int) -> None:
    if not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"{threads} threads, want 1 to {MAX_THREADS}")


def _check_jobs(jobs: np.ndarray, sums: np.ndarray, threads: int) -> np.ndarray:
    if jobs.dtype != UNPACK or jobs.ndim != 1 or not jobs.flags.c_contiguous or not jobs.flags.writeable:
        raise ValueError(f"jobs of {jobs.dtype} {jobs.shape}, want a contiguous writable array of UNPACK")
    if _raw(jobs)[0] % 8:
        raise ValueError("jobs that are not aligned to 8 bytes")
    _check_threads(threads)
    if sums.dtype.kind != "u" or sums.dtype.itemsize != 8 or sums.ndim != 1:
        raise ValueError(f"sums of {sums.dtype} {sums.shape}, want uint64 [n]")
    return np.ascontiguousarray(sums, dtype=np.uint64)


# The same in numpy.


class _Memory:
    """Memory at an address, for numpy: a strided array of opaque rows."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], row_bytes: int) -> None:
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": shape, "strides": strides, "typestr": f"|V{row_bytes}"}


def _rows_at(address: int, shape: tuple[int, ...], strides: tuple[int, ...], row_bytes: int) -> np.ndarray:
    return np.asarray(_Memory(address, shape, strides, row_bytes))


def _sum_payload(address: int, pieces: Pieces, result: np.ndarray) -> None:
    for i in range(len(result)):
        at, size = pieces.span(i)
        result[i] = xxhash.xxh3_64_intdigest(memory_at(address + at, size))


def _even(a: np.ndarray) -> int | None:
    """The step between addresses, 0 for one; None when they are not evenly spaced."""
    if len(a) < 2:
        return 0
    steps = np.diff(a.astype(np.int64))
    return int(steps[0]) if (steps == steps[0]).all() else None


def _copy_cells(layout: Layout, addresses: np.ndarray, h0: int, h1: int, l0: int, l1: int, payload: int, head_bytes: int, to_engine: bool) -> None:
    """Whole cells of heads [h0, h1) and layers [l0, l1), numbered within the memory, between the engine's order and a
    head-major payload at `payload`, whose heads are `head_bytes` apart. addresses: [components, layers]."""
    cell, at = layout.cell_bytes, 0
    for c, r in enumerate(layout.rows):
        step = _even(addresses[c, l0:l1])
        groups = [(l0, l1 - l0, step)] if step is not None else [(layer, 1, 0) for layer in range(l0, l1)]
        for layer, n, layer_step in groups:
            shape = (h1 - h0, n, r.tokens)
            engine = _rows_at(int(addresses[c, layer]) + h0 * r.head_stride, shape, (r.head_stride, layer_step or 0, r.token_stride), r.row_bytes)
            flat = _rows_at(payload + (layer - l0) * cell + at, shape, (head_bytes, cell, r.row_bytes), r.row_bytes)
            if to_engine:
                engine[...] = flat
            else:
                flat[...] = engine
        at += r.bytes


def _pack_page(layout: Layout, addresses: np.ndarray, payload: int) -> None:
    _copy_cells(layout, addresses, 0, layout.heads, 0, layout.layers, payload, layout.layers * layout.cell_bytes, False)


def _run_job(job: np.void, mem: PageMemory | None, cell: int, view: View, sums: np.ndarray) -> int:
    extent = View(int(job["eh0"]), int(job["eh1"]), int(job["el0"]), int(job["el1"]))
    offset, size, first_sum = int(job["offset"]), int(job["bytes"]), int(job["first_sum"])
    copies = mem is not None and not int(job["flags"]) & IN_PLACE
    if extent.empty or int(job["cuts"]) > 2 or extent.cells > MAX_PAGE_BYTES // cell:
        return REFUSED
    pieces, total = pieces_of(extent.layers, cell), extent.cells * cell
    if offset > total or size > total - offset:
        return REFUSED
    if first_sum > len(sums) or pieces.count(extent.heads) > len(sums) - first_sum:
        return REFUSED
    if mem is not None and copies and int(job["page"]) >= len(mem):
        return REFUSED
    if not _LOW <= int(job["src"]) <= _TOP - size:
        return REFUSED
    src, cut, end = int(job["src"]), 0, offset + size
    cuts, cut_sums, through = int(job["cuts"]), job["cut_sums"].tolist(), copies and not int(job["flags"]) & PRIVATE
    while offset < end:
        # A window of whole pieces: what was found right of it is written at once.
        window = min(_piece_end(pieces, offset + _WINDOW), end) - offset
        data = memory_at(src, window)
        if through:
            data = memoryview(bytes(data))
        good = 0
        while good < window:
            piece = pieces.at(offset + good)
            at, whole = pieces.span(piece)
            n = min(at + whole, end) - offset - good
            want = None
            if n == whole:
                want = int(sums[first_sum + piece])
            elif cut < cuts:
                want, cut = cut_sums[cut], cut + 1
            if xxhash.xxh3_64_intdigest(data[good : good + n]) != want:
                break
            good += n
        if mem is not None and copies and good:
            part = np.frombuffer(data[:good], dtype=np.uint8)
            _scatter(part, offset, mem.layout, mem.addresses[int(job["page"])], extent, view, cell)
        if good < window:
            return CORRUPT
        offset, src = offset + window, src + window
    return OK


def _piece_end(pieces: Pieces, offset: int) -> int:
    """The end of the piece that holds the byte at `offset`."""
    return sum(pieces.span(pieces.at(offset)))


def _scatter(data: np.ndarray, offset: int, layout: Layout, addresses: np.ndarray, extent: View, view: View, cell: int) -> None:
    """Writes bytes from `offset` of an extent's payload on to where they belong in the memory."""
    start = int(data.__array_interface__["data"][0])
    end = offset + len(data)
    while offset < end:
        number, within = divmod(offset, cell)
        head, layer = divmod(number, extent.layers)
        h, l0 = head + extent.h0 - view.h0, layer + extent.l0 - view.l0
        n = min(cell - within, end - offset)
        if within == 0 and n == cell:
            head_bytes = extent.layers * cell
            heads = (end - offset) // head_bytes if layer == 0 else 0  # whole heads behind each other go at once
            cells = extent.layers if heads else min((end - offset) // cell, extent.layers - layer)
            heads = heads or 1
            n = heads * cells * cell
            h_lo, h_hi = max(h, 0), min(h + heads, layout.heads)
            lo, hi = max(l0, 0), min(l0 + cells, layout.layers)
            if h_lo < h_hi and lo < hi:
                first = start + (h_lo - h) * head_bytes + (lo - l0) * cell
                _copy_cells(layout, addresses, h_lo, h_hi, lo, hi, first, head_bytes, True)
        elif 0 <= h < layout.heads and 0 <= l0 < layout.layers:
            _scatter_part(start, within, n, layout, addresses, h, l0)
        offset, start = offset + n, start + n


def _scatter_part(src: int, within: int, size: int, layout: Layout, addresses: np.ndarray, head: int, layer: int) -> None:
    """Bytes [within, within + size) of one cell."""
    at = 0
    for c, r in enumerate(layout.rows):
        lo, hi = max(within, at), min(within + size, at + r.bytes)
        base = int(addresses[c, layer]) + head * r.head_stride
        while lo < hi:
            token, byte = divmod(lo - at, r.row_bytes)
            n = min(r.row_bytes - byte, hi - lo)
            ctypes.memmove(base + token * r.token_stride + byte, src + lo - within, n)
            lo += n
        at += r.bytes
