"""Messages that carry their number, and processes that check every one of them.

A message is 64 bytes: its number (u64, little-endian), its lane (u64: which of several series of
one sender), and 48 fixed bytes. All of them are compared, not the number alone. The functions here
run in processes of their own (`antiphon.testing.Child`), hence their own imports.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from antiphon.testing import Child, Control

KIND = 200
SIZE = 64
REST = bytes(range(100, 148))
NUMBERED = struct.Struct("<QQ48s")


def receiver(
    control: Control, id: int, way: str = "callback", listen: str = "tcp://127.0.0.1:0"
) -> None:
    """Takes messages of any number of senders and lanes; tells what it has counted when asked.

    ``wrong`` says what came instead of what was next: (source, lane, wanted, got).
    """
    import struct
    import threading

    import antiphon

    numbered = struct.Struct("<QQ48s")
    rest = bytes(range(100, 148))
    unpack = numbered.unpack
    wanted: dict[tuple[int, int], int] = {}
    first: dict[tuple[int, int], int] = {}
    wrong: list[Any] = []

    def check(source: int, data: bytes) -> None:
        number, lane, tail = unpack(data)
        series = source, lane
        want = wanted.get(series)
        if want is None:
            first[series] = want = number
        if number != want or tail != rest:
            wrong.append([source, lane, want, number, tail.hex()])
        wanted[series] = number + 1

    def check_batch(source: int, batch: antiphon.Batch) -> None:
        for data in batch:
            check(source, data)

    # Before the start: senders of its earlier life are waiting for its port.
    node = antiphon.Node(id, listen=listen)
    if way == "callback":
        node.on(200, check)
    elif way == "batch":
        node.on(200, check_batch, batch=True)
    else:
        inbox = node.inbox(200)

    def pull() -> None:
        for source, data in inbox:
            check(source, data)

    with node:
        if way == "inbox":
            threading.Thread(target=pull).start()
        control.tell("ready", address=node.address)
        while control.hear()["order"] == "count":
            counted = [[*series, first[series], end] for series, end in list(wanted.items())]
            statistics = node.statistics()
            control.tell(
                "count",
                counted=counted,
                wrong=wrong[:5],
                messages_in=statistics.messages_in,
                drops=dict(statistics.drops),
            )


def block_receiver(control: Control, id: int) -> None:
    """Compares whole batches of one sender at once, at the speed of memory."""
    import struct
    from array import array

    import antiphon

    size = 64
    block = 65536
    rest = bytes(range(100, 148))
    expected = bytearray(b"".join(struct.pack("<QQ48s", i, 0, rest) for i in range(block)))
    words = memoryview(expected).cast("Q")
    starts = memoryview(array("i", range(0, (block + 1) * size, size)))
    got = 0
    wrong: list[Any] = []

    def check(source: int, batch: antiphon.Batch) -> None:
        nonlocal got
        count = len(batch)
        data, offsets = batch.data, batch.offsets
        if source != 1 or offsets != starts[: count + 1]:
            wrong.append(["offsets", source, count, got, offsets[: count + 1].tolist()[:5]])
            return
        data = data.cast("Q")
        at = 0
        while at < count:
            begin = got % block
            part = min(count - at, block - begin)
            if data[8 * at : 8 * (at + part)] != words[8 * begin : 8 * (begin + part)]:
                wrong.append(["numbers", source, part, got, data[8 * at : 8 * (at + part) : 8][0]])
            at += part
            got += part
            if got % block == 0:
                # The low 16 bits of the numbers stay; the rest is the same for a whole block.
                for byte, value in enumerate((got // block).to_bytes(6, "little"), 2):
                    if expected[byte] != value:
                        expected[byte::size] = bytes([value]) * block

    node = antiphon.Node(id)
    node.on(200, check, batch=True)
    with node:
        control.tell("ready", address=node.address)
        while control.hear()["order"] == "count":
            statistics = node.statistics()
            control.tell(
                "count",
                counted=[[1, 0, 0, got]],
                wrong=wrong[:5],
                messages_in=statistics.messages_in,
                drops=dict(statistics.drops),
            )


def sender(
    control: Control,
    target: str,
    total: int,
    id: int = 1,
    to: int = 2,
    ways: tuple[str, ...] = ("send",),
) -> None:
    """Sends ``total`` messages on each lane; a lane is a thread, and its way is in ``ways``."""
    import struct
    import threading
    from array import array

    import antiphon

    size = 64
    block = 65536
    rest = bytes(range(100, 148))
    # Primes among them, so that calls begin and end anywhere in buffers, rings and windows.
    steps = (1, 1009, 3, 4096, 17, 16384, 1024, 127, 8191)

    def by_send(lane: int) -> None:
        send, pack = node.send, struct.Struct("<QQ48s").pack
        for number in range(total):
            send(to, pack(number, lane, rest), kind=200)

    def by_block(lane: int, many: bool) -> None:
        data = bytearray(b"".join(struct.pack("<QQ48s", i, lane, rest) for i in range(block)))
        view = memoryview(data)
        starts = memoryview(array("i", range(0, (block + 1) * size, size)))
        sent = turn = 0
        while sent < total:
            begin = sent % block
            count = min(steps[turn % len(steps)], block - begin, total - sent)
            turn += 1
            part = view[begin * size : (begin + count) * size]
            if many:
                messages = [message for (message,) in struct.iter_unpack("64s", part)]
                node.send_many(to, messages, kind=200)
            else:
                node.send_packed(to, part, starts[: count + 1], kind=200)
            sent += count
            if sent % block == 0:
                for byte, value in enumerate((sent // block).to_bytes(6, "little"), 2):
                    if data[byte] != value:
                        data[byte::size] = bytes([value]) * block

    def run(lane: int, way: str) -> None:
        try:
            if way == "send":
                by_send(lane)
            else:
                by_block(lane, way == "send_many")
        except BaseException as error:
            failed.append(repr(error))

    failed: list[str] = []
    with antiphon.Node(id, peers={to: target}) as node:
        threads = [threading.Thread(target=run, args=lane) for lane in enumerate(ways)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        node.flush(60)
        statistics = node.statistics()
        control.tell(
            "done",
            failed=failed,
            messages_out=statistics.messages_out,
            drops=dict(statistics.drops),
        )
        control.hear()


NO_DROPS = {"unknown_kind": 0, "queue_full": 0, "handler_failed": 0, "unconfirmed": 0}


def counted(child: Child, timeout: float = 30.0) -> dict[str, Any]:
    """What a receiver has counted, every message as it should be."""
    child.tell("count")
    told = child.expect("count", timeout)
    assert told["wrong"] == []
    assert {**told["drops"], "unconfirmed": 0} == NO_DROPS
    return told


Count = Callable[[int, int], int]
