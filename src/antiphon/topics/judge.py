"""Who judges the content of events for a bus or a broker, and how the core asks.

A subscription's conditions on content get a number. A publisher that serves such subscriptions asks
for a `JudgePlan` of their numbers, once per change, and then gives it bodies, many at a time; the
plan says which numbers let each pass. Topics that nobody asks the content of never come here.

A body that cannot be judged lets nobody pass who asks for its content, is counted, and goes to
everybody else. Nothing here raises on account of a body.

Receives conditions from `antiphon.topics.neighbours` and bodies from the core
(``native/bindings/content.cpp``); uses `antiphon.topics.regexes` and `antiphon.topics.xml_judge`.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

from antiphon.topics.content import Condition, check_condition
from antiphon.topics.regexes import Bank
from antiphon.topics.xml_judge import DEADLINE, Expression, XmlJudge

__all__ = ["ContentJudge", "ContentStatistics", "JudgePlan"]

log = logging.getLogger("antiphon.topics")


@dataclass(frozen=True)
class ContentStatistics:
    """Events whose content somebody asked for, here at the publishing side or at the broker."""

    judged: int = 0
    """Bodies that were looked at."""
    not_xml: int = 0
    """Of those that an XPath was asked of: no XML, or with a DTD, or nested too deeply."""
    too_large: int = 0
    """Bodies of more than 1 MiB, which are not looked at."""
    timed_out: int = 0
    """Bodies for which an XPath was not evaluated, or not to its end, for want of time."""
    failed: int = 0
    """Bodies for which an expression could not be evaluated, such as one of a wrong type."""


class ContentJudge:
    """All conditions on content that are asked of the topics of one bus or broker. Thread-safe."""

    def __init__(self, deadline: float = DEADLINE) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._conditions: dict[int, tuple[Condition, ...]] = {}
        self._known: dict[tuple[Condition, ...], tuple[int, int]] = {}
        self._expressions: dict[Condition, Expression] = {}
        self._uses: Counter[Condition] = Counter()
        self._counts: Counter[str] = Counter()
        self.xml = XmlJudge(deadline)

    def add(self, conditions: tuple[Condition, ...]) -> int:
        """Their number; the same for the same conditions. Raises `FilterError`."""
        with self._lock:
            known = self._known.get(conditions)
        if known is None:
            for condition in conditions:
                check_condition(condition)
        with self._lock:
            number, uses = self._known.get(conditions) or (next(self._numbers), 0)
            self._known[conditions] = number, uses + 1
            if uses == 0:
                self._conditions[number] = conditions
                for condition in conditions:
                    self._uses[condition] += 1
                    if condition.language == "xpath" and condition not in self._expressions:
                        self._expressions[condition] = Expression(
                            next(self._numbers), condition.text, dict(condition.namespaces)
                        )
            return number

    def remove(self, number: int) -> None:
        """One user less."""
        with self._lock:
            conditions = self._conditions[number]
            uses = self._known[conditions][1] - 1
            self._known[conditions] = number, uses
            if uses:
                return
            del self._known[conditions], self._conditions[number]
            for condition in conditions:
                self._uses[condition] -= 1
                if not self._uses[condition]:
                    del self._uses[condition]
                    expression = self._expressions.pop(condition, None)
                    if expression is not None:
                        self.xml.forget(expression.number)

    def plan(self, numbers: tuple[int, ...], before: JudgePlan | None) -> JudgePlan:
        """For one publisher, whose plan so far is ``before``."""
        with self._lock:
            # One that has just gone lets nobody pass.
            wanted = {one: self._conditions[one] for one in numbers if one in self._conditions}
            expressions = {
                condition: self._expressions[condition]
                for conditions in wanted.values()
                for condition in conditions
                if condition.language == "xpath"
            }
        return JudgePlan(self, wanted, expressions, before)

    def count(self, counts: Counter[str]) -> None:
        """Adds to the statistics."""
        with self._lock:
            self._counts.update(counts)

    def statistics(self) -> ContentStatistics:
        """Counts of this moment."""
        with self._lock:
            return ContentStatistics(
                **{one.name: self._counts[one.name] for one in fields(ContentStatistics)}
            )

    def close(self) -> None:
        """Ends the process that evaluates XPath, if there is one. Idempotent."""
        self.xml.close()


class JudgePlan:
    """How to judge the bodies of one publisher. Never changes; threads may share it."""

    def __init__(
        self,
        judge: ContentJudge,
        wanted: dict[int, tuple[Condition, ...]],
        expressions: dict[Condition, Expression],
        before: JudgePlan | None,
    ) -> None:
        self._judge = judge
        # By the expression that finds something: those who want nothing else, and those who do.
        self._alone: dict[str, list[int]] = {}
        self._beside: dict[str, list[int]] = {}
        self._regexes: dict[int, frozenset[str]] = {}
        self._xpaths: dict[int, frozenset[int]] = {}
        only_xml = []
        for number, conditions in wanted.items():
            texts = frozenset(one.text for one in conditions if one.language == "regex")
            xpaths = frozenset(
                expressions[one].number for one in conditions if one.language == "xpath"
            )
            if len(texts) == 1 and not xpaths:
                self._alone.setdefault(min(texts), []).append(number)
                continue
            self._regexes[number], self._xpaths[number] = texts, xpaths
            if not texts:
                only_xml.append(number)
            for text in texts:
                self._beside.setdefault(text, []).append(number)
        self._only_xml = tuple(only_xml)
        self._expressions = {one.number: one for one in expressions.values()}
        texts_all = self._alone.keys() | self._beside.keys()
        self._bank: Bank | None = None
        if texts_all:
            self._bank = Bank(texts_all, before._bank if before else None)

    def __call__(self, bodies: Sequence[bytes | None]) -> list[list[int]]:
        """For each body the numbers that let it pass; None is one that was too large."""
        counts: Counter[str] = Counter()
        verdicts: list[list[int]] = [[] for _ in bodies]
        try:
            self._judge_all(bodies, verdicts, counts)
        except Exception:  # a mistake of ours is nobody's but of those who asked
            log.exception("the content of %d events could not be judged", len(bodies))
            counts["failed"] += len(bodies)
            verdicts = [[] for _ in bodies]
        finally:
            self._judge.count(counts)
        return verdicts

    def _judge_all(
        self, bodies: Sequence[bytes | None], verdicts: list[list[int]], counts: Counter[str]
    ) -> None:
        # What passes all it is asked but XPath, by the place of the body.
        open_: dict[int, list[int]] = {}
        for place, body in enumerate(bodies):
            if body is None:
                counts["too_large"] += 1
                continue
            counts["judged"] += 1
            asking = list(self._only_xml)
            if self._bank is not None:
                self._find(self._bank.matching(body), verdicts[place], asking)
            if asking:
                open_[place] = asking
        if not open_:
            return
        judged = self._judge.xml.judge(
            self._expressions, [body for place in open_ if (body := bodies[place]) is not None]
        )
        for (place, asking), verdict in zip(open_.items(), judged, strict=True):
            counts["not_xml"] += not verdict.is_xml
            counts["timed_out"] += verdict.timed_out
            counts["failed"] += bool(verdict.failed)
            verdicts[place] += [one for one in asking if self._xpaths[one] <= verdict.true]

    def _find(self, texts: list[str], passed: list[int], asking: list[int]) -> None:
        found = set(texts)
        some: set[int] = set()
        for text in texts:
            passed += self._alone.get(text, ())
            some.update(self._beside.get(text, ()))
        for number in some:
            if self._regexes[number] <= found:
                (asking if self._xpaths[number] else passed).append(number)
