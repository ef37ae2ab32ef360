"""The formulas over columns give what the functions give."""

from __future__ import annotations

import math
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as fn

from antiphon import queueing
from antiphon.errors import ConfigError
from antiphon.pipeline import model

RATES = [(0.0, 10.0), (1.0, 10.0), (8.0, 10.0), (9.999, 10.0), (10.0, 10.0), (12.0, 10.0)]
SERVICES = [(0.0, 0.1, 0.0), (8.0, 0.1, 0.0), (8.0, 0.1, 0.01), (10.0, 0.1, 0.01), (5.0, 0.3, 0.0)]

Formula = Callable[..., Column]
Function = Callable[..., float]


def columns(spark: SparkSession, formula: Formula, rows: list[tuple[float, ...]]) -> list[float]:
    names = [f"c{at}" for at in range(len(rows[0]))]
    held = (pa.array(values, pa.float64()) for values in zip(*rows, strict=True))
    frame = spark.createDataFrame(pa.table(dict(zip(names, held, strict=True))))
    result = frame.select(formula(*(fn.col(name) for name in names)).alias("result"))
    return [row.result for row in result.collect()]


@pytest.mark.parametrize(
    "name",
    [
        "utilisation",
        "mm1_mean_wait",
        "mm1_mean_response",
        "mm1_mean_number",
        "mm1_mean_queue_length",
    ],
)
def test_rates_give_the_same_as_the_functions(spark: SparkSession, name: str) -> None:
    formula, function = getattr(model, name), getattr(queueing, name)
    found = columns(spark, formula, RATES)
    assert found == pytest.approx([function(*row) for row in RATES], rel=1e-12)


def test_quantiles_give_the_same_as_the_function(spark: SparkSession) -> None:
    found = columns(spark, lambda a, s: model.mm1_response_quantile(a, s, 0.99), RATES)
    wanted = [queueing.mm1_response_quantile(*row, 0.99) for row in RATES]
    assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("name", ["mg1_mean_wait", "mg1_mean_response"])
def test_services_give_the_same_as_the_functions(spark: SparkSession, name: str) -> None:
    formula, function = getattr(model, name), getattr(queueing, name)
    wanted = [function(rate, mean, variance=spread) for rate, mean, spread in SERVICES]
    assert columns(spark, formula, SERVICES) == pytest.approx(wanted, rel=1e-12)
    assert math.inf in wanted


@pytest.mark.parametrize("name", ["mg1_setup_mean_wait", "mg1_setup_mean_response"])
def test_setups_give_the_same_as_the_functions(spark: SparkSession, name: str) -> None:
    formula, function = getattr(model, name), getattr(queueing, name)
    rows = [(*service, 0.05, square) for service in SERVICES for square in (0.0025, 0.01)]
    wanted = [
        function(rate, mean, setup, square, variance=spread)
        for rate, mean, spread, setup, square in rows
    ]
    assert columns(spark, formula, rows) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("little_number", [(8.0, 0.5), (0.0, math.inf), (2.0, math.inf)]),
        ("little_time", [(4.0, 8.0), (0.0, 8.0), (math.inf, 8.0)]),
        ("little_rate", [(4.0, 0.5), (0.0, 0.5)]),
        ("guaranteed_rate", [(0.25, 1000.0), (0.0, 10.0), (1.0, 10.0)]),
    ],
)
def test_laws_give_the_same_as_the_functions(
    spark: SparkSession, name: str, rows: list[tuple[float, ...]]
) -> None:
    formula, function = getattr(model, name), getattr(queueing, name)
    assert columns(spark, formula, rows) == pytest.approx([function(*row) for row in rows])


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("utilisation", (-1.0, 10.0)),
        ("utilisation", (1.0, 0.0)),
        ("mm1_mean_wait", (math.nan, 10.0)),
        ("mm1_mean_response", (1.0, math.inf)),
        ("mm1_mean_number", (1.0, -3.0)),
        ("little_time", (1.0, 0.0)),
        ("little_number", (1.0, math.nan)),
        ("guaranteed_rate", (1.5, 10.0)),
    ],
)
def test_what_the_functions_refuse_is_null(
    spark: SparkSession, name: str, row: tuple[float, ...]
) -> None:
    formula, function = getattr(model, name), getattr(queueing, name)
    with pytest.raises(ConfigError):
        function(*row)
    assert columns(spark, formula, [row]) == [None]


def test_a_setup_that_cannot_be_is_null(spark: SparkSession) -> None:
    rows = [(8.0, 0.1, 0.0, 0.05, 0.001)]  # a mean square below the mean's square
    assert columns(spark, model.mg1_setup_mean_wait, rows) == [None]


def test_the_variance_of_slices_is_that_of_single_events(spark: SparkSession) -> None:
    # Three slices of one event each: 1, 2 and 3 seconds.
    alone = (6.0, 14.0, 3.0, 3.0)
    # One slice says nothing about variance, no events nothing at all.
    assert columns(
        spark, model.slice_variance, [alone, (1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 0.0)]
    ) == [1.0, 0.0, None]
