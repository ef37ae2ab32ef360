"""Four topics that flood and one that must be on time: what a share of the time does for it.

Two subscriptions get the same alarms, next to four that always have work. One of the two has a
share: half of the time is its own, so it has the most credits and goes first. The other waits for
its turn.
"""

import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable

import antiphon

CHANNEL = "local://alarms"
FLOODS, ALARMS = 4, 120


def publish() -> None:
    """The other process: logs as fast as they are taken, and an alarm every 15 ms."""
    over = threading.Event()
    with antiphon.Bus(CHANNEL) as bus:

        def flood(publisher: antiphon.Publisher) -> None:
            publisher.wait_for_subscribers(timeout=20.0)
            while not over.is_set():
                publisher.publish_many([b"x"] * 16)  # waits when the reader is behind

        logs = [bus.publisher(f"log/{number}") for number in range(FLOODS)]
        threads = [threading.Thread(target=flood, args=(log,)) for log in logs]
        for thread in threads:
            thread.start()
        alarm = bus.publisher("alarm")
        alarm.wait_for_subscribers(2, timeout=20.0)
        for _ in range(ALARMS):
            time.sleep(0.015)
            alarm.publish(b"!")
        over.set()
        for thread in threads:
            thread.join()


def delays_into(delays: list[float]) -> Callable[[antiphon.Event], None]:
    def handle(event: antiphon.Event) -> None:
        delays.append((time.time_ns() - event.time_ns) / 1e6)  # one machine, one clock

    return handle


def main() -> None:
    first: list[float] = []
    in_turn: list[float] = []
    with antiphon.Bus(CHANNEL) as bus:
        for number in range(FLOODS):
            bus.subscribe(f"log/{number}", lambda event: sum(range(5000)), capacity=64)
        bus.subscribe("alarm", delays_into(in_turn))
        sub = bus.subscribe("alarm", delays_into(first), share=0.5)
        print("shares:", bus.statistics().shares)

        other = multiprocessing.get_context("spawn").Process(target=publish)
        other.start()
        other.join(40)
        model = sub.predict()
    for name, delays in (("without a share", in_turn), ("with a share", first)):
        median, worst = statistics.median(delays), max(delays)
        print(f"{len(delays)} alarms {name}: median {median:.2f} ms, worst {worst:.2f} ms")
    print(f"predicted {model.mean_response * 1e3:.2f} ms on average,", end=" ")
    print(f"measured {model.measured_response * 1e3:.2f} ms; bound {model.bound * 1e3:.2f} ms")
    print(f"from {model.basis}")


if __name__ == "__main__":
    main()
