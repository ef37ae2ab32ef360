"""``max_connections`` among those who do not know its frames, or abuse them, and for ever.

A hub with a limit of one asks its peers to part (crowds.py); a stranger answers as it likes.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon import Node
from antiphon._core import build_info
from antiphon.testing import Child, Control, Host, Stranger, eventually
from antiphon.testing.strangers import BYE, LIVENESS, frame
from integration.asking import echo
from integration.crowds import (
    FIRST,
    HUB,
    Books,
    by_request,
    connected,
    crowd,
    dismissals,
    losses,
)
from unit.node.pairs import KIND, OTHER, Running

pytestmark = pytest.mark.timeout(120)

PART, AGREE, REFRAIN, STAY = range(22, 26)
CAN_PART = 1
PARTED = b"\1"
MIB = 1 << 20


# --- those who do not know the frames, and those who abuse them -----------------------------------


def question(number: int) -> bytes:
    return struct.pack("<I", number)


@contextlib.contextmanager
def bad_company(features: int = CAN_PART) -> Iterator[tuple[Node, list[Node], Books, Stranger]]:
    """A hub with a limit of one, its peers, and a stranger that could be dialled."""
    with crowd(3, 1) as (hub, others, books), Host() as host, Stranger.dial(hub.address) as bad:
        bad.hand_shake(7, features=features, flags=0, address=host.address)
        bad.keep_alive()
        yield hub, others, books, bad
        bad.close()


def goes_on(hub: Node, others: list[Node], books: Books) -> None:
    """The others are served, and dismissed, as if nobody else were there."""
    for _ in range(3):
        for other in others:
            books.send(hub, other.id)
            books.send(other, HUB)
            by_request(hub, other.id, books)
    books.balance()
    ended = [end for end in books.ended.items if end[1] != 7]
    assert all(reason.startswith("dismissed") for _, _, reason in ended)
    assert losses(*others) == 0
    for info in hub.connections():
        assert info.losses == 0 or info.id == 7


def test_who_has_not_agreed_to_the_frames_is_never_sent_them() -> None:
    with bad_company(features=0) as (hub, others, books, old):
        goes_on(hub, others, books)
        heard = []
        beats = 0
        while beats < 4:  # at every beat the hub would like to
            heard.append(old.read())
            beats += heard[-1].kind == LIVENESS
        assert not {each.kind for each in heard} & {PART, AGREE, REFRAIN, STAY}
        assert 7 in connected(hub)


def test_a_receiver_that_has_not_agreed_to_the_frames_is_never_sent_them() -> None:
    with crowd(3, 1) as (hub, others, books), Host() as host:
        hub.add_peer(7, host.address)
        sending = Running(lambda: hub.send(7, b"x", kind=KIND))
        with host.accept_node(7, flags=0, address=host.address) as old:
            old.be_ready(KIND, window=MIB)
            old.keep_alive()
            sending.result()
            goes_on(hub, others, books)
            heard = []
            beats = 0
            while beats < 4:
                heard.append(old.read())
                beats += heard[-1].kind == LIVENESS
            assert KIND in {each.kind for each in heard}
            assert not {each.kind for each in heard} & {PART, AGREE, REFRAIN, STAY}
            assert 7 in connected(hub)


def test_who_has_agreed_to_the_frames_is_asked_and_may_leave_in_peace() -> None:
    with bad_company() as (hub, others, books, peer):
        hub.request(others[0].id, b"x", kind=OTHER)
        asked = peer.read_until(PART)
        assert len(asked.payload) == 4
        peer.say(frame(KIND, b"the last word"))
        peer.say(frame(AGREE, asked.payload))
        assert peer.read_until(BYE).payload == PARTED
        peer.say(frame(KIND, b"but one") + frame(BYE, PARTED))
        assert peer.dropped_within(10)
        eventually(lambda: dismissals(hub) == 1, 10)
        eventually(lambda: [data[0] for data in books.came[7, HUB]] == [13, 7], 10)
        (reason,) = eventually(lambda: [why for _, peer, why in books.ended.items if peer == 7])
        assert reason.startswith("dismissed")
        goes_on(hub, others, books)


@pytest.mark.parametrize("answer", ["refrain", "nothing", "stay", "another number", "then nothing"])
def test_who_does_not_let_go_harms_nobody_else(answer: str) -> None:
    with bad_company() as (hub, others, books, bad):
        hub.request(others[0].id, b"x", kind=OTHER)
        asked = bad.read_until(PART)
        other_number = question(struct.unpack("<I", asked.payload)[0] + 1000)
        bad.say(
            {
                "refrain": frame(REFRAIN, asked.payload),
                "nothing": b"",
                "stay": frame(STAY, asked.payload),
                "another number": frame(AGREE, other_number),
                "then nothing": frame(AGREE, asked.payload),
            }[answer]
        )
        goes_on(hub, others, books)
        hub.flush(10)  # nothing was ever sent to it


@pytest.mark.parametrize(
    "noise",
    [
        frame(AGREE, question(1)),
        frame(REFRAIN, question(1)),
        frame(STAY, question(1)),
        frame(BYE, PARTED),
        frame(PART, question(1)),
        frame(PART, question(1)) * 1000,
        frame(PART, question(1)) + frame(STAY, question(2)),
        (frame(PART, question(1)) + frame(STAY, question(1))) * 500,
        frame(PART, question(1)) + frame(BYE, PARTED) + frame(KIND, b"from beyond"),
        frame(PART, question(1)) + frame(AGREE, question(1)) + frame(BYE),
        frame(PART, question(2**32 - 1)) + frame(REFRAIN, question(2**32 - 1)),
        frame(PART),
        frame(PART, b"123"),
        frame(PART, question(0)),
        frame(AGREE, b""),
        frame(REFRAIN, b"1"),
        frame(STAY, question(0)),
        frame(PART, question(1) + bytes(4000)),
        frame(PART, question(1), flags=0x8000, flow=2**32 - 1),
        frame(BYE, PARTED * 100),
    ],
    ids=[
        "agrees unasked",
        "refrains unasked",
        "stays unasked",
        "parts unasked",
        "asks and falls silent",
        "asks a thousand times",
        "takes back another question",
        "asks and takes back without end",
        "speaks after the bye",
        "agrees with itself",
        "the largest number",
        "asks nothing",
        "asks half",
        "asks number zero",
        "agrees to nothing",
        "refrains from half",
        "stays with zero",
        "asks at length",
        "asks with flags",
        "a long bye",
    ],
)
def test_frames_out_of_turn_harm_nobody_else(noise: bytes) -> None:
    with bad_company() as (hub, others, books, bad):
        bad.say(noise)
        goes_on(hub, others, books)
        hub.flush(10)  # nothing was ever sent to it
        began = time.monotonic()
        hub.close()
        assert time.monotonic() - began < 15


def flooded(control: Control) -> None:
    """A node whose memory is watched."""
    import antiphon

    with antiphon.Node(1) as node:
        node.inbox(200)
        node.on(201, lambda source, data: data)
        control.tell("ready", address=node.address)
        told = control.hear()
        node.add_peer(7, told["address"])
        node.send(7, b"x", kind=200)
        control.tell("sent")
        control.hear()


def test_who_asks_without_end_and_never_reads_the_answers_is_bounded() -> None:
    """It asks on its own channel; the answers go out on the node's, which it leaves unread."""
    with Child(flooded) as child, Host(receive_buffer=4096) as host, Node(2) as other:
        address = child.expect("ready")["address"]
        other.add_peer(1, address)
        facts: dict[str, Any] = {
            "features": CAN_PART,
            "flags": 0,
            "address": host.address,
            "incarnation": 77,
        }
        with Stranger.dial(address) as bad:
            bad.hand_shake(7, **facts)
            child.tell("send", address=host.address)
            with host.accept_node(7, **facts) as back:
                back.be_ready(KIND, window=MIB)
                child.expect("sent")
                before = child.resident_bytes
                block = frame(PART, question(1) + bytes(4000)) * 256
                for _ in range(64):
                    if bad.say(block, timeout=1.0) < len(block):
                        break
                    assert other.request(1, b"x", kind=OTHER) == b"x"
                grown = child.resident_bytes - before
        assert other.request(1, b"x", kind=OTHER) == b"x"
        if not build_info()["sanitizers"]:
            assert grown < 24 * MIB, f"grew by {grown / MIB:.0f} MiB"


