"""Publish: begin, write, commit. Nothing is visible before it is whole, and what fails frees its space.

    begun ──pack, write──> sent ──fence, commit──> committed       over frames the commit is sent with the last bytes
       \\________________________\\________________> aborted: its space is free at once

Pages are packed head-major into the transport's own memory, summed there, and sent from there: what changes under us
afterwards changes nothing.
"""

from __future__ import annotations

import contextlib
import enum
import struct
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import encode, kernels, proto
from .deadline import Call
from .errors import QuireError, Reason
from .fetch import RETRIES, pause, transient
from .headers import HeaderMaker
from .hint import Hint
from .kept import keep
from .layout import Layout, PageMemory
from .page import FLAG_DURABLE, FLAG_PARENT_UNKNOWN, ZERO32, ExtentID, Geometry, Header, Page, View
from .transport import Transport, Upload

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Fence", "Parent", "ParentOf", "Publish", "ROOT_PARENT", "UNKNOWN_PARENT"]

MAX_BATCH_BYTES = 256 << 20
MAX_BATCH_KEYS = 1024
_GRANTED, _PRESENT, _COMMITTED = 2, 3, 4  # proto Outcome
_LEASE_SLACK = 1.0  # seconds that a publication lease outlives its call
_MAX_GRANTS = 256
_STORED = Page(True, Reason.NONE)
_MAX_VAIN_BYTES = 1 << 20  # that are packed and sent before it is known whether they are wanted
_WORTH_A_SEND = 1 << 20  # bytes that take longer to sum than it takes to wake the server once more


class Parent(enum.Enum):
    """What stands before the first page where that is no page."""

    UNKNOWN = "unknown"  # the writer does not know
    ROOT = "root"  # nothing: the chain starts here


UNKNOWN_PARENT = Parent.UNKNOWN
ROOT_PARENT = Parent.ROOT
ParentOf = bytes | Parent | None
Fence = Callable[[Sequence[int]], Sequence[bool]]
"""Asked, with the indices of pages whose bytes were copied, before they are committed: which of them still are what
they were. Nothing of the others becomes visible."""


class _Grant:
    """One page that may be written."""

    __slots__ = ("headers", "page", "views", "wire_page")

    def __init__(self, page: int, wire_page: int, views: list[View]) -> None:
        self.page = page  # in the publish
        self.wire_page = wire_page  # in the Begin
        self.views = views
        self.headers: list[bytes] = [b""] * len(views)


class _Said:
    """What requests and answers say of every page of a view, encoded."""

    def __init__(self, geometry: Geometry, view: View, expire: int, flops: float) -> None:
        v = encode.number(1, view.h0) + encode.number(2, view.h1) + encode.number(3, view.l0) + encode.number(4, view.l1)
        self.page = encode.field(4, v) if view != geometry.whole else b""
        self.page += encode.number(5, geometry.payload_bytes(view)) + encode.number(6, expire) + (b"\x39" + struct.pack("<d", flops) if flops else b"")
        self.follower = encode.field(3, self.page)  # a page that follows the one before it says nothing of its own
        self.unlinked = encode.field(3, encode.number(2, 1) + self.page)
        self.root = encode.field(3, encode.number(3, 1) + self.page)
        self.granted = encode.field(3, encode.number(1, _GRANTED) + encode.field(5, v))  # in an answer to a Begin, whole
        self.group = encode.field(2, geometry.group)

    def of(self, parent: ParentOf) -> bytes:
        """A page of a Begin with this parent."""
        if isinstance(parent, bytes):
            return encode.field(3, encode.field(1, parent) + self.page)
        return self.root if parent is Parent.ROOT else self.unlinked


class _Commit:
    """What is to become visible of one stream."""

    __slots__ = ("answer", "asked", "done", "failed", "request")

    def __init__(self) -> None:
        self.done = False  # all of it is visible, and that was said
        self.asked: list[_Grant] = []
        self.failed: set[int] = set()  # pages whose write failed, whatever is said of their commit
        self.request: Any = None  # encoded or not; None: nothing
        self.answer: Any = None  # None: it was not made yet, or is to be made again


