"""What every test may rely on: components, counts and a clean environment.

A test that needs more than Python says so with ``@pytest.mark.needs("netns")``, or asks the
``need`` fixture in the middle of its run. Without the component it skips with one line, and the
end of the run lists all such lines again, so that a green run does not hide what it left out.
``ANTIPHON_REQUIRE=netns,nats`` turns those skips into failures; ``.ci/run`` sets it.

``descriptors`` is not one of ``antiphon doctor``'s: a test says how many it needs with the fixture
``need_descriptors``. ``netns`` promises, as root, that ``ip netns add`` works, and otherwise that
``unshare -Urn`` does.
"""

from __future__ import annotations

import functools
import gc
import os
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from hypothesis import settings

from antiphon.cli.components import COMPONENTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What helper modules assert is to be explained as well as what tests do.
pytest.register_assert_rewrite("integration", "stress", "unit")

# A busy machine makes single examples slow. A hang is found by the timeout of the test.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

_missing: Counter[str] = Counter()

# A shell starts background jobs with SIGINT ignored, and children would inherit that: those that
# are to be interrupted could not be.
signal.signal(signal.SIGINT, signal.default_int_handler)


@functools.cache
def _present(component: str) -> bool:
    return COMPONENTS[component].probe() is not None


def _required() -> set[str]:
    listed = os.environ.get("ANTIPHON_REQUIRE", "").split(",")
    return {name.strip() for name in listed if name.strip()}


def _need(component: str) -> None:
    if component not in COMPONENTS:
        pytest.fail(f"no such component: {component}; there are {', '.join(COMPONENTS)}")
    if not _present(component):
        _lack(component, COMPONENTS[component].install)


def _lack(component: str, remedy: str) -> NoReturn:
    line = f"{component} is missing: {remedy}"
    if component in _required():
        pytest.fail(f"{line} (ANTIPHON_REQUIRE asks for it)", pytrace=False)
    _missing[line] += 1
    pytest.skip(line)


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # What has full counts is found by -m stress, wherever it is.
    for item in items:
        given = getattr(getattr(item, "callspec", None), "params", {})
        if "count" in getattr(item, "fixturenames", ()) and "count" not in given:
            item.add_marker(pytest.mark.stress)
    # Spark starts in five seconds, and in minutes on a machine that others use as well.
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))


def pytest_collection_finish() -> None:
    # The tests themselves live to the end: the collector need not look at them ever again.
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for component in marker.args:
            _need(component)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _missing:
        terminalreporter.section("skipped for missing components")
        for line, count in sorted(_missing.items()):
            terminalreporter.write_line(f"{count} test{'s' if count > 1 else ''}: {line}")


@pytest.fixture
def need() -> Callable[[str], None]:
    """``need("nats")`` inside a test: skip or fail from there."""
    return _need


@pytest.fixture
def need_descriptors() -> Callable[[int], None]:
    """``need_descriptors(2000)``: that a process may open so many. Named ``descriptors``."""

    def need(wanted: int) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most != resource.RLIM_INFINITY and most < wanted:
            _lack("descriptors", f"let processes open {wanted} files (ulimit -Hn says {most})")

    return need


@pytest.fixture(scope="session")
def count() -> Callable[[int, int], int]:
    """``count(small, full)``: how often, in ``make test`` and in ``make stress``.

    Whatever takes it has the marker ``stress``, and is run by the latter.
    """
    full = os.environ.get("ANTIPHON_STRESS") == "full"
    return lambda small, large: large if full else small


@pytest.fixture(autouse=True, scope="session")
def _no_settings_from_outside() -> Iterator[None]:
    """The developer's own configuration must not decide whether a test passes."""
    ours = {"ANTIPHON_REQUIRE", "ANTIPHON_STRESS"}
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("ANTIPHON_")]:
            if name not in ours:
                patch.delenv(name)
        # A run starts hundreds of processes. Without bytecode each compiles the package again.
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests of a run: it takes seconds to start."""
    from antiphon.pipeline.session import spark_session

    with spark_session("local[2]", {"spark.sql.shuffle.partitions": "1"}, small=True) as session:
        yield session
