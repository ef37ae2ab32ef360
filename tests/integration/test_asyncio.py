"""Nodes on an event loop: what is awaited, handlers that are coroutines, and what is given up.

Every test runs on asyncio's own loop and on uvloop. Both nodes of a pair live on the loop under
test unless a test says otherwise, so a call that stops the loop stops the answer that it waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import logging
import random
import signal
import sys
import threading
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import pytest
import uvloop

from antiphon import (
    Closed,
    ConfigError,
    Inbox,
    MessageTooLarge,
    Node,
    NodeConfig,
    PeerUnreachable,
    QueueFull,
    ReceiveTimeout,
    RemoteError,
    RequestCancelled,
    RequestTimeout,
    SendTimeout,
    UnknownKind,
    UnknownPeer,
    WouldBlock,
)
from antiphon.node import later
from antiphon.node.later import Later
from antiphon.node.loops import Door, door_of
from antiphon.testing import Child, Control, Proxy
from unit.node.pairs import (
    HERE,
    KIND,
    NORMAL,
    OTHER,
    THERE,
    THIRD,
    Gate,
    Heard,
    Ping,
    Pong,
    Running,
    eventually,
    fill,
    kind_of,
    nodes,
    numbered,
    pattern,
    to,
)

pytestmark = pytest.mark.timeout(40)

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds after which a test's coroutine is ended: a hang fails here, with a traceback."""

LARGE = 3_000_000
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


class Run(Protocol):
    """``run(main)``: ``main()`` on a new loop; a failure if anything ended unseen there."""

    def __call__(self, main: Callable[[], Coroutine[Any, Any, T]], debug: bool = ...) -> T: ...


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    def run(main: Callable[[], Coroutine[Any, Any, T]], debug: bool = False) -> T:
        return run_on(LOOPS[request.param], main, debug)

    return run


def run_on(
    factory: Callable[[], asyncio.AbstractEventLoop],
    main: Callable[[], Coroutine[Any, Any, T]],
    debug: bool = False,
) -> T:
    unseen: list[dict[str, Any]] = []

    async def patient() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda loop, what: unseen.append(what))
        async with asyncio.timeout(PATIENCE):
            return await main()

    with asyncio.Runner(debug=debug, loop_factory=factory) as runner:
        result = runner.run(patient())
    assert unseen == []
    return result


@contextlib.asynccontextmanager
async def pair(config: NodeConfig = NORMAL) -> AsyncIterator[tuple[Node, Node]]:
    """``async with pair() as (here, there)``: both started on this loop."""
    async with Node(HERE, config=config) as here, Node(THERE, config=config) as there:
        here.add_peer(THERE, there.address)
        there.add_peer(HERE, here.address)
        yield here, there


async def soon(condition: Callable[[], T], what: str = "", timeout: float = 5.0) -> T:
    """`eventually` for a coroutine."""
    end = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what or inspect.getsource(condition)}")
        await asyncio.sleep(0.002)
    return value


async def settle(turns: int = 20) -> None:
    """Lets everything that is ready on the loop have its turn."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def never_within(condition: Callable[[], object], seconds: float = 0.1) -> bool:
    """Whether ``condition`` stays false for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return False
        await asyncio.sleep(0.002)
    return True


class Gated:
    """A handler whose coroutines end when they are let go, one by one or all at once."""

    def __init__(self, answer: Callable[[Any], Any] = lambda data: data) -> None:
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.cancelled: list[Any] = []
        self.inside = self.most = 0
        self._answer = answer
        self._open = False
        self._gates: dict[Any, asyncio.Event] = {}

    async def handle(self, source: int, data: Any) -> Any:
        self.begun.append(data)
        self.inside += 1
        self.most = max(self.most, self.inside)
        gate = self._gates.setdefault(data, asyncio.Event())
        if self._open:
            gate.set()
        try:
            await gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(data)
            raise
        finally:
            self.inside -= 1
        self.ended.append(data)
        return self._answer(data)

    def let_go(self, data: Any) -> None:
        self._gates.setdefault(data, asyncio.Event()).set()

    def open(self) -> None:
        self._open = True
        for gate in self._gates.values():
            gate.set()


