"""Mounts Quire under vLLM's tiered KV offloading (vllm 0.32.0) as a secondary tier.

    kv_connector: OffloadingConnector, kv_connector_extra_config: {spec_name: TieringOffloadingSpec, cpu_bytes_to_use: ...,
        secondary_tiers: [{"type": "QuireTier", "module_path": "quire_kv.vllm_tier", "server": ..., "model_digest": ..., ...}]}

vLLM copies blocks between the device and chunks in host memory; this tier copies chunks between host memory and the store, and
never looks inside one: packing `whole`, with vLLM's version and parallel shape in it.

    scheduler's thread                                threads of this tier
    lookup: RETRY, noted ─ on_schedule_end ─────────> one Cache.lookup a request and step, with a lease
    lookup: HIT, or MISS when 20 ms brought nothing <─ verdicts
    submit_load, submit_store ──────────────────────> Cache.load, Cache.save on the chunk's bytes
    get_finished_jobs <────────────────────────────── JobResult; keys that a load did not bring become misses

All methods run in the scheduler and return at once, but for drain_jobs and shutdown, which must wait.
"""

from __future__ import annotations

import dataclasses
import itertools
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

from vllm.logger import init_logger
from vllm.v1.kv_offload import base as offload
from vllm.v1.kv_offload.tiering import base as tiering

from .cache import Cache
from .config import Config
from .errors import ConfigError, Reason
from .hint import Hint, said
from .layout import Layout, PageMemory, Rows, address_of
from .locks import Locks
from .metrics import Counters
from .workers import Lane, Workers

__all__ = ["QuireTier"]

SETTINGS = frozenset({"lora", "weak_names", "lookup_wait_ms", "locality"})
_WAIT_SECONDS = 0.02  # from a lookup's start until its keys are misses
_LEASE_SECONDS = 10.0
_BATCH_BYTES = 64 << 20  # of one load or save: what the timeouts of the configuration are for
_QUEUE_SECONDS = 30.0  # a job waits so long for a thread at most
_KEPT_LOCKS = 4096
_SHUTDOWN_SECONDS = 1.0
_GROUP_BYTES = 4  # of an OffloadKey, behind the block's hash
_METRICS = "vllm:kv_offload_quire_"

# Older releases answered True, False and None, and had no contexts of requests.
_LookupResult = getattr(offload, "LookupResult", None)
HIT, MISS, RETRY = (_LookupResult.HIT, _LookupResult.MISS, _LookupResult.RETRY) if _LookupResult else (True, False, None)
_RequestContext = getattr(offload, "RequestOffloadingContext", lambda: None)
_RESULT_FIELDS = {f.name for f in dataclasses.fields(tiering.JobResult)}

_tiers = itertools.count()


class _Verdict:
    """What is known of one key, and who wants to know. `found` None: nothing yet."""

    __slots__ = ("asked", "found", "requests", "until")

    def __init__(self, until: float) -> None:
        self.found: bool | None = None
        self.asked = False
        self.until = until
        self.requests: set[str] = set()


