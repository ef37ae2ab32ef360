"""The other buses on a channel: what they have, and what they are told of ours.

Receives from a finder who is there, and from the node what they say; keeps a `Table` of each
(`antiphon.topics.announcements`) and hands what changed to a `Host`, which is a bus or a broker.
Everything happens with the host's lock but `tell`, which may have to wait.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from typing import Protocol

import msgspec

from antiphon._core import Handle, OutboxCore, PublisherCore
from antiphon.errors import AntiphonError, ConfigError, FilterError
from antiphon.node import Node
from antiphon.node.future import Job
from antiphon.topics.announcements import (
    Ledger,
    Subscribed,
    Table,
    Update,
    Want,
    Wish,
    decode,
    encode,
)
from antiphon.topics.content import Condition
from antiphon.topics.finder import Member
from antiphon.topics.judge import ContentJudge, JudgePlan
from antiphon.topics.names import Pattern, PatternIndex
from antiphon.topics.rights import Word
from antiphon.topics.where import Where

__all__ = ["HOUSEKEEPING", "Host", "Interest", "Interests", "Neighbour", "Neighbours", "Seldom"]

log = logging.getLogger("antiphon.topics")

HOUSEKEEPING = 0.25
"""Seconds between two looks at what is owed to whom."""

_KIND = 33
_PAUSE = 1.0  # before one that could not be reached is told again
_CAPACITY = 4096


class Host(Protocol):
    """Who wants to know. Called with the lock."""

    def _came(self, peer: int, incarnation: int, subscribed: Subscribed) -> None: ...
    def _went(self, peer: int, subscribed: Subscribed) -> None: ...
    def _topic_came(self, peer: int, number: int, name: str) -> None: ...
    def _topic_went(self, peer: int, number: int, name: str) -> None: ...
    def _admits(self, peer: int, update: Update) -> bool:
        """Whether what it says of itself counts; otherwise it is forgotten."""

    def _shown(self, peer: int, update: Update) -> Update:
        """What it gets to see of ours."""

    def _word(self, peer: int, word: Word) -> bytes | None:
        """Between a client and its broker; what is returned answers a request."""


class Neighbour:
    """Another bus on the channel, or this one."""

    def __init__(self, table: Table, itself: bool = False) -> None:
        self.table = table
        self.itself = itself
        self.address = ""
        self.announced = 0
        self.sent = 0
        self.greeted = False
        self.behind = False
        self.not_before = 0.0  # it could not be reached: time of the next attempt


class Neighbours:
    """All of them, by the id of their node."""

    def __init__(
        self,
        node: Node,
        host: Host,
        changed: threading.Condition,
        *,
        owns_node: bool,
        dials: bool = True,
    ) -> None:
        """``dials``: whether the others can be reached by us, and not only we by them."""
        self._node = node
        self._host = host
        self._changed = changed
        self._owns_node = owns_node
        self._dials = dials
        self._left: dict[int, int] = {}  # of buses that have gone: their last incarnation
        self._last_heard = 0.0
        self._complaints = Seldom()
        self._live = False
        self.ledger = Ledger(node._incarnation)
        """What this bus has."""
        self.all: dict[int, Neighbour] = {}

    def begin(self) -> Neighbour:
        """From now on. The table of this bus itself, whose subscriptions count as well."""
        self._live = True
        me = self.all[self._node.id] = Neighbour(Table(self.ledger.incarnation), itself=True)
        me.table.subscriptions = dict(self.ledger.subscriptions)
        return me

    def end(self) -> list[tuple[int, bytes]]:
        """Nothing is heard any more. Farewells: we publish nothing and want nothing any more."""
        if not self._live:
            return []
        self._live = False
        for number in list(self.ledger.topics):
            self.ledger.unpublish(number)
        for flow in list(self.ledger.subscriptions):
            self.ledger.unsubscribe(flow)
        return self.letters()

    @property
    def others(self) -> int:
        """How many there are beside this one."""
        return sum(not one.itself for one in self.all.values())

    # --- who is there -----------------------------------------------------------------------

    def changed(self, present: list[Member], gone: list[Member]) -> None:
        """Called by a finder, on its thread, without the lock."""
        with self._changed:
            if not self._live:
                return
            for member in gone:
                self.forget(member.id, member.incarnation)
                self._left[member.id] = member.incarnation
            for member in present:
                self._left.pop(member.id, None)
                one = self._neighbour(member.id, member.incarnation)
                one.announced = member.version
                if one.address != member.address:
                    one.address = member.address
                    self._node.add_peer(member.id, member.address)
            self._changed.notify_all()

    def _neighbour(self, id: int, incarnation: int) -> Neighbour:
        """What is known of a bus in this life of it."""
        one = self.all.get(id)
        if one is not None and one.table.incarnation != incarnation:
            self.forget(id, one.table.incarnation)
            one = None
        if one is None:
            one = self.all[id] = Neighbour(Table(incarnation))
        return one

    def forget(self, id: int, incarnation: int | None = None) -> None:
        """It has gone, with all it had; None: whichever life of it."""
        one = self.all.get(id)
        if one is None or one.itself or incarnation not in (None, one.table.incarnation):
            return
        for subscribed in list(one.table.subscriptions.values()):
            self._host._went(id, subscribed)
        for number, name in list(one.table.topics.items()):
            self._host._topic_went(id, number, name)
        del self.all[id]
        # A shared node's peers are its owner's, who may have given us this one.
        if one.address and self._owns_node:
            with contextlib.suppress(AntiphonError):  # it was never known by its address
                self._node.remove_peer(id)

    # --- what they say ----------------------------------------------------------------------

    def listen(self) -> Handle:
        """Hears the others from now on; `ConfigError` where somebody does already."""
        handle = self._node._on(
            _KIND, self._heard, None, _log_failure, False, 1, _CAPACITY, "block"
        )
        if handle is None:
            raise ConfigError("this node has a bus already; share that one", setting="node")
        return handle

    def _heard(self, source: int, data: bytes) -> bytes | None:
        """A message of another bus, on a scheduler thread."""
        try:
            message = decode(data)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            if self._complaints.allow():
                log.warning("node %d sent an announcement that is none: %s", source, error)
            return None
        with self._changed:
            if not isinstance(message, Update | Want):
                return self._host._word(source, message)
            if not self._live:
                return None
            if isinstance(message, Want):
                one = self.all.get(source)
                if one is not None:
                    known = message.incarnation == self.ledger.incarnation
                    one.sent = message.have if known else 0
                    one.greeted = False
            elif self._left.get(source) == message.incarnation:
                return None  # it is late, and nobody would ever say again that its bus has gone
            else:
                self._last_heard = time.monotonic()
                self._neighbour(source, message.incarnation)
                if not self._host._admits(source, message):
                    self.forget(source)
                    return None
                one = self._neighbour(source, message.incarnation)
                changes = one.table.apply(message)
                if changes is None:
                    one.behind = True
                else:
                    for subscribed in changes.went:
                        self._host._went(source, subscribed)
                    for number, name in changes.topics_went.items():
                        self._host._topic_went(source, number, name)
                    for number, name in changes.topics_came.items():
                        self._host._topic_came(source, number, name)
                    for subscribed in changes.came:
                        self._host._came(source, message.incarnation, subscribed)
            self._changed.notify_all()
        return None

    # --- telling them -----------------------------------------------------------------------

    def letters(self) -> list[tuple[int, bytes]]:
        """What has to be said to whom."""
        now = time.monotonic()
        late = now - self._last_heard > HOUSEKEEPING
        letters = []
        for peer, one in self.all.items():
            if one.itself or now < one.not_before:
                continue
            if not one.greeted or one.sent != self.ledger.version:
                update = self._host._shown(peer, self.ledger.since(one.sent))
                letters.append((peer, encode(update)))
                one.sent = self.ledger.version
                one.greeted = True
            # What it announces and we do not know is on its way as a rule: ask when it is late.
            if one.behind or (late and one.announced > one.table.version):
                one.behind = False
                letters.append((peer, encode(Want(one.table.incarnation, one.table.version))))
        return letters

    def tell(self, letters: list[tuple[int, bytes]]) -> list[Job[None]]:
        """Sends them, without the lock. Never blocks: the node's helpers wait where it must.

        What they do is returned, for whoever closes the node next.
        """
        later = self._node._later
        jobs = []
        for peer, letter in letters:
            if not self._reachable(peer):
                self._unsaid(peer)
                continue
            try:
                if not later.busy(peer) and self._node._tell(peer, letter, False):
                    continue
            except AntiphonError:
                pass  # too large for one frame, or not known yet: below it waits, or fails for good
            try:
                jobs.append(later.add(peer, functools.partial(self._tell_now, peer, letter)))
            except AntiphonError as error:
                log.info("cannot tell node %d what there is: %s", peer, error)
        return jobs

    def _tell_now(self, peer: int, letter: bytes) -> None:
        try:
            if self._reachable(peer):
                self._node._tell(peer, letter, True)
                return
        except AntiphonError as error:
            log.info("cannot tell node %d what there is: %s", peer, error)
        self._unsaid(peer)

    def _reachable(self, peer: int) -> bool:
        """Whether it is worth the wait: clients of a broker come by themselves, or not at all."""
        return self._dials or self._node._is_connected(peer)

    def _unsaid(self, peer: int) -> None:
        with self._changed:
            one = self.all.get(peer)
            if one is not None:
                one.sent = 0  # it is told everything when it can be reached
                one.not_before = time.monotonic() + _PAUSE


# --- what they want -------------------------------------------------------------------------------


class Interest:
    """A subscription of somebody, ready to be served."""

    __slots__ = ("_content", "_incarnation", "_judge", "_subscribed", "pattern", "peer", "where")

    def __init__(
        self,
        peer: int,
        incarnation: int,
        subscribed: Subscribed,
        pattern: Pattern | None,
        judge: ContentJudge,
    ) -> None:
        self.peer = peer
        self.pattern = pattern or Pattern(subscribed.pattern)
        self.where = None if subscribed.where is None else Where(subscribed.where)
        self._incarnation = incarnation
        self._subscribed = subscribed
        self._judge = judge
        # Last: a number that was given has to be given back.
        self._content = judge.add(subscribed.content) if subscribed.content else 0

    @property
    def flow(self) -> int:
        """Of the subscription, at its bus."""
        return self._subscribed.flow

    @property
    def wish(self) -> Wish | None:
        """What it wants of a broker beyond events as they come."""
        return self._subscribed.wish

    @property
    def named(self) -> bool:
        """Whether it is durable or in a group: then one of several gets an event."""
        wish = self.wish
        return wish is not None and (wish.durable is not None or wish.group is not None)

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Where it is: node, its life, flow, least charge."""
        return self.peer, self._incarnation, self._subscribed.flow, self._subscribed.least_charge

    @property
    def content(self) -> tuple[Condition, ...]:
        """Its conditions on the data of events."""
        return self._subscribed.content

    @property
    def judge(self) -> JudgePlan | None:
        """Who judges the data of its events; None: it takes any."""
        return self._judge.plan((self._content,), None) if self._content else None

    def serve(self, core: PublisherCore | OutboxCore) -> None:
        """Adds it to those that a publisher sends to."""
        if isinstance(core, OutboxCore):
            core.serve(*self.place)
            return
        if self._content:
            core.judge_by(self._judge.plan)
        core.serve(
            self.peer,
            self._incarnation,
            self._subscribed.flow,
            self._subscribed.least_charge,
            self.where.core if self.where else None,
            self._content,
            self._subscribed.disconnect,
        )

    def end(self) -> None:
        """It has gone."""
        if self._content:
            self._judge.remove(self._content)


