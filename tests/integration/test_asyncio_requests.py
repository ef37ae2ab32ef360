"""Requests that are awaited, and those that are given up before their answer comes."""

from __future__ import annotations

import asyncio
import gc
import random
import time

import pytest

from antiphon import (
    Inbox,
    NodeConfig,
    PeerUnreachable,
    RemoteError,
    RequestCancelled,
    RequestTimeout,
    UnknownKind,
    UnknownPeer,
    WouldBlock,
)
from antiphon.node.loops import Door, door_of
from integration.loops import LARGE, Gated, Run, answering, echo, pair, settle, soon, task
from unit.node.pairs import (
    HERE,
    KIND,
    OTHER,
    THERE,
    THIRD,
    Gate,
    Ping,
    Pong,
    eventually,
    kind_of,
    nodes,
    numbered,
    to,
)

pytestmark = pytest.mark.timeout(60)


# --- answers --------------------------------------------------------------------------------------


def test_a_request_is_answered_with_bytes_a_message_or_nothing(run: Run) -> None:
    async def raw(source: int, data: bytes) -> bytes:
        await asyncio.sleep(0)
        return b"%d:%s" % (source, data)

    async def typed(source: int, message: Ping) -> Pong:
        await asyncio.sleep(0)
        return Pong(f"{source}:{message.seq}")

    async def nothing(source: int, data: bytes) -> None:
        await asyncio.sleep(0)

    async def main() -> None:
        async with pair() as (here, there):
            there.on(KIND, raw)
            there.on(Ping, typed)
            there.on(OTHER, nothing)
            assert await here.request_async(THERE, b"x", kind=KIND) == b"1:x"
            assert await here.request_async(THERE, Ping(7), reply=Pong) == Pong("1:7")
            assert await here.request_async(THERE, b"x", kind=OTHER) == b""
            # And to oneself.
            here.on(KIND, raw)
            assert await here.request_async(HERE, b"x", kind=KIND) == b"1:x"

    run(main)


@pytest.mark.parametrize("ordered", [True, False])
def test_thousands_of_requests_at_once_get_their_own_answers(run: Run, ordered: bool) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            there.on(KIND, echo, ordered=ordered)
            answers = await asyncio.gather(
                *(here.request_async(THERE, message, kind=KIND) for message in numbered(3000))
            )
            assert answers == numbered(3000)
            assert here.statistics().requests_open == 0
            assert there.statistics().answers == 3000

    run(main)


def test_everything_works_in_debug_mode(run: Run) -> None:
    # In which a loop refuses to be called from threads that are not its own.
    async def main() -> None:
        async with pair() as (here, there):
            there.on(KIND, echo)
            inbox = there.inbox(OTHER)
            assert await here.request_async(THERE, b"x", kind=KIND) == b"x"
            assert await here.request_async(THERE, bytes(LARGE), kind=KIND) == bytes(LARGE)
            waiting = task(inbox.receive_async())
            await here.send_async(THERE, b"y", kind=OTHER)
            assert await waiting == (HERE, b"y")
            await here.flush_async()

    run(main, debug=True)


