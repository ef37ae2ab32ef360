"""Nodes and the process around them: forks, signals, and the end of the interpreter."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from antiphon import Node, NodeConfig
from antiphon.testing import Child, Collected, Control, Host, Proxy, eventually
from unit.node.pairs import Running

pytestmark = pytest.mark.timeout(600 if os.environ.get("ANTIPHON_STRESS") == "full" else 60)

KIND = 200


# --- fork -----------------------------------------------------------------------------------------


def fork_under_traffic(control: Control, target: str, forks: int) -> None:
    """Sends numbered messages from a thread and forks meanwhile, once for every call to try."""
    import os
    import signal
    import struct
    import sys
    import threading
    import time
    from array import array

    import antiphon

    node = antiphon.Node(1, peers={2: target})
    inbox = node.inbox(300)
    handled = 0

    def handle(source: int, data: bytes) -> None:
        nonlocal handled
        handled += 1

    registration = node.on(200, handle)
    node.on(203, handle)
    stops = threading.Event()
    sent = 0

    def send() -> None:
        nonlocal sent
        while not stops.is_set():
            node.send(2, struct.pack("<Q", sent), kind=200)
            sent += 1

    def look() -> None:
        while not stops.is_set():
            node.statistics()

    def enter() -> None:
        with node:
            pass

    calls: dict[str, Callable[[], object]] = {
        "send": lambda: node.send(2, b"", kind=200),
        "try_send": lambda: node.try_send(2, b"", kind=200),
        "send_many": lambda: node.send_many(2, [b""], kind=200),
        "send_packed": lambda: node.send_packed(2, b"", array("i", [0, 0]), kind=200),
        "send to itself": lambda: node.send(1, b"", kind=300),
        "flush": node.flush,
        "receive": inbox.receive,
        "receive with a timeout": lambda: inbox.receive(0.5),
        "receive_many": lambda: inbox.receive_many(10),
        "iteration": lambda: next(inbox),
        "on": lambda: node.on(201, handle),
        "inbox": lambda: node.inbox(202),
        "on_connected": lambda: node.on_connected(lambda peer, reason: None),
        "on_disconnected": lambda: node.on_disconnected(lambda peer, reason: None),
        "add_peer": lambda: node.add_peer(9, target),
        "remove_peer": lambda: node.remove_peer(2),
        "connections": node.connections,
        "statistics": node.statistics,
        "start": node.start,
        "with": enter,
        "wait": node.wait,
        "close": node.close,
        "close_async": lambda: node.close_async().result(10.0),
        "inbox.close": inbox.close,
        "registration.close": registration.close,
        "repr": lambda: (repr(node), repr(inbox), node.id, node.address, inbox.closed),
        "end": lambda: sys.exit(0),
    }
    with node:
        threads = [threading.Thread(target=each) for each in (send, look)]
        for thread in threads:
            thread.start()
        while sent < 1000:
            time.sleep(0.001)
        for name, call in calls.items():
            outcome = {"name": name, "error": "", "text": "", "hung": False, "status": 0}
            for _ in range(forks):
                pid = os.fork()
                if pid == 0:
                    error = text = ""
                    try:
                        call()
                    except Exception as raised:
                        error, text = type(raised).__name__, str(raised)
                    control.tell("outcome", **{**outcome, "error": error, "text": text})
                    os._exit(0)
                deadline = time.monotonic() + 20.0
                while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
                    if time.monotonic() > deadline:
                        os.kill(pid, signal.SIGKILL)
                        os.waitpid(pid, 0)
                        control.tell("outcome", **{**outcome, "hung": True})
                        break
                    time.sleep(0.002)
                else:
                    if name == "end" or ended[1] != 0:
                        control.tell("outcome", **{**outcome, "status": ended[1]})
        stops.set()
        for thread in threads:
            thread.join()
        node.flush()
        control.tell("done", sent=sent, handled=handled)
        control.hear()


# What may be asked of a node in a child: those that do nothing there need not refuse.
HARMLESS = ("close", "close_async", "inbox.close", "registration.close", "repr", "end")
REFUSED = (
    "send",
    "try_send",
    "send_many",
    "send_packed",
    "send to itself",
    "flush",
    "receive",
    "receive with a timeout",
    "receive_many",
    "iteration",
    "on",
    "inbox",
    "on_connected",
    "on_disconnected",
    "add_peer",
    "remove_peer",
    "connections",
    "statistics",
    "start",
    "with",
    "wait",
)


@pytest.fixture(scope="module")
def forked(count: Callable[[int, int], int]) -> Iterator[dict[str, Any]]:
    """What became of each call in forked children, and of the parent's messages meanwhile."""
    wrong = 0
    got = 0
    stops = False

    def check(source: int, data: bytes) -> None:
        nonlocal wrong, got
        wrong += struct.unpack("<Q", data)[0] != got
        got += 1

    with Node(2) as node:
        node.on(KIND, check)
        lost: Collected[str] = Collected()
        node.on_disconnected(lambda peer, reason: lost.add(reason))
        forks = count(2, 50)
        with Child(fork_under_traffic, target=node.address, forks=forks) as child:
            outcomes: dict[str, list[dict[str, Any]]] = {}
            sent_back = 0
            while not stops:
                told = child.hear(30)
                if told["event"] == "done":
                    stops = True
                else:
                    outcomes.setdefault(told["name"], []).append(told)
                    node.send(1, b"traffic the other way", kind=203)
                    sent_back += 1
            node.flush()
            before = list(lost.items)
            child.tell("end")
            child.wait()
        yield {
            "outcomes": outcomes,
            "forks": forks,
            "sent": told["sent"],
            "got": got,
            "wrong": wrong,
            "lost": before,
        }


