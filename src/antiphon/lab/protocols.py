"""The protocols that the lab's plans name, each with the adapter that runs it.

Adapters in Python come from ``lab.peers``, programs in Java from ``lab.java``; this module also
names the ones that cannot run yet, or not at all. A plan may name any of them: what is missing is a
line of text and a row marked absent.
"""

from __future__ import annotations

import importlib
import importlib.util
import platform
from dataclasses import dataclass, replace
from typing import Literal

from antiphon._version import __version__
from antiphon.lab.java import programs
from antiphon.lab.peers import (
    MORE_PEERS,
    PEERS,
    Endpoint,
    EndpointConfig,
    Peer,
)
from antiphon.lab.peers.requests import REQUEST_PEERS, load_requests
from antiphon.lab.peers.requests.base import RequestEndpoint
from antiphon.lab.plan import Plan, Run, Workload

__all__ = [
    "PROTOCOLS",
    "REQUEST",
    "Protocol",
    "load_protocol",
    "missing",
    "open_requests",
    "protocol_of",
    "unsuited",
    "version_of",
]

REQUEST = "request"
"""The variant of those that make requests: round trips, instead of messages that go one way."""

DATAGRAM = 65_507


@dataclass(frozen=True, slots=True)
class Protocol:
    """One row of a plan: a messaging system in one language, and the ways to use it.

    ``peer`` adapts it, or a Java ``program``; without either, ``note`` says why. ``managed`` ones
    have a garbage collector in the process that is measured, so its load applies to them.
    A ``group``'s members send to all others at once, and have the patterns 1-n and m-n.
    ``lossy`` ones drop messages when a receiver falls behind, which is a count and no error.
    ``requests`` names the adapter of its round trips, where it has the variant; ``largest`` is how
    many bytes a message may have.
    """

    name: str
    peer: Peer | None
    variants: tuple[str, ...]
    language: Literal["python", "c", "java"] = "python"
    managed: bool = True
    lossy: bool = False
    note: str = ""
    program: str = ""
    group: bool = False
    requests: str = ""
    largest: int | None = None


# Stacks that JGroups had once.
_GONE = {"paper-udp-flow": "the JGroups of today has no FLOW_CONTROL, and so no stack with it"}
_ALL = frozenset({"one-way", "duplex", "n-n"})
_NOWHERE = "is in no registry, neither PyPI nor Debian, so the lab cannot install it"

PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "antiphon-node",
            PEERS["antiphon"],
            ("callback", "inbox", "batch", REQUEST),
            requests="antiphon",
        ),
        Protocol("antiphon-group", MORE_PEERS["antiphon-group"], ("callback",), group=True),
        Protocol("antiphon-topic", MORE_PEERS["antiphon-topic"], ("callback", "batch", "shares")),
        Protocol(
            "antiphon-broker", MORE_PEERS["antiphon-broker"], ("callback", "batch", "recorded")
        ),
        Protocol(
            "tcp-c",
            MORE_PEERS["tcp-c"],
            ("stream", REQUEST),
            "c",
            managed=False,
            requests="raw-tcp",
        ),
        Protocol(
            "tcp-python",
            MORE_PEERS["tcp-python"],
            ("sockets", REQUEST),
            requests="python-sockets",
        ),
        Protocol("asyncio", PEERS["asyncio"], ("streams", REQUEST), requests="asyncio"),
        Protocol("java-net", None, ("blocking",), "java", program="TcpNet"),
        Protocol("java-nio", None, ("selector",), "java", program="TcpNio"),
        Protocol(
            "udp-c",
            MORE_PEERS["udp-c"],
            ("sockets",),
            "c",
            managed=False,
            lossy=True,
            largest=DATAGRAM,
        ),
        Protocol(
            "udp-python", MORE_PEERS["udp-python"], ("sockets",), lossy=True, largest=DATAGRAM
        ),
        Protocol(
            "udp-java", None, ("sockets",), "java", lossy=True, program="Udp", largest=DATAGRAM
        ),
        Protocol("sctp", MORE_PEERS["sctp"], ("sockets",)),
        Protocol("enet", MORE_PEERS["enet"], ("reliable",)),
        Protocol("quic", MORE_PEERS["quic"], ("stream",)),
        Protocol("pyzmq", PEERS["pyzmq"], ("push-pull", REQUEST), requests="pyzmq"),
        Protocol("zenoh", PEERS["zenoh"], ("pub-sub", "shm", REQUEST), requests="zenoh"),
        Protocol("nats", PEERS["nats"], ("pub-sub", REQUEST), lossy=True, requests="nats"),
        Protocol("pynng", PEERS["pynng"], ("push-pull",)),
        Protocol("redis", MORE_PEERS["redis"], ("publish", "pipeline")),
        Protocol("mqtt", MORE_PEERS["mqtt"], ("qos0", "qos1"), lossy=True),
        Protocol("grpc", MORE_PEERS["grpc"], ("client-stream", REQUEST), requests="grpc"),
        Protocol("jgroups-udp", None, ("channel",), "java", program="Groups", group=True),
        Protocol("jgroups-tcp", None, ("channel",), "java", program="Groups", group=True),
        Protocol("spread", None, ("group",), "c", managed=False, note=_NOWHERE),
        Protocol("appia", None, ("group",), "java", note=_NOWHERE),
    )
}


