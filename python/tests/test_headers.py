"""Headers made from a template are byte for byte those of the codec."""

from __future__ import annotations

import random

import numpy as np

from quire_kv.headers import HeaderMaker
from quire_kv.page import FLAG_DURABLE, FLAG_PARENT_UNKNOWN, ExtentID, Header, View, encode_header, payload_digest, pieces_of


def test_templates_equal_the_codec():
    rng = random.Random(3)
    cell, heads, layers = 3000, 4, 30
    like = Header(
        namespace=rng.randbytes(32), epoch=3, scope=rng.randbytes(32), group=rng.randbytes(32), hash=bytes(32), parent=b"", flags=0, depth=0,
        extent=ExtentID(bytes(16), 0, bytes(16)), view=View(0, heads, 0, layers), tokens=16, cell_bytes=cell, page_heads=heads, page_layers=layers,
        grade="elements", components=0, packing_id=bytes(32), created=7, declared_flops=1.5, expiry=9, provenance=b"{}" * 9, sums=np.empty(0, dtype="<u8"),
    )  # fmt: skip
    maker = HeaderMaker(like)
    for i in range(60):
        view = rng.choice((View(0, 4, 0, 30), View(1, 3, 2, 29)))
        flags = rng.choice((0, FLAG_DURABLE, FLAG_PARENT_UNKNOWN))
        parent = b"" if flags & FLAG_PARENT_UNKNOWN or rng.random() < 0.3 else rng.randbytes(32)
        sums = np.frombuffer(rng.randbytes(8 * pieces_of(view.layers, cell).count(view.heads)), dtype="<u8")
        key, writer = rng.randbytes(32), rng.randbytes(16)
        want = like._replace(hash=key, parent=parent, flags=flags, view=view, extent=ExtentID(writer, i, payload_digest(sums.tobytes())), sums=sums)
        assert maker.make(view, key, parent, flags, writer, i, sums) == encode_header(want)


def test_templates_that_are_kept_and_headers_made_together():
    """Of one session: makers at other hours share templates, and many headers at once are those that were made one by one."""
    rng = random.Random(4)
    templates: dict = {}
    for hour in range(4):
        like = Header(
            namespace=b"n" * 32, epoch=3, scope=bytes(32), group=b"g" * 32, hash=bytes(32), parent=b"", flags=0, depth=0,
            extent=ExtentID(bytes(16), 0, bytes(16)), view=View(0, 2, 0, 3), tokens=16, cell_bytes=4096, page_heads=2, page_layers=3,
            grade="elements", components=0, packing_id=bytes(32), created=1000 + hour, declared_flops=float(hour % 2), expiry=hour // 2 * (7 + hour),
            provenance=b"{}", sums=np.empty(0, dtype="<u8"),
        )  # fmt: skip
        maker = HeaderMaker(like, templates)
        n = rng.choice((1, 2, 9))
        keys = [rng.randbytes(32) for _ in range(n)]
        parents = [b"", *(rng.choice((keys[i], keys[i], b"")) for i in range(n - 1))]
        flags = [FLAG_PARENT_UNKNOWN if i == 0 else 0 for i in range(n)]
        sums = np.frombuffer(rng.randbytes(8 * n * 2), dtype="<u8").reshape(n, 2)
        made = maker.make_all(like.view, keys, parents, flags, b"w" * 16, 50, sums)
        for i in range(n):
            extent = ExtentID(b"w" * 16, 50 + i, payload_digest(sums[i].tobytes()))
            assert made[i] == encode_header(like._replace(hash=keys[i], parent=parents[i], flags=flags[i], extent=extent, sums=sums[i])), (hour, i)
    assert len(templates) <= 12
