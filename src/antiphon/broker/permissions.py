"""Who a broker's clients are, what they may do, and what they were refused.

Receives what clients show and ask for; says yes, or why not. Nothing here has a socket or a lock:
the broker asks with its own, once per topic, subscription and route, never per event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from antiphon._core import Quota
from antiphon._version import __version__
from antiphon.broker.config import BrokerConfig
from antiphon.broker.tokens import hash_token
from antiphon.topics.announcements import Subscribed, Update
from antiphon.topics.rights import RESERVED, Refused, Rights, Welcome

__all__ = ["ANONYMOUS", "Gate", "Known"]

ANONYMOUS = "anonymous"
_REPLACED = 1024  # of an update may be known already: those count twice
_MOST_NOTICES = 16  # that one client gets: it is told once, not for ever


class Known:
    """A client that has said who it is."""

    def __init__(self, name: str, shown: str | None, rights: Rights | None) -> None:
        self.name = name
        self.shown = shown  # the hash of its token
        self.rights = rights  # None: everything
        self.refused_topics: set[int] = set()
        self.refused_flows: dict[int, str] = {}  # and why
        self.quota: Quota | None = None
        self.limited = 0  # events above its quota, as it was told last
        self.routes = 0
        self.unrecorded: set[int] = set()  # producers, no more than it has routes
        self.notices = _MOST_NOTICES

    def allows(self, action: str, topic: str) -> bool:
        """By its rights."""
        if self.rights is None:
            return not (topic.startswith(RESERVED) and action in ("publish", "record"))
        return self.rights.allow(action, topic)

    def administrates(self, pattern: str) -> bool:
        """Whether it may look after what others have of these topics."""
        return self.rights is None or self.rights.administrate(pattern)


class Gate:
    """Everybody who is connected, by the id of their node."""

    def __init__(self, config: BrokerConfig) -> None:
        self._known: dict[int, Known] = {}
        self._limited = 0
        self._recorded: Counter[str] = Counter()  # topics that are recorded because of it, by name
        self.refused = 0
        """Topics, subscriptions and connections that were not allowed."""
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        """From now on these rules; `again` says what changes for whom."""
        self.limits = config.limits
        self._open = not config.tokens and config.anonymous is None
        self._anonymous = config.anonymous
        self._tokens = {token.hash: (name, token) for name, token in config.tokens.items()}

    # --- who it is --------------------------------------------------------------------------

    def _find(self, shown: str | None) -> Known | str:
        """By the hash of a token; or why not."""
        if shown is not None and (found := self._tokens.get(shown)) is not None:
            return Known(found[0], shown, found[1])
        if self._open:  # nobody looks at tokens here
            return Known(ANONYMOUS, shown, None)
        if shown is not None:
            return "its token is not known here; ask for one (antiphon broker token NAME)"
        if self._anonymous is None:
            return "a token is needed here; give Bus(..., token=...)"
        return Known(ANONYMOUS, None, self._anonymous)

    def answer(
        self, token: str | None, crowded: bool, store_full: bool = False
    ) -> Welcome | Refused:
        """To a client that asks what it may do. Nothing is remembered."""
        found = self._find(None if token is None else hash_token(token))
        if isinstance(found, str):
            return self._turn_away(found)
        if crowded:
            return self.crowded(found.name)
        welcome = self.welcome(found)
        welcome.store_full = store_full
        return welcome

    def crowded(self, name: str) -> Refused:
        """There are too many clients."""
        most = self.limits.max_clients
        return self._turn_away(f"it has {most} clients, as many as it may; try again later", name)

    def _turn_away(self, reason: str, name: str = ANONYMOUS) -> Refused:
        self.refused += 1
        return Refused(name, "connect", None, reason)

    def welcome(self, client: Known) -> Welcome:
        """What it may do, for itself."""
        rights = client.rights or Rights()
        return Welcome(
            client.name,
            client.rights is not None,
            rights.publish,
            rights.subscribe,
            rights.record,
            rights.admin,
            self.limits.max_topics,
            self.limits.max_subscriptions,
            f"antiphon {__version__}",
        )

    def is_another(self, peer: int, update: Update) -> bool:
        """Whether a client that is known says now that it is somebody else."""
        client = self._known.get(peer)
        if client is None or update.since >= 0:
            return False
        return client.shown != (None if update.token is None else hash_token(update.token))

    def admit(self, peer: int, update: Update, topics: int, subscriptions: int) -> Refused | None:
        """What a client says of itself: who it is, if it says everything; None: let it in.

        ``topics`` and ``subscriptions`` are how many it has already.
        """
        if update.since < 0 or (update.since == 0 and peer not in self._known):
            found = self._find(None if update.token is None else hash_token(update.token))
            if isinstance(found, str):
                self.forget(peer)
                return self._turn_away(found)
            before = self._known.get(peer)
            if before is None or before.shown != found.shown:
                self._know(peer, found)
            topics = subscriptions = 0
        client = self._known.get(peer)
        if client is None:
            return None  # something before it is missing, and is asked for
        # A client that keeps to what it was told never comes here.
        limits = self.limits
        for what, had, new, most in (
            ("topics", topics, len(update.topics), limits.max_topics),
            ("subscriptions", subscriptions, len(update.subscriptions), limits.max_subscriptions),
        ):
            if new + had > most + (_REPLACED if had else 0):
                return self._turn_away(f"it announces {new + had} {what}; {most} are allowed")
        return None

    def _know(self, peer: int, client: Known) -> None:
        self.forget(peer)
        self._known[peer] = client
        self._limit(client)

    def _limit(self, client: Known) -> None:
        """By the limits of now."""
        rates = self.limits.max_events_per_s or 0.0, float(self.limits.max_bytes_per_s or 0)
        if client.quota is not None:
            client.quota.set(*rates)
        elif any(rates):
            client.quota = Quota(*rates)

    def forget(self, peer: int) -> None:
        """It has gone."""
        client = self._known.pop(peer, None)
        if client is not None and client.quota is not None:
            self._limited += client.quota.dropped

    @property
    def limited(self) -> int:
        """Events above the quotas of their clients."""
        quotas = (client.quota for client in self._known.values())
        return self._limited + sum(quota.dropped for quota in quotas if quota is not None)

    def overrun(self) -> Iterator[tuple[int, Refused]]:
        """Clients whose events were dropped since this was asked last, and what they are told."""
        for peer, client in self._known.items():
            if client.quota is None or client.quota.dropped == client.limited:
                continue
            lost, client.limited = client.quota.dropped - client.limited, client.quota.dropped
            allowed = [
                f"{rate:g} {what} a second"
                for rate, what in (
                    (self.limits.max_events_per_s, "events"),
                    (self.limits.max_bytes_per_s, "bytes"),
                )
                if rate is not None
            ]
            reason = f"{lost} events were dropped; it may publish {' and '.join(allowed)}"
            yield peer, Refused(client.name, "publish", None, reason)

    def get(self, peer: int) -> Known | None:
        """None: it has not said who it is. Where nobody has to, that does not matter."""
        if self._open and peer not in self._known:
            self._know(peer, Known(ANONYMOUS, None, None))
        return self._known.get(peer)

    def names(self) -> dict[int, str]:
        """Of all who have said who they are."""
        return {peer: client.name for peer, client in self._known.items()}

    # --- what it may do ---------------------------------------------------------------------

    def may(self, peer: int, action: str, topic: str) -> bool:
        """Whether a client may do that; one that has not said who it is may do nothing."""
        client = self._known.get(peer)
        if client is None:
            return self._open and not (topic.startswith(RESERVED) and action != "subscribe")
        return client.allows(action, topic)

    def publishes(self, peer: int, number: int, name: str, known: int) -> str | None:
        """None, or why this publisher does not count; ``known`` are those it has."""
        client = self._known.get(peer)
        why = self.why(peer, "publish", name)
        if why is None and known > self.limits.max_topics:
            why = f"a client may publish {self.limits.max_topics} topics"
        if why is not None and client is not None:
            self.refused += 1
            client.refused_topics.add(number)
        return why

    def refuse_topic(self, peer: int, number: int) -> None:
        """This publisher does not count after all."""
        client = self._known.get(peer)
        if client is not None:
            client.refused_topics.add(number)

    def records(self, peer: int, name: str, producer: int = 0) -> str | None:
        """None, or why a client may not have this topic recorded, which is counted then.

        Of a producer some of whose events were refused no others are taken while it is connected:
        they would pass for acknowledged.
        """
        client = self._known.get(peer)
        why = self.why(peer, "publish", name) or self.why(peer, "record", name)
        if why is None and client is not None and producer in client.unrecorded:
            why = "some of its events were refused; make the publisher anew"
        if why is not None:
            self.refused += 1
            if client is not None and producer:
                client.unrecorded.add(producer)
        return why

    def may_begin(self, peer: int) -> str | None:
        """None, or why a topic is not recorded because of this client: it has begun too many.

        Counted by its name, which it keeps when it comes again.
        """
        begun = self._name(peer)
        if self._recorded[begun] >= self.limits.max_recorded:
            self.refused += 1
            return f"a client may have {self.limits.max_recorded} topics recorded"
        self._recorded[begun] += 1
        return None

    def did_not_begin(self, peer: int) -> None:
        """The disk failed: it does not count."""
        self._recorded[self._name(peer)] -= 1

    def _name(self, peer: int) -> str:
        client = self._known.get(peer)
        return ANONYMOUS if client is None else client.name

    def unpublishes(self, peer: int, number: int) -> bool:
        """Whether it had been refused, and never counted."""
        client = self._known.get(peer)
        if client is None or number not in client.refused_topics:
            return False
        client.refused_topics.discard(number)
        return True

    def subscribes(self, peer: int, subscribed: Subscribed, known: int) -> str | None:
        """None, or why this subscription does not count; ``known`` are those it has."""
        client = self._known.get(peer)
        why = self.why(peer, "subscribe", subscribed.pattern)
        if why is None and known > self.limits.max_subscriptions:
            why = f"a client may have {self.limits.max_subscriptions} subscriptions"
        if why is not None and client is not None:
            self.refused += 1
            client.refused_flows[subscribed.flow] = why
        return why

    def refuse_flow(self, peer: int, flow: int, why: str) -> None:
        """This subscription does not count after all."""
        client = self._known.get(peer)
        if client is not None:
            client.refused_flows[flow] = why

    def unsubscribes(self, peer: int, flow: int) -> bool:
        """Whether it had been refused, and never counted."""
        client = self._known.get(peer)
        if client is None or flow not in client.refused_flows:
            return False
        del client.refused_flows[flow]
        return True

    def why(self, peer: int, action: str, topic: str) -> str | None:
        """None, or why a client may not do that."""
        if self.may(peer, action, topic):
            return None
        client = self._known.get(peer)
        if topic.startswith(RESERVED) and action != "subscribe":
            return "it is one of the broker's own topics"
        rights = None if client is None else client.rights
        allowed = ", ".join(getattr(rights, action)[:5]) if rights is not None else ""
        return f"it may {action} {allowed or 'nothing'}"

    def notice(self, peer: int, action: str, topic: str, reason: str) -> Refused | None:
        """What it is told; None: it was told often enough."""
        client = self._known.get(peer)
        if client is None or client.notices == 0:
            return None
        client.notices -= 1
        return Refused(client.name, action, topic, reason)

    # --- when the rules have changed --------------------------------------------------------

    def again(self) -> Iterator[tuple[int, Known | Refused]]:
        """Everybody anew, after `configure`: as whom they are known now, or why not."""
        for peer, before in list(self._known.items()):
            found = self._find(before.shown)
            if isinstance(found, str):
                yield peer, self._turn_away(found, before.name)
                continue
            before.name, before.rights, before.notices = found.name, found.rights, _MOST_NOTICES
            self._limit(before)
            yield peer, before

    def shown(self, peer: int, update: Update) -> Update:
        """What it gets to see of the broker's topics and wishes."""
        client = self._known.get(peer)
        if client is None or client.rights is None:
            return update
        rights = client.rights
        update.topics = {
            number: name
            for number, name in update.topics.items()
            if rights.allow("subscribe", name)
        }
        update.subscriptions = [
            one for one in update.subscriptions if rights.allow("publish", one.pattern)
        ]
        return update
