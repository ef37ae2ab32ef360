"""What buses tell each other: a ledger against tables that miss, repeat and delay what it says."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from antiphon.topics.announcements import Changes, Ledger, Subscribed, Table, Update, decode, encode

NAMES = st.sampled_from(["a", "a/b", "plant/7/temp"])
NUMBERS = st.integers(1, 6)
WHERE = st.sampled_from([None, "site = 'A'"])

LISTENERS = range(3)

Content = tuple[dict[int, str], dict[int, Subscribed]]


def over_the_wire(update: Update) -> Update:
    """As the other side gets it."""
    got = decode(encode(update))
    assert isinstance(got, Update)
    return got


def after(content: Content, changes: Changes) -> Content:
    """What somebody has who hears of changes only: first what went, then what came."""
    topics, subscriptions = dict(content[0]), dict(content[1])
    for number, name in changes.topics_went.items():
        assert topics.pop(number) == name
    for gone in changes.went:
        assert subscriptions.pop(gone.flow) == gone
    for number, name in changes.topics_came.items():
        assert topics.setdefault(number, name) == name
    for came in changes.came:
        assert subscriptions.setdefault(came.flow, came) == came
    return topics, subscriptions


class Telling(RuleBasedStateMachine):
    """A ledger that changes, and tables that are told of it over a way that loses and reorders.

    The model is a copy of the ledger's content at each version. Whatever a table was told, it holds
    what the ledger held at the table's version, and so does whoever followed its changes alone.
    """

    updates: Bundle[Any] = Bundle("updates")

    @initialize()
    def begin(self) -> None:
        self.ledger = Ledger(7)
        self.history: list[Content] = [({}, {})]
        self.tables = [Table(7) for _ in LISTENERS]
        self.followed: list[Content] = [({}, {}) for _ in LISTENERS]

    def changed(self) -> None:
        content = dict(self.ledger.topics), dict(self.ledger.subscriptions)
        assert self.ledger.version in (len(self.history) - 1, len(self.history))
        if self.ledger.version == len(self.history):
            self.history.append(content)
        else:
            assert content == self.history[-1]  # no version without a change, and the reverse

    # --- the ledger -------------------------------------------------------------------------

    @rule(number=NUMBERS, name=NAMES)
    def publish(self, number: int, name: str) -> None:
        self.ledger.publish(number, name)
        self.changed()

    @rule(number=NUMBERS)
    def unpublish(self, number: int) -> None:
        self.ledger.unpublish(number)
        self.changed()

    @rule(flow=NUMBERS, pattern=NAMES, where=WHERE)
    def subscribe(self, flow: int, pattern: str, where: str | None) -> None:
        self.ledger.subscribe(Subscribed(flow, pattern, 64, where))
        self.changed()

    @rule(flow=NUMBERS)
    def unsubscribe(self, flow: int) -> None:
        self.ledger.unsubscribe(flow)
        self.changed()

    @rule(number=NUMBERS)
    def come_and_go_for_longer_than_is_remembered(self, number: int) -> None:
        for turn in range(600):
            self.ledger.publish(number, f"x/{turn}")
            self.changed()
            self.ledger.unpublish(number)
            self.changed()

    # --- what is said -----------------------------------------------------------------------

    @rule(target=updates, who=st.sampled_from(LISTENERS))
    def answer(self, who: int) -> Update:
        """To one who has said what it has."""
        return over_the_wire(self.ledger.since(self.tables[who].version))

    @rule(target=updates, back=st.integers(0, 2000))
    def tell(self, back: int) -> Update:
        """To one who is believed to have some version, rightly or not."""
        return over_the_wire(self.ledger.since(max(-1, self.ledger.version - back)))

    @rule(update=consumes(updates))
    def lose(self, update: Update) -> None:
        """On the way."""

    @rule(target=updates, update=consumes(updates))
    def repeat(self, update: Update) -> Any:
        return multiple(update, update)

    @rule(who=st.sampled_from(LISTENERS), update=consumes(updates))
    def hear(self, who: int, update: Update) -> None:
        table = self.tables[who]
        before = table.version
        changes = table.apply(update)
        if changes is None:
            assert update.since > before  # there is a gap, and nothing has happened
            assert table.version == before
        else:
            self.followed[who] = after(self.followed[who], changes)

    # --- what must be so --------------------------------------------------------------------

    @invariant()
    def tables_hold_what_was_there_at_their_version(self) -> None:
        for table, followed in zip(self.tables, self.followed, strict=True):
            assert (table.topics, table.subscriptions) == self.history[table.version]
            assert followed == self.history[table.version]

    @precondition(lambda self: self.ledger.version > 0)
    @rule(who=st.sampled_from(LISTENERS))
    def ask_and_be_answered(self, who: int) -> None:
        """One question suffices, from any state."""
        self.hear(who, over_the_wire(self.ledger.since(self.tables[who].version)))
        assert self.tables[who].version == self.ledger.version


TestTelling = Telling.TestCase
TestTelling.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


# --- how much is said -----------------------------------------------------------------------------

TOPICS = 50_000


def full_ledger(topics: int) -> Ledger:
    ledger = Ledger(2**63)
    for number in range(1, topics + 1):
        ledger.publish(number, f"plant/{number:06}/temp")
    return ledger


def test_what_a_change_costs_does_not_depend_on_how_much_there_is() -> None:
    sizes = {}
    for topics in (50, TOPICS):
        ledger = full_ledger(topics)
        known = ledger.version
        assert len(encode(ledger.since(known))) < 40  # nothing new
        ledger.publish(topics + 1, "plant/one/more")
        ledger.unpublish(1)
        ledger.subscribe(Subscribed(9, "plant/*/temp", 1024, "temp > 30"))
        update = ledger.since(known)
        assert update.since == known
        sizes[topics] = len(encode(update))
    # Numbers take a byte or three.
    assert sizes[50] <= sizes[TOPICS] < sizes[50] + 20 < 150


def test_who_has_been_away_for_a_while_is_told_that_while_and_no_more() -> None:
    """Up to what is remembered; then everything, once."""
    ledger = full_ledger(TOPICS)
    everything = len(encode(ledger.since(0)))
    known = ledger.version
    for number in range(1, 501):
        ledger.unpublish(number)
        ledger.publish(number, f"moved/{number}")
    # Of each the last word only.
    update = ledger.since(known)
    assert len(update.topics) == 500
    assert not update.gone_topics
    assert len(encode(update)) < everything / 50
    for number in range(1, 501):
        ledger.unpublish(number)
    assert ledger.since(known).since == -1
    assert len(encode(ledger.since(known))) < everything


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_changes_that_cancel_each_other_are_told_as_what_is_left(numbers: list[int]) -> None:
    """However often something comes and goes, an update has one word on it."""
    ledger = full_ledger(5)
    known = ledger.version
    for number in numbers:
        if number in ledger.topics:
            ledger.unpublish(number)
        else:
            ledger.publish(number, "again")
    update = ledger.since(known)
    assert {*update.topics, *update.gone_topics} == set(numbers)
    assert len(update.topics) + len(update.gone_topics) == len(set(numbers))