@pytest.mark.parametrize("call", REFUSED)
def test_a_forked_child_gets_a_clear_error_from(forked: dict[str, Any], call: str) -> None:
    outcomes = forked["outcomes"][call]
    assert len(outcomes) == forked["forks"]
    for outcome in outcomes:
        assert not outcome["hung"], "the call blocked in the child"
        assert outcome["error"] == "Closed", outcome
        assert "process" in outcome["text"]


@pytest.mark.parametrize("call", HARMLESS)
def test_a_forked_child_may_without_harm_call(forked: dict[str, Any], call: str) -> None:
    outcomes = forked["outcomes"][call]
    assert len(outcomes) == forked["forks"]
    for outcome in outcomes:
        assert not outcome["hung"], "the call blocked in the child"
        assert outcome["error"] in ("", "Closed"), outcome
        assert outcome["status"] == 0


def test_forking_under_traffic_costs_the_parent_nothing(forked: dict[str, Any]) -> None:
    assert forked["lost"] == []
    assert forked["wrong"] == 0
    assert forked["got"] == forked["sent"]


def leave_a_descendant(control: Control, target: str, how: str) -> None:
    import os
    import subprocess
    import time

    import antiphon

    with antiphon.Node(1, peers={2: target}) as node:
        inbox = node.inbox(200)
        node.send(2, b"", kind=200)
        inbox.receive(10)
        if how == "fork":
            if os.fork() == 0:
                control.tell("descended")
                time.sleep(60)
                os._exit(0)
        else:
            subprocess.Popen(["sleep", "60"], close_fds=False)
            control.tell("descended")
        time.sleep(60)


@pytest.mark.parametrize("how", ["fork", "exec"])
def test_a_surviving_child_does_not_hide_the_death_of_its_parent(how: str) -> None:
    lost: Collected[str] = Collected()
    # It must not be the silence that tells.
    with Node(2, config=NodeConfig(heartbeat=20.0)) as node:
        inbox = node.inbox(KIND)
        node.on_disconnected(lambda peer, reason: lost.add(reason))
        with Child(leave_a_descendant, target=node.address, how=how) as child:
            inbox.receive(10)
            node.send(1, b"", kind=KIND)
            child.expect("descended")
            child.kill()
            (reason,) = lost.first(1, timeout=15)
            assert "no sign of life" not in reason


