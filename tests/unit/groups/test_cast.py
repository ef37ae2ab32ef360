"""Reliable multicast by datagrams, as the core has it, in simulated courses."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from unit.groups.casts import STEP, Cast, Network

pytestmark = pytest.mark.timeout(120)


def course(seed: int) -> Cast:
    """Members come and go while one sends over a network that gets better and worse."""
    choice = random.Random(f"course of casts {seed}")
    cast = Cast(seed, choice.choice(["share", "reactive", "credit"]))
    for member in range(1, choice.choice([2, 3, 4, 6])):
        cast.add(member)
    following = 100
    for _ in range(choice.choice([60, 120, 250])):
        act = choice.random()
        if act < 0.6:
            for _ in range(choice.choice([1, 1, 3, 12])):
                cast.send()
        elif act < 0.63:
            following += 1
            cast.add(following)
        elif act < 0.65 and len(cast.readers) > 1:
            cast.remove(choice.choice(list(cast.readers)))
        elif act < 0.68:
            for reader in cast.readers.values():
                reader.slow = choice.random() < 0.2
        elif act < 0.72:
            cast.network = Network(
                choice.choice([0.0, 0.1, 0.3, 0.5]),
                choice.choice([0.0, 0.1, 0.5]),
                (0.0001, choice.choice([0.001, 0.005, 0.03])),
            )
        cast.step()
        assert all(cast.in_order(reader) for reader in cast.readers.values()), f"seed {seed}"
    for reader in cast.readers.values():
        reader.slow = False
    return cast


@pytest.mark.timeout(3600)
def test_every_member_that_stays_gets_everything_once_and_in_order(
    count: Callable[[int, int], int],
) -> None:
    full = again = 0
    for seed in range(count(300, 10_000)):
        cast = course(seed)
        assert cast.finish(), f"seed {seed}"
        for reader in cast.readers.values():
            assert reader.got == cast.sent[reader.begun :], f"seed {seed}"
        assert all(cast.in_order(reader) for reader in cast.gone), f"seed {seed}"
        full += cast.full
        again += cast.kinds.get("again", 0)
    assert full > 0
    assert again > 0


def three(network: Network | None = None, flow: str = "share") -> Cast:
    cast = Cast(7, flow, network)
    for member in (1, 2, 3):
        cast.add(member)
    return cast


def test_when_everybody_has_everything_nothing_goes_any_more() -> None:
    cast = three(Network(0.3))
    for _ in range(20):
        cast.send()
    assert cast.finish()
    cast.network = Network()
    cast.run(0.5)
    before = cast.datagrams
    cast.run(20)
    assert cast.datagrams == before


@pytest.mark.parametrize("lost", ["first", "last"])
def test_a_lost_first_or_last_message_is_found(lost: str) -> None:
    cast = three()
    cast.run(0.1)
    if lost == "last":
        for _ in range(5):
            cast.send()
        cast.run(0.1)
    cast.network = Network(lost_kinds=frozenset(["data"]))
    cast.send()
    cast.run(2 * STEP)
    cast.network = Network()
    assert cast.finish(2.0)
    assert all(reader.got == cast.sent for reader in cast.readers.values())


def test_lost_acknowledgements_do_not_send_anything_again() -> None:
    cast = three(Network(lost_kinds=frozenset(["acknowledge"])))
    for _ in range(20):
        cast.send(10)
    cast.run(30)
    assert all(reader.got == cast.sent for reader in cast.readers.values())
    assert "again" not in cast.kinds
    # The sender asks how far they are, ever more seldom: about twice a second.
    assert cast.kinds["head"] < 80
    cast.network = Network()
    assert cast.finish(3.0)


def test_what_two_ask_for_goes_to_all_at_once() -> None:
    cast = three()
    cast.run(0.1)
    cast.network = Network(lost_kinds=frozenset(["data"]))
    for _ in range(4):
        cast.send(100)
    cast.run(0.003)
    cast.network = Network()
    assert cast.finish(2.0)
    # Three lacked it; it went again fewer times than that.
    assert 1 <= cast.kinds["again"] < 3


def test_a_sender_that_cannot_be_reached_is_stood_in_for_by_another_member() -> None:
    cast = three()
    cast.run(0.1)
    reader = cast.readers[1]
    cast.send(50)
    cast.send(50)
    # What the sender says never comes to the first one; what others say does.
    put = cast._put

    def cut(kind: str, member: int, content: object) -> None:
        if not (member == 1 and kind == "data"):
            put(kind, member, content)

    cast._put = cut  # type: ignore[method-assign]
    relayed: list[int] = []

    class Deaf:
        """A sender that hears no questions."""

        def __getattr__(self, name: str) -> object:
            if name == "asked":
                return lambda *arguments: relayed.append(0)
            return getattr(sender, name)

    sender = cast.sender
    cast.sender = Deaf()  # type: ignore[assignment]
    cast.run(3.0)
    assert relayed, "the sender is asked first"
    assert reader.got == cast.sent


@pytest.mark.parametrize("flow", ["share", "reactive", "credit"])
def test_a_member_that_handles_nothing_holds_up_the_sender_until_it_goes(flow: str) -> None:
    cast = three(flow=flow)
    cast.readers[2].slow = True
    cast.choice.random = lambda: 1.0  # type: ignore[method-assign]  # and quite slow
    while cast.send(200):
        cast.step()
    cast.run(1.0)
    assert not cast.send(500)
    cast.remove(2)
    cast.run(1.0)
    assert cast.send(200)
    assert cast.finish(5.0)


def test_credit_bounds_what_is_sent_and_not_handled() -> None:
    cast = three(flow="credit")
    cast.run(0.1)
    for reader in cast.readers.values():
        reader.slow = True
    cast.choice.random = lambda: 1.0  # type: ignore[method-assign]
    while cast.send(100):
        pass
    cast.run(1.0)
    assert sum(len(one) for one in cast.sent[: cast.sender.sent - 1]) <= 2048


def test_a_loss_cuts_what_a_reactive_sender_has_under_way() -> None:
    cast = three(flow="reactive")
    cast.network = Network(0.3)
    for _ in range(200):
        cast.send()
        cast.step()
    assert cast.sender.cuts > 0
    assert cast.sender.flight < 1 << 13
    cast.network = Network()
    assert cast.finish()


def test_a_gap_as_large_as_the_window_is_filled() -> None:
    cast = three()
    cast.run(0.1)
    reader = cast.readers[1]
    put = cast._put
    cast._put = lambda kind, member, content: (  # type: ignore[method-assign]
        None if member == 1 and kind == "data" else put(kind, member, content)
    )
    for _ in range(100):
        cast.send(20)
        cast.step()
    cast._put = put  # type: ignore[method-assign]
    assert cast.finish(5.0)
    assert reader.got == cast.sent
