"""The recipes of evaluations name the commands that fetch their data, and are sound once the data are there."""

import importlib
import inspect
import json
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from actors.cli.data import _columns
from actors.cli.evaluation import evaluate
from actors.cli.main import command_line, main
from agent_rl.config.load import load_topology
from agent_rl.config.topology import EvaluateStage
from agent_rl.data.fetch import as_problem
from agent_rl.data.review import renamed
from agent_rl.environments.base import TaskError
from agent_rl.environments.maths.rewards import answers_equal
from agent_rl.evaluation.problems import chosen_problems
from agent_rl.messages import Transcript
from tests.end_to_end.processes import finish
from tests.end_to_end.test_eval import begin
from tests.end_to_end.topologies import write_model

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
RECIPES = {"evaluate_maths": 4, "evaluate_gpqa": 1}


def math_rows(count: int, name: str, **columns: Any) -> list[dict[str, Any]]:
    return [{"problem": f"{name}: what is {index}?", "answer": str(index), **columns} for index in range(count)]


DATA: Mapping[str, list[dict[str, Any]]] = {
    "aime_2024/train": [{"id": index, **row} for index, row in enumerate(math_rows(30, "a", solution="", url=""))],
    "aime_2025/train": [row | {"answer": int(row["answer"])} for row in math_rows(30, "b", problem_idx=1)],
    "hmmt_feb_2025/train": math_rows(30, "c", problem_idx=1, problem_type=["Algebra"]),
    "math_500/test": math_rows(500, "d", solution="", subject="Algebra", level=2, unique_id="test/1.json"),
    "gpqa_diamond/train": [
        {
            "Question": f"Which is {index}?",
            "Correct Answer": f"right {index} ",
            **{f"Incorrect Answer {number}": f"wrong {number}, {index}\n" for number in (1, 2, 3)},
            "Record ID": f"rec{index}",
        }
        for index in range(198)
    ],
}
"""Rows in the layouts of the data sets, made up."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for path in (EXAMPLES / "evaluate_maths.toml", *(EXAMPLES / "evaluate_gpqa").glob("*gpqa.*")):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES / "evaluate_gpqa")
    return tmp_path


def fetch_into(folder: Path, recipe: str) -> None:
    """Write the files that the recipe's commands would write, from rows of the layout of their data sets."""
    for place, arguments in load_topology(folder / f"{recipe}.toml").fetch.items():
        words = shlex.split(arguments)
        columns = _columns(words[words.index("--columns") + 1]) if "--columns" in words else {}
        split = words[words.index("--split") + 1] if "--split" in words else "train"
        name = f"{Path(place).name}/{split}"
        write(folder / place / f"{split}.jsonl", (as_problem(renamed(row, columns, name)) for row in DATA[name]))


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_missing_file_is_named_with_the_command_that_fetches_it(folder, recipe, capsys):
    assert main(["check", f"{recipe}.toml"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == RECIPES[recipe]
    topology = load_topology(folder / f"{recipe}.toml")
    fetched = set()
    for line in lines:
        found = re.search(r"no file matches (\S+); fetch it with agent-rl (data fetch .*), or name another", line)
        assert found, line
        words = shlex.split(found[2])
        command_line().parse_args(words)
        assert Path(found[1]).parent == Path(words[words.index("--out") + 1])
        fetched.add(words[2])
    assert fetched == {shlex.split(arguments)[0] for arguments in topology.fetch.values()}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_sound_once_its_data_are_there(folder, recipe, capsys):
    fetch_into(folder, recipe)
    assert main(["check", f"{recipe}.toml"]) == 0, capsys.readouterr().err
    stage = load_topology(folder / f"{recipe}.toml").stages[0]
    assert isinstance(stage, EvaluateStage)
    assert chosen_problems((), (folder / f"{recipe}.toml",), None, prompt="rstar2").count == stage.problems
    defaults = {name: value.default for name, value in inspect.signature(evaluate).parameters.items()}
    asked = (stage.samples, stage.temperature, stage.top_p, stage.max_response_tokens, stage.max_turns)
    assert asked == tuple(defaults[name] for name in ("n", "temperature", "top_p", "max_tokens", "max_turns"))
    assert asked == (16, 0.6, 1.0, 30720, 30)  # the paper's


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_runs_to_its_table_on_short_files(folder, recipe):
    fetch_into(folder, recipe)
    files = sorted((folder / "data").rglob("*.jsonl"))
    for file in files:
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
    write_model(folder, max_length=8192, byte_fallback=True)
    limits = ["--n", "2", "--max-tokens", "24", "--max-turns", "2", "--out", "out"]
    out = finish(begin(folder, "model", "--topology", f"{recipe}.toml", *limits)).out
    results = json.loads((folder / "out" / "results.json").read_text())
    assert len(results["problems"]) == 2 * len(files)
    assert results["overall"]["lost"] == 0
    if recipe == "evaluate_maths":
        names = {str(file.relative_to(folder / "data")) for file in files}
        assert results["by_file"].keys() == names
        assert all(each["problems"] == 2 and each["response_tokens"] > 0 for each in results["by_file"].values())
        assert all(name in out for name in names)


def test_the_results_keep_files_of_one_name_apart(folder):
    fetch_into(folder, "evaluate_maths")
    from agent_rl.environments.task_files import read_tasks

    found = read_tasks({"files": [f"data/{name}.jsonl" for name in DATA if not name.startswith("gpqa")]}, folder)
    assert [{problem.payload["file"] for problem in part} for part in found["files"]] == [
        {"aime_2024/train.jsonl"},
        {"aime_2025/train.jsonl"},
        {"hmmt_feb_2025/train.jsonl"},
        {"math_500/test.jsonl"},
    ]


def test_the_choices_of_a_question(folder):
    fetch_into(folder, "evaluate_gpqa")
    gpqa = importlib.import_module("gpqa").Gpqa(
        seed=0, base=folder, evaluation_files=("data/gpqa_diamond/train.jsonl",)
    )
    tasks = gpqa.problems()
    problems = [tasks.evaluation(index) for index in range(tasks.evaluation_count)]
    assert len({problem.id for problem in problems}) == 198
    for index, problem in enumerate(problems):
        choices = dict(re.findall(r"^([A-D])\) (.*)$", problem.text, re.MULTILINE))
        assert choices[problem.answer] == f"right {index}"
        assert set(choices.values()) == {f"right {index}", *(f"wrong {number}, {index}" for number in (1, 2, 3))}
    share = [sum(problem.answer == letter for problem in problems) for letter in "ABCD"]
    assert min(share) > 30  # no letter is the rule
    right = Transcript((f"<answer>\\boxed{{{problems[0].answer}}}</answer>",))
    judgement = gpqa.judge_at_once(problems[0], right)
    assert judgement.success
    assert answers_equal("C", "(C)")
    assert answers_equal("C", "\\text{C}")
    assert not answers_equal("C", "B")
    system, user = gpqa.prompt(problems[0])
    assert "<answer>" in system["content"]
    assert problems[0].text in user["content"]


def test_a_question_without_its_wrong_answers_is_refused(folder):
    write(folder / "data" / "short" / "train.jsonl", [{"problem": "Which?", "answer": "this"}])
    gpqa = importlib.import_module("gpqa").Gpqa(seed=0, base=folder, evaluation_files=("data/short/train.jsonl",))
    with pytest.raises(TaskError, match=r"train.jsonl:1: the columns Incorrect Answer 1, .* must hold text"):
        gpqa.problems()
