"""Ids of groups and rollouts, and seeds derived from them: functions of run seed, stage and counters alone."""

from __future__ import annotations

import hashlib


def group_id(stage: int, number: int, at_step: int | None = None) -> str:
    """The id of a stage's group, or of a group of the evaluation after ``at_step`` steps. Only people read ids."""
    return f"s{stage}-g{number:06d}" if at_step is None else f"s{stage}@{at_step}-g{number:06d}"


def rollout_id(group: str, sample: int, attempt: int) -> str:
    """The id of one attempt at one sample of a group."""
    return f"{group}/{sample}/{attempt}"


def rollout_seed(run_seed: int, group: str, sample: int, attempt: int) -> int:
    """A seed in [0, 2**63) for one rollout, from the run's seed and the rollout's name."""
    digest = hashlib.blake2b(f"{run_seed}/{group}/{sample}/{attempt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def strand_seed(seed: int, strand: int) -> int:
    """The seed of a rollout's branch; that of its first sequence is the rollout's."""
    return seed if not strand else rollout_seed(seed, "strand", strand, 0)
