"""Connections that speak frames, one call at a time each, and a bounded pool of them.

    dial ──hello──> idle ──call──> busy ──answered──> idle ... ──> closed
                                     └──given up, broken──────────────^

A call that does not end well closes its connection: that is how the server learns of it, and nothing of it can arrive
later. Connections are made when they are needed and kept while they are sound.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from . import kernels, proto, wire
from .buffers import Buffer
from .deadline import Call, DeadlineError, again
from .errors import QuireError, Reason
from .intake import Intake
from .sockets import Stream
from .wire import Frame

__all__ = ["BULK", "SHORT", "Connection", "Crowded", "Pool"]

BULK, SHORT = 0, 1  # kinds of calls that share a bound, so that none waits for one of the other kind

_READ_AHEAD_BYTES = 64 << 10  # a full batch of heads, and its frame
_NO_STATUS = proto.Status()


class Connection:
    """One connection. One call at a time; abort may come from anywhere."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.call_number = 0
        self.welcome = wire.Welcome(wire.GREETING_BYTES, 0, b"")
        self.attached: dict[str, Any] = {}  # what belongs to the connection: staging memory, receive buffers
        self._room = Buffer(_READ_AHEAD_BYTES)
        self._ahead = self._room.view
        self._from = self._to = 0
        self._max_body = wire.GREETING_BYTES
        self._release = b""  # a frame that goes along with the next request

    # -- greeting ------------------------------------------------------------------------------------------------

    def greet(self, token: str, instance: str, call: Call) -> None:
        """HELLO and WELCOME. QuireError when the server refuses."""
        self.stream.send([wire.encode_hello(token, instance)], call)
        frame = self.next(call)
        body = self.body(frame, call)
        if frame.kind == wire.STATUS:
            raise proto.error_of(proto.parse(proto.Status, body), where="hello")
        if frame.kind != wire.WELCOME:
            raise wire.protocol_error(f"kind {frame.kind} in place of a welcome")
        self.welcome = wire.decode_welcome(body)
        self._max_body = wire.MAX_BODY_BYTES

    # -- reading -------------------------------------------------------------------------------------------------

    def next(self, call: Call | None) -> Frame:
        """The next frame's header. Its body and data must be read next."""
        while self._to - self._from < wire.HEADER_BYTES:
            self._fill(call)
        frame = wire.decode_frame(self._ahead, self._from, max_body=self._max_body)
        self._from += wire.HEADER_BYTES
        return frame

    def body(self, frame: Frame, call: Call | None) -> bytes:
        """The body of the frame that next returned."""
        n = frame.body
        if n <= self._to - self._from:
            out = bytes(self._ahead[self._from : self._from + n])
            self._from += n
            return out
        if n <= _READ_AHEAD_BYTES:
            while self._to - self._from < n:
                self._fill(call)
            return self.body(frame, call)
        room = bytearray(n)
        self.data([memoryview(room)], call)
        return bytes(room)

    def data(self, into: list[memoryview], call: Call | None) -> None:
        """Fills the buffers with what comes next."""
        rest = into
        while rest:
            have = self._to - self._from
            first = rest[0]
            if have:
                n = min(have, len(first))
                first[:n] = self._ahead[self._from : self._from + n]
                self._from += n
            else:
                n = self.stream.receive(rest[:64], call, whole=True)
            while rest and n >= len(rest[0]):
                n -= len(rest[0])
                rest = rest[1:]
            if n:
                rest = [rest[0][n:], *rest[1:]]

    def pages(self, request: bytes, intake: Intake, call: Call) -> tuple[int, bytes, int]:
        """Sends a request, if any, and has native code take what it can of the batches that come then: why it stopped, one of
        kernels.LEFT_*, the entries that are left of a frame, and the bytes of data that come for them. Only while
        `intake.direct`."""
        native = self.stream.native
        assert native is not None
        source = (*native, self._room.address, _READ_AHEAD_BYTES, self._from, self._to, self.call_number)
        left, self._from, self._to, rest, data, error = intake.receive(request, source, call.deadline)
        if left == kernels.LEFT_ERROR:
            self.stream.failed(error, call)
        return left, rest, data

    def _fill(self, call: Call | None) -> None:
        if self._from == self._to:
            self._from = self._to = 0
        elif self._to == _READ_AHEAD_BYTES or self._from > _READ_AHEAD_BYTES // 2:
            n = self._to - self._from
            self._ahead[:n] = bytes(self._ahead[self._from : self._to])
            self._from, self._to = 0, n
        self._to += self.stream.receive([self._ahead[self._to :]], call)

    # -- calls ---------------------------------------------------------------------------------------------------

    def request(self, method: str, message: Any, call: Call | None, *, more: bool = False) -> bytes:
        """The REQUEST frame of a new call of a message, encoded or not, which has no deadline without a Call. With `more`
        messages and an END follow."""
        self.call_number += 1
        body = b"" if more else message if type(message) is bytes else message.SerializeToString()
        if len(body) > self.welcome.body:
            raise QuireError(Reason.LIMIT_EXCEEDED, f"{method}: a request of {len(body)} bytes; the server takes {self.welcome.body}")
        left = max(1, min(int(call.left() * 1000), 0xFFFFFFFF)) if call is not None else 0
        flags = wire.MORE if more else 0
        release, self._release = self._release, b""
        return release + wire.encode_frame(wire.REQUEST, wire.METHODS[method], self.call_number, body, flags=flags, extra=left)

    def answer(self, method: str, call: Call | None) -> Frame:
        """The next frame of the call at hand."""
        frame = self.next(call)
        if frame.call != self.call_number:
            raise wire.protocol_error(f"call {frame.call} in {method}, call {self.call_number}")
        return frame

    def status(self, frame: Frame, method: str, call: Call | None) -> QuireError | None:
        """What a STATUS frame says; None: OK, the end of a stream."""
        body = self.body(frame, call)
        status = proto.parse(proto.Status, body) if body else _NO_STATUS
        return proto.error_of(status, where=method) if status.code else None

    def unary(self, method: str, message: Any, response: Any, call: Call) -> Any:
        """One request, one response. QuireError; `broken` also when the connection is not to be used again."""
        self.stream.send([self.request(method, message, call)], call)
        frame = self.answer(method, call)
        if frame.kind == wire.STATUS:
            error = self.status(frame, method, call)
            raise Refused(error) if error is not None else wire.protocol_error(f"{method}: no answer")
        if frame.kind != wire.RESPONSE:
            raise wire.protocol_error(f"{method}: kind {frame.kind}")
        return proto.parse(response, self.body(frame, call))

    def fetch(self, request: bytes, pages: kernels.PageTables, slabs: np.ndarray, call: Call, *, releases: bool) -> kernels.Fetched:
        """kernels.fetch over this connection, which must be clean, of shared memory: what came and was not taken is read next."""
        self.stream.arm(call)
        room = self._room
        got = kernels.fetch(request, pages, slabs, self.stream.fileno(), self.call_number, call.deadline, (room.address, room.bytes), releases)
        self._from, self._to = got.start, got.end
        self.stream.received(got.descriptors, lost=got.state == kernels.FETCH_CUT_OFF)
        return got

    def release(self, references: int, call: Call, *, soon: bool) -> None:
        """Lets go of what the last call referred to, all of it: now, or with the next request."""
        self._release = wire.encode_frame(wire.RELEASE, call=self.call_number, extra=references)
        if soon:
            self._let_go(call)

    def _let_go(self, call: Call) -> None:
        if self._release:
            release, self._release = self._release, b""
            self.stream.send([release], call)

    def publish(
        self, whole: kernels.Whole, addresses: np.ndarray, packs: bool, area: tuple[int, int] | None, chunk_bytes: int, call: Call
    ) -> kernels.Published:
        """kernels.publish over this connection, which must be clean. The last call is that of the commit; answers that did not
        come are read next."""
        native = self.stream.native
        assert native is not None
        self._let_go(call)
        room = self._room.address, self._room.bytes
        self.call_number += 2 if whole.begin else 1
        got = kernels.publish(whole, addresses, packs, area, chunk_bytes, native, self.call_number, call.deadline, room)
        self._from, self._to = got.start, got.end
        if got.error:
            self.stream.failed(got.error, call)
        self.call_number += 1
        self.stream.received(got.descriptors, lost=got.state == kernels.FETCH_CUT_OFF)
        return got

    @property
    def clean(self) -> bool:
        """Whether nothing was read that nobody asked for. Between calls."""
        return self._from == self._to

    def abort(self) -> None:
        """Ends what waits on the connection."""
        self.stream.abort()

    def close(self) -> None:
        """Closes the connection and what belongs to it."""
        self.stream.close()
        for a in self.attached.values():
            if hasattr(a, "close"):
                a.close()
        self.attached.clear()