def missing(protocol: Protocol, variant: str = "", stack: str = "") -> str:
    """One line that says what to install or why it cannot be had; empty when it can run."""
    if protocol.note:
        return f"{protocol.name}: {protocol.note}"
    if variant and variant not in protocol.variants:
        return f"{protocol.name}: no variant {variant}; choose from {', '.join(protocol.variants)}"
    if stack in _GONE and protocol.program:
        return f"{protocol.name}: {_GONE[stack]}"
    if protocol.peer is None:
        line = programs.missing(protocol.program)
        return line.replace(protocol.program, protocol.name, 1)
    peer = REQUEST_PEERS[protocol.requests] if variant == REQUEST else protocol.peer
    # The benchmark has other names for some.
    return replace(peer, name=protocol.name).missing("" if variant == REQUEST else variant)


def version_of(protocol: Protocol, own: bool = False) -> str:
    """Of what is adapted; empty when unknown, as of what a plan brings along (``own``)."""
    if protocol.peer is None:
        return programs.version(protocol.program) if protocol.program else ""
    if protocol.peer.distribution or own:
        return protocol.peer.version()
    # Loops of our own core, and what comes with Python.
    return __version__ if protocol.language == "c" else platform.python_version()


def unsuited(protocol: Protocol, run: Run, workload: Workload) -> str:
    """Why a run is none that this protocol could make, in one line; empty when it is."""
    if workload.garbage is not None and not protocol.managed:
        return f"{protocol.name} has no garbage collector"
    if protocol.largest is not None and run.size > protocol.largest:
        return f"a message of {run.size} bytes: {protocol.name} carries at most {protocol.largest}"
    if run.pattern in ("1-n", "m-n") and not protocol.group:
        return f"{run.pattern} is for groups; {protocol.name} sends to one at a time"
    # Whatever a plan asks for and nobody does would be written down as if it had been done.
    if run.streams > 1:
        return f"{protocol.name} has one stream between two"
    if run.placement is not None:
        return f"{protocol.name} knows no placements"
    if run.stack is not None and not protocol.group:
        return f"{protocol.name} has no stacks"
    if protocol.program and run.threads > 1:
        return f"{protocol.name} sends with one thread"
    if protocol.program and not protocol.group and run.pattern not in ("one-way", "duplex"):
        return f"{protocol.name} is between two"
    if run.variant == REQUEST and run.rate is not None:
        return "requests are made one after the other, and have no rate"
    if workload.slow_receiver is not None:
        return _without_slow_receiver(protocol, run)
    return ""


def _without_slow_receiver(protocol: Protocol, run: Run) -> str:
    if run.pattern in ("one-way", "duplex"):
        return f"a slow receiver is one of several, and {run.pattern} has one for each sender"
    if run.variant == REQUEST:
        return "requests have no receivers, but for those who ask"
    if protocol.language == "c":
        return f"{protocol.name} receives in the core, which cannot be made slow"
    return ""


def protocol_of(plan: Plan, name: str) -> Protocol:
    """One that a plan names: of this module, or one that the plan brings along."""
    if name in PROTOCOLS:
        return PROTOCOLS[name]
    adapter = plan.adapters[name]
    return Protocol(
        name,
        Peer(name, adapter.file, (), _ALL),
        (),
        managed=adapter.managed,
        lossy=adapter.lossy,
        group=adapter.group,
    )


def load_protocol(name: str, adapter: str = "") -> type[Endpoint]:
    """The endpoint class of a protocol, from the file ``adapter`` where there is one.

    Imports the library that it adapts.
    """
    if adapter:
        return _from_file(name, adapter)
    peer = PROTOCOLS[name].peer
    if peer is None:
        raise LookupError(missing(PROTOCOLS[name]))
    module = importlib.import_module(f"antiphon.lab.peers.{peer.module}")
    found: type[Endpoint] = module.ENDPOINT
    return found


def _from_file(name: str, path: str) -> type[Endpoint]:
    spec = importlib.util.spec_from_file_location(f"antiphon_adapter_{name}", path)
    if spec is None or spec.loader is None:
        raise LookupError(f"{name}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, "ENDPOINT", None)
    if not isinstance(found, type) or not issubclass(found, Endpoint):
        raise LookupError(f"{name}: {path} sets no ENDPOINT to a class derived from Endpoint")
    return found


def open_requests(name: str, config: EndpointConfig) -> RequestEndpoint:
    """The endpoint for round trips of a protocol, used in its usual way."""
    peer = REQUEST_PEERS[PROTOCOLS[name].requests]
    tasks = 0 if "threads" in peer.patterns else config.threads
    return load_requests(peer.name)(replace(config, variant=peer.variants[0], tasks=tasks))
