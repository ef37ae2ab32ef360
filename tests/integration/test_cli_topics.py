"""``antiphon pub`` and ``antiphon sub`` as people run them: two commands on one channel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)

ANTIPHON = [sys.executable, "-m", "antiphon.cli.main"]


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose channels are nobody else's."""
    directory = tmp_path_factory.mktemp("r")
    directory.chmod(0o700)
    return {**os.environ, "XDG_RUNTIME_DIR": str(directory)}


def subscriber(place: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*ANTIPHON, "sub", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=place,
    )


def publish(
    place: dict[str, str], *arguments: str, lines: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ANTIPHON, "pub", *arguments, "--wait", "30"],
        input=lines,
        capture_output=True,
        text=True,
        env=place,
        timeout=60,
        check=False,
    )


def test_one_event_goes_from_a_command_to_another(place: dict[str, str]) -> None:
    with subscriber(place, "plant/*/temp", "--count", "1") as sub:
        done = publish(place, "plant/7/temp", "31.5")
        output, errors = sub.communicate(timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "1 event to 1 subscription\n"
    assert (output, errors, sub.returncode) == ("plant/7/temp  31.5\n", "", 0)


def test_lines_of_standard_input_are_events_and_json_has_all_of_them(place: dict[str, str]) -> None:
    with subscriber(place, "**", "--count", "3", "--json") as sub:
        done = publish(
            place, "log/a", "--property", "site=A", "--property", "n=5", lines="one\ntwo\n\n"
        )
        output, _ = sub.communicate(timeout=60)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in output.splitlines()]
    assert [event["data"] for event in events] == ["one", "two", ""]
    assert [event["sequence"] for event in events] == [1, 2, 3]
    assert all(event["properties"] == {"site": "A", "n": 5} for event in events)
    assert all(event["missed"] == 0 for event in events)


def test_data_that_is_no_text_does_not_look_like_one(place: dict[str, str]) -> None:
    with subscriber(place, "t", "--count", "2", "--json") as sub:
        done = subprocess.run(
            [*ANTIPHON, "pub", "t", "--wait", "30"],
            input=b"\xff\xfe\n" + rb"\xff\xfe",
            env=place,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0
        output, _ = sub.communicate(timeout=60)
    one, other = (json.loads(line) for line in output.splitlines())
    assert (one["data"], one["data_base64"]) == (None, "//4=")
    assert other["data"] == r"\xff\xfe"
    assert "data_base64" not in other


def test_where_lets_through_what_fits(place: dict[str, str]) -> None:
    with subscriber(place, "t", "--where", "n > 5", "--count", "1") as sub:
        assert publish(place, "t", "low", "--property", "n=5").returncode == 0
        assert publish(place, "t", "high", "--property", "n=6").returncode == 0
        output, _ = sub.communicate(timeout=60)
    assert output == "t  high\n"


def test_a_rate_is_kept_and_shown(place: dict[str, str]) -> None:
    with subscriber(place, "t", "--rate", "--json", "--count", "60") as sub:
        assert publish(place, "t", "x", "--count", "60", "--rate", "40").returncode == 0
        output, _ = sub.communicate(timeout=60)
    rates = [json.loads(line)["events_per_s"] for line in output.splitlines()]
    assert rates
    assert max(rates) <= 60, "40 were asked for"


def test_nobody_there_is_one_line_and_status_one(place: dict[str, str]) -> None:
    done = subprocess.run(
        [*ANTIPHON, "pub", "t", "x", "--wait", "0.2"],
        capture_output=True,
        text=True,
        env=place,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("antiphon: nobody has subscribed to 't'")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sub", "a//b"], "a//b"),
        (["sub", "a", "--where", "n >"], "expected"),
        (["sub", "a", "--bus", "carrier-pigeon://x"], "local://name"),
        (["pub", "a/*", "x"], "a/*"),
        (["pub", "a", "x", "--property", "n"], "name=value"),
    ],
)
def test_a_mistake_is_one_line_that_says_it(
    arguments: list[str], says: str, place: dict[str, str]
) -> None:
    done = subprocess.run(
        [*ANTIPHON, *arguments], capture_output=True, text=True, env=place, timeout=60, check=False
    )
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_control_c_ends_a_subscriber_quietly(place: dict[str, str]) -> None:
    with subscriber(place, "t") as sub:
        assert publish(place, "t", "x").returncode == 0  # it is up
        assert sub.stdout is not None
        assert sub.stdout.readline() == "t  x\n"
        sub.send_signal(signal.SIGINT)
        output, errors = sub.communicate(timeout=30)
    assert sub.returncode == 130
    assert (output, errors) == ("", "")
    assert not list(Path(place["XDG_RUNTIME_DIR"]).rglob("*.node"))


