"""What every table is made from: the cleaned DataFrames of all campaigns, in one object."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

__all__ = ["Inputs"]


@dataclass(frozen=True, slots=True)
class Inputs:
    """``runs`` has the columns of `schemas.FACTS`, the others those of `schemas.CLEAN`.

    ``runs`` has every run, whatever its outcome, and is small: join it as a broadcast. All four
    are cached by the job where that pays; a table only reads them.
    """

    runs: DataFrame
    samples: DataFrame
    latency: DataFrame
    topics: DataFrame
