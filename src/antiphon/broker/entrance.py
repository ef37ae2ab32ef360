"""Who comes to a broker and who goes: connections, the silent, and those who are turned away.

Receives from the broker what its node reports; keeps letters that the broker sends. Everything here
happens with the broker's lock.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import Counter

from antiphon.broker.permissions import Gate
from antiphon.errors import AntiphonError
from antiphon.node import Node
from antiphon.topics.announcements import Want, encode
from antiphon.topics.neighbours import Neighbours, Seldom
from antiphon.topics.rights import Refused

__all__ = ["Entrance"]

log = logging.getLogger("antiphon.broker")

_GHOST = 2.0  # of a client without a connection
_SILENCE = 0.5  # of a client that has connected, until it is asked
_MOST_QUESTIONS = 3
_STRANGER = 10.0  # of one that has connected and never says who it is
_FAREWELL = 0.2  # for one that is turned away to hear why
_SPARE_ROUTES = 1024


class Entrance:
    """The clients of a broker, by the ids of their nodes, from connection to connection."""

    def __init__(
        self, node: Node, neighbours: Neighbours, gate: Gate, changed: threading.Condition
    ) -> None:
        self._node = node
        self._neighbours = neighbours
        self._gate = gate
        self._changed = changed
        self._guests: set[int] = set()  # connected
        self._silent: dict[int, tuple[float, int]] = {}
        self._absent: dict[int, float] = {}
        self._warn_due = 0.0
        self._lines = Seldom()
        self.dismissed: dict[int, float] = {}
        """Those who are turned away, and until when they may hear why."""
        self.routes: Counter[int] = Counter()
        """How many routes there are from each."""
        self.letters: list[tuple[int, bytes]] = []
        """What is to be said to whom."""

    def connected(self, peer: int) -> None:
        """It may have to wait outside. Its node tells so, or its question, if that comes first."""
        if peer in self.dismissed:
            return  # it is seen out
        if peer not in self._guests:
            log.debug("client %d has connected", peer, extra={"client": peer})
        self._guests.add(peer)
        if self._crowded():
            # Perhaps some have gone unnoticed: of very many events some are not told.
            self._guests = {one for one in self._guests if self._node._is_connected(one)} | {peer}
        if self._crowded():
            self.dismiss(peer, self._gate.crowded(f"node {peer}"))
        elif peer not in self._neighbours.all:
            self._silent[peer] = time.monotonic() + _SILENCE, 0

    def _crowded(self) -> bool:
        return len(self._guests) - len(self.dismissed) > self._gate.limits.max_clients

    def disconnected(self, peer: int, reason: str) -> None:
        """Nothing more comes from it."""
        log.debug("client %d has gone: %s", peer, reason, extra={"client": peer})
        self._silent.pop(peer, None)
        self.dismissed.pop(peer, None)
        self._guests.discard(peer)

    def forget(self, peer: int) -> None:
        """All that it had."""
        self._neighbours.forget(peer)
        self._gate.forget(peer)

    def may_route(self, peer: int) -> bool:
        """Counts one more route from a client; one with far too many is turned away.

        Numbers of publishers that have gone rest for a while, so it may have more than topics.
        """
        if peer in self.dismissed:
            return False
        most = self._gate.limits.max_topics
        if self.routes[peer] < 2 * most + _SPARE_ROUTES:
            self.routes[peer] += 1
            return True
        refused = Refused(f"node {peer}", "publish", None, f"a client may publish {most} topics")
        self.dismiss(peer, refused)
        return False

    # --- turned away ------------------------------------------------------------------------

    def dismiss(self, peer: int, refused: Refused) -> None:
        """Tells it why, and ends its connection a moment later."""
        if peer in self.dismissed:
            return
        if self.may_log():
            log.warning(
                "client %d (%s) is turned away: %s",
                peer,
                refused.client,
                refused.reason,
                extra={"client": peer, "known_as": refused.client, "reason": refused.reason},
            )
        self.dismissed[peer] = math.inf  # until it was told
        self._silent.pop(peer, None)
        self.forget(peer)
        self.letters.append((peer, encode(refused)))
        self._changed.notify_all()

    def refuse(self, peer: int, action: str, topic: str, reason: str) -> None:
        """Something that it asked for, and may not."""
        notice = self._gate.notice(peer, action, topic, reason)
        if notice is None:
            return
        self.letters.append((peer, encode(notice)))
        self._changed.notify_all()
        if self.may_log():
            log.warning(
                "client %d (%s) may not %s %r: %s",
                peer,
                notice.client,
                action,
                topic,
                reason,
                extra={"client": peer, "known_as": notice.client, "action": action, "topic": topic},
            )

    def warn(self) -> None:
        """Tells those who publish more than they may, at most once a second."""
        now = time.monotonic()
        if now < self._warn_due:
            return
        self._warn_due = now + 1.0
        for peer, refused in self._gate.overrun():
            self.letters.append((peer, encode(refused)))
            if self.may_log():
                log.warning(
                    "client %d (%s) publishes too much: %s",
                    peer,
                    refused.client,
                    refused.reason,
                    extra={"client": peer, "known_as": refused.client, "reason": refused.reason},
                )

    def may_log(self) -> bool:
        """A crowd of strangers must not fill the disk."""
        return self._lines.allow()

    def _see_out(self, now: float) -> None:
        for peer, due in list(self.dismissed.items()):
            if now >= due:
                del self.dismissed[peer]
                self._guests.discard(peer)
                with contextlib.suppress(AntiphonError):  # it has gone by itself
                    self._node.remove_peer(peer)

    # --- now and then -----------------------------------------------------------------------

    def look(self, now: float) -> list[tuple[int, bytes]]:
        """What is to be said; ends the connections of those who have heard why."""
        letters = self._questions(now)
        self._see_out(now)
        letters, self.letters = self.letters + letters, []
        for peer, due in self.dismissed.items():
            if due == math.inf:
                self.dismissed[peer] = now + _FAREWELL
        return letters

    def _questions(self, now: float) -> list[tuple[int, bytes]]:
        """To clients that have connected and said nothing.

        What one said may have been forgotten again, when its connection ended and began anew at
        that moment.
        """
        letters = []
        for peer, (due, asked) in list(self._silent.items()):
            if peer in self._neighbours.all:
                del self._silent[peer]
            elif now >= due and asked < _MOST_QUESTIONS:
                last = asked + 1 == _MOST_QUESTIONS
                self._silent[peer] = now + (_STRANGER if last else _SILENCE), asked + 1
                letters.append((peer, encode(Want(0, 0))))
            elif now >= due:
                self.dismiss(peer, Refused(f"node {peer}", "connect", None, "it says nothing"))
        return letters

    def ghosts(self, now: float) -> None:
        """Forgets clients that have no connection.

        As a rule the end of a connection does it, but what a client said last may be read later.
        """
        connected = self._node._is_connected
        self._absent = {
            peer: self._absent.get(peer, now)
            for peer, one in self._neighbours.all.items()
            if not one.itself and not connected(peer)
        }
        for peer, since in list(self._absent.items()):
            if now - since > _GHOST:
                del self._absent[peer]
                self.forget(peer)
