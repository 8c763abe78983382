"""The scope of a request: its adapter by content, and its salt. Adapters are read on the lookup pool, never by the scheduler.

vLLM hashes an adapter's name and path, so that other weights under an old name would look the same. An adapter is
digested when it is first seen, and again when a request asks for it to be loaded in place. Where its files change
without that, which weights the engine runs is not known: nothing is cached for it any more.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from .. import chains, identity
from ..errors import ConfigError

__all__ = ["RequestScopes"]

_PLAIN = bytes(32)
_MAX_ADAPTERS = 4096

_Signature = tuple[tuple[str, int, int, int, int], ...]


class RequestScopes:
    """Scopes of requests, as `scheduling.Scopes` wants them. media: whether requests with images or sound take part."""

    def __init__(self, log: logging.Logger, *, media: bool) -> None:
        self._log = log
        self._media = media
        self._lock = threading.Lock()
        self._digests: dict[tuple[int, str], tuple[_Signature, bytes | None]] = {}

    def quick(self, request: Any) -> bytes | None:
        """The scope of a request without an adapter or media; None: ask slow."""
        if getattr(request, "lora_request", None) is not None or getattr(request, "mm_features", None):
            return None
        return self._scope((), request)

    def slow(self, request: Any) -> bytes | None:
        """The scope of any request; None: it takes no part. Reads the adapter's files."""
        if getattr(request, "mm_features", None) and not self._media:
            return None
        adapter = getattr(request, "lora_request", None)
        if adapter is None:
            return self._scope((), request)
        digest = self._digest(adapter)
        return None if digest is None else self._scope((digest,), request)

    def _scope(self, adapters: tuple[bytes, ...], request: Any) -> bytes:
        salt = getattr(request, "cache_salt", None) or ""
        return chains.scope(adapters, salt.encode()) if adapters or salt else _PLAIN

    def _digest(self, adapter: Any) -> bytes | None:
        key = (int(adapter.lora_int_id), str(adapter.lora_path))
        try:
            signature = _signature(key[1])
            with self._lock:
                known = self._digests.get(key)
            if known is not None and not adapter.load_inplace:
                if known[0] == signature or known[1] is None:
                    return known[1]
                self._log.error(
                    "quire: the files of adapter %s changed while it is loaded; nothing is cached for it until it is loaded in place", adapter.lora_name
                )
                digest = None
            elif known is not None and known[0] == signature:
                return known[1]
            else:
                digest = identity.lora_digest(key[1])
                if _signature(key[1]) != signature:
                    digest = None
        except (ConfigError, OSError) as e:
            self._log.error("quire: adapter %s cannot be digested, so nothing is cached for it: %s", adapter.lora_name, e)
            signature, digest = (), None
        with self._lock:
            if len(self._digests) >= _MAX_ADAPTERS:
                self._digests.pop(next(iter(self._digests)))
            self._digests[key] = (signature, digest)
        return digest


def _signature(folder: str) -> _Signature:
    """Name, inode, size and times of every file."""
    out = []
    for entry in os.scandir(folder):
        info = entry.stat()
        out.append((entry.name, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns))
    return tuple(sorted(out))
