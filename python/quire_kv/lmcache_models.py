"""The table of models of an LMCache server: which of them are cached, as what identity, and where a rank's bytes lie in a page.

One LMCache server serves many models, and its keys carry a model's name and a rank, but no digest, no adapter and no dtype. So the
operator states them, a row a model; a model without a whole row is not cached. Each row has a namespace of its own.

A rank's object becomes an extent of a page in one of two ways:

    KV_2LTD      [k, v][layer][token][head][element]       elements in a known order: the object is the view of the rank's heads
    KV_LTD       [layer][token][head][k and v together]    and layers, permuted in the copy, so that one stored page serves every tp
    KV_MLA_FMT   [layer][token][latent and rope]           and pp
    opaque       bytes nobody takes apart: the object is a page of its own, packing `whole`. Its bytes depend on the rank, and keys
                 must say so: the rank is part of the scope, beside the cache salt. (A store has no shards of uncuttable pages yet;
                 a salt of LMCache cannot hold the NUL that keeps the two apart.)

KV_LTD is what LMCache keeps of caches whose blocks hold keys and values side by side, as vLLM's do since 0.26. How they share a
head's bytes is the engine's affair: they are one component.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from .chains import scope
from .config import Config, is_digest
from .errors import ConfigError
from .layout import Layout, PageMemory, Rows
from .page import View, split_heads

__all__ = ["FORMATS", "OPAQUE", "Place", "Rank", "Row", "Shape", "parse_rows", "scope_of"]

OPAQUE = "opaque"
FORMATS = ("KV_2LTD", "KV_LTD", "KV_MLA_FMT", OPAQUE)
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}  # narrower ones have scales, which a row does not tell
MAX_MODELS = 256
MAX_CHUNK = 1 << 16  # tokens
_MAX_RANKS = 255  # LMCache packs them in eight bits

_REQUIRED = ("digest", "format", "dtype", "engine", "version", "backend", "lora", "weights")
_OPTIONAL = (
    "manifest",
    "checkpoint",
    "tp",
    "pp",
    "layer_split",
    "chunk_size",
    "chunk_bytes",
    "hash_algorithm",
    "hash_bytes",
    "multimodal",
    "weak_names",
    "runner",
    "kernel_build",
    "device_arch",
    "durability",
)
_HINTS = {
    "digest": "run `quire model digest DIR` on the checkpoint folder that the engine runs, and put the digest there",
    "format": f"write what LMCache keeps for this model: one of {', '.join(FORMATS)}",
    "dtype": "write the resolved type of the KV cache, for example bfloat16, never auto",
    "engine": "write the engine that computes the pages, for example vllm",
    "version": "write the engine's version, for example 0.32.0",
    "backend": "write the engine's attention backend, for example flashinfer-0.6.1",
    "lora": 'write "none": LMCache\'s keys carry no adapter, so a model that is served with LoRA cannot be cached',
    "weights": 'write "frozen" if nothing changes the weights while the engine runs',
}


class Rank(NamedTuple):
    """What LMCache packs into kv_rank, eight bits each."""

    world: int
    rank: int
    local_world: int
    local_rank: int

    @classmethod
    def of(cls, kv_rank: int) -> Rank:
        return cls(kv_rank >> 24 & 0xFF, kv_rank >> 16 & 0xFF, kv_rank >> 8 & 0xFF, kv_rank & 0xFF)


@dataclass(frozen=True)
class Row:
    """One model's row, checked. Names are those of the JSON."""

    name: str
    digest: str
    format: str
    dtype: str
    engine: str
    version: str
    backend: str
    manifest: str | None = None
    checkpoint: str | None = None  # the folder, where the server can read it: compared with the manifest at start
    tp: int = 0  # 0: not stated, which only opaque objects may leave out
    pp: int = 0
    layer_split: tuple[int, ...] = ()  # layers of each pipeline stage, where they are not vLLM's default
    chunk_size: int = 256
    chunk_bytes: int = 0  # of one object, where the format is opaque
    hash_algorithm: str = "blake3"
    hash_bytes: int = 32
    multimodal: str | None = None
    weak_names: bool = False
    runner: str = "v1"
    kernel_build: str | None = None
    device_arch: str | None = None
    durability: str | None = None

    @property
    def opaque(self) -> bool:
        return self.format == OPAQUE

    def config(self, common: Config) -> Config:
        """The adapter's configuration as this model's namespace has it."""
        return replace(
            common,
            model_digest=self.digest,
            model_manifest=self.manifest,
            weights="frozen",
            durability=self.durability if self.durability is not None else common.durability,
            extra={},
        )


def parse_rows(models: Any) -> tuple[dict[str, Row], list[str]]:
    """The whole rows of the table by model name, and one line for each row that is not whole. ConfigError for what is no table."""
    if not isinstance(models, Mapping):
        raise ConfigError('quire: models is missing; make it a table of the models to cache: {"org/model": {"digest": "sha256:...", ...}}')
    if len(models) > MAX_MODELS:
        raise ConfigError(f"quire: models has {len(models)} rows, at most {MAX_MODELS}")
    rows: dict[str, Row] = {}
    lines: list[str] = []
    for name, row in models.items():
        try:
            rows[name] = _parse_row(name, row)
        except ConfigError as e:
            lines.append(str(e))
    return rows, lines


