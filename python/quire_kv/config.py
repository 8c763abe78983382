"""The one JSON that configures an adapter.

Every engine hands its adapter a JSON object. The settings below are common to all; an adapter may declare more. Unknown
settings are errors, so that a misspelt one is not a default. Nothing here is identity but `model_digest` and `weights`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .errors import ConfigError
from .hint import CATEGORIES
from .options import MAX_COPY_THREADS, TRANSPORTS, default_instance

__all__ = ["Config", "DEFAULT_SERVER"]

DEFAULT_SERVER = "127.0.0.1:7420"

_DURABILITIES = (None, "memory", "disk")
_DIGEST_HINT = "run `quire model digest DIR` on the checkpoint folder and put the digest that it prints there"
_MAX_TIMEOUT_MS = 60_000
_MAX_INSTANCE = 128


@dataclass(frozen=True)
class Config:
    """Settings of one adapter. Times are in milliseconds as written and in seconds as properties."""

    server: str = DEFAULT_SERVER  # host:port of gRPC, or unix:/path
    token_file: str | None = None  # holds a token of the role engine
    tls_ca: str | None = None  # PEM file of the authority of the server's certificate; turns TLS on
    tls_cert: str | None = None  # PEM file of this client's certificate, with tls_key
    tls_key: str | None = None
    transport: str = "auto"  # auto, shm, data, grpc
    model_digest: str | None = None  # sha256:..., of the weights and config that run
    model_manifest: str | None = None  # the file that `quire model digest` wrote; found by its digest when unset
    weights: str | None = None  # "frozen": the operator's word that they are never changed while the engine runs
    durability: str | None = None  # memory, disk; unset is the namespace's default
    category: str | None = None  # interactive, agent, batch, system: the kind of work of requests that do not say it themselves
    copy_threads: int | None = None  # that copy and sum the pages of one load or save; unset is the adapter's default
    lookup_timeout_ms: int = 300
    load_timeout_ms: int = 1000
    save_timeout_ms: int = 1000
    open_timeout_ms: int = 5000
    instance: str | None = None  # shown to operators; unset is host:pid
    extra: Mapping[str, Any] = field(default_factory=dict)  # the adapter's own settings

    @classmethod
    def parse(cls, settings: Mapping[str, Any] | None, allowed: frozenset[str] = frozenset(), ignored: frozenset[str] = frozenset()) -> Config:
        """The settings of a JSON object. `allowed` are the adapter's own, `ignored` those of the engine.

        ConfigError names the setting that is wrong.
        """
        if settings is None:
            settings = {}
        if not isinstance(settings, Mapping):
            raise ConfigError(f"quire: the configuration is a {type(settings).__name__}; make it a JSON object")
        common = {f.name for f in fields(cls) if f.name != "extra"}
        known: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for name, value in settings.items():
            if name in common:
                known[name] = value
            elif name in allowed:
                extra[name] = value
            elif name not in ignored:
                raise ConfigError(f"quire: unknown setting {name!r}; known are {', '.join(sorted(common | allowed))}")
        config = cls(**known, extra=extra)
        config._check()
        return config

    def _check(self) -> None:
        _one_of("transport", self.transport, TRANSPORTS)
        _one_of("durability", self.durability, _DURABILITIES)
        _one_of("weights", self.weights, (None, "frozen"))
        _one_of("category", self.category, (None, *CATEGORIES))
        for name in ("token_file", "tls_ca", "tls_cert", "tls_key", "model_digest", "model_manifest", "instance"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigError(f"quire: {name} is {value!r}; make it a non-empty string, or leave it out")
        for name in ("lookup_timeout_ms", "load_timeout_ms", "save_timeout_ms", "open_timeout_ms"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_TIMEOUT_MS:
                raise ConfigError(f"quire: {name} is {value!r}; make it whole milliseconds from 1 to {_MAX_TIMEOUT_MS}")
        threads = self.copy_threads
        if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MAX_COPY_THREADS):
            raise ConfigError(f"quire: copy_threads is {threads!r}; make it a whole number from 1 to {MAX_COPY_THREADS}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("quire: tls_cert and tls_key belong together; give both or neither")
        if self.tls_cert is not None and self.tls_ca is None:
            raise ConfigError("quire: tls_cert without tls_ca; name the PEM file of the authority that signed the server's certificate")
        if self.model_digest is not None and not is_digest(self.model_digest):
            raise ConfigError(f"quire: model_digest is {self.model_digest!r}, which is no digest (sha256: and 64 lower-case hex digits); {_DIGEST_HINT}")
        if self.instance is not None and len(self.instance.encode()) > _MAX_INSTANCE:
            raise ConfigError(f"quire: instance is longer than {_MAX_INSTANCE} bytes")
        self._check_server()

    def _check_server(self) -> None:
        server = self.server
        if isinstance(server, str) and server.startswith("unix:"):
            if server.removeprefix("unix:").startswith("/"):
                return
        elif isinstance(server, str):
            host, colon, port = server.rpartition(":")
            if colon and host and port.isdecimal() and 0 < int(port) < 65536:
                return
        raise ConfigError(f"quire: server is {server!r}; make it host:port, or unix:/path/of/a/socket")

    def require_model(self) -> str:
        """The operator's digest of the model. ConfigError says how to get one, or that `weights` must be stated."""
        if self.model_digest is None:
            raise ConfigError(f"quire: model_digest is not set, so the cache stays off; {_DIGEST_HINT}")
        if self.weights != "frozen":
            raise ConfigError(
                'quire: weights is not set, so the cache stays off; put "weights": "frozen" there if nothing changes the weights while the engine runs'
            )
        return self.model_digest

    def token(self) -> str | None:
        """The secret in token_file, read afresh. ConfigError without the secret in its text."""
        if self.token_file is None:
            return None
        try:
            with open(self.token_file, encoding="ascii") as f:
                secret = f.read(4096).strip()
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"quire: token_file {self.token_file!r} cannot be read: {type(e).__name__}") from None
        if not secret:
            raise ConfigError(f"quire: token_file {self.token_file!r} is empty")
        return secret

    @property
    def name(self) -> str:
        """What operators see of this process."""
        return self.instance or default_instance()

    @property
    def lookup_timeout(self) -> float:
        return self.lookup_timeout_ms / 1000

    @property
    def load_timeout(self) -> float:
        return self.load_timeout_ms / 1000

    @property
    def save_timeout(self) -> float:
        return self.save_timeout_ms / 1000

    @property
    def open_timeout(self) -> float:
        return self.open_timeout_ms / 1000


def is_digest(text: object) -> bool:
    """Whether text is sha256: and 64 lower-case hex digits."""
    return isinstance(text, str) and len(text) == 71 and text.startswith("sha256:") and all(c in "0123456789abcdef" for c in text[7:])


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ConfigError(
            f"quire: {name} is {value!r}; make it one of {', '.join(str(a) for a in allowed if a is not None)}"
            + (", or leave it out" if None in allowed else "")
        )
