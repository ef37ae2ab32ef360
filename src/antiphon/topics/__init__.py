"""Topics: publish and subscribe, where every subscription has a queue and a share of the time.

Receives events from programs and hands them to nodes, straight from a publisher to each
subscription that matches; `antiphon.topics.finder` and its kinds find the other buses,
`antiphon.topics.announcements` is what they tell each other, `antiphon.topics.model` predicts the
delay of a subscription from what the core has measured.
"""

from __future__ import annotations

from antiphon._core import Event, EventBatch
from antiphon.topics.bus import Bus
from antiphon.topics.config import BusConfig
from antiphon.topics.conformance import Conformance
from antiphon.topics.content import AllOf, Regex, XPath
from antiphon.topics.judge import ContentStatistics
from antiphon.topics.kinds import Tag
from antiphon.topics.model import DelayModel, Plan
from antiphon.topics.publisher import Publisher
from antiphon.topics.statistics import BusStatistics, TopicInfo
from antiphon.topics.subscription import Subscription
from antiphon.topics.timer import Timer

__all__ = [
    "AllOf",
    "Bus",
    "BusConfig",
    "BusStatistics",
    "Conformance",
    "ContentStatistics",
    "DelayModel",
    "Event",
    "EventBatch",
    "Plan",
    "Publisher",
    "Regex",
    "Subscription",
    "Tag",
    "Timer",
    "TopicInfo",
    "XPath",
]
