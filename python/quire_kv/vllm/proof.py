"""The proof of the layout at start, with the engine's own cache-write operation.

The engine writes keys and values that are a function of where they belong (layoutproof) into two of its blocks, for every
layer; what this adapter then exports has to be, cell by cell, what an expectation says that never comes from this
adapter's own addresses:

    cuda   grade elements: Quire's own order, as layoutproof computes it
    cpu    grade cell: the inside of a cell is the engine's. Each cell alone, written by the engine's operation into a
           tensor of one block and one head, is what the same cell has to be among all others. A cell of fixed content
           also names the packing (cpu_packing), so that kernels which pack otherwise are another identity.

A wrong order of heads, layers, blocks or components cannot pass by undoing itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..layoutproof import Component, Proof
from ..page import View

__all__ = ["cpu_packing", "prove"]

_OFF = "run this engine without the cache, and report its version"

Cell = Callable[[int, int, int], bytes]  # page, layer, head -> bytes


def cpu_packing(spec: Any, vllm_config: Any) -> tuple[str, str]:
    """The ISA that the CPU backend packs for, and 8 hex digits that name what it makes of a fixed cell."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    isa = str(_get_attn_isa(vllm_config.model_config.dtype, int(spec.block_size), int(spec.head_size), vllm_config.cache_config.cache_dtype))
    cell = _cpu_cell(_proof_of(int(spec.block_size), int(spec.head_size), spec.dtype), spec.dtype, isa)
    return isa, hashlib.sha256(cell(0, 0, 0)).hexdigest()[:8]


def prove(layers: Sequence[Any], tensors: Sequence[Any], blocks: Sequence[int], export: Callable[[Sequence[int]], np.ndarray], *, view: View, device: str,
          tokens: int, width: int, isa: str) -> None:  # fmt: skip
    """Fills `blocks` of every layer through the engine and compares them with export(blocks): uint8, [block][head][layer] cells.

    layers: the engine's attention layers, which have impl.do_kv_cache_update. tensors: theirs, in the same order. The
    blocks are left as zeros. ConfigError where they differ, or where the engine has no such operation.
    """
    dtype = tensors[0].dtype
    proof = _proof_of(tokens, width, dtype)
    try:
        for i, (layer, tensor) in enumerate(zip(layers, tensors, strict=True)):
            _write(proof, layer, tensor, blocks, view, view.l0 + i)
        got = np.asarray(export(blocks), dtype=np.uint8).reshape(len(blocks), view.heads, view.layers, -1)
        wrong = _first_difference(proof, got, view, dtype, device, isa)
    except Exception as e:
        raise ConfigError(f"quire: the engine's cache-write operation could not prove the layout: {type(e).__name__}: {e}; {_OFF}") from e
    finally:
        for tensor in tensors:
            for block in blocks:
                tensor[block] = 0
    if wrong:
        raise ConfigError(f"quire: the layout of KV blocks is not what this adapter takes it for: {wrong}; {_OFF}")


def _proof_of(tokens: int, width: int, dtype: Any) -> Proof:
    size = int(dtype.itemsize)
    return Proof((Component("k", width, size), Component("v", width, size)), tokens)


def _write(proof: Proof, layer: Any, tensor: Any, blocks: Sequence[int], view: View, number: int) -> None:
    import torch

    heads, parts = range(view.h0, view.h1), []
    for component in (0, 1):
        rows = [torch.from_numpy(proof.fill(page, number, component, heads)).view(tensor.dtype) for page in range(len(blocks))]
        parts.append(torch.cat(rows).to(tensor.device))
    slots = torch.cat([torch.arange(b * proof.tokens, (b + 1) * proof.tokens, dtype=torch.int64) for b in blocks]).to(tensor.device)
    layer.impl.do_kv_cache_update(layer, parts[0], parts[1], tensor, slots)


def _first_difference(proof: Proof, got: np.ndarray, view: View, dtype: Any, device: str, isa: str) -> str:
    if device != "cpu":
        return next(filter(None, (proof.compare(page, view, got[page]) for page in range(len(got)))), "")
    cell = _cpu_cell(proof, dtype, isa)
    for page in range(len(got)):
        for head in range(view.heads):
            for layer in range(view.layers):
                if got[page, head, layer].tobytes() != cell(page, view.l0 + layer, view.h0 + head):
                    return f"head {view.h0 + head} of layer {view.l0 + layer} in block {page} is another one"
    return ""


def _cpu_cell(proof: Proof, dtype: Any, isa: str) -> Cell:
    """The engine's bytes of one cell that stands alone."""
    import torch
    from vllm import _custom_ops as ops

    width = proof.components[0].width

    def cell(page: int, layer: int, head: int) -> bytes:
        cache = torch.zeros((1, 1, proof.tokens * 2, width), dtype=dtype)
        keys, values = cache.chunk(2, dim=2)
        key, value = (torch.from_numpy(proof.fill(page, layer, c, [head])).view(dtype) for c in (0, 1))
        ops.cpu_attn_reshape_and_cache(key, value, keys, values, torch.arange(proof.tokens, dtype=torch.int64), isa)
        return bytes(cache.view(torch.uint8).numpy().tobytes())

    return cell
