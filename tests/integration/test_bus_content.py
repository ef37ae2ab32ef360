"""Subscriptions by content, peer-to-peer and through a broker: who gets what, and whom it harms."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon import AllOf, Broker, BrokerConfig, Bus, ContentStatistics, Regex, XPath
from antiphon.errors import FilterError
from antiphon.testing import Child, Control, eventually
from antiphon.topics import Publisher
from antiphon.topics.announcements import Subscribed, Update, encode
from antiphon.topics.content import Condition
from antiphon.topics.regexes import Bank
from integration.brokers import announce, leaves_nothing, open_files, settled, tasks
from integration.buses import PATIENCE, Events, Held, serves
from unit.node.pairs import Running

pytestmark = pytest.mark.timeout(120)

ORDER, SMALL = b"<order><total>150</total></order>", b"<order><total>50</total></order>"


class Meeting:
    """Two buses, and perhaps a broker between them."""

    def __init__(self, here: Bus, there: Bus, broker: Broker | None) -> None:
        self.here = here
        self.there = there
        self.broker = broker

    def publisher(self, topic: str, subscriptions: int, **settings: Any) -> Publisher:
        """One that all subscriptions of the other bus are known to."""
        publisher = self.here.publisher(topic, **settings)
        if self.broker is None:
            serves(publisher, subscriptions)
        else:
            settled(self.broker, subscriptions=subscriptions)
            serves(publisher, 1)
        return publisher

    def arrived(self) -> None:
        """Everything that was published has been handled."""
        self.here.node.flush(PATIENCE)
        if self.broker is not None:
            self.broker.node.flush(PATIENCE)

    @property
    def content(self) -> ContentStatistics:
        return (self.broker or self.here).statistics().content


@pytest.fixture(params=["peer-to-peer", "broker"])
def meeting(request: pytest.FixtureRequest, channel: str) -> Iterator[Meeting]:
    with contextlib.ExitStack() as stack:
        broker = None
        address = channel
        if request.param == "broker":
            config = BrokerConfig(max_block=10.0)
            broker = stack.enter_context(Broker("tcp://127.0.0.1:0", config=config))
            address = broker.address
        here = stack.enter_context(Bus(address))
        yield Meeting(here, stack.enter_context(Bus(address)), broker)


def test_bodies_pass_by_what_they_hold(meeting: Meeting) -> None:
    """What does not match is not sent, and not missed."""
    there = meeting.there
    found, orders, both, everything = Events(), Events(), Events(), Events()
    subscription = there.subscribe("a/*", found, where=Regex("timeout|refused"))
    there.subscribe("a/*", orders, where=XPath("/order[total > 100]"))
    there.subscribe("a/*", both, where=AllOf("site = 'A'", Regex("5"), XPath("/order")))
    there.subscribe("a/*", everything)
    assert subscription.where == Regex("timeout|refused")
    publisher = meeting.publisher("a/1", 4)
    events = [b"fine", ORDER, b"refused", SMALL, b"a timeout", b"", b"<order>"]
    for event in events:
        publisher.publish(event, {"site": "A"} if event == ORDER else None)
    everything.wait(len(events))
    meeting.arrived()
    assert found.data == [b"refused", b"a timeout"]
    assert found.missed == [0, 0]
    assert found.sequences == [3, 5]
    assert orders.data == [ORDER]
    assert both.data == [ORDER]
    assert everything.data == events
    assert everything.missed == [0] * len(events)
    assert meeting.content.judged == len(events)
    assert meeting.content.not_xml == len(events) - 2


def test_however_they_are_published(meeting: Meeting) -> None:
    found = Events()
    meeting.there.subscribe("a", found, where=Regex("^x"))
    publisher = meeting.publisher("a", 1)
    publisher.publish(b"x0")
    publisher.publish(bytearray(b"x1"))
    publisher.publish_many([b"no", b"x2", b"x3", b"no", bytearray(b"x4"), memoryview(b"x5")])
    publisher.publish_packed(b"nox6x7no", array("i", [0, 2, 4, 6, 8]))
    publisher.publish_async(b"x8").result(PATIENCE)
    publisher.publish_many([b"%d" % number for number in range(1000)] + [b"x9"])
    assert found.wait(10) == [b"x%d" % number for number in range(10)]
    assert found.sequences == [1, 2, 4, 5, 7, 8, 10, 11, 13, 1014]
    assert found.missed == [0] * 10


def test_a_publisher_with_a_queue_of_its_own_asks_too(meeting: Meeting) -> None:
    found = Events()
    meeting.there.subscribe("a", found, where=Regex("[05]$"))
    publisher = meeting.publisher("a", 1, share=0.2)
    for number in range(50):
        publisher.publish(b"%d" % number)
    assert found.wait(10) == [b"%d" % number for number in range(0, 50, 5)]


def test_the_last_event_is_kept_for_those_who_want_it(meeting: Meeting) -> None:
    early = Events()
    meeting.there.subscribe("a", early)
    publisher = meeting.publisher("a", 1, retain=True)
    publisher.publish(ORDER)
    early.wait(1)
    wanted, unwanted, filtered = Events(), Events(), Events()
    meeting.there.subscribe("a", wanted, where=XPath("/order[total > 100]"))
    meeting.there.subscribe("a", unwanted, where=Regex("nothing of the kind"))
    meeting.there.subscribe("a", filtered, where=AllOf("site = 'A'", Regex("order")))
    assert wanted.wait(1) == [ORDER]
    if meeting.broker is not None:
        settled(meeting.broker, subscriptions=4)
    # Now all have been asked, or will be before this one.
    publisher.publish(b"nothing of the kind", {"site": "A"})
    assert unwanted.wait(1) == [b"nothing of the kind"]
    publisher.publish(b"the last order", {"site": "A"})
    assert filtered.wait(1) == [b"the last order"]
    assert unwanted.data == [b"nothing of the kind"]
    assert wanted.data == [ORDER]


def test_batches_hold_what_matches(meeting: Meeting) -> None:
    data: list[bytes] = []
    meeting.there.subscribe("a", lambda batch: data.extend(batch), where=Regex("7"), batch=True)
    publisher = meeting.publisher("a", 1)
    publisher.publish_many([b"%d" % number for number in range(3000)])
    expected = [b"%d" % number for number in range(3000) if "7" in str(number)]
    eventually(lambda: len(data) >= len(expected), PATIENCE, "all are here")
    assert data == expected


def test_a_full_subscription_stops_only_what_it_wants(channel: str) -> None:
    with Bus(channel) as here, Bus(channel) as there, Held() as held:
        there.subscribe("a", held, where=Regex("wanted"), capacity=2)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish_many([b"wanted"] * 2)
        held.first(1, PATIENCE)
        waiting = Running(lambda: publisher.publish_many([b"wanted"] * 50))
        eventually(lambda: publisher.statistics()["waits"] > 0, PATIENCE, "it waits")
        other = here.publisher("a")
        serves(other)
        for _ in range(1000):
            other.publish(b"something else")
        held.open()
        waiting.result(PATIENCE)
        assert held.wait(52) == [b"wanted"] * 52


def test_very_many_expressions_on_one_topic(meeting: Meeting) -> None:
    events: list[tuple[int, bytes]] = []
    for number in range(300):
        meeting.there.subscribe(
            "a",
            lambda event, number=number: events.append((number, event.data)),
            where=Regex(rf"\buser {number}\b"),
        )
    publisher = meeting.publisher("a", 300)
    publisher.publish(b"user 7 told user 299")
    publisher.publish(b"user 300 told nobody")
    publisher.publish(b"user 8")
    meeting.arrived()
    eventually(lambda: len(events) == 3, PATIENCE, "they are here")
    assert sorted(events) == [
        (7, b"user 7 told user 299"),
        (8, b"user 8"),
        (299, b"user 7 told user 299"),
    ]
    assert meeting.content.judged == 3


def test_subscriptions_come_and_go_while_events_pass(meeting: Meeting) -> None:
    """Those that stay get all of theirs, in order, and nothing else."""
    stay = Events()
    meeting.there.subscribe("a", stay, where=AllOf("n >= 0", Regex("^stay ")))
    publisher = meeting.publisher("a", 1)
    stop = threading.Event()

    def come_and_go() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            kinds = (Regex(f"x{number}"), XPath(f"/order[total = {number}]"), "n = 1")
            with meeting.there.subscribe("a", lambda event: None, where=kinds[number % 3]):
                time.sleep(0.001)

    coming = Running(come_and_go)
    for number in range(2000):
        publisher.publish(b"%s %d" % ((b"go", b"stay")[number % 2], number), {"n": number})
    stop.set()
    coming.result(PATIENCE)
    assert stay.wait(1000) == [b"stay %d" % number for number in range(1, 2000, 2)]
    assert set(stay.missed) == {0}


def test_a_body_that_is_too_large_to_be_judged_goes_to_the_others(meeting: Meeting) -> None:
    found, everything = Events(), Events()
    meeting.there.subscribe("a", found, where=Regex("x"))
    meeting.there.subscribe("a", everything)
    publisher = meeting.publisher("a", 2)
    large = b"x" * (2**20 + 1)
    publisher.publish(large)
    publisher.publish(large[1:])
    everything.wait(2)
    assert found.wait(1) == [large[1:]]
    assert meeting.content.too_large == 1


def test_a_judge_that_fails_harms_nobody_else(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found, everything = Events(), Events()
    meeting.there.subscribe("a", found, where=Regex("x"))
    meeting.there.subscribe("a", everything)
    publisher = meeting.publisher("a", 2)

    def fail(self: Bank, body: bytes) -> list[str]:
        raise RuntimeError("a mistake of ours")

    with monkeypatch.context() as patched:
        patched.setattr(Bank, "matching", fail)
        publisher.publish(b"x1")
        everything.wait(1)
        meeting.arrived()
    publisher.publish(b"x2")
    assert found.wait(1) == [b"x2"]
    assert everything.wait(2) == [b"x1", b"x2"]
    assert meeting.content.failed == 1
    assert "could not be judged" in caplog.text


BOMB = "count(//*[count(//*[. = 1]) > count(//*[. = 2])]) > 100000"


def test_an_expression_without_an_end_holds_nobody_up(
    meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    """It matches nothing, is set aside, and is counted; other topics go on meanwhile."""
    caplog.set_level(logging.WARNING, "antiphon.topics")
    bombs, everything, elsewhere = Events(), Events(), Events()
    meeting.there.subscribe("a", bombs, where=XPath(BOMB))
    meeting.there.subscribe("a", everything)
    meeting.there.subscribe("b", elsewhere)
    publisher = meeting.publisher("a", 2 if meeting.broker is None else 3)
    other = meeting.here.publisher("b")
    serves(other)
    body = b"<r>" + b"<a><b><c>1</c></b></a>" * 15_000 + b"</r>"
    slow = Running(lambda: publisher.publish(body))
    for number in range(100):
        other.publish(b"%d" % number)
    elsewhere.wait(100)
    slow.result(PATIENCE)
    publisher.publish(ORDER)
    assert everything.wait(2) == [body, ORDER]
    assert bombs.data == []
    assert meeting.content.timed_out >= 1
    assert "takes too long" in caplog.text


def test_a_mistake_is_told_at_once_and_nothing_is_left(channel: str) -> None:
    with Bus(channel) as bus:
        for where in (5, "a =", b"a"):
            with pytest.raises(FilterError):
                bus.subscribe("a", where=where)  # type: ignore[arg-type]
        assert bus.statistics().subscriptions == 0


def test_a_client_that_announces_nonsense_is_not_served_and_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its library may check nothing."""
    wrong = [
        (Condition("regex", "("),),
        (Condition("regex", "((a{100}){100}){100}"),),
        (Condition("xpath", "//a["),),
        (Condition("xpath", "document('file:///etc/passwd')"),),
        (Condition("xpath", "//a", (("", "urn:x"),)),),
    ]
    with (
        Broker("tcp://127.0.0.1:0") as broker,
        Bus(broker.address) as good,
        Bus(broker.address) as bad,
    ):
        settled(broker, clients=2)
        subscriptions = [
            Subscribed(1000 + number, "a", 100, None, conditions)
            for number, conditions in enumerate(wrong)
        ]
        incarnation = bad.node._incarnation
        announce(bad.node, broker, encode(Update(incarnation, -1, 5, {}, [], subscriptions, [])))
        eventually(
            lambda: sum("cannot serve" in one.message for one in caplog.records) == len(wrong),
            PATIENCE,
            "all were refused",
        )
        assert broker.statistics().subscriptions == 0
        found = Events()
        good.subscribe("b", found, where=Regex("x"))
        publisher = bad.publisher("b")
        serves(publisher)
        publisher.publish(b"x")
        assert found.wait(1) == [b"x"]


