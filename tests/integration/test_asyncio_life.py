"""Nodes on an event loop: how they start and close there, and what is left when they have."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from antiphon import Closed, Node, ReceiveTimeout
from antiphon.node.loops import door_of
from antiphon.testing import eventually
from integration.loops import Gated, Run, echo, never_within, pair, settle, soon, task
from unit.node.pairs import HERE, KIND, OTHER, SILENT, THERE, THIRD, kind_of, nodes, numbered, to

pytestmark = pytest.mark.timeout(60)


def own_threads() -> set[threading.Thread]:
    """The library's own Python threads."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("ap-")}


def event_descriptors() -> int:
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            count += "eventfd" in str(entry.readlink())
    return count


def test_async_with_starts_a_node_and_closes_it(run: Run) -> None:
    async def main() -> Node:
        node = Node(HERE)
        async with node as entered:
            assert entered is node
            assert node.address.startswith("tcp://127.0.0.1:")
            assert "running" in repr(node)
        assert node.closed
        return node

    node = run(main)
    with pytest.raises(Closed):
        node.start()


def test_leaving_async_with_handles_what_was_received(run: Run) -> None:
    done: list[bytes] = []

    async def slow(source: int, data: bytes) -> None:
        await asyncio.sleep(0.005)
        done.append(data)

    async def main() -> None:
        async with Node(HERE) as here:
            async with Node(THERE) as there:
                here.add_peer(THERE, there.address)
                there.on(KIND, slow)
                for message in numbered(20):
                    await here.send_async(THERE, message, kind=KIND)
                await soon(lambda: kind_of(there).messages == 20)
            assert done == numbered(20)

    run(main)


def test_leaving_async_with_by_an_exception_drains_nothing(run: Run) -> None:
    async def leave() -> float:
        """How long it takes; the handler would take for ever."""
        gated = Gated()
        async with Node(HERE) as here:
            with contextlib.suppress(ZeroDivisionError):
                async with Node(THERE) as there:
                    here.add_peer(THERE, there.address)
                    there.on(KIND, gated.handle)
                    await here.send_async(THERE, b"x", kind=KIND)
                    await soon(lambda: gated.begun)
                    began = time.monotonic()
                    raise ZeroDivisionError
            took = time.monotonic() - began
            assert there.closed
        gated.open()
        return took

    async def main() -> None:
        # Draining takes five seconds. One of three, as the machine may be busy.
        for _ in range(3):
            if await leave() < 3.0:
                return
        raise AssertionError("it drains")

    run(main)


def test_the_loop_turns_while_close_async_drains(run: Run) -> None:
    async def main() -> None:
        gated = Gated()
        async with pair() as (here, there):
            there.on(KIND, gated.handle)
            await here.send_async(THERE, b"x", kind=KIND)
            await soon(lambda: gated.begun)
            closing = there.close_async(drain=5.0)
            assert await never_within(closing.done, 0.05)
            gated.let_go(b"x")
            await closing
            assert gated.ended == [b"x"]
            await there.close_async()  # a second time does nothing

    run(main)


def test_close_async_may_be_waited_for_in_a_thread() -> None:
    with nodes() as (_, there):
        future = there.close_async()
        assert future.result(5) is None
        assert future.done()
        assert there.closed


def test_wait_async_is_done_when_the_node_is_closed(run: Run) -> None:
    async def main() -> None:
        async with Node(HERE) as here:
            waiting = task(here.wait_async())
            await settle()
            assert not waiting.done()
        await waiting
        await here.wait_async()  # and at once afterwards

    run(main)


def test_closing_ends_every_kind_of_waiting_with_closed(run: Run) -> None:
    async def main() -> None:
        gated = Gated()
        async with pair(SILENT) as (here, there):
            there.on(KIND, gated.handle, capacity=1)
            inbox = here.inbox(OTHER)
            waiting: list[asyncio.Task[Any]] = [
                task(here.request_async(THERE, b"asked", kind=KIND, timeout=30)),
                task(inbox.receive_async()),
            ]
            await soon(lambda: gated.begun)
            reads = to(there, HERE).reads
            waiting += [
                task(here.request_async(THERE, b"later", kind=KIND, timeout=30)),
                task(here.send_async(THERE, b"no credit", kind=KIND)),
                task(here.flush_async(30)),
            ]
            # The flush is the work of a thread, and it is at it.
            await soon(lambda: to(there, HERE).reads > reads)
            await here.close_async(drain=0)
            for each in waiting:
                with pytest.raises(Closed):
                    await each
            for call in (
                lambda: here.send_async(THERE, b"x", kind=KIND),
                lambda: here.request_async(THERE, b"x", kind=KIND),
                here.flush_async,
            ):
                with pytest.raises(Closed):
                    await call()
            gated.open()

    run(main)


