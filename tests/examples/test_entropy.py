"""The study of token entropy: a run under way, figures by hand, and what it says where nothing is kept."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agent_rl.config.topology import InitialiseModel
from agent_rl.learning.tiny import initialise_model
from agent_rl.messages import ToolCallRecord
from examples.entropy import entropy
from tests.agent_rl.learning import reference_loss
from tests.agent_rl.learning.test_reference_loss import sampled
from tests.agent_rl.records.report_runs import RL, SyntheticRun, byte_tokenizer

CALL = '<tool_call>{"name": "python", "arguments": {"code": "# add\\nprint(\'#1\')"}}</tool_call>'
PIECES = ["I think " + CALL, "<tool_response>\n2\n</tool_response>", "But wait. <answer>\\boxed{2}</answer>"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A model whose tokenizer is that of synthetic runs."""
    directory = tmp_path_factory.mktemp("model")
    spec = InitialiseModel(
        hidden_size=16, layers=1, heads=1, kv_heads=1, head_dim=16, mlp_size=16, max_length=4096, byte_fallback=True
    )
    initialise_model(spec, directory, 0)
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    return directory


def test_a_study_of_a_run_under_way(tmp_path, weights):
    run = SyntheticRun(tmp_path)
    run.version = 1
    run.enter(RL)
    for _ in range(3):
        run.step([[0, 1, 0, 0]], PIECES, [ToolCallRecord(1, "python", "success", 0.1, 0.1)])
    run.journal.commit()
    for version in (1, 2, 40):
        shutil.copytree(weights, run.directory / "checkpoints" / f"version-{version:06d}-stage-02")
    command = [sys.executable, entropy.__file__, str(run.directory), "--rollouts", "2", "--step", "2"]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    assert (found["rollouts"], found["version"], Path(found["model"]).name) == (2, 2, "version-000002-stage-02")
    tokens = sum(map(len, PIECES[::2]))
    assert found["tokens"] == 2 * tokens == sum(kind["tokens"] for kind in found["kinds"].values())
    assert {kind: each["tokens"] / 2 for kind, each in found["kinds"].items()} == {
        "text": len("I think "),
        "comment": len("# add"),  # the '#1' of a string is none
        "call": len(CALL) - len("# add"),
        "after_tool": len(PIECES[2]),
    }
    assert found["high"] == pytest.approx(-(-tokens // 5) / tokens)
    assert found["gap"] > 1  # the journal's log-probabilities are 0
    for kind in ("forking", "reflection"):
        assert all(each["high"] > found["high"] for each in found[kind].values())
    assert found["reflection"].keys() <= {"but", "wait", *"<>/{}\\.2", "answer", "boxed", " "}
    with pytest.raises(SystemExit, match=r"set run\.keep_trajectories"):
        entropy.study(run.directory, step=4)


def test_scores_are_those_of_a_plain_loop_in_rollouts_with_branches_too(weights):
    model: Any = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float64)
    for rollout in (each for group in sampled(1) for each in group.trajectories):
        body = rollout.unpack()
        said = reference_loss.distributions(model, rollout, 0.7)
        expected = np.full((2, len(body.tokens)), math.nan)
        for place, token, _ in reference_loss.written(rollout):
            expected[:, place] = -(said[place].exp() * said[place]).sum().item(), said[place][token].item()
        np.testing.assert_allclose(entropy.scores(model, body, 0.7), expected, rtol=1e-4, atol=1e-4)


def test_means_by_name():
    found = entropy.means(np.array(["b", "a", "b"]), np.array([1.0, 0.5, 2.0]), np.array([True, False, False]))
    assert found["a"] == {"tokens": 1, "entropy": 0.5, "high": 0.0}
    assert found["b"] == {"tokens": 2, "entropy": 1.5, "high": 0.5}
