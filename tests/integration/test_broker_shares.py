"""Shares of a broker's time: a topic that has one is passed on whatever the others bring."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from antiphon import Broker, BrokerConfig, NodeConfig, Schedule
from antiphon.errors import Closed, ConfigError
from antiphon.testing import eventually
from antiphon.topics import Bus
from integration.brokers import settled
from integration.buses import PATIENCE, serves

pytestmark = pytest.mark.timeout(120)

ONE_THREAD = NodeConfig(schedule=Schedule(threads=1))
FILTERS = 2000  # that no index helps with: an event takes a good part of a step, or more


def told(reader: Bus, topic: str) -> dict[str, Any]:
    """What the broker says next of a topic."""
    with reader.subscribe(f"$sys/topics/{topic}") as heard:
        facts: dict[str, Any] = json.loads(heard.receive(timeout=PATIENCE).data)
    return facts


@contextmanager
def flooded(here: Bus, *topics: str) -> Iterator[None]:
    """All that the topics take, from here, for as long as this lasts."""
    over = threading.Event()

    def flood(topic: str) -> None:
        publisher = here.publisher(topic)
        publisher.wait_for_subscribers(timeout=PATIENCE)
        with suppress(Closed):  # a slow machine may have much to do for the last one
            while not over.is_set():
                publisher.publish(b"", {"x": 3, "y": 5})

    threads = [threading.Thread(target=flood, args=(topic,)) for topic in topics]
    for one in threads:
        one.start()
    try:
        yield
    finally:
        over.set()
        for one in threads:
            one.join(PATIENCE)


def busy(there: Bus, topic: str) -> None:
    """Subscriptions that an event of the topic takes long to be compared with, and goes to none."""
    for i in range(FILTERS):
        there.subscribe(topic, where=f"x * y > {1000 + i} AND x + y < {i}")


def test_two_busy_topics_get_time_as_their_shares_say() -> None:
    config = BrokerConfig(shares={"large": 0.6, "small": 0.15}, system_interval=0.1)
    with (
        Broker("tcp://127.0.0.1:0", config=config, node_config=ONE_THREAD) as broker,
        Bus(broker.address) as here,
        Bus(broker.address) as there,
    ):
        busy(there, "large")
        busy(there, "small")
        settled(broker, subscriptions=2 * FILTERS)
        with flooded(here, "large", "small"):

            def both() -> tuple[float, float]:
                large, small = told(there, "large"), told(there, "small")
                return large["cpu_s"], small["cpu_s"]

            eventually(lambda: min(both()) > 0.05, PATIENCE)
            before = both()

            def ratio() -> float:
                large, small = (a - b for a, b in zip(both(), before, strict=True))
                return large / small if large + small > 1.0 else 0.0

            # Four to one, where both have work all the time; without shares it is one to one.
            assert eventually(ratio, PATIENCE) > 2


def test_a_turn_of_a_topic_ends_in_time_although_its_events_take_long() -> None:
    config = BrokerConfig(shares={"slow": 0.1}, system_interval=0.1)
    with (
        Broker("tcp://127.0.0.1:0", config=config, node_config=ONE_THREAD) as broker,
        Bus(broker.address) as here,
        Bus(broker.address) as there,
    ):
        busy(there, "slow")
        settled(broker, subscriptions=FILTERS)
        with flooded(here, "slow"):
            facts = eventually(lambda: (f := told(there, "slow"))["cpu_s"] > 0.5 and f, PATIENCE)
    # Its part of a period is a millisecond. What came together used to be passed on together,
    # hundreds of events in 20 ms and more.
    assert facts["cpu_s"] / facts["turns"] < 0.005


def test_shares_come_and_go_with_topics_and_reloads(caplog: pytest.LogCaptureFixture) -> None:
    first = BrokerConfig(shares={"a": 0.7, "b": 0.3}, system_interval=0.1)
    with (
        Broker("tcp://127.0.0.1:0", config=first) as broker,
        Bus(broker.address) as here,
        Bus(broker.address) as there,
        caplog.at_level(logging.ERROR, "antiphon.broker"),
    ):
        publishers = {name: here.publisher(name) for name in "abc"}
        subscriptions = [there.subscribe(name) for name in "abc"]
        for publisher in publishers.values():
            serves(publisher, 1)

        def shares() -> list[float | None]:
            return [told(there, name)["share"] for name in "abc"]

        assert shares() == [0.7, 0.3, None]
        # There is never more than all of it, whoever gets more or less.
        second = BrokerConfig(shares={"b": 0.9, "c": 0.1}, system_interval=0.1)
        assert broker.reload(second) == (["shares"], [])
        assert shares() == [None, 0.9, 0.1]
        assert broker.reload(first) == (["shares"], [])
        assert shares() == [0.7, 0.3, None]

        # One that nobody wants any more gives its queue back, and the next one has the share.
        for _ in range(3):
            subscriptions[0].close()
            eventually(lambda: broker._topics["a"].handle is None, PATIENCE)
            assert broker.node._shares.held() == {"topic 'b'": 0.3}
            subscriptions[0] = there.subscribe("a")
            serves(publishers["a"], 1)
            assert shares() == [0.7, 0.3, None]
        assert not caplog.records


def test_a_topic_goes_on_without_its_share_when_the_node_has_given_it_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = Broker("tcp://127.0.0.1:0", config=BrokerConfig(shares={"a": 0.7}))
    handler = broker.node.on(200, lambda source, data: None, share=0.5)
    with broker, Bus(broker.address) as here, Bus(broker.address) as there:
        got = there.subscribe("a")
        publisher = here.publisher("a")
        serves(publisher, 1)
        publisher.publish(b"all the same")
        assert got.receive(timeout=PATIENCE).data == b"all the same"
        assert "topic 'a' has no share" in caplog.text
        assert "kind 200: 0.5" in caplog.text
        broker.reload(BrokerConfig(shares={"a": 0.3}))
        assert broker.node._shares.held() == {"kind 200": 0.5, "topic 'a'": 0.3}
        broker.reload(BrokerConfig(shares={"a": 0.6}))
        assert "topic 'a' keeps its share of 0.3" in caplog.text
        assert broker.node._shares.held()["topic 'a'"] == 0.3
        # Who has it gives it up: then there is enough for all of what was asked for.
        handler.close()
        eventually(lambda: broker.node._shares.held() == {"topic 'a'": 0.6}, PATIENCE)
    assert caplog.text.count("when it can be") == 2, "told once, not at every look"


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ('"plant/*" = 0.1', "belongs to patterns"),
        ('"plant/7" = 0', "above 0 and at most 1"),
        ('"$sys/broker" = 0.1', "publishes it itself"),
        ('"plant/7" = 1.5', "above 0 and at most 1"),
        ('"plant/7" = "much"', "is not a number"),
        ('"a" = 0.6\n"b" = 0.5', "shares sum to 1.1; together they are at most 1 .a: 0.6, b: 0.5."),
    ],
)
def test_shares_that_make_no_sense_are_refused(tmp_path: Path, table: str, fault: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(f"[broker.shares]\n{table}\n")
    with pytest.raises(ConfigError, match=fault) as refusal:
        Broker(config=file)
    assert "broker.toml" in str(refusal.value)
    assert "line" in str(refusal.value)


def test_shares_are_a_table() -> None:
    with pytest.raises(ConfigError, match="a table of topics"):
        BrokerConfig(shares=[("a", 0.5)])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        BrokerConfig(shares={"a": None})  # type: ignore[dict-item]
