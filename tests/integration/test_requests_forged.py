"""Answers that nobody has asked for, and answers that are none.

A stranger that a node talks to sees the numbers of the requests that it is asked, and can count on
from there. What it says of the requests of others, or before it was asked, must change nothing.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from functools import partial

import pytest

from antiphon import Node, RemoteError
from antiphon.testing import Child, Collected, Control, Stranger, strangers
from antiphon.testing.strangers import frame, response, response_body
from integration.asking import SOON, slow_there
from unit.node.pairs import KIND, OTHER, SILENT, THERE, THIRD, Pong, Running, eventually, nodes

pytestmark = pytest.mark.timeout(60)

BAD = 7
MIB = 1 << 20
OTHER_FLOW, THIRD_FLOW = 1, 2


class Answerer:
    """A stranger that is asked, and answers what it likes.

    It takes requests of OTHER at once, and those of THIRD when it has granted a window for them.
    """

    def __init__(self, node: Node, stack: contextlib.ExitStack) -> None:
        self._node = node
        # What it says, and what it is told: one connection each.
        self.says = stack.enter_context(Stranger.dial(node.address))
        self.says.hand_shake(BAD, incarnation=77)
        self.hears = stack.enter_context(Stranger.dial(node.address))
        self.hears.hand_shake(BAD, incarnation=77, direction=strangers.YOURS)
        for kind, flow in ((OTHER, OTHER_FLOW), (THIRD, THIRD_FLOW)):
            announced = struct.pack("<HI", kind, 1)
            self.hears.say(frame(strangers.ANNOUNCE, announced, flow=flow))
        self.hears.say(frame(strangers.READY))
        self.grant(OTHER_FLOW)

    def grant(self, flow: int) -> None:
        self.hears.say(frame(strangers.WINDOW, struct.pack("<II", MIB, MIB // 2), flow=flow))

    def asked(self, kind: int) -> tuple[int, bytes]:
        """The number of the next request, and what is asked."""
        found = self.hears.read_until(kind)
        assert found.flags == strangers.REQUEST
        (number,) = struct.unpack_from("<Q", found.payload)
        return number, found.payload[8:]

    def number(self) -> int:
        """The number of a request that was made just now, and is answered."""
        future = self._node.request_async(BAD, b"tell me", kind=OTHER)
        number, question = self.asked(OTHER)
        assert question == b"tell me"
        self.says.say(response(OTHER, number, b"told"))
        assert future.result(SOON) == b"told"
        return number

    def late(self) -> int:
        return self._node.statistics().late_responses


@contextlib.contextmanager
def answerer(node: Node) -> Iterator[Answerer]:
    with contextlib.ExitStack() as stack:
        yield Answerer(node, stack)


def every_status(kind: int, number: int) -> bytes:
    """All ways to end a request, forged."""
    words = b"ValueError\0forged"
    return b"".join(
        response(kind, number, words, status=status)
        for status in (
            strangers.ANSWER,
            strangers.ERROR,
            strangers.UNKNOWN_KIND,
            strangers.CANNOT,
            77,
        )
    )


def test_what_a_stranger_says_about_a_request_to_somebody_else_changes_nothing() -> None:
    with slow_there(SILENT) as (here, _, slow), answerer(here) as bad:
        last = bad.number()
        future = here.request_async(THERE, b"by future", kind=KIND)
        waiting = Running(lambda: here.request(THERE, b"waiting", kind=KIND))
        eventually(lambda: here.statistics().requests_open == 2)
        slow.asked.first(1)
        before = bad.late()
        # Theirs are the next two, but it does not have to know.
        numbers = range(last - 2, last + 20)
        bad.says.say(b"".join(every_status(KIND, number) for number in numbers))
        eventually(lambda: bad.late() == before + 5 * len(numbers))
        assert not future.done()
        assert not waiting.done
        slow.let(2)
        assert future.result(SOON) == b"by future"
        assert waiting.result(SOON) == b"waiting"
        bad.number()  # it is still a peer like any other
        assert here.statistics().protocol_errors == 0


def test_what_a_stranger_says_about_a_large_request_to_somebody_else_changes_nothing() -> None:
    """In fragments, which are put together first."""
    with slow_there(SILENT) as (here, _, slow), answerer(here) as bad:
        number = bad.number() + 1
        future = here.request_async(THERE, b"x", kind=KIND)
        slow.asked.first(1)
        before = bad.late()
        forged = response_body(number, bytes(1000))
        bad.says.say(frame(strangers.RESERVE, struct.pack("<QQH", 1, len(forged), KIND)))
        bad.says.read_until(strangers.RESERVED)
        flags = strangers.FRAGMENT | strangers.LAST | strangers.RESPONSE
        bad.says.say(frame(KIND, struct.pack("<Q", 1) + forged, flags=flags))
        eventually(lambda: bad.late() == before + 1)
        assert not future.done()
        slow.let()
        assert future.result(SOON) == b"x"
        assert here.statistics().large_bytes_in_use == 0


def test_an_answer_to_a_request_that_was_not_sent_yet_is_none() -> None:
    with nodes(SILENT) as (here, _), answerer(here) as bad:
        last = bad.number()
        # There is no window for it: it waits here.
        future = here.request_async(BAD, b"the question", kind=THIRD)
        waiting = Running(lambda: here.request(BAD, b"the question", kind=THIRD))
        bad.hears.read_until(strangers.OPEN)
        eventually(lambda: here.statistics().requests_open == 2)
        before = bad.late()
        bad.says.say(every_status(THIRD, last + 1) + every_status(THIRD, last + 2))
        eventually(lambda: bad.late() == before + 10)
        assert not future.done()
        assert not waiting.done
        bad.grant(THIRD_FLOW)
        for _ in range(2):
            number, question = bad.asked(THIRD)
            assert number in (last + 1, last + 2)
            assert question == b"the question"
            bad.says.say(response(THIRD, number, b"the answer"))
        assert future.result(SOON) == b"the answer"
        assert waiting.result(SOON) == b"the answer"


def test_the_second_answer_to_a_request_is_late() -> None:
    with nodes(SILENT) as (here, _), answerer(here) as bad:
        future = here.request_async(BAD, b"x", kind=OTHER)
        number, _ = bad.asked(OTHER)
        before = bad.late()
        bad.says.say(response(OTHER, number, b"first") + response(OTHER, number, b"second"))
        eventually(lambda: bad.late() == before + 1)
        assert future.result(SOON) == b"first"
        assert here.statistics().requests_open == 0


@pytest.mark.parametrize(
    "facts",
    [{"status": 4}, {"status": 255}, {"of": 999}, {"of": 65535}],
    ids=["the next status", "the last status", "another kind", "the last kind"],
)
def test_an_answer_that_nobody_understands_is_an_error_for_who_asked_alone(
    facts: dict[str, int],
) -> None:
    with nodes(SILENT) as (here, _), answerer(here) as bad:
        future = here.request_async(BAD, b"x", kind=OTHER, reply=Pong)
        number, _ = bad.asked(OTHER)
        bad.says.say(response(OTHER, number, b"\xff\xfe\xfd", **facts))
        with pytest.raises(RemoteError):
            future.result(SOON)
        bad.number()  # and is connected as before
        assert here.statistics().protocol_errors == 0


# --- what is no response at all -------------------------------------------------------------------


def asker(control: Control, there: str) -> None:
    """A node that has a request open, and says how it ends."""
    import antiphon

    config = antiphon.NodeConfig(heartbeat=5.0)
    with antiphon.Node(1, config=config, peers={2: there}) as node:
        future = node.request_async(2, b"x", kind=200, timeout=60)
        control.tell("ready", address=node.address)
        while control.hear()["order"] == "facts":
            counted = node.statistics()
            control.tell(
                "facts",
                errors=counted.protocol_errors,
                late=counted.late_responses,
                open=counted.requests_open,
                large=counted.large_bytes_in_use,
            )
        control.tell("ended", answer=future.result().decode())


def reserved(size: int, flags: int) -> list[bytes]:
    """A message of so many bytes, in one fragment that wants a place first."""
    part = response_body(1)[:size]
    return [
        frame(strangers.RESERVE, struct.pack("<QQH", 5, size, KIND)),
        frame(KIND, struct.pack("<Q", 5) + part, flags=flags | strangers.FRAGMENT | strangers.LAST),
    ]


@pytest.mark.parametrize(
    "noise",
    [
        [frame(KIND, b"", flags=strangers.RESPONSE)],
        [frame(KIND, bytes(8), flags=strangers.RESPONSE)],
        [frame(KIND, response_body(1)[:11], flags=strangers.RESPONSE)],
        [frame(KIND, response_body(1), flags=strangers.RESPONSE | strangers.REQUEST)],
        [frame(KIND, response_body(1), flags=strangers.RESPONSE | strangers.PACKED)],
        [frame(KIND, response_body(1)[:7], flags=strangers.RESPONSE | strangers.FRAGMENT)],
        [frame(KIND, b"1234567", flags=strangers.REQUEST)],
        reserved(0, strangers.RESPONSE),
        reserved(1, strangers.RESPONSE),
        reserved(11, strangers.RESPONSE),
        reserved(7, strangers.REQUEST),
    ],
    ids=[
        "nothing",
        "only a number",
        "a byte too few",
        "a request as well",
        "a pack as well",
        "half a fragment",
        "a request of seven bytes",
        "nothing in a fragment",
        "a byte in a fragment",
        "a byte too few in a fragment",
        "a request of seven bytes in a fragment",
    ],
)
def test_who_sends_a_response_that_is_none_is_disconnected_and_nobody_else_notices(
    noise: list[bytes],
) -> None:
    asked: Collected[bytes] = Collected()
    with Node(THERE, config=SILENT) as there:
        let = Collected[bytes]()

        def handler(source: int, data: bytes) -> bytes:
            asked.add(data)
            let.first(1, 50)
            return b"in peace"

        there.on(KIND, handler)
        with Child(asker, there=there.address) as child:
            address = child.expect("ready")["address"]

            def facts() -> dict[str, int]:
                child.tell("facts")
                told = child.expect("facts")
                return {name: told[name] for name in ("errors", "late", "open", "large")}

            def matches(wanted: dict[str, int]) -> bool:
                return facts() == wanted

            try:
                asked.first(1)
                for turn in range(1, 4):
                    with Stranger.dial(address) as stranger:
                        stranger.hand_shake(BAD)
                        for number, words in enumerate(noise):
                            if number != 0:
                                stranger.read_until(strangers.RESERVED)
                            stranger.say(words)
                        assert stranger.dropped_within(10)
                    # What was reserved for it is given back a moment after the connection has gone.
                    wanted = {"errors": turn, "late": 0, "open": 1, "large": 0}
                    eventually(partial(matches, wanted), f"facts are {wanted}")
            finally:
                let.add(b"go on")
            child.tell("end")
            assert child.expect("ended")["answer"] == "in peace"


def test_short_responses_of_every_length_up_to_a_whole_one_are_told_apart() -> None:
    """Twelve bytes are an answer of nothing: late here, and no error."""
    with Node(1, config=SILENT) as node, Stranger.dial(node.address) as stranger:
        stranger.hand_shake(BAD)
        stranger.say(frame(KIND, response_body(1), flags=strangers.RESPONSE))
        eventually(lambda: node.statistics().late_responses == 1)
        for turn, size in enumerate(range(12), start=1):
            with Stranger.dial(node.address) as short:
                short.hand_shake(100 + size)
                short.say(frame(KIND, response_body(1)[:size], flags=strangers.RESPONSE))
                assert short.dropped_within(10)
            eventually(lambda turn=turn: node.statistics().protocol_errors == turn)  # type: ignore[misc]
        assert node.statistics().late_responses == 1
