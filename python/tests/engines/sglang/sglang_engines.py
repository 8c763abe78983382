"""Real SGLang engines as processes of their own, driven from a test."""

from __future__ import annotations

import json
import os
import pathlib
import select
import subprocess
import sys
import time
from typing import Any

import serving

HERE = pathlib.Path(__file__).resolve().parent
START_SECONDS = 240.0  # it takes 20 to 100 s
ANSWER_SECONDS = 120.0


class EngineProcess:
    """One engine. Starts in the constructor; `up` waits until it serves. Arguments are those of sglang.Engine."""

    def __init__(self, model: pathlib.Path, log: pathlib.Path, *, env: dict[str, str] | None = None, **args: Any) -> None:
        self.log_file = log
        self.ranks = int(args.get("tp_size", 1))
        paths = [str(HERE / "hook"), str(serving.ROOT / "python"), os.environ.get("PYTHONPATH", "")]
        if os.environ.get("PYTHONPATH"):
            paths = [paths[0], paths[2]]
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "CUDA_VISIBLE_DEVICES": "", "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
            "SGLANG_NCCL_SO_PATH": "/nonexistent", "HF_HUB_OFFLINE": "1", **(env or {}),
        }  # fmt: skip
        if self.ranks == 1:
            del environment["SGLANG_CPU_OMP_THREADS_BIND"]
        self._out = log.open("ab")
        self._process = serving.spawn(
            [sys.executable, str(HERE / "run_engine.py"), json.dumps({"model_path": str(model), **args})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._out, env=environment, start_new_session=True,
        )  # fmt: skip
        self._buffer = b""

    def up(self) -> EngineProcess:
        assert self._line(START_SECONDS) == "up"
        return self

    def call(self, name: str, *args: Any) -> Any:
        """One command of run_engine.Commands; RuntimeError with what it raised there."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, *args]).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._line(ANSWER_SECONDS)
        if "error" in answer:
            raise RuntimeError(f"{name}: {answer['error']}")
        return answer["ok"]

    def ask(self, ids: list[int], tokens: int = 8) -> dict[str, Any]:
        """A greedy answer: tokens, logprobs, cached tokens and their origin."""
        return self.call("ask", ids, tokens)

    def flush(self) -> None:
        """Empties the radix tree, device and host."""
        self._when_idle("flush")

    def detach(self) -> None:
        """Lets go of the storage backend."""
        self._when_idle("detach")

    def _when_idle(self, name: str) -> None:
        """A command that the engine refuses while writes of an answer that was already given are still under way."""
        until = time.monotonic() + ANSWER_SECONDS
        while not (done := self.call(name))[0]:
            assert time.monotonic() < until, f"{name} is always refused: {done[1]}"
            time.sleep(0.1)

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def close(self) -> None:
        """Ends the engine and all its processes."""
        try:
            if self._process.poll() is None and self._process.stdin is not None:
                self._process.stdin.write(b'["end"]\n')
                self._process.stdin.flush()
                self._process.wait(20)
        except (OSError, subprocess.TimeoutExpired):
            pass
        finally:
            _end_session(self._process.pid)
            self._process.wait(20)
            for f in (self._process.stdin, self._process.stdout, self._out):
                if f is not None:
                    f.close()

    def _line(self, seconds: float) -> Any:
        assert self._process.stdout is not None
        until = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            ready = select.select([self._process.stdout], [], [], max(0.0, left))[0]
            chunk = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
            if not chunk:
                raise AssertionError(f"the engine {'ended' if ready else 'does not answer'}:\n{self.log()[-6000:]}")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)


def _end_session(session: int) -> None:
    """Kills what is left of the processes that one engine started: those of its own session."""
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.getsid(int(entry.name)) == session:
                os.kill(int(entry.name), 9)
        except OSError:
            continue
