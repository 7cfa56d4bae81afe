# Two commands on a fresh machine: `make demo` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
N ?= 200
MINUTES ?= 10
ifndef SEED
SEED := $(shell date +%s)
endif
FUZZ_CASES ?= 20000
PROPERTIES := tests/fuzz tests/store/test_lives.py tests/store/test_track_files.py tests/blobs/test_streams.py tests/core/test_snapshots.py tests/core/test_filters.py tests/sdk/test_ignore.py
FUZZ_SEED ?= $(SEED)
READY := .venv/.ready
# tests that failed run again, alone and last: docs/testing.md
TESTS := $(BIN)/pytest --second-chance --dist worksteal -q

CLIENTS := $(patsubst %.in,%.txt,$(wildcard requirements/*.in benchmarks/requirements/*.in))
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header

.PHONY: help setup demo test targets check chaos soak fuzz fuzz-api docs bench pins clean mlflow-tests

help:  ## Show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY)

$(READY): pyproject.toml requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip install --quiet --python .venv --compile-bytecode --require-hashes -r requirements/dev.txt
	$(BIN)/uv pip install --quiet --python .venv --no-deps -e .
	@touch $@

demo: setup  ## Train a small model on the local target and show what came out
	@PATH="$(CURDIR)/$(BIN):$$PATH" examples/demo.sh

test: setup  ## Install what the tests need where possible, and run them
	@scripts/test-parts.sh
	$(TESTS) -n 4 -m "not targets and not chaos"

targets: setup  ## Run every kind of target against the contract, on real hosts and engines
	@scripts/test-parts.sh
	$(TESTS) -n 2 -m targets

check: setup  ## Format, lint, types, layers: exactly what CI runs first
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

chaos: setup  ## Kill things at N random moments and see that nothing is lost
	@echo "rounds from seed $(SEED): make chaos N=1 SEED=… repeats one"
	$(TESTS) -n 2 -m chaos --kills $(N) --seed $(SEED) tests/chaos

soak: setup  ## Load a server for MINUTES and see that all is right, and nothing grows
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

fuzz: fuzz-api  ## Ask the server FUZZ_CASES things it may not expect, and feed every parser for long
	$(BIN)/pytest -n 2 --dist worksteal -q --timeout 0 --hypothesis-profile fuzz --hypothesis-seed $(FUZZ_SEED) $(PROPERTIES)

fuzz-api: setup  ## The first half of it: ask the server FUZZ_CASES things it may not expect
	@scripts/test-parts.sh fuzz
	@echo "cases from seed $(FUZZ_SEED): make fuzz FUZZ_SEED=$(FUZZ_SEED) repeats them"
	$(BIN)/python -m tests.fuzz.api --cases $(FUZZ_CASES) --seed $(FUZZ_SEED)

docs: setup  ## Run every example in the docs
	$(BIN)/pytest -q tests/docs

bench: setup  ## Measure beside the peers, all subjects or ONLY=tracking
	$(BIN)/python -m benchmarks $(ONLY)

requirements/dev.txt: pyproject.toml
	@mkdir -p requirements
	@command -v $(BIN)/uv >/dev/null || { $(PYTHON) -m venv .venv && $(BIN)/pip install --quiet uv; }
	$(COMPILE) --all-extras --group dev pyproject.toml -o $@

pins: $(CLIENTS)  ## Pin again what requirements/*.in ask for: MLflow, for the tests and benchmarks

$(CLIENTS): %.txt: %.in
	$(COMPILE) $< -o $@

mlflow-tests: setup  ## Run MLflow's own tests of its server on ours: MLFLOW_SOURCE=/path/to/mlflow
	@scripts/test-parts.sh upstream
	$(BIN)/python -m tests.mlflow.upstream.run "$(MLFLOW_SOURCE)"

clean:  ## Remove the virtual environment and caches
	rm -rf .venv .parts benchmarks/.cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
