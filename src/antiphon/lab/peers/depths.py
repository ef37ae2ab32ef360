"""How full an Antiphon node's rings and queues are, for the samples of a run."""

from __future__ import annotations

from antiphon.node import Node

__all__ = ["depths_of"]


def depths_of(node: Node) -> dict[str, int]:
    """Bytes in rings and receive buffers and messages in queues now; waits so far."""
    all_of_it = node.statistics()
    connections = all_of_it.connections
    return {
        "ring_bytes": sum(one.ring_used for one in connections),
        "ring_waits": sum(one.ring_waits for one in connections),
        "credit_waits": sum(one.credit_waits for one in connections),
        "queued_messages": sum(kind.pending for kind in all_of_it.kinds),
        "buffer_bytes": all_of_it.buffer_bytes,
    }
