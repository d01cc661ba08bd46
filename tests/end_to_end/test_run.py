"""`agent-rl run` for real: five processes, sockets, an engine, a sandbox, training; then nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from actors.cli import main as cli
from agent_rl.config.addresses import runtime_directory
from agent_rl.config.load import load_topology
from tests.end_to_end.processes import (
    Said,
    balanced,
    check_finished,
    check_trained_once,
    finish,
    journal_of,
    port_blocks,
    processes_of,
    rows,
    start,
    steps_trained,
    wait_for,
)
from tests.end_to_end.topologies import write_micro, write_two_hosts
from tests.event_files import scalars

FAILING = """
class Failing:
    def __init__(self, *, directory, run, identity):
        raise RuntimeError("no such server")
"""


@pytest.mark.slow
def test_interrupted_a_run_drains_and_the_next_one_ends_with_a_balanced_journal_and_a_model_that_loads(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "a b ключ"  # weights travel by URI: a name that needs quoting must arrive as what it is
    folder.mkdir()
    path, directory = write_micro(folder, steps=40)
    process = start(path)
    wait_for(lambda: steps_trained(directory) >= 3, "three steps")
    os.kill(process.pid, signal.SIGINT)
    said = finish(process)
    assert "continue with: agent-rl run" in said.all
    assert "Not finished: the run stands in stage 3 of 4" in (directory / "report.html").read_text(encoding="utf-8")
    done = steps_trained(directory)
    assert done < 40
    balanced(directory)
    assert processes_of(path) == []
    check_nothing_left(path, directory)
    with journal_of(directory) as journal:
        trained_before = {group for step in journal.steps() if step.trained for group in step.groups}

    fewer = f"stages.2.steps={done + 2}"
    said = finish(start(path, fewer))
    summary = check_finished(path, directory, said, steps=done + 2)
    with journal_of(directory) as journal:
        assert journal.fact("epoch") == "2"
    assert trained_before <= set(check_trained_once(directory))
    check_nothing_left(path, directory)
    check_logs(directory, "kv_scheduler", "rollout_generator", "tool_executor", "roc_filter", "learner")

    from transformers import AutoModelForCausalLM, AutoTokenizer

    newest = max((directory / "checkpoints").iterdir())
    model = AutoModelForCausalLM.from_pretrained(newest)
    tokens = AutoTokenizer.from_pretrained(newest)("How many eggs?", return_tensors="pt")
    assert model(**tokens).logits.shape[-1] == model.config.vocab_size

    said = finish(start(path, fewer))  # nothing is left to do: the same summary, and no step more
    repeated = check_finished(path, directory, said, steps=done + 2)
    assert repeated | {"minutes": summary["minutes"]} == summary  # the time of this start counts


def check_nothing_left(path: Path, directory: Path) -> None:
    """Neither socket files nor published weights are left."""
    assert not runtime_directory(load_topology(path)).exists()
    assert not (directory / "weights").exists()


def check_logs(directory: Path, *roles: str) -> None:
    """Each of these actors has a log, with the common fields and without an error."""
    for role in roles:
        logged = rows(directory / "logs" / f"{role}.0.jsonl")
        assert {"timestamp", "level", "event", "actor"} <= logged[0].keys()
        assert [row for row in logged if row["level"] == "error"] == []


def finish_both(main: subprocess.Popen[str], other: subprocess.Popen[str]) -> Said:
    """What the main host printed, once both have ended well."""
    try:
        said = finish(main)
    except BaseException:
        other.kill()
        raise
    finish(other)
    return said


@pytest.mark.slow
def test_hosts_that_share_no_disk_train_together_and_one_tracker_that_fails_disturbs_nothing(tmp_path: Path) -> None:
    first, second = port_blocks(2)
    path, directory = write_two_hosts(tmp_path, (first, second))
    (tmp_path / "my_tracker.py").write_text(FAILING)
    settings = ("actors.rollout_generator.links.weights=learner", 'run.trackers=["tensorboard", "my_tracker:Failing"]')
    elsewhere = tmp_path / "elsewhere"
    main = start(path, *settings, host="a")
    other = start(path, *settings, f"run.directory={elsewhere}", host="b")
    said = finish_both(main, other)
    check_finished(path, directory, said, steps=3)
    (log,) = (elsewhere / "logs").glob("rollout_generator.0*.jsonl")
    taken_up = [row for row in rows(log) if row["event"] == "policy taken up"]
    assert [row["version"] for row in taken_up][-1] == 4
    assert all(row["fetched_bytes"] > 0 for row in taken_up)
    assert not (elsewhere / "weights").exists()
    assert said.out.count("tracker 'my_tracker:Failing' has stopped: RuntimeError: no such server") == 1
    check_tracked(directory)
    check_logs(directory, "kv_scheduler", "roc_filter", "learner")
    check_logs(elsewhere, "rollout_generator", "tool_executor")


def check_tracked(directory: Path) -> None:
    """TensorBoard's files hold the figures of every step, evaluation and supervised stage of metrics.jsonl."""
    kept = scalars(directory)
    of_kind = {kind: [] for kind in ("stage", "step", "evaluation")}
    for row in rows(directory / "metrics.jsonl"):
        of_kind[row["kind"]].append(row)
    supervised, steps, (before, after) = of_kind["stage"][0], of_kind["step"], of_kind["evaluation"]
    assert kept["supervised/sft/loss"][-1] == (3, pytest.approx(supervised["loss"]))
    for name in ("reward", "success", "train_seconds"):
        assert kept[f"train/{name}"] == [(row["version"], pytest.approx(row[name])) for row in steps]
    for row, stage in ((before, "before"), (after, "after")):
        name = f"success_{stage}_greedy"
        assert kept[f"evaluation/{name}"] == [(row["version"], pytest.approx(row[name]))]


def test_a_wrong_override_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, directory = write_micro(tmp_path)
    assert cli.main(["run", str(path), "--set", "stages.2.stepps=5"]) == 2
    err = capsys.readouterr().err
    assert "stages.2.stepps" in err
    assert "steps" in err
    assert "Traceback" not in err
    assert not directory.exists()


@pytest.mark.slow  # tests/actors/test_learner_safety.py has the learner that leaves the stage for the evaluation
def test_past_its_wall_clock_limit_a_run_trains_no_more_but_still_evaluates(tmp_path: Path) -> None:
    path, directory = write_micro(tmp_path)
    said = finish(start(path, "run.max_minutes=0.0001"))
    summary = said.summary
    assert summary["steps"] == 0
    assert "success_after_greedy" in summary
    balanced(directory)


@pytest.mark.slow
def test_synchronous_mode_never_trains_on_an_older_policy(tmp_path: Path) -> None:
    path, directory = write_micro(tmp_path)
    said = finish(start(path, "run.mode=synchronous"))
    summary = check_finished(path, directory, said, steps=3)
    assert not summary["max_staleness"]
    steps = [row for row in rows(directory / "metrics.jsonl") if row["kind"] == "step"]
    assert all(not row.get("staleness_max") for row in steps)  # a step without a group that trained has none
