"""The manifest of a checkpoint, as `quire model digest DIR` writes it, and the check that a folder is still that one.

The digest that an operator configures names a manifest. It lists every file that changes what the model computes, with
its size and SHA-256, and for each file with weights the digest of its header and of some 4 KiB blocks of each tensor.
Hashing a large checkpoint at every start would take minutes, so a start compares sizes, all headers and one block of
each tensor, drawn at random: another revision, a swapped shard or a resumed download with holes does not pass.

docs/formats/model-manifest.md has the format. No torch, no dependency; reading a folder takes time, so do it on a
thread of your own.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from .config import is_digest
from .errors import ConfigError

__all__ = ["Block", "Manifest", "ModelFile", "Tensor", "content_digest", "default_path", "is_weights_file", "load", "local_folder"]

FORMAT = "quire model manifest 1"
BLOCK_BYTES = 4096
MAX_MANIFEST_BYTES = 1 << 28
_MAX_HEADER = 100 << 20  # what the safetensors format allows
_MAX_FILES = 1 << 14
_AGAIN = "run `quire model digest {}` again and set model_digest to what it prints"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".npz", ".npy", ".tensors")
_NOT_WEIGHTS = ("training_args.bin", "scheduler.pt", "optimizer.pt", "optimizer.bin", "scaler.pt", "scheduler.bin")


class Block(NamedTuple):
    """Up to 4 KiB of a file. digest: the first 16 bytes of its SHA-256, in hex."""

    offset: int
    length: int
    digest: str


class Tensor(NamedTuple):
    name: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class ModelFile:
    """A file of the checkpoint. Files with weights have a header (its bytes from the start of the file) and tensors."""

    name: str
    size: int
    sha256: str  # 64 hex digits
    kind: str  # weights, config, code, processor
    header_bytes: int = 0
    header_sha256: str = ""
    tensors: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """A checkpoint as it was digested. digest: of all files; weights: of all but config.json. Both sha256 text."""

    digest: str
    weights: str
    model: str
    params: int
    files: tuple[ModelFile, ...]
    config_text: str = ""
    path: str = field(default="", compare=False)

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json as it was digested. ConfigError if the checkpoint has none."""
        if not self.config_text:
            raise ConfigError("quire: the model's folder had no config.json when it was digested; use a checkpoint that has one")
        return dict(json.loads(self.config_text))

    def check(self, folder: str | os.PathLike[str], *, rng: random.Random | None = None) -> None:
        """Compares the folder that the engine runs from with this manifest: the list of files, sizes, the text of
        config.json, every header, one random block of each tensor. ConfigError names the first file that differs.
        """
        root = Path(folder)
        draw = rng or random.SystemRandom()
        again = _AGAIN.format(root)
        if not root.is_dir():
            raise ConfigError(
                f"quire: the model's folder {str(root)!r} is not a folder; the cache needs the files that the engine runs from, to compare them with model_digest"
            )
        listed = {f.name for f in self.files}
        for name in sorted(os.listdir(root)):
            if is_weights_file(name) and name not in listed and (root / name).is_file():
                raise ConfigError(f"quire: model_digest does not cover {name} in {root}; {again}")
        for file in self.files:
            try:
                what = _difference(root / file.name, file, draw)
            except OSError as e:
                raise ConfigError(
                    f"quire: {file.name} in {root} cannot be read: {e.strerror or type(e).__name__}; the folder is not the one that model_digest names: {again}"
                ) from None
            if what:
                raise ConfigError(f"quire: {file.name} in {root} is not what model_digest names: {what}; {again}")


