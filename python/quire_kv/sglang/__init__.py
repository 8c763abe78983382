"""Mounts Quire in SGLang as a dynamic HiCache storage backend (verified with 0.5.23).

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "quire",
      "module_path": "quire_kv.sglang", "class_name": "QuireHiCache", "interface_v1": 1,
      "hicache_storage_pass_prefix_keys": true, "server": "127.0.0.1:7420", "model_digest": "sha256:...", "weights": "frozen"}'

docs/engines/sglang.md has the whole of it. Importing this package imports SGLang.
"""

from .backend import QuireHiCache

__all__ = ["QuireHiCache"]
