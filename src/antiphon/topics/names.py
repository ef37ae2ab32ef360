"""Names of topics, patterns over them, and two indexes: patterns by name and names by pattern.

A name is levels joined by "/", such as ``plant/7/temp``. A pattern is written alike; in it ``*``
stands for exactly one level and ``**`` for any number of them, none included, so ``plant/**`` also
matches ``plant``. Levels are compared code point by code point: no case is folded and no Unicode
is normalised, and a name that begins with ``$`` is a name as any other.

Topics that are no names (`antiphon.topics.kinds`) are texts that begin with a slash, so with a
level that is empty, as no name has one. They are found here as names are, but ``*`` and ``**``
never stand for an empty level: a pattern of names means names only.

Peers write patterns too, so none may cost more than its length promises. A pattern becomes a
machine whose state is the set of positions that the name may have reached, one bit for each:
a level moves all of them at once. The rejected alternative, a regular expression, goes back over
the name once for every ``**`` and takes the product of those ways.

Nothing here locks: a `Pattern` never changes and may be shared, but whoever uses an index from
several threads holds a lock of their own, readers included.

Receives text from users and from announcements of peers; hands keys (subscriptions, publishers,
routes) back to the bus, which decides what they mean.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from antiphon.errors import ConfigError

__all__ = ["MAX_NAME_BYTES", "RESERVED", "Pattern", "PatternIndex", "TopicIndex", "check_topic"]

MAX_NAME_BYTES = 1024
"""Of a name or a pattern, in UTF-8."""

RESERVED = frozenset({"", "$sys", "$dead"})
"""First levels that a star does not mean: those of a broker's own topics, such as ``$sys/broker``,
so that whoever subscribes to everything does not get them unasked, and that of numbers and tags,
which are no names."""

_MOST_STEPS = 4096  # of a comparison of two patterns; people's take a few

K = TypeVar("K", bound=Hashable)

# How `antiphon.topics.kinds` writes a number, and a tag with a value or with any.
_INT = re.compile(r"/int/(0|-?[1-9][0-9]{0,18})")
_TAG = re.compile(r"/tag/(?:[^/%*]|%2[5FA])+/(?:\*|(?:[^/%*]|%2[5FA])+)", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_brief = reprlib.Repr()
_brief.maxstring = 80


def check_topic(name: object) -> str:
    """``name`` if a topic can be called so; raises `ConfigError` that says what is wrong with it.

    Levels are not empty, hold no ``*`` and no control character, and the whole takes at most
    `MAX_NAME_BYTES` in UTF-8.
    """
    text = _check_text("topic", name)
    if "*" in text:
        raise _refuse("topic", text, "'*' belongs to patterns; name the one topic that is meant")
    return text


def _reserved(name: str) -> bool:
    return name.startswith(("$", "/")) and name.partition("/")[0] in RESERVED


_LITERAL: tuple[tuple[str, Any], ...] = (
    ("literal", True),
    ("_one", 0),
    ("_many", 0),
    ("_exact", {}),
    ("_end", 0),
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Which topics are meant: ``*`` is one level, ``**`` any number, both anywhere and repeatedly.

    Raises `ConfigError` for what is no pattern, such as ``a*b``: a star is a level of its own.
    Two patterns are equal when their texts are, even if others match the same names.
    """

    text: str
    levels: tuple[str, ...] = field(init=False, repr=False, compare=False)
    literal: bool = field(init=False, repr=False, compare=False)
    """Without a star: it matches the one topic of that name."""

    # Bit i is the i-th level of the pattern, without a "**" that follows on another; the bit behind
    # the last is the end.
    _one: int = field(init=False, repr=False, compare=False)
    _many: int = field(init=False, repr=False, compare=False)
    _exact: Mapping[str, int] = field(init=False, repr=False, compare=False)
    _end: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        levels = tuple(_check_text("pattern", self.text).split("/"))
        if "*" not in self.text:  # most are: they are found by their text alone
            for name, value in (*_LITERAL, ("levels", levels)):
                object.__setattr__(self, name, value)
            return
        one = many = 0
        exact: dict[str, int] = {}
        bit, last = 1, ""
        for level in levels:
            if level == last == "**":
                continue
            last = level
            if level == "**":
                many |= bit
            elif level == "*":
                one |= bit
            elif "*" in level:
                raise _refuse(
                    "pattern",
                    self.text,
                    f"'*' is part of the level {_brief.repr(level)}; let it stand alone between "
                    "slashes: * for one level, ** for any number",
                )
            else:
                exact[level] = exact.get(level, 0) | bit
            bit <<= 1
        for name, value in (
            ("levels", levels),
            ("literal", not one | many),
            ("_one", one),
            ("_many", many),
            ("_exact", exact),
            ("_end", bit),
        ):
            object.__setattr__(self, name, value)

    def matches(self, name: str) -> bool:
        """Whether the topic is meant; ``name`` is one that `check_topic` accepts."""
        if self.literal:
            return name == self.text
        if _reserved(name) and self.levels[0] != name.partition("/")[0]:
            return False
        state = self._begin()
        for level in name.split("/"):
            state = self._step(state, level)
            if not state:
                return False
        return bool(state & self._end)

    def covers(self, other: Pattern) -> bool:
        """Whether every topic that ``other`` means is meant by this one too; False if in doubt.

        A star of ``other`` may stand for a level that neither pattern names, and whatever lets
        that pass lets any level pass; so names of such levels decide for all.
        """
        if other.literal:
            return self.matches(other.text)
        if self.literal:
            return False
        if other.levels[0] in RESERVED and self.levels[0] != other.levels[0]:
            return False
        places = [(0, self._begin())]
        known = set(places)
        while places:
            if len(known) > _MOST_STEPS:
                return False
            at, state = places.pop()
            if at == len(other.levels):
                if not state & self._end:
                    return False
                continue
            level = other.levels[at]
            ahead = [(at + 1, self._step(state, level))]  # "*" is never a level of a name
            if level == "**":
                ahead = [(at + 1, state), (at, self._step(state, "*"))]
            for place in ahead:
                if not place[1]:
                    return False
                if place not in known:
                    known.add(place)
                    places.append(place)
        return True

    def _begin(self) -> int:
        return 1 | (self._many & 1) << 1

    def _step(self, state: int, level: str) -> int:
        """The positions behind ``level``: "**" stays where it is, and lets pass at once."""
        moved = (state & (self._one | self._exact.get(level, 0))) << 1 | state & self._many
        return moved | (moved & self._many) << 1

    def __reduce__(self) -> tuple[Any, ...]:
        return Pattern, (self.text,)