class QuireTier(tiering.SecondaryTierManager):
    """See the module. Settings are those of quire_kv.config, and SETTINGS."""

    medium: ClassVar[Any] = getattr(getattr(offload, "Medium", None), "STORAGE", None)

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        *,
        describe: Callable[[Config, Any, int], Any] | None = None,
        make_cache: Callable[..., Cache] = Cache,
        **settings: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self._log = init_logger("vllm.quire_kv.tier")
        assert primary_kv_view.strides is not None
        self._chunk_bytes = int(primary_kv_view.strides[0])
        self._chunks = int(primary_kv_view.shape[0]) if primary_kv_view.shape else 0
        self._base = address_of(primary_kv_view.cast("B"))[0] if primary_kv_view.nbytes else 0
        self._owner = primary_kv_view  # not another view of it: the tiering manager releases it after shutdown
        self._layout = Layout(1, 1, (Rows(self._chunk_bytes, self._chunk_bytes, 0, 1),))
        self._verdicts: dict[bytes, _Verdict] = {}  # of the scheduler's thread alone, like the next four
        self._requests: dict[str, set[bytes]] = {}
        self._new: dict[str, list[bytes]] = {}
        self._hints: dict[str, Hint | None] = {}  # of the requests that there are
        self._load_keys: dict[int, list[bytes]] = {}
        self._found: queue.SimpleQueue[list[tuple[bytes, _Verdict, bool]]] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._locks = Locks(_KEPT_LOCKS)
        self._cache: Cache | None = None
        self._reported: dict[Any, int] = {}
        self._wait = _WAIT_SECONDS
        self._differs: Callable[[], str] | None = None  # until the first request
        self._said: set[str] = set()
        self._said_lock = threading.Lock()
        self._workers = Workers(
            f"quire-tier-{next(_tiers)}", {"lookup": Lane(2, 1024), "load": Lane(2, 1024), "store": Lane(2, 1024), "release": Lane(1, 4096)}
        )
        try:
            config = Config.parse(settings, allowed=SETTINGS)
            self._wait = _wait_seconds(config)
            self._set_locality(config)
            identity = (describe or _describe)(config, offloading_spec, self._chunk_bytes)
        except ConfigError as e:
            self._log.error("%s; the engine runs on without Quire", e)
        else:
            self._differs = identity.differs
            self._cache = make_cache(config, identity.spec, self._log, adapter="vllm_tier", engine="vllm")

    # -- lookups -------------------------------------------------------------------------------------------------

    def on_new_request(self, req_context: Any) -> Any:
        """The first one is after vLLM's start: what it hashes with by now must be what the identity says."""
        differs, self._differs = self._differs, None
        if differs is not None and self._cache is not None:
            try:
                why = differs()
            except Exception as e:
                why = f"the engine's block hashes cannot be checked: {type(e).__name__}: {e}"
            if why:
                self._cache.invalidate(why)
        given = said(getattr(req_context, "kv_transfer_params", None))
        if self._cache is not None and given is not None:
            self._hints[req_context.req_id] = self._cache.hint_of(given)
        return _RequestContext()

    def lookup(self, key: bytes, req_context: Any) -> Any:
        """HIT, MISS or RETRY from what is known; a new key is asked for at the end of this step."""
        self._take_found()
        cache = self._cache
        v = self._verdicts.get(key)
        if v is None:
            if cache is None or not cache.ready or not self._ours(key):
                return MISS
            v = self._verdicts[key] = _Verdict(time.monotonic() + self._wait)
            self._new.setdefault(req_context.req_id, []).append(key)
        if req_context.req_id not in v.requests:
            v.requests.add(req_context.req_id)
            self._requests.setdefault(req_context.req_id, set()).add(key)
        if v.found is None and time.monotonic() > v.until:
            v.found = False  # for this request's life: an answer that comes later is not waited for
        return RETRY if v.found is None else HIT if v.found else MISS

    def on_schedule_end(self, context: Any = None) -> None:
        """Asks for the keys of this step, in one lookup a request."""
        self._take_found()
        new, self._new = self._new, {}
        for request, keys in new.items():
            asked = [(k, v) for k in keys if (v := self._verdicts.get(k)) is not None and not v.asked and v.found is None]
            for _, v in asked:
                v.asked = True
            if asked:
                look_up = partial(self._look_up, asked, self._hints.get(request))
                self._workers.submit("lookup", look_up, [False] * len(asked), partial(self._looked_up, asked), timeout=_QUEUE_SECONDS)

    def on_request_finished(self, req_context: Any) -> None:
        """Forgets what was known for this request alone, and gives back what it pinned."""
        self._new.pop(req_context.req_id, None)
        self._hints.pop(req_context.req_id, None)
        over = []
        for key in self._requests.pop(req_context.req_id, ()):
            v = self._verdicts.get(key)
            if v is not None:
                v.requests.discard(req_context.req_id)
                if not v.requests:
                    del self._verdicts[key]
                    over.append(key)
        self._release(self._locks.unlock(over))

    def _look_up(self, asked: Sequence[tuple[bytes, _Verdict]], hint: Hint | None, _: float) -> list[bool]:
        cache = self._cache
        assert cache is not None
        keys = [k for k, _ in asked]
        found = cache.lookup([k[:-_GROUP_BYTES] for k in keys], lease=_LEASE_SECONDS if self._locks.room() else None, hint=hint)
        if found.lease is not None:
            wanted = [k for (k, v), there in zip(asked, found.present, strict=True) if there and v.requests]
            if wanted and all(v.found is None for _, v in asked):  # nobody gave up on the answer
                self._locks.lock(found.lease, wanted, _LEASE_SECONDS)
            else:
                self._release([found.lease])
        return list(found.present)

    def _looked_up(self, asked: Sequence[tuple[bytes, _Verdict]], found: Sequence[bool]) -> None:
        self._found.put([(k, v, there) for (k, v), there in zip(asked, found, strict=True)])

    def _take_found(self) -> None:
        while True:
            try:
                batch = self._found.get_nowait()
            except queue.Empty:
                return
            unwanted = []
            for key, v, found in batch:
                if v.found is None and self._verdicts.get(key) is v:
                    v.found = found
                elif found:
                    unwanted.append(key)
            if unwanted:
                self._release(self._locks.unlock(unwanted))

    # -- jobs ----------------------------------------------------------------------------------------------------

    def submit_store(self, job_metadata: Any) -> None:
        """Publishes chunks. What is stored already is not copied again."""
        self._submit("store", job_metadata)

    def submit_load(self, job_metadata: Any) -> None:
        """Fetches into chunks. Only keys whose bytes were verified where they now lie succeed."""
        self._load_keys[job_metadata.job_id] = list(job_metadata.keys)
        self._submit("load", job_metadata)

    def get_finished_jobs(self) -> Iterable[Any]:
        """Results since the last call. A key that a load did not bring is a miss from here on: asking again would not end."""
        out = []
        while True:
            try:
                result, good = self._finished.get_nowait()
            except queue.Empty:
                break
            keys = self._load_keys.pop(result.job_id, None)
            if keys is not None:
                for key in keys:
                    v = self._verdicts.get(key)
                    if v is not None and key not in good:
                        v.found = False
                self._release(self._locks.unlock(keys))
            out.append(result)
        return out

    def _submit(self, what: str, job: Any) -> None:
        hint = self._hints.get(job.req_context.req_id) if hasattr(job, "req_context") else None
        keys, slots = list(job.keys), [int(c) for c in (job.chunk_ids if hasattr(job, "chunk_ids") else job.block_ids)]
        began = time.monotonic()

        def deliver(good: Collection[bytes]) -> None:
            fields = {
                "job_id": job.job_id,
                "success": len(good) == len(keys),
                "successful_keys": list(good) if what == "load" else None,
                "transfer_time": time.monotonic() - began,
                "transfer_bytes": len(good) * self._chunk_bytes,
            }
            self._finished.put((tiering.JobResult(**{k: v for k, v in fields.items() if k in _RESULT_FIELDS}), good))

        self._workers.submit(what, lambda _: self._move(what, keys, slots, hint), frozenset(), deliver, timeout=_QUEUE_SECONDS)

    def _move(self, what: str, keys: Sequence[bytes], slots: Sequence[int], hint: Hint | None) -> Collection[bytes]:
        """The keys whose chunks came through."""
        good: set[bytes] = set()
        cache = self._cache
        if cache is None or len(keys) != len(slots):
            return good
        fitting = [(k, s) for k, s in zip(keys, slots, strict=True) if self._ours(k) and 0 <= s < self._chunks]
        step = max(1, _BATCH_BYTES // self._chunk_bytes)
        for first in range(0, len(fitting), step):
            batch = fitting[first : first + step]
            memory = PageMemory.strided(self._layout, self._base, [s * self._chunk_bytes for _, s in batch], [0], [0], self._owner)
            hashes = [k[:-_GROUP_BYTES] for k, _ in batch]
            answers = cache.load(hashes, memory) if what == "load" else cache.save(hashes, memory, linked=False, hint=hint)
            good.update(k for (k, _), ok in zip(batch, answers, strict=True) if ok)
            if not any(answers):
                break  # the store is away or refuses: the rest would only wait for it too
        return good

    def _ours(self, key: bytes) -> bool:
        """Whether a key is of the one group that is cached, and its hash long enough to stand for its tokens."""
        if len(key) - _GROUP_BYTES < 16:
            self._say(
                "hash",
                f"quire: block hashes have {len(key) - _GROUP_BYTES} bytes, which can be made to collide: nothing is cached; run vLLM with --prefix-caching-hash-algo sha256_cbor",
            )
            return False
        return not any(key[-_GROUP_BYTES:])

    # -- the rest ------------------------------------------------------------------------------------------------

    def has_pending_work(self) -> bool:
        """Jobs are counted by the tiering manager, and a lookup has a request that waits for it."""
        return False

    def drain_jobs(self) -> None:
        """Waits for all jobs, and turns the cache off: vLLM calls this when it resets its caches, as it does when weights change.

        Each job ends by the deadlines of the configuration.
        """
        if self._cache is not None:
            self._cache.invalidate("vLLM reset its caches, as it does when the weights change; restart the engine with the digest of what it runs now")
        self._workers.drain()
        for v in self._verdicts.values():
            v.found = False

    def shutdown(self) -> None:
        """Ends all work. RuntimeError when a copy into the engine's memory still runs: the caller must then keep that memory."""
        cache = self._cache
        until = time.monotonic() + _SHUTDOWN_SECONDS
        for lease in self._locks.drain():
            self._release([lease])
        self._workers.drain(_SHUTDOWN_SECONDS / 4)
        if cache is not None:
            cache.close(timeout=max(0.05, until - time.monotonic()))  # ends calls under way
        if not self._workers.close(max(0.05, until - time.monotonic())):
            raise RuntimeError("quire: a transfer still runs after its deadline")

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        """Counters of this tier in vLLM's own metrics."""
        made = {_METRICS + name: offload.OffloadingCounterMetadata(documentation=f"Quire tier: {name.replace('_', ' ')}.") for name in Counters().snapshot()}
        made[_METRICS + "failures"] = offload.OffloadingCounterMetadata(
            documentation="Quire tier: pages not served or not taken, by reason.", labelnames=("reason",)
        )
        made[_METRICS + "away"] = offload.OffloadingGaugeMetadata(documentation="Quire tier: 1 while the store is not used: away, opening or off.")
        return made

    def get_stats(self) -> Any:
        """What was counted since the last call."""
        cache = self._cache
        if cache is None:
            return None
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats

        stats = OffloadingConnectorStats()
        now: dict[Any, int] = {**cache.counters.snapshot(), **cache.counters.failures()}
        for name, value in now.items():
            grown = value - self._reported.get(name, 0)
            if grown <= 0:
                continue
            if isinstance(name, Reason):
                stats.increase_counter(_METRICS + "failures", grown, (name.label,))
            else:
                stats.increase_counter(_METRICS + name, grown)
        self._reported = now
        stats.set_gauge(_METRICS + "away", 0 if cache.ready else 1)
        return stats

    def _set_locality(self, config: Config) -> None:
        locality = config.extra.get("locality")
        if locality is not None:
            known = getattr(offload, "Locality", None)
            if known is None or locality not in {each.value for each in known}:
                raise ConfigError(f"quire: locality is {locality!r}; make it LOCAL or REMOTE, or leave it out")
            self.locality = known(locality)

    def _release(self, leases: Iterable[Any]) -> None:
        for lease in [*leases, *self._locks.expired()]:
            self._workers.submit("release", partial(_end, lease), None, _drop, timeout=_LEASE_SECONDS)

    def _say(self, kind: str, text: str) -> None:
        with self._said_lock:
            if kind in self._said:
                return
            self._said.add(kind)
        self._log.error("%s", text)

    # Names that earlier releases of the interface had.
    get_finished = get_finished_jobs
    request_finished = on_request_finished


def _wait_seconds(config: Config) -> float:
    wait = config.extra.get("lookup_wait_ms", _WAIT_SECONDS * 1000)
    if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not 1 <= wait <= 10_000:
        raise ConfigError(f"quire: lookup_wait_ms is {wait!r}; make it milliseconds from 1 to 10000")
    return float(wait) / 1000


def _end(lease: Any, _: float) -> None:
    lease.release()


def _drop(_: Any) -> None:
    """Nobody waits for a release."""


def _describe(config: Config, offloading_spec: Any, chunk_bytes: int) -> Any:
    from .vllm_tier_identity import describe

    return describe(config, offloading_spec, chunk_bytes)
