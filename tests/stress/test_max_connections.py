"""Two hundred peers of a hub that stays connected with twenty: every message and answer is counted.

The peers live in a few processes, the hub in one of its own. All of them send without being asked:
numbered messages, packs of them, large ones, and requests of any size. What is forbidden: a message
that is lost, doubled or out of order, an answer to another question, an error that nothing caused,
a connection that counts as lost, and a limit that is not come to once there is peace.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from antiphon.testing import Child, Control, eventually
from stress.counting import NO_DROPS, Count

pytestmark = pytest.mark.stress

LONGEST = 3000.0
PEERS = 200
LIMIT = 20
PROCESSES = 4


def members(
    control: Control, ids: list[int], limit: int | None, threads: int, calls: int, seed: int
) -> None:
    """Nodes that talk to each of their ``targets``, and check what the others tell them.

    A message is its number (u64), its lane (u64: which thread of the sender), and bytes that follow
    from both. A question is the same, and its answer is its reverse.
    """
    import random
    import struct
    import threading
    import time
    from collections import Counter, defaultdict

    import antiphon

    head = struct.Struct("<QQ")
    wrong: list[str] = []
    failed: list[str] = []
    ends: Counter[str] = Counter()
    wanted: dict[tuple[int, int, int], int] = defaultdict(int)
    merging = threading.Lock()

    def make(number: int, lane: int, size: int) -> bytes:
        return head.pack(number, lane) + bytes([(number * 31 + lane) & 255]) * size

    def start(id: int) -> antiphon.Node:
        def check(source: int, data: bytes) -> None:
            number, lane = head.unpack_from(data)
            way = source, id, lane
            if number != wanted[way] or data != make(number, lane, len(data) - head.size):
                wrong.append(f"{way}: {wanted[way]} was next, {number} came, {len(data)} bytes")
            wanted[way] = number + 1

        def late(source: int, data: bytes) -> bytes:
            time.sleep(draw.random() * 0.003)
            return data[::-1]

        draw = random.Random(id)
        config = antiphon.NodeConfig(
            max_connections=limit, connect_timeout=30.0, send_timeout=120.0, request_timeout=120.0
        )
        node = antiphon.Node(id, config=config)
        node.on(200, check)
        node.on(201, lambda source, data: data[::-1], ordered=False)
        node.on(202, late, ordered=False)
        node.on_disconnected(lambda peer, reason: ends.update([reason.partition(":")[0]]))
        return node.start()

    def ask(node: antiphon.Node, target: int, draw: random.Random) -> None:
        small = draw.random() < 0.98
        data = draw.randbytes(draw.choice((8, 100, 5000)) if small else 700_000)
        kind = draw.choice((201, 202))
        if node.request(target, data, kind=kind) != data[::-1]:
            wrong.append(f"node {target} answered another question than that of {node.id}")

    def ask_many(node: antiphon.Node, targets: list[int], draw: random.Random) -> None:
        asked = []
        for _ in range(10):
            data = draw.randbytes(16)
            asked.append((data, node.request_async(draw.choice(targets), data, kind=202)))
        for data, future in asked:
            if future.result(120) != data[::-1]:
                wrong.append(f"node {node.id} got an answer that is not its own")

    def talk(lane: int) -> None:
        draw = random.Random(seed * 1000 + lane)
        numbers: Counter[tuple[int, int]] = Counter()

        def message(source: int, target: int, size: int) -> bytes:
            number = numbers[source, target]
            numbers[source, target] += 1
            return make(number, lane, size)

        try:
            for _ in range(calls):
                node = draw.choice(nodes)
                target = draw.choice(targets)
                lot = draw.random()
                if lot < 0.45:
                    for _ in range(draw.choice((1, 1, 3, 100))):
                        data = message(node.id, target, draw.choice((0, 100, 3000)))
                        node.send(target, data, kind=200)
                elif lot < 0.60:
                    count = draw.choice((10, 1000, 10_000))
                    messages = [message(node.id, target, 8) for _ in range(count)]
                    node.send_many(target, messages, kind=200)
                elif lot < 0.62:
                    node.send(target, message(node.id, target, 3_000_000), kind=200)
                elif lot < 0.90:
                    ask(node, target, draw)
                elif lot < 0.97:
                    ask_many(node, targets, draw)
                else:
                    node.flush(120)
        except BaseException as error:
            failed.append(f"lane {lane}: {error!r}")
        with merging:
            lanes[lane] = numbers

    lanes: dict[int, Counter[tuple[int, int]]] = {}
    nodes = [start(own) for own in ids]
    control.tell("ready", addresses={node.id: node.address for node in nodes})
    peers = {int(peer): address for peer, address in control.hear()["peers"].items()}
    targets = list(peers)
    for node in nodes:
        for peer, address in peers.items():
            node.add_peer(peer, address)
    running = [threading.Thread(target=talk, args=(seed * 100 + n,)) for n in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    for node in nodes:
        try:
            node.flush(120)
        except antiphon.AntiphonError as error:
            failed.append(f"flush of {node.id}: {error!r}")
    control.tell("done", failed=failed[:5])
    while control.hear()["order"] == "count":
        # Some thousand series: more than one line of facts should hold.
        for lane, numbers in lanes.items():
            for (source, target), count in numbers.items():
                control.tell("sent", series=[source, target, lane, count])
        for (source, target, lane), count in list(wanted.items()):
            control.tell("came", series=[source, target, lane, count])
        facts = [node.statistics() for node in nodes]
        connections = [info for each in facts for info in each.connections]
        drops: Counter[str] = Counter()
        for each in facts:
            drops.update(each.drops)
        control.tell(
            "count",
            wrong=wrong[:5],
            ends=dict(ends),
            drops=dict(drops),
            dismissed=sum(each.dismissed_connections for each in facts),
            losses=sum(info.losses for info in connections),
            lost_answers=sum(each.lost_answers for each in facts),
            late=sum(each.late_responses for each in facts),
            open=sum(each.requests_open for each in facts),
            connected=sum(info.sending or info.receiving for info in connections),
        )


def count_of(child: Child, books: dict[str, dict[tuple[int, ...], int]]) -> dict[str, Any]:
    child.tell("count")
    while (told := child.hear(60))["event"] != "count":
        *way, number = told["series"]
        books[told["event"]][tuple(way)] = number
    return told


@pytest.mark.parametrize("theirs", [None, 1], ids=["the hub is limited", "all are limited"])
def test_two_hundred_peers_share_twenty_connections(theirs: int | None, count: Count) -> None:
    """With a limit of one for the peers, both ends ask to part at once, all the time."""
    # Most of them wait for a connection to be given up: five times as many had not come to an end
    # after twenty minutes.
    calls = count(300, 12_000)
    ids = [list(range(10 + n, 10 + PEERS, PROCESSES)) for n in range(PROCESSES)]
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(
            Child(members, ids=[1], limit=LIMIT, threads=4, calls=calls, seed=1)
        )
        others = [
            stack.enter_context(
                Child(members, ids=own, limit=theirs, threads=2, calls=calls // 2, seed=2 + n)
            )
            for n, own in enumerate(ids)
        ]
        here = hub.expect("ready", 60)["addresses"]
        there = {}
        for child in others:
            there.update(child.expect("ready", 60)["addresses"])
        assert len(there) == PEERS
        for child in others:
            child.tell("talk", peers=here)
        hub.tell("talk", peers=there)
        for child in (hub, *others):
            assert child.expect("done", LONGEST)["failed"] == []
        books: dict[str, dict[tuple[int, ...], int]] = {"sent": {}, "came": {}}
        told = [count_of(child, books) for child in (hub, *others)]
        assert [each["wrong"] for each in told] == [[]] * len(told)
        assert books["came"] == books["sent"]
        for each in told:
            assert all(reason.startswith("dismissed") for reason in each["ends"]), each["ends"]
            assert {**each["drops"], "unconfirmed": 0} == NO_DROPS
            facts = {name: each[name] for name in ("losses", "lost_answers", "late", "open")}
            assert facts == {"losses": 0, "lost_answers": 0, "late": 0, "open": 0}
        assert told[0]["dismissed"] >= PEERS - LIMIT
        eventually(
            lambda: count_of(hub, {"sent": {}, "came": {}})["connected"] <= LIMIT, 30, "peace"
        )
