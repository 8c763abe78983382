"""The codec of frames (docs/formats/frames.md): headers, hello and welcome, batches of chunks, references.

    0       4      5       6        8      12           16           20      24
    | magic | kind | flags | method | call | body bytes | data bytes | extra | body ... | data ... |

Pure functions over bytes. What a peer says that no peer may say is a QuireError, broken.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from .errors import QuireError, Reason

__all__ = [
    "CHUNKS", "END", "HEADER_BYTES", "HELLO", "MAX_BODY_BYTES", "MAX_DATA_BYTES", "MESSAGE", "METHODS", "MORE",
    "REFERENCE_BYTES", "RELEASE", "REQUEST", "RESPONSE", "STATUS", "WELCOME", "Entry", "Frame", "Reference", "Welcome",
    "append_entry", "decode_frame", "decode_welcome", "encode_frame", "encode_hello", "entries", "page_head", "protocol_error",
]  # fmt: skip

HEADER_BYTES = 24
MAX_BODY_BYTES = 32 << 20  # received: a batch's heads, or answers to a full batch of keys
MAX_DATA_BYTES = 8 << 20  # received
GREETING_BYTES = 16384  # of a body before the welcome
VERSION = 1

HELLO, WELCOME, REQUEST, MESSAGE, END, RESPONSE, STATUS, RELEASE = range(1, 9)  # kinds
MORE, CHUNKS = 1, 2  # flags

METHODS = {
    name: number
    for number, name in enumerate(
        (
            "GetCapabilities", "Attach", "BatchExists", "BeginPublish", "WritePages", "CommitPublish", "AbortPublish",
            "RenewLease", "ReleaseLease", "Fetch", "ReportCorrupt", "BatchDelete", "Touch", "Pin", "WatchPages", "Report",
        ),
        start=1,
    )
}  # fmt: skip

_HEADER = struct.Struct("<4sBBHIIII")
_HELLO = struct.Struct("<HHHH")
_WELCOME = struct.Struct("<HHII16s")
_ENTRY = struct.Struct("<II")
_REFERENCE = struct.Struct("<QQQQQ")
_MAGIC = b"QRF1"
_BY_REFERENCE = 1 << 31
REFERENCE_BYTES = _REFERENCE.size


def protocol_error(text: str) -> QuireError:
    """A peer that says what no peer may say: nothing more of its connection is believed."""
    return QuireError(Reason.UNKNOWN, f"protocol: {text}", broken=True)


class Frame(NamedTuple):
    """A frame's header."""

    kind: int
    flags: int
    method: int
    call: int
    body: int  # bytes
    data: int  # bytes
    extra: int


class Welcome(NamedTuple):
    """What the server takes of one frame, in bytes, and which start of which node it is."""

    body: int
    data: int
    boot: bytes


class Reference(NamedTuple):
    """Names bytes in memory that both ends have mapped (docs/formats/shm.md)."""

    slab: int
    offset: int
    bytes: int
    slot_generation: int
    slab_generation: int


class Entry(NamedTuple):
    """A chunk of a batch: its head, how many bytes it has, and where they are when they are not in the data."""

    head: bytes
    bytes: int
    reference: Reference | None


def encode_frame(kind: int, method: int = 0, call: int = 0, body: bytes | bytearray = b"", *, flags: int = 0, data: int = 0, extra: int = 0) -> bytes:
    """Header and body. The `data` bytes are the caller's to send behind it."""
    return _HEADER.pack(_MAGIC, kind, flags, method, call, len(body), data, extra) + body


