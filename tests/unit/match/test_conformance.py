"""What expressions mean: a table of them over one event, each with its answer of three."""

from __future__ import annotations

import math
from typing import Any

import pytest

from antiphon.topics.publisher import encode_properties
from antiphon.topics.where import Where

T, F, U = True, False, None
TOP, BOTTOM = 2**63 - 1, -(2**63)

EVENT: dict[str, Any] = {
    "price": 120,
    "qty": 3,
    "zero": 0,
    "rate": 2.5,
    "minus": -7,
    "top": TOP,
    "bottom": BOTTOM,
    "odd": 2**53 + 1,
    "nan": math.nan,
    "inf": math.inf,
    "region": "EU",
    "name": "O'Neil",
    "note": "100% sure_thing",
    "empty": "",
    "digits": "120",
    "word": "größe",
    "lines": "a\nb",
    "on": True,
    "off": False,
    "order.total$": 9,
}

COMPARISONS = [
    ("price = 120", T),
    ("price = 121", F),
    ("price <> 120", F),
    ("price <> 121", T),
    ("price < 121", T),
    ("price < 120", F),
    ("price <= 120", T),
    ("price <= 119", F),
    ("price > 119", T),
    ("price > 120", F),
    ("price >= 120", T),
    ("price >= 121", F),
    ("120 = price", T),
    ("119 < price", T),
    ("121 > price", T),
    ("120 <> price", F),
    ("price = qty", F),
    ("price > qty", T),
    ("qty < rate", F),
    ("rate < qty", T),
    ("1 = 1", T),
    ("1 = 2", F),
    ("1 < 2.5", T),
    ("'a' = 'a'", T),
    ("'a' = 'A'", F),
    ("'a' <> 'b'", T),
    ("TRUE = TRUE", T),
    ("TRUE = FALSE", F),
    ("TRUE <> FALSE", T),
    ("region = 'EU'", T),
    ("region = 'eu'", F),
    ("region <> 'UK'", T),
    ("'EU' = region", T),
    ("name = 'O''Neil'", T),
    ("empty = ''", T),
    ("word = 'größe'", T),
    ("region = name", F),
    ("region <> name", T),
    ("on = TRUE", T),
    ("on <> TRUE", F),
    ("off = FALSE", T),
    ("on = off", F),
    ("on <> off", T),
    ("FALSE = off", T),
    ("(price) = (120)", T),
    ("((price > 100))", T),
    ("order.total$ = 9", T),
    # absent is NULL, and so is NaN
    ("missing = 1", U),
    ("missing <> 1", U),
    ("missing < 1", U),
    ("missing = missing", U),
    ("missing <> missing", U),
    ("missing = 'a'", U),
    ("missing = TRUE", U),
    ("1 = missing", U),
    ("nan = nan", U),
    ("nan <> nan", U),
    ("nan > 0", U),
    ("nan <> 1", U),
    # unlike types
    ("price = digits", U),
    ("price <> digits", U),
    ("digits > price", U),
    ("region = price", U),
    ("on = price", U),
    ("on <> region", U),
    ("qty = on", U),
    ("digits = 120", U),
    ("digits <> 120", U),
    ("digits > 1", U),
    ("region > 1", U),
    ("on = 1", U),
    ("off <> 0", U),
    ("on = 'TRUE'", U),
    ("price = TRUE", U),
    ("price = '120'", U),
    # two texts, or two booleans, have no order
    ("region < name", U),
    ("region >= region", U),
    ("on > off", U),
    # integers and floats by their exact values
    ("qty = 3.0", T),
    ("rate = 2.5", T),
    ("rate = 2.50", T),
    ("zero = -0.0", T),
    (f"odd = {2**53}.0", F),
    (f"odd > {2**53}.0", T),
    (f"odd = {2**53 + 1}", T),
    (f"top = {TOP}", T),
    ("top < 9223372036854775808.0", T),
    ("top >= 9223372036854775808.0", F),
    ("bottom = -9223372036854775808.0", T),
    (f"bottom = {BOTTOM}", T),
    ("inf > 1e308", T),
    ("inf = inf", T),
    ("inf <> 1", T),
    ("-inf < bottom", T),
    ("price = 1.2e2", T),
    ("price = 12E1", T),
    ("price = 1200e-1", T),
    ("qty > .5", T),
    ("qty = 3.", T),
    ("qty = 003", T),
    ("zero = 1e-400", T),
]

