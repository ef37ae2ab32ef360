"""A receiver that is too slow: wait for it, skip what it cannot take, or let it drop.

The receiver handles about 1,000 messages a second and lets 64 wait. What happens to the sender?
"""

import time

import antiphon

BLOCK, NEWEST = 200, 201

slow = antiphon.Node(1)
fast = antiphon.Node(2)
newest: list[int] = []


def take_your_time(_: int, data: bytes) -> None:
    time.sleep(0.001)


def remember(_: int, data: bytes) -> None:
    time.sleep(0.001)
    newest.append(int(data))


slow.on(BLOCK, take_your_time, capacity=64)
slow.on(NEWEST, remember, capacity=64, when_full="drop_oldest")

with slow, fast:
    fast.add_peer(1, slow.address)
    fast.send(1, b"first", kind=BLOCK)  # connects

    began = time.monotonic()
    for _ in range(300):
        fast.send(1, b"x", kind=BLOCK)
    print(f"send waits: 300 messages took {time.monotonic() - began:.2f} s")

    sent = sum(fast.try_send(1, b"x", kind=BLOCK) for _ in range(300))
    print(f"try_send never waits: {sent} of 300 went, the others are the caller's to keep or lose")

    began = time.monotonic()
    for number in range(3000):
        fast.send(1, str(number).encode(), kind=NEWEST)
    print(f"drop_oldest holds nobody up: 3000 in {time.monotonic() - began:.2f} s")
    fast.flush(timeout=20.0)
    print(f"{len(newest)} of them were handled, the last is {newest[-1]}")
    print(f"counted as dropped: {slow.statistics().drops['queue_full']}")
