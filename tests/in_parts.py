"""Runs the tests in three processes side by side: most of them wait for something most of the time.

``python tests/in_parts.py [--no-spark | --stress] [pytest's arguments]``. The first part is shown
as it goes, the others when they are done. The last one begins with what needs Spark. Those with
full counts are two parts: what has a time of its own, simulations and Spark, keeps one core busy
and cannot be hurried, while the rest runs on real clocks.

``tests/stress`` is among all of them, with small counts: half a minute. Only what it has for Spark
is left to those with full counts: most of its two minutes go into starting clusters, whatever the
counts, and with small ones integration asks the same.
Exit code 0 when all have passed.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SPARK = "test_pipeline_", "test_report_"
STRESS_SPARK = "test_pipeline"
LATE = "test_demo", "test_docs", "test_examples"  # the part with Spark has time for them
NO_TESTS = 5  # pytest's code when arguments such as -k leave nothing in one part


def parts(with_spark: bool) -> list[list[Path]]:
    """Parts that take about as long as each other, the one to be shown first."""
    integration = sorted((HERE / "integration").glob("test_*.py"))
    spark = [path for path in integration if path.name.startswith(SPARK)]
    late = [path for path in integration if path.name.startswith(LATE)]
    rest = [path for path in integration if path not in (*spark, *late)]
    early = [path for path in rest if path.name[len("test_")] <= "e"]
    unit = sorted(path for path in (HERE / "unit").iterdir() if _holds_tests(path))
    others = [*unit, *(path for path in rest if path not in early)]
    late += stress_without_spark()
    if not with_spark:
        return [others, [*early, *late]]
    return [others, early, [HERE / "unit" / "pipeline", *spark, *late]]


def stress_parts() -> list[list[Path]]:
    """Of all tests, for ``-m stress``."""
    spark = sorted(
        path for path in (HERE / "stress").glob("test_*.py") if path.name.startswith(STRESS_SPARK)
    )
    return [[*stress_without_spark(), HERE / "integration"], [HERE / "unit", *spark]]


def stress_without_spark() -> list[Path]:
    return sorted(
        path
        for path in (HERE / "stress").glob("test_*.py")
        if not path.name.startswith(STRESS_SPARK)
    )


def _holds_tests(path: Path) -> bool:
    if path.is_dir():
        return path.name not in ("pipeline", "__pycache__")
    return path.match("test_*.py")


def main() -> int:
    arguments = sys.argv[1:]
    choice = arguments.pop(0) if arguments[:1] in (["--no-spark"], ["--stress"]) else ""
    command = [sys.executable, "-m", "pytest", *arguments]
    chosen = stress_parts() if choice == "--stress" else parts(with_spark=choice != "--no-spark")
    shown, *hidden = [[str(path) for path in part] for part in chosen]
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in hidden]
        running = [subprocess.Popen([*command, *shown])]
        try:
            for part, output in zip(hidden, outputs, strict=True):
                running.append(
                    subprocess.Popen([*command, *part], stdout=output, stderr=subprocess.STDOUT)
                )
            codes = [process.wait() for process in running]
        finally:
            for process in running:
                process.terminate()
                process.wait()
            for output in outputs:
                output.seek(0)
                sys.stdout.buffer.write(output.read())
            sys.stdout.flush()
    failed = [code for code in codes if code not in (0, NO_TESTS)]
    return failed[0] if failed else min(codes)


if __name__ == "__main__":
    sys.exit(main())
