"""Real SGLang engines as processes of their own, driven from a test."""

from __future__ import annotations

import json
import os
import pathlib
import select
import subprocess
import time
from typing import Any

from nursery import Nursery

START_SECONDS = 240.0
ANSWER_SECONDS = 120.0


class EngineProcess:
    """One engine. Starts in the constructor; `up` waits until it serves. Arguments are those of sglang.Engine."""

    def __init__(self, nursery: Nursery, model: pathlib.Path, log: pathlib.Path, *, env: dict[str, str] | None = None, **args: Any) -> None:
        self.log_file = log
        self.ranks = int(args.get("tp_size", 1))
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "SGLANG_NCCL_SO_PATH": "/nonexistent", "HF_HUB_OFFLINE": "1", **(env or {})}
        if self.ranks > 1:
            environment["SGLANG_CPU_OMP_THREADS_BIND"] = "0|1"
        asks, self._asks = os.pipe()
        self._answers, answers = os.pipe()
        with log.open("ab") as out:
            self._process = nursery.run(
                "run_engine", [json.dumps({"model_path": str(model), **args})], env=environment, stdin=asks, stdout=answers, stderr=out.fileno()
            )
        os.close(asks)
        os.close(answers)
        self._buffer = b""

    def up(self) -> EngineProcess:
        assert self._line(START_SECONDS) == "up"
        return self

    def call(self, name: str, *args: Any) -> Any:
        """One command of run_engine.Commands; RuntimeError with what it raised there."""
        self._tell(name, *args)
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
            if self._process.poll() is None:
                self._tell("end")
                self._process.wait(20)
        except (OSError, subprocess.TimeoutExpired):
            pass
        finally:
            _end_session(self._process.pid)
            self._process.wait(20)
            os.close(self._asks)
            os.close(self._answers)

    def _tell(self, name: str, *args: Any) -> None:
        os.write(self._asks, json.dumps([name, *args]).encode() + b"\n")

    def _line(self, seconds: float) -> Any:
        until = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            ready = select.select([self._answers], [], [], max(0.0, left))[0]
            chunk = os.read(self._answers, 1 << 16) if ready else b""
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