class _Fork(Generic[K]):
    """A place in the tree of patterns: the levels that lead here are the way from the root."""

    __slots__ = ("exact", "keys", "many", "one")

    def __init__(self) -> None:
        self.exact: dict[str, _Fork[K]] = {}
        self.one: _Fork[K] | None = None
        self.many: _Fork[K] | None = None
        self.keys: set[K] = set()

    def child(self, level: str) -> _Fork[K] | None:
        if level == "*":
            return self.one
        return self.many if level == "**" else self.exact.get(level)

    def put(self, level: str, child: _Fork[K] | None) -> None:
        if level == "*":
            self.one = child
        elif level == "**":
            self.many = child
        elif child is not None:
            self.exact[level] = child
        else:
            del self.exact[level]

    @property
    def empty(self) -> bool:
        return not (self.keys or self.exact or self.one or self.many)


def _rest_below(forks: list[_Fork[K]], resting: list[_Fork[K]], known: set[_Fork[K]]) -> None:
    """Add the "**" that the name has reached without taking a level."""
    for fork in forks:
        many = fork.many
        while many is not None and many not in known:
            known.add(many)
            resting.append(many)
            many = many.many


class PatternIndex(Generic[K]):
    """Many patterns with a key each; finds the keys whose patterns match one name.

    Patterns without a star are looked up at once, however many there are; the others form a tree
    of which a lookup sees only the branches that the name can still take. A key may hold several
    patterns and a pattern several keys; ``len`` counts the pairs. Not thread-safe.
    """

    def __init__(self) -> None:
        self._literal: dict[str, set[K]] = {}
        self._root: _Fork[K] = _Fork()
        self._pairs = 0

    def __len__(self) -> int:
        return self._pairs

    def add(self, pattern: Pattern, key: K) -> bool:
        """Whether the pair is new; to add it again changes nothing."""
        if pattern.literal:
            keys = self._literal.setdefault(pattern.text, set())
        else:
            fork = self._root
            for level in pattern.levels:
                child = fork.child(level)
                if child is None:
                    child = _Fork()
                    fork.put(level, child)
                fork = child
            keys = fork.keys
        if key in keys:
            return False
        keys.add(key)
        self._pairs += 1
        return True

    def remove(self, pattern: Pattern, key: K) -> bool:
        """Whether the pair was there; to remove what is not there changes nothing."""
        if pattern.literal:
            keys = self._literal.get(pattern.text)
            if keys is None or key not in keys:
                return False
            keys.discard(key)
            if not keys:
                del self._literal[pattern.text]
        elif not self._remove_branch(pattern.levels, key):
            return False
        self._pairs -= 1
        return True

    def _remove_branch(self, levels: tuple[str, ...], key: K) -> bool:
        way = [self._root]
        for level in levels:
            child = way[-1].child(level)
            if child is None:
                return False
            way.append(child)
        if key not in way[-1].keys:
            return False
        way[-1].keys.discard(key)
        for level in reversed(levels):
            if not way.pop().empty:
                break
            way[-1].put(level, None)
        return True

    def matching(self, name: str) -> set[K]:
        """The keys with a pattern that matches, as a set of the caller's own."""
        found = set(self._literal.get(name, ()))
        root = self._root
        if root.empty:
            return found
        here, levels = [root], name.split("/")
        if levels[0] in RESERVED:  # no star takes its first level
            first = root.exact.get(levels.pop(0))
            if first is None:
                return found
            here = [first]
        # A "**" that was reached takes all levels that follow, so these are never left again.
        # Only they can be reached in two ways, hence the set.
        resting: list[_Fork[K]] = []
        known: set[_Fork[K]] = set()
        _rest_below(here, resting, known)
        for level in levels:
            ahead: list[_Fork[K]] = []
            for forks in (here, resting):
                for fork in forks:
                    exact = fork.exact.get(level)
                    if exact is not None:
                        ahead.append(exact)
                    if fork.one is not None:
                        ahead.append(fork.one)
            _rest_below(ahead, resting, known)
            here = ahead
            if not (here or resting):
                return found
        for forks in (here, resting):
            for fork in forks:
                found |= fork.keys
        return found


