"""Groups in one process whose control is lost, late, or cut off."""

from __future__ import annotations

import threading
import time

import pytest

import antiphon
from antiphon import Member, NotPrimary, PeerUnreachable
from antiphon.groups.layers import (
    Delay,
    Discovery,
    Drop,
    Duplicate,
    FailureDetection,
    Fifo,
    Fragmentation,
    Membership,
    Partition,
    Tcp,
)
from antiphon.groups.protocol import Layer
from antiphon.testing import eventually
from integration.parties import Party

pytestmark = pytest.mark.timeout(60)


def test_control_that_is_lost_doubled_and_late_still_makes_one_group(party: Party) -> None:
    def layers() -> list[Layer]:
        faults: list[Layer] = [Drop(0.3), Duplicate(0.3), Delay(0.0, 0.1)]
        return [
            Tcp(),
            *faults,
            Discovery(),
            FailureDetection(),
            Membership(),
            Fifo(),
            Fragmentation(),
        ]

    for _ in range(3):
        party.join(stack=layers())
    party.all_see(3)
    party.groups[0].send(b"through")
    for came in party.came:
        assert came.first(1) == [("m0", b"through")]


def test_one_that_was_put_out_joins_again_as_another(party: Party) -> None:
    cut = Partition()

    def layers(*more: Layer) -> list[Layer]:
        quick = FailureDetection(heartbeat=0.1, timeout=0.5, verify=0.2)
        member = Membership(merge=0.3)
        return [Tcp(), *more, Discovery(), quick, member, Fifo(), Fragmentation()]

    for _ in range(2):
        party.join(stack=layers())
    last = party.join(stack=layers(cut))
    party.all_see(3)
    before = last.me
    cut.nodes = frozenset(group.node.id for group in party.groups[:2])
    eventually(lambda: len(party.groups[0].members) == 2, 20)
    cut.nodes = frozenset()
    party.all_see(3)
    assert last.me != before
    last.send(b"back")
    assert ("m2", b"back") in party.came[0].first(1)


def quick(*more: Layer) -> list[Layer]:
    """A minority notices within about a second."""
    failures = FailureDetection(heartbeat=0.1, timeout=1.0, verify=0.2)
    member = Membership(merge=0.3, primary=True)
    window = Fifo(window_bytes=1 << 16, unicast_bytes=1 << 16)
    return [Tcp(), *more, Discovery(), failures, member, window, Fragmentation()]


def test_a_minority_may_not_send(party: Party) -> None:
    cut = Partition()
    for _ in range(2):
        party.join(stack=quick())
    last = party.join(stack=quick(cut))
    party.all_see(3)
    time.sleep(0.5)  # all have told each other of the view, by their heartbeats
    cut.nodes = frozenset(group.node.id for group in party.groups[:2])
    eventually(lambda: not last.view.primary, 20)
    with pytest.raises(NotPrimary) as refused:
        last.send(b"x")
    assert refused.value.members == 1
    party.groups[0].send(b"the majority goes on")
    cut.nodes = frozenset()
    eventually(lambda: last.view.primary, 20)
    last.send(b"again")


@pytest.mark.parametrize("alone", [False, True], ids=["to all", "to one"])
def test_whoever_waits_to_send_is_refused_when_it_is_in_a_minority(
    party: Party, alone: bool
) -> None:
    """What the view frees in the window is not for those who waited."""
    held = threading.Event()
    cut = Partition()
    for _ in range(2):
        party.join(lambda source, data: held.wait(60), stack=quick())
    last = party.join(stack=quick(cut))
    party.all_see(3)
    time.sleep(0.5)  # as above
    to = last.members[0] if alone else None
    raised: list[BaseException] = []

    def fill() -> None:
        try:
            while True:
                last.send(b"x" * 1000, to=to, timeout=60)
        except antiphon.AntiphonError as error:
            raised.append(error)

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        eventually(lambda: last.statistics().waits > 0)
        futures = [last.send_async(b"y" * size, to=to) for size in (1000, 1000, 40_000)]
        cut.nodes = frozenset(group.node.id for group in party.groups[:2])
        thread.join(30)
        # To one that is not in the view any more, that is the reason.
        allowed = (NotPrimary, PeerUnreachable) if alone else (NotPrimary,)
        assert isinstance(raised[0], allowed)
        for future in futures:
            assert isinstance(future.exception(20), allowed)
    finally:
        cut.nodes = frozenset()
        held.set()


def test_a_minority_is_refused_also_while_its_handler_hangs(party: Party) -> None:
    """The handlers have not come to the view yet; what is sent is not to go by that."""
    held, hangs = threading.Event(), threading.Event()
    cut = Partition()
    for _ in range(2):
        party.join(stack=quick())

    def hang(source: Member, data: bytes) -> None:
        hangs.set()
        held.wait(60)

    last = party.join(hang, stack=quick(cut))
    party.all_see(3)
    time.sleep(0.5)  # as above
    last.send(b"to itself", to=last.me)
    assert hangs.wait(20)
    cut.nodes = frozenset(group.node.id for group in party.groups[:2])

    errors: list[NotPrimary] = []

    def refused() -> bool:
        try:
            last.send(b"x", timeout=0)
        except NotPrimary as error:
            errors.append(error)
        return bool(errors)

    try:
        eventually(refused, 20)
        assert (errors[0].group, errors[0].members) == (party.name, 1)
        assert last.view.primary  # as far as its handlers are
    finally:
        cut.nodes = frozenset()
        held.set()
