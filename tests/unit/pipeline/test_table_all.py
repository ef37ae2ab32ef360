"""What holds for every table."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from antiphon.pipeline import schemas
from antiphon.pipeline.tables import TABLES
from unit.pipeline.campaigns import delay, inputs, run, sample


def test_every_table_of_the_schemas_is_made() -> None:
    assert set(TABLES) == set(schemas.TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_its_columns_and_types(spark: SparkSession, name: str) -> None:
    table = TABLES[name](inputs(spark, [run()], [sample(received_bytes=1)], [delay(1000)]))
    wanted = spark.createDataFrame([], schemas.ddl(schemas.TABLES[name])).schema
    assert [(field.name, field.dataType) for field in table.schema] == [
        (field.name, field.dataType) for field in wanted
    ]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_nothing_is_empty(spark: SparkSession, name: str) -> None:
    assert TABLES[name](inputs(spark, [])).count() == 0