ARITHMETIC = [
    ("price + 1 = 121", T),
    ("price - 1 = 119", T),
    ("price * 2 = 240", T),
    ("price / 2 = 60", T),
    ("1 + 2 * 3 = 7", T),
    ("(1 + 2) * 3 = 9", T),
    ("10 - 4 - 3 = 3", T),
    ("100 / 10 / 5 = 2", T),
    ("2 * qty + 1 = 7", T),
    ("1 + qty * 2 = 7", T),
    ("price > qty * 30 + 20", T),
    ("price - qty > 100", T),
    ("-qty = -3", T),
    ("- qty = 0 - 3", T),
    ("+qty = 3", T),
    ("--qty = 3", T),
    ("-+-qty = 3", T),
    ("-(qty - 5) = 2", T),
    ("5-3 = 2", T),
    ("5 -3 = 2", T),
    ("5 - -3 = 8", T),
    ("2*-3 = -6", T),
    # / of integers cuts towards zero
    ("7 / 2 = 3", T),
    ("-7 / 2 = -3", T),
    ("minus / 2 = -3", T),
    ("minus / -2 = 3", T),
    ("7 / 2.0 = 3.5", T),
    ("7.0 / 2 = 3.5", T),
    ("rate / 2 = 1.25", T),
    ("qty / 2 * 2 = 2", T),
    ("1 / 3 * 3 = 0", T),
    # int with float is float
    ("rate + qty = 5.5", T),
    ("rate * 2 = 5", T),
    ("rate - 0.5 = 2", T),
    ("0.1 + 0.2 = 0.3", F),
    # dividing by zero is NULL
    ("1 / 0 = 1", U),
    ("1 / zero = 1", U),
    ("1.0 / 0 = 1", U),
    ("1 / 0.0 = 1", U),
    ("1 / -0.0 = 1", U),
    ("zero / zero = 1", U),
    ("price / (qty - 3) > 0", U),
    # so is what does not fit in 64 bits
    ("top + 1 > 0", U),
    ("top - -1 > 0", U),
    ("bottom - 1 < 0", U),
    ("top * 2 > 0", U),
    ("-bottom > 0", U),
    ("bottom / -1 > 0", U),
    ("bottom * -1 > 0", U),
    ("9223372036854775807 + 1 > 0", U),
    ("--9223372036854775808 > 0", U),
    ("top + 0 = 9223372036854775807", T),
    ("bottom + 1 = -9223372036854775807", T),
    ("top + 1.0 > 0", T),
    ("top * 2.0 > 1e18", T),
    # floats run over into infinity, and inf - inf is none
    ("1e308 * 10 = inf", T),
    ("-1e308 * 10 < bottom", T),
    ("inf + 1 = inf", T),
    ("inf - inf = 0", U),
    ("inf * 0 = 0", U),
    ("inf / inf = 1", U),
    ("1 / inf = 0", T),
    # no number, no result: nothing becomes a number by itself
    ("missing + 1 = 1", U),
    ("missing * 0 = 0", U),
    ("nan + 1 <> 0", U),
    ("digits + 0 = 120", U),
    ("region + 1 = 1", U),
    ("on + 1 = 2", U),
    ("-region = 1", U),
    ("+digits = 120", U),
    ("-on = -1", U),
]

BETWEEN = [
    ("price BETWEEN 100 AND 200", T),
    ("price BETWEEN 120 AND 120", T),
    ("price BETWEEN 121 AND 200", F),
    ("price BETWEEN 100 AND 119", F),
    ("price BETWEEN 200 AND 100", F),
    ("price NOT BETWEEN 100 AND 200", F),
    ("price NOT BETWEEN 121 AND 200", T),
    ("price NOT BETWEEN 200 AND 100", T),
    ("rate BETWEEN 2 AND 3", T),
    ("rate BETWEEN 2.5 AND 2.5", T),
    ("qty + 1 BETWEEN qty AND qty + 2", T),
    ("price BETWEEN 2 * 50 AND 2 * 100", T),
    ("5 BETWEEN qty AND price", T),
    ("(price) BETWEEN (100) AND (200)", T),
    ("price BETWEEN -1 AND +200", T),
    ("price BETWEEN 100 AND 200 AND on", T),
    ("price BETWEEN 100 AND 200 AND qty BETWEEN 4 AND 5", F),
    ("price BETWEEN 100 AND 200 OR missing = 1", T),
    ("NOT price BETWEEN 100 AND 200", F),
    ("missing BETWEEN 1 AND 2", U),
    ("missing NOT BETWEEN 1 AND 2", U),
    ("price BETWEEN missing AND 200", U),
    ("price BETWEEN missing AND 100", F),
    ("price BETWEEN 200 AND missing", F),
    ("price BETWEEN 100 AND missing", U),
    ("price NOT BETWEEN missing AND 100", T),
    ("price NOT BETWEEN 100 AND missing", U),
    ("region BETWEEN 1 AND 2", U),
    ("on BETWEEN 0 AND 1", U),
    ("nan BETWEEN 0 AND 1", U),
    ("inf BETWEEN 0 AND 1e308", F),
    (f"odd BETWEEN {2**53}.0 AND {2**53 + 2}", T),
]

