"""A loss that becomes NaN in a real run: the step is skipped; three in a row stop the run; the next start goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.end_to_end.faulty import BAD_VERSIONS
from tests.end_to_end.processes import balanced, finish, processes_of, rows, start
from tests.end_to_end.topologies import write_half_right


@pytest.mark.slow
def test_one_bad_step_is_skipped_three_stop_the_run_and_it_continues_from_before_them(tmp_path: Path) -> None:
    path, directory = write_half_right(tmp_path, steps=8, learner="tests.end_to_end.faulty:FaultyLearner")
    said = finish(start(path, **{BAD_VERSIONS: "1,3,4,5"}), 2)
    stops = [line for line in (said.all).splitlines() if "stopping the run" in line]
    assert len(stops) == 1
    assert "learner.0: 3 steps of stage 'rl' in a row were not finite and changed nothing (step 4: " in stops[0]
    assert "Traceback" not in said.all
    assert "starting it again" not in said.all
    assert processes_of(path) == []

    newest = max((directory / "checkpoints").iterdir())
    assert newest.name == "version-000003-stage-00"
    assert all(bool(tensor.isfinite().all()) for tensor in load_file(newest / "model.safetensors").values())
    model = AutoModelForCausalLM.from_pretrained(newest)
    assert bool(model(torch.tensor([[5, 6, 7]])).logits.isfinite().all())

    balance = balanced(directory)
    assert (balance.steps, balance.skipped_steps, balance.dropped["not_finite"]) == (6, 4, 8)
    summary = json.loads((directory / "summary.json").read_text())
    assert (summary["steps"], summary["steps_skipped"], summary["groups_dropped_not_finite"]) == (6, 4, 8)
    steps = [row for row in rows(directory / "metrics.jsonl") if row["kind"] == "step"]
    assert [(row["skipped"], row["steps_skipped"], row["groups_trained"]) for row in steps] == [
        (0, 0, 2),
        (1, 1, 0),
        (0, 1, 2),
        (1, 2, 0),
        (1, 3, 0),
        (1, 4, 0),
    ]

    said = finish(start(path))  # what made it NaN is mended
    balance = balanced(directory)
    assert (balance.steps, balance.skipped_steps, balance.open) == (8, 4, 0)
    assert said.summary["steps_skipped"] == 4
