"""One process of the probe of idle connections: the node that is measured, or many that call it.

Run as ``python -m antiphon.lab.bench.idle_worker``; ``orders`` says how it is spoken to.

====================  ===========================================================================
``open``              make the node that is measured; answers with its address
``call``              make many nodes; each sends that one a message
``greet``             the measured node answers each of them with a message of its own
``greeted``           each of the many has got it
``alive``             how many connections of the measured node stand, and were never lost
====================  ===========================================================================

Both sides use an inbox, so that nodes which only live have no thread but their selector's. There
is no order to ask the measured node how it is until ``alive``: a picture of a thousand connections
would take more memory than they do.
"""

from __future__ import annotations

import resource
import time
from typing import Any

import antiphon
from antiphon.lab.bench.orders import Connectable, Orders, carry_out

__all__ = ["IdleWorker", "descriptors_for", "too_few_descriptors"]

KIND = 200
# A ring takes memory as it fills: a small one only keeps the address space in bounds.
RING_BYTES = 64 * 1024
# Of the process beside its nodes, of a node, and of a connection: two channels at each end, and
# those that are being made or given back.
DESCRIPTORS, DESCRIPTORS_OF_NODE, DESCRIPTORS_OF_CONNECTION = 64, 5, 3


def descriptors_for(nodes: int, connections: int) -> int:
    """Descriptors that a process may need for so many of both."""
    return DESCRIPTORS + nodes * DESCRIPTORS_OF_NODE + connections * DESCRIPTORS_OF_CONNECTION


def too_few_descriptors(needed: int) -> str:
    """Raise the soft limit as far as it goes; one line when that is too little, else nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        return (
            f"{needed:,} file descriptors are needed and RLIMIT_NOFILE allows {hard:,}; "
            f"raise the hard limit (ulimit -Hn {needed})"
        )
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return ""


class IdleWorker(Orders):
    """Carries out the orders of the probe."""

    def __init__(self) -> None:
        super().__init__()
        self._config = antiphon.NodeConfig(ring_bytes=RING_BYTES)
        self._nodes: list[antiphon.Node] = []
        self._inboxes: list[antiphon.Inbox[bytes]] = []

    def _parts(self) -> list[Connectable]:
        return []

    def do_open(self, connections: int) -> dict[str, Any]:
        if error := too_few_descriptors(descriptors_for(1, connections)):
            return {"error": error}
        self._add(1)
        return {"address": self._nodes[0].address}

    def do_call(self, first: int, count: int, address: str) -> dict[str, Any]:
        if error := too_few_descriptors(descriptors_for(count, count)):
            return {"error": error}
        for number in range(first, first + count):
            self._add(number)
            self._nodes[-1].add_peer(1, address)
            self._nodes[-1].send(1, b"here", kind=KIND)
        return {}

    def _add(self, number: int) -> None:
        node = antiphon.Node(number, config=self._config)
        self._inboxes.append(node.inbox(KIND))
        self._nodes.append(node.start())

    def do_greet(self, connections: int, limit: float) -> dict[str, Any]:
        node, inbox = self._nodes[0], self._inboxes[0]
        deadline = time.monotonic() + limit
        for _ in range(connections):
            source, _ = inbox.receive(max(0.0, deadline - time.monotonic()))
            node.send(source, b"welcome", kind=KIND)
        return {}

    def do_greeted(self, limit: float) -> dict[str, Any]:
        deadline = time.monotonic() + limit
        for inbox in self._inboxes:
            inbox.receive(max(0.0, deadline - time.monotonic()))
        return {}

    def do_alive(self) -> dict[str, Any]:
        return {
            "alive": sum(
                peer.sending and peer.receiving and not peer.losses
                for peer in self._nodes[0].connections()
            )
        }

    def do_close(self) -> dict[str, Any]:
        for node in self._nodes:
            node.close(drain=0.0)
        return super().do_close()


if __name__ == "__main__":
    carry_out(IdleWorker())
