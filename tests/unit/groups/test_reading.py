"""What waits for whoever iterates over a group: bounded, and lost to nobody who gives up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from antiphon.groups.reading import _CAPACITY, _CAPACITY_BYTES, Reading
from antiphon.groups.view import Member
from antiphon.testing import eventually

SOURCE = Member(id=1, name="one", address="", life=1, node_life=1, flow=1, charge=1)


def in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


def made() -> tuple[Reading, list[bool]]:
    told: list[bool] = []
    reading = Reading(told.append)
    reading.begun = True
    return reading, told


async def waiting(reading: Reading) -> asyncio.Task[tuple[Member, bytes]]:
    async def take() -> tuple[Member, bytes]:
        return await anext(reading)

    task = asyncio.create_task(take())
    while not reading._awaiting:
        await asyncio.sleep(0)
    return task


@in_a_loop
async def test_one_that_is_cancelled_takes_nothing_with_it() -> None:
    reading, _ = made()
    task = await waiting(reading)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    reading.put(SOURCE, b"for the next one")
    assert (await asyncio.wait_for(anext(reading), 5))[1] == b"for the next one"


@in_a_loop
async def test_one_that_is_cancelled_when_it_was_woken_leaves_it_to_another() -> None:
    reading, _ = made()
    first = await waiting(reading)
    second = asyncio.ensure_future(anext(reading))
    while len(reading._awaiting) < 2:
        await asyncio.sleep(0)
    reading.put(SOURCE, b"for one of them")
    first.cancel()
    assert (await asyncio.wait_for(second, 5))[1] == b"for one of them"
    with pytest.raises(asyncio.CancelledError):
        await first


@in_a_loop
async def test_time_outs_lose_nothing() -> None:
    reading, _ = made()
    many, got = 300, []

    def send() -> None:
        for number in range(many):
            reading.put(SOURCE, b"%d" % number)
            if number % 7 == 0:
                pause.wait(0.001)

    pause = threading.Event()
    thread = threading.Thread(target=send)
    thread.start()
    while len(got) < many:
        try:
            got.append(int((await asyncio.wait_for(anext(reading), 0.0005))[1]))
        except TimeoutError:
            continue
    thread.join()
    assert got == list(range(many))


@in_a_loop
async def test_threads_and_coroutines_share_what_comes() -> None:
    reading, _ = made()
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.extend(data for _, data in reading))
    thread.start()
    eventually(lambda: reading._waiting == 1)
    task = asyncio.create_task(_rest(reading))
    while not reading._awaiting:
        await asyncio.sleep(0)
    reading.put(SOURCE, b"one")
    reading.put(SOURCE, b"two")
    reading.close()
    rest = await asyncio.wait_for(task, 5)
    thread.join(10)
    got += rest
    assert sorted(got) == [b"one", b"two"]


@in_a_loop
async def test_coroutines_that_wait_end_with_it() -> None:
    reading, _ = made()
    tasks = [asyncio.ensure_future(_rest(reading)) for _ in range(3)]
    while len(reading._awaiting) < 3:
        await asyncio.sleep(0)
    reading.close()
    assert await asyncio.wait_for(asyncio.gather(*tasks), 5) == [[], [], []]


async def _rest(reading: Reading) -> list[bytes]:
    return [data async for _, data in reading]


def test_a_loop_that_is_closed_holds_up_nobody() -> None:
    reading, _ = made()

    async def leave_one() -> None:
        reading._awaiting.append(asyncio.get_running_loop().create_future())

    asyncio.run(leave_one())
    reading.put(SOURCE, b"for a thread")
    assert next(reading)[1] == b"for a thread"


@pytest.mark.parametrize(
    ("size", "fits"), [(1, _CAPACITY), (_CAPACITY_BYTES // 4, 4), (2 * _CAPACITY_BYTES, 1)]
)
def test_it_pauses_when_it_is_full_by_number_or_by_bytes(size: int, fits: int) -> None:
    reading, told = made()
    data = bytes(size)
    for _ in range(fits):
        assert told == []
        reading.put(SOURCE, data)
    assert told == [True]
    for _ in range(fits - fits // 2):
        assert told == [True]
        next(reading)
    assert told == [True, False]


@pytest.mark.parametrize("size", [1, _CAPACITY_BYTES // 4, 2 * _CAPACITY_BYTES])
def test_where_nobody_reads_the_oldest_are_lost(size: int) -> None:
    reading, told = made()
    reading.begun = False
    many = _CAPACITY + 10 if size == 1 else 10
    for _ in range(many):
        reading.put(SOURCE, bytes(size))
    assert told == []
    assert reading.unread == many - len(reading._messages) > 0
    assert len(reading._messages) == 1 or reading._bytes < _CAPACITY_BYTES
