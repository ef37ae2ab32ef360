"""Calls that would stop a loop: refused with the name of their twin, unless they need not wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from antiphon import Node, ReceiveTimeout, WouldBlock
from integration.loops import Run, echo, pair, soon
from unit.node.pairs import HERE, KIND, OTHER, THERE, THIRD, fill, numbered

pytestmark = pytest.mark.timeout(60)


def test_a_blocking_call_on_a_loop_names_its_twin(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            there.on(KIND, echo)
            inbox = there.inbox(OTHER)
            there.inbox(THIRD)
            await here.send_async(THERE, b"not read", kind=THIRD)  # so that a flush has to wait
            calls: dict[str, Callable[[], object]] = {
                "request_async": lambda: here.request(THERE, b"x", kind=KIND),
                "flush_async": here.flush,
                "close_async": here.close,
                "wait_async": here.wait,
                "async with": here.__enter__,
                "receive_async": inbox.receive,
                "async for": lambda: next(inbox),
                "receive_async() or": lambda: inbox.receive_many(10, timeout=1),
                "await": here.flush_async().result,
            }
            for twin, call in calls.items():
                with pytest.raises(WouldBlock) as error:
                    call()
                assert twin in str(error.value)
                assert error.value.twin is not None
                assert twin in error.value.twin
                assert isinstance(error.value, RuntimeError)
            assert not here.closed
            assert here.statistics().requests == 0  # nothing was half done
            assert await here.request_async(THERE, b"x", kind=KIND) == b"x"

    run(main)


def test_with_on_a_loop_is_refused_before_anything_begins(run: Run) -> None:
    async def main() -> None:
        node = Node(HERE)
        with pytest.raises(WouldBlock, match="async with node"), node:
            pass
        assert not node.closed
        assert node.address == Node(HERE).address
        node.close()  # nothing to wait for
        assert node.closed

    run(main)


def test_send_on_a_loop_works_while_it_need_not_wait(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            inbox = there.inbox(KIND, capacity=100)
            offsets = memoryview(b"\x00\x00\x00\x00\x01\x00\x00\x00").cast("i")
            calls: list[Callable[[], object]] = [
                lambda: here.send(THERE, b"x", kind=KIND),
                lambda: here.send_many(THERE, [b"x"], kind=KIND),
                lambda: here.send_packed(THERE, b"x", offsets, kind=KIND),
                lambda: here.send([THERE], b"x", kind=KIND),
            ]
            for call in calls:  # there is no connection
                with pytest.raises(WouldBlock) as error:
                    call()
                assert error.value.twin == "send_async()"
            await here.send_async(THERE, b"x", kind=KIND)
            for call in calls:
                call()
            count = 5 + fill(here)
            for call in calls:  # there is no credit
                with pytest.raises(WouldBlock) as error:
                    call()
                assert error.value.twin == "send_async()"
            for _ in range(count):
                assert await inbox.receive_async(5) == (HERE, b"x")
            with pytest.raises(ReceiveTimeout):
                inbox.receive(0)  # which never waits

    run(main)


def test_a_send_that_a_loop_refused_works_when_it_is_tried_again(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            inbox = there.inbox(KIND)
            there.inbox(OTHER)
            await here.send_async(THERE, b"connects", kind=OTHER)

            def sends() -> bool:
                with contextlib.suppress(WouldBlock):
                    here.send(THERE, b"x", kind=KIND)
                    return True
                return False

            # The first message of a kind may have to wait for its window, and later ones need not.
            await soon(sends, "send() gets through")
            assert await inbox.receive_async(5) == (HERE, b"x")

    run(main)


def test_receive_on_a_loop_works_with_something_there(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            inbox = there.inbox(KIND)
            for message in numbered(6):
                await here.send_async(THERE, message, kind=KIND)
            await soon(lambda: inbox.pending == 6)
            assert inbox.receive() == (HERE, b"0")
            assert next(inbox) == (HERE, b"1")
            assert inbox.receive_many(2, timeout=1) == [(HERE, b"2"), (HERE, b"3")]
            assert [data for _, data in inbox.receive_many(10)] == [b"4", b"5"]
            with pytest.raises(WouldBlock):
                inbox.receive()

    run(main)


def test_blocking_calls_work_in_threads_beside_a_loop(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            there.on(KIND, echo)

            def work() -> bytes:
                here.send(THERE, b"x", kind=KIND)
                here.flush()
                return here.request(THERE, b"y", kind=KIND)

            assert await asyncio.to_thread(work) == b"y"

    run(main)
