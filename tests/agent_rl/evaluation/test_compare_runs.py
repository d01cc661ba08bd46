"""Runs are compared by paired tests where they can be, by intervals else, and the command says which differs."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from actors.cli.main import main
from agent_rl import load_run
from agent_rl.evaluation.runs import Share, compare_runs, differing, unpaired
from tests.agent_rl.records.journals import forget
from tests.agent_rl.records.report_runs import AFTER, RL, SyntheticRun


def evaluated(folder: Path, rewards: Sequence[float], *, seed: int = 1, forgotten: bool = False) -> Path:
    run = SyntheticRun(folder)
    run.enter(RL)
    run.step([[0, 1], [1, 1]])
    run.enter(AFTER)
    run.evaluate(AFTER, rewards)
    run.enter(4)
    if forgotten:
        run.journal.keep_from(run.version)
        forget(run.journal)
    directory = run.close()
    (directory / "topology.local.toml").write_text(f'[run]\nseed = {seed}\ndirectory = "{folder}"\n')
    return directory


def test_a_difference_on_the_same_problems_is_seen_that_two_intervals_cannot_see(tmp_path, capsys):
    a = evaluated(tmp_path / "a", [1] * 20 + [0] * 20)
    b = evaluated(tmp_path / "b", [1] * 20 + [1] * 8 + [0] * 12, seed=2)
    found = compare_runs(load_run(a), load_run(b))
    assert found.settings == {"run.seed": (1, 2)}
    greedy = next(each for each in found.shares if "greedy" in each.figure)
    assert (greedy.problems, greedy.better, greedy.worse) == (40, 8, 0)
    assert greedy.p == pytest.approx(2 / 2**8)  # McNemar's exact test: 8 of 8
    assert greedy.verdict == "B is higher"
    apart = unpaired(greedy.figure, greedy.a, greedy.b)
    assert apart.verdict == "not distinguishable"
    assert apart.low < 0 < apart.high
    assert main(["compare", str(a), str(b), str(a)]) == 0
    shown = capsys.readouterr().out
    assert all(words in shown for words in ("B is higher", "not distinguishable", "run.seed"))
    assert "no setting differs" not in shown.split("A = ")[1]
    assert main(["compare", "--json", str(a), str(b)]) == 0
    (said,) = json.loads(capsys.readouterr().out)
    assert said["settings"] == {"run.seed": [1, 2]}
    assert {each["verdict"] for each in said["shares"]} == {"B is higher", "not distinguishable"}


def test_equal_runs_are_not_distinguishable_and_training_success_has_an_interval(tmp_path):
    a, b = (evaluated(tmp_path / name, [1, 0, 1, 0]) for name in "ab")
    found = compare_runs(load_run(a), load_run(b))
    assert {each.verdict for each in found.shares} == {"not distinguishable"}
    training = found.shares[-1]
    assert training.figure == "success in training, last 1 steps"
    assert training.a.trials == 2  # groups, not their rollouts
    assert training.a.low < 0.75 < training.a.high
    assert found.numbers["steps"] == (1, 1)


def test_other_problems_are_compared_as_a_whole(tmp_path):
    a, b = evaluated(tmp_path / "a", [0] * 9), evaluated(tmp_path / "b", [1] * 40)
    found = compare_runs(load_run(a), load_run(b))
    assert found.shares[0].problems is None
    assert found.shares[0].verdict == "B is higher"


def test_newcombes_interval_of_a_difference():
    a, b = Share(48 / 80, 0.4905, 0.7003, 80), Share(56 / 70, 0.6918, 0.8775, 70)  # his example (b): 0.0524 to 0.3339
    found = unpaired("x", a, b)
    assert (found.low, found.high) == (pytest.approx(0.0524, abs=4e-3), pytest.approx(0.3339, abs=4e-3))


def test_settings_that_say_where_a_run_is_do_not_differ():
    found = differing({"run.directory": "a", "x": 1, "y": 2}, {"run.directory": "b", "x": 1, "z": 3})
    assert found == {"y": (2, None), "z": (None, 3)}


def test_mistakes_are_one_line(tmp_path, capsys):
    a = evaluated(tmp_path / "a", [1])
    assert main(["compare", str(a)]) == 2
    assert main(["compare", str(a), str(tmp_path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors[0] == "agent-rl: name two run directories or more, as in agent-rl compare RUN RUN"
    assert "no journal here; give the directory of a run" in errors[1]
    assert len(errors) == 2
