"""What an installed wheel does outside a clone: it holds the examples, and no folder of the user's takes the place of
ours.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from actors.runtime.children import LIFELINE

ROOT = Path(__file__).parent.parent.parent
SHORT = ["stages.0.steps=5", "stages.1.problems=4", "stages.2.steps=1", "stages.3.problems=4"]
NAMES = ("actors", "transport", "benchmarks", "examples")
HOSTILE_CALL = """
import os, sys
import agent_rl_neighbour
site, read = os.path.dirname(agent_rl_neighbour.__file__), []
for name in ("actors", "agent_rl", "agent_rl_contract", "benchmarks", "transport"):
    for folder, _, names in os.walk(os.path.join(site, name)):
        for name in names:
            try: open(os.path.join(folder, name), "rb").read(1); read.append(os.path.join(folder, name))
            except OSError: pass
print(read)
"""
RUNS_IT = f"""
import trio
from actors.sandbox.isolation import kernel
from actors.sandbox.owner.client import Sandbox
async def main(level):
    sandbox = Sandbox(isolation=level)
    async with trio.open_nursery() as nursery:
        await nursery.start(sandbox.run)
        result = await sandbox.execute({HOSTILE_CALL!r})
        print(level, result.stdout.strip() + result.stderr)
        nursery.cancel_scope.cancel()
trio.run(main, "strong")
if kernel.landlock_version():
    trio.run(main, "filtered")
else:
    print("filtered []")
"""


@pytest.fixture
def elsewhere(tmp_path):
    """A working directory with folders of our packages' names, each of which fails when it is imported."""
    folder = tmp_path / "a folder of thé user"
    for name in NAMES:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(
            f"raise RuntimeError('the folder {name} of the user was imported')\n"
        )
    return folder


def agent_rl(folder, environment, *arguments):
    """``python -m actors.cli`` in a folder; its standard output. Fails where it fails."""
    command = [sys.executable, "-P", "-m", "actors.cli", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def hostile_calls(installed, folder):
    """What calls read of this project where it lies in an environment's site-packages, at each level."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--copies", folder / "venv"], check=True)
    (site,) = (folder / "venv").glob("lib/*/site-packages")
    shutil.copytree(installed, site, dirs_exist_ok=True)
    (site / "agent_rl_neighbour.py").touch()
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    command = [folder / "venv/bin/python", "-P", "-c", RUNS_IT]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def overrides(settings):
    return [argument for setting in settings for argument in ("--set", setting)]


def test_no_folder_of_the_working_directory_takes_the_place_of_a_package(elsewhere):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert "quickstart.toml is sound" in agent_rl(elsewhere, environment, "check", "quickstart")
    command = [sys.executable, "-P", LIFELINE, str(os.getpid()), "actors.runtime.process", "--help"]
    done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=True)
    assert "--topology" in done.stdout


@pytest.mark.parametrize(("options", "clones"), [([], []), ([], [str(ROOT)]), (["-P"], [str(ROOT)])], ids=str)
def test_a_clone_that_is_not_installed_runs_in_its_own_folder(options, clones):
    folders = [*clones, sysconfig.get_path("purelib")]
    command = [sys.executable, "-S", *options, "-m", "actors.cli", "check", "quickstart"]  # -S: nothing is installed
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert "quickstart.toml is sound" in done.stdout, done.stderr


@pytest.mark.slow
def test_an_sdist_makes_the_same_wheel_and_holds_no_tests(tmp_path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "--target", tmp_path / "tools", "setuptools>=77"], check=True, timeout=300)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    make = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "tools")}
    subprocess.run([sys.executable, "-c", make], cwd=clone, env=environment, check=True, capture_output=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        held = {name.partition("/")[2] for name in packed.getnames()}
    assert {name.split("/")[2] for name in held if name.startswith("tests/contract/")} == {"agent_rl_contract"}
    assert not [name for name in held if name.startswith("tests/") and not name.startswith("tests/contract")]
    shutil.rmtree(clone / "build", ignore_errors=True)
    wheels = []
    for source in (sdist, clone):
        subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path / source.stem, source], check=True)
        (wheel,) = (tmp_path / source.stem).glob("*.whl")
        wheels.append(set(zipfile.ZipFile(wheel).namelist()))
    assert wheels[0] == wheels[1]
    tops = {name.partition("/")[0] for name in wheels[0]}
    assert tops - {"agent_rl-0.1.0.dist-info"} == {"actors", "agent_rl", "agent_rl_contract", "benchmarks", "transport"}


@pytest.mark.slow
def test_a_wheel_runs_its_examples_and_benchmarks_outside_a_clone(elsewhere, tmp_path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)], check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        typed = [name for name in packed.namelist() if name.endswith("/py.typed")]
    assert sorted(typed) == [f"{each}/py.typed" for each in ("actors", "agent_rl", "agent_rl_contract", "transport")]
    installed = tmp_path / "installed"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(installed), str(wheel)], check=True, timeout=300)
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    packages = "agent_rl, actors, benchmarks, agent_rl_contract"
    where = f"import {packages}; print([each.__file__ for each in ({packages})])"
    found = subprocess.run(
        [sys.executable, "-P", "-c", where], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.count(str(installed)) == 4
    assert hostile_calls(installed, tmp_path) == "strong []\nfiltered []\n"
    printed = agent_rl(elsewhere, environment, "run", "examples/quickstart.toml", *overrides(SHORT))
    assert json.loads(printed.splitlines()[-1])["steps"] == 1
    assert "gsm8k.toml is sound" in agent_rl(elsewhere, environment, "check", "gsm8k")  # with its word problems
    assert "mixed_tasks.toml is sound" in agent_rl(elsewhere, environment, "check", "mixed_tasks")  # and its module
    assert "report: " in printed  # made from the templates in the wheel
    printed = agent_rl(elsewhere, environment, "bench", "learning", "--seeds", "1", *overrides(SHORT))
    assert json.loads(printed.splitlines()[-1])["seeds"] == 1
