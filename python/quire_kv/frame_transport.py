"""The page service over frames: TCP, TLS, and the UNIX socket where bytes stay in memory of both ends.

fetch   batches of heads; bytes are received into one reused buffer and unpacked from there, or copied straight out
        of the node's slabs where they come as references
write   pages are packed into a reused buffer and sent from there, or into an area that the node reads
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import encode, kernels, proto, wire
from .buffers import Buffer, address_of_bytes, memory_at
from .deadline import Call
from .errors import QuireError, Reason
from .frames import BULK, SHORT, Connection, Pool, Refused, Unreachable
from .intake import Intake
from .page import Geometry, View
from .shm import Area, Budget, Slabs, Staging, Stagings
from .transport import MAX_SEND_BYTES, Transport, Upload

__all__ = ["FrameTransport"]

_RECEIVE_BYTES = 4 << 20  # received between two unpacks: a few frames
_SEND_BYTES = 2 << 20  # packed between two sends
_FEW_BYTES = 256 << 10  # that go with the end of their stream, in one send
_LITTLE_TO_HOLD = 1 << 20  # bytes of a node's memory that the last fetch of an idle connection may hold for a while
_NAME_BYTES = 4 << 20  # packed between two sends that name it: half of a ring
_RING_BYTES = 8 << 20  # of a connection's own area: a few chunks on their way, still in the far cache
_SHARED_FLUSH_BYTES = 256 << 20  # copied out of slabs at once
_BATCH_BODY_BYTES = 32 << 10  # of heads in one frame
_MOMENT = 0.01  # seconds, of a look at what has come
_ALIGN = 64
_PAGE = 4096
_MAX_AREAS = 64  # of a connection: what a node takes at least
_MAX_AREA_BYTES = 1 << 30  # of a connection


class FrameTransport(Transport):
    """`dial` makes one more connection, greeted and of the right node. Only one with `slabs` shares memory."""

    def __init__(
        self, name: str, dial: Callable[[Call], Connection], limit: int, slabs: Slabs | None, budget: Budget, stagings: Stagings | None = None
    ) -> None:
        self.name = name
        self._dial, self._slabs, self._budget, self._stagings = dial, slabs, budget, stagings
        self._pool = Pool(dial, limit)
        self._lock = threading.Lock()
        self._long: set[Connection] = set()

    def unary(self, method: str, request: Any, call: Call) -> Any:
        response = proto.METHODS[f"PageService.{method}"][2]
        return self._pool.run(SHORT, call, lambda c: c.unary(method, request, response, call))

    # -- fetch ---------------------------------------------------------------------------------------------------

    def fetch(self, request: Any, intake: Intake, call: Call) -> None:
        self._pool.run(BULK, call, lambda c: self._fetch(c, request, intake, call))

    def _fetch(self, connection: Connection, request: Any, intake: Intake, call: Call) -> None:
        intake.slabs = self._slabs
        reception = _Reception(connection, intake, call)
        error: QuireError | None = None
        try:
            over = reception.begin(connection.request("Fetch", request, call))
            while not over:
                frame = connection.answer("Fetch", call)
                if frame.kind == wire.MESSAGE:
                    reception.message(frame)
                    over = reception.pages()
                elif frame.kind == wire.STATUS:
                    error = connection.status(frame, "Fetch", call)
                    break
                else:
                    raise wire.protocol_error(f"Fetch: kind {frame.kind}")
        finally:
            intake.ended(call)
        call.left()
        if reception.references > reception.released:
            connection.release(reception.references, call, soon=intake.payload_bytes > _LITTLE_TO_HOLD)
        if error is not None:
            raise Refused(error)

    # -- write ---------------------------------------------------------------------------------------------------

    def write(self, first: bytes, chunk_bytes: int, fill: Callable[[Upload], Any], call: Call) -> tuple[Any, Any]:
        return self._pool.run(BULK, call, lambda c: self._write(c, first, chunk_bytes, fill, call))

    def _write(self, connection: Connection, first: bytes, chunk_bytes: int, fill: Callable[[Upload], Any], call: Call) -> tuple[Any, Any]:
        upload = self._upload(connection, None, first, chunk_bytes, call)
        commit = fill(upload)
        return (None, None) if upload.stored else upload.finish(commit)

    def publish(
        self, begin: bytes, first: bytes, chunk_bytes: int, fill: Callable[[Upload], Any], began: Callable[[bytes], None], call: Call
    ) -> tuple[bytes, bytes | None, bytes | None] | None:
        def use(connection: Connection) -> tuple[bytes, bytes | None, bytes | None]:
            upload = self._upload(connection, begin, first, chunk_bytes, call)
            try:
                commit = fill(upload)
                if upload.stored:
                    return b"", None, None
                written, committed = upload.answers(commit)
                return upload.begun(), written, committed
            except _Stopped:
                return upload.begun(), None, None
            finally:
                answer = upload.answered()
                if answer is not None:
                    began(answer)

        return self._pool.run(BULK, call, use)

    def _upload(self, connection: Connection, begin: bytes | None, first: bytes, chunk_bytes: int, call: Call) -> _FrameUpload:
        if self._slabs is None:
            return _Inline(connection, begin, first, min(chunk_bytes, MAX_SEND_BYTES), self._budget, call)
        return _Shared(connection, begin, first, min(chunk_bytes, MAX_SEND_BYTES), self._budget, call, self._stagings)

    # -- attach --------------------------------------------------------------------------------------------------

    def attach(self, request: Any, connect_seconds: float, life: Call, up: Callable[[bytes], None]) -> None:
        setup = Call(connect_seconds)

        def give_up() -> None:
            setup.cancel(life.cancelled or QuireError(Reason.ABORTED, "closed"))

        life.register(give_up)
        try:
            connection = self._dial(setup)
        except QuireError as e:
            raise Unreachable(e) from None
        finally:
            life.unregister(give_up)
        with self._lock:
            self._long.add(connection)
        life.register(connection.abort)
        try:
            response = proto.METHODS["PageService.Attach"][2]
            connection.stream.send([connection.request("Attach", request, None)], setup)
            waiting: Call | None = setup
            while True:
                frame = connection.answer("Attach", waiting)
                if frame.kind == wire.STATUS:
                    error = connection.status(frame, "Attach", setup)
                    raise error if error is not None else wire.protocol_error("the session's stream ended")
                if frame.kind != wire.MESSAGE or frame.flags:
                    raise wire.protocol_error(f"Attach: kind {frame.kind}")
                session_id = proto.parse(response, connection.body(frame, waiting)).session_id
                if waiting is not None and session_id:
                    waiting = None
                    up(session_id)
        finally:
            life.unregister(connection.abort)
            with self._lock:
                self._long.discard(connection)
            connection.close()

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self, deadline: float) -> None:
        self._pool.close(QuireError(Reason.ABORTED, "the client is closed"))
        with self._lock:
            for c in self._long:
                c.abort()
        self._pool.drained(deadline)

    def forget(self) -> None:
        """In a forked child: closes the parent's descriptors without a word to the server."""
        self._pool.forget()
        for c in self._long:
            c.stream.forget()