def start_over_after_a_fork(control: Control, target: str) -> None:
    import os

    import antiphon

    with antiphon.Node(1, peers={2: target}) as node:
        node.send(2, b"parent", kind=200)
        pid = os.fork()
        if pid == 0:
            with antiphon.Node(3, peers={2: target}) as own:
                inbox = own.inbox(200)
                own.send(2, b"child", kind=200)
                control.tell("child", got=inbox.receive(5)[1].decode())
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        node.send(2, b"parent again", kind=200)
        node.flush()
        control.tell("parent", status=status)


def test_a_forked_child_can_make_a_node_of_its_own() -> None:
    with Node(2) as node:
        inbox = node.inbox(KIND)
        with Child(start_over_after_a_fork, target=node.address) as child:
            assert inbox.receive(10) == (1, b"parent")
            assert inbox.receive(10) == (3, b"child")
            node.send(3, b"welcome", kind=KIND)
            assert child.expect("child")["got"] == "welcome"
            assert inbox.receive(10) == (1, b"parent again")
            assert child.expect("parent")["status"] == 0
            assert child.wait() == 0


# --- signals --------------------------------------------------------------------------------------


def block(control: Control, call: str, target: str, options: dict[str, Any]) -> None:
    """Blocks in a call on the main thread, tells how it ended, and closes the node."""
    import threading
    import time
    from array import array

    import antiphon

    config = antiphon.NodeConfig(connect_timeout=60, send_timeout=60, heartbeat=10, **options)
    node = antiphon.Node(1, peers={2: target}, config=config).start()
    inbox = node.inbox(300)

    handling = threading.Event()

    def sleep(source: int, data: bytes) -> None:
        handling.set()
        for _ in range(200):
            time.sleep(0.1)

    handler = node.on(301, sleep)
    if call in ("close", "handler.close"):
        node.send(1, b"", kind=301)
        handling.wait()
    if call == "flush":
        node.send(2, b"", kind=200)

    def without_end(send: Callable[[], object]) -> None:
        while True:
            send()

    offsets = array("i", range(0, 64 * 101, 64))
    sends: dict[str, Callable[[], object]] = {
        "send without credit": lambda: node.send(2, bytes(64), kind=200),
        "send with a full ring": lambda: node.send(2, bytes(64), kind=200),
        "send of large messages": lambda: node.send(2, bytes(20_000_000), kind=200),
        "send_many": lambda: node.send_many(2, [bytes(64)] * 100, kind=200),
        "send_packed": lambda: node.send_packed(2, bytes(6400), offsets, kind=200),
    }
    others: dict[str, Callable[[], object]] = {
        "send to a silent host": lambda: node.send(2, b"", kind=200),
        "flush": lambda: node.flush(60),
        "receive": inbox.receive,
        "receive with a timeout": lambda: inbox.receive(60),
        "receive_many": lambda: inbox.receive_many(10, timeout=60),
        "iteration": lambda: list(inbox),
        "a future's result": inbox.receive_async().result,
        "close": lambda: node.close(60),
        "handler.close": handler.close,
    }
    control.tell("blocking")
    try:
        if call in sends:
            without_end(sends[call])
        else:
            others[call]()
    except KeyboardInterrupt:
        control.tell("interrupted")
    began = time.monotonic()
    node.close(drain=0)
    control.tell("closed", took=time.monotonic() - began)
    control.hear()


def interrupt(child: Child) -> None:
    """Sends SIGINT to a child that blocks; the call ends by it, long before its own time is up.

    And the node can be closed.
    """
    child.expect("blocking")
    child.asleep(20)
    child.signal(signal.SIGINT)
    child.expect("interrupted", timeout=15)
    assert child.expect("closed", timeout=15)["took"] < 10


@pytest.mark.parametrize(
    "call",
    ["receive", "receive with a timeout", "receive_many", "iteration", "a future's result"],
)
def test_ctrl_c_ends_waiting_for_messages_in(call: str) -> None:
    with Child(block, call=call, target="tcp://127.0.0.1:1", options={}) as child:
        interrupt(child)


@pytest.mark.parametrize(
    "call",
    ["send without credit", "send of large messages", "send_many", "send_packed", "flush"],
)
def test_ctrl_c_ends_waiting_for_a_receiver_in(call: str) -> None:
    with Node(2) as node:
        inbox = node.inbox(KIND)  # that nobody reads
        with Child(block, call=call, target=node.address, options={}) as child:
            eventually(lambda: inbox.pending > 0, 10, "messages come")
            interrupt(child)


