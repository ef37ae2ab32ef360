"""Tokens and permissions of a broker: what honest clients are told, and what others cannot do."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon import Broker, BrokerConfig, Node
from antiphon.broker import Rights, Token
from antiphon.broker.tokens import hash_token
from antiphon.errors import ConfigError, PeerUnreachable, PermissionDenied
from antiphon.testing import eventually
from antiphon.topics import Bus
from antiphon.topics.announcements import Subscribed, Update, Want, encode
from integration.brokers import announce, settled, stays
from integration.buses import PATIENCE, Events, serves
from integration.commands import command, serving
from unit.node.pairs import free_address, numbered

pytestmark = pytest.mark.timeout(120)

RIGHTS = {
    "reader": Rights(subscribe=("public/**", "plant/*/temp")),
    "writer": Rights(publish=("public/**", "plant/7/*")),
    "both": Rights(publish=("plant/**",), subscribe=("plant/**",)),
    "clerk": Rights(publish=("public/**",), record=("public/kept/**",)),
    "chief": Rights(publish=("**",), subscribe=("**",), record=("**",), admin=("**",)),
    "nobody": Rights(),
}
ANONYMOUS = Rights(subscribe=("public/*",))


def rules(**more: Rights) -> BrokerConfig:
    tokens = {
        name: Token(
            hash=hash_token(f"token of {name}"),
            publish=rights.publish,
            subscribe=rights.subscribe,
            record=rights.record,
            admin=rights.admin,
        )
        for name, rights in {**RIGHTS, **more}.items()
    }
    return BrokerConfig(tokens=tokens, anonymous=ANONYMOUS, system_interval=0.1)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker("tcp://127.0.0.1:0", config=rules()) as one:
        yield one


def bus_of(broker: Broker, name: str | None) -> Bus:
    return Bus(broker.address, token=None if name is None else f"token of {name}")


# --- the matrix: who may do what, by what the broker lets through ---------------------------------

TOPICS = ["public/a", "public/kept/a", "plant/7/temp", "plant/8/temp", "plant/8", "other"]
PATTERNS = [*TOPICS, "public/*", "public/**", "plant/*/temp", "plant/**", "**", "$sys/broker"]

PUBLISH = {
    "reader": set(),
    "writer": {"public/a", "public/kept/a", "plant/7/temp"},
    "both": {"plant/7/temp", "plant/8/temp", "plant/8"},
    "clerk": {"public/a", "public/kept/a"},
    "chief": set(TOPICS),
    "nobody": set(),
    None: set(),
}
SUBSCRIBE = {
    "reader": {
        *("public/a", "public/kept/a", "plant/7/temp", "plant/8/temp"),
        *("public/*", "public/**", "plant/*/temp"),
    },
    "writer": set(),
    "both": {"plant/7/temp", "plant/8/temp", "plant/8", "plant/*/temp", "plant/**"},
    "clerk": set(),
    "chief": set(PATTERNS),
    "nobody": set(),
    None: {"public/a", "public/*"},
}


def refusal(call: Callable[[str], Any], topic: str) -> PermissionDenied | None:
    """None: it is allowed."""
    try:
        call(topic).close()
    except PermissionDenied as error:
        return error
    return None


@pytest.mark.parametrize("name", PUBLISH)
def test_the_matrix_at_the_call(broker: Broker, name: str | None) -> None:
    with bus_of(broker, name) as bus:
        for topic in TOPICS:
            refused = refusal(bus.publisher, topic)
            assert (refused is None) is (topic in PUBLISH[name]), topic
            if refused is not None:
                assert (refused.client, refused.action) == (name or "anonymous", "publish")
                assert refused.topic == topic
        for pattern in PATTERNS:
            refused = refusal(bus.subscribe, pattern)
            assert (refused is None) is (pattern in SUBSCRIBE[name]), pattern
            if refused is not None:
                assert (refused.client, refused.action) == (name or "anonymous", "subscribe")
                assert refused.topic == pattern
        with pytest.raises(PermissionDenied, match="broker's own"):
            bus.publisher("$sys/broker")


def lie(bus: Bus) -> None:
    """Makes it believe that it may do everything."""
    bus._client._rights = None


@pytest.mark.parametrize(("publisher", "subscriber"), [*itertools.product(PUBLISH, SUBSCRIBE)])
def test_the_matrix_against_clients_that_lie(
    broker: Broker, publisher: str | None, subscriber: str | None
) -> None:
    """They announce and ask for everything; what comes through is what both may do."""
    events = {topic: Events() for topic in TOPICS}
    with (
        bus_of(broker, publisher) as here,
        bus_of(broker, subscriber) as there,
        bus_of(broker, "chief") as witness,
    ):
        lie(here)
        lie(there)
        seen = Events()
        witness.subscribe("**", seen)
        settled(broker, subscriptions=1)
        for topic, one in events.items():
            there.subscribe(topic, one)
        wanted = SUBSCRIBE[subscriber] & set(TOPICS)
        settled(broker, subscriptions=1 + len(wanted))
        publishers = {topic: here.publisher(topic) for topic in TOPICS}
        may = PUBLISH[publisher]
        settled(broker, topics=len(may))
        for topic in may:
            serves(publishers[topic])
        for topic, one in publishers.items():
            one.publish(topic.encode())
        seen.wait(len(may))
        stays(broker, seen, *events.values())
        assert sorted(seen.wait(len(may))) == sorted(topic.encode() for topic in may)
        for topic, one in events.items():
            expected = [topic.encode()] if topic in may & wanted else []
            assert one.wait(len(expected)) == expected, topic
        assert len(seen) == len(may)


# --- who one is -----------------------------------------------------------------------------------


def test_without_tokens_everybody_may_do_everything_and_a_token_does_no_harm() -> None:
    events = Events()
    with (
        Broker("tcp://127.0.0.1:0") as broker,
        Bus(broker.address, token="whatever") as here,
        Bus(broker.address) as there,
    ):
        there.subscribe("**", events)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish(b"x")
        assert events.wait(1) == [b"x"]


@pytest.mark.parametrize("token", ["token of somebody", "", "x" * 1025])
def test_a_wrong_token_is_an_error_at_the_start(broker: Broker, token: str) -> None:
    with pytest.raises((PermissionDenied, ConfigError)) as refused:
        Bus(broker.address, token=token).start()
    if token == "token of somebody":
        assert isinstance(refused.value, PermissionDenied)
        assert refused.value.action == "connect"
        assert "not known here" in str(refused.value)
        assert token not in str(refused.value)
    settled(broker, clients=0)


def test_no_token_where_one_is_needed_is_an_error_at_the_start() -> None:
    config = BrokerConfig(tokens=rules().tokens)
    with Broker("tcp://127.0.0.1:0", config=config) as broker:
        with pytest.raises(PermissionDenied, match="a token is needed") as refused:
            Bus(broker.address).start()
        assert refused.value.client == "anonymous"
        with bus_of(broker, "chief"):
            settled(broker, clients=1)


def test_a_token_where_there_is_no_broker_is_refused() -> None:
    with pytest.raises(ConfigError, match="shown to a broker"):
        Bus("local://tokens", token="x")


def test_what_was_made_before_the_start_raises_at_the_start(broker: Broker) -> None:
    for make in (
        lambda bus: bus.publisher("plant/8/temp"),
        lambda bus: bus.subscribe("plant/8/temp"),
    ):
        bus = bus_of(broker, "writer")
        make(bus)
        with pytest.raises(PermissionDenied) as refused:
            bus.start()
        assert refused.value.topic == "plant/8/temp"
        assert bus.closed
    settled(broker, clients=0)


def test_a_coroutine_is_refused_in_the_same_way(broker: Broker) -> None:
    async def main() -> None:
        async with bus_of(broker, "reader") as bus:
            with pytest.raises(PermissionDenied):
                bus.publisher("a")
            bus.subscribe("public/a")
        with pytest.raises(PermissionDenied):
            async with Bus(broker.address, token="wrong"):
                pass

    asyncio.run(main())


def test_rights_come_back_with_the_broker() -> None:
    """A client that was there before its broker, and one whose broker begins another life."""
    address = free_address()
    early = Bus(address, token="token of both")
    events = Events()
    with early:
        early.subscribe("plant/**", events)
        for life in range(2):
            with Broker(address, config=rules()) as broker, bus_of(broker, "both") as other:
                settled(broker, clients=2, subscriptions=1)
                publisher = other.publisher("plant/1")
                serves(publisher)
                publisher.publish(b"%d" % life)
                events.wait(life + 1)
                with pytest.raises(PermissionDenied):
                    early.publisher("other")
    assert events.wait(2) == [b"0", b"1"]


def test_topics_that_one_may_not_read_are_not_shown(broker: Broker) -> None:
    with bus_of(broker, "chief") as chief, bus_of(broker, "reader") as reader:
        for topic in TOPICS:
            chief.publisher(topic)
        settled(broker, topics=len(TOPICS))
        wanted = SUBSCRIBE["reader"] & set(TOPICS)
        eventually(lambda: {one.name for one in reader.topics()} >= wanted, PATIENCE)
        assert {one.name for one in reader.topics()} == wanted


# --- clients that do not keep to it ---------------------------------------------------------------


def test_one_that_never_says_who_it_is_publishes_nothing(broker: Broker) -> None:
    """It knows the flow of a topic that others use, and sends straight to it."""
    events = Events()
    with (
        bus_of(broker, "both") as here,
        bus_of(broker, "chief") as there,
        Node(7, listen=None) as stranger,
    ):
        there.subscribe("plant/**", events)
        publisher = here.publisher("plant/1")
        serves(publisher)
        publisher.publish(b"honest")
        events.wait(1)
        (topic,) = broker._topics.values()
        assert topic.handle is not None
        flow, least = topic.handle.flow, topic.handle.least_charge
        stranger.add_peer(broker.node.id, broker.address)
        core = stranger._publisher(1, "plant/1", "block", False, 0, lambda properties: b"")
        core.serve(broker.node.id, broker.node._incarnation, flow, least, None)
        for data in numbered(100):
            core.publish(data)
        stranger.flush(PATIENCE)
        eventually(lambda: broker.statistics().denied == 100, PATIENCE)
        core.close()
        # Nor does it with the name of another, which it is not allowed either.
        for update in (
            Update(1, -1, 1, {1: "plant/1"}, [], [Subscribed(9, "**", 1)], [], "guessed"),
            Update(1, 0, 1, {1: "plant/1"}, [], [Subscribed(9, "**", 1)], []),
            Update(1, 5, 6, {1: "plant/1"}, [], [Subscribed(9, "**", 1)], []),
        ):
            with contextlib.suppress(PeerUnreachable):  # it may be turned away by then
                announce(stranger, broker, encode(update))
            assert broker.statistics().subscriptions == 1
            eventually(lambda: not broker._entrance.dismissed, PATIENCE)
        publisher.publish(b"still")
        assert events.wait(2) == [b"honest", b"still"]
        assert stays(broker, events) == [2]


def test_what_comes_before_the_introduction_is_denied_and_what_comes_after_passes(
    broker: Broker,
) -> None:
    events = Events()
    with (
        bus_of(broker, "both") as here,
        bus_of(broker, "chief") as there,
        Node(7, listen=None, peers={broker.node.id: broker.address}) as late,
    ):
        there.subscribe("plant/**", events)
        serves(here.publisher("plant/1"))
        (topic,) = broker._topics.values()
        assert topic.handle is not None
        core = late._publisher(1, "plant/1", "block", False, 0, lambda properties: b"")
        core.serve(
            broker.node.id,
            broker.node._incarnation,
            topic.handle.flow,
            topic.handle.least_charge,
            None,
        )
        core.publish(b"too early")
        eventually(lambda: broker.statistics().denied == 1, PATIENCE)
        mine = Update(late._incarnation, -1, 1, {1: "plant/1"}, [], [], [], "token of both")
        announce(late, broker, encode(mine))
        settled(broker, clients=3)
        core.publish(b"in time")
        assert events.wait(1) == [b"in time"]
        assert broker.statistics().denied == 1
        core.close()


def test_a_client_that_becomes_another_is_judged_anew(broker: Broker) -> None:
    with Node(7, listen=None, peers={broker.node.id: broker.address}) as client:
        for version, (token, topics) in enumerate(
            [(None, 0), ("both", 1), ("reader", 0), ("both", 1), ("nobody", 0)], start=1
        ):
            shown = None if token is None else f"token of {token}"
            update = Update(9, -1, version, {1: "plant/1"}, [], [], [], shown)
            announce(client, broker, encode(update))
            settled(broker, clients=1, topics=topics)


def test_a_right_that_is_taken_away_ends_what_it_allowed() -> None:
    events = Events()
    with (
        Broker("tcp://127.0.0.1:0", config=rules()) as broker,
        bus_of(broker, "both") as here,
        bus_of(broker, "both") as there,
    ):
        there.subscribe("plant/**", events)
        publisher = here.publisher("plant/1")
        serves(publisher)
        publisher.publish(b"before")
        events.wait(1)
        broker.reload(rules(both=Rights(publish=("plant/**",), subscribe=("plant/2",))))
        settled(broker, subscriptions=0)
        eventually(lambda: publisher.subscribers == 0, PATIENCE)
        publisher.publish(b"unheard")
        broker.reload(rules())
        settled(broker, subscriptions=1)
        serves(publisher)
        publisher.publish(b"again")
        assert events.wait(2) == [b"before", b"again"]
        # And a token that is gone lets nobody in.
        broker.reload(BrokerConfig(tokens={"chief": rules().tokens["chief"]}))
        settled(broker, clients=0, topics=0, subscriptions=0)


def test_publishing_by_a_route_that_stands_ends_with_the_right() -> None:
    events = Events()
    with (
        Broker("tcp://127.0.0.1:0", config=rules()) as broker,
        bus_of(broker, "both") as here,
        bus_of(broker, "chief") as there,
    ):
        there.subscribe("plant/**", events)
        publisher = here.publisher("plant/1")
        serves(publisher)
        publisher.publish(b"before")
        events.wait(1)
        flow = next(iter(here._neighbours.all[broker.node.id].table.subscriptions.values()))
        broker.reload(rules(both=Rights()))
        settled(broker, topics=0)
        # It goes on sending to where it was told to send.
        publisher._core.serve(
            broker.node.id, broker.node._incarnation, flow.flow, flow.least_charge, None
        )
        for data in numbered(10):
            publisher.publish(data)
        here.node.flush(PATIENCE)
        eventually(lambda: broker.statistics().denied >= 1, PATIENCE)
        assert stays(broker, events) == [1]


def test_refusals_are_said_to_the_client_and_bounded(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with bus_of(broker, "reader") as bus, caplog.at_level(logging.WARNING, "antiphon"):
        lie(bus)
        for number in range(100):
            bus.publisher(f"forbidden/{number}")
        eventually(lambda: broker.statistics().refused == 100, PATIENCE)
        eventually(lambda: "does not let 'reader' publish 'forbidden/" in caplog.text, PATIENCE)
        announce(bus.node, broker, encode(Want(0, 0)))
        assert caplog.text.count("does not let") <= 16


def test_commands_take_a_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("token of writer\n")
    settings = tmp_path / "broker.toml"
    settings.write_text(
        f'[broker.tokens.writer]\nhash = "{hash_token("token of writer")}"\npublish = ["a"]\n'
    )
    with serving("--config", str(settings), "--listen", "tcp://127.0.0.1:0") as broker:
        token = ["--bus", broker.address, "--token-file", str(tmp_path / "token")]
        assert command("pub", "a", "x", *token, "--wait", "0").returncode == 0
        for arguments in (
            ["pub", "b", "x", *token],
            ["sub", "a", *token],
            ["sub", "a", "--bus", broker.address],
        ):
            refused = command(*arguments)
            assert (refused.returncode, refused.stderr.count("\n")) == (1, 1), refused.stderr
            assert "does not let" in refused.stderr
        assert broker.end()[0] == 0
