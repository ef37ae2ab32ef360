"""Messaging between Python processes.

The package is laid out in layers, and imports point downward only:

- ``antiphon.cli``: the command ``antiphon``
- ``antiphon.lab``: experiments, and the adapters of the libraries we measure ourselves against
- ``antiphon.broker``: `Broker`, which passes events on between buses
- ``antiphon.groups``: `Group`, members and views
- ``antiphon.topics``: `Bus`, publishers, subscriptions, timers, and how long events wait
- ``antiphon.node``: `Node`, its connections, handlers, inboxes, shares, statistics and settings
- ``antiphon.wire``: kinds of messages and their codec; bytes in, bytes out
- ``antiphon.queueing``: formulas of delay over plain numbers; imported by its own name
- ``antiphon.settings``, ``antiphon.errors``, ``antiphon.frozen``, ``antiphon.whole``: what every
  layer shares
- ``antiphon._core``: C++; rings, selector, frames, flows, buffers, scheduler threads, timers

Python decides, the core moves: what happens once per message is done in ``_core`` without the
GIL, what happens once per connection or registration is done here. Names below are re-exported
from the one module that is their home; everything else is internal.
"""

from __future__ import annotations

import sys

if sys.platform != "linux":
    raise ImportError(
        f"antiphon runs on Linux only (it needs epoll, eventfd and mirrored memory), not on "
        f"{sys.platform}; use a Linux machine, a container or WSL 2"
    )

from antiphon._version import __version__
from antiphon.broker import Broker, BrokerConfig, BrokerStatistics
from antiphon.errors import (
    AntiphonError,
    AuthenticationFailed,
    Closed,
    ConfigError,
    DuplicateNode,
    FilterError,
    MessageTooLarge,
    NotPrimary,
    PeerUnreachable,
    PermissionDenied,
    ProtocolError,
    QueueFull,
    ReceiveTimeout,
    RemoteError,
    RequestCancelled,
    RequestTimeout,
    SendTimeout,
    StoreFull,
    UnknownKind,
    UnknownPeer,
    WouldBlock,
)
from antiphon.groups import Group, GroupConfig, GroupStatistics, Member, View
from antiphon.node import (
    INSECURE,
    TLS,
    Batch,
    ConnectionInfo,
    Future,
    Inbox,
    Node,
    NodeConfig,
    NodeStatistics,
    Schedule,
)
from antiphon.topics import (
    AllOf,
    Bus,
    BusConfig,
    BusStatistics,
    ContentStatistics,
    DelayModel,
    Event,
    EventBatch,
    Plan,
    Publisher,
    Regex,
    Subscription,
    Tag,
    Timer,
    TopicInfo,
    XPath,
)
from antiphon.wire import Message

__all__ = [
    "INSECURE",
    "TLS",
    "AllOf",
    "AntiphonError",
    "AuthenticationFailed",
    "Batch",
    "Broker",
    "BrokerConfig",
    "BrokerStatistics",
    "Bus",
    "BusConfig",
    "BusStatistics",
    "Closed",
    "ConfigError",
    "ConnectionInfo",
    "ContentStatistics",
    "DelayModel",
    "DuplicateNode",
    "Event",
    "EventBatch",
    "FilterError",
    "Future",
    "Group",
    "GroupConfig",
    "GroupStatistics",
    "Inbox",
    "Member",
    "Message",
    "MessageTooLarge",
    "Node",
    "NodeConfig",
    "NodeStatistics",
    "NotPrimary",
    "PeerUnreachable",
    "PermissionDenied",
    "Plan",
    "ProtocolError",
    "Publisher",
    "QueueFull",
    "ReceiveTimeout",
    "Regex",
    "RemoteError",
    "RequestCancelled",
    "RequestTimeout",
    "Schedule",
    "SendTimeout",
    "StoreFull",
    "Subscription",
    "Tag",
    "Timer",
    "TopicInfo",
    "UnknownKind",
    "UnknownPeer",
    "View",
    "WouldBlock",
    "XPath",
    "__version__",
]
