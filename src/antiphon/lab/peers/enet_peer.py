"""ENet through pyenet: reliable messages over UDP, as many games send them.

pyenet keeps the interpreter's lock while it waits, so nobody waits in it: the threads wait for the
socket, and then let ENet do what there is to do. ENet queues without a bound; the sender goes on
only when all but a window of what it has queued is on the wire.
"""

from __future__ import annotations

import select
import time
from collections.abc import Mapping
from typing import Any

import enet

from antiphon.lab.peers.base import (
    Endpoint,
    EndpointConfig,
    OnData,
    PullEndpoint,
    Sender,
    payload_of,
)

__all__ = ["ENDPOINT", "EnetPeer"]

PEERS = 256
CHANNELS = 1
# What may wait in ENet's queue when a sender goes on.
QUEUE_BYTES = 256 * 1024
# ENet sends again what is lost when it is served: so often also when nothing arrives.
LOOK_MS = 10
START_TIMEOUT = 10.0
STUCK = 20.0


class Host:
    """An ENet host and the readiness of its socket. Used by one thread."""

    def __init__(self, address: Any, peers: int) -> None:
        self.enet: Any = enet.Host(address, peers, CHANNELS, 0, 0)
        self._poll = select.poll()
        self._poll.register(self.enet.socket.fileno(), select.POLLIN)

    def wait(self) -> None:
        """Until something arrives, or for a moment."""
        self._poll.poll(LOOK_MS)


class EnetSender(Sender):
    """One host with a peer per target."""

    def __init__(self, config: EndpointConfig, addresses: Mapping[int, str]) -> None:
        self._config = config
        self._payload = payload_of(config.size)
        self._host = Host(None, len(config.targets))
        self._peers: dict[int, Any] = {}
        for target in config.targets:
            host, _, port = addresses[target].rpartition(":")
            address = enet.Address(host.encode(), int(port))
            self._peers[target] = self._host.enet.connect(address, CHANNELS)
        self._queued = 0
        self._on_wire = self._host.enet.totalSentData
        connected = 0
        deadline = time.monotonic() + START_TIMEOUT
        while connected < len(self._peers):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer within {START_TIMEOUT:g} s")
            if self._host.enet.service(0).type == enet.EVENT_TYPE_CONNECT:
                connected += 1
            else:
                self._host.wait()

    def burst(self) -> int:
        payload = self._payload
        packet = enet.Packet
        reliable = enet.PACKET_FLAG_RELIABLE
        peers = list(self._peers.values())
        rounds = max(1, self._config.burst // len(peers))
        batch = max(1, self._config.batch // len(peers))
        for start in range(0, rounds, batch):
            count = min(batch, rounds - start)
            for _ in range(count):
                for peer in peers:
                    peer.send(0, packet(payload, reliable))
            self._queued += count * len(peers) * len(payload)
            self._serve_until(QUEUE_BYTES)
        return rounds * len(peers)

    def send(self, target: int, data: bytes) -> None:
        self._peers[target].send(0, enet.Packet(data, enet.PACKET_FLAG_RELIABLE))
        self._queued += len(data)
        self._serve_until(QUEUE_BYTES)

    def flush(self, timeout: float) -> None:
        self._serve_until(0, timeout)
        # Once more: if nothing is on its way after a turn, nothing is waiting for its turn either.
        self._serve_until(0, timeout)

    def _serve_until(self, most: int, timeout: float = STUCK) -> None:
        """Serve the host until at most so many bytes wait, for 0 until all are acknowledged."""
        host = self._host
        deadline = time.monotonic() + timeout
        while True:
            event = host.enet.service(0)
            if event.type == enet.EVENT_TYPE_DISCONNECT:
                raise ConnectionError("the receiver is gone")
            total = host.enet.totalSentData
            # The count is of 32 bits. It has headers and repetitions in it, so the queue is
            # somewhat longer than it seems here.
            moved = (total - self._on_wire) & 0xFFFF_FFFF
            self._on_wire = total
            self._queued = max(0, self._queued - moved)
            if most == 0:
                if not any(peer.reliableDataInTransit for peer in self._peers.values()):
                    self._queued = 0
                    return
            elif self._queued <= most:
                return
            if moved:
                deadline = time.monotonic() + timeout
            elif time.monotonic() > deadline:
                raise TimeoutError(f"the receiver took nothing for {timeout:g} s")
            if not moved:
                host.wait()

    def close(self) -> None:
        for peer in self._peers.values():
            peer.disconnect_now()
        self._host.enet.flush()


class EnetPeer(PullEndpoint):
    """A host that is served by its own thread, and hosts of the senders."""

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        super().__init__(config, on_data)
        self._addresses: Mapping[int, str] = {}
        self._host: Host | None = None

    def listen(self) -> str:
        self._host = Host(enet.Address(self.config.host.encode(), 0), PEERS)
        self._start_receiving()
        return f"{self.config.host}:{self._host.enet.address.port}"

    def connect(self, addresses: Mapping[int, str]) -> None:
        self._addresses = addresses

    def sender(self) -> EnetSender:
        return EnetSender(self.config, self._addresses)

    def _receive(self) -> None:
        assert self._host is not None
        n = 0
        last: bytes | None = None
        self._reader = lambda: (n, None if last is None else len(last))
        on_data = self.on_data
        service = self._host.enet.service
        nothing = enet.EVENT_TYPE_NONE
        receive = enet.EVENT_TYPE_RECEIVE
        while not self._stop.is_set():
            for _ in range(1000):
                event = service(0)
                if event.type == receive:
                    last = data = event.packet.data
                    n += 1
                    if on_data is not None:
                        on_data(data)
                elif event.type == nothing:
                    self._host.wait()
                    break

    def close(self) -> None:
        self._stop_receiving()


ENDPOINT: type[Endpoint] = EnetPeer
