"""Topics between two processes: wildcards, filters over properties, and a reader that is too slow.

Nobody gives an address to anybody: both processes name the same channel, and find each other.
"""

import multiprocessing
import threading
import time

import antiphon

CHANNEL = "local://plant"  # this machine and this user; nothing to configure
ROUNDS = 100


class Reading(antiphon.Message, kind=100):
    celsius: float


def sensors() -> None:
    """The other process: three sensors, and a word when they are done."""
    with antiphon.Bus(CHANNEL) as bus:
        temperatures = [bus.publisher(f"plant/{number}/temp") for number in (1, 2, 3)]
        done = bus.publisher("plant/done")
        # An event goes to those who are there. So wait for them: three subscriptions match.
        for publisher in temperatures:
            publisher.wait_for_subscribers(3, timeout=20.0)
        done.wait_for_subscribers(timeout=20.0)
        for step in range(ROUNDS):
            for number, publisher in enumerate(temperatures, 1):
                celsius = 20.0 + 5 * number + step / 10
                publisher.publish(Reading(celsius), {"celsius": celsius})
        done.publish(b"", ttl=60.0)


def main() -> None:
    done = threading.Event()
    hot: list[float] = []
    shown: list[int] = []

    def display(event: antiphon.Event) -> None:
        time.sleep(0.01)  # a slow screen
        shown.append(event.missed)

    with antiphon.Bus(CHANNEL) as bus:
        # Read by this thread, in each publisher's order.
        everything = bus.subscribe("plant/*/temp")
        # Called by the library. The filter is applied where the event is published.
        bus.subscribe(
            "plant/**",
            lambda event: hot.append(event.decode(Reading).celsius),
            where="celsius >= 44.5",
        )
        # Old values are worth nothing to a screen: it keeps the newest four, and holds up nobody.
        screen = bus.subscribe("plant/*/temp", display, capacity=4, when_full="drop_oldest")
        bus.subscribe("plant/done", lambda event: done.set())

        # Spawn, not fork: a forked child would inherit a bus that it cannot use.
        other = multiprocessing.get_context("spawn").Process(target=sensors)
        other.start()
        events = [everything.receive(timeout=30.0) for _ in range(3 * ROUNDS)]
        done.wait(30.0)
        other.join(20)
        while screen.pending:
            time.sleep(0.01)
        print(f"{len(events)} events of {sorted({event.topic for event in events})}")
        last = events[-1]
        print(f"the last is number {last.sequence} of {last.topic}: {last.decode(Reading)}")
        print(f"{len(hot)} were hot, from {min(hot)} to {max(hot)}")
        print(f"the screen showed {len(shown)} and missed {sum(shown)}")


if __name__ == "__main__":
    main()
