"""Fixtures of the tests that drive the real SGLang."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest
from nursery import Nursery

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
HERE = pathlib.Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> pathlib.Path:
    """Where checkpoints, manifests and logs of the session lie."""
    return tmp_path_factory.mktemp("sglang")


@pytest.fixture(scope="session")
def nursery():
    """Processes that have imported the engine, with its copies between device and host replaced (hook/sitecustomize.py)."""
    with Nursery("sglang.srt.entrypoints.engine", "sglang.srt.managers.scheduler", paths=[str(HERE / "hook"), str(HERE)]) as ready:
        yield ready


@pytest.fixture(scope="session")
def llama(folder):
    import sglang_checkpoints as checkpoints

    return checkpoints.shape_only(folder / "llama", checkpoints.LLAMA, head_dim=8), {**checkpoints.LLAMA, "head_dim": 8}


@pytest.fixture(scope="session")
def deepseek(folder):
    import sglang_checkpoints as checkpoints

    return checkpoints.shape_only(folder / "deepseek", checkpoints.DEEPSEEK), checkpoints.DEEPSEEK


@pytest.fixture(scope="session")
def digests(quire_bin, folder):
    """digests(checkpoint folder) -> the settings that name it."""
    import sglang_checkpoints as checkpoints

    made: dict[pathlib.Path, dict[str, str]] = {}

    def settings(checkpoint: pathlib.Path) -> dict[str, str]:
        if checkpoint not in made:
            made[checkpoint] = checkpoints.digest(quire_bin, checkpoint, folder)
        return dict(made[checkpoint])

    return settings


@pytest.fixture
def ranks(monkeypatch):
    """Starts ranks of the real controller, and ends them with the test. A test may forget what it changed of weights."""
    import sglang_controllers as controllers

    from quire_kv.sglang import watch

    monkeypatch.setattr(watch, "_changes", [])
    made: list[controllers.Rank] = []

    def start(*args, **how) -> controllers.Rank:
        made.append(controllers.Rank(*args, **how))
        return made[-1]

    yield start
    for rank in made:
        if rank.backend is not None:
            rank.close()
