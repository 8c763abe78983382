"""Mounts Quire, a KV-cache store, in SGLang, vLLM and LMCache.

Engines load one class by name; operators need nothing else from here:

    quire_kv.sglang:QuireHiCache          dynamic HiCache storage backend
    quire_kv.vllm:QuireConnector          KVConnectorBase_V1
    quire_kv.vllm_tier:QuireTier          SecondaryTierManager
    quire_kv.lmcache:QuireL2Adapter       MP L2 adapter plug-in

All of them sit on quire_kv.cache, which never raises and answers by its deadline; quire_kv.client is the store's client
for other programs. Importing this package imports neither an engine nor torch.
"""

__version__ = "0.1.0.dev0"
