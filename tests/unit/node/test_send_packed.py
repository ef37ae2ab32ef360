"""``send_packed`` and ``send_many``: what they take, and what they refuse before anything goes."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from antiphon import ConfigError, MessageTooLarge, Node, NodeConfig
from unit.node.pairs import KIND, THERE, Heard, Ping, Pong, nodes, numbered, pattern, to

pytestmark = pytest.mark.timeout(20)

try:
    import numpy
except ImportError:
    numpy = None
try:
    import pyarrow
except ImportError:
    pyarrow = None

DATA = b"onethree\x00\xff"
MESSAGES = [b"one", b"", b"three", b"\x00\xff"]
OFFSETS = [0, 3, 3, 8, 10]


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Node, Node, Heard]]:
    """One connection for all the tests here: what is refused must leave it as it was."""
    heard = Heard()
    with nodes() as (here, there):
        there.on(KIND, heard)
        there.on(Ping, heard)
        yield here, there, heard


@pytest.fixture
def sends(pair: tuple[Node, Node, Heard]) -> Iterator[Callable[..., list[Any]]]:
    """``sends("send_packed", ...)``: makes the call and gives what was heard of it."""
    here, _, heard = pair

    def call(how: str, *arguments: Any, **keywords: Any) -> list[Any]:
        heard.calls.clear()
        getattr(here, how)(THERE, *arguments, **keywords)
        here.flush()
        return heard.data

    yield call
    heard.calls.clear()


OFFSET_BUFFERS: dict[str, Callable[[list[int]], Any]] = {
    "array of int32": lambda offsets: array("i", offsets),
    "array of int64": lambda offsets: array("q", offsets),
    "array of long": lambda offsets: array("l", offsets),
    "memoryview of int32": lambda offsets: memoryview(array("i", offsets)),
    "memoryview of int64": lambda offsets: memoryview(array("q", offsets)),
    "bytes cast to int32": lambda offsets: memoryview(array("i", offsets).tobytes()).cast("i"),
    "a part of a memoryview": lambda offsets: memoryview(array("q", [9, *offsets, 9]))[1:-1],
    "ctypes of int32": lambda offsets: (ctypes.c_int32 * len(offsets))(*offsets),
    "ctypes of int64": lambda offsets: (ctypes.c_int64 * len(offsets))(*offsets),
}
if numpy is not None:
    OFFSET_BUFFERS["numpy int32"] = lambda offsets: numpy.array(offsets, dtype="i4")
    OFFSET_BUFFERS["numpy int64"] = lambda offsets: numpy.array(offsets, dtype="i8")

DATA_BUFFERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "array": lambda data: array("B", data),
    "a part of a memoryview": lambda data: memoryview(b"<" + data + b">")[1:-1],
}
if numpy is not None:
    DATA_BUFFERS["numpy"] = lambda data: numpy.frombuffer(data, dtype="u1")
if pyarrow is not None:
    DATA_BUFFERS["arrow"] = lambda data: pyarrow.py_buffer(data)


@pytest.mark.parametrize("data", DATA_BUFFERS.values(), ids=DATA_BUFFERS)
@pytest.mark.parametrize("offsets", OFFSET_BUFFERS.values(), ids=OFFSET_BUFFERS)
def test_any_buffers_of_bytes_and_of_integers_are_cut_into_messages(
    sends: Callable[..., list[Any]],
    offsets: Callable[[list[int]], Any],
    data: Callable[[bytes], Any],
) -> None:
    assert sends("send_packed", data(DATA), offsets(OFFSETS), kind=KIND) == MESSAGES


@pytest.mark.needs("pyarrow")
@pytest.mark.parametrize("large", [False, True])
def test_the_buffers_of_an_arrow_column_are_sent_as_they_are(
    sends: Callable[..., list[Any]], large: bool
) -> None:
    kind = pyarrow.large_binary() if large else pyarrow.binary()
    _, offsets, data = pyarrow.array(MESSAGES, type=kind).buffers()
    view = memoryview(offsets).cast("B").cast("q" if large else "i")[: len(MESSAGES) + 1]
    assert sends("send_packed", data, view, kind=KIND) == MESSAGES


@pytest.mark.needs("pyarrow")
def test_arrow_offsets_without_their_type_are_refused_with_what_to_do(
    sends: Callable[..., list[Any]],
) -> None:
    _, offsets, data = pyarrow.array(MESSAGES, type=pyarrow.binary()).buffers()
    with pytest.raises(TypeError, match="int32 or int64"):
        sends("send_packed", data, offsets, kind=KIND)


def test_offsets_may_begin_behind_the_start_as_those_of_a_slice_do(
    sends: Callable[..., list[Any]],
) -> None:
    assert sends("send_packed", DATA, array("i", OFFSETS[2:]), kind=KIND) == MESSAGES[2:]


def test_offsets_need_not_use_all_the_data(sends: Callable[..., list[Any]]) -> None:
    assert sends("send_packed", DATA, array("i", [0, 3]), kind=KIND) == [b"one"]


def test_one_offset_is_no_message(sends: Callable[..., list[Any]]) -> None:
    assert sends("send_packed", b"", array("i", [0]), kind=KIND) == []
    assert sends("send_packed", DATA, array("i", [4]), kind=KIND) == []


def test_messages_without_bytes_can_be_packed(sends: Callable[..., list[Any]]) -> None:
    assert sends("send_packed", b"", array("q", [0] * 101), kind=KIND) == [b""] * 100


@pytest.mark.parametrize("size", [0, 1, 63, 64, 1000])
def test_more_messages_than_one_frame_holds_are_packed_in_order(
    sends: Callable[..., list[Any]], size: int
) -> None:
    count = 20_000 if size < 100 else 3_000
    data = pattern(size * count)
    offsets = array("q", [i * size for i in range(count + 1)])
    got = sends("send_packed", data, offsets, kind=KIND)
    assert got == [data[i * size : (i + 1) * size] for i in range(count)]


def test_small_and_large_messages_can_be_packed_together(
    sends: Callable[..., list[Any]],
) -> None:
    sizes = [10, 700_000, 0, 20, 524_276, 1_500_000, 5, 5, 0]
    messages = [pattern(size, seed) for seed, size in enumerate(sizes)]
    offsets = array("q", [0])
    for size in sizes:
        offsets.append(offsets[-1] + size)
    assert sends("send_packed", b"".join(messages), offsets, kind=KIND) == messages
    assert sends("send_many", messages, kind=KIND) == messages


@pytest.mark.parametrize(
    ("offsets", "error", "words"),
    [
        (array("i"), ValueError, "one"),
        (array("i", [0, 11]), ValueError, "within the data"),
        (array("i", [0, 2**31 - 1]), ValueError, "within the data"),
        (array("q", [0, 2**40]), ValueError, "within the data"),
        (array("i", [-1, 3]), ValueError, "rise"),
        (array("i", [3, 0]), ValueError, "rise"),
        (array("i", [0, 5, 4, 10]), ValueError, "rise"),
        (array("q", [0, -(2**62), 10]), ValueError, "rise"),
        (array("I", [0, 3]), TypeError, "int32 or int64"),
        (array("Q", [0, 3]), TypeError, "int32 or int64"),
        (array("h", [0, 3]), TypeError, "int32 or int64"),
        (array("b", [0, 3]), TypeError, "int32 or int64"),
        (array("f", [0, 3]), TypeError, "int32 or int64"),
        (array("d", [0, 3]), TypeError, "int32 or int64"),
        (struct.pack("<2i", 0, 3), TypeError, "int32 or int64"),
        (memoryview(array("i", [0, 9, 3, 9]))[::2], (BufferError, TypeError), "contiguous"),
        ([0, 3], TypeError, None),
        (None, TypeError, None),
    ],
)
def test_offsets_that_do_not_cut_the_data_are_refused_and_nothing_is_sent(
    pair: tuple[Node, Node, Heard], offsets: Any, error: Any, words: str | None
) -> None:
    here, _, _ = pair
    before = here.statistics().messages_out
    with pytest.raises(error, match=words):
        here.send_packed(THERE, DATA, offsets, kind=KIND)
    assert here.statistics().messages_out == before


def test_offsets_of_the_other_byte_order_are_refused(pair: tuple[Node, Node, Heard]) -> None:
    here, _, _ = pair
    swapped = (ctypes.c_int32.__ctype_be__ * 2)(0, 0)  # type: ignore[attr-defined]
    with pytest.raises((TypeError, ValueError)):
        here.send_packed(THERE, DATA, swapped, kind=KIND)


@pytest.mark.parametrize("data", ["text", None, 5, [b"one"]])
def test_data_that_is_no_buffer_is_refused(pair: tuple[Node, Node, Heard], data: Any) -> None:
    here, _, _ = pair
    with pytest.raises(TypeError):
        here.send_packed(THERE, data, array("i", [0, 1]), kind=KIND)


def test_data_with_gaps_is_refused(pair: tuple[Node, Node, Heard]) -> None:
    here, _, _ = pair
    with pytest.raises((BufferError, TypeError), match="contiguous"):
        here.send_packed(THERE, memoryview(DATA)[::2], array("i", [0, 1]), kind=KIND)


def test_send_packed_needs_a_kind(pair: tuple[Node, Node, Heard]) -> None:
    here, _, _ = pair
    with pytest.raises(TypeError, match="kind"):
        here.send_packed(THERE, DATA, array("i", [0, 1]))


def generate(items: list[Any]) -> Iterator[Any]:
    yield from items


@pytest.mark.parametrize("make", [list, tuple, generate, iter, lambda items: dict.fromkeys(items)])
def test_send_many_takes_any_iterable(
    sends: Callable[..., list[Any]], make: Callable[[list[bytes]], Any]
) -> None:
    assert sends("send_many", make(numbered(100)), kind=KIND) == numbered(100)


@pytest.mark.parametrize("make", [list, generate])
def test_send_many_takes_typed_messages_of_one_class(
    sends: Callable[..., list[Any]], make: Callable[[list[Ping]], Any]
) -> None:
    messages = [Ping(i, bytes(i)) for i in range(100)]
    assert sends("send_many", make(messages)) == messages


@pytest.mark.parametrize("make", [list, tuple, generate])
def test_send_many_of_nothing_sends_nothing(
    sends: Callable[..., list[Any]], make: Callable[[list[bytes]], Any]
) -> None:
    assert sends("send_many", make([]), kind=KIND) == []
    assert sends("send_many", make([])) == []


def test_send_many_sends_messages_without_bytes(sends: Callable[..., list[Any]]) -> None:
    assert sends("send_many", [b"", b"", b"x", b""], kind=KIND) == [b"", b"", b"x", b""]


@pytest.mark.parametrize("bad", ["text", 5, None, Ping(1)])
@pytest.mark.parametrize("place", [0, 50, 99])
def test_a_bad_item_of_send_many_raises_with_its_place_and_nothing_is_sent(
    pair: tuple[Node, Node, Heard], bad: Any, place: int
) -> None:
    here, _, _ = pair
    before = here.statistics().messages_out
    items: list[Any] = numbered(100)
    items[place] = bad
    with pytest.raises(TypeError, match=f"item {place} is"):
        here.send_many(THERE, items, kind=KIND)
    assert here.statistics().messages_out == before


def test_messages_of_two_classes_in_one_send_many_raise_and_nothing_is_sent(
    pair: tuple[Node, Node, Heard],
) -> None:
    here, _, _ = pair
    before = here.statistics().messages_out
    with pytest.raises(TypeError, match="one kind"):
        here.send_many(THERE, [Ping(1), Pong("x")])
    assert here.statistics().messages_out == before


def test_bytes_in_a_typed_send_many_raise_and_nothing_is_sent(
    pair: tuple[Node, Node, Heard],
) -> None:
    here, _, _ = pair
    before = here.statistics().messages_out
    with pytest.raises((ConfigError, TypeError), match="kind"):
        here.send_many(THERE, [Ping(1), b"raw"])  # type: ignore[list-item]
    assert here.statistics().messages_out == before


def test_an_iterable_that_raises_sends_nothing_and_raises_the_same(
    pair: tuple[Node, Node, Heard],
) -> None:
    here, _, _ = pair
    before = here.statistics().messages_out

    def broken() -> Iterator[bytes]:
        yield from numbered(50)
        raise LookupError("ran dry")

    with pytest.raises(LookupError, match="ran dry"):
        here.send_many(THERE, broken(), kind=KIND)
    assert here.statistics().messages_out == before


@pytest.mark.parametrize("messages", [b"bytes", 5, None])
def test_what_is_no_iterable_of_messages_is_a_type_error(
    pair: tuple[Node, Node, Heard], messages: Any
) -> None:
    here, _, _ = pair
    with pytest.raises(TypeError):
        here.send_many(THERE, messages, kind=KIND)


@pytest.mark.parametrize("how", ["send_many", "send_packed"])
@pytest.mark.parametrize("connected", [False, True])
def test_one_message_over_the_limit_raises_before_any_is_sent(how: str, connected: bool) -> None:
    config = NodeConfig(max_message_bytes=1000)
    heard = Heard()
    with nodes(config) as (here, there):
        there.on(KIND, heard)
        before = 0
        if connected:
            here.send(THERE, b"first", kind=KIND)
            before = 1
        arguments: dict[str, tuple[Any, ...]] = {
            "send_many": ([b"a", bytes(1001), b"b"],),
            "send_packed": (bytes(1010), array("i", [0, 1, 1002, 1003])),
        }
        with pytest.raises(MessageTooLarge) as error:
            getattr(here, how)(THERE, *arguments[how], kind=KIND)
        assert (error.value.size, error.value.limit) == (1001, 1000)
        assert here.statistics().messages_out == before


def test_a_refused_call_leaves_the_connection_in_step(pair: tuple[Node, Node, Heard]) -> None:
    here, _, heard = pair
    heard.calls.clear()
    here.send(THERE, b"before", kind=KIND)
    losses = to(here).losses
    for offsets in (array("i", [0, 99]), array("f", [0.0])):
        with pytest.raises((TypeError, ValueError)):
            here.send_packed(THERE, DATA, offsets, kind=KIND)
    here.send(THERE, b"after", kind=KIND)
    here.flush()
    assert heard.data == [b"before", b"after"]
    assert to(here).losses == losses


def test_what_is_no_buffer_is_named(pair: tuple[Node, Node, Heard]) -> None:
    here, _, _ = pair
    with pytest.raises(TypeError, match=r"offsets are a buffer of native int32 .*, not list"):
        here.send_packed(THERE, b"abc", [0, 1, 3], kind=KIND)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="data is bytes or another buffer, not str"):
        here.send_packed(THERE, "abc", array("i", [0, 3]), kind=KIND)  # type: ignore[arg-type]