def load(model_digest: str, path: str | None = None, *, environ: Mapping[str, str] = os.environ) -> Manifest:
    """The manifest of a digest, from its default place or from a file. The digest is computed anew from its list.

    ConfigError says which setting is wrong and how to get a manifest.
    """
    if not is_digest(model_digest):
        raise ConfigError(
            f"quire: model_digest is {model_digest!r}, which is no digest (sha256: and 64 lower-case hex digits); run `quire model digest DIR` and put there what it prints"
        )
    where = path or default_path(model_digest, environ)
    setting = "model_manifest" if path else "model_digest"
    try:
        with open(where, "rb") as f:
            data = f.read(MAX_MANIFEST_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(
            f"quire: {setting}: there is no manifest {where}; run `quire model digest DIR` on this machine as this user, or set model_manifest to a copy of its file"
        ) from None
    except OSError as e:
        raise ConfigError(f"quire: {setting}: the manifest {where} cannot be read: {e.strerror or type(e).__name__}") from None
    if len(data) > MAX_MANIFEST_BYTES:
        raise ConfigError(f"quire: {setting}: {where} has more than {MAX_MANIFEST_BYTES} bytes and is no manifest; run `quire model digest DIR` again")
    try:
        manifest = _parse(json.loads(data), where)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ConfigError(f"quire: {setting}: {where} is no whole manifest ({type(e).__name__}: {e}); run `quire model digest DIR` again") from None
    for name, stated, found in (
        ("digest", manifest.digest, list_digest(manifest.files, False)),
        ("weights", manifest.weights, list_digest(manifest.files, True)),
    ):
        if stated != found:
            raise ConfigError(
                f"quire: {setting}: {where} says that its {name} is {stated}, but its list of files gives {found}; run `quire model digest DIR` again"
            )
    if manifest.digest != model_digest:
        raise ConfigError(f"quire: model_digest is {model_digest}, but the manifest {where} is of {manifest.digest}; set both to the same model")
    return manifest


def default_path(model_digest: str, environ: Mapping[str, str] = os.environ) -> str:
    """Where `quire model digest` puts the manifest of a digest."""
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "quire", "models", model_digest.removeprefix("sha256:") + ".json")


def is_weights_file(name: str) -> bool:
    """Whether a file of this name holds weights."""
    return name.lower().endswith(_WEIGHTS) and name not in _NOT_WEIGHTS


def list_digest(files: Sequence[ModelFile], weights: bool) -> str:
    """The digest of a list of files, or of all of them but config.json: one line for each, ascending by name."""
    domain = "quire-weights-v1" if weights else "quire-model-v1"
    chosen = [(f.name, f.size, f.sha256) for f in files if not (weights and f.kind == "config")]
    return "sha256:" + _digest_of_list(chosen, domain).hex()


def content_digest(folder: str | os.PathLike[str], domain: str, what: str) -> bytes:
    """32 bytes: the digest of all files with weights and all JSON in a folder by content, whatever the folder's name.

    Reads them whole. ConfigError if there are no weights or a file cannot be read.
    """
    root = Path(folder)
    try:
        names = sorted(n for n in os.listdir(root) if (is_weights_file(n) or n == "adapter_config.json") and (root / n).is_file())
        if not any(is_weights_file(n) for n in names) or len(names) > _MAX_FILES:
            raise ConfigError(f"quire: the {what} folder {str(root)!r} has no weights; name the folder that holds them")
        entries = []
        for name in names:
            h, size = hashlib.sha256(), 0
            with open(root / name, "rb") as f:
                while chunk := f.read(1 << 20):
                    h.update(chunk)
                    size += len(chunk)
            entries.append((name, size, h.hexdigest()))
    except OSError as e:
        raise ConfigError(f"quire: the {what} folder {str(root)!r} cannot be read: {e.strerror or type(e).__name__}") from None
    return _digest_of_list(entries, domain)


def _digest_of_list(entries: list[tuple[str, int, str]], domain: str) -> bytes:
    h = hashlib.sha256(domain.encode() + b"\n")
    for name, size, digest in sorted(entries, key=lambda e: e[0].encode()):
        h.update(f"{digest} {size} {name}\n".encode())
    return h.digest()


