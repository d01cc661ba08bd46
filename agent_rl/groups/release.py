"""The selection of the authors' public code, ``resampling = "release"``: ``down_sample`` of github.com/microsoft/rStar.

It differs from the paper, and everything here follows the code, flaws included:

- The penalty is read from the tags of the response's text (`agent_rl.messages.TagCounts`). A tool response with the
  word "error" in it is an error. Turns are counted where an assistant's header stands in the response, so there is one
  less than the model wrote; a rollout of one turn has the full format penalty. So have answer tags that do not pair up.
- The classes are by reward: above 0, or not. The cleanest of the one class are kept, and the first of the other.
- Each class's places are rounded to even at an exact half; then each class gets at least 2 places.
- A group of fewer rollouts than ``keep`` is dropped. A group of ``keep`` rollouts is kept whole.

The code fails where the rounded places do not sum to ``keep``, which takes an odd ``keep``; here the second class gets
the rest. It rejects ``keep`` below 4; here each class then gets at least 1 place.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from agent_rl.groups.resampling import Candidate, has_signal
from agent_rl.messages import TagCounts

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
