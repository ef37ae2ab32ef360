"""What a bus refuses, and how it says so."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon import Closed, ConfigError, DuplicateNode, FilterError, Node, NodeConfig
from antiphon.testing import Child, Control, eventually
from antiphon.topics import Bus, BusConfig
from integration.buses import PATIENCE, Events, serves
from unit.node.pairs import HERE, Running

pytestmark = pytest.mark.timeout(60)


def nothing(event: Any) -> None:
    """A handler."""


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# --- names and settings ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "topic",
    ["", "/a", "a/", "a//b", "a/*", "**", "a*", "a\n", "x" * 1025, "\ud800", 2**63, None, b"a"],
)
def test_what_is_no_topic_is_refused(channel: str, topic: Any) -> None:
    with Bus(channel) as bus:
        with pytest.raises(ConfigError) as refused:
            bus.publisher(topic)
        assert refused.value.setting == "topic"
        assert bus.topics() == []
        assert bus.statistics().publishers == 0


@pytest.mark.parametrize(
    "pattern", ["", "/a", "a/", "a//b", "a*", "a/b*/c", "***", "a\0", "x" * 1025, 2**63, None, b"a"]
)
def test_what_is_no_pattern_is_refused(channel: str, pattern: Any) -> None:
    with Bus(channel) as bus:
        for handler in (None, nothing):
            with pytest.raises(ConfigError) as refused:
                bus.subscribe(pattern, handler)
            assert refused.value.setting == "pattern"
        assert bus.statistics().subscriptions == 0


def test_the_longest_names_and_names_in_any_script_work(channel: str) -> None:
    with Bus(channel) as here, Bus(channel) as there:
        for name in ("x" * 1024, "工場/7/温度", "ä" * 512, "/".join("a" * 512), "$a", " "):
            events = Events()
            subscription = there.subscribe(name, events)
            with here.publisher(name) as publisher:
                serves(publisher)
                publisher.publish(b"x")
                (event,) = events.first(1, PATIENCE)
                assert event.topic == name
            subscription.close()


@pytest.mark.parametrize(
    ("where", "column"),
    [
        ("", 1),
        ("temp + 1", 9),
        ("site = ", 8),
        ("site = 'A", 8),
        ("site = 'A' OR", 14),
        ("temp > 'x'", 6),
        ("site LIKE A", 11),
        ("site IN ('A', 3)", 15),
        ("(site = 'A'", 1),
        ('site = "A"', 8),
        (5, None),
    ],
)
def test_what_is_no_filter_is_refused_with_its_place(channel: str, where: Any, column: Any) -> None:
    with Bus(channel) as bus:
        with pytest.raises(FilterError) as refused:
            bus.subscribe("a", where=where)
        assert refused.value.column == column
        assert bus.statistics().subscriptions == 0


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("durable", "billing"),
        ("start", "earliest"),
        ("start", 17),
        ("start", 0),
        ("group", "workers"),
    ],
)
def test_what_needs_a_broker_is_refused_at_the_call(
    channel: str, setting: str, value: object
) -> None:
    with Bus(channel) as bus:
        for handler in (nothing, None):
            with pytest.raises(ConfigError, match="broker") as refused:
                bus.subscribe("a", handler, **{setting: value})  # type: ignore[arg-type]
            assert refused.value.setting == setting
        with pytest.raises(ConfigError, match="broker") as refused:
            bus.publisher("a", record=True)
        assert refused.value.setting == "record"
        assert (bus.statistics().subscriptions, bus.statistics().publishers) == (0, 0)


@pytest.mark.parametrize("capacity", [0, -1, 1.5, "10", True, 2**24 + 1])
def test_what_is_no_capacity_is_refused(channel: str, capacity: Any) -> None:
    with Bus(channel) as bus:
        with pytest.raises(ConfigError) as refused:
            bus.subscribe("a", nothing, capacity=capacity)
        assert refused.value.setting == "capacity"
        with pytest.raises(ConfigError) as refused:
            bus.publisher("a", capacity=capacity)
        assert refused.value.setting == "capacity"


def test_policies_and_handlers_that_there_are_not_are_refused(channel: str) -> None:
    with Bus(channel) as bus:
        policies: list[Any] = ["drop", "disconnect", "", None, 1]
        for when_full in policies:
            with pytest.raises(ConfigError, match="when_full"):
                bus.publisher("a", when_full=when_full)
            with pytest.raises(ConfigError, match="when_full"):
                bus.subscribe("a", when_full=when_full)
        for handler in (5, "print", [nothing]):
            with pytest.raises(ConfigError) as refused:
                bus.subscribe("a", handler)  # type: ignore[arg-type]
            assert refused.value.setting == "handler"
        assert (bus.statistics().subscriptions, bus.statistics().publishers) == (0, 0)


def test_a_subscription_with_a_handler_cannot_be_read(channel: str) -> None:
    with Bus(channel) as bus:
        subscription = bus.subscribe("a", nothing)
        for call in (lambda: subscription.receive(1), lambda: iter(subscription)):
            with pytest.raises(ConfigError, match="handler"):
                call()


# --- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "",
        "plant",
        "local://",
        "local://a/b",
        "local://..",
        "local://" + "x" * 65,
        "mcast://",
        "mcast://239.77.0.1",
        "mcast://239.77.0.1:0",
        "mcast://239.77.0.1:70000",
        "mcast://not-an-address:7777",
        "mcast://239.77.0.1:7777?ttl=many",
        "mcast://239.77.0.1:7777?colour=red",
        "udp://239.77.0.1:7777",
        "tcp://127.0.0.1",
        "tcp://:7000",
        "tls://127.0.0.1:7000",
        "unix://",
        5,
        None,
    ],
)
def test_what_is_no_channel_is_refused_before_anything_is_opened(
    channel: str, address: Any
) -> None:
    threads = threading.active_count()
    descriptors = open_files()
    with pytest.raises(ConfigError):
        Bus(address, secret="for multicast")
    gc.collect()
    assert threading.active_count() <= threads
    assert open_files() <= descriptors


def test_multicast_off_loopback_needs_a_secret(channel: str) -> None:
    with pytest.raises(ConfigError, match=r"address 'mcast.*secret"):
        Bus("mcast://239.77.0.1:7777").start()


def test_settings_that_have_no_use_here_are_refused(channel: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Bus(channel, token="let me in")
    assert refused.value.setting == "token"
    with Node(HERE) as node:
        several: list[dict[str, Any]] = [{"secret": "s"}, {"node_config": NodeConfig()}]
        for settings in several:
            with pytest.raises(ConfigError) as refused:
                Bus(channel, node=node, **settings)
            assert refused.value.setting == "node"
        Bus(channel, node=node).close()  # it is none the worse for it


@pytest.mark.parametrize("secret", ["s", b"bytes"])
def test_a_secret_is_proven_on_this_machine_too(channel: str, secret: str | bytes) -> None:
    events = Events()
    with Bus(channel, secret=secret) as guarded, Bus(channel) as stranger:
        stranger.subscribe("a", events)
        publisher = guarded.publisher("a")
        assert not publisher.wait_for_subscribers(1, 1.0)


def test_buses_with_one_secret_work_together(channel: str) -> None:
    events = Events()
    with Bus(channel, secret="s") as here, Bus(channel, secret="s") as there:
        there.subscribe("a", events)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish(b"x")
        assert events.wait(1) == [b"x"]


@pytest.mark.parametrize("other", ["local://other", "local://plant"])
def test_a_second_bus_on_one_node_is_refused(channel: str, other: str) -> None:
    with Node(HERE) as node, Bus(channel, node=node) as bus:
        with pytest.raises(ConfigError, match="has a bus already") as refused:
            Bus(other, node=node)
        assert refused.value.setting == "node"
        events = Events()
        bus.subscribe("a", events)
        bus.publisher("a").publish(b"x")
        assert events.wait(1) == [b"x"]


def test_two_nodes_of_one_id_cannot_be_on_one_channel(channel: str) -> None:
    with Node(HERE) as first, Node(HERE) as second, Bus(channel, node=first):
        with pytest.raises(DuplicateNode) as refused:
            Bus(channel, node=second)
        assert refused.value.id == HERE
        assert (refused.value.address, refused.value.other) == (second.address, first.address)
        assert second.address in str(refused.value)
        assert first.address in str(refused.value)
        with Bus("local://elsewhere", node=second):
            pass


@pytest.mark.parametrize(
    "settings",
    [
        {"announce_interval": 0},
        {"announce_interval": 10.0},
        {"announce_expiry": -1},
        {"announce_expiry": "5"},
        {"announce_interval": float("nan")},
    ],
)
def test_settings_of_a_bus_are_checked(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        BusConfig(**settings)


def test_settings_of_a_bus_come_from_the_environment(
    channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTIPHON_BUS_ANNOUNCE_INTERVAL", "0.5")
    assert Bus(channel).config.announce_interval == 0.5
    monkeypatch.setenv("ANTIPHON_BUS_ANNOUNCE_INTERVAL", "never")
    with pytest.raises(ConfigError):
        Bus(channel)


# --- after the end --------------------------------------------------------------------------------


def test_a_closed_bus_refuses_everything_but_closing(channel: str) -> None:
    bus = Bus(channel)
    with bus:
        publisher, subscription = bus.publisher("a"), bus.subscribe("a")
        handled = bus.subscribe("a", nothing)
    assert bus.closed
    assert "closed" in repr(bus)
    calls: list[Callable[[], object]] = [
        lambda: bus.publisher("b"),
        lambda: bus.subscribe("b"),
        lambda: bus.subscribe("b", nothing),
        bus.topics,
        bus.start,
        lambda: publisher.publish(b"x"),
        lambda: publisher.publish_many([b"x"]),
        lambda: publisher.publish_packed(b"", memoryview(bytes(4)).cast("i")),
        lambda: publisher.publish_async(b"x").result(1),
        lambda: subscription.receive(1),
    ]
    for call in calls:
        with pytest.raises(Closed):
            call()
    assert list(subscription) == []
    assert subscription.closed
    assert handled.closed
    for _ in range(2):
        publisher.close()
        subscription.close()
        handled.close()
        bus.close()


def test_a_bus_whose_node_was_closed_is_closed(channel: str) -> None:
    node = Node(HERE)
    bus = Bus(channel, node=node).start()
    reader, handled = bus.subscribe("a"), bus.subscribe("a", nothing)
    served, alone = bus.publisher("a"), bus.publisher("b")
    assert not bus.closed
    node.close()
    assert bus.closed
    assert reader.closed
    assert handled.closed
    assert "closed" in repr(bus)
    calls: list[Callable[[], object]] = [
        lambda: bus.subscribe("a"),
        lambda: bus.subscribe("a", nothing),
        lambda: bus.publisher("a"),
        lambda: bus.every(1, nothing),
        bus.topics,
        lambda: served.publish(b"x"),
        lambda: alone.publish(b"x"),
        lambda: alone.publish_many([b"x"]),
        lambda: alone.publish_async(b"x"),
        lambda: reader.receive(PATIENCE),
    ]
    for call in calls:
        with pytest.raises(Closed):
            call()
    bus.close()
    bus.close()


def test_a_closed_publisher_refuses_and_the_others_go_on(channel: str) -> None:
    with Bus(channel) as bus:
        subscription = bus.subscribe("a")
        publisher, other = bus.publisher("a"), bus.publisher("a")
        publisher.publish(b"before")
        publisher.close()
        publisher.close()
        calls: list[Callable[[], None]] = [
            lambda: publisher.publish(b"x"),
            lambda: publisher.publish_many([]),
            lambda: publisher.publish_async(b"x").result(PATIENCE),
        ]
        for call in calls:
            with pytest.raises(Closed, match="publisher"):
                call()
        assert publisher.subscribers == 0
        other.publish(b"after")
        assert [subscription.receive(PATIENCE).data for _ in range(2)] == [b"before", b"after"]
        assert bus.statistics().publishers == 1


def test_a_bus_that_was_never_started_can_be_closed_and_leaves_nothing(channel: str) -> None:
    descriptors = open_files()
    for _ in range(3):
        bus = Bus(channel)
        bus.publisher("a")
        bus.subscribe("a", nothing)
        bus.close()
    del bus
    gc.collect()
    assert open_files() <= descriptors + 1


# --- other processes ------------------------------------------------------------------------------


def test_buses_and_their_parts_refuse_to_be_pickled(channel: str) -> None:
    with Bus(channel) as bus:
        for one in (bus, bus.publisher("a"), bus.subscribe("a"), bus.subscribe("a", nothing)):
            with pytest.raises(TypeError, match="in each process"):
                pickle.dumps(one)


def test_an_event_is_plain_data_and_travels(channel: str) -> None:
    with Bus(channel) as bus:
        subscription = bus.subscribe("a")
        bus.publisher("a").publish(b"x", {"site": "A", "temp": 31.5})
        event = subscription.receive(PATIENCE)
    facts = ("data", "topic", "properties", "time_ns", "source", "sequence", "missed", "late")
    for copied in (pickle.loads(pickle.dumps(event)), copy.copy(event), copy.deepcopy(event)):
        assert all(getattr(copied, name) == getattr(event, name) for name in facts)


@pytest.mark.parametrize("shared", [True, False])
def test_waiting_for_a_bus_ends_when_it_is_closed_whatever_its_node_does(
    channel: str, shared: bool
) -> None:
    with Node() as node:
        bus = Bus(channel, node=node if shared else None).start()
        waiting, later = Running(bus.wait), bus.wait_async()
        assert not later.done()
        bus.close()
        waiting.result(PATIENCE)
        later.result(PATIENCE)
        bus.wait_async().result(PATIENCE)
        assert not node.closed


def test_waiting_for_subscribers_ends_when_the_publisher_is_closed(channel: str) -> None:
    with Bus(channel) as bus:
        publisher = bus.publisher("a")
        waiting = Running(lambda: publisher.wait_for_subscribers(1, None))
        publisher.close()
        for wait in (lambda: waiting.result(PATIENCE), publisher.wait_for_subscribers):
            with pytest.raises(Closed) as error:
                wait()
            assert error.value.what == "publisher"


@pytest.mark.parametrize("name", ["node", "config", "node_config", "tls"])
def test_an_argument_of_another_type_is_refused_by_its_name(channel: str, name: str) -> None:
    with pytest.raises(ConfigError) as error:
        Bus(channel, **{name: 5})  # type: ignore[arg-type]
    assert error.value.setting == name


def test_flags_are_true_or_false(channel: str) -> None:
    with Bus(channel) as bus:
        with pytest.raises(ConfigError, match="batch is 5"):
            bus.subscribe("a", nothing, batch=5)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="retain is 'yes'"):
            bus.publisher("a", retain="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"mean_delay": "x"}, {"mean_delay": 1, "timeout": -1}])
def test_what_cannot_be_calibrated_is_refused(channel: str, given: dict[str, Any]) -> None:
    with Bus(channel) as bus, pytest.raises(ConfigError):
        bus.subscribe("a", nothing).calibrate(**given)


@pytest.mark.parametrize("data", ["text", None, 5])
def test_what_is_no_event_is_refused_alike_by_both_calls(channel: str, data: Any) -> None:
    with Bus(channel) as bus:
        publisher = bus.publisher("a")
        for call in (publisher.publish, publisher.publish_async):
            with pytest.raises(TypeError, match="an event is bytes, another buffer or a Message"):
                call(data)
            with pytest.raises(ConfigError, match="give a mapping"):
                call(b"x", properties=5)


def forking(control: Control, address: str) -> None:
    import os

    from antiphon import AntiphonError
    from antiphon.topics import Bus

    with Bus(address) as bus:
        events: list[bytes] = []
        reader = bus.subscribe("a")
        handled = bus.subscribe("a", lambda event: events.append(event.data))
        publisher = bus.publisher("a")
        publisher.publish(b"before")
        reader.receive(10.0)
        calls: dict[str, Callable[[], object]] = {
            "publish": lambda: publisher.publish(b"x"),
            "publish_many": lambda: publisher.publish_many([b"x"]),
            "publisher": lambda: bus.publisher("b"),
            "subscribe": lambda: bus.subscribe("b"),
            "topics": bus.topics,
            "statistics": bus.statistics,
            "receive": lambda: reader.receive(1.0),
            "close reader": reader.close,
            "close handled": handled.close,
            "close publisher": publisher.close,
            "start": bus.start,
            "close": bus.close,
            "share": lambda: setattr(handled, "share", 0.5),
        }
        pid = os.fork()
        if pid == 0:
            for name, call in calls.items():
                try:
                    call()
                    outcome = "fine"
                except AntiphonError as error:
                    outcome = f"{type(error).__name__}: {error}"
                except BaseException as error:
                    outcome = f"wrong: {error!r}"
                control.tell("child", call=name, outcome=outcome)
            os._exit(0)
        os.waitpid(pid, 0)
        publisher.publish(b"after")
        assert reader.receive(10.0).data == b"after"
        control.tell("parent", topics=[topic.name for topic in bus.topics()])
        control.hear()


def test_a_forked_child_is_told_to_make_its_own_and_the_parent_goes_on(channel: str) -> None:
    with Child(forking, address=channel) as child, Bus(channel) as other:
        outcomes = {}
        while (told := child.hear(PATIENCE))["event"] == "child":
            outcomes[told["call"]] = told["outcome"]
        assert told["topics"] == ["a"]
        for call in ("close", "close reader", "close handled", "close publisher"):
            assert outcomes[call] == "fine", outcomes
        for call in ("publish", "publish_many", "publisher", "subscribe", "topics", "receive"):
            assert "fork" in outcomes[call], outcomes
        assert not any(outcome.startswith("wrong") for outcome in outcomes.values()), outcomes
        # The others have not noticed anything.
        eventually(lambda: [topic.name for topic in other.topics()] == ["a"], PATIENCE)
        assert other.statistics().peers == 1
