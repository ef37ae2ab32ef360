"""Keys of views, in simulated courses: who has which, and who has none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from antiphon import ConfigError
from antiphon.groups.layers import Discovery, Encryption, FailureDetection, Membership, Tcp
from antiphon.groups.layers.encryption import ViewKey
from antiphon.groups.messages import ViewMessage
from antiphon.groups.protocol import Installed, Layer, Received, Send, Signal, Stack
from antiphon.groups.simulator import Faults, Person, Simulator

from .courses import Course

Name = tuple[int, int, int]


class Datagrams(Layer):
    """A transport by the name of the real one."""

    name = "udp"
    transport = True


class Told(Layer):
    """Notes every key that its member is told, or has."""

    name = "told"

    def __init__(self) -> None:
        self.keys: dict[Name, bytes] = {}
        self.views: dict[Name, tuple[int, ...]] = {}

    def up(self, event: Signal, now: float) -> None:
        if isinstance(event, Received) and isinstance(event.message, ViewMessage):
            self.note(event.message)
        self.pass_up(event, now)

    def down(self, event: Signal, now: float) -> None:
        if isinstance(event, Send) and isinstance(event.message, ViewMessage):
            self.note(event.message)
        self.pass_down(event, now)

    def note(self, message: ViewMessage) -> None:
        record = message.record
        if message.key:
            name = (record.founded, record.id, record.coordinator.life)
            assert self.keys.setdefault(name, message.key) == message.key
            self.views[name] = tuple(member.id for member in record.members)


def sealed() -> list[Layer]:
    return [Datagrams(), Told(), Discovery(), FailureDetection(), Encryption(), Membership()]


def layer(person: Person) -> Encryption:
    found = person.stack.find("encryption")
    assert isinstance(found, Encryption)
    return found


def told(person: Person) -> Told:
    found = person.stack.find("told")
    assert isinstance(found, Told)
    return found


def key(sim: Simulator, node: int) -> ViewKey:
    found = layer(sim.people[node]).current
    assert found is not None
    return found


def group(size: int, faults: Faults | None = None) -> Simulator:
    sim = Simulator(1, sealed, faults)
    for node in range(1, size + 1):
        sim.join(node)
    assert sim.run_until(sim.agreed, 30)
    return sim


def check_keys(course: Course) -> None:
    """Nobody is told a key of a view that it is not in, and no two views have one key."""
    all_keys: dict[Name, bytes] = {}
    for person in course.everyone:
        for name, one in told(person).keys.items():
            assert all_keys.setdefault(name, one) == one, course.told()
            assert person.node in told(person).views[name], course.told()
    assert len(set(all_keys.values())) == len(all_keys), course.told()


@pytest.mark.timeout(3600)
def test_all_members_of_a_view_have_its_key_and_nobody_else_does(
    count: Callable[[int, int], int],
) -> None:
    for seed in range(count(300, 10_000)):
        course = Course(seed, sealed).run()
        course.check_agreement()
        course.check_views()
        check_keys(course)
        keys = {layer(one).current for one in course.sim.people.values()}
        assert len(keys) == 1, course.told()
        assert None not in keys, course.told()


def test_every_view_has_another_key() -> None:
    sim = group(1)
    seen = [key(sim, 1).key]
    for node in (2, 3):
        sim.join(node)
        assert sim.run_until(sim.agreed, 20)
        seen.append(key(sim, 1).key)
    sim.crash(3)
    assert sim.run_until(sim.agreed, 20)
    seen.append(key(sim, 1).key)
    assert len(set(seen)) == 4
    assert {len(one) for one in seen} == {32}
    assert key(sim, 2).senders == tuple(one.life for one in sim.people[1].view.members)  # type: ignore[union-attr]


def test_one_that_leaves_is_not_told_the_next_key() -> None:
    sim = group(3)
    leaver = sim.people[3]
    before = set(told(leaver).keys.values())
    sim.leave(3)
    assert sim.run_until(lambda: leaver.left and sim.agreed(), 20)
    assert key(sim, 1).key not in before | set(told(leaver).keys.values())


def test_a_coordinator_that_leaves_does_not_draw_the_next_key() -> None:
    sim = group(3)
    leaver = sim.people[1]
    drawn = layer(leaver).statistics()["drawn"]
    sim.leave(1)
    assert sim.run_until(lambda: leaver.left and sim.agreed(), 20)
    assert layer(leaver).statistics()["drawn"] == drawn
    assert key(sim, 2) == key(sim, 3)
    assert key(sim, 2).key not in told(leaver).keys.values()


def test_a_view_reaches_all_although_its_coordinator_did_not_hear_of_it_first() -> None:
    sim = group(4)
    sim.partition([(1, 3, 4), (2,)])  # the next one misses the word
    sim.leave(1)
    sim.run(sim.now + 0.1)
    sim.heal()
    assert sim.run_until(sim.agreed, 20)
    assert key(sim, 2) == key(sim, 3) == key(sim, 4)


def test_one_that_is_put_out_has_no_key_until_it_is_in_again() -> None:
    sim = group(3)
    other = sim.people[3]
    life = other.me.life
    sim.partition([(1, 2), (3,)])
    assert sim.run_until(lambda: len(sim.people[1].view or ()) == 2, 20)
    without = key(sim, 1)
    sim.heal()
    assert sim.run_until(sim.agreed, 30)
    assert other.me.life != life
    assert without.key not in told(other).keys.values()
    assert key(sim, 3) == key(sim, 1) != without


def test_a_view_without_its_key_does_not_hold() -> None:
    sim = group(2)
    record_of = sim.people[1].stack.find("membership")._record  # type: ignore[union-attr]
    other = sim.people[2]
    later = type(record_of)(record_of.id + 1, record_of.founded, record_of.members)
    actions = other.stack.up(Received(1, ViewMessage(later)), sim.now)
    assert not any(isinstance(one, Installed) for one in actions)
    assert layer(other).statistics()["without"] == 1
    actions = other.stack.up(Received(1, ViewMessage(later, bytes(32))), sim.now)
    assert any(isinstance(one, Installed) for one in actions)


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(ViewKey(3, b"secret" * 6, (1,)))


def test_it_is_for_datagrams_and_stands_below_membership() -> None:
    with pytest.raises(ConfigError, match="'encryption' needs 'udp' below it"):
        Stack([Tcp(), Discovery(), FailureDetection(), Encryption(), Membership()])
    with pytest.raises(ConfigError, match="'encryption' belongs below 'membership'"):
        Stack([Datagrams(), Discovery(), FailureDetection(), Membership(), Encryption()])
