"""A baseline: the same problems without tools, where the last number of the response is the answer.

    agent-rl eval models/smollm2-135m --topology smollm2_word_problems --max-tokens 192 --n 1 \
        --set environments.0.class=smollm2_controls.without_tools:Direct --out evaluations/direct

`Reasoned` in place of `Direct` asks for the steps first.
"""

from __future__ import annotations

import re
from dataclasses import replace

from agent_rl.environments.base import ChatMessages, Context, Tool
from agent_rl.environments.maths import Maths
from agent_rl.messages import Judgement, Problem, Transcript

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


class Direct(Maths):
    """`Maths` without tools, for models that know no answer tags."""

    tools: tuple[Tool, ...] = ()
    ask = "Answer with the number alone."

    def prompt(self, problem: Problem) -> ChatMessages:
        """The problem, and how to answer it."""
        return [{"role": "user", "content": f"{problem.text}\n{self.ask}"}]

    def judge_at_once(self, problem: Problem, transcript: Transcript) -> Judgement | None:
        """As `Maths`, with the last number as the answer."""
        return super().judge_at_once(problem, boxed(transcript))

    async def judge(self, problem: Problem, transcript: Transcript, context: Context) -> Judgement:
        """Likewise, by meaning."""
        return await super().judge(problem, boxed(transcript), context)

    def control(self) -> tuple[Problem, Transcript]:
        """A half is 0.5."""
        return Problem("control", "What is 1/2?", "1/2"), Transcript(("It is 0.5.",))


def boxed(transcript: Transcript) -> Transcript:
    """The transcript's last number, as `Maths` reads answers."""
    numbers = NUMBER.findall(transcript.text)
    return replace(transcript, texts=(f"<answer>\\boxed{{{numbers[-1]}}}</answer>" if numbers else "",))


class Reasoned(Direct):
    """The maths done by the model itself, step by step."""

    ask = "Think step by step, and end with the answer, a number."
