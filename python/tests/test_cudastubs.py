"""The stand-ins for CUDA libraries: a library that links to one of them loads and is told that there is no device."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess

import pytest
import serving

pytestmark = pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("readelf")), reason="there is no gcc or readelf")

USER = """
int cudaGetDeviceCount(int *); int cudaRuntimeGetVersion(int *); const char *cudaGetErrorString(int); long __cudaRegisterFunction(void);
long ncclCommCount(void); int own(void) { return 7; }
int devices(int *n) { return cudaGetDeviceCount(n); }
int version(int *n) { return cudaRuntimeGetVersion(n); }
const char *why(void) { return cudaGetErrorString(100); }
long start(void) { return __cudaRegisterFunction(); }
long nccl(void) { return ncclCommCount(); }
"""


@pytest.fixture
def stubs():
    spec = importlib.util.spec_from_file_location("cudastubs", serving.ROOT / "python" / "engines" / "cudastubs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_library(path, code, *args):
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", "-x", "c", "-", "-o", str(path), *args], input=code, text=True, check=True)


def test_a_library_that_needs_cuda_loads_without_it(stubs, tmp_path):
    real, lib = tmp_path / "real", tmp_path / "lib"
    real.mkdir()
    lib.mkdir()
    versions = real / "v.map"
    versions.write_text("libcudart.so.13 { global: cudaGetDeviceCount; cudaRuntimeGetVersion; cudaGetErrorString; __cudaRegisterFunction; };")
    names = ("cudaGetDeviceCount", "cudaRuntimeGetVersion", "cudaGetErrorString", "__cudaRegisterFunction")
    compile_library(
        real / "libcudart.so.13", "".join(f"long {n}(void) {{ return 5; }}\n" for n in names), "-Wl,-soname,libcudart.so.13", f"-Wl,--version-script={versions}"
    )
    compile_library(real / "libnccl.so.2", "long ncclCommCount(void) { return 5; }", "-Wl,-soname,libnccl.so.2")  # without versions
    linked = ["-x", "none", "-Wl,--no-as-needed", str(real / "libcudart.so.13"), str(real / "libnccl.so.2"), "-Wl,-rpath,$ORIGIN"]
    compile_library(lib / "libuser.so", USER, *linked)
    shutil.rmtree(real)
    with pytest.raises(OSError):
        ctypes.CDLL(str(lib / "libuser.so"))

    assert stubs.main(lib) == 2
    assert sorted(f.name for f in lib.iterdir()) == ["libcudart.so.13", "libnccl.so.2", "libuser.so"]
    assert stubs.main(lib) == 2, "done again, it makes the same"

    user, n = ctypes.CDLL(str(lib / "libuser.so")), ctypes.c_int(5)
    user.why.restype = ctypes.c_char_p
    assert user.devices(ctypes.byref(n)) == stubs.NO_DEVICE and n.value == 0
    assert user.version(ctypes.byref(n)) == 0 and n.value == stubs.DRIVER_VERSION
    assert user.why() == b"no device"
    assert user.start() == 0 and user.nccl() == stubs.NO_DEVICE and user.own() == 7


def test_what_is_there_is_left_alone(stubs, tmp_path):
    compile_library(tmp_path / "libplain.so", "int own(void) { return 7; }")
    assert stubs.main(tmp_path) == 0
    assert [f.name for f in tmp_path.iterdir()] == ["libplain.so"]
