"""Antiphon's topics through a broker: a ``Bus`` in each process, and the broker in its own.

========  =================================  =============================================
variant   publishes with                     subscribes with
========  =================================  =============================================
callback  ``publish`` of bytes               a handler per event
batch     ``publish_many``                   a ``batch=True`` handler
recorded  ``publish``, with ``record=True``  a handler per event, from the log's first on
========  =================================  =============================================

The broker has a store in every variant, a new and empty one; only what is published with
``record=True`` goes through it. Its disk is that of temporary files. It syncs every 10 ms, as by
default, and keeps the last `KEPT` bytes of a topic: a subscription that is further behind than that
misses events, and then the run has failed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import antiphon
from antiphon.broker import check_health
from antiphon.lab.leftovers import owned_folder
from antiphon.lab.peers.antiphon_topic import TopicEndpoint, TopicSender
from antiphon.lab.peers.base import LOOPBACK, Endpoint, EndpointConfig, OnData
from antiphon.lab.peers.servers import start_server
from antiphon.lab.peers.topics.antiphon_bus import start_bus
from antiphon.node.config import Insecure
from antiphon.topics import Bus

__all__ = ["ENDPOINT", "KEPT", "BrokerEndpoint", "BrokerSender"]

KEPT = 2 << 30
HEALTHY_WITHIN = 10.0
# The command line cannot say that a broker is open to the network, and its peers here are.
PROGRAM = """
import sys, threading
import antiphon
from antiphon.broker import BrokerConfig
listen, store, kept, closed = sys.argv[1:]
config = BrokerConfig(keep_bytes=int(kept), log_level="error")
secret = None if closed == "loopback" else antiphon.INSECURE
with antiphon.Broker(listen, store=store, secret=secret, config=config):
    threading.Event().wait()
"""


def _secret(host: str) -> Insecure | None:
    """Plain like its peers. Off the loopback that has to be said."""
    return None if host == LOOPBACK else antiphon.INSECURE


class BrokerSender(TopicSender):
    """As that of topics; what is recorded is flushed to the broker's disk at the end."""

    def flush(self, timeout: float) -> None:
        until = time.monotonic() + timeout
        for publisher in self._publishers.values():
            publisher.flush(timeout=max(0.1, until - time.monotonic()))


class BrokerEndpoint(TopicEndpoint):
    """One bus behind the broker."""

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        super().__init__(config, on_data)
        self._missed: list[Callable[[], int]] = []
        self._lost = ""
        self._bus.node.on_disconnected(self._note_lost)

    @classmethod
    def serve(cls, host: str = LOOPBACK) -> tuple[str, list[int], Callable[[], None]]:
        folder = owned_folder()

        def command(port: int) -> list[str]:
            where = "loopback" if host == LOOPBACK else "network"
            facts = [f"tcp://{host}:{port}", f"{folder.name}/store", str(KEPT), where]
            return [sys.executable, "-c", PROGRAM, *facts]

        try:
            port, pid, end = start_server("antiphon broker", command, lambda link: True, host)
        except BaseException:
            folder.cleanup()
            raise

        def stop() -> None:
            end()
            folder.cleanup()

        try:
            _await_health(f"tcp://{host}:{port}", host)
        except BaseException:
            stop()
            raise
        return f"{host}:{port}", [pid], stop

    @property
    def _recorded(self) -> bool:
        return self.config.variant == "recorded"

    def _open(self, config: EndpointConfig) -> Bus:
        return start_bus(f"tcp://{config.service}", secret=_secret(config.host))

    def _options(self) -> dict[str, Any]:
        # The store is new: so nothing is lost of what is published before it is heard of here.
        return {"start": "earliest"} if self._recorded else {}

    def _handler(self) -> Callable[[Any], None]:
        if not self._recorded:
            return super()._handler()
        take = self._taker()
        missed = 0
        self._missed.append(lambda: missed)

        def handle(event: Any) -> None:
            nonlocal missed
            missed += event.missed
            take(event.data)

        return handle

    def sender(self) -> BrokerSender:
        return BrokerSender(self._bus, self.config, record=self._recorded)

    def _note_lost(self, peer: int, reason: str) -> None:
        # The bus would wait for another broker at the same place.
        self._lost = f"the connection to the broker was lost: {reason}"

    def fault(self) -> str:
        missed = sum(count() for count in self._missed)
        if missed:
            return f"{missed} recorded events were dropped by the broker's store before they came"
        return self._lost or super().fault()


def _await_health(address: str, host: str) -> None:
    until = time.monotonic() + HEALTHY_WITHIN
    while not check_health(address, secret=_secret(host), timeout=1.0).healthy:
        if time.monotonic() > until:
            raise TimeoutError(f"the broker at {address} was not well in {HEALTHY_WITHIN:g} s")


ENDPOINT: type[Endpoint] = BrokerEndpoint
