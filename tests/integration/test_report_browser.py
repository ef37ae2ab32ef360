"""The report in a real browser: it draws, it stays silent, and it fits a phone."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from antiphon.pipeline.report import write_report
from unit.pipeline import report_story as story
from unit.pipeline.report_page import parsed, read
from unit.pipeline.report_tables import KEYS, MACHINE, spread, write

pytestmark = [pytest.mark.needs("chromium", "pyarrow"), pytest.mark.timeout(300)]

# Content that the page itself never has: a policy of its own would forbid the test's script.
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
PROBE = """<script>
addEventListener("load", async () => {
  const until = async (holds) => {
    while (!holds()) await new Promise((resolve) => setTimeout(resolve, 50));
  };
  const root = document.documentElement, told = {};
  const box = document.getElementById("degradation"), plot = box.querySelector(".plot");
  const text = () => plot.querySelector(".textpoint text");
  const kept = () => text().textContent.trim();
  const bar = () => getComputedStyle(plot.querySelector(".bars .point path")).fill;
  await until(() => text() && document.querySelectorAll("figure:not([data-drawn])").length === 0);
  told.overflow = root.scrollWidth - root.clientWidth;
  told.wide = [...document.querySelectorAll(".plot svg.main-svg")]
    .filter((one) => one.getBoundingClientRect().right > root.clientWidth + 1).length;
  const cells = [...document.querySelectorAll(".glance td")];
  told.cells = cells.length;
  told.cut = cells.filter((one) => {
    const box = one.getBoundingClientRect();
    const around = one.closest(".glance").getBoundingClientRect();
    return box.width < 20 || box.height < 10 || one.scrollWidth > one.clientWidth + 1
      || box.left < around.left || box.right > around.right + 1 || around.right > root.clientWidth;
  }).map((one) => one.textContent);
  told.heads = cells.map((one) => getComputedStyle(one, "::before").content);
  told.theme = root.dataset.theme;
  told.fetched = performance.getEntriesByType("resource").map((one) => one.name)
    .filter((one) => !one.startsWith("data:"));
  const first = kept(), colour = bar();
  told.first = [first, colour];
  box.querySelectorAll(".chips button")[1].click();
  await until(() => text() && kept() !== first);
  told.second = kept();
  document.querySelector(".theme").click();
  await until(() => text() && bar() !== colour);
  told.toggled = [root.dataset.theme, bar()];
  root.dataset.told = JSON.stringify(told);
});
</script>"""


class Chromium:
    """Runs on one file with a profile of its own, and with nothing to reach beyond it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
        self.program = next(path for name in names if (path := shutil.which(name)))

    def run(
        self, page: Path, *flags: str, size: tuple[int, int] = (1280, 14_000)
    ) -> tuple[str, str]:
        profile = self.folder / f"profile-{os.urandom(4).hex()}"
        command = [
            self.program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--disable-default-apps", "--disable-extensions", "--disable-dev-shm-usage",
            "--hide-scrollbars", f"--user-data-dir={profile}", "--virtual-time-budget=60000",
            "--host-resolver-rules=MAP * ~NOTFOUND", f"--window-size={size[0]},{size[1]}",
            "--enable-logging=stderr", "--v=0", *flags, page.as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout, done.stderr


@pytest.fixture
def browser(tmp_path: Path) -> Chromium:
    folder = tmp_path / "browser"
    folder.mkdir()
    return Chromium(folder)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tables")
    story.stability(out)
    story.everything_else(out)
    return write_report(out)


def said(errors: str) -> list[str]:
    """What the page wrote to its console, and what its policy refused."""
    return [line for line in errors.splitlines() if "CONSOLE" in line or "Refused" in line]


def probed(
    report: Path, browser: Chromium, *flags: str, size: tuple[int, int]
) -> dict[str, object]:
    copy = report.with_name("probed.html")
    changed = POLICY.sub("", report.read_text(encoding="utf-8"))
    copy.write_text(changed.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    document, errors = browser.run(copy, "--dump-dom", *flags, size=size)
    assert not said(errors)
    given = next(given for tag, given in _elements(document) if tag == "html")
    told: dict[str, object] = json.loads(given["data-told"])
    return told


def _elements(document: str) -> list[tuple[str, dict[str, str]]]:
    return parsed(document).elements


def asked(page: Path, browser: Chromium) -> set[str]:
    """What a page makes the browser ask for, by the browser's own account.

    A browser turns to its maker now and then, whatever it shows: those requests are no file's.
    """
    log = browser.folder / f"{page.stem}-net.json"
    browser.run(page, f"--log-net-log={log}", "--dump-dom")
    found: set[str] = set()
    for line in log.read_text(encoding="utf-8").splitlines():
        if '"network_isolation_key":"file:' in line:
            found |= set(re.findall(r'"url":"((?:https?|wss?)://[^"]*)"', line))
    return found


def test_every_figure_is_drawn_and_the_console_stays_empty(report: Path, browser: Chromium) -> None:
    document, errors = browser.run(report, "--dump-dom")
    assert not said(errors)
    wanted = set(read(report).figures)
    drawn = {given["id"] for _, given in _elements(document) if "data-drawn" in given}
    assert drawn == wanted
    assert document.count("main-svg") >= len(wanted)
    assert "jgroups-udp" in document


def test_the_page_asks_the_network_for_nothing(report: Path, browser: Chromium) -> None:
    curious = browser.folder / "curious.html"
    curious.write_text('<!doctype html><img src="http://elsewhere.invalid/1.png">')
    assert asked(curious, browser) == {"http://elsewhere.invalid/1.png"}
    assert asked(report, browser) == set()
    assert probed(report, browser, size=(1280, 14_000))["fetched"] == []


def test_a_hostile_name_runs_nothing(tmp_path: Path, browser: Chromium) -> None:
    evil = '<img src=x onerror="document.title=`broken`"></script><script>document.title=1</script>'
    keys = KEYS | {"protocol": evil}
    run = keys | MACHINE | {"run": "r1", "outcome": "complete", "window_seconds": 30.0}
    write(tmp_path, "runs", [run])
    write(tmp_path, "throughput", [keys | {"repeats": 1} | spread("bytes_per_second", 1e6)])
    document, errors = browser.run(write_report(tmp_path), "--dump-dom")
    assert not said(errors)
    assert "<title>Which messaging system is the fastest here?</title>" in document
    assert not [tag for tag, _ in _elements(document) if tag == "img"]


def test_views_and_themes_can_be_switched(report: Path, browser: Chromium) -> None:
    told = probed(report, browser, size=(1280, 14_000))
    assert told["theme"] == "light"
    # The same bar, of another load: the first is the lowest.
    assert told["first"] == ["31\u00a0% (29 to 33\u00a0%)", "rgb(168, 69, 127)"]
    assert told["second"] == "6.0\u00a0% (5.7 to 6.3\u00a0%)"
    assert told["toggled"] == ["dark", "rgb(240, 163, 208)"]


def test_who_prefers_a_dark_page_gets_one(report: Path, browser: Chromium) -> None:
    dark = "--blink-settings=preferredColorScheme=0"
    told = probed(report, browser, dark, size=(1280, 14_000))
    assert told["theme"] == "dark"
    assert told["toggled"][0] == "light"  # type: ignore[index]


def test_a_phone_shows_all_of_it_without_scrolling_sideways(
    report: Path, browser: Chromium
) -> None:
    told = probed(report, browser, size=(390, 20_000))
    assert told["overflow"] == 0
    assert told["wide"] == 0
    # There is no room for the interval beside the bar.
    assert told["first"][0] == "31\u00a0%"  # type: ignore[index]


LOADS = ("cpu-60", "garbage", "memory-and-disk-together")


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three loads and long names: as a table too wide for a phone, in columns."""
    out = tmp_path_factory.mktemp("loads")
    runs, throughput, kept = [], [], []
    for at, protocol in enumerate(("antiphon-topic", "jgroups-tcp-with-flow-control")):
        for variant, workload in itertools.product(("callback", "inbox"), ("none", *LOADS)):
            keys = KEYS | {"protocol": protocol, "variant": variant, "workload": workload}
            ended = {"run": f"{protocol}.{variant}.{workload}", "outcome": "complete"}
            if (protocol, variant, workload) == ("antiphon-topic", "inbox", LOADS[2]):
                runs.append(keys | MACHINE | ended | {"outcome": "out_of_memory"})
                continue
            runs.append(keys | MACHINE | ended | {"window_seconds": 30.0})
            throughput.append(keys | {"repeats": 1} | spread("bytes_per_second", 123.4e6))
            if workload in LOADS:
                kept.append(keys | {"kept": 0.9 - 0.2 * at - 0.2 * LOADS.index(workload)})
    write(out, "runs", runs)
    write(out, "throughput", throughput)
    write(out, "degradation", kept)
    return write_report(out)


@pytest.mark.parametrize("width", [320, 400, 700, 1280])
def test_every_cell_of_the_summary_is_seen_with_what_it_is_about(
    loads: Path, browser: Chromium, width: int
) -> None:
    told = probed(loads, browser, size=(width, 8_000))
    assert told["cells"] == 4 * (2 + len(LOADS))
    assert told["overflow"] == 0
    assert told["cut"] == []
    if width < 640:
        wanted = ["none", '"no load"', *(f'"beside {load}"' for load in LOADS)]
        assert told["heads"] == wanted * 4
    else:
        assert set(told["heads"]) == {"none"}  # type: ignore[call-overload]


def test_pictures_of_the_page_are_not_blank(report: Path, browser: Chromium) -> None:
    """They stay among pytest's temporary files, to be looked at."""
    looks = {
        "light": ((), (1280, 3_000)),
        "dark": (("--blink-settings=preferredColorScheme=0",), (1280, 3_000)),
        "phone": ((), (390, 3_000)),
    }
    for name, (flags, size) in looks.items():
        drawn = browser.folder / f"{name}.png"
        browser.run(report, f"--screenshot={drawn}", *flags, size=size)
        content = drawn.read_bytes()
        assert struct.unpack(">II", content[16:24]) == size
        # What is empty is packed into next to nothing.
        assert len(content) > size[0] * size[1] / 50, name
