from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import settings
from antiphon.errors import ConfigError


@dataclass(frozen=True)
class Sample:
    ring_bytes: int = field(default=4096, metadata={"size": True})
    count: int = 3
    ratio: float = 0.5
    quiet: bool = False
    name: str = "x"
    limit: int | None = field(default=None, metadata={"size": True})
    pool: Mapping[int, int] = field(default_factory=dict, metadata={"size": True})

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ConfigError("count is negative", setting="count", value=self.count)


def resolve(arguments: dict[str, object] | None = None, **environ: str) -> dict[str, object]:
    found = settings.resolve(Sample, "node", arguments, environ=environ)
    return {name: setting.value for name, setting in found.items()}


@pytest.fixture
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "antiphon.toml"


def test_argument_beats_variable_beats_file_beats_default(config_file: Path) -> None:
    config_file.write_text("[node]\nring_bytes = 1\ncount = 1\nratio = 0.1\n")
    environ = {"ANTIPHON_NODE_RING_BYTES": "2", "ANTIPHON_NODE_COUNT": "2"}
    found = settings.resolve(Sample, "node", {"ring_bytes": 3}, environ=environ)
    assert [(s.name, s.value, s.source) for s in found.values()][:4] == [
        ("ring_bytes", 3, "argument"),
        ("count", 2, "ANTIPHON_NODE_COUNT"),
        ("ratio", 0.1, "antiphon.toml [node]"),
        ("quiet", False, "default"),
    ]


def test_the_file_named_by_the_variable_replaces_the_local_one(
    config_file: Path, tmp_path: Path
) -> None:
    config_file.write_text("[node]\ncount = 1\n")
    other = tmp_path / "other.toml"
    other.write_text("[node]\nratio = 0.25\n")
    found = resolve(ANTIPHON_CONFIG=str(other))
    assert (found["count"], found["ratio"]) == (3, 0.25)


def test_a_named_file_must_exist_and_a_local_one_need_not(config_file: Path) -> None:
    assert resolve()["count"] == 3
    with pytest.raises(ConfigError, match=r"ANTIPHON_CONFIG names .*gone.toml"):
        resolve(ANTIPHON_CONFIG="gone.toml")


def test_an_unknown_key_names_the_file_and_the_allowed_keys(config_file: Path) -> None:
    config_file.write_text("[node]\nring_byte = 1\n")
    with pytest.raises(
        ConfigError, match=r"antiphon.toml: unknown key 'ring_byte'.*mean ring_bytes\?.* count,"
    ):
        resolve()


def test_an_unknown_table_is_refused_and_that_of_another_layer_is_not(config_file: Path) -> None:
    config_file.write_text("[bus]\nanything = 1\n")
    resolve()
    config_file.write_text("[nodes]\ncount = 1\n")
    with pytest.raises(ConfigError, match=r"unknown table \[nodes\], line 1; did you mean node\?"):
        resolve()


def test_a_table_that_is_no_table_is_refused(config_file: Path) -> None:
    config_file.write_text("node = 3\n")
    with pytest.raises(ConfigError, match=r"write \[node\]"):
        resolve()


def test_an_unknown_variable_is_refused_and_that_of_another_layer_is_not() -> None:
    resolve(ANTIPHON_BUS_X="1", ANTIPHON_STRESS="full")
    with pytest.raises(ConfigError, match=r"ANTIPHON_NODE_CUONT; did you mean ANTIPHON_NODE_COUNT"):
        resolve(ANTIPHON_NODE_CUONT="1")


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(ConfigError, match="Sample has no setting 'cuont'; did you mean count"):
        resolve({"cuont": 1})


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"[node]\ncount = \n", 2),
        (b"[node]\ncount = 1\ncount = 2\n", 3),
        (b'[node]\nname = "open', 2),
        (b"[node]\n\nname = '\xff'\n", 3),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_line(
    config_file: Path, content: bytes, line: int
) -> None:
    config_file.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"antiphon.toml.*line {line}\b"):
        resolve()


