"""Layers and what goes through them: events in, actions out.

A layer has neither clock nor socket nor thread. What happens comes in as an event with the time at
which it happened; what is to be done comes out as an action. So the same code runs over real nodes
(`antiphon.groups.group`) and in a simulator (`antiphon.groups.simulator`), where thousands of
courses with losses, delays and crashes can be tried, each again from its seed.

Events go up from the transport and down from the application. A layer overrides what it is
concerned with and passes on the rest. What leaves the stack at either end is an action.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from antiphon.errors import ConfigError
from antiphon.groups.messages import Control
from antiphon.groups.view import Member, Record, View

__all__ = [
    "Busy",
    "Contact",
    "Contacts",
    "Disconnected",
    "Exclude",
    "Heard",
    "HeldUp",
    "Installed",
    "JoinGroup",
    "Layer",
    "LeaveGroup",
    "Left",
    "Received",
    "Reset",
    "Search",
    "Send",
    "Signal",
    "Stack",
    "Stuck",
    "Suspect",
    "Trust",
    "Verify",
]


@dataclass(frozen=True, slots=True)
class Contact:
    """A node at which a member of the group may be."""

    node: int
    address: str


class Signal:
    """Anything that goes through a stack."""

    __slots__ = ()


# --- upward ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Received(Signal):
    """A message of another node."""

    node: int
    message: Control


@dataclass(frozen=True, slots=True)
class Contacts(Signal):
    """All nodes at which members may be, as far as is known; it replaces what was said before."""

    contacts: tuple[Contact, ...]


@dataclass(frozen=True, slots=True)
class Disconnected(Signal):
    """The connection with a node was lost, or closed by it."""

    node: int


@dataclass(frozen=True, slots=True)
class Heard(Signal):
    """A member gave a sign of life otherwise: data of it came at that time."""

    life: int
    when: float


@dataclass(frozen=True, slots=True)
class Busy(Signal):
    """For how long this member's own application has been at one message; 0: it is at none."""

    seconds: float


@dataclass(frozen=True, slots=True)
class HeldUp(Signal):
    """Senders here have waited so long for that member, which acknowledges nothing."""

    life: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Stuck(Signal):
    """A member lives, but its application has been at one message for so long; 0: not any more."""

    member: Member
    seconds: float


@dataclass(frozen=True, slots=True)
class Exclude(Signal):
    """That member is there, and is to be put out all the same. Repeated for as long as that is so.
    Goes up or down to membership."""

    life: int


@dataclass(frozen=True, slots=True)
class Suspect(Signal):
    """A member did not answer. Repeated for as long as that is so."""

    life: int


@dataclass(frozen=True, slots=True)
class Trust(Signal):
    """One that was suspected was heard again."""

    life: int


@dataclass(frozen=True, slots=True)
class Installed(Signal):
    """A view holds from now on. It goes up to the application, and down to layers below."""

    record: Record
    view: View
    me: Member


@dataclass(frozen=True, slots=True)
class Reset(Signal):
    """This member begins another life: it was not in the group, or is not any more."""

    me: Member


@dataclass(frozen=True, slots=True)
class Left(Signal):
    """This member is out of the group, as it wanted."""


# --- downward -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinGroup(Signal):
    """The application wants to be in the group."""

    me: Member


@dataclass(frozen=True, slots=True)
class LeaveGroup(Signal):
    """The application wants to leave."""


@dataclass(frozen=True, slots=True)
class Search(Signal):
    """How often contacts are to be asked who is there, in seconds; None: not at all."""

    every: float | None
    joining: Member | None = None
    known: frozenset[int] = frozenset()
    """Nodes that need not be asked."""
    also: tuple[Contact, ...] = ()
    """Nodes that are asked beside those that were found: members were there lately."""


@dataclass(frozen=True, slots=True)
class Verify(Signal):
    """Somebody suspects that member: ask it."""

    life: int


@dataclass(frozen=True, slots=True)
class Send(Signal):
    """A message for another node. It may be lost. The address is where that node listens."""

    node: int
    address: str
    message: Control


# --- layers ---------------------------------------------------------------------------------------


