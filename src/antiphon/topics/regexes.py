"""Regular expressions over bodies, by RE2: many at once, in a time that grows with the body alone.

RE2 follows all ways through an expression at the same time, so none can make it go back over the
text again and again, and it gives up on an expression that would need too much memory. A `Bank`
holds all expressions that are asked for on one topic and goes through a body once for all of them.

Receives expressions from `antiphon.topics.content` and bodies from `antiphon.topics.judge`.
"""

from __future__ import annotations

import bisect
import functools
import reprlib
import weakref
from collections.abc import Iterable
from typing import Any

from antiphon.errors import FilterError
from antiphon.process_lock import ProcessLock

__all__ = ["MAX_REGEX_CHARACTERS", "Bank", "check_regex"]

MAX_REGEX_CHARACTERS = 4096
"""Of an expression."""

_MOST_MEMORY = 1 << 20  # of one expression: its program, and the states that it remembers
_BASE_MEMORY, _MEMORY_EACH, _SET_MEMORY = 4 << 20, 64 << 10, 128 << 20  # of many together
_RECENT = 64

_brief = reprlib.Repr()
_brief.maxstring = 80

# By the words of RE2: what could have stood there instead.
_EXPECTED = {
    "missing )": ") at the end",
    "unexpected )": "a ( before it, or \\)",
    "missing ]": "] at the end of the class",
    "no argument for repetition operator": "something to repeat before it, or a \\ to mean itself",
    "bad repetition operator": "one sign of repetition",
    "invalid repetition size": "a count up to 1000, nested ones multiplied",
    "invalid escape sequence": "an escape that RE2 knows (there are no back-references)",
    "trailing \\": "a character after the \\",
    "invalid character class range": "a class or a range that goes upward",
    "invalid perl operator": "a group, or flags such as (?i) (there is no look-around)",
    "invalid named capture group": "(?P<name>...)",
    "pattern too large - compile failed": "an expression that takes less memory",
    "invalid UTF-8": "text in UTF-8",
}


def _options(memory: int) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = memory
    return options


def _compile(text: str) -> Any:
    import re2

    return re2.compile(text, _options(_MOST_MEMORY))


def check_regex(text: object) -> None:
    """Raises `FilterError` for what is no expression of RE2, or a too large one."""
    import re2

    if not isinstance(text, str):
        raise FilterError(
            f'Regex of type {type(text).__name__}; write a text such as "timeout|refused"',
            expected="a text",
        )
    if len(text) > MAX_REGEX_CHARACTERS:
        raise _mistake(
            text,
            MAX_REGEX_CHARACTERS + 1,
            f"the expression has {len(text)} characters",
            f"at most {MAX_REGEX_CHARACTERS}",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _mistake(
            text, error.start + 1, "half of a surrogate pair", "whole characters"
        ) from None
    try:
        _compile(text)
    except re2.error as error:
        said = error.args[0]
        words = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        kind = next((kind for kind in _EXPECTED if words.startswith(kind)), words)
        piece = words[len(kind) + 2 :]
        raise _mistake(
            text,
            _column(text, kind, piece),
            words if piece != text else kind,
            _EXPECTED.get(kind, "an expression of RE2"),
        ) from None


def _column(text: str, kind: str, piece: str) -> int:
    """RE2 says which piece it did not like, but not where that stands."""
    if kind == "missing )":
        return len(text) + 1
    if kind.startswith("trailing"):
        return len(text)
    if kind == "unexpected )":
        # Once a text has one too many, so has every longer one.
        return bisect.bisect_left(range(len(text)), True, key=lambda end: _surplus(text[:end]))
    return max(0, text.find(piece)) + 1 if piece else 1


def _surplus(text: str) -> bool:
    import re2

    try:
        _compile(text)
    except re2.error as error:
        return b"unexpected )" in error.args[0]
    return False


def _mistake(text: str, column: int, why: str, expected: str) -> FilterError:
    return FilterError(
        f"Regex {_brief.repr(text)}, column {column}: {why}; expected {expected}",
        column=column,
        expected=expected,
    )


class _Together:
    """Some expressions, found in one pass."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        import re2

        self.texts = texts
        memory = min(_SET_MEMORY, _BASE_MEMORY + _MEMORY_EACH * len(texts))
        self._set = re2.Set.SearchSet(_options(memory))
        for text in texts:
            self._set.Add(text)
        # It is found in every body: a set that runs out of memory finds nothing, and is silent.
        self._witness = self._set.Add("")
        try:
            self._set.Compile()
        except re2.error:  # together they are too many
            self._set = None

    def matching(self, body: bytes) -> list[str]:
        texts, witness = self.texts, self._witness
        if self._set is not None:
            found = self._set.Match(body)
            if witness in found:
                return [texts[one] for one in found if one != witness]
        # One by one: RE2 then goes on without remembered states, slower.
        return [text for text in texts if _single(text).search(body) is not None]


@functools.lru_cache(maxsize=1024)
def _single(text: str) -> Any:
    return _compile(text)


_made: weakref.WeakValueDictionary[frozenset[str], _Together] = weakref.WeakValueDictionary()
_made_lock = ProcessLock()


def _together(texts: frozenset[str]) -> _Together:
    """The publishers of a topic share it."""
    with _made_lock:
        known = _made.get(texts)
    if known is None:
        known = _Together(tuple(sorted(texts)))
        with _made_lock:
            _made[texts] = known
    return known


class Bank:
    """Which of many expressions find something in a body. Never changes; threads may share it.

    Subscriptions come one by one, and to put all expressions together takes a while. So those that
    came lately are kept apart, and joined with the rest when they have become many.
    """

    def __init__(self, texts: Iterable[str], before: Bank | None = None) -> None:
        self._wanted = frozenset(texts)
        main = frozenset(before._main.texts) if before and before._main else frozenset[str]()
        recent = self._wanted - main
        unused = len(main) - len(main & self._wanted)
        if len(recent) > max(_RECENT, len(main) // 8) or unused > len(main) // 2:
            main, recent = self._wanted, frozenset[str]()
        self._main: _Together | None = _together(main) if main else None
        late = _together(recent) if recent else None
        self._all = tuple(one for one in (self._main, late) if one is not None)
        self._some_unwanted = not main <= self._wanted

    def matching(self, body: bytes) -> list[str]:
        """The expressions that find something in it. Does not raise."""
        found = [text for one in self._all for text in one.matching(body)]
        if self._some_unwanted:
            return [text for text in found if text in self._wanted]
        return found
