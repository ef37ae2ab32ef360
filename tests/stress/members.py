"""What the processes of the stress tests run. Each function is sent to a process of its own.

``tests`` is the directory of the tests, so that the other end can import `stress.blocks`.
"""

from __future__ import annotations

from antiphon.testing import Control


def receive_all(
    control: Control,
    tests: str,
    id: int,
    listen: str,
    numbers: dict[str, list[int]],
    total: int,
    patience: float,
) -> None:
    """Counts what comes in every way of receiving, until ``total`` messages are here."""
    import sys
    import threading
    import time

    sys.path.insert(0, tests)
    import antiphon
    from stress.blocks import Tally

    tallies = {path: Tally(streams) for path, streams in numbers.items()}
    node = antiphon.Node(id, listen=listen)
    callback, packed, many = tallies["callback"], tallies["packed"], tallies["many"]
    pulled, looped = tallies["inbox"], tallies["iteration"]
    node.on(200, lambda source, data: callback.one(data))
    node.on(201, lambda source, batch: packed.batch(batch), batch=True)
    node.on(202, lambda source, batch: many.batch(batch), batch=True)
    inbox = node.inbox(203)
    iterated = node.inbox(204)
    closing = threading.Event()

    def pull() -> None:
        try:
            while True:
                for _, data in inbox.receive_many(1000):
                    pulled.one(data)
        except antiphon.Closed:
            closing.set()

    def iterate() -> None:
        for _, data in iterated:
            looped.one(data)

    with node:
        threads = [threading.Thread(target=pull), threading.Thread(target=iterate)]
        for thread in threads:
            thread.start()
        control.tell("ready", address=node.address)
        deadline = time.monotonic() + patience
        while sum(tally.total for tally in tallies.values()) < total:
            wrong = [line for tally in tallies.values() for line in tally.wrong]
            if wrong or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        control.hear(patience)  # the senders have flushed: nothing more may come
        statistics = node.statistics()
        control.tell(
            "counted",
            counts={path: tally.counts for path, tally in tallies.items()},
            wrong=[line for tally in tallies.values() for line in tally.wrong][:20],
            messages_in=statistics.messages_in,
            drops=dict(statistics.drops),
        )
    for thread in threads:
        thread.join()
    assert closing.is_set()
    control.tell("closed")


