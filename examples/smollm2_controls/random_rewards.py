"""A control: rewards that say nothing of the answer. A run that improves with them does not learn from its rewards.

    agent-rl run smollm2_word_problems --set environments.0.class=smollm2_controls.random_rewards:RandomRewards \
        --set algorithm.resampling=none --set run.directory=runs/random_rewards

Evaluations go by success, which is true. Resampling on correctness goes by it too, and so is left out.
"""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

from agent_rl.environments.base import Context
from agent_rl.environments.maths import Maths
from agent_rl.messages import Judgement, Problem, Transcript


def coin(problem: Problem, transcript: Transcript, judgement: Judgement) -> Judgement:
    """The judgement with a reward of 0 or 1 by a checksum of the texts, so that it is the same at each judgement."""
    return replace(judgement, reward=float(crc32(f"{problem.id}\n{transcript.text}".encode()) % 2))


class RandomRewards(Maths):
    """`Maths` with a coin for a reward."""

    def judge_at_once(self, problem: Problem, transcript: Transcript) -> Judgement | None:
        """As `Maths`, but for the reward."""
        judgement = super().judge_at_once(problem, transcript)
        return None if judgement is None else coin(problem, transcript, judgement)

    async def judge(self, problem: Problem, transcript: Transcript, context: Context) -> Judgement:
        """As `Maths`, but for the reward."""
        return coin(problem, transcript, await super().judge(problem, transcript, context))
