"""What callers get wrong: times, targets, names. An error that names the argument, at the call."""

from __future__ import annotations

import math
import os
import threading
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from antiphon import (
    Broker,
    BrokerConfig,
    Bus,
    Closed,
    ConfigError,
    Group,
    Message,
    Node,
    NodeConfig,
    ReceiveTimeout,
    RemoteError,
    UnknownPeer,
)
from antiphon.testing import eventually
from integration.buses import PATIENCE

pytestmark = pytest.mark.timeout(60)

KIND = 200
HERE = "tcp://127.0.0.1:0"
HUGE = 10**30
NO_TIMES = (math.nan, "soon", [1.0], b"1")


def refused(setting: str, call: Callable[..., Any], *values: Any, **named: Any) -> None:
    """At once, with the name of what was wrong."""
    with pytest.raises((ConfigError, TypeError)) as error:
        call(*values, **named)
    assert setting in str(error.value), error.value
    if isinstance(error.value, ConfigError):
        assert error.value.setting == setting


# --- how long to wait -----------------------------------------------------------------------------


@pytest.mark.parametrize("time", NO_TIMES)
def test_what_is_no_time_is_refused_by_every_call_that_waits(channel: str, time: Any) -> None:
    with Node(1) as node, Bus(channel) as bus:
        inbox = node.inbox(KIND)
        node.on(KIND + 1, lambda source, data: data)
        events = bus.subscribe("a")
        publisher = bus.publisher("nobody/wants/it")
        answer = node.request_async(1, b"x", kind=KIND + 1)
        for call in (
            inbox.receive,
            inbox.receive_async,
            inbox.receive_async(0.0).result,
            lambda timeout: inbox.receive_many(1, timeout=timeout),
            lambda timeout: node.request(1, b"x", kind=KIND + 1, timeout=timeout),
            lambda timeout: node.request_async(1, b"x", kind=KIND + 1, timeout=timeout),
            answer.result,
            node.send_async([1, 1], b"x", kind=KIND + 1).result,
            node.flush,
            node.flush_async,
            events.receive,
            events.receive_async,
            publisher.flush,
            publisher.flush_async,
            lambda timeout: publisher.wait_for_subscribers(timeout=timeout),
        ):
            refused("timeout", call, time)
        assert answer.result(PATIENCE) == b"x"


@pytest.mark.parametrize("time", NO_TIMES)
def test_what_is_no_time_closes_nothing(channel: str, time: Any) -> None:
    with (
        Node(1) as node,
        Bus(channel) as bus,
        Group("no time", discover=channel) as group,
        Broker(HERE) as broker,
    ):
        for one in (node, bus, group, broker):
            for call in (one.close, one.close_async):
                refused("drain", call, time)
            assert not one.closed
        node.send(1, b"x", kind=KIND)
        node.flush()
        group.send(b"x")


def test_a_time_that_never_comes_is_waited_for_and_one_that_has_passed_is_not(
    channel: str,
) -> None:
    with Node(1) as node:
        inbox = node.inbox(KIND)
        for never in (math.inf, 1e300, HUGE, 10**400):
            timer = threading.Timer(0.05, lambda: node.send(1, b"x", kind=KIND))
            timer.start()
            assert inbox.receive(never) == (1, b"x")
            node.send(1, b"x", kind=KIND)
            assert inbox.receive_async(never).result(never) == (1, b"x")
            node.flush(never)
        with pytest.raises(ReceiveTimeout):
            inbox.receive(-1.0)
    for never in (math.inf, HUGE):
        for one in (Node(1), Bus(channel), Group("for ever", discover=channel)):
            with one:
                one.close(never)
            assert one.closed


def test_a_recorded_publisher_names_what_was_wrong(tmp_path: Any) -> None:
    with (
        Broker(HERE, store=tmp_path) as broker,
        Bus(broker.address) as bus,
        bus.publisher("orders", record=True) as orders,
    ):
        for time in NO_TIMES:
            refused("timeout", orders.flush, time)
            refused("timeout", orders.flush_async, time)
        wrong: Any
        for wrong in (None, "text", 5):
            with pytest.raises(TypeError, match=r"not (NoneType|str|int)"):
                orders.publish(wrong)
        with pytest.raises(TypeError, match="not iterable"):
            orders.publish_many(None)  # type: ignore[arg-type]
        orders.publish(b"x")
        orders.flush(math.inf)


# --- to whom, and what ----------------------------------------------------------------------------


