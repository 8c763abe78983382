"""Takes in the stream of one Fetch: what is whole, right and of the page that was asked for becomes OK.

    head ──> [header: an extent opens] ──> [chunk: a job] ──> ... ──> trailer
                                                                        │ flush: one unpack for all jobs so far,
                                                                        v then generations
                                                     OK, a miss with its reason, or again on another stream

A chunk is a row of one job table; nothing here runs per piece. A page that went wrong is a miss at once, the rest of it
is dropped, and the stream goes on. What no server may say about the order of pages is a QuireError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import kernels
from .deadline import Call
from .errors import Reason
from .layout import PageMemory
from .page import Expectation, Extent, FormatError, Geometry, Page, View, runs
from .shm import Slab, Slabs
from .wire import Reference, protocol_error

__all__ = ["MAX_EXTENTS", "Intake", "Wanted"]

MAX_EXTENTS = 256  # of one page
_MAX_JOBS = 1 << 16  # of one table
_OK = 1  # proto Outcome
_SERVED = Page(True, Reason.NONE)


class Wanted:
    """One page of a fetch, over all streams that work on it; one stream at a time."""

    __slots__ = ("corrupt", "key", "resume", "result", "stale")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.result: Page | None = None  # None: not done
        self.resume: list[bytes] = []  # ids of the extents that a broken stream had begun with
        self.corrupt: list[bytes] | None = None  # to be reported: ids of the extents that failed here
        self.stale = False  # memory was taken back before it was read to the end


class _Open:
    """An extent of the page at hand."""

    __slots__ = ("bytes", "first_sum", "id", "sums", "table", "view")

    def __init__(self, extent: Extent, cell_bytes: int) -> None:
        self.id = extent.id.encode()
        self.view = extent.view
        self.bytes = extent.view.cells * cell_bytes
        self.sums = extent.sums
        self.first_sum, self.table = 0, -1  # where its sums are in the table of that number


class Intake:
    """One stream's worth of pages, in the order in which they were asked for.

    `memory` has a place for each page of the fetch; `index` says which of them this stream asks for. Between two
    flushes the bytes of chunks must stay where they are. Not thread-safe.
    """

    def __init__(
        self,
        pages: Sequence[Wanted],
        index: Sequence[int],
        memory: PageMemory,
        geometry: Geometry,
        view: View,
        expect: Expectation,
        *,
        threads: int,
        on_copied: Callable[[], None] | None = None,
    ) -> None:
        self._pages, self._index, self._memory = pages, index, memory
        self._geometry, self._view, self._expect = geometry, view, expect
        self._threads, self._on_copied = threads, on_copied
        self._payload = geometry.payload_bytes(view)
        self.payload_bytes = len(index) * self._payload  # of all pages
        self._spans: dict[View, list[list[int]] | None] = {}  # by an extent's view: what all of the view is of it
        self.slabs: Slabs | None = None  # where references of this stream lead
        self.pending_bytes = 0  # in jobs since the last flush
        self.hashes = b"".join([pages[i].key for i in index])
        # ordinary pages: whole ones, which begin on any extent
        self.plain = view == geometry.whole and not any(pages[i].resume for i in index)
        self._tables: kernels.PageTables | None = None
        # the table
        self._table = 0
        self._rows: list[tuple] = []
        self._row_pages: list[int] = []  # index into _marks of each row
        self._sums: list[bytes] = []
        self._sum_count = 0
        self._keep: list[Any] = []  # owners of chunks' bytes
        self._marks: list[_Mark] = []  # pages with rows in the table
        # the page at hand
        self._at = -1
        self._mark: _Mark | None = None  # None: done, drop what comes

    # -- batches of ordinary pages -------------------------------------------------------------------------------

    def ordinary(self) -> kernels.PageTables | None:
        """What native code needs to take the pages at hand by itself; None: they need a look at each message."""
        if not (kernels.NATIVE and self.plain) or self._mark is not None or self.slabs is None or self._on_copied is not None:
            return None
        return self._tables_of()

    def _tables_of(self) -> kernels.PageTables:
        if self._tables is None:
            self._tables = kernels.PageTables(self._expect, self.hashes, self._memory, self._index, self._threads)
        return self._tables

    def batch(self, body: bytes) -> tuple[int, int]:
        """Takes the pages at the start of a batch that need no look at each message: where it stopped, and how many
        references it has done with. The rest is for `message`."""
        tables = self.ordinary()
        if tables is None or self.slabs is None:
            return 0, 0
        table, keep = self.slabs.table()
        stop, page, references = kernels.fetched(body, 0, tables, self._at, table)
        del keep
        self.taken(page, body)
        return stop, references

    def taken(self, last: int, body: bytes) -> None:
        """Takes over what native code says of pages up to number `last` of the stream: `body` is that of the frame with those
        of them that are corrupt, none where their header is given apart."""
        tables, first = self._tables, self._at + 1
        if tables is None:
            return
        self._at = last
        for k, status in enumerate(tables.status[first : last + 1].tobytes(), first):
            wanted = self._pages[self._index[k]]
            if status == kernels.FETCHED_OK:
                wanted.result = _SERVED
            elif status == kernels.FETCHED_STALE:
                wanted.stale, wanted.resume = True, []
            elif status and body:
                at, size = divmod(int(tables.where[k]), 1 << 32)
                self._corrupt(wanted, body[at : at + size])

    def _corrupt(self, wanted: Wanted, header: bytes) -> None:
        wanted.corrupt = [self._expect.read(header, wanted.key).id.encode()]
        wanted.result = Page(False, Reason.CORRUPT)

    @property
    def direct(self) -> bool:
        """Whether native code may receive what comes next: ordinary pages, none of which is at hand here."""
        return kernels.NATIVE and self.plain and self._mark is None and self.slabs is None

    def receive(self, request: bytes, source: tuple[int, int, int, int, int, int, int], deadline: float) -> tuple[int, int, int, bytes, int, int]:
        """Takes ordinary pages off a socket (see kernels.receive): why it stopped, from where to where bytes were read ahead
        and not used, the entries that are left and how much data comes for them, for `message`, and an error."""
        left, start, end, last, got, header, rest, data, error = kernels.receive(self._tables_of(), request, deadline, self._at, source)
        self.taken(last, b"")
        if header:
            self._begun(self._index[last], header, got)
        return left, start, end, rest, data, error

    def _begun(self, page: int, header: bytes, got: int) -> None:
        """Takes over a page of which so many bytes came and are right, or, with 0, one that is corrupt."""
        wanted = self._pages[page]
        if not got:
            self._corrupt(wanted, header)
            return
        mark = self._mark = _Mark(page)
        mark.extents.append(_Open(self._expect.read(header, wanted.key), self._geometry.cell_bytes))
        mark.spans.append([0, 0, got])
        mark.bytes = got

    # -- messages ------------------------------------------------------------------------------------------------

    def message(self, head: Any, size: int, source: int, reference: Reference | None = None, owner: object = None, private: bool = True) -> None:
        """One FetchResponse whose chunk of `size` bytes lies at address `source`, or where `reference` says. `private`
        says that nobody else writes there."""
        k = head.page
        if k != self._at:
            if k < self._at or k >= len(self._index):
                raise protocol_error(f"page {k} after {self._at} of {len(self._index)}")
            self._finish(Reason.TRUNCATED)
            self._at = k
            self._mark = _Mark(self._index[k])
        mark = self._mark
        if mark is None:
            return
        if head.header and not self._open(mark, head.extent, head.header):
            return
        if size and not self._chunk(mark, head, size, source, reference, owner, private):
            return
        if head.HasField("trailer"):
            self._trailer(mark, head.trailer)

    def _open(self, mark: _Mark, number: int, raw: bytes) -> bool:
        """Reads a header and compares it with what was asked for. Extents of a page are numbered in order."""
        if number != len(mark.extents) or number >= MAX_EXTENTS:
            self._finish(Reason.CORRUPT)
            return False
        try:
            extent = self._expect.read(raw, self._pages[mark.page].key)
        except FormatError:
            self._finish(Reason.CORRUPT)
            return False
        mark.extents.append(_Open(extent, self._geometry.cell_bytes))
        return True

    def _chunk(self, mark: _Mark, head: Any, size: int, source: int, reference: Reference | None, owner: object, private: bool) -> bool:
        number, offset, cuts = head.extent, head.offset, head.cut_sums
        if number >= len(mark.extents) or len(cuts) not in (0, 8, 16):
            self._finish(Reason.CORRUPT)
            return False
        extent = mark.extents[number]
        mark.bytes += size
        if offset > extent.bytes or size > extent.bytes - offset or mark.bytes > self._payload:
            self._finish(Reason.CORRUPT)
            return False
        if reference is not None:
            if self.slabs is None:
                raise protocol_error("a reference where no memory is shared")
            slab = self.slabs.resolve(reference)
            source, private = slab.address + reference.offset, False
            mark.references.append((slab, reference))
        if extent.table != self._table:
            extent.table, extent.first_sum = self._table, self._sum_count
            self._sums.append(extent.sums)
            self._sum_count += len(extent.sums) // 8
        if mark.table != self._table:
            mark.table, mark.row = self._table, len(self._marks)
            self._marks.append(mark)
        self._rows.append((
            source, offset, size, extent.first_sum,
            (int.from_bytes(cuts[:8], "little"), int.from_bytes(cuts[8:], "little")), mark.page, *extent.view,
            len(cuts) // 8, kernels.PRIVATE if private else 0, 0,
        ))  # fmt: skip
        self._row_pages.append(mark.row)
        if owner is not None:
            self._keep.append(owner)
        self.pending_bytes += size
        spans = mark.spans
        if spans and spans[-1][0] == number and spans[-1][2] == offset:
            spans[-1][2] = offset + size
        else:
            spans.append([number, offset, offset + size])
        if len(self._rows) >= _MAX_JOBS:
            self.flush()
        return self._mark is mark

    def _trailer(self, mark: _Mark, status: Any) -> None:
        wanted = self._pages[mark.page]
        reason = Reason.of(status.reason)
        if status.outcome == _OK:
            if not self._covers(mark):
                self._finish(Reason.TRUNCATED)
                return
            mark.trailed = True
            self._mark = None
            if mark.table != self._table:
                self._settle([mark])
        elif reason is Reason.ABSENT and wanted.resume:
            wanted.resume, self._mark = [], None  # what it had begun with is gone: start over on another stream
            mark.dropped = True
        else:
            # also CORRUPT: the server found it itself
            mark.dropped, self._mark = True, None
            wanted.result = Page(False, reason or Reason.UNKNOWN)

    def _covers(self, mark: _Mark) -> bool:
        """Whether what came is every byte of the view once."""
        if len(mark.extents) != 1:
            return _in_parts(mark, self._view, self._geometry.cell_bytes)
        stored = mark.extents[0].view
        if stored not in self._spans:
            self._spans[stored] = _in_one(stored, self._view, self._geometry.cell_bytes)
        return mark.spans == self._spans[stored]

    def _finish(self, reason: Reason) -> None:
        """Makes the page at hand a miss, if there is one that is not done."""
        mark, self._mark = self._mark, None
        if mark is None:
            return
        mark.dropped = True
        self._miss(mark, reason)

    def _miss(self, mark: _Mark, reason: Reason) -> None:
        wanted = self._pages[mark.page]
        if reason is Reason.CORRUPT:
            if not self._fresh(mark):
                wanted.stale, wanted.resume = True, []
                return
            wanted.corrupt = [e.id for e in mark.extents]
        wanted.result = Page(False, reason)

    # -- the table -----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Copies and verifies what came since the last flush. Afterwards no chunk's bytes are looked at any more."""
        if not self._rows:
            return
        jobs = np.array(self._rows, dtype=kernels.UNPACK)
        sums = np.frombuffer(b"".join(self._sums), dtype="<u8")
        kernels.unpack(jobs, self._memory, self._geometry, self._view, sums, threads=self._threads)
        status = jobs["status"]
        if status.any():
            for row in np.flatnonzero(status):
                self._marks[self._row_pages[row]].bad = True
        marks = self._marks
        self._table += 1
        self._rows, self._row_pages, self._sums, self._keep, self._marks = [], [], [], [], []
        self._sum_count = self.pending_bytes = 0
        self._settle(marks)

    def _settle(self, marks: list[_Mark]) -> None:
        """After the last byte of these pages was copied: decides about those that are at their end, or went wrong."""
        if any(m.references for m in marks):
            if self._on_copied is not None:
                self._on_copied()
            if self.slabs is not None:
                self.slabs.barrier()
        for mark in marks:
            if mark.dropped or not (mark.trailed or mark.bad):
                continue
            if mark.bad:
                mark.dropped = True
                if self._mark is mark:
                    self._mark = None
                self._miss(mark, Reason.CORRUPT)
            elif self._fresh(mark):
                self._pages[mark.page].result = _SERVED
            else:
                wanted = self._pages[mark.page]
                wanted.stale, wanted.resume = True, []

    def _fresh(self, mark: _Mark) -> bool:
        """Whether the memory that the page was read from is still what it was named as."""
        return all(s.valid(r.offset, r.slot_generation, r.slab_generation) for s, r in mark.references)

    # -- the end of the stream -----------------------------------------------------------------------------------

    def ended(self, call: Call) -> None:
        """The stream is over, well or not; where its call has no time left, what was not copied yet never is. A page
        that it had begun stays on its extents, if all of them are known: another stream fills it from its first byte,
        so that it is of one writer a rectangle also when it gets others."""
        if not call.expired():
            self.flush()
        mark, self._mark = self._mark, None
        if mark is not None and sum(e.view.intersect(self._view).cells for e in mark.extents) >= self._view.cells:
            self._pages[mark.page].resume = [e.id for e in mark.extents]


