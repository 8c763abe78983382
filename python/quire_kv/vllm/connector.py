"""The engine's interface: vLLM builds one object in its scheduler's process and one in each worker's.

Nothing here raises into the engine: whatever goes wrong in a call is logged once, and the call answers as if there were
no cache. A configuration that cannot be cached rightly turns the cache off at start with one line in the log; the engine
runs on without it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.logger import init_logger
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

from .. import kernels
from ..cache import Cache, client_of
from ..config import Config
from ..errors import ConfigError
from ..page import Geometry
from . import facts as facts_module
from . import hashes, proof, weights
from .adapters import RequestScopes
from .memory import HostBlocks
from .meta import Plan, Report
from .scheduling import Scheduling
from .stats import Increase, QuirePromMetrics, QuireStats
from .transfer import BlockMemory, HostMemory, Transfer

__all__ = ["QuireConnector", "SETTINGS"]

SETTINGS = frozenset({"weak_names", "lookup_wait_ms", "save_buffer_mib"})
_LOOKUP_WAIT_MS = 20  # a request older than this goes on without the cache
_SAVE_BUFFER_MIB = 256
_COPY_THREADS = 2  # of a load: the engine's own thread has nothing to do meanwhile, or is in a forward

T = TypeVar("T")


class QuireConnector(KVConnectorBase_V1, SupportsHMA):
    """Mount with {"kv_connector": "QuireConnector", "kv_connector_module_path": "quire_kv.vllm", "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {...}}. The extra config is that of
    quire_kv.config and of SETTINGS:

    weak_names       allow hashes that are not cryptographic, and names of images that callers choose
    lookup_wait_ms   how old a request gets before it goes on without the cache; 20
    save_buffer_mib  of host memory for copies that wait to be saved, in each worker; 256
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._log: logging.Logger = init_logger("vllm.quire_kv")
        self._worker = role == KVConnectorRole.WORKER
        self._cache: Cache | None = None
        self._scheduling: Scheduling | None = None
        self._transfer: Transfer | None = None
        self._facts: facts_module.Facts | None = None
        self._increase = Increase()
        self._said: set[str] = set()
        self._seed_checked = False
        self._idle = False  # this step has no forward
        self._errors: set[int] = set()  # blocks of the loads that were reported last
        try:
            self._start(vllm_config, kv_cache_config, dict(vllm_config.kv_transfer_config.kv_connector_extra_config or {}))
        except ConfigError as e:
            self._log.error("quire: the cache is off; the engine runs on without it: %s", e)
        except Exception:
            self._log.exception("quire: the cache is off; the engine runs on without it")

    def _start(self, vllm_config: Any, kv_cache_config: Any, settings: Mapping[str, Any]) -> None:
        config = Config.parse(settings, SETTINGS)
        config.require_model()
        if config.copy_threads is None:
            config = dataclasses.replace(config, copy_threads=_COPY_THREADS)
        wait = _number(config, "lookup_wait_ms", _LOOKUP_WAIT_MS, 1, 10_000)
        buffer = _number(config, "save_buffer_mib", _SAVE_BUFFER_MIB, 1, 1 << 20)
        facts = facts_module.read(vllm_config, kv_cache_config, config.extra, worker=self._worker)
        hashes.none_hash(facts.algorithm)  # a random seed is told here, not by a hit rate of 0
        self._facts = facts
        side = "worker" if self._worker else "scheduler"
        self._cache = self._make_cache(config, lambda: facts.spec(vllm_config, config), f"vllm-{side}")
        if self._worker:
            self._transfer = Transfer(
                self._cache, self._log, view=facts.view, save_bytes=buffer << 20,
                writes=lambda key: facts.replicas == 1 or key[-1] % facts.replicas == facts.replica,
            )  # fmt: skip
        else:
            self._scheduling = Scheduling(
                self._cache, RequestScopes(self._log, media=facts.media), self._log,
                block_tokens=facts.block_tokens, group=facts.group_id, late_seconds=wait / 1000,
            )  # fmt: skip

    def _make_cache(self, config: Config, spec: Callable[[], str], adapter: str) -> Cache:
        return Cache(config, spec, self._log, adapter=adapter, engine="vllm", make_client=client_of)

    def _guard(self, what: str, otherwise: T, call: Callable[[], T]) -> T:
        """What call answers, or otherwise where it fails."""
        try:
            return call()
        except Exception:
            if what not in self._said:
                self._said.add(what)
                self._log.exception("quire: %s failed; the engine goes on as without the cache", what)
            return otherwise

    # -- both sides -----------------------------------------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        """A dropped save is a miss later, nothing that a request waits for."""
        return False

    def shutdown(self) -> None:
        def call() -> None:
            if self._scheduling is not None:
                self._scheduling.close()
            if self._transfer is not None:
                self._transfer.close()
            if self._cache is not None:
                self._cache.close()

        self._guard("shutdown", None, call)

    def get_kv_connector_stats(self) -> QuireStats | None:
        def call() -> QuireStats | None:
            if self._cache is None:
                return None
            now = self._cache.stats()
            now.pop("breaker_opened", None)
            if self._scheduling is not None:
                now.update(late_lookups=self._scheduling.late, refused_lookups=self._scheduling.refused)
            if self._transfer is not None:
                now.update(dropped_saves=self._transfer.dropped, failed_blocks=self._transfer.failed_pages)
            data = self._increase.of(now)
            return QuireStats(data=data) if data else None

        return self._guard("statistics", None, call)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> QuireStats | None:
        return QuireStats(data=dict(data or {}))

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]
    ) -> QuirePromMetrics | None:
        return QuirePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # -- scheduler ------------------------------------------------------------------------------------------------

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        scheduling, facts = self._scheduling, self._facts
        if scheduling is not None and facts is not None:
            scheduling.blocks = _Pool(gpu_block_pool, facts.group_id)

    def on_new_request(self, request: Any) -> None:
        scheduling = self._scheduling
        if scheduling is not None:
            self._guard("a new request", None, lambda: self._new(scheduling, request))

    def _new(self, scheduling: Scheduling, request: Any) -> None:
        if not self._seed_checked and self._facts is not None:
            self._seed_checked = True
            why = hashes.differs(self._facts.algorithm)
            if why:
                self._log.error("quire: the cache is off; the engine runs on without it: %s", why)
                scheduling.stop(why)
        scheduling.new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        scheduling = self._scheduling
        if scheduling is None:
            return 0, False
        none: tuple[int | None, bool] = (0, False)
        return self._guard("a lookup", none, lambda: scheduling.matched(request, num_computed_tokens))

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        scheduling = self._scheduling
        if scheduling is None:
            return
        taken = self._guard("an allocation", False, lambda: scheduling.allocated(request, blocks, num_external_tokens))
        if not taken and num_external_tokens > 0:  # it waits for a load now: that has to end
            self._guard("giving up a load", None, lambda: scheduling.give_up(request))

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        scheduling = self._scheduling
        if scheduling is None:
            return Plan()
        return self._guard("a plan", Plan(), lambda: scheduling.plan(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        scheduling = self._scheduling
        if scheduling is not None:
            self._guard("a result", None, lambda: scheduling.output(connector_output))

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        """Blocks can always be freed: saves were copied in the step that filled them."""
        scheduling = self._scheduling
        if scheduling is not None:
            self._guard("the end of a request", None, lambda: scheduling.finished(request))
        return False, None

    def reset_cache(self) -> bool | None:
        """The engine was told to forget its caches, as it is around a change of weights: nothing is looked up or saved
        from now on. A restart of the engine begins anew."""
        scheduling = self._scheduling
        if scheduling is not None:
            self._guard(
                "a reset",
                None,
                lambda: scheduling.stop("the engine's caches were reset, as around a change of weights; restart the engine to use the cache again"),
            )
        return True

    # -- worker ---------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        transfer, facts = self._transfer, self._facts
        if transfer is None or facts is None:
            return
        try:
            transfer.attach(self._attach(kv_caches, facts))
            weights.watch(self)
        except ConfigError as e:
            self._log.error("quire: the cache is off; the engine runs on without it: %s", e)
            transfer.stop(str(e))
        except Exception as e:
            self._log.exception("quire: the cache is off; the engine runs on without it")
            transfer.stop(f"KV memory could not be attached: {type(e).__name__}")

    def _attach(self, kv_caches: dict[str, Any], facts: facts_module.Facts) -> BlockMemory:
        layers = [self._vllm_config.compilation_config.static_forward_context.get(n) for n in facts.names]
        if any(layer is None for layer in layers):
            raise ConfigError(
                "quire: the engine's attention layers are not where they were, so that the layout cannot be proved; use a version of vLLM that docs/engines/vllm.md lists"
            )
        backends = {str(layer.get_attn_backend().get_name()) for layer in layers if hasattr(layer, "get_attn_backend")}
        if backends - {facts.backend}:
            raise ConfigError(f"quire: the layers run {', '.join(sorted(backends))} and not {facts.backend}; name one backend by --attention-backend")
        tensors = [kv_caches[n] for n in facts.names if n in kv_caches]
        view, geometry = facts.view, Geometry(bytes(32), "full", facts.block_tokens, facts.heads, len(facts.layers), facts.cell_bytes, facts.grade, 32)
        memory: BlockMemory
        if facts.device == "cuda":
            from .device import DeviceMemory

            if len(tensors) != len(layers):
                raise ConfigError("quire: the engine registered no KV tensor for some layers; run this model without the cache")
            device = DeviceMemory(tensors, tokens=facts.block_tokens, width=facts.head_dim)
            memory = device

            def export(blocks: Sequence[int]) -> np.ndarray:
                return device.host_bytes(blocks)
        else:
            host = HostBlocks(kv_caches, facts.names, blocks=facts.blocks, cell_bytes=facts.cell_bytes)
            memory = HostMemory(host)

            def export(blocks: Sequence[int]) -> np.ndarray:
                out = np.empty((len(blocks), geometry.payload_bytes(view)), dtype=np.uint8)
                rows = np.arange(len(blocks), dtype=np.uint64) * np.uint64(out.shape[1]) + np.uint64(out.__array_interface__["data"][0])
                kernels.pack(host.pages(blocks), range(len(blocks)), geometry, view, rows)
                return out

        blocks = sorted({1, facts.blocks - 1})  # two, so that their distance is proved too
        proof.prove(layers, tensors, blocks, export, view=view, device=facts.device, tokens=facts.block_tokens, width=facts.head_dim, isa=facts.isa)
        return memory

    def weights_change(self, what: str) -> None:
        """Called before the engine's weights change."""
        if self._transfer is not None:
            self._transfer.stop(f"the engine's weights are changed ({what}); restart the engine to use the cache again")

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        if isinstance(connector_metadata, Plan) and connector_metadata.off and self._transfer is not None:
            self._transfer.stop(connector_metadata.off)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Nothing reads a block after wait_for_save, and a block that is being loaded is never taken from its request."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        transfer, plan = self._transfer, self._connector_metadata
        self._idle = getattr(forward_context, "attn_metadata", None) is None
        if transfer is not None and isinstance(plan, Plan) and plan.loads:
            self._guard("a load", None, lambda: transfer.start(plan.loads))

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are whole blocks between steps."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Saves are whole blocks at the end of a step."""

    def wait_for_save(self) -> None:
        transfer, plan = self._transfer, self._connector_metadata
        if transfer is not None and isinstance(plan, Plan) and plan.saves:
            self._guard("a save", None, lambda: transfer.save(plan.saves))

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Loads that ended. Their failed blocks are what get_block_ids_with_load_errors answers next, in the same step."""
        transfer = self._transfer
        if transfer is None:
            return KVConnectorTransferResults()
        ended: dict[str, set[int] | None] = self._guard("transfer results", {}, lambda: transfer.results(finished_req_ids, idle=self._idle))
        self._errors = set().union(*(bad for bad in ended.values() if bad))
        return KVConnectorTransferResults(finished_recving=set(ended), failed_recving={r for r, bad in ended.items() if bad is None})

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, self.get_transfer_results(finished_req_ids).finished_recving or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        errors, self._errors = self._errors, set()
        return errors

    def build_connector_worker_meta(self) -> Report | None:
        transfer = self._transfer
        return None if transfer is None else self._guard("a report", None, lambda: transfer.report())


class _Pool:
    """The engine's block pool, as scheduling.Blocks."""

    def __init__(self, pool: Any, group: int) -> None:
        self._pool = pool
        self._group = group

    def carries(self, block: int, key: bytes) -> bool:
        found = self._pool.blocks[block]
        return not found.is_null and found.block_hash == make_block_hash_with_group_id(key, self._group)


def _number(config: Config, name: str, otherwise: int, least: int, most: int) -> int:
    value = config.extra.get(name, otherwise)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"quire: {name} is {value!r}; make it a whole number from {least} to {most}")
    return value
