"""A store that misbehaves on demand: it stands before a real server, over gRPC, frames over TCP, and shared memory.

    client ──> Chaos ──> server          calls pass, but for those that a Fault hits

Left alone it is the server, with other addresses: what a client is told of the ways in (GetCapabilities) leads back here.
So a session opens in peace, and then a fault is set. `calls` counts what arrived, by method, over all of the ways in.

    chaos = Chaos(server)
    chaos.fault = Fault("code", frozenset({"Fetch"}), 14)
    chaos.fault = None
    chaos.down(); chaos.up()       nobody listens, and again

Everything ends with close(), also calls that hang.
"""

from __future__ import annotations

import array
import contextlib
import os
import random
import socket
import struct
import tempfile
import threading
import time
from collections import Counter
from concurrent import futures

import grpc
import serving

from quire_kv import proto, wire

from .faults import ANSWERS, Fault, spoil, status_of

STEP_SECONDS = 0.02  # between the bytes, or messages, of a slow answer
LONG_LIVED = ("Attach", "WatchPages", "Watch")  # streams without a deadline: hit only when they are named
NO_DEADLINE_SECONDS = 1e6  # what gRPC says is left of a call without a deadline is more
_LINGER = struct.pack("ii", 1, 0)  # close sends a reset


def refused_at_once(fault: Fault | None, method: str) -> bool:
    """Whether the call does not reach the server. Of a stream of pages the answer is replaced instead."""
    return fault is not None and fault.what in ("code", "reason") and not fault.after and method != "WritePages"


def shut(sock: socket.socket, reset: bool = True) -> None:
    """Ends a connection under whoever uses it."""
    with contextlib.suppress(OSError):
        if reset and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


