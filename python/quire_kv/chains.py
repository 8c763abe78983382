"""Chain hashes of the engines, scopes and the probe, equal to the store's own (docs/formats/keys-and-hashes.md).

Engines hash their prompts themselves. These functions are for what stands beside an engine: tools, tests, routers, and
the check at start that an engine hashes as its contract says. Test vectors are shared with Go
(store/page/testdata/hash_vectors.json).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import xxhash

MAX_PAGE_TOKENS: Final = 1 << 16
SGLANG_SEED_DOMAIN: Final = b"sglang-cache-namespace-v1"
VLLM_DEFAULT_SEED: Final = "vllm-none-hash"
VLLM_HASH_BYTES: Final = {"sha256_cbor": 32, "xxhash_cbor": 16}

_SCOPE_DOMAIN: Final = b"quire-scope-v1"


def scope(adapters: Sequence[bytes] = (), salt: str | bytes = b"") -> bytes:
    """The scope of a request, 32 bytes: SHA-256 digests of the content of its adapters, in the order in which they apply,
    and its cache salt, empty for none. Plain requests have 32 zero bytes. ValueError for a digest of another length."""
    raw = salt.encode() if isinstance(salt, str) else bytes(salt)
    if not adapters and not raw:
        return bytes(32)
    for a in adapters:
        if len(a) != 32:
            raise ValueError(f"adapter digest of {len(a)} bytes, want 32")
    parts = [_SCOPE_DOMAIN, struct.pack("<I", len(adapters)), *adapters, struct.pack("<Q", len(raw)), raw]
    return hashlib.sha256(b"".join(parts)).digest()


def sglang_seed(extra_key: str | None = None, cache_salt: str | None = None) -> bytes:
    """What SGLang puts where the first page's predecessor would be; empty without an extra key and a salt. None is absent,
    which is not the same as empty."""
    if extra_key is None and cache_salt is None:
        return b""
    parts = [SGLANG_SEED_DOMAIN]
    for s in (extra_key, cache_salt):
        raw = b"" if s is None else s.encode()
        parts.append(b"\0" if s is None else b"\1" + struct.pack("<Q", len(raw)) + raw)
    return hashlib.sha256(b"".join(parts)).digest()


def sglang_chain(tokens: Sequence[int], page_tokens: int, *, prior: bytes = b"", bigram: bool = False) -> list[bytes]:
    """The 32-byte digest of each complete page of `tokens`.

    prior   the digest of the page before, or a seed; empty at a plain root
    bigram  element i is the pair of tokens i and i + 1, as with EAGLE

    ValueError for a token that is negative or does not fit into 32 bits: SGLang hashes those by another rule."""
    _check_page_tokens(page_tokens)
    if len(prior) not in (0, 32):
        raise ValueError(f"digest of {len(prior)} bytes before an SGLang chain, want 32")
    ids = _narrow(tokens)
    if bigram:
        ids = [t for pair in zip(ids, ids[1:], strict=False) for t in pair]
    page = page_tokens * (2 if bigram else 1)
    digests = []
    for start in range(0, len(ids) - page + 1, page):
        prior = hashlib.sha256(prior + struct.pack(f"<{page}I", *ids[start : start + page])).digest()
        digests.append(prior)
    return digests


@dataclass(frozen=True)
class VLLMContract:
    """The part of vLLM's rule that is fixed for a namespace.

    algorithm     "sha256_cbor" or "xxhash_cbor"
    seed          of the parent of first blocks (PYTHONHASHSEED as it stands)
    untagged      extra keys as before vLLM tagged them: a bare name, (id, offset), a bare salt, a bare digest
    """

    algorithm: str
    block_tokens: int
    seed: str = VLLM_DEFAULT_SEED
    untagged: bool = False

    def __post_init__(self) -> None:
        _check_page_tokens(self.block_tokens)
        if self.algorithm not in VLLM_HASH_BYTES:
            raise ValueError(f"algorithm {self.algorithm!r}, want one of {', '.join(VLLM_HASH_BYTES)}")

    def digest(self, data: bytes) -> bytes:
        if self.algorithm == "xxhash_cbor":
            return xxhash.xxh3_128_digest(data)
        return hashlib.sha256(data).digest()

    def none_hash(self) -> bytes:
        """The parent of first blocks."""
        return self.digest(cbor(self.seed))


@dataclass(frozen=True)
class VLLMRequest:
    """What varies for each request.

    lora           name and path of its adapter
    cache_salt     enters block 0 only; empty for none
    images         (content digest, offset and tokens of its placeholder in the prompt), ascending, not overlapping
    embed_digests  for each block from 0 on, SHA-256 of its prompt embeddings
    """

    lora: tuple[str, str] | None = None
    cache_salt: str = ""
    images: tuple[tuple[str, int, int], ...] = ()
    embed_digests: tuple[bytes, ...] = ()


def vllm_chain(
    contract: VLLMContract, tokens: Sequence[int], request: VLLMRequest = VLLMRequest(), *, parent: bytes = b"", first_block: int = 0
) -> list[bytes]:
    """The digest of each complete block of `tokens`. With `parent`, the digest of block first_block - 1, the chain goes on
    behind it. ValueError for tokens out of 32 bits, images out of order, a parent of another length."""
    n = contract.block_tokens
    if first_block < 0 or bool(parent) != (first_block > 0) or len(parent) not in (0, VLLM_HASH_BYTES[contract.algorithm]):
        raise ValueError(f"chain from block {first_block} behind a digest of {len(parent)} bytes")
    end = 0
    for _, offset, size in request.images:
        if offset < end or size < 0:
            raise ValueError(f"image at {offset} is not behind the one before")
        end = offset + size
    ids = _narrow(tokens)
    digest, digests = parent or contract.none_hash(), []
    for i in range(len(ids) // n):
        block = [digest, ids[i * n : (i + 1) * n], vllm_extra_keys(contract, request, first_block + i)]
        digest = contract.digest(cbor(block))
        digests.append(digest)
    return digests


def vllm_extra_keys(contract: VLLMContract, request: VLLMRequest, block: int) -> list[object] | None:
    """The extra keys of one block in vLLM's order: adapter, images, salt, embeddings; None without any."""
    start, stop = block * contract.block_tokens, (block + 1) * contract.block_tokens
    bare = contract.untagged
    keys: list[object] = []
    if request.lora is not None:
        keys.append(request.lora[0] if bare else ["lora", *request.lora])
    for name, offset, size in request.images:
        if offset < stop and offset + size > start:
            keys.append([name, offset - start] if bare else ["mm", name, offset - start])
    if block == 0 and request.cache_salt:
        keys.append(request.cache_salt if bare else ["cache_salt", request.cache_salt])
    if block < len(request.embed_digests):
        keys.append(request.embed_digests[block] if bare else ["prompt_embeds", request.embed_digests[block]])
    return keys or None


