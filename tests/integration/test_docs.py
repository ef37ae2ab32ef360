"""The documentation keeps its word: its code runs, its links lead on, its lists are complete.

Each page is run in an empty folder, its blocks in order:

- ``python run`` and ``bash run`` are run, each as a process of its own;
- any language with ``file=NAME`` is written to that file first;
- ``text output`` is what the block before it prints, ``...`` standing for anything.

A Python block without one of these marks needs a comment before it that says why it is not run.
"""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

import antiphon
from antiphon import errors
from antiphon.cli.components import COMPONENTS
from antiphon.node.statistics import ConnectionInfo, FlowInfo, KindStatistics, NodeStatistics

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NOT_RUN = re.compile(r"<!-- not run: .+ -->")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NEEDS = re.compile(r"<!-- needs: ([a-z-]+) -->")


@dataclass
class Block:
    """A fenced block: its info string's words, its text, and the line before it."""

    line: int
    words: list[str]
    text: str
    before: str

    @property
    def file(self) -> str | None:
        return next((word.removeprefix("file=") for word in self.words if "file=" in word), None)


def blocks(text: str) -> Iterator[Block]:
    before, inside = "", None
    for number, line in enumerate(text.splitlines(), 1):
        if inside is not None and line.strip() == "```":
            yield inside
            before, inside = "", None
        elif inside is not None:
            inside.text += line + "\n"
        elif line.startswith("```"):
            inside = Block(number, line[3:].split(), "", before)
        elif line.strip():
            before = line
    assert inside is None, "a block is not closed"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run(block: Block, folder: Path, runtime: str, patience: float) -> str:
    language = block.words[0]
    if language == "python":
        script = folder / f"block_{block.line}.py"
        script.write_text(block.text)
        command = [sys.executable, "-W", "error", str(script)]
    else:
        command = ["bash", "-euo", "pipefail", "-c", block.text]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path, "XDG_RUNTIME_DIR": runtime},
        capture_output=True,
        text=True,
        timeout=max(200, patience),
        check=False,
    )
    assert done.returncode == 0, f"line {block.line}: {done.stdout}{done.stderr}"
    assert done.stderr == "", f"line {block.line} writes to standard error: {done.stderr}"
    return done.stdout