IN = [
    ("region IN ('EU', 'UK')", T),
    ("region IN ('UK', 'EU')", T),
    ("region IN ('EU')", T),
    ("region IN ('UK', 'US')", F),
    ("region IN ('eu')", F),
    ("region NOT IN ('EU', 'UK')", F),
    ("region NOT IN ('UK', 'US')", T),
    ("region in('UK','EU')", T),
    ("name IN ('x', 'O''Neil')", T),
    ("empty IN ('')", T),
    ("region IN ('EU', 'EU')", T),
    ("word IN ('grosse', 'größe')", T),
    ("'EU' IN ('EU', 'UK')", T),
    ("price IN (100, 120)", T),
    ("price IN (100, 120.0)", T),
    ("price IN (-120, +121)", F),
    ("price NOT IN (1, 2, 3)", T),
    ("price + 1 IN (121)", T),
    ("minus IN (-7)", T),
    ("rate IN (2, 2.5)", T),
    (f"odd IN ({2**53}.0)", F),
    ("missing IN ('a')", U),
    ("missing NOT IN ('a')", U),
    ("missing IN (1)", U),
    ("nan IN (1)", U),
    ("nan NOT IN (1)", U),
    ("price IN ('120')", U),
    ("price NOT IN ('120')", U),
    ("digits IN (120)", U),
    ("on IN ('TRUE')", U),
    ("region IN ('EU') AND price IN (120)", T),
    ("NOT region IN ('EU')", F),
]

LIKE = [
    ("region LIKE 'EU'", T),
    ("region LIKE 'eu'", F),
    ("region LIKE 'E%'", T),
    ("region LIKE '%U'", T),
    ("region LIKE '%'", T),
    ("region LIKE '%%'", T),
    ("region LIKE '_U'", T),
    ("region LIKE '__'", T),
    ("region LIKE '_'", F),
    ("region LIKE '___'", F),
    ("region LIKE 'E_%'", T),
    ("region LIKE 'E__%'", F),
    ("region LIKE ''", F),
    ("empty LIKE ''", T),
    ("empty LIKE '%'", T),
    ("empty LIKE '_'", F),
    ("empty LIKE '%_'", F),
    ("name LIKE 'O''N%'", T),
    ("name LIKE '%Ne_l'", T),
    ("name LIKE '%N%l'", T),
    ("name LIKE '%N_l'", F),
    ("name LIKE '%e%i%l%'", T),
    ("name LIKE '%l%i%'", F),
    ("word LIKE 'gr__e'", T),
    ("word LIKE 'gr___e'", F),
    ("word LIKE '_____'", T),
    ("word LIKE '%ö%'", T),
    ("word LIKE '%_ße'", T),
    ("word LIKE 'GRÖSSE'", F),
    ("lines LIKE 'a_b'", T),
    ("lines LIKE 'a%'", T),
    ("note LIKE '100!% %' ESCAPE '!'", T),
    ("note LIKE '100!_%' ESCAPE '!'", F),
    ("note LIKE '%!_thing' ESCAPE '!'", T),
    ("note LIKE '%e!_t%' ESCAPE '!'", T),
    ("note LIKE '%#_thing' ESCAPE '#'", T),
    ("note LIKE '100%% sure%_thing' ESCAPE '%'", T),
    ("note LIKE '100____%' ESCAPE '_'", F),
    ("note LIKE '100\\% %' ESCAPE '\\'", T),
    ("note LIKE '100é% %' ESCAPE 'é'", T),
    ("name LIKE 'O''''Neil' ESCAPE ''''", T),
    ("region NOT LIKE 'E%'", F),
    ("region NOT LIKE 'U%'", T),
    ("note NOT LIKE '%!!%' ESCAPE '!'", T),
    ("'abc' LIKE 'a%'", T),
    ("NOT region LIKE 'E%'", F),
    ("missing LIKE '%'", U),
    ("missing NOT LIKE '%'", U),
    ("price LIKE '1%'", U),
    ("price NOT LIKE '1%'", U),
    ("on LIKE '%'", U),
    ("nan LIKE '%'", U),
]

