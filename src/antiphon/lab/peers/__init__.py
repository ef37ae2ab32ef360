"""The messaging systems that Antiphon is measured beside, and Antiphon itself.

``base`` says what an adapter offers; each other module adapts one system; this one lists them and
says what is missing on this machine; ``requests`` does the same for round trips, and ``topics`` for
publish and subscribe. An adapter's module is imported only in the process that uses it, so a
missing library is a line of text here and not an ImportError.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from antiphon.lab.peers.base import (
    Endpoint,
    EndpointConfig,
    OnData,
    PullEndpoint,
    Receipts,
    Sender,
    StreamEndpoint,
)

__all__ = [
    "CORE",
    "ENCRYPTION",
    "MORE_PEERS",
    "MOSQUITTO",
    "NATS",
    "PAHO",
    "PEERS",
    "ZENOH",
    "ZMQ",
    "Endpoint",
    "EndpointConfig",
    "OnData",
    "Peer",
    "PullEndpoint",
    "Receipts",
    "Requirement",
    "Sender",
    "StreamEndpoint",
    "has_sctp",
    "load",
]


@dataclass(frozen=True, slots=True)
class Requirement:
    """Something that has to be installed: a Python module, or a program on the PATH.

    ``probe`` finds what is neither.
    """

    name: str
    install: str
    program: bool = False
    probe: Callable[[], bool] | None = None

    def present(self) -> bool:
        """Whether it is there, without importing it."""
        if self.probe is not None:
            return self.probe()
        if self.program:
            return find_program(self.name) is not None
        try:
            return importlib.util.find_spec(self.name) is not None
        except (ImportError, ValueError):
            return False


@dataclass(frozen=True, slots=True)
class Peer:
    """One messaging system: where its adapter is, what it can do, what it needs.

    ``variants`` are named ways to use it, the first being the usual one. ``stream`` peers time a
    bare byte stream; ``served`` ones need a server process, which the adapter starts; those with a
    ``folder`` one that their processes share. What only some variants need is in
    ``variant_requires``.
    """

    name: str
    module: str
    variants: tuple[str, ...]
    patterns: frozenset[str]
    requires: tuple[Requirement, ...] = ()
    distribution: str = ""
    stream: bool = False
    served: bool = False
    folder: bool = False
    variant_requires: Mapping[str, tuple[Requirement, ...]] = field(default_factory=dict)

    def missing(self, variant: str = "") -> str:
        """One line that names what to install, or the empty string when all is there.

        Without a variant, what every one of them needs.
        """
        own = self.variant_requires.get(variant, ())
        for who, requirements in ((self.name, self.requires), (f"{self.name} {variant}", own)):
            for requirement in requirements:
                if not requirement.present():
                    return f"{who}: {requirement.name} not found; install {requirement.install}"
        return ""

    def version(self) -> str:
        """The installed version, with the server's where there is one; empty when unknown."""
        parts = []
        if self.distribution:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                parts.append(importlib.metadata.version(self.distribution))
        parts += [program_version(need.name) for need in self.requires if need.program]
        return ", ".join(part for part in parts if part)


def _has_openssl() -> bool:
    """Whether the core finds the library with which it encrypts."""
    try:
        from antiphon._core import build_info
    except ImportError:
        return False
    return bool(build_info()["openssl"])


def has_sctp() -> bool:
    """Whether the kernel does, or loads what it needs for it."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP).close()
    except OSError:
        return False
    return True


_ONE_WAY = frozenset({"one-way"})
_BOTH = frozenset({"one-way", "duplex"})
_ALL = frozenset({"one-way", "duplex", "n-n"})
CORE = Requirement("antiphon._core", "antiphon with its native core (pip install .)")
ZMQ = Requirement("zmq", "the package pyzmq")
ZENOH = Requirement("zenoh", "the package eclipse-zenoh")
NATS = (
    Requirement("nats", "the package nats-py"),
    Requirement("nats-server", "the system package nats-server", program=True),
)
ENCRYPTION = (
    Requirement("OpenSSL 3", "the system package libssl3", probe=_has_openssl),
    Requirement("cryptography", "the package cryptography"),
)

SCTP = Requirement(
    "SCTP in the kernel",
    "the kernel's module sctp, and load it (modprobe sctp)",
    probe=has_sctp,
)
PAHO = Requirement("paho.mqtt", "the package paho-mqtt")
# It knows no option that prints only its version, so it is not asked as other programs are.
MOSQUITTO = Requirement(
    "mosquitto",
    "the system package mosquitto",
    probe=lambda: find_program("mosquitto") is not None,
)

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "antiphon",
            "antiphon_node",
            ("callback", "inbox", "batch", "packed", "typed", "tls"),
            _ALL,
            (CORE,),
            "antiphon",
            variant_requires={"tls": ENCRYPTION},
        ),
        Peer(
            "raw-tcp",
            "raw_tcp",
            ("stream",),
            _ONE_WAY,
            (CORE,),
            stream=True,
        ),
        Peer("asyncio", "asyncio_streams", ("streams",), _BOTH),
        Peer(
            "pyzmq",
            "pyzmq_push",
            ("push-pull", "typed"),
            _ALL,
            (ZMQ, Requirement("msgspec", "the package msgspec")),
            "pyzmq",
        ),
        Peer(
            "zenoh",
            "zenoh_pubsub",
            ("pub-sub", "shm"),
            _BOTH,
            (ZENOH,),
            "eclipse-zenoh",
        ),
        Peer(
            "pynng",
            "pynng_push",
            ("push-pull",),
            _BOTH,
            (Requirement("pynng", "the package pynng"),),
            "pynng",
        ),
        Peer(
            "nats",
            "nats_core",
            ("pub-sub",),
            _BOTH,
            NATS,
            "nats-py",
            served=True,
        ),
    )
}

MORE_PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "antiphon-topic",
            "antiphon_topic",
            ("callback", "batch", "shares"),
            _ALL,
            (CORE,),
            "antiphon",
            folder=True,
        ),
        Peer(
            "antiphon-broker",
            "antiphon_broker",
            ("callback", "batch", "recorded"),
            _ALL,
            (CORE,),
            "antiphon",
            served=True,
        ),
        Peer("antiphon-group", "antiphon_group", ("callback",), _ALL, (CORE,), "antiphon"),
        Peer("tcp-c", "tcp_c", ("stream",), _BOTH, (CORE,)),
        Peer("tcp-python", "sockets_tcp", ("sockets",), _BOTH),
        Peer("udp-python", "udp_python", ("sockets",), _BOTH),
        Peer("udp-c", "udp_c", ("sockets",), _BOTH, (CORE,)),
        Peer("sctp", "sctp", ("sockets",), _BOTH, (SCTP,)),
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
            (PAHO, MOSQUITTO),
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
"""What the lab's plans have beside those of the benchmark."""


def load(peer: str) -> Callable[..., Endpoint | StreamEndpoint]:
    """The endpoint class of a peer. Imports the library that it adapts."""
    known = PEERS.get(peer) or MORE_PEERS[peer]
    module = importlib.import_module(f"{__name__}.{known.module}")
    found: Callable[..., Endpoint | StreamEndpoint] = module.ENDPOINT
    return found


def find_program(name: str) -> str | None:
    """A program on the PATH, or where Debian puts servers, which a user's PATH often lacks."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


def program_version(name: str) -> str:
    """What ``name --version`` prints, on one line; empty when it cannot be run."""
    program = find_program(name)
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return " ".join(done.stdout.split())
