"""What the acts of the demonstration say of runs, on made-up measurements."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from antiphon.cli.acts import messages, round_trips
from antiphon.cli.acts.side_by_side import Figure, compare
from antiphon.cli.acts.stage import Act, ActFailed, Scene, Stage
from antiphon.lab.bench.latency import Latency
from antiphon.lab.bench.plan import Group, Point
from antiphon.lab.bench.point import Measurement, Options

OURS = Point("antiphon", "default", "call")
PYZMQ = Point("pyzmq", "req-rep", "call")
ROUNDS = 3


def answered(point: Point, micros: float, rate: float = 1000.0) -> Measurement:
    latency = Latency(micros, micros, micros, micros, micros)
    return Measurement(point, 0, "ok", messages=1, seconds=1.0, rate=rate, latency=latency)


def failed(point: Point) -> Measurement:
    return Measurement(point, 0, "failed", "it has gone")


def shown(
    figure: Figure, *runs: Measurement, points: tuple[Point, ...] = (PYZMQ, OURS)
) -> list[str]:
    """The lines that a comparison prints when each point gives this in every round."""
    given = {run.point: run for run in runs}
    screen = io.StringIO()

    def measure(point: Point, options: Options, repeat: int) -> Measurement:
        return given[point]

    try:
        compare(
            Stage(Console(file=screen, width=80)),
            Group("a group", points),
            figure,
            lambda point: point.system,
            ROUNDS,
            Options(),
            measure,
        )
    finally:
        lines = screen.getvalue().splitlines()
        assert max(map(len, lines)) <= 80
    return [line.rstrip() for line in lines]


def test_every_run_is_a_line_and_every_point_a_row_with_its_ratio() -> None:
    lines = shown(round_trips.P50, answered(PYZMQ, 100.0), answered(OURS, 50.0))
    runs, (head, pyzmq, ours) = lines[: 2 * ROUNDS], lines[-3:]
    assert len(lines) == 2 * ROUNDS + 1 + 3
    assert [line.split()[2:] for line in runs[:2]] == [
        ["pyzmq", "100.0", "us,", "p50"],
        ["antiphon", "50.0", "us,", "p50"],
    ]
    assert " ".join(head.split()) == "a group p50, us x pyzmq less is better"
    assert pyzmq.split()[:3] == ["pyzmq", "100.0", "1.00"]
    assert ours.split()[:3] == ["antiphon", "50.0", "0.50"]
    assert len(ours.split()[3]) * 2 == len(pyzmq.split()[3])


def test_a_rate_is_better_when_it_is_higher() -> None:
    lines = shown(round_trips.RATE, answered(PYZMQ, 1.0, 20_000.0), answered(OURS, 1.0, 80_000.0))
    assert lines[-1].split()[:3] == ["antiphon", "80,000", "4.0"]
    assert len(lines[-2].split()[3]) * 4 == len(lines[-1].split()[3])


@pytest.mark.parametrize("figure", [messages.RATE, round_trips.RATE, round_trips.P50])
def test_without_pyzmq_there_is_a_figure_and_no_ratio(figure: Figure) -> None:
    row = shown(figure, answered(OURS, 50.0, 50_000.0), points=(OURS,))[-1]
    assert len(row.split()) == 3, "name, figure, bar"


def test_a_pyzmq_that_fails_says_so_and_costs_only_the_ratio() -> None:
    lines = shown(round_trips.P50, failed(PYZMQ), answered(OURS, 50.0))
    assert lines[0].split(maxsplit=3)[3] == "failed: it has gone"
    assert lines[-2].split() == ["pyzmq", "-", "failed"]
    assert len(lines[-1].split()) == 3


def test_ours_that_fails_ends_the_act() -> None:
    with pytest.raises(ActFailed, match="antiphon: failed, it has gone"):
        shown(round_trips.P50, answered(PYZMQ, 100.0), failed(OURS))


def test_the_scenes_of_an_act_come_in_order_and_their_figures_go_together() -> None:
    def scene(number: int) -> Scene:
        def run(stage: Stage) -> dict[str, object]:
            stage.say(f"played {number}")
            return {f"figure {number}": number}

        return Scene(f"code {number}", run)

    screen = io.StringIO()
    scenes = (scene(1), scene(2))
    figures = Act("a", "A", 1.0, scenes).perform(Stage(Console(file=screen)))
    assert figures == {"figure 1": 1, "figure 2": 2}
    said = " ".join(screen.getvalue().split())
    assert said == "code 1 played 1 code 2 played 2"


def test_a_table_of_the_largest_figures_fits_a_terminal() -> None:
    many = Group(round_trips._group(16).title, (PYZMQ, OURS))
    screen = io.StringIO()

    def measure(point: Point, options: Options, repeat: int) -> Measurement:
        return answered(point, 99_999.9, 999_999.0)

    for figure in (round_trips.RATE, round_trips.P50):
        compare(
            Stage(Console(file=screen, width=80)),
            many,
            figure,
            round_trips._name,
            1,
            Options(),
            measure,
        )
    assert "…" not in screen.getvalue()
