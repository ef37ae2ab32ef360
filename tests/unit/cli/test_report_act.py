"""What the last act of ``antiphon demo`` prints of its campaign."""

from __future__ import annotations

import io

from rich.console import Console

from antiphon.cli.acts.report import _show
from antiphon.cli.acts.stage import Stage


def test_the_table_has_rates_beside_what_is_kept_of_them() -> None:
    file = io.StringIO()
    rates = {"pyzmq, idle": 300e6, "pyzmq, busy": 150e6, "tcp-python, idle": 1_500e6}
    _show(Stage(Console(file=file, width=80)), rates, {"pyzmq": 0.5})
    head, *rows = [line.split() for line in file.getvalue().splitlines()]
    assert " ".join(head) == "messages of 2000 bytes idle, MB/s busy, MB/s keeps"
    # One that did not finish beside the load keeps nothing that could be told.
    assert rows[:2] == [["pyzmq", "300", "150", "50%"], ["tcp-python", "1,500"]]