def _parse_row(name: str, row: Any) -> Row:
    at = f"quire: models[{name!r}]"
    if not name or not isinstance(row, Mapping):
        raise ConfigError(f"{at} is no row; make it a JSON object with {', '.join(_REQUIRED)}")
    for key in row:
        if key not in _REQUIRED and key not in _OPTIONAL:
            raise ConfigError(f"{at}: unknown setting {key!r}; known are {', '.join(sorted((*_REQUIRED, *_OPTIONAL)))}; the model is not cached")
    for key in _REQUIRED:
        value = row.get(key)
        if not isinstance(value, str) or not value or value.lower() == "auto":
            raise ConfigError(f"{at}.{key} is {'missing' if value is None else repr(value)}: {_HINTS[key]}; the model is not cached")
    _check_words(at, row)
    wanted = ("layer_split", "lora", "weights")
    parsed = Row(
        name=name,
        layer_split=_split(at, row),
        **{k: v for k, v in row.items() if k not in wanted and v is not None},
    )
    return _checked(at, parsed, row)


def _check_words(at: str, row: Mapping[str, Any]) -> None:
    words: tuple[str, ...]
    for key, words in (("format", FORMATS), ("lora", ("none",)), ("weights", ("frozen",))):
        if row[key] not in words:
            raise ConfigError(f"{at}.{key} is {row[key]!r}: {_HINTS[key]}; the model is not cached")
    if not is_digest(row["digest"]):
        raise ConfigError(
            f"{at}.digest is {row['digest']!r}, which is no digest (sha256: and 64 lower-case hex digits): {_HINTS['digest']}; the model is not cached"
        )
    if row["dtype"] not in DTYPE_BYTES:
        raise ConfigError(f"{at}.dtype is {row['dtype']!r}; write one of {', '.join(DTYPE_BYTES)}; the model is not cached")
    for key in ("manifest", "checkpoint", "hash_algorithm", "runner", "kernel_build", "device_arch"):
        if row.get(key) is not None and (not isinstance(row[key], str) or not row[key]):
            raise ConfigError(f"{at}.{key} is {row[key]!r}; make it a non-empty string, or leave it out; the model is not cached")
    for key, words in (("multimodal", ("none", "content_digest", "caller_id")), ("durability", ("memory", "disk"))):
        if row.get(key) is not None and row[key] not in words:
            raise ConfigError(f"{at}.{key} is {row[key]!r}; make it one of {', '.join(words)}, or leave it out; the model is not cached")
    if not isinstance(row.get("weak_names", False), bool):
        raise ConfigError(f"{at}.weak_names is {row['weak_names']!r}; make it true or false; the model is not cached")
    if row.get("multimodal") == "caller_id" and not row.get("weak_names"):
        raise ConfigError(
            f"{at}.multimodal is caller_id: names that callers choose can stand for two images; write content_digest, or weak_names: true beside it; the model is not cached"
        )
    bounds = {"tp": _MAX_RANKS, "pp": _MAX_RANKS, "chunk_size": MAX_CHUNK, "chunk_bytes": 1 << 40, "hash_bytes": 64}
    for key, most in bounds.items():
        value = row.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most):
            raise ConfigError(f"{at}.{key} is {value!r}; make it a whole number from 1 to {most}; the model is not cached")


def _split(at: str, row: Mapping[str, Any]) -> tuple[int, ...]:
    split = row.get("layer_split")
    if split is None:
        return ()
    if not isinstance(split, Sequence) or isinstance(split, str) or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in split):
        raise ConfigError(f"{at}.layer_split is {split!r}; make it a list of the layers of each pipeline stage; the model is not cached")
    return tuple(split)


def _checked(at: str, row: Row, given: Mapping[str, Any]) -> Row:
    if row.opaque:
        if not row.chunk_bytes:
            raise ConfigError(f"{at}.chunk_bytes is missing: the format is opaque, so write the bytes of one object; the model is not cached")
        if row.chunk_bytes % row.chunk_size:
            raise ConfigError(f"{at}.chunk_bytes is {row.chunk_bytes}, which is no multiple of chunk_size {row.chunk_size}; the model is not cached")
        if (row.tp == 0) != (row.pp == 0):
            raise ConfigError(f"{at}: tp and pp belong together; give both or neither; the model is not cached")
    else:
        for key in ("tp", "pp"):
            if given.get(key) is None:
                raise ConfigError(f"{at}.{key} is missing: write the engine's {'tensor' if key == 'tp' else 'pipeline'} parallel size; the model is not cached")
        if row.chunk_bytes:
            raise ConfigError(f"{at}.chunk_bytes is for format opaque: leave it out; the model is not cached")
    if row.layer_split and len(row.layer_split) != row.pp:
        raise ConfigError(f"{at}.layer_split has {len(row.layer_split)} stages and pp is {row.pp}: make them equal; the model is not cached")
    if row.tp * row.pp > _MAX_RANKS:
        raise ConfigError(f"{at}: tp x pp is {row.tp * row.pp}, and LMCache's keys hold ranks up to {_MAX_RANKS}; the model is not cached")
    if row.hash_bytes < 16 and not row.weak_names:
        raise ConfigError(
            f"{at}.hash_bytes is {row.hash_bytes}: hashes under 16 bytes can be made to collide: run the server with --hash-algorithm blake3; the model is not cached"
        )
    return row


