"""When a subscription begins that a broker remembers or replays: at the end of the call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon import (
    AntiphonError,
    Broker,
    Bus,
    Closed,
    ConfigError,
    Future,
    PeerUnreachable,
    PermissionDenied,
    Publisher,
    RequestCancelled,
    WouldBlock,
)
from antiphon.broker import Limits
from antiphon.testing import eventually
from antiphon.topics import Subscription
from integration.buses import PATIENCE
from integration.durables import record, recording, standing, take
from unit.node.pairs import free_address

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def broker(path: Path) -> Iterator[Broker]:
    with recording(path, fsync="none") as running:
        yield running


def put(publisher: Publisher, data: bytes) -> None:
    publisher.publish(data)
    publisher.flush(PATIENCE)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("how", ["durable", "group", "both", "latest"])
def test_what_is_recorded_after_the_call_is_delivered(
    broker: Broker, how: str, shared: bool
) -> None:
    with Bus(broker.address) as here, Bus(broker.address) as there:
        publisher = here.publisher("rec/a", record=True)
        put(publisher, b"before")
        for number in range(10):
            name = f"n{number}"
            wish = {
                "durable": {"durable": name},
                "group": {"group": name},
                "both": {"durable": name, "group": name},
                "latest": {"start": "latest"},
            }[how]
            sub = (here if shared else there).subscribe("rec/*", **wish)  # type: ignore[arg-type]
            put(publisher, name.encode())
            assert sub.receive(PATIENCE).data == name.encode()
            sub.close()


def test_a_topic_that_is_recorded_later_is_delivered_too(broker: Broker) -> None:
    with Bus(broker.address) as here, Bus(broker.address) as there:
        subs = [
            there.subscribe("rec/*", durable="d"),
            there.subscribe("rec/*", group="g"),
            there.subscribe("rec/*", start="latest"),
        ]
        record(here, "rec/new", b"x")
        assert [sub.receive(PATIENCE).data for sub in subs] == [b"x"] * 3


def test_a_name_is_there_from_the_call_on(broker: Broker) -> None:
    with Bus(broker.address) as bus:
        for number in range(10):
            with bus.subscribe("rec/*", durable=f"reg{number}"):
                pass
        names = [one["name"] for one in broker._answers.durables(0)]
        assert names == sorted(f"reg{number}" for number in range(10))


def test_a_name_outlives_a_broker_that_is_killed_at_once(path: Path) -> None:
    address = free_address()
    with standing(address, path) as child, Bus(address) as bus:
        record(bus, "t", b"before")
        bus.subscribe("t", durable="d")
        child.kill()
    with standing(address, path), Bus(address) as bus:
        record(bus, "t", b"after")
        assert bus.subscribe("t", durable="d").receive(PATIENCE).data == b"after"


def test_a_disk_that_takes_no_names_is_not_waited_for(path: Path) -> None:
    with recording(path, fsync="none") as broker, Bus(broker.address) as bus:
        record(bus, "t", b"before")
        (path / "subscriptions").write_text("no directory")
        begun = time.monotonic()
        sub = bus.subscribe("t", durable="d")
        assert time.monotonic() - begun < PATIENCE
        record(bus, "t", b"x")
        assert take(sub, 1)[0].data == b"x"
        sub.close()
        (path / "subscriptions").unlink()


def test_without_a_broker_nothing_is_left_of_the_call() -> None:
    with Bus(free_address()) as bus:
        with pytest.raises(PeerUnreachable, match="no broker answers"):
            bus.subscribe("t", durable="d")
        assert bus.statistics().subscriptions == 0


def test_what_the_broker_refuses_is_an_error_of_the_call(path: Path) -> None:
    """It counts what it has heard of, and so its client's word on that is not enough."""
    with recording(path, limits=Limits(max_subscriptions=2)) as broker, Bus(broker.address) as bus:
        bus.subscribe("a", group="g")
        welcome = bus._client._welcome
        assert welcome is not None
        welcome.max_subscriptions = 10  # it was told so by another broker
        bus.subscribe("b", group="g")
        with pytest.raises(PermissionDenied, match="a client may have 2 subscriptions"):
            bus.subscribe("c", group="g")
        assert bus.statistics().subscriptions == 2


def test_a_log_of_dead_letters_that_cannot_be_made_is_an_error_of_the_call(path: Path) -> None:
    with recording(path, fsync="none") as broker, Bus(broker.address) as bus:
        record(bus, "t", b"x")
        topics = path / "topics"
        topics.rename(path / "elsewhere")
        topics.write_text("no directory")
        with pytest.raises(AntiphonError, match="the broker's disk failed") as caught:
            bus.subscribe("t", durable="d")
        assert not isinstance(caught.value, ConfigError)
        assert bus.statistics().subscriptions == 0
        topics.unlink()
        (path / "elsewhere").rename(topics)
        sub = bus.subscribe("t", durable="d", start="earliest")
        assert take(sub, 1)[0].data == b"x"


