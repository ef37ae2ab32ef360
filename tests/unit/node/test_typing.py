"""What mypy knows about the interface: the files in tests/typing, line by line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy is missing: pip install mypy")

pytestmark = pytest.mark.timeout(90)

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "tests" / "typing"
FILES = sorted(path.name for path in FOLDER.glob("*.py"))
MARK = "# E"
ERROR = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: (?P<text>.*)$")


@pytest.fixture(scope="module")
def found() -> dict[str, dict[int, list[str]]]:
    """Errors by file and line, as mypy --strict finds them with the project's own settings."""
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "mypy", "--strict", "--hide-error-context", "--no-pretty"),
            *("--no-error-summary", "--show-error-codes", "--no-warn-unreachable"),
            *(str(FOLDER / name) for name in FILES),
        ],
        cwd=ROOT,
        env={**os.environ, "MYPY_FORCE_COLOR": "0"},
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr or done.stdout
    errors: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in done.stdout.splitlines():
        match = ERROR.match(line)
        if match:
            errors[Path(match["file"]).name][int(match["line"])].append(match["text"])
    return errors


def marked(name: str) -> list[int]:
    """The lines of a file that must be errors."""
    lines = (FOLDER / name).read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if line.endswith(MARK)]


@pytest.mark.parametrize("name", FILES)
def test_right_uses_pass_the_checker(name: str, found: dict[str, dict[int, list[str]]]) -> None:
    lines = (FOLDER / name).read_text().splitlines()
    wrong = marked(name)
    unexpected = {
        f"{name}:{line}: {lines[line - 1].strip()}": texts
        for line, texts in found[name].items()
        if line not in wrong
    }
    assert unexpected == {}


@pytest.mark.parametrize(
    ("name", "line"),
    [pytest.param(name, line, id=f"{name}:{line}") for name in FILES for line in marked(name)],
)
def test_a_wrong_use_is_found_by_the_checker(
    name: str, line: int, found: dict[str, dict[int, list[str]]]
) -> None:
    text = (FOLDER / name).read_text().splitlines()[line - 1].strip()
    assert found[name][line], text
