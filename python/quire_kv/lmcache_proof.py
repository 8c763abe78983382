"""Shows at start that objects are laid out as `Shape.memory` says, with LMCache's own block copy.

A paged cache in this process is filled with values that say where they belong; LMCache's copy gathers blocks into objects; and the
objects, taken out as for the store, must give the canonical payload. A write and a read back by our own code would prove nothing:
a wrong permutation undoes itself. The copy is LMCache's portable one; its CUDA kernels have no other order, or LMCache's own
objects would not survive a change of device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .errors import ConfigError
from .layoutproof import Component, LayoutError, Proof
from .lmcache_models import DTYPE_BYTES, Shape
from .page import Geometry, View

__all__ = ["ENGINE_FORMATS", "prove"]

# Where an engine's blocks lie that LMCache gathers into objects of each format, by LMCache's names for them.
ENGINE_FORMATS = {
    "KV_2LTD": ("NL_X_TWO_NB_BS_NH_HS", "NL_X_NB_TWO_BS_NH_HS", "NL_X_NB_TWO_NH_BS_HS"),
    "KV_LTD": ("NL_X_NB_NH_BS_CS", "NL_X_NB_BS_NH_CS"),
    "KV_MLA_FMT": ("NL_X_NB_BS_HS",),
}
_BLOCK, _CHUNK = 2, 4  # tokens
_BLOCKS = (5, 1, 4, 2)  # of two chunks, in an order of their own
_NAMES = {"KV_2LTD": ("k", "v"), "KV_LTD": ("kv",), "KV_MLA_FMT": ("latent", "rope")}


def prove(shape: Shape) -> None:
    """ConfigError in one line when LMCache's objects are not what the row's format means to us."""
    if shape.row.opaque:
        return
    small = replace(shape, row=replace(shape.row, chunk_size=_CHUNK))
    ranks = [(shape.world << 24) | (rank << 16) for rank in {0, shape.world - 1}]
    views = {place.view for rank in ranks if (place := small.place(rank)) is not None and place.view is not None}
    for engine_format in ENGINE_FORMATS[shape.row.format]:
        for view in sorted(views):
            try:
                _prove(small, engine_format, view)
            except LayoutError as e:
                why = str(e)
            except Exception as e:
                why = f"LMCache's block copy could not be run: {type(e).__name__}: {e}"
            else:
                continue
            raise ConfigError(
                f"quire: models[{shape.row.name!r}].format is {shape.row.format}, and this LMCache lays objects of {engine_format} out otherwise ({why}): write opaque with chunk_bytes"
            )


def _prove(shape: Shape, engine_format: str, view: View) -> None:
    import torch
    from lmcache.lmcache_native import EngineKVFormat, TransferDirection
    from lmcache.v1.platform.ops_types import PageBufferShapeDesc
    from lmcache.v1.platform.torch_ops.mp_mem_kernels import multi_layer_block_kv_transfer

    element = DTYPE_BYTES[shape.row.dtype]
    proof = Proof(tuple(Component(name, w, element) for name, w in zip(_NAMES[shape.row.format], shape.widths, strict=True)), _CHUNK)
    geometry = Geometry(bytes(32), "full", _CHUNK, shape.heads, shape.layers, _CHUNK * sum(shape.widths) * element, "elements", 32)
    raw = torch.int16 if element == 2 else torch.int32
    paged = [_paged(proof, engine_format, view, layer) for layer in range(view.l0, view.l1)]
    desc = PageBufferShapeDesc()
    desc.kv_size = 2 if shape.row.format == "KV_2LTD" else 1
    desc.nl, desc.nb, desc.bs, desc.nh = view.layers, max(_BLOCKS) + 1, _BLOCK, view.heads
    desc.hs = shape.widths[0] if shape.row.format == "KV_2LTD" else sum(shape.widths)
    desc.element_size = element
    size = shape.object_bytes(view)
    last = view.heads * desc.hs
    dims = (2, view.layers, _CHUNK, last) if shape.row.format == "KV_2LTD" else (view.layers, _CHUNK, last)
    chunks = len(_BLOCKS) * _BLOCK // _CHUNK
    objects = [torch.zeros(dims, dtype=raw) for _ in range(chunks)]
    if any(o.numel() * element != size for o in objects):
        raise LayoutError(f"objects of {dims} have not {size} bytes")
    multi_layer_block_kv_transfer(
        [torch.from_numpy(p).view(raw) for p in paged],
        objects,
        list(_BLOCKS),
        "cpu",
        TransferDirection.D2H,
        desc,
        _CHUNK,
        getattr(EngineKVFormat, engine_format),
        0,
    )
    proof.prove(shape.memory([o.data_ptr() for o in objects], objects, view), geometry, view)


def _paged(proof: Proof, engine_format: str, view: View, layer: int) -> np.ndarray:
    """One layer's blocks as an engine keeps them, uint8 with the last axis in bytes."""
    blocks, heads = max(_BLOCKS) + 1, range(view.h0, view.h1)
    widths = [c.row_bytes for c in proof.components]
    shapes: dict[str, tuple[int, ...]] = {
        "NL_X_TWO_NB_BS_NH_HS": (2, blocks, _BLOCK, view.heads, widths[0]),
        "NL_X_NB_TWO_BS_NH_HS": (blocks, 2, _BLOCK, view.heads, widths[0]),
        "NL_X_NB_TWO_NH_BS_HS": (blocks, 2, view.heads, _BLOCK, widths[0]),
        "NL_X_NB_NH_BS_CS": (blocks, view.heads, _BLOCK, widths[0]),
        "NL_X_NB_BS_NH_CS": (blocks, _BLOCK, view.heads, widths[0]),
        "NL_X_NB_BS_HS": (blocks, _BLOCK, sum(widths)),
    }
    out = np.zeros(shapes[engine_format], dtype=np.uint8)
    for chunk in range(len(_BLOCKS) * _BLOCK // _CHUNK):
        rows = [proof.fill(chunk, layer, c, heads) for c in range(len(widths))]
        for token in range(_CHUNK):
            block, slot = _BLOCKS[(chunk * _CHUNK + token) // _BLOCK], token % _BLOCK
            for c, r in enumerate(rows):
                _place(out, engine_format, block, slot, c, widths)[...] = r[token]
    return out


def _place(out: np.ndarray, engine_format: str, block: int, slot: int, component: int, widths: list[int]) -> Any:
    """Where one token's rows of all heads go."""
    if engine_format == "NL_X_TWO_NB_BS_NH_HS":
        return out[component, block, slot]
    if engine_format == "NL_X_NB_TWO_BS_NH_HS":
        return out[block, component, slot]
    if engine_format == "NL_X_NB_TWO_NH_BS_HS":
        return out[block, component, :, slot]
    if engine_format == "NL_X_NB_NH_BS_CS":
        return out[block, :, slot]
    if engine_format == "NL_X_NB_BS_NH_CS":
        return out[block, slot]
    first = sum(widths[:component])
    return out[block, slot, None, first : first + widths[component]]
