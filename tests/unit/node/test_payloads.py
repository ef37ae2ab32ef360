"""What can be sent: any buffer for a raw kind, any Message for a typed one, nothing else."""

from __future__ import annotations

import ctypes
import mmap
from array import array
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from antiphon import Closed, ConfigError, Message, Node, UnknownPeer
from unit.node.pairs import HERE, KIND, THERE, Heard, Ping, eventually, nodes, to

pytestmark = pytest.mark.timeout(20)

BUFFERS: dict[str, Callable[[], Any]] = {
    "bytes": lambda: b"payload",
    "bytearray": lambda: bytearray(b"payload"),
    "memoryview": lambda: memoryview(b"payload"),
    "a part of a memoryview": lambda: memoryview(b"<payload>")[1:-1],
    "array of bytes": lambda: array("B", b"payload"),
    "array of int64": lambda: array("q", [1, -2, 3]),
    "empty bytes": lambda: b"",
    "empty bytearray": lambda: bytearray(),
    "empty memoryview": lambda: memoryview(b""),
    "empty array": lambda: array("d"),
    "ctypes": lambda: (ctypes.c_uint8 * 7)(*b"payload"),
    "a subclass of bytes": lambda: type("Own", (bytes,), {})(b"payload"),
    "two dimensions": lambda: memoryview(b"abcdef").cast("B", (2, 3)),
}


def as_bytes(buffer: Any) -> bytes:
    return memoryview(buffer).cast("B").tobytes() if len(bytes(buffer)) else b""


@pytest.mark.parametrize("how", ["send", "try_send"])
@pytest.mark.parametrize("name", BUFFERS)
def test_every_contiguous_buffer_is_a_raw_message(name: str, how: str) -> None:
    heard = Heard()
    buffer = BUFFERS[name]()
    with nodes() as (here, there):
        there.on(KIND, heard)
        if how == "send":
            here.send(THERE, buffer, kind=KIND)
        else:
            assert eventually(lambda: here.try_send(THERE, buffer, kind=KIND))
        here.flush()
    assert heard.calls == [(HERE, as_bytes(buffer))]
    assert type(heard.data[0]) is bytes


def test_a_mapped_file_is_a_raw_message() -> None:
    heard = Heard()
    with mmap.mmap(-1, 4096) as mapped, nodes() as (here, there):
        mapped[:5] = b"pages"
        there.on(KIND, heard)
        here.send(THERE, mapped, kind=KIND)
        here.flush()
    assert heard.data == [b"pages" + bytes(4091)]


def test_a_buffer_may_be_changed_as_soon_as_send_has_returned() -> None:
    heard = Heard()
    buffer = bytearray(100)
    with nodes() as (here, there):
        there.on(KIND, heard)
        for value in range(200):
            buffer[:] = bytes([value]) * 100
            here.send(THERE, buffer, kind=KIND)
        buffer[:] = bytes(100)
        here.flush()
    assert heard.data == [bytes([value]) * 100 for value in range(200)]


def test_a_buffer_is_let_go_when_send_has_returned() -> None:
    buffer = bytearray(10)
    with nodes() as (here, there):
        there.inbox(KIND)
        here.send(THERE, buffer, kind=KIND)
        buffer.extend(b"would raise BufferError while it is held")


@pytest.mark.parametrize("how", ["send", "try_send"])
def test_a_memoryview_with_gaps_is_refused_with_the_reason(how: str) -> None:
    with nodes() as (here, there):
        there.inbox(KIND)
        with pytest.raises((TypeError, BufferError), match="contiguous"):
            getattr(here, how)(THERE, memoryview(b"abcdef")[::2], kind=KIND)
        assert here.statistics().messages_out == 0


@pytest.mark.parametrize("how", ["send", "try_send"])
@pytest.mark.parametrize("what", ["text", 5, 5.0, None, [b"a"], Ping(1), object()])
def test_what_is_no_buffer_is_no_raw_message(what: Any, how: str) -> None:
    with nodes() as (here, there):
        there.inbox(KIND)
        with pytest.raises(TypeError, match="bytes"):
            getattr(here, how)(THERE, what, kind=KIND)


