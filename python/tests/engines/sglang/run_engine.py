"""Runs the real SGLang engine on a CPU and does what it is told, one line of JSON for each command and answer.

    main('{"model_path": ..., "tp_size": 1, ...}')     arguments of sglang.Engine beyond those below

Standard output carries the answers; what the engine prints goes to standard error. The engine's processes are forked where it
would start new ones: what they import is imported already (nursery.py), and takes longer than all that is tested.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from typing import Any

COMMON = {
    "load_format": "safetensors", "skip_tokenizer_init": True, "device": "cpu", "attention_backend": "torch_native", "max_total_tokens": 4096,
    "max_running_requests": 4, "disable_overlap_schedule": True, "disable_cuda_graph": True, "page_size": 16, "random_seed": 1,
    "enable_hierarchical_cache": True, "hicache_ratio": 2.0, "hicache_io_backend": "kernel", "hicache_storage_prefetch_policy": "wait_complete",
    "served_model_name": "served/name", "disable_custom_all_reduce": True, "enable_cache_report": True, "log_level": "info", "dtype": "float32",
}  # fmt: skip


class Commands:
    """What the parent may ask for."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def ask(self, ids: list[int], tokens: int) -> dict[str, Any]:
        out = self.engine.generate(input_ids=ids, sampling_params={"max_new_tokens": tokens, "temperature": 0}, return_logprob=True)
        meta = out["meta_info"]
        return {
            "tokens": list(out["output_ids"]), "logprobs": [x[0] for x in meta["output_token_logprobs"]],
            "cached": meta.get("cached_tokens"), "details": meta.get("cached_tokens_details"),
        }  # fmt: skip

    def flush(self) -> list[Any]:
        out = self.engine.flush_cache()
        return [out.success, getattr(out, "message", "")]

    def clear(self) -> bool:
        return bool(self._run(self.engine.tokenizer_manager.clear_hicache_storage()).success)

    def attach(self, backend: str, settings: str) -> list[Any]:
        out = self._run(self.engine.tokenizer_manager.attach_hicache_storage(backend, settings, "wait_complete"))
        return [out.success, out.message]

    def detach(self) -> list[Any]:
        out = self._run(self.engine.tokenizer_manager.detach_hicache_storage())
        return [out.success, out.message]

    def update_weights(self, path: str) -> list[Any]:
        return list(self.engine.update_weights_from_disk(path))

    def _run(self, coroutine: Any) -> Any:
        return self.engine.loop.run_until_complete(coroutine)


def main(arguments: str) -> None:
    multiprocessing.set_start_method("fork")
    multiprocessing.set_start_method = lambda *_, **__: None  # the engine's own choice, spawn
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from sglang.srt.entrypoints.engine import Engine

    engine = Engine(**{**COMMON, **json.loads(arguments)})

    def answer(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    answer("up")
    commands = Commands(engine)
    for line in sys.stdin:
        name, *args = json.loads(line)
        if name == "end":
            break
        try:
            answer({"ok": getattr(commands, name)(*args)})
        except Exception as e:
            answer({"error": f"{type(e).__name__}: {e}"})
    engine.shutdown()
    answer("ended")
