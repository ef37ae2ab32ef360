"""What holds sockets, threads or buffers does not travel, and says what to do instead."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from antiphon import ConnectionInfo, Node, NodeConfig, NodeStatistics
from unit.node.pairs import KIND, OTHER, THERE, Heard, nodes

pytestmark = pytest.mark.timeout(20)


@pytest.fixture(scope="module")
def objects() -> Iterator[dict[str, Any]]:
    with Node(config=NodeConfig()) as node:
        yield {
            "node": node,
            "inbox": node.inbox(KIND),
            "registration": node.on(OTHER, print),
        }


@pytest.mark.parametrize("copies", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("name", ["node", "inbox", "registration"])
def test_an_object_that_belongs_to_its_process_refuses_with_a_sentence(
    objects: dict[str, Any], name: str, copies: Callable[[Any], Any]
) -> None:
    with pytest.raises(TypeError) as error:
        copies(objects[name])
    text = str(error.value)
    assert name in text.lower()
    assert "make" in text, f"it does not say where to make one: {text}"


def test_statistics_are_facts_and_do_travel() -> None:
    heard = Heard()
    with nodes() as (here, there):
        there.on(KIND, heard)
        here.send(THERE, b"x", kind=KIND)
        here.flush()
        statistics, connections = here.statistics(), here.connections()
    travelled: NodeStatistics = pickle.loads(pickle.dumps(statistics))
    assert travelled == statistics
    several: list[ConnectionInfo] = pickle.loads(pickle.dumps(connections))
    assert several == connections
