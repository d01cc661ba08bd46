"""Which PyTorch the Makefile installs on which machine: read from the commands that `make --dry-run` prints."""

import shutil
import subprocess
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parent.parent


def commands(tmp_path, tools=(), settings=(), *, dry=True):
    """What ``make install`` does in a new environment, on a machine with these tools."""
    for tool in tools:
        path = tmp_path / tool
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    for tool in ("make", "touch"):
        (tmp_path / tool).unlink(missing_ok=True)
        (tmp_path / tool).symlink_to(shutil.which(tool))
    make = [tmp_path / "make", "install", f"VENV={tmp_path / 'environment'}", *settings, *(["--dry-run"] * dry)]
    path = {"PATH": str(tmp_path)}
    return subprocess.run(make, cwd=ROOT, env=path, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("tools", "settings", "expected"),
    [
        ((), (), '"torch==2.13.0"'),
        (("nvidia-smi",), (), '"torch"'),
        (("nvidia-smi", "rocm-smi"), (), '"torch"'),
        (("nvidia-smi",), ("TORCH=torch==2.9.0",), '"torch==2.9.0"'),
        (("rocm-smi",), ("TORCH=torch", "TORCH_INDEX=the-index"), '--index-url the-index "torch"'),
    ],
)
def test_the_build_of_pytorch_is_that_of_the_machine_or_the_one_that_is_asked_for(tmp_path, tools, settings, expected):
    printed = commands(tmp_path, tools, settings).stdout
    assert [line.endswith(f" {expected}") for line in printed.splitlines() if '"torch' in line] == [True]


def test_an_empty_torch_takes_that_of_the_python(tmp_path):
    printed = commands(tmp_path, ("rocm-smi",), ("TORCH=",)).stdout
    assert "--system-site-packages" in printed
    assert '"torch' not in printed


@pytest.mark.parametrize("tool", ["rocm-smi", "amd-smi"])
def test_no_cuda_build_is_installed_beside_rocm(tmp_path, tool):
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 1\n")  # an environment without torch
    python.chmod(0o755)
    done = commands(tmp_path, (tool,), dry=False)
    assert done.returncode == 2
    assert "make install TORCH=torch TORCH_INDEX=ADDRESS" in done.stderr
    python.write_text("#!/bin/sh\nexit 0\n")  # one with it
    assert commands(tmp_path, (tool,), dry=False).returncode == 0


def test_what_the_lock_installs_allows_the_oldest_python_that_is_promised():
    locked = set((ROOT / "development.lock").read_text().split())
    needs = {each.metadata["Requires-Python"] for each in distributions() if f"{each.name}=={each.version}" in locked}
    assert {"3.11.0" in SpecifierSet(need or "") for need in needs} == {True}, needs


def test_programs_that_cannot_be_installed_are_said_and_end_nothing(tmp_path):
    (tmp_path / "id").symlink_to(shutil.which("true"))  # nobody's: root alone installs
    make = [shutil.which("make"), "programs"]
    done = subprocess.run(make, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("NOT INSTALLED, and tests with them are skipped: some of chromium")
