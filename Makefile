# Every target works on a fresh clone with Python (headers, venv, pip), make and a C++20 compiler:
# the rest, cmake and ninja included, is installed into .venv.
# Stamp files keep repeated runs quick; `make clean` forgets them all.

PYTHON ?= python3
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
TESTS ?= tests/unit tests/integration
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
ASAN_VENV := .venv-asan
BUILD_TOOLS := "scikit-build-core>=0.10" "nanobind>=2.4" "cmake>=3.26" "ninja>=1.11"
# PySpark comes as source, and without build isolation it is built with the setuptools found here;
# those of a new environment may be too old to make a wheel.
BUILD_TOOLS += "setuptools>=70.1"
EXTRAS := dev,lab

NATIVE := $(shell find native -type f 2>/dev/null)
PROJECT := pyproject.toml CMakeLists.txt src/antiphon/_version.py

export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# CMake takes nanobind from the virtual environment, whatever else the machine carries.
configure = $(BIN)/cmake -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
	-DPython_EXECUTABLE=$(abspath $(BIN)/python) \
	-Dnanobind_DIR="$$($(BIN)/python -m nanobind --cmake_dir)"

# As python-test: all but what needs Java, or what TESTS names.
ifeq ($(origin TESTS), file)
ASAN_TESTS := tests/in_parts.py --no-spark
else
ASAN_TESTS := -m pytest $(TESTS) --ignore=tests/unit/pipeline \
	--ignore-glob='*/test_pipeline_*' --ignore-glob='*/test_report_*'
endif

LIBASAN = $(shell $${CXX:-g++} -print-file-name=libasan.so)
LIBSTDCXX = $(shell $${CXX:-g++} -print-file-name=libstdc++.so.6)

.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
.PHONY: build demo test lint native-build native-test python-test lab-test bench stress soak asan tsan tsan-stress clean

build: $(VENV)/.built

demo: build
	$(BIN)/antiphon demo

bench: build
	$(BIN)/antiphon bench node

test: lint native-test python-test

lint: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Lines are enough to find a place by, and cost a quarter less time than all of -g.
native-build: $(VENV)/.tools
	$(configure) -B build/native -DCMAKE_BUILD_TYPE=RelWithDebInfo -DANTIPHON_TESTS=ON \
		-DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O2 -g1 -DNDEBUG"
	$(BIN)/cmake --build build/native

native-test: native-build
	$(BIN)/ctest --test-dir build/native --output-on-failure -j $(JOBS)

# All of them in three processes side by side; TESTS=... runs what it names, in one.
python-test: build
ifeq ($(origin TESTS), file)
	$(BIN)/python tests/in_parts.py $(PYTEST_ARGS)
else
	$(BIN)/pytest $(TESTS) $(PYTEST_ARGS)
endif

# The lab's campaigns, protocols and loads: they keep the machine busy, and want it for themselves.
# What the machine has may not skip, as in .ci/run; ANTIPHON_REQUIRE= asks for nothing.
lab-test: build
	ANTIPHON_REQUIRE="$${ANTIPHON_REQUIRE-$$(.ci/components)}" $(BIN)/pytest tests/lab $(PYTEST_ARGS)

# Whatever has full counts, at full counts: the native tests, tests/stress, and all others that
# take them (the marker is theirs by that). It wants the machine for itself.
stress: build native-build
	ANTIPHON_STRESS=full $(BIN)/ctest --test-dir build/native --output-on-failure -j $(JOBS)
	ANTIPHON_STRESS=full $(BIN)/python tests/in_parts.py --stress -m stress --timeout=3600 $(PYTEST_ARGS)

# A broker at half load; an hour, or as many minutes as MINUTES says.
MINUTES ?= 60
soak: build
	$(BIN)/python benchmarks/soak_broker.py --minutes $(MINUTES)

tsan: $(VENV)/.tools
	$(configure) -B build/tsan -DCMAKE_BUILD_TYPE=RelWithDebInfo \
		-DANTIPHON_SANITIZE=thread -DANTIPHON_TESTS=ON
	$(BIN)/cmake --build build/tsan
	TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1 $$TSAN_OPTIONS" \
		$(BIN)/ctest --test-dir build/tsan --output-on-failure

# The scheduler and its shares, again and again for ten minutes with full counts.
tsan-stress: tsan
	end=$$(($$(date +%s) + 600)); while [ $$(date +%s) -lt $$end ]; do \
		ANTIPHON_STRESS=full build/tsan/test_scheduler && \
		ANTIPHON_STRESS=full build/tsan/test_shares || exit 1; done

# The sanitised extension lives in an environment of its own, so the product needs no switch to
# find it. libstdc++ is preloaded too: without it ASan meets the first exception before it has
# found the function that throws. pymalloc would hide overruns inside its arenas. Only sys.stderr
# is captured, since a report written just before the process ends must reach the terminal. Java
# does not run with ASan preloaded, and the pipeline has no native code. gcc 12's ASan does not hold
# its allocator's locks over a fork: a child of a process whose threads are all at work may wait for one for
# ever, so the tests in which such children go on to use Python are left to `make test`.
asan: $(ASAN_VENV)/.built
	LD_PRELOAD="$(LIBASAN) $(LIBSTDCXX)" PYTHONMALLOC=malloc \
	ASAN_OPTIONS="detect_leaks=0:$$ASAN_OPTIONS" \
	UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1:$$UBSAN_OPTIONS" \
		$(ASAN_VENV)/bin/python $(ASAN_TESTS) \
		--deselect 'tests/integration/test_docs.py::test_the_code_on_the_page_runs[docs/howto/which-messaging-system.md]' \
		--deselect tests/integration/test_broker_forks.py \
		--deselect tests/integration/test_fork_moments.py \
		--deselect tests/integration/test_process_life.py::test_children_listen_although_their_parent_was_just_opening_and_closing_nodes \
		--capture=sys --timeout=300 $(PYTEST_ARGS)

clean:
	rm -rf build dist $(VENV) $(ASAN_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# --- environments ---------------------------------------------------------------------------

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.tools: $(VENV)/.created
	$(BIN)/pip install --quiet $(BUILD_TOOLS)
	touch $@

# A change of dependencies or of the build's description goes through pip.
$(VENV)/.installed: $(VENV)/.tools $(PROJECT)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pip install --quiet --no-build-isolation -e ".[$(EXTRAS)]"
	touch $@

# A change of the native sources alone goes straight to ninja, then beside the editable package.
$(VENV)/.built: $(VENV)/.installed $(NATIVE)
	@tag="$$($(BIN)/python -c 'import sys; print("cp%d%d" % sys.version_info[:2])')"; \
	dir="$$(ls -dt build/$$tag-* | head -n 1)"; \
	site="$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')"; \
	$(BIN)/cmake --build "$$dir" && $(BIN)/cmake --install "$$dir" --prefix "$$site"
	touch $@

$(ASAN_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(ASAN_VENV)
	$(ASAN_VENV)/bin/pip install --quiet $(BUILD_TOOLS)
	touch $@

$(ASAN_VENV)/.built: $(ASAN_VENV)/.installed $(PROJECT) $(NATIVE)
	PATH="$(abspath $(ASAN_VENV))/bin:$$PATH" SKBUILD_BUILD_DIR=build/asan \
	SKBUILD_CMAKE_BUILD_TYPE=RelWithDebInfo \
	SKBUILD_CMAKE_DEFINE="ANTIPHON_SANITIZE=address,undefined" \
		$(ASAN_VENV)/bin/pip install --quiet --no-build-isolation -e ".[dev]"
	touch $@
