"""Stability: what everybody has is released, at the sender and where it is kept for others.

Receivers say how far they are: after so many bytes that the sender is not held up, when they are
asked, and some time after something came at the latest. A sender that has become quiet asks.
"""

from __future__ import annotations

from antiphon.errors import ConfigError
from antiphon.groups.protocol import Layer

__all__ = ["Stability"]


class Stability(Layer):
    """``seconds``: how long after its last datagram a sender says how far it is, and asks; half of
    it is how long a receiver may leave something without a word."""

    name = "stability"
    needs = ("nak",)

    def __init__(self, *, seconds: float = 0.02) -> None:
        if not 0.002 <= seconds <= 60:
            raise ConfigError(
                f"seconds is {seconds!r}; it must be a number from 0.002 to 60",
                setting="seconds",
                value=seconds,
            )
        self.seconds = seconds
