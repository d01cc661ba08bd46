"""The comparison with the authors' public code, on stand-ins for its checkout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.cli.main import main

CODE = """
import torch
from verl.protocol import DataProto

def chosen(batch, wanted):
    mask = torch.zeros(len(batch), dtype=torch.bool)
    mask[wanted] = True
    return batch[mask]

def reject_equal_reward(batch, do_sample, world_size):
    equal = len(set(batch.batch["token_level_scores"].sum(-1).tolist())) == 1
    return (None if equal else batch), {{}}

def resample_of_correct(batch, tokenizer, config, do_sample, world_size):
    assert all(isinstance(item.non_tensor_batch["response_text"], str) for item in batch)
    rewards = batch.batch["token_level_scores"].sum(-1)
    keep = config["down_sample_to_n"]
    assert keep != 7, "it fails"
    kept = [i for i in range(len(batch))] if len(batch) {test} keep else []
    return chosen(batch, kept), {{}}
"""
"""Decides no group of more than ``keep`` rollouts as the public code does; of others, those that the test lets pass."""


def checkout(folder: Path, test: str) -> Path:
    package = folder / "rstar2_agent" / "down_sample"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .rules import reject_equal_reward, resample_of_correct\n")
    (package / "rules.py").write_text(CODE.format(test=test))
    return folder


def figures(capsys: pytest.CaptureFixture[str], folder: Path) -> dict[str, float]:
    assert main(["bench", "release", "--checkout", str(folder), "--groups", "40"]) == 0
    return dict(json.loads(capsys.readouterr().out.splitlines()[-1]))


def test_groups_that_are_decided_alike_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = figures(capsys, checkout(tmp_path / "some", "=="))
    fewer = figures(capsys, checkout(tmp_path / "fewer", "<="))  # it keeps groups that are too small
    assert 0 < fewer["release_agreement"] < some["release_agreement"] < 1
    assert some["release_groups"] + some["release_failed"] == 40
    assert some["release_failed"] > 0


def test_a_checkout_without_the_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "release", "--checkout", str(tmp_path)]) == 2
    assert "is not there; clone https://github.com/microsoft/rStar" in capsys.readouterr().err
