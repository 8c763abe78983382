"""SGLang's side of the HiCache storage contract, written from its description: no package of the engine is needed.

    install()       stand-ins for the modules that quire_kv.sglang imports, and a minimal torch of arrays
    Pool            a host pool in each layout, for MHA and MLA, whose pages can be filled and compared
    Controller      four threads: prefetch, prefetch I/O, prefetch sync and backup, in batches of 128 pages
    Ranks           reduces what ranks found to the least of it, as the engine does over its groups

An older engine dies of an exception: `Controller(fatal=True)` ends the thread that one reached.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import hashlib
import queue
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

BATCH = 128
WAIT = 20.0


# -- tensors -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Dtype:
    name: str
    itemsize: int

    def __str__(self) -> str:
        return f"torch.{self.name}"


BFLOAT16, FLOAT32, UINT8, INT64 = Dtype("bfloat16", 2), Dtype("float32", 4), Dtype("uint8", 1), Dtype("int64", 8)
_ARRAYS = {BFLOAT16: np.uint16, FLOAT32: np.uint32, UINT8: np.uint8, INT64: np.int64}


class Tensor:
    """An array with the attributes of a torch tensor that the contract uses."""

    def __init__(self, array: np.ndarray, dtype: Dtype) -> None:
        self.array, self.dtype = array, dtype
        self.device = types.SimpleNamespace(type="cpu")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self, dim: int | None = None) -> Any:
        steps = tuple(s // self.array.itemsize for s in self.array.strides)
        return steps if dim is None else steps[dim]

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def element_size(self) -> int:
        return self.array.itemsize

    def numel(self) -> int:
        return self.array.size

    def is_contiguous(self) -> bool:
        return bool(self.array.flags.c_contiguous)

    def detach(self) -> Tensor:
        return self

    def numpy(self) -> np.ndarray:
        return self.array

    def clone(self) -> Tensor:
        return Tensor(self.array.copy(), self.dtype)

    def view(self, dtype: Dtype) -> Tensor:
        return Tensor(self.array.view(_ARRAYS[dtype]), dtype)

    def __getitem__(self, index: Any) -> Any:
        got = self.array[index]
        return Tensor(got, self.dtype) if isinstance(got, np.ndarray) and got.ndim else int(got)

    def __len__(self) -> int:
        return len(self.array)


def indices(slots: Any) -> Tensor:
    """Token slots as the engine gives them."""
    return Tensor(np.asarray(slots, np.int64), INT64)


# -- host pools --------------------------------------------------------------------------------------------------

_SHAPES = {
    "layer_first": ("layer", "slot", "head"), "page_first": ("slot", "layer", "head"),
    "page_first_direct": ("page", "layer", "token", "head"), "page_head": ("page", "head", "token", "layer"),
}  # fmt: skip


class Pool:
    """A host pool of `pages` pages. `swapped` lays heads and layers out the wrong way round, as a broken release would."""

    def __init__(
        self, layout: str = "page_first", *, latent: bool = False, heads: int = 2, layers: int = 3, width: int = 8, rope: int = 4, page: int = 4,
        pages: int = 400, dtype: Dtype = BFLOAT16, start_layer: int = 0, swapped: bool = False,
    ) -> None:  # fmt: skip
        self.layout, self.page_size, self.page_num, self.size = layout, page, pages, pages * page
        self.layer_num = self.target_layer_num = layers
        self.start_layer, self.end_layer = start_layer, start_layer + layers
        self.dtype, self.storage_format_tag, self.dcp_size = dtype, None, 1
        self.head_num, self.latent = (1, True) if latent else (heads, False)
        row = width + rope if latent else width
        if latent:
            self.kv_lora_rank, self.qk_rope_head_dim, self.kv_cache_dim = width, rope, row
            self.dsa_kv_cache_store_fp8 = False
        else:
            self.head_dim = self.v_head_dim = width
        self.planes = 1 if latent else 2
        self.size_per_token = self.planes * self.head_num * layers * row * dtype.itemsize
        sizes = {"layer": layers, "slot": self.size, "head": self.head_num, "page": pages, "token": page}
        self._axes = _SHAPES[layout]
        shape = tuple(sizes[a] for a in self._axes) + (row,)
        self._array = np.zeros((self.planes, *shape), _ARRAYS[dtype])
        self._swapped = swapped
        whole = Tensor(self._array, dtype)
        self.kv_buffer = whole[0] if latent else whole
        self._free = list(range(pages))
        self._lock = threading.Lock()

    @property
    def k_buffer(self) -> Tensor:
        return Tensor(self._array[0], self.dtype)

    @property
    def v_buffer(self) -> Tensor:
        return Tensor(self._array[1], self.dtype)

    def alloc(self, tokens: int) -> Tensor | None:
        with self._lock:
            n = tokens // self.page_size
            if n > len(self._free):
                return None
            taken, self._free = self._free[:n], self._free[n:]
        return indices(np.concatenate([np.arange(p * self.page_size, (p + 1) * self.page_size) for p in taken]))

    def free(self, slots: Tensor) -> None:
        with self._lock:
            self._free += [int(s) // self.page_size for s in slots.array[:: self.page_size]]

    def page(self, slot: int) -> np.ndarray:
        """A writable view of one page: [plane, layer, token, head, dim], whatever the layout."""
        a = self._array
        if "page" in self._axes:
            a = a[:, slot // self.page_size]
        else:
            cut = [slice(None)] * a.ndim
            cut[1 + self._axes.index("slot")] = slice(slot, slot + self.page_size)
            a = a[tuple(cut)]
        axes = [x for x in self._axes if x != "page"]
        names = [{"slot": "token"}.get(x, x) for x in axes]
        if self._swapped:
            names = [{"head": "layer", "layer": "head"}.get(x, x) for x in names]
        order = [0] + [1 + names.index(x) for x in ("layer", "token", "head")] + [a.ndim - 1]
        return a.transpose(order)

    def get_data_page(self, slot: int) -> Tensor:
        """One flat page in the pool's own order."""
        a = self._array
        if "page" in self._axes:
            return Tensor(a[:, slot // self.page_size].reshape(-1).copy(), self.dtype)
        cut = [slice(None)] * a.ndim
        cut[1 + self._axes.index("slot")] = slice(slot, slot + self.page_size)
        return Tensor(a[tuple(cut)].reshape(-1).copy(), self.dtype)

    def get_dummy_flat_data_page(self) -> Tensor:
        return Tensor(np.zeros_like(self.get_data_page(0).array), self.dtype)

    def set_from_flat_data_page(self, slot: int, flat: Tensor) -> None:
        inner = [a for a in self._axes if a != "page"]
        names = [{"slot": "token"}.get(a, a) for a in inner]
        page = self.page(slot)
        sizes = dict(zip(("layer", "token", "head"), page.shape[1:4], strict=True))
        given = flat.array.reshape((self.planes, *(sizes[n] for n in names), page.shape[-1]))
        page[...] = given.transpose([0] + [1 + names.index(x) for x in ("layer", "token", "head")] + [4])

    def fill(self, slots: Tensor, seed: int) -> None:
        """Random bytes into whole pages."""
        rng = np.random.default_rng(seed)
        for slot in slots.array[:: self.page_size]:
            page = self.page(int(slot))
            page[...] = rng.integers(0, np.iinfo(page.dtype).max, page.shape, page.dtype)

    def read(self, slots: Tensor) -> list[np.ndarray]:
        """Copies of whole pages, in one order for all layouts."""
        return [self.page(int(s)).copy() for s in slots.array[:: self.page_size]]

    def zero(self) -> None:
        self._array[...] = 0


# -- the engine's modules ----------------------------------------------------------------------------------------


class PoolName(str, enum.Enum):
    KV = "kv"
    MAMBA = "mamba"
    SWA = "swa"
    INDEXER = "indexer"


class PoolHitPolicy(str, enum.Enum):
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"
    BLOCK_GROUPS = "block_groups"


@dataclasses.dataclass
class PoolTransfer:
    name: PoolName
    host_indices: Any = None
    device_indices: Any = None
    keys: list[str] | None = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES


@dataclasses.dataclass
class PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict[Any, int]
    restorable_prefix_pages: list[int] | None = None


@dataclasses.dataclass
class OlderPoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict[Any, int]


@dataclasses.dataclass
class ExtraInfo:
    prefix_keys: list[str] | None = None
    extra_info: dict[str, Any] | None = None


@dataclasses.dataclass
class StorageConfig:
    """The fields of 0.5.23 that a backend may read; a release before had fewer of them."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    enable_storage_metrics: bool = False
    is_page_first_layout: bool = True
    model_name: str | None = "served/name"
    tp_lcm_size: int | None = None
    should_split_heads: bool = False
    dp_rank: int = 0
    extra_config: dict[str, Any] | None = None
    dcp_size: int = 1
    dcp_rank: int = 0
    logical_page_size: int | None = None


class HiCacheStorage(abc.ABC):
    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        self.registered_pools = {**getattr(self, "registered_pools", {}), host_pool_name: host_pool}

    def on_host_pools_registered(self) -> None:
        return None

    @abc.abstractmethod
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any: ...

    @abc.abstractmethod
    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> Any: ...

    @abc.abstractmethod
    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool: ...

    @abc.abstractmethod
    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool: ...

    @abc.abstractmethod
    def exists(self, key: str) -> bool: ...


@dataclasses.dataclass
class StorageMetrics:
    prefetch_pgs: list[int]
    backup_pgs: list[int]
    prefetch_bandwidth: list[float]
    backup_bandwidth: list[float]


def get_hash_str(tokens: Sequence[int], prior_hash: str | None = None, page_size: int | None = None) -> Any:
    """Hex keys of pages: SHA-256 over the digest before and the tokens as 32-bit little-endian words."""
    size = page_size or len(tokens)
    keys, before = [], bytes.fromhex(prior_hash or "")
    for at in range(0, len(tokens), size):
        before = hashlib.sha256(before + np.asarray(tokens[at : at + size], "<u4").tobytes()).digest()
        keys.append(before.hex())
    return keys if page_size else keys[-1]


class Args(types.SimpleNamespace):
    """What the engine was started with."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(**{"load_format": "auto", "speculative_algorithm": None, "enable_lora": False, "attention_backend": "torch_native", "device": "cpu",
                            "kv_cache_dtype": "auto", "enable_hisparse": False, **changes})  # fmt: skip


