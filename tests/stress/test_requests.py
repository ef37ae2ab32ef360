"""Millions of requests, answered, late, given up, out of time: none gets another's answer.

Every question carries its thread and its number, and says what the handler is to do with it; the
answer repeats it all, with bytes that follow from it. An asker checks each answer whole, and every
outcome against what it had asked for. What is forbidden: an answer to another question, a second
end of one request, an error that nothing caused, a request or an answer that is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.testing import Child, Control, eventually
from stress.counting import Count

pytestmark = pytest.mark.stress

LONGEST = 3000.0


def answerer(control: Control, id: int, listen: str = "tcp://127.0.0.1:0") -> None:
    """Answers at once, from several threads at once, after a moment, with much, or not well."""
    import struct
    import threading

    import antiphon

    head = struct.Struct("<QQIHH")
    lock = threading.Lock()
    asked = 0

    def answer(source: int, data: bytes) -> bytes | None:
        nonlocal asked
        with lock:
            asked += 1
        thread, number, size, way, own = head.unpack_from(data)
        if own != id:
            raise AssertionError(f"asked node {own}, came to {id}")
        if way == 1:
            raise ValueError(f"{thread} {number}")
        if way == 2:
            return None
        if way == 3:
            threading.Event().wait(0.0005)
        seed = (thread * 1_000_003 + number) & 0xFFFFFFFF
        made: bytes = data[: head.size] + seed.to_bytes(4, "little") * (size // 4)
        return made

    node = antiphon.Node(id, listen=listen)
    node.on(200, answer, ordered=False)
    node.on(201, answer)
    with node:
        control.tell("ready", address=node.address)
        while control.hear()["order"] == "count":
            statistics = node.statistics()
            control.tell(
                "count",
                asked=asked,
                answers=statistics.answers,
                lost_answers=statistics.lost_answers,
                drops=dict(statistics.drops),
            )


def asker(
    control: Control,
    targets: dict[str, str],
    id: int,
    threads: int,
    total: int,
    seed: int,
    mortal: bool = False,
) -> None:
    """``total`` requests from several threads, each in one of many ways; tells what came of them.

    With ``mortal`` the answerers may die: then losses are counted, and are no fault, and it asks
    until it is told that it is enough.
    """
    import itertools
    import random
    import struct
    import threading
    import time
    from collections import Counter, deque
    from functools import partial

    import antiphon

    head = struct.Struct("<QQIHH")
    small, large = (0, 4, 40, 400, 4000), (70_000, 600_000)
    wrong: list[str] = []
    outcomes: Counter[str] = Counter()
    merging = threading.Lock()
    config = antiphon.NodeConfig(request_timeout=30.0, connect_timeout=10.0)
    lost = (antiphon.PeerUnreachable, antiphon.RequestTimeout) if mortal else ()

    def check(question: bytes, answer: bytes) -> None:
        thread, number, size, way, _ = head.unpack_from(question)
        seed = (thread * 1_000_003 + number) & 0xFFFFFFFF
        wanted = b"" if way == 2 else question + seed.to_bytes(4, "little") * (size // 4)
        if answer != wanted:
            got = head.unpack_from(answer) if len(answer) >= head.size else answer
            wrong.append(f"{head.unpack(question)} got {len(answer)} bytes: {got!r}")

    def end(question: bytes, mine: Counter[str], patient: bool, call: Callable[[], bytes]) -> None:
        """What the request ended with, and whether that may be."""
        thread, number, _, way, _ = head.unpack(question)
        try:
            answer = call()
        except antiphon.RemoteError as error:
            mine["failed"] += 1
            text = f"raised ValueError: {thread} {number};"
            if way != 1 or error.exception != "ValueError" or text not in str(error):
                wrong.append(f"{head.unpack(question)} got {error!r}")
        except antiphon.RequestTimeout as error:
            mine["timed out"] += 1
            if patient and not mortal:
                wrong.append(f"{head.unpack(question)} got {error!r}")
        except lost:
            mine["lost"] += 1
        except BaseException as error:
            wrong.append(f"{head.unpack(question)} got {error!r}")
        else:
            mine["answered"] += 1
            if way == 1:
                wrong.append(f"{head.unpack(question)} was to fail and got {answer[:50]!r}")
            check(question, answer)

    def run(thread: int) -> None:
        draw = random.Random(seed * 1000 + thread)
        chance, choice = draw.random, draw.choice
        mine: Counter[str] = Counter()
        open_ones: deque[tuple[bytes, antiphon.node.Future[bytes]]] = deque()
        name = id * 1000 + thread
        nodes = [int(number) for number in targets]
        numbers = itertools.count() if mortal else iter(range(total // threads))
        for number in numbers:
            if enough.is_set():
                break
            mine["asked"] += 1
            target = nodes[0] if len(nodes) == 1 else choice(nodes)
            size = choice(small) if chance() < 0.9995 else choice(large)
            lot = chance()
            way = 0 if lot < 0.97 else 1 if lot < 0.98 else 2 if lot < 0.99 else 3
            question = head.pack(name, number, size, way, target)
            kind = 200 if chance() < 0.7 else 201
            lot = chance()
            if lot < 0.40:
                end(question, mine, True, partial(node.request, target, question, kind=kind))
            elif lot < 0.55:
                # Times around that of an answer: some come just before, some just behind.
                short = partial(node.request, timeout=chance() * 0.0008)
                end(question, mine, False, partial(short, target, question, kind=kind))
            else:
                patience = None if lot < 0.9 else chance() * 0.002
                try:
                    future = node.request_async(target, question, kind=kind, timeout=patience)
                except lost:
                    mine["lost"] += 1
                    continue
                if lot < 0.65:
                    if draw.random() < 0.5:
                        give_up(question, future, mine)
                    else:
                        cancelling.append((question, future))
                else:
                    open_ones.append((question, future))
                    if patience is not None:
                        in_time[question] = False
            while len(open_ones) > 16 or (open_ones and chance() < 0.05):
                if chance() < 0.5:
                    open_ones.rotate(draw.randrange(len(open_ones)))
                asked, future = open_ones.popleft()
                end(asked, mine, in_time.pop(asked, True), future.result)
        for asked, future in open_ones:
            end(asked, mine, in_time.pop(asked, True), future.result)
        with merging:
            outcomes.update(mine)

    def give_up(question: bytes, future: Any, mine: Counter[str]) -> None:
        if future.cancel():
            mine["cancelled"] += 1
            try:
                answer = future.result(0)
            except antiphon.RequestCancelled:
                pass
            except BaseException as error:
                wrong.append(f"{head.unpack(question)} was cancelled and got {error!r}")
            else:
                wrong.append(f"{head.unpack(question)} was cancelled and got {answer[:50]!r}")
        else:
            end(question, mine, True, lambda: future.result(0))

    def cancel_others() -> None:
        """Cancels, from a thread of its own, what others have asked."""
        mine: Counter[str] = Counter()
        while not (stops.is_set() and not cancelling):
            try:
                question, future = cancelling.popleft()
            except IndexError:
                time.sleep(0.0005)
                continue
            give_up(question, future, mine)
        with merging:
            outcomes.update(mine)

    in_time: dict[bytes, bool] = {}
    cancelling: deque[tuple[bytes, Any]] = deque()
    stops, enough = threading.Event(), threading.Event()
    peers = {int(number): address for number, address in targets.items()}
    with antiphon.Node(id, peers=peers, config=config) as node:
        for target in peers:
            node.request(target, head.pack(0, 0, 0, 2, target), kind=200)
        canceller = threading.Thread(target=cancel_others)
        canceller.start()
        running = [threading.Thread(target=run, args=(n,)) for n in range(threads)]
        control.tell("asking")
        for thread in running:
            thread.start()
        if mortal:
            control.hear()
            enough.set()
        for thread in running:
            thread.join()
        stops.set()
        canceller.join()
        asked = outcomes.pop("asked")
        control.tell("done", wrong=wrong[:5], asked=asked, outcomes=dict(outcomes))
        while control.hear()["order"] == "count":
            statistics = node.statistics()
            control.tell(
                "count",
                requests=statistics.requests,
                open=statistics.requests_open,
                late=statistics.late_responses,
            )


@pytest.mark.parametrize(("threads", "answerers", "askers"), [(4, 1, 1), (16, 2, 1), (8, 2, 2)])
def test_no_request_gets_an_answer_that_is_not_its_own(
    threads: int, answerers: int, askers: int, count: Count
) -> None:
    share = 3 * askers
    total = count(200_000, 10_000_000) // share // threads * threads
    with contextlib.ExitStack() as stack:
        there = {
            number: stack.enter_context(Child(answerer, id=number))
            for number in range(100, 100 + answerers)
        }
        targets = {str(number): child.expect("ready")["address"] for number, child in there.items()}
        here = [
            stack.enter_context(
                Child(asker, targets=targets, id=number, threads=threads, total=total, seed=number)
            )
            for number in range(1, askers + 1)
        ]
        taken = askers * answerers  # the first of each, before the count begins
        for child in here:
            child.expect("asking")
            done = child.expect("done", LONGEST)
            assert done["wrong"] == []
            outcomes = done["outcomes"]
            assert sum(outcomes.values()) == done["asked"] == total
            assert set(outcomes) == {"answered", "failed", "timed out", "cancelled"}
            taken += outcomes["answered"] + outcomes["failed"]

        story = ""

        def settled() -> bool:
            """Whatever was asked was answered; every answer was taken, or came late and counted."""
            nonlocal story
            mine = [_count(child) for child in here]
            theirs = [_count(child) for child in there.values()]
            asked = sum(one["asked"] for one in theirs)
            late = sum(one["late"] for one in mine)
            answers, left = sum(one["answers"] for one in theirs), sum(one["open"] for one in mine)
            story = f"{asked=} {answers=} {taken=} {late=} {left=}"
            return asked == answers == taken + late and left == 0

        try:
            eventually(settled, 10, "every answer is accounted for")
        except AssertionError as error:
            raise AssertionError(f"{error}; {story}") from None
        assert [_count(child)["lost_answers"] for child in there.values()] == [0] * answerers


def _count(child: Child) -> dict[str, int]:
    child.tell("count")
    told: dict[str, int] = child.expect("count")
    return told


def test_requests_to_a_peer_that_is_killed_again_and_again_end_rightly(count: Count) -> None:
    """Beside another peer that lives. Whatever is lost is said, and no life answers for another."""
    kills = count(5, 60)
    with contextlib.ExitStack() as stack:
        steady = stack.enter_context(Child(answerer, id=100))
        targets = {"100": steady.expect("ready")["address"]}
        mortal = Child(answerer, id=101)
        stack.callback(lambda: mortal.close())
        targets["101"] = mortal.expect("ready")["address"]
        here = stack.enter_context(
            Child(asker, targets=targets, id=1, threads=8, total=0, seed=7, mortal=True)
        )
        here.expect("asking")
        for _ in range(kills):
            # In this life, and more than waited for it to begin.
            eventually(lambda child=mortal: _count(child)["asked"] > 500, 60, "it is asked")  # type: ignore[misc]
            mortal.kill()
            mortal.close()
            mortal = Child(answerer, id=101, listen=targets["101"])
            mortal.expect("ready")
        here.tell("enough")
        done = here.expect("done", 60)
        assert done["wrong"] == []
        assert sum(done["outcomes"].values()) == done["asked"]
        assert done["outcomes"]["lost"] > 0
        eventually(lambda: _count(here)["open"] == 0, 10, "nothing is left open")
