"""The job: from directories of campaigns to a directory of tables.

Only here do paths, a session and DataFrames meet. All tables are computed beside the old ones and
put in their place at the end. A file whose footer is good and whose pages are not shows itself only
when it is read: it is then set aside, and the tables are computed again without it.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from antiphon._version import __version__
from antiphon.errors import AntiphonError
from antiphon.pipeline import schemas
from antiphon.pipeline.campaigns import (
    Campaign,
    SetAside,
    find_campaigns,
    look_into,
    unreadable,
)
from antiphon.pipeline.inputs import UPDATE_SHARE, Inputs, checked_share
from antiphon.pipeline.session import SparkFailed, explain, spark_session, words_of
from antiphon.pipeline.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Result", "SchemaMismatch", "run"]

Progress = Callable[[str], None]

_SMALL = 3_000_000
"""Rows of all files, below which most of the time is Spark's own."""

_AT_ONCE = 3
"""Tables that are made side by side: a small one keeps no two cores busy."""

_CANCEL_SECONDS = 30.0


class SchemaMismatch(AntiphonError):
    """A table has other columns than those that are declared for it."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a job has done."""

    directory: Path
    campaigns: tuple[str, ...]
    tables: tuple[str, ...]
    set_aside: tuple[SetAside, ...]
    seconds: float


class _BadFiles(Exception):
    """Spark met files that it cannot read."""

    def __init__(self, paths: set[Path], reason: str) -> None:
        super().__init__(reason)
        self.paths = paths
        self.reason = reason


def run(
    campaigns: Sequence[Path | str],
    out: Path | str,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    spark: SparkSession | None = None,
    update_share: float | None = None,
) -> Result:
    """Makes all tables of these campaigns in ``out``, beside those of others that are there.

    ``progress`` is called with a line per stage. ``spark`` is a session of yours; without one there
    is a new one, on ``master`` with ``conf``, which ends with the job. ``update_share`` is for the
    table ``sizing``.
    """
    begin = time.monotonic()
    share = checked_share(UPDATE_SHARE if update_share is None else update_share)
    say = progress or (lambda line: None)
    directories = find_campaigns(campaigns)
    with Store(out) as store:
        found, aside = look_into(directories)
        aside += [one for campaign in found for one in campaign.set_aside]
        _say_found(say, found, aside)
        if not found:
            raise AntiphonError(f"no campaign can be read: {aside[0].path}: {aside[0].reason}")
        with contextlib.ExitStack() as stack:
            if spark is None:
                say("spark: starting")
                small = sum(sum(campaign.rows.values()) for campaign in found) < _SMALL
                spark = stack.enter_context(spark_session(master, conf, small=small))
                say("spark: started")
            aside += _compute(spark, found, store, say, share)
        for table in schemas.TABLES:
            store.publish(table, [campaign.id for campaign in found])
        store.tell(_told(found), [asdict(one) for one in aside])
    seconds = time.monotonic() - begin
    say(f"done: {len(schemas.TABLES)} tables in {store.directory}, {seconds:.1f} s")
    ids = tuple(campaign.id for campaign in found)
    return Result(store.directory, ids, tuple(schemas.TABLES), tuple(aside), seconds)


def _compute(
    spark: SparkSession, found: list[Campaign], store: Store, say: Progress, share: float
) -> list[SetAside]:
    """All tables into the stage; what was set aside on the way."""
    aside: list[SetAside] = []
    while True:
        try:
            with _spark_errors():
                _write_tables(spark, found, store.stage, say, share)
            return aside
        except _BadFiles as error:
            bad = _look_again(found, error)
            if not bad:
                raise SparkFailed(f"Spark cannot read its input: {error.reason}") from error
            for one in bad:
                say(f"set aside: {one.path}: {one.reason}")
            aside += bad


