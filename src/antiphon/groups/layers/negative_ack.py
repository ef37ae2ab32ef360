"""Reliable multicast: each sender's messages in its order, without a gap, over datagrams.

Every message has a number. Whoever sees a gap asks for what it lacks, after a random moment and in
ranges, ever more seldom while nothing comes: the sender, and after two times in vain also others,
who keep what somebody may still lack. What two ask for goes to all. What goes again is held to a
fraction of what goes for the first time. A sender that has become quiet says how far it is, so that
the loss of its last message is noticed. ``native/window/cast_sender.cpp`` and
``cast_receiver.cpp`` do all of it, on batches.
"""

from __future__ import annotations

from functools import partial

from antiphon.groups.checks import check_number
from antiphon.groups.protocol import Layer

__all__ = ["NegativeAck"]

_LEAST = 1 << 16
_MOST = 1 << 30


class NegativeAck(Layer):
    """``window_bytes``: how much a member may have sent that others do not have yet; ``send`` waits
    when that is used up. ``first``: seconds after which a gap is asked for, on average; ``again``:
    after which for a second time, then twice as long, up to ``most``. ``repair_fraction``: what
    goes again, at most, of what goes for the first time (a slow sender may repeat 8 MB a
    second)."""

    name = "nak"
    needs = ("udp", "membership")

    def __init__(
        self,
        *,
        window_bytes: int = 4 << 20,
        first: float = 0.002,
        again: float = 0.02,
        most: float = 0.2,
        repair_fraction: float = 0.5,
    ) -> None:
        check = partial(check_number, layer=self.name)
        check("window_bytes", window_bytes, _LEAST, _MOST, whole=True, unit="bytes")
        check("first", first, 0.0001, 60, unit="seconds")
        check("again", again, 0.001, 60, unit="seconds")
        check("most", most, 0.001, 600, unit="seconds")
        check("repair_fraction", repair_fraction, 0.01, 1)
        self.window_bytes = window_bytes
        self.first = first
        self.again = again
        self.most = most
        self.repair_fraction = repair_fraction
