"""Events by the batch: what an `EventBatch` holds, and that it holds events of one topic only."""

from __future__ import annotations

import itertools
import time
from array import array

import pyarrow as pa
import pytest

from antiphon import Batch
from antiphon.testing import Child, Collected, Control, eventually
from antiphon.topics import Bus, EventBatch
from integration.buses import PATIENCE, HeldBatches, came, serves
from unit.node.pairs import numbered, pattern

pytestmark = pytest.mark.timeout(60)


class Batches(Collected[EventBatch]):
    """A batch handler that keeps what it was given."""

    def __call__(self, batch: EventBatch) -> None:
        self.add(batch)

    @property
    def data(self) -> list[bytes]:
        return [one for batch in self.items for one in batch]

    @property
    def sequences(self) -> list[int]:
        return [number for batch in self.items for number in batch.sequences]

    def wait(self, count: int) -> list[EventBatch]:
        """All batches, once they hold so many events; a failure if they hold more."""
        eventually(lambda: sum(map(len, self.items)) >= count, PATIENCE, f"{count} events")
        assert sum(map(len, self.items)) == count
        return self.items


def test_a_batch_has_everything_that_is_known_of_its_events(channel: str) -> None:
    with Bus(channel) as here, Bus(channel) as there, HeldBatches() as held:
        subscription = there.subscribe("plant/*", held, batch=True)
        publisher = here.publisher("plant/7")
        serves(publisher)
        before = time.time_ns()
        publisher.publish(b"first")
        assert held.entered.wait(PATIENCE)  # the rest is gathered behind it
        publisher.publish_many(numbered(100))
        here_then = time.time_ns()
        eventually(lambda: subscription.pending == 100, PATIENCE, "all wait")
        held.open()
        eventually(lambda: sum(map(len, held.batches.items)) == 101, PATIENCE)
        batches = held.batches.items
        assert len(batches) == 2
        batch = batches[1]
        assert isinstance(batch, Batch)
        assert isinstance(batch, EventBatch)
        assert len(batch) == 100
        assert batch.topic == "plant/7"
        assert (batch[0], batch[99], batch[-1]) == (b"0", b"99", b"99")
        with pytest.raises(IndexError):
            batch[100]
        assert list(batch) == numbered(100)
        assert bytes(batch.data) == b"".join(numbered(100))
        offsets = list(batch.offsets)
        assert (len(offsets), offsets[0], offsets[-1]) == (101, 0, len(batch.data))
        cut = [bytes(batch.data[low:high]) for low, high in itertools.pairwise(offsets)]
        assert cut == numbered(100)
        assert list(batch.sequences) == list(range(2, 102))
        assert list(batch.sources) == [here.node.id] * 100
        times = list(batch.times_ns)
        assert len(times) == 100
        assert before <= min(times) <= max(times) <= here_then
        assert batch.properties == [{}] * 100
        assert batch.missed == 0


def test_a_batch_becomes_an_arrow_array_and_numpy_can_read_its_columns(channel: str) -> None:
    batches = Batches()
    with Bus(channel) as here, Bus(channel) as there:
        there.subscribe("a", batches, batch=True)
        publisher = here.publisher("a")
        serves(publisher)
        sent = [b"", b"x", pattern(1000), b"", b"end"] * 50
        publisher.publish_many(sent)
        batches.wait(250)
        arrays = [batch.to_arrow() for batch in batches.items]
        assert all(isinstance(one, pa.BinaryArray) for one in arrays)
        assert [value.as_py() for one in arrays for value in one] == sent
        columns = batches.items[0]
        assert memoryview(columns.sequences).format == "Q"
        assert memoryview(columns.times_ns).format == "q"
        assert memoryview(columns.sources).format == "H"
        assert memoryview(columns.data).readonly


