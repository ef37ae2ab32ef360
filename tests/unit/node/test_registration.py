"""Registering handlers and inboxes: what is taken, what is refused, and what closing means."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from antiphon import Closed, ConfigError, Message, Node, NodeConfig
from unit.node.pairs import (
    KIND,
    OTHER,
    THERE,
    Gate,
    Heard,
    Ping,
    Running,
    eventually,
    kind_of,
    nodes,
    numbered,
    python,
    to,
)

pytestmark = pytest.mark.timeout(20)

BAD_NUMBERS = [-1, 0, 1, 63, 65536, 1 << 20]
NO_NUMBERS = [True, 200.0, "200", None, b"200", object]


def ignore(source: int, data: Any) -> None:
    """A handler."""


@pytest.mark.parametrize("kind", BAD_NUMBERS)
@pytest.mark.parametrize("how", ["on", "inbox"])
def test_a_kind_outside_64_to_65535_cannot_be_registered(kind: int, how: str) -> None:
    with (
        Node(config=NodeConfig()) as node,
        pytest.raises(ConfigError, match="64 to 65535") as error,
    ):
        node.on(kind, ignore) if how == "on" else node.inbox(kind)
    assert (error.value.setting, error.value.value) == ("kind", kind)


@pytest.mark.parametrize("kind", NO_NUMBERS)
@pytest.mark.parametrize("how", ["on", "inbox"])
def test_what_is_neither_a_number_nor_a_message_class_cannot_be_registered(
    kind: Any, how: str
) -> None:
    with Node(config=NodeConfig()) as node, pytest.raises(ConfigError, match="64 to 65535"):
        node.on(kind, ignore) if how == "on" else node.inbox(kind)


@pytest.mark.parametrize("kind", BAD_NUMBERS)
@pytest.mark.parametrize("how", ["send", "try_send", "send_many", "send_packed"])
def test_a_kind_outside_64_to_65535_cannot_be_sent(kind: int, how: str) -> None:
    with nodes() as (here, there):
        there.inbox(KIND)
        calls: dict[str, Callable[[], object]] = {
            "send": lambda: here.send(THERE, b"x", kind=kind),
            "try_send": lambda: here.try_send(THERE, b"x", kind=kind),
            "send_many": lambda: here.send_many(THERE, [b"x"], kind=kind),
            "send_packed": lambda: here.send_packed(THERE, b"x", array("i", [0, 1]), kind=kind),
        }
        with pytest.raises(ConfigError, match="64 to 65535") as error:
            calls[how]()
        assert (error.value.setting, error.value.value) == ("kind", kind)
        assert here.statistics().messages_out == 0


@pytest.mark.parametrize("kind", [64, 65535])
def test_the_first_and_the_last_kind_work(kind: int) -> None:
    heard = Heard()
    with nodes() as (here, there):
        there.on(kind, heard)
        here.send(THERE, b"edge", kind=kind)
        here.flush()
    assert heard.data == [b"edge"]


@pytest.mark.parametrize("second", ["handler", "inbox", "class"])
@pytest.mark.parametrize("first", ["handler", "inbox", "class"])
def test_a_second_registration_of_a_kind_raises_and_the_first_goes_on(
    first: str, second: str
) -> None:
    number = 61001
    with nodes() as (here, there):
        register = {
            "handler": lambda: there.on(number, ignore),
            "inbox": lambda: there.inbox(number),
            "class": lambda: there.on(Ping, ignore),
        }
        register[first]()
        with pytest.raises(ConfigError, match=f"{number}.*already.*close") as error:
            register[second]()
        assert (error.value.setting, error.value.value) == ("kind", number)
        here.send(THERE, Ping(1))
        eventually(lambda: kind_of(there, number).messages == 1)


@pytest.mark.parametrize("started", [False, True])
def test_a_kind_can_be_registered_again_after_its_registration_was_closed(started: bool) -> None:
    node = Node(config=NodeConfig())
    if started:
        node.start()
    for _ in range(3):
        node.on(KIND, ignore).close()
        node.inbox(KIND).close()
    node.close()


def flow_of(here: Node, kind: int = KIND) -> int:
    """The receiver's number for the kind, as far as the sender has heard."""
    return next((flow.flow for flow in to(here).flows_out if flow.kind == kind), 0)


def test_a_kind_that_was_closed_and_registered_again_is_served_by_the_new_handler() -> None:
    first, second = Heard(), Heard()
    with nodes() as (here, there):
        registration = there.on(KIND, first)
        here.send_many(THERE, numbered(10), kind=KIND)
        here.flush()
        before = flow_of(here)
        registration.close()
        there.on(KIND, second)
        eventually(lambda: flow_of(here) not in (0, before), "the sender learns of it")
        here.send_many(THERE, numbered(10, 10), kind=KIND)
        here.flush()
    assert first.data == numbered(10)
    assert second.data == numbered(10, 10)


