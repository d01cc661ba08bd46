"""Real runs on the tasks of other projects: verifiers, OpenEnv (as `openenv init` writes it) and inspect-evals."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from actors.cli.main import main
from tests.end_to_end.processes import Run
from tests.end_to_end.topologies import ENVIRONMENT, write_micro

ROOT = Path(__file__).parents[2]
ADAPTERS = ROOT / "examples" / "adapters"
VERIFIERS, OPENENV, INSPECT = (ROOT / f".venv-{name}" for name in ("verifiers", "openenv", "inspect"))
TASK = '"inspect_evals/agent_threat_bench_memory_poison"'


def python(environment: Path) -> str:
    return json.dumps(str(environment / "bin/python"))


VERIFIERS_ENTRY = f"""\
class = "examples.adapters.verifiers_tasks:Verifiers"
settings = {{ held_out = 3 }}

[environments.mcp.verifiers]
command = [{python(VERIFIERS)}, "{ADAPTERS}/verifiers_server.py", "sums-taskset", "tasks.jsonl", "20"]
environment = {{ PYTHONPATH = "{ROOT / "tests" / "servers"}" }}
"""
OPENENV_ENTRY = f"""\
class = "examples.adapters.openenv_tasks:OpenEnv"
settings = {{ held_out = 3 }}

[environments.mcp.openenv]
command = [{python(OPENENV)}, "{ADAPTERS}/openenv_server.py", "echoes.server.app:app", "tasks.jsonl", "20"]
"""
INSPECT_ENTRY = f"""\
class = "examples.adapters.inspect_tasks:InspectTask"
settings = {{ held_out = 3, score = "agent_threat_bench_scorer/utility" }}

[environments.mcp.inspect]
command = [{python(INSPECT)}, "{ADAPTERS}/inspect_server.py", "list", {TASK}, "tasks.jsonl"]
per = "rollout"

[environments.harness]
command = [{python(INSPECT)}, "{ADAPTERS}/inspect_server.py", "run", {TASK}, "{{id}}"]
fork = true
"""


def needs(environment: Path) -> pytest.MarkDecorator:
    reason = f"it is not here: make {environment.name}/installed"
    return pytest.mark.skipif(not (environment / "installed").is_file(), reason=reason)


def judgements(folder: Path, entry: str, name: str, capsys: Any, *, length: str = "") -> list[dict[str, Any]]:
    """Train on the environment of an entry; the judgements of all rollouts. ``length``: a line for the model."""
    run = Run(*write_micro(folder))
    supervised = '[[stages]]\nkind = "sft"\nsteps = 3\nbatch = 4\n\n'
    text = run.path.read_text().replace(ENVIRONMENT, entry).replace(supervised, "")
    run.path.write_text(text.replace("mlp_size = 32", f"mlp_size = 32\n{length}"))
    assert main(["mcp", str(run.path)]) == 0
    assert capsys.readouterr().out == f"wrote {folder}/{name}.tools.json: no tools\n"
    run.to_end('run.keep_trajectories="all"')
    run.balanced(steps=3)
    judged = [row["judgement"] for row in run.exported()]
    assert {each["note"] for each in judged} == {name}
    return judged


@pytest.mark.slow
@needs(VERIFIERS)
def test_a_taskset_of_verifiers_is_trained_on(tmp_path, capsys):
    judged = judgements(tmp_path, VERIFIERS_ENTRY, "verifiers", capsys)
    assert all(set(each["parts"]) == {"right", "turns"} and each["parts"]["turns"] == 1 for each in judged)


@pytest.mark.slow
@needs(OPENENV)
def test_the_environment_of_openenvs_package_is_trained_on(tmp_path, capsys):
    made = [OPENENV / "bin/python", OPENENV / "bin/openenv", "init", "echoes"]
    subprocess.run(made, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL, timeout=120)
    judged = judgements(tmp_path, OPENENV_ENTRY, "openenv", capsys)
    assert all(0 <= each["reward"] <= each["parts"]["steps"] for each in judged)
    assert any(each["reward"] for each in judged)


@pytest.mark.slow
@needs(INSPECT)
def test_a_task_of_inspect_evals_is_evaluated_and_trained_on(tmp_path, capsys):
    judged = judgements(tmp_path, INSPECT_ENTRY, "inspect", capsys, length="max_length = 4096")  # tools are listed
    names = {"agent_threat_bench_scorer/utility", "agent_threat_bench_scorer/security"}
    assert all(set(each["parts"]) == names and each["parts"]["agent_threat_bench_scorer/security"] for each in judged)
