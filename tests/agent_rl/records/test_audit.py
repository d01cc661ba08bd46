"""The audit computes again what the filter wrote: what tokens or judgements say otherwise is a fault with both values."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actors.roc_filter.replay import encode_stored
from agent_rl.figures import StepFigures, TrainingFigures
from agent_rl.messages import Judgement, Trajectory
from agent_rl.records.audit import audit
from agent_rl.records.history import MADE_WITH
from agent_rl.records.journal import GroupRow, Journal
from agent_rl.records.rows import TrajectoryRow
from agent_rl_contract.builders import opened, repacked, trajectory
from tests.agent_rl.records.journals import forget

GROUP = opened(0, version=2)
NAME, KEPT, REWARDS = GROUP.group, ((0, 0), (2, 1)), (1.0, 0.25)
SAMPLES = {(0, 0): (5, 6, 1.0), (1, 0): (4, 7, 0.0), (2, 0): (4, 4, None), (2, 1): (6, 7, 0.25), (3, 0): (6, 6, 1.0)}
"""Of each sample and attempt: the version of its first and of its last tokens, and its reward."""


def rollout(sample: int, attempt: int, first: int, last: int) -> Trajectory:
    """The token of a tool in its middle is of an older version, since the model did not write it."""
    versions = [first] * 3 + [1] + [last] * 2
    made = trajectory(GROUP, sample, attempt=attempt)
    return repacked(made, policies=np.array([(1, version) for version in versions], dtype=np.int32))


@pytest.fixture
def journal(journal: Journal) -> Journal:
    """A group of four in the step at version 7, two of them kept."""
    journal.set_fact(MADE_WITH, json.dumps({"algorithm.keep": 2}))
    journal.open_group(NAME, 0, 0, "train", encode_stored(GROUP))
    for (sample, attempt), (first, last, reward) in SAMPLES.items():
        judgement = None if reward is None else Judgement(reward, success=reward >= 1)
        journal.add_trajectory(
            NAME, sample, attempt, "", encode_stored(rollout(sample, attempt, first, last)), judgement
        )
    journal.ready(NAME, KEPT, REWARDS, 5, 1)
    journal.close_step(7, 0, [NAME], [NAME], StepFigures(staleness_limit=2))
    return journal


def faults(journal: Journal) -> list[str]:
    journal.commit()
    found = audit(journal.path.parent)
    assert found.balanced == (not found.faults)
    return list(found.faults)


def test_tokens_and_judgements_agree_with_the_filter(journal: Journal) -> None:
    assert faults(journal) == []
    journal.step_trained(7, TrainingFigures())
    assert faults(journal) == []
    lines = audit(journal.path.parent).lines()
    assert "staleness of what was trained: at most 2" in lines
    said = "computed again from tokens and judgements: 1 groups in steps; kept 1 of 2 right and 1 of 2 wrong"
    assert said in lines


def group(**changes: Any) -> Callable[[Journal, GroupRow], None]:
    return lambda journal, row: journal._put(replace(row, **changes))


def payload(sample: int, attempt: int, made: Trajectory) -> Callable[[Journal, GroupRow], None]:
    def change(journal: Journal, row: GroupRow) -> None:
        place = journal._store(row.segment, encode_stored(made))
        judgement = journal.outlines(NAME)[sample, attempt]
        journal._put(TrajectoryRow(NAME, sample, attempt, "finished", *place, judgement))

    return change


def judged(reward: float) -> Callable[[Journal, GroupRow], None]:
    return lambda journal, row: journal.judge(NAME, 0, 0, Judgement(reward, success=True))


BY = "by its tokens and judgements"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (group(oldest=6), f"staleness 2 {BY}, 1 by the filter"),
        (group(oldest=4), f"staleness 2 {BY}, 3 by the filter"),
        (payload(2, 1, rollout(2, 1, 6, 3)), f"staleness 4 {BY}, 2 by the filter"),
        (payload(2, 1, repacked(rollout(2, 1, 6, 7), loss_mask=np.zeros(6, np.uint8))), f"staleness 5 {BY}, 2 by the"),
        (group(rewards=(0.25, 1.0)), f"rewards (1.0, 0.25) {BY}, (0.25, 1.0) by the filter"),
        (judged(0.5), f"rewards (0.5, 0.25) {BY}, (1.0, 0.25) by the filter"),
        (judged(0.25), "keeps the rewards (0.25, 0.25), which give no advantage"),
        (group(kept=(), rewards=()), "keeps the rewards (), which give no advantage"),
        (group(kept=((0, 0), (2, 0))), "keeps ((0, 0), (2, 0)), of which the samples [0] alone are judged rollouts"),
        (group(kept=((0, 0), (2, 1), (9, 0))), "of which the samples [0, 2] alone are judged rollouts of the group"),
        (group(kept=((0, 0), (0, 0))), "of which the samples [0] alone are judged"),
        (payload(2, 1, replace(rollout(2, 1, 6, 7), group="s0-g000001")), "of which the samples [0] alone are judged"),
        (payload(2, 1, replace(rollout(2, 1, 6, 7), attempt=0)), "of which the samples [0] alone are judged"),
        (group(kept=((0, 0), (1, 0), (2, 1)), rewards=(1.0, 0.0, 0.25), oldest=4), "keeps 3 rollouts, where algorithm.keep is 2"),
        (payload(2, 1, replace(rollout(2, 1, 6, 7), body=b"short")), "buffer"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("trained", [False, True])
def test_each_field_that_says_otherwise_is_named(
    journal: Journal, change: Callable[[Journal, GroupRow], None], said: str, *, trained: bool
) -> None:
    if trained:
        journal.step_trained(7, TrainingFigures())
    row = journal.group(NAME)
    assert row is not None
    change(journal, row)
    found = [fault for fault in faults(journal) if "beyond its limit" not in fault]
    assert any(fault.startswith(f"{NAME}: ") and said in fault for fault in found), found


def test_groups_that_left_and_groups_of_another_release_are_counted_and_believed(journal: Journal) -> None:
    journal.step_trained(7, TrainingFigures())
    row = journal.group(NAME)
    assert row is not None
    journal._put(replace(row, opened=b"of another release", rewards=(0.5, 0.25)))
    assert faults(journal) == []
    assert "believed, since they left the journal: 1 groups in steps" in audit(journal.path.parent).lines()
    journal._put(replace(row, rewards=(0.5, 0.25)))
    assert len(faults(journal)) == 1
    journal._delete(TrajectoryRow, NAME)
    assert (faults(journal), audit(journal.path.parent).recomputed) == ([], {"left": 1})


def test_payloads_that_changed_are_a_fault_of_their_group_and_a_skipped_step_is_not_read(journal: Journal) -> None:
    journal.commit()
    (file,) = (journal.path.parent / "journal.trajectories").iterdir()
    file.write_bytes(bytes(file.stat().st_size))
    (fault,) = faults(journal)
    assert fault.startswith(f"{NAME}: ")
    assert "is not what was written" in fault
    journal.step_trained(7, TrainingFigures(skipped=True), dropped_for="not_finite")
    assert faults(journal) == []
    forget(journal)
