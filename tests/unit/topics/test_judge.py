"""The judge of content: what lets a body pass, what it counts, and what it survives."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.errors import FilterError
from antiphon.testing import eventually
from antiphon.topics import regexes, xml_judge
from antiphon.topics.content import AllOf as All
from antiphon.topics.content import Condition, Filter, Regex, XPath, read_where
from antiphon.topics.judge import ContentJudge, ContentStatistics, JudgePlan
from antiphon.topics.regexes import Bank

pytestmark = pytest.mark.timeout(120)

ORDER = b"<order><total>150</total><item price='3'/></order>"


@pytest.fixture
def judge() -> Iterator[ContentJudge]:
    one = ContentJudge(deadline=20.0)
    yield one
    one.close()
    assert one.xml.pid is None


def plan_of(judge: ContentJudge, *filters: Filter) -> tuple[JudgePlan, list[int]]:
    numbers = [judge.add(read_where(one)[1]) for one in filters]
    return judge.plan(tuple(sorted(set(numbers))), None), numbers


def passing(judge: ContentJudge, where: Filter, *bodies: bytes) -> list[bytes]:
    plan, (number,) = plan_of(judge, where)
    return [body for body, passed in zip(bodies, plan(bodies), strict=True) if number in passed]


# --- regular expressions --------------------------------------------------------------------------


def test_an_expression_is_searched_in_the_bytes(judge: ContentJudge) -> None:
    bodies = (b"timeout", b"it was refused.", b"", b"fine", b"\xff\xfe refused \x00", b"TIMEOUT")
    assert passing(judge, Regex("timeout|refused"), *bodies) == [bodies[0], bodies[1], bodies[4]]
    assert passing(judge, Regex("(?i)timeout"), *bodies) == [bodies[0], bodies[5]]
    assert passing(judge, Regex("^$"), *bodies) == [b""]
    assert passing(judge, Regex(""), *bodies) == list(bodies)
    assert passing(judge, Regex("grün"), "grüner".encode(), "grüner".encode("latin-1")) == [
        "grüner".encode()
    ]
    assert judge.statistics().judged == 4 * len(bodies) + 2


PIECES = st.sampled_from(["a", "b", "ab", "a*", "(a|b)", "[ab]b", "b+", "a?b", "^a", "b$", "."])


@given(
    st.lists(st.lists(PIECES, max_size=4).map("".join), min_size=1, max_size=8),
    st.lists(st.text("abc", max_size=8), max_size=5),
    st.integers(1, 4),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_many_expressions_find_what_each_finds_alone(
    texts: list[str], bodies: list[str], parts: int
) -> None:
    """However they came together: all at once, or some after the others."""
    bank = None
    for end in range(1, parts + 1):
        wanted = set(texts[: 1 + len(texts) * end // parts])
        bank = Bank(wanted, bank)
        for body in bodies:
            expected = {text for text in wanted if re.search(text, body)}
            assert sorted(bank.matching(body.encode())) == sorted(expected)


def test_expressions_come_and_go_by_the_thousand() -> None:
    bank = Bank([f"user-{number} " for number in range(1000)])
    for number in range(1000, 1200):
        bank = Bank([f"user-{one} " for one in range(number)], bank)
    assert bank.matching(b"user-7 and user-1198 ") == ["user-7 ", "user-1198 "]
    bank = Bank([f"user-{one} " for one in range(1190, 1200)], bank)
    assert bank.matching(b"user-7 and user-1198 ") == ["user-1198 "]


def test_expressions_that_are_too_many_together_are_searched_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(regexes, "_BASE_MEMORY", 40_000)
    monkeypatch.setattr(regexes, "_MEMORY_EACH", 0)
    texts = [f"(x{number}|y.{{5}}z{number})" for number in range(40)]
    bank = Bank(texts)
    assert bank._all[0]._set is None
    assert sorted(bank.matching(b"x7 and x33")) == sorted([texts[7], texts[3], texts[33]])


def test_a_set_that_finds_nothing_at_all_is_not_believed() -> None:
    """RE2 says by that alone that it has run out of memory on a body."""

    class Exhausted:
        def Match(self, body: bytes) -> list[int]:
            return []

    bank = Bank(["a+", "b+", "exhausted"])
    bank._all[0]._set = Exhausted()
    assert sorted(bank.matching(b"xaab")) == ["a+", "b+"]


@pytest.mark.parametrize(
    "text", ["(a*)*b", "(a|a)*b", "(a+)+$", "(.*)(.*)(.*)(.*)x", "^(([a-z])+.)+[A-Z]([a-z])+$"]
)
def test_a_catastrophic_expression_takes_as_long_as_any_other(
    judge: ContentJudge, text: str
) -> None:
    """With going back over the text one of these would not end this year."""
    body = b"a" * 200_000 + b"!"
    began = time.thread_time()
    assert passing(judge, Regex(text), body) == []
    assert time.thread_time() - began < 5.0


# --- XPath ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("/order", True),
        ("/order[total > 100]", True),
        ("/order[total > 200]", False),
        ("total", True),
        ("//item/@price", True),
        ("//item[@price = 4]", False),
        ("count(//item)", True),
        ("count(//nothing)", False),
        ("string(//nothing)", False),
        ("'text'", True),
        ("''", False),
        ("0", False),
        ("false()", False),
        ("not(//nothing) and true()", True),
    ],
)
def test_what_an_expression_gives_becomes_a_boolean(
    judge: ContentJudge, text: str, matches: bool
) -> None:
    assert passing(judge, XPath(text), ORDER) == [ORDER] * matches


def test_namespaces_have_the_prefixes_that_were_given(judge: ContentJudge) -> None:
    body = b"<o:order xmlns:o='urn:shop'><o:total>1</o:total></o:order>"
    assert passing(judge, XPath("/s:order/s:total", {"s": "urn:shop"}), body) == [body]
    assert passing(judge, XPath("/s:order", {"s": "urn:other"}), body) == []
    assert passing(judge, XPath("/order"), body) == []


def laughs(place: str) -> bytes:
    entities = "".join(
        f'<!ENTITY l{n} "{f"&l{n - 1};" * 10 if n else "ha" * 10}">' for n in range(12)
    )
    return f"<!DOCTYPE x [{entities}]>{place}".encode()


NOT_XML = {
    "empty": b"",
    "text": b"an order",
    "json": b'{"order": 1}',
    "unclosed": b"<order>",
    "two roots": b"<order/><order/>",
    "cut": ORDER[:-3],
    "binary": bytes(range(256)),
    "undeclared entity": b"<order>&nothing;</order>",
    "a DTD": b"<!DOCTYPE order><order/>",
    "a DTD from elsewhere": b"<!DOCTYPE order SYSTEM 'http://127.0.0.1:9/x.dtd'><order/>",
    "a file": b"<!DOCTYPE order [<!ENTITY f SYSTEM 'file:///etc/passwd'>]><order>&f;</order>",
    "billion laughs": laughs("<order>&l11;</order>"),
    "billion laughs in an attribute": laughs("<order a='&l11;'/>"),
    "quadratic": b"<!DOCTYPE order [<!ENTITY q '%s'>]><order>%s</order>"
    % (b"q" * 50_000, b"&q;" * 10_000),
    "too deep": b"<order>" * 300 + b"</order>" * 300,
    "too deep and unclosed": b"<order>" * 100_000,
    "a long name": b"<order><" + b"n" * 900_000 + b"/></order>",
}


def test_what_is_no_xml_does_not_match_and_is_counted(judge: ContentJudge) -> None:
    plan, (number,) = plan_of(judge, XPath("/order"))
    bodies = [*NOT_XML.values(), ORDER]
    refused = {
        name for name, passed in zip(NOT_XML, plan(bodies), strict=False) if number not in passed
    }
    assert refused == NOT_XML.keys() - {"a long name"} | (refused & {"a long name"})
    counts = judge.statistics()
    assert counts.judged == len(bodies)
    assert counts.not_xml == len(refused)
    assert (counts.timed_out, counts.failed) == (0, 0)
    assert judge.xml.starts == 1


def test_other_encodings_are_xml_too(judge: ContentJudge) -> None:
    text = "<?xml version='1.0' encoding='{}'?><order><to>Jürgen</to></order>"
    bodies = [text.format(name).encode(name) for name in ("utf-8", "utf-16", "iso-8859-1")]
    assert passing(judge, XPath("/order[to = 'Jürgen']"), *bodies) == bodies


def test_a_body_that_is_too_large_is_not_judged(judge: ContentJudge) -> None:
    plan, numbers = plan_of(judge, XPath("/order"), Regex("order"))
    assert plan([None, ORDER]) == [[], sorted(numbers, reverse=True)]
    assert judge.statistics() == ContentStatistics(judged=1, too_large=1)


def test_an_expression_that_fails_on_a_body_does_not_match_it(judge: ContentJudge) -> None:
    # A node-set of attributes has no children to count, and a text is none.
    bad, good = XPath("//item[count(string(.)) = 1]"), XPath("/order")
    plan, (first, second) = plan_of(judge, bad, good)
    assert plan([b"<order/>", ORDER]) == [[second], [second]]
    assert first != second
    assert judge.statistics().failed == 1


BOMBS = [
    "//*[//*[//*[//*]]]" + "//*" * 50 + "[. = 'x']",
    "count(//*[count(//*[. = 1]) > count(//*[. = 2])]) > 100000",
    "//*[//*[//*[. = //*] = //*] = //*] = 'nothing'",
]
BOMB_BODY = b"<r>" + b"<a><b><c>1</c></b></a>" * 15_000 + b"</r>"


@pytest.mark.parametrize("text", BOMBS)
def test_an_expression_without_an_end_is_ended(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """It matches nothing, is set aside for a while, and others are evaluated all the same."""
    caplog.set_level(logging.WARNING, "antiphon.topics")
    judge = ContentJudge(deadline=1.5)
    try:
        plan, (bomb, good) = plan_of(judge, XPath(text), XPath("/order"))
        eventually(lambda: good in plan([ORDER])[0], 20.0, "it runs")
        began = time.monotonic()
        plan([BOMB_BODY])
        assert time.monotonic() - began < 30.0
        assert judge.statistics().timed_out >= 1
        assert any("takes too long" in record.message for record in caplog.records)
        # Meanwhile nothing waits for it.
        eventually(lambda: good in plan([ORDER])[0], 20.0, "others are evaluated")
        assert bomb not in plan([ORDER])[0]
        assert judge.statistics().timed_out >= 2
    finally:
        judge.close()


def test_an_expression_that_was_set_aside_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xml_judge, "_PAUSE", 0.05)
    judge = ContentJudge(deadline=1.5)
    try:
        plan, (number,) = plan_of(judge, XPath(f"/order or {BOMBS[1]}"))
        plan([BOMB_BODY])
        assert judge.statistics().timed_out == 1
        eventually(lambda: plan([ORDER]) == [[number]], 20.0, "it is evaluated again")
    finally:
        judge.close()


def test_the_process_may_die_at_any_time(judge: ContentJudge) -> None:
    plan, (number,) = plan_of(judge, XPath("/order"))
    assert plan([ORDER]) == [[number]]
    for _ in range(3):
        assert judge.xml.pid is not None
        os.kill(judge.xml.pid, signal.SIGKILL)
        # The one that finds it dead may be lost, and is counted; the next is judged.
        eventually(lambda: plan([ORDER]) == [[number]], 20.0, "a new one judges")
    assert judge.xml.starts == 4


def test_a_process_that_is_stopped_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    judge = ContentJudge(deadline=1.5)
    try:
        plan, (number,) = plan_of(judge, XPath("/order"))
        eventually(lambda: plan([ORDER]) == [[number]], 20.0, "it runs")
        first = judge.xml.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        assert plan([ORDER]) == [[]]
        assert judge.statistics().timed_out >= 1
        eventually(lambda: plan([ORDER]) == [[number]], 20.0, "a new one judges")
        assert judge.xml.pid != first
    finally:
        judge.close()


def test_a_process_that_cannot_be_started_harms_nobody(
    judge: ContentJudge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(xml_judge.sys, "executable", "/nonexistent/python")
    plan, (wanted, _) = plan_of(judge, Regex("order"), XPath("/order"))
    assert plan([ORDER] * 10) == [[wanted]] * 10
    assert judge.statistics().failed == 10
    assert sum("cannot be started" in record.message for record in caplog.records) == 1


def test_the_process_ends_with_us(judge: ContentJudge) -> None:
    plan, _ = plan_of(judge, XPath("/order"))
    plan([ORDER])
    pid = judge.xml.pid
    assert pid is not None
    judge.close()
    judge.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert plan([ORDER]) == [[]]


def test_many_threads_ask_one_process(judge: ContentJudge) -> None:
    plans = [plan_of(judge, XPath(f"/order[total = {number}]")) for number in range(6)]
    wrong: list[object] = []

    def ask(number: int) -> None:
        plan, (wanted,) = plans[number]
        for total in range(60):
            body = b"<order><total>%d</total></order>" % (total % 6)
            expected = [[wanted]] if total % 6 == number else [[]]
            if (found := plan([body])) != expected:
                wrong.append((number, total, found))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert not wrong
    assert judge.statistics() == ContentStatistics(judged=360)


def test_those_who_would_wait_for_long_are_refused(judge: ContentJudge) -> None:
    plan, _ = plan_of(judge, XPath("/order"))
    plan([ORDER])
    judge.xml._turn.acquire()
    try:
        judge.xml._waiting = 100
        assert plan([ORDER]) == [[]]
        judge.xml._waiting = 0
        judge.xml._owner = threading.get_ident()  # as in a signal handler inside a call
        assert plan([ORDER]) == [[]]
        judge.xml._owner = None
    finally:
        judge.xml._turn.release()
    assert judge.statistics().timed_out == 2


# --- together -------------------------------------------------------------------------------------


def test_all_conditions_have_to_hold(judge: ContentJudge) -> None:
    both = All(Regex("total"), Regex("item"))
    mixed = All(Regex("urgent"), XPath("/order"))
    plan, (one, two, three, four) = plan_of(judge, both, mixed, XPath("//item"), Regex("urgent"))
    bodies = [ORDER, b"urgent", b"<order>urgent</order>", b"total", b"<item/>"]
    assert [set(passed) for passed in plan(bodies)] == [
        {one, three},
        {four},
        {two, four},
        set(),
        {three},
    ]


def test_a_body_is_parsed_only_where_it_may_matter(judge: ContentJudge) -> None:
    plan, _ = plan_of(judge, All(Regex("urgent"), XPath("/order")))
    assert plan([b"no xml at all"]) == [[]]
    assert judge.statistics() == ContentStatistics(judged=1)
    assert judge.xml.starts == 0


def test_equal_filters_share_a_number_until_the_last_has_gone(judge: ContentJudge) -> None:
    conditions = (Condition("xpath", "/order"),)
    number = judge.add(conditions)
    assert judge.add(conditions) == number
    judge.remove(number)
    plan = judge.plan((number,), None)
    assert plan([ORDER]) == [[number]]
    judge.remove(number)
    assert judge.plan((number,), plan)([ORDER]) == [[]]
    assert judge.add(conditions) != number
    with pytest.raises(FilterError):
        judge.add((Condition("regex", "("),))


def test_a_judge_that_fails_says_so_and_lets_nobody_pass(
    judge: ContentJudge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Bank, body: bytes) -> list[str]:
        raise RuntimeError("a mistake of ours")

    plan, _ = plan_of(judge, Regex("a"))
    monkeypatch.setattr(Bank, "matching", fail)
    assert plan([b"a", b"b"]) == [[], []]
    assert judge.statistics().failed == 2
    assert "could not be judged" in caplog.text


def test_numbers_of_expressions_do_not_pile_up(judge: ContentJudge) -> None:
    plan: JudgePlan | None = None
    ask: Callable[[], int] = lambda: len(judge.xml._known)  # noqa: E731
    for number in range(50):
        own = judge.add((Condition("xpath", f"/order[total = {number}]"),))
        plan = judge.plan((own,), plan)
        plan([ORDER])
        judge.remove(own)
    assert ask() <= 2
    assert not judge._expressions
    assert not judge._conditions
