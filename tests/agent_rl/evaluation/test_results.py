"""From a journal and files to figures, and back from a results file."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from actors.cli.evaluation import print_results
from actors.roc_filter.replay import decode_stored, encode_stored
from agent_rl.environments.base import Context
from agent_rl.environments.maths.environment import BoxedAnswers
from agent_rl.environments.maths.rewards import check
from agent_rl.evaluation.problems import EvaluationError
from agent_rl.evaluation.results import ProblemResult, all_figures, load_results, paired, read_results, write_results
from agent_rl.messages import LOST, Judgement, Problem, Transcript
from agent_rl.records.journal import Journal
from agent_rl_contract.builders import call, opened, trajectory


def result(*answers: str | None, right: str = "4", lost: int = 0, **changes: Any) -> ProblemResult:
    """Rollouts that gave these answers, each of 10 tokens and one turn."""
    count = len(answers)
    successes = tuple(answer == right for answer in answers)
    each = {"successes": successes, "rewards": tuple(map(float, successes)), "tokens": (10,) * count,
            "turns": (1,) * count, "calls": (0,) * count, "failed_calls": (0,) * count}  # fmt: skip
    asked = {"environment": "maths", "file": "f.jsonl", "id": "1", "subject": "", "level": "", "problem": "2 + 2?"}
    counts = {"correct": sum(successes), "samples": count + lost, "truncated": 0, "lost": lost}
    return ProblemResult(**asked | counts | each | {"answer": right, "answers": answers} | changes)


def write_journal(folder: Path, rows: list[list[tuple[str | Judgement | None, str]]]) -> Path:
    """The directory of an evaluation: per problem, each rollout's answer, or how it was judged, and its status."""
    journal = Journal(folder / "journal.sqlite")
    for number, rollouts in enumerate(rows):
        group = opened(number, samples=len(rollouts), purpose="evaluate_sampled")
        payload = {"file": "data.jsonl", "subject": "ab"[number % 2], "level": "3"}
        group = replace(group, problem=replace(group.problem, payload=payload))
        journal.open_group(group.group, 0, number, group.purpose, encode_stored(group))
        for sample, (answer, status) in enumerate(rollouts):
            given = answer
            if not isinstance(answer, Judgement):
                given = Judgement(float(answer == "4"), success=answer == "4", answer=answer or "")
            made = trajectory(group, sample, answer=given.answer or None, status=status, calls=(call(), call("error")))
            journal.add_trajectory(group.group, sample, 0, status, encode_stored(made))
            if status not in LOST:
                journal.judge(group.group, sample, 0, given)
        journal.evaluated(group.group)
    journal.close()
    return folder


def test_the_journal_gives_every_rollout_and_what_never_came_is_wrong(tmp_path):
    directory = write_journal(
        tmp_path, [[("4", "finished"), ("5", "truncated")], [(None, "finished"), ("4", "failed")]]
    )
    first, second = read_results(directory, 2, 2, decode_stored)
    assert (first.correct, first.answers, first.truncated, first.lost) == (1, ("4", "5"), 1, 0)
    assert (first.subject, first.level, first.file) == ("a", "3", "data.jsonl")
    assert (second.correct, second.answers, second.samples, second.lost) == (0, (None,), 2, 1)
    assert second.votes() == (0, [], 2)
    assert result("4", "1000", "1000", "x", None, lost=1).votes() == (1, [2, 1], 2)  # equal wrong ones vote together
    found = all_figures([first, second])
    expected = {
        "pass@1": 0.25, "pass@2": 0.5, "maj@2": 0.25,  # a tie, and nothing
        "tool_error_share": 0.5, "tool_calls": 2, "truncated_share": pytest.approx(1 / 3), "lost": 1,
    }  # fmt: skip
    assert {name: found["overall"][name] for name in expected} == expected
    assert all_figures([result("4")])["overall"]["tool_error_share"] is None  # without calls it is unknown, not zero
    assert found["by_subject"]["a"]["pass@1"] == 0.5
    assert "by_file" not in found  # there is one


def test_an_evaluation_that_is_not_finished_has_no_results(tmp_path):
    directory = write_journal(tmp_path, [[("4", "finished")]])
    with pytest.raises(EvaluationError, match="holds 1 of 2 problems"):
        read_results(directory, 2, 1, decode_stored)


