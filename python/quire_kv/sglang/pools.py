"""SGLang's host pools as Quire sees them: which bytes of which buffer belong to which page, head, layer and token.

A host pool keeps its tokens in one of four orders, named by `layout`. All are permutations of Quire's own order, so a
pool is described by strides and nothing is copied here: `HostPool.pages` turns the token indices of a call into the
addresses of its pages.

    layout              axes of one component's buffer        page i starts at
    layer_first         layer, slot, head, dim                slot
    page_first          slot, layer, head, dim                slot
    page_first_direct   page, layer, token, head, dim         slot / page size
    page_head           page, head, token, layer, dim         slot / page size

MHA has the components k and v, MLA latent and rope, which share one row. Any other layout, a pool with scales, draft
layers or bytes of its own beside the values is refused with a ConfigError: its pages would not be what they seem.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..layout import Layout, PageMemory, Rows

__all__ = ["Component", "HostPool"]

# p page, l layer, s token slot, h head; the dim is last and contiguous.
_AXES = {"layer_first": "lsh", "page_first": "slh", "page_first_direct": "plsh", "page_head": "phsl"}


@dataclass(frozen=True)
class Component:
    """One part of a cell: its name in the spec, its width in elements, bits of an element and dtype."""

    name: str
    width: int
    bits: int
    dtype: str


@dataclass(frozen=True)
class _Plane:
    """Where one component lies: its first byte, and the byte strides of its axes."""

    base: int
    page: int  # between pages; 0 if pages are runs of slots
    token: int
    head: int
    layer: int


@dataclass(frozen=True)
class HostPool:
    """One host pool. `heads` and `layers` are this rank's own; `slots` counts its tokens."""

    pool: Any
    latent: bool  # one latent row per token instead of heads with k and v
    heads: int
    layers: int
    page_tokens: int
    slots: int
    components: tuple[Component, ...]
    planes: tuple[_Plane, ...]
    flat_planes: tuple[_Plane, ...]
    layout: Layout
    flat_layout: Layout

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of this rank."""
        return self.heads * self.layers * self.page_tokens * sum(c.width * c.bits // 8 for c in self.components)

    @classmethod
    def of(cls, pool: Any) -> HostPool:
        """Describes a host pool object of the engine. ConfigError in one line for one that cannot be stored."""
        what = type(pool).__name__
        buffers = getattr(pool, "kv_buffer", None)
        if buffers is None:
            raise ConfigError(f"quire: the host pool {what} holds no bytes of its own (a logical anchor), so the cache stays off for this model")
        name = str(getattr(pool, "layout", None))
        axes = _AXES.get(name)
        if axes is None:
            raise ConfigError(
                f"quire: host layout {name!r} is not supported; start the engine with --hicache-mem-layout page_first, page_first_direct, page_head or layer_first"
            )
        if getattr(pool, "storage_format_tag", None) is not None:
            raise ConfigError(f"quire: the host pool {what} has a page format of its own ({pool.storage_format_tag}), so the cache stays off for this model")
        if int(getattr(pool, "dcp_size", 1)) != 1:
            raise ConfigError("quire: decode context parallelism cuts pages by token, which is not supported; start the engine without --dcp-size")
        if bool(getattr(pool, "_layer_shard_enabled", False)):
            raise ConfigError("quire: the host pool spreads its layers over ranks, which is not supported")
        layers, tokens, slots = int(pool.layer_num), int(pool.page_size), int(pool.size)
        if int(getattr(pool, "target_layer_num", layers)) != layers:
            raise ConfigError(
                "quire: the host pool holds layers of a draft model, whose KV depends on the token after the page; start the engine without speculative decoding, or without the cache"
            )
        latent = hasattr(pool, "kv_lora_rank")
        parts = _latent_parts(pool, buffers) if latent else _head_parts(pool, buffers)
        heads = 1 if latent else int(pool.head_num)
        item = int(pool.dtype.itemsize)
        dtype = str(pool.dtype).removeprefix("torch.")
        row = sum(c for _, _, c in parts)
        if int(getattr(pool, "size_per_token", heads * layers * row * item)) != heads * layers * row * item:
            raise ConfigError(f"quire: the host pool {what} keeps more than plain values per token (scales or an index), which is not supported")
        components, planes, flat = [], [], []
        flat_base = 0
        for part, (tensor, first, width) in zip(("latent", "rope") if latent else ("k", "v"), parts, strict=True):
            size = {"p": slots // tokens, "l": layers, "s": tokens if "p" in axes else slots, "h": heads}
            full = int(tensor.shape[-1])
            if tuple(tensor.shape) != tuple(size[a] for a in axes) + (full,) or tensor.stride(-1) != 1 or int(tensor.element_size()) != item:
                raise ConfigError(f"quire: the buffer of host pool {what} has shape {tuple(tensor.shape)}, which is not that of layout {name}")
            strides = dict(zip(axes, (s * item for s in tensor.stride()[:-1]), strict=True))
            planes.append(_Plane(tensor.data_ptr() + first * item, strides.get("p", 0), strides["s"], strides["h"], strides["l"]))
            components.append(Component(part, width, item * 8, dtype))
            inner = [a for a in axes if a != "p"]
            size["s"] = tokens
            steps, step = {}, full * item
            for axis in reversed(inner):
                steps[axis] = step
                step *= size[axis]
            flat.append(_Plane(flat_base + first * item, 0, steps["s"], steps["h"], steps["l"]))
            if not latent:
                flat_base += step
        widths = tuple(c.width * item for c in components)
        return cls(
            pool, latent, heads, layers, tokens, slots, tuple(components), tuple(planes), tuple(flat),
            _layout(heads, layers, tokens, widths, planes), _layout(heads, layers, tokens, widths, flat),
        )  # fmt: skip

    def pages(self, host_indices: Any, count: int) -> PageMemory | None:
        """The memory of `count` pages, whose tokens' slots are in host_indices: one per token, pages in order.

        None if they are not whole aligned pages inside the pool; nothing is touched then.
        """
        slots = _as_array(host_indices)
        if slots is None or count < 1 or slots.shape != (count * self.page_tokens,):
            return None
        rows = slots.reshape(count, self.page_tokens)
        starts = rows[:, 0]
        whole = (rows == starts[:, None] + np.arange(self.page_tokens)).all()
        if not whole or (starts % self.page_tokens).any() or starts.min() < 0 or starts.max() + self.page_tokens > self.slots:
            return None
        return PageMemory(self.layout, self._addresses(self.planes, starts), self.pool.kv_buffer)

    def flat(self, tensors: Sequence[Any]) -> PageMemory | None:
        """The memory of pages that lie in one flat tensor each, in the order of the pool's get_data_page.

        None if a tensor is not a contiguous CPU tensor of exactly one page.
        """
        bases = np.empty(len(tensors), np.int64)
        for i, t in enumerate(tensors):
            if t is None or t.device.type != "cpu" or not t.is_contiguous() or t.numel() * t.element_size() != self.page_bytes:
                return None
            bases[i] = t.data_ptr()
        if not len(bases):
            return None
        return PageMemory(self.flat_layout, self._addresses(self.flat_planes, np.zeros(1, np.int64)) + bases.astype(np.uint64)[:, None, None], tuple(tensors))

    def _addresses(self, planes: Sequence[_Plane], starts: np.ndarray) -> np.ndarray:
        """uint64 [pages, components, layers]: head 0, token 0 of each."""
        base = np.array([p.base for p in planes], np.int64)
        step = np.array([p.page or p.token for p in planes], np.int64)
        unit = np.array([self.page_tokens if p.page else 1 for p in planes], np.int64)
        layer = np.array([p.layer for p in planes], np.int64)
        first = base + (starts[:, None] // unit) * step
        return (first[:, :, None] + layer[:, None] * np.arange(self.layers)).astype(np.uint64)


def _head_parts(pool: Any, buffers: Any) -> list[tuple[Any, int, int]]:
    """Buffer, first element and width of k and v."""
    k, v = (buffers[0], buffers[1]) if isinstance(buffers, (tuple, list)) else (pool.k_buffer, pool.v_buffer)
    parts = [(k, 0, int(pool.head_dim)), (v, 0, int(getattr(pool, "v_head_dim", pool.head_dim)))]
    if any(int(t.shape[-1]) != width for t, _, width in parts):
        raise ConfigError(f"quire: the rows of host pool {type(pool).__name__} are not one head wide, so the cache stays off for this model")
    return parts


def _latent_parts(pool: Any, buffers: Any) -> list[tuple[Any, int, int]]:
    """Latent and rope of MLA: one row per token holds both."""
    latent, rope = int(pool.kv_lora_rank), int(pool.qk_rope_head_dim)
    if isinstance(buffers, (tuple, list)) or bool(getattr(pool, "dsa_kv_cache_store_fp8", False)) or int(pool.kv_cache_dim) != latent + rope:
        raise ConfigError(
            f"quire: the rows of host pool {type(pool).__name__} are packed with their scales, which is not supported; start the engine with --kv-cache-dtype bfloat16"
        )
    return [(buffers, 0, latent), (buffers, latent, rope)]


def _layout(heads: int, layers: int, tokens: int, widths: Sequence[int], planes: Sequence[_Plane]) -> Layout:
    rows = tuple(Rows(row_bytes=w, head_stride=p.head, token_stride=p.token, tokens=tokens) for w, p in zip(widths, planes, strict=True))
    return Layout(heads=heads, layers=layers, rows=rows)


def _as_array(indices: Any) -> np.ndarray | None:
    """The token slots as int64, from a CPU tensor, an array or a list."""
    if hasattr(indices, "detach"):
        if indices.device.type != "cpu":
            indices = indices.cpu()
        indices = indices.detach().numpy()
    slots = np.asarray(indices)
    if slots.ndim != 1 or slots.dtype.kind not in "iu" or not math.prod(slots.shape):
        return None
    return slots.astype(np.int64, copy=False)
