"""Membership in simulated courses: what all members see, and that they come to agree."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from antiphon.groups.layers import (
    Delay,
    Discovery,
    Drop,
    Duplicate,
    FailureDetection,
    Membership,
    Tcp,
)
from antiphon.groups.messages import Found, Suspects, decode, encode
from antiphon.groups.protocol import Installed, JoinGroup, Layer, Received, Stack
from antiphon.groups.simulator import Faults, Simulator
from antiphon.groups.view import Member
from unit.groups.courses import Course, plain

pytestmark = pytest.mark.timeout(120)


def primary() -> list[Layer]:
    return [Tcp(), Discovery(), FailureDetection(), Membership(primary=True)]


def joined(number: int, make: Callable[[], list[Layer]] = plain, seed: int = 1) -> Simulator:
    sim = Simulator(seed, make)
    for node in range(1, number + 1):
        sim.join(node)
        sim.run_until(sim.agreed, 20, step=0.01)
    assert sim.agreed()
    return sim


def down_to(sim: Simulator, number: int, most: float) -> bool:
    return sim.run_until(lambda: len(sim.people) == number and sim.agreed(), most, step=0.01)


def sizes(sim: Simulator, node: int) -> list[int]:
    return [len(view) for view in sim.people[node].views]


def lives(sim: Simulator) -> dict[int, int]:
    return {node: one.me.life for node, one in sim.people.items()}


@pytest.mark.timeout(3600)
def test_whatever_happens_all_agree_in_the_end(count: Callable[[int, int], int]) -> None:
    for seed in range(count(300, 10_000)):
        course = Course(seed).run()
        course.check_agreement()
        course.check_views()


@pytest.mark.parametrize("seed", [428, 1671, 1941, 2742, 5702, 6610, 7659, 8592])
def test_courses_that_once_went_wrong_go_well(seed: int) -> None:
    """Views of one name that differed, and members that waited for a life that was over."""
    course = Course(seed).run()
    course.check_agreement()
    course.check_views()


@pytest.mark.timeout(3600)
def test_of_the_parts_of_a_group_at_most_one_goes_on(count: Callable[[int, int], int]) -> None:
    some = 0
    for seed in range(count(300, 10_000)):
        choice = random.Random(f"parts {seed}")
        sim = Simulator(seed, primary)
        for node in range(1, choice.randint(3, 8)):
            sim.join(node)
        assert sim.run_until(sim.agreed, 20)
        for _ in range(choice.randint(1, 3)):
            sim.run(sim.now + 8)  # what has happened is known to those whom it concerns
            parts: list[list[int]] = [[], [], []]
            for node in sim.people:
                parts[choice.choice([0, 0, 1, 1, 2])].append(node)
            if choice.random() < 0.5 and len(sim.people) > 2:
                sim.crash(choice.choice(list(sim.people)), noticed=choice.random() < 0.5)
            sim.partition(parts)
            sim.run(sim.now + 12)
            going_on = {
                tuple(member.life for member in one.view.members)
                for one in sim.people.values()
                if one.view is not None and one.view.primary
            }
            assert len(going_on) <= 1, f"seed {seed}"
            some += len(going_on)
            sim.heal()
    assert some > 0


@pytest.mark.parametrize("date", [0.0, -1.0, 1.8e9, 4e10, 1e300])
def test_the_age_of_a_group_can_be_sent_whatever_the_clock_says(date: float) -> None:
    stack = Stack(plain(), random.Random(1), lambda: date)
    me = Member(1, "m1", "sim://1", 7)
    stack.down(JoinGroup(me), 3e7)  # a machine that has been up for a year
    (view,) = [one for one in stack.tick(3e7 + 1) if isinstance(one, Installed)]
    found = Found(me, me, 1, 1, view.record.founded)
    assert decode(encode("g", found)) == ("g", found)


def test_of_two_groups_the_older_one_stays_however_long_their_machines_have_been_up() -> None:
    sim = Simulator(1, plain)
    sim.partition([[1], [2]])
    # The machine of the first was booted long before that of the second: its own clock is ahead.
    early = sim.join(1).stack
    up, down, tick = early.up, early.down, early.tick
    early.up = lambda event, now: up(event, now + 1e6)  # type: ignore[method-assign]
    early.down = lambda event, now: down(event, now + 1e6)  # type: ignore[method-assign]
    early.tick = lambda now: tick(now + 1e6)  # type: ignore[method-assign]
    sim.run(10)
    sim.join(2)
    sim.run(20)
    before = lives(sim)
    sim.heal()
    assert sim.run_until(sim.agreed, 20)
    assert lives(sim)[1] == before[1]
    assert lives(sim)[2] != before[2]


def test_a_course_is_the_same_again_from_its_seed() -> None:
    def told(seed: int) -> list[list[str]]:
        return [[str(view) for view in one.views] for one in Course(seed).run().everyone]

    assert told(7) == told(7)
    assert told(7) != told(8)


def test_one_that_is_alone_has_a_view_of_its_own_at_once() -> None:
    sim = Simulator(1, plain)
    sim.join(1)
    assert sim.run_until(sim.agreed, 0.3, step=0.01)


def test_a_member_joins_and_is_the_youngest() -> None:
    sim = joined(3)
    view = sim.people[3].view
    assert view is not None
    assert [member.id for member in view.members] == [1, 2, 3]
    assert view.coordinator.id == 1
    assert sim.people[1].views[-1].joined == (sim.people[3].me,)
    assert sim.people[3].views[-1].reason == "m3 joined"


def test_twenty_that_begin_together_are_one_group() -> None:
    for seed in range(5):
        sim = Simulator(seed, plain)
        for node in range(1, 21):
            sim.join(node)
        assert sim.run_until(sim.agreed, 5, step=0.01)
        # One begins, and all others come with one view, or two.
        assert max(len(one.views) for one in sim.people.values()) <= 3


def test_joins_and_leaves_at_one_moment_are_one_view() -> None:
    sim = joined(5)
    before = sim.people[1].views[-1].id
    sim.join(6)
    sim.join(7)
    sim.leave(4)
    sim.leave(5)
    assert down_to(sim, 5, 5)
    assert sim.people[1].views[-1].id - before <= 2


def test_coordinator_and_next_leave_together() -> None:
    sim = joined(5)
    sim.leave(1)
    sim.leave(2)
    assert down_to(sim, 3, 2)
    view = sim.people[3].views[-1]
    assert view.coordinator.id == 3
    # All who went had said so.
    assert all(not view.crashed for one in sim.people.values() for view in one.views)


def test_the_first_half_leaves() -> None:
    sim = joined(8)
    for node in (1, 2, 3, 4):
        sim.leave(node)
    assert down_to(sim, 4, 3)
    assert [member.id for member in sim.people[8].views[-1].members] == [5, 6, 7, 8]
    assert all(not view.crashed for one in sim.people.values() for view in one.views)


def test_the_last_one_leaves_too() -> None:
    sim = joined(2)
    people = list(sim.people.values())
    sim.leave(1)
    sim.leave(2)
    sim.run(sim.now + 5)
    assert all(one.left for one in people)


@pytest.mark.parametrize("noticed", [True, False])
def test_one_that_crashes_is_out_in_time(noticed: bool) -> None:
    sim = joined(4)
    sim.crash(3, noticed=noticed)
    assert sim.run_until(sim.agreed, 1.0 if noticed else 4.5, step=0.01)
    assert [member.id for member in sim.people[1].views[-1].crashed] == [3]


@pytest.mark.parametrize("noticed", [True, False])
def test_the_next_one_coordinates_when_the_coordinator_crashes(noticed: bool) -> None:
    sim = joined(4)
    sim.crash(1, noticed=noticed)
    assert sim.run_until(sim.agreed, 1.2 if noticed else 5.0, step=0.01)
    assert sim.people[4].views[-1].coordinator.id == 2


def test_several_that_crash_together_go_with_few_views() -> None:
    sim = joined(8)
    before = sim.people[1].views[-1].id
    for node in (3, 5, 7):
        sim.crash(node)
    assert sim.run_until(sim.agreed, 2, step=0.01)
    assert sim.people[1].views[-1].id - before <= 2


def test_a_lost_connection_alone_puts_nobody_out() -> None:
    sim = joined(3)
    before = lives(sim)
    for _ in range(20):
        for one, other in ((1, 2), (2, 1), (3, 1)):
            sim._disconnected(sim.people[one], other)
        sim.run(sim.now + 0.5)
    assert lives(sim) == before
    assert sizes(sim, 1)[-1] == 3


def test_one_that_was_put_out_comes_back_as_another() -> None:
    sim = joined(3)
    before = lives(sim)
    sim.partition([[1, 2], [3]])
    sim.run(sim.now + 8)
    assert sizes(sim, 1)[-1] == 2
    sim.heal()
    assert sim.run_until(sim.agreed, 20)
    after = lives(sim)
    assert (after[1], after[2]) == (before[1], before[2])
    assert after[3] != before[3]


def test_of_two_halves_the_larger_one_stays() -> None:
    sim = joined(5)
    before = lives(sim)
    sim.partition([[1, 2], [3, 4, 5]])
    sim.run(sim.now + 8)
    assert sizes(sim, 1)[-1] == 2
    assert sizes(sim, 5)[-1] == 3
    sim.heal()
    assert sim.run_until(sim.agreed, 20)
    assert [lives(sim)[node] == before[node] for node in range(1, 6)] == [False] * 2 + [True] * 3


def test_a_minority_knows_that_it_is_one() -> None:
    sim = joined(5, primary)
    sim.partition([[1, 2], [3, 4, 5]])
    sim.run(sim.now + 8)
    assert [sim.people[node].views[-1].primary for node in range(1, 6)] == [False] * 2 + [True] * 3
    sim.heal()
    assert sim.run_until(sim.agreed, 20)
    assert all(one.views[-1].primary for one in sim.people.values())


def test_leaving_makes_no_minority() -> None:
    sim = joined(4, primary)
    for node in (2, 3, 4):
        sim.leave(node)
    assert down_to(sim, 1, 5)
    assert sim.people[1].views[-1].primary


def test_the_fault_layers_do_to_a_stack_what_the_network_does() -> None:
    def faulty() -> list[Layer]:
        faults: list[Layer] = [Drop(0.2), Duplicate(0.2), Delay(0.0, 0.1)]
        return [Tcp(), *faults, Discovery(), FailureDetection(), Membership()]

    sim = Simulator(3, faulty)
    for node in range(1, 5):
        sim.join(node)
    assert sim.run_until(sim.agreed, 30)
    dropped = sum(one.stack.layers[1].statistics()["dropped"] for one in sim.people.values())
    assert dropped > 0


def test_a_network_that_loses_half_still_comes_to_agree() -> None:
    sim = Simulator(4, plain, Faults(loss=0.5))
    for node in range(1, 5):
        sim.join(node)
    assert sim.run_until(sim.agreed, 60)


def test_a_minority_that_notices_first_takes_the_majority_nothing() -> None:
    """Its view has the higher id; those who have not missed it yet stay what they are."""
    patience = iter([3.0, 3.0, 0.5])

    def uneven() -> list[Layer]:
        detection = FailureDetection(timeout=next(patience), heartbeat=0.1, verify=0.2)
        return [Tcp(), Discovery(), detection, Membership(primary=True)]

    sim = joined(3, uneven)
    sim.run(sim.now + 1)
    before = lives(sim)
    sim.partition([(1, 2), (3,)])
    assert sim.run_until(lambda: not sim.people[3].views[-1].primary, 3, step=0.01)
    sim.heal()
    assert sim.run_until(lambda: lives(sim)[3] != before[3] and sim.agreed(), 20)
    assert {node: lives(sim)[node] for node in (1, 2)} == {node: before[node] for node in (1, 2)}
    assert all(view.primary for node in (1, 2) for view in sim.people[node].views)
    assert sim.people[3].views[-1].primary


@pytest.mark.parametrize(("every", "stays"), [(60.0, True), (0.5, False)], ids=["old", "new"])
def test_reports_that_a_member_is_not_reached_add_up_only_while_they_are_new(
    every: float, stays: bool
) -> None:
    sim = joined(3)
    coordinator, reporter, victim = (sim.people[node] for node in (1, 2, 3))
    life = victim.me.life
    for _ in range(4):
        sim.run(sim.now + every)
        report = Received(reporter.node, Suspects(reporter.me.life, (life,)))
        sim._carry_out(coordinator, coordinator.stack.up(report, sim.now))
    assert sim.run_until(sim.agreed, 20)
    sim.run(sim.now + 5)
    assert (victim.me.life == life) is stays
