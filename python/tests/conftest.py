"""Fixtures and rules of all Python tests.

    quire_bin       path of the server's binary, built from this checkout
    quire_server    a running server (serving.Server); its log is attached to a failure
    chaos           a store that misbehaves on demand, before quire_server (doubles.chaos.Chaos)
    server_factory  makes more of them: server_factory(memory="64MiB", disk="1GiB")
    no_pauses       a cache asks and opens again at once after a failure: for many faults in a row, not for how long one costs
    spec_text       the function serving.spec_text

The package under test is the installed one where there is one on the path, else the source tree's. Rules that hold for every
test: a limit of time, after which the run ends with every thread's stack (marker `limit`); and where QUIRE_TESTS_MUST_RUN is
set, a run in which nothing passed is not a success.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import pathlib
import sys

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[1]
# One thread for torch, wherever: models of tests are so small that more threads mostly spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
if importlib.util.find_spec("quire_kv") is None:
    sys.path.insert(0, str(SOURCE))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))

import serving  # noqa: E402  (beside this file)

ENGINES = ("vllm", "sglang", "lmcache")
LIMIT_SECONDS = 120.0

_servers_key = pytest.StashKey[list]()


@pytest.fixture(scope="session")
def quire_bin() -> pathlib.Path:
    try:
        return serving.build_quire()
    except RuntimeError as why:
        if "no go command" in str(why):
            pytest.skip(str(why))
        raise


@pytest.fixture
def server_factory(quire_bin, tmp_path, request):
    """A function that starts a server with the flags given; all of them end with the test."""
    servers = request.node.stash.setdefault(_servers_key, [])

    def start(**flags: str) -> serving.Server:
        server = serving.Server(quire_bin, tmp_path / f"server{len(servers)}", **flags)
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def quire_server(server_factory) -> serving.Server:
    return server_factory()


@pytest.fixture
def chaos(quire_server):
    from doubles.chaos import Chaos

    with Chaos(quire_server) as double:
        yield double


@pytest.fixture
def no_pauses(monkeypatch) -> None:
    from quire_kv import breaker, cache

    monkeypatch.setattr(breaker, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(cache, "_REOPEN_SECONDS", 0.01)


@pytest.fixture(scope="session")
def spec_text():
    return serving.spec_text


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        for number, server in enumerate(item.stash.get(_servers_key, [])):
            report.sections.append((f"log of server {number}", server.log()))
    return report


def _limit(item: pytest.Item) -> float:
    """Seconds that a test may take."""
    mark = item.get_closest_marker("limit")
    return float(mark.args[0]) if mark else LIMIT_SECONDS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    faulthandler.dump_traceback_later(_limit(item), exit=True, file=_stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


_stderr = os.fdopen(os.dup(2), "w")  # before pytest captures it


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        for engine in ENGINES:
            if item.get_closest_marker(engine) and importlib.util.find_spec(engine) is None:
                item.add_marker(pytest.mark.skip(reason=f"{engine} is not installed in this environment"))
    if os.environ.get("PYTEST_XDIST_WORKER"):  # long ones first, so that none is begun when the other processes are through
        items.sort(key=lambda item: -_limit(item))


def pytest_sessionfinish(session, exitstatus):
    """Nothing passed: not a success, whatever was skipped or deselected."""
    if os.environ.get("QUIRE_TESTS_MUST_RUN") and exitstatus == pytest.ExitCode.OK:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and not reporter.stats.get("passed"):  # None: a process that reports to another
            reporter.write_line("no test passed: this run shows nothing", red=True)
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_report_header(config):
    spec = importlib.util.find_spec("quire_kv")
    return f"quire_kv: {os.path.dirname(spec.origin) if spec and spec.origin else 'missing'}"
