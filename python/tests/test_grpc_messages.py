"""Messages with a chunk, taken apart and put together without protobuf: equal to what protobuf makes of them."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError

from quire_kv import proto
from quire_kv.grpc_transport import join_chunk, split_chunk


def response(page: int, offset: int, header: int, chunk: int, trailed: bool):
    m = proto.FetchResponse(page=page, offset=offset, header=random.randbytes(header), chunk=random.randbytes(chunk))
    if trailed:
        m.trailer.outcome = 1
    return m


@pytest.mark.parametrize("chunk", [1, 127, 128, 16383, 16384, 1 << 19])
@pytest.mark.parametrize(
    ("page", "offset", "header", "trailed"), [(0, 0, 0, False), (0, 0, 500, True), (300, 1 << 40, 0, True), (127, 127, 127, False), (1 << 31, 1, 128, True)]
)
def test_a_chunk_is_found(page, offset, header, trailed, chunk):
    m = response(page, offset, header, chunk, trailed)
    raw = m.SerializeToString()
    fields, at = split_chunk(raw)
    assert raw[at:] == m.chunk
    m.ClearField("chunk")
    assert proto.parse(proto.FetchResponse, raw[:fields]) == m


def test_what_has_no_chunk_at_its_end_is_left_to_protobuf():
    m = response(3, 9, 20, 50, True)
    raw = m.SerializeToString()
    for other in (b"", proto.FetchResponse(page=1).SerializeToString(), raw + b"\x08\x05", b"\x0d\0\0\0\0" + raw, b"\x7a\xff", b"\x80\x01\x05" + raw, b"\x12"):
        assert split_chunk(other) == (len(other), len(other))
    for _ in range(2000):
        damaged = bytearray(raw)
        damaged[random.randrange(len(damaged))] = random.randrange(256)
        fields, at = split_chunk(bytes(damaged))
        assert 0 <= fields <= at <= len(damaged)
        if fields < len(damaged):
            try:
                whole = proto.FetchResponse.FromString(bytes(damaged))
            except DecodeError:  # the fields before the chunk are as wrong on their own
                with pytest.raises(DecodeError):
                    proto.FetchResponse.FromString(bytes(damaged[:fields]))
                continue
            assert whole.chunk == damaged[at:]


@pytest.mark.parametrize("size", [1, 127, 128, 16384, 1 << 20])
def test_a_chunk_is_put_behind_its_fields(size):
    chunk = random.randbytes(size)
    head = proto.WritePagesRequest(page=7, grant=2, offset=1 << 33)
    m = proto.WritePagesRequest.FromString(join_chunk(head.SerializeToString(), memoryview(chunk)))
    assert m.chunk == chunk
    m.ClearField("chunk")
    assert m == head
