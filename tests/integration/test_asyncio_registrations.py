"""Coroutines as handlers: what is refused, on which loop they run, and what closing leaves."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from antiphon import ConfigError, Node, RemoteError, UnknownKind
from integration.loops import Gated, Run, echo, never_within, pair, settle, soon, task
from unit.node.pairs import (
    HERE,
    KIND,
    OTHER,
    THERE,
    THIRD,
    Heard,
    Ping,
    failures,
    kind_of,
    numbered,
)

pytestmark = pytest.mark.timeout(60)


# --- what is taken and what is refused ------------------------------------------------------------


def test_an_async_handler_without_a_loop_is_a_config_error_at_start(run: Run) -> None:
    node = Node(HERE)
    node.on(KIND, echo)
    with pytest.raises(ConfigError, match="async with"):
        node.start()
    with pytest.raises(ConfigError, match="async with"), node:
        pass

    async def main() -> None:
        async with node:  # nothing was lost by that
            assert await node.request_async(HERE, b"x", kind=KIND) == b"x"

    run(main)


def test_an_async_handler_on_a_node_that_runs_without_a_loop_is_a_config_error(run: Run) -> None:
    with Node(HERE) as node:
        with pytest.raises(ConfigError, match="async with"):
            node.on(KIND, echo)

        async def main() -> None:
            with pytest.raises(ConfigError, match="async with"):
                node.on(KIND, echo)

        run(main)
        node.on(KIND, lambda source, data: data)  # the kind is still free


@pytest.mark.parametrize("kind", [KIND, Ping])
def test_an_async_batch_handler_is_a_config_error(kind: Any) -> None:
    node = Node(HERE)
    with pytest.raises(ConfigError, match="batch"):
        node.on(kind, echo, batch=True)
    node.on(kind, Heard())  # the kind is still free


def test_async_with_ends_a_registration_and_the_loop_goes_on_meanwhile(run: Run) -> None:
    async def main() -> None:
        entered, goes_on = threading.Event(), threading.Event()

        def hold(source: int, data: bytes) -> None:
            entered.set()
            assert goes_on.wait(20)

        async with pair() as (here, there):
            async with there.on(KIND, hold):
                await here.send_async(THERE, b"x", kind=KIND)
                await soon(entered.is_set)
                # Leaving waits for the handler, and the handler for something that the loop does.
                asyncio.get_running_loop().call_soon(goes_on.set)
            there.on(KIND, echo)  # the kind is free
            async with there.on(OTHER, echo):
                assert await here.request_async(THERE, b"x", kind=OTHER) == b"x"
            with pytest.raises(UnknownKind):
                await here.request_async(THERE, b"x", kind=OTHER)

    run(main)


def test_a_kind_has_one_registration_of_any_sort(run: Run) -> None:
    async def main() -> None:
        async with Node(HERE) as node:
            node.on(KIND, echo)
            node.on(OTHER, Heard())
            node.inbox(THIRD)
            for kind in (KIND, OTHER, THIRD):
                with pytest.raises(ConfigError, match=str(kind)):
                    node.on(kind, echo)
            with pytest.raises(ConfigError, match=str(KIND)):
                node.inbox(KIND)

    run(main)


def test_an_async_handler_may_be_registered_later_from_any_thread(run: Run) -> None:
    async def main() -> None:
        loops: list[object] = []

        async def where(source: int, data: bytes) -> bytes:
            loops.append(asyncio.get_running_loop())
            return data

        async with pair() as (here, there):
            await here.send_async(THERE, b"before", kind=KIND)
            there.on(KIND, where)
            await asyncio.to_thread(there.on, OTHER, where, ordered=False)
            for kind in (KIND, OTHER):
                assert await here.request_async(THERE, b"x", kind=kind) == b"x"
            assert set(loops) == {asyncio.get_running_loop()}

    run(main)


def test_a_second_start_changes_nothing(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            there.on(KIND, echo)
            assert await asyncio.to_thread(there.start) is there
            assert await here.request_async(THERE, b"x", kind=KIND) == b"x"
            there.on(OTHER, echo)
            assert await here.request_async(THERE, b"x", kind=OTHER) == b"x"

    run(main)


def test_an_async_handler_for_a_loop_that_is_closed_is_a_config_error(run: Run) -> None:
    node = Node(HERE)

    async def main() -> None:
        node.start()

    run(main)
    try:
        with pytest.raises(ConfigError):
            node.on(KIND, echo)
        node.on(KIND, Heard())  # the kind is still free
    finally:
        node.close()


# --- closing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("count", [3, 1000])
def test_no_coroutine_begins_after_its_registration_was_closed(
    run: Run, ordered: bool, count: int
) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            gated = Gated()
            registration = there.on(KIND, gated.handle, ordered=ordered)
            await asyncio.to_thread(here.send_many, THERE, numbered(count), kind=KIND)
            await soon(lambda: gated.begun)
            begun = len(gated.begun)
            registration.close()
            registration.close()
            assert await never_within(lambda: len(gated.begun) > begun, 0.03)
            gated.open()
            # Those that run are left to end; nobody handles the others, and nobody waits for them.
            await here.flush_async(10)
            assert len(gated.begun) == len(gated.ended) == begun
            assert gated.cancelled == []
            # The kind is free, and the loop has forgotten the old one.
            there.on(KIND, echo)
            assert await here.request_async(THERE, b"x", kind=KIND, timeout=10) == b"x"

    run(main)


@pytest.mark.parametrize("ordered", [True, False])
def test_requests_in_a_closed_registration_are_answered(run: Run, ordered: bool) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            gated = Gated()
            registration = there.on(KIND, gated.handle, ordered=ordered, capacity=2)
            waiting = [
                task(here.request_async(THERE, m, kind=KIND, timeout=10)) for m in numbered(10)
            ]
            await soon(lambda: kind_of(there).messages == 2)
            await settle()
            begun = len(gated.begun)
            registration.close()
            gated.open()
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            # The running ones with what they return, the others with an error and at once.
            assert outcomes[:begun] == numbered(begun)
            assert {type(outcome) for outcome in outcomes[begun:]} <= {RemoteError, UnknownKind}
            assert len(gated.begun) == begun

    run(main)


def test_counters_never_fall_when_async_handlers_come_and_go(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(source: int, data: bytes) -> None:
        raise ValueError("on purpose")

    async def main() -> None:
        async with pair() as (here, there):
            for turn in range(1, 4):
                registration = there.on(KIND, fail)
                with pytest.raises(RemoteError):
                    await here.request_async(THERE, b"x", kind=KIND)
                assert there.statistics().drops["handler_failed"] == turn
                registration.close()
                assert there.statistics().drops["handler_failed"] == turn

    run(main)
    assert len(failures(caplog)) == 3
