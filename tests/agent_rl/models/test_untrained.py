"""Tokens that a model never learned are found by their rows, and get rows of their spelling."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from actors.cli.main import main
from agent_rl.config.topology import InitialiseModel
from agent_rl.learning.tiny import initialise_model
from agent_rl.models.hub import described_model
from agent_rl.models.plain_tokenizer import PlainTokenizer
from agent_rl.models.untrained import MANY, untrained
from agent_rl.rollout.prompts import ChatFormat
from agent_rl.topology_checks.environments import _untrained_notes
from tests.agent_rl.rollout.families import SCHEMAS

TAGS = ["<tool_call>", "</tool_call>"]


@pytest.fixture(scope="module", params=[(torch.float32, True), (torch.bfloat16, False)], ids=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose rows for tool tags are, within a hundredth, those of unused tokens."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    dtype, tied = request.param
    path = tmp_path_factory.mktemp("model")
    initialise_model(InitialiseModel(hidden_size=64, layers=1, heads=2, kv_heads=1, head_dim=16, mlp_size=32), path, 0)
    tokenizer, made = AutoTokenizer.from_pretrained(path), AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    unused = [f"<unused{number}>" for number in range(MANY)]
    tokenizer.add_tokens(unused)
    made.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    if not tied:
        made.config.tie_word_embeddings = False
        made.lm_head.weight = torch.nn.Parameter(made.lm_head.weight.clone())
    with torch.no_grad():
        rows = made.get_output_embeddings().weight
        drawn = torch.Generator().manual_seed(7)
        row, noise = rows.std() * torch.randn(64, generator=drawn), 0.005 * torch.randn(MANY + 2, 1, generator=drawn)
        rows[tokenizer.convert_tokens_to_ids([*TAGS, *unused])] = (row * (1 + noise)).to(dtype)
    made.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def notes(path: Path) -> list[str]:
    tokenizer = PlainTokenizer.read(described_model(str(path)), None)
    topology: Any = SimpleNamespace(model=SimpleNamespace(path=str(path)))
    tool = SimpleNamespace(schema=SCHEMAS[0])
    environments: Any = SimpleNamespace(toolboxes={"some": {"look": tool}})
    found = _untrained_notes(topology, ChatFormat(tokenizer, compact=True), environments)
    return [f"{each.message}; {each.remedy}" for each in found]


def test_tokens_with_the_row_of_many_others_are_named_and_spelt(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vocabulary = described_model(str(model)).vocabulary()
    tags = {vocabulary[tag] for tag in TAGS}
    assert untrained(model, range(min(tags))) == {}
    assert untrained(model, tags) == dict.fromkeys(tags, MANY + 1)
    (said,) = notes(model)
    assert said.startswith(
        f"it never learned <tool_call>, </tool_call>: their rows are those of {MANY + 1} other tokens"
    )
    command = said.partition("of their own: ")[2].replace("DIR", str(tmp_path / "spelt")).replace("'", "")
    assert main(command.split()[1:]) == 0
    assert "</tool_call>: the mean of < / t o o l" in capsys.readouterr().out
    assert notes(tmp_path / "spelt") == []
    for file in ("config.json", "tokenizer.json"):
        before, after = (json.loads((each / file).read_text()) for each in (model, tmp_path / "spelt"))
        assert before.keys() == after.keys()


def test_what_cannot_be_spelt_is_refused(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for tokens, said in (([], "name one token"), (["<nothing>"], "'<nothing>' is no token of")):
        assert main(["model", "spell", str(model), "--out", str(tmp_path / "out"), *tokens]) != 0
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
