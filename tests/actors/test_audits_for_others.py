"""What others made is tried. A reward function is asked a thousand answers: what it gets wrong is said, and nothing it does
ends the audit. Of rollouts that another trainer stored, engine and staleness are told apart, and the engine's fault is
named.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from actors.cli.main import main
from tests.agent_rl.learning.guard_faults import write_model

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
def test_a_mistake_about_a_reward_is_one_message(
    folder: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    (folder / "bad.jsonl").write_text('{"problem": "?", "answer": "1", "said": "1"}\n')
    assert main(["audit-reward", *arguments]) == 2
    assert words in capfd.readouterr().err


# Rollouts that another trainer stored -----------------------------------------------------------------------------------

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Versions 1 and 2 of a policy, as peaked as trained ones."""
    first, second = (write_model(tmp_path_factory.mktemp("model") / str(version)) for version in (1, 2))
    model = AutoModelForCausalLM.from_pretrained(first, trust_remote_code=False)
    for tensor in model.parameters():
        tensor.data += 0.02 * torch.randn_like(tensor)
    model.save_pretrained(second)
    return {1: first, 2: second}


@cache
@torch.no_grad()
def sampled(path: Path, *, temperature: float = 1.0, said: int = 2, number: int = 12) -> Rows:
    """Rollouts by the model of ``path``; three tokens of each are a tool's."""
    model = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=False)
    torch.manual_seed(1)
    prompts = torch.randint(10, 60, (number, 8))
    tokens, mask = prompts, [1] * 10 + [0] * 3 + [1] * 7
    for _ in mask:
        chosen = torch.multinomial((model(tokens).logits[:, -1] / temperature).softmax(-1), 1)
        tokens = torch.cat([tokens, chosen], 1)
    logprobs = (model(tokens).logits[:, 7:-1] / temperature).log_softmax(-1)
    responses = tokens[:, 8:]
    given = logprobs.gather(-1, responses[..., None])[..., 0]
    return [
        {"prompt_ids": p, "response_ids": r, "logprobs": g, "mask": mask, "version": said}
        for p, r, g in zip(prompts.tolist(), responses.tolist(), given.tolist(), strict=True)
    ]


@pytest.fixture
def ask(tmp_path: Path, models: dict[int, Path], capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def call(rows: Rows, *options: str) -> tuple[int, str]:
        file = tmp_path / "rollouts.jsonl"
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        code = main(["mismatch", str(file), "--model", str(models[2]), *options])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return call


def test_staleness_is_no_fault_of_the_engine(ask: Callable[..., tuple[int, str]], models: dict[int, Path]) -> None:
    rows = sampled(models[2]) + sampled(models[1], said=1)
    code, printed = ask(rows, "--older", f"1={models[1]}", "--json")
    found = json.loads(printed.splitlines()[0])
    assert (code, found["cause"], found["tokens"], found["unknown"]) == (0, "", 24 * 17, {})
    assert found["figures"]["mismatch_gap"] < 1e-5
    assert found["figures"]["staleness_gap"] > 0.01
    assert found["figures"]["mismatch_tokens"] == 24 * 17


def test_tokens_of_versions_whose_weights_are_not_here_are_counted_and_not_judged(
    ask: Callable[..., tuple[int, str]], models: dict[int, Path]
) -> None:
    code, printed = ask(sampled(models[2]) + sampled(models[1], said=1))
    assert code == 0
    assert "not measured: 204 tokens of version 1; give its weights by --older 1=DIR" in printed


def test_an_engines_fault_is_named(ask: Callable[..., tuple[int, str]], models: dict[int, Path]) -> None:
    code, printed = ask(sampled(models[2], temperature=1.3))
    assert (code, "it samples at a temperature of about 1.3" in printed) == (1, True)
    assert ask(sampled(models[2], temperature=1.3), "--temperature", "1.3")[0] == 0
    code, printed = ask(sampled(models[1], said=2) + sampled(models[1], said=1), "--older", f"1={models[1]}")
    assert (code, "version 1" in printed) == (1, True), "it missed an update"


@pytest.mark.parametrize(
    ("changed", "options", "words"),
    [
        ({"response_ids": "text"}, [], "rollouts.jsonl:1: `response_ids` must be a list of int"),
        ({"logprobs": [-1.0]}, [], "`logprobs` has 1 values, and `response_ids` 20: one for each"),
        ({"prompt_ids": []}, [], "`prompt_ids` must not be empty"),
        ({"mask": [0] * 20}, [], "no rollout has a token that the model wrote"),
        ({"response_ids": [10**6] * 20}, [], "has the token 1000000, and the model the tokens 0 to"),
        ({"logprobs": [float("nan")] * 20}, [], "log-probabilities by the engine of"),
        ({"prompt_ids": [1] * 300}, [], "has 320 tokens;"),
        ({}, ["--older", "3"], "--older 3: give a version and its directory"),
        ({}, ["--older", "2=here"], "--older 2: --model is version 2"),
        ({}, ["--older", "1=nowhere"], "nowhere cannot be loaded"),
    ],
)
def test_a_mistake_about_rollouts_is_one_message(
    ask: Callable[..., tuple[int, str]],
    models: dict[int, Path],
    changed: dict[str, Any],
    options: list[str],
    words: str,
) -> None:
    code, printed = ask([{**sampled(models[2], number=1)[0], **changed}], *options)
    assert code == 2
    assert words in printed