def test_a_message_sent_before_the_sender_has_heard_of_a_new_handler_reaches_it() -> None:
    first, second = Heard(), Heard()
    with nodes() as (here, there):
        registration = there.on(KIND, first)
        here.send_many(THERE, numbered(10), kind=KIND)
        here.flush()
        registration.close()
        there.on(KIND, second)
        here.send_many(THERE, numbered(10, 10), kind=KIND)
        here.flush()
    assert first.data == numbered(10)
    assert second.data == numbered(10, 10)


def test_an_inbox_can_take_over_from_a_handler_and_back() -> None:
    heard = Heard()
    with nodes() as (here, there):
        for turn in range(5):
            flow = flow_of(here) if turn else 0
            with there.on(KIND, heard):
                if turn:
                    eventually(lambda old=flow: flow_of(here) != old)  # type: ignore[misc]
                here.send(THERE, b"pushed %d" % turn, kind=KIND)
                here.flush()
                flow = flow_of(here)
            with there.inbox(KIND) as inbox:
                eventually(lambda old=flow: flow_of(here) != old)  # type: ignore[misc]
                here.send(THERE, b"pulled %d" % turn, kind=KIND)
                assert inbox.receive(5)[1] == b"pulled %d" % turn
    assert heard.data == [b"pushed %d" % turn for turn in range(5)]


def test_a_sender_goes_on_while_registrations_come_and_go() -> None:
    heard = Heard()
    with nodes() as (here, there):
        for turn in range(200):
            with there.on(KIND, heard):
                here.send(THERE, b"%d" % turn, kind=KIND)
        with there.on(KIND, heard):
            eventually(lambda: here.send(THERE, b"end", kind=KIND) or b"end" in heard.data)
        sent = here.statistics().messages_out
        eventually(lambda: there.statistics().messages_in == sent)  # the last may be on its way


def test_closing_a_registration_twice_does_nothing() -> None:
    with Node(config=NodeConfig()) as node:
        registration = node.on(KIND, ignore)
        registration.close()
        again = node.on(KIND, ignore)
        registration.close()
        assert kind_of(node).kind == KIND
        again.close()


def test_closing_a_registration_waits_for_its_running_call() -> None:
    with Gate() as gate, nodes() as (here, there):
        registration = there.on(KIND, gate)
        here.send(THERE, b"x", kind=KIND)
        assert gate.entered.wait(10)
        closing = Running(registration.close)
        assert not closing.done
        gate.open()
        closing.result()


def test_no_call_begins_once_close_of_the_registration_has_returned() -> None:
    heard = Heard()
    with nodes() as (here, there):
        registration = there.on(KIND, heard)
        stop = threading.Event()

        def flood() -> None:
            while not stop.is_set():
                here.send_many(THERE, numbered(100), kind=KIND)

        flooding = Running(flood)
        heard.wait(1000)
        registration.close()
        seen = len(heard.calls)
        before = there.statistics().drops["unknown_kind"]
        eventually(lambda: there.statistics().drops["unknown_kind"] > before + 1000)
        stop.set()
        flooding.result()
        assert len(heard.calls) == seen


def test_closing_a_stalled_inbox_frees_the_sender_that_waits_for_it() -> None:
    with nodes() as (here, there):
        inbox = there.inbox(KIND, capacity=1)
        here.send(THERE, b"x", kind=KIND)
        waits = to(here).credit_waits
        blocked = Running(lambda: here.send(THERE, b"y", kind=KIND))
        eventually(lambda: to(here).credit_waits > waits)
        inbox.close()
        blocked.result()
        eventually(lambda: there.statistics().drops["unknown_kind"] == 1)


SELF_CLOSING = """
import antiphon
handled = []
with antiphon.Node(1) as here, antiphon.Node(2) as there:
    here.add_peer(2, there.address)

    def once(source, data):
        handled.append(data)
        registration.close()

    registration = there.on(200, once)
    here.send_many(2, [b"%d" % i for i in range(100)], kind=200)
    here.flush()
print(len(handled))
"""


def test_a_handler_may_close_its_own_registration_and_is_not_called_again() -> None:
    done = python(SELF_CLOSING)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"


SELF_CLOSING_AND_RAISING = """
import antiphon, logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
with antiphon.Node(1) as here, antiphon.Node(2) as there:
    here.add_peer(2, there.address)

    def once(source, data):
        registration.close()
        raise ValueError("after closing")

    registration = there.on(200, once)
    here.send(2, b"x", kind=200)
    here.flush()
"""


def test_a_handler_that_closes_its_registration_and_raises_is_logged_all_the_same() -> None:
    done = python(SELF_CLOSING_AND_RAISING)
    assert done.returncode == 0, done.stderr
    assert "handler of kind 200 failed" in done.stdout
    assert "ValueError: after closing" in done.stdout


