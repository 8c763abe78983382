"""The hash contract of a vLLM engine: algorithm, seed and a probe through the engine's own functions.

vLLM hashes (parent, tokens, extra keys) of each block. The seed is PYTHONHASHSEED where it is set, a fixed text for the
SHA-256 kinds, and random in each process for the xxhash kinds: pages under a random seed can be found by nobody, so that
is refused here, with the cure, instead of a hit rate of 0.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ..errors import ConfigError
from ..identity import HashRule

__all__ = ["hash_rule", "none_hash"]

_SEED_HINT = "start every engine that shares the cache with PYTHONHASHSEED=0, or use --prefix-caching-hash-algo sha256_cbor"


def none_hash(algorithm: str) -> bytes:
    """The root that the engine will put before the first block. ConfigError where it is random."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils as utils

    function = get_hash_fn_by_name(algorithm)
    seeds = {utils.resolve_none_hash_seed(function) for _ in range(2)}
    if len(seeds) != 1:
        raise ConfigError(f"quire: {algorithm} has another seed in each process, so that nobody finds a page that another wrote; {_SEED_HINT}")
    return bytes(function(seeds.pop()))


def hash_rule(algorithm: str, unit: int, *, weak_names: bool) -> HashRule:
    """The contract. `unit` is tokens of a block. ConfigError for hashes that collide by construction, unless weak names are allowed."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils as utils

    root = none_hash(algorithm)
    if not algorithm.startswith("sha256") and not weak_names:
        raise ConfigError(
            f'quire: {algorithm} is no cryptographic hash, so that page names can be made to collide; use --prefix-caching-hash-algo sha256_cbor, or set "weak_names": true and share with nobody'
        )
    function = get_hash_fn_by_name(algorithm)

    def link(parent: bytes | None, tokens: Sequence[int]) -> bytes:
        return bytes(utils.hash_block_tokens(function, utils.BlockHash(root if parent is None else parent), tokens, None))

    return HashRule.probed(algorithm, link, unit=unit, seed=root, extra_keys=_extra_keys(utils))


def differs(algorithm: str) -> str:
    """Why the engine's root is not the one of the contract by now, or nothing. For the first request, when it is made."""
    from vllm.v1.core import kv_cache_utils as utils

    live = getattr(utils, "NONE_HASH", None)
    if live is None or bytes(live) == none_hash(algorithm):
        return ""
    return f"the engine hashes from another seed than its settings say (PYTHONHASHSEED is {os.environ.get('PYTHONHASHSEED')!r}); {_SEED_HINT}"


def _extra_keys(utils: Any) -> int:
    """The version of the rule for extra keys: 2 with a tag for each kind, 1 without. ConfigError for what is neither."""
    request = SimpleNamespace(
        mm_features=[], lora_request=None, cache_salt="s", prompt_embeds=None, prompt_is_token_ids=None, _prompt_embeds_per_block_hashes={}
    )
    try:
        keys, _ = utils.generate_block_hash_extra_keys(request, 0, 16, 0)
    except Exception as e:
        raise ConfigError(
            f"quire: the engine's rule for extra keys could not be called: {type(e).__name__}: {e}; use a version of vLLM that docs/engines/vllm.md lists"
        ) from e
    version = {(("cache_salt", "s"),): 2, ("s",): 1}.get(keys)
    if version is None:
        raise ConfigError(f"quire: the engine's rule for extra keys is not known: {keys!r}; use a version of vLLM that docs/engines/vllm.md lists")
    return version
