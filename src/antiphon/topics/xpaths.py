"""Expressions of XPath 1.0: whether one may be evaluated, and where a mistake in it is.

libxml2 reads the expression and says where it stopped, but it finds out about functions, variables
and prefixes that do not exist only when it comes to them, which may be years later. So names are
looked at here, by the tokens of XPath's own grammar, and so is how deep brackets are nested.

Receives expressions from `antiphon.topics.content`; what is accepted is evaluated in another
process (`antiphon.topics.xml_helper`).
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping

from antiphon.errors import FilterError

__all__ = ["MAX_XPATH_CHARACTERS", "check_xpath"]

MAX_XPATH_CHARACTERS = 1024
"""Of an expression."""

_MOST_NESTED = 16
_MOST_NAMESPACES, _NAMESPACE_CHARACTERS = 16, 1024

_FUNCTIONS = frozenset(
    {
        "boolean",
        "ceiling",
        "concat",
        "contains",
        "count",
        "false",
        "floor",
        "id",
        "lang",
        "last",
        "local-name",
        "name",
        "namespace-uri",
        "normalize-space",
        "not",
        "number",
        "position",
        "round",
        "starts-with",
        "string",
        "string-length",
        "substring",
        "substring-after",
        "substring-before",
        "sum",
        "translate",
        "true",
    }
)
_NODE_TYPES = frozenset({"comment", "node", "processing-instruction", "text"})
_AXES = frozenset(
    {
        "ancestor",
        "ancestor-or-self",
        "attribute",
        "child",
        "descendant",
        "descendant-or-self",
        "following",
        "following-sibling",
        "namespace",
        "parent",
        "preceding",
        "preceding-sibling",
        "self",
    }
)
_TOKEN = re.compile(
    r"""(?P<literal>"[^"]*"|'[^']*')
      | (?P<open_literal>["'])
      | (?P<variable>\$\s*[\w.:-]*)
      | (?P<axis>[^\W\d][\w.-]*)\s*::
      | (?P<prefix>[^\W\d][\w.-]*):(?!:)
      | (?P<call>[^\W\d][\w.-]*)\s*(?=\()
      | (?P<name>[^\W\d][\w.-]*)
      | (?P<bracket>[()\[\]])
      | (?P<number>\d+(?:\.\d*)?|\.\d+)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_CLOSES = {"(": ")", "[": "]"}
_OPERATORS = frozenset({"and", "or", "div", "mod"})

_brief = reprlib.Repr()
_brief.maxstring = 80


def check_xpath(text: object, namespaces: object) -> None:
    """Raises `FilterError` for what is no expression of XPath 1.0, or is too much of one."""
    if not isinstance(text, str):
        raise FilterError(
            f'XPath of type {type(text).__name__}; write a text such as "/order[total > 100]"',
            expected="a text",
        )
    if not text.strip():
        raise _mistake(text, 1, "the expression is empty", "an expression such as /order")
    if len(text) > MAX_XPATH_CHARACTERS:
        raise _mistake(
            text,
            MAX_XPATH_CHARACTERS + 1,
            f"the expression has {len(text)} characters",
            f"at most {MAX_XPATH_CHARACTERS}",
        )
    bad = re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", text)
    if bad is not None:
        raise _mistake(text, bad.start() + 1, f"found {bad[0]!r}", "characters that XML can hold")
    known = _check_namespaces(namespaces)
    _check_names(text, known)
    _compile(text, known)


def _check_namespaces(namespaces: object) -> dict[str, str]:
    if not isinstance(namespaces, Mapping):
        raise FilterError(
            f"namespaces of type {type(namespaces).__name__}; give a mapping of prefixes to names",
            expected="a mapping",
        )
    if len(namespaces) > _MOST_NAMESPACES:
        raise FilterError(
            f"{len(namespaces)} namespaces; give at most {_MOST_NAMESPACES}",
            expected=f"at most {_MOST_NAMESPACES}",
        )
    for prefix, name in namespaces.items():
        fits = isinstance(prefix, str) and re.fullmatch(r"[^\W\d][\w.-]*", prefix)
        if not fits or len(prefix) > _NAMESPACE_CHARACTERS:
            raise FilterError(
                f"namespaces: {_brief.repr(prefix)} is no prefix; XPath 1.0 has no default "
                "namespace, so give every one a prefix and write it in the expression",
                expected="a prefix",
            )
        if not isinstance(name, str) or not 0 < len(name) <= _NAMESPACE_CHARACTERS:
            raise FilterError(
                f"namespaces: {_brief.repr(name)} is no name for {prefix!r}; give a text of 1 to "
                f"{_NAMESPACE_CHARACTERS} characters",
                expected="a text",
            )
    return dict(namespaces)


def _check_names(text: str, namespaces: Mapping[str, str]) -> None:
    nested: list[tuple[str, int]] = []
    for token in _TOKEN.finditer(text):
        kind, column = token.lastgroup, token.start() + 1
        found = token[kind or 0]
        if kind == "open_literal":
            raise _mistake(text, column, "a text begins here", f"a {found} at its end")
        if kind == "variable":
            raise _mistake(text, column, f"found {found!r}", "a value: there are no variables here")
        if kind == "axis" and found not in _AXES:
            raise _mistake(text, column, f"found the axis {found!r}", ", ".join(sorted(_AXES)))
        if kind == "prefix" and found not in namespaces:
            raise _mistake(
                text,
                column,
                f"found the prefix {found!r}",
                f"one that is given: namespaces={{{found!r}: ...}}",
            )
        if kind == "call" and found not in _FUNCTIONS | _NODE_TYPES | _OPERATORS:
            raise _mistake(
                text, column, f"found the function {found!r}", ", ".join(sorted(_FUNCTIONS))
            )
        if kind == "bracket":
            _nest(text, nested, found, column)
    if nested:
        bracket, column = nested[-1]
        raise _mistake(
            text,
            len(text) + 1,
            f"the {bracket} of column {column} is open",
            _CLOSES[bracket],
        )


def _nest(text: str, nested: list[tuple[str, int]], found: str, column: int) -> None:
    if found in _CLOSES:
        nested.append((found, column))
        if len(nested) > _MOST_NESTED:
            raise _mistake(
                text, column, f"found {found!r}", f"at most {_MOST_NESTED} brackets in each other"
            )
    elif not nested or _CLOSES[nested[-1][0]] != found:
        wanted = _CLOSES[nested[-1][0]] if nested else "the end, or a bracket that opens before"
        raise _mistake(text, column, f"found {found!r}", wanted)
    else:
        nested.pop()


def _compile(text: str, namespaces: Mapping[str, str]) -> None:
    from lxml import etree

    try:
        expression = etree.XPath(text, namespaces=namespaces or None, regexp=False)
    except etree.XPathError as error:
        offset = max((entry.column for entry in error.error_log), default=0)
        before = text.encode()[: max(0, offset)].decode(errors="ignore")
        column = min(len(before), len(text)) + 1
        rest = text[column - 1 :]
        found = f"found {_brief.repr(rest)}" if rest else "it ends"
        raise _mistake(text, column, found, "a step, a value or an operator of XPath 1.0") from None
    try:
        # Types that cannot go together show in the smallest document, as a rule.
        expression(etree.Element("x"))
    except etree.XPathError as error:
        raise _mistake(
            text, 1, str(error).lower(), "arguments of the types that the functions take"
        ) from None


def _mistake(text: str, column: int, why: str, expected: str) -> FilterError:
    return FilterError(
        f"XPath {_brief.repr(text)}, column {column}: {why}; expected {expected}",
        column=column,
        expected=expected,
    )