def test_on_the_thread_of_the_bus_itself(broker: Broker) -> None:
    """Callbacks of conformance run where announcements are made: nobody else makes them."""
    made: list[Subscription] = []
    with Bus(broker.address) as bus, Bus(broker.address) as other:

        def overruns(conformance: object) -> None:
            if not made:
                made.append(bus.subscribe("t", durable="d"))

        bus.on_conformance(overruns)
        bus.every(0.001, lambda: time.sleep(0.01), share=0.05)  # misses most of its calls
        eventually(lambda: made, PATIENCE)
        record(other, "t", b"x")
        assert made[0].receive(PATIENCE).data == b"x"


def test_on_an_event_loop_it_is_refused_and_its_twin_is_named(broker: Broker) -> None:
    async def run() -> None:
        async with Bus(broker.address) as bus:
            with pytest.raises(WouldBlock, match="use subscribe_async"):
                bus.subscribe("t", durable="d")
            with pytest.raises(WouldBlock, match="use publisher_async"):
                bus.publisher("t", record=True)
            with pytest.raises(WouldBlock, match="use forget_async"):
                bus.forget("d")
            assert bus.statistics().subscriptions == 0
            sub = await bus.subscribe_async("t", durable="d")
            publisher = await bus.publisher_async("t", record=True)
            publisher.publish(b"x")
            assert (await sub.receive_async(PATIENCE)).data == b"x"
            with pytest.raises(ConfigError, match="is held by"):
                await bus.forget_async("d")
            await sub.__aexit__()
            forgotten = bus.forget_async("d")
            await asyncio.to_thread(eventually, forgotten._ended, PATIENCE)
            assert not forgotten.cancel()  # it has happened
            await forgotten
            with pytest.raises(ConfigError, match="no durable subscription 'd'"):
                await bus.forget_async("d")
            with pytest.raises(ConfigError, match="start 'yesterday'"):
                await bus.subscribe_async("t", durable="d", start="yesterday")

    asyncio.run(run())


def test_one_that_is_cancelled_leaves_nothing_open(broker: Broker) -> None:
    async def run() -> None:
        async with Bus(broker.address) as bus:
            for wait in (0.0, 0.0005, 0.001, 0.002, 0.005):
                for _ in range(10):
                    asked = bus.subscribe_async("t", durable="d")
                    await asyncio.sleep(wait)
                    if asked.cancel():
                        with pytest.raises(RequestCancelled):
                            await asked
                        continue
                    sub = await asked  # it was made, and is ours: it works
                    assert not asked.cancel()
                    assert bus.statistics().subscriptions == 1
                    await sub.__aexit__()

            # A task that is cancelled when it was made, and has not got it yet.
            for _ in range(10):
                asked = bus.subscribe_async("t", durable="d")

                async def wait_for(one: Future[Subscription]) -> Subscription:
                    return await one

                task = asyncio.ensure_future(wait_for(asked))
                await asyncio.sleep(0)
                eventually(asked.done, PATIENCE)  # on the loop, which does nothing meanwhile
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                with pytest.raises(RequestCancelled):
                    await asked

            def none_open() -> bool:
                return bus.statistics().subscriptions == 0

            await asyncio.to_thread(eventually, none_open, PATIENCE)
        with pytest.raises(Closed):
            bus.subscribe_async("t", durable="d")

    asyncio.run(run())


def test_a_name_can_be_forgotten_as_soon_as_it_is_closed(broker: Broker) -> None:
    with Bus(broker.address) as bus:
        for _ in range(10):
            sub = bus.subscribe("rec/*", durable="b")
            sub.close()
            bus.forget("b")
        assert broker._answers.durables(0) == []
        begun = time.monotonic()
        with pytest.raises(ConfigError, match="there is no durable subscription 'b'"):
            bus.forget("b")
        assert time.monotonic() - begun < 0.9  # nobody is waited for


def test_a_name_that_is_held_is_not_forgotten(broker: Broker) -> None:
    with Bus(broker.address) as bus, Bus(broker.address) as other:
        sub = other.subscribe("rec/*", durable="b")
        for one in (bus, other):
            with pytest.raises(ConfigError, match=f"held by client {other.node.id}"):
                one.forget("b")
        sub.close()
        bus.forget("b")  # it has a moment to leave