class _Reception:
    """The frames of one Fetch on their way into an intake."""

    def __init__(self, connection: Connection, intake: Intake, call: Call) -> None:
        self._connection, self._intake, self._call = connection, intake, call
        self._buffer: Buffer | None = connection.attached.get("receive")
        self._fill = 0
        self._response = proto.FetchResponse
        self.references = self.released = 0
        self._native = connection.stream.native is not None

    def pages(self, request: bytes = b"") -> bool:
        """Sends the request, takes what native code can of the frames that come, and what it leaves of one: whether that was the
        rest of the call, which then ended well."""
        while self._native and self._intake.direct:
            left, rest, data = self._connection.pages(request, self._intake, self._call)
            request = b""
            if left != kernels.LEFT_ENTRY:
                return left == kernels.LEFT_NOTHING
            if rest or data:  # nothing is left behind a corrupt chunk that was the last of its frame
                self._entries(rest, data)
        if request:
            self._connection.stream.send([request], self._call)
        return False

    def begin(self, request: bytes) -> bool:
        """Sends the request and takes all that needs no look from here: whether that was the whole call, which then ended
        well."""
        c, intake = self._connection, self._intake
        tables = intake.ordinary()
        if tables is None or intake.slabs is None:
            return self.pages(request)
        table, keep = intake.slabs.table()
        got = c.fetch(request, tables, table, self._call, releases=intake.payload_bytes > _LITTLE_TO_HOLD)
        del keep
        self.references, self.released = got.references, got.references if got.released else 0
        if got.sent < len(request):
            c.stream.send([request[got.sent :]], self._call)
        body = b""
        if got.skip:
            body = c.body(c.answer("Fetch", self._call), self._call)
        intake.taken(got.page, body)
        if got.skip < len(body):
            self._entries(body[got.skip :], 0)
        return got.state == kernels.FETCH_OVER

    def message(self, frame: wire.Frame) -> None:
        body = self._connection.body(frame, self._call)
        intake = self._intake
        if not frame.flags:
            head = proto.parse(self._response, body)
            chunk = head.chunk
            intake.message(head, len(chunk), address_of_bytes(chunk), owner=chunk)
            self._spill(_RECEIVE_BYTES)
            return
        if not frame.data and intake.slabs is not None:
            if self._connection.stream.descriptors:
                intake.slabs.take(self._connection.stream.descriptors)
            stop, references = intake.batch(body)
            self.references += references
            if stop == len(body):
                return
            body = body[stop:]
        self._entries(body, frame.data)

    def _entries(self, body: bytes, data: int) -> None:
        """The chunks of a batch, or of the rest of one, whose data comes next."""
        intake = self._intake
        entries = wire.entries(body, data)
        at = self._receive(data) if data else 0
        parse, response = proto.parse, self._response
        if entries and entries[0].reference is not None:
            intake_slabs = intake.slabs
            if intake_slabs is not None:
                intake_slabs.take(self._connection.stream.descriptors)
        for e in entries:
            head = parse(response, e.head)
            if e.reference is not None:
                if self._connection.stream.descriptors and intake.slabs is not None:
                    intake.slabs.take(self._connection.stream.descriptors)
                self.references += 1
                intake.message(head, e.bytes, 0, e.reference)
            else:
                intake.message(head, e.bytes, at)
                at += e.bytes
        self._spill(_SHARED_FLUSH_BYTES if self.references else _RECEIVE_BYTES)

    def _receive(self, size: int) -> int:
        """Reads the data of a frame into the buffer: its address."""
        buffer = self._buffer
        if buffer is None or self._fill + size > buffer.bytes:
            self._spill(0)
            if buffer is None or size > buffer.bytes:
                buffer = self._buffer = self._connection.attached["receive"] = Buffer(_RECEIVE_BYTES if size <= _RECEIVE_BYTES else wire.MAX_DATA_BYTES)
        at = self._fill
        self._connection.data([buffer.view[at : at + size]], self._call)
        self._fill = at + size
        return buffer.address + at

    def _spill(self, above: int) -> None:
        if self._intake.pending_bytes >= above:
            self._call.left()
            self._intake.flush()
            self._fill = 0


