"""The store's client: what Python programs import.

    client = Client(Options("127.0.0.1:7420"))          does not dial
    session = client.open(spec, timeout=5)              create-or-get of the namespace by what the model is
    there = session.exists(keys, lease=10.0)            one call; the leading run is pinned
    pages = session.fetch(keys[:there.leading], memory, lease=there.lease)
    session.publish(keys, memory, parent=ROOT_PARENT)
    client.close()

Every call ends by its timeout, and raises QuireError and nothing else. Page bytes go over the best transport that can be
had: memory shared with a node of this host, data connections, gRPC. One that cannot be reached is left alone for a while.

Threads: one for each open session, which reads its attach stream, and none besides while nothing runs or was left to be
given back. After a fork the
child has a client without connections; sessions are opened again there. Fork safety is that of the frames: gRPC is used
in short, to open and to find the transports, and a process that forks while it is in use should use spawn instead.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from . import proto, shm
from .aborts import Aborts
from .deadline import Call, DeadlineError, again
from .errors import QuireError, Reason
from .frame_transport import FrameTransport
from .frames import Connection, Unreachable
from .grpc_transport import Channel, GrpcTransport
from .lease import Lease
from .options import Options, Tls, loopback
from .page import Page, View
from .publish import ROOT_PARENT, UNKNOWN_PARENT, Parent, repeated
from .session import Presence, Session, Sibling, digest
from .sockets import dial_tcp, dial_unix, tls_context
from .transport import Transport

__all__ = [
    "Capabilities", "Client", "DeadlineError", "Lease", "Options", "Page", "Parent", "Presence", "QuireError", "ROOT_PARENT",
    "Reason", "Session", "Sibling", "Tls", "UNKNOWN_PARENT", "View",
]  # fmt: skip

_CALLS_OF_A_KIND = 4  # at once on one transport, unless more data connections are asked for
_FIRST_REST, _LONGEST_REST = 1.0, 30.0  # seconds that a transport without a connection is left alone
_MIN_CHUNK_BYTES = 64 << 10


class Capabilities(NamedTuple):
    """What the server says of itself. Sizes are bytes, times seconds."""

    max_keys: int  # of one request
    max_batch_bytes: int  # payload of one Begin or Fetch
    max_chunk_bytes: int
    max_lease: float
    boot: bytes  # of this start, 16 bytes
    version: str
    data_address: str
    shm_socket: str


class Client:
    """One server and the ways to it. Thread-safe."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._on_copied: Callable[[], None] | None = None  # called between the last byte copied and the look at generations
        self._begin()
        _alive.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._learning = threading.Lock()
        self._closed: QuireError | None = None
        self._channel = Channel(self.options)
        self._grpc = GrpcTransport(self._channel)
        self._known: Capabilities | None = None
        self._suspect = False  # a transport had no connection: what is known may be old
        self._ways: list[_Way] = []
        self._slabs = shm.Slabs()
        self._budget = shm.Budget(self.options.staging_bytes)
        self._stagings = shm.Stagings()
        self._sessions: set[Session] = set()
        self._aborts = Aborts()
        self._writer = os.urandom(16)
        self._sequence = 0

    # -- sessions ------------------------------------------------------------------------------------------------

    def open(self, spec: str, timeout: float | None = None) -> Session:
        """A session on the namespace of a spec (YAML or JSON), which is made when it is not there. QuireError with the
        reason, the path of a wrong field, and what differs from the nearest sibling."""
        call = self._call(timeout)
        request = proto.OpenRequest(spec=spec)
        answer = repeated(call, lambda: self._channel.unary("NamespaceService.Open", request, call))
        session = Session(self, answer.namespace, answer.provenance, answer.canonical_provenance, answer.siblings)
        return self._begin_session(session, call)

    def open_id(self, namespace: bytes, canonical_provenance: bytes | None = None, timeout: float | None = None) -> Session:
        """A session on a namespace that another process opened. `canonical_provenance` is that session's; without one the
        session reads only."""
        call = self._call(timeout)
        request = proto.GetRequest(id=namespace)
        answer = repeated(call, lambda: self._channel.unary("NamespaceService.Get", request, call))
        canonical = canonical_provenance or b""
        return self._begin_session(Session(self, answer.namespace, digest(canonical) if canonical else b"", canonical), call)

    def _begin_session(self, session: Session, call: Call) -> Session:
        session.boot = self._limits(call).boot
        with self._lock:
            if self._closed is not None:
                raise again(self._closed)
            self._sessions.add(session)
        try:
            session._attach(call)
        except BaseException:
            session.close(0.1)
            raise
        self._spare_channel()
        return session

    def _forget_session(self, session: Session) -> None:
        with self._lock:
            self._sessions.discard(session)

    def namespaces(self, method: str, request: Any, timeout: float | None = None) -> Any:
        """A raw call of NamespaceService, by name: `client.namespaces("Retire", proto.RetireRequest(id=namespace))`."""
        call = self._call(timeout)
        answer = self._channel.unary(f"NamespaceService.{method}", request, call)
        self._spare_channel()
        return answer

    def capabilities(self, timeout: float | None = None) -> Capabilities:
        """What the server says now: asks it, over the transport in use. QuireError when it does not answer."""
        call = self._call(timeout)
        self._limits(call)
        return _capabilities(self._route(call, lambda t: t.unary("GetCapabilities", proto.GetCapabilitiesRequest(), call)))

    # -- the state -----------------------------------------------------------------------------------------------

    @property
    def transport(self) -> str:
        """What the next call takes: shm, data or grpc."""
        for way in self._ways:
            if way.usable or self.options.transport != "auto":
                return way.transport.name
        return "grpc"

    @property
    def why(self) -> str:
        """Why no better transport is in use; empty: none is better, or allowed."""
        return "; ".join(f"{w.transport.name}: {w.why}" for w in self._ways if w.why)

    def close(self, timeout: float = 1.0) -> None:
        """Ends sessions, calls in flight and connections, within the timeout. Idempotent."""
        deadline = time.monotonic() + timeout
        why = QuireError(Reason.ABORTED, "the client is closed")
        with self._lock:
            self._closed = self._closed or why
            sessions, ways = list(self._sessions), list(self._ways)
        for s in sessions:
            s._life.cancel(why)  # all at once, so that they end side by side
        for s in sessions:
            s.close(max(0.05, deadline - time.monotonic()))
        self._aborts.close(why, deadline)
        for w in ways:
            w.transport.close(deadline)
        self._channel.close(why)
        self._slabs.clear()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- transports ----------------------------------------------------------------------------------------------

    def _call(self, timeout: float | None) -> Call:
        if self._closed is not None:
            raise again(self._closed)
        return Call(self.options.call_timeout if timeout is None else timeout)

    def staging(self, size: int) -> shm.Staging:
        """Memory of so many bytes to publish from without a copy on this side. Make few and keep them: a node maps 64
        areas and 1 GiB of one connection at least; beyond that, what is published is copied. Not of use in a forked child.
        QuireError UNSUPPORTED where there is no such memory."""
        if not shm.AVAILABLE:
            raise QuireError(Reason.UNSUPPORTED, "this system has no memfd")
        try:
            return shm.Staging(size, self._stagings)
        except (OSError, ValueError, OverflowError) as e:
            raise QuireError(Reason.UNSUPPORTED, f"staging of {size} bytes: {e}") from None

    def _next_sequences(self, n: int) -> int:
        """The first of n sequence numbers that nothing of this writer had."""
        with self._lock:
            first = self._sequence + 1
            self._sequence += n
            return first

    def _limits(self, call: Call) -> Capabilities:
        """What the server takes, asked once, and again when there is doubt whether it is the same one."""
        known = self._known
        if known is not None and not self._suspect:
            return known
        if not self._learning.acquire(timeout=call.left()):
            call.left()
            raise DeadlineError
        try:
            if self._known is None or self._suspect:
                self._learn(call)
            assert self._known is not None
            return self._known
        finally:
            self._learning.release()
            if self._ways:  # calls go there, or wait until they can: also of a store that is away no channel is held
                self._channel.release()

    def _learn(self, call: Call) -> None:
        answer = repeated(call, lambda: self._channel.unary("PageService.GetCapabilities", proto.GetCapabilitiesRequest(), call))
        found = _capabilities(answer)
        old = self._known
        self._known, self._suspect = found, False
        if old is not None and old == found:
            return
        ways = self._find_ways(found)
        with self._lock:
            before, self._ways = self._ways, ways
        for w in before:
            w.transport.close(time.monotonic())

    def _find_ways(self, found: Capabilities) -> list[_Way]:
        """The transports that server and options have in common, the best first. QuireError UNSUPPORTED for one that was
        asked for and is not to be had."""
        ways: list[_Way] = []
        limit = max(_CALLS_OF_A_KIND, self.options.data_connections)
        for name, offer in (("shm", self._shm_dialer), ("data", self._data_dialer)):
            if self.options.transport not in ("auto", name):
                continue
            dial, why = offer(found)
            if dial is None:
                if self.options.transport == name:
                    raise QuireError(Reason.UNSUPPORTED, f"transport {name}: {why}")
                continue
            slabs = self._slabs if name == "shm" else None
            ways.append(_Way(FrameTransport(name, self._greeted(dial, found.boot), limit, slabs, self._budget, self._stagings)))
        return ways

    def _shm_dialer(self, found: Capabilities) -> tuple[Callable[[Call], Any] | None, str]:
        path = found.shm_socket
        if not path:
            return None, "the server does not offer it"
        if not shm.AVAILABLE:
            return None, "this system has no memfd"
        if not os.path.exists(path):
            return None, f"{path} is not on this host"
        return lambda call: dial_unix(path, call), ""

    def _data_dialer(self, found: Capabilities) -> tuple[Callable[[Call], Any] | None, str]:
        o = self.options
        host, _, port = found.data_address.rpartition(":")
        host = host.strip("[]")
        if not port.isdigit():
            return None, "the server does not offer it"
        if host in ("", "0.0.0.0", "::"):
            host = o.host
        if o.plaintext:
            if o.token and not o.insecure and not loopback(host):
                return None, f"without TLS the token would go to {host} in the clear"
            return lambda call: dial_tcp(host, int(port), None, "", call), ""
        context = tls_context(o.tls)
        name = o.tls.server_name if o.tls is not None and o.tls.server_name else o.host
        return lambda call: dial_tcp(host, int(port), context, name, call), ""

    def _greeted(self, dial: Callable[[Call], Any], boot: bytes) -> Callable[[Call], Connection]:
        """Makes connections that are greeted, and are of the start of the node that gRPC answered for."""

        def connect(call: Call) -> Connection:
            connection = Connection(dial(call))
            call.register(connection.abort)
            try:
                connection.greet(self.options.token or "", self.options.instance, call)
                if connection.welcome.boot != boot:
                    raise QuireError(Reason.UNKNOWN, "another node, or another start of it, answers there", broken=True)
            except BaseException:
                connection.close()
                raise
            finally:
                call.unregister(connection.abort)
            return connection

        return connect

    def _route(self, call: Call, use: Callable[[Transport], Any]) -> Any:
        """Makes a call over the first transport that has a connection. One that has none has sent nothing, so the call
        goes on to the next."""
        self._limits(call)
        forced = self.options.transport != "auto"
        for way in self._ways:
            if not forced and not way.usable:
                continue
            try:
                out = use(way.transport)
            except Unreachable as e:
                way.failed(e)
                self._suspect = True
                if forced or call.expired():
                    raise
                continue
            way.up()
            return out
        return use(self._grpc)

    def _spare_channel(self) -> None:
        """An idle client over frames holds no channel."""
        if self.transport != "grpc":
            self._channel.release()

    # -- fork ----------------------------------------------------------------------------------------------------

    def _forked(self) -> None:
        for w in self._ways:
            w.transport.forget()
        self._channel.forget()
        for s in self._sessions:
            s._forked()
        closed = self._closed
        self._begin()
        self._closed = closed


