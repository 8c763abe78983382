"""A double of vLLM 0.32.0 for connectors: its scheduler, block pool, ranks and the order of calls, in pure Python with numpy.

    schedule: running requests, then waiting ones: own prefix cache -> get_num_new_matched_tokens -> allocate ->
              update_state_after_alloc -> (WAITING_FOR_REMOTE_KVS) ; build_connector_meta
    a rank:   handle_preemptions -> bind -> forward -> start_load_kv -> wait_for_save -> get_transfer_results ->
              get_block_ids_with_load_errors -> statistics -> build_connector_worker_meta -> clear
    update:   failed and invalid loads -> tokens -> update_connector_output -> finished_recving

The oracle: what a token's row of KV has to be is a digest of all tokens up to it, the layer and the head. Before a forward
every row that it would attend to is compared, in every rank, so that one wrong byte is an AssertionError at once. The next
token is a digest too. What the real scheduler asserts is asserted here.
"""

from __future__ import annotations

import enum
import hashlib
import logging
import os
import pickle
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

TOKENS = 4  # of a block
WIDTH = 4  # of a key, and of a value
VOCABULARY = 1000


# -- what the connector imports of vLLM -------------------------------------------------------------------------------


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class KVConnectorMetadata:
    pass


class KVConnectorWorkerMetadata:
    pass


class SupportsHMA:
    pass


@dataclass
class KVConnectorTransferResults:
    finished_sending: set[str] = field(default_factory=set)
    finished_recving: set[str] = field(default_factory=set)
    failed_recving: set[str] = field(default_factory=set)


class KVConnectorBase_V1:
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        self._connector_metadata: KVConnectorMetadata | None = None
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._role = role

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        self._connector_metadata = connector_metadata

    def clear_connector_metadata(self) -> None:
        self._connector_metadata = None

    def bind_kv_cache_manager(self, manager: Any) -> None:
        self.bind_gpu_block_pool(manager.block_pool)  # type: ignore[attr-defined]


@dataclass
class KVConnectorStats:
    data: dict[str, Any] = field(default_factory=dict)


class KVConnectorPromMetrics:
    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]) -> None:
        self._counter_cls, self._gauge_cls = metric_types["counter"], metric_types["gauge"]
        self.per_engine_labelvalues = per_engine_labelvalues


def sha256(value: Any) -> bytes:
    return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()


def xxhash(value: Any) -> bytes:
    return hashlib.blake2b(pickle.dumps(value, protocol=5), digest_size=16).digest()


FUNCTIONS = {"sha256": sha256, "sha256_cbor": sha256, "xxhash": xxhash, "xxhash_cbor": xxhash}


def resolve_none_hash_seed(function: Callable[[Any], bytes]) -> str:
    seed = os.environ.get("PYTHONHASHSEED")
    if seed is not None:
        return seed
    return "vllm-none-hash" if function is sha256 else os.urandom(32).hex()


def hash_block_tokens(function: Callable[[Any], bytes], parent: bytes, tokens: Any, extra: Any = None) -> bytes:
    return function((bytes(parent), tuple(tokens), extra))


def generate_block_hash_extra_keys(request: Any, start: int, end: int, media: int) -> tuple[Any, int]:
    keys = []
    if request.lora_request is not None:
        keys.append(("lora", request.lora_request.lora_name, request.lora_request.lora_path))
    if start == 0 and request.cache_salt:
        keys.append(("cache_salt", request.cache_salt))
    return tuple(keys) or None, media


def make_block_hash_with_group_id(key: bytes, group: int) -> bytes:
    return key + group.to_bytes(4, "big")


