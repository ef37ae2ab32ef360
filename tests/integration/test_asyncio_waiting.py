"""Calls that have to wait for their peer: whom they hold up, and what becomes of those given up."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from antiphon import Node, NodeConfig, PeerUnreachable, RequestTimeout
from antiphon.node import later
from integration.loops import LARGE, Gated, Run, echo, pair, settle, soon, task
from unit.node.pairs import HERE, KIND, OTHER, THERE, Heard, free_address, numbered

pytestmark = pytest.mark.timeout(60)

MANY = range(100, 140)
"""Peers: more than any number of threads that wait."""

PATIENT = NodeConfig(connect_timeout=40.0, send_timeout=40.0, request_timeout=40.0)


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address at which every connection is refused, and which nobody else is given."""
    with contextlib.closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{bound.getsockname()[1]}"


def helpers() -> list[str]:
    """Threads that wait for others."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name in ("ap-later", "ap-watcher")]


@pytest.mark.parametrize("call", ["request", "send"])
def test_peers_that_cannot_be_reached_hold_up_nobody_else(
    run: Run, nowhere: str, call: str
) -> None:
    async def main() -> None:
        heard = Heard()
        async with Node(THERE) as there, Node(HERE, config=PATIENT) as here:
            there.on(KIND, echo)
            there.on(OTHER, heard)
            for peer in (THERE, *MANY):
                here.add_peer(peer, there.address if peer == THERE else nowhere)
            waiting: list[asyncio.Task[object]] = []
            for peer in MANY:
                if call == "request":
                    waiting.append(task(here.request_async(peer, b"x", kind=KIND)))
                else:
                    waiting.append(task(here.send_async(peer, b"x", kind=KIND)))
            await settle()
            # There is no connection to this one either: both have to wait for it.
            assert await here.request_async(THERE, b"y", kind=KIND, timeout=15) == b"y"
            await here.send_async(THERE, b"z", kind=OTHER)
            await soon(lambda: heard.data == [b"z"])
            assert not any(each.done() for each in waiting)
            await soon(lambda: helpers() == ["ap-watcher"])  # and none of them has a thread
            for each in waiting:
                each.cancel()
            await asyncio.wait(waiting)

    run(main)


def test_peers_that_take_nothing_hold_up_nobody_else(run: Run) -> None:
    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            here = await stack.enter_async_context(Node(HERE, config=PATIENT))
            inboxes = {}
            for peer in MANY[:12]:
                slow = await stack.enter_async_context(Node(peer))
                inboxes[peer] = slow.inbox(KIND, capacity=1)
                here.add_peer(peer, slow.address)
            sends = [
                here.send_async(peer, message, kind=KIND)
                for message in numbered(5)
                for peer in inboxes
            ]
            await soon(lambda: all(inbox.pending for inbox in inboxes.values()))
            there = await stack.enter_async_context(Node(THERE))
            there.on(KIND, echo)
            here.add_peer(THERE, there.address)
            assert await here.request_async(THERE, b"y", kind=KIND, timeout=15) == b"y"
            assert not all(each.done() for each in sends)
            for inbox in inboxes.values():
                got = [(await inbox.receive_async(15))[1] for _ in range(5)]
                assert got == numbered(5)
            await asyncio.gather(*sends)

    run(main)


def test_what_waits_for_a_connection_that_never_comes_fails_in_its_time(
    run: Run, nowhere: str
) -> None:
    async def main() -> None:
        config = NodeConfig(connect_timeout=0.2)
        async with Node(HERE, peers={THERE: nowhere}, config=config) as here:
            with pytest.raises(PeerUnreachable, match="refused"):
                await here.send_async(THERE, b"x", kind=KIND)
            with pytest.raises(PeerUnreachable, match="refused"):
                await here.request_async(THERE, b"x", kind=KIND)
            with pytest.raises(RequestTimeout, match="refused"):
                await here.request_async(THERE, b"x", kind=KIND, timeout=0.01)
            # Nobody waits for this one.
            left = here.request_async(THERE, b"x", kind=KIND, timeout=0.01)
            await soon(lambda: here.statistics().requests_open == 0)
            assert isinstance(left.exception(), RequestTimeout | PeerUnreachable)

    run(main)


def test_calls_wait_again_after_whoever_watched_has_gone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(later, "_IDLE", 0.05)

    async def main() -> None:
        async with pair(PATIENT) as (here, there):
            await soon(lambda: not helpers())  # those of other tests end
            inbox = there.inbox(KIND, capacity=1)
            for message in (*numbered(3), bytes(LARGE)):
                filling = [here.send_async(THERE, message, kind=KIND) for _ in range(4)]
                await soon(helpers)
                for _ in filling:
                    assert await inbox.receive_async(15) == (HERE, message)
                await asyncio.gather(*filling)
                await soon(lambda: not helpers())

    run(main)


def test_large_messages_and_small_ones_keep_their_order_while_they_wait(run: Run) -> None:
    async def main() -> None:
        async with pair(PATIENT) as (here, there):
            inbox = there.inbox(KIND, capacity=2)
            messages = [bytes(LARGE if number % 3 == 0 else 10) for number in range(12)]
            sends = [here.send_async(THERE, message, kind=KIND) for message in messages]
            got = [(await inbox.receive_async(15))[1] for _ in messages]
            assert [len(each) for each in got] == [len(each) for each in messages]
            await asyncio.gather(*sends)

    run(main)


def test_those_behind_one_that_is_given_up_have_their_turn(run: Run, nowhere: str) -> None:
    async def main() -> None:
        async with Node(HERE, peers={THERE: nowhere}, config=PATIENT) as here:
            first = here.request_async(THERE, b"x", kind=KIND)
            behind = task(here.request_async(THERE, b"x", kind=KIND, timeout=0.05))
            await settle()
            assert first.cancel()
            with pytest.raises(RequestTimeout):
                await behind
            await soon(lambda: not here._later.busy(THERE))

    run(main)


@pytest.mark.parametrize("call", ["request", "send"])
def test_what_is_given_up_before_it_could_be_sent_is_not_sent(run: Run, call: str) -> None:
    async def main() -> None:
        gated = Gated()
        gated.open()
        address = free_address()
        async with Node(HERE, peers={THERE: address}, config=PATIENT) as here:
            ask = here.request_async if call == "request" else here.send_async
            assert ask(THERE, b"by itself", kind=KIND).cancel()
            waiting = task(ask(THERE, b"with its task", kind=KIND))
            await settle()  # it awaits
            waiting.cancel()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ask(THERE, b"in its time", kind=KIND), 0.01)
            # Its coroutine never began, so that nobody tells the future: that has to be done.
            future = ask(THERE, b"at once", kind=KIND)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(future, 0)
            assert future.cancel()
            there = Node(THERE, listen=address)
            there.on(KIND, gated.handle)
            async with there:
                assert await here.request_async(THERE, b"next", kind=KIND) == b"next"
                assert gated.begun == [b"next"]
                assert here.statistics().requests_open == 0

    run(main)


def test_what_nobody_holds_or_tells_goes_out_all_the_same(run: Run) -> None:
    async def main() -> None:
        heard = Heard()
        address = free_address()
        async with Node(HERE, peers={THERE: address}, config=PATIENT) as here:
            here.send_async(THERE, b"kept", kind=KIND)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(here.send_async(THERE, b"untold", kind=KIND), 0)
            here.request_async(THERE, b"asked", kind=KIND)
            there = Node(THERE, listen=address)
            there.on(KIND, heard)
            async with there:
                await here.send_async(THERE, b"next", kind=KIND)
                await here.flush_async()
                assert heard.data == [b"kept", b"untold", b"asked", b"next"]

    run(main)


def test_flushes_that_wait_for_a_handler_hold_up_nothing_that_is_sent(run: Run) -> None:
    async def main() -> None:
        async with pair(PATIENT) as (here, there), Node(7) as third:
            gated = Gated()
            there.on(KIND, gated.handle)
            inbox = third.inbox(KIND)
            here.add_peer(7, third.address)
            await here.send_async(THERE, b"x", kind=KIND)
            flushing = [task(here.flush_async(40)) for _ in range(20)]
            await settle()
            await here.send_async(7, bytes(LARGE), kind=KIND)
            assert await inbox.receive_async(15) == (HERE, bytes(LARGE))
            assert not any(each.done() for each in flushing)
            gated.open()
            await asyncio.gather(*flushing)

    run(main)