def test_ctrl_c_ends_waiting_for_room_in_the_ring() -> None:
    options = {"ring_bytes": 65536, "socket_buffer_bytes": 4096}
    with (
        Node(2) as node,
        Proxy(node.address) as proxy,
        Child(block, call="send with a full ring", target=proxy.address, options=options) as child,
    ):
        node.on(KIND, lambda source, data: None)
        eventually(lambda: proxy.forward.passed > 100_000, 10, "messages flow")
        proxy.stall()
        interrupt(child)


def test_ctrl_c_ends_waiting_for_a_connection() -> None:
    with (
        Host() as silent,
        Child(block, call="send to a silent host", target=silent.address, options={}) as child,
    ):
        interrupt(child)


@pytest.mark.parametrize("call", ["close", "handler.close"])
def test_ctrl_c_ends_waiting_for_a_handler_in(call: str) -> None:
    with Child(block, call=call, target="tcp://127.0.0.1:1", options={}) as child:
        child.expect("blocking")
        child.asleep(20)
        child.signal(signal.SIGINT)
        child.expect("interrupted", timeout=15)  # the handler would take twenty seconds


def close_again(control: Control) -> None:
    """Closes a registration on the main thread, beside another thread that does."""
    import threading
    import time

    import antiphon

    with antiphon.Node(1) as node:
        handling, leave = threading.Event(), threading.Event()

        def handle(source: int, data: bytes) -> None:
            handling.set()
            while not leave.is_set():
                time.sleep(0.01)

        handler = node.on(301, handle)
        node.send(1, b"", kind=301)
        handling.wait()
        closing = threading.Thread(target=handler.close)
        closing.start()
        for _ in range(2):
            control.tell("blocking")
            try:
                handler.close()
            except KeyboardInterrupt:
                control.tell("interrupted")
        threading.Timer(0.5, leave.set).start()
        handler.close()
        control.tell("closed", left=leave.is_set())
        closing.join()


def test_ctrl_c_ends_waiting_for_a_handler_and_the_next_close_waits_again() -> None:
    with Child(close_again) as child:
        for _ in range(2):
            child.expect("blocking")
            child.asleep(20)
            child.signal(signal.SIGINT)
            child.expect("interrupted", timeout=15)
        assert child.expect("closed", timeout=15)["left"]


def receive_despite_signals(control: Control) -> None:
    import signal

    import antiphon

    signals: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: signals.append(number))
    with antiphon.Node(1) as node:
        inbox = node.inbox(200)
        control.tell("blocking", address=node.address)
        _, data = inbox.receive(60)
        control.tell("received", data=data.decode(), signals=len(signals))


def test_a_signal_whose_handler_does_not_raise_does_not_end_a_wait() -> None:
    with Child(receive_despite_signals) as child, Node(2, listen=None) as node:
        node.add_peer(1, child.expect("blocking")["address"])
        for _ in range(3):
            child.asleep(20)
            child.signal(signal.SIGUSR1)
        child.asleep(20)
        node.send(1, b"at last", kind=KIND)
        told = child.expect("received")
        assert told["data"] == "at last"
        assert told["signals"] >= 1


def wait_for_the_end(control: Control, how: str) -> None:
    import signal
    import threading

    import antiphon

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with antiphon.Node(1) as node:

        def close() -> None:
            control.hear()
            node.close()

        control.tell("waiting")
        if how == "thread":
            thread = threading.Thread(target=node.wait)
            thread.start()
            control.hear()
            node.close()
            thread.join(15)
            control.tell("ended", alive=thread.is_alive())
        else:
            if how == "close":
                threading.Thread(target=close).start()
            node.wait()
            after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
            control.tell("ended", alive=before != after)


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "close", "thread"])
def test_wait_ends_with(how: str) -> None:
    """Afterwards the signals mean what they meant before, and the process ends well."""
    with Child(wait_for_the_end, how=how) as child:
        child.expect("waiting")
        child.asleep(20)
        if how.startswith("SIG"):
            child.signal(getattr(signal, how))
        else:
            child.tell("end")
        told = child.expect("ended", timeout=20)
        assert not told["alive"]
        assert child.wait() == 0


