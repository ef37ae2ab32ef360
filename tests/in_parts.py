"""Runs the tests in three processes side by side: most of them wait for something most of the time.

``python tests/in_parts.py [--no-spark] [pytest's arguments]``. The first part is shown as it goes,
the others when they are done. The last one begins with what needs Spark.
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
    if not with_spark:
        return [others, [*early, *late]]
    return [others, early, [HERE / "unit" / "pipeline", *spark, *late]]


def _holds_tests(path: Path) -> bool:
    if path.is_dir():
        return path.name not in ("pipeline", "__pycache__")
    return path.match("test_*.py")


def main() -> int:
    arguments = sys.argv[1:]
    with_spark = arguments[:1] != ["--no-spark"]
    command = [sys.executable, "-m", "pytest", *(arguments if with_spark else arguments[1:])]
    shown, *hidden = [[str(path) for path in part] for part in parts(with_spark)]
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
