# Everything runs in a virtual environment; `make` lists the targets.
PYTHON ?= python3
VENV ?= .venv
RUN = runs/quickstart
PARALLEL = --numprocesses=3 --dist=worksteal  # more processes than cores: tests wait for programs that they start

.DEFAULT_GOAL := help
.PHONY: help install quickstart test lint docs benchmarks clean

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed  ## make the virtual environment, with what training needs

quickstart: $(VENV)/.installed  ## train a small model on real text, evaluate it, let it write (minutes on a CPU)
	$(VENV)/bin/pretrain train --config=configs/quickstart.py --workdir=$(RUN)
	$(VENV)/bin/pretrain evaluate --workdir=$(RUN) --gzip --xz
	$(VENV)/bin/pretrain generate --workdir=$(RUN) --prompt='def main('
	@echo "Config, tokenizer, checkpoints and metrics are in $(RUN)."

test: $(VENV)/.installed-test  ## run the tests
	$(VENV)/bin/python -m pytest $(PARALLEL)

lint: $(VENV)/.installed-test  ## check style and formatting
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

docs: $(VENV)/.installed  ## write docs/configs.md and the tables of attention from the code
	$(VENV)/bin/python docs/generate.py
	$(VENV)/bin/python docs/attention_tables.py

benchmarks: $(VENV)/.installed  ## run every benchmark in short, a minute or two each
	failed=0; for name in $(notdir $(basename $(shell grep -lF '[--quick]' benchmarks/*.py))); do \
	  echo "benchmarks.$$name"; $(VENV)/bin/python -m benchmarks.$$name --quick || failed=1; done; exit $$failed

clean:  ## delete the virtual environment and what builds and tests leave; runs/ stays
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: reinstall when the files that describe the installation change.
$(VENV)/.installed: pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Longhaul needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; try: make PYTHON=python3.12 ...")'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(VENV)/bin/python -m pip install --quiet -e '.[test,hf,zstd]'
	touch $@
