"""What holds for every table."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from antiphon.pipeline import schemas
from antiphon.pipeline.inputs import Inputs
from antiphon.pipeline.tables import TABLES
from unit.pipeline.campaigns import inputs, run


def test_every_table_of_the_schemas_is_made() -> None:
    assert set(TABLES) == set(schemas.TABLES)


@pytest.fixture(scope="module")
def given(spark: SparkSession) -> Inputs:
    return inputs(spark, [run()])


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_its_columns_and_types(given: Inputs, name: str) -> None:
    found = [(field.name, field.dataType.simpleString()) for field in TABLES[name](given).schema]
    assert found == list(schemas.TABLES[name].items())