def test_targets_and_kinds_of_any_type_and_size_are_named() -> None:
    offsets = memoryview(bytes(8)).cast("i")
    with Node(1) as node:
        wrong: Any
        for wrong in ("1", 1.5, None, b"1", HUGE, -HUGE):
            for call in (
                partial(node.send, message=b"x", kind=KIND),
                partial(node.try_send, message=b"x", kind=KIND),
                partial(node.send_many, messages=[b"x"], kind=KIND),
                partial(node.send_packed, data=b"x", offsets=offsets, kind=KIND),
                node.remove_peer,
            ):
                with pytest.raises((TypeError, UnknownPeer), match=r"1 to 65535|not known"):
                    call(wrong)
            if wrong is not None:
                with pytest.raises(TypeError, match=r"kind is .* 64 to 65535"):
                    node.send(1, b"x", kind=wrong)
        refused("most", node.inbox(KIND).receive_many, -1)


def test_a_node_that_cannot_send_says_so_before_it_asks_to_whom() -> None:
    node = Node(1)
    with pytest.raises(Closed, match="not been started"):
        node.send(2, b"x", kind=KIND)
    with node, pytest.raises(UnknownPeer):
        node.send(2, b"x", kind=KIND)
    for call in (
        lambda: node.send(2, b"x", kind=KIND),
        lambda: node.try_send(2, b"x", kind=KIND),
        lambda: node.send_many(2, [b"x"], kind=KIND),
        lambda: node.send_async(2, b"x", kind=KIND),
        lambda: node.request(2, b"x", kind=KIND),
        lambda: node.request_async(2, b"x", kind=KIND),
    ):
        with pytest.raises(Closed, match="closed"):
            call()


def test_callbacks_that_cannot_be_called_are_refused() -> None:
    async def later(node: int, reason: str) -> None:
        """Nobody would await it."""

    with Node(1) as node:
        for wrong in (None, 5, later):
            for register in (node.on_connected, node.on_disconnected):
                refused("callback", register, wrong)


def test_a_handler_that_waits_for_the_end_is_told_so() -> None:
    with Node(1, config=NodeConfig(request_timeout=PATIENCE)) as node:
        node.on(KIND, lambda source, data: node.wait())
        with pytest.raises(RemoteError, match="WouldBlock"):
            node.request(1, b"", kind=KIND)


# --- groups and brokers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("name", "\ud800"),
        ("name", ""),
        ("member_name", 5),
        ("member_name", "x" * 200),
        ("config", 5),
        ("config", NodeConfig()),
        ("discover", "local"),
        ("stack", 5),
    ],
)
def test_a_group_names_what_cannot_be(setting: str, value: Any) -> None:
    refused(setting, Group, **{"name": "g", setting: value})


def test_a_group_takes_bytes_for_members(channel: str) -> None:
    with Group("members", discover=channel) as group:
        wrong: Any
        for wrong in ("somebody", 5, [group.me]):
            refused("to", group.send, b"x", to=wrong)
            refused("to", group.send_async, b"x", to=wrong)
        for wrong in (None, "text", 5):
            for send in (group.send, group.send_async):
                with pytest.raises(TypeError, match="bytes"):
                    send(wrong)
        for time in NO_TIMES:
            refused("timeout", group.send, b"x", timeout=time)
        group.send(b"x", to=group.me, timeout=math.inf)
        assert next(iter(group)) == (group.me, b"x")


def in_a_child(call: Callable[[], Any]) -> bool:
    """Whether a forked child is told that this is not its own."""
    child = os.fork()
    if child == 0:
        try:
            call()
        except Closed:
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def test_a_forked_child_cannot_use_its_parents_group(channel: str) -> None:
    """It has none of the memory in which messages wait: a send there would end the process."""
    with (
        Group("fork", discover=channel) as group,
        Group("fork", discover=channel) as other,
    ):
        eventually(lambda: len(group.members) == 2, PATIENCE)
        for call in (
            lambda: group.send_async(b"from the child"),
            lambda: group.send(b"from the child"),
            group.statistics,
            group.wait_async,
        ):
            assert in_a_child(call)
        group.send(b"from the parent")
        assert next(iter(other)) == (group.me, b"from the parent")


