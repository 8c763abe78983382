"""The package as it ships: what a source distribution and a wheel of it hold, with a C compiler and without one."""

from __future__ import annotations

import email
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
import serving

pytestmark = pytest.mark.once

PYTHON = serving.ROOT / "python"


def source(folder: pathlib.Path) -> pathlib.Path:
    """A copy of python/ as it is in a clone: building leaves things beside the sources."""
    clean = folder / "source"
    shutil.copytree(PYTHON, clean, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", "build", "dist", "tests"))
    return clean


def build(what: str, where: pathlib.Path, out: pathlib.Path, **environment: str) -> pathlib.Path:
    """Calls the build backend, as pip does, in an interpreter of its own, and gives the file it made."""
    code = f"import sys; from setuptools import build_meta; print('made', build_meta.build_{what}(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(out)],
        cwd=where,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return out / re.findall(r"^made (.*)$", done.stdout, re.M)[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> pathlib.Path:
    pytest.importorskip("setuptools", "77")
    folder = tmp_path_factory.mktemp("sdist")
    return build("sdist", source(folder), folder)


@pytest.fixture
def unpacked(sdist, tmp_path) -> pathlib.Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(tmp_path)
    return tmp_path / sdist.name.removesuffix(".tar.gz")


def test_a_source_distribution_holds_what_a_wheel_is_built_from(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "setup.py", "LICENSE", "README.md", "quire_kv/py.typed", "quire_kv/quire.binpb"} <= names
    shipped = {str(f.relative_to(PYTHON)) for f in (PYTHON / "quire_kv").rglob("*") if f.suffix in (".py", ".c", ".h", ".binpb")}
    assert shipped <= names


def test_a_wheel_from_it_is_whole(unpacked, tmp_path):
    wheel = build("wheel", unpacked, tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    assert "quire_kv/py.typed" in names and "quire_kv/quire.binpb" in names
    sources = {str(f.relative_to(PYTHON)) for f in (PYTHON / "quire_kv").rglob("*.py")}
    assert sources <= set(names)
    assert not [n for n in names if n.startswith(("tests", "engines", "bench"))]
    if shutil.which("gcc") or shutil.which("cc"):
        assert "quire_kv/_native.abi3.so" in names, "a compiler is there and the helper was not built"
        assert "-cp310-abi3-" in wheel.name, "one wheel for every Python"
    metadata = next(n for n in names if n.endswith(".dist-info/METADATA"))
    about = email.message_from_bytes(zipfile.ZipFile(wheel).read(metadata))
    assert about["License-Expression"] == "Apache-2.0"
    assert about["Requires-Python"] == ">=3.10"
    needs = {re.split(r"[<>=!~; ]", n)[0] for n in about.get_all("Requires-Dist")}
    assert needs == {"numpy", "grpcio", "protobuf", "xxhash"}


def test_without_a_compiler_the_package_works_by_numpy(unpacked, tmp_path):
    wheel = build("wheel", unpacked, tmp_path, CC="/nonexistent/cc", LDSHARED="/nonexistent/cc -shared")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        assert not [n for n in archive.namelist() if n.endswith(".so")]
        archive.extractall(site)
    code = "import quire_kv, quire_kv.kernels as k; print(quire_kv.__file__); assert not k.NATIVE and k.why_not"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(site))


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys; before = set(sys.modules); import quire_kv; print(*sorted({m.partition('.')[0] for m in set(sys.modules) - before}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"quire_kv", "__future__"}


def test_the_version_is_the_binarys(quire_bin):
    """A release of one is a release of the other. Between releases a binary's version is that of its commit, or none."""
    import quire_kv

    said = json.loads(subprocess.run([quire_bin, "version", "-o", "json"], capture_output=True, text=True, check=True).stdout)["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", quire_kv.__version__)
    if re.fullmatch(r"v\d+\.\d+\.\d+", said):
        assert quire_kv.__version__ == said.removeprefix("v")
    else:
        assert re.match(r"devel|v\d+\.\d+\.\d+-", said), f"a version of neither a release nor a commit: {said}"
        tag = re.match(r"v(\d+\.\d+\.[1-9]\d*)-0\.\d{14}-", said)  # v1.2.4-0.<time>-<commit>: after v1.2.3
        assert quire_kv.__version__.endswith(".dev0"), f"the binary is {said}, no release, and the package says {quire_kv.__version__}"
        assert tag is None or quire_kv.__version__ == f"{tag[1]}.dev0"


def test_the_licence_is_the_repositorys():
    assert (PYTHON / "LICENSE").read_bytes() == (serving.ROOT / "LICENSE").read_bytes()