class _Mark:
    """How far a page has come on this stream."""

    __slots__ = ("bad", "bytes", "dropped", "extents", "page", "references", "row", "spans", "table", "trailed")

    def __init__(self, page: int) -> None:
        self.page = page  # in the fetch
        self.extents: list[_Open] = []
        self.spans: list[list[int]] = []  # extent, from, to: what came, in order
        self.references: list[tuple[Slab, Reference]] = []
        self.bytes = 0
        self.table, self.row = -1, 0  # where it is in _marks of the table of that number
        self.trailed = self.bad = self.dropped = False


def _in_one(stored: View, view: View, cell_bytes: int) -> list[list[int]] | None:
    """The spans of an extent that are all of the view; None: it has only a part of it."""
    r = runs(stored, view, cell_bytes)
    if r.size * r.count != view.cells * cell_bytes:
        return None
    return [[0, r.offset + k * r.stride, r.offset + k * r.stride + r.size] for k in range(r.count)]


def _in_parts(mark: _Mark, view: View, cell_bytes: int) -> bool:
    """Whether the spans of several extents are every cell of the view once, each of one extent."""
    seen = np.zeros((view.heads, view.layers), dtype=np.uint16)
    for number, a, b in mark.spans:
        v = mark.extents[number].view
        if a % cell_bytes or b % cell_bytes:
            return False
        cells = np.arange(a // cell_bytes, b // cell_bytes)
        heads, layers = cells // v.layers + v.h0 - view.h0, cells % v.layers + v.l0 - view.l0
        if (heads < 0).any() or (heads >= view.heads).any() or (layers < 0).any() or (layers >= view.layers).any():
            return False
        np.add.at(seen, (heads, layers), 1)
    return bool((seen == 1).all())
