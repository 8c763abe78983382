"""The page service over gRPC: the way that always works, from everywhere. Also how names and administration go.

A channel is made when it is needed, and `Channels` closes it when nothing has used it for a call: an idle client over
frames holds none.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import numpy as np

from . import encode, kernels, proto
from .buffers import Buffer, address_of_bytes, memory_at
from .deadline import Call, DeadlineError, again
from .errors import QuireError, Reason
from .intake import Intake
from .options import Options
from .page import Geometry, View
from .transport import MAX_SEND_BYTES, Transport, Upload

__all__ = ["Channel", "GrpcTransport"]

_MAX_MESSAGE_BYTES = 32 << 20
_FLUSH_BYTES = 1 << 20  # of messages before they are unpacked: still in the far cache
_SEND_BYTES = 2 << 20
_QUEUED = 4  # messages that wait to be sent
_TICK_SECONDS = 0.05  # how soon a sender notices that its call is over
_STATUS_KEY = "grpc-status-details-bin"

_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # sockets are this channel's own, and go with it
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # how long one attempt to connect may take, whatever the name says
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("SingleThreadedUnaryStream", 1),  # who waits for a stream's messages reads them: no thread hands them over
    ("grpc.http2.lookahead_bytes", 8 << 20),  # that a stream's sender may be ahead
    ("grpc.experimental.tcp_read_chunk_size", 1 << 20),
    ("grpc.experimental.tcp_min_read_chunk_size", 256 << 10),
]

# Their messages of a stream go as bytes: a chunk is not copied into a message and out of it.
_WITH_CHUNKS = frozenset(("PageService.Fetch", "PageService.WritePages"))
_CHUNK = 15 << 3 | 2  # the tag of the field that has the page's bytes

_abandoned: list[Any] = []  # channels of a forked child's parent: never touched, never collected


class Channel:
    """One gRPC channel, made lazily, closed by release when nobody uses it. Thread-safe."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._channel: Any = None
        self._stubs: dict[str, Any] = {}
        self._users = 0
        self._closed: QuireError | None = None
        metadata = [("authorization", "Bearer " + options.token)] if options.token else []
        self.metadata = tuple(metadata)

    def _make(self) -> Any:
        o = self._options
        target = o.address if o.address.startswith("unix:") else "dns:///" + o.address
        if o.plaintext:
            return grpc.insecure_channel(target, options=_CHANNEL_OPTIONS)
        files = [_read(f) if f is not None else None for f in ((o.tls.ca, o.tls.key, o.tls.cert) if o.tls is not None else (None,) * 3)]
        options: list[tuple[str, object]] = list(_CHANNEL_OPTIONS)
        if o.tls is not None and o.tls.server_name is not None:
            options.append(("grpc.ssl_target_name_override", o.tls.server_name))
        return grpc.secure_channel(target, grpc.ssl_channel_credentials(*files), options=options)

    def stub(self, kind: str, method: str) -> Any:
        """The callable of a method, "PageService.Fetch", of a kind, "unary_stream". The channel must be held."""
        with self._lock:
            if self._channel is None:
                raise self._over()
            made = self._stubs.get(method)
            if made is None:
                path, request, response = proto.METHODS[method]
                made = self._stubs[method] = getattr(self._channel, kind)(
                    path,
                    request_serializer=_as_it_is if method in _WITH_CHUNKS and kind.startswith("stream") else request.SerializeToString,
                    response_deserializer=_as_it_is if method in _WITH_CHUNKS and kind.endswith("stream") else response.FromString,
                )
            return made

    def begin(self, kind: str, method: str, argument: Any, timeout: float | None, *, future: bool = False) -> Any:
        """Starts a call of a method; `future` for what is answered once. The channel must be held."""
        stub = self.stub(kind, method)
        try:
            return (stub.future if future else stub)(argument, timeout=timeout, metadata=self.metadata)
        except ValueError:  # it was closed in this moment
            raise self._over() from None

    def _over(self) -> QuireError:
        return again(self._closed) if self._closed is not None else QuireError(Reason.ABORTED, "closed")

    def __enter__(self) -> Channel:
        with self._lock:
            if self._closed is not None:
                raise self._over()
            if self._channel is None:
                self._channel = self._make()
            self._users += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1

    def release(self) -> None:
        """Closes the channel if nobody uses it now; the next call makes another."""
        with self._lock:
            if self._users == 0 and self._channel is not None:
                channel, self._channel, self._stubs = self._channel, None, {}
                channel.close()

    def close(self, why: QuireError) -> None:
        """Ends all calls. Idempotent."""
        with self._lock:
            self._closed = why
            channel, self._channel, self._stubs = self._channel, None, {}
        if channel is not None:
            channel.close()

    def forget(self) -> None:
        """In a forked child: gRPC's threads are the parent's, so nothing of it may run here."""
        _abandoned.append((self._channel, self._stubs))

    def unary(self, method: str, request: Any, call: Call) -> Any:
        """One call of any service, "NamespaceService.Open"."""
        with self:
            future = self.begin("unary_unary", method, request, call.left(), future=True)
            call.register(future.cancel)
            try:
                return _answer(future.result(), method)
            except (grpc.RpcError, grpc.FutureCancelledError) as e:
                raise error_of(e, method, call) from None
            finally:
                call.unregister(future.cancel)