class Place(NamedTuple):
    """Where the object of one rank lies: the view of a page, or the rank's own pages."""

    view: View | None
    rank: int | None  # in the scope, where objects are opaque


@dataclass(frozen=True)
class Shape:
    """The KV of one chunk of tokens of a model as its row and its manifest give it."""

    row: Row
    heads: int  # kv heads of the whole model; 1 for MLA and for opaque objects
    layers: int
    widths: tuple[int, ...]  # elements of one head and token, by component: k and v, or the latent and its rope part

    @property
    def mla(self) -> bool:
        return self.row.format == "KV_MLA_FMT"

    @property
    def world(self) -> int:
        """The ranks that LMCache keys an object by: of MLA, whose tensor-parallel ranks hold the same, the pipeline stages. 0: any."""
        return self.row.pp if self.mla else self.row.tp * self.row.pp

    @property
    def stages(self) -> tuple[int, ...]:
        """Layers of each pipeline stage."""
        return self.row.layer_split or split_layers(self.layers, self.row.pp or 1)

    @property
    def whole(self) -> View:
        return View(0, self.heads, 0, self.layers)

    def place(self, kv_rank: int) -> Place | None:
        """Where the objects of a rank lie, or None for a rank that the row does not know."""
        r = Rank.of(kv_rank)
        if self.row.opaque:
            if self.world and (r.world != self.world or r.rank >= self.world):
                return None
            return Place(None, kv_rank)
        if r.world != self.world or r.rank >= self.world:
            return None
        tp = 1 if self.mla else self.row.tp
        stage, i = divmod(r.rank, tp)
        first = sum(self.stages[:stage])
        h0, h1 = split_heads(self.heads, tp, i)
        return Place(View(h0, h1, first, first + self.stages[stage]), None)

    def object_bytes(self, view: View | None) -> int:
        """Bytes of one object."""
        if view is None:
            return self.row.chunk_bytes
        return view.cells * self.row.chunk_size * sum(self.widths) * DTYPE_BYTES[self.row.dtype]

    def fits(self, shapes: Sequence[Sequence[int]], dtypes: Sequence[str], view: View | None) -> bool:
        """Whether an object that LMCache describes so is one of this view. Opaque objects are told by their bytes alone."""
        if view is None:
            return True
        got = [tuple(s) for s in shapes]
        if list(dtypes) != [self.row.dtype]:
            return False
        if self.row.format == "KV_2LTD":
            return got == [(2, view.layers, self.row.chunk_size, view.heads * self.widths[0])]
        want = (view.layers, self.row.chunk_size, view.heads * sum(self.widths))
        return got == [want] or got == [(1, *want)]

    def memory(self, addresses: Sequence[int], owner: object, view: View | None) -> PageMemory:
        """Objects at these addresses, each in LMCache's order of the view."""
        if view is None:
            size = self.row.chunk_bytes
            return PageMemory.strided(Layout(1, 1, (Rows(size, size, 0, 1),)), 0, addresses, [0], [0], owner)
        widths = [w * DTYPE_BYTES[self.row.dtype] for w in self.widths]
        tokens = self.row.chunk_size
        if self.row.format == "KV_2LTD":
            head = widths[0]
            token = view.heads * head
            parts = [0, view.layers * tokens * token]
        else:
            head = sum(widths)
            token = view.heads * head
            parts = [sum(widths[:i]) for i in range(len(widths))]
        rows = tuple(Rows(w, head, token, tokens) for w in widths)
        layers = np.arange(view.layers, dtype=np.int64) * (tokens * token)
        return PageMemory.strided(Layout(view.heads, view.layers, rows), 0, addresses, parts, layers, owner)


def split_layers(layers: int, pp: int) -> tuple[int, ...]:
    """vLLM's layers of each pipeline stage: what does not divide goes to stages before the last, from the back."""
    each, rest = divmod(layers, pp)
    out = [each] * pp
    for i in range(2, rest + 2):
        out[-i] += 1
    return tuple(out)


def scope_of(salt: str, rank: int | None) -> bytes:
    """The scope of a request with this cache salt; of opaque objects, of this kv_rank too."""
    if rank is None:
        return scope([], salt)
    return scope([], f"{salt}\0kv_rank={rank:08x}")
