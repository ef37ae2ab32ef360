"""The systems whose topics are measured beside ours, and ours.

``base`` says what an adapter offers; each other module adapts one system; this one lists them. As
with the peers for messages, an adapter is imported only in the process that uses it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from antiphon.lab.peers import CORE, NATS, ZENOH, ZMQ, Peer
from antiphon.lab.peers.topics.base import TopicEndpoint

__all__ = ["TOPIC_PEERS", "load_topics"]

_ALL = frozenset({"one-way", "paced", "half", "isolation"})

TOPIC_PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "antiphon",
            "antiphon_bus",
            ("event", "batch", "shares"),
            _ALL,
            (CORE,),
            "antiphon",
            folder=True,
        ),
        Peer("pyzmq", "pyzmq_topics", ("pub-sub",), _ALL, (ZMQ,), "pyzmq"),
        Peer("zenoh", "zenoh_topics", ("pub-sub",), _ALL, (ZENOH,), "eclipse-zenoh"),
        Peer("nats", "nats_topics", ("pub-sub",), _ALL, NATS, "nats-py", served=True),
    )
}


def load_topics(peer: str) -> Callable[..., TopicEndpoint]:
    """The endpoint class of a peer. Imports the library that it adapts."""
    module = importlib.import_module(f"{__name__}.{TOPIC_PEERS[peer].module}")
    found: Callable[..., TopicEndpoint] = module.ENDPOINT
    return found
