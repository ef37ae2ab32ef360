"""The layers of groups, one to a file. A stack is a list of them, from the transport upward.

`tcp` (nodes), `discovery` (who is there), `failure` (who is not heard), `membership` (views),
`fifo` (reliable, in each sender's order), `stability` (who holds others up), `fragmentation` (any
size); `encryption` (keys for datagrams); `faults` for tests, and `template` to copy.
"""

from __future__ import annotations

from antiphon.groups.layers.discovery import Discovery
from antiphon.groups.layers.encryption import Encryption
from antiphon.groups.layers.failure import FailureDetection
from antiphon.groups.layers.faults import Delay, Drop, Duplicate, Partition
from antiphon.groups.layers.fifo import Fifo
from antiphon.groups.layers.fragmentation import Fragmentation
from antiphon.groups.layers.membership import Membership
from antiphon.groups.layers.stability import Stability
from antiphon.groups.layers.tcp import Tcp
from antiphon.groups.layers.template import Template

__all__ = [
    "Delay",
    "Discovery",
    "Drop",
    "Duplicate",
    "Encryption",
    "FailureDetection",
    "Fifo",
    "Fragmentation",
    "Membership",
    "Partition",
    "Stability",
    "Tcp",
    "Template",
]
