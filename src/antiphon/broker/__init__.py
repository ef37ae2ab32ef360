"""The broker: one process that passes on events between buses which do not know each other.

Receives what its clients announce and their events, and hands each event to the clients that
want it. To a publisher it is a subscriber, to a subscriber a publisher.
"""

from __future__ import annotations

from antiphon.broker.broker import Broker
from antiphon.broker.config import BrokerConfig
from antiphon.broker.figures import BrokerStatistics
from antiphon.broker.health import Health, check_health
from antiphon.broker.limits import Limits
from antiphon.broker.tokens import Token
from antiphon.topics.rights import Rights

__all__ = [
    "Broker",
    "BrokerConfig",
    "BrokerStatistics",
    "Health",
    "Limits",
    "Rights",
    "Token",
    "check_health",
]
