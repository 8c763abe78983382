"""A real vLLM engine on the CPU, in this process or as a program: `python engine.py '{"model": ..., "steps": [...]}'`.

As a program it runs the steps and prints one line, RESULT and JSON: what each step answered. Steps are "generate",
"warm" (one unrelated prompt), "rest" (some seconds of nothing), "settle" (until the store is used), "reset" (the engine's own prefix cache), "stats" (the
worker's and the scheduler's counters, where both are in this process) and "ttft". Nothing here imports vLLM before it is needed.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from typing import Any, NamedTuple

BLOCK = 32

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "TORCH_COMPILE_DISABLE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TOKENIZERS_PARALLELISM": "false",
}  # fmt: skip


class Answer(NamedTuple):
    """One prompt's: tokens, their log probabilities, how many prompt tokens were cached, why it ended."""

    tokens: list[int]
    logprobs: list[float]
    cached: int
    reason: str


def prompts(lengths: tuple[int, ...] = (64, 100, 33, 160), seed: int = 7, vocabulary: int = 1024) -> list[list[int]]:
    """Random token prompts."""
    rnd = random.Random(seed)
    return [[rnd.randrange(3, vocabulary) for _ in range(n)] for n in lengths]


class Engine:
    """One LLM with or without the connector. close() leaves the process fit for the next one."""

    def __init__(self, model: str, extra: dict[str, Any] | None, **kw: Any) -> None:
        os.environ.update({k: v for k, v in ENVIRONMENT.items() if k not in os.environ})
        from vllm import LLM

        args: dict[str, Any] = {
            "model": model, "skip_tokenizer_init": True, "dtype": "float32", "enforce_eager": True, "block_size": BLOCK, "max_model_len": 512, "max_num_seqs": 4,
            "seed": 0, "disable_log_stats": True, "prefix_caching_hash_algo": "sha256_cbor", "num_gpu_blocks_override": 64,
        }  # fmt: skip
        if extra is not None:
            args["kv_transfer_config"] = {
                "kv_connector": "QuireConnector", "kv_connector_module_path": "quire_kv.vllm", "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute", "kv_connector_extra_config": extra,
            }  # fmt: skip
        args.update(kw)
        self.llm = LLM(**args)

    def generate(self, token_prompts: list[list[int]], tokens: int = 24, params: dict[str, Any] | None = None) -> list[Answer]:
        """Greedy, with log probabilities. params: kv_transfer_params of the requests, as an API server hands them on."""
        from vllm import SamplingParams

        more = None if params is None else {"kv_transfer_params": params}
        sampling = SamplingParams(temperature=0, max_tokens=tokens, logprobs=2, detokenize=False, ignore_eos=True, extra_args=more)
        out = self.llm.generate([{"prompt_token_ids": p} for p in token_prompts], sampling, use_tqdm=False)
        return [
            Answer(
                list(o.outputs[0].token_ids), [d[t].logprob for t, d in zip(o.outputs[0].token_ids, o.outputs[0].logprobs, strict=True)],
                o.num_cached_tokens or 0, o.outputs[0].finish_reason,
            )
            for o in out
        ]  # fmt: skip

    def reset(self) -> None:
        """Forgets the engine's own prefix cache."""
        assert self.llm.reset_prefix_cache()

    @property
    def scheduler(self) -> Any:
        """The scheduler's connector; only where the engine runs in this process."""
        return self.llm.llm_engine.engine_core.engine_core.scheduler.connector

    @property
    def worker(self) -> Any:
        """The worker's connector; only where the engine runs in this process."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group()

    def ready(self, timeout: float = 30) -> None:
        """Waits until both sides have opened the namespace."""
        for side in (self.scheduler, self.worker):
            assert side._cache is not None and side._cache.wait_ready(timeout), side._cache.state if side._cache else "off"

    def close(self) -> None:
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()
        cleanup_dist_env_and_memory()


def settle(engine: Engine, timeout: float = 30) -> int:
    """Where the connector is out of reach, runs new one-block prompts until one is a hit the second time. How many it took."""
    until = time.monotonic() + timeout
    for n in range(10_000):
        probe = prompts((BLOCK + 1,), seed=os.getpid() * 1_000 + n)
        engine.generate(probe, 1)
        time.sleep(0.2)
        engine.reset()
        if engine.generate(probe, 1)[0].cached:
            return n + 1
        if time.monotonic() > until:
            break
    raise AssertionError("the store is never used")


def main(task: dict[str, Any]) -> None:
    began = time.monotonic()
    engine = Engine(task["model"], task.get("extra"), **task.get("args", {}))
    results: list[Any] = [{"start": time.monotonic() - began}]
    if (
        task.get("wait", True)
        and task.get("extra") is not None
        and os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        and task.get("args", {}).get("tensor_parallel_size", 1) == 1
    ):
        engine.ready()
    given = task.get("prompts") or prompts()
    for step in task["steps"]:
        if step == "generate":
            results.append([a._asdict() for a in engine.generate(given, task.get("tokens", 24))])
        elif step == "warm":
            engine.generate(prompts((task.get("warm_tokens", 200),), seed=99), 2)
            results.append(None)
        elif step == "rest":
            time.sleep(task["rest"])
            results.append(None)
        elif step == "ttft":
            at = time.monotonic()
            answers = engine.generate(given, 1)
            results.append({"seconds": time.monotonic() - at, "cached": [a.cached for a in answers], "tokens": [a.tokens for a in answers]})
        elif step == "settle":
            results.append(settle(engine))
        elif step == "reset":
            engine.reset()
            results.append(None)
        elif step == "stats":
            results.append({"scheduler": engine.scheduler._cache.stats(), "worker": engine.worker._cache.stats()})
    engine.close()
    print("RESULT " + json.dumps(results), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