PROBE_LINKS: Final = 3


def probe_tokens(unit: int) -> list[list[int]]:
    """The tokens of the probe chain: three links of `unit` tokens, token i being (i x 7919 + 13) mod 32000."""
    _check_page_tokens(unit)
    ids = [(i * 7919 + 13) % 32000 for i in range(PROBE_LINKS * unit)]
    return [ids[k * unit : (k + 1) * unit] for k in range(PROBE_LINKS)]


def probe(link: Callable[[bytes | None, list[int]], bytes], unit: int) -> bytes:
    """The probe digest of a hash contract, 32 bytes: SHA-256 of three chained hashes of `unit` tokens, as the engine's own
    function `link(parent, tokens)` gives them; parent is None for the first. ValueError if it gives no page hash."""
    hashes: list[bytes] = []
    for tokens in probe_tokens(unit):
        h = bytes(link(hashes[-1] if hashes else None, tokens))
        if not 16 <= len(h) <= 64:
            raise ValueError(f"the engine's hash function gave {len(h)} bytes, want 16 to 64")
        hashes.append(h)
    return hashlib.sha256(b"".join(hashes)).digest()


def cbor(value: object) -> bytes:
    """The canonical CBOR (RFC 8949, 4.2.1) of None, numbers of up to 64 bits, text, bytes and lists of these: what block
    hashes are made of. TypeError for anything else."""
    out: list[bytes] = []
    _cbor(value, out)
    return b"".join(out)


def _cbor(value: object, out: list[bytes]) -> None:
    if value is None:
        out.append(b"\xf6")
    elif isinstance(value, bool):
        raise TypeError("bool in a block hash")
    elif isinstance(value, int):
        out.append(_head(0, value) if value >= 0 else _head(1, -1 - value))
    elif isinstance(value, bytes):
        out += (_head(2, len(value)), value)
    elif isinstance(value, str):
        raw = value.encode()
        out += (_head(3, len(raw)), raw)
    elif isinstance(value, (list, tuple)):
        out.append(_head(4, len(value)))
        for item in value:
            _cbor(item, out)
    else:
        raise TypeError(f"{type(value).__name__} in a block hash")


def _head(major: int, value: int) -> bytes:
    if value < 24:
        return bytes((major << 5 | value,))
    for code, form, bits in ((24, ">BB", 8), (25, ">BH", 16), (26, ">BI", 32), (27, ">BQ", 64)):
        if value < 1 << bits:
            return struct.pack(form, major << 5 | code, value)
    raise ValueError(f"{value} does not fit into 64 bits")


def _check_page_tokens(n: int) -> None:
    if not 1 <= n <= MAX_PAGE_TOKENS:
        raise ValueError(f"pages of {n} tokens, want 1 to {MAX_PAGE_TOKENS}")


def _narrow(tokens: Iterable[int]) -> list[int]:
    ids = [int(t) for t in tokens]
    for i, t in enumerate(ids):
        if not 0 <= t < 1 << 32:
            raise ValueError(f"token {i} is {t}, out of 32 bits")
    return ids