def test_a_forked_child_neither_waits_for_subscribers_nor_acknowledges(tmp_path: Any) -> None:
    with Broker(HERE, store=tmp_path) as broker, Bus(broker.address) as bus:
        orders = bus.publisher("orders", record=True)
        orders.publish(b"x")
        reader = bus.subscribe("orders", durable="reader", start="earliest", ack="manual")
        event = reader.receive(PATIENCE)
        for call in (
            partial(orders.wait_for_subscribers, 100, timeout=None),
            event.ack,
            event.nack,
            broker.reload,
        ):
            assert in_a_child(call)
        event.ack()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("listen", "nowhere"),
        ("listen", 7000),
        ("secret_file", 5),
        ("tls", "certificate.pem"),
        ("store", 5),
        ("store", ""),
        ("record", 5),
        ("record", "orders/**"),
    ],
)
def test_the_settings_of_a_broker_are_checked_when_they_are_made(setting: str, value: Any) -> None:
    refused(setting, BrokerConfig, **{setting: value})


def test_a_broker_takes_its_own_settings_and_a_bus_its_own_addresses() -> None:
    for wrong in (5, "broker.toml", NodeConfig()):
        refused("config", Broker, HERE, config=wrong)
    for wrong in ("local", "mcast", "tcp"):
        refused("address", Bus, wrong)


def test_a_speed_without_a_replay_is_refused(tmp_path: Any) -> None:
    with Broker(HERE, store=tmp_path) as broker, Bus(broker.address) as bus:
        refused("speed", bus.subscribe, "orders", speed=1.0)


@pytest.mark.parametrize("node", [5, "node", NodeConfig()])
def test_what_is_no_node_is_refused_by_a_bus_and_by_a_group(channel: str, node: Any) -> None:
    refused("node", Bus, channel, node=node)
    refused("node", Group, "a", node=node)


# --- whole numbers --------------------------------------------------------------------------------


class Whole:
    """A number as NumPy's are: no int, but it says that it is a whole one."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


def numbers() -> list[Callable[[int], Any]]:
    try:
        import numpy
    except ImportError:
        return [Whole]
    return [Whole, numpy.uint16, numpy.int64]


@pytest.mark.parametrize("number", numbers())
def test_ids_and_kinds_are_whatever_says_that_it_is_a_whole_number(
    number: Callable[[int], Any],
) -> None:
    class Numbered(Message, kind=number(61790)):  # type: ignore[call-arg]
        seq: int

    one, kind, plain = number(1), number(KIND), number(KIND + 1)
    got: list[bytes] = []
    with Node(one, peers={number(2): "tcp://127.0.0.1:9"}) as node:
        assert type(node.id) is int
        node.add_peer(number(3), "tcp://127.0.0.1:9")
        node.remove_peer(number(3))
        node.remove_peer(2)
        inbox = node.inbox(kind, capacity=number(100))
        node.on(plain, lambda source, data: got.append(data) or data)
        typed = node.inbox(Numbered)
        node.send(one, b"1", kind=kind)
        node.send([one, 1], b"2", kind=kind)
        node.send(target=one, message=b"3", kind=kind)
        node.send(one, Numbered(4))
        node.send_many(one, [b"4"], kind=kind)
        node.send_packed(one, b"5", array("i", [0, 1]), kind=kind)
        assert node.try_send(one, b"6", kind=kind)
        node.send_async(one, b"7", kind=kind).result(PATIENCE)
        node.send_async([one], b"8", kind=kind).result(PATIENCE)
        assert node.request(one, b"x", kind=plain, timeout=PATIENCE) == b"x"
        assert node.request_async(one, b"y", kind=plain).result(PATIENCE) == b"y"
        came = [inbox.receive(PATIENCE)[1] for _ in range(9)]
        assert came == [b"1", b"2", b"2", b"3", b"4", b"5", b"6", b"7", b"8"]
        assert typed.receive(PATIENCE) == (1, Numbered(4))
        assert got == [b"x", b"y"]


@pytest.mark.parametrize("value", [True, 1.0, 200.0, "1", None])
def test_truth_values_and_fractions_are_no_ids_and_no_kinds(value: Any) -> None:
    with Node(1) as node:
        for call in (
            partial(node.send, value, b"x", kind=KIND),
            partial(node.send, [value], b"x", kind=KIND),
            partial(node.try_send, value, b"x", kind=KIND),
            partial(node.send_many, value, [b"x"], kind=KIND),
            partial(node.send_async, value, b"x", kind=KIND),
            partial(node.request, value, b"x", kind=KIND),
            partial(node.remove_peer, value),
            partial(node.add_peer, value, HERE),
            partial(node.send, 1, b"x", kind=value),
            partial(node.request, 1, b"x", kind=value),
            partial(node.on, value, print),
            partial(node.inbox, value),
        ):
            with pytest.raises((ConfigError, TypeError)):
                call()
