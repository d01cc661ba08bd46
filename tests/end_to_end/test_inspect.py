"""A real run whose evaluations are a task of inspect-evals, with its dataset, its solver, its tools and its scorer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.cli.main import main
from tests.end_to_end.processes import balanced, finish, rows, start
from tests.end_to_end.topologies import ENVIRONMENT, write_micro

ROOT = Path(__file__).parents[2]
INSPECT = ROOT / ".venv-inspect"
TASK = '"inspect_evals/agent_threat_bench_memory_poison"'
SCRIPT = f'{json.dumps(str(INSPECT / "bin/python"))}, "{ROOT}/examples/adapters/inspect_server.py"'
ENTRY = f"""\
class = "examples.adapters.inspect_tasks:InspectTask"
settings = {{ held_out = 3, score = "agent_threat_bench_scorer/utility" }}

[environments.mcp.inspect]
command = [{SCRIPT}, "list", {TASK}, "tasks.jsonl"]
per = "rollout"

[environments.harness]
command = [{SCRIPT}, "run", {TASK}, "{{id}}"]
fork = true
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not (INSPECT / "installed").is_file(), reason="inspect-ai is not here: make .venv-inspect/installed"
)
def test_a_task_of_inspect_evals_is_evaluated_and_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, directory = write_micro(tmp_path)
    supervised = '[[stages]]\nkind = "sft"\nsteps = 3\nbatch = 4\n\n'
    text = path.read_text().replace(ENVIRONMENT, ENTRY).replace(supervised, "")
    path.write_text(text.replace("mlp_size = 32", "mlp_size = 32\nmax_length = 4096"))  # the tools are listed
    assert main(["mcp", str(path)]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path}/inspect.tools.json: no tools\n"
    finish(start(path, 'run.keep_trajectories="all"'))
    balanced(directory, steps=3)
    assert main(["export", str(directory)]) == 0
    judged = [row["judgement"] for row in rows(directory / "trajectories.jsonl")]
    names = {"agent_threat_bench_scorer/utility", "agent_threat_bench_scorer/security"}
    assert {each["note"] for each in judged} == {"inspect"}
    assert all(set(each["parts"]) == names and each["parts"]["agent_threat_bench_scorer/security"] for each in judged)