class Chaos:
    """See above. Attributes may be set at any time; calls under way when a fault is set may escape it."""

    def __init__(self, server: serving.Server, seed: int = 1):
        self.server = server
        self.rng = random.Random(seed)
        self.calls: Counter[str] = Counter()  # by method
        self.struck = 0  # calls that a fault hit
        self.connections = 0  # accepted by frames listeners
        self._lock = threading.Lock()
        self._fault: Fault | None = None
        self._left: int | None = None
        self.changed = threading.Event()  # of the fault: lets go of what hangs
        self._dir = tempfile.TemporaryDirectory(prefix="q")
        self.data = Frames(self, ("127.0.0.1", 0), _address(server.data_address)) if server.data_address else None
        self.shm = Frames(self, os.path.join(self._dir.name, "s"), server.socket)
        self.offer_data = self.offer_shm = True  # whether clients are told of the way in
        self._grpc_port = 0
        self._grpc: grpc.Server | None = None
        self._channel: grpc.Channel | None = None
        self.up()

    # -- what happens --------------------------------------------------------------------------------------------

    @property
    def fault(self) -> Fault | None:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault | None) -> None:
        with self._lock:
            self._fault = fault
            self._left = fault.times if fault else None
            released, self.changed = self.changed, threading.Event()
        released.set()

    def hits(self, method: str) -> tuple[Fault | None, threading.Event]:
        """Counts a call. The fault that it meets, and what lets it go if that is to hang."""
        with self._lock:
            self.calls[method] += 1
            fault = self._fault
            if fault is None or not (method in fault.methods or (not fault.methods and method not in LONG_LIVED)):
                return None, self.changed
            if self._left is not None:
                if self._left == 0:
                    return None, self.changed
                self._left -= 1
            self.struck += 1
            return fault, self.changed

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._grpc_port}"

    def down(self) -> None:
        """Nobody listens, and what was connected is not any more."""
        self.fault = None
        if self._grpc is not None:
            self._grpc.stop(0).wait(10)
            self._grpc = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        for way in (self.data, self.shm):
            if way is not None:
                way.down()

    def up(self) -> None:
        """Listens where it did before."""
        for way in (self.data, self.shm):
            if way is not None:
                way.up()
        self._channel = grpc.insecure_channel(self.server.address, options=[("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)])
        pool = futures.ThreadPoolExecutor(64, "chaos-grpc")
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]
        self._grpc = grpc.server(pool, handlers=[_Forward(self, self._channel)], options=options)
        until = time.monotonic() + 10
        while not (port := self._bind()):
            assert time.monotonic() < until, "the port is taken"
            time.sleep(0.02)
        self._grpc_port = port
        self._grpc.start()

    def _bind(self) -> int:
        try:
            return self._grpc.add_insecure_port(f"127.0.0.1:{self._grpc_port}")
        except RuntimeError:
            return 0

    def close(self) -> None:
        self.down()
        self._dir.cleanup()

    def __enter__(self) -> Chaos:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def redirect(self, body: bytes) -> bytes:
        """Capabilities whose ways in lead back here."""
        answer = proto.GetCapabilitiesResponse.FromString(body)
        answer.data_address = f"127.0.0.1:{self.data.port}" if self.data and self.offer_data else ""
        answer.shm_socket = self.shm.path if self.offer_shm else ""
        return answer.SerializeToString()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


class _Forward(grpc.GenericRpcHandler):
    """Every method as a stream of bytes in both directions, which is what unary calls are on the wire too."""

    def __init__(self, chaos: Chaos, channel: grpc.Channel):
        self._chaos, self._channel = chaos, channel

    def service(self, details):
        path, metadata = details.method, details.invocation_metadata

        def handle(requests, context):
            return self._call(path, metadata, requests, context)

        return grpc.stream_stream_rpc_method_handler(handle)

    def _call(self, path, metadata, requests, context):
        method = path.rpartition("/")[2]
        fault, released = self._chaos.hits(method)
        ended = threading.Event()
        context.add_callback(ended.set)
        if refused_at_once(fault, method):
            yield from self._faulty(fault, method, b"", released, ended, context)
        left = context.time_remaining()
        call = self._channel.stream_stream(path)(
            requests,
            timeout=left if left is not None and left < NO_DEADLINE_SECONDS else None,
            metadata=[(k, v) for k, v in metadata if k.startswith("x-") or k in ("authorization",) or k.endswith("-bin")],
        )
        context.add_callback(call.cancel)
        passed = 0
        try:
            for body in call:
                if method == "GetCapabilities":
                    body = self._chaos.redirect(body)
                if fault is None or passed < fault.after:
                    passed += 1
                    yield body
                    continue
                if not (yield from self._faulty(fault, method, body, released, ended, context)):
                    call.cancel()
                    return
        except grpc.RpcError as refused:
            if ended.is_set():
                return
            context.set_trailing_metadata(tuple(refused.trailing_metadata() or ()))
            context.abort(refused.code(), refused.details())

    def _faulty(self, fault, method, body, released, ended, context):
        """Sends what the fault makes of a message. False ends the answer."""
        if fault.what in ANSWERS:
            yield from spoil(fault.what, method, body, self._chaos.rng)
        elif fault.what == "slow":
            while not ended.wait(STEP_SECONDS * 10) and self._chaos.fault is fault:
                pass
            yield body
        elif fault.what == "hang":
            while not ended.wait(STEP_SECONDS) and not released.is_set():
                pass
            return False
        elif fault.what == "close":
            context.abort(grpc.StatusCode.UNAVAILABLE, "the connection is gone")
        elif fault.what in ("code", "reason"):
            status = status_of(fault)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),) if fault.what == "reason" else ())
            context.abort(_CODES[status.code], status.message)
        else:  # cut
            return False
        return True


_CODES = {code.value[0]: code for code in grpc.StatusCode}


class Frames:
    """The same for frames, over TCP (address and target are pairs) or a UNIX socket (paths), descriptors included."""

    def __init__(self, chaos: Chaos, address, target):
        self._chaos, self._address, self._target = chaos, address, target
        self._family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self._listener: socket.socket | None = None
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    @property
    def path(self) -> str:
        return self._address

    @property
    def port(self) -> int:
        return self._address[1]

    def up(self) -> None:
        listener = socket.socket(self._family)
        if self._family == socket.AF_UNIX:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._address)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(self._address)
        listener.listen(64)
        self._address = listener.getsockname()
        self._listener = listener
        self._start(self._accept, listener)

    def down(self) -> None:
        if self._listener is not None:
            shut(self._listener, reset=False)
            self._listener = None
        with self._lock:
            for sock in list(self._open):
                shut(sock)
            self._open.clear()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), "a thread of the double does not end"
        self._threads = []

    def _start(self, function, *args) -> None:
        thread = threading.Thread(target=function, args=args, name="chaos-frames", daemon=True)
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._chaos.connections += 1
            server = socket.socket(self._family)
            try:
                server.connect(self._target)
            except OSError:
                shut(server)
                shut(client)
                continue
            with self._lock:
                self._open |= {client, server}
            talk = _Talk(self._chaos, client, server)
            self._start(self._pump, talk.requests, client, server)
            self._start(self._pump, talk.answers, client, server)

    def _pump(self, pump, *ends: socket.socket) -> None:
        try:
            pump()
        except (OSError, EOFError, struct.error):
            pass
        finally:
            with self._lock:
                self._open -= set(ends)
            for end in ends:
                shut(end)