class _FrameUpload(Upload):
    """A WritePages over frames, and what goes before it: with `begin` its BeginPublish, whose answer is read at the end."""

    def __init__(self, connection: Connection, begin: bytes | None, first: bytes, chunk_bytes: int, budget: Budget, call: Call) -> None:
        self._connection, self._chunk_bytes, self._budget, self._call = connection, chunk_bytes, budget, call
        self._begin_call = 0  # its number, while its answer is to come
        self._begun: tuple[bytes | None, QuireError | None] = None, None
        self._published: list[bytes] | None = None  # answers behind that to the Begin, to what `publish` sent
        self._begin, self._opened = begin, False
        self._out: list[bytes | memoryview] = []
        self._first = first
        self._body = bytearray()
        self._runs: list[memoryview] = []
        self._data = 0
        self._refused: QuireError | None = None  # why there is no answer to the write
        self._sent = self._released = 0  # references
        self._descriptors: list[int] = []

    def _open(self) -> None:
        """Makes the requests, which are to be sent first."""
        c = self._connection
        if self._begin is not None:
            self._out.append(c.request("BeginPublish", self._begin, self._call))
            self._begin_call = c.call_number
        self._out.append(c.request("WritePages", None, self._call, more=True))
        self._opened = True

    def _head(self, page: int, grant: int, offset: int) -> bytes:
        """A message without its chunk."""
        first, self._first = self._first, b""
        if not grant and not offset:
            return first + wire.page_head(page)
        return first + encode.number(3, page) + encode.number(4, grant) + encode.number(5, offset)

    def _chunk(self, page: int, grant: int, offset: int, size: int, data: memoryview | None, reference: wire.Reference | None) -> None:
        wire.append_entry(self._body, self._head(page, grant, offset), size, reference)
        if data is not None:
            self._runs.append(data)
            self._data += size
        if self._data >= MAX_SEND_BYTES or len(self._body) >= _BATCH_BODY_BYTES:
            self._seal()

    def _seal(self) -> None:
        """Ends the batch that is being gathered."""
        if not self._opened:
            self._open()
        if self._body:
            c = self._connection
            self._out.append(wire.encode_frame(
                wire.MESSAGE, wire.METHODS["WritePages"], c.call_number, self._body, flags=wire.CHUNKS, data=self._data
            ))  # fmt: skip
            self._out += self._runs
            self._body, self._runs, self._data = bytearray(), [], 0

    def flush(self) -> None:
        self._seal()
        if self._out:
            out, self._out = self._out, []
            descriptors, self._descriptors = self._descriptors, []
            self._connection.stream.send(out, self._call, descriptors)
        while self._connection.stream.readable():
            self._next()

    def _next(self) -> None:
        """One frame of the server while the call runs: what it begins with, a release, or why it wants no more."""
        if self._begin_call:
            self._read_begun()
            return
        frame = self._connection.answer("WritePages", self._call)
        if frame.kind == wire.RELEASE:
            if not self._released <= frame.extra <= self._sent:
                raise wire.protocol_error(f"{frame.extra} references released of {self._sent}")
            self._released = frame.extra
            return
        if frame.kind != wire.STATUS:
            raise wire.protocol_error(f"WritePages: kind {frame.kind}")
        error = self._connection.status(frame, "WritePages", self._call)
        self._end()
        if self._begun != (None, None):
            raise _Stopped
        raise Refused(error) if error is not None else wire.protocol_error("WritePages: no answer")

    def _end(self) -> None:
        c = self._connection
        c.stream.send([wire.encode_frame(wire.END, wire.METHODS["WritePages"], c.call_number)], self._call)

    def publish(self, whole: kernels.Whole) -> bool:
        c = self._connection
        if not kernels.NATIVE or c.stream.native is None or not c.clean or whole.commit_bytes > c.welcome.body:
            return False
        place = self._place(whole)
        if place is None or self._descriptors:  # these go along with frames that are made here
            return False
        begins, self._begin_call = bool(whole.begin), c.call_number + 1 if whole.begin else 0
        got = c.publish(whole, *place, self._chunk_bytes, self._call)
        self.stored, self.commit, self._published = bool(got.stored), got.commit, [*got.answers]
        if begins and got.answers:
            self._begin_call, self._begun = 0, (self._published.pop(0), None)
        return True

    def _place(self, whole: kernels.Whole) -> tuple[np.ndarray, bool, tuple[int, int] | None] | None:
        """Where pages are sent from, whether they are to be packed there, and number and address of the area that this is in,
        None where it is none. None: not all of them at once."""
        raise NotImplementedError

    def finish(self, commit: Any) -> tuple[Any, Any]:
        """END, the server's answer, and that to a commit that is sent behind it, which begins when the write is done: None
        for a refused one, which may be made again."""
        written, committed = self.answers(commit)
        if written is None:
            raise Refused(self._refused) if self._refused is not None else wire.protocol_error("WritePages: no answer")
        done = proto.parse(proto.CommitPublishResponse, committed) if committed is not None else None
        return proto.parse(proto.WritePagesResponse, written), done

    def answers(self, commit: Any) -> tuple[bytes | None, bytes | None]:
        """END and the commit, unless they were sent, and the answers to the write and the commit, None for what was refused.
        That to the Begin before them is read, too."""
        got = self._published
        if got is None:
            write, got, commits = self._send_end(commit), [], commit is not None
        else:
            write, commits = self._connection.call_number - 1, True
        if self._begin_call:
            self._read_begun()
        written = got.pop(0) if got else self._written(write)
        committed = got.pop(0) if got else self._unary_answer("CommitPublish")[0] if commits else None
        if self._refused is not None and self._refused.broken:
            raise self._refused
        return written, committed

    def begun(self) -> bytes:
        """The answer to the Begin, encoded. Refused when it was."""
        answer, refused = self._begun
        if answer is None:
            raise Refused(refused or wire.protocol_error("BeginPublish: no answer"))
        return answer

    def answered(self) -> bytes | None:
        """The answer to the Begin, encoded, None for a refusal, as far as it has come by now, whatever became of the call."""
        if self._begin_call and self._connection.stream.readable():
            self._call = Call(_MOMENT)
            with contextlib.suppress(QuireError):
                self._read_begun()
        return self._begun[0]

    def _read_begun(self) -> None:
        number, self._begin_call = self._begin_call, 0
        self._begun = self._unary_answer("BeginPublish", number)

    def _send_end(self, commit: Any) -> int:
        """END, and the commit behind it: the number of the write."""
        c = self._connection
        self._seal()
        write = c.call_number
        self._out.append(wire.encode_frame(wire.END, wire.METHODS["WritePages"], write))
        if commit is not None:
            self._out.append(c.request("CommitPublish", commit, self._call))
        c.stream.send(self._out, self._call, self._descriptors)
        return write

    def _unary_answer(self, method: str, number: int = 0) -> tuple[bytes | None, QuireError | None]:
        """The answer to a call, encoded, by default the last one, or why it was refused."""
        c = self._connection
        frame = c.next(self._call)
        if frame.call != (number or c.call_number):
            raise wire.protocol_error(f"call {frame.call} in {method}, call {number or c.call_number}")
        if frame.kind == wire.RESPONSE:
            return c.body(frame, self._call), None
        if frame.kind != wire.STATUS or (error := c.status(frame, method, self._call)) is None:
            raise wire.protocol_error(f"{method}: kind {frame.kind}")
        return None, error

    def _written(self, write: int) -> bytes | None:
        """The answer to the write, encoded; None: `_refused` says why there is none."""
        c = self._connection
        while True:
            frame = c.next(self._call)
            if frame.call != write:
                raise wire.protocol_error(f"call {frame.call} in WritePages, call {write}")
            if frame.kind == wire.RELEASE:
                continue
            if frame.kind == wire.RESPONSE:
                return c.body(frame, self._call)
            if frame.kind != wire.STATUS:
                raise wire.protocol_error(f"WritePages: kind {frame.kind}")
            self._refused = c.status(frame, "WritePages", self._call) or wire.protocol_error("WritePages: no answer")
            return None

    def _stage_inline(self, payload: int, count: int) -> np.ndarray:
        self.flush()
        return self._inline_room(payload, count)

    def _inline_room(self, payload: int, count: int) -> np.ndarray:
        room: Buffer | None = self._connection.attached.get("send")
        if room is None or room.bytes < payload:
            room = self._connection.attached["send"] = Buffer(max(_SEND_BYTES, payload))
        self._room = room
        n = min(count, max(1, room.bytes // payload))
        return np.uint64(room.address) + np.arange(n, dtype=np.uint64) * np.uint64(payload)

    def _send_inline(self, page: int, grant: int, address: int, payload: int) -> None:
        at = address - self._room.address
        for off in range(0, payload, self._chunk_bytes):
            n = min(self._chunk_bytes, payload - off)
            self._chunk(page, grant, off, n, self._room.view[at + off : at + off + n], None)


class _Stopped(Exception):
    """The server refused a write while it was sent; the connection is sound, and what was begun before it is known."""


class _Inline(_FrameUpload):
    """Bytes go in the frames: from where they lie, or out of a buffer that is free again when they have left."""

    def _place(self, whole: kernels.Whole) -> tuple[np.ndarray, bool, tuple[int, int] | None] | None:
        if whole.addresses is not None:
            return whole.addresses, False, None
        payload, n = whole.geometry.payload_bytes(whole.view), len(whole.pages)
        return (self._inline_room(payload, n), True, None) if n * payload <= _SEND_BYTES else None

    def send_from(self, pages: Sequence[int], grant: int, addresses: np.ndarray, geometry: Geometry, view: View) -> np.ndarray | None:
        payload = geometry.payload_bytes(view)
        if payload * len(pages) > _FEW_BYTES:
            return None
        for page, address in zip(pages, addresses.tolist(), strict=True):
            for off in range(0, payload, self._chunk_bytes):
                n = min(self._chunk_bytes, payload - off)
                self._chunk(page, grant, off, n, memory_at(address + off, n), None)
        return kernels.sums_of(addresses, geometry, view)

    def stage(self, payload: int, count: int) -> np.ndarray:
        return self._stage_inline(payload, count)

    def send(self, page: int, grant: int, address: int, payload: int) -> None:
        self._send_inline(page, grant, address, payload)


class _Shared(_FrameUpload):
    """Bytes are named where the node reads them: in the slots of the connection's area, in turn. Where there is no
    such memory, or not enough, they go in the frames."""

    def __init__(
        self, connection: Connection, begin: bytes | None, first: bytes, chunk_bytes: int, budget: Budget, call: Call, stagings: Stagings | None
    ) -> None:
        super().__init__(connection, begin, first, chunk_bytes, budget, call)
        self._stagings = stagings
        self._areas: _Areas = connection.attached.setdefault("areas", _Areas())
        self._area: Area | None = None
        self._slot_bytes = 0
        self._busy: list[int] = []  # by slot: references that must be released before it is free
        self._next_slot = 0

    def stage(self, payload: int, count: int) -> np.ndarray:
        slot = -(-payload // _ALIGN) * _ALIGN
        if self._slot_bytes != slot:
            self._drain()
            self._area, is_new = self._areas.take(slot, self._budget)
            if self._area is not None and is_new:
                self._descriptors.append(self._area.fd)
            self._slot_bytes, self._next_slot = slot, 0
            self._busy = [0] * (self._area.bytes // slot if self._area is not None else 0)
        if self._area is None:
            return self._stage_inline(payload, count)
        slots, first = len(self._busy), self._next_slot
        n = min(count, max(1, min(slots, _NAME_BYTES // slot)))
        for k in range(n):
            self._await(self._busy[(first + k) % slots])
        self._next_slot = (first + n) % slots
        index = (np.uint64(first) + np.arange(n, dtype=np.uint64)) % np.uint64(slots)
        return np.uint64(self._area.address) + index * np.uint64(slot)

    def _place(self, whole: kernels.Whole) -> tuple[np.ndarray, bool, tuple[int, int] | None] | None:
        payload, n = whole.geometry.payload_bytes(whole.view), len(whole.pages)
        if whole.addresses is not None and self._stagings is not None and (staging := self._stagings.find(whole.addresses, payload)) is not None:
            number, is_new = self._areas.number_of(staging)
            if number >= 0:
                if is_new:
                    self._descriptors.append(staging.area.fd)
                return whole.addresses, False, (number, staging.address)
        if n * -(-payload // _ALIGN) * _ALIGN > _SEND_BYTES:
            return None
        out = self.stage(payload, n)
        if len(out) < n:
            return None
        return out, True, (self._areas.number, self._area.address) if self._area is not None else None

    def _drain(self) -> None:
        self._await(self._sent)

    def _await(self, references: int) -> None:
        """Waits until the server has released so many references."""
        if references > self._released:
            self.flush()
        while references > self._released:
            self._next()

    def send(self, page: int, grant: int, address: int, payload: int) -> None:
        area = self._area
        if area is None:
            self._send_inline(page, grant, address, payload)
            return
        at = address - area.address
        for off in range(0, payload, self._chunk_bytes):
            n = min(self._chunk_bytes, payload - off)
            self._sent += 1
            self._chunk(page, grant, off, n, None, wire.Reference(self._areas.number, at + off, n, 0, 0))
        self._busy[at // self._slot_bytes] = self._sent

    def send_all(self, pages: Sequence[int], grant: int, addresses: Sequence[int], payload: int) -> None:
        area = self._area
        if area is None or grant or payload > self._chunk_bytes or not pages:
            super().send_all(pages, grant, addresses, payload)
            return
        offsets = [address - area.address for address in addresses]
        for sent, at in enumerate(offsets, self._sent + 1):
            self._busy[at // self._slot_bytes] = sent
        self._name_all(pages, self._areas.number, offsets, payload)

    def _name_all(self, pages: Sequence[int], number: int, offsets: Sequence[int], payload: int) -> None:
        """Whole payloads of the first grants of pages, of one chunk each, by where they lie in an area."""
        self._chunk(pages[0], 0, 0, payload, None, wire.Reference(number, offsets[0], payload, 0, 0))  # with what the first message says
        body = self._body
        for page, at in zip(pages[1:], offsets[1:], strict=True):
            wire.append_entry(body, wire.page_head(page), payload, (number, at, payload, 0, 0))
            if len(body) >= _BATCH_BODY_BYTES:
                self._seal()
                body = self._body
        self._sent += len(pages)

    def lend(self, pages: Sequence[int], grant: int, addresses: np.ndarray, payload: int) -> bool:
        staging = self._stagings.find(addresses, payload) if self._stagings is not None else None
        if staging is None:
            return False
        number, is_new = self._areas.number_of(staging)
        if number < 0:
            return False
        if is_new:
            self._descriptors.append(staging.area.fd)
        offsets = [address - staging.address for address in addresses.tolist()]
        if pages and not grant and payload <= self._chunk_bytes:
            self._name_all(pages, number, offsets, payload)
            return True
        for page, at in zip(pages, offsets, strict=True):
            for off in range(0, payload, self._chunk_bytes):
                n = min(self._chunk_bytes, payload - off)
                self._sent += 1
                self._chunk(page, grant, off, n, None, wire.Reference(number, at + off, n, 0, 0))
        return True


class _Areas:
    """The area of a connection, and what staging memory the node has of it. A larger area takes its place when it must;
    the node counts all that it was ever sent."""

    def __init__(self) -> None:
        self.area: Area | None = None
        self.number = -1
        self._sent = self._bytes = 0
        self._stagings: dict[int, int] = {}  # numbers by serial

    def number_of(self, staging: Staging) -> tuple[int, bool]:
        """What the node knows staging memory as, and whether it does not know it yet; -1: it takes no more."""
        number = self._stagings.get(staging.serial)
        if number is not None:
            return number, False
        if self._bytes + staging.bytes > _MAX_AREA_BYTES or self._sent >= _MAX_AREAS:
            return -1, False
        number = self._stagings[staging.serial] = self._sent
        self._sent, self._bytes = self._sent + 1, self._bytes + staging.bytes
        return number, True

    def take(self, slot_bytes: int, budget: Budget) -> tuple[Area | None, bool]:
        """An area of at least one slot, and whether the node does not know it yet; None: there is no room for it."""
        have = self.area.bytes if self.area is not None else 0
        if have >= 2 * slot_bytes or (have >= slot_bytes and not budget.has(2 * slot_bytes)):
            return self.area, False
        for size in (max(_RING_BYTES, 2 * have, 4 * slot_bytes), 2 * slot_bytes, slot_bytes):
            size = -(-size // _PAGE) * _PAGE
            if self._bytes + size > _MAX_AREA_BYTES or self._sent >= _MAX_AREAS or not budget.take(size):
                continue
            try:
                area = Area(size, budget)
            except OSError:
                budget.give(size)
                break
            self.close()
            self.area, self.number = area, self._sent
            self._sent, self._bytes = self._sent + 1, self._bytes + size
            return area, True
        return (self.area, False) if have >= slot_bytes else (None, False)

    def close(self) -> None:
        if self.area is not None:
            self.area.close()
            self.area = None