class _Ignoring:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def modules() -> dict[str, types.ModuleType]:
    """sys.modules entries: as much of vLLM as the connector touches without torch."""
    base = "vllm.distributed.kv_transfer.kv_connector.v1"
    named: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": "0.32.0"},
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.config": {"set_current_vllm_config": lambda _: _Ignoring()},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.platforms": {"current_platform": types.SimpleNamespace(device_type="cpu")},
        "vllm.utils": {},
        "vllm.utils.hashing": {"get_hash_fn_by_name": FUNCTIONS.__getitem__},
        "vllm.distributed": {}, "vllm.distributed.kv_transfer": {}, "vllm.distributed.kv_transfer.kv_connector": {}, base: {},
        f"{base}.base": {c.__name__: c for c in (KVConnectorBase_V1, KVConnectorMetadata, KVConnectorWorkerMetadata, KVConnectorRole, KVConnectorTransferResults, SupportsHMA)},
        f"{base}.metrics": {"KVConnectorStats": KVConnectorStats, "KVConnectorPromMetrics": KVConnectorPromMetrics},
        "vllm.v1": {}, "vllm.v1.core": {},
        "vllm.v1.core.kv_cache_utils": {
            "make_block_hash_with_group_id": make_block_hash_with_group_id, "resolve_none_hash_seed": resolve_none_hash_seed,
            "hash_block_tokens": hash_block_tokens, "generate_block_hash_extra_keys": generate_block_hash_extra_keys, "BlockHash": bytes,
        },
        "vllm.v1.attention": {},
        "vllm.v1.attention.selector": {"get_attn_backend": lambda *_: types.SimpleNamespace(get_name=lambda: "CPU_ATTN")},
    }  # fmt: skip
    made = {name: types.ModuleType(name) for name in named}
    for name, content in named.items():
        vars(made[name]).update(content)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(made[parent], last, made[name])
    return made


# -- configuration ----------------------------------------------------------------------------------------------------


class FullAttentionSpec:
    prefix_cacheable = True
    num_head_slots = state_content_bytes = page_size_padded = None
    tokens_per_state = 1

    def __init__(self, heads: int) -> None:
        self.num_kv_heads, self.head_size, self.head_size_v, self.block_size, self.dtype = heads, WIDTH, WIDTH, TOKENS, "float32"


def kv_cache_config(names: list[str], heads: int, blocks: int, **changes: Any) -> Any:
    group = types.SimpleNamespace(layer_names=names, kv_cache_spec=FullAttentionSpec(heads), is_eagle_group=False)
    return types.SimpleNamespace(**{"num_blocks": blocks, "hash_block_size": TOKENS, "kv_cache_groups": [group], **changes})


def vllm_config(extra: dict[str, Any], *, heads: int, layers: int, tp: int, pp: int, rank: int, model: str, **changes: Any) -> Any:
    """As much of VllmConfig as is read. changes: dotted paths with __ for the dot."""
    space = types.SimpleNamespace
    made = space(
        kv_transfer_config=space(kv_load_failure_policy="recompute", kv_connector_extra_config=extra, is_kv_producer=True),
        model_config=space(
            model=model, revision=None, dtype="float32", max_model_len=512, runner_type="generate", is_encoder_decoder=False, is_attention_free=False, is_multimodal_model=False,
            is_mm_prefix_lm=False, quantization=None, hf_config=None, hf_text_config=space(), get_total_num_kv_heads=lambda: heads, get_total_num_hidden_layers=lambda: layers,
        ),
        cache_config=space(cache_dtype="auto", block_size=TOKENS, enable_prefix_caching=True, prefix_caching_hash_algo="sha256_cbor", kv_sharing_fast_prefill=False),
        parallel_config=space(tensor_parallel_size=tp, pipeline_parallel_size=pp, rank=rank, decode_context_parallel_size=1, prefill_context_parallel_size=1),
        load_config=space(load_format="auto"), speculative_config=None, compilation_config=space(static_forward_context={}),
    )  # fmt: skip
    for path, value in changes.items():
        *parts, last = path.split("__")
        at = made
        for part in parts:
            at = getattr(at, part)
        setattr(at, last, value)
    return made


# -- the engine -------------------------------------------------------------------------------------------------------


