"""A node that nobody uses costs next to nothing; measured in a process of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon._core import build_info
from unit.node.pairs import python

pytestmark = pytest.mark.timeout(30)

# The connection is made and used first: what follows is the idle of a node that has worked.
IDLE = """
import json, os, threading, time

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

def threads():
    return len(os.listdir("/proc/self/task"))

bare = resident()
import antiphon
facts = {}
node = antiphon.Node(1, config=antiphon.NodeConfig()).start()
facts["threads_fresh"] = threads()
facts["resident"] = resident() - bare
other = antiphon.Node(2, config=antiphon.NodeConfig(), peers={1: node.address}).start()
node.on(200, lambda source, data: None)
other.send(1, b"x", kind=200)
other.flush()
facts["threads_used"] = threads()
facts["cores"] = len(os.sched_getaffinity(0))
# Per second that has passed, whatever it was that kept us; the best of three.
facts["cpu"], facts["turns"] = [], []
for _ in range(3):
    turns = node.statistics().selector_turns
    cpu, began = time.process_time(), time.monotonic()
    threading.Event().wait(1.0)
    passed = time.monotonic() - began
    facts["cpu"].append((time.process_time() - cpu) / passed)
    facts["turns"].append((node.statistics().selector_turns - turns) / passed)
other.close()
node.close()
# The kernel takes a moment for a thread that has ended.
end = time.monotonic() + 10
while threads() > 1 and time.monotonic() < end:
    time.sleep(0.01)
facts["threads_closed"] = threads()
print(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    done = python(IDLE)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_node_that_has_received_nothing_has_one_thread(facts: dict[str, Any]) -> None:
    assert facts["threads_fresh"] <= 2  # the program's own is the other


def test_two_nodes_that_have_worked_have_few_threads(facts: dict[str, Any]) -> None:
    assert facts["threads_used"] <= 1 + 2 * (1 + facts["cores"])


def test_no_thread_is_left_after_close(facts: dict[str, Any]) -> None:
    assert facts["threads_closed"] == 1


def test_two_idle_connected_nodes_use_next_to_no_processor_time(facts: dict[str, Any]) -> None:
    assert min(facts["cpu"]) < 0.05


def test_an_idle_node_wakes_for_its_heartbeats_only(facts: dict[str, Any]) -> None:
    assert min(facts["turns"]) < 20


@pytest.mark.skipif(bool(build_info()["sanitizers"]), reason="sanitizers have memory of their own")
def test_an_idle_node_takes_little_memory(facts: dict[str, Any]) -> None:
    assert facts["resident"] < 40 << 20
