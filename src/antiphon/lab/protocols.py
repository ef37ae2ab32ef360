"""The protocols that the lab's plans name, each with the adapter that runs it.

Those of the benchmark come from ``lab.peers``; this module adds more of the same interface and
names the ones that cannot run yet, or not at all. A plan may name any of them: what is missing is a
line of text and a row marked absent.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import Literal

from antiphon.lab.java import programs
from antiphon.lab.peers import (
    CORE,
    PEERS,
    Endpoint,
    Peer,
    Requirement,
    StreamEndpoint,
    find_program,
)

__all__ = ["MORE_PEERS", "PROTOCOLS", "Protocol", "load_protocol", "missing"]


@dataclass(frozen=True, slots=True)
class Protocol:
    """One row of a plan: a messaging system in one language, and the ways to use it.

    ``peer`` adapts it, or a Java ``program``; without either, ``note`` says why. ``managed`` ones
    have a garbage collector in the process that is measured, so its load applies to them.
    ``lossy`` ones drop messages when a receiver falls behind, which is a count and no error.
    """

    name: str
    peer: Peer | None
    variants: tuple[str, ...]
    language: Literal["python", "c", "java"] = "python"
    managed: bool = True
    lossy: bool = False
    note: str = ""
    program: str = ""


_BOTH = frozenset({"one-way", "duplex"})
# It knows no option that prints only its version, so it is not asked as other programs are.
_MOSQUITTO = Requirement(
    "mosquitto",
    "the system package mosquitto",
    probe=lambda: find_program("mosquitto") is not None,
)

MORE_PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "antiphon-topic",
            "antiphon_topic",
            ("callback", "batch"),
            frozenset({"one-way", "duplex", "n-n"}),
            (CORE,),
            "antiphon",
            folder=True,
        ),
        Peer("tcp-python", "sockets_tcp", ("sockets",), _BOTH),
        Peer("udp-python", "udp_python", ("sockets",), _BOTH),
        Peer(
            "enet",
            "enet_peer",
            ("reliable",),
            _BOTH,
            (Requirement("enet", "the package pyenet"),),
            "pyenet",
        ),
        Peer(
            "quic",
            "quic_aioquic",
            ("stream",),
            _BOTH,
            (
                Requirement("aioquic", "the package aioquic"),
                Requirement("cryptography", "the package cryptography"),
            ),
            "aioquic",
        ),
        Peer(
            "redis",
            "redis_pubsub",
            ("publish", "pipeline"),
            _BOTH,
            (
                Requirement("redis", "the package redis"),
                Requirement("redis-server", "the system package redis-server", program=True),
            ),
            "redis",
            served=True,
        ),
        Peer(
            "mqtt",
            "mqtt_mosquitto",
            ("qos0", "qos1"),
            _BOTH,
            (Requirement("paho.mqtt", "the package paho-mqtt"), _MOSQUITTO),
            "paho-mqtt",
            served=True,
        ),
        Peer(
            "grpc",
            "grpc_stream",
            ("client-stream",),
            _BOTH,
            (Requirement("grpc", "the package grpcio"),),
            "grpcio",
        ),
    )
}

_NOWHERE = "is in no registry, neither PyPI nor Debian, so the lab cannot install it"

PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol("antiphon-node", PEERS["antiphon"], ("callback", "inbox", "batch")),
        Protocol("antiphon-topic", MORE_PEERS["antiphon-topic"], ("callback", "batch")),
        Protocol("tcp-c", PEERS["raw-tcp"], ("stream",), "c", managed=False),
        Protocol("tcp-python", MORE_PEERS["tcp-python"], ("sockets",)),
        Protocol("asyncio", PEERS["asyncio"], ("streams",)),
        Protocol("java-net", None, ("blocking",), "java", program="TcpNet"),
        Protocol("java-nio", None, ("selector",), "java", program="TcpNio"),
        Protocol(
            "udp-c",
            None,
            ("sockets",),
            "c",
            managed=False,
            lossy=True,
            note="comes with a loop for datagrams in the native core",
        ),
        Protocol("udp-python", MORE_PEERS["udp-python"], ("sockets",), lossy=True),
        Protocol("udp-java", None, ("sockets",), "java", lossy=True, program="Udp"),
        Protocol(
            "sctp",
            None,
            ("sockets",),
            "c",
            managed=False,
            note="has no adapter yet, and will run only where the kernel has SCTP",
        ),
        Protocol("enet", MORE_PEERS["enet"], ("reliable",)),
        Protocol("quic", MORE_PEERS["quic"], ("stream",)),
        Protocol("pyzmq", PEERS["pyzmq"], ("push-pull",)),
        Protocol("zenoh", PEERS["zenoh"], ("pub-sub", "shm")),
        Protocol("nats", PEERS["nats"], ("pub-sub",), lossy=True),
        Protocol("pynng", PEERS["pynng"], ("push-pull",)),
        Protocol("redis", MORE_PEERS["redis"], ("publish", "pipeline")),
        Protocol("mqtt", MORE_PEERS["mqtt"], ("qos0", "qos1"), lossy=True),
        Protocol("grpc", MORE_PEERS["grpc"], ("client-stream",)),
        Protocol("jgroups-udp", None, ("channel",), "java", program="Groups"),
        Protocol("jgroups-tcp", None, ("channel",), "java", program="Groups"),
        Protocol("spread", None, ("group",), "c", managed=False, note=_NOWHERE),
        Protocol("appia", None, ("group",), "java", note=_NOWHERE),
    )
}


def missing(protocol: Protocol, variant: str = "") -> str:
    """One line that says what to install or why it cannot be had; empty when it can run."""
    if protocol.note:
        return f"{protocol.name}: {protocol.note}"
    if variant and variant not in protocol.variants:
        return f"{protocol.name}: no variant {variant}; choose from {', '.join(protocol.variants)}"
    if protocol.peer is None:
        line = programs.missing(protocol.program)
        return line.replace(protocol.program, protocol.name, 1)
    # The benchmark has other names for some.
    return replace(protocol.peer, name=protocol.name).missing(variant)


def load_protocol(name: str) -> type[Endpoint] | type[StreamEndpoint]:
    """The endpoint class of a protocol. Imports the library that it adapts."""
    peer = PROTOCOLS[name].peer
    if peer is None:
        raise LookupError(missing(PROTOCOLS[name]))
    module = importlib.import_module(f"antiphon.lab.peers.{peer.module}")
    found: type[Endpoint] | type[StreamEndpoint] = module.ENDPOINT
    return found
