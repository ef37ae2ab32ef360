"""Durable subscriptions and work groups of a broker: who holds which name, and where it stands.

Each has a `DeliveryCore`, which reads logs from a position on, hands every event to one member and
waits for its acknowledgement (``native/bindings/delivery.cpp``). Here is done what happens when a
member, a topic or the broker comes or goes. Everything with the broker's lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from antiphon._core import DeliveryCore, make_delivery
from antiphon.broker.config import BrokerConfig
from antiphon.broker.letters import Letters
from antiphon.broker.permissions import Known
from antiphon.broker.positions import Place, Positions, Saved
from antiphon.broker.recording import beginning
from antiphon.broker.store import Store
from antiphon.errors import ConfigError, StoreFull
from antiphon.node import Node
from antiphon.topics.announcements import Wish
from antiphon.topics.asking import Claim, Held
from antiphon.topics.content import Condition
from antiphon.topics.names import Pattern
from antiphon.topics.neighbours import Interest
from antiphon.topics.rights import DEAD

__all__ = ["Deliveries", "dead_topic"]

log = logging.getLogger("antiphon.broker")

_ACKS = 36
_CAPACITY = 65536
_CLAIMED = 5.0  # seconds for which a name is kept for the one who asked
_MOST_OUT, _MOST_OUT_OF_GROUP = 4096, 64  # events of one member without an acknowledgement
_PAUSE, _LONGEST_PAUSE = 0.25, 8.0  # before a position is written that could not be
_MOST_PUSHED = 4096  # events of topics that are not recorded, which wait for a member

Key = tuple[str, ...]
Described = tuple[Saved, dict[str, Any]]


def dead_topic(name: str) -> str:
    """Where the events of a durable subscription go that nobody could handle."""
    return DEAD + name


@dataclass(eq=False)
class _Delivery:
    """One name. ``saved`` is None for a group that nobody remembers."""

    key: Key
    pattern: Pattern
    where: str | None
    group: str | None
    content: tuple[Condition, ...] = ()
    saved: Saved | None = None
    core: DeliveryCore | None = None
    members: dict[tuple[int, int], Interest] = field(default_factory=dict)
    waiting: dict[tuple[int, int], Interest] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    # Those whose logs are being opened, and where it begins there.
    unopened: dict[str, Wish | None] = field(default_factory=dict)
    written: int = -1  # version of the positions
    on_disk: bool = False  # there is a file that knows it
    pause: float = 0.0  # the disk did not take them
    not_before: float = 0.0
    owner: str = ""  # the client that it belongs to, where clients have rights

    @property
    def name(self) -> str:
        return self.key[1]


class Deliveries:
    """All of a broker. ``recorded`` gives the numbers of recorded topics by their names."""

    def __init__(
        self,
        node: Node,
        config: BrokerConfig,
        store: Store | None,
        ready: Callable[[str], bool],
    ) -> None:
        """``ready``: whether a topic's log is open; if not, `topic_came` follows when it is."""
        self._node = node
        self._ready = ready
        self._config = config
        self._store = store
        self._positions = None if store is None else Positions(store.path)
        self._all: dict[Key, _Delivery] = {}
        self._held: dict[tuple[int, int], _Delivery] = {}
        self._claimed: dict[str, tuple[int, float]] = {}
        self._owned: Counter[str] = Counter()  # how many belong to whom
        self._unwritten: set[Key] = set()  # that `moved` has named, and `write` has not done
        self.urgent = False
        """Whether there is a name that no file knows: `moved` is to be asked soon."""
        self._writing = threading.Lock()
        self._replaying = threading.Lock()  # before the broker's
        self._leaving: dict[tuple[int, int], tuple[float, int]] = {}  # until when, with how many
        self._said_all: set[tuple[int, int]] = set()
        for saved in [] if self._positions is None else self._positions.load():
            self._check_store(saved)
            key = ("durable", saved.name)
            self._all[key] = _Delivery(
                key,
                Pattern(saved.pattern),
                saved.where,
                saved.group,
                saved.content,
                saved=saved,
                owner=saved.owner,
                on_disk=True,
            )
            self._owned[saved.owner] += 1
        node._on(_ACKS, self._acknowledged, None, _log_failure, True, 1, _CAPACITY, "block")

    def _check_store(self, saved: Saved) -> None:
        """Positions of another store mean nothing here: it gets everything that is in this one."""
        assert self._store is not None
        if saved.store not in (0, self._store.id):
            log.warning(
                "the durable subscription %r has positions of another store; it begins anew, with "
                "the first events that this one has",
                saved.name,
            )
            saved.places.clear()
            saved.dead_replayed = 0
        saved.store = self._store.id

    def _acknowledged(self, source: int, batch: Any) -> None:
        """What members have done. On a scheduler thread, without the lock."""
        for said in batch:
            delivery = self._held.get((source, int.from_bytes(said[:4], "little")))
            if delivery is not None and delivery.core is not None:
                delivery.core.acknowledge(source, said)

    # --- who may have a name ----------------------------------------------------------------

    def claim(self, source: int, claim: Claim) -> None:
        """Raises `ConfigError` that names the holder, if that is another."""
        if claim.durable is None:
            return
        delivery = self._all.get(("durable", claim.durable))
        if delivery is not None and delivery.members:
            self._check_shared(delivery, claim.group)
        kept = self._claimed.get(claim.durable)
        if claim.group is None:
            if kept is not None and kept[0] != source and time.monotonic() < kept[1]:
                raise _refusal(claim.durable, kept[0])
            self._claimed[claim.durable] = source, time.monotonic() + _CLAIMED

    def _check_shared(self, delivery: _Delivery, group: str | None) -> None:
        alive = [peer for peer, _ in delivery.members if self._node._is_connected(peer)]
        if alive and (group is None or group != delivery.group):
            raise _refusal(delivery.name, alive[0], delivery.group)

    # --- members ----------------------------------------------------------------------------

    def keeps_from(self, client: Known | None, name: str) -> str | None:
        """None, or why a durable subscription is not this client's: it belongs to who made it."""
        delivery = self._all.get(("durable", name))
        saved = None if delivery is None else delivery.saved
        if saved is None or not saved.owner:
            return None
        if client is not None and client.name == saved.owner:
            return None
        if client is not None and client.administrates(saved.pattern):
            return None
        return f"the durable subscription {name!r} belongs to {saved.owner!r}"

    def too_many(self, source: int, client: Known | None, name: str, most: int) -> str | None:
        """None, or why a client may not have one more name: each has files, held or not."""
        known = self._all.get(("durable", name))
        if known is not None and known.saved is not None:
            return None
        owner = client.name if client is not None and client.rights is not None else ""
        now = time.monotonic()
        self._claimed = {one: kept for one, kept in self._claimed.items() if kept[1] > now}
        claimed = sum(
            kept[0] == source and one != name and ("durable", one) not in self._all
            for one, kept in self._claimed.items()
        )
        if self._owned[owner] + claimed < most:
            return None
        return f"a client may have {most} durable subscriptions; forget some"

    def came(self, interest: Interest, client: Known | None, recorded: dict[str, int]) -> None:
        """A subscription with a name. ``recorded``: the topics that it matches."""
        # What one before it has left, and nobody has looked at yet, is older than all others.
        self.tend(time.monotonic())
        wish = interest.wish
        assert wish is not None
        where = None if interest.where is None else interest.where.text
        if wish.durable is not None:
            key: Key = ("durable", wish.durable)
            self._claimed.pop(wish.durable, None)
        else:
            texts = [repr(one) for one in interest.content]
            key = ("group", str(wish.group), interest.pattern.text, where or "", *texts)
        delivery = self._all.get(key)
        if delivery is None:
            delivery = self._all[key] = _Delivery(
                key, interest.pattern, where, wish.group, interest.content
            )
        if client is not None and client.rights is not None:
            self._give(delivery, client.name)
        place = (interest.peer, interest.flow)
        if delivery.members and wish.durable is not None:
            try:
                self._check_shared(delivery, wish.group)
            except ConfigError as error:
                log.warning("client %d has to wait: %s", interest.peer, error)
                delivery.waiting[place] = interest
                return
        self._join(delivery, interest, recorded)

    def _give(self, delivery: _Delivery, owner: str) -> None:
        """One that belongs to nobody yet."""
        if delivery.owner:
            return
        if delivery.saved is not None:
            self._owned[delivery.owner] -= 1
            self._owned[owner] += 1
        delivery.owner = owner

    def _join(self, delivery: _Delivery, interest: Interest, recorded: dict[str, int]) -> None:
        wish = interest.wish
        assert wish is not None
        where = None if interest.where is None else interest.where.text
        wanted = (interest.pattern.text, where, interest.content)
        another = (delivery.pattern.text, delivery.where, delivery.content) != wanted
        if another and not delivery.members:
            self._put_away(delivery)  # it wants something else from now on
        delivery.pattern, delivery.where = interest.pattern, where
        delivery.content = interest.content
        delivery.group = wish.group
        if delivery.core is None:
            delivery.core = make_delivery(
                self._node,
                None if self._store is None else self._store._core,
                dead_topic(delivery.name) if wish.durable is not None else "",
                interest.where.core if interest.where else None,
                self._config.ack_timeout,
                self._config.max_attempts,
                _MOST_PUSHED,
                interest.judge,
            )
        else:
            delivery.core.judge_by(interest.judge)  # that of the one before may have gone with it
        is_new = wish.durable is not None and delivery.saved is None
        if is_new:
            assert self._store is not None
            delivery.saved = Saved(
                delivery.name,
                interest.pattern.text,
                where,
                wish.group,
                owner=delivery.owner,
                content=interest.content,
                store=self._store.id,
            )
            self._owned[delivery.owner] += 1
        for topic, number in recorded.items():
            self._add(delivery, topic, number, wish if is_new or delivery.saved is None else None)
        peer, incarnation, flow, least_charge = interest.place
        most = _MOST_OUT if wish.group is None else _MOST_OUT_OF_GROUP
        capacity = min(wish.capacity or most, most)
        place = (peer, flow)
        # Before it joins: its first acknowledgement may be here before this thread is.
        self._held[place] = delivery
        if delivery.core.join(self._node, peer, incarnation, flow, least_charge, capacity):
            delivery.members[place] = interest
            self._leaving.pop(place, None)
            self._said_all.discard(place)
        else:
            del self._held[place]
        if is_new:  # it is served meanwhile; a crash before it is written would forget it
            self.urgent = True

    def _add(self, delivery: _Delivery, topic: str, number: int, wish: Wish | None) -> None:
        """A recorded topic. ``wish`` is None for one that is new to a name that was known."""
        if delivery.core is None or topic in delivery.topics:
            return
        delivery.unopened[topic] = wish
        if self._ready(topic):
            self._add_open(delivery, topic, number)

    def _add_open(self, delivery: _Delivery, topic: str, number: int) -> None:
        if delivery.core is None or topic in delivery.topics or topic not in delivery.unopened:
            return
        assert self._store is not None
        wish = delivery.unopened.pop(topic)
        delivery.topics.add(topic)
        known = None if delivery.saved is None else delivery.saved.places.get(topic)
        at, value = ("earliest", 0) if wish is None else beginning(wish, topic, self._store.id)
        delivery.core.add_log(
            self._store._core,
            topic,
            number,
            at,
            value,
            0 if known is None else known.next,
            [] if known is None else known.pending,
        )

    def went(self, peer: int, flow: int, recorded: Callable[[Pattern], dict[str, int]]) -> None:
        """A subscription with a name has gone; what it has not acknowledged is for the next one.

        ``recorded``: the topics that match, for that one.
        """
        place = (peer, flow)
        for delivery in self._all.values():
            delivery.waiting.pop(place, None)
        held = self._held.get(place)
        if held is None or held.core is None:
            return
        held.members.pop(place, None)
        # One that ends in good order handles what it has, and acknowledges it.
        said_all = place in self._said_all
        self._said_all.discard(place)
        connected = self._node._is_connected(peer)
        busy = held.core.dismiss(peer, flow) if connected else 0
        if busy and not said_all:
            self._leaving[place] = time.monotonic() + self._config.ack_timeout, busy
        else:
            self.release(place, blame=not connected and not said_all)
        if not held.members and held.waiting:
            _, interest = held.waiting.popitem()
            self._join(held, interest, recorded(interest.pattern))

    def stands(self, place: tuple[int, int]) -> tuple[bool, bool]:
        """Whether a subscription has its place, and whether a file knows its name.

        Raises `ConfigError` for one that has to wait for another. A disk that does not take the
        file is not waited for.
        """
        held = self._held.get(place)
        if held is None or place not in held.members:
            for one in self._all.values():
                if place in one.waiting and one.members:
                    raise _refusal(one.name, next(iter(one.members))[0], one.group)
            return False, False
        return True, held.saved is None or held.on_disk or held.pause > 0

    def said_all(self, place: tuple[int, int]) -> None:
        """A subscription was closed and acknowledges nothing more; that it has gone may follow."""
        held = self._held.get(place)
        if held is not None and place in held.members:
            self._said_all.add(place)
        else:
            self.release(place)

    def release(self, place: tuple[int, int], blame: bool = False) -> None:
        """What one who has left has not acknowledged is for the others; any place.

        ``blame``: it did not leave in good order, and an event may be why.
        """
        held = self._held.get(place)
        if held is None or place in held.members:
            return
        del self._held[place]
        self._leaving.pop(place, None)
        if held.core is None:
            return
        held.core.leave(*place, blame)
        if held.saved is None and not held.members and held not in self._held.values():
            held.core.close()
            del self._all[held.key]

    def tend(self, now: float) -> None:
        """Those who have left, and will not say more."""
        for place, (until, busy) in list(self._leaving.items()):
            held, (peer, flow) = self._held[place], place
            left = 0 if held.core is None else held.core.dismiss(peer, flow)
            if not left or now > until or not self._node._is_connected(peer):
                self.release(place)
            elif left != busy:  # it goes on with what it has
                self._leaving[place] = now + self._config.ack_timeout, left

    def topic_came(self, topic: str, number: int) -> None:
        """A topic is recorded from now on, or its log is open at last."""
        for delivery in self._all.values():
            if delivery.core is not None and delivery.pattern.matches(topic):
                delivery.unopened.setdefault(topic, None)
                self._add_open(delivery, topic, number)

    def pushed(self, topic: str) -> list[DeliveryCore]:
        """The groups that want a topic that is not recorded."""
        return [
            one.core
            for one in self._all.values()
            if one.core is not None and one.group is not None and one.pattern.matches(topic)
        ]

    # --- positions --------------------------------------------------------------------------

    def moved(self, last: bool = False) -> list[Key]:
        """Those that are to be written; for `write`. ``last``: nobody asks again."""
        found = {key: None for key in list(self._unwritten) if key in self._all}
        now = time.monotonic()
        self.urgent = False
        for delivery in self._all.values():
            core = delivery.core
            if delivery.saved is None or core is None or core.version == delivery.written:
                continue
            if now < delivery.not_before and not last:
                continue
            delivery.written = core.version
            self._note(delivery)
            found[delivery.key] = None
        self._unwritten.update(found)
        return list(found)

    def write(self, moved: list[Key]) -> None:
        """Without the broker's lock: the disk may take its time.

        What is written is what is known by then: another may have saved something meanwhile.
        """
        for key in moved:
            with self._writing:
                self._unwritten.discard(key)
                delivery = self._all.get(key)
                if delivery is None or delivery.saved is None or self._positions is None:
                    continue  # it was forgotten meanwhile
                try:
                    self._positions.save(delivery.saved)
                    delivery.pause, delivery.on_disk = 0.0, True
                except OSError as error:
                    self._not_written(delivery, error)

    def _not_written(self, delivery: _Delivery, error: OSError) -> None:
        """Tried again, less and less often: a disk that is full stays so for a while."""
        delivery.written = -1
        delivery.pause = min(max(2 * delivery.pause, _PAUSE), _LONGEST_PAUSE)
        delivery.not_before = time.monotonic() + delivery.pause
        log.error(
            "the position of %r was not written, which is tried again in %g s: %s; after a crash "
            "it gets again what it has acknowledged since",
            delivery.name,
            delivery.pause,
            error,
        )

    def _save(self, delivery: _Delivery) -> None:
        """At once: it is new, or its file says something that must not be done twice."""
        assert self._positions is not None
        assert delivery.saved is not None
        if delivery.core is not None:
            delivery.written = delivery.core.version
            self._note(delivery)
        with self._writing:
            self._positions.save(delivery.saved)
            delivery.on_disk = True

    def _note(self, delivery: _Delivery) -> None:
        saved = delivery.saved
        assert saved is not None
        assert delivery.core is not None
        saved.pattern, saved.where = delivery.pattern.text, delivery.where
        saved.group, saved.owner = delivery.group, delivery.owner
        saved.content = delivery.content
        for topic, following, pending in delivery.core.positions():
            saved.places[topic] = Place(following, pending)

    def _put_away(self, delivery: _Delivery) -> None:
        if delivery.core is not None:
            if delivery.saved is not None:
                self._note(delivery)
            delivery.core.close()
        delivery.core = None
        delivery.topics.clear()
        delivery.unopened.clear()

    def forget(self, name: str) -> None:
        """Raises `ConfigError` for one that is not there, or that somebody holds."""
        delivery = self._all.get(("durable", name))
        if delivery is None or delivery.saved is None:
            raise ConfigError(f"there is no durable subscription {name!r}", setting="durable")
        if delivery.members:
            raise _refusal(name, next(iter(delivery.members))[0])
        self._put_away(delivery)
        with self._writing:
            del self._all[delivery.key]
            self._owned[delivery.owner] -= 1
            if self._positions is not None:
                self._positions.remove(name)

    def describe(self, client: Known | None) -> list[Described]:
        """Name, pattern, holders and places in each topic, as plain values; of a client's own.

        `with_lag` adds how far they are behind, for which logs may have to be opened.
        """
        found = []
        for delivery in self._all.values():
            if delivery.saved is None or self._store is None:
                continue
            if self.keeps_from(client, delivery.name) is not None:
                continue
            if delivery.core is not None:
                self._note(delivery)
            counts = {} if delivery.core is None else delivery.core.counts()
            saved = msgspec.structs.replace(delivery.saved, places=dict(delivery.saved.places))
            holders = sorted({peer for peer, _ in delivery.members})
            found.append((saved, {"holders": holders, "counts": counts}))
        return found

    def with_lag(self, found: list[Described]) -> list[dict[str, Any]]:
        """Without the broker's lock: the disk may take its time."""
        assert self._store is not None
        listed = [describe(saved, self._store) | facts for saved, facts in found]
        return sorted(listed, key=lambda one: str(one["name"]))

    def replay_dead(self, name: str, limit: int, lock: threading.RLock) -> int:
        """Dead letters that were not replayed before go back to their topics; how many did.

        Without the broker's lock, which is taken for moments: the disk may take its time.
        """
        with self._replaying:
            with lock:
                delivery = self._all.get(("durable", name))
                if delivery is None or delivery.saved is None or self._store is None:
                    raise ConfigError(
                        f"there is no durable subscription {name!r}", setting="durable"
                    )
                before = delivery.saved.dead_replayed
                sending = Letters(self._store, dead_topic(name), before)
            try:
                return sending.send(limit)
            finally:  # those that went are not sent once more
                with lock:
                    if self._all.get(delivery.key) is delivery and sending.replayed != before:
                        delivery.saved.dead_replayed = sending.replayed
                        self._save(delivery)

    def end(self) -> None:
        """Nothing is handed out any more; acknowledgements still count."""
        for delivery in self._all.values():
            if delivery.core is not None:
                delivery.core.close()


