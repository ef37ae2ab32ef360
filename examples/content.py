"""Subscriptions by content: properties, expressions, XPath; and topics that are no names.

Run: python examples/content.py
"""

from __future__ import annotations

import antiphon

ORDERS = [
    (b"<order><item>desk</item><total>250</total></order>", {"region": "EU"}),
    (b"<order><item>lamp</item><total>40</total></order>", {"region": "EU"}),
    (b"<order><item>sofa</item><total>900</total></order>", {"region": "US"}),
    (b"two chairs, please", {"region": "EU"}),
]
WISHES = {
    "from Europe": "region = 'EU'",
    "above 100": antiphon.XPath("/order[total > 100]"),
    "furniture to sit on": antiphon.Regex("(?i)sofa|chair"),
    "above 100 from Europe": antiphon.AllOf("region = 'EU'", antiphon.XPath("//total > 100")),
}


def main() -> None:
    with antiphon.Bus("local://content-example") as bus:
        found: dict[str, list[int]] = {wish: [] for wish in WISHES}
        for wish, where in WISHES.items():
            numbers = found[wish]
            bus.subscribe(
                "orders/*", lambda event, to=numbers: to.append(event.sequence), where=where
            )
        publisher = bus.publisher("orders/web")
        for data, properties in ORDERS:
            publisher.publish(data, properties)
        bus.node.flush()
        for wish, numbers in found.items():
            print(f"{wish}: orders {numbers}")
        print(f"{bus.statistics().content.not_xml} of them was no XML")

        customer = bus.subscribe(4711)
        rooms = bus.subscribe(antiphon.Tag("room"))
        bus.publisher(4711).publish(b"has ordered")
        bus.publisher(antiphon.Tag("room", "blue")).publish(b"is free")
        for subscription in (customer, rooms):
            event = subscription.receive(timeout=5.0)
            print(f"{event.topic!r} {event.data.decode()}")


if __name__ == "__main__":
    main()
