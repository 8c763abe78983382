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
