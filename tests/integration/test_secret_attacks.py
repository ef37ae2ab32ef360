"""Attacks on the proof of the secret, as it is shown on loopback: without TLS, by HMAC.

The strangers do not have the secret. What they have is what they hear on the line, and what the
node itself tells whoever asks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from antiphon import AuthenticationFailed, Node, NodeConfig
from antiphon.testing import Host, Stranger, eventually, strangers
from antiphon.testing.strangers import frame, hello, proof, reply_parts
from unit.node.pairs import Heard, Running

pytestmark = pytest.mark.timeout(60)

KIND = 200
SECRET = b"ours"
FLAGS = strangers.HAS_SECRET | strangers.NO_LISTENER
AUTHENTICATION = 2
"""The code of a refusal, as wire.md lists them."""


class Target(Node):
    """The node under attack, and what its handler was called with."""

    def __init__(self) -> None:
        # Whoever is dropped within ten seconds was not merely too slow to shake hands.
        super().__init__(1, secret=SECRET, config=NodeConfig(connect_timeout=20.0))
        self.heard = Heard()
        self.on(KIND, self.heard)

    @property
    def admitted(self) -> list[int]:
        return [info.id for info in self.connections() if info.sending or info.receiving]


@pytest.fixture
def target() -> Iterator[Target]:
    with Target() as node:
        yield node


def refused(stranger: Stranger) -> str:
    """The text of the refusal that comes now, and nothing but the end after it."""
    found = list(stranger.frames(10))
    assert [one.kind for one in found] == [strangers.REFUSE], found
    code, length = struct.unpack_from("<BH", found[0].payload)
    assert code == AUTHENTICATION, found
    return found[0].payload[3 : 3 + length].decode()


def test_who_has_the_secret_is_let_in(target: Target) -> None:
    """So that the others below are refused for nothing but their proof."""
    with Stranger.dial(target.address) as stranger:
        stranger.hand_shake(7, secret=SECRET)
        stranger.say(frame(KIND, b"hello"))
        assert target.heard.wait(1) == [b"hello"]
        assert target.admitted == [7]


# --- reflection -----------------------------------------------------------------------------------


def test_the_proof_that_a_node_shows_is_no_proof_of_who_sends_it_back(target: Target) -> None:
    """Both are over the same two records: they differ by the role alone."""
    with Stranger.dial(target.address) as stranger:
        mine = hello(7, flags=FLAGS)
        stranger.say(frame(strangers.HELLO, mine))
        theirs, shown = reply_parts(stranger.read().payload)
        assert shown == proof(SECRET, "acceptor", mine, theirs)
        stranger.say(frame(strangers.CONFIRM, shown) + frame(KIND, b"let in"))
        assert "secret" in refused(stranger)
    assert target.admitted == []
    assert target.heard.data == []


def test_a_node_that_is_told_its_own_words_connects_to_nobody(target: Target) -> None:
    """It dials a stranger, who dials it in turn, and hands on to each what the other says."""
    with Host() as host:
        target.add_peer(2, host.address)
        target.try_send(2, b"", kind=KIND)
        with host.accept() as dialled, Stranger.dial(target.address) as mirror:
            said = dialled.read_until(strangers.HELLO)
            mirror.say(frame(strangers.HELLO, said.payload))
            for answer in mirror.frames(10):  # until it is dropped
                dialled.say(frame(answer.kind, answer.payload))
            assert dialled.dropped_within(10)
    assert target.admitted == []


def test_a_node_asked_by_its_own_id_cannot_be_made_to_prove_for_another(target: Target) -> None:
    """The reply to a hello of the stranger's own, played to the node as if node 2 had said it."""
    with Host() as host:
        target.add_peer(2, host.address)
        sending = Running(lambda: target.send(2, b"", kind=KIND))
        with host.accept() as dialled, Stranger.dial(target.address) as other:
            dialled.read_until(strangers.HELLO)
            other.say(frame(strangers.HELLO, hello(2, flags=FLAGS)))
            reply = other.read()
            assert reply.kind == strangers.REPLY
            dialled.say(frame(strangers.REPLY, reply.payload))
            assert dialled.dropped_within(10)
        assert isinstance(sending.error(), AuthenticationFailed)
    assert target.admitted == []


# --- replay ---------------------------------------------------------------------------------------


class Recorded:
    """What both ends of a good hand-shake have said, as somebody on the line hears it."""

    def __init__(self, target: Target) -> None:
        self.hello = hello(7, flags=FLAGS)
        with Stranger.dial(target.address) as stranger:
            stranger.say(frame(strangers.HELLO, self.hello))
            self.reply = stranger.read()
            theirs, _ = reply_parts(self.reply.payload)
            self.confirm = proof(SECRET, "dialler", self.hello, theirs)
            stranger.say(frame(strangers.CONFIRM, self.confirm))
            stranger.read_until(strangers.READY)
        eventually(lambda: target.admitted == [], 10, "it is gone")


@pytest.mark.parametrize("at_once", [False, True], ids=["in turn", "at once"])
def test_a_recorded_proof_is_worth_nothing_the_second_time(target: Target, at_once: bool) -> None:
    recorded = Recorded(target)
    refusals = target.statistics().refused_connections
    for _ in range(5):
        with Stranger.dial(target.address) as stranger:
            words = frame(strangers.CONFIRM, recorded.confirm) + frame(KIND, b"again")
            stranger.say(frame(strangers.HELLO, recorded.hello) + (words if at_once else b""))
            reply = stranger.read()
            assert reply.kind == strangers.REPLY
            assert reply.payload != recorded.reply.payload
            if not at_once:
                stranger.say(words)
            assert "secret" in refused(stranger)
    assert target.statistics().refused_connections == refusals + 5
    assert target.admitted == []
    assert target.heard.data == []


