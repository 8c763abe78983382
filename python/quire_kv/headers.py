"""Extent headers of one publication, made fast: what is equal in all of them is encoded and checked once.

encode_header ──once for a view and a kind of parent──> template ──hash, parent, id, sums, tail──> header
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import xxhash

from . import kernels
from .kept import keep
from .page import FIXED_BYTES, TAIL_BYTES, ExtentID, Header, View, encode_header, payload_digest, pieces_of

__all__ = ["HeaderMaker"]

_HASH, _PARENT, _EXTENT, _CREATED_AT, _EXPIRY_AT = 136, 200, 264, 376, 392  # offsets in the fixed part (docs/formats/extent-header.md)


class HeaderMaker:
    """`like` is a sound header; its hash, parent, extent id, view and sums are those of the pages that come.

    `templates` are kept over the publications of a session: what is in them but for the hours is in their key.
    """

    def __init__(self, like: Header, templates: dict[tuple, bytes] | None = None) -> None:
        self._like = like
        self._templates = templates if templates is not None else {}
        h = like
        self._common = (h.scope, h.group, h.declared_flops, bool(h.expiry))  # namespace, epoch and provenance are the session's

    def make(self, view: View, page_hash: bytes, parent: bytes, flags: int, writer: bytes, sequence: int, sums: np.ndarray) -> bytes:
        """The header of an extent of `view` with these sums, uint64 [pieces]. FormatError as encode_header."""
        encoded = np.ascontiguousarray(sums, dtype="<u8").tobytes()
        digest = payload_digest(encoded)
        kind = (view, len(parent), flags, len(page_hash), self._common)
        template = self._templates.get(kind)
        if template is None:
            header = self._like._replace(
                view=view, hash=page_hash, parent=parent, flags=flags, extent=ExtentID(writer, sequence, digest), sums=np.frombuffer(encoded, dtype="<u8")
            )
            return keep(self._templates, kind, encode_header(header))
        b = bytearray(template)
        self._date(b, writer)
        b[_HASH : _HASH + len(page_hash)] = page_hash
        b[_PARENT : _PARENT + len(parent)] = parent
        _EXTENT_ID.pack_into(b, _EXTENT, writer, sequence, digest)
        tail = len(b) - TAIL_BYTES
        b[FIXED_BYTES + len(self._like.provenance) : tail] = encoded
        b[tail:] = xxhash.xxh3_128_digest(memoryview(b)[:tail])
        return bytes(b)

    def template(self, view: View, parent_bytes: int, flags: int, writer: bytes, hash_bytes: int) -> bytes:
        """A header of this writer that native code makes others like: of hash, parent, sequence and sums that are none."""
        kind = (view, parent_bytes, flags, hash_bytes, self._common)
        template = self._templates.get(kind)
        if template is None:
            h = self._like
            sums = np.zeros(pieces_of(view.layers, h.cell_bytes).count(view.heads), dtype=np.uint64)
            return self.make(view, bytes(hash_bytes), bytes(parent_bytes), flags, writer, 0, sums)
        b = bytearray(template)
        self._date(b, writer)
        return bytes(b)

    def _date(self, b: bytearray, writer: bytes) -> None:
        _CREATED.pack_into(b, _CREATED_AT, self._like.created)
        _EXPIRY.pack_into(b, _EXPIRY_AT, self._like.expiry)
        b[_EXTENT : _EXTENT + len(writer)] = writer

    def make_all(
        self, view: View, hashes: Sequence[bytes], parents: Sequence[bytes], flags: Sequence[int], writer: bytes, sequence: int, sums: np.ndarray
    ) -> list[bytes]:
        """The headers of extents of several pages, sums uint64 [pages, pieces], sequences from `sequence` on."""
        out: list[bytes] = []
        n = len(hashes)
        while len(out) < n:
            k = len(out)
            kind = (view, len(parents[k]), flags[k])
            out.append(self.make(view, hashes[k], parents[k], flags[k], writer, sequence + k, sums[k]))
            end = k + 1
            while end < n and flags[end] == flags[k] and len(parents[end]) == kind[1] and len(hashes[end]) == len(hashes[k]):
                end += 1
            if end - k == 1:
                continue
            template = out[-1]  # of this writer
            run = kernels.headers(template, b"".join(hashes[k + 1 : end]), b"".join(parents[k + 1 : end]), sequence + k + 1, sums[k + 1 : end])
            if run is None:
                out += [self.make(view, hashes[i], parents[i], flags[i], writer, sequence + i, sums[i]) for i in range(k + 1, end)]
            else:
                size = len(template)
                out += [run[at : at + size] for at in range(0, len(run), size)]
        return out


_CREATED, _EXPIRY = struct.Struct("<Q"), struct.Struct("<I")
_EXTENT_ID = struct.Struct("<16sQ16s")
