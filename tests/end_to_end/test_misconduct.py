"""A real process of the run that speaks for another role is named, cut off and replaced, and the run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_rl.records.audit import audit
from tests.end_to_end.processes import finish, processes_of, rows, start
from tests.end_to_end.topologies import write_micro


@pytest.mark.slow
def test_an_executor_that_speaks_for_the_learner_is_named_and_replaced(tmp_path: Path) -> None:
    path, directory = write_micro(tmp_path, steps=2)
    text = path.read_text()
    path.write_text(text.replace("actors.tool_executor:ToolExecutor", "tests.end_to_end.misbehaving:Forger"))
    process = start(path)
    code, out, err = finish(process)
    assert code == 0, out + err
    named = "tool_executor.0 misbehaved and is cut off by roc_filter.0 (other role: a call over link 'steps'"
    assert (out + err).count(named) == 1, out + err
    assert "tool_executor.0 runs again" in out + err
    logged = rows(directory / "logs" / "supervisor.local.jsonl")
    assert sum(named in row.get("text", "") for row in logged) == 1
    cut = [row for row in rows(directory / "logs" / "roc_filter.0.jsonl") if "PeerCutOff" in str(row)]
    assert len(cut) == 1
    balance = audit(directory)
    assert balance.balanced, balance.lines()
    assert processes_of(path) == []
