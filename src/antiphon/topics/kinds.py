"""Topics that are no names: numbers of 64 bits, and tags with a value.

``42`` and ``Tag("room", "blue")`` are topics of their own. Inside they are texts as names are,
such as ``/int/42`` and ``/tag/room/blue``, so that everything that holds for names holds for them.
No name begins with a slash: so nothing that is written as a name means one of them, and no
pattern of names matches them, ``**`` neither.

Receives topics from programs; hands texts to the bus, and topics back to whoever gets an event.
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from typing import TypeAlias

from antiphon.errors import ConfigError
from antiphon.topics.names import MAX_NAME_BYTES, Pattern, check_topic

__all__ = ["Tag", "Topic", "check_text", "pattern_of", "text_of", "topic_of"]

_INT64 = range(-(2**63), 2**63)
_TEXT = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]+")
_ESCAPES = {"%": "%25", "/": "%2F", "*": "%2A"}
_ESCAPED = {code: sign for sign, code in _ESCAPES.items()}


@dataclass(frozen=True, slots=True)
class Tag:
    """A topic that is a name with a value: ``Tag("room", "blue")``.

    Both are texts, compared character by character; neither is split into levels, and a ``*`` is a
    character as any other. ``Tag("room")``, without a value, stands for all values: it can be
    subscribed to, not published on.
    """

    name: str
    value: str | None = None

    def __post_init__(self) -> None:
        for what, text in (("name", self.name), ("value", self.value)):
            if what == "value" and text is None:
                continue
            if not isinstance(text, str) or not _TEXT.fullmatch(text):
                raise ConfigError(
                    f"{what} {reprlib.repr(text)} of a tag: give a text of at least one character, "
                    "without control characters and halves of surrogate pairs",
                    setting=what,
                    value=text,
                )
        size = len(_tag_text(self).encode())
        if size > MAX_NAME_BYTES:
            raise ConfigError(
                f"tag {reprlib.repr(self.name)} takes {size} bytes with its value; shorten it to "
                f"{MAX_NAME_BYTES}",
                setting="topic",
                value=self.name,
            )

    def __str__(self) -> str:
        return f"{self.name}={'*' if self.value is None else self.value}"


Topic: TypeAlias = str | int | Tag
"""What can be published on, and subscribed to."""


def text_of(topic: object) -> str:
    """The text by which a topic is known. Raises `ConfigError` for what is none."""
    if isinstance(topic, int) and not isinstance(topic, bool):
        return _int_text("topic", topic)
    if isinstance(topic, Tag):
        if topic.value is None:
            raise ConfigError(
                f"Tag({topic.name!r}) has no value; publish on one of its values",
                setting="topic",
                value=topic,
            )
        return _tag_text(topic)
    return check_topic(topic)


def pattern_of(topic: object) -> Pattern:
    """Which topics are meant by a number, a tag or a pattern of names. Raises `ConfigError`."""
    if isinstance(topic, int) and not isinstance(topic, bool):
        return Pattern(_int_text("pattern", topic))
    if isinstance(topic, Tag):
        return Pattern(_tag_text(topic))
    if isinstance(topic, str) and topic.startswith("/"):
        raise ConfigError(
            f'pattern {reprlib.repr(topic)}: begins with an empty level; remove the "/" in front',
            setting="pattern",
            value=topic,
        )
    return Pattern(topic)  # type: ignore[arg-type]  # it says what is wrong with others


def topic_of(text: str) -> Topic:
    """The reverse of `text_of`, and of `pattern_of` for what is no name."""
    if not text.startswith("/"):
        return text
    kind, rest = text[1:].split("/", 1)
    if kind == "int":
        return int(rest)
    name, value = rest.split("/")
    return Tag(_unescape(name), None if value == "*" else _unescape(value))


def check_text(text: str) -> str:
    """A text that a peer has said: of a name, a number or a tag. Raises `ConfigError`."""
    if not text.startswith("/"):
        return check_topic(text)
    if not Pattern(text).literal:
        raise ConfigError(f"topic {text!r}: '*' belongs to patterns", setting="topic", value=text)
    return text


def _int_text(what: str, number: int) -> str:
    if number not in _INT64:
        raise ConfigError(
            f"{what} {number} does not fit in 64 bits with a sign; give one from -2**63 to 2**63-1",
            setting=what,
            value=number,
        )
    return f"/int/{int(number)}"


def _tag_text(tag: Tag) -> str:
    value = "*" if tag.value is None else _escape(tag.value)
    return f"/tag/{_escape(tag.name)}/{value}"


def _escape(text: str) -> str:
    return re.sub("[%/*]", lambda found: _ESCAPES[found[0]], text)


def _unescape(text: str) -> str:
    return re.sub("%2[5FA]", lambda found: _ESCAPED[found[0]], text)
