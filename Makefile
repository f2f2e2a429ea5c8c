# Two commands: `make demo` and `make test`; CONTRIBUTING.md names the others. PIP_ARGS passes
# options to pip.
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-long test-peers test-gpu lint types clean

demo: $(VENV)/.engine
	$(BIN)/hy3 demo

test: $(VENV)/.dev lint types
	$(BIN)/python -m pytest -m "not long"

test-long: $(VENV)/.dev
	$(BIN)/python tools/test_long.py

# Each records benchmarks/results/test_*.json, and fails where nothing could run.
test-peers: $(VENV)/.dev
	$(BIN)/python tools/test_elsewhere.py peers --python $(or $(PEERS_PYTHON),$(error PEERS_PYTHON=... names a Python with vLLM and pytest))

test-gpu: $(VENV)/.dev
	$(BIN)/python tools/test_elsewhere.py gpu --python $(or $(GPU_PYTHON),$(error GPU_PYTHON=... names a Python with torch for CUDA, Triton and pytest))

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

# torch is named with its exact version on the command line as well: a plain or ranged request
# can bring a CUDA build of several GB.
$(VENV)/.engine: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_ARGS) -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[engine]'
	touch $@

$(VENV)/.dev: $(VENV)/.engine
	$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) hy3-demo hy3-launch .mypy_cache .ruff_cache .hypothesis