class _Branch(Generic[K]):
    """A place in the tree of names. ``keys`` is None where only longer names pass through."""

    __slots__ = ("children", "keys")

    def __init__(self) -> None:
        self.children: dict[str, _Branch[K]] = {}
        self.keys: set[K] | None = None


class TopicIndex(Generic[K]):
    """Many names with a key each; finds the keys whose names one pattern matches.

    The reverse of `PatternIndex`. A pattern without a star is looked up at once; for others the
    tree of names is walked, each place at most once. A key may hold several names and a name
    several keys; ``len`` counts the pairs. Names are taken as they come: `check_topic` is the
    caller's affair, and so is thread-safety.
    """

    def __init__(self) -> None:
        self._names: dict[str, set[K]] = {}
        self._root: _Branch[K] = _Branch()
        self._reserved = 0
        self._pairs = 0

    def __len__(self) -> int:
        return self._pairs

    def add(self, name: str, key: K) -> bool:
        """Whether the pair is new; to add it again changes nothing."""
        keys = self._names.get(name)
        if keys is None:
            keys = self._names[name] = set()
            self._reserved += _reserved(name)
            branch = self._root
            for level in name.split("/"):
                child = branch.children.get(level)
                if child is None:
                    child = branch.children[level] = _Branch()
                branch = child
            branch.keys = keys
        elif key in keys:
            return False
        keys.add(key)
        self._pairs += 1
        return True

    def remove(self, name: str, key: K) -> bool:
        """Whether the pair was there; to remove what is not there changes nothing."""
        keys = self._names.get(name)
        if keys is None or key not in keys:
            return False
        keys.discard(key)
        self._pairs -= 1
        if not keys:
            del self._names[name]
            self._reserved -= _reserved(name)
            self._remove_branch(name.split("/"))
        return True

    def _remove_branch(self, levels: list[str]) -> None:
        way = [self._root]
        for level in levels:
            way.append(way[-1].children[level])
        way[-1].keys = None
        for level in reversed(levels):
            branch = way.pop()
            if branch.children or branch.keys is not None:
                break
            del way[-1].children[level]

    def matching(self, pattern: Pattern) -> set[K]:
        """The keys with a name that the pattern matches, as a set of the caller's own."""
        if pattern.literal:
            return set(self._names.get(pattern.text, ()))
        if pattern.text == "**" and not self._reserved:
            return set().union(*self._names.values())
        found: set[K] = set()
        named = pattern._exact
        places = [(self._root, pattern._begin(), 0)]
        while places:
            branch, state, depth = places.pop()
            if state & pattern._end and branch.keys is not None:
                found |= branch.keys
            if state & (pattern._one | pattern._many):
                # Most levels are none that the pattern names; they all lead to the same state.
                other = pattern._step(state, "*")  # which is never a level of a name
                for level, child in branch.children.items():
                    if not depth and level in RESERVED and level != pattern.levels[0]:
                        continue
                    ahead = pattern._step(state, level) if level in named else other
                    if ahead:
                        places.append((child, ahead, depth + 1))
            elif depth < len(pattern.levels):
                # No "**" was passed yet, for one stays: the pattern is as deep as the tree here.
                level = pattern.levels[depth]
                only = branch.children.get(level)
                if only is not None:
                    places.append((only, pattern._step(state, level), depth + 1))
        return found


