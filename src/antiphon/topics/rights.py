"""What a client of a broker may do, and how it is told.

Receives patterns from the broker's settings; the broker hands a client its `Welcome`, and both ask
it the same questions: the client to raise at the call, the broker because clients may lie.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from antiphon.errors import ConfigError, PermissionDenied
from antiphon.topics.names import Pattern

__all__ = [
    "ACTIONS",
    "DEAD",
    "RESERVED",
    "SYSTEM",
    "Ask",
    "Ended",
    "Refused",
    "Rights",
    "Stopped",
    "Welcome",
    "Word",
    "denied",
]

ACTIONS = ("publish", "subscribe", "record", "admin")
SYSTEM = "$sys/"
"""Topics of the broker's own figures."""
DEAD = "$dead/"
"""Topics of events that nobody could handle, one for each durable subscription."""
RESERVED = (SYSTEM, DEAD)
"""The broker alone publishes there, and only a pattern that says so means them."""

_MOST_PATTERNS = 1024
_Text = Annotated[str, msgspec.Meta(max_length=1024)]
_Patterns = Annotated[tuple[_Text, ...], msgspec.Meta(max_length=_MOST_PATTERNS)]


@dataclass(frozen=True, kw_only=True)
class Rights:
    """Which topics somebody may publish, subscribe to, record and administrate: patterns of each.

    A pattern that is subscribed to must lie within one of those that are allowed. Raises
    `ConfigError` for what is no pattern.
    """

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    record: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    _patterns: dict[str, tuple[Pattern, ...]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        for action in ACTIONS:
            given: object = getattr(self, action)
            if not isinstance(given, tuple | list) or not all(isinstance(p, str) for p in given):
                raise ConfigError(
                    f'{action} is {given!r}; give a list of patterns, such as ["plant/**"]',
                    setting=action,
                    value=given,
                )
            if len(given) > _MOST_PATTERNS:
                raise ConfigError(
                    f"{action} has {len(given)} patterns; {_MOST_PATTERNS} are allowed",
                    setting=action,
                )
            object.__setattr__(self, action, tuple(given))
            try:
                self._patterns[action] = tuple(Pattern(text) for text in given)
            except ConfigError as error:
                raise ConfigError(f"{action}: {error}", setting=action, value=error.value) from None

    def allow(self, action: str, topic: str) -> bool:
        """Whether ``action`` is allowed on a topic; to subscribe, on all that a pattern means.

        Nobody publishes or records on ``$sys/`` and ``$dead/``. Whoever administrates anything may
        read what is below ``$sys/``.
        """
        if action in ("publish", "record") and topic.startswith(RESERVED):
            return False
        if action == "subscribe":
            if topic.startswith(SYSTEM) and self.admin:
                return True
            return _covered(self._patterns[action], topic)
        return any(pattern.matches(topic) for pattern in self._patterns[action])

    def administrate(self, pattern: str) -> bool:
        """Whether all that a pattern means is theirs to look after."""
        return _covered(self._patterns["admin"], pattern)


@functools.lru_cache(maxsize=4096)
def _covered(allowed: tuple[Pattern, ...], wanted: str) -> bool:
    try:
        pattern = Pattern(wanted)
    except ConfigError:
        return False
    return any(one.covers(pattern) for one in allowed)


# --- words between a client and its broker --------------------------------------------------------


class Ask(msgspec.Struct, array_like=True, tag="ask"):
    """A client asks, before anything else, what it may do with this token. A request."""

    token: _Text | None = None


class Welcome(msgspec.Struct, array_like=True, tag="welcome"):
    """The broker's answer, and its word when that changes: who you are here, what you may do."""

    client: _Text
    """The name that belongs to the token; ``anonymous`` without one."""
    limited: bool
    """Whether the rights below count; otherwise everything is allowed."""
    publish: _Patterns = ()
    subscribe: _Patterns = ()
    record: _Patterns = ()
    admin: _Patterns = ()
    max_topics: int = 2**31
    max_subscriptions: int = 2**31
    broker: _Text = ""
    """What runs there: its version."""
    store_full: bool = False
    """Nothing is recorded there now, for want of space."""

    @property
    def rights(self) -> Rights | None:
        """None: everything is allowed. Raises `ConfigError` for patterns that are none."""
        if not self.limited:
            return None
        return Rights(
            publish=self.publish, subscribe=self.subscribe, record=self.record, admin=self.admin
        )


class Refused(msgspec.Struct, array_like=True, tag="refused"):
    """The broker does not do what was asked; ``action`` is one of ACTIONS, or ``connect``."""

    client: _Text
    action: _Text
    topic: _Text | None
    reason: Annotated[str, msgspec.Meta(max_length=4096)]


class Ended(msgspec.Struct, array_like=True, tag="ended"):
    """The broker has ended a subscription, and why."""

    flow: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    reason: Annotated[str, msgspec.Meta(max_length=4096)]


class Stopped(msgspec.Struct, array_like=True, tag="stopped"):
    """The broker stops, on purpose."""


Word = Ask | Welcome | Refused | Ended | Stopped


def denied(refused: Refused, where: str) -> PermissionDenied:
    """The error that a client raises for it."""
    on = "" if refused.topic is None else f" {refused.topic!r}"
    return PermissionDenied(
        f"the broker at {where} does not let {refused.client!r} {refused.action}{on}: "
        f"{refused.reason}",
        client=refused.client,
        action=refused.action,
        topic=refused.topic,
        reason=refused.reason,
    )
