"""Byte streams with absolute deadlines: TCP, TLS 1.3, and UNIX sockets that carry descriptors.

A read or write waits for its call's deadline at most, and not at all once the call is cancelled: `abort` ends every
wait at once, from any thread. Nothing here allocates for a length that a peer named.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import ssl
import struct
from collections import deque
from collections.abc import Sequence
from typing import NoReturn

from .deadline import Call, DeadlineError
from .errors import QuireError, Reason
from .kernels import OVERDUE
from .options import Tls

__all__ = ["Stream", "close_all", "dial_tcp", "dial_unix", "gone"]

_SLACK_SECONDS = 0.005  # by which a wait may miss a deadline rather than set its timer again
_CUT_OFF, _NO_SIGNAL = int(socket.MSG_CTRUNC), int(socket.MSG_NOSIGNAL)  # numbers: to combine flags as enums takes longer than the call
_CLOSE_ON_EXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_MAX_DESCRIPTORS = 256  # that wait to be taken
_ANCILLARY_BYTES = socket.CMSG_SPACE(64 * 4)
_TIMEVAL = struct.Struct("@ll")
_KEEPALIVE_SECONDS = 20
_MAX_VECTORS = 512  # of one sendmsg


def gone(error: BaseException) -> QuireError:
    """The connection is over."""
    return QuireError(Reason.UNKNOWN, f"connection: {error or type(error).__name__}", broken=True)


class Stream:
    """One connected socket. One call uses it at a time; abort and close may come from anywhere."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._unix = sock.family == socket.AF_UNIX
        self._armed = array.array("d", [0.0, 0.0])  # seconds of the receive and the send timer
        self._timers = self._armed.buffer_info()[0]
        if not self._tls:
            sock.settimeout(None)
        self._poll = select.poll()  # of whoever uses the stream
        self._poll.register(sock.fileno(), select.POLLIN | select.POLLRDHUP)
        self.descriptors: deque[int] = deque()  # received and not taken, in order

    def _arm(self, send: int, left: float) -> None:
        if self._tls:
            self._sock.settimeout(left)
        elif not left <= self._armed[send] <= left + _SLACK_SECONDS:
            micros = max(1, int(left * 1e6))
            option = socket.SO_SNDTIMEO if send else socket.SO_RCVTIMEO
            self._sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(*divmod(micros, 1_000_000)))
            self._armed[send] = left

    @property
    def native(self) -> tuple[int, int] | None:
        """Descriptor, and address of the seconds of the receive and the send timer, for native code that waits itself. None
        over TLS."""
        return None if self._tls else (self._sock.fileno(), self._timers)

    def failed(self, error: int, call: Call) -> NoReturn:
        """Raises what an error of native code means: an errno, ENDED or OVERDUE of kernels."""
        if error == OVERDUE:
            call.left()
            raise DeadlineError
        self._cancelled(call)
        raise gone(OSError(error, os.strerror(error)) if error > 0 else EOFError("closed by the server"))

    def receive(self, into: Sequence[memoryview], call: Call | None, *, whole: bool = False) -> int:
        """Receives at least one byte into the buffers, all of them (not over TLS and UNIX) with `whole`. Returns how
        many. Without a call it waits until the stream is aborted. QuireError when the connection is over."""
        try:
            while True:
                self._arm(0, call.left() if call is not None else 3600.0)
                try:
                    n = self._receive(into, whole)
                except (BlockingIOError, TimeoutError, ssl.SSLWantReadError):
                    continue  # left() knows whether the time is over
                if n:
                    return n
                break
        except OSError as e:
            self._cancelled(call)
            raise gone(e) from None
        self._cancelled(call)
        raise gone(EOFError("closed by the server"))

    def _receive(self, into: Sequence[memoryview], whole: bool) -> int:
        if self._tls:
            return self._sock.recv_into(into[0])
        if not self._unix:
            if len(into) == 1:
                return self._sock.recv_into(into[0], 0, socket.MSG_WAITALL if whole else 0)
            return self._sock.recvmsg_into(into, 0, socket.MSG_WAITALL if whole else 0)[0]
        n, ancillary, flags, _ = self._sock.recvmsg_into(into, _ANCILLARY_BYTES, _CLOSE_ON_EXEC)
        got = b"".join(data[: len(data) - len(data) % 4] for level, kind, data in ancillary if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS)
        self._keep(got, bool(flags & _CUT_OFF))
        return n

    def _keep(self, descriptors: bytes, lost: bool) -> None:
        if descriptors:
            got = array.array("i")
            got.frombytes(descriptors)
            self.descriptors.extend(got)
        if lost or len(self.descriptors) > _MAX_DESCRIPTORS:
            raise OSError("descriptors that nobody takes")

    # For native code that sends and receives by itself.

    def fileno(self) -> int:
        return self._sock.fileno()

    def arm(self, call: Call) -> None:
        """Bounds every wait of the next send and receive by the call's time."""
        left = call.left()
        self._arm(0, left)
        self._arm(1, left)

    def received(self, descriptors: bytes, *, lost: bool) -> None:
        """Takes over descriptors, ints, that came. QuireError when there are too many, or some were lost."""
        try:
            self._keep(descriptors, lost)
        except OSError as e:
            raise gone(e) from None

    def send(self, buffers: Sequence[bytes | bytearray | memoryview], call: Call, descriptors: Sequence[int] = ()) -> None:
        """Sends all of the buffers, and with their first byte the descriptors, which stay the caller's."""
        try:
            if self._tls:
                for b in buffers:
                    self._send_tls(memoryview(b), call)
                return
            rest = deque(memoryview(b) for b in buffers if len(b))
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            while rest:
                self._arm(1, call.left())
                try:
                    n = self._sock.sendmsg([*rest][:_MAX_VECTORS] if len(rest) > _MAX_VECTORS else rest, ancillary, _NO_SIGNAL)
                except (BlockingIOError, TimeoutError):
                    continue
                ancillary = []
                while rest and n >= len(rest[0]):
                    n -= len(rest.popleft())
                if n:
                    rest[0] = rest[0][n:]
        except OSError as e:
            self._cancelled(call)
            raise gone(e) from None

    def _send_tls(self, b: memoryview, call: Call) -> None:
        while len(b):
            self._arm(1, call.left())
            try:
                b = b[self._sock.send(b) :]
            except (TimeoutError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                continue

    def _cancelled(self, call: Call | None) -> None:
        if call is not None and call.cancelled is not None:
            raise call.cancelled from None

    def idle(self) -> bool:
        """Whether the connection stands and nothing has come that nobody asked for. Call it between calls."""
        if self._tls and self._sock.pending():  # type: ignore[attr-defined]
            return False
        return not self.readable()

    def readable(self) -> bool:
        """Whether something has come."""
        return bool(self._poll.poll(0))

    def abort(self) -> None:
        """Ends every wait on the connection, now and later. It stays to be closed by its user."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Gives the socket and untaken descriptors back. Idempotent; nobody may be using it."""
        close_all(self.descriptors)
        self._sock.close()

    def forget(self) -> None:
        """Closes the descriptor in a forked child: what the parent has stays."""
        with contextlib.suppress(OSError):
            os.close(self._sock.detach())
        close_all(self.descriptors)


def close_all(descriptors: deque[int]) -> None:
    """Closes and forgets descriptors."""
    while descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptors.popleft())