@pytest.mark.parametrize("capacity", [0, -1, True, 1.5, "10", 2**24 + 1])
def test_a_capacity_that_is_no_number_of_messages_is_refused(capacity: Any) -> None:
    with Node(config=NodeConfig()) as node:
        for register in (
            lambda: node.on(KIND, ignore, capacity=capacity),
            lambda: node.inbox(KIND, capacity=capacity),
        ):
            with pytest.raises(ConfigError, match="capacity") as error:
                register()
            assert error.value.setting == "capacity"


def test_an_unknown_policy_for_full_queues_is_refused_with_the_known_ones() -> None:
    with Node(config=NodeConfig()) as node:
        for register in (
            lambda: node.on(KIND, ignore, when_full="drop"),
            lambda: node.inbox(KIND, when_full="drop"),
        ):
            with pytest.raises(ConfigError, match="block, drop_oldest, drop_newest") as error:
                register()
            assert error.value.setting == "when_full"


def test_a_handler_that_cannot_be_called_is_refused() -> None:
    with (
        Node(config=NodeConfig()) as node,
        pytest.raises(ConfigError, match="cannot be called") as error,
    ):
        node.on(KIND, "handler")
    assert error.value.setting == "handler"


def test_a_coroutine_function_is_refused_and_not_called_in_vain() -> None:
    async def handler(source: int, data: bytes) -> None:
        """Never runs."""

    with Node(config=NodeConfig()) as node, pytest.raises(ConfigError, match="async def"):
        node.on(KIND, handler)


def test_batches_of_a_class_are_refused_with_the_number_to_use() -> None:
    with Node(config=NodeConfig()) as node, pytest.raises(ConfigError, match="61001"):
        node.on(Ping, ignore, batch=True)


def test_a_message_class_without_a_kind_cannot_be_registered() -> None:
    class Abstract(Message):
        x: int

    with Node(config=NodeConfig()) as node, pytest.raises(ConfigError, match="has no kind"):
        node.on(Abstract, ignore)


def test_a_refused_registration_leaves_the_kind_free() -> None:
    with Node(config=NodeConfig()) as node:
        for bad in ({"capacity": 0}, {"when_full": "drop"}):
            with pytest.raises(ConfigError):
                node.on(KIND, ignore, **bad)
        with pytest.raises(ConfigError):
            node.on(KIND, 5)
        node.on(KIND, ignore)


def test_an_unknown_option_is_a_type_error() -> None:
    with Node(config=NodeConfig()) as node, pytest.raises(TypeError, match="capasity"):
        node.on(KIND, ignore, capasity=5)


def test_a_decorator_gives_the_handler_back_and_takes_the_options() -> None:
    with nodes() as (here, there):
        seen: list[Any] = []

        @there.on(KIND, batch=True, capacity=77)
        def handler(source: int, batch: Any) -> None:
            seen.extend(batch)

        @there.on(Ping)
        def typed(source: int, message: Ping) -> None:
            seen.append(message)

        assert handler.__name__ == "handler"
        assert typed.__name__ == "typed"
        assert kind_of(there).capacity == 77
        here.send(THERE, b"raw", kind=KIND)
        here.flush()
        here.send(THERE, Ping(1))
        here.flush()
    assert seen == [b"raw", Ping(1)]


def test_a_closed_node_takes_no_registration() -> None:
    node = Node(config=NodeConfig())
    node.start()
    node.close()
    for register in (lambda: node.on(KIND, ignore), lambda: node.inbox(OTHER)):
        with pytest.raises(Closed, match="make a new one") as error:
            register()
        assert error.value.what == "node"


@pytest.mark.parametrize(
    "callable_",
    ["method", "partial", "callable object", "builtin", "lambda"],
)
def test_anything_that_can_be_called_is_a_handler(callable_: str) -> None:
    import functools

    seen: list[Any] = []

    class Receiver:
        def method(self, source: int, data: bytes) -> None:
            seen.append((source, data))

        def __call__(self, source: int, data: bytes) -> None:
            seen.append((source, data))

    handlers: dict[str, Callable[[int, bytes], Any]] = {
        "method": Receiver().method,
        "partial": functools.partial(lambda extra, source, data: seen.append((source, data)), 1),
        "callable object": Receiver(),
        "builtin": dict.fromkeys([1], 2).get,
        "lambda": lambda source, data: seen.append((source, data)),
    }
    with nodes() as (here, there):
        there.on(KIND, handlers[callable_])
        here.send(THERE, b"x", kind=KIND)
        here.flush()
        assert kind_of(there).handled == 1
        assert kind_of(there).failed == 0
    assert seen == ([] if callable_ == "builtin" else [(1, b"x")])
