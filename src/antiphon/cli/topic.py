"""Topics as they are written in a shell: names, and with ``--kind`` numbers and tags."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from antiphon.errors import ConfigError
from antiphon.topics import Tag

__all__ = ["Kind", "KindOption", "read_topic"]


class Kind(StrEnum):
    """What a topic is."""

    NAME = "name"
    INT = "int"
    TAG = "tag"


KindOption = Annotated[
    Kind, typer.Option(help="What the topic is: a name, a number, or a tag such as room=blue.")
]


def read_topic(text: str, kind: Kind) -> str | int | Tag:
    """The topic that is meant. ``room=`` is a tag with any value."""
    if kind is Kind.INT:
        try:
            return int(text)
        except ValueError:
            raise ConfigError(
                f"topic {text!r} is no whole number; leave out --kind int, or write one",
                setting="kind",
                value=text,
            ) from None
    if kind is Kind.TAG:
        name, sign, value = text.partition("=")
        if not sign:
            raise ConfigError(
                f"topic {text!r} is no tag; write name=value, or name= for any value",
                setting="kind",
                value=text,
            )
        return Tag(name, value or None)
    return text