def _connect(sock: socket.socket, address: object, call: Call) -> None:
    """Connects within the call's time; cancelling the call ends the attempt."""
    wake = _Abort(sock)
    call.register(wake)
    try:
        sock.settimeout(call.left())
        sock.connect(address)  # type: ignore[arg-type]
    except TimeoutError:
        sock.close()
        raise DeadlineError("no connection in time") from None
    except OSError as e:
        sock.close()
        if call.cancelled is not None:
            raise call.cancelled from None
        raise gone(e) from None
    except QuireError:
        sock.close()
        raise
    finally:
        call.unregister(wake)


class _Abort:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def __call__(self) -> None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)


def dial_unix(path: str, call: Call) -> Stream:
    """Connects to a UNIX socket."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    _connect(sock, path, call)
    return Stream(sock)


def dial_tcp(host: str, port: int, tls: ssl.SSLContext | None, server_name: str, call: Call) -> Stream:
    """Connects to host and port, with TLS when a context is given."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as e:
        raise gone(e) from None
    error: QuireError | None = None
    for family, kind, proto, _, address in found[:8]:
        sock = socket.socket(family, kind, proto)
        try:
            _connect(sock, address, call)
        except DeadlineError:
            raise
        except QuireError as e:
            error = e
            call.left()
            continue
        _tune(sock)
        return Stream(sock if tls is None else _secure(sock, tls, server_name, call))
    raise error if error is not None else gone(OSError(f"no address for {host}"))


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_SECONDS // 4)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def _secure(sock: socket.socket, tls: ssl.SSLContext, server_name: str, call: Call) -> ssl.SSLSocket:
    wake = _Abort(sock)
    call.register(wake)
    wrapped: ssl.SSLSocket | None = None
    try:
        sock.settimeout(call.left())
        wrapped = tls.wrap_socket(sock, server_hostname=server_name, do_handshake_on_connect=False)
        wrapped.do_handshake()
        return wrapped
    except TimeoutError:
        (wrapped or sock).close()
        raise DeadlineError("no TLS connection in time") from None
    except (OSError, ValueError) as e:
        (wrapped or sock).close()
        if call.cancelled is not None:
            raise call.cancelled from None
        raise gone(e) from None
    except QuireError:
        (wrapped or sock).close()
        raise
    finally:
        call.unregister(wake)


def tls_context(tls: Tls | None) -> ssl.SSLContext:
    """TLS 1.3 that verifies the server. QuireError UNAUTHORIZED when a file cannot be read."""
    try:
        context = ssl.create_default_context(cafile=tls.ca if tls is not None else None)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if tls is not None and tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
        return context
    except (OSError, ValueError) as e:
        raise QuireError(Reason.UNAUTHORIZED, f"tls: {e}") from None