class Refused(Exception):
    """The server refused a call; the connection is sound. Never leaves this package: `error` does."""

    def __init__(self, error: QuireError) -> None:
        super().__init__(str(error))
        self.error = error


class Pool:
    """Connections to one address: at most `limit` calls of each kind at once, others wait. Thread-safe.

    Few, also of the short ones: those of 16 lookups at once would take an engine's interpreter for 9 ms of one step.
    """

    def __init__(self, dial: Callable[[Call], Connection], limit: int) -> None:
        self._dial = dial
        self._limit = limit
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._waiting = 0  # who wait for room
        self._running = [0, 0]
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._closed: QuireError | None = None

    def run(self, kind: int, call: Call, use: Callable[[Connection], Any]) -> Any:
        """Calls `use` with a connection that is its own meanwhile. QuireError. Unreachable is raised when there was no
        connection: nothing of the call was sent."""
        with self._lock:
            full = self._running[kind] >= self._limit
            if not full:
                self._running[kind] += 1
        crowded = False
        if full:
            given = call.left()
            self._enter(kind, call)
            crowded = call.deadline - time.monotonic() < given / 2
        try:
            try:
                connection = self._take(call)
            except DeadlineError:
                raise
            except QuireError as e:
                raise e if not e.broken or call.cancelled is not None else Unreachable(e) from None
            return self._use(connection, call, use)
        except DeadlineError as e:
            e.crowded = crowded
            raise
        finally:
            with self._lock:
                self._running[kind] -= 1
                if self._waiting:
                    self._room.notify_all()

    def _use(self, connection: Connection, call: Call, use: Callable[[Connection], Any]) -> Any:
        sound = False
        call.register(connection.abort)
        try:
            out = use(connection)
            sound = True
            return out
        except Refused as e:
            sound = True
            raise e.error from None
        finally:
            call.unregister(connection.abort)
            self._give(connection, sound and not call.cancelled)

    def _enter(self, kind: int, call: Call) -> None:
        with self._room:
            self._waiting += 1
            call.register(self._wake)
            try:
                while self._running[kind] >= self._limit:
                    self._room.wait(call.left())
            except DeadlineError:
                raise Crowded from None
            finally:
                self._waiting -= 1
                call.unregister(self._wake)
            self._running[kind] += 1

    def _wake(self) -> None:
        with self._room:
            self._room.notify_all()

    def _take(self, call: Call) -> Connection:
        while True:
            with self._lock:
                if self._closed is not None:
                    raise again(self._closed)
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                break
            if connection.stream.idle():
                return connection
            self._give(connection, False)
        connection = self._dial(call)
        with self._room:
            if self._closed is None:
                self._all.add(connection)
                return connection
        connection.close()
        raise again(self._closed)

    def _give(self, connection: Connection, sound: bool) -> None:
        """Keeps a sound connection for the next call. One on which more came than was asked for is not sound: the next
        call would read it as its own answer."""
        with self._lock:
            if sound and connection.clean and self._closed is None:
                self._idle.append(connection)
                return
            self._all.discard(connection)
        connection.close()

    def close(self, why: QuireError) -> None:
        """Ends every call and closes every connection, those in use when their calls have left them. Idempotent."""
        with self._room:
            self._closed = why
            idle, self._idle = self._idle, []
            busy = self._all.difference(idle)
            self._all = set(busy)
        for c in busy:
            c.abort()
        for c in idle:
            c.close()

    def drained(self, deadline: float) -> bool:
        """Waits until no call is left, until a monotonic time at most."""
        with self._room:
            self._waiting += 1
            try:
                while any(self._running):
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return False
                    self._room.wait(left)
            finally:
                self._waiting -= 1
        return True

    def forget(self) -> None:
        """In a forked child: closes the descriptors that were the parent's, without a word to the server."""
        for c in self._all:
            c.stream.forget()


class Crowded(QuireError):
    """The call found no room among this client's own before its time was over: it says nothing of the server."""

    def __init__(self) -> None:
        super().__init__(Reason.BUSY, "too many calls of this client are under way")


class Unreachable(QuireError):
    """There is no connection and none could be made: the call may take another way."""

    def __init__(self, why: QuireError) -> None:
        super().__init__(why.reason, Exception.__str__(why), broken=True)
