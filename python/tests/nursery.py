"""Processes that are forked from one that has imported an engine: importing one takes 20 s of CPU, and each engine is several processes.

    with Nursery("sglang.srt.managers.scheduler", paths=[...]) as nursery:
        process = nursery.run("run_engine", ["{...}"], env=environment, stdin=..., stdout=..., stderr=...)

A process runs `main` of a module as a program of its own would: with the arguments, the environment and the files given, and in a
session of its own. It is killed when the nursery ends, and that with the interpreter that started it. The nursery itself only imports.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from types import TracebackType

_LONGEST = 1 << 20  # bytes of a request
_PDEATHSIG = 1


class Process:
    """A process of the nursery: of subprocess.Popen what tests use. wait may be called by one thread at a time."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid, self.returncode = pid, None
        self._nursery, self._ended = nursery, os.pidfd_open(pid)

    def poll(self) -> int | None:
        return self._await(0)

    def wait(self, timeout: float) -> int:
        if (code := self._await(timeout)) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return code

    def _await(self, seconds: float) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], seconds)[0]:
            self.returncode = self._nursery.ask({"reap": self.pid})
            os.close(self._ended)
        return self.returncode


class Nursery:
    """Imports the modules named when it is first used. paths go before sys.path, there and in what it runs."""

    def __init__(self, *modules: str, paths: Sequence[str] = (), env: Mapping[str, str] | None = None) -> None:
        self._modules, self._paths, self._env = modules, list(paths), env
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def run(self, module: str, argv: Sequence[str], *, env: Mapping[str, str], stdin: int, stdout: int, stderr: int) -> Process:
        """Files are descriptors, which the caller closes."""
        return Process(self, self.ask({"run": module, "argv": list(argv), "env": dict(env)}, [stdin, stdout, stderr]))

    def ask(self, what: dict, files: Sequence[int] = ()) -> int:
        with self._lock:
            if self._socket is None:
                self._start()
            assert self._socket is not None
            socket.send_fds(self._socket, [json.dumps(what).encode()], files)
            return int(self._socket.recv(64))

    def _start(self) -> None:
        from serving import spawn

        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            here = str(pathlib.Path(__file__).resolve())
            environment = {**os.environ, **(self._env or {}), "PYTHONPATH": os.pathsep.join([*self._paths, *filter(None, sys.path)])}
            self._process = spawn([sys.executable, here, str(theirs.fileno()), *self._modules], env=environment, pass_fds=[theirs.fileno()])

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        if self._socket is not None:
            self._socket.close()
            self._process.wait(20)


def _become(request: dict, files: list[int]) -> None:
    """In the child: the program that the request names. Does not return."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        for at, file in enumerate(files):
            os.dup2(file, at)
            os.close(file)
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = [request["run"], *request["argv"]]
        importlib.import_module(request["run"]).main(*request["argv"])
        code = 0
    except SystemExit as e:
        code = int(e.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(connection: socket.socket) -> None:
    while True:
        raw, files, _, _ = socket.recv_fds(connection, _LONGEST, 3)
        if not raw:
            return
        request = json.loads(raw)
        if "reap" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["reap"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                connection.close()
                _become(request, files)
        for file in files:
            os.close(file)
        connection.send(str(answer).encode())


if __name__ == "__main__":
    for name in sys.argv[2:]:
        importlib.import_module(name)
    _serve(socket.socket(fileno=int(sys.argv[1])))
