"""Specs: the same model gives the same text everywhere, what differs gives another namespace, and what cannot be an
identity is refused in one line."""

import dataclasses
import enum
import functools
import hashlib
import json
import pathlib
import sys

import numpy as np
import pytest
from test_manifest import golden, make_checkpoint, refused

from quire_kv import hfconfig, identity, rope
from quire_kv.canonical import canonical, digest_of
from quire_kv.errors import ConfigError
from quire_kv.identity import Component, Group, HashRule, Provenance, build_spec, lora_digest, model_facts, plain_groups

ROOT = pathlib.Path(__file__).resolve().parents[2]
VECTORS = json.loads((ROOT / "internal" / "modelspec" / "testdata" / "identity_vectors.json").read_text())
OPENED = json.loads((ROOT / "namespace" / "testdata" / "adapter_specs.json").read_text())
PROVENANCE = Provenance(
    engine="vllm", engine_version="0.32.0", runner="v1", attention_backend="cpu_attn", kernel_build="sha256:00", device_arch="x86_64-avx512"
)


def link(parent, tokens):
    return hashlib.sha256((parent or b"root") + b"".join(t.to_bytes(4, "little") for t in tokens)).digest()


def rule(**changes):
    return dataclasses.replace(HashRule.probed("sha256_cbor", link, unit=16, seed=b"seed"), **changes)


def facts(**changes):
    return model_facts(golden(), **{"dtype": "torch.bfloat16", **changes})


def spec_of(model=None, **changes):
    model = model or facts()
    parts = {"groups": plain_groups(model, page_tokens=16, dtype="bfloat16"), "rule": rule(), "provenance": PROVENANCE, **changes}
    return build_spec(model, **parts)


def answer(call):
    try:
        return call()
    except ConfigError as e:
        assert str(e).startswith("quire: ") and "\n" not in str(e)
        return {"refused": True}


def test_importing_takes_no_engine_along():
    assert not {"torch", "transformers"} & set(sys.modules)


def test_canonical_vectors():
    for v in VECTORS["canonical"]:
        assert canonical(json.loads(v["json"])).hex() == v["hex"], v["json"]
    nested = []
    for _ in range(40):
        nested = [nested]
    for wrong in (nested, object(), {1.5: 1}, {"1": 0, 1: 0}, {True: 0}, "\ud800", b"x"):
        with pytest.raises(ValueError):
            canonical(wrong)


def test_classes_are_those_of_the_vectors():
    have = {"ignored": hfconfig._IGNORED, "semantic": hfconfig._SEMANTIC, "positional": rope.ROPE_KEYS}
    for name, keys in have.items():
        assert sorted(keys) == VECTORS["classes"][name]
    assert not (have["ignored"] & have["semantic"]) | (have["ignored"] & have["positional"]) | (have["semantic"] & have["positional"])


@pytest.mark.parametrize("v", VECTORS["configs"], ids=lambda v: v["name"])
def test_config_vectors(v):
    text = hfconfig.text_config(v["config"])
    assert answer(lambda: hfconfig.config_digest(text, "bfloat16")) == v["digest"]
    assert answer(lambda: rope.rope_facts(text).factors()) == v["rope"]

    def mask():
        a = hfconfig.attention_facts(text)
        return {k: x for k, x in dataclasses.asdict(a).items() if x}

    assert answer(mask) == v["attention"]

    def groups():
        m = identity.ModelFacts("m", "", "", rope.Rope("", "none"), hfconfig.Attention("causal"), hfconfig.shape_of(text), text=text)
        return [g.factors() for g in plain_groups(m, page_tokens=16, dtype="bfloat16")]

    assert answer(groups) == v["groups"]
    if "head_width" in v:
        assert hfconfig.shape_of(text).width == v["head_width"]


def test_a_configuration_object_is_as_good_as_its_mapping():
    config = golden().config

    class HfConfig:
        def to_dict(self):
            return config

    assert facts(hf_config=HfConfig()) == facts(hf_config=config) == facts()
    refused(lambda: facts(hf_config=7), "to_dict")


def test_a_configuration_may_hold_dtypes_and_enumerations():
    class Kind(enum.Enum):
        A = "a"

    config = {**golden().config, "quantization_config": {"kind": "a", "scale_dtype": "float16"}}
    held = {**config, "quantization_config": {"kind": Kind.A, "scale_dtype": np.dtype("float16")}}
    assert facts(hf_config=held).config == facts(hf_config=config).config != facts().config
    refused(lambda: facts(hf_config={**config, "quantization_config": {"kind": object()}}), "digested")


def test_the_spec_of_the_golden_checkpoint_opens_as_go_says():
    """namespace/testdata/adapter_specs.json has the text that is built here, and the ids that Go makes of it."""
    built = {"plain": spec_of(), "everything": everything()}
    assert built == {v["name"]: v["spec"] for v in OPENED["specs"]}


