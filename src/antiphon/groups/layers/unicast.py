"""Messages to one member, reliable and in order, by datagrams to it alone.

As the reliable multicast, with a window and numbers for each pair. They are told where the stream
begins by its sender, and ask when they do not know, so that it begins anew when either side has
begun another life.
"""

from __future__ import annotations

from functools import partial

from antiphon.groups.checks import check_number
from antiphon.groups.protocol import Layer

__all__ = ["Unicast"]

_LEAST = 1 << 16
_MOST = 1 << 30


class Unicast(Layer):
    """``window_bytes``: how much a member may have sent to another that it does not have yet;
    ``first``: seconds after which a gap is asked for, on average."""

    name = "unicast"
    needs = ("nak", "stability")

    def __init__(self, *, window_bytes: int = 1 << 20, first: float = 0.002) -> None:
        check = partial(check_number, layer=self.name)
        check("window_bytes", window_bytes, _LEAST, _MOST, whole=True, unit="bytes")
        check("first", first, 0.0001, 60, unit="seconds")
        self.window_bytes = window_bytes
        self.first = first