def _parse(doc: Any, where: str) -> Manifest:
    if not isinstance(doc, dict) or doc.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT!r}")
    if len(doc["files"]) > _MAX_FILES:
        raise ValueError(f"more than {_MAX_FILES} files")
    files = tuple(_file(f) for f in doc["files"])
    if len({f.name for f in files}) != len(files):
        raise ValueError("a file is listed twice")
    m = Manifest(str(doc["digest"]), str(doc["weights"]), str(doc["model"]), int(doc.get("params", 0)), files, str(doc.get("config", "")), where)
    stated = [f.sha256 for f in files if f.name == "config.json"]
    if stated != ([hashlib.sha256(m.config_text.encode()).hexdigest()] if m.config_text else []):
        raise ValueError("its text of config.json is not the one that it lists")
    if m.config_text and not isinstance(json.loads(m.config_text), dict):
        raise ValueError("config.json is no object")
    return m


def _file(f: Any) -> ModelFile:
    name, digest = f["name"], f["sha256"]
    if not isinstance(name, str) or name != os.path.normpath(name) or name.startswith(("/", "..")) or "\n" in name:
        raise ValueError(f"{name!r} is no name of a file in the folder")
    if not is_digest("sha256:" + digest):
        raise ValueError(f"the digest of {name} is not one")
    tensors = tuple(Tensor(str(t["name"]), tuple(Block(int(o), int(n), str(d)) for o, n, d in t["blocks"])) for t in f.get("tensors", ()))
    for t in tensors:
        for b in t.blocks:
            if not (0 <= b.offset and 0 < b.length <= BLOCK_BYTES and b.offset + b.length <= f["size"] and len(b.digest) == 32):
                raise ValueError(f"a block of {t.name} in {name} is out of its file")
    header = int(f.get("header_bytes", 0))
    if not 0 <= header <= min(_MAX_HEADER + 8, int(f["size"])):
        raise ValueError(f"the header of {name} is out of its file")
    return ModelFile(name, int(f["size"]), digest, str(f["kind"]), header, str(f.get("header_sha256", "")), tensors)


def local_folder(name: str, revision: str | None, setting: str) -> str:
    """The folder of a model or an adapter: as it is, or where the hub's client has put it. ConfigError names the
    engine's setting that says where it is."""
    if os.path.isdir(name):
        return name
    try:
        hub = importlib.import_module("huggingface_hub")
        return str(hub.snapshot_download(name, revision=revision, local_files_only=True))
    except Exception as e:
        raise ConfigError(f"quire: the files of {name!r} are not found on this machine ({type(e).__name__}); give {setting} a local folder") from e


def _difference(path: Path, file: ModelFile, draw: random.Random) -> str:
    """What differs, or nothing. Small files are compared whole."""
    with open(path, "rb", buffering=0) as f:
        info = os.fstat(f.fileno())
        if not stat.S_ISREG(info.st_mode):
            return "it is no file"
        if info.st_size != file.size:
            return f"it has {info.st_size} bytes, not {file.size}"
        if file.kind != "weights":
            return "" if _sha256(f.fileno(), 0, file.size) == file.sha256 else "its content differs"
        if _sha256(f.fileno(), 0, file.header_bytes) != file.header_sha256:
            return "its header differs"
        for tensor in file.tensors:
            if tensor.blocks:
                block = draw.choice(tensor.blocks)
                if _sha256(f.fileno(), block.offset, block.length)[:32] != block.digest:
                    return f"tensor {tensor.name or '(whole file)'} differs at byte {block.offset}"
    return ""


def _sha256(fd: int, offset: int, length: int) -> str:
    h = hashlib.sha256()
    while length > 0:
        data = os.pread(fd, min(length, 1 << 20), offset)
        if not data:
            break  # cut short meanwhile: the digest differs
        h.update(data)
        offset, length = offset + len(data), length - len(data)
    return h.hexdigest()
