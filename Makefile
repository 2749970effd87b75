# Every target sets itself up: Python >= 3.11 with venv, make and git are all it needs.
#
#   PYTHON=python3.13   another interpreter, in an environment of its own
#   ARGS='…'            more arguments for the program that a target runs

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
# What runs here starts many processes: none of them compiles the package again, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

# An interpreter that was asked for gets its own environment, so that it is never silently another one.
ifeq ($(origin PYTHON),undefined)
PYTHON := python3
VENV ?= .venv
endif
ifndef VENV
VENV := .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
endif

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
UV ?= uv
ARGS ?=
WHAT ?=

# Seconds that the whole of pytest may take, and how many processes share it: tests wait for disks, servers and
# other processes, so that one more than there are processors has work.
TEST_BUDGET ?= 1200
TEST_WORKERS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')
WITHIN_BUDGET := $(if $(shell command -v timeout),timeout --foreground --signal=INT --kill-after=30 $(TEST_BUDGET))

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

# --- what the repository is for -------------------------------------------------------------------

.PHONY: demo
demo: $(VENV)/.run ## run the demonstration: an agent is killed, and resumes
	@$(BIN)/everthread demo $(ARGS)

# Types and layers: mypy takes longest, the others run beside it.
define LAYERS
$(BIN)/mypy & types=$$!; status=0; \
$(BIN)/lint-imports --no-logo && $(BIN)/python -m tools.twin --check || status=$$?; \
wait $$types && exit $$status
endef

.PHONY: test
test: style ## lint, types, layers and every test
	@# Types and layers are checked beside the tests, and told at the end.
	@told=$$(mktemp); ( $(LAYERS) ) > "$$told" 2>&1 & layers=$$!; status=0; \
	$(WITHIN_BUDGET) $(BIN)/python -m pytest -n $(TEST_WORKERS) --maxprocesses=8 --dist worksteal $(ARGS) || status=$$?; \
	if [ $$status -eq 124 ]; then echo "The tests took longer than $(TEST_BUDGET) s (TEST_BUDGET)." >&2; fi; \
	wait $$layers || { status=1; cat "$$told" >&2; }; \
	rm -f "$$told"; exit $$status

.PHONY: lint
lint: style ## style, types and layers only
	@$(LAYERS)

.PHONY: style
style: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

.PHONY: twin
twin: $(VENV)/.dev ## generate the blocking twin of what is written async
	@$(BIN)/python -m tools.twin

.PHONY: format
format: $(VENV)/.dev ## let ruff put style right
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: bench
bench: $(VENV)/.bench ## measure, e.g. make bench WHAT=growth (or turn, processes, import_cost …)
	@$(BIN)/python -m bench.$(WHAT) $(ARGS)

.PHONY: torture
torture: $(VENV)/.dev ## break things on purpose, e.g. make torture WHAT=kill (or power …)
	@$(BIN)/python -m tests.torture.$(WHAT) $(ARGS)

.PHONY: suites
suites: $(VENV)/.dev ## run a framework's own tests with our classes, e.g. make suites WHAT=langgraph
	@$(BIN)/python -m tests.suites.$(WHAT) $(ARGS)

# Told before anything is installed. $(1): the target, $(2): the folder whose programs WHAT may name.
define require_what
ifneq ($(filter $(1),$(MAKECMDGOALS)),)
ifeq ($(wildcard $(2)/$(WHAT).py),)
$$(error make $(1) needs WHAT= one of: $(sort $(patsubst $(2)/%.py,%,$(wildcard $(2)/[a-z]*.py))))
endif
endif
endef
$(eval $(call require_what,bench,bench))
$(eval $(call require_what,torture,tests/torture))
$(eval $(call require_what,suites,tests/suites))

# --- set-up: once, and again when a lock changes --------------------------------------------------
# The stamps form a chain, so that one pip at a time works on the environment, also under make -j.

define VENV_MISSING
$(PYTHON) cannot create virtual environments with pip: its module "ensurepip" is missing.
On Debian and Ubuntu:  sudo apt install python3-venv
endef
export VENV_MISSING

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Everthread needs Python 3.11 or newer as $(PYTHON); choose one with: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$$VENV_MISSING" >&2; exit 1; }
	@echo "Creating $(VENV) …"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.run: $(VENV)/.made requirements/run.txt pyproject.toml
	@echo "Installing what Everthread needs …"
	@$(PIP) install --require-hashes -r requirements/run.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@found=$$($(BIN)/python -m pip check) || { \
	    echo "$$found" >&2; \
	    echo "The locks and pyproject.toml disagree (make lock), or $(VENV) is stale (make clean)." >&2; exit 1; }
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt
	@echo "Installing the tools for tests …"
	@# The lock is complete: nothing is to be resolved.
	@$(PIP) install --require-hashes --no-deps -r requirements/dev.txt
	@touch $@

$(VENV)/.bench: $(VENV)/.dev requirements/bench.txt
	@echo "Installing the peers for benchmarks …"
	@$(PIP) install --require-hashes -r requirements/bench.txt
	@touch $@

# --- housekeeping ---------------------------------------------------------------------------------

# One resolution for every supported Python; the smaller locks agree with the one for tests.
COMPILE = $(UV) pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
    --no-annotate --no-emit-index-url --custom-compile-command 'make lock'

.PHONY: lock
lock: ## pin the newest dependencies again (needs uv)
	@command -v $(UV) >/dev/null || { echo "make lock needs uv: pip install uv, or UV=/path/to/uv" >&2; exit 1; }
	@$(COMPILE) --upgrade --extra all --group dev --output-file requirements/dev.txt
	@$(COMPILE) --upgrade --constraints requirements/dev.txt --group build --output-file requirements/run.txt
	@$(COMPILE) --upgrade --constraints requirements/dev.txt --group bench --output-file requirements/bench.txt

.PHONY: clean
clean: ## remove the environments and caches
	@rm -rf .venv .venv-* .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
