"""A pipeline of batches: source, filter, sink. Arrow arrays in and out, no object per message.

Needs pyarrow: pip install 'antiphon[lab]'.
"""

import threading

import pyarrow as pa
import pyarrow.compute as pc

import antiphon

READINGS, WARM = 200, 201
ROWS, BLOCKS = 10_000, 20


def send_array(node: antiphon.Node, target: int, array: pa.BinaryArray, kind: int) -> None:
    """The array's own buffers, without a copy in Python. Slices begin at their offset."""
    _, offsets, data = array.buffers()
    first = array.offset
    int32 = memoryview(offsets).cast("i")[first : first + len(array) + 1]
    node.send_packed(target, data, int32, kind=kind)


source = antiphon.Node(1)
filtering = antiphon.Node(2)
sink = antiphon.Node(3)
received = 0
complete = threading.Event()


@filtering.on(READINGS, batch=True)
def keep_warm(_: int, batch: antiphon.Batch) -> None:
    array = batch.to_arrow()  # over the receive buffer itself
    send_array(filtering, 3, array.filter(pc.starts_with(array, "warm")), WARM)


@sink.on(WARM, batch=True)
def count(_: int, batch: antiphon.Batch) -> None:
    global received
    received += len(batch)
    if received == ROWS // 2 * BLOCKS:
        complete.set()


with sink, filtering, source:
    source.add_peer(2, filtering.address)
    filtering.add_peer(3, sink.address)
    block = pa.array([b"warm %d" % i if i % 2 else b"cold %d" % i for i in range(ROWS)])
    for _ in range(BLOCKS):
        send_array(source, 2, block, READINGS)
    assert complete.wait(20.0), f"only {received} arrived"
    print(f"sent {ROWS * BLOCKS}, kept {received}")
