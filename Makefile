# Every target sets up .venv on first use; nothing needs to be activated.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-ray test-slow test-browser screenshots soak lint bench bench-full profile clean

demo: .venv/demo.stamp  ## curate the bundled corpus and show what happened
	$(BIN)/gristmill run examples/demo/recipe.yaml

test: .venv/dev.stamp  ## the whole test suite, two files at a time
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

test-ray: .venv/dev.stamp  ## all executors on real Ray clusters, with faults: more than an hour
	$(BIN)/pytest -m ray

test-slow: .venv/dev.stamp  ## what the suite shows, in more ways: two minutes
	$(BIN)/pytest -m slow

test-browser: .venv/browser.stamp  ## the page of gristmill view in a Chromium of this machine
	$(BIN)/pytest -m slow tests/view

screenshots: .venv/browser.stamp  ## the pictures in docs
	$(BIN)/python docs/screenshots.py

soak: .venv/dev.stamp  ## kill runs at random moments for a quarter of an hour
	$(BIN)/python -m tests.promises.soak --minutes 15

lint: .venv/dev.stamp  ## style, types and the layer rule
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/dev.stamp  ## all figures over small inputs, beside the other systems: 15 minutes
	$(BIN)/python benchmarks/run.py --all --quick

bench-full: .venv/dev.stamp  ## the figures of the README: some hours
	$(BIN)/python benchmarks/run.py --all --pages

profile: .venv/dev.stamp  ## a flame graph of one workload: make profile WORKLOAD=filters
	$(PIP) py-spy
	$(BIN)/python benchmarks/flame.py $(or $(WORKLOAD),filters)

clean:
	rm -rf .venv out

.venv/python.stamp:
	$(PYTHON) -m venv .venv
	touch $@

.venv/demo.stamp: .venv/python.stamp pyproject.toml constraints.txt $(wildcard kernels/*)
	$(PIP) --editable '.[text]'
	touch $@

.venv/dev.stamp: .venv/python.stamp pyproject.toml constraints.txt $(wildcard kernels/*)
	$(PIP) --editable '.[dev]'
	touch $@ .venv/demo.stamp

.venv/browser.stamp: .venv/dev.stamp
	$(PIP) --editable '.[browser]'
	touch $@
