"""Session: one epoch of one namespace, bound to what the model is now. Made by Client.open.

open ──close──────> closed        calls raise QuireError ABORTED
  └────invalidate─> invalidated   calls answer by themselves: nothing is there, nothing is taken, STALE_EPOCH
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import encode, proto
from .deadline import Call, again
from .errors import Difference, QuireError, Reason
from .fetch import MAX_BATCH_KEYS, Fetch, set_view
from .hint import Hint
from .kept import keep
from .layout import PageMemory
from .lease import Lease
from .page import GRADES, Expectation, Geometry, Page, View
from .publish import UNKNOWN_PARENT, Fence, ParentOf, Publish, repeated

if TYPE_CHECKING:
    from .client import Client

__all__ = ["Presence", "Session", "Sibling"]

_CLOSE_SECONDS = 0.8  # that the end of a session waits for its calls
_ATTACH_PAUSE = 0.02  # seconds between attempts to attach, twice as long each time
_ATTACH_LONGEST_PAUSE = 1.28
_FOREVER = 1e9
_REPORTED = {
    "lookups": "lookups", "lookup_keys": "lookup_keys", "hits": "hit_keys", "loaded_pages": "loaded_pages", "load_bytes": "loaded_bytes",
    "saved_pages": "saved_pages", "save_bytes": "saved_bytes", "recompute_fallbacks": "recompute_fallbacks",
}  # fmt: skip


class Presence(NamedTuple):
    """Which keys of a lookup are there. `leading` consecutive ones from the start; `lease` pins the first of them."""

    present: list[bool]  # one a key
    leading: int
    lease: Lease | None


class Sibling(NamedTuple):
    """A namespace near this one, and what differs: a fork of identity, where it should be the same."""

    namespace: bytes
    epoch: int
    differences: tuple[Difference, ...]


class Session:
    """Leases and publications that a session takes end with it. Thread-safe.

    namespace             32 bytes
    epoch                 the namespace's life that the session is bound to
    provenance            SHA-256 of canonical_provenance; empty when the session states none
    canonical_provenance  goes into the headers of what is published
    geometries            by group id, 32 bytes
    siblings              namespaces that differ little from this one, nearest first
    generation            raised by invalidate

    Timeouts are seconds, the client's call_timeout by default. A call raises QuireError when it failed as a whole; a
    page that is not there or not taken is an answer, not an error. `group` may be left out where there is one group.
    `view` is the whole page by default.
    """

    def __init__(self, client: Client, record: Any, provenance: bytes, canonical: bytes, siblings: Sequence[Any] = ()) -> None:
        self._client = client
        self.namespace, self.epoch, self.provenance, self.canonical_provenance = bytes(record.id), int(record.epoch), provenance, canonical
        if len(self.namespace) != 32 or self.epoch == 0 or not 16 <= record.hash_bytes <= 64:
            raise QuireError(Reason.UNKNOWN, "protocol: no record of a namespace", broken=True)
        self.hash_bytes = int(record.hash_bytes)
        self.geometries = {bytes(g.id): _geometry(g, self.hash_bytes) for g in record.groups}
        self.siblings = tuple(
            Sibling(bytes(x.id), int(x.epoch), tuple(Difference(d.path, d.a, d.b, getattr(d, "class")) for d in x.differences)) for x in siblings
        )
        self._only: Geometry | None = None
        self.generation = 0
        self._templates: dict[tuple, bytes] = {}  # of headers.py
        self._said: dict[tuple, Any] = {}  # of publish.py
        self._expectations: dict[tuple[bytes, bytes], Expectation] = {}  # by scope and group
        self._dated: dict[tuple, tuple[int, bytes]] = {}
        self._ref = proto.NamespaceRef(id=self.namespace, epoch=self.epoch, provenance=provenance)
        self._ref_fields = [encode.field(number, self._ref.SerializeToString()) for number in range(3)]
        self._session_id = b""  # of the live attach stream
        self.boot = b""  # of the node's start that the session was opened on: what it held in memory alone went with that
        self._watcher: Callable[[bool], None] | None = None
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)  # by the last calls, while the session ends
        self._calls: set[Call] = set()
        self._ended: QuireError | None = None
        self._life = Call(_FOREVER)
        self._reader: threading.Thread | None = None

    @property
    def only(self) -> Geometry:
        """The geometry of the only group. QuireError UNSUPPORTED where there are several."""
        if self._only is not None:
            return self._only
        if len(self.geometries) != 1:
            raise QuireError(Reason.UNSUPPORTED, f"the namespace has {len(self.geometries)} groups: name one")
        self._only = next(iter(self.geometries.values()))
        return self._only

    # -- lookups and leases --------------------------------------------------------------------------------------

    def exists(
        self,
        keys: Sequence[bytes],
        *,
        group: bytes | None = None,
        scope: bytes = b"",
        view: View | None = None,
        lease: float | None = None,
        hint: Hint | None = None,
        timeout: float | None = None,
    ) -> Presence:
        """Which pages are there: one call for as many keys as the server takes at once.

        Without a view for all heads and layers, so that all ranks get one answer. `lease` seconds pin the longest run
        from the start that fits the server's budgets, within the first call's keys; None is a bare probe, which neither
        pins nor refreshes. `hint` is what the caller knows of the future of the pages that are pinned.
        """
        geometry = self._geometry_of(group)
        n = self._check_keys(keys, scope)
        with self._enter(timeout) as call:
            if call is None:
                return Presence([False] * n, 0, None)
            present: list[bool] = []
            leading, granted = 0, None
            most = self._client._limits(call).max_keys
            for first in range(0, n, most):
                part = keys[first : first + most]
                request = self._ref_field(1) + encode.run(2, scope, geometry.group, b"".join(part))
                if lease is not None and first == 0:
                    request += encode.seconds(4, lease) + encode.field(5, self._session_id)
                if view is not None or hint is not None:
                    more = proto.BatchExistsRequest()
                    if view is not None and view != geometry.whole:
                        set_view(more.view, view)
                    if hint is not None and lease is not None and first == 0:
                        hint.write(more.hint)
                    request += more.SerializeToString()
                asked = time.monotonic()
                answer = self._repeated("BatchExists", request, call)
                bits = np.unpackbits(np.frombuffer(answer.present, dtype=np.uint8), count=len(part), bitorder="little")
                present += bits.view(bool).tolist()
                if leading == first and answer.leading:
                    leading += min(len(part), answer.leading[0])
                if first == 0 and answer.lease.lease_id:
                    covered = min(len(part), answer.lease.covered[0]) if answer.lease.covered else 0
                    granted = Lease(self, bytes(answer.lease.lease_id), proto.seconds(answer.lease.ttl), covered, asked)
            if False in present[:leading]:  # the server contradicts itself: believe the bits
                leading = present.index(False)
            return Presence(present, leading, granted)

    def lease(self, lease_id: bytes, ttl: float, covered: int) -> Lease:
        """The lease that another process of this namespace took: to fetch under it. Counted from now."""
        return Lease(self, lease_id, ttl, covered, time.monotonic())

    def _renew(self, lease_id: bytes, ttl: float, timeout: float | None) -> float:
        with self._enter(timeout, local=False) as call:
            assert call is not None
            request = proto.RenewLeaseRequest(lease_id=lease_id)
            request.namespace.CopyFrom(self._ref)
            proto.set_seconds(request.ttl, ttl)
            return proto.seconds(self._repeated("RenewLease", request, call).ttl)

    def _release(self, lease_id: bytes, hashes: bytes, timeout: float | None, group: bytes = b"", scope: bytes = b"") -> None:
        with self._enter(timeout, local=False) as call:
            assert call is not None
            request = proto.ReleaseLeaseRequest(lease_id=lease_id)
            request.namespace.CopyFrom(self._ref)
            if hashes:
                request.run.group, request.run.scope, request.run.hashes = group, scope, hashes
            self._repeated("ReleaseLease", request, call)

    def _release_pages(self, lease_id: bytes, keys: Sequence[bytes], group: bytes | None, scope: bytes, timeout: float | None) -> None:
        geometry = self._geometry_of(group)
        self._check_keys(keys, scope)
        if keys:
            self._release(lease_id, b"".join(keys), timeout, geometry.group, scope)

    # -- pages ---------------------------------------------------------------------------------------------------

    def fetch(
        self,
        keys: Sequence[bytes],
        memory: PageMemory,
        *,
        group: bytes | None = None,
        scope: bytes = b"",
        view: View | None = None,
        lease: Lease | None = None,
        timeout: float | None = None,
    ) -> list[Page]:
        """Copies pages into memory, in its own order, and verifies every byte after the last copy: one answer a key.

        `memory` has a place for each key, of the view. Under a lease pages are served by it or not at all
        (LEASE_EXPIRED). A page that is not ok has undefined bytes in its place. When this has returned or raised,
        nothing writes into memory any more. An error's `pages` say what had been served by then.
        """
        geometry = self._geometry_of(group)
        n = self._check_keys(keys, scope)
        view = self._check_memory(memory, n, geometry, view)
        with self._enter(timeout) as call:
            if call is None:
                return [Page(False, Reason.STALE_EPOCH)] * n
            if n == 0:
                return []
            if lease is not None and lease.expired:
                return [Page(False, Reason.LEASE_EXPIRED)] * n
            if lease is not None and lease.remaining < min(lease.ttl / 3, call.left()):
                lease.renew(timeout=call.left())
            return Fetch(self, keys, memory, geometry, scope, view, lease.id if lease is not None else b"", call).run()

    def publish(
        self,
        keys: Sequence[bytes],
        memory: PageMemory,
        *,
        parent: ParentOf = UNKNOWN_PARENT,
        group: bytes | None = None,
        scope: bytes = b"",
        view: View | None = None,
        durability: str | None = None,
        expire_seconds: int = 0,
        flops: float = 0.0,
        writer_group: bytes = b"",
        fence: Fence | None = None,
        unlinked: bool = False,
        linked: bool = True,
        hint: Hint | None = None,
        timeout: float | None = None,
    ) -> list[Page]:
        """Begins, writes and commits consecutive pages of one chain: one answer a key, ok when the page is stored now,
        by us or before.

        `parent` is the page before keys[0] (a hash), ROOT_PARENT where the chain starts, UNKNOWN_PARENT or None where
        it is not known; each other page follows the one before it. With `unlinked` a page whose parent is missing is
        offered again without one. Pages that are not `linked` are no chain: the parent of each is unknown. `durability` is "memory", "disk" or the namespace's default; `expire_seconds` of
        life, 0: the namespace's default; `flops` is what recomputing a page costs, by the caller's word; `writer_group`
        (16 bytes) is for strict namespaces: equal on all ranks that write one page. `hint` is what the caller knows of the
        future of all of them, its word too. `fence` is asked after the bytes
        were copied and before they are committed. When this has returned or raised, nothing reads memory any more.
        """
        geometry = self._geometry_of(group)
        n = self._check_keys(keys, scope)
        view = self._check_memory(memory, n, geometry, view)
        if durability not in (None, "memory", "disk"):
            raise QuireError(Reason.UNSUPPORTED, f"durability {durability!r}: want memory, disk or None")
        if isinstance(parent, bytes) and len(parent) != self.hash_bytes:
            raise QuireError(Reason.SIZE_MISMATCH, f"a parent of {len(parent)} bytes; hashes have {self.hash_bytes}")
        if not 0 <= expire_seconds < 1 << 31 or not 0 <= flops < float("inf") or len(writer_group) not in (0, 16):
            raise QuireError(Reason.SIZE_MISMATCH, f"expiry {expire_seconds}, flops {flops}, a writer group of {len(writer_group)} bytes")
        if not self.provenance:
            raise QuireError(Reason.PROVENANCE, "a session without provenance cannot publish")
        with self._enter(timeout) as call:
            if call is None:
                return [Page(False, Reason.STALE_EPOCH)] * n
            if n == 0:
                return []
            p = Publish(
                self, keys, memory, geometry, scope, view, parent, call, durability=durability, expire_seconds=expire_seconds,
                flops=flops, writer_group=writer_group, fence=fence, linked=linked, hint=hint,
            )  # fmt: skip
            pages = p.run()
            if unlinked and (missing := [i for i, a in enumerate(pages) if a.reason is Reason.PARENT_MISSING]):
                p.unlink(missing)
                pages = p.run(missing)
            return pages

    def delete(self, keys: Sequence[bytes], *, group: bytes | None = None, scope: bytes = b"", timeout: float | None = None) -> list[Page]:
        """Hides pages at once, for everybody; leases that run finish. One that is not there is not ok, ABSENT."""
        return self._each("BatchDelete", keys, group, scope, timeout)

    def touch(
        self,
        keys: Sequence[bytes],
        *,
        group: bytes | None = None,
        scope: bytes = b"",
        hint: Hint | None = None,
        hint_only: bool = False,
        timeout: float | None = None,
    ) -> list[Page]:
        """Refreshes the recency of pages, and passes on what the caller knows of their future. With `hint_only` it is no use of
        them, as when a request has ended."""

        def said(request: Any) -> None:
            request.hint_only = hint_only
            if hint is not None:
                hint.write(request.hint)

        return self._each("Touch", keys, group, scope, timeout, said)

    def _each(
        self, method: str, keys: Sequence[bytes], group: bytes | None, scope: bytes, timeout: float | None, more: Callable[[Any], None] | None = None
    ) -> list[Page]:
        geometry = self._geometry_of(group)
        n = self._check_keys(keys, scope)
        with self._enter(timeout) as call:
            if call is None:
                return [Page(False, Reason.STALE_EPOCH)] * n
            out = [Page(False, Reason.UNKNOWN)] * n
            most = min(self._client._limits(call).max_keys, MAX_BATCH_KEYS)
            for first in range(0, n, most):
                part = keys[first : first + most]
                request = getattr(proto, method + "Request")()
                request.namespace.CopyFrom(self._ref)
                if more is not None:
                    more(request)
                request.runs.add(scope=scope, group=geometry.group, hashes=b"".join(part))
                for k, status in enumerate(self._repeated(method, request, call).pages[: len(part)]):
                    ok = status.outcome == 1
                    out[first + k] = Page(ok, Reason.NONE if ok else Reason.of(status.reason) or Reason.UNKNOWN)
            return out

    # -- reports -------------------------------------------------------------------------------------------------

    def report(
        self,
        counters: Mapping[str, int],
        failures: Mapping[Reason, int],
        *,
        instance: str,
        engine: str = "",
        adapter: str = "",
        breaker: str = "closed",
        uptime: float = 0.0,
        timeout: float | None = None,
    ) -> float:
        """Tells operators how this instance fares: totals since it began, by the names of metrics.Counters. Returns
        the seconds after which to report again. Texts are cut to what the server takes."""
        request = proto.ReportRequest(
            session_id=self._session_id, instance=_text(instance, 128) or "unnamed", engine=_text(engine, 64), adapter=_text(adapter, 64),
            breaker={"closed": 1, "open": 2, "half_open": 3}.get(breaker, 0),
        )  # fmt: skip
        request.namespace.CopyFrom(self._ref)
        for name, field in _REPORTED.items():
            setattr(request.counters, field, int(counters.get(name, 0)))
        for reason, count in failures.items():
            if count and reason is not Reason.NONE:
                request.counters.failures.add(reason=int(reason), count=count)
        proto.set_seconds(request.uptime, uptime)
        with self._enter(timeout, local=False) as call:
            assert call is not None
            return max(1.0, proto.seconds(self._repeated("Report", request, call).interval))

    # -- the end -------------------------------------------------------------------------------------------------

    def invalidate(self, why: str) -> None:
        """The model is no longer what the session was opened for. Calls in flight are ended; when this has returned,
        none of them can publish, except one that does not let go within a second."""
        self.generation += 1
        self._end(QuireError(Reason.STALE_EPOCH, f"the session was invalidated: {why}"))

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Ends the session with its leases and publications. Idempotent and prompt."""
        self._end(QuireError(Reason.ABORTED, "the session is closed"), timeout)

    def _end(self, why: QuireError, timeout: float = _CLOSE_SECONDS) -> None:
        deadline = time.monotonic() + timeout
        with self._lock:
            first = self._ended is None
            if first:
                self._ended = why
            calls = list(self._calls)
        if first:
            for c in calls:
                c.cancel(why)
            self._life.cancel(why)
        with self._left:
            while self._calls:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._left.wait(left)
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(max(0.0, deadline - time.monotonic()))
        self._client._forget_session(self)

    def _ref_field(self, number: int) -> bytes:
        """The reference to the namespace, encoded as field 1 or 2 of a request."""
        return self._ref_fields[number]

    def _expect(self, scope: bytes, geometry: Geometry) -> Expectation:
        key = scope, geometry.group
        expect = self._expectations.get(key)
        if expect is None:
            expect = keep(self._expectations, key, Expectation(self.namespace, self.epoch, scope, geometry))
        return expect

    # -- inside --------------------------------------------------------------------------------------------------

    def _enter(self, timeout: float | None, *, local: bool = True) -> _Entered:
        """Admits a call, as a context manager: its Call, or None where an invalidated session answers by itself."""
        return _Entered(self, self._client.options.call_timeout if timeout is None else timeout, local)

    def _repeated(self, method: str, request: Any, call: Call) -> Any:
        return repeated(call, lambda: self._client._route(call, lambda t: t.unary(method, request, call)))

    def _geometry_of(self, group: bytes | None) -> Geometry:
        geometry = self.only if group is None else self.geometries.get(group)
        if geometry is None:
            raise QuireError(Reason.NOT_FOUND, "the namespace has no such group")
        return geometry

    def _check_keys(self, keys: Sequence[bytes], scope: bytes) -> int:
        want = self.hash_bytes
        if keys and set(map(len, keys)) != {want}:
            raise QuireError(Reason.SIZE_MISMATCH, f"a key that is not {want} bytes long")
        if len(scope) not in (0, 32):
            raise QuireError(Reason.SIZE_MISMATCH, f"a scope of {len(scope)} bytes, want 32 or none")
        return len(keys)

    def _check_memory(self, memory: PageMemory, n: int, geometry: Geometry, view: View | None) -> View:
        v = geometry.whole if view is None else View(*view)
        try:
            geometry.check_view(v)
        except ValueError as e:
            raise QuireError(Reason.INVALID_VIEW, str(e)) from None
        layout = memory.layout
        if len(memory) != n:
            raise QuireError(Reason.BUFFER_SIZE, f"memory of {len(memory)} pages for {n} keys")
        if (layout.heads, layout.layers, layout.cell_bytes) != (v.heads, v.layers, geometry.cell_bytes):
            raise QuireError(
                Reason.BUFFER_SIZE,
                f"memory of {layout.heads} heads x {layout.layers} layers x {layout.cell_bytes} bytes for {v.heads} x {v.layers} x {geometry.cell_bytes}",
            )
        whole_rows = len(layout.rows) == 1 and layout.rows[0].tokens == 1
        if geometry.grade != "elements" and not whole_rows:
            raise QuireError(Reason.INVALID_VIEW, f"memory in an order of its own for pages of grade {geometry.grade}")
        return v

    # -- the attach stream ---------------------------------------------------------------------------------------

    def _attach(self, call: Call) -> None:
        """Opens the stream that the session lives by, and leaves a thread that keeps it."""
        first: list[QuireError | None] = []
        known = threading.Event()

        def told(error: QuireError | None) -> None:
            if not known.is_set():
                first.append(error)
                known.set()

        reader = threading.Thread(target=self._stay, args=(told,), name="quire-attach", daemon=True)
        try:
            reader.start()
        except RuntimeError as e:
            raise QuireError(Reason.BUSY, f"attach: {e}") from None
        self._reader = reader
        call.register(known.set)
        try:
            known.wait(call.left())
        finally:
            call.unregister(known.set)
        if not first:
            call.left()
            raise QuireError(Reason.UNKNOWN, "attach: ended before it began", broken=True)
        if first[0] is not None:
            raise first[0]

    def watch(self, told: Callable[[bool], None]) -> None:
        """Has `told` called with whether the attach stream stands: now, and whenever that changes, by the thread that
        reads it. It must return at once. An idle process learns so that its store went, and that it is back."""
        self._watcher = told
        told(bool(self._session_id))

    def _now(self, session_id: bytes) -> None:
        self._session_id = session_id
        if self._watcher is not None:
            self._watcher(bool(session_id))

    def _stay(self, told: Callable[[QuireError | None], None]) -> None:
        """Keeps the stream open, over reconnects. What was leased under an earlier stream ended with it."""
        pause = _ATTACH_PAUSE
        since = 0.0
        life = self._life
        done = threading.Event()
        life.register(done.set)
        up = False

        def attached(session_id: bytes) -> None:
            nonlocal since, up
            since, up = time.monotonic(), True
            self._now(session_id)
            told(None)
            self._client._spare_channel()  # that the way here was asked over

        request = proto.AttachRequest(instance=self._client.options.instance)
        while life.cancelled is None:
            error: QuireError | None = None
            try:
                setup = Call(self._client.options.call_timeout)
                self._client._route(setup, lambda t: t.attach(request, self._client.options.call_timeout, life, attached))
            except QuireError as e:
                error = e
            except Exception as e:  # the thread must go on: without its stream the session has no leases
                error = QuireError(Reason.UNKNOWN, f"attach: {type(e).__name__}: {e}", broken=True)
            if self._session_id:
                self._now(b"")
                if time.monotonic() - since > _ATTACH_LONGEST_PAUSE:
                    pause = _ATTACH_PAUSE
            if not up:
                told(error or QuireError(Reason.UNKNOWN, "attach: the stream ended", broken=True))
                return
            done.wait(pause)
            pause = min(2 * pause, _ATTACH_LONGEST_PAUSE)

    def _forked(self) -> None:
        """In a forked child: the session is the parent's."""
        why = QuireError(Reason.ABORTED, "the session was opened before a fork: open it again")
        self._lock, self._calls, self._ended, self._reader = threading.Lock(), set(), why, None
        self._left = threading.Condition(self._lock)
        self._life = Call(_FOREVER)
        self._life.cancel(why)


