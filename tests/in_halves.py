"""Runs the tests in two processes side by side: most of them wait for something most of the time.

``python tests/in_halves.py [pytest's arguments]``. The second half is shown as it goes, the first
one when it is done. Exit code 0 when both have passed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
NO_TESTS = 5  # pytest's code when arguments such as -k leave nothing in one half


def half(letters: str) -> list[str]:
    return sorted(str(path) for path in (HERE / "integration").glob(f"test_[{letters}]*.py"))


def main() -> int:
    first, second = half("a-e"), [str(HERE / "unit"), *half("f-z")]
    command = [sys.executable, "-m", "pytest", *sys.argv[1:]]
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
    failed = [code for code in codes if code not in (0, NO_TESTS)]
    return failed[0] if failed else min(codes)


if __name__ == "__main__":
    sys.exit(main())
