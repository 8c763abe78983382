"""What quire_kv.vllm_tier touches of vLLM 0.32.0, and a tiering manager that calls a tier in the order of the real one.

    a step: lookups of the waiting requests -> finished jobs (once) -> promotions as one submit_load a request -> on_schedule_end
    a store: submit_store of a set of keys, whose slots stay pinned until the job is reported

Rules of the real one that matter: every job is reported exactly once, with successful keys that are a subset of its keys; a
key that is told HIT is promoted, and asked for again until it is in the primary tier or told MISS; the memory is unmapped after
shutdown, which fails while somebody holds a view of it.
"""

from __future__ import annotations

import enum
import logging
import mmap
import types
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class LookupResult(enum.Enum):
    MISS = 1
    HIT = 2
    HIT_PENDING = 3
    RETRY = 4


class Medium(enum.Enum):
    CPU = "CPU"
    STORAGE = "STORAGE"


class Locality(enum.Enum):
    LOCAL = "LOCAL"
    REMOTE = "REMOTE"


@dataclass
class ReqContext:
    req_id: str
    kv_transfer_params: dict[str, Any] | None = None


@dataclass
class RequestOffloadingContext:
    policy: str = "chunk_level"


@dataclass(frozen=True)
class Metric:
    documentation: str
    labelnames: tuple[str, ...] = ()


@dataclass
class TransferJob:
    job_id: int
    keys: Collection[bytes]
    chunk_ids: Any
    is_promotion: bool
    req_context: ReqContext


@dataclass
class OldJob:
    """The spelling of earlier releases."""

    job_id: int
    keys: Collection[bytes]
    block_ids: Any


@dataclass
class JobResult:
    job_id: int
    success: bool
    successful_keys: Collection[bytes] | None = None
    transfer_time: float | None = None
    transfer_bytes: int | None = None


class SecondaryTierManager:
    def __init__(self, offloading_spec, primary_kv_view, tier_type, backpressure_detector=None) -> None:
        self.tier_type = tier_type
        self.locality = None


class OffloadingConnectorStats:
    def __init__(self) -> None:
        self.values: dict = {}

    def increase_counter(self, name, amount=1, labels=()) -> None:
        self.values[(name, labels)] = self.values.get((name, labels), 0) + amount

    def set_gauge(self, name, value, labels=()) -> None:
        self.values[(name, labels)] = value


def modules(old: bool = False) -> dict[str, types.ModuleType]:
    """The modules to put into sys.modules; `old`: without the names that came later."""
    names = (
        "vllm", "vllm.logger", "vllm.v1", "vllm.v1.kv_offload", "vllm.v1.kv_offload.base", "vllm.v1.kv_offload.tiering", "vllm.v1.kv_offload.tiering.base",
        "vllm.distributed", "vllm.distributed.kv_transfer", "vllm.distributed.kv_transfer.kv_connector", "vllm.distributed.kv_transfer.kv_connector.v1",
        "vllm.distributed.kv_transfer.kv_connector.v1.offloading", "vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics",
    )  # fmt: skip
    made = {name: types.ModuleType(name) for name in names}
    made["vllm.logger"].init_logger = logging.getLogger
    base, tiering = made["vllm.v1.kv_offload.base"], made["vllm.v1.kv_offload.tiering.base"]
    base.OffloadingCounterMetadata = base.OffloadingGaugeMetadata = Metric
    tiering.SecondaryTierManager = SecondaryTierManager
    made["vllm.v1.kv_offload"].base = base
    made["vllm.v1.kv_offload.tiering"].base = tiering
    made["vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics"].OffloadingConnectorStats = OffloadingConnectorStats
    if old:

        @dataclass
        class OldResult:
            job_id: int
            success: bool

        tiering.JobResult = OldResult
    else:
        tiering.JobResult = JobResult
        base.LookupResult, base.Medium, base.Locality, base.RequestOffloadingContext = LookupResult, Medium, Locality, RequestOffloadingContext
    return made


def key(n: int, group: int = 0, length: int = 32) -> bytes:
    """The OffloadKey of block hash n."""
    return n.to_bytes(length, "big") + group.to_bytes(4, "big")


@dataclass
class _Request:
    context: ReqContext
    keys: list[bytes]
    hits: int | None = None
    retries: int = 0
    promoted: list[bytes] = field(default_factory=list)


