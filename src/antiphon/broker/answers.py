"""What a broker answers to those of its clients that ask, and who may ask what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from antiphon.broker.durable import Deliveries, dead_topic
from antiphon.broker.permissions import Known
from antiphon.broker.recording import no_store
from antiphon.errors import PermissionDenied
from antiphon.topics.asking import Claim, Heard, NotAdmitted
from antiphon.topics.kinds import check_text
from antiphon.topics.rights import Refused, denied

if TYPE_CHECKING:
    from antiphon.broker.broker import Broker

__all__ = ["Answers"]


class Answers:
    """Those of one broker. On a scheduler thread; raises what the one who asks raises."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def record(self, source: int, topic: str) -> None:
        """From now on, for whoever may publish and record it."""
        name = check_text(topic)
        broker = self._broker
        with broker._lock:
            client = self._admitted(source)
            why = broker._gate.records(source, name)
            begins = broker._recording is not None and name not in broker._recording
            if why is None and begins:
                why = broker._gate.may_begin(source)
            if why is not None:
                raise self._denied(client, "record", name, why)
            recording = broker._recording
            if recording is None:
                raise no_store("record")
        try:
            recording.open(name)
        except BaseException:
            if begins:
                broker._gate.did_not_begin(source)
            raise
        with broker._lock:
            self._admitted(source)
            broker._start_recording(broker._topic(name))
            broker._changed.notify_all()

    def claim(self, source: int, claim: Claim) -> None:
        """Whether a subscription may be so."""
        broker = self._broker
        with broker._lock:
            client = self._admitted(source)
            why = broker._gate.why(source, "subscribe", claim.pattern)
            if why is None and claim.durable is not None and broker._deliveries is not None:
                deliveries = broker._deliveries
                why = deliveries.keeps_from(client, claim.durable)
                most = broker._gate.limits.max_durables
                why = why or deliveries.too_many(source, client, claim.durable, most)
            if why is not None:
                broker._gate.refused += 1
                raise self._denied(client, "subscribe", claim.pattern, why)
            if broker._recording is None and (claim.start or claim.durable is not None):
                raise no_store("durable" if claim.durable is not None else "start")
            if broker._deliveries is not None:
                broker._deliveries.claim(source, claim)
            recording = broker._recording
            letters = None if claim.durable is None else dead_topic(claim.durable)
            known = recording is not None and letters is not None and letters in recording
        if known and recording is not None and letters is not None:
            recording.open(letters)  # what is wrong with it is said at the call

    def forget(self, source: int, name: str) -> None:
        """A durable subscription of the client's own, or of one that it looks after."""
        with self._broker._lock:
            self._of(source, name).forget(name)

    def release(self, source: int, flow: int) -> None:
        """What a subscription of the client's has not acknowledged is for others."""
        with self._broker._lock:
            self._admitted(source)
            if self._broker._deliveries is not None:
                self._broker._deliveries.said_all((source, flow))

    def heard(self, source: int, question: Heard) -> tuple[bool, bool]:
        """Whether a client's subscription begins where it is to, and whether that is on the disk.

        With no subscription: whether all that it said is known.
        """
        broker, flow = self._broker, question.flow
        with broker._lock:
            client = self._admitted(source)
            one = broker._neighbours.all.get(source)
            table = None if one is None else one.table
            if table is None or table.incarnation != question.incarnation:
                return False, False
            if table.version < question.version:
                return False, False
            subscribed = None if flow is None else table.subscriptions.get(flow)
            if subscribed is None:
                return True, True
            why = client.refused_flows.get(subscribed.flow)
            if why is not None:
                raise self._denied(client, "subscribe", subscribed.pattern, why)
            place = (source, subscribed.flow)
            letters = broker._letters_wanted(place)
            recording = broker._recording
        if letters is not None and recording is not None:
            recording.open(letters)  # what is wrong with it is said at the call
        with broker._lock:
            if letters is not None:
                broker._is_ready(letters)
            interest = broker._interests.get(*place)
            # One that has been ended meanwhile was told so.
            if interest is None or not interest.named or broker._deliveries is None:
                return True, True
            return broker._deliveries.stands(place)

    def durables(self, source: int) -> list[dict[str, Any]]:
        """Those of the client's own, and those that it looks after."""
        with self._broker._lock:
            client = self._admitted(source)
            deliveries = self._deliveries()
            found = deliveries.describe(client)
        return deliveries.with_lag(found)

    def replay_dead(self, source: int, name: str, limit: int) -> int:
        """How many dead letters went back to their topics."""
        with self._broker._lock:
            deliveries = self._of(source, name)
        return deliveries.replay_dead(name, limit, self._broker._lock)

    # --- who asks ---------------------------------------------------------------------------

    def _admitted(self, source: int) -> Known:
        client = self._broker._gate.get(source)
        if client is None or source in self._broker._entrance.dismissed:
            self._broker._gate.refused += 1
            raise NotAdmitted(f"the broker does not know client {source}, or has turned it away")
        return client

    def _of(self, source: int, name: str) -> Deliveries:
        """Where a name that belongs to the one who asks is; raises `PermissionDenied`."""
        client = self._admitted(source)
        deliveries = self._deliveries()
        why = deliveries.keeps_from(client, name)
        if why is not None:
            self._broker._gate.refused += 1
            raise self._denied(client, "admin", None, why)
        return deliveries

    def _deliveries(self) -> Deliveries:
        if self._broker._recording is None or self._broker._deliveries is None:
            raise no_store("durable")
        return self._broker._deliveries

    def _denied(
        self, client: Known, action: str, topic: str | None, reason: str
    ) -> PermissionDenied:
        return denied(Refused(client.name, action, topic, reason), self._broker.address)
