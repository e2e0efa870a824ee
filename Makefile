# `make demo` and `make test` do all the set-up on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := $(if $(shell command -v nvidia-smi 2>/dev/null),,-c constraints-cpu.txt)

.PHONY: install demo test test-gpu check format bench clean

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints-cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --editable . --group dev
	touch $@

demo: install
	$(BIN)/python -P -m bench.demo

test: install
	$(BIN)/python -P -m pytest -q

# On a machine with an NVIDIA GPU.
test-gpu: install
	$(BIN)/python -P -m pytest -q tests/gpu

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install
	$(BIN)/python -P -m bench.typing

clean:
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache
