"""Durable subscriptions: a name whose position the broker keeps, and who acknowledges what."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon import Broker, Bus, ConfigError, Event, Node, NodeConfig
from antiphon.testing import Child, ChildFailed, Collected, Control, Proxy, eventually
from integration.buses import PATIENCE, Events
from integration.durables import (
    caught_up,
    lag,
    record,
    recording,
    standing,
    take,
    with_patience,
)
from unit.node.pairs import free_address

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def broker(path: Path) -> Iterator[Broker]:
    with recording(path, fsync="none") as running:
        yield running


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "antiphon.topics")  # handlers fail on purpose


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % i for i in range(first, end)]


def nobody_holds(broker: Broker, name: str) -> None:
    """Waits until the broker knows that nobody holds the name."""
    deliveries = broker._deliveries
    assert deliveries is not None
    eventually(lambda: not deliveries._all["durable", name].members, PATIENCE)


def test_a_name_goes_on_where_it_was(broker: Broker) -> None:
    with Bus(broker.address) as here:
        record(here, "orders/eu", *numbers(0, 100))
        with Bus(broker.address) as there:
            events = Events()
            there.subscribe("orders/*", events, durable="billing", start="earliest")
            assert events.wait(100) == numbers(0, 100)
            assert all(event.attempt == 1 for event in events.items)
            caught_up(broker, "billing")
        record(here, "orders/eu", *numbers(100, 200))
        record(here, "orders/us", b"new topic")
        with Bus(broker.address) as there:
            events = Events()
            # The saved position wins over start.
            there.subscribe("orders/*", events, durable="billing", start="earliest")
            events.wait(101)
            caught_up(broker, "billing")
            assert sorted(events.data) == sorted([*numbers(100, 200), b"new topic"])


@pytest.mark.parametrize("how", ["handled", "read", "by hand", "meanwhile"])
def test_what_was_acknowledged_last_goes_before_its_bus(broker: Broker, how: str) -> None:
    """The first acknowledgement of a connection asks for credit, which takes its time."""
    with Bus(broker.address) as bus, Proxy(broker.address) as proxy:
        record(bus, "t", *numbers(0, 4))
        one = Bus(proxy.address).start()
        taken: list[int] = []
        begun = threading.Event()  # the call that subscribes has had its answer

        def take_one(event: Event) -> None:
            begun.wait(PATIENCE)
            if not taken:
                proxy.back.stall()
            taken.append(event.sequence)
            if how in ("by hand", "meanwhile"):
                event.ack()

        if how == "handled":
            one.subscribe("t", take_one, durable="e", start="earliest")
            begun.set()
            eventually(lambda: len(taken) == 4, PATIENCE)
        else:
            reader = one.subscribe(
                "t",
                durable="e",
                start="earliest",
                ack="auto" if how == "read" else "manual",
            )
            begun.set()
            for event in reader:
                take_one(event)
                if event.sequence == (3 if how == "read" else 2):
                    break
            third = reader.receive(PATIENCE) if how == "meanwhile" else None
        closing = threading.Thread(target=one.close, args=(PATIENCE * 4,))
        closing.start()
        nobody_holds(broker, "e")
        closing.join(0.3)
        if how == "meanwhile":
            assert third is not None
            third.ack()  # which takes none of those with it that wait already
        proxy.back.flow()
        closing.join(PATIENCE)
        record(bus, "t", b"last")
        left = {"handled": [5], "meanwhile": [4, 5]}.get(how, [3, 4, 5])
        with bus.subscribe("t", durable="e") as rest:
            assert [event.sequence for event in take(rest, len(left))] == left


def test_a_broker_that_hangs_keeps_no_farewell_from_others(broker: Broker) -> None:
    """What is meant for it has half of the time that a close has; the rest is for all others."""
    reasons: list[str] = []
    with (
        Bus(broker.address) as bus,
        Proxy(broker.address) as proxy,
        Node(listen="tcp://127.0.0.1:0") as other,
        Node(listen=None) as node,
    ):
        record(bus, "t", *numbers(0, 4))
        other.on_disconnected(lambda peer, reason: reasons.append(reason))
        other.on(200, lambda source, data: b"here")
        node.add_peer(other.id, other.address)
        assert node.request(other.id, b"", kind=200) == b"here"
        hanging = Bus(proxy.address, node=node).start()
        reader = hanging.subscribe("t", durable="e", start="earliest", ack="manual")
        first = reader.receive(PATIENCE)
        proxy.back.stall()
        first.ack()
        node.close(drain=2.0)
        eventually(lambda: reasons, PATIENCE)
    assert reasons == ["the peer closed"]


def test_the_position_outlives_the_broker(path: Path) -> None:
    for life in range(3):
        with recording(path) as broker, Bus(broker.address) as bus:
            record(bus, "t", *numbers(life * 10, life * 10 + 10))
            sub = bus.subscribe("t", durable="d", start="earliest")
            assert [event.data for event in take(sub, 10)] == numbers(life * 10, life * 10 + 10)
            sub.close()
            # The last one that was read was not acknowledged: it comes again.
            sub = bus.subscribe("t", durable="d")
            again = take(sub, 1)[0]
            assert (again.data, again.attempt) == (b"%d" % (life * 10 + 9), 2)
            record(bus, "t", b"end")
            assert take(sub, 1)[0].data == b"end"
            sub.close()
            sub = bus.subscribe("t", Events(), durable="d")
            caught_up(broker, "d")


def test_what_is_handled_is_acknowledged_while_the_next_one_takes_long(broker: Broker) -> None:
    going_on = threading.Event()

    def handler(event: Event) -> None:
        if event.data == b"slow":
            going_on.wait(PATIENCE)

    with Bus(broker.address) as bus:
        record(bus, "t", b"quick", b"slow")
        bus.subscribe("t", handler, durable="d", start="earliest")
        try:
            eventually(lambda: lag(broker, "d") == 1, PATIENCE)
        finally:
            going_on.set()
        caught_up(broker, "d")


def test_an_event_that_a_subscriber_cannot_take_holds_up_nothing(path: Path) -> None:
    large = b"." * 3_000_000
    small = NodeConfig(max_message_bytes=100_000)
    with (
        recording(path, max_attempts=2) as broker,
        Bus(broker.address) as here,
        Bus(broker.address, node_config=small) as there,
    ):
        record(here, "t", b"before", large, b"after")
        events, replayed = Events(), Events()
        there.subscribe("t", events, durable="d", start="earliest")
        there.subscribe("t", replayed, start="earliest")
        assert sorted(events.wait(2)) == [b"after", b"before"]
        assert replayed.wait(2) == [b"before", b"after"]
        assert replayed.items[1].missed == 1
        dead = here.subscribe("$dead/d", start="earliest")
        assert take(dead, 1)[0].data == large
        caught_up(broker, "d")


def test_what_a_subscription_had_when_it_was_closed_is_not_to_blame(path: Path) -> None:
    with recording(path, max_attempts=2) as broker, Bus(broker.address) as bus:
        record(bus, "t", b"one")
        for attempt in range(1, 6):
            with bus.subscribe("t", durable="d", start="earliest", ack="manual") as sub:
                event = take(sub, 1)[0]  # and does nothing with it
                assert (event.data, event.attempt) == (b"one", attempt)


def test_one_event_that_is_kept_for_long_stops_no_others(broker: Broker) -> None:
    with Bus(broker.address) as bus:
        record(bus, "t", *numbers(0, 50))
        with bus.subscribe("t", durable="d", start="earliest", ack="manual", capacity=5) as sub:
            kept = sub.receive(PATIENCE)
            for i in range(1, 50):
                event = sub.receive(PATIENCE)
                assert event.data == b"%d" % i
                event.ack()
            kept.ack()
            caught_up(broker, "d")


def test_latest_is_remembered_from_the_first_time_on(broker: Broker) -> None:
    with Bus(broker.address) as here:
        record(here, "t", b"before")
        with Bus(broker.address) as there:
            there.subscribe("t", durable="d")
            eventually(lambda: broker._answers.durables(0), PATIENCE)
        record(here, "t", b"while it was away")
        with Bus(broker.address) as there:
            assert take(there.subscribe("t", durable="d"), 1)[0].data == b"while it was away"


def test_an_event_whose_handler_raises_comes_again_and_becomes_a_dead_letter(path: Path) -> None:
    attempts: Collected[tuple[bytes, int]] = Collected()

    def handler(event: Event) -> None:
        attempts.add((event.data, event.attempt))
        if event.data == b"1" or (event.data == b"2" and event.attempt < 3):
            raise ValueError(event.data)

    with recording(path, max_attempts=4) as broker, Bus(broker.address) as bus:
        publisher = bus.publisher("t", record=True)
        for i in range(4):
            publisher.publish(b"%d" % i, {"n": i})
        publisher.flush(PATIENCE)
        bus.subscribe("t", handler, durable="d", start="earliest")
        dead = bus.subscribe("$dead/d", start="earliest")
        letter = take(dead, 1)[0]
        assert letter.data == b"1"
        assert letter.properties == {
            "n": 1,
            "dead.topic": "t",
            "dead.sequence": 2,
            "dead.attempts": 4,
        }
        caught_up(broker, "d")
        by_event: dict[bytes, list[int]] = {}
        for data, attempt in attempts.items:
            by_event.setdefault(data, []).append(attempt)
        assert by_event == {b"0": [1], b"1": [1, 2, 3, 4], b"2": [1, 2, 3], b"3": [1]}


def test_dead_letters_are_replayed_once(broker: Broker) -> None:
    fails = True
    handled: Collected[Event] = Collected()

    def handler(event: Event) -> None:
        if fails:
            raise ValueError("not now")
        handled.add(event)

    with Bus(broker.address) as bus:
        publisher = bus.publisher("t", record=True)
        publisher.publish(b"one", {"n": 1})
        bus.subscribe("t", handler, durable="d", start="earliest")
        assert take(bus.subscribe("$dead/d", start="earliest"), 1)[0].data == b"one"
        fails = False
        assert broker._answers.replay_dead(0, "d", 0) == 1
        assert broker._answers.replay_dead(0, "d", 0) == 0
        event = handled.first(1, PATIENCE)[0]
        assert (event.data, event.properties, event.attempt) == (b"one", {"n": 1}, 1)


def test_without_an_acknowledgement_in_time_it_comes_again(path: Path) -> None:
    with recording(path, ack_timeout=0.2) as broker, Bus(broker.address) as bus:
        record(bus, "t", b"one")
        sub = bus.subscribe("t", durable="d", start="earliest", ack="manual")
        first, second = take(sub, 2)
        assert (first.attempt, second.attempt) == (1, 2)
        assert first.data == second.data == b"one"
        second.ack()
        second.ack()  # a second word does nothing
        caught_up(broker, "d")


def test_a_slow_handler_with_a_long_queue_gets_each_event_once(path: Path) -> None:
    """The last ones wait in its queue for longer than an acknowledgement may take."""

    def each_once(path: Path, ack_timeout: float) -> None:
        seen: Collected[tuple[bytes, int]] = Collected()

        def handler(event: Event) -> None:
            time.sleep(ack_timeout / 80)
            seen.add((event.data, event.attempt))

        with (
            recording(path, ack_timeout=ack_timeout, max_attempts=2) as broker,
            Bus(broker.address) as bus,
        ):
            record(bus, "t", *numbers(0, 240))
            bus.subscribe("t", handler, durable="d", start="earliest")
            caught_up(broker, "d")
            assert seen.items == [(data, 1) for data in numbers(0, 240)]
            counts = broker._answers.durables(0)[0]["counts"]
            assert (counts["again"], counts["dead"]) == (0, 0)

    with_patience(each_once, path)


def test_what_was_done_too_late_is_done_all_the_same(path: Path) -> None:
    def is_done(path: Path, ack_timeout: float) -> None:
        with (
            recording(path, ack_timeout=ack_timeout, max_attempts=3) as broker,
            Bus(broker.address) as bus,
        ):
            record(bus, "t", b"one")
            sub = bus.subscribe("t", durable="d", start="earliest", ack="manual")
            first, second = take(sub, 2)
            assert (first.attempt, second.attempt) == (1, 2)
            first.ack()  # and nothing is ever said of the second
            caught_up(broker, "d")
            record(bus, "t", b"two")
            third = take(sub, 1)[0]
            assert (third.data, third.attempt) == (b"two", 1)
            third.ack()
            caught_up(broker, "d")
            assert broker._answers.durables(0)[0]["counts"]["dead"] == 0

    with_patience(is_done, path)


def test_one_that_is_kept_comes_again_though_others_are_acknowledged(path: Path) -> None:
    def only_that_one(path: Path, ack_timeout: float) -> None:
        with recording(path, ack_timeout=ack_timeout) as broker, Bus(broker.address) as bus:
            publisher = bus.publisher("t", record=True)
            sub = bus.subscribe("t", durable="d", start="earliest", ack="manual")
            publisher.publish(b"kept")
            seen: list[tuple[bytes, int]] = []
            while (b"kept", 2) not in seen:
                publisher.publish(b"other")
                event = take(sub, 1)[0]
                seen.append((event.data, event.attempt))
                if seen[-1] != (b"kept", 1):
                    event.ack()
            assert seen.count((b"kept", 1)) == 1
            assert all(attempt == 1 for data, attempt in seen if data == b"other")

    with_patience(only_that_one, path)


def test_manual_acknowledgements_are_individual(broker: Broker) -> None:
    with Bus(broker.address) as bus:
        record(bus, "t", *numbers(0, 10))
        sub = bus.subscribe("t", durable="d", start="earliest", ack="manual")
        events = take(sub, 10)
        for event in events[::2]:
            event.ack()
        events[1].nack()
        again = take(sub, 1)[0]
        assert (again.data, again.attempt) == (b"1", 2)
        again.ack()
        eventually(lambda: lag(broker, "d") == 4, PATIENCE)
        sub.close()
        rest = take(bus.subscribe("t", durable="d"), 4)
        assert sorted(event.data for event in rest) == [b"3", b"5", b"7", b"9"]
        with pytest.raises(ConfigError, match="not acknowledged by the program"):
            rest[0].ack()
        plain = take(bus.subscribe("t", start="earliest"), 1)[0]
        assert plain.attempt == 0
        with pytest.raises(ConfigError, match="not acknowledged by the program"):
            plain.nack()


def test_a_batch_is_acknowledged_or_comes_again_as_a_whole(broker: Broker) -> None:
    batches: Collected[Any] = Collected()

    def handler(batch: Any) -> None:
        batches.add((batch.attempt, list(batch)))
        if len(batches) == 1:
            raise ValueError("the first one fails")

    with Bus(broker.address) as bus:
        record(bus, "t", *numbers(0, 100))
        bus.subscribe("t", handler, batch=True, durable="d", start="earliest")
        caught_up(broker, "d")
        assert batches.items[0][0] == 1
        later = [data for _, batch in batches.items[1:] for data in batch]
        assert sorted(later) == sorted(numbers(0, 100))


def test_coroutines_acknowledge_when_they_end(broker: Broker) -> None:
    seen: Collected[tuple[bytes, int]] = Collected()

    async def main() -> None:
        async with Bus(broker.address) as bus:

            async def handler(event: Event) -> None:
                seen.add((event.data, event.attempt))
                await asyncio.sleep(0)
                if event.data == b"1" and event.attempt == 1:
                    raise ValueError("once")

            await bus.subscribe_async("t", handler, durable="d", start="earliest")
            await asyncio.to_thread(caught_up, broker, "d")

    with Bus(broker.address) as bus:
        record(bus, "t", *numbers(0, 3))
        asyncio.run(main())
    assert sorted(seen.items) == [(b"0", 1), (b"1", 1), (b"1", 2), (b"2", 1)]


# --- who holds a name -----------------------------------------------------------------------------


def test_a_second_holder_is_refused_and_told_who_has_it(broker: Broker) -> None:
    with Bus(broker.address) as here, Bus(broker.address) as there:
        sub = here.subscribe("t", durable="d")
        eventually(lambda: broker._answers.durables(0), PATIENCE)
        with pytest.raises(ConfigError, match=f"held by client {here.node.id}"):
            there.subscribe("t", durable="d")
        with pytest.raises(ConfigError, match=f"held by client {here.node.id}"):
            here.subscribe("t", durable="d")
        with pytest.raises(ConfigError, match="held by client"):
            there.subscribe("t", durable="d", group="g")
        with pytest.raises(ConfigError, match="held by client"):
            there.forget("d")
        sub.close()
        record(here, "t", b"one")
        assert take(there.subscribe("t", durable="d"), 1)[0].data == b"one"


def test_a_name_can_be_forgotten(broker: Broker, path: Path) -> None:
    with Bus(broker.address) as bus:
        record(bus, "t", *numbers(0, 5))
        sub = bus.subscribe("t", durable="d", start="earliest")
        take(sub, 5)
        sub.close()
        eventually(lambda: not broker._answers.durables(0)[0]["holders"], PATIENCE)
        bus.forget("d")
        assert not list((path / "subscriptions").glob("*.json"))
        with pytest.raises(ConfigError, match="no durable subscription"):
            bus.forget("d")
        assert [event.data for event in take(bus.subscribe("t", durable="d", start="earliest"), 5)]


def test_another_filter_counts_from_the_position_on(broker: Broker) -> None:
    with Bus(broker.address) as bus:
        publisher = bus.publisher("t", record=True)
        for i in range(20):
            publisher.publish(b"%d" % i, {"n": i})
        sub = bus.subscribe("t", Events(), durable="d", start="earliest", where="n < 5")
        caught_up(broker, "d")
        sub.close()
        nobody_holds(broker, "d")  # until then what comes is judged by its filter
        for i in range(20, 40):
            publisher.publish(b"%d" % i, {"n": i})
        sub = bus.subscribe("t", durable="d", where="n > 35")
        assert [event.data for event in take(sub, 4)] == numbers(36, 40)


def test_retention_wins_over_a_name_that_lags(path: Path) -> None:
    settings = {"segment_bytes": 10_000, "keep_bytes": 30_000}
    with recording(path, **settings) as broker, Bus(broker.address) as bus:
        record(bus, "t", b"first")
        sub = bus.subscribe("t", durable="d", start="earliest")
        take(sub, 1)
        sub.close()
        eventually(lambda: not broker._answers.durables(0)[0]["holders"], PATIENCE)
        for i in range(100):
            record(bus, "t", b"%d" % i + b"." * 1000)
        sub = bus.subscribe("t", durable="d")
        seen = take(sub, 2)
        assert sum(event.missed for event in seen) > 10
        assert seen[-1].sequence > 10


def test_what_was_acknowledged_is_not_missed_when_it_is_no_longer_kept(path: Path) -> None:
    """A position may have one early event that is not acknowledged, and many behind it that are."""
    settings = {"segment_bytes": 10_000, "keep_bytes": 30_000}
    with recording(path, **settings) as broker, Bus(broker.address) as bus:
        record(bus, "t", *numbers(0, 30))
        sub = bus.subscribe("t", durable="d", start="earliest", ack="manual")
        for event in take(sub, 30)[1:]:
            event.ack()
        eventually(lambda: lag(broker, "d") == 1, PATIENCE)
    with recording(path, **settings) as broker, Bus(broker.address) as bus:
        for i in range(100):
            record(bus, "t", b"%d" % i + b"." * 1000)
        sub = bus.subscribe("t", durable="d")
        first = take(sub, 1)[0]
        # The first event, and what was recorded since and is gone.
        assert first.sequence > 31
        assert first.missed == 1 + first.sequence - 31


def processor_time(pid: int) -> int:
    """Of a process, in ticks of the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_topics_that_are_silent_cost_nothing_per_event(path: Path) -> None:
    spent = []
    for topics in (1, 3000):
        store = path / str(topics)
        path.mkdir(exist_ok=True)
        address = free_address()
        with (
            standing(address, store, fsync="none", record=["t/**"]) as broker,
            Bus(address) as here,
            Bus(address) as there,
        ):
            publishers = [here.publisher(f"t/{n}") for n in range(topics)]
            events = Events()
            there.subscribe("t/**", events, durable="d", start="earliest")
            assert all(one.wait_for_subscribers(1, PATIENCE) for one in publishers)
            publisher = publishers[topics // 2]
            publisher.publish(b"first")
            events.wait(1)
            began = processor_time(broker.pid)
            for n in range(600):  # one by one, so that each is a slice or two of its own
                publisher.publish(b"")
                events.wait(n + 2)
            spent.append(processor_time(broker.pid) - began)
    assert spent[1] <= 2 * spent[0] + 20, spent


def test_a_name_that_waits_costs_no_ticks(broker: Broker) -> None:
    with Bus(broker.address) as bus:
        record(bus, "t", *numbers(0, 10))
        waiting = Events()
        for n in range(20):
            bus.subscribe("t", waiting, durable=f"d{n}", start="earliest")
        waiting.wait(200)
        for n in range(20):
            caught_up(broker, f"d{n}")
        before, began = _turns_of_timers(), time.monotonic()
        time.sleep(1.0)
        # Every name had fifty a second once.
        assert _turns_of_timers() - before < 25 * (time.monotonic() - began)


def _turns_of_timers() -> int:
    turns = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            if (task / "comm").read_text().strip() == "ap-timer":
                status = (task / "status").read_text()
                turns += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return turns


# --- those who die --------------------------------------------------------------------------------


def subscriber(control: Control, address: str, name: str, slow: float) -> None:
    """Tells of each event of a durable subscription, before it is acknowledged."""
    import time

    from antiphon import Bus

    with Bus(address) as bus:

        def handler(event: object) -> None:
            control.tell("event", data=event.data.decode(), attempt=event.attempt)  # type: ignore[attr-defined]
            time.sleep(slow)

        control.tell("ready")  # the handler may be called before the call below returns
        bus.subscribe("t", handler, durable=name, start="earliest")
        control.hear()


def test_a_killed_subscriber_misses_nothing(broker: Broker) -> None:
    total, seen = 300, set()
    with Bus(broker.address) as bus:
        record(bus, "t", *numbers(0, total))
        for life in range(6):
            with Child(subscriber, address=broker.address, name="d", slow=0.0005) as child:
                child.expect("ready", PATIENCE)
                if life == 5:
                    while len(seen) < total:
                        seen.add(child.expect("event", PATIENCE)["data"])
                    caught_up(broker, "d")
                for _ in range(40 if life < 5 else 0):
                    seen.add(child.expect("event", PATIENCE)["data"])
                    if len(seen) == total:
                        break
                child.kill()
                # What it had told before, and perhaps acknowledged, counts.
                with contextlib.suppress(ChildFailed):
                    while True:
                        seen.add(child.hear(PATIENCE)["data"])
    assert seen == {str(i) for i in range(total)}


def test_a_subscriber_whose_connection_is_cut_misses_nothing(broker: Broker) -> None:
    events = Events()
    with Bus(broker.address) as bus, Proxy(broker.address) as proxy, Bus(proxy.address) as behind:
        publisher = bus.publisher("t", record=True)
        behind.subscribe("t", events, durable="d", start="earliest")
        for i in range(2000):
            publisher.publish(b"%d" % i)
            if i % 500 == 250:
                proxy.cut()
        publisher.flush(PATIENCE)
        caught_up(broker, "d")
        assert set(events.data) == set(numbers(0, 2000))


def test_a_killed_broker_hands_out_again_what_it_has_not_noted(path: Path) -> None:
    address = free_address()
    events = Events()
    with Bus(address) as here, Bus(address) as there:
        for life in range(4):
            with standing(address, path, fsync="none") as broker:
                if life == 0:
                    publisher = here.publisher("t", record=True)
                    there.subscribe("t", events, durable="d", start="earliest")
                publisher.publish_many(numbers(life * 500, life * 500 + 500))
                publisher.flush(PATIENCE)
                eventually(lambda: len(set(events.data)) >= life * 500 + 250, PATIENCE)  # noqa: B023
                broker.kill()
        with standing(address, path, fsync="none"):
            eventually(lambda: len(set(events.data)) == 2000, PATIENCE)
    assert set(events.data) == set(numbers(0, 2000))


def test_what_waits_without_an_acknowledgement_is_bounded(broker: Broker) -> None:
    opened = threading.Event()
    with Bus(broker.address) as bus:
        record(bus, "t", *numbers(0, 20_000))
        bus.subscribe(
            "t",
            lambda event: opened.wait(PATIENCE),
            durable="d",
            start="earliest",
            capacity=100,
        )

        def out() -> list[int]:
            return [one["counts"].get("out", 0) for one in broker._answers.durables(0)]

        eventually(lambda: out() == [100], PATIENCE)
        time.sleep(0.1)
        assert out() == [100]
        opened.set()
        caught_up(broker, "d")
