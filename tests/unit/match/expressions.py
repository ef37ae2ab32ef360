"""Strategies for well-typed filters, and for events that they are asked of."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

__all__ = ["conditions", "events", "written"]

NUMBERS, TEXTS, TRUTHS = ("n", "m", "x"), ("s", "t"), ("p", "q")
LETTERS = "abA%_'ö"

# Small enough that no integer runs over: SQLite goes on in floats then, and a filter has NULL.
integers = st.integers(-50, 50)
floats = st.sampled_from([-2.5, -1.0, -0.0, 0.5, 1.0, 3.25, 1e300, float(2**53)])
texts = st.text(LETTERS, max_size=5)


def written(value: Any) -> str:
    """A value as filters, and SQL, write it."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    # In parentheses: two signs in a row begin a comment in SQL.
    return f"({value!r})" if value < 0 or str(value) == "-0.0" else repr(value)


events = st.fixed_dictionaries(
    {},
    optional={
        "n": integers,
        "m": integers,
        "x": st.one_of(floats, st.just(float("nan")), st.just(float("inf"))),
        "s": texts,
        "t": texts,
        "p": st.booleans(),
        "q": st.booleans(),
    },
)

number_leaves = st.one_of(st.sampled_from(NUMBERS), integers.map(written), floats.map(written))
text_values = st.one_of(st.sampled_from(TEXTS), texts.map(written))
truth_values = st.one_of(st.sampled_from(TRUTHS), st.booleans().map(written))

numbers = st.recursive(
    number_leaves,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(" ".join).map("({})".format),
        st.tuples(st.sampled_from("+-"), inner).map("{0[0]}({0[1]})".format),
    ),
    max_leaves=4,
)


@st.composite
def likes(draw: st.DrawFn) -> str:
    """With an escape character that stands before %, _ or itself only."""
    escape = draw(st.sampled_from(["", "!", "a", "ö"]))
    pieces = [letter for letter in LETTERS if letter != escape]
    if escape:
        pieces += [escape + "%", escape + "_", escape + escape]
    pattern = "".join(draw(st.lists(st.sampled_from([*pieces, "%", "_"]), max_size=6)))
    negated = draw(st.sampled_from(["", "NOT "]))
    ending = f" ESCAPE {written(escape)}" if escape else ""
    return f"{draw(text_values)} {negated}LIKE {written(pattern)}{ending}"


def listed(values: list[Any]) -> str:
    # Without the parentheses: a list has values and no expressions.
    return "(" + ", ".join(written(value).strip("()") for value in values) + ")"


NEGATED = st.sampled_from(["", "NOT "])
simple = st.one_of(
    st.tuples(numbers, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), numbers).map(" ".join),
    st.tuples(text_values, st.sampled_from(["=", "<>"]), text_values).map(" ".join),
    st.tuples(truth_values, st.sampled_from(["=", "<>"]), truth_values).map(" ".join),
    st.tuples(numbers, NEGATED, numbers, numbers).map(
        "{0[0]} {0[1]}BETWEEN {0[2]} AND {0[3]}".format
    ),
    st.tuples(text_values, NEGATED, st.lists(texts, min_size=1, max_size=4).map(listed)).map(
        "{0[0]} {0[1]}IN {0[2]}".format
    ),
    st.tuples(
        numbers, NEGATED, st.lists(st.one_of(integers, floats), min_size=1, max_size=4).map(listed)
    ).map("{0[0]} {0[1]}IN {0[2]}".format),
    likes(),
    st.tuples(st.one_of(numbers, text_values, truth_values), st.sampled_from(["", "NOT "])).map(
        "{0[0]} IS {0[1]}NULL".format
    ),
    truth_values,
)

conditions = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(" ".join),
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(" ".join).map("({})".format),
        inner.map("NOT ({})".format),
        st.tuples(inner, st.sampled_from(["=", "<>"]), truth_values).map(
            "({0[0]}) {0[1]} {0[2]}".format
        ),
        inner.map("({}) IS NULL".format),
    ),
    max_leaves=6,
)
