"""How many requests a cluster sustains when a part of them has to be told to all of its nodes.

A request that only reads is served by one node. One that changes something is sent to the whole
group, so what the group gets through limits the cluster: if a node can send u updates a second, and
a part p of all requests are updates, a node can serve u / p requests a second, and n nodes n times
as many. The usual mix of a shop is 15 % updates, unless the job is given another.

Receives what the table ``scaling`` is made of; hands on the table ``sizing``.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from antiphon.errors import ConfigError
from antiphon.pipeline import schemas
from antiphon.pipeline.inputs import UPDATE_SHARE, checked_share

__all__ = ["requests_per_second", "sized"]


def requests_per_second(updates_per_second: float, update_share: float = UPDATE_SHARE) -> float:
    """Requests that can be served while updates among them are sent at most so often.

    >>> round(requests_per_second(3.3))
    22
    """
    if not updates_per_second >= 0:
        raise ConfigError(
            f"updates_per_second is {updates_per_second!r}; it must be a number, at least 0",
            setting="updates_per_second",
            value=updates_per_second,
        )
    return updates_per_second / checked_share(update_share)


def sized(scaling: DataFrame, receivers: Column, update_share: float = UPDATE_SHARE) -> DataFrame:
    """Of the groups in ``scaling``: requests per second of a node and of the whole cluster.

    All nodes serve requests; those that send are ``senders`` of them. In a group where one node
    makes all updates (1-n), that node's updates are those of the whole cluster. ``receivers`` is
    how many get a message that is sent once: whoever sends to one node at a time has to tell every
    other one of an update. Round trips tell nobody anything, and are left out.
    """
    share = checked_share(update_share)
    others = fn.greatest(fn.lit(1), fn.col("nodes") - 1)
    each = fn.col("messages_per_second_node") * receivers / others
    updates = each * fn.col("senders")
    table = (
        scaling.where(fn.col("pattern").isin("1-n", "n-n", "m-n"))
        .where(~fn.col("variant").eqNullSafe("request"))
        .withColumn("update_share", fn.lit(share))
        .withColumn("updates_per_second_node", each)
        .withColumn("updates_per_second_total", updates)
        .withColumn("requests_per_second_total", updates / share)
        .withColumn("requests_per_second_node", updates / share / fn.col("nodes"))
    )
    return table.select(
        *(fn.col(name).cast(kind).alias(name) for name, kind in schemas.TABLES["sizing"].items())
    )
