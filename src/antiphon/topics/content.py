"""Filters over the content of events: regular expressions and XPath, and filters that are joined.

``Regex("timeout|refused")`` looks at the bytes of a body, ``XPath("/order[total > 100]")`` at a
body that is XML; ``AllOf("price > 100", Regex("urgent"))`` wants all of what it holds. Expressions
are checked when they are made, so a mistake is an error at its place and not a silence later.
``docs/reference/filters.md`` has the languages and their limits.

Receives what users give as ``where=``, and what peers announce; hands the condition on properties
and the `Condition`s on content to the bus. `antiphon.topics.judge` applies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from antiphon.errors import FilterError
from antiphon.topics.regexes import check_regex
from antiphon.topics.where import Where
from antiphon.topics.xpaths import check_xpath

__all__ = [
    "MAX_CONDITIONS",
    "AllOf",
    "Condition",
    "Filter",
    "Regex",
    "XPath",
    "check_condition",
    "read_where",
]

MAX_CONDITIONS = 8
"""On the content of an event, in one `AllOf`."""

_Text = Annotated[str, msgspec.Meta(max_length=4096)]


@dataclass(frozen=True, slots=True)
class Regex:
    """Bodies in which a regular expression of RE2 finds something: ``Regex("timeout|refused")``.

    The time for a body grows with its length, whatever the expression: there are no
    back-references and no look-around. Text is UTF-8; ``(?i)`` ignores case, ``(?s)`` lets ``.``
    match line ends. Raises `FilterError` with the ``column`` of a mistake.
    """

    text: str

    def __post_init__(self) -> None:
        check_regex(self.text)


@dataclass(frozen=True, slots=True)
class XPath:
    """Bodies of XML for which an expression of XPath 1.0 is true: ``XPath("/order[total > 100]")``.

    What is no boolean becomes one as by ``boolean()``: nodes that are there, numbers other than
    0, texts that are not empty. The context is the root element. ``namespaces`` gives prefixes
    their names. A body that is no XML does not match. Raises `FilterError` with the ``column``
    of a mistake.
    """

    text: str
    namespaces: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_xpath(self.text, self.namespaces)
        object.__setattr__(self, "namespaces", dict(self.namespaces))

    def __hash__(self) -> int:
        return hash((self.text, tuple(sorted(self.namespaces.items()))))


@dataclass(frozen=True, slots=True, init=False)
class AllOf:
    """Events that all of these want: conditions of SQL, `Regex` and `XPath`, in any order."""

    parts: tuple[Filter, ...]

    def __init__(self, *parts: Filter) -> None:
        object.__setattr__(self, "parts", parts)
        read_where(self)

    def __repr__(self) -> str:
        return f"AllOf({', '.join(map(repr, self.parts))})"


Filter: TypeAlias = "str | Regex | XPath | AllOf"
"""What ``where=`` takes."""


# Nothing in it can refer back to it, and there may be very many: the collector passes them by.
class Condition(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A filter on content as it is announced."""

    language: Literal["regex", "xpath"]
    text: _Text
    namespaces: tuple[tuple[_Text, _Text], ...] = ()


def read_where(where: object) -> tuple[str | None, tuple[Condition, ...]]:
    """The condition on properties, and those on content. Raises `FilterError`."""
    if where is None:
        return None, ()
    selectors, conditions = _parts(where, 0)
    if len(conditions) > MAX_CONDITIONS:
        raise FilterError(
            f"where has {len(conditions)} conditions on content; join at most {MAX_CONDITIONS}",
            expected=f"at most {MAX_CONDITIONS} conditions",
        )
    text = selectors[0] if len(selectors) == 1 else " AND ".join(f"({one})" for one in selectors)
    if len(selectors) > 1:
        Where(text)  # together they may be too much
    return text or None, tuple(dict.fromkeys(conditions))


def _parts(where: Any, depth: int) -> tuple[list[str], list[Condition]]:
    if isinstance(where, str):
        return [Where(where).text], []
    if isinstance(where, Regex):
        return [], [Condition("regex", where.text)]
    if isinstance(where, XPath):
        return [], [Condition("xpath", where.text, tuple(sorted(where.namespaces.items())))]
    if isinstance(where, AllOf) and where.parts and depth < MAX_CONDITIONS:
        selectors: list[str] = []
        conditions: list[Condition] = []
        for part in where.parts:
            more, others = _parts(part, depth + 1)
            selectors += more
            conditions += others
        return selectors, conditions
    what = "an AllOf of nothing" if isinstance(where, AllOf) else f"of type {type(where).__name__}"
    raise FilterError(
        f"where is {what}; give a text such as \"site = 'A'\", a Regex, an XPath, or an AllOf "
        "of these",
        expected="a text, a Regex, an XPath or an AllOf",
    )


def check_condition(condition: Condition) -> None:
    """Whether somebody else's can be applied; raises `FilterError`."""
    if condition.language == "regex":
        check_regex(condition.text)
    else:
        check_xpath(condition.text, dict(condition.namespaces))
