"""Requests while connections, nodes and processes come and go."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from antiphon import (
    AntiphonError,
    Closed,
    Node,
    NodeConfig,
    PeerUnreachable,
    RemoteError,
    RequestTimeout,
)
from antiphon.testing import Child, Collected, Control, Host, Proxy
from integration.asking import SOON, Slow, ask, asleep, echo, slow_there
from unit.node.pairs import (
    HERE,
    KIND,
    NORMAL,
    OTHER,
    THERE,
    Running,
    all_results,
    eventually,
    free_address,
    kind_of,
    nodes,
    to,
)

pytestmark = pytest.mark.timeout(60)


# --- connections that come and go -----------------------------------------------------------------


def test_the_first_request_opens_the_connection_and_the_way_back() -> None:
    with (
        Node(THERE, config=NORMAL) as there,
        Node(HERE, peers={THERE: there.address}, config=NORMAL) as here,
    ):
        there.on(KIND, echo)
        assert here.request(THERE, b"first", kind=KIND) == b"first"
        assert to(here).connects == 1


def test_first_requests_of_many_threads_share_one_connection() -> None:
    with nodes() as (here, there):
        there.on(KIND, echo)
        asking = [
            Running(lambda n=n: here.request(THERE, b"%d" % n, kind=KIND))  # type: ignore[misc]
            for n in range(16)
        ]
        futures = [here.request_async(THERE, b"%d" % n, kind=KIND) for n in range(16)]
        assert all_results(asking) == [b"%d" % n for n in range(16)]
        assert [future.result(5) for future in futures] == [b"%d" % n for n in range(16)]
        assert to(here).connects == 1


@pytest.mark.parametrize("call", ["request", "request_async"])
def test_an_unreachable_peer_is_said(call: str) -> None:
    config = NodeConfig(connect_timeout=0.3)
    with Node(HERE, peers={THERE: "tcp://127.0.0.1:9"}, config=config) as here:
        began = time.monotonic()
        with pytest.raises(PeerUnreachable) as error:
            ask(here, call, b"x")
        assert time.monotonic() - began < SOON
        assert error.value.peer == THERE
        assert isinstance(error.value, ConnectionError)
        assert here.statistics().requests_open == 0


@pytest.mark.parametrize("call", ["request", "request_async"])
def test_a_request_that_never_found_a_connection_blames_no_handler(call: str) -> None:
    with Node(HERE, peers={THERE: "tcp://127.0.0.1:9"}) as here:
        with pytest.raises(RequestTimeout) as error:
            ask(here, call, b"x", timeout=0.4)
        assert (error.value.peer, error.value.kind) == (THERE, KIND)
        assert 0.4 <= error.value.waited < SOON
        text = str(error.value)
        assert text.startswith("no connection with node 2 at tcp://127.0.0.1:9 in "), text
        assert ": Connection refused; see that it runs and listens there" in text
        assert "handler" not in text
        assert here.statistics().requests_open == 0


def test_an_unreachable_peer_is_named_with_what_to_do() -> None:
    config = NodeConfig(connect_timeout=0.3)
    with Node(HERE, peers={THERE: "tcp://127.0.0.1:9"}, config=config) as here:
        with pytest.raises(PeerUnreachable) as error:
            here.send(THERE, b"x", kind=KIND)
        assert error.value.address == "tcp://127.0.0.1:9"
        assert error.value.reason == "Connection refused"
        assert str(error.value) == (
            "node 2 at tcp://127.0.0.1:9 cannot be reached: Connection refused; see that it runs "
            "and listens there, or correct its address (peers=, add_peer)"
        )


def test_a_peer_that_is_removed_fails_what_waits_for_it() -> None:
    with slow_there() as (here, _, slow):
        waiting = Running(lambda: here.request(THERE, b"x", kind=KIND))
        future = here.request_async(THERE, b"y", kind=KIND)
        slow.asked.first(1)
        eventually(lambda: here.statistics().requests_open == 2)
        here.remove_peer(THERE)
        assert isinstance(waiting.error(SOON), PeerUnreachable)
        assert isinstance(future.exception(SOON), PeerUnreachable)


def test_a_peer_that_is_removed_is_not_dialled_again_for_whoever_waits() -> None:
    with slow_there(capacity=1) as (here, there, slow):
        inbox = here.inbox(KIND)
        there.send(HERE, b"so that its address is known", kind=KIND)
        inbox.receive(timeout=SOON)
        # Most of them wait for a place, and would like to be sent.
        waiting = [Running(lambda: here.request(THERE, b"x", kind=KIND)) for _ in range(20)]
        slow.asked.first(1)
        eventually(lambda: here.statistics().requests_open == 20)
        asleep(waiting)
        here.remove_peer(THERE)
        for one in waiting:
            assert isinstance(one.error(SOON), PeerUnreachable)
        time.sleep(0.3)  # a dial would be through
        assert to(here).connects == 1
        assert not to(here).sending


def test_a_cut_connection_fails_what_waits_and_the_next_request_connects_again() -> None:
    with nodes() as (here, there), Slow() as slow, Proxy(there.address) as proxy:
        here.add_peer(THERE, proxy.address)
        there.on(KIND, slow)
        waiting = [here.request_async(THERE, b"old", kind=KIND) for _ in range(5)]
        slow.asked.first(1)
        began = time.monotonic()
        proxy.cut()
        for future in waiting:
            error = future.exception(SOON)
            assert isinstance(error, PeerUnreachable)
            assert error.peer == THERE
        assert time.monotonic() - began < SOON
        slow.let(100)
        assert here.request(THERE, b"new", kind=KIND) == b"new"
        assert here.request(THERE, b"newer", kind=KIND) == b"newer"


def answerer(control: Control, id: int, listen: str, life: int) -> None:
    """Answers kind 200 with its life; kind 201 never, but tells that it was asked."""
    import threading

    import antiphon

    def never(source: int, data: bytes) -> None:
        control.tell("asked")
        threading.Event().wait()

    with antiphon.Node(id, listen=listen) as node:
        node.on(200, lambda source, data: b"%d %s" % (life, data))
        node.on(201, never)
        control.tell("ready", address=node.address)
        control.hear()


def test_a_peer_killed_while_requests_wait_fails_them_soon() -> None:
    with Child(answerer, id=THERE, listen="tcp://127.0.0.1:0", life=1) as child:
        address = child.expect("ready")["address"]
        with Node(HERE, peers={THERE: address}, config=NORMAL) as here:
            waiting = [
                Running(lambda: here.request(THERE, b"x", kind=OTHER, timeout=30)) for _ in range(8)
            ]
            child.expect("asked")
            futures = [here.request_async(THERE, b"x", kind=OTHER, timeout=30) for _ in range(8)]
            eventually(lambda: here.statistics().requests_open == 16)
            child.kill()
            killed = time.monotonic()
            errors = [one.error() for one in waiting] + [one.exception(SOON) for one in futures]
            assert time.monotonic() - killed < SOON
            assert {type(error) for error in errors} == {PeerUnreachable}
            assert {error.peer for error in errors} == {THERE}  # type: ignore[union-attr]
            assert {error.address for error in errors} == {address}  # type: ignore[union-attr]
            for error in errors:
                assert f"node 2 at {address} cannot be reached: " in str(error)
                assert "; see that it runs" in str(error)
            assert here.statistics().requests_open == 0


def dialler(control: Control, id: int, to: str) -> None:
    """Connects by itself, and never answers."""
    import threading

    import antiphon

    def never(source: int, data: bytes) -> None:
        control.tell("asked")
        threading.Event().wait()

    with antiphon.Node(id, peers={1: to}) as node:
        node.on(200, never)
        node.send(1, b"here I am", kind=201)
        control.tell("ready", address=node.address)
        control.hear()


def test_a_peer_that_dialled_and_is_killed_is_named_with_the_address_it_gave() -> None:
    with Node(HERE, config=NORMAL) as here:
        inbox = here.inbox(OTHER)
        with Child(dialler, id=THERE, to=here.address) as child:
            address = child.expect("ready")["address"]
            inbox.receive(SOON)
            future = here.request_async(THERE, b"x", kind=KIND, timeout=30)
            child.expect("asked")
            child.kill()
            error = future.exception(SOON)
            assert isinstance(error, PeerUnreachable)
            assert error.address == address


def test_a_peer_started_again_under_its_id_answers_and_no_old_answer_is_taken() -> None:
    address = free_address()
    with Node(HERE, config=NodeConfig(connect_timeout=10)) as here:
        for life in range(4):
            with Child(answerer, id=THERE, listen=address, life=life) as child:
                child.expect("ready")
                here.add_peer(THERE, address)
                for turn in range(20):
                    question = b"%d" % turn
                    assert here.request(THERE, question, kind=KIND) == b"%d %d" % (life, turn)
                old = here.request_async(THERE, b"old", kind=OTHER, timeout=30)
                child.expect("asked")
                child.kill()
                assert isinstance(old.exception(SOON), PeerUnreachable)
        assert here.statistics().late_responses == 0


def test_a_request_waits_for_a_peer_that_is_just_being_started_again() -> None:
    address = free_address()
    with Node(HERE, config=NodeConfig(connect_timeout=30)) as here:
        with Child(answerer, id=THERE, listen=address, life=1) as child:
            child.expect("ready")
            here.add_peer(THERE, address)
            assert here.request(THERE, b"x", kind=KIND) == b"1 x"
            child.kill()
        eventually(lambda: not to(here).sending)
        waiting = Running(lambda: here.request(THERE, b"y", kind=KIND, timeout=30))
        later = here.request_async(THERE, b"z", kind=KIND, timeout=30)
        asleep([waiting])
        with Child(answerer, id=THERE, listen=address, life=2) as child:
            child.expect("ready")
            assert waiting.result() == b"2 y"
            assert later.result(5) == b"2 z"


def test_an_asker_that_dies_costs_the_answerer_nothing() -> None:
    with Node(THERE, config=NORMAL) as there, Slow() as slow:
        there.on(KIND, slow)
        with Child(asker, target=there.address) as child:
            child.expect("asking")
            slow.asked.first(1)
            child.kill()
            eventually(lambda: not to(there, HERE).receiving)
        slow.let(10)
        with Node(HERE, peers={THERE: there.address}, config=NORMAL) as here:
            assert here.request(THERE, b"another", kind=KIND) == b"another"
            assert here.statistics().late_responses == 0
        # The one that was being handled; the others were not asked yet, or are the new one's.
        counted = there.statistics()
        assert counted.lost_answers == len(slow.asked.items) - 1
        assert counted.answers == 1


def asker(control: Control, target: str) -> None:
    import antiphon

    with antiphon.Node(1, peers={2: target}) as node:
        waiting = [node.request_async(2, b"x", kind=200, timeout=60) for _ in range(4)]
        control.tell("asking")
        for future in waiting:
            future.result()


# --- closing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("drain", [0.0, 30.0])
def test_closing_a_node_wakes_whoever_waits_for_answers(drain: float) -> None:
    with slow_there() as (here, _, slow):
        waiting = [Running(lambda: here.request(THERE, b"x", kind=KIND)) for _ in range(4)]
        futures = [here.request_async(THERE, b"x", kind=KIND) for _ in range(4)]
        results = [Running(lambda f=f: f.result(30)) for f in futures]  # type: ignore[misc]
        slow.asked.first(1)
        eventually(lambda: here.statistics().requests_open == 8)
        began = time.monotonic()
        here.close(drain)
        assert {type(one.error()) for one in waiting + results} == {Closed}
        assert time.monotonic() - began < SOON
        assert all(isinstance(future.exception(), Closed) for future in futures)
        assert not any(future.cancel() for future in futures)


def test_closing_a_node_wakes_whoever_waits_for_a_connection_to_ask() -> None:
    with Host() as host, Node(HERE, peers={THERE: host.address}, config=NORMAL) as here:
        waiting = Running(lambda: here.request(THERE, b"x", kind=KIND))
        futures = [here.request_async(THERE, b"x", kind=KIND) for _ in range(4)]
        results = [Running(lambda f=f: f.result(30)) for f in futures]  # type: ignore[misc]
        with host.accept():
            asleep([waiting, *results])
            here.close()
            assert isinstance(waiting.error(SOON), Closed)
            assert {type(one.error(SOON)) for one in results} == {Closed}


def test_a_node_that_closes_answers_what_it_was_asked() -> None:
    with slow_there() as (here, there, slow):
        waiting = [here.request_async(THERE, b"%d" % n, kind=KIND) for n in range(10)]
        eventually(lambda: kind_of(there).messages == 10)
        closing = Running(there.close)
        asleep([closing])
        slow.let(10)
        closing.result()
        assert [future.result(SOON) for future in waiting] == [b"%d" % n for n in range(10)]


def test_a_node_closed_in_a_hurry_fails_those_who_ask_it() -> None:
    with slow_there() as (here, there, slow):
        waiting = [here.request_async(THERE, b"x", kind=KIND) for _ in range(4)]
        slow.asked.first(1)
        closing = Running(lambda: there.close(0))
        errors = [future.exception(SOON) for future in waiting]
        assert all(isinstance(error, PeerUnreachable | RemoteError) for error in errors)
        slow.let()
        closing.result()


def test_a_handler_that_waits_for_an_answer_gets_it_while_its_node_drains() -> None:
    outcomes: Collected[object] = Collected()
    with nodes() as (here, there), Slow() as slow:
        here.on(OTHER, slow)

        def handler(source: int, data: bytes) -> None:
            try:
                outcomes.add(there.request(HERE, data, kind=OTHER))
            except AntiphonError as error:
                outcomes.add(error)

        there.on(KIND, handler)
        here.send(THERE, b"x", kind=KIND)
        slow.asked.first(1)
        closing = Running(there.close)
        asleep([closing])
        slow.let()
        assert outcomes.first(1, timeout=15) == [b"x"]
        closing.result(SOON)


# --- the process around it ------------------------------------------------------------------------


def fork_while_asking(control: Control, target: str, silent: str, never: str, forks: int) -> None:
    """Asks from threads, and forks meanwhile: what becomes of each call in the child?"""
    import os
    import signal
    import threading
    import time

    import antiphon

    stops = threading.Event()
    wrong: list[str] = []
    turns = 0

    def ask(thread: int) -> None:
        nonlocal turns
        turn = 0
        while not stops.is_set():
            question = b"%d %d" % (thread, turn)
            try:
                future = node.request_async(2, question, kind=200)
                if turn % 3 == 0:
                    future.cancel()
                elif future.result() != question:
                    wrong.append(repr(question))
            except Exception as error:
                wrong.append(repr(error))
            turn += 1
            turns += 1

    config = antiphon.NodeConfig(connect_timeout=60)
    node = antiphon.Node(1, peers={2: target, 3: silent, 4: never}, config=config)
    with node:
        open_future = node.request_async(4, b"open", kind=200, timeout=60)
        done_future = node.request_async(2, b"done", kind=200)
        done_future.result()
        stuck = node.request_async(3, b"stuck", kind=200, timeout=60)
        calls: dict[str, Callable[[], object]] = {
            "request": lambda: node.request(2, b"x", kind=200),
            "request_async": lambda: node.request_async(2, b"x", kind=200).result(),
            "request_async behind another": lambda: node.request_async(3, b"", kind=200).result(),
            "result of an open one": open_future.result,
            "result of one that is not sent": lambda: stuck.result(10),
            "cancel": open_future.cancel,
            "done": lambda: (open_future.done(), done_future.done(), stuck.done()),
            "result of one that is done": done_future.result,
        }
        threads = [threading.Thread(target=ask, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        while turns < 300:
            time.sleep(0.001)
        for name, call in calls.items():
            hung = False
            for _ in range(forks):
                if hung:  # once is enough to know
                    break
                pid = os.fork()
                if pid == 0:
                    error = ""
                    try:
                        call()
                    except Exception as raised:
                        error = type(raised).__name__
                    control.tell("outcome", name=name, error=error)
                    os._exit(0)
                deadline = time.monotonic() + 20.0
                while os.waitpid(pid, os.WNOHANG)[0] == 0:
                    if time.monotonic() > deadline:
                        os.kill(pid, signal.SIGKILL)
                        os.waitpid(pid, 0)
                        control.tell("outcome", name=name, error="hung")
                        hung = True
                        break
                    time.sleep(0.001)
        stops.set()
        for thread in threads:
            thread.join()
        stuck.cancel()
        control.tell("done", wrong=wrong[:5], ended=open_future.done())
        control.hear()


@pytest.fixture(scope="module")
def forked() -> Iterator[dict[str, Any]]:
    """What became of each call in forked children, and of the parent's requests meanwhile."""
    outcomes: dict[str, set[str]] = {}
    with (
        Node(THERE, config=NORMAL) as there,
        Node(4, config=NORMAL) as never,
        Slow() as slow,
        Host() as host,
    ):
        there.on(KIND, echo)
        never.on(KIND, slow)
        where = {"target": there.address, "silent": host.address, "never": never.address}
        with Child(fork_while_asking, forks=10, **where) as child:
            while (told := child.hear(40))["event"] == "outcome":
                outcomes.setdefault(told["name"], set()).add(told["error"])
            yield {"outcomes": outcomes, **told}