def test_a_batch_outlives_its_handler_and_its_bus(channel: str) -> None:
    batches = Batches()
    with Bus(channel) as here, Bus(channel) as there:
        there.subscribe("a", batches, batch=True)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish(b"x" * 1000, {"site": "A"})
        (batch,) = batches.wait(1)
        sequences, data, arrow = batch.sequences, batch.data, batch.to_arrow()
        # Whatever buffer it came in is used again by these.
        publisher.publish_many([b"y" * 1000] * 2000)
        batches.wait(2001)
    assert (batch[0], bytes(data), arrow[0].as_py()) == (b"x" * 1000,) * 3
    assert list(sequences) == [1]
    assert batch.properties == [{"site": "A"}]
    assert batch.topic == "a"


def test_properties_in_a_batch_stand_at_their_events(channel: str) -> None:
    with Bus(channel) as here, Bus(channel) as there, HeldBatches() as held:
        subscription = there.subscribe("a", held, batch=True)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish(b"0")
        assert held.entered.wait(PATIENCE)
        for number in range(1, 60):
            properties = None if number % 3 == 0 else {"number": number, "even": number % 2 == 0}
            publisher.publish(b"%d" % number, properties)
        eventually(lambda: subscription.pending == 59, PATIENCE, "all wait")
        held.open()
        eventually(lambda: sum(map(len, held.batches.items)) == 60, PATIENCE)
        batches = held.batches.items
        assert [one for batch in batches for one in batch] == numbered(60)
        found = [properties for batch in batches for properties in batch.properties]
        assert found[1:] == [
            {} if number % 3 == 0 else {"number": number, "even": number % 2 == 0}
            for number in range(1, 60)
        ]
        assert max(map(len, batches)) > 1


@pytest.mark.parametrize("how", ["publish", "publish_many"])
def test_a_batch_has_one_topic_also_with_wildcards(channel: str, how: str) -> None:
    """Two topics of one node, in turns: whatever lies side by side in the queue is told apart."""
    with Bus(channel) as here, Bus(channel) as there, HeldBatches() as held:
        there.subscribe("plant/*", held, batch=True)
        publishers = {name: here.publisher(f"plant/{name}") for name in ("a", "b")}
        for publisher in publishers.values():
            serves(publisher)
        publishers["a"].publish(b"a first")
        assert held.entered.wait(PATIENCE)
        sent: dict[str, list[bytes]] = {"a": [b"a first"], "b": []}
        for round_ in range(100):
            for name, publisher in publishers.items():
                data = [f"{name} {round_} {number}".encode() for number in range(1 + round_ % 3)]
                if how == "publish":
                    for one in data:
                        publisher.publish(one)
                else:
                    publisher.publish_many(data)
                sent[name] += data
        held.open()
        total = sum(map(len, sent.values()))
        eventually(lambda: sum(map(len, held.batches.items)) == total, PATIENCE)
        for batch in held.batches.items:
            assert {one[:1].decode() for one in batch} == {batch.topic.removeprefix("plant/")}
        for name, data in sent.items():
            of_topic = [one for one in held.batches.items if one.topic == f"plant/{name}"]
            assert [one for batch in of_topic for one in batch] == data
            sequences = [number for batch in of_topic for number in batch.sequences]
            assert sequences == list(range(1, len(data) + 1))
            assert {batch.missed for batch in of_topic} <= {0}


def packer(control: Control, address: str, count: int) -> None:
    from array import array

    from antiphon.topics import Bus

    with Bus(address) as bus:
        publisher = bus.publisher("a")
        assert publisher.wait_for_subscribers(1, 20.0)
        data = b"".join(b"%07d" % number for number in range(count))
        publisher.publish_packed(data, array("i", range(0, len(data) + 1, 7)))
        control.tell("published")
        control.hear()


def test_a_hundred_thousand_packed_events_of_another_process_come_in_batches(channel: str) -> None:
    count = 100_000
    batches = Batches()
    with Bus(channel) as bus, Child(packer, address=channel, count=count) as child:
        bus.subscribe("a", batches, batch=True)
        child.expect("published", PATIENCE)
        came = batches.wait(count)
        assert b"".join(bytes(batch.data) for batch in came) == b"".join(
            b"%07d" % number for number in range(count)
        )
        assert batches.sequences == list(range(1, count + 1))
        assert {batch.missed for batch in came} == {0}
        assert len(came) < count / 10


