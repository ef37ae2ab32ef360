"""Processes that die, come, go and fork while others count every message."""

from __future__ import annotations

import contextlib

import pytest

from antiphon.testing import Child, Control, eventually
from stress.counting import NO_DROPS, Count, counted, receiver, sender

pytestmark = pytest.mark.stress

LONGEST = 1800.0


# --- kill -9 --------------------------------------------------------------------------------------


def sender_to_two(control: Control, steady: str, mortal: str) -> None:
    """Numbered messages to node 2, which lives, and to node 3, which is killed again and again."""
    import struct
    import threading

    import antiphon

    pack = struct.Struct("<QQ48s").pack
    rest = bytes(range(100, 148))
    stops = threading.Event()
    losses = 0
    sent = {2: 0, 3: 0}
    failed: list[str] = []

    def to_steady() -> None:
        try:
            while not stops.is_set():
                node.send(2, pack(sent[2], 0, rest), kind=200)
                sent[2] += 1
        except BaseException as error:
            failed.append(repr(error))

    def to_mortal() -> None:
        nonlocal losses
        try:
            while not stops.is_set():
                number = sent[3]
                sent[3] += 1  # whatever becomes of it, its number is used up
                try:
                    node.send(3, pack(number, 0, rest), kind=200)
                except antiphon.PeerUnreachable:
                    losses += 1
        except BaseException as error:
            failed.append(repr(error))

    config = antiphon.NodeConfig(connect_timeout=2.0)
    with antiphon.Node(1, peers={2: steady, 3: mortal}, config=config) as node:
        threads = [threading.Thread(target=each) for each in (to_steady, to_mortal)]
        for thread in threads:
            thread.start()
        control.tell("sending")
        control.hear()
        stops.set()
        for thread in threads:
            thread.join()
        connection = {info.id: info for info in node.connections()}
        control.tell(
            "done",
            sent=sent[2],
            failed=failed,
            errors=losses,
            steady_losses=connection[2].losses,
            mortal_losses=connection[3].losses,
        )
        node.flush(30)
        control.tell("flushed")
        control.hear()


def total_of(child: Child) -> int:
    return sum(end - begin for _, _, begin, end in counted(child)["counted"])


def test_a_receiver_killed_again_and_again_costs_the_others_no_message(count: Count) -> None:
    """Beside the killed one: another peer of the same sender, and a pair of strangers to both."""
    kills = count(4, 60)
    with contextlib.ExitStack() as stack:
        steady = stack.enter_context(Child(receiver, id=2))
        beside = stack.enter_context(Child(receiver, id=4))
        steady_address = steady.expect("ready")["address"]
        beside_address = beside.expect("ready")["address"]
        total = count(50_000, 4_000_000)
        other = stack.enter_context(
            Child(sender, target=beside_address, id=5, to=4, total=total, ways=["send"])
        )
        address = "tcp://127.0.0.1:0"
        here: Child | None = None
        for _ in range(kills):
            with Child(receiver, id=3, listen=address) as mortal:
                address = mortal.expect("ready")["address"]
                if here is None:
                    here = stack.enter_context(
                        Child(sender_to_two, steady=steady_address, mortal=address)
                    )
                    here.expect("sending")
                # In one life it sees one connection: no gap, wherever it begins.
                eventually(lambda mortal=mortal: total_of(mortal) > 2_000, 20, "the load is on")
                mortal.kill()
        assert here is not None
        with Child(receiver, id=3, listen=address) as last:
            last.expect("ready")
            eventually(lambda: total_of(last) > 2_000, 20, "the load is on again")
            here.tell("stop")
            done = here.expect("done", 60)
            assert done["failed"] == []
            assert done["steady_losses"] == 0
            assert done["mortal_losses"] == kills
            here.expect("flushed", 60)
            total_of(last)
        assert counted(steady)["counted"] == [[1, 0, 0, done["sent"]]]
        done = other.expect("done", LONGEST)
        assert done == {"event": "done", "failed": [], "messages_out": total, "drops": NO_DROPS}
        assert counted(beside)["counted"] == [[5, 0, 0, total]]


# --- connect storms -------------------------------------------------------------------------------


