"""Finding members: every contact is asked who is there, until somebody is known."""

from __future__ import annotations

from antiphon.groups.messages import Find
from antiphon.groups.protocol import Contact, Contacts, Layer, Search, Send, Signal

__all__ = ["Discovery"]


class Discovery(Layer):
    """Keeps the contacts that finders report, and asks them as often as membership wants."""

    name = "discovery"

    def __init__(self) -> None:
        self._contacts: dict[int, Contact] = {}
        self._search = Search(None)
        self._next = 0.0
        self._asked = 0

    def up(self, event: Signal, now: float) -> None:
        """Contacts are kept; the rest goes on."""
        if isinstance(event, Contacts):
            fresh = {contact.node for contact in event.contacts} - self._contacts.keys()
            self._contacts = {contact.node: contact for contact in event.contacts}
            if fresh and self._search.every is not None:
                self._ask(fresh, now)
        self.pass_up(event, now)

    def down(self, event: Signal, now: float) -> None:
        """What is searched for."""
        if isinstance(event, Search):
            fresh = event.joining != self._search.joining or self._search.every is None
            self._search = event
            if fresh and event.every is not None:
                self._next = now
                self.tick(now)
            return
        self.pass_down(event, now)

    def tick(self, now: float) -> None:
        """Asks again when it is time."""
        if self._search.every is not None and now >= self._next:
            self._next = now + self._search.every
            self._ask({*self._contacts, *(one.node for one in self._search.also)}, now)

    def _ask(self, nodes: set[int], now: float) -> None:
        also = {contact.node: contact for contact in self._search.also}
        for node in sorted(nodes - self._search.known):
            self._asked += 1
            contact = self._contacts.get(node) or also[node]
            self.pass_down(Send(node, contact.address, Find(self._search.joining)), now)

    def statistics(self) -> dict[str, float]:
        """``contacts`` that are known, ``asked`` so far."""
        return {"contacts": len(self._contacts), "asked": self._asked}
