"""Rows of one's own, judged by a function of one's own."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import trio

from agent_rl.config.plugins import ContractError, PluginError
from agent_rl.environments.base import TaskError
from agent_rl.environments.maths.environment import BoxedAnswers, Maths
from agent_rl.environments.rows import Rows
from agent_rl.messages import Judgement, Problem, Transcript

GIVEN: dict[str, Any] = {}


def given(problem: Problem, transcript: Transcript) -> Any:
    return GIVEN["reward"]


async def awaited(problem: Problem, transcript: Transcript) -> bool:
    """Reward: whether the answer is one of the row's, after a wait."""
    await trio.lowlevel.checkpoint()
    return transcript.answer in problem.data["accepted"]


def narrow(transcript: Transcript) -> float:
    return 0.0


async def judged(reward: str, row: dict[str, Any], said: str, base: Path) -> Judgement:
    (base / "mine.jsonl").write_text(json.dumps(row))
    environment = Rows(seed=0, base=base, reward=f"{__name__}:{reward}", files=("mine.jsonl",))

    async def in_thread(work: Any) -> Any:
        return await trio.to_thread.run_sync(work)

    problem = environment.problems().problem(0, 0)
    return await environment.judge(problem, Transcript((said,)), SimpleNamespace(in_thread=in_thread))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reward", "number", "success"),
    [
        (True, 1.0, True),
        (False, 0.0, False),
        (1, 1.0, True),
        (0.9, 0.9, False),
        (-2, -2.0, False),
        (np.float32(2.5), 2.5, True),
        (np.int64(0), 0.0, False),
    ],
)
async def test_a_number_is_the_reward_and_one_is_success(
    tmp_path: Path, reward: Any, number: float, success: bool
) -> None:
    GIVEN["reward"] = reward
    assert await judged("given", {"problem": "?"}, "so", tmp_path) == Judgement(number, success, answer="so")
    GIVEN["reward"] = Judgement(number, success, {"form": 0.5})
    assert await judged("given", {"problem": "?"}, "so", tmp_path) == GIVEN["reward"]


@pytest.mark.parametrize("reward", [None, math.nan, math.inf, "1", torch.tensor(1.0), 1j, [1.0]])
async def test_what_is_no_reward_is_refused_with_its_place(tmp_path: Path, reward: Any) -> None:
    GIVEN["reward"] = reward
    with pytest.raises(ContractError) as caught:
        await judged("given", {"problem": "?"}, "so", tmp_path)
    assert re.search(
        r"the reward returned .* for the problem 'mine.jsonl:1'; return a finite number", str(caught.value)
    )
    assert str(caught.value).endswith(f"(test_rows.py, line {given.__code__.co_firstlineno})")


async def test_every_column_reaches_an_asynchronous_reward(tmp_path: Path) -> None:
    row = {"problem": "?", "accepted": ["a", "b"], "hint": {"deep": [1, None]}, "missing": None}
    assert (await judged("awaited", row, "<think>a</think>b", tmp_path)).success
    assert not (await judged("awaited", row, "c", tmp_path)).success


def test_a_row_keeps_its_columns_and_needs_no_answer(tmp_path: Path) -> None:
    rows = [{"id": 1, "prompt": "?", "tests": ["x"], "level": 3}, {"problem": "?", "answer": 4, "gone": None}]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = Rows(seed=0, base=tmp_path, reward=f"{__name__}:given", files=("mine.jsonl",)).problems()
    first, second = sorted((source.problem(0, number) for number in range(2)), key=lambda each: each.id)
    assert (first.answer, first.data) == ("", {"file": "mine.jsonl", "tests": ["x"], "level": "3"})
    assert (second.answer, second.data) == ("4", {"file": "mine.jsonl", "gone": None})


def test_a_column_that_is_no_json_is_named(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"problem": ["?"], "raw": [b"\xff"]}), tmp_path / "mine.parquet")
    with pytest.raises(TaskError, match=r"^mine.parquet:1: a column is no JSON \(.*\); leave it out, or write it as"):
        Rows(seed=0, base=tmp_path, reward=f"{__name__}:given", files=("mine.parquet",)).problems()


def test_a_system_message_stands_before_every_problem(tmp_path: Path) -> None:
    made = Rows(seed=0, base=tmp_path, reward=f"{__name__}:given", system="Be brief.")
    asked = made.prompt(Problem("1", "?", payload={"system": "of the file"}))
    assert asked == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "?"}]


def test_a_reward_that_cannot_be_one_is_refused_where_the_task_is_made(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="has no function 'givn'; did you mean 'given'"):
        Rows(seed=0, base=tmp_path, reward=f"{__name__}:givn")
    with pytest.raises(ContractError, match=r"cannot be called with problem and transcript: .*write `def reward\("):
        Rows(seed=0, base=tmp_path, reward=f"{__name__}:narrow")


@pytest.mark.parametrize(
    ("texts", "answer"),
    [
        ((), ""),
        (("first", " last \n"), "last"),
        (("<think>no</think> 4",), "4"),
        (("<think>cut off",), ""),
        (("<answer>1</answer> or <answer> 2 </answer>.",), "2"),
        (("<answer>1</answer> then <answer>2",), "1"),
        (("no </answer> opened",), "no </answer> opened"),
        (("<answer>" * 50_000,), "<answer>" * 50_000),
    ],
)
def test_the_answer_is_what_the_last_turn_says(texts: tuple[str, ...], answer: str) -> None:
    assert Transcript(texts).answer == answer


def test_maths_is_made_after_its_judgement_was_used_alone(tmp_path: Path) -> None:
    assert BoxedAnswers().judge_at_once(Problem("1", "?", "2"), Transcript(("<answer>\\boxed{2}</answer>",))).success  # type: ignore[union-attr]
    (tmp_path / "mine.jsonl").write_text('{"problem": "?", "answer": 2}')
    assert Maths(seed=0, base=tmp_path, files=("mine.jsonl",)).problems().problem(0, 0).answer == "2"
