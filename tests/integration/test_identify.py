"""Asking an address who listens there, while an earlier question is still without an answer."""

from __future__ import annotations

import dataclasses

import pytest

from antiphon import DuplicateNode, Node, PeerUnreachable
from antiphon.testing import Host, strangers
from antiphon.testing.strangers import Stranger, frame, hello, reply
from unit.node.pairs import NORMAL

pytestmark = pytest.mark.timeout(60)

PATIENT = dataclasses.replace(NORMAL, connect_timeout=30.0)


def test_a_question_is_not_answered_by_what_becomes_of_an_earlier_one() -> None:
    with Host() as silent, Node(1, config=PATIENT) as node, Node(2) as other:
        for _ in range(3):
            with pytest.raises(PeerUnreachable, match=silent.address):
                node._identify(silent.address, 0.05)
            assert node._identify(other.address, 20.0)[0] == 2


def test_a_reply_that_comes_late_harms_nobody() -> None:
    """It ends its channel, and the next question may be about to be asked on another one."""
    with Host() as slow, Node(1, config=PATIENT) as node, Node(2) as other:
        for _ in range(20):
            with pytest.raises(PeerUnreachable):
                node._identify(slow.address, 0.01)
            with slow.accept() as late:
                late.read_until(strangers.HELLO)
                late.say(frame(strangers.REPLY, reply(hello(3))))
                assert node._identify(other.address, 20.0)[0] == 2
        assert node.statistics().protocol_errors == 0


def test_a_question_whose_address_cannot_be_reached_names_that_one() -> None:
    with Host() as silent, Node(1, config=PATIENT) as node:
        gone = Host()
        gone.close()
        with pytest.raises(PeerUnreachable, match=silent.address):
            node._identify(silent.address, 0.0)  # it is not even dialled yet
        with pytest.raises(PeerUnreachable, match=silent.address):
            node._identify(silent.address, 0.05)
        with pytest.raises(PeerUnreachable, match=gone.address):
            node._identify(gone.address, 20.0)


@pytest.mark.parametrize("listen", ["tcp://127.0.0.1:0", None])
def test_a_question_to_a_node_of_the_same_id_says_so_and_is_asked_once(listen: str | None) -> None:
    with Node(7) as other, Node(7, listen=listen, config=PATIENT) as node:
        with pytest.raises(DuplicateNode):
            node._identify(other.address, 20.0)
        assert other.statistics().refused_connections == 1


def test_a_drawn_id_that_somebody_else_has_just_asked_with_is_drawn_again() -> None:
    """As when two that have drawn the same ask at the same moment."""
    with Node(2) as other, Node(config=PATIENT) as node:
        drawn = node.id
        with Stranger.dial(other.address) as stranger:
            asks = strangers.ASKS_WHO | strangers.NO_LISTENER
            stranger.say(frame(strangers.HELLO, hello(drawn, flags=asks)))
            stranger.read_until(strangers.REPLY)
        assert node._identify(other.address, 20.0)[0] == 2
        assert node.id != drawn
