"""Rollouts that another trainer stored: engine and staleness are told apart, and the engine's fault is named."""

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
    assert code == 1
    assert "it samples at a temperature of about 1.3" in printed
    assert ask(sampled(models[2], temperature=1.3), "--temperature", "1.3")[0] == 0


def test_an_engine_that_missed_an_update_is_named(ask: Callable[..., tuple[int, str]], models: dict[int, Path]) -> None:
    code, printed = ask(sampled(models[1], said=2) + sampled(models[1], said=1), "--older", f"1={models[1]}")
    assert code == 1
    assert "version 1" in printed


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
def test_mistakes_are_one_message(
    ask: Callable[..., tuple[int, str]],
    models: dict[int, Path],
    changed: dict[str, Any],
    options: list[str],
    words: str,
) -> None:
    code, printed = ask([{**sampled(models[2], number=1)[0], **changed}], *options)
    assert code == 2
    assert words in printed