@pytest.mark.parametrize("how", ["send", "try_send"])
def test_bytes_without_a_kind_are_refused_with_what_to_add(how: str) -> None:
    with nodes() as (here, _), pytest.raises((ConfigError, TypeError), match="kind="):
        getattr(here, how)(THERE, b"raw")


def test_a_typed_message_arrives_as_an_equal_one() -> None:
    heard = Heard()
    with nodes() as (here, there):
        there.on(Ping, heard)
        here.send(THERE, Ping(1))
        here.send(THERE, Ping(-5, b"\x00" * 1000))
        assert eventually(lambda: here.try_send(THERE, Ping(2**60, b"b")))
        here.flush()
    assert heard.calls == [
        (HERE, Ping(1)),
        (HERE, Ping(-5, b"\x00" * 1000)),
        (HERE, Ping(2**60, b"b")),
    ]


def test_a_typed_message_is_raw_bytes_to_a_raw_handler() -> None:
    heard = Heard()
    with nodes() as (here, there):
        there.on(61001, heard)
        here.send(THERE, Ping(1, b"x"))
        here.flush()
    assert msgspec.msgpack.decode(heard.data[0]) == [1, b"x"]


@pytest.mark.parametrize("how", ["send", "try_send"])
def test_a_message_that_cannot_be_encoded_raises_and_harms_nobody(how: str) -> None:
    class Odd(Message, kind=61010):
        value: Any

    heard = Heard()
    with nodes() as (here, there):
        there.on(Odd, heard)
        here.send(THERE, Odd(1))
        with pytest.raises(TypeError):
            getattr(here, how)(THERE, Odd(object()))
        here.send(THERE, Odd(2))
        here.flush()
        assert to(here).messages_out == 2
    assert [message.value for message in heard.data] == [1, 2]


@pytest.mark.parametrize("how", ["send", "send_async", "request", "request_async"])
@pytest.mark.parametrize("target", ["2", b"2", 2.0, None, [THERE, "3"], [[THERE]], object()])
def test_what_is_no_node_is_no_target(target: Any, how: str) -> None:
    with nodes() as (here, there):
        there.inbox(KIND)
        with pytest.raises(TypeError, match="a target is the id of a node"):
            getattr(here, how)(target, b"x", kind=KIND)
        assert here.statistics().messages_out == 0


@pytest.mark.parametrize("how", ["send", "try_send", "send_async", "request", "request_async"])
def test_a_message_has_a_kind_of_its_own(how: str) -> None:
    with nodes() as (here, _), pytest.raises(TypeError, match="a Message goes without kind="):
        getattr(here, how)(THERE, Ping(1), kind=KIND)


@pytest.mark.parametrize("how", ["send", "try_send", "send_async", "request", "request_async"])
def test_a_kind_that_is_missing_is_asked_for_in_the_words_of_the_call(how: str) -> None:
    with nodes() as (here, _), pytest.raises(ConfigError, match=rf" {how}\(target, data, kind="):
        getattr(here, how)(THERE, b"raw")


def test_send_many_takes_other_buffers_and_asks_for_the_kind_of_raw_ones() -> None:
    heard = Heard()
    with nodes() as (here, there):
        there.on(KIND, heard)
        here.send_many(THERE, [b"a", bytearray(b"b"), memoryview(b"cd")], kind=KIND)
        here.flush()
        with pytest.raises(ConfigError, match="raw messages need their kind: send_many"):
            here.send_many(THERE, [b"a"])
    assert heard.data == [b"a", b"b", b"cd"]


