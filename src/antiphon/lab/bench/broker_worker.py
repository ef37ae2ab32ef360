"""One process of a point of brokers: as ``topic_worker``, with the systems of brokers.

Run as ``python -m antiphon.lab.bench.broker_worker``; ``orders`` says how it is spoken to.
"""

from __future__ import annotations

from antiphon.lab.bench.orders import carry_out
from antiphon.lab.bench.topic_worker import TopicWorker
from antiphon.lab.peers.brokers import load_broker

__all__ = ["BrokerWorker"]


class BrokerWorker(TopicWorker):
    """Carries out the orders of a point of brokers."""

    _load = staticmethod(load_broker)


if __name__ == "__main__":
    carry_out(BrokerWorker())