def test_a_directory_in_place_of_the_file_is_reported(config_file: Path) -> None:
    config_file.mkdir()
    with pytest.raises(ConfigError, match=r"cannot read antiphon\.toml"):
        resolve()


@pytest.mark.parametrize(
    ("variable", "text", "field_name", "value"),
    [
        ("RING_BYTES", "4MiB", "ring_bytes", 4 * 2**20),
        ("COUNT", "12", "count", 12),
        ("RATIO", "0.75", "ratio", 0.75),
        ("QUIET", "yes", "quiet", True),
        ("QUIET", "off", "quiet", False),
        ("NAME", "abc", "name", "abc"),
        ("LIMIT", "none", "limit", None),
        ("LIMIT", "1 KiB", "limit", 1024),
        ("POOL", "16KiB=256, 65536=64", "pool", {16384: 256, 65536: 64}),
        ("COUNT", "", "count", 3),
    ],
)
def test_text_is_read_by_the_type_of_the_field(
    variable: str, text: str, field_name: str, value: object
) -> None:
    assert resolve(**{f"ANTIPHON_NODE_{variable}": text})[field_name] == value


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("RING_BYTES", "4 parsecs"),
        ("RING_BYTES", "0.5"),
        ("COUNT", "1.5"),
        ("COUNT", "4KiB"),
        ("RATIO", "much"),
        ("QUIET", "perhaps"),
        ("POOL", "16KiB"),
        ("POOL", "1KiB=2,1024=3"),
    ],
)
def test_text_of_the_wrong_type_names_the_variable(variable: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"set by ANTIPHON_NODE_{variable}") as caught:
        resolve(**{f"ANTIPHON_NODE_{variable}": text})
    assert caught.value.setting == variable.lower()
    assert caught.value.value == text


def test_a_table_of_the_file_may_have_sizes_as_keys(config_file: Path) -> None:
    config_file.write_text('[node]\nring_bytes = "64KiB"\npool = {16KiB = 4, "65536" = 2}\n')
    found = resolve()
    assert found["ring_bytes"] == 65536
    assert found["pool"] == {16384: 4, 65536: 2}


def test_values_of_the_wrong_type_in_the_file_name_the_file(config_file: Path) -> None:
    for line in ("count = true", "count = 1.5", "name = 3", "quiet = 1", "pool = 3"):
        config_file.write_text(f"[node]\n{line}\n")
        with pytest.raises(ConfigError, match=r"set by antiphon.toml \[node\]"):
            resolve()


def test_what_the_class_refuses_is_reported_with_its_source(config_file: Path) -> None:
    environ = {"ANTIPHON_NODE_COUNT": "-1"}
    with pytest.raises(ConfigError, match=r"negative \(set by ANTIPHON_NODE_COUNT\)") as caught:
        settings.load(Sample, "node", environ=environ)
    assert caught.value.setting == "count"
    with pytest.raises(ConfigError, match=r"^count is negative$"):
        settings.load(Sample, "node", {"count": -1}, environ=environ)


@given(number=st.integers(0, 10**6), unit=st.sampled_from(["KiB", "MiB", "GiB", "kB", "MB", "GB"]))
def test_a_size_is_its_number_times_its_unit(number: int, unit: str) -> None:
    base = 1024 if "i" in unit else 1000
    expected = number * base ** ("KMG".index(unit[0].upper()) + 1)
    assert settings.parse_size(f"{number}{unit}") == expected
    assert settings.parse_size(f" {number} {unit.lower()} ") == expected


@pytest.mark.parametrize("bad", ["", "MiB", "-1", "1e3", "1TiB?", True, None, 1.5, "0.3KiB"])
def test_what_is_not_a_size_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match=r"size|whole bytes"):
        settings.parse_size(bad)
