"""Supervised training on a file of conversations, for real: what they show is what the model answers afterwards."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from transformers import AutoConfig

from tests.end_to_end.processes import finish, start
from tests.end_to_end.topologies import ENVIRONMENT, write_micro

QUESTION, ANSWER = "2 + 2?", "<answer>\\boxed{4}</answer>"


def write_sft(folder: Path, stages: str) -> Path:
    path, _ = write_micro(folder)
    before, rest = path.read_text().split("[[stages]]", 1)
    actors = rest[rest.index("[actors.") :]
    before = before.replace(ENVIRONMENT, 'class = "maths"\nsettings.evaluation_files = ["held_out.jsonl"]')
    path.write_text(before + stages + actors)
    (folder / "held_out.jsonl").write_text(json.dumps({"problem": QUESTION, "answer": "4"}))
    return path


SFT = """
[[stages]]
kind = "sft"
epochs = 160
batch = 4
learning_rate = 1e-2
data = ["chats.jsonl", "more.jsonl.gz"]
weights = [1, 0.5]

[[stages]]
kind = "evaluate"
name = "after"
problems = 1
samples = 4
max_response_tokens = 40
max_turns = 2

"""


@pytest.mark.slow
def test_a_model_answers_as_the_conversations_of_a_file_do(tmp_path: Path) -> None:
    path = write_sft(tmp_path, SFT)
    chat = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": chat}))
    with gzip.open(tmp_path / "more.jsonl.gz", "wt") as file:
        file.write(2 * (json.dumps({"problem": QUESTION, "solution": ANSWER}) + "\n"))
    said = finish(start(path))
    summary = said.summary
    assert summary["success_after_greedy"] == 1.0
    assert summary["success_after_sampled"] >= 0.75
    assert summary["sft_steps"] == 80
    assert 0 < summary["sft_loss"] < 1
    assert f"checkpoint: {summary['checkpoint']}" in said.out.splitlines()
    assert AutoConfig.from_pretrained(summary["checkpoint"]).hidden_size == 32


def test_a_file_that_holds_none_is_refused_before_anything_starts(tmp_path: Path) -> None:
    path = write_sft(tmp_path, SFT)
    (tmp_path / "more.jsonl.gz").write_bytes(gzip.compress(b"\n"))
    assert "stages.0.data.0: no file matches" in finish(start(path), 2).err
    (tmp_path / "chats.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}')
    err = finish(start(path), 2).err
    assert "stages.0.data: chats.jsonl:1: no conversation" in err
    assert "Traceback" not in err
