"""Who does the work that only one may do? The first member of a group, and then the next.

Three processes join a group. The coordinator hands out numbers to all; then it is killed, and the
next one goes on from the last number that it has seen. That may be one that others have not seen,
or not the last one that somebody has: what was under way when a sender dies reaches some or none.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait

import antiphon


def member(name: str, told: Connection) -> None:
    last = 0
    group = antiphon.Group("coordinator-example", member_name=name)

    @group.on_message
    def take(source: antiphon.Member, data: bytes) -> None:
        nonlocal last
        last = int(data)

    with group:
        while True:
            time.sleep(0.05)
            if group.view.coordinator == group.me and len(group.members) > 1:
                group.send(str(last + 1).encode())
                told.send((name, last + 1))


def heard(ends: list[Connection]) -> Iterator[tuple[str, int]]:
    while True:
        for end in wait(ends, timeout=60):
            assert isinstance(end, Connection)
            try:
                yield end.recv()
            except EOFError:  # it was killed
                ends.remove(end)


def main() -> None:
    context = multiprocessing.get_context("spawn")
    ends, processes = [], {}
    for name in ("anna", "bert", "carl"):
        end, told = context.Pipe(duplex=False)
        processes[name] = context.Process(target=member, args=(name, told), daemon=True)
        processes[name].start()
        told.close()
        ends.append(end)
    numbers = heard(ends)
    coordinator, number = next(numbers)
    while number < 10:
        coordinator, number = next(numbers)
    print(f"{coordinator} coordinates, and is at {number}")
    pid = processes[coordinator].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    successor = coordinator
    while successor == coordinator:
        successor, number = next(numbers)
    print(f"{coordinator} was killed; {successor} goes on with {number}")
    print(f"nobody coordinated for {time.monotonic() - began:.1f} s")
    for process in processes.values():
        process.kill()
        process.join()
    for end in ends:
        end.close()


if __name__ == "__main__":
    main()
