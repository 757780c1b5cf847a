# Each target does all of its own set-up on a Debian or Ubuntu machine: Python environment, packages, drivers.
SHELL := /bin/sh
PYTHON_IN_VENV := .venv/bin/python
DRIVERS := .vkml-drivers
# xdist's processes; more arguments for pytest in TESTS, as in: make test TESTS="-k conv tests/ops"
PROCESSES ?= 2
TESTS ?=
# Bytecode is kept whatever the environment says: hundreds of processes of the tests import the same modules.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-cpu lint format docs bench clean

help:
	@echo "make demo    install, and classify handwritten digits on the best device there is"
	@echo "make test    install, bring software Vulkan drivers, run all tests under the validation layer"
	@echo "make lint    ruff (lint, format) and mypy"
	@echo "make docs    the documentation as a site, in site/; warnings are errors"
	@echo "make bench   compare with the peers that are installed"
	@echo "make clean   remove what the other targets made"

demo:
	@tools/environment.sh image
	@echo "classifying pictures of digits: python examples/digits/classify.py examples/digits/*.png"
	@$(PYTHON_IN_VENV) examples/digits/classify.py examples/digits/*.png

test:
	@tools/environment.sh test,image
	@$(PYTHON_IN_VENV) tools/software_drivers.py $(DRIVERS)
	@. $(DRIVERS)/env.sh && VKML_VALIDATE=1 VKML_ALLOW_SOFTWARE=1 \
	  $(PYTHON_IN_VENV) -m pytest -q -n $(PROCESSES) --dist worksteal $(TESTS)

test-cpu:
	@tools/environment.sh test,image
	@VKML_ALLOW_SOFTWARE=0 VKML_TEST_DEVICES=cpu $(PYTHON_IN_VENV) -m pytest -q -n $(PROCESSES) --dist worksteal $(TESTS)

lint:
	@tools/environment.sh test,image
	@$(PYTHON_IN_VENV) -m ruff check .
	@$(PYTHON_IN_VENV) -m ruff format --check .
	@$(PYTHON_IN_VENV) -m mypy

format:
	@tools/environment.sh test,image
	@$(PYTHON_IN_VENV) -m ruff format .
	@$(PYTHON_IN_VENV) -m ruff check --fix .

# Every page is read again (-E): pages of the reference hang on docstrings, not on their own text alone.
docs:
	@tools/environment.sh docs
	@$(PYTHON_IN_VENV) -m sphinx -q -E -W --keep-going -j $(PROCESSES) -d build/docs docs site
	@echo "site/index.html"

bench:
	@tools/environment.sh bench
	@$(PYTHON_IN_VENV) -m benchmarks

clean:
	rm -rf .venv $(DRIVERS) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site
