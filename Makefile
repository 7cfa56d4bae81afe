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
# exists while .venv is made: what an interrupted `make setup` left is removed by the next one
INCOMPLETE := .venv/.incomplete
# uv with the certificates of this machine and the user's settings of pip
UV := $(BIN)/python -I src/retarget/runner/uv_settings.py $(BIN)/uv
# without its cache, Python compiles our modules in each of the thousands of processes of the tests
unexport PYTHONDONTWRITEBYTECODE
# tests that failed run again, alone and last: docs/testing.md
TESTS := $(BIN)/pytest --second-chance --dist worksteal -q $(if $(EVERYTHING),-rs)
QUICK := $(if $(EVERYTHING),, and not everything)
PARTS := check test plain-user targets chaos fuzz soak bench

CLIENTS := $(patsubst %.in,%.txt,$(wildcard requirements/*.in benchmarks/requirements/*.in))
COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header

.PHONY: help setup demo test targets check chaos soak fuzz fuzz-api docs bench pins clean mlflow-tests plain-user everything

help:  ## Show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY)

$(READY): pyproject.toml requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is required: make PYTHON=/path/to/python3.11"; exit 1; }
	@if [ -e $(INCOMPLETE) ]; then find .venv -mindepth 1 ! -path $(INCOMPLETE) -delete; fi
	@mkdir -p .venv && touch $(INCOMPLETE) && rm -f $@
	$(PYTHON) -m venv .venv
	scripts/install-uv.sh
	$(UV) pip install --quiet --python .venv --compile-bytecode --require-hashes -r requirements/dev.txt
	$(UV) pip install --quiet --python .venv --no-deps -e .
	@touch $@ && rm $(INCOMPLETE)

demo: setup  ## Train a small model on the local target and show the results
	@PATH="$(CURDIR)/$(BIN):$$PATH" examples/demo.sh

test: setup  ## Run the tests; install what they need, where possible
	@EVERYTHING=$(EVERYTHING) scripts/test-parts.sh
	$(TESTS) -n 4 -m "not targets and not chaos$(QUICK)"

targets: setup  ## Run the driver contract for every kind of target, on real hosts and engines
	@EVERYTHING=$(EVERYTHING) scripts/test-parts.sh
	$(TESTS) -n 3 -m "targets$(QUICK)"

plain-user:  ## As root: run the demo and tests as a new user with a bare PATH
	scripts/plain-user.sh $(if $(EVERYTHING),,tests/cli/test_run.py tests/sdk/test_client.py)

check: setup  ## Check format, lint, types and layers, as CI does first
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --threads 2
	$(BIN)/lint-imports

chaos: setup  ## Kill processes and hosts at N random moments and check that nothing is lost
	@echo "rounds from seed $(SEED): make chaos N=1 SEED=… repeats one"
	$(TESTS) -n 3 -m "chaos$(QUICK)" --kills $(N) --seed $(SEED) tests/chaos

soak: setup  ## Load a server for MINUTES and check results and growth
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

fuzz: fuzz-api  ## Send FUZZ_CASES generated requests to a server, and fuzz every parser
	$(BIN)/pytest -n 2 --dist worksteal -q --timeout 0 --hypothesis-profile fuzz --hypothesis-seed $(FUZZ_SEED) $(PROPERTIES)

fuzz-api: setup  ## Send FUZZ_CASES generated requests to a server
	@scripts/test-parts.sh fuzz
	@echo "cases from seed $(FUZZ_SEED): make fuzz FUZZ_SEED=$(FUZZ_SEED) repeats them"
	$(BIN)/python -m tests.fuzz.api --cases $(FUZZ_CASES) --seed $(FUZZ_SEED)

docs: setup  ## Run every example in the docs
	$(BIN)/pytest -q tests/docs

bench: setup  ## Compare with other tools: all subjects, or ONLY=tracking
	$(BIN)/python -m benchmarks $(ONLY)

everything:  ## Run all that the other commands exclude, with new seeds (hours), or ONLY="test chaos"
	@echo "seed $(SEED); to repeat a part: make everything ONLY=chaos SEED=$(SEED)"
	@failed=; for part in $(or $(ONLY),$(PARTS)); do \
	    echo "== $$(date +%T) $$part"; $(MAKE) --no-print-directory $$part EVERYTHING=yes SEED=$(SEED) ONLY= || failed="$$failed $$part"; \
	done; [ -z "$$failed" ] || { echo "FAILED:$$failed"; exit 1; }

requirements/dev.txt: pyproject.toml
	@mkdir -p requirements
	@[ -x $(BIN)/uv ] || { $(PYTHON) -m venv .venv && scripts/install-uv.sh; }
	$(COMPILE) --all-extras --group dev pyproject.toml -o $@

pins: $(CLIENTS)  ## Pin the requirements/*.in files again: MLflow and others, for tests and benchmarks

$(CLIENTS): %.txt: %.in
	$(COMPILE) $< -o $@

mlflow-tests: setup  ## Run MLflow's own server tests on Retarget: MLFLOW_SOURCE=/path/to/mlflow
	@scripts/test-parts.sh upstream
	$(BIN)/python -m tests.mlflow.upstream.run "$(MLFLOW_SOURCE)"

clean:  ## Remove the virtual environment and caches
	rm -rf .venv .parts benchmarks/.cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