def task(awaitable: Awaitable[T]) -> asyncio.Task[T]:
    async def wait() -> T:
        return await awaitable

    return asyncio.get_running_loop().create_task(wait())


def answering(gate: Gate) -> Callable[[int, bytes], bytes]:
    """A plain handler that answers once the gate is open."""

    def handler(source: int, data: bytes) -> bytes:
        gate(source, data)
        return data

    return handler


def handlers_failures(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.name.startswith("antiphon.") and one.exc_info]


def ours() -> set[threading.Thread]:
    """The library's own Python threads."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("ap-")}


def event_descriptors() -> int:
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            count += "eventfd" in str(entry.readlink())
    return count


# --- life -----------------------------------------------------------------------------------------


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
    gated = Gated()

    async def main() -> None:
        began = time.monotonic()
        async with Node(HERE) as here:
            with contextlib.suppress(ZeroDivisionError):
                async with Node(THERE) as there:
                    here.add_peer(THERE, there.address)
                    there.on(KIND, gated.handle)
                    await here.send_async(THERE, b"x", kind=KIND)
                    await soon(lambda: gated.begun)
                    raise ZeroDivisionError
            assert there.closed
        assert time.monotonic() - began < 3.0
        gated.open()

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
        async with pair() as (here, there):
            there.on(KIND, gated.handle, capacity=1)
            inbox = here.inbox(OTHER)
            waiting: list[asyncio.Task[Any]] = [
                task(here.request_async(THERE, b"asked", kind=KIND, timeout=30)),
                task(inbox.receive_async()),
            ]
            await soon(lambda: gated.begun)
            waiting += [
                task(here.request_async(THERE, b"later", kind=KIND, timeout=30)),
                task(here.send_async(THERE, b"no credit", kind=KIND)),
                task(here.flush_async(30)),
            ]
            await asyncio.sleep(0.05)  # the flush is the work of a thread, which is to be at it
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
        before = ours()
        async with pair() as (here, there):
            there.on(KIND, echo)
            there.on(OTHER, echo, ordered=False)
            for kind in (KIND, OTHER):
                assert await here.request_async(THERE, b"x", kind=kind) == b"x"
            await here.flush_async()
            with pytest.raises(ReceiveTimeout):
                await there.inbox(THIRD).receive_async(0.01)
        await soon(lambda: len(asyncio.all_tasks(loop)) == 1, "the handlers' tasks end")
        await soon(lambda: ours() <= before, "the library's threads end")

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
                await soon(lambda: not door.calls, "door.calls is empty", 2.0)

    run(main)


def test_a_loop_that_ended_gives_its_descriptor_back(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            inbox = there.inbox(OTHER)
            there.on(KIND, echo)
            assert await here.request_async(THERE, b"x", kind=KIND) == b"x"
            await here.send_async(THERE, b"y", kind=OTHER)
            assert await inbox.receive_async(5) == (HERE, b"y")

    run(main)
    gc.collect()
    before = event_descriptors()
    for _ in range(5):
        run(main)
    gc.collect()
    assert event_descriptors() <= before


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


# --- requests -------------------------------------------------------------------------------------


async def echo(source: int, data: Any) -> Any:
    return data


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
            assert 0.09 <= late.value.waited < 2.0
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
            future = here.request_async(THERE, b"x", kind=KIND, timeout=3.0)
            waiting = [task(future) for _ in range(3)]
            await soon(lambda: b"x" in gated.begun)
            await settle()
            began = time.monotonic()
            gated.open()
            assert await asyncio.gather(*waiting) == [b"x"] * 3
            assert time.monotonic() - began < 1.0  # woken, not timed out

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


# --- sending --------------------------------------------------------------------------------------


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
        async with pair(NodeConfig(send_timeout=0.2)) as (here, there):
            there.inbox(KIND, capacity=1)
            await here.send_async(THERE, b"fits", kind=KIND)
            with pytest.raises(SendTimeout) as error:
                await here.send_async(THERE, b"does not", kind=KIND)
            assert (error.value.peer, error.value.kind) == (THERE, KIND)
            assert 0.19 <= error.value.waited < 2.0

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
            flushing = task(here.flush_async(8))
            await asyncio.wait_for(here.send_async(7, b"y", kind=KIND), 2)
            assert await inbox.receive_async(2) == (HERE, b"y")
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


# --- handlers that are coroutines -----------------------------------------------------------------


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
    records = handlers_failures(caplog)
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
    assert len(handlers_failures(caplog)) == 4


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
            await here.flush_async(2)
            assert await here.request_async(THERE, b"next", kind=KIND, timeout=2) == b"next"
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
                future = here.request_async(THERE, message, kind=KIND, timeout=5)
                asking.append(Running(functools.partial(future.result, 5)))
            await soon(lambda: gated.begun and kind_of(there).messages == 3)
            await settle()

        run(main)  # ends and cancels what runs on the loop
        outcomes = [type(one.error()) for one in asking]
        there.close(drain=0)
    assert outcomes == [RemoteError] * 3


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
        async with pair() as (here, there):
            gated = Gated()
            there.on(KIND, gated.handle, ordered=ordered)
            for message in (b"first", b"second"):
                await here.send_async(THERE, message, kind=KIND)
            await soon(lambda: len(gated.begun) == (1 if ordered else 2))
            flushing = task(here.flush_async(2))
            await asyncio.sleep(0.05)  # the mark is with the receiver
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
            await soon(lambda: kind_of(there).messages == 101)
            dropped = kind_of(there).dropped
            assert 90 <= dropped < 100
            gated.open()
            await here.flush_async()
            assert gated.ended == [b"first", *numbered(100 - dropped)]
            assert there.statistics().drops["queue_full"] == dropped

    run(main)


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
            await here.flush_async(3)
            assert len(gated.begun) == len(gated.ended) == begun
            assert gated.cancelled == []
            # The kind is free, and the loop has forgotten the old one.
            there.on(KIND, echo)
            assert await here.request_async(THERE, b"x", kind=KIND, timeout=3) == b"x"

    run(main)


@pytest.mark.parametrize("ordered", [True, False])
def test_requests_in_a_closed_registration_are_answered(run: Run, ordered: bool) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            gated = Gated()
            registration = there.on(KIND, gated.handle, ordered=ordered, capacity=2)
            waiting = [
                task(here.request_async(THERE, m, kind=KIND, timeout=3)) for m in numbered(10)
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
    assert len(handlers_failures(caplog)) == 3


@pytest.mark.parametrize("size", [8000, LARGE])
def test_an_answer_that_must_wait_does_not_stop_the_loop(run: Run, size: int) -> None:
    config = NodeConfig(ring_bytes=64 << 10, flow_window_bytes=16 << 10, request_timeout=2.0)

    async def fat(source: int, data: bytes) -> bytes:
        return bytes(size)

    async def main() -> None:
        there = Node(THERE, config=config)
        there.on(KIND, fat, ordered=False)
        here = Node(HERE, listen=None, config=config)
        async with there:
            with Proxy(there.address) as proxy:
                async with here:
                    here.add_peer(THERE, proxy.address)
                    await here.request_async(THERE, b"x", kind=KIND)
                    proxy.back.stall()  # no answer gets through
                    asking = [task(here.request_async(THERE, b"x", kind=KIND)) for _ in range(400)]
                    longest = 0.0
                    end = time.monotonic() + 0.5
                    while (now := time.monotonic()) < end:
                        await asyncio.sleep(0.001)
                        longest = max(longest, time.monotonic() - now)
                    proxy.flow()
                    for each in asking:
                        each.cancel()
                    await asyncio.gather(*asking, return_exceptions=True)
                    assert longest < 0.4

    run(main)


# --- inboxes --------------------------------------------------------------------------------------


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
            assert error.value.waited == pytest.approx(0.1, abs=0.05)
            assert 0.09 <= time.monotonic() - began < 2.0
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
            with pytest.raises(msgspec.DecodeError):
                await inbox.receive_async(5)
            assert await inbox.receive_async(5) == (HERE, Ping(1))

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
            assert len(door_of(asyncio.get_running_loop()).calls) == 5  # four, and the handler's
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
            await soon(lambda: here.statistics().requests_open == 0, "no request is open", 2.0)
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
            asking = [task(here.request_async(THERE, m, kind=KIND)) for m in numbered(10)]
            await soon(lambda: gated.begun)
            await asyncio.sleep(0.02)  # a thread waits for credit with the second one
            for each in asking:
                each.cancel()
            await asyncio.wait(asking)
            await soon(lambda: here.statistics().requests_open == 0, "no request is open", 2.0)
            gated.open()
            assert await here.request_async(THERE, b"next", kind=KIND, timeout=2) == b"next"
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


# --- calls that would stop the loop ---------------------------------------------------------------


def test_a_blocking_call_on_a_loop_names_its_twin(run: Run) -> None:
    async def main() -> None:
        async with pair() as (here, there):
            there.on(KIND, echo)
            inbox = there.inbox(OTHER)
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
            await soon(sends, "send() gets through", 2.0)
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


# --- several loops, and loops that end ------------------------------------------------------------


def test_several_loops_in_several_threads_share_a_node() -> None:
    factories = list(LOOPS.values()) * 2
    with nodes() as (here, there):
        there.on(KIND, lambda source, data: data, ordered=False)
        inboxes = [here.inbox(300 + number) for number in range(len(factories))]
        meeting = threading.Barrier(len(factories))

        def work(number: int) -> None:
            async def main() -> None:
                meeting.wait(5)
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
            each.result(15)
        assert here.statistics().requests_open == 0


def test_handlers_on_one_loop_answer_another(run: Run) -> None:
    ready, over = threading.Event(), threading.Event()
    with Node(HERE, config=NORMAL) as here:

        async def serve() -> None:
            async with Node(THERE, peers={HERE: here.address}) as there:
                there.on(KIND, echo)
                here.add_peer(THERE, there.address)
                ready.set()
                await soon(over.is_set, timeout=9)

        serving = Running(lambda: run(serve))
        assert ready.wait(5)

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
        left.append(loop.create_task(inbox.receive_async()))
        loop.run_until_complete(asyncio.sleep(0.05))
        assert here.statistics().requests_open == 20
        for each in left:
            each._log_destroy_pending = False
        loop.close()
        gate.open()
        there.send(HERE, b"y", kind=OTHER)

        async def main() -> None:
            assert await here.request_async(THERE, b"z", kind=KIND) == b"z"
            assert await inbox.receive_async(3) == (THERE, b"y")
            receiving = task(inbox.receive_async(3))
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
                    await here.request_async(2, b"%d" % number, kind=200)

                for number in range(10):
                    group.create_task(ask(number))
                group.create_task(inbox.receive_async())
                while len(begun) < 10:
                    await asyncio.sleep(0.001)
                control.tell("ready")

    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())
    except KeyboardInterrupt:
        deadline = time.monotonic() + 3  # threads that were told to end may take a moment
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
        began = time.monotonic()
        child.signal(signal.SIGINT)
        told = child.expect("interrupted")
        assert (told["closed"], told["open"], told["threads"]) == ([True, True], 0, [])
        assert told["cancelled"] == 10
        assert child.wait() == 0
        assert time.monotonic() - began < 5.0
        assert child.errors == ""
