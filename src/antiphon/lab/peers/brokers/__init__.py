"""Brokers that are measured beside ours: publisher, broker and subscriber are processes.

Adapters are those of topics (``antiphon.lab.peers.topics``), each with a server. As there, an
adapter is imported only in the process that uses it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from antiphon.lab.peers import CORE, MOSQUITTO, NATS, PAHO, Peer
from antiphon.lab.peers.topics.base import TopicEndpoint

__all__ = ["BROKER_PEERS", "load_broker"]

_PATTERNS = frozenset({"one-way", "paced"})

BROKER_PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "antiphon",
            "brokers.antiphon_broker",
            ("event", "batch"),
            _PATTERNS,
            (CORE,),
            "antiphon",
            served=True,
        ),
        Peer("nats", "topics.nats_topics", ("pub-sub",), _PATTERNS, NATS, "nats-py", served=True),
        # Plain sockets, and only the server's own protocol: what Python can do with it at the most.
        Peer("nats-raw", "brokers.nats_raw", ("batched",), _PATTERNS, (NATS[1],), served=True),
        Peer(
            "mosquitto",
            "brokers.mqtt_topics",
            ("qos0",),
            _PATTERNS,
            (PAHO, MOSQUITTO),
            "paho-mqtt",
            served=True,
        ),
    )
}


def load_broker(peer: str) -> Callable[..., TopicEndpoint]:
    """The endpoint class of a peer. Imports the library that it adapts."""
    module = importlib.import_module(f"antiphon.lab.peers.{BROKER_PEERS[peer].module}")
    found: Callable[..., TopicEndpoint] = module.ENDPOINT
    return found