def send_all(
    control: Control, tests: str, id: int, to: int, address: str, counts: dict[str, dict[str, int]]
) -> None:
    """One thread per stream, each sending in the way of its path."""
    import sys
    import threading
    import time

    sys.path.insert(0, tests)
    import antiphon
    from stress.blocks import CYCLE, Stream, offsets

    node = antiphon.Node(id, peers={to: address})
    failures: list[str] = []

    def singly(stream: Stream, count: int, kind: int) -> None:
        send = node.send
        for _ in range(count // CYCLE):
            for message in stream.messages:
                send(to, message, kind=kind)
        for message in stream.messages[: count % CYCLE]:
            send(to, message, kind=kind)

    def in_lists(stream: Stream, count: int, kind: int) -> None:
        step = 1000
        for begin in range(0, count, step):
            places = range(begin, min(begin + step, count))
            node.send_many(to, [stream.messages[place % CYCLE] for place in places], kind=kind)

    def packed(stream: Stream, count: int, kind: int) -> None:
        step = 6000
        starts = offsets(step)
        for begin in range(0, count, step):
            some = min(step, count - begin)
            data = stream.piece(begin, some)
            node.send_packed(to, data, memoryview(starts)[: some + 1], kind=kind)

    ways = {
        "callback": (singly, 200),
        "packed": (packed, 201),
        "many": (in_lists, 202),
        "inbox": (singly, 203),
        "iteration": (singly, 204),
    }

    def run(path: str, number: int, count: int) -> None:
        way, kind = ways[path]
        try:
            way(Stream(number), count, kind)
        except BaseException as error:
            failures.append(f"{path} {number}: {error!r}")

    with node:
        began = time.monotonic()
        threads = [
            threading.Thread(target=run, args=(path, int(number), count))
            for path, streams in counts.items()
            for number, count in streams.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        node.flush(300)
        seconds = time.monotonic() - began
        (connection,) = (each for each in node.connections() if each.id == to)
        control.tell(
            "sent",
            failures=failures,
            seconds=seconds,
            messages_out=connection.messages_out,
            connects=connection.connects,
            losses=connection.losses,
        )
        control.hear(300)


def receive_until_killed(
    control: Control, tests: str, id: int, listen: str, numbers: list[int]
) -> None:
    """Counts with gaps, reports on demand, and is killed at any moment."""
    import sys

    sys.path.insert(0, tests)
    import antiphon
    from stress.blocks import Tally

    tally = Tally(numbers, gaps=True)
    first: dict[int, int] = {}

    def handle(source: int, data: bytes) -> None:
        number = data[0] | data[1] << 8
        if number not in first:
            # A new incarnation begins in the middle of the stream.
            first[number] = tally.next[number] = int.from_bytes(data[4:8], "little")
        tally.one(data)

    node = antiphon.Node(id, listen=listen)
    node.on(200, handle)
    with node:
        control.tell("ready", address=node.address)
        while True:
            control.hear()
            control.tell("so far", counts=tally.counts, wrong=tally.wrong[:20])


def send_through_losses(
    control: Control,
    tests: str,
    id: int,
    peers: dict[str, str],
    steady: int,
    count: int,
    victims: list[int],
) -> None:
    """One node: exact traffic to one peer while others die and come back.

    The streams to victims number their messages by attempts, so that what a victim gets may have
    gaps and must not have anything else.
    """
    import sys
    import threading

    sys.path.insert(0, tests)
    import antiphon
    from stress.blocks import CYCLE, Stream

    config = antiphon.NodeConfig(connect_timeout=20.0)
    node = antiphon.Node(
        id, peers={int(peer): address for peer, address in peers.items()}, config=config
    )
    done = threading.Event()
    errors: dict[str, int] = {}
    lost: list[int] = []
    node.on_disconnected(lambda peer, reason: lost.append(peer))
    failures: list[str] = []

    def keep_sending(victim: int, stream: Stream) -> None:
        place = 0
        while not done.is_set():
            try:
                node.send(victim, stream.messages[place % CYCLE], kind=200)
            except (antiphon.PeerUnreachable, antiphon.SendTimeout) as error:
                errors[type(error).__name__] = errors.get(type(error).__name__, 0) + 1
            except BaseException as error:
                failures.append(f"victim {victim}: {error!r}")
                return
            place += 1

    def steadily(stream: Stream) -> None:
        try:
            for place in range(count):
                node.send(steady, stream.messages[place % CYCLE], kind=200)
        except BaseException as error:
            failures.append(f"steady: {error!r}")

    with node:
        exact = threading.Thread(target=steadily, args=(Stream(id),))
        threads = [
            threading.Thread(target=keep_sending, args=(victim, Stream(id * 100 + victim)))
            for victim in victims
        ]
        for thread in [exact, *threads]:
            thread.start()
        control.tell("sending")
        control.hear()  # enough has been killed
        exact.join()
        done.set()
        for thread in threads:
            thread.join()
        by_id = {each.id: each for each in node.connections()}
        control.tell(
            "sent",
            failures=failures,
            errors=errors,
            lost=sorted(set(lost)),
            connects={victim: by_id[victim].connects for victim in victims},
            steady_losses=by_id[steady].losses,
            steady_out=by_id[steady].messages_out,
        )
        control.hear(300)


def connect_many(
    control: Control, tests: str, first: int, nodes: int, to: int, address: str, each: int
) -> None:
    """Node after node, a few at a time: connects, sends, flushes, closes."""
    import sys
    import threading

    sys.path.insert(0, tests)
    import antiphon
    from stress.blocks import Stream

    stream = Stream(first)
    failures: list[str] = []
    ids = iter(range(first, first + nodes))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                mine = next(ids, None)
            if mine is None:
                return
            try:
                with antiphon.Node(mine, peers={to: address}) as node:
                    for message in stream.messages[:each]:
                        node.send(to, message, kind=200)
                    node.flush(60)
            except BaseException as error:
                failures.append(f"node {mine}: {error!r}")

    control.tell("ready")
    control.hear()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    control.tell("done", failures=failures[:20])


def count_senders(control: Control, id: int) -> None:
    """Counts messages per node id; tells how many descriptors are open."""
    import threading
    from collections import Counter
    from pathlib import Path

    import antiphon

    counts: Counter[int] = Counter()
    lock = threading.Lock()

    def handle(source: int, data: bytes) -> None:
        with lock:
            counts[source] += 1

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    node = antiphon.Node(id)
    node.on(200, handle)
    with node:
        control.tell("ready", address=node.address, descriptors=descriptors())
        while True:
            order = control.hear()["order"]
            if order == "stop":
                break
            control.tell(
                "counts",
                counts={str(source): count for source, count in counts.items()},
                descriptors=descriptors(),
                protocol_errors=node.statistics().protocol_errors,
            )


def fork_under_load(
    control: Control, tests: str, id: int, to: int, address: str, count: int, forks: int
) -> None:
    """Sends on two threads and receives on a third while the main thread forks."""
    import gc
    import os
    import sys
    import threading
    import time

    sys.path.insert(0, tests)
    import antiphon
    from stress.blocks import CYCLE, Stream

    node = antiphon.Node(id, peers={to: address})
    inbox = node.inbox(300)
    failures: list[str] = []
    received = 0

    def send(stream: Stream) -> None:
        try:
            for place in range(count):
                node.send(to, stream.messages[place % CYCLE], kind=200)
        except BaseException as error:
            failures.append(f"send: {error!r}")

    def receive() -> None:
        nonlocal received
        for _ in inbox:
            received += 1

    def child(way: int) -> int:
        """In the child: nothing of the node works, and nothing of it hurts."""
        try:
            for call in (
                lambda: node.send(to, b"x" * 64, kind=200),
                lambda: node.try_send(to, b"x", kind=200),
                lambda: node.flush(1),
                lambda: inbox.receive(0),
            ):
                try:
                    call()
                except antiphon.Closed:
                    continue
                return 11
            node.close()
            gc.collect()
            if way % 2 == 0:
                # A node of its own works, in the same process that inherited another.
                with antiphon.Node(id + 1, peers={to: address}) as own:
                    own.send(to, b"c" * 64, kind=299)  # skipped there, and counted
                    own.flush(30)
        except BaseException:
            return 12
        return 0

    with node:
        threads = [threading.Thread(target=send, args=(Stream(id * 10 + t),)) for t in range(2)]
        reader = threading.Thread(target=receive)
        for thread in [*threads, reader]:
            thread.start()
        control.tell("sending")
        statuses: dict[int, int] = {}
        made = 0
        while made < forks or any(thread.is_alive() for thread in threads):
            if made >= forks:
                time.sleep(0.01)
                continue
            pid = os.fork()
            if pid == 0:
                code = child(made)
                if made % 3 == 0 and code == 0:
                    sys.exit(0)  # the ordinary way out, with every exit hook
                os._exit(code)
            deadline = time.monotonic() + 60
            while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
                if time.monotonic() > deadline:
                    os.kill(pid, 9)
                    os.waitpid(pid, 0)
                    failures.append(f"child {made} hung")
                    ended = (pid, -1)
                    break
                time.sleep(0.001)
            statuses[ended[1]] = statuses.get(ended[1], 0) + 1
            made += 1
        for thread in threads:
            thread.join()
        node.flush(300)
        (connection,) = (each for each in node.connections() if each.id == to)
        control.tell(
            "sent",
            failures=failures,
            statuses={str(status): times for status, times in statuses.items()},
            losses=connection.losses,
            received=received,
        )
        control.hear(300)
    reader.join(10)
