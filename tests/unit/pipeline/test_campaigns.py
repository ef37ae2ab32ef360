"""What is found in a campaign's directory, and what is set aside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antiphon.errors import ConfigError
from antiphon.pipeline.campaigns import Campaign, find_campaigns, look_into, unreadable
from antiphon.pipeline.schemas import FACTS
from unit.pipeline.made import LATER, RUN, SECOND, make_campaign, make_run


def look(directory: Path) -> Campaign:
    (campaign,), aside = look_into([directory])
    assert aside == []
    return campaign


def aside(campaign: Campaign) -> dict[str, str]:
    return {
        str(Path(one.path).relative_to(campaign.directory)): one.reason
        for one in campaign.set_aside
    }


def outcomes(campaign: Campaign) -> dict[str, str]:
    return {run.facts["run"]: run.facts["outcome"] for run in campaign.runs}


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    directory = make_campaign(tmp_path / "campaign")
    make_run(directory, 1)
    make_run(directory, 2)
    return directory


def test_a_whole_campaign_has_its_runs_and_nothing_set_aside(campaign: Path) -> None:
    found = look(campaign)
    assert outcomes(found) == {RUN.format(1): "complete", RUN.format(2): "complete"}
    assert found.set_aside == []
    assert found.rows == {"samples": 36, "latency": 22, "events": 2}
    facts = found.runs[0].facts
    assert facts["campaign"] == "small-1"
    assert facts["peer_version"] == "3.11"
    assert facts["memory_limit_bytes"] == 1 << 30
    assert facts["cpu_share_measured"] == 0.59
    assert (facts["host"], facts["cores"], facts["cpu"]) == ("here", 2, "a processor")
    assert facts["clock_error_ns"] == 7
    assert found.runs[0].offsets is None
    # A file without rows need not be opened by Spark.
    assert set(found.runs[0].files) == {"samples", "latency", "events"}


def test_a_run_of_the_plan_without_a_folder_was_interrupted(campaign: Path) -> None:
    (campaign / RUN.format(2)).rename(campaign / (RUN.format(2) + ".partial"))
    found = look(campaign)
    assert outcomes(found) == {RUN.format(1): "complete", RUN.format(2): "interrupted"}
    assert "interrupted" in aside(found)[RUN.format(2) + ".partial"]
    facts = found.runs[1].facts
    assert (facts["protocol"], facts["size"], facts["repeat"]) == ("tcp-python", 100, 2)
    assert facts["kept_from_ns"] is None


def test_what_is_missing_is_of_the_plan_that_the_campaign_names(campaign: Path) -> None:
    # A plan without a name has that of its file, which is another one in the campaign.
    plan = campaign / "plan.toml"
    plan.write_text(plan.read_text().replace('name = "small"\n', "") + LATER)
    (campaign / RUN.format(2) / "run.json").unlink()
    found = look(campaign)
    assert "interrupted" in outcomes(found).values()
    assert "absent" in outcomes(found).values()
    assert {run.facts["plan"] for run in found.runs} == {"small"}


def test_without_a_plan_that_can_be_read_this_is_said(campaign: Path) -> None:
    (campaign / "plan.toml").write_text("name = ")
    found = look(campaign)
    assert set(outcomes(found).values()) == {"complete"}
    assert aside(found)["plan.toml"].startswith("runs that are missing cannot be told")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "it is not there"),
        ('{"schema_version": 1, "run"', "it is no JSON"),
        ("[]", "it is no JSON object"),
        ('{"schema_version": 4}', "its schema_version is 4; this Antiphon reads 1, 2 and 3"),
        ('{"schema_version": true}', "its schema_version is True"),
        ('{"schema_version": 1, "protocol": "x"}', "it does not say its outcome"),
        ('{"schema_version": 1, "size": "big"}', "its size is 'big', which is no bigint"),
        ('{"schema_version": 1, "size": 1.5}', "its size is 1.5, which is no bigint"),
        ('{"schema_version": 1, "hosts": 3}', "its hosts are no list"),
        ('{"schema_version": 1, "load": [1]}', "its load is [1]"),
        ("\udce9", "it is no JSON"),
    ],
)
def test_a_run_json_that_cannot_be_used_costs_its_run_alone(
    campaign: Path, text: str | None, reason: str
) -> None:
    path = campaign / RUN.format(1) / "run.json"
    path.unlink()
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    found = look(campaign)
    assert aside(found)[f"{RUN.format(1)}/run.json"].startswith(reason)
    # The plan knows the run: it is not forgotten, and says why there is nothing of it.
    lost = next(run.facts for run in found.runs if run.facts["run"] == RUN.format(1))
    assert lost["outcome"] == "interrupted"
    assert reason in lost["reason"]
    assert outcomes(found)[RUN.format(2)] == "complete"


def test_a_bad_footer_costs_that_file_alone(campaign: Path) -> None:
    path = campaign / RUN.format(1) / "latency.parquet"
    path.write_bytes(path.read_bytes()[:-10])
    found = look(campaign)
    assert list(aside(found)) == [f"{RUN.format(1)}/latency.parquet"]
    one, other = found.runs
    assert set(one.files) == {"samples", "events"}
    assert set(other.files) == {"samples", "latency", "events"}
    assert found.rows["latency"] == 11


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1PAR1", b"not parquet at all, is it"])
def test_files_that_are_no_parquet(campaign: Path, content: bytes) -> None:
    (campaign / RUN.format(1) / "samples.parquet").write_bytes(content)
    found = look(campaign)
    assert aside(found)[f"{RUN.format(1)}/samples.parquet"]
    assert outcomes(found)[RUN.format(1)] == "complete"


def test_a_file_that_is_not_there_is_said(campaign: Path) -> None:
    (campaign / RUN.format(1) / "latency.parquet").unlink()
    assert aside(look(campaign)) == {f"{RUN.format(1)}/latency.parquet": "it is not there"}


def test_a_missing_column_and_one_of_another_type(campaign: Path) -> None:
    path = campaign / RUN.format(1) / "latency.parquet"
    rows = pq.read_table(path)
    pq.write_table(rows.drop_columns(["sent_ns"]), path)
    other = campaign / RUN.format(2) / "latency.parquet"
    pq.write_table(rows.set_column(0, "sequence", pa.array(["x"] * rows.num_rows)), other)
    assert aside(look(campaign)) == {
        f"{RUN.format(1)}/latency.parquet": "it has no column sent_ns",
        f"{RUN.format(2)}/latency.parquet": "its column sequence is string, not bigint",
    }


def test_columns_of_a_later_version_may_be_missing_before_it_only(tmp_path: Path) -> None:
    directory = make_campaign(tmp_path / "campaign", repeats=1)
    row = {"time_ns": 2 * SECOND, "second": 2, "topic": "t", "arrivals": 1}
    folder = make_run(directory, topics=[row])
    path = folder / "topics.parquet"
    old = [name for name in pq.read_schema(path).names if name not in ("share", "period")]
    pq.write_table(pq.read_table(path).select(old), path)
    change(folder / "run.json", schema_version=1)
    assert look(directory).set_aside == []
    change(folder / "run.json", schema_version=2)
    assert "it has no column" in aside(look(directory))[f"{folder.name}/topics.parquet"]


def test_what_came_with_version_3_is_read_and_null_before(campaign: Path) -> None:
    garbage = {"replaced_per_second": 100.0, "replaced_per_second_measured": 80.5, "missed": 3}
    facts = {"load": {"cpu_share": None, "garbage": garbage}, "latency_skipped": 17}
    change(campaign / RUN.format(1) / "run.json", schema_version=3, **facts)
    found = look(campaign)
    assert found.set_aside == []
    new, old = (run.facts for run in found.runs)
    names = ("latency_skipped", "garbage_per_second", "garbage_per_second_measured")
    assert [new[name] for name in names] == [17, 100.0, 80.5]
    assert [old[name] for name in names] == [None, None, None]


def test_what_else_the_machines_did_is_that_of_the_busiest(campaign: Path) -> None:
    path = campaign / "machine.json"
    told = json.loads(path.read_text())
    assert {run.facts["other_load"] for run in look(campaign).runs} == {None}
    path.write_text(json.dumps(told | {"other_load": 0.25}))
    assert {run.facts["other_load"] for run in look(campaign).runs} == {0.25}
    hosts = {"a": {"other_load": 0.75}, "b": {}}
    path.write_text(json.dumps(told | {"other_load": 0.25, "hosts": hosts}))
    assert {run.facts["other_load"] for run in look(campaign).runs} == {0.75}
    path.write_text(json.dumps(told | {"hosts": {"a": 3}}))
    assert aside(look(campaign))["machine.json"].startswith("its host a is 3")


def test_a_bad_machine_json_leaves_the_machine_unknown(campaign: Path) -> None:
    (campaign / "machine.json").write_text("{")
    found = look(campaign)
    assert list(aside(found)) == ["machine.json"]
    assert found.runs[0].facts["cpu"] is None


def test_offsets_are_by_role(tmp_path: Path) -> None:
    directory = make_campaign(tmp_path / "campaign", repeats=1)
    hosts = [
        {"name": "a", "clock_offset_ns": 5, "clock_error_ns": 1, "roles": [0]},
        {"name": "b", "clock_offset_ns": -9, "clock_error_ns": 30, "roles": [2]},
    ]
    make_run(directory, hosts=hosts)
    (run,) = look(directory).runs
    assert run.offsets == (5, 0, -9)
    assert run.facts["clock_error_ns"] == 30


def test_two_folders_of_one_run_count_once(campaign: Path) -> None:
    change(campaign / RUN.format(2) / "run.json", run=RUN.format(1))
    found = look(campaign)
    assert aside(found) == {RUN.format(2): f"it is of the same run as {RUN.format(1)}"}


def test_an_empty_campaign_has_interrupted_runs_only(tmp_path: Path) -> None:
    found = look(make_campaign(tmp_path / "campaign", repeats=3))
    assert set(outcomes(found).values()) == {"interrupted"}
    assert len(found.runs) == 3
    assert found.rows == {}


def test_what_waits_for_a_later_version_is_named_once_with_what_it_needs(campaign: Path) -> None:
    with (campaign / "plan.toml").open("a") as plan:
        plan.write(LATER)
    (named,) = [run.facts for run in look(campaign).runs if run.facts["outcome"] == "absent"]
    keys = ("run", "plan", "series", "protocol", "pattern", "size", "workload", "nodes", "repeat")
    assert [named[key] for key in keys] == [
        *("group.antiphon-group", "small", "group", "antiphon-group", "n-n", 100, "none"),
        *(None, None),  # it has several
    ]
    assert named["reason"] == "missing until a later version (needs antiphon-group)"
    assert set(named) == set(FACTS)


def test_a_directory_of_campaigns_is_all_of_them(tmp_path: Path) -> None:
    one = make_campaign(tmp_path / "one", "one")
    two = make_campaign(tmp_path / "two", "two")
    (tmp_path / "notes").mkdir()
    assert find_campaigns([tmp_path, one]) == [one, two]


def test_what_holds_no_campaign_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no campaign"):
        find_campaigns([tmp_path])
    with pytest.raises(ConfigError, match="No such file"):
        find_campaigns([tmp_path / "nowhere"])
    with pytest.raises(ConfigError, match="no campaign was given"):
        find_campaigns([])


def test_the_same_campaign_twice_is_refused(tmp_path: Path) -> None:
    one, two = make_campaign(tmp_path / "one", "same"), make_campaign(tmp_path / "two", "same")
    with pytest.raises(ConfigError, match="hold the same campaign, same; give one"):
        look_into([one, two])


@pytest.mark.parametrize("name", ["../up", "", ".hidden", "a b", 7, None])
def test_an_id_that_is_no_name_of_a_directory_is_set_aside(tmp_path: Path, name: object) -> None:
    directory = make_campaign(tmp_path / "one")
    change(directory / "campaign.json", campaign=name)
    good = make_campaign(tmp_path / "two", "good")
    campaigns, (bad,) = look_into([directory, good])
    assert [one.id for one in campaigns] == ["good"]
    assert "no id" in bad.reason


def test_pages_that_are_bad_behind_a_good_footer(campaign: Path) -> None:
    path = campaign / RUN.format(1) / "latency.parquet"
    assert unreadable(path) is None
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    assert look(campaign).set_aside == []
    assert unreadable(path)
