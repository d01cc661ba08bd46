"""Kinds of stages and what they ask for, for real: conversations of a file, evaluations within reinforcement learning, a
curriculum, a penalty.
"""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from transformers import AutoConfig

from actors.roc_filter.replay import decode_stored
from tests.end_to_end.processes import Run
from tests.end_to_end.topologies import ENVIRONMENT, write_half_right, write_micro

QUESTION, ANSWER = "2 + 2?", "<answer>\\boxed{4}</answer>"
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


def taught(folder: Path) -> Run:
    """A run of these stages alone, without the files that it is taught by."""
    path, directory = write_micro(folder)
    before, rest = path.read_text().split("[[stages]]", 1)
    before = before.replace(ENVIRONMENT, 'class = "maths"\nsettings.evaluation_files = ["held_out.jsonl"]')
    path.write_text(before + SFT + rest[rest.index("[actors.") :])
    (folder / "held_out.jsonl").write_text(json.dumps({"problem": QUESTION, "answer": "4"}))
    return Run(path, directory)


@pytest.mark.slow
def test_a_model_answers_as_the_conversations_of_a_file_do(tmp_path):
    run = taught(tmp_path)
    chat = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": chat}))
    with gzip.open(tmp_path / "more.jsonl.gz", "wt") as file:
        file.write(2 * (json.dumps({"problem": QUESTION, "solution": ANSWER}) + "\n"))
    said = run.to_end()
    summary = said.summary
    assert summary["success_after_greedy"] == 1.0
    assert summary["success_after_sampled"] >= 0.75
    assert summary["sft_steps"] == 80
    assert 0 < summary["sft_loss"] < 1
    assert f"checkpoint: {summary['checkpoint']}" in said.out.splitlines()
    assert AutoConfig.from_pretrained(summary["checkpoint"]).hidden_size == 32


def test_a_file_that_holds_none_is_refused_before_anything_starts(tmp_path):
    run = taught(tmp_path)
    (tmp_path / "more.jsonl.gz").write_bytes(gzip.compress(b"\n"))
    assert "stages.0.data.0: no file matches" in run.to_end(code=2).err
    (tmp_path / "chats.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}')
    err = run.to_end(code=2).err
    assert "stages.0.data: chats.jsonl:1: no conversation" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_interrupted_an_evaluation_within_a_stage_goes_on_and_is_told_once(tmp_path):
    evaluate = "stages.2.evaluate={every=2, problems=3, samples=2}"
    run = Run(*write_micro(tmp_path, steps=12))
    run.start(evaluate).until(3).interrupt()
    run.finished(run.to_end(evaluate), steps=12, evaluations=7)
    found = [row for row in run.told("evaluation") if "@" in row["stage"]]
    assert [row["stage"] for row in found] == [f"rl@{step}" for step in (2, 4, 6, 8, 10)]
    for row in found:
        stage = row["stage"]
        assert (row[f"version_oldest_{stage}"] >= row["version"], row[f"lost_{stage}_sampled"]) == (True, 0)
    assert "rl@4" in run.text("report.html")
    with run.journal() as journal:
        assert sorted(journal.interim_evaluations(2)) == [2, 4, 6, 8, 10]


@pytest.mark.slow
def test_problems_come_again_and_what_was_observed_outlives_its_processes(tmp_path):
    steps, again = 20, "algorithm.curriculum_settings={again = 0.8, rest = 3}"
    run = Run(*write_half_right(tmp_path, steps=steps)).start('algorithm.curriculum="frontier"', again)
    for role, done in (("kv_scheduler", 3), ("roc_filter", 6)):
        run.until(done).killed(role)
    run.finish()
    run.balanced(steps=steps)
    with run.journal() as journal:
        decided = journal.groups(stage=0, states=("trained", "dropped"))
        drawn = [decode_stored(row.opened).drawn for row in decided]
        observed = {row.number for row in journal.sampled(0)}
    assert observed == {row.number for row in decided if row.decided_order}
    assert set(drawn) == set(range(max(drawn) + 1))
    assert sum(count - 1 for count in Counter(drawn).values()) > 0.4 * len(drawn)


STEPS = 4
CHANGES = {
    "[algorithm]": "[algorithm]\n{algorithm}",
    "keep = 2": "keep = 4",  # a group is trained whole
    "learning_rate = 1e-4": "learning_rate = 1e-3",
    "max_response_tokens = 40": "max_response_tokens = 150",  # a model without training then ends some responses
}


def trained_steps(folder: Path, algorithm: str) -> tuple[list[dict], Path]:
    """The steps of a whole run with these lines in ``[algorithm]``, and its last checkpoint."""
    folder.mkdir()
    run = Run(*write_half_right(folder, steps=STEPS))
    text = run.path.read_text()
    for before, after in CHANGES.items():
        assert before in text
        text = text.replace(before, after.format(algorithm=algorithm))
    run.path.write_text(text)
    said = run.to_end()
    run.balanced()
    steps = run.told("step")
    assert len(steps) == STEPS
    assert "Divergence from the reference policy" in run.text("report.html")
    return steps, Path(said.summary["checkpoint"])


@pytest.mark.slow
def test_a_kl_penalty_to_the_start_of_the_stage_and_then_to_the_checkpoint_of_that_run(tmp_path):
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

    kl = f'kl = {{ coefficient = 0.1, estimator = "k1", reference = "{checkpoint}" }}'
    steps, _ = trained_steps(tmp_path / "path", f'overlong = "penalty"\noverlong_cache = 20\n{kl}')
    assert abs(steps[0]["kl"]) > 1e-6  # this run began before the reference was trained
    assert all(step["trained_rollouts"] == step["rollouts"] for step in steps)
