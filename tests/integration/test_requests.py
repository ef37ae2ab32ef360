"""A question to one node and its answer: the right one, once, whole, or a clear error."""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon import (
    Closed,
    ConfigError,
    MessageTooLarge,
    Node,
    NodeConfig,
    RemoteError,
    RequestTimeout,
    UnknownKind,
    UnknownPeer,
)
from antiphon.testing import Collected, Proxy
from integration.asking import SOON, Slow, ask, echo, slow_there
from unit.node.pairs import (
    HERE,
    KIND,
    NORMAL,
    OTHER,
    SILENT,
    SMALL,
    THERE,
    THIRD,
    Heard,
    Ping,
    Pong,
    Running,
    all_results,
    eventually,
    kind_of,
    nodes,
    pattern,
    to,
)

pytestmark = pytest.mark.timeout(60)


# --- questions and answers ------------------------------------------------------------------------


def test_a_raw_request_gets_the_handlers_bytes() -> None:
    heard = Heard()
    with nodes() as (here, there):

        def handler(source: int, data: bytes) -> bytes:
            heard(source, data)
            return data.upper()

        there.on(KIND, handler)
        answer = here.request(THERE, b"raw", kind=KIND)
    assert answer == b"RAW"
    assert type(answer) is bytes
    assert heard.calls == [(HERE, b"raw")]


@pytest.mark.parametrize("ordered", [True, False])
def test_a_typed_request_gets_a_typed_answer(ordered: bool) -> None:
    with nodes() as (here, there):
        there.on(Ping, lambda source, ping: Pong(f"{source} {ping.seq}"), ordered=ordered)
        assert here.request(THERE, Ping(7), reply=Pong) == Pong("1 7")
        assert here.request_async(THERE, Ping(8), reply=Pong).result(5) == Pong("1 8")


def test_raw_questions_may_have_typed_answers_and_typed_ones_raw_answers() -> None:
    with nodes() as (here, there):
        there.on(KIND, lambda source, data: Pong(data.decode()))
        there.on(Ping, lambda source, ping: ping.body)
        assert here.request(THERE, b"text", kind=KIND, reply=Pong) == Pong("text")
        assert here.request(THERE, Ping(1, b"body")) == b"body"


def test_a_typed_answer_that_nobody_wants_typed_comes_as_its_bytes() -> None:
    import msgspec

    with nodes() as (here, there):
        there.on(KIND, lambda source, data: Ping(5, data))
        answer = here.request(THERE, b"x", kind=KIND)
    # As the message itself travels: whoever knows the class can read it.
    assert msgspec.msgpack.decode(answer, type=Ping) == Ping(5, b"x")


@pytest.mark.parametrize(
    ("make", "sent"),
    [
        (lambda: bytearray(b"array"), b"array"),
        (lambda: memoryview(b"view")[1:], b"iew"),
        (lambda: array("i", [1, 2]), array("i", [1, 2]).tobytes()),
    ],
    ids=["bytearray", "memoryview", "array"],
)
def test_any_buffer_can_be_asked_with(make: Callable[[], Any], sent: bytes) -> None:
    with nodes() as (here, there):
        there.on(KIND, echo)
        assert here.request(THERE, make(), kind=KIND) == sent
        assert here.request_async(THERE, make(), kind=KIND).result(5) == sent


def test_none_answers_with_nothing() -> None:
    with nodes() as (here, there):
        there.on(KIND, lambda source, data: None)
        assert here.request(THERE, b"x", kind=KIND) == b""
        eventually(lambda: there.statistics().answers == 1)


