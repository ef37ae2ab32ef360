"""zenoh, publisher to subscriber between two peers over TCP, reliable and blocking.

Scouting is off and the sender dials the receiver, so nothing else on the network is found or
disturbed. ``CongestionControl.BLOCK`` makes a publisher wait where the default would drop.
The callback takes the payload as ``bytes``, which is what every other adapter gets.

Between processes of one machine zenoh moves payloads above 3 KiB through shared memory by default.
``pub-sub`` turns that off, so that it is measured over TCP like the others; ``shm`` leaves it on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import zenoh

from antiphon.lab.peers.base import (
    LOOPBACK,
    Endpoint,
    EndpointConfig,
    OnData,
    Sender,
    free_port,
    payload_of,
)

__all__ = ["ENDPOINT", "PubSub", "key_of", "listening_session", "open_session"]

MATCH_TIMEOUT = 10.0
OPEN_ATTEMPTS = 5


def key_of(index: int) -> str:
    """The key expression that the endpoint ``index`` subscribes to."""
    return f"antiphon/bench/{index}"


def open_session(listen: list[str], connect: list[str], shared_memory: bool = False) -> Any:
    """A session of two peers that know each other's address, and look for nobody else."""
    return zenoh.open(
        zenoh.Config.from_json5(
            json.dumps(
                {
                    "mode": "peer",
                    "listen": {"endpoints": listen},
                    "connect": {"endpoints": connect},
                    "transport": {"shared_memory": {"enabled": shared_memory}},
                    "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
                }
            )
        )
    )


def listening_session(shared_memory: bool = False, host: str = LOOPBACK) -> tuple[Any, str]:
    """A session that listens on a free port, and its address."""
    for attempt in range(OPEN_ATTEMPTS):
        address = f"tcp/{host}:{free_port(host)}"
        try:
            return open_session([address], [], shared_memory), address
        except zenoh.ZError:
            if attempt == OPEN_ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


class PublisherSender(Sender):
    """One publisher per target, on the endpoint's session."""

    def __init__(self, session: Any, config: EndpointConfig) -> None:
        self._config = config
        self._payload = payload_of(config.size)
        self._publishers: dict[int, Any] = {
            target: session.declare_publisher(
                key_of(target),
                congestion_control=zenoh.CongestionControl.BLOCK,
                reliability=zenoh.Reliability.RELIABLE,
            )
            for target in config.targets
        }
        self._puts = [publisher.put for publisher in self._publishers.values()]
        deadline = time.monotonic() + MATCH_TIMEOUT
        for publisher in self._publishers.values():
            # Before a subscriber is known, what is put goes nowhere.
            while not _matched(publisher):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no subscriber found within {MATCH_TIMEOUT:g} s")
                time.sleep(0.01)

    def burst(self) -> int:
        payload = self._payload
        puts = self._puts
        rounds = max(1, self._config.burst // len(puts))
        if len(puts) == 1:
            put = puts[0]
            for _ in range(rounds):
                put(payload)
        else:
            for _ in range(rounds):
                for put in puts:
                    put(payload)
        return rounds * len(puts)

    def send(self, target: int, data: bytes) -> None:
        self._publishers[target].put(data)

    def close(self) -> None:
        for publisher in self._publishers.values():
            publisher.undeclare()


def _matched(publisher: Any) -> bool:
    status = publisher.matching_status
    return bool(status if isinstance(status, bool) else status.matching)


class PubSub(Endpoint):
    """One session with a subscriber and its callback, one with the publishers."""

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        super().__init__(config, on_data)
        self._session: Any = None
        self._sending: Any = None
        self._reader: Callable[[], tuple[int, int | None]] = lambda: (0, None)

    def listen(self) -> str:
        self._session, address = listening_session(self.config.variant == "shm", self.config.host)
        self._session.declare_subscriber(key_of(self.config.index), self._handler())
        return address

    def connect(self, addresses: Mapping[int, str]) -> None:
        # A session cannot dial once it is open, so sending has a session of its own.
        dialled = [addresses[target] for target in self.config.targets]
        self._sending = open_session([], dialled, self.config.variant == "shm")

    def sender(self) -> PublisherSender:
        return PublisherSender(self._sending, self.config)

    def _handler(self) -> Any:
        n = 0
        last: bytes | None = None
        self._reader = lambda: (n, None if last is None else len(last))

        def count(sample: Any) -> None:
            nonlocal n, last
            last = sample.payload.to_bytes()
            n += 1

        if (on_data := self.on_data) is None:
            return count

        def deliver(sample: Any) -> None:
            nonlocal n
            on_data(sample.payload.to_bytes())
            n += 1

        return deliver

    def _count(self) -> tuple[int, int | None]:
        return self._reader()

    def close(self) -> None:
        for session in (self._sending, self._session):
            if session is not None:
                session.close()


ENDPOINT = PubSub
