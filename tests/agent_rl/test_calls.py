"""Training by a call: what it makes of its arguments, what it refuses, and a run."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import agent_rl
from agent_rl import calls
from agent_rl.config.load import load_topology
from agent_rl.config.plugins import ContractError
from agent_rl.environments.base import TaskError
from agent_rl.environments.load import mixed_tasks
from agent_rl.environments.tools import tool
from agent_rl.messages import Problem, Transcript
from agent_rl.models.devices import gpus_here
from tests.agent_rl.environments.test_tasks import Numbers

ROWS = [{"problem": "Largest of 1, 2?", "answer": 2, "pair": [1, 2]}, {"problem": "Largest of 3, 1?", "answer": 3}]
SCRIPT = """
import agent_rl

ROWS = [(f"Largest of {a}, {b}?", max(a, b)) for a in range(10) for b in range(10)]

def largest(numbers: list[int]) -> int:
    '''The largest of some numbers.'''
    return max(numbers)

def reward(problem, transcript):
    return sum(map(str.isdigit, transcript.answer)) / max(1, len(transcript.answer))

GUARD:
    made = agent_rl.train(
        {"initialise": {"hidden_size": 32, "layers": 1, "max_length": 640}}, ROWS[4:], reward,
        tools=[largest], steps=1, evaluation=ROWS[:4], max_response_tokens=16, samples=4,
    )
    print("state", made.state, [each.name for each in made.evaluations])
