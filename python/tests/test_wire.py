"""The codec of frames and the message classes, against the documents and the schema that they are written in."""

from __future__ import annotations

import pathlib
import random
import re

import pytest

from quire_kv import proto, wire
from quire_kv.errors import QuireError, Reason

ROOT = pathlib.Path(__file__).resolve().parents[2]


def examples() -> list[bytes]:
    """The frames in the example of docs/formats/frames.md, in order."""
    text = (ROOT / "docs/formats/frames.md").read_text().partition("## An example")[2]
    blocks = re.findall(r"(?:^(?:[0-9a-f]{2} *)+\n)+", text, re.M)
    return [bytes.fromhex(b) for b in blocks]


def test_documented_example():
    hello, welcome, exists, there, fetch, pages, end = examples()
    assert wire.encode_hello("", "e0") == hello
    frame = wire.decode_frame(welcome)
    assert frame.kind == wire.WELCOME and frame.body == 28
    assert wire.decode_welcome(welcome[24:]) == wire.Welcome(32 << 20, 8 << 20, bytes(range(1, 17)))
    request = proto.BatchExistsRequest(session_id=b"s").SerializeToString()
    assert wire.encode_frame(wire.REQUEST, wire.METHODS["BatchExists"], 1, request, extra=5000) == exists
    assert wire.decode_frame(there)[:5] == (wire.RESPONSE, 0, 3, 1, 3)
    assert proto.BatchExistsResponse.FromString(there[24:]).present == b"\x01"
    assert wire.encode_frame(wire.REQUEST, wire.METHODS["Fetch"], 2, proto.FetchRequest(lease_id=b"l").SerializeToString()) == fetch
    frame = wire.decode_frame(pages)
    assert (frame.kind, frame.flags, frame.body, frame.data) == (wire.MESSAGE, wire.CHUNKS, 14, 2)
    (entry,) = wire.entries(pages[24:38], 2)
    head = proto.FetchResponse.FromString(entry.head)
    assert (head.offset, head.trailer.outcome, entry.bytes, pages[38:]) == (5, 1, 2, b"hi")
    assert wire.decode_frame(end).kind == wire.STATUS


def test_methods_are_those_of_the_document():
    text = (ROOT / "docs/formats/frames.md").read_text()
    table = text.partition("| method | name |")[2].partition("\n\n")[0]
    assert wire.METHODS == {name: int(number) for number, name in re.findall(r"\| (\d+) \| (\w+) \|", table)}
    assert set(wire.METHODS) == {m.partition(".")[2] for m in proto.METHODS if m.startswith("PageService.")}


def test_documented_reference():
    text = (ROOT / "docs/formats/shm.md").read_text().partition("generations 3 and 1:")[2]
    raw = bytes.fromhex(text.partition("```\n")[2].partition("```")[0])
    body = bytearray()
    wire.append_entry(body, b"h", 4096, wire.Reference(7, 65536, 4096, 3, 1))
    assert bytes(body).endswith(raw)
    assert wire.entries(bytes(body), 0) == [wire.Entry(b"h", 4096, wire.Reference(7, 65536, 4096, 3, 1))]


def test_reasons_are_those_of_the_schema():
    values = proto.message("quire.v1.PageStatus").DESCRIPTOR.fields_by_name["reason"].enum_type.values
    assert {v.number: v.name.removeprefix("REASON_") for v in values if v.number} == {int(r): r.name for r in Reason if r}


def test_batches_come_back():
    rng = random.Random(5)
    for _ in range(200):
        body, want, inline = bytearray(), [], 0
        for _ in range(rng.randrange(1, 8)):
            head = rng.randbytes(rng.randrange(0, 40))
            n = rng.randrange(0, 1000)
            ref = wire.Reference(*(rng.getrandbits(64) for _ in range(2)), n, *(rng.getrandbits(64) for _ in range(2))) if rng.random() < 0.5 else None
            wire.append_entry(body, head, n, ref)
            inline += 0 if ref else n
            want.append(wire.Entry(head, n, ref))
        assert wire.entries(bytes(body), inline) == want
        with pytest.raises(QuireError):
            wire.entries(bytes(body), inline + 1)


def test_garbage_is_a_quire_error():
    rng = random.Random(6)
    refused = 0
    for _ in range(5000):
        raw = rng.randbytes(rng.choice((24, 40, 100)))
        for read in (
            lambda b: wire.decode_frame(b), lambda b: wire.entries(b, rng.randrange(100)), wire.decode_welcome,
            lambda b: proto.parse(proto.FetchResponse, b), lambda b: proto.parse(proto.Status, b),
        ):  # fmt: skip
            try:
                read(raw)
            except QuireError as e:
                assert e.broken
                refused += 1
    assert refused > 10_000


def test_hello_is_bounded():
    with pytest.raises(QuireError) as e:
        wire.encode_hello("t" * 20_000, "")
    assert e.value.reason is Reason.LIMIT_EXCEEDED


def test_errors_of_a_status():
    detail = proto.ErrorDetail(reason=int(Reason.HASH_CONTRACT_FORK), path="hash.seed")
    detail.differences.add(path="hash.seed", a="1", b="2", **{"class": "semantic"})
    status = proto.Status(code=9, message="no")
    status.details.add(type_url="type.googleapis.com/quire.v1.ErrorDetail", value=detail.SerializeToString())
    error = proto.error_of(status)
    assert (error.reason, error.path, error.broken) == (Reason.HASH_CONTRACT_FORK, "hash.seed", False)
    assert error.differences == (("hash.seed", "1", "2", "semantic"),)
    for code in range(1, 20):
        error = proto.error_of(proto.Status(code=code))
        assert error.reason is not Reason.NONE
        assert error.broken == (code in (1, 2, 4, 13, 14, 15)), code
    status.details[0].value = b"\xff"
    assert proto.error_of(status).reason is Reason.UNKNOWN


def test_seconds():
    request = proto.BatchExistsRequest()
    for value in (0.0, 1e-12, 0.25, 10.5, 1e6):
        proto.set_seconds(request.lease, value)
        assert abs(proto.seconds(request.lease) - value) < 1e-8 and (proto.seconds(request.lease) > 0) == (value > 0)
