# One command for each habit, the same by hand and in CI. `make` alone says which there are.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help dev demo test check bench soak format clean

PYTHON ?= $(shell for p in python3.14 python3.13 python3.12 python3.11 python3; do \
  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v "$$p" && break; done)
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 4
ARGS ?=

help:
	@echo "make demo    review this repository on a Computer of its own, from nothing, and show what happens"
	@echo "make test    say what this machine can do, then run every test (ARGS=... for pytest)"
	@echo "make dev     run helmr dev on an example (PROJECT=examples/hello)"
	@echo "make check   format, lint, types, import contracts"
	@echo "make bench   measure, as ratios to the floor of this machine"
	@echo "make soak    the long runs (SOAK_SECONDS=600: how long the model of Sessions is run)"
	@echo "make format  mend what ruff can mend"

# The stamp changes with what is installed; a virtual environment that is there is used as it is.
$(VENV)/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed; on Debian: apt-get install python3 python3-venv" >&2; exit 1; }
	@if command -v uv >/dev/null 2>&1; then \
	  test -x $(BIN)/python || uv venv --quiet --python "$(PYTHON)" $(VENV); \
	  uv pip install --quiet --python $(BIN)/python --editable '.[server,schemas]' --group dev; \
	else \
	  test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV) || { \
	    echo "Python's venv module is incomplete; on Debian: apt-get install python3-venv" >&2; exit 1; }; \
	  $(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --upgrade >/dev/null; \
	  $(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'; \
	  $(BIN)/python -m pip install --quiet --editable '.[server,schemas]' --group dev; \
	fi
	@touch $@

demo: $(VENV)/.installed
	@$(BIN)/python examples/demo.py $(ARGS)

test: $(VENV)/.installed
	@$(BIN)/helmr doctor || true
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

check: $(VENV)/.installed
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.installed
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

PROJECT ?= examples/hello
dev: $(VENV)/.installed
	@$(BIN)/helmr dev $(PROJECT) $(ARGS)

bench: $(VENV)/.installed
	@$(BIN)/python -m bench $(ARGS)
	@$(BIN)/python -m bench.history
	@$(BIN)/python -m bench.saves
	@$(BIN)/python -m bench.deploys
	@$(BIN)/python -m bench.computers

soak: $(VENV)/.installed
	@$(BIN)/python -m pytest -m soak $(ARGS)
	@HELMR_SOAK=1 $(BIN)/python -m pytest -n $(JOBS) -o timeout=7200 tests/service/races tests/unit/objects tests/unit/api/test_api_document.py tests/conformance/drivers/test_saves.py $(ARGS)

clean:
	rm -rf $(VENV)/.installed .pytest_cache .ruff_cache .import_linter_cache
