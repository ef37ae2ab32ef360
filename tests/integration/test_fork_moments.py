"""Forks at bad moments: while a node listens, dials, shakes hands or closes.

A forked child has nothing of the parent's nodes, and can make one of its own at once, on the same
transport. The parent goes on as if nothing had happened.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon import Node, NodeConfig
from antiphon.testing import Child, Control, Host, Stranger, strangers
from antiphon.testing.strangers import frame, response
from integration.asking import SOON, Slow, echo
from unit.node.pairs import KIND, NORMAL, OTHER, THERE

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=["tcp", "unix"])
def listen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """An address to listen on; a name makes those of one test differ."""
    if request.param == "tcp":
        return lambda name: "tcp://127.0.0.1:0"
    return lambda name: f"unix://{tmp_path}/{name}"


@pytest.fixture
def there(listen: Callable[[str], str]) -> Iterator[Node]:
    """Answers KIND at once, and OTHER when ``there.slow`` lets it."""
    with Node(THERE, listen=listen("there"), config=NORMAL) as node:
        node.on(KIND, echo)
        yield node


def forker(control: Control, target: str, listen: str) -> None:
    """Forks when it is told to, whatever else it is at."""
    import os
    import signal
    import threading
    import time

    import antiphon

    config = antiphon.NodeConfig(connect_timeout=60, request_timeout=60)

    def life(id: int, place: str | None) -> str:
        """A whole life of a node; empty if all went well."""
        question = b"%d" % id
        try:
            with antiphon.Node(id, listen=place, peers={2: target}, config=config) as node:
                answer = node.request(2, question, kind=200)
            return "" if answer == question else f"{answer!r} to {question!r}"
        except Exception as error:
            return repr(error)

    def fork(number: int) -> str:
        """What became of a child that makes a node of its own; empty if all went well."""
        began, begins = os.pipe()
        os.set_blocking(began, False)
        pid = os.fork()
        if pid == 0:
            wrong = "it did not end by itself"
            os.write(begins, b"!")
            try:
                place = listen if listen.startswith("tcp") else f"{listen}-child-{number}"
                wrong = life(1000 + number, place)
            finally:
                if wrong:
                    os.write(2, f"child {number}: {wrong}\n".encode())
                os._exit(1 if wrong else 0)
        deadline = time.monotonic() + 30.0
        try:
            while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    return f"child {number} hangs" if has_begun(began) else "stillborn"
                time.sleep(0.002)
        finally:
            os.close(began)
            os.close(begins)
        return f"child {number} ended with {ended[1]}" if ended[1] else ""

    def has_begun(began: int) -> bool:
        try:
            return bool(os.read(began, 1))
        except BlockingIOError:
            return False

    def restless() -> None:
        """Nodes come and go: each listens, if it is to, dials, asks and closes."""
        nonlocal lives
        while not stops.is_set():
            wrong = life(10 + lives % 50, listen if listens else None)
            if wrong:
                problems.append(wrong)
                return
            lives += 1

    def ask() -> None:
        try:
            answers.append(node.request(order["of"], b"before the fork", kind=200).decode())
        except Exception as error:
            problems.append(repr(error))

    def close() -> None:
        node.close(60)

    problems: list[str] = []
    answers: list[str] = []
    forks = lives = 0
    listens = True
    stops = threading.Event()
    threads: list[threading.Thread] = []
    node = antiphon.Node(1, listen=f"{listen}-one" if "unix" in listen else listen, config=config)
    node.on(201, lambda source, data: node.request(2, data, kind=201))
    control.tell("ready", address=node.start().address)
    while True:
        order = control.hear()
        match order["order"]:
            case "know":
                node.add_peer(order["id"], order["address"])
            case "restless" | "ask" | "close":
                listens = order.get("listens", True)
                calls = {"restless": restless, "ask": ask, "close": close}
                threads.append(threading.Thread(target=calls[order["order"]]))
                threads[-1].start()
            case "fork":
                hung = False
                stillborn = 0
                for _ in range(order["times"]):
                    forks += 1
                    wrong = fork(forks)
                    if wrong == "stillborn" and stillborn == 0:
                        # CPython 3.11 forgets one of its own locks, which is held while a thread
                        # begins or ends: once in thousands of times os.fork() does not return.
                        stillborn += 1
                        continue
                    if wrong:
                        problems.append(wrong)
                    hung = hung or "hangs" in wrong
                    if hung:  # once is enough to know
                        break
                    time.sleep(order.get("pause", 0.0) * (forks % 7))
                control.tell("forked", problems=problems, lives=lives)
            case "join":
                stops.set()
                for thread in threads:
                    thread.join(30)
                hang = any(thread.is_alive() for thread in threads)
                control.tell("joined", problems=problems, answers=answers, lives=lives, hang=hang)
            case "life":
                control.tell("lived", wrong=life(99, listen))


def forks_well(child: Child, times: int = 1, **how: Any) -> dict[str, Any]:
    child.tell("fork", times=times, **how)
    told = child.expect("forked", timeout=100)
    assert told["problems"] == [], child.errors
    return told


def goes_on(child: Child) -> dict[str, Any]:
    """What the parent was at has ended well, and it can make another node."""
    child.tell("join")
    told = child.expect("joined", timeout=60)
    assert told["problems"] == [], child.errors
    assert not told["hang"]
    child.tell("life")
    assert child.expect("lived")["wrong"] == ""
    return told


def test_children_forked_while_nodes_dial_shake_hands_and_close_can_do_so_too(
    there: Node, listen: Callable[[str], str], count: Callable[[int, int], int]
) -> None:
    """And listen, over TCP."""
    with Child(forker, target=there.address, listen=listen("own")) as child:
        child.expect("ready")
        child.tell("restless", listens=there.address.startswith("tcp"))
        # Whenever it comes: a life takes a millisecond or two.
        told = forks_well(child, count(60, 600), pause=0.0003)
        assert told["lives"] > 0
        assert goes_on(child)["lives"] > told["lives"]


def test_a_fork_while_a_node_dials_and_shakes_hands(
    there: Node, listen: Callable[[str], str]
) -> None:
    with Host() as host, Child(forker, target=there.address, listen=listen("own")) as child:
        address = child.expect("ready")["address"]
        child.tell("know", id=7, address=host.address)
        child.tell("ask", of=7)
        with host.accept() as seven:
            seven.read_until(strangers.HELLO)
            hello = strangers.hello(7, expected=1, incarnation=77)
            forks_well(child, 3)
            seven.say(frame(strangers.REPLY, strangers.reply(hello)))
            seven.read_until(strangers.CONFIRM)
            # Connected, but not ready for data.
            forks_well(child, 3)
            seven.be_ready(KIND, window=1 << 20)
            asked = seven.read_until(KIND)
            assert asked.payload[8:] == b"before the fork"
            (number,) = struct.unpack_from("<Q", asked.payload)
            # It is the same connection still, in no hand but the parent's.
            forks_well(child)
            with Stranger.dial(address) as says:
                says.hand_shake(7, incarnation=77)
                says.say(response(KIND, number, b"after the forks"))
                assert goes_on(child)["answers"] == ["after the forks"]


def test_a_fork_while_others_shake_hands_with_a_node(
    there: Node, listen: Callable[[str], str]
) -> None:
    with Child(forker, target=there.address, listen=listen("own")) as child:
        address = child.expect("ready")["address"]
        silent, greeted, confirmed = (Stranger.dial(address) for _ in range(3))
        with silent, greeted, confirmed:
            greeted.say(frame(strangers.HELLO, strangers.hello(7)))
            assert greeted.read().kind == strangers.REPLY
            confirmed.hand_shake(8)
            forks_well(child, 3)
            # Each of them may go on where it was.
            greeted.say(frame(strangers.CONFIRM))
            assert greeted.read_until(strangers.READY)
            silent.hand_shake(9)
            for stranger in (silent, greeted, confirmed):
                stranger.say(frame(strangers.FLUSH, bytes(8)))
                assert stranger.read_until(strangers.FLUSHED)
        # The end of a connection is the parent's to give: no child has kept it open.
        goes_on(child)


def test_a_fork_while_a_node_closes(there: Node, listen: Callable[[str], str]) -> None:
    with Slow() as slow, Child(forker, target=there.address, listen=listen("own")) as child:
        address = child.expect("ready")["address"]
        there.on(OTHER, slow)
        child.tell("know", id=THERE, address=there.address)
        there.add_peer(1, address)
        asking = there.request_async(1, b"answer before you go", kind=OTHER, timeout=60)
        slow.asked.first(1)
        child.tell("close")  # it waits for its handler, who waits for us
        forks_well(child, 5)
        slow.let()
        assert asking.result(SOON) == b"answer before you go"
        goes_on(child)
        # It is really closed, not held open by a child.
        late = NodeConfig(connect_timeout=1.0)
        with (
            Node(20, listen=None, peers={1: address}, config=late) as node,
            pytest.raises(ConnectionError),
        ):
            node.request(1, b"x", kind=OTHER)


def test_a_fork_between_two_nodes_that_listen_in_one_place(
    there: Node, listen: Callable[[str], str]
) -> None:
    """What the child has inherited is closed there: the place is free when the parent leaves it."""
    with Child(forker, target=there.address, listen=listen("own")) as child:
        child.expect("ready")
        for _ in range(5):
            forks_well(child)
            child.tell("life")
            assert child.expect("lived")["wrong"] == ""
        goes_on(child)
