"""Where LMCache's own block copy puts keys and values, against what each format of the table means."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytestmark = pytest.mark.lmcache
pytest.importorskip("lmcache")

from quire_kv.errors import ConfigError  # noqa: E402
from quire_kv.lmcache_models import Shape, parse_rows  # noqa: E402
from quire_kv.lmcache_proof import ENGINE_FORMATS, prove  # noqa: E402

HEADS, LAYERS = 4, 3


def shape_of(format, tp=1, pp=1, dtype="bfloat16"):
    rows, lines = parse_rows(
        {
            "m": {
                "digest": "sha256:" + "a" * 64,
                "format": format,
                "dtype": dtype,
                "engine": "e",
                "version": "1",
                "backend": "b",
                "lora": "none",
                "weights": "frozen",
                "tp": tp,
                "pp": pp,
            }
        }
    )
    assert not lines
    return Shape(rows["m"], 1 if format == "KV_MLA_FMT" else HEADS, LAYERS, {"KV_2LTD": (8, 8), "KV_LTD": (16,), "KV_MLA_FMT": (16, 4)}[format])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize("format", ENGINE_FORMATS)
def test_the_proof_holds_for_every_rank_shape(format, tp, pp, dtype):
    prove(shape_of(format, tp, pp, dtype))


class Wrong(Shape):
    """Tokens and heads change places: a permutation that undoes itself in a write and a read back."""

    def memory(self, addresses, owner, view):
        right = super().memory(addresses, owner, view)
        rows = tuple(replace(r, head_stride=r.row_bytes * r.tokens, token_stride=r.row_bytes) for r in right.layout.rows)
        return type(right)(replace(right.layout, rows=rows), right.addresses, owner)


def test_case_c81_a_wrong_permutation_is_found():
    right = shape_of("KV_2LTD")
    with pytest.raises(ConfigError, match="write opaque"):
        prove(Wrong(right.row, right.heads, right.layers, right.widths))


def test_formats_do_not_stand_for_each_other():
    """Objects of one format read as another one's have other sizes or fail the proof."""
    packed, split = shape_of("KV_LTD"), shape_of("KV_2LTD")
    assert not packed.fits([(2, LAYERS, 256, HEADS * 8)], ["bfloat16"], packed.whole)
    assert not split.fits([(1, LAYERS, 256, HEADS * 16)], ["bfloat16"], split.whole)
    assert packed.fits([(1, LAYERS, 256, HEADS * 16)], ["bfloat16"], packed.whole) and packed.fits([(LAYERS, 256, HEADS * 16)], ["bfloat16"], packed.whole)
