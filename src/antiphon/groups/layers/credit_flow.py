"""Preventive flow control: a receiver gives each sender credit, and renews it as it handles.

A sender that has used up what any receiver has given it waits, so that nobody is sent more than it
has agreed to hold.
"""

from __future__ import annotations

from antiphon.errors import ConfigError
from antiphon.groups.protocol import Layer

__all__ = ["CreditFlow"]


class CreditFlow(Layer):
    """``credits``: bytes that a sender may have sent before a receiver has handled any of them;
    ``least``: what is left of them when a receiver renews them."""

    name = "credit-flow"
    needs = ("nak", "stability")
    instead_of = ("reactive-flow",)

    def __init__(self, *, credits: int = 2 << 20, least: int = 1 << 20) -> None:
        if not 1 << 12 <= credits <= 1 << 30:
            raise ConfigError(
                f"credits is {credits}; it must be from 4096 to {1 << 30} bytes",
                setting="credits",
                value=credits,
            )
        if not 0 <= least < credits:
            raise ConfigError(
                f"least is {least}; it must be from 0 to less than credits ({credits})",
                setting="least",
                value=least,
            )
        self.credits = credits
        self.least = least
