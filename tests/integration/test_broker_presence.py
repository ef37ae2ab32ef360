"""Who is there and who has gone: what a broker and its clients know of each other."""

from __future__ import annotations

import pytest

from antiphon import Broker, Node, NodeConfig
from antiphon.testing import eventually
from antiphon.topics import Bus
from antiphon.topics.announcements import Subscribed, Update, encode
from integration.brokers import announce, settled
from integration.buses import PATIENCE
from unit.node.pairs import KIND, free_address

pytestmark = pytest.mark.timeout(60)

CLIENT, BROKER = 40000, 33000


@pytest.mark.parametrize("how", ["closes", "is removed", "is given back"])
def test_one_that_was_only_sent_to_is_not_taken_for_connected_when_it_has_gone(how: str) -> None:
    config = NodeConfig(max_connections=1 if how == "is given back" else None)
    with Node(1, config=config) as here, Node(3) as third, Node(2) as there:
        here.add_peer(2, there.address)
        here.send(2, b"", kind=KIND)
        assert here._is_connected(2)
        here.flush(PATIENCE)
        if how == "is removed":
            here.remove_peer(2)
        elif how == "is given back":
            here.add_peer(3, third.address)
            here.send(3, b"", kind=KIND)
        else:
            there.close()
        eventually(lambda: not here._is_connected(2), PATIENCE)
        eventually(lambda: not there._is_connected(1), PATIENCE)


def test_a_client_notices_that_a_broker_has_gone_whose_id_its_node_had_sent_to_before() -> None:
    address = free_address()
    with Node(5) as node:
        with Node(BROKER, listen=address):
            node.add_peer(BROKER, address)
            node.send(BROKER, b"", kind=KIND)
        with Bus(address, node=node) as bus:
            with Broker(address, id=BROKER) as broker:
                settled(broker, clients=1)
                eventually(lambda: bus.statistics().peers == 1, PATIENCE)
            eventually(lambda: bus.statistics().peers == 0, PATIENCE)
            with Broker(address, id=BROKER + 1) as broker:
                settled(broker, clients=1)
                eventually(lambda: bus.statistics().peers == 1, PATIENCE)


def test_nothing_is_left_of_a_client_whose_last_word_is_read_when_it_has_gone() -> None:
    """Words and ends of connections are handled by different threads, in either order."""
    word = encode(Update(7, -1, 1, {1: "a"}, [], [Subscribed(1, "b", 1)], []))
    with Broker("tcp://127.0.0.1:0") as broker:
        # Its first connection goes one way only, as when one leaves while the other is made.
        with Node(CLIENT) as first:
            broker.node.add_peer(CLIENT, first.address)
            broker.node.send(CLIENT, b"", kind=KIND)
        with Node(CLIENT, peers={broker.node.id: broker.address}) as client:
            announce(client, broker, word)
            settled(broker, clients=1, topics=1, subscriptions=1)
        settled(broker, clients=0, topics=0, subscriptions=0)
        broker._neighbours._heard(CLIENT, word)
        assert broker.statistics().clients == 1
        settled(broker, clients=0, topics=0, subscriptions=0)
