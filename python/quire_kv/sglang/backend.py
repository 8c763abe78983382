"""The dynamic HiCache storage backend.

    scheduler   register pools ─> start: facts, proof of the layout, watch of the weights ─> Cache (opens by itself)
    prefetch    batch_exists(_v2) ──────────────> Cache.lookup     one call for all pages of a prompt and pool
    prefetch    batch_get_v1, _v2, batch_get ───> Cache.load       permuted into the pool, verified there
    backup      batch_set_v1, _v2, batch_set ───> Cache.save       permuted out of the pool; not read after the return

The engine calls a backend from threads of its own, one call at a time each, and takes its answers by shape. So every
method answers the miss of the exact shape whatever happens, within the deadlines of the configuration. SGLang never
says that it is done with a page that it looked up: lookups take no lease.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from .. import client as _client
from ..cache import Cache
from ..config import Config
from ..errors import ConfigError, QuireError
from ..hint import said
from ..layout import PageMemory
from ..page import View
from . import answers
from .aside import Aside
from .facts import Engine, Part, Rank, parts_of, spec_of
from .pools import HostPool
from .proof import prove
from .watch import watch

__all__ = ["QuireHiCache"]

_log = logging.getLogger("quire_kv.sglang")

# Keys of the same JSON that are the engine's own. Some callers take them out before, some do not.
_ENGINE_SETTINGS = frozenset(
    """backend_name module_path class_name interface_v1 allocator prefetch_threshold prefetch_timeout_base
    prefetch_timeout_per_ki_token hicache_storage_pass_prefix_keys tp_lcm_size""".split()
)
_BATCH_BYTES = 256 << 20  # of one load or save: what their timeouts are for
_SCHEDULER_SECONDS = 0.005  # that a lookup may hold the scheduler's thread
_CLOSE_SECONDS = 0.8
_STATS_KEPT = 1024  # samples between two reads of the engine's metrics
_REPLICA_POLL = 0.01  # seconds between looks for what a replica writes

_Answer = TypeVar("_Answer")
_MemoryOf = Callable[[HostPool], "PageMemory | None"]


def _miss_of(miss: Callable[..., _Answer]) -> Callable[[Callable[..., _Answer]], Callable[..., _Answer]]:
    """A method that answers `miss(*arguments)` instead of raising, and while the cache is off."""

    def decorate(method: Callable[..., _Answer]) -> Callable[..., _Answer]:
        @functools.wraps(method)
        def answer(self: QuireHiCache, *args: Any, **kwargs: Any) -> _Answer:
            try:
                if self._usable():
                    return method(self, *args, **kwargs)
            except Exception:
                self._once(method.__name__, f"quire: {method.__name__} failed")
            return miss(*args, **kwargs)

        return answer

    return decorate


class QuireHiCache(HiCacheStorage):
    """See the module. Loaded by configuration: backend_name, module_path quire_kv.sglang, class_name QuireHiCache.

    The constructor takes no time and does not raise. Nothing goes to the store before the engine has registered its
    host pools. `state` is one line for people.
    """

    make_cache: Callable[..., Cache] = Cache

    def __init__(self, storage_config: Any = None, kwargs: Mapping[str, Any] | None = None) -> None:
        self._pools: dict[str, Any] = {}
        self._parts: dict[str, Part] = {}
        self._cache: Cache | None = None
        self._why = ""  # the cache is off
        self._lock = threading.Lock()
        self._started = False
        self._closed = False
        self._scheduler = threading.get_ident()
        self._aside: Aside | None = None
        self._said: set[str] = set()
        self._samples: dict[str, deque[tuple[int, float]]] = {"load": deque(maxlen=_STATS_KEPT), "save": deque(maxlen=_STATS_KEPT)}
        self._measured = bool(getattr(storage_config, "enable_storage_metrics", False))
        try:
            self._config = Config.parse(getattr(storage_config, "extra_config", None), ignored=_ENGINE_SETTINGS)
            self._config.require_model()
            self._rank = Rank.of(storage_config)
        except Exception as e:
            self._turn_off(e)

    # -- life ----------------------------------------------------------------------------------------------------

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """The engine's pool for keys and values; always the first call."""
        super().register_mem_pool_host(mem_pool_host)
        self._scheduler = threading.get_ident()
        self._pools["kv"] = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """One pool of several. Pools that come after the start are not stored."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if not self._started:
            self._pools[answers.pool_name(host_pool_name)] = host_pool

    def on_host_pools_registered(self) -> None:
        """All pools are known. Releases that do not call this start with their first call for pages."""
        self._start()

    def _start(self) -> None:
        with self._lock:
            if self._started or self._closed:
                return
            self._started = True
            if self._why:
                return
            try:
                engine = Engine.running()
                parts = parts_of(engine, self._rank, self._pools)
                watch(self)
                for part in parts.values():
                    prove(part.pool)
                config, rank = self._config, self._rank
                cache = self.make_cache(
                    config, lambda: spec_of(engine, config, rank, list(parts.values())), _log, adapter="sglang", engine=f"sglang {engine.version}"
                )
            except Exception as e:
                self._turn_off(e)
                return
            self._parts, self._cache = parts, cache
            if self._why:  # the weights changed meanwhile
                cache.invalidate(self._why)

    def _turn_off(self, error: Exception) -> None:
        """One line in the log; everything is a miss from now on."""
        self._why = (
            str(error) if isinstance(error, ConfigError) else f"quire: the backend could not be started: {type(error).__name__}: {error}".replace("\n", " ")
        )
        _log.error("%s", self._why, exc_info=None if isinstance(error, ConfigError) else error)

    def changed(self, why: str) -> None:
        """The weights of this process are about to change: nothing is looked up or saved any more."""
        line = f"the weights of this engine change ({why}); restart it with the digest of the new ones"
        self._why = self._why or f"quire: {line}"
        cache = self._cache
        if cache is not None:
            cache.invalidate(line)

    @property
    def state(self) -> str:
        """off and why, opening, ready, away, closed."""
        if self._closed:
            return "closed"
        if self._why:
            return f"off: {self._why.removeprefix('quire: ')}"
        return self._cache.state if self._cache is not None else "waiting for the host pools"

    @property
    def cache(self) -> Cache | None:
        """What answers, once the pools are registered."""
        return self._cache

    def close(self) -> None:
        """Ends calls under way. Returns within a second; idempotent."""
        with self._lock:
            self._closed = True
        try:
            if self._aside is not None:
                self._aside.close(0.1)
            if self._cache is not None:
                self._cache.close(_CLOSE_SECONDS)
        except Exception:
            self._once("close", "quire: close failed")

    def clear(self) -> None:
        """Hides all pages from this engine until it has stored them again. Other engines keep them. Idempotent."""
        try:
            if self._cache is not None:
                self._cache.clear()
            if self._aside is not None:
                self._aside.forget()
        except Exception:
            self._once("clear", "quire: clear failed")

    def get_stats(self) -> Any:
        """Pages and GB/s of the loads and saves since the last call, as the engine's StorageMetrics; None without."""
        try:
            return answers.metrics(self._drain("load"), self._drain("save")) if self._measured else None
        except Exception:
            self._once("get_stats", "quire: get_stats failed")
            return None

    # -- lookups -------------------------------------------------------------------------------------------------

    @_miss_of(lambda *_, **__: 0)
    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many pages from the first on are stored for all heads and layers."""
        hashes = answers.hashes(keys)
        return min(len(keys), self._lookup("kv", hashes)[0]) if hashes else 0

    @_miss_of(lambda *_, **__: False)
    def exists(self, key: str) -> bool:
        """One page."""
        hashes = answers.hashes([key])
        return bool(hashes) and self._lookup("kv", hashes)[0] == 1

    @_miss_of(lambda *_, **__: answers.result(0, {}, []))
    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """The prefix that all pools allow: pages of keys and values, and what each side pool needs for them."""
        hashes = answers.hashes(keys)
        if not hashes:
            return answers.result(0, {}, [])
        leading, _ = self._lookup("kv", hashes)
        if leading == 0:
            return answers.result(0, {}, [])
        sides = []
        for transfer in pool_transfers or ():
            name = answers.pool_name(transfer.name)
            if name == "kv" or answers.policy(transfer) == "block_groups":
                continue
            present = self._lookup(name, hashes[:leading])[1] if name in self._parts else [False] * leading
            sides.append((transfer, present))
        return answers.usable_prefix(leading, sides)

    def _lookup(self, name: str, hashes: Sequence[bytes]) -> tuple[int, Sequence[bool]]:
        """Leading and present pages. On the scheduler's thread the answer has 5 ms: what comes later is for the next ask."""
        cache, group = self._cache, self._group(name)
        if cache is None:
            return 0, [False] * len(hashes)

        def ask() -> tuple[int, Sequence[bool]]:
            found = cache.lookup(hashes, group=group)
            return found.leading, found.present

        if threading.current_thread() is not threading.main_thread() and threading.get_ident() != self._scheduler:
            return ask()
        if self._aside is None:
            self._aside = Aside(self._config.lookup_timeout)
        answer: tuple[int, Sequence[bool]] | None = self._aside.ask((name, len(hashes), hashes[0], hashes[-1]), ask, _SCHEDULER_SECONDS)
        return answer if answer is not None else (0, [False] * len(hashes))

    # -- loads ---------------------------------------------------------------------------------------------------

    @_miss_of(lambda keys, *_, **__: [False] * len(keys))
    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Fills the pages of the pool at host_indices; one answer a key."""
        return self._load("kv", keys, lambda pool: pool.pages(host_indices, len(keys)))

    @_miss_of(lambda transfers, *_, **__: answers.nothing(transfers))
    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """The same for each pool of the transfers; pools that are not stored answer False."""
        return {t.name: self._load(answers.pool_name(t.name), t.keys or (), _pages_of(t)) for t in transfers}

    @_miss_of(lambda keys, *_, **__: [None] * len(keys))
    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """Fills one flat tensor a page, in the order of the pool's get_data_page."""
        if not isinstance(target_locations, (list, tuple)) or len(target_locations) != len(keys):
            return [None] * len(keys)
        good = self._load("kv", keys, lambda pool: pool.flat(target_locations))
        return [t if ok else None for t, ok in zip(target_locations, good, strict=True)]

    @_miss_of(lambda *_, **__: None)
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """One page into a flat tensor, or None."""
        return self.batch_get([key], [target_location])[0] if target_location is not None else None

    def _load(self, name: str, keys: Sequence[str], memory_of: _MemoryOf) -> list[bool]:
        good = [False] * len(keys)
        prepared = self._prepare(name, keys, memory_of)
        if prepared is None:
            return good
        cache, part, hashes, memory = prepared
        began = time.monotonic()
        for batch in _batches(len(keys), part.pool.page_bytes):
            if batch.start and time.monotonic() - began >= self._config.load_timeout:
                break  # the good pages so far are a prefix
            good[batch] = cache.load(hashes[batch], memory.select(batch), group=self._group(name), view=part.view)
            if not all(good[batch]):
                break  # the engine takes nothing behind the first page that is missing
        self._sample("load", sum(good), part.pool.page_bytes, time.monotonic() - began)
        return good

    # -- saves ---------------------------------------------------------------------------------------------------

    @_miss_of(lambda keys, *_, **__: [False] * len(keys))
    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Stores the pages of the pool at host_indices; one answer a key: whether the store holds it now."""
        return self._save("kv", keys, lambda pool: pool.pages(host_indices, len(keys)), _parent_of(extra_info), extra_info)

    @_miss_of(lambda transfers, *_, **__: answers.nothing(transfers))
    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """The same for each pool of the transfers; pools that are not stored answer False."""
        return {t.name: self._save(answers.pool_name(t.name), t.keys or (), _pages_of(t), _client.UNKNOWN_PARENT, extra_info) for t in transfers}

    @_miss_of(lambda *_, **__: False)
    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        """Stores one flat tensor a page; True when the store holds all of them."""
        if not isinstance(values, (list, tuple)) or len(values) != len(keys) or not keys:
            return False
        return all(self._save("kv", keys, lambda pool: pool.flat(values), _client.UNKNOWN_PARENT))

    @_miss_of(lambda *_, **__: False)
    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """One page from a flat tensor."""
        return self.batch_set([key], [value]) if value is not None else False

    def _save(self, name: str, keys: Sequence[str], memory_of: _MemoryOf, parent: Any, extra_info: Any = None) -> list[bool]:
        good = [False] * len(keys)
        prepared = self._prepare(name, keys, memory_of)
        if prepared is None:
            return good
        cache, part, hashes, memory = prepared
        if self._replica_writes(part, hashes) and self._replica_wrote(cache, name, hashes, part.view):
            return [True] * len(keys)
        hint = cache.hint_of(said(getattr(extra_info, "extra_info", None)))
        began = time.monotonic()
        for batch in _batches(len(keys), part.pool.page_bytes):
            before = hashes[batch.start - 1] if batch.start and name == "kv" else parent
            good[batch] = cache.save(
                hashes[batch], memory.select(batch), parent=before, linked=name == "kv", group=self._group(name), view=part.view, hint=hint
            )
            if not all(good[batch]):
                break  # pages behind a hole are of no use, and the engine takes the batch as failed
        self._sample("save", sum(good), part.pool.page_bytes, time.monotonic() - began)
        return good

    def _replica_writes(self, part: Part, hashes: Sequence[bytes]) -> bool:
        """Whether another rank with the same heads is the writer of this batch. Ranks cut their batches alike."""
        replicas = self._rank.tp_size // part.group.kv_heads
        return not part.pool.latent and replicas > 1 and hashes[0][0] % replicas != self._rank.tp_rank % replicas

    def _replica_wrote(self, cache: Cache, name: str, hashes: Sequence[bytes], view: View) -> bool:
        """Waits for what the writer stores, for half the time of a save; False when it does not come, or cannot be asked."""
        until = time.monotonic() + self._config.save_timeout / 2
        while not self._closed and cache.ready and (session := cache.session) is not None:
            try:
                there = session.exists(hashes, group=self._group(name), view=view, timeout=self._config.lookup_timeout)
            except QuireError:
                return False  # the save that follows meets the same store, and counts what is wrong with it
            if there.leading == len(hashes):
                return True
            if time.monotonic() + _REPLICA_POLL >= until:
                break
            time.sleep(_REPLICA_POLL)
        return False

    # -- common --------------------------------------------------------------------------------------------------

    def _usable(self) -> bool:
        if not self._started:
            self._start()
        return not self._why and not self._closed and self._cache is not None

    def _prepare(self, name: str, keys: Sequence[str], memory_of: _MemoryOf) -> tuple[Cache, Part, list[bytes], PageMemory] | None:
        """What a load or save needs; None where the call cannot be served."""
        cache, part = self._cache, self._parts.get(name)
        if cache is None or part is None or not keys:
            return None
        hashes = answers.hashes(keys)
        if not hashes or not cache.ready:
            return None
        memory = memory_of(part.pool)
        if memory is None:
            self._once("memory", f"quire: a call names {len(keys)} pages of pool {name!r} that are not whole pages of it")
            return None
        return cache, part, hashes, memory

    def _group(self, name: str) -> bytes | None:
        """The id of a pool's group; None where the namespace has one only, or is not open."""
        session = self._cache.session if self._cache is not None else None
        if session is None or len(self._parts) == 1:
            return None
        kind = self._parts[name].group.kind
        return next(g for g, geometry in session.geometries.items() if geometry.kind == kind)

    def _sample(self, what: str, pages: int, page_bytes: int, seconds: float) -> None:
        if self._measured and pages:
            self._samples[what].append((pages, pages * page_bytes / max(seconds, 1e-9) / 1e9))

    def _drain(self, what: str) -> list[tuple[int, float]]:
        samples = self._samples[what]
        return [samples.popleft() for _ in range(len(samples))]

    def _once(self, kind: str, text: str) -> None:
        """Logs the first of a kind, with the exception where there is one."""
        if kind not in self._said:
            self._said.add(kind)
            _log.warning(text, exc_info=True)


def _pages_of(transfer: Any) -> _MemoryOf:
    """The memory of the pages that a transfer names in its pool."""
    return lambda pool: pool.pages(transfer.host_indices, len(transfer.keys or ()))


def _batches(pages: int, page_bytes: int) -> list[slice]:
    """Cuts a call into parts of at most _BATCH_BYTES, and at least one page."""
    step = max(1, _BATCH_BYTES // page_bytes)
    return [slice(i, min(i + step, pages)) for i in range(0, pages, step)]


def _parent_of(extra_info: Any) -> Any:
    """The page before the first of a call: the last of the prefix keys, where the engine passes them."""
    prefix = getattr(extra_info, "prefix_keys", None)
    if prefix is None:
        return _client.UNKNOWN_PARENT
    if not prefix:
        return _client.ROOT_PARENT
    hashes = answers.hashes(prefix[-1:])
    return hashes[0] if hashes else _client.UNKNOWN_PARENT
