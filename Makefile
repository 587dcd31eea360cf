# Everything is made in .venv: nothing is installed outside of it, and nothing but Python 3.11, make and git is needed.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Errors are shown; the many warnings of a fresh pip are not.
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore $(BIN)/python -m pip install -qq --no-deps
TESTS ?= tests

DIGITS := examples/digits/digits.safetensors
MINILM := examples/minilm/model/model.safetensors

.PHONY: help
help: ## list what make can do
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: $(VENV)/.installed ## make .venv with everything that serving needs

.PHONY: install-test
install-test: $(VENV)/.installed-test ## add what tests and checks need

.PHONY: serve
serve: $(DIGITS) $(MINILM) ## start everything; a first run publishes the examples and prints a line to paste
	@$(BIN)/slipway up $(if $(PORT),--port $(PORT)) $(if $(CONTROL_PORT),--control-port $(CONTROL_PORT)) \
		--example examples/digits/model.yaml --example examples/minilm/model.yaml

.PHONY: test
test: lint ## run checks and all tests: unit, integration, end to end
	$(BIN)/python -m pytest $(TESTS)

.PHONY: test-unit
test-unit: install-test ## run the tests that need no other program
	$(BIN)/python -m pytest tests/unit

.PHONY: lint
lint: install-test ## check style, layers and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

.PHONY: format
format: install-test ## bring the code into the common form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: install-test ## measure beside baselines; ONLY=name runs one
	$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY))

.PHONY: lock
lock: ## resolve the lock files anew (needs uv)
	uv pip compile pyproject.toml --python-version 3.11 --extra worker --extra local --extra examples \
		--no-emit-index-url -o requirements.lock
	uv pip compile pyproject.toml --python-version 3.11 --all-extras -c requirements.lock \
		--no-emit-index-url -o requirements-test.lock

.PHONY: clean
clean: ## remove .venv, caches and trained examples
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache bench/results
	rm -rf $(DIGITS) examples/digits/metrics.json examples/digits/samples examples/minilm/model
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "make: no Python found; install Python 3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: $(PYTHON) is older than Python 3.11; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# The locks are complete: without --no-deps pip would resolve them once more, for minutes.
$(VENV)/.installed: requirements.lock pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV); the first time takes some minutes" >&2
	@$(PIP) -r requirements.lock
	@$(PIP) --no-build-isolation -e .
	@touch $@

$(VENV)/.installed-test: requirements-test.lock $(VENV)/.installed
	@$(PIP) -r requirements-test.lock
	@touch $@

$(DIGITS): examples/digits/train.py examples/digits/net.py examples/digits/model.yaml $(VENV)/.installed
	@$(BIN)/python examples/digits/train.py

$(MINILM): examples/minilm/prepare.py $(VENV)/.installed
	@$(BIN)/python examples/minilm/prepare.py
