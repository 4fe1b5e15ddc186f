# Everything sets itself up in .venv: `make demo` and `make test` need only Python, pip, git and a C compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := runs/demo
SPREAD := -n 2 --dist loadfile --no-loadscope-reorder  # a file is one worker's: its processes start once

# Two at a time: what Debian has to bring comes beside pip, and types are checked beside the tests.
MAKEFLAGS += --jobs=2

# pip compiles nothing: each module is, once, when it is first imported. Empty counts as not set.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo paper test test-fast suite lint style types browser docs site extras clean

# The main job on the embedded data: methods, their control, three seeds, a table and a report.
demo: $(READY)
	$(BIN)/esam compare demo --jobs 2 --out $(DEMO)

# A table or figure of the paper, its claims with it: make paper ITEM=table1. Without ITEM, the list.
paper: $(READY)
	$(BIN)/python -m experiments.paper $(ITEM) $(if $(ITEM),--jobs 2)

test: lint suite

suite: $(READY) style browser
	$(BIN)/python -m pytest $(SPREAD)

# What to run before a commit: all but the slowest proofs.
test-fast: $(READY) lint
	$(BIN)/python -m pytest $(SPREAD) -m "not slow"

# The tables of README and docs, from the committed records.
docs: $(READY)
	$(BIN)/python docs/tables.py

# The pages as a site, in build/site: open build/site/index.html. Nothing is fetched.
site: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The wheel in clean environments, each extra by itself; downloads, and takes long.
extras: $(READY)
	$(BIN)/python tools/try_release.py

lint: style types

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# The report is tested in a real browser; elsewhere than in CI that test is skipped where none is found.
browser:
ifeq ($(CI),true)
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq chromium chromium-driver >/dev/null; } || \
		echo "no browser could be installed: the report's tests in a browser are skipped"
endif

# pip, with the versions that are tested: torch is pinned to a build that exists for the CPU alone.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable ".[test]"
	$(BIN)/pip uninstall --quiet --yes torchvision  # curvlinops' backpack asks for it and uses none of it; no CPU build
	touch $@

clean:
	rm -rf $(VENV) runs build