def _write_tables(
    spark: SparkSession, found: list[Campaign], stage: Path, say: Progress, share: float
) -> None:
    from antiphon.pipeline.clean import clean
    from antiphon.pipeline.read import read
    from antiphon.pipeline.tables import SHARED, TABLES

    cleaned = clean(read(spark, found))
    # Samples are used by all, and cached as a whole. Messages are many: what several tables need of
    # them is among what is shared. Runs are few, and part of every plan.
    inputs = Inputs(
        runs=cleaned.runs,
        samples=cleaned.samples.persist(),
        latency=cleaned.latency,
        topics=cleaned.topics.persist(),
        update_share=share,
    )
    kept = [inputs.samples, inputs.topics]

    def make(table: str) -> None:
        begin = time.monotonic()
        frame = TABLES[table](inputs)
        _check_schema(table, frame)
        path = f"file://{stage / table}"
        frame.write.mode("overwrite").partitionBy("campaign").parquet(path)
        say(f"table: {table} ({time.monotonic() - begin:.1f} s)")

    try:
        kept += [shared(inputs).persist() for shared in SHARED]
        _side_by_side(spark, make, list(TABLES))
    finally:
        with contextlib.suppress(Exception):  # Java may be dead
            for frame in kept:
                frame.unpersist()


def _side_by_side(spark: SparkSession, make: Callable[[str], None], tables: list[str]) -> None:
    """Makes tables, some at a time. The first that fails ends the others, as Ctrl-C does."""
    context, tag = spark.sparkContext, f"antiphon-{uuid.uuid4().hex}"
    pool = ThreadPoolExecutor(_AT_ONCE, initializer=context.addJobTag, initargs=(tag,))
    making = [pool.submit(make, table) for table in tables]
    try:
        for one in wait(making, return_when=FIRST_EXCEPTION).done:
            one.result()
    except BaseException:
        for one in making:
            one.cancel()
        # Again and again, since one that makes a plan begins its jobs later. By our mark alone:
        # cancelling all jobs loses those that wait for one another, and they would wait for ever.
        deadline = time.monotonic() + _CANCEL_SECONDS
        while wait(making, timeout=0.2).not_done and time.monotonic() < deadline:
            with contextlib.suppress(Exception):  # Java may be dead
                context.cancelJobsWithTag(tag)
        raise
    finally:
        pool.shutdown(wait=False)


def _check_schema(table: str, frame: DataFrame) -> None:
    declared = schemas.TABLES.get(table)
    has = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    if declared is None or list(has.items()) != list(declared.items()):
        wrong = sorted({*has.items()} ^ {*(declared or {}).items()})
        raise SchemaMismatch(
            f"the table {table} does not have its declared columns: "
            + (", ".join(f"{name} {kind}" for name, kind in wrong) or "their order differs")
        )


@contextlib.contextmanager
def _spark_errors() -> Iterator[None]:
    """Spark's failures as one line, and unreadable files as what they are."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (ConnectionError, EOFError) as error:
        raise SparkFailed(
            "Java has ended in the middle of its work; it may have been killed for the memory "
            "that it took: give it less, for example --conf spark.driver.memory=2g"
        ) from error
    except (Py4JError, PySparkException) as error:
        text = words_of(error)
        paths = {
            Path(unquote(path))
            for path in re.findall(r"while reading file file:/*(/[^\n]*?\.parquet)\b", text)
        }
        if paths:
            raise _BadFiles(paths, explain(error)) from error
        raise SparkFailed(explain(error)) from error


def _look_again(found: list[Campaign], error: _BadFiles) -> list[SetAside]:
    """Takes what cannot be read out of the campaigns. All files are read: one pass finds all."""
    aside: list[SetAside] = []
    for campaign in found:
        for index, one in enumerate(campaign.runs):
            good: dict[str, Path] = {}
            for kind, path in one.files.items():
                reason = unreadable(path)
                if reason is None and path in error.paths:
                    reason = error.reason
                if reason is None:
                    good[kind] = path
                else:
                    aside.append(SetAside(campaign.id, str(path), reason))
            if len(good) < len(one.files):
                campaign.runs[index] = replace(one, files=good)
    return aside


def _say_found(say: Progress, found: Sequence[Campaign], aside: Sequence[SetAside]) -> None:
    for campaign in found:
        rows = ", ".join(f"{count:,} rows of {kind}" for kind, count in campaign.rows.items())
        say(f"read: {campaign.id}: {len(campaign.runs)} runs; {rows or 'no rows'}")
    for one in aside:
        say(f"set aside: {one.path}: {one.reason}")


def _told(found: Sequence[Campaign]) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {
        campaign.id: {
            "directory": str(campaign.directory),
            "runs": len(campaign.runs),
            "rows": campaign.rows,
            "written": now,
            "antiphon": __version__,
        }
        for campaign in found
    }
