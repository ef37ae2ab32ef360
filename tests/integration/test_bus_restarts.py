"""Buses that end and begin again: under the same id or another, with the same topics or others."""

from __future__ import annotations

import pytest

from antiphon import Node, NodeConfig
from antiphon.testing import Child, eventually
from antiphon.topics import Bus
from integration.buses import (
    PATIENCE,
    Events,
    Held,
    came,
    count_of,
    events_of,
    publish_from,
    resident,
    serves,
    wait_served,
)
from unit.node.pairs import numbered

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("ids", [[5, 5, 5], [None, None]], ids=str)
@pytest.mark.parametrize("way", ["killed", "closed", "left"])
def test_a_subscriber_that_comes_back_gets_what_follows(
    channel: str, ids: list[int | None], way: str
) -> None:
    """Under the same id or another; however its life before has ended."""
    with Bus(channel, node_config=NodeConfig(send_timeout=8.0)) as here:
        publisher = here.publisher("a")
        for life, own in enumerate(ids):
            # Its queue is another each time, and so is what it charges.
            settings = {"capacity": 100 + 1000 * (life % 2)}
            with Child(
                resident, address=channel, id=own, patterns=["a"], settings=settings
            ) as child:
                child.expect("ready")
                serves(publisher)
                for number in range(300):
                    publisher.publish(b"%d" % number)
                eventually(lambda: count_of(child) == 300, 8)
                seen = events_of(child)
                assert seen["data"] == [str(number) for number in range(300)]
                assert seen["sequences"] == list(range(300 * life + 1, 300 * life + 301))
                assert set(seen["missed"]) == {0}
                if way == "killed":
                    child.kill()
                elif way == "closed":
                    child.tell("unsubscribe")
                    child.expect("unsubscribed")
                    child.kill()
                else:
                    child.tell("leave")
                    child.expect("left", PATIENCE)
                eventually(lambda: publisher.subscribers == 0, PATIENCE)


def test_a_publisher_that_comes_back_under_its_id_counts_anew(channel: str) -> None:
    """What its lives before have sent lies in the queue yet when the next one begins."""
    with Bus(channel) as here, Held() as held:
        subscription = here.subscribe("*", held)
        # The topics' numbers are the same in every life, their names are not.
        for life, topic in enumerate(["a", "a", "b", "a"]):
            with Child(resident, address=channel, id=7, topics=[topic]) as child:
                child.expect("ready")
                wait_served(child, topic)
                publish_from(child, topic, 0, 50)
                came(subscription, 50 * (life + 1))
                child.kill()
            eventually(lambda: here.topics() == [], PATIENCE)
        held.open()
        held.first(200, PATIENCE)
        lives = [held.items[at : at + 50] for at in range(0, 200, 50)]
        assert [[event.topic for event in events] for events in lives] == [
            [topic] * 50 for topic in ["a", "a", "b", "a"]
        ]
        for events in lives:
            assert [event.data for event in events] == numbered(50)
            assert [event.sequence for event in events] == list(range(1, 51))
            assert [event.missed for event in events] == [0] * 50
        assert subscription.statistics()["missed"] == 0


def test_a_node_can_have_a_bus_again_after_the_first_was_closed(channel: str) -> None:
    events = Events()
    with Node(1) as node, Bus(channel) as there:
        there.subscribe("topic/*", events)
        for round_ in range(1, 5):
            with Bus(channel, node=node) as here:
                eventually(lambda: there.statistics().peers == 1, PATIENCE)
                heard = Events()
                here.subscribe("back", heard)
                # Numbers of topics begin anew: this one had another name before.
                publisher = here.publisher(f"topic/{round_}")
                serves(publisher)
                publisher.publish_many(numbered(10))
                events.first(10 * round_, PATIENCE)
                back = there.publisher("back")
                serves(back)
                back.publish(b"x")
                assert heard.wait(1) == [b"x"]
                back.close()
            eventually(lambda: there.statistics().peers == 0, PATIENCE)
        assert [event.topic for event in events.items] == [
            f"topic/{round_}" for round_ in range(1, 5) for _ in range(10)
        ]
        assert events.data == numbered(10) * 4
        assert set(events.missed) == {0}