def _check_text(what: str, text: object) -> str:
    """What names and patterns have in common."""
    if not isinstance(text, str):
        raise ConfigError(
            f"{what} of type {type(text).__name__}: not a text; "
            'write levels joined by "/", such as "plant/7/temp"',
            setting=what,
            value=text,
        )
    if not text:
        raise _refuse(what, text, 'empty; write levels joined by "/", such as "plant/7/temp"')
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise _refuse(
            what, text, f"character {error.start + 1} is half of a surrogate pair; remove it"
        ) from None
    if size > MAX_NAME_BYTES:
        raise _refuse(what, text, f"takes {size} bytes; shorten it to {MAX_NAME_BYTES}")
    control = _CONTROL.search(text)
    if control is not None:
        raise _refuse(
            what,
            text,
            f"character {control.start() + 1} is the control character {control[0]!r}; remove it",
        )
    if text.startswith("/"):
        if what == "pattern" and _fits_kind(text):
            return text
        raise _refuse(what, text, 'begins with an empty level; remove the "/" in front')
    if text.endswith("/"):
        raise _refuse(what, text, 'ends in an empty level; remove the "/" at the end')
    if "//" in text:
        raise _refuse(what, text, 'has an empty level; put a name between the "/" and the "/"')
    return text


def _fits_kind(text: str) -> bool:
    number = _INT.fullmatch(text)
    if number is not None:
        return -(2**63) <= int(number[1]) < 2**63
    return _TAG.fullmatch(text) is not None


def _refuse(what: str, value: str, why: str) -> ConfigError:
    return ConfigError(f"{what} {_brief.repr(value)}: {why}", setting=what, value=value)
