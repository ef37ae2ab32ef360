from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest

from antiphon._version import __version__
from antiphon.cli import components, doctor
from antiphon.cli import main as cli
from antiphon.errors import AntiphonError


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def report(capsys: pytest.CaptureFixture[str]) -> dict:
    assert cli.main(["doctor", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_report_names_version_machine_settings_and_components(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = report(capsys)
    assert found["antiphon"] == __version__
    assert found["python"]["executable"] == sys.executable
    assert found["machine"]["cpus"] >= 1
    assert {row["name"] for row in found["components"]} == set(components.COMPONENTS)
    assert found["settings_error"] is None


def test_every_setting_is_listed_with_its_origin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "antiphon.toml").write_text("[node]\nheartbeat = 2.5\n[group]\nheartbeat = 0.25\n")
    monkeypatch.setenv("ANTIPHON_NODE_RING_BYTES", "8MiB")
    rows = {row["name"]: row for row in report(capsys)["settings"]}
    assert rows["ring_bytes"]["value"] == 8 << 20
    assert rows["ring_bytes"]["source"] == "ANTIPHON_NODE_RING_BYTES"
    assert rows["heartbeat"] == {
        "name": "heartbeat",
        "value": 2.5,
        "source": "antiphon.toml [node]",
    }
    assert rows["send_timeout"]["source"] == "default"
    assert rows["group.heartbeat"]["value"] == 0.25
    assert rows["group.heartbeat"]["source"] == "antiphon.toml [group]"


def test_clients_of_a_broker_are_listed_with_what_they_may_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    token = "sha256:" + "0" * 64
    (tmp_path / "antiphon.toml").write_text(
        f'[broker.tokens.one]\nhash = "{token}"\npublish = ["a/**"]\n'
        "[broker.limits]\nmax_topics = 5\n"
    )
    rows = {row["name"]: row["value"] for row in report(capsys)["settings"]}
    assert rows["broker.tokens"]["one"]["publish"] == ["a/**"]
    assert rows["broker.tokens"]["one"]["hash"] == token
    assert rows["broker.limits"]["max_topics"] == 5


def test_a_kernel_cap_below_our_buffers_comes_with_the_command_that_lifts_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "net" / "core"
    folder.mkdir(parents=True)
    (folder / "rmem_max").write_text("212992\n")
    (folder / "wmem_max").write_text("67108864\n")
    monkeypatch.setattr(doctor, "_SYSCTL", tmp_path)
    low, high = report(capsys)["kernel"]
    assert (low["ok"], high["ok"]) == (False, True)
    assert low["advice"] == "as root: sysctl -w net.core.rmem_max=4194304"
    (folder / "rmem_max").unlink()
    assert report(capsys)["kernel"][0]["ok"] is None


def test_a_missing_component_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = components.Component("gone", "nothing", "pip install gone", lambda: None)
    monkeypatch.setitem(components.COMPONENTS, "gone", gone)
    row = report(capsys)["components"][-1]
    assert (row["present"], row["install"]) == (False, "pip install gone")


def test_the_tables_show_the_same_facts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTIPHON_NODE_HEARTBEAT", "2")
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert f"antiphon {__version__}" in shown
    assert "ANTIPHON_NODE_HEARTBEAT" in shown
    assert "net.core.rmem_max" in shown
    assert "antiphon.toml" not in shown


def test_a_broken_configuration_is_reported_after_everything_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTIPHON_NODE_RINGBYTES", "1")
    assert cli.main(["doctor", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["settings"] == []
    assert err.count("\n") == 1
    assert "ANTIPHON_NODE_RING_BYTES" in err


def test_build_facts_of_the_core_are_shown_when_it_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = types.ModuleType("antiphon._core")
    core.__file__ = "/x/_core.so"
    monkeypatch.setitem(sys.modules, "antiphon._core", core)
    assert doctor.collect()["core"] == {"file": "/x/_core.so"}
    core.build_info = lambda: {"compiler": "gcc 13"}  # type: ignore[attr-defined]
    assert doctor.collect()["core"]["compiler"] == "gcc 13"


def test_a_program_that_cannot_run_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    stub = tmp_path / "java"
    stub.write_text("#!/bin/sh\nexit 1\n")
    stub.chmod(0o755)
    assert components.find("java") is None
    stub.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\"' >&2\n")
    assert components.find("java") == "21.0.2"


@pytest.mark.parametrize(
    ("arguments", "hint"), [(["doctor", "--nope"], "--nope"), (["nope"], "nope")]
)
def test_bad_arguments_are_one_line_and_exit_code_2(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert hint in err
    assert err.count("\n") == 1


def test_help_and_version_succeed(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"], ["doctor", "--help"], ["--version"]):
        assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "Example: antiphon doctor --json" in out
    assert f"antiphon {__version__}" in out


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (AntiphonError("two\nlines"), 1),
        (FileNotFoundError("no such file"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_failures_are_one_line_and_ctrl_c_is_silent(
    raised: BaseException,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(name: str = "nobody") -> None:
        raise raised

    verb = types.ModuleType("antiphon.cli.demo")
    verb.demo = fail  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "antiphon.cli.demo", verb)
    assert cli.main(["demo", "--name", "x"]) == code
    assert capsys.readouterr().err.count("\n") == (0 if code == 130 else 1)


def test_a_verb_gets_its_own_arguments_and_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def demo(name: str = "nobody") -> None:
        """Greet somebody."""
        print(f"hello {name}")

    verb = types.ModuleType("antiphon.cli.demo")
    verb.demo = demo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "antiphon.cli.demo", verb)
    assert cli.main(["demo", "--name", "x"]) == 0
    assert cli.main(["demo", "--help"]) == 0
    assert cli.main(["demo", "--nope"]) == 2
    out = capsys.readouterr().out
    assert "hello x" in out
    assert "Greet somebody." in out
    assert "antiphon demo" in out


def test_a_verb_whose_packages_are_missing_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "antiphon.cli.bench", None)
    assert cli.main(["bench", "node"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_variables_that_nothing_reads_are_listed_with_the_nearest_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTIPHON_RING_BYTES", "1MiB")
    monkeypatch.setenv("ANTIPHON_REQUIRE", "netns")
    unknown = [{"name": "ANTIPHON_RING_BYTES", "nearest": "ANTIPHON_NODE_RING_BYTES"}]
    assert report(capsys)["unknown_variables"] == unknown
    assert cli.main(["doctor"]) == 0
    assert (
        "variable not understood, and without effect: ANTIPHON_RING_BYTES; "
        "did you mean ANTIPHON_NODE_RING_BYTES?" in capsys.readouterr().out
    )
