"""Redis publish and subscribe with redis-py, through a redis-server started for the run.

``publish`` waits for the server's answer to every message, which is the usual way; ``pipeline``
sends a batch of them for one answer. The server holds no publisher back for a slow subscriber: it
disconnects one that has fallen too far behind (32 MB by default), and the run fails. It listens on
a free port of the loopback and stores nothing.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from antiphon.lab.peers import find_program
from antiphon.lab.peers.base import (
    LOOPBACK,
    Endpoint,
    EndpointConfig,
    OnData,
    PullEndpoint,
    Sender,
    payload_of,
)
from antiphon.lab.peers.servers import start_server

__all__ = ["ENDPOINT", "PubSub"]

LOOK = 0.2
START_TIMEOUT = 10.0
STUCK = 20.0


def channel_of(index: int) -> str:
    """The channel that the endpoint ``index`` subscribes to."""
    return f"antiphon.bench.{index}"


def client_of(service: str) -> Any:
    """A client that reports a lost connection: one that reconnects would lose messages silently."""
    host, _, port = service.rpartition(":")
    return redis.Redis(
        host,
        int(port),
        socket_timeout=STUCK,
        retry=Retry(NoBackoff(), 0),
    )


class PublishSender(Sender):
    """One client, and so one connection, per sending thread."""

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        self._payload = payload_of(config.size)
        self._channels = [channel_of(target) for target in config.targets]
        self._client = client_of(config.service)
        self._client.ping()
        self._pipelined = config.variant == "pipeline"

    def burst(self) -> int:
        payload = self._payload
        channels = self._channels
        rounds = max(1, self._config.burst // len(channels))
        if self._pipelined:
            batch = max(1, self._config.batch // len(channels))
            for start in range(0, rounds, batch):
                self._send_batch(min(batch, rounds - start))
        else:
            publish = self._client.publish
            for _ in range(rounds):
                for channel in channels:
                    publish(channel, payload)
        return rounds * len(channels)

    def _send_batch(self, rounds: int) -> None:
        payload = self._payload
        with self._client.pipeline(transaction=False) as pipeline:
            publish = pipeline.publish
            for _ in range(rounds):
                for channel in self._channels:
                    publish(channel, payload)
            pipeline.execute()

    def send(self, target: int, data: bytes) -> None:
        self._client.publish(channel_of(target), data)

    def close(self) -> None:
        self._client.close()


class PubSub(PullEndpoint):
    """A subscriber read by its own thread."""

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        super().__init__(config, on_data)
        self._subscribed = threading.Event()

    @classmethod
    def serve(cls, host: str = LOOPBACK) -> tuple[str, list[int], Callable[[], None]]:
        program = find_program("redis-server")
        if program is None:
            raise FileNotFoundError("redis-server not found; install the package redis-server")
        port, pid, stop = start_server(
            "redis-server",
            lambda port: (
                *(program, "--port", str(port), "--bind", host),
                # Clients need no password here; without this it takes those of the loopback only.
                *("--protected-mode", "no"),
                # Nothing is written, and nothing is read that others have left in the folder.
                *("--save", "", "--appendonly", "no", "--dir", "/", "--daemonize", "no"),
            ),
            _greeted,
            host,
        )
        return f"{host}:{port}", [pid], stop

    def listen(self) -> str:
        self._start_receiving()
        if not self.config.consume:
            return channel_of(self.config.index)
        if not self._subscribed.wait(START_TIMEOUT) or self.fault():
            raise TimeoutError(f"redis did not subscribe: {self.fault() or 'no reason given'}")
        return channel_of(self.config.index)

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Nothing to do: the server is the address, and the channels follow from the indexes."""

    def sender(self) -> PublishSender:
        return PublishSender(self.config)

    def _receive(self) -> None:
        client = client_of(self.config.service)
        try:
            with client.pubsub() as subscription:
                self._subscribe(subscription)
        finally:
            self._subscribed.set()
            with contextlib.suppress(redis.RedisError):
                client.close()

    def _subscribe(self, subscription: Any) -> None:
        n = 0
        last: bytes | None = None
        self._reader = lambda: (n, None if last is None else len(last))
        on_data = self.on_data
        receive = subscription.get_message
        subscription.subscribe(channel_of(self.config.index))
        while not self._stop.is_set():
            message = receive(timeout=LOOK)
            if message is None:
                continue
            if message["type"] != "message":
                self._subscribed.set()
                continue
            last = message["data"]
            n += 1
            if on_data is not None:
                on_data(message["data"])

    def close(self) -> None:
        self._stop_receiving()


def _greeted(link: socket.socket) -> bool:
    link.sendall(b"PING\r\n")
    return link.recv(5) == b"+PONG"


ENDPOINT: type[Endpoint] = PubSub
