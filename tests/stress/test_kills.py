"""kill -9 at random moments, again and again, while other pairs keep exact counts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.testing import Child
from stress.members import receive_all, receive_until_killed, send_through_losses

TESTS = str(Path(__file__).parents[1])
STEADY, VICTIMS, SENDER = 1, (2, 3), 50

pytestmark = pytest.mark.stress


def test_receivers_are_killed_and_come_back_while_another_pair_counts_exactly(
    count: Callable[[int, int], int],
) -> None:
    kills = count(6, 200)
    messages = count(200_000, 10_000_000)
    luck = random.Random(1)
    paths = ("callback", "packed", "many", "inbox", "iteration")
    numbers: dict[str, list[int]] = {path: [] for path in paths}
    numbers["callback"] = [SENDER]
    streams = {victim: SENDER * 100 + victim for victim in VICTIMS}
    listening = dict.fromkeys(VICTIMS, "tcp://127.0.0.1:0")

    def start(victim: int) -> Child:
        child = Child(
            receive_until_killed,
            tests=TESTS,
            id=victim,
            listen=listening[victim],
            numbers=[streams[victim]],
        )
        try:
            listening[victim] = child.expect("ready", 60)["address"]
        except BaseException:
            child.close()
            raise
        return child

    steady = Child(
        receive_all,
        tests=TESTS,
        id=STEADY,
        listen="tcp://127.0.0.1:0",
        numbers=numbers,
        total=messages,
        patience=3000,
    )
    running: dict[int, Child] = {}
    with steady:
        peers = {str(STEADY): steady.expect("ready", 60)["address"]}
        try:
            for victim in VICTIMS:
                running[victim] = start(victim)
                peers[str(victim)] = listening[victim]
            sender = Child(
                send_through_losses,
                tests=TESTS,
                id=SENDER,
                peers=peers,
                steady=STEADY,
                count=messages,
                victims=list(VICTIMS),
            )
            with sender:
                sender.expect("sending", 60)
                got_something = 0
                for _ in range(kills):
                    victim = luck.choice(VICTIMS)
                    # Sometimes before its first message, sometimes in the middle of the flood.
                    time.sleep(luck.choice((0, 0.05, 0.3, 0.6)) * luck.random())
                    child = running[victim]
                    if luck.random() < 0.7:
                        child.tell("so far")
                        so_far = child.expect("so far", 60)
                        assert so_far["wrong"] == []
                        got_something += sum(so_far["counts"].values()) > 0
                    child.kill()
                    child.close()
                    running[victim] = start(victim)
                for child in running.values():
                    # Traffic resumes at the last incarnation of each.
                    deadline = time.monotonic() + 60
                    while True:
                        child.tell("so far")
                        so_far = child.expect("so far", 60)
                        assert so_far["wrong"] == []
                        if sum(so_far["counts"].values()):
                            break
                        assert time.monotonic() < deadline, "no traffic after the last restart"
                        time.sleep(0.05)
                sender.tell("enough")
                sent = sender.expect("sent", 3000)
                assert sent["failures"] == []
                assert sent["steady_losses"] == 0
                assert sent["steady_out"] == messages
                assert STEADY not in sent["lost"]
                assert set(sent["lost"]) <= set(VICTIMS)
                assert all(times >= 1 for times in sent["connects"].values())
                assert got_something
                steady.tell("count")
                counted = steady.expect("counted", 3000)
                assert counted["wrong"] == []
                assert counted["counts"]["callback"] == {str(SENDER): messages}
                sender.tell("end")
                assert sender.wait(60) == 0
        finally:
            for child in running.values():
                child.close()