class Layer:
    """One concern of a group. Subclasses say what they are called and what they stand upon."""

    name: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    """Names of layers that must be somewhere below; ``"a or b"``: one of them."""
    above: ClassVar[tuple[str, ...]] = ()
    """Names of layers that may only be above: it is concerned with what comes down from them."""
    instead_of: ClassVar[tuple[str, ...]] = ()
    """Names of layers that cannot be in the same stack."""
    transport: ClassVar[bool] = False
    """Whether it is what everything else stands upon."""
    fault: ClassVar[bool] = False
    """Whether it spoils what others send, for tests. It stands right above the transport, beside
    others of its kind: further up what it is to spoil does not pass."""

    _stack: Stack
    _index: int

    def up(self, event: Signal, now: float) -> None:
        """Something comes from below. Passes it on unless it is overridden."""
        self.pass_up(event, now)

    def down(self, event: Signal, now: float) -> None:
        """Something comes from above. Passes it on unless it is overridden."""
        self.pass_down(event, now)

    def tick(self, now: float) -> None:
        """Time has passed; called some twenty times a second."""

    def statistics(self) -> dict[str, float]:
        """Counts of this layer."""
        return {}

    def settings(self) -> dict[str, object]:
        """What it was made with, for the drawing of the stack."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def pass_up(self, event: Signal, now: float) -> None:
        """Hands it to the layer above."""
        self._stack._up(self._index + 1, event, now)

    def pass_down(self, event: Signal, now: float) -> None:
        """Hands it to the layer below."""
        self._stack._down(self._index - 1, event, now)

    def send(self, to: Member, message: Control, now: float) -> None:
        """To a member."""
        self.pass_down(Send(to.id, to.address, message), now)

    @property
    def rng(self) -> random.Random:
        """Chance: the system's, or a seeded one in simulations."""
        return self._stack.rng

    @property
    def date(self) -> float:
        """Seconds since 1970. The time of events is of one machine; this can be compared between
        several, as far as their clocks agree."""
        return self._stack.date()


class Stack:
    """Layers from the transport upward. Every call returns the actions that came out of it."""

    def __init__(
        self,
        layers: Sequence[Layer],
        rng: random.Random | None = None,
        date: Callable[[], float] = time.time,
    ) -> None:
        check(layers)
        self.layers = tuple(layers)
        self.rng: random.Random = rng or random.SystemRandom()
        self.date = date
        self._actions: list[Signal] = []
        for index, layer in enumerate(self.layers):
            layer._stack, layer._index = self, index

    def up(self, event: Signal, now: float) -> list[Signal]:
        """Something happened at the transport."""
        self._up(0, event, now)
        return self._taken()

    def down(self, event: Signal, now: float) -> list[Signal]:
        """The application wants something."""
        self._down(len(self.layers) - 1, event, now)
        return self._taken()

    def tick(self, now: float) -> list[Signal]:
        """Time has passed."""
        for layer in self.layers:
            layer.tick(now)
        return self._taken()

    def find(self, name: str) -> Layer | None:
        """The layer of that name."""
        return next((layer for layer in self.layers if layer.name == name), None)

    def _up(self, index: int, event: Signal, now: float) -> None:
        if index < len(self.layers):
            self.layers[index].up(event, now)
        else:
            self._actions.append(event)

    def _down(self, index: int, event: Signal, now: float) -> None:
        if index >= 0:
            self.layers[index].down(event, now)
        elif isinstance(event, Send):
            self._actions.append(event)

    def _taken(self) -> list[Signal]:
        taken, self._actions = self._actions, []
        return taken


def check(layers: Iterable[object]) -> None:
    """Raises `ConfigError` where layers do not make a stack, and says which one needs what."""
    below: list[str] = []
    all_faults = True  # so far, but for the transport
    for index, layer in enumerate(layers):
        if not isinstance(layer, Layer) or not layer.name:
            raise ConfigError(
                f"stack: {layer!r} is no layer; take one of antiphon.groups.layers",
                setting="stack",
                value=layer,
            )
        if layer.name in below:
            raise ConfigError(f"stack: {layer.name!r} is in it twice", setting="stack")
        if layer.transport != (index == 0):
            where = "must be the first" if layer.transport else "stands upon nothing"
            raise ConfigError(
                f"stack: {layer.name!r} {where}; begin with a transport, such as Tcp() or Udp()",
                setting="stack",
            )
        missing = [
            need for need in layer.needs if not any(one in below for one in need.split(" or "))
        ]
        if missing:
            raise ConfigError(
                f"stack: {layer.name!r} needs {', '.join(map(repr, missing))} below it; what is "
                f"there is {', '.join(map(repr, below)) or 'nothing'}",
                setting="stack",
            )
        if layer.fault and not all_faults:
            raise ConfigError(
                f"stack: {layer.name!r} spoils what goes over the transport, and above "
                f"{below[-1]!r} it would not see all of it; put it right above {below[0]!r}",
                setting="stack",
            )
        all_faults = all_faults and (layer.fault or layer.transport)
        wrong = [name for name in layer.above if name in below]
        if wrong:
            raise ConfigError(
                f"stack: {layer.name!r} belongs below {', '.join(map(repr, wrong))}, not above",
                setting="stack",
            )
        clash = [other for other in layer.instead_of if other in below]
        if clash:
            raise ConfigError(
                f"stack: {layer.name!r} and {clash[0]!r} are two ways of the same; take one",
                setting="stack",
            )
        below.append(layer.name)
    if "membership" not in below:
        raise ConfigError("stack: there is no 'membership' in it", setting="stack")
