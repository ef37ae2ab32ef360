"""Messages to one member, reliable and in order, by datagrams to it alone.

As the reliable multicast, with a window and numbers for each pair. They are told where the stream
begins by its sender, and ask when they do not know, so that it begins anew when either side has
begun another life.
"""

from __future__ import annotations

from antiphon.errors import ConfigError
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
        if not _LEAST <= window_bytes <= _MOST:
            raise ConfigError(
                f"window_bytes is {window_bytes}; it must be from {_LEAST} to {_MOST} bytes",
                setting="window_bytes",
                value=window_bytes,
            )
        if not 0.0001 <= first <= 60:
            raise ConfigError(
                f"first is {first!r}; it must be a number from 0.0001 to 60",
                setting="first",
                value=first,
            )
        self.window_bytes = window_bytes
        self.first = first
