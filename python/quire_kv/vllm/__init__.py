"""vLLM mounts Quire as a KV connector: `kv_connector: QuireConnector`, `kv_connector_module_path: quire_kv.vllm`.

    QuireConnector (connector)   the engine's interface; catches everything, decides nothing
      scheduler's process        scheduling: lookups off the scheduler's thread, what is loaded, what is saved
      each worker's process      transfer: loads into the engine's blocks, snapshots and saves in the background
    facts, hashes, adapters      identity: what the engine's configuration says of the model, or a refusal
    memory, device, proof        where the engine's blocks lie, and the proof of it with the engine's own write operation

The class is found on first use, so that importing this package imports neither vLLM nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .connector import QuireConnector

__all__ = ["QuireConnector"]


def __getattr__(name: str) -> Any:
    if name == "QuireConnector":
        from .connector import QuireConnector

        return QuireConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