@pytest.mark.parametrize(
    ("call", "outcome"),
    [
        ("request", "Closed"),
        ("request_async", "Closed"),
        ("request_async behind another", "Closed"),
        ("result of an open one", "Closed"),
        ("result of one that is not sent", "Closed"),
        ("done", ""),
        ("result of one that is done", ""),
    ],
)
def test_in_a_forked_child(forked: dict[str, Any], call: str, outcome: str) -> None:
    assert forked["outcomes"][call] == {outcome}


def test_in_a_forked_child_cancelling_does_not_hang(forked: dict[str, Any]) -> None:
    assert forked["outcomes"]["cancel"] <= {"", "Closed"}


def test_forking_while_asking_costs_the_parent_nothing(forked: dict[str, Any]) -> None:
    assert forked["wrong"] == []
    assert forked["ended"] is False


def block(control: Control, call: str, target: str) -> None:
    """Blocks on the main thread until Ctrl-C; then asks again."""
    import antiphon

    with antiphon.Node(
        1, peers={2: target}, config=antiphon.NodeConfig(connect_timeout=60)
    ) as node:
        calls: dict[str, Callable[[], object]] = {
            "request": lambda: node.request(2, b"slow", kind=200, timeout=60),
            "result": lambda: node.request_async(2, b"slow", kind=200, timeout=60).result(),
            "result with a time": lambda: node.request_async(
                2, b"slow", kind=200, timeout=60
            ).result(50),
            "exception": lambda: node.request_async(2, b"slow", kind=200, timeout=60).exception(),
        }
        control.tell("blocking")
        try:
            calls[call]()
        except KeyboardInterrupt:
            control.tell("interrupted")
        control.hear()
        control.tell("next", answer=node.request(2, b"quick", kind=201).decode())
        control.hear()


@pytest.mark.parametrize("call", ["request", "result", "result with a time", "exception"])
def test_ctrl_c_ends_waiting_for_an_answer_and_the_node_works_on(call: str) -> None:
    with Node(THERE, config=NORMAL) as there, Slow() as slow:
        there.on(KIND, slow)
        there.on(OTHER, echo)
        with Child(block, call=call, target=there.address) as child:
            child.expect("blocking")
            slow.asked.first(1)
            _interrupt(child)
            slow.let()
            child.tell("go on")
            assert child.expect("next")["answer"] == "quick"


def test_ctrl_c_ends_a_request_that_waits_for_its_connection() -> None:
    with Host() as host, Child(block, call="request", target=host.address) as child:
        child.expect("blocking")
        with host.accept():
            _interrupt(child)


def _interrupt(child: Child) -> None:
    child.asleep(20)
    child.signal(signal.SIGINT)
    child.expect("interrupted", timeout=20)  # the calls themselves would wait for a minute
