"""Builds the native helper where there is a C compiler; without one the package is whole, and numpy does that work.

One binary serves every Python from 3.10 on: the helper uses the limited API only, and the wheel says so (cp310-abi3).
"""

import glob

from setuptools import Extension, setup

LIMITED_API = ("Py_LIMITED_API", "0x030A0000")  # 3.10, the oldest Python of pyproject.toml

native = Extension(
    "quire_kv._native",
    sources=["quire_kv/_native.c"],
    depends=glob.glob("quire_kv/*.h"),
    define_macros=[LIMITED_API],
    extra_compile_args=["-O3", "-std=c11", "-Wall", "-fvisibility=hidden", "-pthread"],
    extra_link_args=["-pthread"],
    py_limited_api=True,
    optional=True,  # a failed compilation is a warning
)

setup(ext_modules=[native], options={"bdist_wheel": {"py_limited_api": "cp310"}})
