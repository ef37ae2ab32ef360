"""Messages of any size, in parts, between which small ones pass.

The core cuts what is above 16 KiB, or over UDP above one datagram, and puts it together
(``native/window/receive_window.cpp``). A message may be larger than the sender's window: its parts
go as room comes.
"""

from __future__ import annotations

from typing import Final

from antiphon.groups.protocol import Layer

__all__ = ["PART_BYTES", "Fragmentation"]

PART_BYTES: Final = 16 << 10
"""What goes in one piece; as in ``native/groups/outgoing.hpp``."""


class Fragmentation(Layer):
    """Without it, messages above one part are refused; with it, those above ``max_message_bytes``
    of the node."""

    name = "fragmentation"
    needs = ("fifo or nak",)