def run_page(page: Path, folder: Path) -> None:
    checker = doctest.OutputChecker()
    output: str | None = None
    # A Java process comes up, and compiles what it runs.
    patience = 150.0 if "pyspark" in NEEDS.findall(page.read_text()) else 40.0
    # Whoever runs pages besides this one is on other channels of the same names. Not in the folder:
    # a socket's path has 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ap-") as runtime:
        for block in blocks(page.read_text()):
            if block.file is not None:
                (folder / block.file).write_text(block.text)
            elif "run" in block.words:
                output = run(block, folder, runtime, patience)
            elif block.words == ["text", "output"]:
                assert output is not None, f"line {block.line}: nothing was run before it"
                assert checker.check_output(block.text, output, doctest.ELLIPSIS), (
                    f"line {block.line} promises\n{block.text}but this came:\n{output}"
                )
                output = None


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Path, Future[None]]]:
    """Of every page that a test asks for, two at a time: most of it is the start of processes."""
    wanted: list[Path] = [
        item.callspec.params["page"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.function is test_the_code_on_the_page_runs
    ]
    wanted.sort(key=lambda page: page.read_text().count(" run\n"), reverse=True)
    pool = ThreadPoolExecutor(2)
    yield {
        page: pool.submit(run_page, page, tmp_path_factory.mktemp(page.stem))
        for page in wanted
        if all(COMPONENTS[name].probe() for name in NEEDS.findall(page.read_text()))
    }
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_code_on_the_page_runs(
    page: Path, need: Callable[[str], None], runs: dict[Path, Future[None]]
) -> None:
    for component in NEEDS.findall(page.read_text()):
        need(component)
    runs[page].result()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_that_is_not_run_says_why(page: Path) -> None:
    silent = [
        block.line
        for block in blocks(page.read_text())
        if block.words[:1] == ["python"]
        and "run" not in block.words
        and block.file is None
        and not NOT_RUN.fullmatch(block.before)
    ]
    assert not silent, f"lines {silent}: mark them 'run', or write <!-- not run: why --> before"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(page.read_text()):
        path, _, _ = target.partition("#")
        if "://" not in path and path and not (page.parent / path).exists():
            broken.append(target)
    assert not broken


def documented(page: str) -> set[str]:
    """Every name that stands in backquotes on a page, outside its blocks of code."""
    prose = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    return set(re.findall(r"[A-Za-z_][A-Za-z_0-9]*", " ".join(re.findall(r"`([^`\n]+)`", prose))))


@pytest.mark.parametrize(
    "cls",
    [antiphon.NodeConfig, NodeStatistics, ConnectionInfo, FlowInfo, KindStatistics],
    ids=lambda cls: cls.__name__,
)
def test_the_reference_names_every_field(cls: type) -> None:
    fields = {field.name for field in dataclasses.fields(cls)}
    assert not fields - documented("docs/reference/node.md")


def test_the_reference_names_every_public_method() -> None:
    known = documented("docs/reference/node.md")
    for cls in (antiphon.Node, antiphon.Inbox, antiphon.Batch):
        public = {name for name in dir(cls) if not name.startswith("_")}
        assert not public - known, cls


@pytest.mark.parametrize(
    "cls",
    [
        antiphon.BusConfig,
        antiphon.BusStatistics,
        antiphon.DelayModel,
        antiphon.Plan,
        antiphon.Schedule,
        antiphon.TopicInfo,
    ],
    ids=lambda cls: cls.__name__,
)
def test_the_reference_of_buses_names_every_field(cls: type) -> None:
    fields = {field.name for field in dataclasses.fields(cls)}
    assert not fields - documented("docs/reference/bus.md")


def test_the_reference_of_the_broker_names_everything() -> None:
    known = documented("docs/reference/broker.md")
    for cls in (antiphon.BrokerConfig, antiphon.BrokerStatistics):
        assert not {field.name for field in dataclasses.fields(cls)} - known, cls
    assert not {name for name in dir(antiphon.Broker) if not name.startswith("_")} - known
    assert not set(inspect.signature(antiphon.Broker).parameters) - known


def test_the_reference_of_buses_names_every_public_method_and_argument() -> None:
    known = documented("docs/reference/bus.md")
    for cls in (
        antiphon.Bus,
        antiphon.Publisher,
        antiphon.Subscription,
        antiphon.Timer,
        antiphon.Event,
        antiphon.EventBatch,
    ):
        public = {name for name in dir(cls) if not name.startswith("_")}
        assert not public - known, cls
    for call in (
        antiphon.Bus,
        antiphon.Bus.publisher,
        antiphon.Bus.subscribe,
        antiphon.Bus.every,
        antiphon.Publisher.publish_async,
        antiphon.Publisher.wait_for_subscribers,
        antiphon.Subscription.calibrate,
    ):
        arguments = set(inspect.signature(call).parameters) - {"self"}
        assert not arguments - known, call


def test_the_reference_of_groups_names_everything() -> None:
    known = documented("docs/reference/groups.md")
    for cls in (antiphon.GroupConfig, antiphon.GroupStatistics):
        assert not {field.name for field in dataclasses.fields(cls)} - known, cls
    assert not {name for name in dir(antiphon.Group) if not name.startswith("_")} - known
    assert not {name for name in dir(antiphon.View) if not name.startswith("_")} - known
    for call in (antiphon.Group, antiphon.Group.send, antiphon.Group.close):
        assert not set(inspect.signature(call).parameters) - {"self"} - known, call


def test_the_reference_names_every_error() -> None:
    assert not set(errors.__all__) - documented("docs/reference/node.md")


def test_the_wire_page_names_every_control_kind_with_its_number() -> None:
    layout = (ROOT / "native/frames/layout.hpp").read_text()
    enumeration = re.search(r"enum class Control.*?\{(.*?)\};", layout, re.DOTALL)
    assert enumeration is not None
    kinds = re.findall(r"^\s*(\w+) = (\d+),", enumeration[1], re.MULTILINE)
    assert len(kinds) > 15
    page = (ROOT / "docs/reference/wire.md").read_text()
    missing = [name for name, number in kinds if f"| {number} | `{name}` |" not in page]
    assert not missing


def test_every_mutex_of_the_core_is_in_the_list_of_locks() -> None:
    page = (ROOT / "LOCKS.md").read_text()
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "native").rglob("*.[hc]pp"))
        if not {"tests", "bench"} & set(path.parts)
        for name in re.findall(r"^\s*(?:static )?std::mutex (\w+)", path.read_text(), re.MULTILINE)
        if not re.search(rf"`[^`]*\b{name}`[^|]*\|[^|]*`{path.relative_to(ROOT / 'native')}`", page)
    ]
    assert not missing, "name them in LOCKS.md with their file, and say what may be held"


def test_the_readme_lists_what_can_be_installed() -> None:
    text = (ROOT / "README.md").read_text()
    unnamed = [name for name in COMPONENTS if name not in text and name not in ("java", "netns")]
    assert not unnamed
