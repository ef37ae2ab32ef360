"""Keys for datagrams: each view has one of its own, and only its members get it.

The most senior member of a view draws its key. It travels with the view, over the connections of
nodes, which the node's secret or TLS covers; whoever left or was put out is told of the view
without it. The core seals and opens with it (``native/groups/seal.cpp``): this layer handles no
datagram.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from antiphon.groups.messages import ViewMessage
from antiphon.groups.protocol import Installed, Layer, Received, Reset, Send, Signal
from antiphon.groups.view import Member, Record

__all__ = ["Encryption", "ViewKey"]

_BYTES = 32
_KEPT = 16  # of views that were heard of and do not hold yet, or any more

_Name = tuple[int, int, int]


@dataclass(frozen=True, slots=True, repr=False)
class ViewKey:
    """What the core seals and opens the datagrams of a view with."""

    view: int
    key: bytes
    senders: tuple[int, ...]
    """Lives of those whose datagrams are opened."""

    def __repr__(self) -> str:  # a key does not belong into logs
        return f"<ViewKey of view {self.view}>"


class Encryption(Layer):
    """Draws a key with each view that this member coordinates, and takes those of others."""

    name = "encryption"
    needs = ("udp",)
    above = ("membership",)

    def __init__(self) -> None:
        self._me: Member | None = None
        self._keys: dict[_Name, bytes] = {}
        self._current: ViewKey | None = None
        self._counts = {"drawn": 0, "received": 0, "without": 0}

    @property
    def current(self) -> ViewKey | None:
        """The key of the view that holds; None where there is none. To be given to the core with
        each `Installed`; keys of views before count there for a short time by themselves."""
        return self._current

    # --- what goes --------------------------------------------------------------------------

    def down(self, event: Signal, now: float) -> None:
        """Views that are sent get their key, for their members alone."""
        if isinstance(event, Send) and isinstance(event.message, ViewMessage):
            record = event.message.record
            if any(member.id == event.node for member in record.members):
                key = self._key_of(record)
                event = Send(event.node, event.address, ViewMessage(record, key))
        elif isinstance(event, Installed):
            self._me = event.me
            lives = tuple(member.life for member in event.record.members)
            self._current = ViewKey(event.record.id, self._key_of(event.record), lives)
        elif isinstance(event, Reset):
            self._me, self._current = event.me, None
        self.pass_down(event, now)

    def _key_of(self, record: Record) -> bytes:
        """None of it where another one has to draw it, and has not been heard."""
        name = _name(record)
        key = self._keys.get(name, b"")
        if not key and self._me is not None and record.coordinator.life == self._me.life:
            # Not by whoever makes the view: one that leaves makes one that it is not in.
            self._counts["drawn"] += 1
            key = self.rng.randbytes(_BYTES)
            self._keep(name, key)
        return key

    def _keep(self, name: _Name, key: bytes) -> None:
        self._keys.pop(name, None)
        self._keys[name] = key
        while len(self._keys) > _KEPT:
            del self._keys[next(iter(self._keys))]

    # --- what comes -------------------------------------------------------------------------

    def up(self, event: Signal, now: float) -> None:
        """Keys are taken from views; one without its key does not hold here."""
        if isinstance(event, Received) and isinstance(event.message, ViewMessage):
            message = event.message
            record = message.record
            if self._me is not None and record.has(self._me.life):
                if not self._take(record, message.key, now):
                    return
                if not message.key and record.coordinator.life == self._me.life:
                    self._begin(event, record, now)
                    return
            if message.key:
                event = Received(event.node, msgspec.structs.replace(message, key=b""))
        self.pass_up(event, now)

    def _take(self, record: Record, key: bytes, now: float) -> bool:
        assert self._me is not None
        known = self._keys.get(_name(record))
        if known is not None or record.coordinator.life == self._me.life:
            return True
        if len(key) != _BYTES:
            self._counts["without"] += 1
            if record.members:  # it may not have heard of the view that it coordinates
                self.send(record.coordinator, ViewMessage(record), now)
            return False
        self._counts["received"] += 1
        self._keep(_name(record), key)
        return True

    def _begin(self, event: Received, record: Record, now: float) -> None:
        """The one before us has left: this view is ours, and waits for our key."""
        before = self._current
        self.pass_up(event, now)
        if self._current is not before and self._me is not None:
            for member in record.members:
                if member.life != self._me.life:
                    self.send(member, ViewMessage(record, self._key_of(record)), now)

    def statistics(self) -> dict[str, float]:
        """Keys ``drawn`` and ``received``; views that came ``without`` one, and did not hold."""
        return dict(self._counts)


def _name(record: Record) -> _Name:
    """Two views with one id and one coordinator are the same."""
    return record.founded, record.id, record.coordinator.life if record.members else 0