NULL = [
    ("missing IS NULL", T),
    ("missing IS NOT NULL", F),
    ("price IS NULL", F),
    ("price IS NOT NULL", T),
    ("empty IS NULL", F),
    ("off IS NULL", F),
    ("zero IS NOT NULL", T),
    ("nan IS NULL", T),
    ("nan IS NOT NULL", F),
    ("inf IS NULL", F),
    ("Price IS NULL", T),
    ("PRICE is not null", F),
    ("price / zero IS NULL", T),
    ("price + missing IS NULL", T),
    ("price + 1 IS NOT NULL", T),
    ("top + 1 IS NULL", T),
    ("digits + 1 IS NULL", T),
    ("(missing > 1) IS NULL", T),
    ("(price > 1) IS NULL", F),
    ("NOT missing IS NULL", F),
    ("missing IS NULL AND price IS NOT NULL", T),
]

# Every pair of the truth tables.
TRUTHS = {"1 = 1": T, "1 = 2": F, "missing = 1": U}


def both(left: bool | None, right: bool | None) -> bool | None:
    return F if F in (left, right) else U if U in (left, right) else T


def either(left: bool | None, right: bool | None) -> bool | None:
    return T if T in (left, right) else U if U in (left, right) else F


PAIRS = [(a, b) for a in TRUTHS for b in TRUTHS]
TABLES = [
    *((f"NOT {one}", U if truth is U else not truth) for one, truth in TRUTHS.items()),
    *((f"{a} AND {b}", both(TRUTHS[a], TRUTHS[b])) for a, b in PAIRS),
    *((f"{a} OR {b}", either(TRUTHS[a], TRUTHS[b])) for a, b in PAIRS),
]

LOGIC = [
    ("TRUE", T),
    ("FALSE", F),
    ("NOT TRUE", F),
    ("NOT NOT TRUE", T),
    ("on", T),
    ("off", F),
    ("missing", U),
    ("price", U),
    ("region", U),
    ("NOT on", F),
    ("NOT off", T),
    ("NOT missing", U),
    ("NOT price", U),
    ("on AND NOT off", T),
    ("on OR missing", T),
    ("off AND missing", F),
    ("off OR missing", U),
    ("on AND missing", U),
    ("(on)", T),
    ("(NOT off)", T),
    ("on AND price > 100", T),
    ("price > 100 AND on", T),
    # OR binds less than AND, AND less than NOT, NOT less than comparisons
    ("TRUE OR TRUE AND FALSE", T),
    ("(TRUE OR TRUE) AND FALSE", F),
    ("FALSE AND FALSE OR TRUE", T),
    ("FALSE AND (FALSE OR TRUE)", F),
    ("NOT FALSE AND FALSE", F),
    ("NOT (FALSE AND FALSE)", T),
    ("NOT FALSE OR TRUE", T),
    ("NOT price = 1", T),
    ("NOT price = 1 AND on", T),
    ("FALSE OR missing = 1 OR TRUE", T),
    ("missing = 1 AND FALSE AND TRUE", F),
    ("missing = 1 OR FALSE AND TRUE", U),
    ("price > 100 AND region IN ('EU', 'UK')", T),
    ("price > 100 AND (region = 'US' OR qty < 5)", T),
    ("price > 200 OR qty > 5 OR rate > 2", T),
    ("(price > 100) = TRUE", T),
    ("(price > 100) = on", T),
    ("(price > 100) <> (qty > 100)", T),
    ("(missing > 1) = TRUE", U),
    ("(on AND off) = FALSE", T),
    ("on\tAND\noff", F),
    ("on aNd nOt off", T),
    ("region='EU'AND on", T),
    ("(on)AND(on)", T),
]

ALL = [
    row
    for table in (COMPARISONS, ARITHMETIC, BETWEEN, IN, LIKE, NULL, TABLES, LOGIC)
    for row in table
]


@pytest.mark.parametrize(("text", "answer"), ALL)
def test_an_expression_has_its_answer_of_three(text: str, answer: bool | None) -> None:
    where = Where(text)
    assert where.evaluate(EVENT) is answer
    assert where.matches(EVENT) is (answer is True)
    encoded = encode_properties(EVENT)
    assert where.core.evaluate_encoded(encoded) is answer
    assert where.core.matches_encoded(encoded) is (answer is True)


@pytest.mark.parametrize(("text", "answer"), ALL)
def test_the_opposite_of_an_expression_has_the_opposite_answer(
    text: str, answer: bool | None
) -> None:
    opposite = None if answer is None else not answer
    assert Where(f"NOT ({text})").evaluate(EVENT) is opposite
    if not text.isidentifier():  # a property that is no boolean is there, and is no answer
        assert Where(f"({text}) IS NULL").evaluate(EVENT) is (answer is None)


def test_the_table_has_a_few_hundred_expressions() -> None:
    assert len(ALL) > 350
    assert len({text for text, _ in ALL}) == len(ALL)
