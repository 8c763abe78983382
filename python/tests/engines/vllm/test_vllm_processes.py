"""The real vLLM on the CPU in processes of its own: a second process, worker processes, two ranks.

one     in process, one rank      writes A
two     two ranks in processes    reads A, writes B
three   a worker process          reads A and B

and SmolLM2-135M in bfloat16, each time with a worker process: one computes, the next is served.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib

import pytest
import vllm_models
from nursery import Nursery
from vllm_engine import BLOCK, ENVIRONMENT, prompts

from quire_kv.chains import VLLMContract, vllm_chain

pytestmark = [pytest.mark.vllm, pytest.mark.limit(600)]

HERE = pathlib.Path(__file__).resolve().parent
PAGE = 2 * 4 * BLOCK * 2 * 32 * 4
# An engine core and two ranks spin on as many cores as there are: what is found is asked here, not how soon.
PATIENT = {"lookup_wait_ms": 10_000, "lookup_timeout_ms": 10_000, "load_timeout_ms": 10_000, "save_timeout_ms": 10_000}
WORKER_PROCESSES = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
IMPORTED = (
    "vllm.entrypoints.llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
)


@pytest.fixture(scope="module")
def nursery():
    with Nursery(*IMPORTED, paths=[str(HERE)], env=ENVIRONMENT) as ready:
        yield ready


@pytest.fixture
def run(nursery, tmp_path):
    """run(task): the results of a task in a process of its own (vllm_engine.main)."""
    runs = itertools.count()

    def one(task, **environment):
        out = tmp_path / f"engine{next(runs)}.out"
        with out.open("wb") as both, open(os.devnull) as nothing:
            files = {"stdin": nothing.fileno(), "stdout": both.fileno(), "stderr": both.fileno()}
            code = nursery.run("forked_engine", [json.dumps(task)], env={**os.environ, **ENVIRONMENT, **environment}, **files).wait(300)
        said = out.read_text()
        print(said[-9000:])  # shown where the test fails
        lines = [line for line in said.splitlines() if line.startswith("RESULT ")]
        assert code == 0 and lines, f"exit code {code}"
        return json.loads(lines[0].removeprefix("RESULT "))

    return one


def same(answers, wanted):
    assert [a["tokens"] for a in answers] == [b["tokens"] for b in wanted]
    assert max(abs(u - v) for a, b in zip(answers, wanted, strict=True) for u, v in zip(a["logprobs"], b["logprobs"], strict=True)) < 1e-3


def test_processes_and_ranks_share_one_copy(run, quire_bin, quire_server):
    folder = vllm_models.tiny()
    extra = {"server": quire_server.address, "model_digest": vllm_models.digest(quire_bin, folder), "weights": "frozen", **PATIENT}
    a, b = prompts((64, 100, 33)), prompts((70, 97), seed=21)
    of_a, of_b = sum((len(p) - 1) // BLOCK for p in a), sum((len(p) - 1) // BLOCK for p in b)
    task = {"model": folder, "extra": extra, "tokens": 8}

    one = run({**task, "prompts": a, "steps": ["generate"]})[1]
    assert quire_server.read_counter() == 0  # computed, as without a cache

    two = run({**task, "prompts": a + b, "steps": ["settle", "generate"], "args": {"tensor_parallel_size": 2}}, **WORKER_PROCESSES)[2]
    same(two[:3], one)
    assert [t["cached"] for t in two] == [(len(p) - 1) // BLOCK * BLOCK for p in a] + [0] * len(b)
    assert quire_server.read_counter() == (of_a + 1) * PAGE  # two slices of one copy, and the page that settled it

    three = run({**task, "prompts": a + b, "steps": ["settle", "generate"]}, **WORKER_PROCESSES)[2]
    same(three, one + two[3:])
    assert quire_server.read_counter() == (of_a + 1 + of_a + of_b + 1) * PAGE
    assert [t["cached"] for t in three] == [(len(p) - 1) // BLOCK * BLOCK for p in a + b]

    tree = json.loads(quire_server.run("ns", "list", "-o", "json").stdout)["models"]
    assert [len(m["revisions"]) for m in tree] == [1] and len(tree[0]["revisions"][0]["namespaces"]) == 1
    namespace = tree[0]["revisions"][0]["namespaces"][0]["id"]
    contract = VLLMContract("sha256_cbor", BLOCK)
    for prompt, views in ((a[1], {"0:2,0:4"}), (b[1], {"0:1,0:4", "1:2,0:4"})):  # written by one rank, and by two
        said = json.loads(quire_server.run("page", "explain", namespace, vllm_chain(contract, prompt)[0].hex(), "-o", "json").stdout)
        assert said["served"] and {e["view"] for e in said["extents"]} == views and len(said["extents"]) == len(views)


def test_a_real_model_with_worker_processes(run, quire_bin, quire_server):
    """In bfloat16 the run to compare with is the one that hits the engine's own prefix cache."""
    try:
        folder = vllm_models.smollm()
    except LookupError as why:
        pytest.skip(str(why))
    extra = {"server": quire_server.address, "model_digest": vllm_models.digest(quire_bin, folder), "weights": "frozen", **PATIENT}
    page, blocks = BLOCK * 23040, 8
    task = {"model": folder, "extra": extra, "tokens": 24, "prompts": prompts((blocks * BLOCK + 4,), vocabulary=40000), "args": {"dtype": "bfloat16"}}

    _, _, computed, wanted = run({**task, "steps": ["settle", "generate", "generate"]}, **WORKER_PROCESSES)
    assert (computed[0]["cached"], wanted[0]["cached"]) == (0, blocks * BLOCK) and quire_server.read_counter() == page  # what settled it

    served = run({**task, "steps": ["settle", "generate"]}, **WORKER_PROCESSES)[2]
    assert served[0]["cached"] == blocks * BLOCK and quire_server.read_counter() == page + (1 + blocks) * page
    same(served, wanted)