class Seldom:
    """So many lines of the log in a second and no more: others must not fill the disk."""

    def __init__(self, most: int = 10) -> None:
        self._most = most
        self._count = 0
        self._since = 0.0

    def allow(self) -> bool:
        """Whether there is room for one more."""
        now = time.monotonic()
        if now - self._since > 1.0:
            self._count, self._since = 0, now
        self._count += 1
        return self._count <= self._most


class Interests:
    """Subscriptions of all neighbours, found by topic."""

    def __init__(self) -> None:
        self.judge = ContentJudge()
        """Of what they ask of the content of events."""
        self._all: dict[tuple[int, int], Interest] = {}
        self._complaints = Seldom()
        self._index: PatternIndex[tuple[int, int]] = PatternIndex()

    def __len__(self) -> int:
        return len(self._all)

    def add(
        self,
        peer: int,
        incarnation: int,
        subscribed: Subscribed,
        pattern: Pattern | None = None,
    ) -> Interest | None:
        """None, and a line in the log, for what cannot be served. ``pattern``: its own, if made."""
        try:
            interest = Interest(peer, incarnation, subscribed, pattern, self.judge)
        except (ConfigError, FilterError) as error:
            if self._complaints.allow():
                log.warning("node %d subscribes to something we cannot serve: %s", peer, error)
            return None
        self.remove(peer, subscribed.flow)
        key = (peer, subscribed.flow)
        self._all[key] = interest
        self._index.add(interest.pattern, key)
        return interest

    def remove(self, peer: int, flow: int) -> Interest | None:
        """None: there was none."""
        interest = self._all.pop((peer, flow), None)
        if interest is not None:
            self._index.remove(interest.pattern, (peer, flow))
            interest.end()
        return interest

    def has(self, peer: int, flow: int) -> bool:
        """Whether that one is served."""
        return (peer, flow) in self._all

    def matching(self, topic: str) -> list[Interest]:
        """Those that want events of this topic."""
        return [self._all[key] for key in self._index.matching(topic)]


def _log_failure(kind: int, source: int, error: BaseException) -> None:
    log.error("an announcement of node %d failed", source, exc_info=error)
