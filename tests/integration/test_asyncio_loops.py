"""Several loops at once, loops that end with work under way, and Ctrl-C."""

from __future__ import annotations

import asyncio
import functools
import gc
import signal
import threading
from typing import Any

import pytest

from antiphon import Node, RequestTimeout
from antiphon.testing import Child, Control
from integration.loops import LOOPS, Run, answering, echo, run_on, settle, soon, task
from unit.node.pairs import (
    HERE,
    KIND,
    NORMAL,
    OTHER,
    THERE,
    Gate,
    Running,
    eventually,
    nodes,
    numbered,
)

pytestmark = pytest.mark.timeout(60)


def test_several_loops_in_several_threads_share_a_node() -> None:
    factories = list(LOOPS.values()) * 2
    with nodes() as (here, there):
        there.on(KIND, lambda source, data: data, ordered=False)
        inboxes = [here.inbox(300 + number) for number in range(len(factories))]
        meeting = threading.Barrier(len(factories))

        def work(number: int) -> None:
            async def main() -> None:
                meeting.wait(20)
                for turn in range(5):
                    messages = [b"%d %d %d" % (number, turn, each) for each in range(100)]
                    answers = await asyncio.gather(
                        *(here.request_async(THERE, message, kind=KIND) for message in messages)
                    )
                    assert answers == messages
                    sends = [there.send_async(HERE, m, kind=300 + number) for m in messages]
                    for message in messages:
                        assert await inboxes[number].receive_async(5) == (THERE, message)
                    await asyncio.gather(*sends)
                    await here.flush_async()

            run_on(factories[number], main)

        working = [Running(functools.partial(work, number)) for number in range(len(factories))]
        for each in working:
            each.result(35)
        assert here.statistics().requests_open == 0


def test_handlers_on_one_loop_answer_another(run: Run) -> None:
    ready, over = threading.Event(), threading.Event()
    with Node(HERE, config=NORMAL) as here:

        async def serve() -> None:
            async with Node(THERE, peers={HERE: here.address}) as there:
                there.on(KIND, echo)
                here.add_peer(THERE, there.address)
                ready.set()
                await soon(over.is_set, timeout=25)

        serving = Running(lambda: run(serve))
        assert ready.wait(20)

        async def ask() -> None:
            for start in range(0, 500, 50):
                messages = numbered(50, start)
                asked = (here.request_async(THERE, message, kind=KIND) for message in messages)
                assert await asyncio.gather(*asked) == messages

        run(ask)
        over.set()
        serving.result()


def test_a_loop_that_is_closed_with_open_requests_harms_nobody(run: Run) -> None:
    with nodes() as (here, there), Gate() as gate:
        there.on(KIND, answering(gate), ordered=False)
        inbox = here.inbox(OTHER)
        factory = type(run_loop(run))
        loop = factory()

        async def ask() -> None:
            await here.request_async(THERE, b"x", kind=KIND)

        left: list[Any] = [loop.create_task(ask()) for _ in range(20)]

        async def receive() -> None:
            await inbox.receive_async()

        left.append(loop.create_task(receive()))
        loop.run_until_complete(soon(lambda: here.statistics().requests_open == 20))
        for each in left:
            each._log_destroy_pending = False
        loop.close()
        gate.open()
        there.send(HERE, b"y", kind=OTHER)

        async def main() -> None:
            assert await here.request_async(THERE, b"z", kind=KIND) == b"z"
            assert await inbox.receive_async(10) == (THERE, b"y")
            receiving = task(inbox.receive_async(10))
            await settle()  # it waits, beside the one whose loop is gone
            await there.send_async(HERE, b"y", kind=OTHER)
            assert await receiving == (THERE, b"y")

        run(main)
        left.clear()
        gc.collect()
        eventually(lambda: here.statistics().requests_open == 0)


def run_loop(run: Run) -> asyncio.AbstractEventLoop:
    async def main() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    return run(main)


def test_asyncio_run_cancels_open_requests_when_it_ends(run: Run) -> None:
    with nodes() as (here, there), Gate() as gate:
        there.on(KIND, gate)
        left: list[asyncio.Task[bytes]] = []

        async def main() -> None:
            left.extend(task(here.request_async(THERE, b"x", kind=KIND)) for _ in range(10))
            await soon(lambda: here.statistics().requests_open == 10)
            await settle()

        run(main)
        assert all(each.cancelled() for each in left)
        assert here.statistics().requests_open == 0


def wait_for_ctrl_c(control: Control, loop: str) -> None:
    import asyncio
    import threading
    import time

    import uvloop

    import antiphon

    begun: list[bytes] = []
    cancelled: list[bytes] = []
    left: list[antiphon.Node] = []

    async def hold(source: int, data: bytes) -> None:
        begun.append(data)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(data)
            raise

    async def main() -> None:
        async with antiphon.Node(1) as here, antiphon.Node(2) as there:
            left.extend((here, there))
            here.add_peer(2, there.address)
            there.on(200, hold, ordered=False)
            inbox = here.inbox(201)
            async with asyncio.TaskGroup() as group:

                async def ask(number: int) -> None:
                    await here.request_async(2, b"%d" % number, kind=200, timeout=60)

                for number in range(10):
                    group.create_task(ask(number))

                async def receive() -> None:
                    await inbox.receive_async()

                group.create_task(receive())
                while len(begun) < 10:
                    await asyncio.sleep(0.001)
                control.tell("ready")

    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())
    except KeyboardInterrupt:
        deadline = time.monotonic() + 15  # threads that were told to end may take a moment
        while any(each.name.startswith("ap-") for each in threading.enumerate()):
            if time.monotonic() > deadline:
                break
            time.sleep(0.001)
        control.tell(
            "interrupted",
            closed=[node.closed for node in left],
            open=left[0].statistics().requests_open,
            cancelled=len(cancelled),
            threads=[each.name for each in threading.enumerate() if each.name.startswith("ap-")],
        )


@pytest.mark.parametrize("loop", LOOPS)
def test_ctrl_c_ends_asyncio_run_and_leaves_nothing_behind(loop: str) -> None:
    with Child(wait_for_ctrl_c, loop=loop) as child:
        child.expect("ready")
        child.signal(signal.SIGINT)
        told = child.expect("interrupted", timeout=25)  # the handlers would take a minute
        assert (told["closed"], told["open"], told["threads"]) == ([True, True], 0, [])
        assert told["cancelled"] == 10
        assert child.wait(20) == 0
        assert child.errors == ""


@pytest.mark.parametrize("timeout", [30.0, 0.3])
def test_a_request_is_awaited_on_two_loops_one_of_which_stands_still(
    run: Run, timeout: float
) -> None:
    with nodes() as (here, there), Gate() as gate:
        there.on(KIND, lambda source, data: data if data == b"first" else answering(gate)(1, data))
        here.request(THERE, b"first", kind=KIND)  # the next goes out at once
        future = here.request_async(THERE, b"x", kind=KIND, timeout=timeout)
        still = type(run_loop(run))()

        async def wait() -> bytes:
            return await future

        first = still.create_task(wait())
        still.run_until_complete(settle())  # it waits there; that loop does not run from here on

        async def main() -> None:
            second = task(future)
            await settle()
            if timeout > 10:
                gate.open()
                assert await second == b"x"
            else:
                with pytest.raises(RequestTimeout):
                    await second

        run(main)
        if timeout > 10:
            assert still.run_until_complete(first) == b"x"
        else:
            with pytest.raises(RequestTimeout):
                still.run_until_complete(first)
        still.close()
