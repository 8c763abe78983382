"""LMCache's own command line over the plug-in: its adapter driver, and its server with nothing but the example's JSON."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import urllib.request

import pytest

pytestmark = pytest.mark.lmcache
pytest.importorskip("lmcache")

import serving  # noqa: E402
from lmcache_rows import row  # noqa: E402
from waiting import PATIENT, wait_for  # noqa: E402

EXAMPLES = serving.ROOT / "python" / "examples"
LMCACHE = pathlib.Path(sys.executable).with_name("lmcache")
ENVIRONMENT = {**os.environ, "LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1"}


def plugin(params: dict) -> str:
    return json.dumps({"type": "plugin", "module_path": "quire_kv.lmcache", "class_name": "QuireL2Adapter", "adapter_params": params})


def example(name: str, server: str, models: dict) -> dict:
    """An example as it is shipped, with its server and its model's digest and files put in."""
    shipped = json.loads((EXAMPLES / name).read_text())
    (template,) = shipped["adapter_params"]["models"].values()
    shipped["adapter_params"]["server"] = server
    shipped["adapter_params"]["models"] = {m: {**template, **changes} for m, changes in models.items()}
    return shipped


def test_upstreams_own_driver_verifies_every_byte(quire_bin, quire_server, tmp_path):
    size_kb, keys, rounds = 64, 16, 3
    whole = row(quire_bin, tmp_path, "bench-model", format="opaque", chunk_bytes=size_kb << 10, hash_bytes=16)
    del whole["tp"], whole["pp"]  # the driver's ranks are numbers of its keys
    settings = {**PATIENT, "wait_ready_ms": 20000}
    spec = plugin({"server": quire_server.address, "models": {"bench-model": whole}, **settings})
    argv = [str(LMCACHE), "bench", "l2", "--l2-adapter", spec, "--num-keys", str(keys), "--data-size-kb", str(size_kb), "--rounds", str(rounds), "--in-flight", "2",
            "--lookup-max-hit-rate", "1", "--no-skip-verify"]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=110, env=ENVIRONMENT, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "TIMEOUT" not in said and "MISMATCH" not in said
    assert len(re.findall(rf"\[Store\].*success_keys={2 * keys}/{2 * keys}", said)) >= rounds, said
    assert len(re.findall(rf"\[Lookup\].*found={2 * keys}/{2 * keys}", said)) >= rounds, said
    assert len(re.findall(rf"\[Load\].*loaded={2 * keys}/{2 * keys}", said)) >= rounds, said
    assert f"All {2 * keys} keys data verified OK" in said, said
    assert quire_server.read_counter() > 0
    wait_for(lambda: quire_server.metric("quire_read_leases") == 0, 20)


def test_the_server_loads_the_example_and_tells_of_it(quire_bin, quire_server, tmp_path):
    made = row(quire_bin, tmp_path, "org/m")
    changes = {key: made[key] for key in ("digest", "manifest", "checkpoint")}
    spec = tmp_path / "l2.json"
    spec.write_text(json.dumps(example("lmcache_l2.json", quire_server.address, {"org/m": changes})))
    ports = [free_port() for _ in range(3)]
    log = tmp_path / "lmcache.log"
    with log.open("wb") as out:
        process = serving.spawn(
            [str(LMCACHE), "server", "--port", str(ports[0]), "--http-port", str(ports[1]), "--prometheus-port", str(ports[2]), "--l1-size-gb", "0.1",
             "--eviction-policy", "LRU", "--chunk-size", "256", "--l2-adapter", spec.read_text()],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=ENVIRONMENT,
        )  # fmt: skip
    try:

        def status():
            assert process.poll() is None, log.read_text()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{ports[1]}/status", timeout=10) as answer:
                    return json.load(answer)
            except OSError:
                return None

        told = wait_for(lambda: (s := status()) and ours(s)["models"]["org/m"]["state"] == "ready" and s, 60)
        assert ours(told)["is_healthy"] and ours(told)["models"]["org/m"]["transport"]
        with urllib.request.urlopen(f"http://127.0.0.1:{ports[1]}/metrics", timeout=30) as answer:
            assert re.search(r'^lmcache_mp_quire\{.*counter="lookups".*\}', answer.read().decode(), re.M), "the counters are not in LMCache's metrics"
        quire_server.kill()
        assert ours(wait_for(status))["is_healthy"]  # nothing here asks for a restart of LMCache
    finally:
        process.terminate()
        process.wait(60)


def ours(status: dict) -> dict:
    found = [a for a in _walk(status) if a.get("type") == "quire"]
    assert len(found) == 1, status
    return found[0]


def _walk(value):
    if isinstance(value, dict):
        yield value
        for v in value.values():
            yield from _walk(v)
    elif isinstance(value, list):
        for v in value:
            yield from _walk(v)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_the_driver_is_there():
    assert shutil.which(str(LMCACHE)), "the environment has no lmcache command"