def test_a_flush_that_meets_a_close_does_not_say_that_all_was_handled(run: Run) -> None:
    async def main() -> None:
        outcomes: Counter[type] = Counter()
        for _ in range(10):
            async with pair() as (here, there):
                gated = Gated()
                there.on(KIND, gated.handle)
                await here.send_async(THERE, b"x", kind=KIND)
                await soon(lambda gated=gated: gated.begun)  # type: ignore[misc]
                flushing, closing = here.flush_async(5), here.close_async(drain=0)
                (outcome,) = await asyncio.gather(flushing, return_exceptions=True)
                outcomes[type(outcome)] += 1
                await closing
                gated.open()
        assert outcomes == {Closed: 10}

    run(main)


def test_nothing_is_left_when_the_nodes_are_closed(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        before = own_threads()
        async with pair() as (here, there):
            there.on(KIND, echo)
            there.on(OTHER, echo, ordered=False)
            for kind in (KIND, OTHER):
                assert await here.request_async(THERE, b"x", kind=kind) == b"x"
            await here.flush_async()
            with pytest.raises(ReceiveTimeout):
                await there.inbox(THIRD).receive_async(0.01)
        await soon(lambda: len(asyncio.all_tasks(loop)) == 1, "the handlers' tasks end")
        await soon(lambda: own_threads() <= before, "the library's threads end")

    run(main)


def test_a_closed_registration_and_a_closed_inbox_leave_the_loops_door(run: Run) -> None:
    async def main() -> None:
        door = door_of(asyncio.get_running_loop())
        async with pair() as (here, there):
            for _ in range(3):
                registrations = [there.on(KIND, echo), there.on(OTHER, echo, ordered=False)]
                inbox = there.inbox(THIRD)
                for kind in (KIND, OTHER):
                    assert await here.request_async(THERE, b"x", kind=kind) == b"x"
                with pytest.raises(ReceiveTimeout):
                    await inbox.receive_async(0.01)
                inbox.close()
                for registration in registrations:
                    registration.close()
                await soon(lambda: not door.calls, "door.calls is empty")

    run(main)


def test_a_loop_that_ended_gives_its_descriptor_back(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            inbox = there.inbox(OTHER)
            there.on(KIND, echo)
            assert await here.request_async(THERE, b"x", kind=KIND) == b"x"
            await here.send_async(THERE, b"y", kind=OTHER)
            assert await inbox.receive_async(5) == (HERE, b"y")

    def left() -> int:
        gc.collect()
        return event_descriptors()

    run(main)
    before = left()
    for _ in range(5):
        run(main)
    # A thread that has closed a node may hold it a moment longer than whoever waited for that.
    eventually(lambda: left() <= before, 10)


def test_asyncio_run_works_again_and_again_with_other_nodes(run: Run) -> None:
    async def main() -> list[bytes]:
        async with pair() as (here, there):
            there.on(KIND, echo)
            return await asyncio.gather(
                *(here.request_async(THERE, message, kind=KIND) for message in numbered(20))
            )

    for _ in range(3):
        assert run(main) == numbered(20)


def test_one_node_serves_one_loop_after_another(run: Run) -> None:
    with nodes() as (here, there):
        there.on(KIND, lambda source, data: data)
        inbox = here.inbox(OTHER)

        async def main() -> None:
            assert await here.request_async(THERE, b"x", kind=KIND) == b"x"
            await there.send_async(HERE, b"y", kind=OTHER)
            assert await inbox.receive_async(5) == (THERE, b"y")

        for _ in range(3):
            run(main)


def test_a_node_that_was_forgotten_on_a_loop_is_closed_with_a_warning(run: Run) -> None:
    ignored: list[Any] = []

    async def main() -> int:
        node = Node(HERE).start()
        port = int(node.address.rpartition(":")[2])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del node
            gc.collect()
        assert [one.category for one in caught] == [ResourceWarning]
        return port

    previous, sys.unraisablehook = sys.unraisablehook, lambda what: ignored.append(str(what))
    try:
        port = run(main)
    finally:
        sys.unraisablehook = previous
    assert ignored == []
    # Its port is free: the listener is gone.
    with Node(THERE, listen=f"tcp://127.0.0.1:{port}"):
        pass
