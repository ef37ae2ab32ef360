"""Buses on an event loop: iteration, publishing, handlers that are coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from array import array

import pytest

from antiphon import (
    Closed,
    ConfigError,
    Future,
    ReceiveTimeout,
    RequestCancelled,
    SendTimeout,
    WouldBlock,
)
from antiphon.topics import Bus, Event, Subscription
from integration.buses import PATIENCE, Events
from integration.loops import Run, settle, soon, task
from unit.node.pairs import failures, numbered

pytestmark = pytest.mark.timeout(60)


def test_a_coroutine_iterates_a_subscription_and_publishes_meanwhile(
    channel: str, run: Run
) -> None:
    async def main() -> None:
        async with Bus(channel) as here, Bus(channel) as there:
            subscription = there.subscribe("a")
            publisher = here.publisher("a")
            await soon(lambda: publisher.subscribers == 1, "found", PATIENCE)

            async def publish() -> None:
                for number in range(300):
                    await publisher.publish_async(b"%d" % number)

            publishing = asyncio.create_task(publish())
            got: list[bytes] = []
            async for event in subscription:
                got.append(event.data)
                if len(got) == 300:
                    subscription.close()
            await publishing
            assert got == numbered(300)
            assert subscription.closed

    run(main)


def test_receive_async_times_out_and_ends_when_the_subscription_is_closed(
    channel: str, run: Run
) -> None:
    async def main() -> None:
        async with Bus(channel) as bus:
            subscription = bus.subscribe("a")
            with pytest.raises(ReceiveTimeout):
                await subscription.receive_async(0.05)
            waiting = task(subscription.receive_async())
            await asyncio.sleep(0)
            await bus.publisher("a").publish_async(b"x")
            assert (await waiting).data == b"x"
            waiting = task(subscription.receive_async(PATIENCE))
            await asyncio.sleep(0)
            subscription.close()
            with pytest.raises(Closed):
                await waiting

    run(main)


def test_receive_async_returns_a_future_and_a_cancelled_one_loses_no_event(
    channel: str, run: Run
) -> None:
    async def main() -> None:
        async with Bus(channel) as bus:
            subscription, publisher = bus.subscribe("a"), bus.publisher("a")
            future = subscription.receive_async()
            assert isinstance(future, Future)
            with pytest.raises(WouldBlock):
                future.result()
            waiting = task(future)
            await settle()
            assert future.cancel()
            with pytest.raises(RequestCancelled):
                await waiting
            await publisher.publish_async(b"x")
            asked = subscription.receive_async(PATIENCE)
            assert (await asyncio.to_thread(asked.result)).data == b"x"
            handled = bus.subscribe("a", lambda event: None)
            with pytest.raises(ConfigError):
                handled.receive_async()

    run(main)


def test_async_with_ends_publishers_subscriptions_and_timers(channel: str, run: Run) -> None:
    """Without stopping the loop, which here a function needs that closing has to wait for."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        entered, goes_on = threading.Event(), threading.Event()

        def hold(event: Event) -> None:
            entered.set()
            assert goes_on.wait(PATIENCE)

        async with Bus(channel) as bus:
            async with bus.publisher("a") as publisher, bus.subscribe("a") as reader:
                await publisher.publish_async(b"x")
                assert (await reader.receive_async(PATIENCE)).data == b"x"
            assert reader.closed
            with pytest.raises(Closed):
                publisher.publish(b"y")
            async with bus.subscribe("b", hold) as handled:
                await bus.publisher("b").publish_async(b"x")
                await soon(entered.is_set, "it runs", PATIENCE)
                loop.call_soon(goes_on.set)  # which only a loop that goes on does
            assert handled.closed
            entered.clear()
            goes_on.clear()
            async with bus.every(0.01, hold) as timer:
                await soon(entered.is_set, "it runs", PATIENCE)
                loop.call_soon(goes_on.set)
            assert not timer.active

    run(main)