def test_bytes_of_no_length_are_an_answer_and_a_question() -> None:
    heard = Heard()
    with nodes() as (here, there):

        def handler(source: int, data: bytes) -> bytes:
            heard(source, data)
            return b""

        there.on(KIND, handler)
        assert here.request(THERE, b"", kind=KIND) == b""
    assert heard.data == [b""]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"raw", "bytes"),
        (b"", "bytes"),
        (None, "None"),
        (Ping(1), "61001"),
    ],
    ids=["bytes", "no bytes", "None", "another class"],
)
def test_another_answer_than_the_wanted_class_is_a_remote_error(answer: object, said: str) -> None:
    with nodes() as (here, there):
        there.on(KIND, lambda source, data: answer)
        with pytest.raises(RemoteError, match="Pong was wanted") as error:
            here.request(THERE, b"x", kind=KIND, reply=Pong)
        future = here.request_async(THERE, b"x", kind=KIND, reply=Pong)
        assert isinstance(future.exception(5), RemoteError)
    assert said in str(error.value)
    assert (error.value.peer, error.value.kind) == (THERE, KIND)


@pytest.mark.parametrize(
    "answer",
    ["text", 5, bytearray(b"x"), memoryview(b"x"), [b"x"], object(), True, Ping],
    ids=lambda value: type(value).__name__,
)
def test_an_answer_of_another_type_is_a_remote_error_that_names_it(answer: object) -> None:
    with nodes() as (here, there):
        there.on(KIND, lambda source, data: answer)
        with pytest.raises(RemoteError, match=type(answer).__name__) as error:
            here.request(THERE, b"x", kind=KIND)
        assert error.value.exception == "TypeError"
        assert (error.value.peer, error.value.kind) == (THERE, KIND)
        # For a message that wants no answer any value is as good as another.
        here.send(THERE, b"x", kind=KIND)
        here.flush()
        eventually(lambda: kind_of(there).handled == 2)


def test_a_subclass_of_bytes_is_bytes() -> None:
    class Name(bytes):
        pass

    with nodes() as (here, there):
        there.on(KIND, lambda source, data: Name(data))
        answer = here.request(THERE, b"x", kind=KIND)
    assert (answer, type(answer)) == (b"x", bytes)


def test_an_answer_that_cannot_be_encoded_is_a_remote_error() -> None:
    with nodes() as (here, there):
        there.on(KIND, lambda source, data: Ping(object(), b""))  # type: ignore[arg-type]
        with pytest.raises(RemoteError) as error:
            here.request(THERE, b"x", kind=KIND)
        assert error.value.exception == "TypeError"
        assert here.request_async(THERE, b"x", kind=OTHER).exception(5) is not None