# --- for ever -------------------------------------------------------------------------------------


def rotating(control: Control, peers: dict[str, str]) -> None:
    """Asks and tells one peer after the other, and stays connected with one at a time."""
    import time
    from pathlib import Path

    import antiphon

    config = antiphon.NodeConfig(max_connections=1)
    addresses = {int(peer): address for peer, address in peers.items()}
    with antiphon.Node(1, peers=addresses, config=config) as node:
        node.on(200, lambda source, data: None)
        while control.hear()["order"] == "turn":
            wanted = node.statistics().dismissed_connections + 500
            while node.statistics().dismissed_connections < wanted:
                for peer in addresses:
                    node.send(peer, b"x" * 100, kind=200)
                    node.request(peer, b"x", kind=201)
            # On a busy machine several are on their way out at once.
            end = time.monotonic() + 20
            while sum(one.sending or one.receiving for one in node.connections()) > 1:
                if time.monotonic() > end:
                    break
                time.sleep(0.005)
            control.tell("turned", descriptors=len(list(Path("/proc/self/fd").iterdir())))


def test_thousands_of_dismissals_leave_nothing_behind() -> None:
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(Node(FIRST + n)) for n in range(8)]
        for other in others:
            other.on(KIND, lambda source, data: None)
            other.on(OTHER, echo)
        peers = {str(other.id): other.address for other in others}
        child = stack.enter_context(Child(rotating, peers=peers))

        def turn() -> tuple[int, int]:
            child.tell("turn")
            descriptors = int(child.expect("turned", 60)["descriptors"])
            return child.resident_bytes, descriptors

        def ours() -> int:
            return len(list(Path("/proc/self/fd").iterdir()))

        turn()
        memory, descriptors = turn()
        here = ours()
        for _ in range(3):
            grown, more = turn()
        assert more <= descriptors + 8
        assert ours() <= here + 8 * len(others)
        if not build_info()["sanitizers"]:
            assert grown - memory < 4 * MIB, f"grew by {(grown - memory) / MIB:.1f} MiB"
        assert losses(*others) == 0