class _Way:
    """A transport that speaks frames, and whether it can be reached:

    up ──no connection──> resting ──rest is over, a call gets through──> up
    """

    def __init__(self, transport: FrameTransport) -> None:
        self.transport = transport
        self.why = ""
        self._rest = 0.0
        self._until = 0.0

    @property
    def usable(self) -> bool:
        return not self.why or time.monotonic() >= self._until

    def failed(self, error: QuireError) -> None:
        self._rest = min(2 * self._rest or _FIRST_REST, _LONGEST_REST)
        self._until = time.monotonic() + self._rest
        self.why = str(error)

    def up(self) -> None:
        if self.why:
            self.why, self._rest = "", 0.0


def _capabilities(m: Any) -> Capabilities:
    """QuireError UNSUPPORTED for limits that nothing fits into."""
    if m.max_keys < 1 or m.max_batch_bytes < 1 or m.max_chunk_bytes < _MIN_CHUNK_BYTES:
        raise QuireError(
            Reason.UNSUPPORTED,
            f"server limits of {m.max_keys} keys, {m.max_batch_bytes} batch bytes, {m.max_chunk_bytes} chunk bytes",
            broken=True,
        )
    longest = proto.seconds(m.max_lease) or 60.0
    return Capabilities(m.max_keys, m.max_batch_bytes, m.max_chunk_bytes, longest, bytes(m.boot_id), m.version, m.data_address, m.shm_socket)


_alive: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_alive):
        with contextlib.suppress(Exception):
            client._forked()


os.register_at_fork(after_in_child=_after_fork)
