"""Stand-ins for the CUDA libraries of a CUDA build of torch, so that it loads and runs on a machine without any of them.

The x86 wheel of torch links to some fifteen libraries, 2 to 3 GB in packages of their own, of which nothing is used on a
CPU. For each that torch's libraries need and do not bring, this makes a small shared library with the symbols, under the
versions, that they look up in it. The functions say "no device" (cudaErrorNoDevice, 100), or what lets start-up code go on.

    cudastubs.py [DIR]    DIR holds torch's libraries; default: those of the torch installed beside this interpreter

Needs gcc and readelf. Prints how many libraries it made. Doing it again gives the same.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterable

MARK = "quire_cuda_stub"
NO_DEVICE = 100  # cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE
DRIVER_VERSION = 13000

LIBRARY = re.compile(r"lib(cu|nccl|nv)")
HOME = "libcudart"  # takes the symbols that have no version to tell whose they are
FOREIGN = re.compile(r"(__)?cu|p?nccl|nv|_Z\w*nvshmem")

Stubs = dict[str, dict[str, list[str]]]  # library -> version ("" for none) -> symbols


def readelf(*args: str) -> list[str]:
    done = subprocess.run(["readelf", "--wide", *args], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def is_stub(file: pathlib.Path) -> bool:
    return file.stat().st_size < 1 << 20 and MARK.encode() in file.read_bytes()


class Library:
    """What one shared library needs, looks up and defines."""

    def __init__(self, file: pathlib.Path):
        self.needs = {m[1] for line in readelf("--dynamic", str(file)) if (m := re.search(r"NEEDED.*\[(.+)\]", line))}
        self.version_of: dict[str, str] = {}  # version -> the library that it is looked up in
        library = None
        for line in readelf("--version-info", str(file)):
            if m := re.search(r"File: (\S+)", line):
                library = m[1]
            elif library and (m := re.search(r"Name: (\S+)\s+Flags", line)):
                self.version_of[m[1]] = library
        self.undefined: set[tuple[str, str]] = set()
        self.defined: set[str] = set()
        for line in readelf("--dyn-syms", str(file)):
            parts = line.split()
            if len(parts) < 8 or not parts[0].rstrip(":").isdigit():
                continue
            name, _, version = parts[7].partition("@")
            if parts[6] != "UND":
                self.defined.add(name)
            elif parts[4] != "WEAK":
                self.undefined.add((name, version.lstrip("@")))


def wanted(files: Iterable[pathlib.Path]) -> Stubs:
    """The stubs that a set of libraries, together, cannot do without."""
    libraries = {file.name: Library(file) for file in files}
    missing = {n for lib in libraries.values() for n in lib.needs if LIBRARY.match(n) and n not in libraries}
    defined = set().union(*(lib.defined for lib in libraries.values()))
    home = next((n for n in sorted(missing) if n.startswith(HOME)), None)
    stubs: Stubs = {name: defaultdict(list) for name in sorted(missing)}
    seen = set()
    for lib in libraries.values():
        for name, version in sorted(lib.undefined):
            if name in defined or (name, version) in seen:
                continue
            seen.add((name, version))
            if version:
                owner = lib.version_of.get(version)
            else:
                owner = home if FOREIGN.match(name) else None
            if owner in stubs:
                stubs[owner][version].append(name)
    return stubs


def function(name: str) -> str:
    """The C text of one stub."""
    if name in ("cudaGetDeviceCount", "cuDeviceGetCount"):
        return f"int {name}(int *n) {{ if (n) *n = 0; return {NO_DEVICE}; }}"
    if name in ("cudaDriverGetVersion", "cudaRuntimeGetVersion", "cuDriverGetVersion"):
        return f"int {name}(int *n) {{ if (n) *n = {DRIVER_VERSION}; return 0; }}"
    if name == "__cudaRegisterFatBinary":  # the handle that the other registrations take
        return f"static void *handle[8]; void *{name}(void) {{ return handle; }}"
    if re.search(r"(ErrorString|ErrorName|ncclGetLastError)$", name):
        return f'const char *{name}(void) {{ return "no device"; }}'
    fine = name.startswith("__cuda") or name in ("cudaGetLastError", "cudaPeekAtLastError")
    return f"long {name}(void) {{ return {0 if fine else NO_DEVICE}; }}"


def make(library: pathlib.Path, versions: dict[str, list[str]]) -> None:
    """Compiles one stub library at its path."""
    symbols = sorted({s for names in versions.values() for s in names})
    code = f'const char {MARK}[] = "{MARK}";\n' + "\n".join(map(function, symbols)) + "\n"
    script = library.with_name(library.name + ".map")
    named = {v: names for v, names in versions.items() if v}
    argv = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", "-x", "c", "-", "-o", str(library), f"-Wl,-soname,{library.name}"]
    try:
        if named:
            script.write_text("".join(f"{v} {{ global: {' '.join(s + ';' for s in n)} }};\n" for v, n in sorted(named.items())))
            argv.append(f"-Wl,--version-script={script}")
        subprocess.run(argv, input=code, text=True, check=True)
    finally:
        script.unlink(missing_ok=True)


def main(folder: pathlib.Path) -> int:
    """Makes the stubs of one folder of libraries, in it, and says how many."""
    files = sorted(f for f in folder.glob("*.so*") if f.is_file())
    for file in [f for f in files if is_stub(f)]:
        file.unlink()
    stubs = wanted(f for f in files if f.exists())
    for name, versions in stubs.items():
        make(folder / name, versions)
    return len(stubs)


if __name__ == "__main__":
    where = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(sysconfig.get_paths()["purelib"]) / "torch" / "lib"
    print(main(pathlib.Path(where)), "stand-ins for CUDA libraries")
