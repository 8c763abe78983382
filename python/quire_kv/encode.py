"""Fields of protobuf messages as bytes, for requests that are made often: what is equal in all of them is encoded once, and
fields are joined. Bytes of several fields, in any order, are a message; `proto` reads them.
"""

from __future__ import annotations

__all__ = ["field", "number", "run", "seconds"]


def varint(value: int) -> bytes:
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(tag: int, data: bytes) -> bytes:
    """Field number `tag`, up to 15, of bytes, text or a message; nothing for no bytes."""
    return bytes((tag << 3 | 2,)) + varint(len(data)) + data if data else b""


def number(tag: int, value: int) -> bytes:
    """Field number `tag`, up to 15, of a number that is not negative, a bool or an enum; nothing for 0."""
    return bytes((tag << 3,)) + varint(value) if value else b""


def seconds(tag: int, value: float) -> bytes:
    """Field number `tag` of a google.protobuf.Duration, not negative; it is there for 0 too."""
    whole = int(value)
    nanos = min(999_999_999, int((value - whole) * 1e9))
    data = number(1, whole) + number(2, nanos or int(not whole and value > 0))
    return field(tag, data) or bytes((tag << 3 | 2, 0))


def run(tag: int, scope: bytes, group: bytes, hashes: bytes) -> bytes:
    """Field number `tag` of a KeyRun."""
    return field(tag, field(1, scope) + field(2, group) + field(3, hashes))