class Broken(Exception):
    """An error whose text is an error."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "name", "text"),
    [
        (ValueError("not like this"), "ValueError", "not like this"),
        (KeyError("key"), "KeyError", "'key'"),
        (ValueError(), "ValueError", "raised ValueError; see"),
        (Broken(), "Broken", "raised Broken; see"),
        (ValueError("ünïcödé \U0001f600"), "ValueError", "ünïcödé \U0001f600"),
        (ValueError("before\0behind"), "ValueError", "before\0behind"),
        (ValueError("\udc80"), "ValueError", "raised ValueError"),
        (ValueError("x" + "\U0001f600" * 4000), "ValueError", "x" + "\U0001f600" * 500),
        (ValueError("x" * 3_000_000), "ValueError", "x" * 2000),
        (RequestTimeout("inner"), "RequestTimeout", "inner"),
        (SystemExit(3), "SystemExit", "3"),
        (KeyboardInterrupt(), "KeyboardInterrupt", "KeyboardInterrupt"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isalpha() else "",
)
def test_what_a_handler_raises_comes_back_with_class_and_text(
    error: BaseException, name: str, text: str
) -> None:
    def fail(source: int, data: bytes) -> None:
        raise error

    with nodes() as (here, there):
        there.on(KIND, fail)
        there.on(OTHER, echo)
        with pytest.raises(RemoteError) as found:
            here.request(THERE, b"x", kind=KIND)
        assert text in str(found.value)
        assert name in str(found.value)
        assert found.value.exception == name
        assert (found.value.peer, found.value.kind) == (THERE, KIND)
        assert len(str(found.value)) < 3000
        eventually(lambda: kind_of(there).failed == 1)
        assert here.request(THERE, b"goes on", kind=OTHER) == b"goes on"


def test_a_handlers_failure_is_logged_where_it_happened(caplog: pytest.LogCaptureFixture) -> None:
    def fail(source: int, data: bytes) -> None:
        raise ValueError("told to both")

    with nodes() as (here, there), caplog.at_level(logging.ERROR, "antiphon.node"):
        there.on(KIND, fail)
        with pytest.raises(RemoteError):
            here.request(THERE, b"x", kind=KIND)
        eventually(lambda: caplog.records, "a record")
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


@pytest.mark.parametrize("coroutine", [False, True])
@pytest.mark.parametrize(
    ("answer", "name"),
    [(7, "TypeError"), ("text", "TypeError"), (bytes(3 << 20), "MessageTooLarge")],
)
def test_what_is_no_answer_is_logged_and_counted_where_it_was_returned(
    answer: object, name: str, coroutine: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def reply(source: int, data: bytes) -> Any:
        return answer

    async def reply_later(source: int, data: bytes) -> Any:
        return answer

    async def ask() -> None:
        config = NodeConfig(max_message_bytes=2 << 20)
        async with (
            Node(THERE) as there,
            Node(HERE, peers={2: there.address}, config=config) as here,
        ):
            there.on(KIND, reply_later if coroutine else reply)
            with pytest.raises(RemoteError) as error:
                await here.request_async(THERE, b"x", kind=KIND)
            assert error.value.exception == name
            eventually(lambda: kind_of(there).failed == 1)
            eventually(lambda: caplog.records, "a record")

    with caplog.at_level(logging.ERROR, "antiphon.node"):
        asyncio.run(ask())
    (record,) = caplog.records
    assert record.exc_info is not None
    assert type(record.exc_info[1]).__name__ == name


def test_a_question_that_cannot_be_decoded_is_a_remote_error() -> None:
    with nodes() as (here, there):
        there.on(Ping, lambda source, ping: b"never")
        with pytest.raises(RemoteError) as error:
            here.request(THERE, b"\xc1", kind=61001)
    assert error.value.exception in ("DecodeError", "ValidationError")


def test_a_request_to_oneself_is_answered() -> None:
    with Node(HERE, config=NORMAL) as here:
        here.on(KIND, echo)
        assert here.request(HERE, b"me", kind=KIND) == b"me"
        assert here.request_async(HERE, b"me", kind=KIND).result(5) == b"me"


@pytest.mark.parametrize("scheme", ["tcp", "unix", "inproc"])
def test_every_transport_carries_requests_both_ways(scheme: str, tmp_path: Path) -> None:
    where = {
        "tcp": ("tcp://127.0.0.1:0", "tcp://127.0.0.1:0"),
        "unix": (f"unix://{tmp_path}/one.sock", f"unix://{tmp_path}/two.sock"),
        "inproc": ("inproc://asks", "inproc://answers"),
    }[scheme]
    with (
        Node(HERE, listen=where[0], config=NORMAL) as here,
        Node(THERE, listen=where[1], config=NORMAL) as there,
    ):
        here.add_peer(THERE, there.address)
        for node in (here, there):
            node.on(KIND, echo)
        for data in (b"", b"small", pattern(3_000_000)):
            assert here.request(THERE, data, kind=KIND) == data
            assert there.request(HERE, data, kind=KIND) == data


def test_a_node_without_a_listener_asks_and_is_asked() -> None:
    with (
        Node(THERE, config=NORMAL) as there,
        Node(HERE, listen=None, peers={THERE: there.address}, config=NORMAL) as here,
    ):
        here.on(KIND, echo)
        there.on(KIND, echo)
        assert here.request(THERE, b"asks", kind=KIND) == b"asks"
        assert there.request(HERE, b"is asked", kind=KIND) == b"is asked"


# --- who cannot answer ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 100, 1_000_000])
@pytest.mark.parametrize("connected", [True, False])
def test_an_unknown_kind_is_said_at_once(size: int, connected: bool) -> None:
    with nodes() as (here, there):
        there.on(KIND, echo)
        if connected:
            here.request(THERE, b"", kind=KIND)
        began = time.monotonic()
        with pytest.raises(UnknownKind) as error:
            here.request(THERE, bytes(size), kind=OTHER)
        assert time.monotonic() - began < SOON
        assert (error.value.peer, error.value.kind) == (THERE, OTHER)
        assert there.statistics().drops["unknown_kind"] == 1
        assert here.request(THERE, b"goes on", kind=KIND) == b"goes on"


@pytest.mark.parametrize("size", [0, 100, 1_000_000])
@pytest.mark.parametrize("how", ["inbox", "batch"])
def test_a_request_to_what_cannot_answer_fails_at_once(how: str, size: int) -> None:
    heard = Heard()
    with nodes() as (here, there):
        if how == "inbox":
            inbox = there.inbox(KIND)
        else:
            there.on(KIND, heard, batch=True)
        began = time.monotonic()
        with pytest.raises(RemoteError, match="cannot answer") as error:
            here.request(THERE, bytes(size), kind=KIND)
        assert time.monotonic() - began < SOON
        assert (error.value.peer, error.value.kind) == (THERE, KIND)
        assert error.value.exception is None
        # Nobody was handed half a question, and plain messages come as ever.
        here.send(THERE, b"plain", kind=KIND)
        if how == "inbox":
            assert inbox.receive(5) == (HERE, b"plain")
            assert inbox.pending == 0
        else:
            assert [list(batch) for batch in heard.wait(1)] == [[b"plain"]]


def test_many_requests_to_unknown_kinds_are_all_refused() -> None:
    """More than any window or lane holds: refusals are paid for too."""
    with nodes() as (here, _):

        def ask(thread: int) -> int:
            refused = 0
            for turn in range(500):
                try:
                    here.request(THERE, bytes(turn), kind=300 + thread)
                except UnknownKind as error:
                    refused += error.kind == 300 + thread
            return refused

        asking = [Running(lambda thread=thread: ask(thread)) for thread in range(8)]  # type: ignore[misc]
        assert all_results(asking) == [500] * 8


@pytest.mark.parametrize("when_full", ["drop_newest", "drop_oldest"])
def test_a_request_that_is_dropped_fails_at_once(when_full: str) -> None:
    with slow_there(capacity=3, when_full=when_full) as (here, there, slow):
        first = here.request_async(THERE, b"0", kind=KIND)
        slow.asked.first(1)
        # One after the other, each in a run of its own.
        waiting = []
        for number in range(1, 9):
            waiting.append(here.request_async(THERE, b"%d" % number, kind=KIND))
            eventually(lambda number=number: kind_of(there).messages > number)  # type: ignore[misc]
        lost = waiting[3:] if when_full == "drop_newest" else waiting[:5]
        kept = waiting[:3] if when_full == "drop_newest" else waiting[5:]
        for future in lost:
            error = future.exception(SOON)
            assert isinstance(error, RemoteError)
            assert "dropped" in str(error)
        assert not any(future.done() for future in kept)
        slow.let(4)
        assert first.result(5) == b"0"
        numbers = range(1, 4) if when_full == "drop_newest" else range(6, 9)
        assert [future.result(5) for future in kept] == [b"%d" % number for number in numbers]
        assert there.statistics().drops["queue_full"] == 5


@pytest.mark.parametrize("when_full", ["drop_newest", "drop_oldest"])
def test_of_requests_that_come_together_those_that_are_dropped_fail_at_once(
    when_full: str,
) -> None:
    """A queue may cut into what came with one read: nobody of it may be forgotten."""
    with nodes() as (here, there), Slow() as slow, Proxy(there.address) as proxy:
        here.add_peer(THERE, proxy.address)
        there.on(KIND, slow, capacity=3, when_full=when_full)
        first = here.request_async(THERE, b"first", kind=KIND)
        slow.asked.first(1)
        proxy.stall()
        waiting = [here.request_async(THERE, b"%d" % n, kind=KIND) for n in range(20)]
        proxy.flow()
        eventually(lambda: kind_of(there).messages == 21)
        eventually(lambda: there.statistics().drops["queue_full"] == 17)
        eventually(lambda: sum(future.done() for future in waiting) == 17, "17 refusals", SOON)
        slow.let(4)
        assert first.result(5) == b"first"
        errors = [future.exception(5) for future in waiting]
        assert sum(error is None for error in errors) == 3
        assert sum(isinstance(error, RemoteError) for error in errors) == 17


@pytest.mark.parametrize("ordered", [True, False])
def test_requests_that_a_closed_registration_leaves_behind_fail_at_once(ordered: bool) -> None:
    """Those that came together with one that is being answered, and those that came behind."""
    with nodes() as (here, there), Slow() as slow, Proxy(there.address) as proxy:
        here.add_peer(THERE, proxy.address)
        registration = there.on(KIND, slow, ordered=ordered)
        slow.let()
        here.request(THERE, b"connects", kind=KIND)
        proxy.stall()
        waiting = [here.request_async(THERE, b"%d" % n, kind=KIND) for n in range(40)]
        proxy.flow()
        eventually(lambda: kind_of(there).messages == 41)
        slow.asked.first(2)
        waiting += [here.request_async(THERE, b"%d" % n, kind=KIND) for n in range(40, 50)]
        eventually(lambda: kind_of(there).messages == 51)
        closing = Running(registration.close)
        eventually(lambda: not any(each.kind == KIND for each in there.statistics().kinds))
        slow.let(40)
        closing.result()
        begun = slow.asked.items[1:]
        assert 1 <= len(begun) < 40
        eventually(lambda: all(future.done() for future in waiting), "all are done", SOON)
        for number, future in enumerate(waiting):
            if b"%d" % number in begun:
                assert future.result(0) == b"%d" % number
            else:
                assert isinstance(future.exception(0), RemoteError | UnknownKind)
        with pytest.raises(UnknownKind):
            here.request(THERE, b"x", kind=KIND)


def test_a_handler_may_close_its_own_registration_and_still_answer() -> None:
    with nodes() as (here, there):

        def once(source: int, data: bytes) -> bytes:
            registration.close()
            return data

        registration = there.on(KIND, once)
        assert here.request(THERE, b"x", kind=KIND) == b"x"
        with pytest.raises(UnknownKind):
            here.request(THERE, b"x", kind=KIND)


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["request", "request_async"])
def test_mistakes_of_the_caller_are_raised_at_the_call(call: str) -> None:
    with nodes() as (here, there):
        there.on(KIND, echo)
        ask = getattr(here, call)
        with pytest.raises(UnknownPeer) as unknown:
            ask(9, b"x", kind=KIND)
        assert unknown.value.peer == 9
        with pytest.raises(ConfigError, match="kind"):
            ask(THERE, b"x")
        with pytest.raises(ConfigError, match="64 to 65535"):
            ask(THERE, b"x", kind=5)
        with pytest.raises(TypeError, match="bytes"):
            ask(THERE, "text", kind=KIND)
        with pytest.raises(BufferError):
            ask(THERE, memoryview(b"abcdef")[::2], kind=KIND)
        with pytest.raises((TypeError, ConfigError)):
            ask(THERE, b"x", kind=KIND, reply=int)
        assert here.statistics().requests_open == 0
        assert here.request(THERE, b"x", kind=KIND) == b"x"


@pytest.mark.parametrize("call", ["request", "request_async"])
def test_a_node_that_is_not_running_asks_nothing(call: str) -> None:
    node = Node(HERE, peers={THERE: "tcp://127.0.0.1:9"})
    with pytest.raises(Closed, match="started"):
        getattr(node, call)(THERE, b"x", kind=KIND)
    with node:
        pass
    with pytest.raises(Closed):
        getattr(node, call)(THERE, b"x", kind=KIND)


# --- inside handlers ------------------------------------------------------------------------------


def test_handlers_on_all_scheduler_threads_may_ask_at_once() -> None:
    """As many kinds as there may be threads, each of whose handlers waits for the other node."""
    kinds = range(300, 324)
    with nodes() as (here, there), Slow() as slow:
        here.on(KIND, slow, ordered=False)

        def pass_on(source: int, data: bytes) -> bytes:
            answer: bytes = there.request(HERE, data, kind=KIND)
            return answer + b"!"

        for kind in kinds:
            there.on(kind, pass_on)
        asked = {kind: here.request_async(THERE, b"%d" % kind, kind=kind) for kind in kinds}
        slow.asked.first(1)
        eventually(lambda: there.statistics().requests_open == len(kinds), "all wait")
        slow.let(len(kinds))
        assert {kind: future.result(10) for kind, future in asked.items()} == {
            kind: b"%d!" % kind for kind in kinds
        }


def test_a_asks_b_which_asks_a() -> None:
    with nodes() as (here, there):
        here.on(OTHER, lambda source, data: data + b" b->a")
        there.on(KIND, lambda source, data: there.request(source, data + b" a->b", kind=OTHER))
        assert here.request(THERE, b"x", kind=KIND) == b"x a->b b->a"
        # And from a handler of ours, where all of them wait for each other.
        here.on(THIRD, lambda source, data: here.request(THERE, data, kind=KIND))
        assert there.request(HERE, b"y", kind=THIRD) == b"y a->b b->a"


@pytest.mark.parametrize("depth", [2, 16, 50])
def test_calls_may_nest_deeply(depth: int) -> None:
    with nodes() as (here, there):

        def at(node: Node, target: int, level: int) -> Callable[[int, bytes], bytes]:
            def handler(source: int, data: bytes) -> bytes:
                if level == depth:
                    return data
                return node.request(target, data + b".", kind=301 + level)

            return handler

        for level in range(1, depth + 1):
            node, target = (there, HERE) if level % 2 else (here, THERE)
            node.on(300 + level, at(node, target, level))
        assert here.request(THERE, b"", kind=301) == b"." * (depth - 1)
        assert here.request(THERE, b"", kind=301) == b"." * (depth - 1)


def test_calls_that_nest_without_end_end_with_an_error() -> None:
    """An ordered handler that asks for itself waits for itself: the time given ends that."""
    config = NodeConfig(request_timeout=0.3)
    with nodes(config) as (here, there):
        calls = itertools.count()

        def nest(node: Node, other: int) -> bytes:
            # What was given up still waits in a queue, and would ask again when its turn comes.
            if next(calls) > 10:
                raise ValueError("enough")
            return node.request(other, b"x", kind=KIND)

        there.on(KIND, lambda source, data: nest(there, HERE))
        here.on(KIND, lambda source, data: nest(here, THERE))
        there.send(HERE, b"connects", kind=OTHER)  # an answer would not wait for it for long
        with pytest.raises((RequestTimeout, RemoteError)):
            here.request(THERE, b"x", kind=KIND)
        there.on(OTHER, echo)
        assert here.request(THERE, b"goes on", kind=OTHER, timeout=30) == b"goes on"
        eventually(lambda: here.statistics().requests_open == 0)
        eventually(lambda: there.statistics().requests_open == 0)


def test_an_error_passes_through_the_handlers_that_asked() -> None:
    with nodes() as (here, there):

        def fail(source: int, data: bytes) -> None:
            raise ValueError("at the bottom")

        here.on(OTHER, fail)
        there.on(KIND, lambda source, data: there.request(HERE, data, kind=OTHER))
        with pytest.raises(RemoteError, match="at the bottom") as error:
            here.request(THERE, b"x", kind=KIND)
    assert error.value.exception == "RemoteError"


def test_callbacks_of_connections_may_ask() -> None:
    answers: Collected[bytes] = Collected()
    with nodes() as (here, there):
        there.on(KIND, echo)
        here.on_connected(lambda peer, reason: answers.add(here.request(peer, b"hello", kind=KIND)))
        here.send(THERE, b"x", kind=KIND)
        assert answers.first(1) == [b"hello"]


# --- sizes ----------------------------------------------------------------------------------------

WINDOW = SMALL.flow_window_bytes
_NEAR = (-32, -20, -13, -12, -8, -1, 0, 1, 8)
SIZES = sorted(
    {0, 1, 7, 8, 9, 11, 12, 13, 4096}
    | {edge + near for edge in (WINDOW // 4, WINDOW, 65536, 262144) for near in _NEAR}
)


@pytest.mark.parametrize("config", [NORMAL, SMALL], ids=["default", "small"])
def test_questions_and_answers_of_any_size(config: NodeConfig) -> None:
    with nodes(config) as (here, there):

        def handler(source: int, data: bytes) -> bytes:
            (size,) = struct.unpack_from("<I", data)
            assert data == struct.pack("<I", size) + pattern(len(data) - 4, 2)
            return pattern(size, 3)

        there.on(KIND, handler)
        there.on(OTHER, echo)
        for size in SIZES:
            assert here.request(THERE, pattern(size), kind=OTHER) == pattern(size)
            question = struct.pack("<I", size) + pattern(10, 2)
            assert here.request(THERE, question, kind=KIND) == pattern(size, 3)
            question = struct.pack("<I", 3) + pattern(size, 2)
            assert here.request_async(THERE, question, kind=KIND).result(5) == pattern(3, 3)


@pytest.mark.parametrize("most", [1, 12, 1000, 4096, 300_000])
def test_the_largest_message_may_be_asked_and_answered_and_one_byte_more_may_not(
    most: int,
) -> None:
    with nodes(NodeConfig(max_message_bytes=most)) as (here, there):
        there.on(KIND, echo)
        there.on(OTHER, lambda source, data: bytes(most + 1))
        assert here.request(THERE, pattern(most), kind=KIND) == pattern(most)
        assert here.request_async(THERE, pattern(most), kind=KIND).result(5) == pattern(most)
        for ask in (here.request, lambda *a, **k: here.request_async(*a, **k).result(5)):
            with pytest.raises(MessageTooLarge) as error:
                ask(THERE, bytes(most + 1), kind=KIND)
            assert (error.value.size, error.value.limit) == (most + 1, most)
        with pytest.raises(RemoteError, match=str(most + 1)) as remote:
            here.request(THERE, b"x", kind=OTHER)
        assert remote.value.exception == "MessageTooLarge"
        assert here.request(THERE, b"x", kind=KIND) == b"x"
        assert here.statistics().requests_open == 0


def test_the_smaller_limit_of_the_two_holds_for_answers_too() -> None:
    with nodes(NodeConfig(max_message_bytes=1000), NORMAL) as (here, there):
        there.on(KIND, lambda source, data: bytes(int(data)))
        assert here.request(THERE, b"1000", kind=KIND) == bytes(1000)
        with pytest.raises(RemoteError, match="1001") as error:
            here.request(THERE, b"1001", kind=KIND)
    assert error.value.exception == "MessageTooLarge"


def test_large_answers_to_many_at_once_fit_into_their_budget() -> None:
    config = NodeConfig(max_message_bytes=2_000_000, large_message_bytes=2_000_000)
    with nodes(config) as (here, there):
        there.on(KIND, echo, ordered=False)

        def ask(number: int) -> bool:
            data = pattern(1_500_000 + number, number)
            return bool(here.request(THERE, data, kind=KIND) == data)

        asking = [Running(lambda n=n: ask(n)) for n in range(1, 9)]  # type: ignore[misc]
        assert all_results(asking) == [True] * 8
        for node in (here, there):
            eventually(lambda node=node: node.statistics().large_bytes_in_use == 0)  # type: ignore[misc]


def test_a_large_answer_that_comes_late_leaves_nothing_behind() -> None:
    with nodes() as (here, there), Slow() as slow:
        there.on(KIND, lambda source, data: slow(source, data) * 5_000_000)
        slow.let()
        here.request(THERE, b"", kind=KIND)  # connects: without, the next may never be sent
        with pytest.raises(RequestTimeout):
            here.request(THERE, b"x", kind=KIND, timeout=0.1)
        slow.let()
        eventually(lambda: here.statistics().late_responses == 1)
        assert here.statistics().large_bytes_in_use == 0
        slow.let()
        assert here.request(THERE, b"y", kind=KIND) == b"y" * 5_000_000


# --- counters -------------------------------------------------------------------------------------


def test_statistics_count_requests_and_answers_on_both_sides() -> None:
    with slow_there() as (here, there, slow):
        slow.let(3)
        for number in range(3):
            here.request(THERE, b"%d" % number, kind=KIND)
        waiting = [here.request_async(THERE, b"x", kind=KIND) for _ in range(2)]
        slow.asked.first(4)
        mine, theirs = here.statistics(), there.statistics()
        assert (mine.requests, mine.requests_open, mine.answers) == (5, 2, 0)
        assert (theirs.requests, theirs.answers, theirs.lost_answers) == (0, 3, 0)
        slow.let(2)
        assert [future.result(5) for future in waiting] == [b"x", b"x"]
        eventually(lambda: there.statistics().answers == 5)
        mine = here.statistics()
        assert (mine.requests, mine.requests_open, mine.late_responses) == (5, 0, 0)
        assert mine.messages_out == 5
        eventually(lambda: kind_of(there).handled == 5)
        entry = kind_of(there)
        assert (entry.messages, entry.calls, entry.failed) == (5, 5, 0)


@pytest.mark.parametrize("call", ["request", "request_async"])
def test_a_first_request_counts_once(call: str) -> None:
    with nodes() as (here, there):
        there.on(KIND, echo)
        ask(here, call, b"x")
        assert here.statistics().requests == 1
        ask(here, call, bytes(3_000_000))
        assert here.statistics().requests == 2
        assert eventually(lambda: there.statistics().answers == 2)


# --- on a quiet connection ------------------------------------------------------------------------


def test_on_a_quiet_connection_the_caller_writes_its_request_itself() -> None:
    """Instead of waking the selector for it."""
    with nodes(SILENT) as (here, there):
        there.on(KIND, echo)
        here.request(THERE, b"connects", kind=KIND)

        def by_itself() -> bool:
            before = to(here)
            assert here.request(THERE, b"x", kind=KIND) == b"x"
            after = to(here)
            return (after.inline_writes, after.writes) == (before.inline_writes + 1, before.writes)

        # Not every time: somebody else may be writing just then.
        eventually(by_itself)


def test_a_caller_that_waits_alone_reads_its_answer_itself() -> None:
    """The selector has no turn for it, where each answer would take one."""
    calls = 50
    with nodes(SILENT) as (here, there):
        there.on(KIND, echo)
        here.request(THERE, b"connects", kind=KIND)

        def by_itself() -> bool:
            before = here.statistics().selector_turns
            for _ in range(calls):
                assert here.request(THERE, b"x", kind=KIND) == b"x"
            return here.statistics().selector_turns - before < calls // 2

        eventually(by_itself)


@pytest.mark.parametrize("coroutine", [False, True])
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("caf\udce9", "caf\\udce9"),  # the name of a file whose bytes are no text
        ("x" + "\N{LATIN SMALL LETTER E WITH ACUTE}" * 2000, "x" + "\u00e9" * 1023),
        ("\N{GRINNING FACE}" * 600, "\N{GRINNING FACE}" * 512),
        ("x" * 2048, "x" * 2048),
        ("x" * 3000, "x" * 2048),
    ],
)
def test_the_text_of_an_exception_is_told_whatever_it_is(
    text: str, told: str, coroutine: bool
) -> None:
    def fail(source: int, data: bytes) -> None:
        raise ValueError(text)

    async def fail_async(source: int, data: bytes) -> None:
        raise ValueError(text)

    async def main() -> None:
        async with Node(THERE) as there, Node(HERE, peers={THERE: there.address}) as here:
            there.on(KIND, fail_async if coroutine else fail)
            with pytest.raises(RemoteError) as error:
                await here.request_async(THERE, b"x", kind=KIND)
            assert error.value.exception == "ValueError"
            assert f"raised ValueError: {told}; see the log there" in str(error.value)

    asyncio.run(main())
