"""The systems whose round trips are measured beside ours, and ours.

``base`` says what an adapter offers; each other module adapts one system; this one lists them. As
with the peers for messages, an adapter is imported only in the process that uses it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from antiphon.lab.peers import CORE, NATS, ZENOH, ZMQ, Peer, Requirement
from antiphon.lab.peers.requests.base import RequestEndpoint

__all__ = ["REQUEST_PEERS", "load_requests"]

_BOTH = frozenset({"threads", "tasks"})
_THREADS = frozenset({"threads"})
_TASKS = frozenset({"tasks"})

REQUEST_PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "antiphon",
            "antiphon_request",
            ("default", "spin", "no-spin"),
            _BOTH,
            (CORE,),
            "antiphon",
        ),
        Peer("raw-tcp", "raw_echo", ("ping-pong",), _THREADS, (CORE,)),
        Peer("python-sockets", "python_sockets", ("blocking",), _THREADS),
        Peer("asyncio", "asyncio_echo", ("streams",), _TASKS),
        Peer("pyzmq", "pyzmq_request", ("req-rep", "dealer-router"), _BOTH, (ZMQ,), "pyzmq"),
        Peer("zenoh", "zenoh_queryable", ("queryable",), _BOTH, (ZENOH,), "eclipse-zenoh"),
        Peer("nats", "nats_request", ("request",), _BOTH, NATS, "nats-py", served=True),
        Peer(
            "grpc",
            "grpc_unary",
            ("unary",),
            _BOTH,
            (Requirement("grpc", "the package grpcio"),),
            "grpcio",
        ),
    )
}


def load_requests(peer: str) -> Callable[..., RequestEndpoint]:
    """The endpoint class of a peer. Imports the library that it adapts."""
    module = importlib.import_module(f"{__name__}.{REQUEST_PEERS[peer].module}")
    found: Callable[..., RequestEndpoint] = module.ENDPOINT
    return found
