# Two commands on a machine with Python and make: `make demo` and `make test`.
# Each makes its own virtual environment under .venv; remove it with `make clean`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The rooms of which every branch is tested.
COVERED := */header.py,*/block.py,*/frame.py,*/log.py,*/state.py,*/commit.py,*/store.py,*/recovery.py
# The tests that do so; the others run without that measurement, which takes its time.
COVERING := $(patsubst %,tests/test_%.py,corners store commit recovery crash formats state group maintenance directory \
	queue repair seed_faults seed_weaknesses seed_log)

.PHONY: demo test crash lint perf clean

demo: $(VENV)/examples.installed
	$(BIN)/python examples/flights_pipeline.py --directory demo

test: $(VENV)/test.installed
	$(BIN)/python -m pytest -n 3 --dist loadfile --cov --cov-report= $(COVERING)
	$(BIN)/python -m coverage report --include='$(COVERED)' --fail-under=100
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(COVERING:%=--ignore=%)
	$(BIN)/python -m tests.crash random --jobs 2 --schedules 40000
	$(BIN)/python -m tests.crash random --jobs 2 --schedules 10000 --faults
	$(BIN)/python -m tests.crash exhaustive --operations 2 --jobs 2
	$(BIN)/python -m tests.crash mutants --most 10 --jobs 2
	$(BIN)/python -m tests.crash kills --count 200
	$(BIN)/python -m tests.crash cuts --count 12

crash: $(VENV)/test.installed
	$(BIN)/python -m tests.crash random --jobs 2 --schedules 900000 --first 1000000
	$(BIN)/python -m tests.crash random --jobs 2 --schedules 100000 --first 1000000 --faults
	$(BIN)/python -m tests.crash exhaustive --operations 3 --jobs 2
	$(BIN)/python -m tests.crash mutants --jobs 2
	$(BIN)/python -m tests.crash kills --count 5000
	$(BIN)/python -m tests.crash cuts --count 300
	$(BIN)/python -m tests.crash syscalls --count 1000 --jobs 2
	$(BIN)/python -m tests.crash flips --bytes 65536 --jobs 2
	$(BIN)/python -m tests.crash truncate --bytes 2048 --jobs 2
	$(BIN)/python -m tests.crash fuzz --count 1000

lint: $(VENV)/test.installed
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

perf: $(VENV)/test.installed
	$(BIN)/python -m perf

$(VENV)/%.installed: setup.cfg pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --editable '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis demo
