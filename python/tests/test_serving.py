"""The fixtures themselves: a server that starts, answers, pauses, restarts where it was, and ends with its test run."""

import os
import signal
import subprocess
import sys

import serving
from waiting import wait_for


def test_a_server_serves_and_restarts_where_it_was(quire_server, spec_text, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(spec_text())
    quire_server.run("ns", "open", str(spec))
    before = (quire_server.address, quire_server.data_address, quire_server.admin, quire_server.socket)
    assert all(before) and os.path.exists(quire_server.socket)
    assert quire_server.metric("quire_requests_total", method="Open") == 1
    assert quire_server.read_counter() == 0
    quire_server.kill()
    assert not quire_server.running
    quire_server.restart()
    assert before == (quire_server.address, quire_server.data_address, quire_server.admin, quire_server.socket)
    assert "test/model" in quire_server.run("ns", "list").stdout, "the directory is the same"


def test_every_shape_of_spec_opens(quire_server, spec_text, tmp_path):
    for n, spec in enumerate(
        (
            spec_text(8, 32, 128, 16, 16, "elements"),
            spec_text(3, 30, 64, 32, 32, "cell"),
            spec_text(1, 1, 64, 1, 8, "whole"),
            spec_text(1, 4, 64, 16, 16, components=("latent", "rope"), kind="mla"),
        )
    ):
        file = tmp_path / f"{n}.yaml"
        file.write_text(spec)
        quire_server.run("ns", "open", str(file))


def test_a_paused_server_answers_later(quire_server):
    quire_server.pause()
    stopped = f"/proc/{quire_server.pid}/stat"
    wait_for(lambda: open(stopped).read().rsplit(")", 1)[1].split()[0] == "T")
    quire_server.resume()
    quire_server.run("status")


def test_servers_end_with_the_run(quire_bin, tmp_path):
    """Also when the interpreter is killed before it could end anything."""
    code = (
        "import pathlib, sys, time, serving; s = serving.Server(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])).start();"
        "print(s.pid, flush=True); time.sleep(600)"
    )
    env = {**os.environ, "PYTHONPATH": os.path.dirname(serving.__file__)}
    run = serving.spawn([sys.executable, "-c", code, str(quire_bin), str(tmp_path / "s")], stdout=subprocess.PIPE, text=True, env=env)
    pid = int(run.stdout.readline())
    os.kill(pid, 0)
    run.send_signal(signal.SIGKILL)
    run.wait(30)

    def gone():
        try:
            return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "Z"
        except FileNotFoundError:
            return True

    wait_for(gone)


def test_a_binary_that_another_run_may_start_is_not_removed(tmp_path):
    binaries = [tmp_path / f"quire-{n}" for n in range(serving.KEPT_BINARIES + 2)]
    for n, binary in enumerate(binaries):
        binary.touch()
        os.utime(binary, (n, n))
    code = "import pathlib, sys, serving; print(serving._use(pathlib.Path(sys.argv[1])), flush=True); sys.stdin.read()"
    env = {**os.environ, "PYTHONPATH": os.path.dirname(serving.__file__)}
    with subprocess.Popen([sys.executable, "-c", code, str(binaries[0])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as other:
        assert other.stdout.readline().strip() == "True"
        serving._prune(tmp_path)
        assert [b.exists() for b in binaries[:3]] == [True, False, True]
    serving._prune(tmp_path)
    assert not binaries[0].exists()
    assert not serving._use(binaries[0])
