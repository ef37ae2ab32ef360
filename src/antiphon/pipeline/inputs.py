"""What every table is made from: the cleaned DataFrames of all campaigns, in one object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from antiphon.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["UPDATE_SHARE", "Inputs", "checked_share"]

UPDATE_SHARE = 0.15
"""The part of a cluster's requests that change something, unless another is asked for."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """``runs`` has the columns of `schemas.FACTS`, the others those of `schemas.CLEAN`.

    ``runs`` has every run, whatever its outcome, and is small: join it as a broadcast. All four
    are cached by the job where that pays; a table only reads them. ``update_share`` is for the
    table ``sizing``.
    """

    runs: DataFrame
    samples: DataFrame
    latency: DataFrame
    topics: DataFrame
    update_share: float = UPDATE_SHARE
    made: dict[str, DataFrame] = field(default_factory=dict, init=False, compare=False)
    """What tables have in common and is made once: see `tables.common.once`."""


def checked_share(share: float) -> float:
    """A part of requests, above 0 and at most 1; raises `ConfigError` for another number."""
    if not 0 < share <= 1:
        raise ConfigError(
            f"update_share is {share!r}; it must be above 0 and at most 1, such as 0.15",
            setting="update_share",
            value=share,
        )
    return float(share)
