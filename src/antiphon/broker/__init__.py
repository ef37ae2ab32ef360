"""The broker: one process that passes on events between buses which do not know each other.

Receives what its clients announce and their events, and hands each event to the clients that
want it. To a publisher it is a subscriber, to a subscriber a publisher.
"""

from __future__ import annotations

from antiphon.broker.broker import Broker, BrokerStatistics
from antiphon.broker.config import BrokerConfig

__all__ = ["Broker", "BrokerConfig", "BrokerStatistics"]