class _Talk:
    """One connection: requests go through, answers as the fault of their call has it."""

    def __init__(self, chaos: Chaos, client: socket.socket, server: socket.socket):
        self._chaos, self._client, self._server = chaos, client, server
        self._asked: dict[int, tuple[Fault | None, threading.Event, str]] = {}  # calls that are not answered, by number
        self._answered = threading.Condition()
        self._over = False
        self._now: tuple[Fault | None, threading.Event, str] | None = None  # the call that is being answered
        self._released = threading.Event()
        self._sending = threading.Lock()
        self._method = ""
        self._passed = 0
        self._names = {number: name for name, number in wire.METHODS.items()}

    def requests(self) -> None:
        while True:
            frame, raw, data, fds = _read(self._client)
            if frame.kind == wire.REQUEST:
                method = self._names.get(frame.method, "")
                fault, released = self._chaos.hits(method)
                if refused_at_once(fault, method):
                    with self._answered:  # in the order in which they were asked
                        self._answered.wait_for(lambda: self._over or not self._asked)
                    status = status_of(fault).SerializeToString()
                    self._answer(wire.encode_frame(wire.STATUS, frame.method, frame.call, status), fds)
                    continue
                with self._answered:
                    self._asked[frame.call] = fault, released, method
            _send(self._server, raw + data, fds)

    def answers(self) -> None:
        try:
            while True:
                self._next_answer()
        finally:
            with self._answered:
                self._over = True
                self._answered.notify_all()

    def _next_answer(self) -> None:
        frame, raw, data, fds = _read(self._server)
        with self._answered:
            asked = self._asked.get(frame.call)
        if asked is None or frame.kind in (wire.WELCOME, wire.RELEASE):
            self._answer(raw + data, fds)
            return
        if asked is not self._now:
            self._now, self._passed = asked, 0
        fault, self._released, self._method = asked
        over = frame.kind in (wire.RESPONSE, wire.STATUS)
        if fault is None:
            self._answer(raw + data, fds)
        elif frame.kind == wire.MESSAGE and self._passed < fault.after:
            self._passed += 1
            self._answer(raw + data, fds)
        else:
            self._faulty(fault, frame, raw[wire.HEADER_BYTES :], data, fds)
            over |= fault.what in ("code", "reason", "cut")  # the rest was read away
        if over:
            with self._answered:
                self._asked.pop(frame.call, None)
                self._answered.notify_all()

    def _faulty(self, fault: Fault, frame: wire.Frame, body: bytes, data: bytes, fds: list[int]) -> None:
        if fault.what == "hang":
            _close(fds)
            self._released.wait()
            raise EOFError
        if fault.what == "close":
            raw = wire.encode_frame(frame.kind, frame.method, frame.call, body, flags=frame.flags, data=frame.data, extra=frame.extra)
            self._answer((raw + data)[: (len(raw) + len(data)) // 2], fds)
            raise EOFError
        if fault.what == "slow":
            raw = wire.encode_frame(frame.kind, frame.method, frame.call, body, flags=frame.flags, data=frame.data, extra=frame.extra) + data
            for i in range(len(raw)):
                self._answer(raw[i : i + 1], fds)
                fds = []
                if self._released.wait(STEP_SECONDS):
                    raise EOFError
            return
        if fault.what in ("code", "reason", "cut"):
            _close(fds)
            status = b"" if fault.what == "cut" else status_of(fault).SerializeToString()
            self._answer(wire.encode_frame(wire.STATUS, frame.method, frame.call, status), [])
            if frame.kind == wire.MESSAGE:
                self._drain()
            return
        if frame.kind == wire.STATUS:
            self._answer(wire.encode_frame(frame.kind, frame.method, frame.call, body), fds)
            return
        frames = [
            wire.encode_frame(kind, frame.method, frame.call, made, flags=flags, data=len(rest)) + rest
            for kind, flags, made, rest in self._spoilt(fault, frame, body, data)
        ]
        self._answer(b"".join(frames), fds)  # at once: two answers are there together
        _close(fds)

    def _answer(self, raw: bytes, fds: list[int]) -> None:
        with self._sending:
            _send(self._client, raw, fds)

    def _drain(self) -> None:
        """Reads away the rest of the call's answer, which ends with RESPONSE or STATUS."""
        while True:
            frame, _, _, fds = _read(self._server)
            _close(fds)
            if frame.kind in (wire.RESPONSE, wire.STATUS):
                return

    def _spoilt(self, fault: Fault, frame: wire.Frame, body: bytes, data: bytes):
        """Frames in place of one: of a batch, each of its chunks is spoilt by itself."""
        rng = self._chaos.rng
        if not frame.flags & wire.CHUNKS:
            return [(frame.kind, frame.flags, made, b"") for made in spoil(fault.what, self._method, body, rng)]
        if fault.what == "garbage":
            return [(frame.kind, frame.flags, rng.randbytes(len(body)), data)]
        made, out, at = bytearray(), bytearray(), 0
        for entry in wire.entries(body, len(data)):
            chunk = b""
            if entry.reference is None:
                chunk = data[at : at + entry.bytes]
                at += entry.bytes
            for message in self._chunk(fault.what, entry, chunk):
                if entry.reference is None:
                    wire.append_entry(made, message[0], len(message[1]))
                    out += message[1]
                else:
                    wire.append_entry(made, message[0], entry.bytes, message[2])
        return [(frame.kind, frame.flags, bytes(made), bytes(out))]

    def _chunk(self, what: str, entry: wire.Entry, chunk: bytes):
        """(head, bytes, reference) of what stands in place of one chunk."""
        reference = entry.reference
        if what == "flip" and reference is not None:  # other bytes of the slab, and another time
            reference = reference._replace(offset=reference.offset ^ 64)
        answer = proto.FetchResponse.FromString(entry.head)
        answer.chunk = chunk
        out = []
        for body in spoil(what, self._method, answer.SerializeToString(), self._chaos.rng):
            answer = proto.FetchResponse.FromString(body)
            chunk = answer.chunk
            answer.ClearField("chunk")
            out.append((answer.SerializeToString(), chunk, reference))
        return out


def _read(sock: socket.socket) -> tuple[wire.Frame, bytes, bytes, list[int]]:
    """One frame: its header, header and body, data, and the descriptors that came with it."""
    fds: list[int] = []
    try:
        head = _exactly(sock, wire.HEADER_BYTES, fds)
        frame = wire.decode_frame(head)
        body = _exactly(sock, frame.body, fds)
        return frame, head + body, _exactly(sock, frame.data, fds), fds
    except BaseException:
        _close(fds)
        raise


def _exactly(sock: socket.socket, n: int, fds: list[int]) -> bytes:
    out = bytearray()
    while len(out) < n:
        if sock.family == socket.AF_UNIX:
            got, ancillary, _, _ = sock.recvmsg(n - len(out), socket.CMSG_SPACE(64 * 4), socket.MSG_CMSG_CLOEXEC)
            for level, kind, raw in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    more = array.array("i")
                    more.frombytes(raw[: len(raw) - len(raw) % more.itemsize])
                    fds += more
        else:
            got = sock.recv(n - len(out))
        if not got:
            raise EOFError
        out += got
    return bytes(out)


def _send(sock: socket.socket, raw: bytes, fds: list[int]) -> None:
    """All of it, the descriptors with the first byte; they are closed here."""
    view = memoryview(raw)
    try:
        if fds and len(view):
            n = sock.sendmsg([view], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))], socket.MSG_NOSIGNAL)
            view = view[n:]
        if len(view):
            sock.sendall(view)
    finally:
        _close(fds)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
    fds.clear()