# --- the end of the interpreter -------------------------------------------------------------------


def end(control: Control, how: str, target: str, id: int = 1) -> None:
    """Reaches the end of the program with a node in some state."""
    import contextlib
    import threading
    import time

    import antiphon

    node = antiphon.Node(id, peers={2: target}).start()
    inbox = node.inbox(300)
    began = threading.Event()

    def receive() -> None:
        began.set()
        for _ in inbox:
            pass

    def send() -> None:
        while True:
            node.send(2, bytes(100), kind=200)
            began.set()

    def send_until_closed() -> None:
        with contextlib.suppress(antiphon.Closed):
            send()

    def pull_and_push() -> None:
        began.set()
        while True:
            try:
                inbox.receive(0.001)
            except antiphon.ReceiveTimeout:
                node.try_send(2, b"", kind=200)

    def look() -> None:
        while True:
            node.statistics()
            began.set()

    def work_without_end(source: int, data: bytes) -> None:
        began.set()
        while True:
            time.sleep(0.01)

    def spin_without_end(source: int, data: bytes) -> None:
        began.set()
        while True:
            pass

    def flood(source: int, data: bytes) -> None:
        while True:
            node.send(2, bytes(100), kind=205)  # that nobody reads
            began.set()

    jobs = {
        "a thread blocked in receive": (receive, False),
        "a daemon thread blocked in receive": (receive, True),
        "a thread sending": (send_until_closed, False),
        "a daemon thread sending": (send, True),
        "a daemon thread sending until it is closed": (send_until_closed, True),
        "a daemon thread that does both": (pull_and_push, True),
        "a daemon thread that looks at the statistics": (look, True),
    }
    handlers = {
        "a handler that never returns": work_without_end,
        "a handler that computes for ever": spin_without_end,
        "a handler blocked in send": flood,
    }
    if how in jobs:
        function, daemon = jobs[how]
        for _ in range(4):
            threading.Thread(target=function, daemon=daemon).start()
        began.wait(10)
    elif how in handlers:
        node.on(301, handlers[how])
        node.send(id, b"", kind=301)
        began.wait(10)
    elif how == "several nodes with such a handler":
        nodes = [antiphon.Node(number).start() for number in (11, 12, 13)]
        for each in nodes:
            began.clear()
            each.on(301, work_without_end)
            each.send(each.id, b"", kind=301)
            began.wait(10)
        globals()["nodes"] = nodes
    elif how == "a node in a cycle":
        cycle: dict[str, object] = {"node": node, "inbox": inbox}
        globals()["cycle"] = cycle["cycle"] = cycle
        node.send(2, b"", kind=200)
    elif how == "a connection under way":
        node.try_send(2, b"", kind=200)
    else:
        node.send(2, b"", kind=200)
    control.tell("ending", at=time.monotonic())
    if how == "an exception in the with statement":
        with node:
            raise SystemExit(0)
    if how == "two nodes that know each other":
        other = antiphon.Node(4, peers={id: node.address}).start()
        other.send(id, b"", kind=300)
        globals()["kept"] = (node, other)


QUICK_ENDS = (
    "a node that was never closed",
    "a node in a cycle",
    "a connection under way",
    "an exception in the with statement",
    "two nodes that know each other",
)
RACING_ENDS = (
    "a thread blocked in receive",
    "a daemon thread blocked in receive",
    "a thread sending",
    "a daemon thread sending",
    "a daemon thread sending until it is closed",
    "a daemon thread that does both",
    "a daemon thread that looks at the statistics",
)
SLOW_ENDS = (
    "a handler that never returns",
    "a handler that computes for ever",
    "a handler blocked in send",
    "several nodes with such a handler",
)


def ends_well(child: Child, within: float) -> None:
    began = child.expect("ending", 60)["at"]
    status = child.wait(timeout=30)
    took = time.monotonic() - began
    assert status == 0, child.errors
    assert took < within
    for word in ("Fatal", "terminate called", "Segmentation", "not rethrown"):
        assert word not in child.errors


