# Two commands for a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all lint types unit tables docs wheel-test setup clean

demo: setup
	@$(BIN)/t2t train --folder runs/demo
	@$(BIN)/t2t eval runs/demo

test: lint types unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

unit: setup
	$(BIN)/pytest -n auto

test-all: lint types
	$(BIN)/pytest -n auto -m "slow or not slow"

tables: setup
	$(BIN)/python benchmarks/tables.py
	$(BIN)/python benchmarks/scaling_table.py

docs: setup
	$(BIN)/python website/pages.py build/pages
	$(BIN)/zensical build --strict --clean
	@echo "The site is in build/site; $(BIN)/zensical serve shows it."

# Builds the wheel, installs it into an empty environment and uses it.
wheel-test: setup
	rm -rf build/dist build/wheel-env
	$(BIN)/python -m build --outdir build/dist .
	$(PYTHON) -m venv build/wheel-env
	build/wheel-env/bin/python -m pip install --quiet build/dist/*.whl
	cd build && wheel-env/bin/python ../tests/wheel/smoke.py

setup: $(STAMP)

$(STAMP): pyproject.toml
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (PyTorch is large: allow a few minutes) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(STAMP)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build runs
