"""Topics for a long time: timers that keep their time, and a broker whose clients come and go."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from antiphon import Broker, Bus, Event
from antiphon.testing import eventually
from antiphon.topics.model import quantile

pytestmark = pytest.mark.stress

PERIOD = 0.010


@pytest.mark.timeout(900)
def test_timers_do_not_drift_over_ten_minutes(
    count: Callable[[int, int], int], capsys: pytest.CaptureFixture[str]
) -> None:
    """The call of every number is due at the first one's time and so many periods, and no other."""
    seconds = count(2, 600)
    dues: list[tuple[int, float, int]] = []

    def tick(event: Event) -> None:
        dues.append((event.sequence, time.monotonic() - event.late, event.missed))

    with Bus(f"local://timers-{random.getrandbits(48):x}") as bus:
        with bus.every(PERIOD, tick) as timer:
            time.sleep(seconds)
        counts = timer.statistics()
    first, began, _ = dues[0]
    drift = [due - began - (number - first) * PERIOD for number, due, _ in dues]
    # From the moment that `late` is taken to ours it takes some microseconds, now and then more.
    assert abs(statistics.median(drift[-100:]) - statistics.median(drift[:100])) < 0.001
    assert len(dues) == counts["calls"]
    assert sum(missed for _, _, missed in dues) <= counts["missed"]
    # Every one was made or missed.
    assert dues[-1][0] == len(dues) + sum(missed for _, _, missed in dues)
    assert counts["calls"] + counts["missed"] >= seconds / PERIOD - 2
    # Of every call, as the core has counted it: its classes are no wider than a 32nd.
    lateness = counts["lateness"]
    assert sum(lateness.values()) == counts["calls"]
    levels = (0.5, 0.9, 0.99, 0.999)
    late = [quantile(lateness, level) for level in levels]
    assert 0 < late[0] <= late[1] <= late[2] <= late[3] <= counts["longest_lateness"] * 33 / 32
    with capsys.disabled():
        told = ", ".join(
            f"{level * 100:g} % {value * 1e3:.3f}"
            for level, value in zip(levels, late, strict=True)
        )
        print(
            f"\n{counts['calls']} calls, {counts['missed']} missed, {counts['late']} late; "
            f"lateness in ms: {told}, longest {counts['longest_lateness'] * 1e3:.3f}; drift of the "
            f"last hundred {statistics.median(drift[-100:]) * 1e6:.0f} us, of all "
            f"{min(drift) * 1e6:.0f} to {max(drift) * 1e6:.0f} us"
        )


@pytest.mark.timeout(1200)
def test_clients_of_a_broker_come_and_go_and_every_event_is_accounted_for(
    count: Callable[[int, int], int],
) -> None:
    """Steady publishers and subscribers, while others join, publish, subscribe and leave."""
    until = time.monotonic() + count(3, 180)
    came: Counter[tuple[int, int]] = Counter()
    missed: Counter[tuple[int, int]] = Counter()
    wrong: list[str] = []
    last: dict[tuple[int, int], int] = {}

    def receiver(who: int) -> Callable[[Event], None]:
        def take(event: Event) -> None:
            key = who, event.source
            if (
                event.sequence
                != last.get(key, event.sequence - 1 - event.missed) + 1 + event.missed
            ):
                wrong.append(
                    f"{key}: {event.sequence} after {last.get(key)}, {event.missed} missed"
                )
            last[key] = event.sequence
            came[key] += 1
            missed[key] += event.missed

        return take

    with Broker("tcp://127.0.0.1:0") as broker:
        address = broker.address
        buses = [Bus(address).start() for _ in range(4)]
        try:
            for who, bus in enumerate(buses[:2]):
                bus.subscribe("steady/*", receiver(who))
            publishers = [bus.publisher(f"steady/{n}") for n, bus in enumerate(buses[2:])]
            assert all(publisher.wait_for_subscribers(1, 20) for publisher in publishers)
            eventually(lambda: broker.statistics().subscriptions == 2, 20)

            def publish(number: int) -> None:
                while time.monotonic() < until:
                    publishers[number].publish(b"x" * 100)
                    if publishers[number].statistics()["published"] % 50 == 0:
                        time.sleep(0.001)

            def visit(seed: int) -> None:
                draw = random.Random(seed)
                while time.monotonic() < until:
                    with Bus(address) as bus:
                        bus.subscribe(
                            draw.choice(["steady/*", "other/**", "**"]), lambda event: None
                        )
                        visitor = bus.publisher(
                            f"other/{draw.randrange(5)}", retain=draw.random() < 0.3
                        )
                        for _ in range(draw.randrange(50)):
                            visitor.publish(bytes(draw.randrange(2000)))
                        time.sleep(draw.random() * 0.1)

            threads = [threading.Thread(target=publish, args=(n,)) for n in range(2)]
            threads += [threading.Thread(target=visit, args=(seed,)) for seed in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            sent = {
                bus.node.id: publisher.statistics()["published"]
                for bus, publisher in zip(buses[2:], publishers, strict=True)
            }
            for who in range(2):
                for source, published in sent.items():
                    key = who, source
                    eventually(lambda key=key, n=published: came[key] + missed[key] == n, 30)  # type: ignore[misc]
            assert not wrong, wrong[:5]
            eventually(lambda: broker.statistics().clients == 4, 30)
            eventually(lambda: broker.statistics().topics == 2, 30)
            eventually(lambda: broker.statistics().routes == 2, 30)
        finally:
            for bus in buses:
                bus.close(drain=1.0)
