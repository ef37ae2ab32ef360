"""gRPC unary calls: ``grpc.aio`` at both ends for tasks, the blocking API for threads.

The handlers are generic and take bytes, so nothing is generated and nothing is decoded.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
import grpc.aio

from antiphon.lab.peers.base import EndpointConfig
from antiphon.lab.peers.requests.base import STUCK, Caller, RequestEndpoint, TaskCaller
from antiphon.lab.peers.requests.loops import LoopThread

__all__ = ["ENDPOINT", "Unary"]

SERVICE = "antiphon.Bench"
METHOD = f"/{SERVICE}/Echo"
# As in gRPC's own examples.
SERVER_THREADS = 10
# The machine's proxy, if it has one, is not for the loopback.
OPTIONS = (("grpc.enable_http_proxy", 0),)


class Unary(RequestEndpoint):
    """One server, and a channel per target and process."""

    def __init__(self, config: EndpointConfig) -> None:
        super().__init__(config)
        self._loop: LoopThread | None = None
        self._server: Any = None
        self._channels: dict[int, Any] = {}

    def listen(self) -> str:
        if self.config.tasks:
            self._loop = LoopThread()
            return self._loop.run(self._serve_tasks())
        self._server = grpc.server(ThreadPoolExecutor(SERVER_THREADS), options=OPTIONS)
        address = self._add(self._server, _echo)
        self._server.start()
        return address

    async def _serve_tasks(self) -> str:
        self._server = grpc.aio.server(options=OPTIONS)
        address = self._add(self._server, _echo_async)
        await self._server.start()
        return address

    def _add(self, server: Any, echo: Any) -> str:
        handlers = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
        generic = grpc.method_handlers_generic_handler(SERVICE, handlers)
        server.add_generic_rpc_handlers((generic,))
        host = self.config.host
        return f"{host}:{server.add_insecure_port(f'{host}:0')}"

    def connect(self, addresses: Any) -> None:
        super().connect(addresses)
        if not self.config.tasks:
            for target in self.config.targets:
                channel = grpc.insecure_channel(addresses[target], options=OPTIONS)
                grpc.channel_ready_future(channel).result(STUCK)
                self._channels[target] = channel

    def caller(self) -> Caller:
        calls = [channel.unary_unary(METHOD) for channel in self._channels.values()]
        return Caller([partial(call, timeout=STUCK) for call in calls])

    async def task_caller(self) -> TaskCaller:
        channels = [
            grpc.aio.insecure_channel(self.addresses[target], options=OPTIONS)
            for target in self.config.targets
        ]

        async def close() -> None:
            for channel in channels:
                await channel.close()

        calls = [channel.unary_unary(METHOD) for channel in channels]
        return TaskCaller([partial(call, timeout=STUCK) for call in calls], close)

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        if self._loop is not None:
            self._loop.run(self._server.stop(None))
            self._loop.close()
        elif self._server is not None:
            self._server.stop(None).wait(5.0)


def _echo(request: bytes, context: Any) -> bytes:
    return request


async def _echo_async(request: bytes, context: Any) -> bytes:
    return request


ENDPOINT = Unary
