"""The page about adapters, for real: mcp-server-time of PyPI lists its tools, and a run trains a model that calls them."""

import json
import os
import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from actors.cli.main import main
from tests.end_to_end import processes
from tests.end_to_end.processes import balanced, finish, rows, start, wait_for

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adapters.md").read_text()
TOPOLOGY, ENVIRONMENT = re.findall(r"^```(?:toml|python)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[:2]
SERVERS = ROOT / ".venv-servers"


def servers(folder: Path) -> list[int]:
    """The processes of mcp-server-time in this folder."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                here = (each / "cwd").samefile(folder)
                line = (each / "cmdline").read_bytes()
            except OSError:
                continue
            if here and b"mcp_server_time" in line and b"start_server" not in line:
                found.append(int(each.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(
    not (SERVERS / "installed").is_file(), reason="no MCP servers are here: make .venv-servers/installed"
)
def test_a_model_is_trained_that_calls_a_server_of_pypi(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(processes, "SECONDS", 900)
    path, directory = tmp_path / "times.toml", tmp_path / "run"
    path.write_text(TOPOLOGY.replace(".venv-time", str(SERVERS)).replace("runs/times", str(directory)))
    (tmp_path / "times.py").write_text(ENVIRONMENT)
    assert main(["check", str(path)]) == 2
    assert "there is no" in capsys.readouterr().err
    assert main(["mcp", str(path)]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path}/time.tools.json: get_current_time, convert_time\n"
    assert not servers(tmp_path)

    process = start(path, 'run.keep_trajectories="all"')
    log = directory / "logs" / "tool_executor.0.jsonl"
    wait_for(lambda: log.exists() and "isolation of model code" in log.read_text(), "the executor to be ready")
    os.kill(servers(tmp_path)[0], signal.SIGKILL)  # no call is under way: the first call starts another one
    said = finish(process)
    assert not servers(tmp_path)
    balanced(directory, steps=3)
    logs = "".join(log.read_text() for log in (directory / "logs").glob("*"))
    assert "an MCP server has ended; the next call starts it again" in logs + said.all
    assert main(["export", str(directory)]) == 0
    assert main(["audit", str(directory)]) == 0
    found = rows(directory / "trajectories.jsonl")
    calls = [call for row in found for call in row["transcript"]["calls"]]
    outcomes = Counter((call["tool"], call["outcome"]) for call in calls)
    assert outcomes["convert_time", "success"] > len(found) / 2, outcomes
    times = [json.loads(call["response"])["target"]["datetime"] for call in calls if call["outcome"] == "success"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+\d\d:\d\d", time) for time in times)
    assert any(row["judgement"]["success"] for row in found)
