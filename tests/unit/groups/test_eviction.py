"""Members that live and hold up others, in simulated courses: told, put out by policy, and back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from antiphon import ConfigError, GroupConfig
from antiphon.groups.layers import (
    Discovery,
    FailureDetection,
    Fifo,
    Membership,
    Stability,
    Tcp,
)
from antiphon.groups.messages import Find, Found
from antiphon.groups.protocol import HeldUp, Layer, Received, Send
from antiphon.groups.simulator import Faults, Simulator
from antiphon.groups.view import Member

from .courses import Course


def stack(evict: bool = False, stability: float = 20.0) -> list[Layer]:
    return [
        Tcp(),
        Discovery(),
        FailureDetection(stuck=10.0, evict_stuck=evict),
        Membership(),
        Fifo(),
        Stability(timeout=stability),
    ]


def evicting() -> list[Layer]:
    return stack(evict=True)


def group(size: int, make: Callable[[], list[Layer]] = stack) -> Simulator:
    sim = Simulator(1, make, Faults(delay=(0.001, 0.05)))
    for node in range(1, size + 1):
        sim.join(node)
    assert sim.run_until(sim.agreed, 20)
    return sim


def size_at(sim: Simulator, node: int) -> int:
    view = sim.people[node].view
    return len(view) if view is not None else 0


def test_one_that_hangs_is_told_to_all_and_stays() -> None:
    sim = group(3)
    hung = sim.people[2]
    hung.hung = sim.now
    sim.run(sim.now + 9)
    assert sim.people[1].stuck == set()
    sim.run(sim.now + 3)
    assert sim.people[1].stuck == sim.people[3].stuck == {hung.me.life}
    sim.run(sim.now + 60)
    assert size_at(sim, 1) == 3
    hung.hung = None
    sim.run(sim.now + 2)
    assert sim.people[1].stuck == set()
    assert all(len(one.views) <= 3 for one in sim.people.values())


@pytest.mark.parametrize("node", [1, 2, 3], ids=["coordinator", "next", "youngest"])
def test_one_that_hangs_is_put_out_by_policy_and_back_when_it_goes_on(node: int) -> None:
    sim = group(3, evicting)
    hung = sim.people[node]
    life, others = hung.me.life, [other for other in (1, 2, 3) if other != node]
    hung.hung = sim.now
    assert sim.run_until(lambda: all(size_at(sim, one) == 2 for one in others), 15)
    assert sim.now > 10
    sim.run(sim.now + 30)
    # Out for as long as it hangs, or it would be put out again and again.
    assert all(size_at(sim, one) == 2 for one in others)
    hung.hung = None
    assert sim.run_until(sim.agreed, 20)
    assert hung.me.life != life


@pytest.mark.parametrize("node", [1, 3], ids=["coordinator", "youngest"])
def test_one_that_holds_up_a_sender_is_put_out(node: int) -> None:
    sim = group(3)
    hung = sim.people[node]
    hung.hung = sim.now
    sim.people[2].full = sim.now
    sim.run(sim.now + 18)
    assert size_at(sim, 2) == 3
    assert sim.run_until(lambda: size_at(sim, 2) == 2, 5)
    others = [other for other in (1, 2, 3) if other != node]
    assert sim.run_until(lambda: all(size_at(sim, one) == 2 for one in others), 5)
    hung.hung = None
    assert sim.run_until(sim.agreed, 20)


def test_nobody_is_put_out_where_that_is_not_wanted() -> None:
    sim = group(3, lambda: stack(stability=0.0))
    sim.people[3].hung = sim.people[2].full = sim.now
    sim.run(sim.now + 120)
    assert size_at(sim, 2) == 3


def test_of_two_that_accuse_each_other_one_stays() -> None:
    sim = group(4)
    for node in (3, 4):
        sim.people[node].hung = sim.people[node].full = sim.now
    sim.run(sim.now + 30)
    # Each saw the other hang, and both hang: a sender that is not behind itself had no word in it.
    assert size_at(sim, 1) == 2 or size_at(sim, 1) == 3
    for node in (3, 4):
        sim.people[node].hung = sim.people[node].full = None
    assert sim.run_until(sim.agreed, 30)


def test_a_wish_that_is_not_repeated_is_forgotten() -> None:
    """The accused one coordinates; its accuser does not wait for the next one for ever."""
    sim = group(3)
    view = sim.people[1].view
    assert view is not None
    first, (accused, following, accuser) = view.coordinator.life, [one.id for one in view.members]
    sim.partition([(accused, accuser), (following,)])
    one = sim.people[accuser]
    sim._carry_out(one, one.stack.up(HeldUp(first, 25.0), sim.now))
    sim.run(sim.now + 0.5)
    sim.heal()
    sim.run(sim.now + 4)
    sim.join(4)
    assert sim.run_until(sim.agreed, 20)
    assert sim.people[accused].me.life == first


def test_whoever_joins_is_not_sent_to_one_that_is_being_put_out() -> None:
    sim = group(3)
    view = sim.people[1].view
    assert view is not None
    first, second, third = view.members
    sim.partition([(first.id, third.id), (second.id,)])  # its wish does not come to the next one
    one = sim.people[third.id]
    sim._carry_out(one, one.stack.up(HeldUp(first.life, 25.0), sim.now))
    newcomer = Member(4, "m4", "sim://4", 77)
    answers = one.stack.up(Received(4, Find(newcomer)), sim.now)
    (found,) = [sent.message for sent in answers if isinstance(sent, Send)]
    assert isinstance(found, Found)
    assert found.coordinator == second


@pytest.mark.timeout(3600)
def test_nobody_that_goes_on_is_put_out_whatever_happens(count: Callable[[int, int], int]) -> None:
    """Handlers that take long, but not too long, windows that are full, joins, leaves, crashes."""
    for seed in range(count(300, 10_000)):
        course = Course(seed, evicting, cuts=False, loss=False)
        step = course.step

        def busy(course: Course = course, step: Callable[[], None] = step) -> None:
            sim, choice = course.sim, course.choice
            for person in sim.people.values():
                # It hangs for less than any time that counts, even told a heartbeat late.
                person.hung = sim.now - choice.uniform(0, 4) if choice.random() < 0.5 else None
                person.full = sim.now if choice.random() < 0.5 else None
            step()

        course.step = busy  # type: ignore[method-assign]
        course.run()
        for person in course.sim.people.values():
            person.hung = person.full = None
        course.check_agreement()
        course.check_views()
        for person in course.everyone:
            counts = person.stack.find("membership").statistics()  # type: ignore[union-attr]
            assert counts["evicted"] == 0, course.told()
            assert person.stack.find("stability").statistics()["excluded"] == 0  # type: ignore[union-attr]


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="evict_stuck"):
        GroupConfig(evict_stuck=True, stuck_after=0)
    with pytest.raises(ConfigError, match="evict_stuck"):
        FailureDetection(stuck=0, evict_stuck=True)
    for setting in ({"stuck_after": -1}, {"stability_timeout": 4000}, {"evict_stuck": 1}):
        with pytest.raises(ConfigError, match=next(iter(setting))):
            GroupConfig(**setting)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="stability"):
        Stability(timeout=-1)
