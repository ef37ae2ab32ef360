"""A process that records to a store and tells what was acknowledged, to be killed at any moment."""

from __future__ import annotations

import random
from pathlib import Path

from antiphon.broker.store import LogRecord, Store, check_store
from antiphon.testing import Child, Control

PRODUCERS = 3


def recorder(control: Control, path: str, fsync: str, begin: list[int]) -> None:
    """Appends numbered records of three producers, in blocks of one to five, for ever.

    Tells after each round which number of each producer is acknowledged. It goes on where the
    last one was told to have come, so the log may know some of it already.
    """
    import random

    from antiphon.broker.store import Store, raise_for

    def payload(producer: int, number: int) -> bytes:
        return b"%d:%d:" % (producer, number) + b"." * (number * 37 % 700)

    sent = list(begin)
    with Store(path, fsync=fsync, interval=0.002, segment_bytes=20_000) as store:
        appenders = [store.appender(f"topic/{producer % 2}") for producer in range(len(sent))]
        control.tell("ready", epoch=store.epoch)
        while True:
            for producer, appender in enumerate(appenders):
                for _ in range(random.randint(0, 4)):
                    first = sent[producer] + 1
                    sent[producer] += random.randint(1, 5)
                    appender.submit(
                        [payload(producer, n) for n in range(first, sent[producer] + 1)],
                        producer=producer + 1,
                        producer_sequence=first,
                        timeout=30.0,
                    )
            for appender in appenders:
                for receipt in appender.flush():
                    raise_for(receipt, path)
            control.tell("acknowledged", upto=sent)


def payload(producer: int, number: int) -> bytes:
    return b"%d:%d:" % (producer, number) + b"." * (number * 37 % 700)


def record_and_kill(path: Path, fsync: str, begin: list[int], rounds: int) -> list[int]:
    """One life: killed while it writes, after so many rounds; what was acknowledged by then."""
    upto = list(begin)
    with Child(recorder, path=str(path), fsync=fsync, begin=begin) as child:
        child.expect("ready")
        for _ in range(rounds):
            upto = child.expect("acknowledged")["upto"]
        child.kill()
    return upto


def verify(path: Path, acknowledged: list[int]) -> None:
    """What was acknowledged is there once and in order; sequences rise; nothing is damaged."""
    report = check_store(path)
    assert not report.damaged, report
    assert not report.in_use
    there: list[list[int]] = [[] for _ in acknowledged]
    with Store(path, read_only=True) as store:
        for topic in store.topics():
            last = 0
            records: list[LogRecord] = list(store.reader(topic))
            for record in records:
                assert record.sequence > last
                last = record.sequence
                producer, number = map(int, record.data.split(b":")[:2])
                assert record.data == payload(producer, number)
                assert topic == f"topic/{producer % 2}"
                there[producer].append(number)
    for numbers, upto in zip(there, acknowledged, strict=True):
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= upto


def kill_again_and_again(path: Path, lives: int, seed: int) -> None:
    choose = random.Random(seed)
    acknowledged = [0] * PRODUCERS
    for _ in range(lives):
        fsync = choose.choice(["none", "interval", "always"])
        acknowledged = record_and_kill(path, fsync, acknowledged, choose.randint(1, 6))
        verify(path, acknowledged)
