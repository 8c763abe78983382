"""Extent headers of one publication, made fast: what is equal in all of them is encoded and checked once.

encode_header ──once for a view and a kind of parent──> template ──hash, parent, id, sums, tail──> header
"""

from __future__ import annotations

import struct

import numpy as np
import xxhash

from .page import FIXED_BYTES, TAIL_BYTES, ExtentID, Header, View, encode_header, payload_digest

__all__ = ["HeaderMaker"]

_HASH, _PARENT, _EXTENT = 136, 200, 264  # offsets in the fixed part (docs/formats/extent-header.md)


class HeaderMaker:
    """`like` is a sound header; its hash, parent, extent id, view and sums are those of the pages that come."""

    def __init__(self, like: Header) -> None:
        self._like = like
        self._templates: dict[tuple[View, int, int], bytes] = {}

    def make(self, view: View, page_hash: bytes, parent: bytes, flags: int, writer: bytes, sequence: int, sums: np.ndarray) -> bytes:
        """The header of an extent of `view` with these sums, uint64 [pieces]. FormatError as encode_header."""
        encoded = np.ascontiguousarray(sums, dtype="<u8").tobytes()
        digest = payload_digest(encoded)
        kind = (view, len(parent), flags)
        template = self._templates.get(kind)
        if template is None:
            header = self._like._replace(
                view=view, hash=page_hash, parent=parent, flags=flags, extent=ExtentID(writer, sequence, digest), sums=np.frombuffer(encoded, dtype="<u8")
            )
            template = self._templates[kind] = encode_header(header)
            return template
        b = bytearray(template)
        b[_HASH : _HASH + len(page_hash)] = page_hash
        b[_PARENT : _PARENT + len(parent)] = parent
        _EXTENT_ID.pack_into(b, _EXTENT, writer, sequence, digest)
        tail = len(b) - TAIL_BYTES
        b[FIXED_BYTES + len(self._like.provenance) : tail] = encoded
        b[tail:] = xxhash.xxh3_128_digest(memoryview(b)[:tail])
        return bytes(b)


_EXTENT_ID = struct.Struct("<16sQ16s")
