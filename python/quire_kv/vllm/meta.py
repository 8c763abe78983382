"""What the two sides of the connector tell each other in each step. Plain, picklable data."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from ..hint import Hint

__all__ = ["Load", "Plan", "Report", "Save"]


@dataclass
class Load:
    """Pages of one request to bring into its blocks: keys[i] goes into blocks[i]."""

    request: str
    scope: bytes
    keys: list[bytes]
    blocks: list[int]


@dataclass
class Save:
    """Consecutive full blocks of one chain. `parent` is the key before keys[0]; None where keys[0] begins the chain. `hint`
    is what their request says of the future."""

    scope: bytes
    parent: bytes | None
    keys: list[bytes]
    blocks: list[int]
    hint: Hint | None = None


@dataclass
class Plan(KVConnectorMetadata):
    """From the scheduler to every worker. `off` says why nothing is to be loaded or saved any more."""

    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    off: str = ""


@dataclass
class Report(KVConnectorWorkerMetadata):
    """From the workers to the scheduler: saves that were given up, by (scope, key), and why a worker is off."""

    lost: list[tuple[bytes, bytes]] = field(default_factory=list)
    off: str = ""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """One report of two workers."""
        assert isinstance(other, Report)
        return Report(lost=self.lost + other.lost, off=self.off or other.off)
