# `make demo` and `make test` do all the set-up on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# 3.11, 3.12, …: the version of a Python that is new enough, else nothing.
VERSION := -c 'import sys; sys.version_info >= (3, 11) or sys.exit(1); print("%d.%d" % sys.version_info[:2])' 2>/dev/null
HAVE := $(shell $(BIN)/python $(VERSION))
ifeq ($(HAVE),)
NEW_VENV := new-venv
else ifneq ($(origin PYTHON),file)
NEW_VENV := $(if $(filter $(HAVE),$(shell $(PYTHON) $(VERSION))),,new-venv)
endif
CONSTRAINTS := $(if $(shell command -v nvidia-smi 2>/dev/null),,-c constraints-cpu.txt)

.PHONY: install new-venv demo test test-gpu check format bench clean

install: $(VENV)/installed

# Where there is none, or one of an old Python or of another one than PYTHON= asks for.
new-venv:
	@$(PYTHON) $(VERSION) >/dev/null || { \
	  echo "Draftline needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>/dev/null || echo missing);" \
	    "name another: make $(or $(firstword $(MAKECMDGOALS)),demo) PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)

$(VENV)/installed: pyproject.toml constraints-cpu.txt $(NEW_VENV)
	@echo "Installing Draftline and its libraries into $(VENV); the first time it takes some minutes."
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --editable . --group dev
	touch $@

demo: install
	$(BIN)/python -P -m bench.demo

test: install editors-vscode
	$(BIN)/python -P -m pytest -q -n 2 --dist loadfile

# On a machine with an NVIDIA GPU.
test-gpu: install
	$(BIN)/python -P -m pytest -q tests/gpu

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(if $(wildcard $(NODE)),$(MAKE) --no-print-directory check-vscode)

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install
	$(BIN)/python -P -m bench.typing

clean:
	rm -rf $(VENV) .editors dist .pytest_cache .mypy_cache .ruff_cache

include $(wildcard editors/*.mk)