class Tensor:
    """A numpy array as the adapter reads a torch tensor."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def data_ptr(self) -> int:
        return int(self.array.__array_interface__["data"][0])

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def element_size(self) -> int:
        return self.array.itemsize


def row(tokens: list[int], layer: int, head: int) -> np.ndarray:
    """The KV of the last of `tokens` in one layer and head: 2 * WIDTH numbers."""
    digest = hashlib.blake2b(np.asarray(tokens, dtype=np.int64).tobytes(), digest_size=8 * WIDTH, salt=bytes([layer, head])).digest()
    return np.frombuffer(digest, dtype=np.int32).astype(np.float32)


class Status(enum.Enum):
    WAITING = 1
    REMOTE = 2
    RUNNING = 3
    PREEMPTED = 4
    FINISHED_LENGTH_CAPPED = 5
    FINISHED_ABORTED = 6


class Request:
    def __init__(
        self,
        name: str,
        prompt: list[int],
        output: int,
        function: Callable[[Any], bytes],
        *,
        lora: Any = None,
        salt: str | None = None,
        media: Any = None,
        skip: bool = False,
        params: Any = None,
    ) -> None:
        self.request_id, self.prompt, self.output = name, list(prompt), output
        self.tokens = list(prompt)
        self.num_prompt_tokens, self.num_computed_tokens = len(prompt), 0
        self.lora_request, self.cache_salt, self.mm_features = lora, salt, media or []
        self.skip_reading_prefix_cache, self.resumable, self.kv_transfer_params = skip, False, params
        self.prompt_embeds = None
        self.status = Status.WAITING
        self.table: list[int] = []
        self.cached = 0  # tokens that came from anywhere but a forward, at the last admission
        self.external = 0
        self.preemptions = 0
        self._function = function
        self.block_hashes: list[bytes] = []
        self._hash()

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def finished(self) -> bool:
        return self.status in (Status.FINISHED_LENGTH_CAPPED, Status.FINISHED_ABORTED)

    @property
    def num_output_tokens(self) -> int:
        return len(self.answer)

    @property
    def answer(self) -> list[int]:
        return self.tokens[self.num_prompt_tokens :]

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self._hash()

    def _hash(self) -> None:
        while (len(self.block_hashes) + 1) * TOKENS <= len(self.tokens):
            at = len(self.block_hashes) * TOKENS
            parent = self.block_hashes[-1] if self.block_hashes else self._function(resolve_none_hash_seed(self._function))
            extra, _ = generate_block_hash_extra_keys(self, at, at + TOKENS, 0)
            self.block_hashes.append(hash_block_tokens(self._function, parent, self.tokens[at : at + TOKENS], extra))


@dataclass
class Block:
    block_id: int
    block_hash: bytes | None = None
    is_null: bool = False
    users: int = 0


class Pool:
    def __init__(self, count: int) -> None:
        self.blocks = [Block(i) for i in range(count)]
        self.blocks[0].is_null = True
        self.free = list(range(1, count))
        self.cached: dict[bytes, int] = {}

    def take(self) -> int:
        block = self.blocks[self.free.pop(0)]
        if block.block_hash is not None:
            if self.cached.get(block.block_hash) == block.block_id:
                del self.cached[block.block_hash]
            block.block_hash = None
        block.users = 1
        return block.block_id

    def touch(self, n: int) -> None:
        if self.blocks[n].users == 0:
            self.free.remove(n)
        self.blocks[n].users += 1

    def give(self, table: list[int]) -> None:
        for n in reversed(table):
            self.blocks[n].users -= 1
            if self.blocks[n].users == 0:
                self.free.append(n)

    def name(self, request: Request, upto: int) -> None:
        """Registers the full blocks of the first `upto` tokens."""
        for i in range(min(upto // TOKENS, len(request.block_hashes))):
            block = self.blocks[request.table[i]]
            if block.block_hash is None:
                block.block_hash = make_block_hash_with_group_id(request.block_hashes[i], 0)
                self.cached.setdefault(block.block_hash, block.block_id)


class Rank:
    """One worker: a slice of heads and layers in numpy tensors, and its connector."""

    def __init__(self, number: int, heads: range, layers: range, blocks: int) -> None:
        self.number, self.heads, self.layers = number, heads, layers
        self.names = [f"model.layers.{n}.self_attn.attn" for n in layers]
        self.arrays = [np.zeros((blocks, len(heads), TOKENS, 2 * WIDTH), dtype=np.float32) for _ in layers]
        self.tensors = {n: Tensor(a) for n, a in zip(self.names, self.arrays, strict=True)}
        self.connector: Any = None

    def write(self, request: Request, first: int, end: int) -> None:
        for p in range(first, end):
            for i, layer in enumerate(self.layers):
                for j, head in enumerate(self.heads):
                    self.arrays[i][request.table[p // TOKENS], j, p % TOKENS] = row(request.tokens[: p + 1], layer, head)

    def check(self, request: Request, end: int) -> None:
        """The oracle."""
        for p in range(end):
            for i, layer in enumerate(self.layers):
                for j, head in enumerate(self.heads):
                    found = self.arrays[i][request.table[p // TOKENS], j, p % TOKENS]
                    assert np.array_equal(found, row(request.tokens[: p + 1], layer, head)), (
                        f"WRONG KV: rank {self.number}, request {request.request_id}, token {p}, layer {layer}, head {head}"
                    )


class Engine:
    """An engine of tp x pp ranks with a connector class, whose objects are made as vLLM makes them: ranks first."""

    def __init__(self, connector: type, extra: dict[str, Any], *, heads: int = 2, layers: int = 2, tp: int = 1, pp: int = 1, blocks: int = 64, budget: int = 64,
                 model: str = "/model", check: bool = True, prove: bool = True, **changes: Any) -> None:  # fmt: skip
        self.check = check
        self.budget = budget
        self.pool = Pool(blocks)
        self.block_pool = self.pool
        each = max(1, heads // tp)
        self.ranks = []
        for number in range(tp * pp):
            t, p = number % tp, number // tp
            h0 = t * heads // tp
            rank = Rank(number, range(h0, h0 + each), range(p * layers // pp, (p + 1) * layers // pp), blocks)
            config = vllm_config(extra, heads=heads, layers=layers, tp=tp, pp=pp, rank=number, model=model, **changes)
            if prove:
                config.compilation_config.static_forward_context = {n: object() for n in rank.names}
            rank.connector = connector(config, KVConnectorRole.WORKER, kv_cache_config(rank.names, each, blocks))
            rank.connector.register_kv_caches(rank.tensors)
            self.ranks.append(rank)
        config = vllm_config(extra, heads=heads, layers=layers, tp=tp, pp=pp, rank=0, model=model, **changes)
        self.function = FUNCTIONS[config.cache_config.prefix_caching_hash_algo]
        self.connector = connector(
            config, KVConnectorRole.SCHEDULER, kv_cache_config([f"model.layers.{n}.self_attn.attn" for n in range(layers)], each, blocks)
        )
        self.connector.bind_kv_cache_manager(self)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        self.received: set[str] = set()
        self.failed: set[str] = set()
        self.whole: set[str] = set()  # reported in failed_recving, not by all ranks yet
        self.pending: dict[str, int] = {}
        self.ended: set[str] = set()
        self.steps = 0
        self.asked: dict[str, int] = {}  # get_num_new_matched_tokens calls
        self.longest = 0.0  # seconds of the longest call into the scheduler's connector
        self.stats: dict[str, float] = {}

    def _timed(self, call: Callable[..., Any], *args: Any) -> Any:
        at = time.perf_counter()
        try:
            return call(*args)
        finally:
            self.longest = max(self.longest, time.perf_counter() - at)

    # -- requests ---------------------------------------------------------------------------------------------------

    def add(self, name: str, prompt: list[int], output: int = 4, **kw: Any) -> Request:
        request = Request(name, prompt, output, self.function, **kw)
        self.requests[name] = request
        self.waiting.append(request)
        self._timed(self.connector.on_new_request, request)
        return request

    def abort(self, name: str) -> None:
        request = self.requests[name]
        remote = request.status is Status.REMOTE and name not in self.received
        self.received.discard(name)
        self.failed.discard(name)
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)
        self._finish(request, Status.FINISHED_ABORTED, delay=remote)

    def _finish(self, request: Request, status: Status = Status.FINISHED_LENGTH_CAPPED, delay: bool = False) -> None:
        request.status = status
        held, _ = self._timed(self.connector.request_finished_all_groups, request, (list(request.table),))
        self.ended.add(request.request_id)
        if not (held or delay):
            self._free(request)

    def _free(self, request: Request) -> None:
        self.pool.give(request.table)
        request.table = []
        del self.requests[request.request_id]

    def preempt(self, request: Request) -> None:
        self.running.remove(request)
        self.pool.give(request.table)
        request.table, request.num_computed_tokens, request.status = [], 0, Status.PREEMPTED
        request.preemptions += 1
        self.waiting.insert(0, request)

    def forget(self) -> None:
        """The engine's own prefix cache is reset; nothing runs."""
        assert not self.running
        for block in self.pool.blocks:
            block.block_hash = None
        self.pool.cached.clear()

    # -- a step -----------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One step; whether a token was scheduled."""
        self.steps += 1
        scheduled = self._schedule()
        state = types.SimpleNamespace(get_block_ids=lambda name: (list(self.requests[name].table),) if name in scheduled else None)
        output = types.SimpleNamespace(num_scheduled_tokens=dict(scheduled), kv_connector_block_state=state, finished_req_ids=set(self.ended))
        plan = self._timed(self.connector.build_connector_meta, output)
        before = {name: self.requests[name].num_computed_tokens for name in scheduled}
        for name, n in scheduled.items():
            self.requests[name].num_computed_tokens += n
        results = [self._rank(rank, pickle.loads(pickle.dumps(plan)), scheduled, before) for rank in self.ranks]
        self.ended.clear()
        self._update(scheduled, results)
        return bool(scheduled)

    def _schedule(self) -> dict[str, int]:
        scheduled: dict[str, int] = {}
        room = self.budget
        for request in list(self.running):
            if request not in self.running:
                continue
            n = min(room, request.num_tokens - request.num_computed_tokens)
            while n > 0 and not self._grow(request, request.num_computed_tokens + n):
                victim = self.running[-1]
                scheduled.pop(victim.request_id, None)
                self.preempt(victim)
                if victim is request:
                    n = 0
            if n > 0:
                scheduled[request.request_id] = n
                room -= n
        for request in list(self.waiting):
            if room <= 0:
                break
            if request.status is Status.REMOTE:
                if request.request_id not in self.received:
                    continue
                self._promote(request)
            if request.num_computed_tokens == 0:
                local = self._hit(request)
                self.asked[request.request_id] = self.asked.get(request.request_id, 0) + 1
                external, later = self._timed(self.connector.get_num_new_matched_tokens, request, len(local) * TOKENS)
                if external is None:
                    continue
                assert not (later and external == 0) and external % TOKENS == 0 and external >= 0
                assert len(local) * TOKENS + external < request.num_tokens, "a token has to be left to compute"
            else:
                local, external, later = [], 0, False
            known = request.num_computed_tokens + len(local) * TOKENS + external
            n = 0 if later else min(room, request.num_tokens - known)
            for b in local:
                self.pool.touch(b)
            request.table += local
            if not self._grow(request, known + n):
                self.pool.give(local)
                del request.table[len(request.table) - len(local) :]
                break
            blocks = types.SimpleNamespace(get_block_ids=lambda table=tuple(request.table): (list(table),))
            self._timed(self.connector.update_state_after_alloc, request, blocks, external)
            if request.num_computed_tokens == 0:
                request.cached, request.external = known, external
            request.num_computed_tokens = known
            if later:
                request.status = Status.REMOTE
                continue
            assert external == 0, "synchronous loads are not doubled"
            self.waiting.remove(request)
            self.running.append(request)
            request.status = Status.RUNNING
            scheduled[request.request_id] = n
            room -= n
        for name, n in scheduled.items():
            self.pool.name(self.requests[name], self.requests[name].num_computed_tokens + n)
        return scheduled

    def _grow(self, request: Request, tokens: int) -> bool:
        need = -(-tokens // TOKENS) - len(request.table)
        if need > len(self.pool.free):
            return False
        request.table += [self.pool.take() for _ in range(max(0, need))]
        return True

    def _hit(self, request: Request) -> list[int]:
        found = []
        if not request.skip_reading_prefix_cache:
            for h in request.block_hashes[: (request.num_tokens - 1) // TOKENS]:
                n = self.pool.cached.get(make_block_hash_with_group_id(h, 0))
                if n is None:
                    break
                found.append(n)
        return found

    def _promote(self, request: Request) -> None:
        name = request.request_id
        self.received.remove(name)
        if name in self.failed:
            self.failed.remove(name)
            if request.num_computed_tokens == 0:
                self.pool.give(request.table)
                request.table = []
        self.pool.name(request, request.num_computed_tokens)
        request.status = Status.PREEMPTED if request.preemptions else Status.WAITING

    def _rank(self, rank: Rank, plan: Any, scheduled: dict[str, int], before: dict[str, int]) -> Any:
        connector = rank.connector
        connector.handle_preemptions(plan)
        connector.bind_connector_metadata(plan)
        for name, n in scheduled.items():
            if self.check:
                rank.check(self.requests[name], before[name])
            rank.write(self.requests[name], before[name], before[name] + n)
        connector.start_load_kv(types.SimpleNamespace(attn_metadata=None))
        connector.wait_for_save()
        transfer = connector.get_transfer_results(set(self.ended))
        bad = connector.get_block_ids_with_load_errors()
        stats = connector.get_kv_connector_stats()
        report = connector.build_connector_worker_meta()
        connector.clear_connector_metadata()
        return types.SimpleNamespace(transfer=transfer, bad=bad, stats=stats, report=pickle.loads(pickle.dumps(report)))

    def _update(self, scheduled: dict[str, int], results: list[Any]) -> None:
        done: set[str] = set()
        for r in results:
            for name in r.transfer.finished_recving:
                left = self.pending.get(name, len(self.ranks)) - 1
                self.pending[name] = left
                if left == 0:
                    del self.pending[name]
                    done.add(name)
            for key, value in (r.stats.data if r.stats else {}).items():
                self.stats[key] = self.stats.get(key, 0) + value
        bad = set().union(*(r.bad for r in results))
        self.whole |= set().union(*(r.transfer.failed_recving for r in results))
        lost = self.whole & done
        self.whole -= lost
        for request in self.waiting:
            if request.request_id in lost:
                assert request.status is Status.REMOTE
                request.num_computed_tokens = 0
                self.failed.add(request.request_id)
        reports = [r.report for r in results if r.report is not None]
        report = reports[0] if reports else None
        for other in reports[1:]:
            report = report.aggregate(other)
        for request in self.waiting:
            if bad and request.status is Status.REMOTE:
                for i in range(-(-request.num_computed_tokens // TOKENS)):
                    if request.table[i] in bad:
                        request.num_computed_tokens = i * TOKENS
                        self.failed.add(request.request_id)
                        break
        for name in scheduled:
            request = self.requests[name]
            if request.num_computed_tokens == request.num_tokens:
                request.append(int.from_bytes(row(request.tokens, 99, 99).tobytes()[:4], "little") % VOCABULARY)
                if len(request.answer) >= request.output:
                    self.running.remove(request)
                    self._finish(request)
        out = types.SimpleNamespace(
            finished_recving=done or None, finished_sending=None, invalid_block_ids=bad, failed_recving=lost, kv_connector_worker_meta=report
        )
        self._timed(self.connector.update_connector_output, out)
        for name in done:
            assert name in self.requests, f"{name} is not known"
            request = self.requests[name]
            if request.status is Status.REMOTE:
                self.received.add(name)
            else:
                assert request.finished
                self._free(request)

    def run(self, *names: str, seconds: float = 60.0) -> None:
        """Steps until these requests are gone (all, where none is named)."""
        until = time.monotonic() + seconds
        while any(n in self.requests for n in (names or self.requests)):
            assert time.monotonic() < until, f"requests do not end: {[(r.request_id, r.status) for r in self.requests.values()]}"
            if not self.step():
                time.sleep(0.0005)

    def flush(self, seconds: float = 30.0) -> None:
        """Until everything that was snapshot is saved or given up, and a step told the scheduler's side."""
        for rank in self.ranks:
            if rank.connector._transfer is not None:
                assert rank.connector._transfer.flush(seconds)
        self.step()

    def close(self) -> None:
        for rank in self.ranks:
            rank.connector.shutdown()
        self.connector.shutdown()
