"""Real servers for tests: `quire serve` in a process of its own, and specs to open on it.

Everything that is started here ends with the test run, however that ends: servers are children of one thread that lives as
long as the interpreter, and ask the kernel to be killed with it (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import IO

from waiting import wait_for

ROOT = pathlib.Path(__file__).resolve().parents[2]
START_SECONDS = 30.0
STOP_SECONDS = 30.0

_EXEC_WITH_PARENT = (
    "import ctypes, os, signal, sys; parent = int(sys.argv[1]);"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL);"
    "os.getppid() == parent or os._exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)


@functools.cache
def _spawner(pid: int) -> concurrent.futures.ThreadPoolExecutor:
    """The one thread that starts children: the kernel's death signal goes by thread. A forked child gets one of its own."""
    return concurrent.futures.ThreadPoolExecutor(1, "spawner")


def spawn(argv: list[str], **popen) -> subprocess.Popen:
    """Starts a process that is killed when this interpreter ends. argv[0] is a path. Arguments are those of Popen."""
    launcher = [sys.executable, "-I", "-S", "-c", _EXEC_WITH_PARENT, str(os.getpid()), *argv]
    return _spawner(os.getpid()).submit(subprocess.Popen, launcher, **popen).result()


def cache_dir() -> pathlib.Path:
    """Where what takes long to make is kept between runs, outside of the checkout (as in tools/check/python.sh)."""
    named = os.environ.get("QUIRE_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(named) if named else pathlib.Path(home) / "quire"


SOURCE_DIRS = ("cmd", "evict", "internal", "kernels", "namespace", "proto", "reason", "store")
KEPT_BINARIES = 4


def build_quire() -> pathlib.Path:
    """The path of cmd/quire as built from the sources as they are now. Built once for each state of the sources.

    RuntimeError with what is missing or failed. QUIRE_BIN names a binary to take instead.
    """
    if named := os.environ.get("QUIRE_BIN"):
        return pathlib.Path(named)
    go = shutil.which("go")
    if go is None:
        raise RuntimeError("there is no go command to build the server with, and QUIRE_BIN names no binary")
    state = hashlib.sha256()
    files = [ROOT / "go.mod", ROOT / "go.sum"]
    for name in SOURCE_DIRS:
        files += [f for f in sorted((ROOT / name).rglob("*")) if f.is_file() and not f.name.endswith("_test.go")]
    for file in files:
        info = file.stat()
        state.update(f"{file.relative_to(ROOT)} {info.st_size} {info.st_mtime_ns}\n".encode())
    folder = cache_dir() / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    binary = folder / f"quire-{state.hexdigest()[:16]}"
    with (folder / ".building").open("w") as building:
        fcntl.flock(building, fcntl.LOCK_EX)  # suites that begin together build it once
        _build(go, binary)
    return binary


def _build(go: str, binary: pathlib.Path) -> None:
    folder = binary.parent
    while not _use(binary):
        made = folder / f".{binary.name}.{os.getpid()}"
        built = subprocess.run(
            [go, "build", "-trimpath", "-o", str(made), "./cmd/quire"],
            cwd=ROOT,
            env={**os.environ, "CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode:
            raise RuntimeError(f"go build ./cmd/quire: {built.stderr.strip()}")
        made.rename(binary)
        _prune(folder)


_used: list[IO[bytes]] = []  # binaries that this process may start yet, locked for as long as it lives


def _use(binary: pathlib.Path) -> bool:
    """Keeps other test runs from removing the binary. False when it is not there."""
    try:
        file = binary.open("rb")
    except FileNotFoundError:
        return False
    fcntl.flock(file, fcntl.LOCK_SH)
    if not binary.exists():  # removed before it was locked
        file.close()
        return False
    _used.append(file)
    return True


def _prune(folder: pathlib.Path) -> None:
    """Removes all but the newest binaries, unless a test run uses them."""
    for old in sorted(folder.glob("quire-*"), key=lambda f: f.stat().st_mtime)[:-KEPT_BINARIES]:
        with contextlib.suppress(FileNotFoundError, BlockingIOError), old.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            old.unlink()


class Server:
    """One server on free ports of the loopback address, with a directory, so that every way in is on.

    address, data_address and admin are "host:port", socket is the path of the shared-memory socket. A restart takes the
    same ports, socket and directory. Flags are those of `quire serve`, with underscores: memory="64MiB", disk="1GiB".
    Not thread-safe, but for reading.
    """

    def __init__(self, binary: pathlib.Path, directory: pathlib.Path, **flags: str):
        self.binary = binary
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._short = tempfile.TemporaryDirectory(prefix="q")  # paths of tests are too long for a socket
        self.socket = os.path.join(self._short.name, "s")
        self.log_file = directory / "serve.log"
        self.flags = {
            "grpc_listen": "127.0.0.1:0",
            "data_listen": "127.0.0.1:0",
            "admin_listen": "127.0.0.1:0",
            "memory": "256MiB",
            "data": str(directory / "data"),
            "shm_socket": self.socket,
            "log_format": "json",
            **flags,
        }
        self.address = self.data_address = self.admin = ""
        self.process: subprocess.Popen | None = None

    def start(self) -> Server:
        """Returns when it serves. RuntimeError with its log where it does not."""
        assert self.process is None, "it runs"
        argv = [str(self.binary), "serve"]
        for name, value in self.flags.items():
            argv.append(f"--{name.replace('_', '-')}={value}")
        with self.log_file.open("ab") as log:
            began = log.tell()
            self.process = spawn(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            for line in self.log_file.read_bytes()[began:].splitlines():
                if b'"msg":"serving"' in line:
                    self._serving(json.loads(line))
                    return self
            if ended:
                break
            time.sleep(0.01)
        self.kill()
        raise RuntimeError(f"the server does not serve:\n{self.log()}")

    def _serving(self, said: dict) -> None:
        self.address, self.data_address, self.admin = said["grpc"], said.get("data", ""), said.get("admin", "")
        for flag, address in (("grpc_listen", self.address), ("data_listen", self.data_address), ("admin_listen", self.admin)):
            if address:
                self.flags[flag] = address

    def stop(self) -> None:
        """SIGTERM, and waits: what memory holds is written behind where there is a disk tier."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, and waits."""
        self._end(signal.SIGKILL)

    def restart(self) -> Server:
        """Starts again after stop or kill; stops first where it runs."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing. A thread that is running goes on until it sees the signal."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        wait_for(self._stopped, START_SECONDS, "the stop of every thread")

    def _stopped(self) -> bool:
        assert self.process is not None
        tasks = pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/stat")
        return all(t.read_text().rpartition(") ")[2].startswith("T") for t in tasks)

    def resume(self) -> None:
        """SIGCONT."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def _end(self, with_signal: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(with_signal)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"the server did not stop in {STOP_SECONDS} s:\n{self.log()}") from None

    def close(self) -> None:
        """Ends it and removes its socket's directory."""
        self.kill()
        self._short.cleanup()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def log(self, last_bytes: int = 16 << 10) -> str:
        """The end of its log, over all of its starts."""
        if not self.log_file.exists():
            return ""
        return self.log_file.read_bytes()[-last_bytes:].decode(errors="replace")

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by its name with labels, as in `quire_requests_total{code="OK",method="Fetch"}`."""
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return {m[1]: float(m[2]) for m in re.finditer(r"^([a-z]\S*(?:\{.*\})?) (\S+)$", text, re.M)}

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of one name that carry the labels given."""
        total = 0.0
        for sample, value in self.metrics().items():
            bare, _, rest = sample.partition("{")
            if bare == name and all(f'{k}="{v}"' in rest for k, v in labels.items()):
                total += value
        return total

    def read_counter(self) -> int:
        """Payload bytes that fetches got, over all transports, since this server started."""
        return int(self.metric("quire_fetch_bytes_total"))

    def run(self, *args: str, check: bool = True) -> subprocess.CompletedProcess:
        """The command line against this server: run("ns", "list", "-o", "json").stdout. 30 s at most."""
        argv = [str(self.binary), *args, "--server", self.address]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
        if check and done.returncode:
            raise AssertionError(f"quire {' '.join(args)}: exit code {done.returncode}: {done.stderr.strip()}")
        return done


DTYPES = {8: "float8_e4m3", 16: "bfloat16", 32: "float32"}


def spec_text(
    heads: int = 2,
    layers: int = 4,
    width: int = 16,
    tokens: int = 16,
    bits: int = 16,
    grade: str = "elements",
    *,
    model: str = "test/model",
    components: tuple[str, ...] = ("k", "v"),
    kind: str = "full",
    packing: str = "",
    algorithm: str = "sha256_cbor",
    engine: str = "test",
    weights: str = "",
) -> str:
    """A spec (docs/formats/spec.md) with one group of the shape given, as YAML. Two calls with equal arguments give one
    identity; another model name is another identity. packing defaults to a name where the grade needs one."""

    def digest(what: str) -> str:
        return "sha256:" + hashlib.sha256(what.encode()).hexdigest()

    if grade != "elements" and not packing:
        packing = "test_packing"
    parts = "".join(f"      - {{name: {c}, width: {width}, bits: {bits}, dtype: {DTYPES[bits]}, scale: none}}\n" for c in components)
    return (
        f"model: {{id: {model}, weights: {weights or digest(model)}, config: {digest(model + ' config')}}}\n"
        f"rope: {{table: {digest('rope')}, regime: fixed}}\n"
        "attention: {mask: causal, multimodal: none}\n"
        f"hash: {{algorithm: {algorithm}, seed: {digest('seed')}, extra_keys: 1, unit: {tokens}, bytes: 32, probe: {digest('probe')}}}\n"
        "depends_on: prefix\n"
        "groups:\n"
        f"  - kind: {kind}\n"
        f"    layers: {f'0-{layers - 1}' if layers > 1 else '0'}\n"
        f"    page_tokens: {tokens}\n"
        f"    kv_heads: {heads}\n"
        f"    grade: {grade}\n" + (f"    packing: {packing}\n" if packing else "") + f"    components:\n{parts}"
        f"provenance: {{engine: {engine}, engine_version: 1.0.0, runner: test, kernel_build: test, attention_backend: test, device_arch: cpu, batch_invariant: false}}\n"
        "recorded: {writer_tp: 1, writer_pp: 1}\n"
        f"shape: {{params: 1000000, layers: {layers}, heads: {heads}, width: {width}}}\n"
    )
