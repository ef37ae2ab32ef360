"""Reactive flow control: as much under way as goes well, and less as soon as it does not.

What a sender may have under way that did not come out of everybody's socket buffer doubles with
every turn at first. When something is asked for again it is halved, when somebody is far behind
with handling it loses a quarter; then it grows by a step with every turn.
"""

from __future__ import annotations

from antiphon.groups.protocol import Layer

__all__ = ["ReactiveFlow"]


class ReactiveFlow(Layer):
    """It has no settings: it finds what the network and the receivers take."""

    name = "reactive-flow"
    needs = ("nak", "stability")
    instead_of = ("credit-flow",)
