"""Fetch: pages into the caller's memory, verified there, over as many streams as are worth it.

pages ──batches, one a stream──> intake ──> OK or a miss
            ^                      │
            └── broken, or memory taken back: what is left, on the same extents where all are known
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import encode, kernels, proto
from .deadline import Call
from .errors import QuireError, Reason
from .intake import Intake, Wanted
from .layout import PageMemory
from .page import Geometry, Page, View

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Fetch"]

MAX_BATCH_BYTES = 256 << 20  # payload of one stream
MAX_BATCH_KEYS = 1024
RETRIES = 2
RETRY_PAUSE = 0.02  # seconds, twice as long each time
# Bytes below which a further connection costs more than it brings: where native code receives, and where Python does.
_WORTH_A_STREAM, _WORTH_A_SLOW_STREAM = 64 << 20, 4 << 20


class Fetch:
    """One fetch. `run` returns when nothing writes into the memory any more."""

    def __init__(
        self, session: Session, keys: Sequence[bytes], memory: PageMemory, geometry: Geometry, scope: bytes, view: View, lease: bytes, call: Call
    ) -> None:
        self._session, self._memory, self._geometry = session, memory, geometry
        self._scope, self._view, self._lease, self._call = scope, view, lease, call
        self._pages = [Wanted(k) for k in keys]
        self._expect = session._expect(scope, geometry)
        self._error: QuireError | None = None
        self._lock = threading.Lock()
        self._next = 0

    def run(self) -> list[Page]:
        """One answer a page. QuireError when the call as a whole failed; its `pages` are what is known."""
        try:
            self._run()
        except QuireError as e:
            self._error = self._error or e
        return self._results()

    def _run(self) -> None:
        each = self._geometry.payload_bytes(self._view)
        limits = self._session._client._limits(self._call)
        most = max(1, min(limits.max_keys, MAX_BATCH_KEYS, min(limits.max_batch_bytes, MAX_BATCH_BYTES) // each))
        streams = self._streams(len(self._pages) * each)
        batch = max(1, min(most, -(-len(self._pages) // streams)))
        streams = min(streams, -(-len(self._pages) // batch))
        others: list[threading.Thread] = []
        for _ in range(streams - 1):
            t = threading.Thread(target=self._work, args=(batch,), name="quire-fetch", daemon=True)
            try:
                t.start()
            except RuntimeError:  # the process may have no more threads: fewer streams carry the same
                break
            others.append(t)
        self._work(batch)
        for t in others:
            t.join()  # by the call's deadline
        self._report()

    def _streams(self, size: int) -> int:
        client = self._session._client
        if size < 2 * _WORTH_A_SLOW_STREAM or client.transport != "data":
            return 1
        worth = _WORTH_A_STREAM if kernels.NATIVE and client.options.plaintext else _WORTH_A_SLOW_STREAM
        return max(1, min(client.options.data_connections, size // worth))

    def _work(self, batch: int) -> None:
        try:
            while True:
                with self._lock:
                    first, self._next = self._next, self._next + batch
                    if first >= len(self._pages) or self._error is not None:
                        return
                self._batch(list(range(first, min(first + batch, len(self._pages)))))
        except QuireError as e:
            with self._lock:
                self._error = self._error or e
        except Exception as e:  # a fault of ours must not end as pages that nobody answers for
            with self._lock:
                self._error = self._error or QuireError(Reason.UNKNOWN, f"fetch: {type(e).__name__}: {e}", broken=True)

    def _batch(self, index: list[int]) -> None:
        """Fetches some pages, on another stream for what is left when one breaks."""
        for attempt in range(RETRIES + 1):
            error: QuireError | None = None
            try:
                self._stream(index)
            except QuireError as e:
                error = e
            index = [i for i in index if self._pages[i].result is None]
            if not index:
                return
            if error is not None and not transient(error):
                raise error
            if attempt == RETRIES or not pause(self._call, attempt):
                if error is not None:
                    raise error
                break
        for i in index:  # streams that ended well and left these: their memory was taken back each time, or they were cut
            stale = self._pages[i].stale
            reason = Reason.TRUNCATED if not stale else Reason.LEASE_EXPIRED if self._lease else Reason.ABSENT
            self._pages[i].result = Page(False, reason)

    def _stream(self, index: list[int]) -> None:
        s = self._session
        intake = Intake(
            self._pages, index, self._memory, self._geometry, self._view, self._expect,
            threads=s._client.options.copy_threads, on_copied=s._client._on_copied,
        )  # fmt: skip
        request = s._ref_field(1) + encode.run(2, self._scope, self._geometry.group, intake.hashes) + encode.field(4, self._lease)
        if not intake.plain:
            more = proto.FetchRequest()
            if self._view != self._geometry.whole:
                set_view(more.view, self._view)
            for k, i in enumerate(index):
                if self._pages[i].resume:
                    more.resume.add(page=k, extent_ids=self._pages[i].resume)
            request += more.SerializeToString()
        s._client._route(self._call, lambda transport: transport.fetch(request, intake, self._call))

    def _report(self) -> None:
        """Tells the server what failed here: it looks itself, and only its own failure makes pages go. Within the call's
        time: who is told that a page is corrupt finds it absent from then on."""
        bad = [p for p in self._pages if p.corrupt is not None]
        if not bad or self._call.expired():
            return
        s = self._session
        request = proto.ReportCorruptRequest()
        request.namespace.CopyFrom(s._ref)
        request.run.scope, request.run.group = self._scope, self._geometry.group
        request.run.hashes = b"".join(p.key for p in bad)
        if all(p.corrupt for p in bad):
            request.extent_ids.extend(sorted({i for p in bad for i in p.corrupt or ()}))
        try:
            s._client._route(self._call, lambda transport: transport.unary("ReportCorrupt", request, self._call))
        except QuireError:
            return  # the page is a miss here all the same

    def _results(self) -> list[Page]:
        error = self._error
        left = Page(False, error.reason if error is not None else Reason.UNKNOWN)
        pages = [p.result or left for p in self._pages]
        if error is not None and error.reason is Reason.LEASE_EXPIRED and not error.broken:
            return pages  # the same answer as where this side knew it first
        if error is not None and any(p.result is None for p in self._pages):
            error.pages = pages
            raise error
        return pages


def set_view(message: object, view: View) -> None:
    """Writes a view into a quire.v1.View."""
    message.h0, message.h1, message.l0, message.l1 = view  # type: ignore[attr-defined]


def transient(error: QuireError) -> bool:
    """Whether the same call may succeed soon: the transport broke, or the server is busy."""
    return error.broken or error.reason is Reason.BUSY


def pause(call: Call, attempt: int) -> bool:
    """Waits before another attempt; False when the call has no time for it."""
    wait = RETRY_PAUSE * (1 << attempt)
    if call.expired() or time.monotonic() + wait >= call.deadline:
        return False
    woken = threading.Event()
    call.register(woken.set)
    woken.wait(wait)
    call.unregister(woken.set)
    return not call.expired()