@pytest.fixture
def reader() -> Iterator[Node]:
    """A node that takes what comes, but for kind 205."""
    with Node(2) as node:
        node.on(KIND, lambda source, data: None)
        node.inbox(205)
        yield node


@pytest.mark.parametrize("how", QUICK_ENDS)
def test_the_interpreter_ends_at_once_with(how: str, reader: Node) -> None:
    with Child(end, how=how, target=reader.address) as child:
        ends_well(child, within=10.0)


@pytest.fixture(scope="module")
def slow_ends() -> Iterator[dict[str, Running[None]]]:
    """All at once: each takes as long as closing waits for handlers."""
    with Node(2) as node, contextlib.ExitStack() as children:
        node.inbox(205)
        node.on(KIND, lambda source, data: None)
        ends = {}
        for how in SLOW_ENDS:
            child = children.enter_context(Child(end, how=how, target=node.address))
            ends[how] = Running(partial(ends_well, child, within=20.0))
        yield ends


# Others may end meanwhile.
@pytest.mark.usefixtures("slow_ends")
@pytest.mark.parametrize("how", RACING_ENDS)
def test_the_interpreter_ends_every_time_with(
    how: str, reader: Node, count: Callable[[int, int], int]
) -> None:
    for _ in range(count(2, 50)):
        with (
            Child(end, how=how, target=reader.address, id=11) as one,
            Child(end, how=how, target=reader.address, id=12) as other,
        ):
            ends_well(one, within=15.0)
            ends_well(other, within=15.0)


@pytest.mark.parametrize("how", SLOW_ENDS)
def test_the_interpreter_ends_within_ten_seconds_with(
    how: str, slow_ends: dict[str, Running[None]]
) -> None:
    slow_ends[how].result(50)


def test_a_program_that_closes_nothing_ends_without_a_word() -> None:
    """A program as users write it, without a with statement and without a close."""
    program = (
        "import antiphon\n"
        "node = antiphon.Node(1).start()\n"
        "inbox = node.inbox(200)\n"
        "node.send(1, b'me', kind=200)\n"
        "print(inbox.receive(5))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout == "(1, b'me')\n"
    assert done.stderr == ""
    assert done.returncode == 0


def fork_beside_listeners(control: Control, scheme: str, place: str, forks: int) -> None:
    """Threads open and close nodes all the time; children make nodes of their own."""
    import os
    import signal
    import threading

    import antiphon

    stops = threading.Event()

    def come_and_go(number: int) -> None:
        while not stops.is_set():
            with antiphon.Node(listen=f"{scheme}://{place}parent-{number}"):
                pass

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    ended = []
    for number in range(forks):
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)  # a child that hangs is ended by it, and tells by that
            with antiphon.Node(1, listen=f"{scheme}://{place}child-{number}") as one:
                inbox = one.inbox(200)
                with antiphon.Node(2, peers={1: one.address}) as two:
                    two.send(1, b"child", kind=200)
                    inbox.receive(10)
            os._exit(0)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        if ended[-1] != 0:
            break
    stops.set()
    for thread in threads:
        thread.join()
    control.tell("ended", codes=ended)


@pytest.mark.parametrize("scheme", ["inproc", "unix"])
def test_children_listen_although_their_parent_was_just_opening_and_closing_nodes(
    scheme: str, tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    forks = count(20, 500)
    place = f"{tmp_path}/" if scheme == "unix" else ""
    with Child(fork_beside_listeners, scheme=scheme, place=place, forks=forks) as child:
        assert child.expect("ended", timeout=300)["codes"] == [0] * forks


def fork_while_making_messages(control: Control) -> None:
    import os
    import signal
    import threading

    from antiphon.wire import message

    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with message._registry_lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)

        class Ping(message.Message, kind=300):
            number: int

        os._exit(0 if Ping(1).number == 1 else 1)
    control.tell("child", code=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    done.set()
    thread.join()


def test_a_child_makes_messages_although_another_thread_was_just_making_one() -> None:
    with Child(fork_while_making_messages) as child:
        assert child.expect("child", timeout=40)["code"] == 0
