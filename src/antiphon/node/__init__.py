"""Nodes: one process that knows the others by number.

Receives from `antiphon.wire` the codec of typed messages and from ``antiphon._core`` everything
that moves; hands connections, handlers and inboxes to the layers above (topics, groups, brokers),
which all run over nodes, and to programs.
"""

from __future__ import annotations

from antiphon.node.config import INSECURE, TLS, NodeConfig, Schedule
from antiphon.node.future import Future
from antiphon.node.inbox import Batch, Inbox
from antiphon.node.node import Node
from antiphon.node.statistics import ConnectionInfo, NodeStatistics

__all__ = [
    "INSECURE",
    "TLS",
    "Batch",
    "ConnectionInfo",
    "Future",
    "Inbox",
    "Node",
    "NodeConfig",
    "NodeStatistics",
    "Schedule",
]
