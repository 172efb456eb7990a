# make train: everything from nothing to a trained agent. make test: every check that CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
TORCH := $(shell grep -E '^torch==' constraints.txt)

.PHONY: train test check clean

train: $(VENV)/.installed
	$(BIN)/python train_agent.py $(ARGS)

test: $(VENV)/.installed-dev check
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy benchmarks train_agent.py
	$(BIN)/lint-imports

$(VENV)/.torch: constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13) and "atoffer_rl needs Python 3.11 to 3.13: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) $(TORCH) setuptools
	touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(INSTALL) --no-build-isolation --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --no-build-isolation --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
