"""chains: every vector of the file that Go's tests read too, and the rules' edges."""

import hashlib
import json
import pathlib

import pytest

from quire_kv import chains
from quire_kv.chains import VLLMContract, VLLMRequest

ROOT = pathlib.Path(__file__).resolve().parents[2]
VECTORS = json.loads((ROOT / "store/page/testdata/hash_vectors.json").read_text())


def hexes(items):
    return [bytes.fromhex(i) for i in items]


@pytest.mark.parametrize("v", VECTORS["sglang"]["chains"], ids=lambda v: v["name"])
def test_sglang_vectors(v):
    seed = chains.sglang_seed(v.get("extra_key"), v.get("cache_salt"))
    assert seed.hex() == v.get("seed", "")
    got = chains.sglang_chain(v["tokens"], VECTORS["sglang"]["page_tokens"], prior=seed, bigram=v.get("bigram", False))
    assert got == hexes(v["digests"])


@pytest.mark.parametrize("v", VECTORS["vllm"]["none"], ids=lambda v: f"{v['algorithm']} {v['seed']}")
def test_vllm_roots(v):
    assert chains.cbor(v["seed"]).hex() == v["cbor"]
    assert VLLMContract(v["algorithm"], 16, v["seed"]).none_hash().hex() == v["hash"]


@pytest.mark.parametrize("v", VECTORS["vllm"]["blocks"], ids=lambda v: v["name"])
def test_vllm_vectors(v):
    n = len(v["tokens"])
    contract = VLLMContract(v["algorithm"], n, untagged=v.get("untagged", False))
    images = v.get("images", [])
    first = 1 if any(i["offset"] < 0 for i in images) else 0
    lora = v.get("lora")
    request = VLLMRequest(
        (lora["name"], lora.get("path", "")) if lora else None,
        v.get("cache_salt", ""),
        tuple((i["id"], first * n + i["offset"], n + 1) for i in images),
        tuple(hexes([v["embed_digest"]])) if "embed_digest" in v else (),
    )
    extra = chains.vllm_extra_keys(contract, request, first)
    if "extra_cbor" in v:
        assert chains.cbor(extra).hex() == v["extra_cbor"]
    parent = bytes.fromhex(v["parent"])
    body = chains.cbor([parent, v["tokens"], extra])
    if "cbor" in v:
        assert body.hex() == v["cbor"]
    assert contract.digest(body).hex() == v["hash"]
    # The chain makes the same of it: behind its parent, or at the root whose hash the parent is.
    if first:
        assert chains.vllm_chain(contract, v["tokens"], request, parent=parent, first_block=first) == hexes([v["hash"]])
    else:
        roots = [VLLMContract(v["algorithm"], n, s, contract.untagged) for s in (chains.VLLM_DEFAULT_SEED, "0", "123")]
        roots = [c for c in roots if c.none_hash() == parent]
        for c in roots:
            assert chains.vllm_chain(c, v["tokens"], request) == hexes([v["hash"]])


def test_all_vectors_are_there():
    assert len(VECTORS["sglang"]["chains"]) == 5 and len(VECTORS["vllm"]["none"]) == 4
    assert len(VECTORS["vllm"]["blocks"]) == 14 and len(VECTORS["scope"]) == 6


@pytest.mark.parametrize("v", VECTORS["scope"], ids=lambda v: v["name"])
def test_scope_vectors(v):
    assert chains.scope(hexes(v["adapters"]), v["salt"]).hex() == v["scope"]


def test_case_c4_adapter_is_no_salt():
    x = b"x" * 32
    scopes = [
        chains.scope(),
        chains.scope([x]),
        chains.scope([], x),
        chains.scope([], "x"),
        chains.scope([x, x]),
        chains.scope([x], x),
        chains.scope([], x + x),
        chains.scope([bytes(32)]),
    ]
    assert len(set(scopes)) == len(scopes)
    with pytest.raises(ValueError):
        chains.scope([b"a name"])


def test_chains_go_on_where_they_stopped():
    tokens = [(i * i * 31 + 7) % 150_000 for i in range(100)]
    whole = chains.sglang_chain(tokens, 8)
    assert len(whole) == 12
    assert chains.sglang_chain(tokens[40:], 8, prior=whole[4]) == whole[5:]
    pairs = chains.sglang_chain(tokens, 8, bigram=True)
    assert len(pairs) == 12 and chains.sglang_chain(tokens[40:], 8, prior=pairs[4], bigram=True) == pairs[5:]
    c = VLLMContract("sha256_cbor", 8)
    request = VLLMRequest(("a", "/a"), "salt", (("image", 30, 20),))
    blocks = chains.vllm_chain(c, tokens, request)
    assert chains.vllm_chain(c, tokens[40:], request, parent=blocks[4], first_block=5) == blocks[5:]
    plain = chains.vllm_chain(c, tokens)
    assert all(a != b for a, b in zip(plain, blocks, strict=True))


def test_refusals():
    for bad in ([-1], [1 << 32]):
        with pytest.raises(ValueError, match="32 bits"):
            chains.sglang_chain(bad, 1)
        with pytest.raises(ValueError, match="32 bits"):
            chains.vllm_chain(VLLMContract("sha256_cbor", 1), bad)
    for call in (
        lambda: chains.sglang_chain([], 0),
        lambda: chains.sglang_chain([], 1, prior=bytes(31)),
        lambda: VLLMContract("sha256", 16),
        lambda: VLLMContract("sha256_cbor", 0),
        lambda: chains.vllm_chain(VLLMContract("sha256_cbor", 1), [], parent=bytes(16), first_block=1),
        lambda: chains.vllm_chain(VLLMContract("sha256_cbor", 1), [], parent=bytes(32)),
        lambda: chains.vllm_chain(VLLMContract("sha256_cbor", 1), [], first_block=1),
        lambda: chains.vllm_chain(VLLMContract("sha256_cbor", 1), [], VLLMRequest(images=(("a", 4, 2), ("b", 5, 1)))),
    ):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(TypeError):
        chains.cbor(1.5)
    with pytest.raises(TypeError):
        chains.cbor([True])


def test_cbor_of_every_head_length():
    for value, want in (
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (255, "18ff"),
        (256, "190100"),
        (65536, "1a00010000"),
        (1 << 32, "1b0000000100000000"),
        (-1, "20"),
        (-25, "3818"),
        (None, "f6"),
        (b"", "40"),
        ("ä", "62c3a4"),
        ([], "80"),
    ):
        assert chains.cbor(value).hex() == want
    with pytest.raises(ValueError):
        chains.cbor(1 << 64)


def test_probe_is_the_documented_chain():
    unit = 4
    tokens = [(i * 7919 + 13) % 32000 for i in range(12)]
    assert sum(chains.probe_tokens(unit), []) == tokens
    want = hashlib.sha256(b"".join(chains.sglang_chain(tokens, unit))).digest()

    def link(parent, tokens):
        return chains.sglang_chain(tokens, len(tokens), prior=parent or b"")[0]

    assert chains.probe(link, unit) == want
    with pytest.raises(ValueError):
        chains.probe(lambda parent, tokens: b"short", unit)