def test_what_goes_wrong_with_a_request_is_raised_where_it_is_awaited(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            there.on(KIND, Gated().handle)
            there.inbox(OTHER)
            here.add_peer(9, "tcp://127.0.0.1:9")
            with pytest.raises(RequestTimeout) as late:
                await here.request_async(THERE, b"x", kind=KIND, timeout=0.1)
            assert (late.value.peer, late.value.kind) == (THERE, KIND)
            assert late.value.waited >= 0.09
            with pytest.raises(UnknownKind):
                await here.request_async(THERE, b"x", kind=THIRD)
            with pytest.raises(RemoteError, match="inbox"):
                await here.request_async(THERE, b"x", kind=OTHER)
            with pytest.raises(UnknownPeer):
                await here.request_async(8, b"x", kind=KIND)
            with pytest.raises((PeerUnreachable, RequestTimeout)):
                await here.request_async(9, b"x", kind=KIND, timeout=0.5)
            assert here.statistics().requests_open == 0
            await there.close_async(drain=0)

    run(main)


def test_a_peer_that_goes_away_ends_its_requests(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            gated = Gated()
            there.on(KIND, gated.handle, ordered=False)
            waiting = [
                task(here.request_async(THERE, message, kind=KIND)) for message in numbered(50)
            ]
            await soon(lambda: len(gated.begun) == 50)
            await there.close_async(drain=0)
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {PeerUnreachable}
            gated.open()

    run(main)


def test_an_answer_that_is_no_answer_is_a_remote_error(run: Run) -> None:
    async def wrong(source: int, data: bytes) -> int:
        return 5

    async def main() -> None:
        async with pair() as (here, there):
            there.on(KIND, wrong)
            with pytest.raises(RemoteError, match="int") as error:
                await here.request_async(THERE, b"x", kind=KIND)
            assert error.value.exception == "TypeError"
            await here.send_async(THERE, b"x", kind=KIND)  # where nobody asks it is ignored
            await here.flush_async()
            assert kind_of(there).handled == 2

    run(main)


def test_a_request_may_be_made_on_a_loop_and_waited_for_in_a_thread(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            gated = Gated()
            there.on(KIND, gated.handle)
            future = here.request_async(THERE, b"x", kind=KIND)
            with pytest.raises(WouldBlock, match="await"):
                future.result()
            waiting = asyncio.to_thread(future.result, 5.0)
            await soon(lambda: gated.begun)
            gated.open()
            assert await waiting == b"x"
            assert future.done()
            assert future.result() == b"x"
            assert await future == b"x"  # as often as one likes

    run(main)


@pytest.mark.parametrize("connected", [True, False])
def test_several_tasks_may_await_one_request(run: Run, connected: bool) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            gated = Gated()
            there.on(KIND, gated.handle)
            if connected:
                gated.let_go(b"first")
                await here.request_async(THERE, b"first", kind=KIND)
            future = here.request_async(THERE, b"x", kind=KIND, timeout=25.0)
            waiting = [task(future) for _ in range(3)]
            await soon(lambda: b"x" in gated.begun)
            await settle()
            began = time.monotonic()
            gated.open()
            assert await asyncio.gather(*waiting) == [b"x"] * 3
            assert time.monotonic() - began < 15  # woken, not timed out

    run(main)


def test_a_handler_may_ask_the_one_who_asked(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):

            async def ask_back(source: int, data: bytes) -> bytes:
                return await there.request_async(source, data, kind=OTHER) + b"!"

            there.on(KIND, ask_back)
            here.on(OTHER, echo)
            answers = await asyncio.gather(
                *(here.request_async(THERE, message, kind=KIND) for message in numbered(200))
            )
            assert answers == [message + b"!" for message in numbered(200)]

    run(main)


def test_many_answers_come_with_few_turns_of_the_loop(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 0
    ready = Door._ready

    def counted(door: Door) -> None:
        nonlocal turns
        turns += 1
        ready(door)

    monkeypatch.setattr(Door, "_ready", counted)
    with nodes() as (here, there):
        gate = Gate()
        there.on(KIND, answering(gate))

        async def main() -> None:
            nonlocal turns
            count = 1000
            futures = [here.request_async(THERE, message, kind=KIND) for message in numbered(count)]
            waiting = [task(future) for future in futures]
            await asyncio.to_thread(gate.entered.wait, 5)
            gate.open()
            # The loop is busy elsewhere while the answers come in.
            eventually(lambda: all(future.done() for future in futures))
            turns = 0
            assert await asyncio.gather(*waiting) == numbered(count)
            assert turns <= 2

        run(main)


# --- giving up ------------------------------------------------------------------------------------


def test_cancelling_a_task_cancels_its_request_and_the_answer_is_late(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            gated = Gated()
            there.on(KIND, gated.handle, ordered=False)
            asking = [task(here.request_async(THERE, m, kind=KIND)) for m in numbered(10)]
            await soon(lambda: len(gated.begun) == 10)
            assert here.statistics().requests_open == 10
            for each in asking[:6]:
                each.cancel()
            await asyncio.wait(asking[:6])
            assert all(each.cancelled() for each in asking[:6])
            assert here.statistics().requests_open == 4
            door = door_of(asyncio.get_running_loop())
            await soon(lambda: len(door.awaited) == 4)  # what was cancelled is known there soon
            gated.open()
            assert await asyncio.gather(*asking[6:]) == numbered(4, 6)
            await soon(lambda: here.statistics().late_responses == 6)
            assert gated.cancelled == []  # the handlers may run all the same
            assert here.statistics().requests_open == 0

    run(main)


def test_a_future_that_is_cancelled_tells_who_waits(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            gated = Gated()
            there.on(KIND, gated.handle)
            future = here.request_async(THERE, b"x", kind=KIND)
            waiting = task(future)
            await soon(lambda: gated.begun)
            assert not future.done()
            assert future.cancel()
            assert future.done()
            with pytest.raises(RequestCancelled):
                await waiting
            assert not future.cancel()
            assert here.statistics().requests_open == 0
            gated.open()

    run(main)


def test_a_future_that_nobody_holds_is_given_up(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            gated = Gated()
            there.on(KIND, gated.handle)
            future = here.request_async(THERE, b"x", kind=KIND)
            await soon(lambda: gated.begun)
            del future
            gc.collect()
            await soon(lambda: here.statistics().requests_open == 0, "no request is open")
            gated.open()

    run(main)


def test_a_timeout_of_asyncio_gives_the_request_up(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            gated = Gated()
            there.on(KIND, gated.handle)
            with pytest.raises(TimeoutError) as error:
                await asyncio.wait_for(here.request_async(THERE, b"x", kind=KIND), 0.05)
            assert not isinstance(error.value, RequestTimeout)
            assert here.statistics().requests_open == 0
            gated.open()

    run(main)


def test_a_request_that_waits_for_credit_is_given_up_at_once(run: Run) -> None:
    async def main() -> None:
        async with pair(NodeConfig(request_timeout=30.0)) as (here, there):
            gated = Gated()
            there.on(KIND, gated.handle, capacity=1)
            asking = [task(here.request_async(THERE, b"0", kind=KIND))]
            await soon(lambda: gated.begun)
            waits = to(here).credit_waits
            asking += [task(here.request_async(THERE, m, kind=KIND)) for m in numbered(9, 1)]
            await settle()  # each task is at its await: one that never began cancels nothing
            # A thread waits for credit with the second one.
            await soon(lambda: to(here).credit_waits > waits)
            for each in asking:
                each.cancel()
            await asyncio.wait(asking)
            await soon(lambda: here.statistics().requests_open == 0, "no request is open")
            gated.open()
            assert await here.request_async(THERE, b"next", kind=KIND, timeout=10) == b"next"
            assert gated.begun == [b"0", b"next"]

    run(main)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_storm_of_cancellations_leaves_nothing_behind(run: Run, ordered: bool) -> None:
    async def main() -> None:
        chance = random.Random(5)
        door = door_of(asyncio.get_running_loop())

        async def handler(source: int, data: bytes) -> bytes:
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            return data

        async with pair() as (here, there):
            there.on(KIND, handler, ordered=ordered, capacity=64)
            inbox = there.inbox(OTHER, capacity=16)
            assert await here.request_async(THERE, b"x", kind=KIND) == b"x"
            kept = dict(door.calls)

            async def one(number: int) -> bytes:
                message = b"%d" % number
                match number % 4:
                    case 0 | 1:
                        return await here.request_async(THERE, message, kind=KIND)
                    case 2:
                        await here.send_async(THERE, message, kind=OTHER)
                    case _:
                        await inbox.receive_async()
                return message

            loop = asyncio.get_running_loop()
            tasks: list[asyncio.Task[bytes]] = []
            right = cancelled = 0
            for number in range(4000):
                tasks.append(loop.create_task(one(number)))
                for _ in range(chance.randrange(3)):
                    tasks[chance.randrange(max(0, number - 200), number + 1)].cancel()
                if chance.random() < 0.2:
                    await asyncio.sleep(0)
            for each in tasks:
                if chance.random() < 0.5:
                    each.cancel()
            for each in tasks[3::4]:
                each.cancel()  # there are more who receive than there is to receive
            # Somebody must take what was sent, or the sends wait.
            draining = task(drain(inbox))
            for number, outcome in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
                if isinstance(outcome, asyncio.CancelledError):
                    cancelled += 1
                else:
                    assert outcome == b"%d" % number
                    right += 1
            assert right > 100
            assert cancelled > 300
            await soon(lambda: here.statistics().requests_open == 0)
            assert {n for n in door.calls if n not in kept} <= {inbox._number}
            # And everything still works.
            await here.flush_async()
            answers = await asyncio.gather(
                *(here.request_async(THERE, message, kind=KIND) for message in numbered(100))
            )
            assert answers == numbered(100)
            draining.cancel()
            await asyncio.wait([draining])
            await here.send_async(THERE, b"last", kind=OTHER)
            assert await inbox.receive_async(5) == (HERE, b"last")

    run(main)


async def drain(inbox: Inbox[bytes]) -> None:
    async for _ in inbox:
        pass