def describe(saved: Saved, store: Store) -> dict[str, Any]:
    """A durable subscription and its lag, in events, as plain values.

    Of a log that cannot be opened ``error`` says why, and nothing is known of its lag.
    """
    topics: list[dict[str, Any]] = []
    for topic, place in sorted(saved.places.items()):
        try:
            info = store.log(topic)
        except (OSError, StoreFull) as error:
            topics.append({"topic": topic, "next": place.next, "end": 0, "lag": 0})
            topics[-1]["error"] = str(error)
            continue
        lag = max(0, info.next - max(place.next, info.first)) + place.unacknowledged
        topics.append({"topic": topic, "next": place.next, "end": info.next, "lag": lag})
    return {
        "name": saved.name,
        "pattern": saved.pattern,
        "where": saved.where,
        "group": saved.group,
        "topics": topics,
        "lag": sum(one["lag"] for one in topics),
    }


def _refusal(name: str, holder: int, group: str | None = None) -> Held:
    shared = "" if group is None else f", as a member of group {group!r}"
    return Held(
        f"the durable subscription {name!r} is held by client {holder}{shared}; end that one, take "
        "another name, or share it with group=",
        setting="durable",
        value=name,
    )


def _log_failure(kind: int, source: int, error: BaseException) -> None:
    log.error("acknowledgements of client %d failed", source, exc_info=error)
