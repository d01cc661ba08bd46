"""A real run whose problems and rewards are verifiers'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.cli.main import main
from tests.end_to_end.processes import balanced, finish, rows, start
from tests.end_to_end.topologies import ENVIRONMENT, write_micro

ROOT = Path(__file__).parents[2]
VERIFIERS = ROOT / ".venv-verifiers"
PYTHON = json.dumps(str(VERIFIERS / "bin/python"))
ENTRY = f"""\
class = "examples.adapters.verifiers_tasks:Verifiers"
settings = {{ held_out = 3 }}

[environments.mcp.verifiers]
command = [{PYTHON}, "{ROOT}/examples/adapters/verifiers_server.py", "sums-taskset", "tasks.jsonl", "20"]
environment = {{ PYTHONPATH = "{ROOT / "tests" / "servers"}" }}
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not (VERIFIERS / "installed").is_file(), reason="verifiers is not here: make .venv-verifiers/installed"
)
def test_a_taskset_of_verifiers_is_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, directory = write_micro(tmp_path)
    supervised = '[[stages]]\nkind = "sft"\nsteps = 3\nbatch = 4\n\n'
    path.write_text(path.read_text().replace(ENVIRONMENT, ENTRY).replace(supervised, ""))
    assert main(["check", str(path)]) == 2
    assert "there is no" in capsys.readouterr().err
    assert main(["mcp", str(path)]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path}/verifiers.tools.json: no tools\n"
    finish(start(path, 'run.keep_trajectories="all"'))
    balanced(directory, steps=3)
    assert main(["export", str(directory)]) == 0
    judged = [row["judgement"] for row in rows(directory / "trajectories.jsonl")]
    assert judged
    assert {each["note"] for each in judged} == {"verifiers"}
    assert all(set(each["parts"]) == {"right", "turns"} and each["parts"]["turns"] == 1 for each in judged)
