"""How long one attempt to connect over gRPC may take: longer than a busy machine, or a far one, needs for its first answer."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
from serving import spec_text

from quire_kv.client import Client, Options

pytestmark = pytest.mark.once

LATE_SECONDS = 0.5


def test_a_server_that_greets_late_is_reached(quire_server):
    """The connection stands at once; what the server says first comes late."""
    host, port = quire_server.address.rsplit(":", 1)
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as sockets:

        def pump(source: socket.socket, to: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while said := source.recv(1 << 16):
                    to.sendall(said)
                to.shutdown(socket.SHUT_WR)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near = sockets.enter_context(listener.accept()[0])
                    time.sleep(LATE_SECONDS)
                    far = sockets.enter_context(socket.create_connection((host, int(port))))
                    for ends in ((near, far), (far, near)):
                        threading.Thread(target=pump, args=ends, daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        client = Client(Options(f"127.0.0.1:{listener.getsockname()[1]}", transport="grpc"))
        try:
            assert client.open(spec_text(), timeout=10.0).geometries
        finally:
            client.close()
            listener.shutdown(socket.SHUT_RDWR)