def test_a_recorded_reply_is_worth_nothing_to_another_dialler(target: Target) -> None:
    """A false node 1 that answers with what the true one has said before."""
    recorded = Recorded(target)
    with Host() as host, Node(7, secret=SECRET, peers={1: host.address}) as node:
        sending = Running(lambda: node.send(1, b"for node 1 only", kind=KIND))
        with host.accept() as stranger:
            stranger.read_until(strangers.HELLO)
            stranger.say(frame(strangers.REPLY, recorded.reply.payload))
            assert all(one.kind != strangers.CONFIRM for one in stranger.frames(10))
        error = sending.error()
        assert isinstance(error, AuthenticationFailed)
        assert "secret" in str(error)


# --- what is changed on the line ------------------------------------------------------------------

# Where they lie in the record of a hello or a reply.
VERSION_MIN, VERSION_MAX, FEATURES, ID, LARGEST = 4, 6, 8, 14, 42


def changed(record: bytes, at: int, value: int) -> bytes:
    """The record with another byte there."""
    assert record[at] != value
    return record[:at] + bytes([value]) + record[at + 1 :]


@pytest.mark.parametrize(
    ("which", "at", "value"),
    [
        ("hello", FEATURES, 0),
        ("hello", FEATURES, 0xFF),
        ("hello", VERSION_MIN, 0),
        ("hello", VERSION_MAX, 2),
        ("hello", ID, 8),
        ("hello", LARGEST + 3, 0),
        ("reply", FEATURES, 0),
        ("reply", FEATURES, 0xFF),
        ("reply", VERSION_MIN, 0),
        ("reply", LARGEST + 3, 0),
    ],
)
def test_what_was_changed_on_the_line_ends_the_hand_shake(
    target: Target, which: str, at: int, value: int
) -> None:
    """Older versions and fewer features than both have, above all: the proof is over every bit."""
    with Host() as host, Node(7, secret=SECRET, peers={1: host.address}) as node:
        sending = Running(lambda: node.send(1, b"x", kind=KIND))
        with host.accept() as dialler, Stranger.dial(target.address) as acceptor:
            mine = dialler.read_until(strangers.HELLO).payload
            if which == "hello":
                mine = changed(mine, at, value)
            acceptor.say(frame(strangers.HELLO, mine))
            reply = acceptor.read()
            assert reply.kind == strangers.REPLY
            theirs, shown = reply_parts(reply.payload)
            if which == "reply":
                theirs = changed(theirs, at, value)
            dialler.say(frame(strangers.REPLY, strangers.reply(theirs, shown)))
            # It is the dialler who sees it first: it says nothing more, and shows no proof.
            assert list(dialler.frames(10)) == []
            error = sending.error()
            assert isinstance(error, AuthenticationFailed)
        assert not node.connections()[0].sending
    assert target.admitted == []


@pytest.mark.parametrize(("at", "value"), [(VERSION_MIN, 2), (VERSION_MAX, 0)])
def test_a_version_that_the_node_does_not_speak_ends_it_before_any_proof(
    target: Target, at: int, value: int
) -> None:
    with Stranger.dial(target.address) as stranger:
        stranger.say(frame(strangers.HELLO, changed(hello(7, flags=FLAGS), at, value)))
        assert [one.kind for one in stranger.frames(10)] == [strangers.REFUSE]
    assert target.admitted == []


def test_a_reply_in_another_version_is_not_taken_even_with_a_proof() -> None:
    """By one who has the secret: a version that was not offered is no version to speak."""
    with Host() as host, Node(7, secret=SECRET, peers={1: host.address}) as node:
        sending = Running(lambda: node.send(1, b"x", kind=KIND))
        with host.accept() as stranger:
            mine = stranger.read_until(strangers.HELLO).payload
            theirs = hello(1, expected=7, versions=(2, 2), flags=FLAGS)
            shown = proof(SECRET, "acceptor", mine, theirs)
            stranger.say(frame(strangers.REPLY, strangers.reply(theirs, shown)))
            assert list(stranger.frames(10)) == []
        assert "version 2" in str(sending.error())


def test_who_hides_that_it_has_a_secret_is_asked_for_it(target: Target) -> None:
    """A node with a secret has no way to speak without one: there is nothing to talk it into."""
    for flags in (0, strangers.NO_LISTENER):
        with Stranger.dial(target.address) as stranger:
            stranger.say(frame(strangers.HELLO, hello(7, flags=flags)))
            assert "secret" in refused(stranger)
    # Nor does one that dials take a reply without a proof.
    with Host() as host, Node(7, secret=SECRET, peers={1: host.address}) as node:
        for shown in (b"", bytes(32)):
            sending = Running(lambda: node.send(1, b"x", kind=KIND))
            with host.accept() as stranger:
                stranger.read_until(strangers.HELLO)
                theirs = hello(1, expected=7, flags=0)
                stranger.say(frame(strangers.REPLY, strangers.reply(theirs, shown)))
                assert list(stranger.frames(10)) == []
            assert isinstance(sending.error(), AuthenticationFailed)