"""


def of_trl(prompts: Any, completions: Any, answer: Any, **kwargs: Any) -> list[float]:
    return [0.0]


def reward(problem: Problem, transcript: Transcript) -> float:
    return float(transcript.answer == problem.answer)


def within(problem: Problem, transcript: Transcript) -> bool:
    return problem.answer in transcript.answer


def wrong(problem: Problem, transcript: Transcript) -> Any:
    return problem.data.get("nothing")


@tool
def half(number: int) -> float:
    """A half."""
    return number / 2


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a script whose runs are not started."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "mine.py"), raising=False)
    monkeypatch.setattr(calls, "_start", lambda file: None)
    monkeypatch.setattr(calls, "load_run", lambda directory: directory)
    return tmp_path


def test_keywords_have_the_names_of_a_topology(made: Path) -> None:
    run = agent_rl.train(
        "models/none",
        ROWS[:1],
        reward,
        tools=[half, "python"],
        steps=3,
        evaluation=[("Two?", "2")],
        system="Be brief.",
        learning_rate=1e-6,
        samples=4,
        seed=7,
        loss="gspo",
        actors={"rollout_generator": {"replicas": 2}},
    )
    assert str(run) == "runs/mine"
    topology = load_topology(made / "mine.toml")
    before, trained, after = topology.stages
    assert (before.kind, trained.kind, after.kind, before.problems) == ("evaluate", "rl", "evaluate", 1)  # type: ignore[union-attr]
    assert (trained.learning_rate, trained.steps) == (1e-6, 3)  # type: ignore[union-attr]
    assert (topology.run.seed, topology.algorithm.loss, topology.model.path) == (7, "gspo", "models/none")
    assert (topology.algorithm.samples, topology.algorithm.keep) == (4, 2)
    assert topology.algorithm.microbatch_tokens == (16384 if gpus_here() else 1024)
    assert topology.actors["rollout_generator"].replicas == 2
    (entry,) = topology.environments
    assert entry.settings["reward"] == f"{__name__}:reward"
    assert entry.tools == (f"{__name__}:half", "python")
    assert [json.loads(line) for line in (made / "mine.files.jsonl").read_text().splitlines()] == ROWS[:1]


def test_an_environment_class_brings_its_problems(made: Path) -> None:
    agent_rl.train("models/none", Numbers, steps=1, evaluation=5)
    written = tomllib.loads((made / "mine.toml").read_text())
    assert [entry["class"] for entry in written["environments"]] == [f"{Numbers.__module__}:Numbers"]
    assert [stage.get("problems") for stage in written["stages"]] == [5, None, 5]


def test_an_evaluation_is_one_stage(made: Path) -> None:
    agent_rl.evaluate("models/none", ROWS, reward, name="asked")
    (stage,) = load_topology(made / "asked.toml").stages
    assert (stage.kind, stage.problems) == ("evaluate", 2)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (ROWS, ""),
        ([*ROWS, {"problem": "?"}], "for a success, as to problem 'mine.files.jsonl:3', which has no `answer`"),
    ],
)
def test_a_reward_for_saying_nothing_is_told(
    made: Path, capsys: pytest.CaptureFixture[str], rows: list[dict[str, Any]], said: str
) -> None:
    agent_rl.train("m", rows, within)
    out = capsys.readouterr().out
    assert said in out
    assert bool(out) == bool(said)


def test_mistakes_are_said_before_anything_starts(made: Path) -> None:
    def inner(problem: Problem, transcript: Transcript) -> float:
        return 0.0

    (made / "taken.toml").write_text("[run]\n")
    train: Any = agent_rl.train
    for arguments, settings, kind, words in (
        (("m", ROWS), {}, TypeError, "rows need a `reward`"),
        (("m", ROWS, reward), {"evaluation": 3}, TypeError, "`evaluation` must be held-out rows"),
        (("m", ROWS, reward), {"beta": 0.1}, TypeError, "no setting 'beta': docs/configuration.md has all of them"),
        (("m", ROWS, reward), {"lr": 1e-6}, TypeError, "no setting 'lr': here it is `learning_rate`"),
        (("m", ROWS, [reward]), {}, TypeError, "`reward` must be one function"),
        (("m", ROWS, of_trl), {}, ContractError, "write `def reward(problem, transcript) -> float`"),
        (("m", ROWS, reward), {"learning_rat": 1}, TypeError, "'learning_rat': did you mean 'learning_rate'"),
        (("m", ROWS, inner), {}, ValueError, "top level of a module"),
        (("m", ROWS, lambda problem, transcript: 0.0), {}, ValueError, "top level of a module"),
        (("m", ROWS, wrong), {}, ContractError, "the reward returned None"),
        (("m", [{"question": "?"}], reward), {}, TaskError, "neither `problem` nor `prompt`; columns are ['question']"),
        (("m", "none.jsonl", reward), {}, TaskError, "no file matches"),
        (("m", ROWS, reward), {"name": "taken"}, ValueError, "taken.toml is there, and no call has made it"),
    ):
        with pytest.raises(kind, match=re.escape(words)):
            train(*arguments, **settings)


def test_the_first_block_of_the_readme_is_a_run(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = (Path(calls.__file__).parents[1] / "README.md").read_text()
    text = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)[0]
    assert len([line for line in text.splitlines() if line]) <= 12
    (made / "mine.py").write_text(text)
    (made / "problems.jsonl").write_text(json.dumps(ROWS[0]))
    monkeypatch.chdir(made)
    monkeypatch.syspath_prepend(made)
    runpy.run_path("mine.py", run_name="__main__")
    topology = load_topology(made / "mine.toml")
    (entry,) = topology.environments
    assert (entry.class_path, *entry.tools) == ("rows", "mine:population")
    assert mixed_tasks([entry], seed=0, base=made).problem(0, 0).text == ROWS[0]["problem"]


def test_what_comes_from_trl_is_a_run(made: Path) -> None:
    page = (Path(calls.__file__).parents[1] / "docs" / "coming_from.md").read_text()
    (text,) = re.findall(r"^```python\n# TRL\n.*?(# here\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(text, {"agent_rl": agent_rl, "rows": ROWS, "right": reward, "population": half})
    topology = load_topology(made / "mine.toml")
    assert topology.algorithm.kl is not None
    assert (topology.algorithm.samples, topology.algorithm.kl.coefficient) == (8, 0.001)


def test_a_function_of_a_notebook_is_told_where_to_go(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules["__main__"], "__file__")
    monkeypatch.setattr(reward, "__module__", "__main__")
    monkeypatch.chdir(made)
    with pytest.raises(
        ValueError, match=r"begin its cell with `%%writefile my_task.py`, and write `from my_task import"
    ):
        agent_rl.train("m", ROWS, reward)


def run(folder: Path, guard: str) -> subprocess.CompletedProcess[str]:
    (folder / "my_task.py").write_text(SCRIPT.replace("GUARD", guard))
    return subprocess.run(
        [sys.executable, "my_task.py"], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )


def test_a_script_trains_and_a_finished_run_is_read(tmp_path: Path) -> None:
    for started in (True, False):
        done = run(tmp_path, 'if __name__ == "__main__"')
        assert "state ended ['before', 'before', 'after', 'after']" in done.stdout, done.stderr
        assert ("checkpoint:" in done.stdout) == started
        assert ("runs/my_task had ended, and is read as it is" in done.stdout) != started
    assert load_topology(tmp_path / "my_task.toml").run.name == "my_task"


def test_a_call_without_a_guard_is_told_what_to_write(tmp_path: Path) -> None:
    done = run(tmp_path, "if True")
    assert done.returncode == 2
    assert 'put the call under `if __name__ == "__main__":`' in done.stderr
    assert "Traceback" not in done.stderr
