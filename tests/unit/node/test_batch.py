"""Batches: many messages as one buffer and offsets, for as long as somebody holds them."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import threading
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from antiphon import Batch, ConfigError, Node
from unit.node.pairs import HERE, KIND, THERE, eventually, nodes, numbered, pattern

pytestmark = pytest.mark.timeout(20)

pyarrow = pytest.importorskip("pyarrow", reason="to_arrow needs pyarrow")

MESSAGES = [b"one", b"", b"three", b"\x00\xff", b""]


def by_many(here: Node, messages: list[bytes]) -> None:
    here.send_many(THERE, messages, kind=KIND)


def by_packed(here: Node, messages: list[bytes]) -> None:
    offsets = array("i", [0])
    for message in messages:
        offsets.append(offsets[-1] + len(message))
    here.send_packed(THERE, b"".join(messages), offsets, kind=KIND)


def one_by_one(here: Node, messages: list[bytes]) -> None:
    for message in messages:
        here.send(THERE, message, kind=KIND)


WAYS = {"send_many": by_many, "send_packed": by_packed, "send": one_by_one}
way = pytest.mark.parametrize("send", WAYS.values(), ids=WAYS)


def collect(messages: list[bytes], send: Callable[[Node, list[bytes]], None]) -> list[Batch]:
    """The batches in which the messages come; the nodes are closed when this returns."""
    batches: list[Batch] = []
    with nodes() as (here, there):
        there.on(KIND, lambda source, batch: batches.append(batch), batch=True)
        send(here, messages)
        here.flush()
    return batches


@pytest.fixture(scope="module")
def batch() -> Batch:
    """One batch of MESSAGES, kept after its node was closed."""
    (only,) = collect(MESSAGES, by_many)
    return only


@way
def test_batches_hold_what_was_sent_in_order(
    send: Callable[[Node, list[bytes]], None],
) -> None:
    messages = numbered(1000)
    batches = collect(messages, send)
    assert [message for batch in batches for message in batch] == messages


@way
def test_one_message_is_a_batch_of_one(send: Callable[[Node, list[bytes]], None]) -> None:
    (only,) = collect([b"alone"], send)
    assert len(only) == 1
    assert list(only) == [b"alone"]


@way
def test_messages_without_bytes_are_counted_like_others(
    send: Callable[[Node, list[bytes]], None],
) -> None:
    batches = collect([b""] * 50, send)
    assert sum(len(batch) for batch in batches) == 50
    assert {bytes(message) for batch in batches for message in batch} == {b""}
    assert all(len(batch.data) == 0 for batch in batches)


def test_what_went_in_one_packed_frame_comes_as_one_batch() -> None:
    assert [len(batch) for batch in collect(numbered(100), by_packed)] == [100]
    assert [len(batch) for batch in collect(numbered(100), by_many)] == [100]


def test_a_batch_has_one_source() -> None:
    seen: list[tuple[int, list[bytes]]] = []
    with nodes() as (here, there), Node(7, peers={THERE: there.address}) as third:
        there.on(KIND, lambda source, batch: seen.append((source, list(batch))), batch=True)
        barrier = threading.Barrier(2)

        def send(node: Node) -> None:
            barrier.wait(5)
            for _ in range(50):
                node.send_many(THERE, [b"%d" % node.id] * 10, kind=KIND)

        threads = [threading.Thread(target=send, args=(node,)) for node in (here, third)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        here.flush()
        third.flush()
    assert all(set(batch) == {b"%d" % source} for source, batch in seen)
    assert sum(len(batch) for source, batch in seen if source == HERE) == 500
    assert sum(len(batch) for source, batch in seen if source == 7) == 500


def test_length_iteration_and_indexing_agree(batch: Batch) -> None:
    assert len(batch) == len(MESSAGES)
    assert list(batch) == MESSAGES
    assert [batch[i] for i in range(len(batch))] == MESSAGES
    assert all(type(message) is bytes for message in batch)


def test_a_negative_index_counts_from_the_end(batch: Batch) -> None:
    assert [batch[-i] for i in range(1, 6)] == MESSAGES[::-1]


@pytest.mark.parametrize("index", [5, 6, -6, -7, 2**31, 2**62, -(2**62)])
def test_an_index_outside_raises_index_error(batch: Batch, index: int) -> None:
    with pytest.raises(IndexError):
        batch[index]


@pytest.mark.parametrize("index", ["0", 1.0, None])
def test_an_index_that_is_no_number_is_a_type_error(batch: Batch, index: Any) -> None:
    with pytest.raises(TypeError):
        batch[index]


def test_membership_and_reversal_work_as_with_a_list(batch: Batch) -> None:
    assert b"three" in batch
    assert b"four" not in batch
    assert list(reversed(batch)) == MESSAGES[::-1]  # type: ignore[call-overload]


def test_two_iterations_do_not_disturb_each_other(batch: Batch) -> None:
    first, second = iter(batch), iter(batch)
    assert next(first) == b"one"
    assert next(first) == b""
    assert next(second) == b"one"
    assert next(first) == b"three"


def test_data_is_all_payloads_without_a_gap_and_read_only(batch: Batch) -> None:
    assert isinstance(batch.data, memoryview)
    assert batch.data.tobytes() == b"".join(MESSAGES)
    assert batch.data.nbytes == sum(map(len, MESSAGES))
    assert batch.data.readonly
    assert batch.data.contiguous
    with pytest.raises(TypeError):
        batch.data[0] = 0


def test_offsets_are_one_int32_more_than_messages_and_read_only(batch: Batch) -> None:
    offsets = batch.offsets
    assert isinstance(offsets, memoryview)
    assert (offsets.format, offsets.itemsize, offsets.shape) == ("i", 4, (6,))
    assert offsets.tolist() == [0, 3, 3, 8, 10, 10]
    assert offsets.readonly
    with pytest.raises(TypeError):
        offsets[0] = 1


def test_offsets_cut_data_into_the_messages(batch: Batch) -> None:
    ends = batch.offsets.tolist()
    cut = [batch.data[a:b].tobytes() for a, b in itertools.pairwise(ends)]
    assert cut == MESSAGES


def test_offsets_can_be_read_as_plain_bytes_too(batch: Batch) -> None:
    assert bytes(batch.offsets) == array("i", [0, 3, 3, 8, 10, 10]).tobytes()
    assert memoryview(batch.offsets).cast("B").nbytes == 24


@way
def test_the_buffers_of_every_batch_fit_each_other(
    send: Callable[[Node, list[bytes]], None],
) -> None:
    for kept in collect([pattern(size) for size in range(200)], send):
        ends = kept.offsets.tolist()
        assert ends[0] == 0
        assert ends[-1] == kept.data.nbytes
        assert [kept.data[a:b].tobytes() for a, b in itertools.pairwise(ends)] == list(kept)


def test_to_arrow_is_a_binary_array_of_the_messages(batch: Batch) -> None:
    column = batch.to_arrow()
    assert isinstance(column, pyarrow.BinaryArray)
    column.validate(full=True)
    assert column.null_count == 0
    assert column.to_pylist() == MESSAGES


def test_to_arrow_takes_the_memory_as_it_is(batch: Batch) -> None:
    buffers = batch.to_arrow().buffers()
    assert buffers[2].address == pyarrow.py_buffer(batch.data).address
    assert buffers[1].address == pyarrow.py_buffer(batch.offsets).address


def test_an_arrow_array_outlives_its_batch() -> None:
    (kept,) = collect(MESSAGES, by_packed)
    column = kept.to_arrow()
    del kept
    gc.collect()
    assert column.to_pylist() == MESSAGES


def test_views_outlive_their_batch() -> None:
    (kept,) = collect(MESSAGES, by_packed)
    data, offsets = kept.data, kept.offsets
    del kept
    gc.collect()
    assert data.tobytes() == b"".join(MESSAGES)
    assert offsets.tolist() == [0, 3, 3, 8, 10, 10]


@way
def test_batches_that_are_kept_stay_whole_while_traffic_goes_on(
    send: Callable[[Node, list[bytes]], None],
) -> None:
    kept: list[Batch] = []
    with nodes() as (here, there):
        there.on(KIND, lambda source, batch: kept.append(batch), batch=True)
        for turn in range(200):
            send(here, [b"%d:%d" % (turn, i) for i in range(50)])
        here.flush()
        inside = [message for batch in kept for message in batch]
    outside = [message for batch in kept for message in batch]
    assert inside == outside == [b"%d:%d" % (turn, i) for turn in range(200) for i in range(50)]


def test_a_large_message_is_a_batch_of_one() -> None:
    message = pattern(3_000_000)
    (only,) = collect([message], one_by_one)
    assert len(only) == 1
    assert only[0] == message
    assert only.data.tobytes() == message


def test_holding_many_batches_does_not_stop_the_node() -> None:
    # More than the pool's bound of receive buffers is kept: the library copies then.
    message = pattern(60_000)
    kept: list[Batch] = []
    with nodes() as (here, there):
        there.on(KIND, lambda source, batch: kept.append(batch), batch=True)
        bound = there.statistics().buffer_bytes_bound
        count = int(bound * 1.2) // (2 * len(message)) + 1
        for _ in range(count):
            here.send_many(THERE, [message, message], kind=KIND)
        here.flush(15)
        pinned = there.statistics().pinned_bytes
        assert pinned <= bound // 2
        assert sum(len(batch) for batch in kept) == 2 * count
        assert all(one == message for batch in kept for one in batch)
        kept.clear()
        eventually(lambda: there.statistics().pinned_bytes == 0)


def test_a_batch_cannot_be_pickled_and_says_what_to_pass(batch: Batch) -> None:
    for refuse in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="to_arrow"):
            refuse(batch)


def test_a_batch_cannot_be_made_by_hand() -> None:
    with pytest.raises(TypeError):
        Batch()


def test_a_batch_can_be_sent_on_as_it_is() -> None:
    (kept,) = collect(MESSAGES, by_many)

    def forward(here: Node, messages: list[bytes]) -> None:
        here.send_packed(THERE, kept.data, kept.offsets, kind=KIND)

    (forwarded,) = collect(MESSAGES, forward)
    assert list(forwarded) == MESSAGES


def test_to_arrow_without_pyarrow_says_what_to_install(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="pip install"):
        batch.to_arrow()
