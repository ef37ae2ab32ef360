"""Sending and flushing from a loop: in order, within credit and time, and without stopping it."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable
from typing import Any

import pytest

from antiphon import (
    Closed,
    ConfigError,
    Future,
    MessageTooLarge,
    Node,
    NodeConfig,
    PeerUnreachable,
    QueueFull,
    RequestCancelled,
    SendTimeout,
    UnknownPeer,
    WouldBlock,
)
from antiphon.node import later
from antiphon.node.later import Later
from integration.loops import LARGE, Gated, Run, echo, never_within, pair, settle, soon, task
from unit.node.pairs import HERE, KIND, OTHER, THERE, Heard, Ping, numbered, pattern, to

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("large", [False, True])
def test_sends_that_nobody_awaits_keep_their_order_before_there_is_a_connection(
    run: Run, large: bool
) -> None:
    async def main() -> None:
        heard = Heard()
        async with Node(THERE) as there, Node(HERE, peers={THERE: there.address}) as here:
            there.on(KIND, heard)
            messages = numbered(500)
            if large:
                messages[3::100] = [pattern(LARGE, seed) for seed in range(5)]
            assert not to(here).sending
            futures = [here.send_async(THERE, message, kind=KIND) for message in messages]
            await asyncio.gather(*futures)
            messages += numbered(500, 500)
            for message in messages[500:]:
                await here.send_async(THERE, message, kind=KIND)
            await here.flush_async()
            assert heard.data == messages

    run(main)


def test_requests_and_sends_keep_one_order(run: Run) -> None:
    async def main() -> None:
        seen: list[bytes] = []

        async def keep(source: int, data: bytes) -> bytes:
            seen.append(data)
            return data

        async with Node(THERE) as there, Node(HERE, peers={THERE: there.address}) as here:
            there.on(KIND, keep)
            futures: list[Awaitable[Any]] = []
            for number, message in enumerate(numbered(300)):
                if number % 3 == 0:
                    futures.append(here.request_async(THERE, message, kind=KIND))
                else:
                    futures.append(here.send_async(THERE, message, kind=KIND))
            await asyncio.gather(*futures)
            await here.flush_async()
            assert seen == numbered(300)

    run(main)


def test_large_messages_go_both_ways(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            there.on(KIND, echo)
            inbox = there.inbox(OTHER)
            bodies = [pattern(LARGE, seed) for seed in range(1, 5)]
            futures = [here.request_async(THERE, body, kind=KIND) for body in bodies]
            sends = [here.send_async(THERE, body, kind=OTHER) for body in bodies]
            assert await asyncio.gather(*futures) == bodies
            for body in bodies:
                assert await inbox.receive_async(5) == (HERE, body)
            await asyncio.gather(*sends)

    run(main)


def test_send_async_to_several_goes_to_each_and_names_all_that_failed(run: Run) -> None:
    async def main() -> None:
        heard, other = Heard(), Heard()
        async with pair() as (here, there), Node(3) as three:
            here.add_peer(3, three.address)
            there.on(KIND, heard)
            three.on(KIND, other)
            future = here.send_async([THERE, 3], b"x", kind=KIND)
            assert isinstance(future, Future)
            assert await future is None
            assert await here.send_async(iter((THERE, 3)), b"y", kind=KIND) is None
            there.on(Ping, lambda source, message: heard(source, message.seq))
            three.on(Ping, lambda source, message: other(source, message.seq))
            await here.flush_async()  # another kind may be handled before what waits of this one
            await here.send_async({THERE, 3}, Ping(1))
            await here.send_async([], b"nobody", kind=KIND)
            await here.flush_async()
            assert heard.data == other.data == [b"x", b"y", 1]
            # One that is not known, one that nobody answers to, and one that gets it all the same.
            here.add_peer(9, "tcp://127.0.0.1:9")
            future = here.send_async([8, THERE, 9], b"z", kind=KIND)
            for _ in range(2):
                with pytest.raises(UnknownPeer) as error:
                    await future
                assert {peer: type(one) for peer, one in error.value.failed.items()} == {
                    8: UnknownPeer,
                    9: PeerUnreachable,
                }
            assert future.done()
            assert isinstance(future.exception(), UnknownPeer)
            await here.flush_async()
            assert heard.data[3:] == [b"z"]
            with pytest.raises(ConfigError):
                here.send_async([THERE], b"without a kind")  # type: ignore[call-overload]

    run(main)


def test_send_async_to_several_is_cancelled_and_asked_as_one(run: Run) -> None:
    async def main() -> None:
        async with pair(NodeConfig(send_timeout=30)) as (here, there), Node(3) as three:
            here.add_peer(3, three.address)
            inboxes = [node.inbox(KIND, capacity=1) for node in (there, three)]
            await here.send_async([THERE, 3], b"fills", kind=KIND)
            future = here.send_async([THERE, 3], b"waits", kind=KIND)
            with pytest.raises(WouldBlock):
                future.result()
            waiting = task(future)
            await settle()
            assert not future.done()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert future.done()
            with pytest.raises(RequestCancelled) as error:
                await future
            assert sorted(error.value.failed) == [THERE, 3]
            # Those that wait behind it are sent in their turn; a thread may ask for them.
            future = here.send_async([THERE, 3], b"last", kind=KIND)
            asked = asyncio.to_thread(future.result, 20)
            for inbox in inboxes:
                got = [(await inbox.receive_async(20))[1] for _ in range(2)]
                while got[-1] != b"last":  # what was cancelled may have been on its way
                    got.append((await inbox.receive_async(20))[1])
                assert got[0] == b"fills"
            assert await asked is None

    run(main)


def test_a_message_above_the_limit_is_refused(run: Run) -> None:
    async def main() -> None:
        async with pair(NodeConfig(max_message_bytes=1 << 20)) as (here, there):
            there.on(KIND, echo)
            with pytest.raises(MessageTooLarge):
                await here.send_async(THERE, bytes((1 << 20) + 1), kind=KIND)
            with pytest.raises(MessageTooLarge):
                await here.request_async(THERE, bytes((1 << 20) + 1), kind=KIND)
            assert await here.request_async(THERE, bytes(1 << 20), kind=KIND) == bytes(1 << 20)

    run(main)


def test_send_async_waits_for_credit_and_the_loop_goes_on(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            inbox = there.inbox(KIND, capacity=4)
            sends = [task(here.send_async(THERE, message, kind=KIND)) for message in numbered(50)]
            await soon(lambda: inbox.pending == 4)
            assert await never_within(lambda: all(send.done() for send in sends), 0.05)
            received = [(await inbox.receive_async(5))[1] for _ in range(50)]
            assert received == numbered(50)
            await asyncio.gather(*sends)

    run(main)


def test_send_async_ends_with_send_timeout(run: Run) -> None:
    async def main() -> None:
        async with pair() as (_, there), Node(7, config=NodeConfig(send_timeout=0.2)) as here:
            here.add_peer(THERE, there.address)
            there.inbox(KIND, capacity=1)
            # It may take longer than that to connect.
            await soon(lambda: here.try_send(THERE, b"fits", kind=KIND))
            with pytest.raises(SendTimeout) as error:
                await here.send_async(THERE, b"does not", kind=KIND)
            assert (error.value.peer, error.value.kind) == (THERE, KIND)
            assert error.value.waited >= 0.19

    run(main)


def test_a_send_that_was_cancelled_in_the_queue_does_not_go_out(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            inbox = there.inbox(KIND, capacity=1)
            await here.send_async(THERE, b"fits", kind=KIND)
            sends = [here.send_async(THERE, message, kind=KIND) for message in numbered(10)]
            waiting = [task(send) for send in sends]
            await settle()
            for number in (4, 5, 6):
                waiting[number].cancel()
            assert sends[8].cancel()
            await settle()
            received = [(await inbox.receive_async(5))[1] for _ in range(7)]
            assert received == [b"fits", *numbered(4), b"7", b"9"]
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes[4:]] == [
                asyncio.CancelledError,
                asyncio.CancelledError,
                asyncio.CancelledError,
                type(None),
                RequestCancelled,
                type(None),
            ]

    run(main)


def test_flush_async_waits_for_the_handlers_and_gives_up_in_time(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            gated = Gated()
            there.on(KIND, gated.handle)
            await here.send_async(THERE, b"x", kind=KIND)
            with pytest.raises(SendTimeout):
                await here.flush_async(0.1)
            flushing = task(here.flush_async(5))
            assert await never_within(flushing.done, 0.05)
            gated.open()
            await flushing
            assert gated.ended == [b"x"]

    run(main)


def test_a_peer_that_makes_one_call_wait_does_not_hold_up_another(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there), Node(7) as third:
            gated = Gated()
            there.on(KIND, gated.handle)
            inbox = third.inbox(KIND)
            here.add_peer(7, third.address)
            await here.send_async(THERE, b"x", kind=KIND)
            await soon(lambda: gated.begun)
            await soon(lambda: not here._later._queues)  # its thread rests
            # Both in one turn of the loop: the thread that rests is to take the first of them.
            flushing = task(here.flush_async(25))
            await asyncio.wait_for(here.send_async(7, b"y", kind=KIND), 10)
            assert await inbox.receive_async(10) == (HERE, b"y")
            assert not flushing.done()
            gated.open()
            await flushing

    run(main)


def test_too_many_calls_that_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later, "_MOST_JOBS", 10)
    gate = threading.Event()
    done: list[int] = []

    def work(number: int) -> int:
        gate.wait(10)
        done.append(number)
        return number

    queue = Later()
    jobs = [queue.add(THERE, functools.partial(work, number)) for number in range(10)]
    with pytest.raises(QueueFull) as error:
        queue.add(7, functools.partial(work, 10))
    assert (error.value.capacity, error.value.pending) == (10, 10)
    gate.set()
    assert [job.result(5) for job in jobs] == list(range(10)) == done
    assert queue.add(7, functools.partial(work, 11)).result(5) == 11  # there is room again
    queue.close()
    with pytest.raises(Closed):
        queue.add(THERE, functools.partial(work, 12))