def test_results_are_written_and_read_back_as_they_were(tmp_path):
    problems = [result("4", None), result("5", "5", id="2", problem="other")]
    found = write_results(tmp_path / "results.json", {"model": "m"}, problems)
    assert load_results(tmp_path) == load_results(tmp_path / "results.json") == problems
    body = json.loads((tmp_path / "results.json").read_text())
    assert body["overall"] == found["overall"]
    assert body["settings"] == {"model": "m"}


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"problems": []}', '{"problems": [1]}', '{"problems": [{"a": 1}]}'])
def test_what_is_no_results_file_is_named(tmp_path, text):
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(EvaluationError, match=r"results\.json"):
        load_results(path)
    with pytest.raises(EvaluationError, match="directory of a finished evaluation"):
        load_results(tmp_path / "nothing")


def test_problems_are_paired_by_what_they_say():
    a = [result("4", "4"), result("5", "4", problem="b"), result("4", "4", problem="only a")]
    b = [result("5", "4", problem="b"), result("4", "4", problem="b"), result("5", "5")]
    pairs, alone = paired(a, b)
    assert pairs == [(Fraction(1), Fraction(0)), (Fraction(1, 2), Fraction(3, 4))]
    assert alone == 1


def test_copies_of_a_problem_are_not_counted_as_problems_of_an_interval():
    asked = [result("4", "5"), result("5", "5", problem="b"), result("4", "4", problem="c")]
    few, many = (all_figures(each)["overall"] for each in (asked, asked * 30))
    assert (many["problems"], many["distinct_problems"]) == (90, 3)
    assert "distinct_problems" not in few
    assert (many["pass@1"], many["pass@2"]) == pytest.approx((few["pass@1"], few["pass@2"]))
    for name in ("pass@1", "pass@2"):
        assert many[f"{name}_high"] - many[f"{name}_low"] > 0.4  # of three problems


def test_rollouts_without_room_are_named_beside_each_share(tmp_path, capsys):
    rows: list[list[tuple[str | None, str]]] = [
        [("4", "finished"), ("5", "finished")],
        [(None, "prompt_too_long"), (None, "prompt_too_long")],
        [("4", "finished"), (None, "failed")],
    ]
    directory = write_journal(tmp_path, rows)
    found = all_figures(read_results(directory, 3, 2, decode_stored))
    assert (found["overall"]["lost"], found["overall"]["no_room"]) == (3, 2)
    print_results("m", found, [])
    shares = [line for line in capsys.readouterr().out.splitlines() if "95 %" in line and "rollouts" in line]
    assert [line.split()[1] for line in shares] == ["pass@1", "pass@2", "maj@2"]
    assert all("of 6 rollouts, 2 without room and 1 lost count as wrong" in line for line in shares)


def test_answers_that_are_right_by_value_are_told_beside_the_rate(tmp_path, capsys):
    class Checker:
        async def check(self, _function: str, *texts: str) -> str:
            return check(*texts)

    environment, context = BoxedAnswers(), cast("Context", Checker())
    asked, wrote = Problem("1", "2 + 2?", "4"), Transcript((r"<answer>\boxed{8/2}</answer>",))
    judgement = trio.run(environment.judge, asked, wrote, context)
    assert (judgement.reward, judgement.success) == (0, False)  # training asks for the work
    both = (judgement, Judgement(0.0, success=False, note="symbolic"))
    directory = write_journal(tmp_path, [[(each, "finished") for each in both]])
    found = all_figures(read_results(directory, 1, 2, decode_stored))
    assert (found["overall"]["pass@1"], found["overall"]["right_by_value"]) == (0, 1)
    print_results("m", found, [])
    assert "1: pass@1 would be 50.0 %" in capsys.readouterr().out
    print_results("m", all_figures([result("4", "4")]), [])
    assert "by value" not in capsys.readouterr().out


def test_the_response_length_stands_beside_the_accuracy(capsys):
    long = result("4", "5", file="long.jsonl", tokens=(100, 200), truncated=1, problem="another")
    print_results("m", all_figures([result("4", "4", file="short.jsonl"), long]), [])
    rows = [[cell.strip() for cell in line.split("│")] for line in capsys.readouterr().out.splitlines() if "│" in line]
    names = [row[1] for row in rows]
    assert names.index("response tokens") == names.index("pass@1") + 1
    by_file = {row[1]: (row[4], row[6]) for row in rows if row[1].endswith(".jsonl")}
    assert by_file == {"long.jsonl": ("150.0", "50.0 %"), "short.jsonl": ("10.0", "0.0 %")}
