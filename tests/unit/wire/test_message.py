from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ConfigError
from antiphon.wire import message as module
from antiphon.wire.message import Message, MessageMeta, decoder_for, encode, kind_of


class Sample(Message, kind=65001):
    seq: int
    body: bytes = b""


@pytest.fixture(autouse=True)
def _give_back_kinds() -> Iterator[None]:
    before = dict(module._registry)
    yield
    module._registry.clear()
    module._registry.update(before)


def make(name: str, kind: int | None, where: str = "here") -> type[Message]:
    namespace = {"__module__": where, "__qualname__": name, "__annotations__": {"x": int}}
    return MessageMeta(name, (Message,), namespace, kind=kind)  # type: ignore[return-value]


@given(seq=st.integers(-(2**63), 2**64 - 1), body=st.binary())
def test_what_is_encoded_is_decoded(seq: int, body: bytes) -> None:
    payload = encode(Sample(seq, body))
    for buffer in (payload, bytearray(payload), memoryview(payload)):
        assert decoder_for(Sample)(buffer) == Sample(seq, body)


def test_a_message_travels_as_an_array() -> None:
    assert msgspec.msgpack.decode(encode(Sample(1, b"x"))) == [1, b"x"]


def test_old_and_new_versions_of_a_message_understand_each_other() -> None:
    class Newer(Message, kind=65002):
        seq: int
        body: bytes = b""
        extra: str = "none"

    assert decoder_for(Newer)(encode(Sample(1))) == Newer(1, b"", "none")
    assert decoder_for(Sample)(encode(Newer(1, b"y", "z"))) == Sample(1, b"y")


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x90", b"\x91\xa1a", b"\x92\x01\x01", b"\x80"])
def test_bytes_that_are_no_such_message_raise_one_kind_of_error(payload: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decoder_for(Sample)(payload)


@given(st.binary())
def test_garbage_is_a_message_or_a_decode_error(payload: bytes) -> None:
    try:
        found = decoder_for(Sample)(payload)
    except msgspec.DecodeError:
        return
    assert isinstance(found, Sample)


def test_the_kind_is_known_from_class_and_instance() -> None:
    assert kind_of(Sample) == kind_of(Sample(1)) == 65001
    assert module.registered(65001) is Sample


@pytest.mark.parametrize("kind", [0, 63, -1, 65536, True, "100", 1.5])
def test_kinds_outside_the_users_range_are_refused(kind: object) -> None:
    with pytest.raises(ConfigError, match="64 to 65535"):
        make("Bad", kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [64, 65535])
def test_the_ends_of_the_range_are_allowed(kind: int) -> None:
    assert kind_of(make("Edge", kind)) == kind


def test_a_second_class_with_the_kind_is_refused_and_both_are_named() -> None:
    first = make("First", 65003)
    with pytest.raises(ConfigError, match=r"65003 of here.Second is taken by here.First"):
        make("Second", 65003)
    with pytest.raises(ConfigError, match=r"there.First is taken by here.First"):
        make("First", 65003, where="there")
    assert module.registered(65003) is first


def test_the_same_class_made_again_replaces_the_first() -> None:
    make("Cell", 65004)
    again = make("Cell", 65004)
    assert module.registered(65004) is again


def test_a_class_that_msgspec_refuses_leaves_its_kind_free() -> None:
    with pytest.raises(TypeError):
        MessageMeta("Bad", (Message,), {"__module__": "m"}, kind=65005, nonsense=True)
    assert module.registered(65005) is None


def test_a_subclass_without_a_kind_is_an_abstract_base() -> None:
    class Base(Sample):
        more: int = 0

    class Leaf(Base, kind=65006):
        pass

    with pytest.raises(ConfigError, match=r"has no kind; declare it as class Base\(antiphon"):
        kind_of(Base)
    with pytest.raises(ConfigError):
        decoder_for(Base)
    with pytest.raises(ConfigError):
        kind_of(Message)
    assert decoder_for(Leaf)(encode(Leaf(1, b"", 2))).more == 2


def test_options_of_structs_still_work() -> None:
    class Fixed(Message, kind=65007, frozen=True, kw_only=True):
        x: int

    with pytest.raises(AttributeError):
        Fixed(x=1).x = 2  # type: ignore[misc]


def test_a_forgotten_kind_is_free_and_forgetting_twice_is_harmless() -> None:
    old = make("Old", 65008)
    module.forget(old)
    new = make("New", 65008)
    module.forget(old)
    assert module.registered(65008) is new


def test_of_many_threads_with_one_kind_one_wins() -> None:
    numbers, wins = itertools.count(), []
    start = threading.Barrier(8)

    def attempt() -> None:
        name = f"Racer{next(numbers)}"
        start.wait()
        with contextlib.suppress(ConfigError):
            wins.append(make(name, 65009))

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wins == [module.registered(65009)]
