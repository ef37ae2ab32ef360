"""Handlers that are coroutines: their order, their errors, and how many are under way."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import Counter, defaultdict

import pytest

from antiphon import Node, NodeConfig, RemoteError
from antiphon.testing import Proxy
from integration.loops import LARGE, Gated, Run, echo, never_within, pair, settle, soon, task
from unit.node.pairs import (
    HERE,
    KIND,
    NORMAL,
    OTHER,
    SILENT,
    THERE,
    THIRD,
    Heard,
    Ping,
    Running,
    eventually,
    failures,
    kind_of,
    numbered,
    to,
)

pytestmark = pytest.mark.timeout(60)


def test_an_ordered_handler_runs_one_coroutine_at_a_time_in_each_senders_order(run: Run) -> None:
    seen: dict[int, list[int]] = defaultdict(list)
    inside = most = 0

    async def handler(source: int, data: bytes) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        seen[source].append(int(data))
        inside -= 1

    async def main() -> None:
        there = Node(THERE, config=NORMAL)
        there.on(KIND, handler)  # before the start, as one should
        async with there, contextlib.AsyncExitStack() as stack:
            peers = {THERE: there.address}
            senders = [
                await stack.enter_async_context(Node(10 + number, peers=peers))
                for number in range(3)
            ]
            await asyncio.gather(
                *(s.send_async(THERE, m, kind=KIND) for m in numbered(700) for s in senders)
            )
            await asyncio.gather(*(sender.flush_async() for sender in senders))
            assert seen == {sender.id: list(range(700)) for sender in senders}
        assert most == 1

    run(main)


def test_unordered_coroutines_run_at_once_and_end_in_any_order(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            gated = Gated()
            there.on(KIND, gated.handle, ordered=False)
            waiting = [task(here.request_async(THERE, m, kind=KIND)) for m in numbered(600)]
            await soon(lambda: gated.inside == 600)  # more than are taken in one turn
            for message in reversed(numbered(600)):
                gated.let_go(message)
            assert await asyncio.gather(*waiting) == numbered(600)
            assert sorted(gated.begun) == sorted(numbered(600))

    run(main)


def test_a_handler_gets_messages_that_are_typed(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            heard = Heard()

            @there.on(Ping)
            async def keep(source: int, message: Ping) -> None:
                heard(source, message)

            await here.send_async(THERE, Ping(5, b"body"))
            await here.flush_async()
            assert heard.calls == [(HERE, Ping(5, b"body"))]

    run(main)


def test_whatever_is_a_coroutine_function_may_be_a_handler(run: Run) -> None:
    class Service:
        async def method(self, source: int, data: bytes) -> bytes:
            return b"method " + data

        async def __call__(self, source: int, data: bytes) -> bytes:
            return b"call " + data

    async def more(word: bytes, source: int, data: bytes) -> bytes:
        return word + data

    async def main() -> None:
        async with pair() as (here, there):
            there.on(KIND, Service().method)
            there.on(OTHER, functools.partial(more, b"partial "))
            assert await here.request_async(THERE, b"x", kind=KIND) == b"method x"
            assert await here.request_async(THERE, b"x", kind=OTHER) == b"partial x"
            there.on(THIRD, Service())
            assert await here.request_async(THERE, b"x", kind=THIRD) == b"call x"

    run(main)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_coroutine_that_raises_is_logged_and_counted_and_told(
    run: Run, ordered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(source: int, data: bytes) -> None:
        await asyncio.sleep(0)
        if int(data) % 2:
            raise ValueError("on purpose")

    async def main() -> None:
        async with pair() as (here, there):
            there.on(KIND, fail, ordered=ordered)
            for message in numbered(10):
                await here.send_async(THERE, message, kind=KIND)
            await here.flush_async()
            assert (kind_of(there).handled, kind_of(there).failed) == (10, 5)
            assert there.statistics().drops["handler_failed"] == 5
            with pytest.raises(RemoteError, match="on purpose") as error:
                await here.request_async(THERE, b"1", kind=KIND)
            assert (error.value.peer, error.value.exception) == (THERE, "ValueError")
            assert await here.request_async(THERE, b"2", kind=KIND) == b""

    run(main)
    records = failures(caplog)
    assert len(records) == 6
    assert {record.exc_info[0] for record in records if record.exc_info} == {ValueError}
    assert all(f"kind {KIND}" in record.getMessage() for record in records)


def test_a_message_that_cannot_be_decoded_is_counted_and_the_next_is_handled(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            seen: list[Ping] = []

            async def keep(source: int, message: Ping) -> Ping:
                seen.append(message)
                return message

            there.on(Ping, keep)
            for body in (b"\xc1", b""):
                await here.send_async(THERE, body, kind=61001)
                with pytest.raises(RemoteError):
                    await here.request_async(THERE, body, kind=61001)
            assert await here.request_async(THERE, Ping(2), reply=Ping) == Ping(2)
            assert kind_of(there, 61001).failed == 4
            assert seen == [Ping(2)]

    run(main)
    assert len(failures(caplog)) == 4


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("asked", [True, False])
def test_a_coroutine_that_ends_cancelled_does_not_end_its_registration(
    run: Run, ordered: bool, asked: bool
) -> None:
    async def main() -> None:
        # What a handler awaits may be cancelled by somebody else, and that looks the same.
        shared = asyncio.get_running_loop().create_future()
        shared.cancel()

        async def handler(source: int, data: bytes) -> bytes:
            if data == b"cancelled":
                await shared
            return data

        async with pair() as (here, there):
            there.on(KIND, handler, ordered=ordered)
            if asked:
                with pytest.raises(RemoteError) as error:
                    await here.request_async(THERE, b"cancelled", kind=KIND)
                assert error.value.exception == "CancelledError"
            else:
                await here.send_async(THERE, b"cancelled", kind=KIND)
            await here.flush_async(10)
            assert await here.request_async(THERE, b"next", kind=KIND, timeout=10) == b"next"
            assert (kind_of(there).handled, kind_of(there).failed) == (2, 1)

    run(main)


def test_a_handler_that_cancels_its_own_task_is_told_as_cancelled(run: Run) -> None:
    async def main() -> None:
        async def handler(source: int, data: bytes) -> bytes:
            if data == b"cancelled":
                current = asyncio.current_task()
                assert current is not None
                current.cancel()
                await asyncio.sleep(10)
            return data

        async with pair() as (here, there):
            there.on(KIND, handler, ordered=False)
            with pytest.raises(RemoteError) as error:
                await here.request_async(THERE, b"cancelled", kind=KIND)
            assert error.value.exception == "CancelledError"
            assert await here.request_async(THERE, b"next", kind=KIND) == b"next"

    run(main)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("what", ["itself", "everything", "twice", "idle"])
def test_a_stray_cancellation_costs_one_message_and_not_the_handler(
    run: Run, ordered: bool, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        spared: set[asyncio.Task[object] | None] = set()

        def everything() -> None:
            for each in asyncio.all_tasks() - spared:
                each.cancel()

        async def handler(source: int, data: bytes) -> bytes:
            if data == b"bad":
                current = asyncio.current_task()
                assert current is not None
                if what == "everything":
                    everything()
                elif what == "twice":
                    current.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.sleep(10)
                    current.cancel()
                else:
                    current.cancel()
                await asyncio.sleep(10)
            return data

        async with pair() as (here, there):
            there.on(KIND, handler, ordered=ordered)
            assert await here.request_async(THERE, b"first", kind=KIND) == b"first"
            asking = [task(here.request_async(THERE, m, kind=KIND)) for m in (b"bad", b"good")]
            spared.update(asking, (asyncio.current_task(),))
            if what == "idle":
                asking.pop(0).cancel()
                await settle()
                everything()
                assert await asking[0] == b"good"
            else:
                with pytest.raises(RemoteError) as error:
                    await asking[0]
                assert error.value.exception == "CancelledError"
                if not (what == "everything" and not ordered):  # that one was cancelled as well
                    assert await asking[1] == b"good"
            for message in numbered(5):
                assert await here.request_async(THERE, message, kind=KIND) == message
            await here.flush_async(10)

    run(main)
    if what != "idle":
        assert all(
            record.exc_info and record.exc_info[0] is asyncio.CancelledError
            for record in failures(caplog)
        )
        assert failures(caplog)


@pytest.mark.parametrize("begun", [True, False])
def test_whoever_cancels_all_tasks_and_waits_for_them_does_not_wait_for_ever(
    run: Run, begun: bool
) -> None:
    async def main() -> None:
        async def handler(source: int, data: bytes) -> bytes:
            return data

        async with pair() as (here, there):
            there.on(KIND, handler)
            if begun:
                assert await here.request_async(THERE, b"first", kind=KIND) == b"first"
            others = asyncio.all_tasks() - {asyncio.current_task()}
            assert others
            for each in others:
                each.cancel()
            await asyncio.wait_for(asyncio.gather(*others, return_exceptions=True), 20)
            # Until it is closed, the handler handles.
            assert await here.request_async(THERE, b"then", kind=KIND) == b"then"

    run(main)


def test_a_message_whose_task_is_cancelled_before_it_began_is_answered_and_logged(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        own = asyncio.current_task()

        async def handler(source: int, data: bytes) -> bytes:
            if data == b"first":  # those that came with it have tasks that have not begun
                for each in asyncio.all_tasks() - {own, asyncio.current_task(), *asking}:
                    each.cancel()
            return data

        async with pair() as (here, there):
            there.on(KIND, handler, ordered=False)
            assert await here.request_async(THERE, b"connects", kind=KIND) == b"connects"
            asking = [task(here.request_async(THERE, m, kind=KIND)) for m in (b"first", b"second")]
            outcomes = await asyncio.gather(*asking, return_exceptions=True)
            assert outcomes[0] == b"first"
            if outcomes[1] != b"second":  # or it came later than the first
                assert isinstance(outcomes[1], RemoteError)
                assert len(failures(caplog)) == 1
            assert await here.request_async(THERE, b"last", kind=KIND) == b"last"

    run(main)


def test_what_is_left_of_a_cancellation_is_not_the_next_messages(run: Run) -> None:
    async def main() -> None:
        shared = asyncio.get_running_loop().create_future()
        shared.cancel()

        async def handler(source: int, data: bytes) -> bytes:
            current = asyncio.current_task()
            assert current is not None
            if data == b"never raised":
                current.cancel()
            elif data == b"caught":
                current.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(10)
            elif data == b"foreign":
                await shared
            else:
                await asyncio.sleep(0)
            return data

        async with pair() as (here, there):
            there.on(KIND, handler)
            asked = (b"never raised", b"plain", b"caught", b"foreign", b"never raised", b"last")
            outcomes = await asyncio.gather(
                *(here.request_async(THERE, each, kind=KIND) for each in asked),
                return_exceptions=True,
            )
            assert isinstance(outcomes.pop(3), RemoteError)
            assert outcomes == [each for each in asked if each != b"foreign"]
            assert (kind_of(there).handled, kind_of(there).failed) == (6, 1)

    run(main)


def test_an_ordered_handler_that_never_waits_leaves_the_loop_its_turns(run: Run) -> None:
    count = 3000

    async def main() -> None:
        turn = 0
        seen: list[int] = []

        async def tick() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        async with Node(THERE, config=NORMAL) as there:

            async def handler(source: int, data: bytes) -> None:
                if not seen:  # all of them are here before the second is looked at
                    eventually(lambda: kind_of(there).messages == count)
                seen.append(turn)

            there.on(KIND, handler)
            ticking = task(tick())
            async with Node(HERE, peers={THERE: there.address}, config=NORMAL) as here:
                await asyncio.to_thread(here.send_many, THERE, [b"x"] * count, kind=KIND)
                await soon(lambda: len(seen) == count)
            ticking.cancel()
            assert max(Counter(seen).values()) <= 256

    run(main)


@pytest.mark.parametrize("ordered", [True, False])
def test_who_asked_is_told_when_the_loop_ends_under_the_handler(run: Run, ordered: bool) -> None:
    with Node(HERE) as here:
        gated = Gated()
        there = Node(THERE, peers={HERE: here.address})
        there.on(KIND, gated.handle, ordered=ordered)
        asking: list[Running[bytes]] = []

        async def main() -> None:
            there.start()
            here.add_peer(THERE, there.address)
            for message in numbered(3):
                future = here.request_async(THERE, message, kind=KIND, timeout=25)
                asking.append(Running(functools.partial(future.result, 25)))
            await soon(lambda: gated.begun and kind_of(there).messages == 3)
            await settle()

        run(main)  # ends and cancels what runs on the loop
        outcomes = [type(one.error()) for one in asking]
        there.close(drain=0)
    assert outcomes == [RemoteError] * 3


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("ask", [True, False])
def test_no_more_are_under_way_than_the_capacity(run: Run, ordered: bool, ask: bool) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            gated = Gated()
            there.on(KIND, gated.handle, ordered=ordered, capacity=4)
            call = here.request_async if ask else here.send_async
            waiting = [task(call(THERE, message, kind=KIND)) for message in numbered(40)]
            await soon(lambda: kind_of(there).messages == 4)
            await soon(lambda: len(gated.begun) >= (1 if ordered else 4))
            assert await never_within(lambda: kind_of(there).messages > 4, 0.05)
            assert gated.begun == numbered(1 if ordered else 4)
            for message in numbered(40)[ordered is False :]:
                # Room is made by those that end, even if the first one never does.
                await soon(lambda message=message: message in gated.begun)  # type: ignore[misc]
                gated.let_go(message)
                await soon(lambda message=message: message in gated.ended)  # type: ignore[misc]
                assert kind_of(there).messages - len(gated.ended) <= 4
            gated.open()
            await asyncio.gather(*waiting)
            await here.flush_async()
            assert gated.most == (1 if ordered else 4)
            assert sorted(gated.ended) == sorted(numbered(40))

    run(main)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_flush_waits_for_the_coroutines_before_it_and_for_no_later_ones(
    run: Run, ordered: bool
) -> None:
    async def main() -> None:
        async with pair(SILENT) as (here, there):
            gated = Gated()
            there.on(KIND, gated.handle, ordered=ordered)
            for message in (b"first", b"second"):
                await here.send_async(THERE, message, kind=KIND)
            await soon(lambda: len(gated.begun) == (1 if ordered else 2))
            await soon(lambda: kind_of(there).messages == 2)  # the second waits, and has come
            reads = to(there, HERE).reads
            flushing = task(here.flush_async(10))
            await soon(lambda: to(there, HERE).reads > reads)  # the mark is with the receiver
            await here.send_async(THERE, b"third", kind=KIND)
            await soon(lambda: kind_of(there).messages == 3)
            gated.let_go(b"second")
            assert await never_within(flushing.done, 0.05)
            gated.let_go(b"first")
            await flushing
            assert sorted(gated.ended) == [b"first", b"second"]
            gated.open()
            await here.flush_async()
            assert len(gated.ended) == 3

    run(main)


def test_drop_policies_hold_for_coroutines(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            gated = Gated()
            there.on(KIND, gated.handle, capacity=3, when_full="drop_newest")
            await here.send_async(THERE, b"first", kind=KIND)
            await soon(lambda: gated.begun)
            for message in numbered(100):
                await here.send_async(THERE, message, kind=KIND)
            # Those that are counted as received are in the queue a moment later, or dropped.
            await soon(lambda: kind_of(there).pending + kind_of(there).dropped == 100)
            assert kind_of(there).messages == 101
            dropped = kind_of(there).dropped
            assert 90 <= dropped < 100
            gated.open()
            await here.flush_async()
            assert gated.ended == [b"first", *numbered(100 - dropped)]
            assert there.statistics().drops["queue_full"] == dropped

    run(main)


@pytest.mark.parametrize("size", [8000, LARGE])
def test_an_answer_that_must_wait_does_not_stop_the_loop(run: Run, size: int) -> None:
    config = NodeConfig(ring_bytes=64 << 10, flow_window_bytes=16 << 10, request_timeout=30.0)

    async def fat(source: int, data: bytes) -> bytes:
        return bytes(size)

    async def main() -> None:
        there = Node(THERE, config=config)
        there.on(KIND, fat, ordered=False)
        here = Node(HERE, listen=None, config=config)
        here.on(OTHER, echo)
        async with there:
            with Proxy(there.address) as proxy:
                async with here:
                    here.add_peer(THERE, proxy.address)
                    await here.request_async(THERE, b"x", kind=KIND)
                    proxy.back.stall()  # no answer gets through
                    asking = [task(here.request_async(THERE, b"x", kind=KIND)) for _ in range(400)]
                    # Meanwhile the loop goes on: it answers what does not pass the proxy.
                    turns, end = 0, time.monotonic() + 0.5
                    while turns < 10 or time.monotonic() < end:
                        data = b"%d" % turns
                        assert await here.request_async(HERE, data, kind=OTHER, timeout=5) == data
                        turns += 1
                    assert not all(each.done() for each in asking)
                    proxy.flow()
                    for each in asking:
                        each.cancel()
                    await asyncio.gather(*asking, return_exceptions=True)

    run(main)
