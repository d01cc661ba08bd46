"""Resample on Correct (RoC): sample 2G rollouts, keep G, the cleaner ones among the correct (paper, section GRPO-RoC).

Everything here is pure. A selection is a function of a group and a generator of random numbers; `sound_selection`
checks what it returns.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from agent_rl.config.plugins import ContractError, called, defined_at, resolve
from agent_rl.messages import TagCounts


@dataclass(frozen=True, slots=True)
class Candidate:
    """One judged rollout of a group, as a selection sees it: without its tokens."""

    sample: int
    reward: float
    turns: int
    tool_calls: int
    failed_calls: int
    format_penalty: float
    tokens: int
    success: bool = False
    tags: TagCounts = field(default_factory=TagCounts)


Select: TypeAlias = Callable[[Sequence[Candidate], random.Random], tuple[int, ...]]
"""From a group's candidates and the group's own generator to the positions kept: with unequal rewards, or none at all,
which drops the group."""


def penalty(rollout: Candidate) -> float:
    """The paper's p_err + p_format, in [0, 2]. The outcome of a call says whether it failed, not its response."""
    errors = rollout.failed_calls / rollout.tool_calls if rollout.tool_calls else 0.5
    return errors + rollout.format_penalty


def quotas(positives: int, negatives: int, keep: int) -> tuple[int, int]:
    """Split ``keep`` places between the classes in proportion to their sizes, with at least one of each class.

    The places sum to min(keep, positives + negatives). An exact half goes to the rarer class, whose members have the
    larger advantages.
    """
    keep = min(keep, positives + negatives)
    share = keep * positives / (positives + negatives) if keep else 0.0
    kept = math.floor(share + 0.5) if positives <= negatives else math.ceil(share - 0.5)
    kept = min(kept, positives, keep - min(1, negatives))
    kept = max(kept, min(1, positives), keep - negatives)
    return kept, keep - kept


def _split(group: Sequence[Candidate]) -> tuple[list[int], list[int]]:
    positives = [index for index, rollout in enumerate(group) if rollout.success]
    negatives = [index for index, rollout in enumerate(group) if not rollout.success]
    return positives, negatives


def _weighted(indices: Sequence[int], weights: Sequence[float], count: int, rng: random.Random) -> list[int]:
    """Draw ``count`` distinct indices, each in proportion to the weights of the rest (Efraimidis-Spirakis keys)."""
    keyed = sorted(zip((rng.random() ** (1.0 / w) for w in weights), indices, strict=True), reverse=True)
    return [index for _, index in keyed[:count]]


CLEANEST = 0.05
"""The least penalty that weights distinguish, one error in twenty calls. A penalty of 0 would have infinite weight."""


def _with_signal(group: Sequence[Candidate], chosen: Sequence[int]) -> tuple[int, ...]:
    """The chosen positions, ascending. Where they have one reward and the group has others, the last one is replaced.

    Classes are by success. In a group of one class whose rewards have parts, chance may choose equal rewards alone: of
    eight failures of which one has part of the reward, a draw of four misses this one half of the time. It is kept
    always, for the reason for which `quotas` keep one of each class always: without it the group has no advantages, and
    the work of all its rollouts is lost. So a rare reward weighs up to samples / keep times as much as in a draw that
    drops such groups, as a rare class does.
    """
    kept = sorted(chosen)
    if len(kept) > 1 and not has_signal([group[index].reward for index in kept]):
        others = [index for index, rollout in enumerate(group) if rollout.reward != group[kept[0]].reward]
        kept[-1:] = others[:1] or kept[-1:]
    return tuple(sorted(kept))


def select_paper(group: Sequence[Candidate], rng: random.Random, *, keep: int) -> tuple[int, ...]:
    """The paper's rule: negatives uniformly, positives in inverse proportion to their penalty."""
    positives, negatives = _split(group)
    kept_positives, kept_negatives = quotas(len(positives), len(negatives), keep)
    weights = [1.0 / max(CLEANEST, penalty(group[index])) for index in positives]
    chosen = _weighted(positives, weights, kept_positives, rng) + rng.sample(negatives, kept_negatives)
    return _with_signal(group, chosen)


def select_uniform(group: Sequence[Candidate], rng: random.Random, *, keep: int) -> tuple[int, ...]:
    """Random members of each class: the baseline of RoC (``resampling = "none"``)."""
    positives, negatives = _split(group)
    kept_positives, kept_negatives = quotas(len(positives), len(negatives), keep)
    return _with_signal(group, rng.sample(positives, kept_positives) + rng.sample(negatives, kept_negatives))


