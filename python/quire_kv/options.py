"""What a client is told: where the server is, who calls, which transport, and how long a call may take."""

from __future__ import annotations

import functools
import ipaddress
import os
import socket
from dataclasses import dataclass, field

from .errors import ConfigError

__all__ = ["MAX_COPY_THREADS", "TRANSPORTS", "Options", "Tls", "default_instance"]

MAX_COPY_THREADS = 64
TRANSPORTS = ("auto", "shm", "data", "grpc")

_MAX_DATA_CONNECTIONS = 16
_MAX_STAGING_BYTES = 1 << 30  # what a node takes at least of one connection's areas


@dataclass(frozen=True)
class Tls:
    """Files of TLS 1.3, all PEM. `ca` verifies the server, None the system's roots; `cert` and `key` are the client's
    own certificate, both or neither. `server_name` is the name in the server's certificate, default the host dialled."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    server_name: str | None = None


def default_instance() -> str:
    """What operators see of this process when it was given no name."""
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(frozen=True)
class Options:
    """Options of a Client. Wrong ones are a ConfigError that names the option.

    `address` is "host:port" of the server's gRPC, or "unix:/path" where that is served at a UNIX socket; the other
    transports are found through it. `token` is a bearer token; it is sent in the clear only to loopback or with
    `insecure`. Without `tls` and `insecure` a loopback address is plaintext and every other one TLS with the system's
    roots. `transport` is one of TRANSPORTS: auto takes shared memory where the node is on this host, else data
    connections, else gRPC, call by call. `instance` is shown to operators. `data_connections` is how many connections
    carry one large fetch. `staging_bytes` bounds the memory that all publications over shared memory are copied
    through. `copy_threads` is how many threads one copy takes, this one included. `call_timeout` is seconds of a call that names none.
    """

    address: str
    token: str | None = field(default=None, repr=False)
    tls: Tls | None = None
    insecure: bool = False
    transport: str = "auto"
    instance: str = field(default_factory=default_instance)
    data_connections: int = 2
    staging_bytes: int = 256 << 20
    copy_threads: int = 1
    call_timeout: float = 2.0

    def __post_init__(self) -> None:
        if not self.address.startswith("unix:"):
            host, _, port = self.address.rpartition(":")
            if not host or not port.isdigit() or int(port) > 65535:
                raise ConfigError(f"address {self.address!r}: want host:port or unix:/path")
        if self.transport not in TRANSPORTS:
            raise ConfigError(f"transport {self.transport!r}: want one of {', '.join(TRANSPORTS)}")
        if self.tls is not None and (self.tls.cert is None) != (self.tls.key is None):
            raise ConfigError("tls: a client certificate needs both cert and key")
        if self.tls is not None and self.insecure:
            raise ConfigError("insecure and tls exclude each other")
        if not 1 <= self.data_connections <= _MAX_DATA_CONNECTIONS:
            raise ConfigError(f"data_connections is {self.data_connections}: want 1 to {_MAX_DATA_CONNECTIONS}")
        if not 1 << 20 <= self.staging_bytes <= _MAX_STAGING_BYTES:
            raise ConfigError(f"staging_bytes is {self.staging_bytes}: want {1 << 20} to {_MAX_STAGING_BYTES}")
        if not 1 <= self.copy_threads <= MAX_COPY_THREADS:
            raise ConfigError(f"copy_threads is {self.copy_threads}: want 1 to {MAX_COPY_THREADS}")
        if not 0 < self.call_timeout < 3600:
            raise ConfigError(f"call_timeout is {self.call_timeout}: want seconds, above 0")

    @property
    def host(self) -> str:
        """The host of the address, without brackets; "localhost" for a UNIX socket."""
        if self.address.startswith("unix:"):
            return "localhost"
        return self.address.rpartition(":")[0].strip("[]")

    @functools.cached_property
    def plaintext(self) -> bool:
        """Whether connections go without TLS."""
        return self.tls is None and (self.insecure or loopback(self.host))


def loopback(host: str) -> bool:
    """Whether only this machine can be reached at host. Names are not looked up: of names, only localhost counts."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
