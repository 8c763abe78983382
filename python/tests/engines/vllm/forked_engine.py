"""vllm_engine.main in a process of the nursery. vLLM would start its engine and its workers anew, as it does on a CPU; here they
are forked, as it does on a GPU: what they import is imported already, and takes longer than all that is tested."""

from __future__ import annotations

import json
import multiprocessing

import vllm_engine


def main(task: str) -> None:
    fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method=None: fork
    vllm_engine.main(json.loads(task))