class Manager:
    """A primary tier of `chunks` slots in a mapping of its own, over one tier."""

    def __init__(self, make_tier, chunks: int = 16, chunk_bytes: int = 4096) -> None:
        self.chunk_bytes = chunk_bytes
        self._map = mmap.mmap(-1, chunks * chunk_bytes)
        self._view = memoryview(self._map).cast("B", (chunks, chunk_bytes))
        self._free = list(range(chunks))
        self.primary: dict[bytes, int] = {}  # ready
        self._writing: dict[bytes, int] = {}  # promoted, not there yet
        self._jobs: dict[int, TransferJob] = {}
        self._next = 0
        self._promotions: dict[str, tuple[ReqContext, list[bytes]]] = {}
        self.requests: dict[str, _Request] = {}
        self.results: list[JobResult] = []
        self.tier = make_tier(self._view)

    def slot(self, n: int) -> bytes:
        return bytes(self._map[n * self.chunk_bytes : (n + 1) * self.chunk_bytes])

    def bytes_of(self, k: bytes) -> bytes:
        return self.slot(self.primary[k])

    def store(self, contents: dict[bytes, bytes], context: ReqContext | None = None) -> int:
        """Fills slots, and cascades them. The job's id."""
        for k, data in contents.items():
            self.primary[k] = slot = self._free.pop()
            self._map[slot * self.chunk_bytes : (slot + 1) * self.chunk_bytes] = data
        return self._submit(list({*contents}), [self.primary[k] for k in {*contents}], False, context or ReqContext("writer"))

    def drop_primary(self) -> None:
        """Evicts all that no job pins."""
        assert not self._jobs
        self._free += self.primary.values()
        self.primary.clear()

    def new_request(self, name: str, keys: list[bytes], params: dict[str, Any] | None = None) -> _Request:
        context = ReqContext(name, params)
        assert self.tier.on_new_request(context) is not None
        self.requests[name] = _Request(context, keys)
        return self.requests[name]

    def finish(self, name: str) -> None:
        self.tier.on_request_finished(self.requests.pop(name).context)

    def step(self) -> None:
        """One scheduler step: each request without an answer is asked for its longest prefix."""
        self._reap()
        for r in self.requests.values():
            if r.hits is not None:
                continue
            hits, pending = 0, False
            for k in r.keys:
                answer = self._lookup(k, r.context)
                if answer is LookupResult.MISS:
                    break
                if answer is not LookupResult.HIT:
                    pending = True
                if answer is LookupResult.RETRY:
                    r.retries += 1
                else:
                    hits += 1
            if not pending:
                r.hits = hits
        promotions, self._promotions = self._promotions, {}
        for context, keys in promotions.values():
            self._submit(keys, [self._writing[k] for k in keys], True, context)
        self.tier.on_schedule_end(None)

    def reset(self) -> None:
        self.tier.drain_jobs()
        self._reap()
        assert not self._jobs, "drain_jobs returned before a job was reported"
        self.drop_primary()

    def shutdown(self) -> None:
        self.tier.shutdown()
        self._view.release()
        self._map.close()  # BufferError where somebody still holds a view

    def _lookup(self, k: bytes, context: ReqContext) -> LookupResult:
        if k in self.primary:
            return LookupResult.HIT
        if k in self._writing:
            return LookupResult.HIT_PENDING
        answer = self.tier.lookup(k, context)
        if answer is LookupResult.HIT:
            if not self._free:
                return LookupResult.MISS
            self._writing[k] = self._free.pop()
            self._promotions.setdefault(context.req_id, (context, []))[1].append(k)
            return LookupResult.HIT_PENDING
        assert isinstance(answer, LookupResult)
        return answer

    def _submit(self, keys: list[bytes], slots: list[int], promotion: bool, context: ReqContext) -> int:
        job = TransferJob(self._next, keys, np.array(slots, dtype=np.int32), promotion, context)
        self._jobs[self._next] = job
        self._next += 1
        (self.tier.submit_load if promotion else self.tier.submit_store)(job)
        return job.job_id

    def _reap(self) -> None:
        for result in self.tier.get_finished_jobs():
            job = self._jobs.pop(result.job_id)  # KeyError: reported twice
            self.results.append(result)
            if not job.is_promotion:
                continue
            good = set(job.keys) if result.success else set(result.successful_keys or ())
            assert good <= set(job.keys)
            for k in job.keys:
                slot = self._writing.pop(k)
                if k in good:
                    self.primary[k] = slot
                else:
                    self._free.append(slot)