class Publish:
    """One publication. `run` returns when nothing reads the memory any more."""

    def __init__(
        self,
        session: Session,
        keys: Sequence[bytes],
        memory: PageMemory,
        geometry: Geometry,
        scope: bytes,
        view: View,
        parent: ParentOf,
        call: Call,
        *,
        durability: str | None,
        expire_seconds: int,
        flops: float,
        writer_group: bytes,
        fence: Fence | None,
        linked: bool = True,
        hint: Hint | None = None,
    ) -> None:
        self._session, self._keys, self._memory, self._geometry = session, keys, memory, geometry
        self._scope, self._view, self._call = scope, view, call
        self._durability = {None: 0, "memory": 1, "disk": 2}[durability]
        self._expire, self._flops, self._writer_group, self._fence = expire_seconds, flops, writer_group, fence
        self._hint = hint
        self._linked, self._unlinked = linked, False
        self._parents: list[ParentOf] = [parent if parent is not None else UNKNOWN_PARENT, *(keys[:-1] if linked else [UNKNOWN_PARENT] * (len(keys) - 1))]
        self._results: list[Page | None] = [None] * len(keys)
        self._made: HeaderMaker | None = None
        key = geometry.group, view, expire_seconds, flops
        self._said = session._said.get(key) or keep(session._said, key, _Said(geometry, view, expire_seconds, flops))

    def run(self, index: Sequence[int] | None = None) -> list[Page]:
        """Publishes all pages, or some again: one answer a page. QuireError when the call as a whole failed; its `pages`
        are what is known."""
        todo = list(index) if index is not None else list(range(len(self._keys)))
        try:
            limits = self._session._client._limits(self._call)
            each = self._geometry.payload_bytes(self._view)
            most = max(1, min(limits.max_keys, MAX_BATCH_KEYS, min(limits.max_batch_bytes, MAX_BATCH_BYTES) // each))
            for first in range(0, len(todo), most):
                self._batch(todo[first : first + most], limits.max_chunk_bytes)
        except QuireError as e:
            e.pages = [r or Page(False, e.reason) for r in self._results]
            raise
        return [r or Page(False, Reason.UNKNOWN) for r in self._results]

    def unlink(self, index: Sequence[int]) -> None:
        """Has pages published again without the parents that are missing."""
        self._unlinked = True
        for i in index:
            if i == 0 or i - 1 not in index:
                self._parents[i] = UNKNOWN_PARENT

    def _batch(self, index: list[int], chunk_bytes: int) -> None:
        if self._may_guess(len(index)):
            index = self._at_once(index, chunk_bytes)
        if index:
            self._in_turn(index, chunk_bytes)

    # -- in one round trip ---------------------------------------------------------------------------------------

    def _may_guess(self, pages: int) -> bool:
        """Whether pages are sent before it is known which of them are wanted: those that are not cost little."""
        if self._fence is not None or self._session._client.transport == "grpc":
            return False
        size = self._geometry.payload_bytes(self._view)
        if pages * size <= _MAX_VAIN_BYTES:
            return True
        own = self._memory.contiguous()
        return own is not None and self._session._client._stagings.find(own, size) is not None

    def _at_once(self, index: list[int], chunk_bytes: int) -> list[int]:
        """Begins, writes and commits as if every page were granted whole. Returns the pages that are to be published in turn
        after all: of those that were granted otherwise, and of all where the server refused to write or to commit, nothing is
        left."""
        s = self._session
        request = self._begin_request(index)
        whole = self._whole(index, 0, request)
        commit = _Commit()
        sent: list[Upload] = []

        def fill(upload: Upload) -> Any:
            if whole is not None and upload.publish(whole):
                sent.append(upload)
                return None
            grants = self._guess(index)
            self._fill(upload, grants)
            self._fenced(None, grants, commit)
            return commit.request

        answered: list[bytes] = []
        try:
            answers = s._client._route(self._call, lambda t: t.publish(request, s._ref_field(2), chunk_bytes, fill, answered.append, self._call))
        except BaseException:
            for answer in answered:  # it was begun: what is granted is free at once
                begun = proto.parse(proto.BeginPublishResponse, answer)
                if granted_pages := [k for k, p in enumerate(begun.pages[: len(index)]) if p.outcome == _GRANTED]:
                    self._abort(begun.token, granted_pages)
            raise
        if answers is None:
            return index
        answer, written, committed = answers
        if sent and sent[-1].stored:
            self._take(index, [_STORED] * len(index))
            return []
        begun = proto.parse(proto.BeginPublishResponse, answer)
        granted = {g.wire_page: g for g in self._grants(begun, index, self._guess(index))}
        if not granted:
            return []
        rest = set(granted)
        whole_pages = [k for k, g in granted.items() if g.views == [self._view]]
        try:
            if written is not None and committed is not None:
                pages = list(proto.parse(proto.WritePagesResponse, written).pages)
                states = list(proto.parse(proto.CommitPublishResponse, committed).pages)
                for k in whole_pages:
                    result = result_of(states[k], _COMMITTED) if k < len(states) else Page(False, Reason.UNKNOWN)
                    if result.ok or result.reason is Reason.LOST_RACE:
                        rest.discard(k)
                    if k < len(pages) and pages[k].reason:
                        result = Page(False, Reason.of(pages[k].reason) or Reason.UNKNOWN)
                    self._results[index[k]] = result
        finally:
            if rest:
                self._abort(begun.token, sorted(rest))
        return [index[k] for k in sorted(rest) if self._results[index[k]] is None]

    def _guess(self, index: list[int]) -> list[_Grant]:
        return [_Grant(i, k, [self._view]) for k, i in enumerate(index)]

    def _take(self, index: list[int], pages: list[Page]) -> None:
        if _consecutive(index):
            self._results[index[0] : index[-1] + 1] = pages
            return
        for i, page in zip(index, pages, strict=True):
            self._results[i] = page

    def _whole(self, index: list[int], name: int, begin: bytes, token: bytes = b"") -> kernels.Whole | None:
        """What native code needs to send and commit these pages by itself, from page `name` of a Begin on, whose request is
        given where it is to be sent with them, else its token as field 1; None: they need a look at each."""
        first, n = index[0], len(index)
        if not kernels.NATIVE or self._fence is not None or self._unlinked or not _consecutive(index):
            return None
        client, parent, keys = self._session._client, self._parents[first], self._keys[first : first + n]
        durable = FLAG_DURABLE if self._durability == 2 else 0
        parents = [*([parent] if isinstance(parent, bytes) else []), *(keys[:-1] if self._linked else [])]
        kinds = [
            (len(p), durable) if isinstance(p, bytes) else (0, durable | FLAG_PARENT_UNKNOWN if p is Parent.UNKNOWN else durable)
            for p in self._parents[first : first + min(n, 2)]
        ]
        templates = [self._template(size, flags) for size, flags in dict.fromkeys(kinds)]
        own = self._memory.contiguous()
        pages = np.arange(first, first + n, dtype=np.int64)
        return kernels.Whole(
            begin, self._said.granted, self._memory, pages, pages - (first - name), own[first : first + n] if own is not None else None, self._geometry, self._view,
            token + self._session._ref_field(2), b"".join(templates), 1 if len(templates) > 1 else n, b"".join(keys), b"".join(parents),
            client._next_sequences(n), client.options.copy_threads,
        )  # fmt: skip

    # -- in turn -------------------------------------------------------------------------------------------------

    def _in_turn(self, index: list[int], chunk_bytes: int) -> None:
        s = self._session
        request = self._begin_request(index)
        answer = s._client._route(self._call, lambda t: t.unary("BeginPublish", request, self._call))
        grants = self._grants(answer, index)
        if not grants:
            return
        rest = {g.wire_page for g in grants}
        try:
            self._commit(self._write(answer.token, grants, chunk_bytes), rest)
        finally:
            if rest:
                self._abort(answer.token, sorted(rest))

    # -- begin ---------------------------------------------------------------------------------------------------

    def _begin_request(self, index: list[int]) -> bytes:
        s, said = self._session, self._said
        if _consecutive(index) and not self._unlinked:
            pages = [said.of(self._parents[index[0]]), (said.follower if self._linked else said.unlinked) * (len(index) - 1)]
            hashes = self._keys[index[0] : index[-1] + 1]
        else:
            pages = [
                said.follower if k and index[k - 1] == i - 1 and isinstance(self._parents[i], bytes) else said.of(self._parents[i]) for k, i in enumerate(index)
            ]
            hashes = [self._keys[i] for i in index]
        lease = min(self._call.left() + _LEASE_SLACK, s._client._limits(self._call).max_lease)
        run = encode.field(2, encode.field(1, self._scope) + said.group + encode.field(3, b"".join(hashes)))
        out = [s._ref_field(1), run, *pages, encode.seconds(4, lease), encode.number(5, self._durability), encode.field(6, s._session_id)]
        out.append(encode.field(7, self._writer_group))
        if self._hint is not None:
            hint = proto.BeginPublishRequest()
            self._hint.write(hint.hint)
            out.append(hint.SerializeToString())
        return b"".join(out)

    def _grants(self, answer: Any, index: list[int], guess: list[_Grant] | None = None) -> list[_Grant]:
        """Takes over what is answered already; returns the pages that may be written, of `guess` where that was right."""
        out: list[_Grant] = []
        pages = list(answer.pages)
        usual: Any = None  # a status that was understood: those of other pages are mostly equal
        right = False  # whether it is what was guessed
        for k, i in enumerate(index):
            if k >= len(pages):
                self._results[i] = Page(False, Reason.UNKNOWN)
                continue
            status = pages[k]
            if usual is not None and status == usual:
                out.append(guess[k] if right and guess is not None else _Grant(i, k, out[-1].views))
                continue
            if status.outcome != _GRANTED:
                self._results[i] = result_of(status, _PRESENT)
                continue
            views = [view_of(v, self._view) for v in status.grants]
            if not views or len(views) > _MAX_GRANTS or None in views:
                self._results[i] = Page(False, Reason.UNSUPPORTED)  # given back
                views = []
            usual, right = status if views else None, guess is not None and guess[k].views == views
            out.append(_Grant(i, k, [v for v in views if v is not None]))
        return out

    # -- write ---------------------------------------------------------------------------------------------------

    def _write(self, token: Any, grants: list[_Grant], chunk_bytes: int) -> _Commit:
        """Packs and sends every grant on one stream, and where the transport can, the commit with it."""
        s = self._session
        writing = [g for g in grants if g.views]
        commit = _Commit()
        if not writing:
            return commit
        named = encode.field(1, token.SerializeToString())
        whole = None
        if all(g.views == [self._view] for g in writing):
            whole = self._whole([g.page for g in writing], writing[0].wire_page, b"", named)
        sent: list[Upload] = []

        def fill(upload: Upload) -> Any:
            if whole is not None and upload.publish(whole):
                commit.asked = writing
                sent.append(upload)
                return None
            self._fill(upload, writing)
            self._fenced(token, writing, commit)
            return commit.request

        def over(transport: Transport) -> Any:
            return transport.write(named + s._ref_field(2), chunk_bytes, fill, self._call)

        answer, commit.answer = s._client._route(self._call, over)
        if sent and sent[-1].stored:
            self._take([g.page for g in writing], [_STORED] * len(writing))
            commit.done = True
            return commit
        if sent:
            commit.request = sent[-1].commit
        pages = list(answer.pages)
        for g in writing:
            if g.wire_page < len(pages) and (reason := Reason.of(pages[g.wire_page].reason)) is not Reason.NONE:
                self._results[g.page] = Page(False, reason)
                commit.failed.add(g.page)
        return commit

    def _fill(self, upload: Upload, grants: list[_Grant]) -> None:
        """Sends pages in order, as many of one view together as there is room for."""
        at = 0
        while at < len(grants):
            same = at + 1
            while same < len(grants) and grants[same].views == grants[at].views and len(grants[at].views) == 1:
                same += 1
            group = grants[at:same]
            for number, view in enumerate(grants[at].views):
                self._fill_view(upload, group, number, view)
            at = same

    def _fill_view(self, upload: Upload, group: list[_Grant], number: int, view: View) -> None:
        g = self._geometry
        payload = g.payload_bytes(view)
        memory = self._memory if view == self._view else part_of(self._memory, self._view, view)
        done = 0
        if (own := memory.contiguous()) is not None:
            own = own[[p.page for p in group]]
            if (sums := upload.send_from([p.wire_page for p in group], number, own, g, view)) is not None:
                self._give_headers(group, number, view, sums)
                return
            if upload.lend([p.wire_page for p in group], number, own, payload):
                if len(group) * payload >= _WORTH_A_SEND:
                    upload.flush()  # the server copies while we sum
                sums = kernels.sums_of(own, g, view, threads=self._session._client.options.copy_threads)
                self._give_headers(group, number, view, sums)
                return
        while done < len(group):
            self._call.left()
            out = upload.stage(payload, len(group) - done)
            batch = group[done : done + len(out)]
            sums = kernels.pack(memory, [p.page for p in batch], g, view, out, threads=self._session._client.options.copy_threads)
            upload.send_all([p.wire_page for p in batch], number, out.tolist(), payload)
            if done + len(batch) < len(group):
                upload.flush()  # the server copies while more is made
            self._give_headers(batch, number, view, sums)
            done += len(batch)

    def _give_headers(self, group: list[_Grant], number: int, view: View, sums: np.ndarray) -> None:
        pages = [p.page for p in group]
        client, parents = self._session._client, [self._parents[i] for i in pages]
        durable = FLAG_DURABLE if self._durability == 2 else 0
        flags = [durable | FLAG_PARENT_UNKNOWN if parent is Parent.UNKNOWN else durable for parent in parents]
        hashes = [parent if isinstance(parent, bytes) else b"" for parent in parents]
        made = self._headers.make_all(view, [self._keys[i] for i in pages], hashes, flags, client._writer, client._next_sequences(len(pages)), sums)
        for p, header in zip(group, made, strict=True):
            p.headers[number] = header

    def _template(self, parent_bytes: int, flags: int) -> bytes:
        """A header that native code makes others like: of this second, as all of them say when they were made."""
        s, now = self._session, int(time.time())
        key = self._said, self._scope, parent_bytes, flags
        dated = s._dated.get(key)
        if dated is None or dated[0] != now:
            dated = keep(s._dated, key, (now, self._headers.template(self._view, parent_bytes, flags, s._client._writer, s.hash_bytes)))
        return dated[1]

    @property
    def _headers(self) -> HeaderMaker:
        made = self._made = self._made or HeaderMaker(self._like(), self._session._templates)
        return made

    def _like(self) -> Header:
        """What all headers of this publication have in common."""
        s, g = self._session, self._geometry
        now = int(time.time())
        return Header(
            namespace=s.namespace, epoch=s.epoch, scope=self._scope or ZERO32, group=g.group, hash=ZERO32, parent=b"", flags=0, depth=0,
            extent=ExtentID(bytes(16), 0, bytes(16)), view=self._view, tokens=g.page_tokens, cell_bytes=g.cell_bytes, page_heads=g.heads,
            page_layers=g.layers, grade=g.grade, components=0, packing_id=ZERO32, created=now, declared_flops=self._flops,
            expiry=now + self._expire if self._expire else 0, provenance=s.canonical_provenance, sums=np.empty(0, dtype="<u8"),
        )  # fmt: skip

    # -- commit --------------------------------------------------------------------------------------------------

    def _fenced(self, token: Any, written: list[_Grant], commit: _Commit) -> None:
        """Asks the writer's fence, once, and makes the commit of what is still its page."""
        commit.asked = written
        if self._fence is not None:
            mine = list(self._fence([g.page for g in written]))
            for k, g in enumerate(written):
                if k >= len(mine) or not mine[k]:
                    self._results[g.page] = Page(False, Reason.ABORTED)
            commit.asked = [g for k, g in enumerate(written) if k < len(mine) and mine[k]]
        if not commit.asked:
            commit.request = None
            return
        request = commit.request = proto.CommitPublishRequest()
        if token is not None:
            request.token.CopyFrom(token)
        request.namespace.CopyFrom(self._session._ref)
        for g in commit.asked:
            request.pages.add(page=g.wire_page, headers=g.headers)

    def _commit(self, commit: _Commit, rest: set[int]) -> None:
        """Makes pages visible, unless the commit went with their bytes, and takes over the answers."""
        s, answer = self._session, commit.answer
        if commit.done:
            rest.difference_update(g.wire_page for g in commit.asked)
            return
        if not commit.asked:
            return
        if answer is None:
            answer = repeated(self._call, lambda: s._client._route(self._call, lambda t: t.unary("CommitPublish", commit.request, self._call)))
        pages = list(answer.pages)
        for k, g in enumerate(commit.asked):
            result = result_of(pages[k], _COMMITTED) if k < len(pages) else Page(False, Reason.UNKNOWN)
            if g.page not in commit.failed:
                self._results[g.page] = result
            if result.ok or result.reason is Reason.LOST_RACE:
                rest.discard(g.wire_page)

    def _abort(self, token: Any, pages: list[int]) -> None:
        """Frees what was granted and is not committed: within the call, or where that has no time left for it, after
        it. Where it does not get through, or the session ended, the server frees it by itself: with the session, or when
        the lease runs out, a moment after the call."""
        s = self._session
        if self._call.cancelled is not None:
            return
        request = proto.AbortPublishRequest(pages=pages)
        request.token.CopyFrom(token)
        request.namespace.CopyFrom(s._ref)

        def send(call: Call) -> None:
            s._client._route(call, lambda t: t.unary("AbortPublish", request, call))

        if not self._call.expired():
            with contextlib.suppress(QuireError):
                send(self._call)
                return
        if self._call.expired() and self._call.cancelled is None:
            s._client._aborts.add(send)


def _consecutive(index: list[int]) -> bool:
    return index[-1] - index[0] == len(index) - 1


def repeated(call: Call, f: Callable[[], Any]) -> Any:
    """Makes a call that may be made twice, again while the outcome is unknown or the server says later."""
    for attempt in range(RETRIES + 1):
        try:
            return f()
        except QuireError as e:
            if attempt == RETRIES or not transient(e) or not pause(call, attempt):
                raise
    raise AssertionError("unreachable")


def result_of(status: Any, good: int) -> Page:
    """A page's answer: OK when its outcome is `good`; what it does not say is not good."""
    if status.outcome == good:
        return _STORED
    return Page(False, Reason.of(status.reason) or Reason.UNKNOWN)


def view_of(message: Any, within: View) -> View | None:
    """A rectangle off the wire; None for what is none, leaves `within`, or is not built here."""
    v = View(message.h0, message.h1, message.l0, message.l1)
    if v.empty or not within.contains(v) or message.token_start or message.token_stride or message.token_run or message.shard or message.shards:
        return None
    return v


def part_of(memory: PageMemory, view: View, part: View) -> PageMemory:
    """The memory of a rectangle of the view that `memory` has."""
    layout = memory.layout
    steps = np.array([r.head_stride for r in layout.rows], dtype=np.uint64)[None, :, None] * np.uint64(part.h0 - view.h0)
    addresses = memory.addresses[:, :, part.l0 - view.l0 : part.l1 - view.l0] + steps
    return PageMemory(Layout(part.heads, part.layers, layout.rows), addresses, memory.owner)
