"""Requests that are encoded by hand are what protobuf reads and would write."""

from __future__ import annotations

import random

import pytest

from quire_kv import encode, proto
from quire_kv.page import Geometry, View
from quire_kv.publish import ROOT_PARENT, UNKNOWN_PARENT, _Said


@pytest.mark.parametrize("value", [0.0, 1e-12, 0.25, 1.0, 59.999999999, 3600.5, 1 << 40])
def test_seconds(value):
    want = proto.BatchExistsRequest()
    proto.set_seconds(want.lease, value)
    got = proto.parse(proto.BatchExistsRequest, encode.seconds(4, value))
    assert got == want and got.HasField("lease")


def test_numbers_and_bytes():
    for value in (0, 1, 127, 128, 300, 1 << 31, (1 << 64) - 1):
        assert encode.number(5, value) == proto.PublishPage(payload_bytes=value).SerializeToString()
    for size in (0, 1, 127, 128, 20000):
        data = random.randbytes(size)
        assert encode.field(6, data) == proto.BeginPublishRequest(session_id=data).SerializeToString()
    for scope in (b"", b"s" * 32):
        want = proto.BatchExistsRequest()
        want.runs.add(scope=scope, group=b"g" * 32, hashes=b"h" * 3200)
        assert encode.run(2, scope, b"g" * 32, b"h" * 3200) == want.SerializeToString()


@pytest.mark.parametrize("view", [View(0, 8, 0, 4), View(0, 2, 0, 4), View(2, 8, 1, 300)])
@pytest.mark.parametrize(("expire", "flops"), [(0, 0.0), (70000, 1.5e15)])
def test_what_a_publication_says_of_a_page(view, expire, flops):
    geometry = Geometry(b"g" * 32, "kv", 16, 8, 4, 4096, "elements", 32)
    said = _Said(geometry, view, expire, flops)
    parents = {
        said.of(b"p" * 32): dict(parent_hash=b"p" * 32),
        said.of(ROOT_PARENT): dict(root=True),
        said.of(UNKNOWN_PARENT): dict(parent_unknown=True),
        said.unlinked: dict(parent_unknown=True),
        said.follower: {},
    }
    for encoded, parent in parents.items():
        want = proto.PublishPage(payload_bytes=view.cells * 4096, expire_seconds=expire, declared_flops=flops, **parent)
        if view != geometry.whole:
            want.view.h0, want.view.h1, want.view.l0, want.view.l1 = view
        assert list(proto.parse(proto.BeginPublishRequest, encoded).pages) == [want]
    granted = proto.BeginPublishResponse()
    granted.pages.add(outcome=2).grants.add(h0=view.h0, h1=view.h1, l0=view.l0, l1=view.l1)
    assert said.granted == granted.SerializeToString()
