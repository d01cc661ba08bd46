"""A reward function is asked a thousand answers: what it gets wrong is said, and nothing it does ends the audit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.cli.main import main

REWARDS = """
import os, time
from agent_rl.environments.maths.rewards import answers_equal, final_answer

def maths(problem, transcript):
    found = final_answer(*transcript.texts)
    return found is not None and answers_equal(problem.answer, found)

def contains(prompts, completions, answer, **kwargs):
    return [float(gold in said[0]["content"]) for gold, said in zip(answer, completions)]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 1.0 if solution_str == ground_truth else 0.0}

def uneven(problem, transcript):
    match transcript.text:
        case "dies": os._exit(3)
        case "hangs": time.sleep(60)
        case "raises": raise KeyError("no such thing")
        case "catches":
            while True:
                try: time.sleep(60)
                except Exception: pass
        case "nan": return float("nan")
        case "none": return None
    return transcript.text == problem.answer

def of_columns(problem, transcript):
    return transcript.text in problem.data["kind"] and not {"right", "said"} & problem.data.keys()

def columns_of_trl(completions, kind, **kwargs):
    return [float(said[0]["content"] in allowed) for said, allowed in zip(completions, kind)]

def columns_of_verl(solution_str, extra_info):
    return float(solution_str in extra_info["kind"])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "audited_rewards.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def faults(folder: Path, function: str, *options: str, code: int) -> list[dict[str, object]]:
    assert main(["audit-reward", f"audited_rewards:{function}", "--out", "faults.jsonl", *options]) == code
    return [json.loads(line) for line in (folder / "faults.jsonl").read_text().splitlines()]


def test_our_own_maths_accepts_nothing_wrong(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = faults(folder, "maths", code=0)
    assert [(each["fault"], each["said"]) for each in found] == [("false reject", "<answer>\\boxed{5\\}</answer>")]
    assert "all                                                           1047 " in capfd.readouterr().out


def test_a_reward_of_trl_that_looks_for_the_answer_anywhere_is_found_out(folder: Path) -> None:
    found = faults(folder, "contains", code=1)
    kinds = {each["kind"] for each in found if each["fault"] == "false accept"}
    assert {"attack: the answer in a thought alone", "attack: a list of guesses", "attack: a denial"} <= kinds
    assert len(found) > 400


def test_whatever_a_reward_does_of_one_case_the_others_are_asked(folder: Path) -> None:
    said = ["dies", "hangs", "raises", "catches", "nan", "none", "2", "3"]
    rows = [{"problem": "1+1?", "answer": 2, "said": each, "right": each == "2"} for each in said]
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = faults(folder, "uneven", "--cases", "mine.jsonl", "--seconds", "0.3", code=1)
    assert {each["said"]: each["fault"] for each in found} == {
        "dies": "crash",
        "hangs": "time-out",
        "raises": "crash",
        "catches": "time-out",
        "nan": "crash",
        "none": "crash",
    }
    details = {str(each["said"]): str(each["detail"]) for each in found}
    assert details["raises"] == "KeyError: 'no such thing'"
    assert details["none"] == "it returned None, which is no finite number"


@pytest.mark.parametrize("function", ["of_columns", "columns_of_trl", "columns_of_verl"])
def test_a_reward_reads_the_columns_of_cases_and_nothing_else_of_them(
    folder: Path, function: str, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [{"problem": "Which?", "kind": ["a", "b"], "said": said, "right": said < "c"} for said in "abc"]
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert faults(folder, function, "--cases", "mine.jsonl", code=0) == []
    lacking = "".join(json.dumps({**row, "kind": None}) + "\n" for row in rows)
    (folder / "mine.jsonl").write_text(lacking)
    assert {each["fault"] for each in faults(folder, function, "--cases", "mine.jsonl", code=1)} == {"crash"}
    assert "every case crashed; a reward that reads further columns" in capfd.readouterr().out


def test_the_signature_of_verl_is_asked_in_the_form_that_is_given(folder: Path) -> None:
    found = faults(folder, "compute_score", "--form", "%s", code=0)
    assert {each["fault"] for each in found} == {"false reject"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere:reward"], "there is no module 'nowhere'"),
        (["audited_rewards:math"], "has no function 'math'; did you mean 'maths'"),
        (["audited_rewards:maths", "--form", "boxed"], "must have %s once"),
        (["audited_rewards:maths", "--cases", "none.jsonl"], "none.jsonl: cannot be read"),
        (
            ["audited_rewards:maths", "--cases", "bad.jsonl"],
            "bad.jsonl:1: `said` must be text, and `right` true or false",
        ),
    ],
)
def test_mistakes_are_one_message(
    folder: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    (folder / "bad.jsonl").write_text('{"problem": "?", "answer": "1", "said": "1"}\n')
    assert main(["audit-reward", *arguments]) == 2
    assert words in capfd.readouterr().err
