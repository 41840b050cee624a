# Two commands matter: `make demo` and `make test`. Both work from a fresh clone with nothing but Python and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Two test workers with one torch thread each use two cores without fighting over them.
WORKERS ?= 2

.PHONY: demo test test-all lint types check bench results docs docs-serve clean install
.DEFAULT_GOAL := demo

# Re-installs only when what is to be installed has changed.
$(STAMP): pyproject.toml setup.py constraints.txt $(wildcard src/noiseproof/kernels/*.[ch])
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/noiseproof compare --out runs/demo

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow"

test-all: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

check: lint types test

bench: $(STAMP)
	$(BIN)/noiseproof bench

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# Three seeds of every row of docs/results.md; finished runs are kept in bench/results/runs. ONLY=mnist,adult-0.5 picks rows.
results: $(STAMP)
	OMP_NUM_THREADS=2 $(BIN)/python -m bench.results $(if $(ONLY),--only $(ONLY))

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache
