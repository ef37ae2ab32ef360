"""Groups in campaigns: what one member sends, all others get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from antiphon.cli.main import main

pytestmark = pytest.mark.timeout(180)
JGROUPS = pytest.mark.needs("java", "jgroups")  # ours needs neither

PLAN = """
name = "groups"

[times]
traffic = 0.2
kept_from = 0.2
kept_until = {until}

[workloads.slow]
slow_receiver = 40

[[series]]
name = "all"
pattern = "{pattern}"
protocols = [{protocols}]
sizes = [{size}]
{more}
"""
COUNTED = "messages = 300"


def carried_out(
    folder: Path, pattern: str, more: str, *protocols: str, until: float = 40, size: int = 1000
) -> list[dict[str, Any]]:
    path, out = folder / "groups.toml", folder / "out"
    names = json.dumps(list(protocols))[1:-1]
    keys = {"pattern": pattern, "protocols": names, "more": more, "until": until, "size": size}
    path.write_text(PLAN.format(**keys))
    assert main(["lab", "run", str(path), "--out", str(out)]) == 0
    return [json.loads(one.read_text()) for one in sorted(out.glob("all*/run.json"))]


@pytest.mark.parametrize(
    "protocol",
    [
        "antiphon-group",
        pytest.param("jgroups-udp", marks=JGROUPS),
        pytest.param("jgroups-tcp", marks=JGROUPS),
    ],
)
@pytest.mark.parametrize(
    ("pattern", "more", "senders"),
    [
        ("1-n", f"nodes = [3]\n{COUNTED}", 1),
        ("n-n", f"nodes = [3]\n{COUNTED}", 3),
        ("m-n", f"nodes = [3]\nsenders = [2]\n{COUNTED}", 2),
    ],
)
def test_every_message_reaches_every_other_member(
    tmp_path: Path, protocol: str, pattern: str, more: str, senders: int
) -> None:
    (facts,) = carried_out(tmp_path, pattern, more, protocol)
    assert facts["outcome"] == "complete", facts["reason"]
    samples = pq.read_table(tmp_path / "out" / facts["run"] / "samples.parquet").to_pylist()
    last = {row["role"]: row for row in samples}
    members = [last[f"node-{number}"] for number in range(3)]
    sent = [row["sent_messages"] for row in members]
    assert sent[:senders] == [300] * senders
    assert sent[senders:] == [0] * (3 - senders)
    assert [row["received_messages"] for row in members] == [sum(sent) - own for own in sent]
    # One alone knows by its own clock when all have come, and hears of it after that.
    window = facts["kept_until_ns"] - facts["kept_from_ns"]
    assert facts["slowest_sender_ns"] > (window if senders == 1 else 0)


@JGROUPS
@pytest.mark.parametrize("stack", ["paper-udp", "paper-udp-fc", "paper-tcp"])
def test_the_stacks_of_the_paper(tmp_path: Path, stack: str) -> None:
    protocol = "jgroups-tcp" if "tcp" in stack else "jgroups-udp"
    more = f'nodes = [2]\nstacks = ["{stack}"]\n{COUNTED}'
    (facts,) = carried_out(tmp_path, "1-n", more, protocol)
    assert facts["outcome"] == "complete", facts["reason"]
    assert facts["stack"] == stack


def test_ours_has_the_papers_stacks_over_tcp_and_over_udp(tmp_path: Path) -> None:
    more = f'nodes = [2]\nstacks = ["paper-tcp", "paper-udp", "paper-udp-fc"]\n{COUNTED}'
    by_stack = {
        facts["stack"]: facts for facts in carried_out(tmp_path, "1-n", more, "antiphon-group")
    }
    assert set(by_stack) == {"paper-tcp", "paper-udp", "paper-udp-fc"}
    for facts in by_stack.values():
        assert facts["outcome"] == "complete", facts["reason"]


def test_a_stack_that_is_gone_and_a_protocol_without_groups_say_so(tmp_path: Path) -> None:
    more = f'nodes = [2]\nstacks = ["paper-udp-flow"]\n{COUNTED}'
    by_protocol = {
        facts["protocol"]: facts
        for facts in carried_out(tmp_path, "1-n", more, "jgroups-udp", "pyzmq")
    }
    assert by_protocol["jgroups-udp"]["outcome"] == "absent"
    assert "FLOW_CONTROL" in by_protocol["jgroups-udp"]["reason"]
    assert by_protocol["pyzmq"]["outcome"] == "not_applicable"
    assert "groups" in by_protocol["pyzmq"]["reason"]


@JGROUPS
@pytest.mark.parametrize("protocol", ["jgroups-udp", "jgroups-tcp"])
def test_one_member_may_be_slow(tmp_path: Path, protocol: str) -> None:
    more = 'nodes = [3]\nworkloads = ["slow"]'
    (facts,) = carried_out(tmp_path, "1-n", more, protocol, until=4)
    # What becomes of the others is what the run is for: they may wait for it, or not.
    assert facts["outcome"] in ("complete", "blocked", "unbounded_growth"), facts["reason"]
    samples = pq.read_table(tmp_path / "out" / facts["run"] / "samples.parquet").to_pylist()
    last = {row["role"]: row["received_messages"] for row in samples}
    # Forty a second for less than four seconds, and then some for a busy machine.
    assert 0 < last["node-2"] <= 400
    assert last["node-1"] > 0


@pytest.mark.parametrize("protocol", ["antiphon-group", pytest.param("jgroups-tcp", marks=JGROUPS)])
def test_the_views_of_a_group_are_events(tmp_path: Path, protocol: str) -> None:
    (facts,) = carried_out(tmp_path, "1-n", f"nodes = [3]\n{COUNTED}", protocol)
    events = pq.read_table(tmp_path / "out" / facts["run"] / "events.parquet").to_pylist()
    views = [row for row in events if row["event"] == "view"]
    assert {row["role"] for row in views} == {"node-0", "node-1", "node-2"}
    assert all("3 members" in list_of(views, role)[-1] for role in ("node-0", "node-1", "node-2"))
    (traffic,) = [row["time_ns"] for row in events if row["event"] == "traffic"]
    assert all(row["time_ns"] < traffic for row in views)


def list_of(views: list[dict[str, Any]], role: str) -> list[str]:
    return [row["text"] for row in views if row["role"] == role]


OWN = """
import time
from antiphon.lab.peers.antiphon_group import GroupEndpoint