class Model(types.SimpleNamespace):
    """The engine's configuration of its model."""

    def __init__(self, *, kv_heads: int = 2, layers: int = 3, **changes: Any) -> None:
        super().__init__(**{"num_hidden_layers": layers, "is_multimodal": False, "is_hybrid_swa": False, "sliding_window_size": None, **changes})
        self.kv_heads = kv_heads

    def get_total_num_kv_heads(self) -> int:
        return self.kv_heads


def install(monkeypatch: Any, args: Args, model: Model, *, older: bool = False) -> None:
    """Puts stand-ins where quire_kv.sglang imports the engine, and forgets what was imported before."""
    for name in [n for n in sys.modules if n == "sglang" or n.startswith(("sglang.", "quire_kv.sglang"))]:
        monkeypatch.delitem(sys.modules, name)

    def module(name: str, **members: Any) -> None:
        m = types.ModuleType(name)
        m.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, m)

    for name in ("sglang.srt", "sglang.srt.mem_cache", "sglang.srt.observability"):
        module(name, __path__=[])
    module("sglang", __path__=[], __version__="0.5.23")
    module(
        "sglang.srt.mem_cache.hicache_storage", HiCacheStorage=HiCacheStorage, PoolName=PoolName,
        PoolTransferResult=OlderPoolTransferResult if older else PoolTransferResult,
    )  # fmt: skip
    module("sglang.srt.observability.metrics_collector", StorageMetrics=StorageMetrics)
    module("sglang.srt.mem_cache.utils", get_hash_str=get_hash_str, **({} if older else {"storage_namespace_seed": lambda *_: None}))
    module("sglang.srt.runtime_context", get_server_args=lambda: args, process_model_config=lambda: model)
    module("torch", from_numpy=lambda a: Tensor(a, {np.dtype(np.uint8): UINT8}[a.dtype]), arange=lambda n: indices(range(n)), __version__="0")