class Selection(Protocol):
    """The function that ``algorithm.resampling`` names: `Select` with the number to keep."""

    def __call__(self, group: Sequence[Candidate], rng: random.Random, *, keep: int) -> Sequence[int]:
        """The positions to keep."""


def named_selection(name: str, keep: int) -> Select:
    """The selection of that name (`agent_rl.config.plugins`). Raises PluginError."""
    selection: Selection = resolve("selection", name)
    select: Any = partial(selection, keep=keep)
    place = defined_at(selection)
    select.__qualname__ = name + (f" ({place})" if place else "")
    return cast("Select", select)


def has_signal(rewards: Sequence[float]) -> bool:
    """Whether a group's rewards differ, so that they give advantages."""
    return len(set(rewards)) > 1


def sound_selection(select: Select, group: Sequence[Candidate], rng: random.Random, name: str) -> tuple[int, ...]:
    """The positions that ``select`` keeps of a group with signal, ascending; none drops the group.

    Raises ContractError with the group's ``name`` when ``select`` raises, returns anything but distinct positions in
    the group, or keeps equal rewards alone: these have no advantage over one another.
    """
    what, given = getattr(select, "__qualname__", "select"), f"for {name} of {len(group)} rollouts"
    returned = called(what, lambda: select(group, rng), given, select)
    shown = f"{what} returned {returned!r:.60} {given}"
    try:
        kept = sorted(_position(each) for each in returned)
    except TypeError:
        raise ContractError(f"{shown}; it must return positions, as in (0, 2)") from None
    if any(not 0 <= each < len(group) for each in kept):
        raise ContractError(f"{shown}; positions go from 0 to {len(group) - 1}")
    if len(set(kept)) < len(kept):
        raise ContractError(f"{shown}; it must return each position once")
    if kept and not has_signal([group[each].reward for each in kept]):
        raise ContractError(
            f"{what} kept only rollouts with the reward {group[kept[0]].reward:g} {given}, which have no advantage; "
            "keep some with and some without reward, or none to drop the group"
        )
    return tuple(kept)


def _position(value: object) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)  # type: ignore[arg-type]  # raises TypeError for what is no integer


def made_up_groups(samples: int, minimum: int) -> Iterator[list[Candidate]]:
    """Groups to try a selection on: with few and many successes, of all lengths, clean or not, some not whole."""
    rng = random.Random(0)
    for trial in range(24):
        size = samples if trial % 3 else rng.randint(max(2, min(minimum, samples)), max(2, samples))
        right = (1, size - 1, rng.randint(1, size - 1))[trial % 3]
        rewarded = set(rng.sample(range(size), right))
        yield [_made_up(rng, sample, float(sample in rewarded)) for sample in range(size)]


def _made_up(rng: random.Random, sample: int, reward: float) -> Candidate:
    calls = rng.randint(0, 5)
    return Candidate(
        sample=sample,
        reward=reward,
        turns=calls + 1,
        tool_calls=calls,
        failed_calls=rng.randint(0, calls),
        format_penalty=rng.choice((0.0, 0.25, 1.0)),
        success=reward > 0,
        tokens=rng.randint(1, 4000),
    )


MINIMUM = 2
"""The least number of places of each class, as the code's own example sets it."""


def release_penalty(tags: TagCounts) -> float:
    """The error ratio plus the format penalty, in [0, 2]."""
    errors = tags.error_responses / tags.tool_responses if tags.tool_responses else 0.5
    paired = tags.answers_opened == tags.answers_closed == tags.answers > 0
    return errors + (min((tags.answers - 1) / tags.turns, 1.0) if paired and tags.turns else 1.0)


def select_release(group: Sequence[Candidate], rng: random.Random, *, keep: int) -> tuple[int, ...]:
    """The positions that the public code keeps, without chance; none where it drops the group.

    Rewards other than 0 and 1 may leave equal rewards alone, which have no advantage: the group is then dropped too.
    """
    del rng
    rewards = np.array([rollout.reward for rollout in group], dtype=np.float32)
    if len(group) < keep or np.allclose(rewards[0], rewards):
        return ()
    positives = [index for index, rollout in enumerate(group) if rollout.reward > 0]
    negatives = [index for index, rollout in enumerate(group) if rollout.reward <= 0]
    least = min(MINIMUM, keep // 2)
    least_positive, least_negative = min(least, len(positives)), min(least, len(negatives))
    places = round(len(positives) * keep / len(group))
    if round(len(negatives) * keep / len(group)) <= least_negative:
        places = keep - least_negative
    places = max(places, least_positive)
    cleanest = sorted(positives, key=lambda index: release_penalty(group[index].tags))
    kept = tuple(sorted(cleanest[:places] + negatives[: keep - places]))
    return kept if has_signal([group[index].reward for index in kept]) else ()
