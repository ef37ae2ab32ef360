"""The layers of groups, one to a file. A stack is a list of them, from the transport upward.

`tcp` (nodes) or `udp` (multicast), `discovery` (who is there), `failure` (who is not heard),
`membership` (views). Over `tcp`: `fifo` (reliable, in each sender's order). Over `udp`:
`negative_ack` (the same), `unicast` (to one), `reactive_flow` or `credit_flow`, `encryption` (keys
for datagrams). Over both: `stability` (what everybody has, and who holds others up),
`fragmentation` (any size); `faults` and `datagram_faults` for tests, and `template` to copy.
"""

from __future__ import annotations

from antiphon.groups.layers.credit_flow import CreditFlow
from antiphon.groups.layers.datagram_faults import (
    DelayDatagrams,
    DropDatagrams,
    DuplicateDatagrams,
    ShuffleDatagrams,
)
from antiphon.groups.layers.discovery import Discovery
from antiphon.groups.layers.encryption import Encryption
from antiphon.groups.layers.failure import FailureDetection
from antiphon.groups.layers.faults import Delay, Drop, Duplicate, Partition
from antiphon.groups.layers.fifo import Fifo
from antiphon.groups.layers.fragmentation import Fragmentation
from antiphon.groups.layers.membership import Membership
from antiphon.groups.layers.negative_ack import NegativeAck
from antiphon.groups.layers.reactive_flow import ReactiveFlow
from antiphon.groups.layers.stability import Stability
from antiphon.groups.layers.tcp import Tcp
from antiphon.groups.layers.template import Template
from antiphon.groups.layers.udp import Udp
from antiphon.groups.layers.unicast import Unicast

__all__ = [
    "CreditFlow",
    "Delay",
    "DelayDatagrams",
    "Discovery",
    "Drop",
    "DropDatagrams",
    "Duplicate",
    "DuplicateDatagrams",
    "Encryption",
    "FailureDetection",
    "Fifo",
    "Fragmentation",
    "Membership",
    "NegativeAck",
    "Partition",
    "ReactiveFlow",
    "ShuffleDatagrams",
    "Stability",
    "Tcp",
    "Template",
    "Udp",
    "Unicast",
]