def everything():
    model = facts(applied={"quantization": "fp8"}, multimodal="caller_id", weak_names=True)
    groups = [
        Group.attention(
            (0,), page_tokens=32, kv_heads=2, head_dim=16, dtype="fp8_e4m3", scale="static:sha256:" + "5" * 64, grade="cell", packing="vllm_cpu_vec_b32"
        ),
        Group.attention((1,), page_tokens=16, kv_heads=2, head_dim=16, v_dim=8, dtype="torch.float16", kind="window", window=64),
        Group("recurrent", (2, 3), 16, 1, (Component("state", 256, "float32"),), "whole", "gated_delta_v1"),
    ]
    return build_spec(
        model,
        groups,
        rule(extra_keys=2, eagle=True),
        dataclasses.replace(PROVENANCE, batch_invariant=True, options={"graph.mode": "none"}),
        depends_on="prompt_boundary",
        backends={"decode": "sparse"},
        recorded={"writer_tp": 2, "reduction": "tp2-ring", "host": "h"},
        strict=True,
    )


def test_real_server_opens_them_as_go_says(quire_server, tmp_path):
    for v in OPENED["specs"]:
        path = tmp_path / "spec.json"
        path.write_text(v["spec"])
        said = json.loads(quire_server.run("ns", "open", str(path), "-o", "json").stdout)
        assert said["namespace"]["id"] == v["id"], v["name"]


def test_every_vector_that_is_not_refused_opens(quire_server, tmp_path):
    seen = {}
    for v in VECTORS["configs"]:
        try:
            model = facts(hf_config=v["config"], multimodal="content_digest")
            text = spec_of(model)
        except ConfigError:
            assert any(isinstance(v[k], dict) and v[k].get("refused") for k in ("digest", "rope", "attention", "groups")), v["name"]
            continue
        path = tmp_path / "spec.json"
        path.write_text(text)
        seen[v["name"]] = json.loads(quire_server.run("ns", "open", str(path), "-o", "json").stdout)["namespace"]["id"]
    assert len(seen) > 20
    same = {frozenset(n for n, i in seen.items() if i == one) for one in seen.values()}
    assert {s for s in same if len(s) > 1} == {
        frozenset({"smollm2", "smollm2 with another maximum length"}),
        frozenset({"llama3 rope", "llama3 rope as a later library writes it"}),
    }


def test_case_c1_dtype_and_revision_are_identity():
    def other(**changes):
        return json.loads(spec_of(facts(**changes)))["model"]

    base = other()
    assert other(dtype="float16")["config"] != base["config"] and other(dtype="float16")["weights"] == base["weights"]
    assert other(applied={"quantization": "fp8"})["weights"] != base["weights"]
    assert other(applied={"quantization": None, "adapters": {}}) == base, "nothing done is nothing said"
    a, b = ({"adapters": {"sql": d * 64}} for d in "ab")
    assert len({other(applied=x)["weights"] for x in (None, a, b)}) == 3


def test_case_c3_rope_regimes():
    config = {
        **golden().config,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8},
        "original_max_position_embeddings": 4096,
    }
    refused(lambda: facts(hf_config=config), "maximum length")
    refused(lambda: facts(hf_config=config, max_tokens=4097), "longrope", "4096")
    short = facts(hf_config=config, max_tokens=4096).rope
    assert (short.regime, short.max_tokens) == ("longrope_short", 4096)
    long = facts(hf_config=config, max_tokens=8192, rope_pinned="longrope_long").rope
    assert (long.regime, long.max_tokens, long.table) == ("longrope_long", 8192, short.table)
    refused(lambda: facts(hf_config=config, max_tokens=8192, rope_pinned="dynamic_fixed"), "pinned")
    config["rope_scaling"] = {"type": "dynamic", "factor": 2.0}
    refused(lambda: facts(hf_config=config, max_tokens=2048), "dynamic")
    assert facts(hf_config=config, max_tokens=2048, rope_pinned="dynamic_fixed").rope.regime == "dynamic_fixed"
    tables = {facts(hf_config={**golden().config, "rope_theta": t}).rope.table for t in (1e4, 1e5, 1e6)}
    assert len(tables) == 3


def test_case_c6_another_seed_or_function_is_another_contract():
    base = rule()
    assert base.bytes == 32 and base.seed == "sha256:" + hashlib.sha256(b"seed").hexdigest()
    other = HashRule.probed("sha256_cbor", lambda p, t: link(p or b"another root", t), unit=16, seed=b"seed")
    assert other.probe != base.probe
    h = [link(None, identity.probe_tokens(16)[:16])]
    for i in (1, 2):
        h.append(link(h[-1], identity.probe_tokens(16)[16 * i : 16 * i + 16]))
    assert base.probe == "sha256:" + hashlib.sha256(b"".join(h)).hexdigest()
    refused(lambda: HashRule.probed("x", lambda p, t: 1 / 0, unit=16), "ZeroDivisionError")
    refused(lambda: HashRule.probed("x", lambda p, t: b"a" if p else b"ab", unit=16), "several lengths")
    refused(lambda: HashRule.probed("x", lambda p, t: b"", unit=16), "several lengths")