class _Entered:
    """A call of a session while it runs."""

    def __init__(self, session: Session, timeout: float, local: bool) -> None:
        self._session, self._local = session, local
        self._call = Call(timeout)

    def __enter__(self) -> Call | None:
        s = self._session
        with s._lock:
            if s._ended is None:
                s._calls.add(self._call)
                return self._call
            if self._local and s._ended.reason is Reason.STALE_EPOCH:
                return None
            raise again(s._ended)

    def __exit__(self, *_: object) -> None:
        s = self._session
        with s._lock:
            s._calls.discard(self._call)
            if s._ended is not None:
                s._left.notify_all()


def _geometry(g: Any, hash_bytes: int) -> Geometry:
    """A group off the wire. QuireError UNSUPPORTED for one that is not built here."""
    whole = View(0, g.kv_heads, 0, g.layers)
    if len(g.id) != 32 or not 0 < g.cell_bytes < 1 << 32 or whole.empty or max(g.kv_heads, g.layers) >= 1 << 16 or g.grade not in GRADES or g.page_tokens < 1:
        raise QuireError(Reason.UNSUPPORTED, f"a group of {g.kv_heads} heads x {g.layers} layers x {g.cell_bytes} bytes, {g.grade!r}")
    return Geometry(bytes(g.id), g.kind, g.page_tokens, g.kv_heads, g.layers, g.cell_bytes, g.grade, hash_bytes)


def _text(text: str, most: int) -> str:
    """Printable text of at most so many bytes."""
    clean = "".join(c if c.isprintable() else "?" for c in text)
    return clean.encode()[:most].decode(errors="ignore")


def digest(canonical: bytes) -> bytes:
    """The SHA-256 that stands for a canonical provenance."""
    return hashlib.sha256(canonical).digest()
