# Everything a newcomer needs. `make help` lists the targets.
SHELL := /bin/bash
VENV  ?= .venv
# The first of these that is there; override with `make PYTHON=/path/to/python3.12 test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z][a-z0-9-]*:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: $(STAMP)  ## make .venv and install everything into it (once)

# Installed again only when the list of dependencies changes.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Tradewind needs Python 3.11 or newer, found: $(PYTHON). Try: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "Could not make $(VENV). On Debian and Ubuntu: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }
	@echo "Installing into $(VENV) (some minutes, once) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# Without them the tests that need them say so and are skipped; CI must not skip them.
system:  ## install the Debian packages that some tests need (as root; elsewhere it says what is missing)
	@if command -v promtool >/dev/null && command -v prometheus >/dev/null && command -v chromium >/dev/null; then exit 0; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends prometheus chromium fonts-dejavu-core; \
	else echo "Not all there: prometheus, chromium. On Debian and Ubuntu: sudo apt-get install prometheus chromium"; fi

demo: $(STAMP)  ## train through two preemptions on pretend clouds, and print the receipt
	@$(BIN)/tradewind demo

test: $(STAMP)  ## lint, types, and all tests (under 10 minutes on 2 cores)
	@$(MAKE) --no-print-directory check
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not ray and not e2e and not slow and not faults"
	$(BIN)/python -m pytest -m "(ray or e2e) and not slow and not faults"

test-slow: $(STAMP)  ## the tests that take minutes each (the demo, as a newcomer runs it)
	$(BIN)/python -m pytest -m slow

test-faults: $(STAMP)  ## 500 random fault sequences on every cloud's emulator (half an hour on 2 cores)
	$(BIN)/python -m pytest -n 2 --dist load -m faults

test-fast: $(STAMP)  ## the tests that need no Ray (seconds)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not ray and not e2e and not slow and not faults"

check: $(STAMP)  ## ruff and strict mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)  ## rewrite the code in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## run every benchmark; each prints its figures and bars
	@for f in $(filter-out benchmarks/bars.py,$(wildcard benchmarks/*.py)); do echo "== $$f"; $(BIN)/python $$f || exit 1; done

clean:  ## remove .venv and everything that was built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info platform/*.egg-info

.PHONY: help setup system demo test test-slow test-faults test-fast check format bench clean