def test_case_c75_image_ids_of_callers_are_refused():
    refused(lambda: facts(multimodal="caller_id"), "weak_names")
    assert json.loads(spec_of(facts(multimodal="caller_id", weak_names=True)))["weak_names"] is True
    media = {**golden().config, "vision_config": {"hidden_size": 8}}
    refused(lambda: facts(hf_config=media), "images")
    assert facts(hf_config=media, multimodal="content_digest").multimodal == "content_digest"


@pytest.mark.parametrize("dtype", ["auto", "fp8", "", None, "float7"])
def test_a_dtype_that_says_nothing_is_refused(dtype):
    refused(lambda: facts(dtype=dtype), "dtype")
    refused(lambda: plain_groups(facts(), page_tokens=16, dtype=dtype), "kv_dtype")


def test_unresolved_words_are_refused():
    for name in ("engine", "engine_version", "runner", "attention_backend", "kernel_build", "device_arch"):
        for value in ("auto", "", None, " Default "):
            changed = dataclasses.replace(PROVENANCE, **{name: value})
            refused(functools.partial(spec_of, provenance=changed), name)
    refused(lambda: spec_of(groups=[]), "no layers")
    refused(lambda: spec_of(facts().with_(weights="sha256:1")), "weights")
    refused(lambda: spec_of(provenance=dataclasses.replace(PROVENANCE, options={"a b": "c"})), "a b")
    refused(lambda: identity.layers_text([1, 1]), "ascending")


def test_nothing_of_a_configuration_is_dropped():
    config = golden().config
    base = json.loads(spec_of(facts(hf_config=config)))
    for key, value in (("mystery", 1), ("mystery", None), ("mystery", False), ("mystery", {"a": [1.5]}), ("a key", "x" * 100), ("top_k", 3)):
        other = json.loads(spec_of(facts(hf_config={**config, key: value})))
        assert other["provenance"]["options"], (key, value)
        assert {**other, "provenance": None} == {**base, "provenance": None}
    one, two = (json.loads(spec_of(facts(hf_config={**config, **{f"mystery_{i}": x for i in range(40)}}))) for x in (1, 2))
    assert list(one["provenance"]["options"]) == ["config"] and one != two


def test_a_provenance_always_fits_in_a_header():
    options = {f"option{i}": "v" * 40 for i in range(30)}
    texts = {spec_of(provenance=dataclasses.replace(PROVENANCE, options={**options, "last": x})) for x in "ab"}
    assert len(texts) == 2
    for text in texts:
        p = json.loads(text)["provenance"]
        assert p["options"] == {"all": p["options"]["all"]} and len(json.dumps(p)) < 1024


def test_a_nested_configuration_keeps_what_it_covers_up():
    inner = {k: v for k, v in golden().config.items() if k != "architectures"}
    made = [
        facts(hf_config={"architectures": ["X"], "tie_word_embeddings": outer, "text_config": {**inner, "tie_word_embeddings": True}}).config
        for outer in (True, False)
    ]
    assert made[0] != made[1]


def test_case_c4_adapters_by_content(tmp_path):
    def adapter(name, weights, config="{}"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_bytes(weights)
        (folder / "adapter_config.json").write_text(config)
        return str(folder)

    a = lora_digest(adapter("a", b"one"))
    assert len(a) == 32
    assert lora_digest(adapter("b", b"one")) == a, "the folder's name does not count"
    assert lora_digest(adapter("c", b"two")) != a and lora_digest(adapter("d", b"one", '{"r":8}')) != a
    (tmp_path / "a" / "README.md").write_text("x")
    assert lora_digest(str(tmp_path / "a")) == a
    (tmp_path / "empty").mkdir()
    refused(lambda: lora_digest(str(tmp_path / "empty")), "no weights")
    refused(lambda: lora_digest(str(tmp_path / "gone")), "cannot be read")


def test_one_model_gives_one_text_on_every_machine(tmp_path):
    make_checkpoint(tmp_path / "elsewhere")
    assert spec_of() == spec_of(model_facts(golden(), hf_config=dict(reversed(golden().config.items())), dtype="bf16"))


def test_applied_changes_are_plain_values():
    refused(lambda: facts(applied={"x": object()}), "weights")
    assert digest_of({"a": 1}, "d") != digest_of({"a": 1}, "e")
