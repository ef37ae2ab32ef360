"""The transport over nodes: connections, order within one, credit per receiver are theirs.

Nothing of that is done again above it. One thing a node does not do: what was under way when a
connection broke is lost. The layer `fifo` sends that again on the next one.
"""

from __future__ import annotations

from antiphon.groups.protocol import Layer

__all__ = ["Tcp"]


class Tcp(Layer):
    """Messages go over the connections of a node: TCP, TLS, or unix sockets on one machine."""

    name = "tcp"
    transport = True
