"""A store whose answers to lookups are 19 ms late on the wire: a proxy before a real server's data connections holds each back.

with SlowStore(server) as slow:
    cache = Cache(config, spec, log, adapter="test", make_client=slow.client)
    slow.held       answers that were held back
"""

from __future__ import annotations

import dataclasses
import time

from quire_kv import wire
from quire_kv.cache import client_of

from .frame_proxy import FrameProxy, ProxiedClient

LATE_SECONDS = 0.019


class SlowStore:
    def __init__(self, server):
        self.server = server
        self._proxy = FrameProxy(server.data_address)
        self._proxy.raw = self._late
        self.held = 0

    def _late(self, frame, body, data):
        if frame.kind == wire.RESPONSE and frame.method == wire.METHODS["BatchExists"]:
            time.sleep(LATE_SECONDS)
            self.held += 1
        return [wire.encode_frame(frame.kind, frame.method, frame.call, body, flags=frame.flags, data=len(data), extra=frame.extra), data]

    def client(self, config) -> ProxiedClient:
        """As quire_kv.cache.client_of, over the proxy."""
        return ProxiedClient(dataclasses.replace(client_of(config).options, transport="data"), self._proxy)

    def __enter__(self) -> SlowStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.close()
