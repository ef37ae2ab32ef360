"""Groups over UDP, of real processes: datagrams that are lost, doubled, mixed up; members that die;
strangers at the multicast address.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from antiphon._core import build_info
from antiphon.groups.layers.udp import default_address, split_address
from antiphon.testing import Child, Control, Network, eventually

pytestmark = pytest.mark.timeout(1800 if os.environ.get("ANTIPHON_STRESS") == "full" else 120)

STACKS = ["udp", "udp-flow", "udp-fc"]


def member(
    control: Control,
    group: str,
    number: int,
    stack: str = "udp",
    faults: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    listen: str | None = None,
    discover: list[str] | None = None,
) -> None:
    """Joins, tells every view, and does as it is told."""
    import hashlib
    import struct
    import threading
    import time
    from pathlib import Path

    import antiphon
    from antiphon.groups import layers
    from antiphon.groups.config import STACKS as MAKERS

    next_from: dict[str, int] = {}
    wrong: list[str] = []
    digests: dict[str, str] = {}
    counted = threading.Condition()
    pace = [0.0]

    def take(source: antiphon.Member, data: bytes) -> None:
        (sent,) = struct.unpack_from("<Q", data)
        if pace[0]:
            time.sleep(pace[0])
        with counted:
            expected = next_from.get(source.name, 0)
            if sent != expected:
                wrong.append(f"{source.name}: {sent} instead of {expected}")
            next_from[source.name] = sent + 1
            if len(data) > 50_000:
                digests[f"{source.name} {sent}"] = hashlib.sha256(data).hexdigest()
            counted.notify_all()

    node = None
    if listen is not None:
        node = antiphon.Node(listen=listen, secret=antiphon.INSECURE)
        node.start()
    # Slow machines may stop a process for long; nobody is to be put out for that here.
    settings = {"failure_timeout": 20.0, **(config or {})}
    made = MAKERS[stack](antiphon.GroupConfig(**settings))
    for name, arguments in (faults or {}).items():
        made.insert(1, getattr(layers, name)(**arguments))
    one = antiphon.Group(
        group, node=node, discover=discover or "local://", stack=made, member_name=f"m{number}"
    )
    one.on_message(take)

    @one.on_view
    def seen(view: antiphon.View) -> None:
        control.tell("view", members=[other.name for other in view.members])

    def send(order: dict[str, object], first: int) -> int:
        size = int(str(order.get("size", 100)))
        to = order.get("to")
        target = next((other for other in one.members if other.name == to), None)
        for at in range(first, first + int(str(order["count"]))):
            data = struct.pack("<Q", at) + bytes([at % 251]) * size
            one.send(data, to=target, timeout=100)
            if order.get("pause"):
                time.sleep(float(str(order["pause"])))
        return first + int(str(order["count"]))

    with one:
        control.tell("joined")
        sent = 0
        while True:
            order = control.hear()
            if order["order"] == "send":
                try:
                    sent = send(order, sent)
                except antiphon.SendTimeout as error:
                    control.tell("failed", error=str(error))
                control.tell("sent", count=sent)
            elif order["order"] == "pace":
                pace[0] = order["seconds"]
                control.tell("paced")
            elif order["order"] == "count":
                until = time.monotonic() + order.get("patience", 80)
                with counted:
                    while time.monotonic() < until and any(
                        next_from.get(name, 0) < at for name, at in order["wanted"].items()
                    ):
                        counted.wait(1.0)
                    control.tell(
                        "counted", got=dict(next_from), wrong=wrong[:5], digests=dict(digests)
                    )
            elif order["order"] == "statistics":
                statistics = one.statistics()
                # Not getrusage, which counts what the parent had when it began this process.
                lines = Path("/proc/self/status").read_text().splitlines()
                (peak,) = (int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
                control.tell(
                    "statistics",
                    layers={name: dict(counts) for name, counts in statistics.layers.items()},
                    window_used=statistics.window_used,
                    memory=peak * 1024,
                )
            elif order["order"] == "leave":
                break
    control.tell("left")


class Crowd:
    """Processes of one group."""

    def __init__(self, stack: ExitStack, name: str) -> None:
        self._stack = stack
        self.name = name
        self.members: list[Child] = []

    def start(self, **options: Any) -> Child:
        child = Child(member, group=self.name, number=len(self.members), **options)
        self._stack.enter_context(child)
        self.members.append(child)
        return child

    def gather(self, size: int, **options: Any) -> None:
        """So many, and all have seen each other."""
        while len(self.members) < size:
            self.start(**options)
        for child in self.members:
            self.sees(child, size)

    def sees(self, child: Child, size: int) -> None:
        hear(child, "view", lambda fact: len(fact["members"]) == size)

    def all_send(self, count: int, senders: int | None = None, **how: Any) -> None:
        """And all get it, in order."""
        sending = self.members[:senders]
        for child in sending:
            child.tell("send", count=count, **how)
        for child in sending:
            hear(child, "sent")
        self.all_have({f"m{number}": count for number in range(len(sending))})

    def all_have(self, wanted: dict[str, int]) -> None:
        for child in self.members:
            child.tell("count", wanted=wanted)
        for child in self.members:
            counted = hear(child, "counted")
            assert counted["wrong"] == []
            assert counted["got"] == wanted

    def statistics(self, number: int) -> dict[str, Any]:
        self.members[number].tell("statistics")
        return hear(self.members[number], "statistics")

    def memory(self, number: int) -> int:
        """Bytes; sanitizers keep what was freed, and more beside: half of that is theirs."""
        used = int(self.statistics(number)["memory"])
        return used // 2 if build_info()["sanitizers"] else used


def hear(
    child: Child, event: str, wanted: Callable[[dict[str, Any]], bool] = lambda fact: True
) -> dict[str, Any]:
    until = time.monotonic() + (1500 if os.environ.get("ANTIPHON_STRESS") == "full" else 100)
    while True:
        fact = child.hear(max(0.1, until - time.monotonic()), event)
        if fact["event"] == event and wanted(fact):
            return fact


@pytest.fixture
def crowd(channel: str) -> Iterator[Crowd]:
    with ExitStack() as stack:
        yield Crowd(stack, f"udp-{os.getpid()}-{time.monotonic_ns()}")


# --- order and completeness -----------------------------------------------------------------------


@pytest.mark.parametrize("stack", STACKS)
def test_everybody_gets_everything_in_order(
    crowd: Crowd, stack: str, count: Callable[[int, int], int]
) -> None:
    crowd.gather(3, stack=stack)
    crowd.all_send(count(5000, 50_000))


@pytest.mark.parametrize(
    "faults",
    [
        {"DropDatagrams": {"fraction": 0.1}},
        {"DropDatagrams": {"fraction": 0.5}},
        {"DuplicateDatagrams": {"fraction": 0.5}},
        {"ShuffleDatagrams": {"depth": 16}},
        {"DelayDatagrams": {"least": 0.0, "most": 0.01}},
        {
            "DropDatagrams": {"fraction": 0.2},
            "DuplicateDatagrams": {"fraction": 0.2},
            "ShuffleDatagrams": {"depth": 8},
        },
    ],
    ids=["a tenth lost", "half lost", "doubled", "shuffled", "delayed", "all together"],
)
def test_order_and_completeness_outlive_faults(
    crowd: Crowd, faults: dict[str, Any], count: Callable[[int, int], int]
) -> None:
    # Small datagrams, or a handful of them would carry all of it.
    crowd.gather(3, faults=faults, config={"mtu": 1400})
    crowd.all_send(count(1500, 50_000))
    if "DropDatagrams" in faults:
        asked = [crowd.statistics(number)["layers"]["nak"]["asked"] for number in range(3)]
        assert sum(asked) > 0


@pytest.mark.parametrize("stack", ["udp-flow", "udp-fc"])
def test_flow_control_outlives_loss(
    crowd: Crowd, stack: str, count: Callable[[int, int], int]
) -> None:
    faults = {"DropDatagrams": {"fraction": 0.1}}
    crowd.gather(3, stack=stack, faults=faults, config={"mtu": 1400})
    crowd.all_send(count(1500, 50_000))


def test_a_lost_first_message_and_a_lost_last_one_are_found(crowd: Crowd) -> None:
    # Each sender's first datagram is lost, and its fifth: with a pause between, one message each.
    crowd.gather(2, faults={"DropDatagrams": {"first": 1, "every": 5}})
    crowd.all_send(5, pause=0.01)
    assert crowd.statistics(0)["layers"]["drop-datagrams"]["dropped"] >= 2


def test_a_lost_last_message_is_found_though_nothing_follows(crowd: Crowd) -> None:
    crowd.gather(2, faults={"DropDatagrams": {"every": 3}})
    sender = crowd.members[0]
    for number in range(1, 4):  # a datagram each: the third one is lost
        sender.tell("send", count=1)
        hear(sender, "sent")
        crowd.all_have({"m0": number})
    assert crowd.statistics(1)["layers"]["drop-datagrams"]["dropped"] > 0
    assert crowd.statistics(0)["layers"]["nak"]["repeated"] > 0


def test_a_large_gap_is_filled(crowd: Crowd, count: Callable[[int, int], int]) -> None:
    """Of everything that is sent in one go, nothing comes at first."""
    many = count(5000, 50_000)
    # Enough for half of them, also where a busy machine makes datagrams of a few messages each.
    faults = {"DropDatagrams": {"first": count(250, 1400)}}
    crowd.gather(2, faults=faults, config={"mtu": 1400})
    crowd.all_send(many, senders=1, size=8)
    assert crowd.statistics(0)["layers"]["nak"]["repeated"] > many / 2


def test_without_acknowledgements_nothing_is_sent_again_and_again(crowd: Crowd) -> None:
    crowd.gather(2, faults={"DropDatagrams": {"fraction": 1.0, "kinds": ["acknowledge"]}})
    crowd.all_send(100, senders=1)
    before = crowd.statistics(0)
    assert before["window_used"] > 0  # as far as the sender knows, nobody has it
    time.sleep(2.0)  # time is what this is about
    after = crowd.statistics(0)
    assert after["layers"]["nak"]["repeated"] == 0
    # A question now and then, and what is said in return.
    assert after["layers"]["udp"]["sent"] - before["layers"]["udp"]["sent"] < 100


@pytest.mark.parametrize("stack", STACKS)
def test_all_to_all_does_not_collapse_when_buffers_are_small(
    crowd: Crowd, stack: str, count: Callable[[int, int], int]
) -> None:
    """Much more is sent at once than the sockets hold: it is not sent again and again for that."""
    many = count(2000, 50_000)
    crowd.gather(4, stack=stack, config={"receive_buffer": 1 << 16})
    crowd.all_send(many, size=1000)
    repeated = sum(crowd.statistics(n)["layers"]["nak"]["repeated"] for n in range(4))
    assert repeated < 4 * many


# --- sizes ----------------------------------------------------------------------------------------


def test_large_messages_go_in_parts_over_a_network_that_loses(crowd: Crowd) -> None:
    crowd.gather(2, faults={"DropDatagrams": {"fraction": 0.05}}, config={"mtu": 1400})
    crowd.all_send(3, size=150_000)
    for child in crowd.members:
        child.tell("count", wanted={})
    one, other = (hear(child, "counted")["digests"] for child in crowd.members)
    assert len(one) == 6
    assert one == other


def test_ten_megabytes_from_all_members_take_bounded_memory(
    crowd: Crowd, count: Callable[[int, int], int]
) -> None:
    """More than the windows hold, many times over."""
    size = count(4, 16)
    crowd.gather(size)
    crowd.all_send(count(2, 5), size=10_000_000)
    for number in range(size):
        # Two windows for each, a message that is put together, and the interpreter.
        assert crowd.memory(number) < (200 + 45 * size) << 20


# --- members that go ------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", STACKS)
def test_a_killed_member_frees_those_whom_it_held_up(crowd: Crowd, stack: str) -> None:
    crowd.gather(3, stack=stack, config={"failure_timeout": 3.0})
    crowd.members[2].signal(signal.SIGSTOP)
    crowd.members[0].tell("send", count=40, size=200_000)  # twice the window
    crowd.members[2].kill()
    hear(crowd.members[0], "sent", lambda fact: fact["count"] == 40)
    crowd.members[1].tell("count", wanted={"m0": 40})
    assert hear(crowd.members[1], "counted")["got"]["m0"] == 40


def test_one_that_comes_while_all_send_gets_what_follows(crowd: Crowd) -> None:
    crowd.gather(2)
    for child in crowd.members:
        child.tell("send", count=300, pause=0.002)
    crowd.start()
    for child in crowd.members[:2]:
        hear(child, "sent")
    last = crowd.members[2]
    last.tell("send", count=10)
    hear(last, "sent")
    crowd.members[0].tell("send", count=1)
    hear(crowd.members[0], "sent")
    last.tell("count", wanted={"m0": 301, "m2": 10})
    counted = hear(last, "counted")
    assert (counted["got"]["m0"], counted["got"]["m2"]) == (301, 10)
    # It began somewhere in the middle, and from there on nothing was missing.
    assert all(text.endswith("instead of 0") for text in counted["wrong"])
    assert len(counted["wrong"]) <= 2


def test_a_slow_member_holds_up_the_sender_and_no_memory_grows(crowd: Crowd) -> None:
    crowd.gather(2)
    crowd.members[1].tell("pace", seconds=0.002)
    hear(crowd.members[1], "paced")
    crowd.members[0].tell("send", count=600, size=20_000)  # three windows
    hear(crowd.members[0], "sent")
    crowd.members[1].tell("count", wanted={"m0": 600})
    assert hear(crowd.members[1], "counted")["wrong"] == []
    assert crowd.statistics(1)["layers"]["nak"]["refused"] == 0
    assert crowd.memory(1) < 250 << 20


def test_messages_to_one_are_in_order_over_a_network_that_loses(crowd: Crowd) -> None:
    crowd.gather(3, faults={"DropDatagrams": {"fraction": 0.2}}, config={"mtu": 1400})
    crowd.members[0].tell("send", count=500, size=100, to="m2")
    hear(crowd.members[0], "sent")
    crowd.members[2].tell("count", wanted={"m0": 500})
    counted = hear(crowd.members[2], "counted")
    assert (counted["wrong"], counted["got"]) == ([], {"m0": 500})
    crowd.members[1].tell("count", wanted={})
    assert hear(crowd.members[1], "counted")["got"] == {}


# --- strangers and neighbours ---------------------------------------------------------------------


def test_garbage_at_the_multicast_address_is_counted_and_dropped(crowd: Crowd) -> None:
    crowd.gather(2)
    to = split_address(default_address(crowd.name))
    choice = random.Random(5)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.setsockopt(
            socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1")
        )
        stranger.bind(("127.0.0.1", 0))
        for _ in range(200):
            stranger.sendto(choice.randbytes(choice.choice([0, 1, 31, 32, 64, 1400])), to)
            # With the right beginning, and nothing else that is right.
            stranger.sendto(
                b"APG1" + bytes([choice.randrange(9), 0, 0, 0]) + choice.randbytes(100), to
            )
    crowd.all_send(500)
    counts = crowd.statistics(0)["layers"]["udp"]
    assert counts["malformed"] + counts["foreign"] >= 300


def test_two_groups_share_an_address(channel: str) -> None:
    with ExitStack() as stack:
        one = Crowd(stack, f"udp-a-{time.monotonic_ns()}")
        other = Crowd(stack, f"udp-b-{time.monotonic_ns()}")
        config = {"multicast": default_address(one.name)}
        one.gather(2, config=config)
        other.gather(2, config=config)
        one.all_send(300)
        other.all_send(200)
        one.all_have({"m0": 300, "m1": 300})
        # What the others send may come here later than to them.
        eventually(lambda: one.statistics(0)["layers"]["udp"]["foreign"], 40)


@pytest.mark.needs("netns")
def test_it_goes_over_a_network_of_ethernet_frames(crowd: Crowd) -> None:
    with Network(3) as network:
        addresses = [f"tcp://{one.address}:7800" for one in network.members]
        for one, address in zip(network.members, addresses, strict=True):
            crowd.start(prefix=one.prefix, listen=address, discover=addresses)
        crowd.gather(3)
        crowd.all_send(1000, size=500)
        counts = crowd.statistics(0)["layers"]["udp"]
        assert counts["mtu"] == 1472
