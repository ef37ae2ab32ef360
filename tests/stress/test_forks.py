"""fork at any moment of a busy node: the child is refused, the parent does not notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.testing import Child
from stress.members import fork_under_load, receive_all

TESTS = str(Path(__file__).parents[1])
FORKER = 7

pytestmark = pytest.mark.stress


def test_a_process_that_forks_under_load_loses_nothing_and_its_children_end(
    count: Callable[[int, int], int],
) -> None:
    forks, messages = count(15, 400), count(100_000, 5_000_000)
    numbers: dict[str, list[int]] = {
        path: [] for path in ("callback", "packed", "many", "inbox", "iteration")
    }
    numbers["callback"] = [FORKER * 10, FORKER * 10 + 1]
    receiver = Child(
        receive_all,
        tests=TESTS,
        id=1,
        listen="tcp://127.0.0.1:0",
        numbers=numbers,
        total=2 * messages,
        patience=3000,
    )
    with receiver:
        address = receiver.expect("ready", 60)["address"]
        forker = Child(
            fork_under_load,
            tests=TESTS,
            id=FORKER,
            to=1,
            address=address,
            count=messages,
            forks=forks,
        )
        with forker:
            forker.expect("sending", 60)
            sent = forker.expect("sent", 3000)
            assert sent["failures"] == []
            assert sent["statuses"] == {"0": forks}
            assert sent["losses"] == 0
            receiver.tell("count")
            counted = receiver.expect("counted", 3000)
            assert counted["wrong"] == []
            # The nodes that children made for themselves came through, too.
            assert counted["drops"]["unknown_kind"] == (forks + 1) // 2
            assert counted["counts"]["callback"] == {
                str(FORKER * 10): messages,
                str(FORKER * 10 + 1): messages,
            }
            forker.tell("end")
            assert forker.wait(60) == 0
