"""Reliable multicast in each sender's order, and to one member likewise.

What it does happens once per message and is the core's (``native/window``, ``native/groups``):
every message has a number; a sender keeps what somebody has not acknowledged, in a window that
is bounded; what all have is released, which is stability. Within a connection order and
completeness are TCP's. When one breaks, what was not acknowledged is sent again on the next,
and dropped where it is known.
"""

from __future__ import annotations

from antiphon.groups.checks import check_number
from antiphon.groups.protocol import Layer

__all__ = ["Fifo"]

_LEAST = 1 << 16
_MOST = 1 << 30


class Fifo(Layer):
    """``window_bytes``: how much a member may have sent that others do not have yet; ``send`` waits
    when that is used up. ``unicast_bytes``: the same for messages to one member."""

    name = "fifo"
    needs = ("tcp", "membership")

    def __init__(self, *, window_bytes: int = 4 << 20, unicast_bytes: int = 1 << 20) -> None:
        for setting, value in (("window_bytes", window_bytes), ("unicast_bytes", unicast_bytes)):
            check_number(setting, value, _LEAST, _MOST, layer=self.name, whole=True, unit="bytes")
        self.window_bytes = window_bytes
        self.unicast_bytes = unicast_bytes
