"""Inboxes that tasks read: ``async for``, ``receive_async``, and several who share one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter

import pytest

from antiphon import (
    Closed,
    Future,
    Inbox,
    Node,
    ProtocolError,
    ReceiveTimeout,
    RequestCancelled,
    WouldBlock,
)
from integration.loops import Run, echo, pair, settle, soon, task
from unit.node.pairs import HERE, KIND, THERE, Ping, numbered

pytestmark = pytest.mark.timeout(60)


def test_async_for_gives_every_message_and_ends_with_the_inbox(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            inbox = there.inbox(KIND)
            received: list[bytes] = []

            async def pull() -> None:
                async for source, data in inbox:
                    assert source == HERE
                    received.append(data)

            pulling = task(pull())
            for message in numbered(2000):
                await here.send_async(THERE, message, kind=KIND)
            await here.flush_async()
            assert received == numbered(2000)
            assert not pulling.done()
            inbox.close()
            await pulling
            with pytest.raises(Closed):
                await inbox.receive_async()

    run(main)


def test_async_for_ends_with_the_node(run: Run) -> None:
    async def main() -> None:
        async with Node(THERE) as there:
            inbox: Inbox[Ping] = there.inbox(Ping)

            async def pull() -> list[tuple[int, Ping]]:
                return [item async for item in inbox]

            pulling = task(pull())
            await there.send_async(THERE, Ping(1))
            await there.flush_async()
            assert not pulling.done()
        assert await pulling == [(THERE, Ping(1))]

    run(main)


def test_async_with_closes_an_inbox(run: Run) -> None:
    async def main() -> None:
        async with Node(THERE) as there:
            async with there.inbox(KIND) as inbox:
                assert "0 pending" in repr(inbox)
            assert inbox.closed
            there.on(KIND, echo)

    run(main)


def test_receive_async_gives_up_in_time_and_loses_nothing(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            inbox = there.inbox(KIND)
            began = time.monotonic()
            with pytest.raises(ReceiveTimeout) as error:
                await inbox.receive_async(0.1)
            assert 0.09 <= error.value.waited <= time.monotonic() - began
            with pytest.raises(ReceiveTimeout):
                await inbox.receive_async(0)
            await here.send_async(THERE, b"x", kind=KIND)
            assert await inbox.receive_async(5) == (HERE, b"x")
            # A time-out of the caller's own, again and again while messages come.
            received: list[bytes] = []
            for start in range(0, 300, 3):
                for message in numbered(3, start):
                    await here.send_async(THERE, message, kind=KIND)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.0005):
                        while True:
                            received.append((await inbox.receive_async())[1])
            while len(received) < 300:
                received.append((await inbox.receive_async(5))[1])
            assert received == numbered(300)

    run(main)


def test_several_tasks_share_an_inbox(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            inbox = there.inbox(KIND)
            received: list[Counter[bytes]] = [Counter() for _ in range(10)]

            async def pull(mine: Counter[bytes]) -> None:
                async for _, data in inbox:
                    mine[data] += 1
                    await asyncio.sleep(0)

            pulling = [task(pull(mine)) for mine in received]
            await settle()
            # One by one, so that each message is a wake-up of its own.
            for message in numbered(50):
                await here.send_async(THERE, message, kind=KIND)
                await here.flush_async()
            for message in numbered(2000, 50):
                await here.send_async(THERE, message, kind=KIND)
            await here.flush_async()
            assert sum(received, Counter()) == Counter(numbered(2050))
            # Those who are cancelled take nothing with them.
            for number in range(0, 10, 2):
                pulling[number].cancel()
            for message in numbered(100, 3000):
                await here.send_async(THERE, message, kind=KIND)
            await here.flush_async()
            assert sum(received, Counter()) == Counter(numbered(2050) + numbered(100, 3000))
            inbox.close()
            await asyncio.gather(*pulling, return_exceptions=True)

    run(main)


def test_a_thread_and_a_task_share_an_inbox(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            inbox = there.inbox(KIND)
            received: list[bytes] = []

            async def pull() -> None:
                async for _, data in inbox:
                    received.append(data)

            def pull_too() -> None:
                for _, data in inbox:
                    received.append(data)

            pulling = [task(pull()), task(asyncio.to_thread(pull_too))]
            for message in numbered(3000):
                await here.send_async(THERE, message, kind=KIND)
            await soon(lambda: len(received) == 3000)
            assert Counter(received) == Counter(numbered(3000))
            inbox.close()
            await asyncio.gather(*pulling)

    run(main)


def test_a_message_that_cannot_be_decoded_is_raised_and_the_next_is_received(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            inbox = there.inbox(Ping)
            await here.send_async(THERE, b"\xc1", kind=61001)
            await here.send_async(THERE, Ping(1))
            with pytest.raises(ProtocolError):
                await inbox.receive_async(5)
            assert await inbox.receive_async(5) == (HERE, Ping(1))
            await here.send_async(THERE, b"\xc1", kind=61001)
            await here.send_async(THERE, Ping(2))
            with pytest.raises(ProtocolError):
                await anext(inbox)
            assert await anext(inbox) == (HERE, Ping(2))

    run(main)


# --- the future -----------------------------------------------------------------------------------


def test_receive_async_returns_a_future_that_is_awaited_or_asked(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            inbox = there.inbox(KIND)
            future = inbox.receive_async()
            assert isinstance(future, Future)
            with pytest.raises(WouldBlock) as error:
                future.result(1)
            assert error.value.twin == "await"
            asked = asyncio.to_thread(future.result, 20)
            several = asyncio.gather(future, future, asked)
            await settle()
            await here.send_async(THERE, b"x", kind=KIND)
            assert await several == [(HERE, b"x")] * 3
            assert await future == (HERE, b"x")
            assert future.result() == (HERE, b"x")
            # Two messages for two futures, awaited in another order than they were made in.
            first, second = inbox.receive_async(), inbox.receive_async()
            for message in numbered(2):
                await here.send_async(THERE, message, kind=KIND)
            assert [await second, await first] == [(HERE, b"0"), (HERE, b"1")]

    run(main)


def test_a_cancelled_receive_loses_no_message(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            inbox = there.inbox(KIND)
            # By itself, by another thread, and with the task that awaits it.
            mine = inbox.receive_async()
            waiting = task(mine)
            await settle()
            assert mine.cancel()
            with pytest.raises(RequestCancelled):
                await waiting
            theirs = inbox.receive_async()
            waiting = task(theirs)
            await settle()
            assert await asyncio.to_thread(theirs.cancel)
            with pytest.raises(RequestCancelled):
                await waiting
            awaited = inbox.receive_async()
            waiting = task(awaited)
            await settle()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            with pytest.raises(RequestCancelled):  # nobody who gave it up is surprised by it later
                await awaited
            await here.send_async(THERE, b"x", kind=KIND)
            assert await inbox.receive_async(10) == (HERE, b"x")

    run(main)


def test_a_task_that_is_cancelled_when_its_message_is_here_leaves_it(run: Run) -> None:
    """Woken, and cancelled before its turn: the moment at which an eager future would lose it."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with pair() as (here, there):
            inbox = there.inbox(KIND)
            for number in range(50):
                waiting = task(inbox.receive_async())
                await settle()
                await here.send_async(THERE, b"%d" % number, kind=KIND)
                # Without a turn of the loop, in which the task could take it.
                while inbox.pending == 0 and not waiting.done():
                    time.sleep(0.0005)
                if number % 2:
                    loop.call_soon(waiting.cancel)
                else:
                    inbox._wake()
                    waiting.cancel()
                (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
                if isinstance(outcome, asyncio.CancelledError):
                    outcome = await inbox.receive_async(10)
                assert outcome == (HERE, b"%d" % number)

    run(main)


def test_wait_for_gives_up_a_receive_and_the_next_one_gets_the_message(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            inbox = there.inbox(KIND)
            for number in range(20):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(inbox.receive_async(), 0.002)
                await here.send_async(THERE, b"%d" % number, kind=KIND)
                assert await asyncio.wait_for(inbox.receive_async(), 10) == (HERE, b"%d" % number)
            assert inbox._waiting == set()

    run(main)
