"""Forks beside a broker's store: durable subscriptions and recording publishers at work."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.testing import Child, Control
from integration.buses import PATIENCE
from integration.durables import in_log

pytestmark = pytest.mark.timeout(120)


def forking(control: Control, path: str, forks: int) -> None:
    """A broker, a durable subscription, a group and a publisher that records, while it forks."""
    import os
    import signal
    import threading
    import time

    from antiphon import AntiphonError, Broker, Bus

    with (
        Broker("tcp://127.0.0.1:0", store=path) as broker,
        Bus(broker.address) as here,
        Bus(broker.address) as there,
    ):
        seen: list[bytes] = []
        publisher = here.publisher("t", record=True)
        handled = there.subscribe(
            "t", lambda event: seen.append(event.data), durable="d", start="earliest"
        )
        manual = there.subscribe("t", durable="m", start="earliest", ack="manual")
        stops = threading.Event()
        published = 0

        def publish() -> None:
            nonlocal published
            while not stops.is_set():
                publisher.publish(b"%d" % published)
                published += 1
                if published % 64 == 0:
                    time.sleep(0.001)

        thread = threading.Thread(target=publish)
        thread.start()
        held = manual.receive(20.0)
        calls = {
            "publish": lambda: publisher.publish(b"x"),
            "publish_many": lambda: publisher.publish_many([b"x"]),
            "flush": lambda: publisher.flush(1.0),
            "publisher": lambda: here.publisher("u", record=True),
            "subscribe": lambda: there.subscribe("t", durable="other"),
            "receive": lambda: manual.receive(1.0),
            "ack": held.ack,
            "forget": lambda: there.forget("d"),
            "close publisher": publisher.close,
            "close handled": handled.close,
            "close manual": manual.close,
            "close bus": there.close,
            "close broker": broker.close,
        }
        for number in range(forks):
            pid = os.fork()
            if pid == 0:
                for name, call in calls.items():
                    try:
                        call()
                        outcome = "fine"
                    except AntiphonError as error:
                        outcome = f"{type(error).__name__}: {error}"
                    except BaseException as error:
                        outcome = f"wrong: {error!r}"
                    control.tell("child", call=name, outcome=outcome, number=number)
                os._exit(0)
            until = time.monotonic() + 20.0
            while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
                if time.monotonic() > until:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    control.tell("hung", number=number)
                    break
                time.sleep(0.005)
            else:
                control.tell("ended", status=ended[1])
        stops.set()
        thread.join()
        publisher.flush(20.0)
        until = time.monotonic() + 20.0
        while len(seen) < published and time.monotonic() < until:
            time.sleep(0.01)
        held.ack()
        right = sorted(map(int, seen)) == list(range(published))
        control.tell("parent", right=right, seen=len(seen), published=published)
    control.tell("closed")


def test_forks_harm_neither_those_who_record_nor_those_who_acknowledge(tmp_path: Path) -> None:
    forks = 5
    with Child(forking, path=str(tmp_path / "store"), forks=forks) as child:
        outcomes: list[tuple[str, str]] = []
        ended = 0
        while (told := child.hear(2 * PATIENCE))["event"] != "parent":
            if told["event"] == "child":
                outcomes.append((told["call"], told["outcome"]))
            else:
                assert told["event"] == "ended", told
                assert told["status"] == 0
                ended += 1
        assert ended == forks
        assert told["right"], told
        assert told["published"] > 100
        for call, outcome in outcomes:
            assert not outcome.startswith("wrong"), (call, outcome)
            if call in ("publish", "publish_many", "flush", "publisher", "subscribe", "receive"):
                assert "fork" in outcome, (call, outcome)
        child.expect("closed", PATIENCE)
    assert in_log(tmp_path / "store", "t") == [b"%d" % n for n in range(told["published"])]
