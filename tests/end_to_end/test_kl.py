"""A KL penalty and both ways with long responses, for real: `agent-rl run` with a tiny model, one run after another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.processes import balanced, finish, rows, start
from tests.end_to_end.topologies import write_half_right

STEPS = 4
CHANGES = {
    "[algorithm]": "[algorithm]\n{algorithm}",
    "keep = 2": "keep = 4",  # a group is trained whole
    "learning_rate = 1e-4": "learning_rate = 1e-3",
    "max_response_tokens = 40": "max_response_tokens = 150",  # a model without training then ends some responses
}


def trained_steps(folder: Path, algorithm: str) -> tuple[list[dict[str, Any]], Path]:
    """The steps of a whole run with these lines in ``[algorithm]``, and its last checkpoint."""
    folder.mkdir()
    path, directory = write_half_right(folder, steps=STEPS)
    text = path.read_text()
    for before, after in CHANGES.items():
        assert before in text
        text = text.replace(before, after.format(algorithm=algorithm))
    path.write_text(text)
    said = finish(start(path))
    balanced(directory)
    steps = [row for row in rows(directory / "metrics.jsonl") if row["kind"] == "step"]
    assert len(steps) == STEPS
    page = (directory / "report.html").read_text()
    assert "Divergence from the reference policy" in page
    return steps, Path(said.summary["checkpoint"])


@pytest.mark.slow
def test_a_kl_penalty_to_the_start_of_the_stage_and_then_to_the_checkpoint_of_that_run(tmp_path: Path) -> None:
    masked = 'overlong = "mask"\nkl = { coefficient = 0.1 }'
    steps, checkpoint = trained_steps(tmp_path / "start", masked)
    for step in steps:
        finished = round(step["rollouts"] * (1 - step["truncated_share"]))
        assert step["trained_rollouts"] == finished, "truncated rollouts were trained"
    figures = [step["kl"] for step in steps if step["trained_rollouts"]]
    assert len(figures) >= 2
    assert figures[0] == pytest.approx(0.0, abs=1e-6)  # the policy is still the reference
    assert figures[-1] > 1e-6
    assert any(step["trained_rollouts"] < step["rollouts"] for step in steps)

    punished = (
        f'overlong = "penalty"\noverlong_cache = 20\nkl = {{ coefficient = 0.1, estimator = "k1", '
        f'reference = "{checkpoint}" }}'
    )
    steps, _ = trained_steps(tmp_path / "path", punished)
    assert abs(steps[0]["kl"]) > 1e-6  # this run began before the reference was trained
    assert all(step["trained_rollouts"] == step["rollouts"] for step in steps)