def test_blocking_calls_on_a_loop_are_refused_and_name_their_twin(channel: str, run: Run) -> None:
    async def main() -> None:
        async with Bus(channel) as bus:
            subscription = bus.subscribe("a", lambda event: None)
            publisher = bus.publisher("a")
            reader = bus.subscribe("b")
            for call in (
                bus.close,
                bus.__enter__,
                lambda: reader.receive(1),
                lambda: publisher.wait_for_subscribers(5, 1),
                lambda: subscription.calibrate(0.01, 1),
            ):
                with pytest.raises(WouldBlock, match="async"):
                    call()
            with pytest.raises(ReceiveTimeout):
                reader.receive(0)  # this one does not wait
            assert publisher.wait_for_subscribers(1)  # nor this one: it is there

    run(main)


def test_a_coroutine_handler_gets_one_event_at_a_time_in_order(channel: str, run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        got: list[bytes] = []
        inside = 0

        async def handler(event: Event) -> None:
            nonlocal inside
            assert asyncio.get_running_loop() is loop
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            inside -= 1
            got.append(event.data)

        async with Bus(channel) as here, Bus(channel) as there:
            there.subscribe("a", handler)
            publisher = here.publisher("a")
            await soon(lambda: publisher.subscribers == 1, "found", PATIENCE)
            for number in range(200):
                await publisher.publish_async(b"%d" % number)
            await soon(lambda: len(got) == 200, "all are handled", PATIENCE)
            assert got == numbered(200)

    run(main)


def test_a_coroutine_handler_that_raises_is_logged_and_counted(
    channel: str, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        done: list[bytes] = []

        async def handler(event: Event) -> None:
            if int(event.data) % 2:
                raise ValueError("on purpose")
            done.append(event.data)

        async with Bus(channel) as bus:
            subscription = bus.subscribe("plant/*", handler)
            publisher = bus.publisher("plant/7")
            for number in range(10):
                await publisher.publish_async(b"%d" % number)
            await soon(lambda: len(done) == 5, "the others are handled", PATIENCE)
            await soon(lambda: len(failures(caplog)) == 5, "all are logged", PATIENCE)
            assert done == numbered(10)[::2]
            assert "plant/*" in failures(caplog)[0].getMessage()
            assert subscription.statistics()["failed"] == 5

    run(main)


def test_a_coroutine_handler_can_close_its_own_subscription(channel: str, run: Run) -> None:
    async def main() -> None:
        got: list[bytes] = []

        async def handler(event: Event) -> None:
            got.append(event.data)
            subscription.close()

        async with Bus(channel) as bus:
            subscription = bus.subscribe("a", handler)
            publisher = bus.publisher("a")
            for number in range(20):
                await publisher.publish_async(b"%d" % number)
            await soon(lambda: subscription.closed and got, "it is closed", PATIENCE)
            await asyncio.sleep(0.05)
            assert got == [b"0"]
            assert publisher.subscribers == 0

    run(main)


def test_what_has_come_for_a_coroutine_handler_is_handled_when_the_bus_is_closed(
    channel: str, run: Run
) -> None:
    async def main() -> None:
        got: list[bytes] = []

        async def handler(event: Event) -> None:
            await asyncio.sleep(0.001)
            got.append(event.data)

        async with Bus(channel) as bus:
            subscription = bus.subscribe("a", handler)
            publisher = bus.publisher("a")
            for number in range(100):
                await publisher.publish_async(b"%d" % number)
            await soon(lambda: subscription.statistics()["messages"] == 100, "come", PATIENCE)
        assert got == numbered(100)

    run(main)


def test_a_coroutine_handler_needs_a_loop_and_has_neither_share_nor_batches(channel: str) -> None:
    async def handler(event: Event) -> None:
        """Never called."""

    with Bus(channel) as bus:
        with pytest.raises(ConfigError):
            bus.subscribe("a", handler)
        with pytest.raises(ConfigError) as refused:
            bus.subscribe("a", handler, share=0.5)
        assert refused.value.setting == "share"
        with pytest.raises(ConfigError) as refused:
            bus.subscribe("a", handler, batch=True)
        assert refused.value.setting == "batch"
        assert bus.statistics().subscriptions == 0
    early = Bus(channel)
    early.subscribe("a", handler)
    with pytest.raises(ConfigError, match="async with bus"):
        early.start()
    early.close()


def test_publishing_on_a_loop_is_refused_only_where_it_would_wait(channel: str, run: Run) -> None:
    async def main() -> None:
        async with Bus(channel) as bus:
            subscription = bus.subscribe("a", capacity=4)
            publisher = bus.publisher("a")
            await publisher.publish_async(b"0")  # opens everything
            await soon(lambda: subscription.statistics()["messages"] == 1, "come", PATIENCE)
            sent = 1
            with contextlib.suppress(WouldBlock):
                while sent < 100:
                    publisher.publish(b"%d" % sent)
                    sent += 1
            assert 2 <= sent <= 5
            got = [(await subscription.receive_async(PATIENCE)).data for _ in range(sent)]
            assert got == numbered(sent)

    run(main)


def drained(subscription: Subscription) -> list[bytes]:
    got: list[bytes] = []
    with contextlib.suppress(ReceiveTimeout):
        while True:
            event = subscription.receive(0)
            assert event.missed == 0
            got.append(event.data)
    return got


def test_what_is_refused_on_a_loop_has_gone_to_nobody(channel: str, run: Run) -> None:
    async def main() -> None:
        async with Bus(channel) as here, Bus(channel) as there:
            wide, narrow = there.subscribe("a"), there.subscribe("a", capacity=2)
            own = here.subscribe("a")
            publisher = here.publisher("a")
            await soon(lambda: publisher.subscribers == 3, "found", PATIENCE)
            await publisher.publish_async(b"0")
            read: list[bytes] = []
            refused: list[WouldBlock] = []
            for number in range(1, 20):
                one = b"%d" % number
                try:
                    publisher.publish(one)
                except WouldBlock as error:
                    refused.append(error)
                    got = task(publisher.publish_async(one))  # as it says
                    while not got.done():
                        with contextlib.suppress(ReceiveTimeout):
                            event = await narrow.receive_async(0.05)
                            assert event.missed == 0
                            read.append(event.data)
                    await got
            assert refused
            assert {(one.twin, one.sent) for one in refused} == {("publish_async()", 0)}
            left = numbered(20)[len(read) :]
            for reader, data in ((wide, numbered(20)), (own, numbered(20)), (narrow, left)):
                await soon(lambda r=reader, d=data: r.pending == len(d), "come", PATIENCE)  # type: ignore[misc]
                assert drained(reader) == data
            assert read == numbered(len(read))
            assert publisher.statistics()["published"] == 20
            assert publisher.statistics()["dropped"] == 0

    run(main)


def test_what_is_refused_on_a_loop_has_gone_to_nobody_while_others_take_the_room(
    channel: str, run: Run
) -> None:
    async def main() -> None:
        stops = threading.Event()
        wide, narrow = Events(), Events()
        async with Bus(channel) as here, Bus(channel) as there:
            there.subscribe("a", wide)
            there.subscribe("a", narrow, capacity=8)
            publisher, other = here.publisher("a"), here.publisher("a")
            await soon(lambda: publisher.subscribers == other.subscribers == 2, "found", PATIENCE)

            def publish() -> None:
                while not stops.is_set():
                    other.publish(b"other")

            others = [asyncio.create_task(asyncio.to_thread(publish)) for _ in range(2)]
            went: list[bytes] = []
            late: set[bytes] = set()  # somebody was faster, and some have it
            refused = 0
            for number in range(2000):
                try:
                    publisher.publish(b"%d" % number)
                    went.append(b"%d" % number)
                except WouldBlock:
                    refused += 1
                except SendTimeout:
                    late.add(b"%d" % number)
                await asyncio.sleep(0)
            stops.set()
            await asyncio.gather(*others)
            await publisher.flush_async(PATIENCE)
            assert refused
            assert len(went) + len(late) + refused == 2000
            for events in (wide, narrow):
                own = [data for data in events.data if data != b"other"]
                assert [data for data in own if data not in late] == went
                assert len(own) == len(set(own))
                assert sum(events.missed) <= len(late)

    run(main)


def test_a_series_that_is_refused_on_a_loop_has_gone_to_nobody_and_names_its_call(
    channel: str, run: Run
) -> None:
    async def main() -> None:
        async with Bus(channel) as bus:
            wide, narrow = bus.subscribe("a"), bus.subscribe("a", capacity=8)
            publisher = bus.publisher("a")
            await publisher.publish_async(b"0")
            series = numbered(9)[1:]
            with pytest.raises(WouldBlock, match=r"^publish_many\(\) .*publisher.publish_many"):
                publisher.publish_many(series)
            with pytest.raises(WouldBlock, match=r"^publish_packed\(\) "):
                publisher.publish_packed(b"".join(series), array("i", range(9)))
            publisher.publish_many(series[:4])
            for reader in (wide, narrow):
                await soon(lambda r=reader: r.pending == 5, "come", PATIENCE)  # type: ignore[misc]
                assert drained(reader) == numbered(5)
            assert publisher.statistics()["published"] == 5

    run(main)


def test_a_series_that_finds_no_room_in_the_queue_of_its_publisher_is_refused_whole(
    channel: str, run: Run
) -> None:
    async def main() -> None:
        async with Bus(channel) as bus:
            subscription = bus.subscribe("a", capacity=2)
            publisher = bus.publisher("a", share=0.1, capacity=4)
            await publisher.publish_async(b"0")
            await soon(lambda: subscription.pending == 1, "come", PATIENCE)
            with pytest.raises(WouldBlock, match="publish_many"):
                publisher.publish_many(numbered(6)[1:])
            assert publisher.statistics()["published"] == 1
            publisher.publish_many(numbered(5)[1:])
            got = [(await subscription.receive_async(PATIENCE)).data for _ in range(5)]
            assert got == numbered(5)

    run(main)


def test_a_flush_waits_for_coroutine_handlers(channel: str, run: Run) -> None:
    async def main() -> None:
        done: list[bytes] = []

        async def handler(event: Event) -> None:
            await asyncio.sleep(0.02)
            done.append(event.data)
            if event.data == b"1":
                raise ValueError("on purpose")

        async with Bus(channel) as here, Bus(channel) as there:
            subscription = there.subscribe("a", handler)
            publisher = here.publisher("a")
            await soon(lambda: publisher.subscribers == 1, "found", PATIENCE)
            for number in range(3):
                await publisher.publish_async(b"%d" % number)
                await publisher.flush_async(PATIENCE)
                assert done == numbered(number + 1)
            await asyncio.to_thread(publisher.publish_many, numbered(13)[3:])
            await here.node.flush_async(PATIENCE)
            assert done == numbered(13)
            assert subscription.statistics()["handled"] == 13

    run(main)


def test_a_coroutine_that_is_cancelled_holds_up_no_flush(channel: str, run: Run) -> None:
    async def main() -> None:
        entered = asyncio.Event()

        async def handler(event: Event) -> None:
            entered.set()
            await asyncio.sleep(PATIENCE)

        async with Bus(channel) as bus:
            subscription = bus.subscribe("a", handler)
            publisher = bus.publisher("a")
            await publisher.publish_async(b"x")
            await entered.wait()
            with pytest.raises(SendTimeout):
                await publisher.flush_async(0.1)
            assert subscription._task is not None
            subscription._task.cancel()
            await publisher.flush_async(PATIENCE)

    run(main)


def test_nothing_is_predicted_of_a_coroutine_handler_and_the_error_says_why(
    channel: str, run: Run
) -> None:
    async def main() -> None:
        async def handler(event: Event) -> None:
            """Never called."""

        async with Bus(channel) as bus:
            with pytest.raises(ConfigError, match="one that has an 'async def' handler has no"):
                bus.subscribe("a", handler).predict()
            with pytest.raises(ConfigError, match="one that is read has no"):
                bus.subscribe("a").predict()

    run(main)