def decode_frame(raw: bytes | bytearray | memoryview, offset: int = 0, *, max_body: int = MAX_BODY_BYTES) -> Frame:
    """The header in 24 bytes. Lengths are within our bounds, and only a MESSAGE with CHUNKS has data."""
    magic, kind, flags, method, call, body, data, extra = _HEADER.unpack_from(raw, offset)
    if magic != _MAGIC or not HELLO <= kind <= RELEASE:
        raise protocol_error(f"no frame: {magic!r}, kind {kind}")
    if body > max_body or data > MAX_DATA_BYTES:
        raise protocol_error(f"a frame of {body} and {data} bytes")
    if (flags and (kind, flags) not in ((REQUEST, MORE), (MESSAGE, CHUNKS))) or (data and flags != CHUNKS):
        raise protocol_error(f"kind {kind} with flags {flags} and {data} bytes of data")
    return Frame(kind, flags, method, call, body, data, extra)


def encode_hello(token: str, instance: str) -> bytes:
    """The HELLO frame. QuireError LIMIT_EXCEEDED when it is too long for one."""
    t, i = token.encode(), instance.encode()
    if _HELLO.size + len(t) + len(i) > GREETING_BYTES:
        raise QuireError(Reason.LIMIT_EXCEEDED, f"a token of {len(t)} and an instance of {len(i)} bytes")
    return encode_frame(HELLO, body=_HELLO.pack(VERSION, 0, len(t), len(i)) + t + i)


def decode_welcome(body: bytes) -> Welcome:
    """What later versions append is not looked at."""
    if len(body) < _WELCOME.size:
        raise protocol_error(f"a welcome of {len(body)} bytes")
    version, _, body_bytes, data_bytes, boot = _WELCOME.unpack_from(body)
    if version != VERSION:
        raise protocol_error(f"the server speaks version {version} of the frames")
    if body_bytes < GREETING_BYTES or data_bytes < 1 << 20:
        raise protocol_error(f"the server takes bodies of {body_bytes} and data of {data_bytes} bytes")
    return Welcome(body_bytes, data_bytes, boot)


def page_head(page: int) -> bytes:
    """A WritePagesRequest that says its page alone, encoded: of the start of grant 0, not the first of its stream."""
    if page < 128:
        return _PAGE_HEADS[page]
    out = bytearray(b"\x18")
    while page >= 128:
        out.append(page & 127 | 128)
        page >>= 7
    out.append(page)
    return bytes(out)


_PAGE_HEADS = [b"", *(bytes((3 << 3, page)) for page in range(1, 128))]


def append_entry(body: bytearray, head: bytes, chunk_bytes: int, reference: Reference | tuple[int, int, int, int, int] | None = None) -> None:
    """Appends a chunk to the entries of a batch."""
    if reference is None:
        body += _ENTRY.pack(len(head), chunk_bytes) + head
    else:
        body += _ENTRY.pack(len(head) | _BY_REFERENCE, chunk_bytes) + head + _REFERENCE.pack(*reference)


def entries(body: bytes, data_bytes: int) -> list[Entry]:
    """The chunks of a batch, at least one; the bytes of those without a reference add up to data_bytes."""
    out: list[Entry] = []
    at, end, inline = 0, len(body), 0
    while at < end:
        if end - at < 8:
            raise protocol_error(f"an entry of {end - at} bytes")
        n, chunk = _ENTRY.unpack_from(body, at)
        head_end = at + 8 + (n & ~_BY_REFERENCE)
        if n & _BY_REFERENCE:
            if head_end + REFERENCE_BYTES > end or chunk > MAX_DATA_BYTES:
                raise protocol_error(f"an entry that leaves its batch, or a chunk of {chunk} bytes")
            reference = Reference(*_REFERENCE.unpack_from(body, head_end))
            if reference.bytes != chunk:
                raise protocol_error(f"a reference to {reference.bytes} bytes for a chunk of {chunk}")
            out.append(Entry(body[at + 8 : head_end], chunk, reference))
            at = head_end + REFERENCE_BYTES
        else:
            if head_end > end:
                raise protocol_error("an entry that leaves its batch")
            inline += chunk
            out.append(Entry(body[at + 8 : head_end], chunk, None))
            at = head_end
    if not out or inline != data_bytes:
        raise protocol_error(f"a batch of {len(out)} chunks with {inline} of {data_bytes} bytes")
    return out