@pytest.mark.parametrize("timeout", ["x", [1], object()])
def test_a_time_that_is_no_number_is_a_type_error(timeout: Any) -> None:
    with nodes() as (here, there):
        there.on(KIND, lambda source, data: data)
        inbox = here.inbox(KIND)
        calls: list[Callable[[], object]] = [
            lambda: here.request(THERE, b"x", kind=KIND, timeout=timeout),
            lambda: here.request_async(THERE, b"x", kind=KIND, timeout=timeout),
            lambda: here.flush(timeout),
            lambda: inbox.receive(timeout),
        ]
        for call in calls:
            with pytest.raises(TypeError):
                call()


def test_a_node_that_was_not_started_says_so_whatever_is_asked_of_it() -> None:
    node = Node(HERE, peers={THERE: "tcp://127.0.0.1:1"})
    for call in (node.flush, node.flush_async, lambda: node.send(THERE, b"x", kind=KIND)):
        with pytest.raises(Closed, match="has not been started"):
            call()


@pytest.mark.parametrize("given", [{"config": 5}, {"tls": "x"}, {"peers": [1]}])
def test_an_argument_of_a_node_that_is_of_another_type_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        Node(**given)
    assert error.value.setting == next(iter(given))


def test_a_class_without_a_kind_cannot_be_sent() -> None:
    class Base(Message):
        x: int = 0

    with nodes() as (here, _), pytest.raises(ConfigError, match="Base has no kind"):
        here.send(THERE, Base())


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ((), {}),
        ((THERE,), {}),
        ((THERE, b"x", KIND), {}),
        ((THERE, b"x"), {"kind": KIND, "timeout": 1}),
        ((THERE, b"x"), {"knd": KIND}),
        ((THERE, b"x"), {"kind": "200"}),
        ((THERE,), {"target": THERE, "message": b"x", "kind": KIND}),
    ],
)
@pytest.mark.parametrize("how", ["send", "try_send"])
def test_wrong_arguments_are_type_errors(
    how: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    with nodes() as (here, _), pytest.raises(TypeError):
        getattr(here, how)(*arguments, **keywords)


def test_arguments_may_be_named() -> None:
    heard = Heard()
    with nodes() as (here, there):
        there.on(KIND, heard)
        here.send(target=THERE, message=b"1", kind=KIND)
        here.send(kind=KIND, message=b"2", target=THERE)
        assert eventually(lambda: here.try_send(target=THERE, message=b"3", kind=KIND))
        here.send_many(target=THERE, messages=[b"4"], kind=KIND)
        here.send_packed(target=THERE, data=b"5", offsets=array("i", [0, 1]), kind=KIND)
        here.flush()
    assert heard.data == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("peer", [3, 65535])
@pytest.mark.parametrize("how", ["send", "try_send", "send_many", "send_packed"])
def test_a_peer_that_nobody_named_is_unknown(peer: int, how: str) -> None:
    with nodes() as (here, _):
        calls: dict[str, Callable[[], object]] = {
            "send": lambda: here.send(peer, b"x", kind=KIND),
            "try_send": lambda: here.try_send(peer, b"x", kind=KIND),
            "send_many": lambda: here.send_many(peer, [b"x"], kind=KIND),
            "send_packed": lambda: here.send_packed(peer, b"x", array("i", [0, 1]), kind=KIND),
        }
        with pytest.raises(UnknownPeer, match="add_peer") as error:
            calls[how]()
        assert error.value.peer == peer


@pytest.mark.parametrize("peer", [-1, 0, 65536, 2**40])
def test_a_number_that_is_no_node_id_is_an_unknown_peer(peer: int) -> None:
    with nodes() as (here, _), pytest.raises(UnknownPeer, match="1 to 65535"):
        here.send(peer, b"x", kind=KIND)


def test_try_send_to_a_peer_without_a_connection_says_no_and_begins_to_connect() -> None:
    heard = Heard()
    with nodes() as (here, there):
        there.on(KIND, heard)
        assert here.try_send(THERE, b"first", kind=KIND) is False
        assert eventually(lambda: to(here).sending)
        assert eventually(lambda: here.try_send(THERE, b"second", kind=KIND)) is True
        here.flush()
    assert heard.data == [b"second"]