def test_a_large_event_comes_in_a_batch_too(channel: str) -> None:
    sent = [b"small", pattern(5_000_000), b"", pattern(700_000, 3)]
    batches = Batches()
    with Bus(channel) as here, Bus(channel) as there:
        there.subscribe("a", batches, batch=True)
        publisher = here.publisher("a")
        serves(publisher)
        for number, data in enumerate(sent):
            publisher.publish(data, {"number": number})
        batches.wait(len(sent))
        assert batches.data == sent
        assert batches.sequences == [1, 2, 3, 4]
        found = [properties for batch in batches.items for properties in batch.properties]
        assert found == [{"number": number} for number in range(4)]


def test_batches_of_several_publishers_are_complete_and_in_each_ones_order(channel: str) -> None:
    batches = Batches()
    with Bus(channel) as first, Bus(channel) as second, Bus(channel) as there:
        there.subscribe("*", batches, batch=True)
        publishers = [first.publisher("a"), first.publisher("b"), second.publisher("a")]
        for publisher in publishers:
            serves(publisher)
        for round_ in range(50):
            for who, publisher in enumerate(publishers):
                publisher.publish_many([b"%d %d" % (who, 20 * round_ + one) for one in range(20)])
        came = batches.wait(3000)
        for who, publisher in enumerate(publishers):
            mine = [one for one in batches.data if one.startswith(b"%d " % who)]
            assert mine == [b"%d %d" % (who, number) for number in range(1000)]
            node = (second if who == 2 else first).node.id
            for batch in came:
                if batch[0].startswith(b"%d " % who):
                    assert set(batch.sources) == {node}
                    assert batch.topic == publisher.topic


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest"])
def test_what_a_full_queue_of_batches_lost_is_told_by_the_next_ones(
    channel: str, policy: str
) -> None:
    count, capacity = 1000, 100
    with Bus(channel) as here, Bus(channel) as there, HeldBatches() as held:
        subscription = there.subscribe("a", held, batch=True, capacity=capacity, when_full=policy)
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish(b"first")
        assert held.entered.wait(PATIENCE)
        for number in range(count):
            publisher.publish(b"%d" % number)
        dropped = count - capacity
        came(subscription, count + 1, dropped=dropped)
        held.open()
        eventually(lambda: sum(map(len, held.batches.items)) == 1 + capacity, PATIENCE)
        publisher.publish(b"last")
        eventually(lambda: sum(map(len, held.batches.items)) == 2 + capacity, PATIENCE)
        got = [one for batch in held.batches.items for one in batch]
        kept = numbered(count)[-capacity:] if policy == "drop_oldest" else numbered(capacity)
        assert got == [b"first", *kept, b"last"]
        missed = [batch.missed for batch in held.batches.items]
        assert sum(missed) == dropped
        # Just before what came next: behind the first, or before the last.
        assert (missed[1] if policy == "drop_oldest" else missed[-1]) == dropped
        assert subscription.statistics()["missed"] == dropped


def test_packed_events_that_fill_the_queue_are_cut_to_the_event(channel: str) -> None:
    count, capacity = 5000, 33
    with Bus(channel) as here, Bus(channel) as there, HeldBatches() as held:
        subscription = there.subscribe(
            "a", held, batch=True, capacity=capacity, when_full="drop_oldest"
        )
        publisher = here.publisher("a")
        serves(publisher)
        publisher.publish(b"first")
        assert held.entered.wait(PATIENCE)
        data = b"".join(b"%05d" % number for number in range(count))
        publisher.publish_packed(data, array("q", range(0, len(data) + 1, 5)))
        came(subscription, count + 1, dropped=count - capacity)
        held.open()
        eventually(lambda: sum(map(len, held.batches.items)) == 1 + capacity, PATIENCE)
        got = [one for batch in held.batches.items for one in batch]
        assert got[1:] == [b"%05d" % number for number in range(count - capacity, count)]
        assert sum(batch.missed for batch in held.batches.items) == count - capacity
