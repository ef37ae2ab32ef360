"""Preventive flow control: a receiver gives each sender credit, and renews it as it handles.

A sender that has used up what any receiver has given it waits, so that nobody is sent more than it
has agreed to hold.
"""

from __future__ import annotations

from functools import partial

from antiphon.errors import ConfigError
from antiphon.groups.checks import check_number
from antiphon.groups.protocol import Layer

__all__ = ["CreditFlow"]


class CreditFlow(Layer):
    """``credits``: bytes that a sender may have sent before a receiver has handled any of them;
    ``least``: what is left of them when a receiver renews them."""

    name = "credit-flow"
    needs = ("nak", "stability")
    instead_of = ("reactive-flow",)

    def __init__(self, *, credits: int = 2 << 20, least: int = 1 << 20) -> None:
        check = partial(check_number, layer=self.name, whole=True, unit="bytes")
        check("credits", credits, 1 << 12, 1 << 30)
        check("least", least, 0, 1 << 30)
        if least >= credits:
            raise ConfigError(
                f"least of layer {self.name!r} is {least}; it must be less than credits "
                f"({credits})",
                setting="least",
                value=least,
            )
        self.credits = credits
        self.least = least