def hub(control: Control) -> None:
    """Checks every series; returns the message that ends one, so that both sides dial."""
    import struct

    import antiphon

    unpack = struct.Struct("<QQ48s").unpack
    rest = bytes(range(100, 148))
    wanted: dict[tuple[int, int], int] = {}
    wrong: list[list[int]] = []

    def check(source: int, data: bytes) -> None:
        number, lane, tail = unpack(data)
        want = wanted.get((source, lane), 0)
        if number != want or tail != rest:
            wrong.append([source, lane, want, number])
        wanted[source, lane] = number + 1

    def answer(source: int, data: bytes) -> None:
        node.send(source, data, kind=202)

    with antiphon.Node(1) as node:
        node.on(200, check)
        node.on(201, answer)
        control.tell("ready", address=node.address)
        while control.hear()["order"] == "count":
            # Some thousand series: more than one line of facts should hold.
            for (source, lane), end in list(wanted.items()):
                control.tell("series", source=source, lane=lane, end=end)
            statistics = node.statistics()
            control.tell(
                "count",
                wrong=wrong[:5],
                messages_in=statistics.messages_in,
                drops=dict(statistics.drops),
                protocol_errors=statistics.protocol_errors,
            )


def comer(
    control: Control, target: str, number: int, lives: int, messages: int, same: bool = False
) -> None:
    """A node after the other: connects, sends, waits for an answer, and goes.

    They take turns with an id of their own and one that is drawn, with a listener and without;
    with ``same`` they are all of one id and listen.
    """
    import struct
    import traceback

    import antiphon

    pack = struct.Struct("<QQ48s").pack
    rest = bytes(range(100, 148))
    failed: list[str] = []
    for life in range(lives):
        lane = number * 1_000_000 + life
        listen = None if life % 3 == 0 and not same else "tcp://127.0.0.1:0"
        chosen = number if life % 2 or same else None
        try:
            with antiphon.Node(chosen, listen=listen, peers={1: target}) as node:
                answers = node.inbox(202)
                for each in range(messages):
                    node.send(1, pack(each, lane, rest), kind=200)
                said = lane.to_bytes(8, "little")
                node.send(1, said, kind=201)
                if answers.receive(20) != (1, said):
                    failed.append(f"life {life}: an answer to somebody else")
                if life % 4:
                    node.flush(20)
                drops = node.statistics().drops
                if life % 4 and any(drops.values()):
                    failed.append(f"life {life}: {drops}")
        except Exception:
            failed.append(f"life {life}: {traceback.format_exc()}")
            break
    control.tell("done", failed=failed[:3])


def test_nodes_that_come_and_go_lose_nothing_and_disturb_nobody(count: Count) -> None:
    comers = 4
    lives, messages = count(12, 400), 50
    total = count(40_000, 4_000_000)
    with contextlib.ExitStack() as stack:
        there = stack.enter_context(Child(hub))
        address = there.expect("ready")["address"]
        steady = stack.enter_context(
            Child(sender, target=address, id=2, to=1, total=total, ways=["send", "send_many"])
        )
        storm = [
            stack.enter_context(
                Child(comer, target=address, number=number, lives=lives, messages=messages)
            )
            for number in range(10, 10 + comers)
        ]
        for child in storm:
            assert child.expect("done", LONGEST)["failed"] == []
        done = steady.expect("done", LONGEST)
        assert done["failed"] == []
        assert done["messages_out"] == 2 * total
        assert done["drops"] == NO_DROPS
        there.tell("count")
        series: dict[int, list[int]] = {}
        while (told := there.hear())["event"] == "series":
            series.setdefault(told["lane"], []).append(told["end"])
        assert told["wrong"] == []
        assert told["protocol_errors"] == 0
        assert {**told["drops"], "unconfirmed": 0} == NO_DROPS
        expected = {0: [total], 1: [total]}
        for number in range(10, 10 + comers):
            for life in range(lives):
                expected[number * 1_000_000 + life] = [messages]
        assert series == expected
        assert told["messages_in"] == 2 * total + comers * lives * (messages + 1)


