"""Where the engine's KV blocks lie in host memory, as Quire's pages.

vLLM hands a connector one tensor a layer, of logical shape [blocks, kv heads, tokens, content], whatever the strides. On
its CPU backend a (block, head) is one run of bytes that the kernels pack in a way of their own: grade `cell`, copied as it
is. Tensors are read through data_ptr, shape, stride and element_size only, so torch is not imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..layout import Layout, PageMemory, Rows

__all__ = ["HostBlocks", "layer_index", "own_layers"]

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")


def layer_index(name: str) -> int:
    """The layer's number in the model, of a name such as model.layers.7.self_attn.attn. ConfigError if it has not exactly one."""
    found = _NUMBER.findall(name)
    if len(found) != 1:
        raise ConfigError(f"quire: the layer name {name!r} has not one number, so that its place in the model is not known; run this model without the cache")
    return int(found[0])


def own_layers(names: Sequence[str]) -> list[str]:
    """Names by their numbers in the model (text order puts 10 before 2). ConfigError where two have one number."""
    ordered = sorted(names, key=layer_index)
    for a, b in zip(ordered, ordered[1:], strict=False):
        if layer_index(a) == layer_index(b):
            raise ConfigError(f"quire: the layers {a!r} and {b!r} have one number; run this model without the cache")
    return ordered


class HostBlocks:
    """The blocks of one KV group as one rank holds them: pages of `heads` x `layers` cells of `cell_bytes`.

    ConfigError where the tensors are not what the engine's configuration says.
    """

    def __init__(self, tensors: Mapping[str, Any], names: Sequence[str], *, blocks: int, cell_bytes: int) -> None:
        missing = [n for n in names if n not in tensors]
        if missing or not names:
            raise ConfigError(f"quire: the engine registered no KV tensor for {missing[0] if missing else 'any layer'}; run this model without the cache")
        self.tensors = [tensors[n] for n in names]
        first = self.tensors[0]
        self.blocks, self.heads = blocks, int(first.shape[1])
        size = int(first.element_size())
        strides = tuple(int(s) * size for s in first.stride())
        for name, t in zip(names, self.tensors, strict=True):
            shape = tuple(int(n) for n in t.shape)
            if len(shape) != 4 or shape[0] != blocks or shape != tuple(int(n) for n in first.shape) or tuple(int(s) * size for s in t.stride()) != strides:
                raise ConfigError(
                    f"quire: the KV tensor of {name} has shape {shape}, not that of {blocks} blocks like its siblings; run this model without the cache"
                )
        if int(first.shape[2]) * int(first.shape[3]) * size != cell_bytes or strides[3] != size or strides[2] != int(first.shape[3]) * size:
            raise ConfigError(f"quire: a cell of the KV tensor {tuple(first.shape)} is not one run of {cell_bytes} bytes; run this model without the cache")
        self._base = np.array([int(t.data_ptr()) for t in self.tensors], dtype=np.uint64)
        if len(set(self._base.tolist())) != len(self.tensors):
            raise ConfigError("quire: two layers share one KV tensor; run this model without the cache")
        self._block_bytes = strides[0]
        self.layout = Layout(self.heads, len(self.tensors), (Rows(cell_bytes, strides[1], 0, 1),))

    def pages(self, blocks: Sequence[int]) -> PageMemory:
        """The memory of some blocks. ValueError for a block that does not exist or is block 0, which holds nothing."""
        index = np.asarray(blocks, dtype=np.int64)
        if len(index) and (int(index.min()) < 1 or int(index.max()) >= self.blocks):
            raise ValueError(f"block {int(index.min())} or {int(index.max())} is not one of 1 to {self.blocks - 1}")
        offsets = index.astype(np.uint64) * np.uint64(self._block_bytes)
        return PageMemory(self.layout, offsets[:, None, None] + self._base[None, None, :], self.tensors)
