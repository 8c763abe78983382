"""One byte form for plain values, so that Go and Python make one digest of one configuration.

JSON has several texts for one number and one string. This form has one: a tag, then the value.

    n                 nothing             t, f              true, false
    i<decimal>;       a whole number      d<16 hex>;        any other number: its IEEE 754 bits
    s<bytes>:<UTF-8>  a string            l<items>:...      a list
    m<entries>:...    a mapping with string keys, ascending by their UTF-8: key, value, key, value

A float that is a whole number below 2^53 in size is written as that number: JSON writers disagree about 1e5, 100000 and
100000.0. The form is docs/formats/model-manifest.md's; internal/checkpoint/canonical.go is its twin.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from typing import Any

__all__ = ["MAX_DEPTH", "canonical", "digest_of", "says_nothing", "sha256_text"]

MAX_DEPTH = 32
_WHOLE = 1 << 53


def canonical(value: Any) -> bytes:
    """The bytes of a value made of None, bool, int, float, str, lists, tuples and mappings with string keys.

    ValueError on anything else, and on values nested deeper than MAX_DEPTH.
    """
    out: list[bytes] = []
    _write(value, out, 0)
    return b"".join(out)


def digest_of(value: Any, domain: str) -> str:
    """`sha256:` and the digest of the domain's name, a newline and the canonical bytes."""
    return sha256_text(domain.encode() + b"\n" + canonical(value))


def sha256_text(data: bytes) -> str:
    """The digest of bytes as the store writes digests."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def says_nothing(value: Any) -> bool:
    """Whether a setting is as good as absent: None, False, or empty. Zero is a value."""
    return value is None or value is False or (isinstance(value, (str, list, tuple, Mapping)) and not value)


def _write(value: Any, out: list[bytes], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if value is None:
        out.append(b"n")
    elif isinstance(value, bool):
        out.append(b"t" if value else b"f")
    elif isinstance(value, int):
        out.append(b"i%d;" % value)
    elif isinstance(value, float):
        out.append(_number(value))
    elif isinstance(value, str):
        _text(value, out)
    elif isinstance(value, (list, tuple)):
        out.append(b"l%d:" % len(value))
        for item in value:
            _write(item, out, depth + 1)
    elif isinstance(value, Mapping):
        _mapping(value, out, depth)
    else:
        raise ValueError(f"a {type(value).__name__} is no plain value")


def _number(value: float) -> bytes:
    if math.isfinite(value) and value.is_integer() and abs(value) < _WHOLE:
        return b"i%d;" % int(value)
    return b"d" + struct.pack(">d", value).hex().encode() + b";"


def _text(value: str, out: list[bytes]) -> None:
    data = value.encode()  # UnicodeEncodeError is a ValueError
    out.append(b"s%d:" % len(data))
    out.append(data)


def _mapping(value: Mapping[Any, Any], out: list[bytes], depth: int) -> None:
    entries = []
    for key, item in value.items():
        if isinstance(key, bool) or not isinstance(key, (str, int)):
            raise ValueError(f"the key {key!r} is no string")
        entries.append((str(key), item))  # JSON makes strings of whole numbers
    if len({key for key, _ in entries}) != len(entries):
        raise ValueError("two keys have one text")
    out.append(b"m%d:" % len(entries))
    for key, item in sorted(entries, key=lambda e: e[0].encode()):
        _text(key, out)
        _write(item, out, depth + 1)