def test_filters_on_content_let_through_what_fits(place: dict[str, str]) -> None:
    filters = ["--where", "n > 5", "--where-regex", "urgent", "--where-xpath", "//o:total > 100"]
    with subscriber(place, "t", *filters, "--namespace", "o=urn:o", "--count", "1") as sub:
        body = "<order xmlns='urn:o'>{}<total>{}</total></order>"
        assert publish(place, "t", "urgent", "--property", "n=6").returncode == 0
        for number, text, total in ((6, "urgent", 50), (6, "", 150), (5, "urgent", 150)):
            event = body.format(text, total)
            assert publish(place, "t", event, "--property", f"n={number}").returncode == 0
        wanted = body.format("urgent", 150)
        assert publish(place, "t", wanted, "--property", "n=6").returncode == 0
        output, _ = sub.communicate(timeout=60)
    assert output == f"t  {wanted}\n"


def test_numbers_and_tags_are_topics(place: dict[str, str]) -> None:
    with subscriber(place, "42", "--kind", "int", "--count", "1", "--json") as sub:
        assert publish(place, "42", "a number", "--kind", "int").returncode == 0
        output, _ = sub.communicate(timeout=60)
    assert json.loads(output)["topic"] == 42
    with subscriber(place, "room=", "--kind", "tag", "--count", "2") as sub:
        for value in ("blue", "*"):
            done = publish(place, f"room={value}", "hello", "--kind", "tag")
            assert done.returncode == 0, done.stderr
        output, _ = sub.communicate(timeout=60)
    assert output == "room=blue  hello\nroom=*  hello\n"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["x", "--kind", "int"], "no whole number"),
        (["x", "--kind", "tag"], "name=value"),
        (["x", "--where-regex", "a("], "column 3"),
        (["x", "--where-xpath", "//a["], "column 5"),
    ],
)
def test_a_mistake_is_one_line(place: dict[str, str], arguments: list[str], why: str) -> None:
    with subscriber(place, *arguments) as sub:
        output, errors = sub.communicate(timeout=60)
    assert sub.returncode in (1, 2)
    assert output == ""
    assert why in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pub"], "Missing argument 'topic'; see 'antiphon pub --help'"),
        (["sub"], "Missing argument 'pattern'; see 'antiphon sub --help'"),
        (["pub", "a", "b", "c"], "(c); see 'antiphon pub --help'"),
        (["nonsense"], "No such command 'nonsense'; see 'antiphon --help'"),
        (["pub", "t", "x", "--property", "a b=1"], "property name 'a b'"),
        (["pub", "t", "x", "--ttl", "-1"], "--ttl -1: give seconds above 0"),
    ],
)
def test_bad_arguments_are_one_line_that_says_where_to_look(
    place: dict[str, str], arguments: list[str], said: str
) -> None:
    """At once, and not when nobody has subscribed for a while."""
    done = subprocess.run(
        [*ANTIPHON, *arguments], capture_output=True, text=True, env=place, timeout=60, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    "verb", ["demo", "broker", "pub", "sub", "bench", "lab", "group", "doctor"]
)
def test_the_help_of_every_verb_has_an_example(place: dict[str, str], verb: str) -> None:
    done = subprocess.run(
        [*ANTIPHON, verb, "--help"],
        capture_output=True,
        text=True,
        env=place,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"Example: antiphon {verb}" in done.stdout


def test_what_was_published_is_counted_in_json(place: dict[str, str]) -> None:
    with subscriber(place, "t", "--count", "2") as sub:
        done = publish(place, "t", "--json", lines="a\nb\n")
        sub.communicate(timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"events": 2, "subscriptions": 1}


def test_help_shows_brackets_as_they_are_typed() -> None:
    """They mean something to what prints the help, which took them away."""
    done = subprocess.run([*ANTIPHON, "sub", "--help"], capture_output=True, text=True, check=True)
    assert "/order[total > 100]" in " ".join(done.stdout.replace("│", "").split())
