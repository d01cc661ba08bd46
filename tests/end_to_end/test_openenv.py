"""A real run on the environment that OpenEnv's package ships: `openenv init` writes it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from actors.cli.main import main
from tests.end_to_end.processes import balanced, finish, rows, start
from tests.end_to_end.topologies import ENVIRONMENT, write_micro

ROOT = Path(__file__).parents[2]
OPENENV = ROOT / ".venv-openenv"
ENTRY = f"""\
class = "examples.adapters.openenv_tasks:OpenEnv"
settings = {{ held_out = 3 }}

[environments.mcp.openenv]
command = [{json.dumps(str(OPENENV / "bin/python"))}, "{ROOT}/examples/adapters/openenv_server.py", "echoes.server.app:app", "tasks.jsonl", "20"]
"""


@pytest.mark.slow
@pytest.mark.skipif(not (OPENENV / "installed").is_file(), reason="OpenEnv is not here: make .venv-openenv/installed")
def test_the_environment_of_openenvs_package_is_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, directory = write_micro(tmp_path)
    made = [OPENENV / "bin/python", OPENENV / "bin/openenv", "init", "echoes"]
    subprocess.run(made, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL, timeout=120)
    supervised = '[[stages]]\nkind = "sft"\nsteps = 3\nbatch = 4\n\n'
    path.write_text(path.read_text().replace(ENVIRONMENT, ENTRY).replace(supervised, ""))
    assert main(["check", str(path)]) == 2
    assert "there is no" in capsys.readouterr().err
    assert main(["mcp", str(path)]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path}/openenv.tools.json: no tools\n"
    finish(start(path, 'run.keep_trajectories="all"'))
    balanced(directory, steps=3)
    assert main(["export", str(directory)]) == 0
    judged = [row["judgement"] for row in rows(directory / "trajectories.jsonl")]
    assert {each["note"] for each in judged} == {"openenv"}
    assert all(0 <= each["reward"] <= each["parts"]["steps"] for each in judged)
    assert any(each["reward"] for each in judged)
