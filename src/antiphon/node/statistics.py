"""What a node has done and holds: frozen pictures, taken when asked for.

Counters start at zero with the node and never fall; depths are of this moment. Receives plain
dictionaries from the core, hands out dataclasses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from antiphon.frozen import FrozenDict

__all__ = ["ConnectionInfo", "FlowInfo", "KindStatistics", "NodeStatistics"]


@dataclass(frozen=True)
class FlowInfo:
    """One kind of message between this node and one peer, in one direction."""

    kind: int
    """The kind; 0 for kinds that the receiver has not registered."""
    flow: int
    """The receiver's number for it."""
    messages: int
    bytes: int
    waits: int
    """How often a sender had to wait for credit; 0 on the receiving side."""
    window: int
    """Bytes that may be under way; 0 while nobody sends."""
    in_flight: int
    """Bytes sent and not confirmed as handled; 0 on the receiving side."""


@dataclass(frozen=True)
class ConnectionInfo:
    """The connection to one peer: its two channels, its ring and its losses."""

    id: int
    address: str
    """Where it is dialled: given by the user, else what the peer advertises; may be empty."""
    incarnation: int
    """Random number of the peer's process; a restarted peer has another."""
    sending: bool
    """Whether the channel to it is up."""
    receiving: bool
    """Whether the channel from it is up."""
    messages_out: int
    bytes_out: int
    messages_in: int
    bytes_in: int
    ring_used: int
    """Bytes in the outgoing ring now."""
    ring_bytes: int
    """Capacity of the ring; 0 before the first connection."""
    ring_waits: int
    """How often a sender waited for room in the ring."""
    credit_waits: int
    """How often a sender waited for the receiver to handle what it has."""
    writes: int
    """System calls of the selector that wrote data."""
    inline_writes: int
    """System calls of senders that found the connection quiet and wrote themselves."""
    reads: int
    connects: int
    """How often the channel to it was opened."""
    losses: int
    """How often the connection was lost or closed."""
    dropped_bytes: int
    """Bytes that were in the ring when a connection was lost."""
    unconfirmed_messages: int
    """Upper bound of messages lost with connections: sent, and not confirmed as handled."""
    large_out: int
    """Messages that went in fragments."""
    large_in: int
    oldest_work: float
    """Seconds that the peer's longest running handler call had taken when it last told."""
    flows_out: tuple[FlowInfo, ...]
    flows_in: tuple[FlowInfo, ...]

    @property
    def reconnects(self) -> int:
        """Times that the channel was opened again after the first."""
        return max(0, self.connects - 1)


@dataclass(frozen=True)
class KindStatistics:
    """One registration: a handler or an inbox."""

    kind: int
    messages: int
    """Received, whether handled already or not."""
    bytes: int
    pending: int
    """Messages in its queue now."""
    pending_bytes: int
    capacity: int
    dropped: int
    """Lost to ``drop_oldest`` or ``drop_newest``."""
    handled: int
    """Messages that the handler was called for; 0 for an inbox."""
    failed: int
    """Messages whose handler raised, or whose bytes could not be decoded."""
    calls: int
    handler_ns: int
    """Wall time spent in the handler, the library's own part included."""
    slices: int
    """Turns that it had on scheduler threads; 0 for an inbox and for a coroutine."""
    overruns: int
    """Of those, how many took more than its share allowed; 0 without a share."""


@dataclass(frozen=True)
class NodeStatistics:
    """A node as a whole. ``drops`` counts lost messages by reason."""

    messages_out: int
    bytes_out: int
    messages_in: int
    bytes_in: int
    drops: Mapping[str, int]
    """``unknown_kind``, ``queue_full``, ``handler_failed`` and ``unconfirmed`` (at the most)."""
    reconnects: int
    refused_connections: int
    dismissed_connections: int
    """Those that were closed because there were more than ``max_connections``."""
    protocol_errors: int
    buffer_bytes: int
    """Receive buffers in use."""
    buffer_bytes_bound: int
    buffer_waits: int
    """How often reading paused because no receive buffer was left."""
    pinned_bytes: int
    """Receive buffers that batches kept by the program hold."""
    window_bytes_granted: int
    large_bytes_in_use: int
    requests: int
    """Requests made."""
    requests_open: int
    """Requests that wait for their answer now."""
    late_responses: int
    """Answers that came when nobody waited any more; they were dropped."""
    answers: int
    """Requests of others that were answered."""
    lost_answers: int
    """Answers that could not be delivered."""
    lost_events: int
    """Connections that came or went, and warnings, that nobody was told of: callbacks such as those
    of ``on_connected`` took too long."""
    scheduler_threads: int
    slices: int
    selector_turns: int
    connections: tuple[ConnectionInfo, ...]
    kinds: tuple[KindStatistics, ...]


def connection_info(peer: dict[str, Any]) -> ConnectionInfo:
    """A core's dictionary as a dataclass."""
    for name in ("flows_out", "flows_in"):
        peer[name] = tuple(FlowInfo(**flow) for flow in peer[name])
    return ConnectionInfo(**peer)


def node_statistics(
    counters: dict[str, Any], connections: list[ConnectionInfo], kinds: list[dict[str, Any]]
) -> NodeStatistics:
    """Adds up what the core reports."""
    # Closed registrations still count towards the drops: counters never fall.
    drops = FrozenDict(
        {
            "unknown_kind": counters["unknown_kind"],
            "queue_full": counters["forgotten_dropped"] + sum(kind["dropped"] for kind in kinds),
            "handler_failed": counters["forgotten_failed"] + sum(kind["failed"] for kind in kinds),
            "unconfirmed": sum(peer.unconfirmed_messages for peer in connections),
        }
    )
    registrations = tuple(KindStatistics(**kind) for kind in kinds if kind.pop("active"))
    known = {field.name for field in fields(NodeStatistics)}
    return NodeStatistics(
        messages_out=sum(peer.messages_out for peer in connections),
        bytes_out=sum(peer.bytes_out for peer in connections),
        messages_in=sum(peer.messages_in for peer in connections),
        bytes_in=sum(peer.bytes_in for peer in connections),
        drops=drops,
        reconnects=sum(peer.reconnects for peer in connections),
        connections=tuple(connections),
        kinds=registrations,
        **{name: value for name, value in counters.items() if name in known},
    )
