"""Antiphon itself: ``node.request`` in threads, ``await node.request_async`` in tasks.

``spin`` and ``no-spin`` are the same with 50 and 0 as every node's ``NodeConfig(spin_us=...)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import antiphon
from antiphon.lab.peers.base import EndpointConfig
from antiphon.lab.peers.requests.base import Caller, RequestEndpoint, TaskCaller

__all__ = ["ENDPOINT", "NodeEndpoint"]

KIND = 200
SPIN_US = {"spin": 50.0, "no-spin": 0.0}
LOOPBACK = "127.0.0.1"


class NodeEndpoint(RequestEndpoint):
    """One node, which all callers share."""

    def __init__(self, config: EndpointConfig) -> None:
        super().__init__(config)
        schedule = antiphon.Schedule(threads=config.handlers)
        settings = antiphon.NodeConfig(schedule=schedule)
        if config.variant in SPIN_US:
            settings = antiphon.NodeConfig(schedule=schedule, spin_us=SPIN_US[config.variant])
        # Plain like its peers. Off the loopback that has to be said.
        self._node = antiphon.Node(
            config.index + 1,
            listen=f"tcp://{config.host}:0",
            secret=antiphon.INSECURE,
            config=settings,
        )
        if config.receives:
            self._node.on(KIND, lambda source, data: data)
        self._node.start()

    def listen(self) -> str:
        return self._node.address

    def connect(self, addresses: Mapping[int, str]) -> None:
        for target in self.config.targets:
            self._node.add_peer(target + 1, addresses[target])

    def caller(self) -> Caller:
        request = self._node.request
        return Caller([partial(request, t + 1, kind=KIND) for t in self.config.targets])

    async def task_caller(self) -> TaskCaller:
        request = self._node.request_async
        return TaskCaller([partial(request, t + 1, kind=KIND) for t in self.config.targets])

    def close(self) -> None:
        self._node.close()


ENDPOINT = NodeEndpoint
