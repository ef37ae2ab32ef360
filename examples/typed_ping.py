"""Typed messages between two processes: ping, pong, and how long a round trip takes."""

import multiprocessing
import statistics
import threading
import time

import antiphon


class Ping(antiphon.Message, kind=100):
    seq: int
    text: str = ""


class Pong(antiphon.Message, kind=101):
    seq: int


def echo(address: str) -> None:
    """The other process: answers until the first one goes away."""
    node = antiphon.Node(2, peers={1: address})
    gone = threading.Event()

    @node.on(Ping)
    def answer(source: int, ping: Ping) -> None:
        node.send(source, Pong(ping.seq))  # handlers may send

    @node.on_disconnected
    def leave(peer: int, reason: str) -> None:
        gone.set()

    with node:
        node.send(1, Pong(-1))  # I am here; this also opens the connection
        gone.wait(30)


def main() -> None:
    node = antiphon.Node(1)
    pongs = node.inbox(Pong)
    with node:
        # Spawn, not fork: a forked child would inherit a node that it cannot use.
        other = multiprocessing.get_context("spawn").Process(target=echo, args=(node.address,))
        other.start()
        pongs.receive(timeout=20.0)
        times = []
        for seq in range(500):
            began = time.perf_counter()
            node.send(2, Ping(seq, text="are you there?"))
            _, pong = pongs.receive(timeout=5.0)
            times.append(time.perf_counter() - began)
            assert pong.seq == seq
        print(f"{len(times)} round trips, median {statistics.median(times) * 1e6:.0f} us")
    other.join(20)


if __name__ == "__main__":
    main()
