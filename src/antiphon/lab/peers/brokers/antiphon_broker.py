"""Antiphon itself: ``antiphon broker`` in a process of its own, and a bus at each end.

==========  ==========================  ===========================================================
variant     publishes with              subscribes with
==========  ==========================  ===========================================================
event       ``publish`` of bytes        a handler per event
batch       ``publish_many`` of lists   a ``batch=True`` handler
==========  ==========================  ===========================================================
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

from antiphon.broker import check_health
from antiphon.lab.peers.base import LOOPBACK, EndpointConfig
from antiphon.lab.peers.servers import start_server
from antiphon.lab.peers.topics.antiphon_bus import BusEndpoint, start_bus
from antiphon.topics import Bus

__all__ = ["ENDPOINT", "BrokerEndpoint", "serve_broker"]

COMMAND = (sys.executable, "-m", "antiphon.cli.main", "broker", "--listen")
HEALTHY_WITHIN = 10.0


def serve_broker(
    host: str = LOOPBACK, options: Sequence[str] = ()
) -> tuple[str, list[int], Callable[[], None]]:
    """A broker with its defaults, as anybody starts it: its address, its process, its end.

    ``options`` are further ones of the command.
    """
    os.environ.pop("ANTIPHON_CONFIG", None)

    def command(port: int) -> list[str]:
        return [*COMMAND, f"tcp://{host}:{port}", *options]

    port, pid, stop = start_server("antiphon broker", command, lambda link: True, host)
    address = f"tcp://{host}:{port}"
    until = time.monotonic() + HEALTHY_WITHIN
    while not check_health(address, timeout=1.0).healthy:
        if time.monotonic() > until:
            stop()
            raise TimeoutError(f"the broker at {address} was not well in {HEALTHY_WITHIN:g} s")
    return address, [pid], stop


class BrokerEndpoint(BusEndpoint):
    """A bus behind the broker."""

    @classmethod
    def serve(cls, host: str = LOOPBACK) -> tuple[str, list[int], Callable[[], None]]:
        return serve_broker(host)

    def _open(self, config: EndpointConfig) -> Bus:
        return start_bus(config.service)


ENDPOINT = BrokerEndpoint