def test_a_node_that_comes_back_under_its_id_is_answered_every_time(count: Count) -> None:
    """Each life is shorter than the patience that the hub has with dialling back."""
    lives = count(100, 4000)
    with (
        Child(hub) as there,
        Child(
            comer,
            target=there.expect("ready")["address"],
            number=10,
            lives=lives,
            messages=1,
            same=True,
        ) as here,
    ):
        assert here.expect("done", LONGEST)["failed"] == [], there.errors
        there.tell("count")
        while (told := there.hear())["event"] == "series":
            assert told["end"] == 1
        assert told["wrong"] == []
        assert {**told["drops"], "unconfirmed": 0} == NO_DROPS
        assert told["messages_in"] == 2 * lives


# --- fork -----------------------------------------------------------------------------------------


def forking_sender(control: Control, target: str, forks: int, messages: int) -> None:
    """Sends from a thread and forks meanwhile. The children leave, try the node, or make one."""
    import os
    import signal
    import struct
    import sys
    import threading
    import time
    import warnings

    import antiphon

    warnings.simplefilter("ignore")  # that a process with threads forks, which is the point
    pack = struct.Struct("<QQ48s").pack
    rest = bytes(range(100, 148))
    stops = threading.Event()
    failed: list[str] = []
    sent = 0

    def send() -> None:
        nonlocal sent
        try:
            while not stops.is_set():
                node.send(2, pack(sent, 0, rest), kind=200)
                sent += 1
        except BaseException as error:
            failed.append(repr(error))

    def child(number: int) -> int:
        match number % 4:
            case 0:
                return 0
            case 1:
                try:
                    node.send(2, bytes(64), kind=200)
                except antiphon.Closed:
                    return 0
                return 1
            case 2:  # holds everything that it inherited for a while
                time.sleep(0.05)
                node.close()
                return 0
            case _:
                with antiphon.Node(100 + number, peers={2: target}) as own:
                    for each in range(messages):
                        own.send(2, pack(each, number, rest), kind=200)
                    own.flush(20)
                return 0

    def fork(number: int) -> int:
        pid = os.fork()
        if pid == 0:
            status = 3
            try:
                status = child(number)
            except BaseException as error:
                print(f"child {number}: {error!r}", file=sys.stderr, flush=True)
            os._exit(status)
        return pid

    with antiphon.Node(1, peers={2: target}) as node:
        thread = threading.Thread(target=send)
        thread.start()
        while sent < 1000 and not failed:
            time.sleep(0.001)
        waiting: dict[int, tuple[int, float]] = {}
        number = 0
        while number < forks or waiting:
            if number < forks and len(waiting) < 4:
                number += 1
                waiting[fork(number)] = number, time.monotonic() + 30
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid:
                which, _ = waiting.pop(pid)
                if status:
                    failed.append(f"child {which} ended with {status}")
            else:
                time.sleep(0.002)
            for late, (which, deadline) in waiting.items():
                if time.monotonic() > deadline:
                    failed.append(f"child {which} hangs")
                    os.kill(late, signal.SIGKILL)
        stops.set()
        thread.join()
        node.flush(60)
        statistics = node.statistics()
        control.tell(
            "done",
            sent=sent,
            failed=failed[:5],
            messages_out=statistics.messages_out,
            drops=dict(statistics.drops),
            reconnects=statistics.reconnects,
        )
        control.hear()


def test_children_forked_under_load_never_disturb_the_count(count: Count) -> None:
    forks, messages = count(24, 1000), 500
    with (
        Child(receiver, id=2) as there,
        Child(
            forking_sender,
            target=there.expect("ready")["address"],
            forks=forks,
            messages=messages,
        ) as here,
    ):
        done = here.expect("done", LONGEST)
        assert done["failed"] == [], here.errors
        assert done["drops"] == NO_DROPS
        assert done["reconnects"] == 0
        assert done["messages_out"] == done["sent"]
        told = counted(there)
        series = {(source, lane): (begin, end) for source, lane, begin, end in told["counted"]}
        expected = {(1, 0): (0, done["sent"])}
        for number in range(1, forks + 1):
            if number % 4 == 3:
                expected[100 + number, number] = (0, messages)
        assert series == expected
        assert told["messages_in"] == sum(end for _, end in expected.values())
