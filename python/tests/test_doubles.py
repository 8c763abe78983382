"""The misbehaving store itself, seen by the command line: what it does when left alone, and that a fault strikes."""

from __future__ import annotations

import json
import subprocess

import pytest
from doubles.faults import Fault

OK, FAILURE, MISMATCH, UNAVAILABLE = 0, 1, 4, 5  # exit codes of the command line


def quire(chaos, *args: str) -> subprocess.CompletedProcess:
    return subprocess.run([str(chaos.server.binary), *args, "--server", chaos.address], capture_output=True, text=True, timeout=30, check=False)


@pytest.fixture
def namespace(chaos, spec_text, tmp_path) -> str:
    file = tmp_path / "spec.yaml"
    file.write_text(spec_text())
    opened = quire(chaos, "ns", "open", str(file), "-o", "json")
    assert opened.returncode == OK, opened.stderr
    return json.loads(opened.stdout)["namespace"]["id"]


def test_left_alone_it_is_the_server(chaos, namespace):
    assert quire(chaos, "page", "put", namespace, "@hello", "--fill").returncode == OK
    got = quire(chaos, "page", "get", namespace, "@hello")
    assert got.returncode == OK, got.stderr
    assert chaos.calls["Open"] and chaos.calls["CommitPublish"] == 1 and chaos.calls["Fetch"] == 1, chaos.calls
    assert chaos.connections > 0, "the client did not take the way in that it was told of"
    assert chaos.struck == 0


def test_a_fault_strikes_the_calls_that_it_names(chaos, namespace):
    assert quire(chaos, "page", "put", namespace, "@hello", "--fill").returncode == OK
    for fault, exit_code in (
        (Fault("reason", frozenset({"Fetch"}), 6), MISMATCH),
        (Fault("flip", frozenset({"Fetch"})), FAILURE),
    ):
        chaos.fault = fault
        before = chaos.struck
        got = quire(chaos, "page", "get", namespace, "@hello")
        assert chaos.struck > before
        assert got.returncode == exit_code, f"{fault}: {got.returncode} {got.stderr}"
        chaos.fault = None
        assert quire(chaos, "page", "get", namespace, "@hello").returncode == OK


def test_down_and_up_again_where_it_was(chaos):
    address = chaos.address
    chaos.down()
    assert quire(chaos, "status").returncode == UNAVAILABLE
    chaos.up()
    assert chaos.address == address
    assert quire(chaos, "status").returncode == OK
