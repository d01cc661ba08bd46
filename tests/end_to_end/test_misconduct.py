"""A real process of the run that speaks for another role is named, cut off and replaced, and the run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_rl.records.audit import audit
from tests.end_to_end.processes import finish, processes_of, rows, start
from tests.end_to_end.topologies import write_micro

SPEAKS_FOR_ANOTHER = "tool_executor.0 misbehaved and is cut off by roc_filter.0 (other role: a call over link 'steps'"
POSES = "somebody poses as learner.0: noticed by roc_filter.0 (forged name: two processes claim"


@pytest.mark.slow
@pytest.mark.parametrize(("who", "named"), [("Forger", SPEAKS_FOR_ANOTHER), ("Poser", POSES)])
def test_an_executor_that_misbehaves_is_named_and_replaced(tmp_path: Path, who: str, named: str) -> None:
    path, directory = write_micro(tmp_path, steps=2)
    text = path.read_text()
    path.write_text(text.replace("actors.tool_executor:ToolExecutor", f"tests.end_to_end.misbehaving:{who}"))
    process = start(path)
    code, out, err = finish(process)
    assert code == 0, out + err
    (line,) = [line for line in (out + err).splitlines() if named in line]
    assert who == "Forger" or line.endswith("that is tool_executor.0")
    assert "tool_executor.0 runs again" in out + err
    logged = rows(directory / "logs" / "supervisor.local.jsonl")
    assert sum(named in row.get("text", "") for row in logged) == 1
    balance = audit(directory)
    assert balance.balanced, balance.lines()
    assert processes_of(path) == []
