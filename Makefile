# Every developer command. The environment is made on first use: .venv for Python 3.11, .venv-X.Y for another one,
# .venv-oldest for the oldest torch.
#   make test PYTHON=python3.12     the interpreter is found under that name or through pyenv
PYTHON ?= python3.11
PYTEST_ARGS ?=
# Pins that come before those of constraints.txt.
PINS ?=

FOUND := $(shell sh scripts/find_python.sh $(PYTHON) 2>/dev/null)
VERSION := $(if $(FOUND),$(shell $(FOUND) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
VENV := $(if $(filter 3.11,$(VERSION)),.venv,.venv-$(VERSION))
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Bytecode is kept, whatever the environment says: without it each worker of a test run spends half a minute on
# compiling the tests, in every run.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-oldest lint format types bench docs clean

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

$(STAMP): constraints.txt $(PINS) pyproject.toml scripts/install.sh
	@sh scripts/find_python.sh $(PYTHON) >/dev/null
	sh scripts/install.sh "$(FOUND)" "$(VENV)" $(PINS)
	@touch $@

setup: $(STAMP)  ## make the environment

demo: $(STAMP)  ## train on handwritten digits, eagerly and compiled, side by side
	$(BIN)/python examples/train_digits.py

test: $(STAMP)  ## run the tests
	sh scripts/with_cache.sh $(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

test-slow: $(STAMP)  ## run the tests, the slow ones too
	sh scripts/with_cache.sh $(BIN)/python -m pytest -n 2 --slow $(PYTEST_ARGS)

test-oldest:  ## run the tests with the oldest torch and Triton that are supported
	$(MAKE) test PYTHON=python3.12 VENV=.venv-oldest PINS=constraints-oldest.txt

lint: $(STAMP)  ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)  ## repair style and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)  ## check types
	$(BIN)/mypy

bench: $(STAMP)  ## measure against eager and torch.compile, side by side
	$(BIN)/python -m benchmarks

docs: $(STAMP)  ## run every example of the README and of docs/, and check links and error codes
	$(BIN)/python -m pytest tests/test_docs.py $(PYTEST_ARGS)

clean:  ## remove the environments and caches
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