class Forgetful(GroupEndpoint):
    "Loses every third message, and acknowledges nothing."

    def __init__(self, config, on_data):
        self.came = 0

        def some(data):
            self.came += 1
            if self.came % 3:
                on_data(data)

        super().__init__(config, some)

    def acknowledged(self):
        return 0, 0

ENDPOINT = Forgetful
"""


def test_an_adapter_of_ones_own_may_be_a_group_that_loses_messages(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    tables = '[adapters.mine]\nfile = "mine.py"\ngroup = true\nlossy = true'
    more = f"nodes = [3]\n{COUNTED}\n{tables}"
    (facts,) = carried_out(tmp_path, "1-n", more, "mine")
    assert facts["outcome"] == "complete", facts["reason"]
    assert (facts["sent"], facts["received"], facts["lost"]) == (300, 400, 200)
    assert (facts["receivers"], facts["lossy"]) == (2, True)
    assert facts["slowest_sender_ns"] is None


@JGROUPS
def test_more_than_fits_in_memory_is_an_outcome_and_the_table_says_what_did(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # Without flow control the sender keeps what the others have not taken: gigabytes.
    more = 'nodes = [2]\nstacks = ["paper-tcp"]\nmessages = [1, 3_000]'
    runs = carried_out(tmp_path, "n-n", more, "jgroups-tcp", until=100, size=2_000_000)
    ended = {facts["messages"]: facts for facts in runs}
    assert ended[1]["outcome"] == "complete", ended[1]["reason"]
    assert ended[3000]["outcome"] == "out_of_memory", ended[3000]["reason"]
    assert "OutOfMemoryError" in ended[3000]["reason"]
    assert "fits" in capfd.readouterr().out
    assert main(["lab", "resume", str(tmp_path / "out"), "--json"]) == 0
    (burst,) = json.loads(capfd.readouterr().out)["bursts"]
    assert (burst["fits"], burst["above"], burst["ended"]) == (1, 3000, "out_of_memory")