def _answer(message: Any, method: str) -> Any:
    """The message of a unary answer: gRPC gives None where a server ended the call as if well, without one."""
    if message is None:
        raise QuireError(Reason.UNKNOWN, f"{method}: an answer without a message", broken=True)
    return message


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError as e:
        raise QuireError(Reason.UNAUTHORIZED, f"tls: {e}") from None


def error_of(error: Any, where: str, call: Call | None) -> QuireError:
    """What a gRPC error says."""
    if call is not None and call.cancelled is not None:
        return call.cancelled
    if not isinstance(error, grpc.Call):
        return QuireError(Reason.UNKNOWN, f"{where}: cancelled", broken=True)
    code = error.code().value[0]
    for key, value in error.trailing_metadata() or ():
        if key == _STATUS_KEY:
            status = proto.parse(proto.Status, value)
            if status.details:
                return proto.error_of(status, where=where)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineError(f"{where}: the call ran out of time")
    return proto.error_of(proto.Status(code=code, message=(error.details() or "")[:500]), where=where)


def _as_it_is(message: bytes) -> bytes:
    return message


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends. IndexError when it does not."""
    value = shift = 0
    while raw[at] >= 128:
        value |= (raw[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | raw[at] << shift, at + 1


def split_chunk(raw: bytes) -> tuple[int, int]:
    """Where the fields before the chunk of an encoded message end, and where the bytes of the chunk begin, which go on to the
    end. Both the end when there is no chunk, or when another order makes it the general reader's."""
    at, end = 0, len(raw)
    try:
        while at < end:
            size, start = _varint(raw, at + 1)
            if raw[at] == _CHUNK:
                return (at, start) if start + size == end else (end, end)
            if raw[at] & 7 not in (0, 2) or raw[at] >= 128:
                break
            at = start + (size if raw[at] & 7 == 2 else 0)
    except IndexError:
        pass
    return end, end


def join_chunk(head: bytes, chunk: memoryview) -> bytes:
    """A message of its encoded fields before the chunk, and the chunk."""
    size, tag = len(chunk), bytearray((_CHUNK,))
    while size >= 128:
        tag.append(size & 127 | 128)
        size >>= 7
    tag.append(size)
    return b"".join((head, tag, chunk))


