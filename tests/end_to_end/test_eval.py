"""`agent-rl eval` for real: the five processes, a model on disk, an interrupt in between, and results that add up."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent_rl.records.journal import JournalError, read_journal
from tests.end_to_end.processes import Run, finish, in_background, processes_of, wait_for
from tests.end_to_end.topologies import write_micro, write_model

ROOT = Path(__file__).resolve().parents[2]
"""Where the tests' own actors are found."""
PROBLEMS = 30


def begin(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "actors.cli", "eval", *arguments]
    return in_background(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)})


def prepare(folder: Path) -> list[str]:
    """A model, problems whose answer is 4, and a topology whose filter finds every second rollout right."""
    write_model(folder)
    rows = [json.dumps({"problem": f"{i}?", "answer": "4", "subject": "ab"[i % 2]}) for i in range(PROBLEMS)]
    (folder / "fours.jsonl").write_text("\n".join(rows))
    micro, _ = write_micro(folder)
    micro.write_text(micro.read_text().replace("actors.roc_filter:RoCFilter", "tests.end_to_end.faulty:HalfRight"))
    lengths = ["--n", "4", "--max-tokens", "24", "--max-turns", "2", "--prompt", "plain"]
    return ["model", "--data", "fours.jsonl", *lengths, "--topology", str(micro), "--out", "out"]


def stored(folder: Path) -> dict[tuple[str, int], bytes]:
    """The judged trajectories."""
    try:
        journal = read_journal(folder / "out")
    except JournalError:  # it is being made
        return {}
    try:
        rows = [(group, each) for group in journal.group_ids() for each in journal.trajectories(group)]
    finally:
        journal.close()
    return {(group, each.sample): each.payload for group, each in rows if each.reward is not None}


@pytest.mark.slow
def test_interrupted_an_evaluation_goes_on_and_its_figures_are_those_of_every_rollout(tmp_path):
    arguments = prepare(tmp_path)
    process = begin(tmp_path, *arguments)
    wait_for(lambda: len(stored(tmp_path)) >= 6, "a few rollouts")
    os.kill(process.pid, signal.SIGINT)
    before = stored(tmp_path)
    said = finish(process, 130 if len(before) < 4 * PROBLEMS else 0).all  # else the machine was faster
    assert len(before) == 4 * PROBLEMS or "continue with: agent-rl eval model" in said
    assert processes_of(tmp_path / "out" / "evaluation.toml") == []

    said = finish(begin(tmp_path, *arguments))
    after = stored(tmp_path)
    assert len(after) == 4 * PROBLEMS
    assert before.items() <= after.items()  # nothing was answered twice
    overall = said.summary
    assert overall["pass@1"] == 0.5
    assert overall["pass@4"] == 1.0
    assert overall["maj@4"] == 0.5  # two against two
    assert overall["pass@1_low"] < 0.5 < overall["pass@1_high"]  # alike problems leave 30 problems uncertain
    assert overall["pass@1_low"] + overall["pass@1_high"] == pytest.approx(1.0)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(results["problems"]) == PROBLEMS
    assert results["by_subject"]["a"]["problems"] == PROBLEMS / 2
    assert [problem["problem"] for problem in results["problems"]] == [f"{i}?" for i in range(PROBLEMS)]

    again = finish(begin(tmp_path, *arguments))  # finished: only told again
    assert again.summary == said.summary
    assert "judged" not in again.out


@pytest.mark.slow
def test_killed_actors_cost_no_answer(tmp_path):
    arguments = prepare(tmp_path)
    process = begin(tmp_path, *arguments)
    topology = tmp_path / "out" / "evaluation.toml"
    wait_for(lambda: len(stored(tmp_path)) >= 3, "a few rollouts")
    for actor in ("learner.0", "roc_filter.0", "kv_scheduler.0"):
        Run(topology, tmp_path).signal(actor)
    said = finish(process)
    assert said.all.count("starting it again") >= 3
    assert (said.summary["pass@1"], said.summary["lost"]) == (0.5, 0)
    assert len(stored(tmp_path)) == 4 * PROBLEMS
