# `make run` and `make test` need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup run test lint types check soak bench clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Penstock needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; set PYTHON=/path/to/python3.11")'
	@echo "setting up $(VENV): about a minute, most of it downloading Spark"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

run: setup
	@$(BIN)/python examples/rsvps.py $(ARGS)

test: setup
	@$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup
	@$(BIN)/mypy

check: lint types test

soak: setup
	@$(BIN)/python -m pytest -m soak --timeout 7200 -s

bench: setup
	@$(BIN)/python -m bench

clean:
	rm -rf $(VENV) build *.egg-info