class GrpcTransport(Transport):
    """PageService over a channel."""

    name = "grpc"

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def unary(self, method: str, request: Any, call: Call) -> Any:
        if type(request) is bytes:
            request = proto.parse(proto.METHODS[f"PageService.{method}"][1], request)
        return self._channel.unary(f"PageService.{method}", request, call)

    def fetch(self, request: Any, intake: Intake, call: Call) -> None:
        intake.slabs = None
        if type(request) is bytes:
            request = proto.parse(proto.FetchRequest, request)
        with self._channel as channel:
            try:
                stream = channel.begin("unary_stream", "PageService.Fetch", request, call.left())
                call.register(stream.cancel)
                try:
                    for raw in stream:
                        fields, at = split_chunk(raw)
                        head = proto.parse(proto.FetchResponse, raw[:fields])
                        if fields < len(raw):
                            intake.message(head, len(raw) - at, address_of_bytes(raw) + at, owner=raw)
                        else:
                            intake.message(head, len(head.chunk), address_of_bytes(chunk := head.chunk), owner=chunk)
                        if intake.pending_bytes >= _FLUSH_BYTES:
                            call.left()
                            intake.flush()
                except grpc.RpcError as e:
                    raise error_of(e, "Fetch", call) from None
                finally:
                    call.unregister(stream.cancel)
                    stream.cancel()
                    with contextlib.suppress(grpc.RpcError):
                        for _ in stream:  # what is not read to its end keeps the channel
                            pass
            finally:
                intake.ended(call)
            call.left()

    def write(self, first: bytes, chunk_bytes: int, fill: Callable[[Upload], Any], call: Call) -> tuple[Any, Any]:
        with self._channel as channel:
            upload = _Upload(channel, first, min(chunk_bytes, MAX_SEND_BYTES), call)
            try:
                fill(upload)
                return upload.finish(), None
            finally:
                upload.end()

    def attach(self, request: Any, connect_seconds: float, life: Call, up: Callable[[bytes], None]) -> None:
        with self._channel as channel:
            # not as a stream of one request: it is left before its end, and gRPC's own thread must see to that
            stream = channel.begin("stream_stream", "PageService.Attach", iter((request,)), None)
            life.register(stream.cancel)
            try:
                attached = False
                for message in stream:
                    if message.session_id and not attached:
                        attached = True
                        up(message.session_id)
            except grpc.RpcError as e:
                raise error_of(e, "Attach", life) from None
            finally:
                life.unregister(stream.cancel)
                stream.cancel()

    def close(self, deadline: float) -> None:
        """The channel is its owner's."""


class _Upload(Upload):
    """A WritePages over gRPC: messages are made here and sent by a thread of gRPC's."""

    def __init__(self, channel: Channel, first: bytes, chunk_bytes: int, call: Call) -> None:
        self._chunk_bytes, self._call = chunk_bytes, call
        self._first = first
        self._queue: queue.Queue[Any] = queue.Queue(_QUEUED)
        self._room: Buffer | None = None
        self._over = False
        self._future = channel.begin("stream_unary", "PageService.WritePages", self._messages(), call.left(), future=True)
        call.register(self._future.cancel)

    def _messages(self) -> Iterator[Any]:
        while not self._over:
            try:
                m = self._queue.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                continue
            if m is None:
                return
            yield m

    def stage(self, payload: int, count: int) -> np.ndarray:
        if self._room is None or self._room.bytes < payload:
            self._room = Buffer(max(_SEND_BYTES, payload))
        n = min(count, max(1, self._room.bytes // payload))
        return np.uint64(self._room.address) + np.arange(n, dtype=np.uint64) * np.uint64(payload)

    def send(self, page: int, grant: int, address: int, payload: int) -> None:
        assert self._room is not None
        at = address - self._room.address
        self._send(page, grant, self._room.view[at : at + payload])

    def _send(self, page: int, grant: int, payload: memoryview) -> None:
        for off in range(0, len(payload), self._chunk_bytes):
            head = self._first + encode.number(3, page) + encode.number(4, grant) + encode.number(5, off)
            self._first = b""
            if not self._put(join_chunk(head, payload[off : off + self._chunk_bytes])):
                self._result()  # it says why
                raise QuireError(Reason.UNKNOWN, "WritePages: answered before its end", broken=True)

    def send_from(self, pages: Sequence[int], grant: int, addresses: np.ndarray, geometry: Geometry, view: View) -> np.ndarray | None:
        payload, sums = geometry.payload_bytes(view), []
        some = max(1, _SEND_BYTES // payload)
        for first in range(0, len(pages), some):
            self._call.left()
            sums.append(kernels.sums_of(addresses[first : first + some], geometry, view))
            for page, address in zip(pages[first : first + some], addresses[first : first + some].tolist(), strict=True):
                self._send(page, grant, memory_at(address, payload))
        return np.concatenate(sums)

    def _put(self, m: Any) -> bool:
        """Queues a message; False when the server wants no more."""
        while not self._future.done():
            try:
                self._queue.put(m, timeout=min(_TICK_SECONDS, self._call.left()))
                return True
            except queue.Full:
                continue
        return False

    def flush(self) -> None:
        """Messages are on their way already."""

    def finish(self) -> Any:
        """The end of the stream, and the server's answer."""
        self._put(None)
        return self._result()

    def _result(self) -> Any:
        try:
            return _answer(self._future.result(), "WritePages")
        except (grpc.RpcError, grpc.FutureCancelledError) as e:
            raise error_of(e, "WritePages", self._call) from None

    def end(self) -> None:
        """Nothing more is sent. Idempotent."""
        self._over = True
        self._call.unregister(self._future.cancel)
        self._future.cancel()
