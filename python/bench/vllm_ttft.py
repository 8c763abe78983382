"""Time to the first token of a long prefix in vLLM on the CPU, computed and served from Quire, each in fresh processes.

    python python/bench/vllm_ttft.py                      median of 5 processes each; starts a server of this checkout
    python python/bench/vllm_ttft.py --tokens 1500 --processes 5 --dtype bfloat16
    python python/bench/vllm_ttft.py --rest 0.1           so many seconds behind the unrelated prompt: torch's threads spin for a while
                                                          after a forward, and on few cores what brings pages waits for them
    python python/bench/vllm_ttft.py overhead             what the connector adds to a request that hits nothing

Needs an environment with vLLM (tools/check/python.sh env vllm prints one). The model is SmolLM2-135M. Each process runs an
unrelated prompt first. Bytes that the store served have to be those of the KV blocks, or it is no result.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "engines" / "vllm")]
try:
    import quire_kv  # noqa: F401
except ImportError:
    sys.path.insert(0, str(ROOT))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))

import serving  # noqa: E402
import vllm_models  # noqa: E402
from vllm_engine import BLOCK, ENVIRONMENT, Engine, prompts  # noqa: E402

TOKEN_BYTES = {"bfloat16": 23040, "float32": 46080}


def process(task: dict) -> list:
    """Runs a task of vllm_engine in a process of its own."""
    env = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "engines" / "vllm" / "vllm_engine.py"), json.dumps(task)], env=env, capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        sys.exit(f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return json.loads(lines[0].removeprefix("RESULT "))


def ttft(args: argparse.Namespace, server: serving.Server, folder: str, digest: str) -> None:
    given = prompts((args.tokens,), seed=5, vocabulary=40000)
    extra = {"server": server.address, "model_digest": digest, "weights": "frozen"}
    task = {
        "model": folder, "prompts": given, "tokens": 1, "warm_tokens": 200, "steps": ["warm", "rest", "ttft", "rest", "ttft"], "rest": args.rest,
        "args": {"dtype": args.dtype, "max_model_len": 2048, "max_num_batched_tokens": 2048, "num_gpu_blocks_override": 160},
    }  # fmt: skip
    cold, own = [], []
    for _ in range(args.processes):
        _, _, _, computed, _, hit = process({**task, "extra": None})
        cold.append(computed)
        own.append(hit)
    process({**task, "extra": extra})  # fills the store
    served, blocks = [], (args.tokens - 1) // BLOCK
    for _ in range(args.processes):
        before = server.read_counter()
        served.append(process({**task, "extra": extra})[3])
        read = server.read_counter() - before
        want = blocks * BLOCK * TOKEN_BYTES[args.dtype]
        warm = 200 // BLOCK * BLOCK * TOKEN_BYTES[args.dtype]  # the unrelated prompt is served too
        if read - want not in (0, warm) or served[-1]["cached"] != [blocks * BLOCK]:
            print(f"  no hit: {read:,} bytes read of {want:,}, cached {served[-1]['cached']}")
    a, b = statistics.median(c["seconds"] for c in cold), statistics.median(s["seconds"] for s in served)
    floor = statistics.median(o["seconds"] for o in own)
    print(f"cold    {a:.3f} s  {[round(c['seconds'], 3) for c in cold]}")
    print(f"served  {b:.3f} s  {[round(s['seconds'], 3) for s in served]}")
    print(f"own     {floor:.3f} s  {[round(o['seconds'], 3) for o in own]}  the engine's own prefix cache in the same process: the floor")
    print(f"ratio   {b / a:.3f}  of {args.tokens} tokens, {args.dtype}, {blocks * BLOCK * TOKEN_BYTES[args.dtype]:,} bytes read each time")
    print(f"floor   {floor / a:.3f}  and {b / floor:.3f} of it, {1e3 * (b - floor):.1f} ms more")


def overhead(args: argparse.Namespace, server: serving.Server, folder: str, digest: str) -> None:
    """One request after the other, each of another prompt: with and without the connector, and what its calls took."""
    os.environ.update(ENVIRONMENT)
    count = 200
    p50 = {}
    mounted = {"server": server.address, "model_digest": digest, "weights": "frozen"}
    for name, extra in (("without", None), ("no saves", mounted), ("with", mounted)):
        engine = Engine(folder, extra, dtype=args.dtype, num_gpu_blocks_override=256)
        spent: list[float] = []
        if extra is not None:
            engine.ready()
            for side, names in (
                (engine.scheduler, ("on_new_request", "get_num_new_matched_tokens", "update_state_after_alloc", "build_connector_meta", "update_connector_output", "request_finished_all_groups")),
                (engine.worker, ("start_load_kv", "get_transfer_results", "get_block_ids_with_load_errors", "get_kv_connector_stats", "build_connector_worker_meta")),
            ):  # fmt: skip
                for method in names:
                    setattr(side, method, _timed(getattr(side, method), spent))
            if name == "no saves":
                engine.worker._transfer.save = lambda saves: None
            saves: list[float] = [0.0]
            engine.worker.wait_for_save = _timed(engine.worker.wait_for_save, saves)
            rpc = []
            for n in range(count):
                at = time.perf_counter()
                engine.scheduler._cache.lookup([n.to_bytes(32, "big")] * 6, scope=bytes(32), lease=10)
                rpc.append(time.perf_counter() - at)
        took, calls, copies = [], [], []
        for n in range(count):
            given = prompts((200,), seed=1000 + n, vocabulary=40000 if "smollm" in folder else 1024)
            spent[:] = [0.0]
            if extra is not None:
                saves[:] = [0.0]
            at = time.perf_counter()
            engine.generate(given, 1)
            took.append(time.perf_counter() - at)
            calls.append(spent[0])
            copies.append(saves[0] if extra is not None else 0.0)
        p50[name] = statistics.median(took)
        print(f"{name:8} p50 {1e3 * p50[name]:.2f} ms a request of 200 tokens")
        if extra is not None:
            print(
                f"         connector's calls p50 {1e3 * statistics.median(calls):.3f} ms, copies for saves p50 {1e3 * statistics.median(copies):.3f} ms, one lookup RPC p50 {1e3 * statistics.median(rpc):.3f} ms"
            )
        engine.close()
    print(
        f"added    p50 {1e3 * (p50['no saves'] - p50['without']):.2f} ms without saves, {1e3 * (p50['with'] - p50['without']):.2f} ms with them, of a store on the same cores"
    )


def _timed(call, into: list[float]):
    def timed(*args, **kw):
        at = time.perf_counter()
        try:
            return call(*args, **kw)
        finally:
            if into:
                into[0] += time.perf_counter() - at

    return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="ttft", choices=("ttft", "overhead"))
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--rest", type=float, default=0.0)
    parser.add_argument("--dtype", default="bfloat16", choices=sorted(TOKEN_BYTES))
    args = parser.parse_args()
    binary = serving.build_quire()
    folder = vllm_models.smollm(args.dtype)
    with tempfile.TemporaryDirectory() as directory:
        server = serving.Server(binary, pathlib.Path(directory), memory="1GiB").start()
        try:
            (ttft if args.what == "ttft" else overhead)(args, server, folder, vllm_models.digest(binary, folder))
        finally:
            server.close()


if __name__ == "__main__":
    main()
