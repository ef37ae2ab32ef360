"""Several processes, each sending to every other: the first tells all where the others are."""

import multiprocessing
import threading
from multiprocessing.synchronize import Barrier

import antiphon

DATA, WORKERS, MESSAGES = 200, 4, 20_000


class Here(antiphon.Message, kind=100):
    address: str


class Everyone(antiphon.Message, kind=101):
    addresses: dict[int, str]


def work(own: int, coordinator: str, all_done: Barrier) -> None:
    node = antiphon.Node(own, peers={1: coordinator})
    everyone = node.inbox(Everyone)
    received = 0
    complete = threading.Event()

    @node.on(DATA, batch=True)
    def count(_: int, batch: antiphon.Batch) -> None:
        nonlocal received
        received += len(batch)
        if received == MESSAGES * (WORKERS - 1):  # from everyone but me
            complete.set()

    with node:
        node.send(1, Here(node.address))
        _, book = everyone.receive(timeout=30.0)
        others = [peer for peer in book.addresses if peer != own]
        for peer in others:
            node.add_peer(peer, book.addresses[peer])
        for _ in range(MESSAGES // 1000):
            for peer in others:
                node.send_many(peer, [b"x" * 64] * 1000, kind=DATA)
        complete.wait(30.0)
        all_done.wait(30.0)  # what I sent last may still be on its way
    print(f"node {own} received {received} messages")


def main() -> None:
    node = antiphon.Node(1)
    here = node.inbox(Here)
    spawn = multiprocessing.get_context("spawn")
    with node:
        ids = range(2, 2 + WORKERS)
        shared = (node.address, spawn.Barrier(WORKERS))
        processes = [spawn.Process(target=work, args=(own, *shared)) for own in ids]
        for process in processes:
            process.start()
        book = dict(here.receive(timeout=30.0) for _ in ids)
        node.send(ids, Everyone({own: message.address for own, message in book.items()}))
        for process in processes:
            process.join(40)


if __name__ == "__main__":
    main()
