"""Runs the tests in two processes side by side: most of them wait for something most of the time.

``python tests/in_halves.py [--no-spark] [pytest's arguments]``. The second half is shown as it
goes, the first one when it is done. Then come the tests with Spark, alone: it keeps all cores busy,
and others measure time. Exit code 0 when all have passed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
NO_TESTS = 5  # pytest's code when arguments such as -k leave nothing in one half


def parts() -> tuple[list[str], list[str], list[str]]:
    """Two halves that go side by side, and what needs Spark."""
    names = "test_pipeline_", "test_report_"
    integration = sorted((HERE / "integration").glob("test_*.py"))
    spark = [path for path in integration if path.name.startswith(names)]
    rest = [path for path in integration if path not in spark]
    first = [path for path in rest if path.name[len("test_")] <= "e"]
    unit = sorted(path for path in (HERE / "unit").iterdir() if _holds_tests(path))
    second = [*unit, *(path for path in rest if path not in first)]
    third = [HERE / "unit" / "pipeline", *spark]
    return _texts(first), _texts(second), _texts(third)


def _holds_tests(path: Path) -> bool:
    if path.is_dir():
        return path.name not in ("pipeline", "__pycache__")
    return path.match("test_*.py")


def _texts(paths: list[Path]) -> list[str]:
    return [str(path) for path in paths]


def main() -> int:
    first, second, third = parts()
    arguments = sys.argv[1:]
    with_spark = arguments[:1] != ["--no-spark"]
    command = [sys.executable, "-m", "pytest", *(arguments if with_spark else arguments[1:])]
    with tempfile.TemporaryFile() as output:
        running = [
            subprocess.Popen([*command, *first], stdout=output, stderr=subprocess.STDOUT),
            subprocess.Popen([*command, *second]),
        ]
        try:
            codes = [process.wait() for process in running]
        finally:
            for process in running:
                process.terminate()
                process.wait()
            output.seek(0)
            sys.stdout.buffer.write(output.read())
            sys.stdout.flush()
    if with_spark:
        codes.append(subprocess.run([*command, *third], check=False).returncode)
    failed = [code for code in codes if code not in (0, NO_TESTS)]
    return failed[0] if failed else min(codes)


if __name__ == "__main__":
    sys.exit(main())