def test_too_many_conditions_of_a_client_are_no_announcement(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Broker("tcp://127.0.0.1:0") as broker, Bus(broker.address) as bad:
        settled(broker, clients=1)
        many = tuple(Condition("regex", str(number)) for number in range(9))
        one = Subscribed(1000, "a", 100, None, many)
        announce(bad.node, broker, encode(Update(bad.node._incarnation, -1, 5, {}, [], [one], [])))
        eventually(lambda: "is none" in caplog.text, PATIENCE, "it was refused")
        assert broker.statistics().subscriptions == 0


def test_closing_leaves_no_process_and_no_descriptor(channel: str) -> None:
    def use() -> int:
        with Bus(channel) as here, Bus(channel) as there:
            subscription = there.subscribe("a", where=XPath("/order"))
            publisher = here.publisher("a")
            serves(publisher)
            publisher.publish(ORDER)
            assert subscription.receive(PATIENCE).data == ORDER
            pid = here._interests.judge.xml.pid
            assert pid is not None
            return pid

    files, threads = open_files(), tasks()
    for _ in range(2):
        assert not _alive(use())
    leaves_nothing(files, threads)


def test_ctrl_c_ends_the_wait_for_a_judge(channel: str) -> None:
    """And what was asked then is not taken for the answer to the next question."""

    class Pressed(BaseException):
        pass

    def press(number: int, frame: object) -> None:
        raise Pressed

    before = signal.signal(signal.SIGUSR1, press)
    try:
        with Bus(channel) as here, Bus(channel) as there:
            subscription = there.subscribe("a", where=XPath("/order[total > 100]"))
            publisher = here.publisher("a")
            serves(publisher)
            publisher.publish(ORDER)
            pid = here._interests.judge.xml.pid
            assert pid is not None
            # So long that it is not given up before the keys are pressed.
            here._interests.judge.xml._deadline = PATIENCE
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            with pytest.raises(Pressed):
                publisher.publish(ORDER)
            publisher.publish(SMALL)
            publisher.publish(b"<order><total>200</total></order>")
            events = [subscription.receive(PATIENCE).data for _ in range(2)]
            assert events == [ORDER, b"<order><total>200</total></order>"]
    finally:
        signal.signal(signal.SIGUSR1, before)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def publishing(control: Control, address: str) -> None:
    from antiphon.topics import Bus

    with Bus(address) as bus:
        publisher = bus.publisher("a")
        publisher.wait_for_subscribers(1, 20.0)
        publisher.publish(b"<order/>")
        control.tell("published", pid=bus._interests.judge.xml.pid)
        control.hear()


def test_the_process_does_not_outlive_a_publisher_that_is_killed(channel: str) -> None:
    with Bus(channel) as bus:
        subscription = bus.subscribe("a", where=XPath("/order"))
        with Child(publishing, address=channel) as child:
            pid = child.expect("published", PATIENCE)["pid"]
            assert subscription.receive(PATIENCE).data == b"<order/>"
            child.kill()
        eventually(lambda: not _alive(pid), PATIENCE, "it has ended")
