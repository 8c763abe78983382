"""What every way to the page service does, whatever carries the bytes. Services of names and administration go by gRPC
alone; all transports answer alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .deadline import Call
from .intake import Intake
from .kernels import Whole
from .page import Geometry, View

__all__ = ["MAX_SEND_BYTES", "Transport", "Upload"]

MAX_SEND_BYTES = 1 << 20  # of one chunk: large enough that its head costs nothing


class Upload(ABC):
    """One WritePages stream being filled:

    stage(n) ──> pack into the addresses ──> send each ──> stage(n) ... ──> flush
    """

    stored = False  # whether `publish` stored all of its pages as they were sent, and that was said already
    commit = b""  # the CommitPublishRequest that `publish` sent, encoded, where its answer did not come with it

    @abstractmethod
    def stage(self, payload: int, count: int) -> np.ndarray:
        """Addresses, uint64, where 1 to `count` payloads of so many bytes may be written now. Waits for memory that is
        still being read. What was staged is to be sent before the next stage."""

    @abstractmethod
    def send(self, page: int, grant: int, address: int, payload: int) -> None:
        """The payload of a grant, whole, at a staged address."""

    def send_all(self, pages: Sequence[int], grant: int, addresses: Sequence[int], payload: int) -> None:
        """send, for several pages."""
        for page, address in zip(pages, addresses, strict=True):
            self.send(page, grant, address, payload)

    def lend(self, pages: Sequence[int], grant: int, addresses: np.ndarray, payload: int) -> bool:
        """Sends payloads from where the caller has them, uint64 [pages], if that is memory that the server can read:
        False, and nothing is sent, if it is not. They must stay as they are until the stream has ended."""
        return False

    def send_from(self, pages: Sequence[int], grant: int, addresses: np.ndarray, geometry: Geometry, view: View) -> np.ndarray | None:
        """Sends payloads of `view` from where the caller has them, uint64 [pages], and sums them on the way: uint64
        [pages, pieces]. Afterwards they may change. None, and nothing is sent: not on this stream."""
        return None

    def publish(self, whole: Whole) -> bool:
        """Sends whole payloads and their commit, which is then not to be sent again. Afterwards they may change. False, and
        nothing is sent: not on this stream, or not these. It takes the place of everything else of the stream."""
        return False

    @abstractmethod
    def flush(self) -> None:
        """Has everything on its way: the server works while more is made."""


class Transport(ABC):
    """A way to the page service. Errors are QuireError; Unreachable says that nothing of a call was sent. Thread-safe."""

    name: str

    @abstractmethod
    def unary(self, method: str, request: Any, call: Call) -> Any:
        """One call of PageService, by name, of a request, encoded or not: its response."""

    @abstractmethod
    def fetch(self, request: Any, intake: Intake, call: Call) -> None:
        """One Fetch into an intake. When it returns or raises, the intake has ended and nothing is written any more."""

    @abstractmethod
    def write(self, first: bytes, chunk_bytes: int, fill: Callable[[Upload], Any], call: Call) -> tuple[Any, Any]:
        """One WritePages whose first message is `first` (token and namespace), encoded: `fill` is called with the stream, and
        answers the CommitPublish of what it sent, or None where there is none or it was sent. Chunks have chunk_bytes at most. Afterwards nothing reads what
        was staged. Returns the response, and that of the commit where it went along; None: it is to be made, unless the upload is `stored`."""

    def publish(
        self, begin: bytes, first: bytes, chunk_bytes: int, fill: Callable[[Upload], Any], began: Callable[[bytes], None], call: Call
    ) -> tuple[bytes, bytes | None, bytes | None] | None:
        """BeginPublish, and without waiting for its answer a `write` of what it is going to grant: `first` and the commit
        have no token. `began` is called with the answer to the Begin when it is there, also where the call fails later.
        Returns three answers, encoded, if the upload is not `stored`: None in place of that to a write or a commit that was refused. QuireError
        when the Begin was refused, or the connection broke. None, and nothing was sent, where the transport cannot."""
        return None

    @abstractmethod
    def attach(self, request: Any, connect_seconds: float, life: Call, up: Callable[[bytes], None]) -> None:
        """Keeps an Attach stream open; `up` is called with the session's id. Returns or raises when it has ended:
        `life` was cancelled, or the connection is over."""

    @abstractmethod
    def close(self, deadline: float) -> None:
        """Ends calls and connections; waits for the calls until a monotonic time at most. Idempotent."""
