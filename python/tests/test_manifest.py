"""Manifests: those that `quire model digest` writes are read, compared with a folder, and refused with what to do."""

import functools
import hashlib
import json
import os
import pathlib
import random
import struct
import subprocess

import pytest

from quire_kv import manifest
from quire_kv.errors import ConfigError

VECTORS = pathlib.Path(__file__).resolve().parents[2] / "internal" / "checkpoint" / "testdata"
SHARD = "model-00001-of-00002.safetensors"


def safetensors(tensors) -> bytes:
    """A file as internal/checkpoint/testdata/README.md says."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, shape in tensors:
        size = 2
        for d in shape:
            size *= d
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + size]}
        own = b""
        while len(own) < size:
            own += hashlib.sha256(f"{name} {len(own) // 32}".encode()).digest()
        data += own[:size]
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def make_checkpoint(folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir()
    for f in json.loads((VECTORS / "checkpoint.json").read_text())["files"]:
        (folder / f["name"]).write_bytes(f["text"].encode() if "text" in f else safetensors(f["tensors"]))
    return folder


GOLDEN = json.loads((VECTORS / "manifest.json").read_text())


@pytest.fixture
def checkpoint(tmp_path):
    return make_checkpoint(tmp_path / "model")


def golden() -> manifest.Manifest:
    return manifest.load(GOLDEN["digest"], str(VECTORS / "manifest.json"))


def refused(call, *words) -> str:
    with pytest.raises(ConfigError) as e:
        call()
    text = str(e.value)
    assert text.startswith("quire: ") and "\n" not in text, text
    for word in words:
        assert word in text, text
    return text


def test_the_golden_manifest_is_read_and_is_that_of_its_checkpoint(checkpoint):
    m = golden()
    assert m.digest == GOLDEN["digest"] and m.weights == GOLDEN["weights"] and m.model == GOLDEN["model"] and m.params == GOLDEN["params"]
    assert m.config == json.loads((checkpoint / "config.json").read_text())
    assert {f.name for f in m.files} == {f["name"] for f in GOLDEN["files"]}
    for f in m.files:
        data = (checkpoint / f.name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (f.size, f.sha256)
    m.check(checkpoint)


def test_every_block_of_a_manifest_is_compared_when_it_is_drawn(checkpoint):
    """Over many starts each sample finds its own flipped bit: none of them is never looked at."""
    shard = next(f for f in golden().files if f.name == SHARD)
    path, blocks = checkpoint / SHARD, [b for t in shard.tensors for b in t.blocks]
    assert len(blocks) > 4
    original = path.read_bytes()
    for block in blocks:
        damaged = bytearray(original)
        damaged[block.offset + block.length - 1] ^= 1
        path.write_bytes(damaged)
        found = 0
        for seed in range(64):
            try:
                golden().check(checkpoint, rng=random.Random(seed))
            except ConfigError as e:
                assert "differs at byte" in str(e)
                found += 1
        assert found, block
        assert found < 64 or len(next(t for t in shard.tensors if block in t.blocks).blocks) == 1
    path.write_bytes(original)
    golden().check(checkpoint)


def test_case_c2_same_names_and_sizes_other_content(checkpoint):
    """Another revision under the same names is noticed, whichever samples are drawn."""
    other = bytearray((checkpoint / SHARD).read_bytes())
    begin = golden().files[[f.name for f in golden().files].index(SHARD)].header_bytes
    other[begin:] = bytes(len(other) - begin)
    (checkpoint / SHARD).write_bytes(other)
    for seed in range(8):
        check = functools.partial(golden().check, checkpoint, rng=random.Random(seed))
        refused(check, SHARD, "model.embed_tokens.weight", "quire model digest", "model_digest")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: (d / SHARD).write_bytes((d / SHARD).read_bytes().replace(b"norm.weight", b"norm.wEight")), (SHARD, "its header differs")),
        (lambda d: (d / SHARD).write_bytes((d / SHARD).read_bytes()[:-1]), (SHARD, "bytes, not")),
        (lambda d: (d / SHARD).unlink(), (SHARD, "cannot be read")),
        (lambda d: (d / "config.json").write_text((d / "config.json").read_text().replace("100000.0", "200000.0")), ("config.json", "content differs")),
        (lambda d: (d / "modeling_custom.py").write_text("x = 2\n"), ("modeling_custom.py", "content differs")),
        (lambda d: (d / "adapter_model.safetensors").write_bytes(b""), ("does not cover adapter_model.safetensors",)),
        (lambda d: ((d / "extra.bin").unlink(), (d / "extra.bin").mkdir()), ("extra.bin",)),
    ],
)
def test_a_folder_that_differs_is_refused(checkpoint, change, words):
    change(checkpoint)
    refused(lambda: golden().check(checkpoint), "model_digest", "quire model digest", *words)


def test_what_does_not_count_may_change(checkpoint):
    (checkpoint / "tokenizer.json").write_text('{"other": 1}')
    (checkpoint / "optimizer.pt").write_bytes(b"x")
    (checkpoint / "generation_config.json").unlink()
    golden().check(checkpoint)


def test_a_folder_of_links_is_followed(checkpoint, tmp_path):
    links = tmp_path / "snapshot"
    links.mkdir()
    for f in checkpoint.iterdir():
        (links / f.name).symlink_to(f)
    golden().check(links)
    refused(lambda: golden().check(tmp_path / "gone"), "is not a folder")


def written(tmp_path, change) -> str:
    doc = json.loads((VECTORS / "manifest.json").read_text())
    change(doc)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(doc))
    return str(path)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda d: d["files"][1].update(sha256="0" * 64), "list of files"),
        (lambda d: d["files"][0].update(size=1), "list of files"),
        (lambda d: d["files"].pop(), "list of files"),
        (lambda d: d.update(weights="sha256:" + "1" * 64), "weights"),
        (lambda d: d.update(digest="sha256:" + "1" * 64), "digest"),
        (lambda d: d.update(config="{}"), "config.json"),
        (lambda d: d.update(format="quire model manifest 2"), "format"),
        (lambda d: d.pop("files"), "no whole manifest"),
        (lambda d: d["files"][0].update(name="../../etc/passwd"), "no name of a file"),
        (lambda d: d["files"][2]["tensors"][0]["blocks"][0].__setitem__(0, 1 << 40), "out of its file"),
        (lambda d: d["files"].append(d["files"][0]), "twice"),
    ],
)
def test_a_manifest_that_is_not_whole_is_refused(tmp_path, change, word):
    path = written(tmp_path, change)
    refused(lambda: manifest.load(GOLDEN["digest"], path), word, "model_manifest", "quire model digest")


def test_settings_that_name_no_manifest_say_what_to_do(tmp_path):
    refused(lambda: manifest.load("smollm2"), "model_digest", "quire model digest")
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    text = refused(lambda: manifest.load(GOLDEN["digest"], environ=env), "model_digest", "quire model digest", "model_manifest")
    assert str(tmp_path / "quire" / "models" / (GOLDEN["digest"][7:] + ".json")) in text
    other = "sha256:" + "ab" * 32
    refused(lambda: manifest.load(other, str(VECTORS / "manifest.json")), other, GOLDEN["digest"])
    (tmp_path / "text").write_bytes(b"\xff{")
    refused(lambda: manifest.load(other, str(tmp_path / "text")), "no whole manifest")
    (tmp_path / "deep").write_text("[" * 100_000)
    refused(lambda: manifest.load(other, str(tmp_path / "deep")), "no whole manifest")
    assert manifest.default_path(other, {"HOME": "/h"}) == "/h/.cache/quire/models/" + other[7:] + ".json"


def test_the_command_writes_what_is_read_here(quire_bin, checkpoint, tmp_path):
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run([quire_bin, "model", "digest", str(checkpoint), "-o", "json"], env=env, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    m = manifest.load(said["adapter"]["model_digest"], environ=env)
    assert (m.digest, m.weights, m.path) == (GOLDEN["digest"], GOLDEN["weights"], said["manifest"])
    m.check(checkpoint)


def test_a_checkpoint_without_a_configuration_has_none(tmp_path):
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "w.bin").write_bytes(b"w")
    file = manifest.ModelFile("w.bin", 1, hashlib.sha256(b"w").hexdigest(), "weights")
    m = manifest.Manifest(manifest.list_digest([file], False), manifest.list_digest([file], True), "m", 0, (file,))
    refused(lambda: m.config, "config.json")
