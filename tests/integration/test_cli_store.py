"""``antiphon broker check`` and ``dump``: what stands in a store, also in one that is damaged."""

from __future__ import annotations

import io
import json
import random
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import msgspec
import pytest

from antiphon.broker.store import Store
from antiphon.cli.main import main

ANTIPHON = [sys.executable, "-m", "antiphon.cli.main"]


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """In this process: an interpreter for each would take longer than all the rest."""
    given = ["broker", *map(str, arguments)]
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as complaints:
        code = main(given)
    return subprocess.CompletedProcess(given, code, out.getvalue(), complaints.getvalue())


def process(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ANTIPHON, "broker", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two topics, one of them in several segments."""
    path = tmp_path / "store"
    with Store(path, fsync="none", segment_bytes=1000) as store:
        properties = msgspec.msgpack.encode({"site": "A", "temp": 31.5})
        for number in range(1, 21):
            store.append(
                "plant/7/temp",
                b"%d" % number + b"." * 100,
                properties=properties,
                time_ns=1_700_000_000_000_000_000 + number,
                source=3,
            )
        store.append("other", [b"text", b"\xff\x1b[31m"], properties=b"\xc1")
    return path


def test_check_counts_what_is_there_and_says_that_nothing_is_damaged(path: Path) -> None:
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    done = process("check", path)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("other: 2 records, sequences 1 to 2, 1 segments, ")
    assert lines[1].startswith("plant/7/temp: 20 records, sequences 1 to 20, ")
    assert "2023-11-14T22:13:20.000Z" in lines[1]
    assert lines[2] == "2 topics, 22 records, epoch 1: no damage"
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_check_finds_damage_says_where_and_exits_with_1(path: Path) -> None:
    segment = sorted((path / "topics" / "plant%2F7%2Ftemp").glob("*.log"))[0]
    content = bytearray(segment.read_bytes())
    first = content.index(b"APBT")
    content[first + 120] ^= 1
    segment.write_bytes(content)
    done = command("check", path)
    assert (done.returncode, done.stderr) == (1, "")
    assert f"damage: {segment} at {first}: the records of a batch are damaged" in done.stdout
    assert "where sequence 1 should be" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(": 1 places are damaged")
    told = json.loads(command("check", path, "--json").stdout)
    assert told["damaged"] is True
    (finding,) = told["topics"][1]["findings"]
    assert (finding["path"], finding["position"], finding["damage"]) == (str(segment), first, True)
    assert segment.read_bytes() == content
    # What is good can still be had.
    dumped = command("dump", path, "--topic", "plant/7/temp", "--json")
    assert len(dumped.stdout.splitlines()) < 20
    assert "damage: " in dumped.stderr


def test_a_torn_tail_is_a_note_and_no_damage(path: Path) -> None:
    segment = sorted((path / "topics" / "other").glob("*.log"))[-1]
    for index in segment.parent.glob("*.idx"):
        index.unlink()
    segment.write_bytes(segment.read_bytes()[:-5])
    done = command("check", path)
    assert done.returncode == 0
    assert "note: " in done.stdout
    assert "torn off" in done.stdout
    assert "other: no records" in done.stdout


def test_dump_prints_events_as_text_and_as_json(path: Path) -> None:
    done = command("dump", path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 22
    assert re.fullmatch(r"other  1  \S+Z  text", lines[0])
    assert lines[1].endswith(r"  \xff\x1b[31m")  # a terminal must not obey it
    assert lines[2].startswith("plant/7/temp  1  2023-11-14T22:13:20.000Z  1....")
    events = [json.loads(line) for line in command("dump", path, "--json").stdout.splitlines()]
    assert events[2] == {
        "topic": "plant/7/temp",
        "sequence": 1,
        "time_ns": 1_700_000_000_000_000_001,
        "source": 3,
        "properties": {"site": "A", "temp": 31.5},
        "data": "1" + "." * 100,
    }
    assert events[1]["data_base64"] == "/xtbMzFt"
    assert events[1]["properties_base64"] == "wQ=="


def test_dump_takes_a_topic_a_sequence_and_a_limit(path: Path) -> None:
    done = command("dump", path, "--topic", "plant/7/temp", "--from", "7", "--limit", "3", "--json")
    assert [json.loads(line)["sequence"] for line in done.stdout.splitlines()] == [7, 8, 9]
    done = command("dump", path, "--topic", "plant/7/temp", "--from", "1000")
    assert (done.returncode, done.stdout) == (0, "")
    done = command("dump", path, "--limit", "1")
    assert len(done.stdout.splitlines()) == 2


def test_both_look_at_a_store_that_is_in_use(tmp_path: Path) -> None:
    with Store(tmp_path / "store", fsync="none") as store:
        store.append("t", b"x")
        done = command("check", tmp_path / "store")
        assert (done.returncode, done.stdout.splitlines()[-1]) == (
            0,
            "1 topics, 1 records, epoch 1, in use: no damage",
        )
        assert command("dump", tmp_path / "store").stdout.startswith("t  1  ")
        assert store.append("t", b"y").sequence == 2


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["check"], 2, "DIR"),
        (["check", "/nowhere/at/all"], 2, "/nowhere/at/all"),
        (["check", "/proc"], 2, "no store"),
        (["check", "/etc/hostname"], 2, "/etc/hostname"),
        (["dump", "/nowhere/at/all"], 2, "/nowhere/at/all"),
        (["dump", "/proc", "--from", "-1"], 2, "--from"),
        (["dump", "/proc", "--from", "1"], 2, "--topic"),
        (["dump", "/proc", "--limit", "0"], 2, "--limit"),
        (["polish", "/proc"], 2, "polish"),
    ],
)
def test_a_mistake_is_one_line_that_says_it(arguments: list[str], code: int, says: str) -> None:
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert says in done.stderr
    assert done.stderr.startswith("antiphon: ")
    assert done.stderr.count("\n") == 1, done.stderr


def test_a_topic_that_is_not_there_says_which_are(path: Path) -> None:
    done = command("dump", path, "--topic", "orders")
    assert done.returncode == 2
    assert "other, plant/7/temp" in done.stderr


@pytest.mark.parametrize("verb", ["check", "dump"])
def test_help_has_an_example(verb: str) -> None:
    done = command(verb, "--help")
    assert done.returncode == 0
    assert f"antiphon broker {verb} /var/lib/antiphon" in " ".join(done.stdout.split())


def test_a_store_of_any_bytes_crashes_neither(path: Path, tmp_path: Path) -> None:
    choose = random.Random(5)
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name != "store")
    original = {file: file.read_bytes() for file in files}
    for _ in range(2):
        for file, content in original.items():
            wild = bytearray(content)
            for _ in range(choose.randint(0, 3)):
                if wild:
                    wild[choose.randrange(len(wild))] = choose.randrange(256)
            if choose.random() < 0.3:
                del wild[choose.randrange(len(wild) + 1) :]
            file.write_bytes(wild)
        (path / "topics" / "a file").write_text("not a directory")
        (path / "topics" / "other" / "99999999999999999999.log").write_bytes(b"\xff" * 99)
        for verb in ("check", "dump"):
            done = process(verb, path)
            assert done.returncode in (0, 1), done.stderr
            assert "Traceback" not in done.stderr
    (path / "store").write_text("antiphon store 99\nepoch 1\n")
    done = command("check", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "format 99" in done.stderr
