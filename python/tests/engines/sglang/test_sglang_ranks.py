"""Two ranks of the real controller in two processes over gloo: they agree, whatever one of them meets."""

from __future__ import annotations

import json
import os

import pytest

pytest.importorskip("sglang", reason="sglang is not installed in this environment")

import sglang_controllers as c

pytestmark = [pytest.mark.sglang, pytest.mark.limit(240)]


def test_case_c45_two_ranks_agree_after_a_partial_failure(nursery, quire_server, digests, llama, tmp_path):
    folder, _ = llama
    settings = c.settings_of(quire_server, digests(folder))
    processes = []
    for rank in range(2):
        with (tmp_path / f"rank{rank}.out").open("wb") as out, (tmp_path / f"rank{rank}.log").open("wb") as log, open(os.devnull) as nothing:
            argv = [str(rank), str(tmp_path / "meeting"), str(folder), json.dumps(settings)]
            files = {"stdin": nothing.fileno(), "stdout": out.fileno(), "stderr": log.fileno()}
            processes.append(nursery.run("rank_process", argv, env=os.environ, **files))
    codes = [p.wait(200) for p in processes]
    said = [(tmp_path / f"rank{rank}.out").read_text() for rank in range(2)]
    logs = "\n".join((tmp_path / f"rank{r}.log").read_text()[-3000:] for r in range(2))
    assert codes == [0, 0], logs
    steps = [[json.loads(line) for line in out.splitlines() if line.startswith("{")] for out in said]
    assert steps[0] == steps[1], logs
    assert all(s["right"] and s["alive"] for s in steps[0])
    assert [(s["step"], s["found"], s["loaded"]) for s in steps[0]] == [
        ("sound", 300, 300), ("one rank finds five", 5, 5), ("one rank's lookup fails", 0, 0), ("one rank loses page 150", 300, 150),
        ("one rank's load fails", 300, 0), ("sound again", 300, 300), ("one rank is off", 0, 0),
    ]  # fmt: skip
