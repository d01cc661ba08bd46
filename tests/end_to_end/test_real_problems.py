"""The examples on word problems, with a model that answers nothing right: steps close, and the run says what it was."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from actors.cli.main import main
from actors.roc_filter.replay import decode_stored
from agent_rl.config.load import load_topology
from agent_rl.messages import Problem
from agent_rl.records.journal import read_journal
from tests.agent_rl.records.journals import STATES
from tests.end_to_end.processes import balanced, finish, processes_of, rows, start

ROOT = Path(__file__).parent.parent.parent
SECONDS = 120
"""A run takes about 15 s on two free cores; the machine may be busy."""


def run_example(name: str, directory: Path, *settings: str) -> tuple[dict[str, Any], str]:
    """Run an example of three steps to its end; its summary, and all it said."""
    path = ROOT / "examples" / name
    began = time.monotonic()
    said = finish(start(path, f"run.directory={directory}", *settings))
    assert time.monotonic() - began < SECONDS
    assert processes_of(directory) == []
    balanced(directory, steps=3)
    return said.summary, said.out


def problems_of(directory: Path) -> list[Problem]:
    """All training problems, as the journal has them."""
    journal = read_journal(directory)
    try:
        return [decode_stored(row.opened).problem for row in journal.groups(stage=0, states=STATES)]
    finally:
        journal.close()


@pytest.mark.slow
def test_three_steps_of_gsm8k_close_and_the_summary_says_that_nothing_was_learnt(tmp_path: Path) -> None:
    summary, out = run_example("gsm8k.toml", tmp_path)
    assert summary["rollouts_correct"] == 0
    assert summary["groups_dropped"] == summary["groups_opened"] == 12
    assert (summary["steps"], summary["steps_updated"], summary["mean_staleness"]) == (3, 0, None)
    assert (summary["success_after_greedy"], summary["problems_after_greedy"]) == (0.0, 20)
    for line in (
        "note: 0 of 48 training rollouts correct: ",
        "note: all 12 groups were dropped for equal rewards",
        "note: no update was made in 3 of 3 steps: nothing was learnt",
        "0.0 % of 20  (95 %: 0.0 to ",
        "steps without update 3",
    ):
        assert line in out
    steps = [row for row in rows(tmp_path / "metrics.jsonl") if row["kind"] == "step"]
    assert [(row["groups_trained"], row.get("staleness_mean")) for row in steps] == [(0, None)] * 3


@pytest.mark.slow
def test_three_steps_of_a_mix_with_latex_chinese_and_texts_too_long_for_the_model_close(tmp_path: Path) -> None:
    """The mix of the example, and one source more. Length limit and step size are such that some of the problems
    cannot fit.
    """
    other = tmp_path / "other.jsonl"
    texts = [f"求 $x$ 使 $\\frac{{x}}{{{number}}} = 7$。" for number in range(2, 40)] + ["How long is this? " * 30] * 8
    lines = [{"id": f"other-{n}", "problem": text, "answer": "\\frac{7}{2}"} for n, text in enumerate(texts)]
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    mix = [*load_topology(ROOT / "examples" / "mixed_math.toml").environments[0].settings["files"], str(other)]
    settings = (
        f"environments.0.settings.files={json.dumps(mix)}",
        "environments.0.settings.weights=[2, 1, 1]",
        "model.initialise.max_length=384",
        "algorithm.groups_per_step=16",
    )
    summary, out = run_example("mixed_math.toml", tmp_path / "run", *settings)
    assert summary["groups_opened"] == summary["groups_dropped"] == 48
    assert summary["groups_dropped_equal_rewards"] >= 24
    assert summary["groups_dropped_prompt_too_long"] > 0
    assert summary["groups_dropped_equal_rewards"] + summary["groups_dropped_prompt_too_long"] == 48
    said = (tmp_path / "run" / "logs" / "roc_filter.0.jsonl").read_text()
    assert "a prompt is too long: its group is not sampled" in said
    assert "nothing was learnt" in out
    problems = problems_of(tmp_path / "run")
    assert any("\u4e00" <= character <= "\u9fff" for problem in problems for character in problem.text)
    assert any("\\frac" in problem.text for problem in problems)
    sources = ["other" if problem.id.startswith("other") else str(problem.answer.isdigit()) for problem in problems]
    assert {source: sources.count(source) for source in sources} == {"True": 24, "False": 12, "other": 12}


@pytest.mark.parametrize(
    ("name", "key"), [("data/gsm8k/train", "files.1"), ("elsewhere/held_out", "evaluation_files.0")]
)
def test_a_missing_file_is_named_with_the_command_that_fetches_it(
    tmp_path: Path, capsys: Any, name: str, key: str
) -> None:
    path = tmp_path / "a" / "mixed_math.toml"
    path.parent.mkdir(parents=True)
    text = (ROOT / "examples" / "mixed_math.toml").read_text()
    (path.parent / "word_problems").symlink_to(ROOT / "examples" / "word_problems")
    old = "word_problems/amounts" if key == "files.1" else "word_problems/held_out"
    path.write_text(text.replace(old, name))
    assert main(["check", str(path)]) == 2
    err = capsys.readouterr().err
    lines = path.read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if f"{name}.jsonl" in line and "for real" not in line)
    place = f"{path}:{number}: environments.0.settings.{key}: environment 'maths'"
    assert f"{place}: no file matches {path.parent}/{name}.jsonl" in err
    fetched = name.startswith("data/gsm8k")
    assert (f"agent-rl data fetch openai/gsm8k --out {path.parent}/data/gsm8k" in err) == fetched
    assert err.count("agent-rl data fetch") == fetched
    assert "paths are relative to the topology file" in err
    assert "Traceback" not in err
