"""Stands between a client's data connections and a real server, and changes what the server says, frame by frame.

    with FrameProxy(server.data_address) as proxy:
        proxy.raw = lambda frame, body, data: [bytes, ...] or None      what goes to the client in place of a frame
        proxy.messages = lambda pages: pages                            the messages of a Fetch, as (head, chunk)
        client = ProxiedClient(options, proxy)

doubles.chaos fails calls as wholes, over every way in; this one lies in the details of frames.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from quire_kv import proto, wire
from quire_kv.client import Client


class FrameProxy:
    def __init__(self, address: str):
        host, _, port = address.rpartition(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.raw: Callable | None = None
        self.messages: Callable | None = None
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work: Callable, *args: object) -> None:
        t = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(t)
        t.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._sockets |= {client, server}
                self._start(self._up, client, server)
                self._start(self._down, client, server)

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := client.recv(1 << 16):
                server.sendall(piece)
        _end(client, server)

    def _down(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            stream = server.makefile("rb")
            while True:
                raw = _exactly(stream, wire.HEADER_BYTES)
                frame = wire.decode_frame(raw)
                body, data = _exactly(stream, frame.body), _exactly(stream, frame.data)
                out = self._changed(frame, raw, body, data)
                if out is None:
                    break
                for piece in out:
                    client.sendall(piece)
        _end(client, server)

    def _changed(self, frame: wire.Frame, raw: bytes, body: bytes, data: bytes) -> list[bytes] | None:
        if self.raw is not None:
            return self.raw(frame, body, data)
        if self.messages is not None and frame.kind == wire.MESSAGE and frame.flags == wire.CHUNKS:
            pages, at = [], 0
            for e in wire.entries(body, len(data)):
                pages.append((proto.FetchResponse.FromString(e.head), data[at : at + e.bytes]))
                at += e.bytes
            return [encoded(frame, self.messages(pages))]
        return [raw, body, data]

    def close(self) -> None:
        _end(self._listener)
        for s in list(self._sockets):
            _end(s)
        for t in self._threads:
            t.join(5)

    def __enter__(self) -> FrameProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def encoded(frame: wire.Frame, pages: list) -> bytes:
    """A batch of Fetch messages, (head, chunk) each."""
    body = bytearray()
    for head, chunk in pages:
        wire.append_entry(body, head.SerializeToString(), len(chunk))
    data = b"".join(c for _, c in pages)
    return wire.encode_frame(frame.kind, frame.method, frame.call, body, flags=frame.flags, data=len(data)) + data


def _exactly(stream, n: int) -> bytes:
    b = stream.read(n)
    if len(b) != n:
        raise EOFError
    return b


def _end(*sockets: socket.socket) -> None:
    for s in sockets:
        with contextlib.suppress(OSError):
            s.shutdown(socket.SHUT_RDWR)
        s.close()


class ProxiedClient(Client):
    """A client whose data connections go to a proxy."""

    def __init__(self, options, proxy: FrameProxy):
        self._proxy = proxy
        super().__init__(options)

    def _find_ways(self, found):
        return super()._find_ways(found._replace(data_address=self._proxy.address))