# -- the controller ----------------------------------------------------------------------------------------------


class Ranks:
    """The MIN over `count` ranks, step by step: every rank has to join the same number of reductions."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count)
        self._values: list[int] = []
        self._lock = threading.Lock()

    def least(self, value: int) -> int:
        with self._lock:
            self._values.append(value)
        self._barrier.wait(WAIT)
        least = min(self._values)
        if self._barrier.wait(WAIT) == 0:
            self._values.clear()
        self._barrier.wait(WAIT)
        return least


@dataclasses.dataclass
class Prefetch:
    keys: list[str]
    prefix: list[str] | None
    hits: int = 0
    done: int = 0
    slots: Tensor | None = None
    event: threading.Event = dataclasses.field(default_factory=threading.Event)


class Controller:
    """Drives one backend as one rank of the engine does.

    whole      one exists for all pages of a prompt (HybridCacheController), else 128 a call
    generic    flat pages instead of slots
    fatal      an exception ends the thread that it reaches, as in releases before 0.5.22
    """

    def __init__(
        self, backend: Any, pool: Pool, *, whole: bool = True, generic: bool = False, fatal: bool = False, hits: Ranks | None = None, acks: Ranks | None = None
    ) -> None:
        self.backend, self.pool = backend, pool
        self.whole, self.generic, self.fatal = whole, generic, fatal
        self.hits, self.acks = hits or Ranks(1), acks or Ranks(1)
        self.died: list[str] = []
        self.lookups = queue.Queue()
        self.loads: queue.Queue = queue.Queue()
        self.syncs: queue.Queue = queue.Queue()
        self.backups: queue.Queue = queue.Queue()
        backend.register_mem_pool_host(pool)
        backend.register_mem_host_pool_v2(pool, PoolName.KV)
        backend.on_host_pools_registered()
        pairs = ((self.lookups, self._look), (self.loads, self._transfer), (self.syncs, self._sync), (self.backups, self._back_up))
        self.threads = [threading.Thread(target=self._serve, args=p, daemon=True) for p in pairs]
        for t in self.threads:
            t.start()

    @property
    def alive(self) -> bool:
        return all(t.is_alive() for t in self.threads)

    def close(self) -> None:
        for q in (self.lookups, self.loads, self.syncs, self.backups):
            q.put(None)
        for t in self.threads:
            t.join(WAIT)
        self.backend.close()

    def backup(self, keys: Sequence[str], slots: Tensor, prefix: list[str] | None = None) -> int:
        """Pages that were written."""
        done: queue.Queue = queue.Queue()
        self.backups.put((list(keys), slots, prefix, done))
        return done.get(timeout=WAIT)

    def prefetch(self, keys: Sequence[str], prefix: list[str] | None = None) -> tuple[int, int, Tensor | None]:
        """Pages that all ranks found, pages that all ranks loaded, and where they lie."""
        op = Prefetch(list(keys), prefix)
        self.lookups.put(op)
        assert op.event.wait(WAIT), "the prefetch thread does not answer"
        if op.hits == 0:
            return 0, 0, None
        op.slots = self.pool.alloc(op.hits * self.pool.page_size)
        assert op.slots is not None
        op.event.clear()
        self.loads.put(op)
        assert op.event.wait(WAIT), "the prefetch I/O thread does not answer"
        return op.hits, op.done, op.slots

    def _serve(self, tasks: queue.Queue, work: Callable[[Any], None]) -> None:
        while (task := tasks.get()) is not None:
            work(task)

    def _guard(self, call: Callable[[], Any], miss: Any) -> Any:
        try:
            return call()
        except Exception as e:
            self.died.append(f"{type(e).__name__}: {e}")
            if self.fatal:
                raise SystemExit from e
            return miss

    def _look(self, op: Prefetch) -> None:
        found, prefix = 0, op.prefix
        for at in range(0, len(op.keys), len(op.keys) if self.whole else BATCH):
            batch = op.keys[at : at + (len(op.keys) if self.whole else BATCH)]
            n = self._guard(lambda b=batch, p=prefix: self.backend.batch_exists(b, ExtraInfo(p)), 0)
            found += n
            if n < len(batch):
                break
            prefix = None if prefix is None else prefix + batch
        op.hits = self.hits.least(found)
        op.keys = op.keys[: op.hits]
        op.event.set()

    def _transfer(self, op: Prefetch) -> None:
        good, done, prefix = True, 0, op.prefix
        for at in range(0, len(op.keys), BATCH):
            if good:
                batch = op.keys[at : at + BATCH]
                slots = op.slots[at * self.pool.page_size : (at + len(batch)) * self.pool.page_size]
                n = self._guard(lambda b=batch, s=slots, p=prefix: self._get(b, s, p), 0)
                good = n == len(batch)
                done += n
                prefix = None if prefix is None else prefix + batch
            self.syncs.put((op, done, False))
        self.syncs.put((op, done, True))

    def _get(self, keys: list[str], slots: Tensor, prefix: list[str] | None) -> int:
        if not self.generic:
            got = self.backend.batch_get_v1(keys, slots, ExtraInfo(prefix))
            return next((i for i in range(len(keys)) if not got[i]), len(keys))
        pages = self.backend.batch_get(keys, [self.pool.get_dummy_flat_data_page() for _ in keys])
        n = 0
        while n < len(keys) and pages is not None and pages[n] is not None:
            self.pool.set_from_flat_data_page(slots[n * self.pool.page_size], pages[n])
            n += 1
        return n

    def _sync(self, task: tuple[Prefetch, int, bool]) -> None:
        op, done, last = task
        if last:
            op.event.set()
        else:
            op.done = self.acks.least(done)

    def _back_up(self, task: tuple[list[str], Tensor, list[str] | None, queue.Queue]) -> None:
        keys, slots, prefix, answer = task
        done, page = 0, self.pool.page_size
        for at in range(0, len(keys), BATCH):
            batch, part = keys[at : at + BATCH], slots[at * page : (at + BATCH) * page]
            if not self._guard(lambda b=batch, s=part, p=prefix: self._set(b, s, p), False):
                break
            prefix = None if prefix is None else prefix + batch
            done += len(batch)
        answer.put(done)

    def _set(self, keys: list[str], slots: Tensor, prefix: list[str] | None) -> bool:
        if not self.generic:
            return all(self.backend.batch_set_v1(keys, slots, ExtraInfo(prefix)))
        return bool(self.backend.batch_set(keys, [self.pool.get_data_page(slots[i * self.pool.page_size]) for i in range(len(keys))]))
