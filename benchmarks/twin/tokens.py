"""Text of the twin: what engines write, how it is read, and how rollouts are judged, without a tokenizer.

One token stands for a run of tokens. Its value holds the number of tokens in the run, and flags of the turn's text. So
a rollout of 10,000 tokens is a dozen numbers, and all actors handle real arrays. A turn ends with `STOP`, a run of one
token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import numpy as np

from actors.engines.base import TurnResult
from agent_rl.environments.base import ChatMessages, Context, Environment, TaskSource, Tool, ToolOutput
from agent_rl.environments.tasks import DrawnTasks
from agent_rl.messages import Judgement, PolicyVersion, Problem, Transcript
from agent_rl.rollout.episode import Episode, Strand
from agent_rl.rollout.parsing import AnyCall, ParsedCall
from agent_rl.rollout.prompts import ChatFormat

CALLS, RIGHT = 1 << 30, 1 << 29
"""Flags: the turn calls the tool; the answer is right."""
LENGTH = RIGHT - 1
"""Bits of the length of a run."""
FEW = 32
"""With fewer tokens than this, a loop in Python is faster than numpy."""
STOP = 1
NAME = "twin"
"""The environment, and its tool."""
LOGPROB = -0.5


def length(tokens: Iterable[int]) -> int:
    """The number of tokens that these stand for."""
    return sum([token & LENGTH for token in tokens])


def array_length(tokens: np.ndarray[Any, Any]) -> int:
    """The number of tokens that an array of these stands for."""
    if len(tokens) > FEW:
        return int((tokens & LENGTH).sum())
    return length(tokens.tolist())


def written(runs: Sequence[tuple[PolicyVersion, int]], flag: int) -> TurnResult:
    """A turn of these runs of tokens, each by the policy that sampled it; ``flag`` says what the text is."""
    pieces = [(policy, count) for policy, count in runs if count]
    policy, last = pieces.pop()
    values = [(each, count) for each, count in pieces]
    if last > 2:
        values.append((policy, last - 2))
    values += [(policy, flag | min(1, last - 1)), (policy, STOP)]
    return TurnResult(
        tokens=np.array([value for _, value in values], dtype=np.int32),
        logprobs=np.full(len(values), LOGPROB, dtype=np.float32),
        policies=np.array([[each.epoch, each.version] for each, _ in values], dtype=np.int32),
        finish="stop",
    )


class RunsEpisode(Episode):
    """An episode whose tokens are runs."""

    def tokens_of(self, strand: Strand) -> Sequence[int]:
        """As many as all runs have. Nobody reads their values: an engine of the twin only counts them."""
        return range(length(strand.shared) + length(strand.tokens))

    @property
    def lengths(self) -> tuple[int, int]:
        """As many as all runs have."""
        return length(self._first.shared), length(self._first.tokens)

    def budget_of(self, strand: Strand) -> int:
        """Response tokens left, and two for the end of a turn of one token."""
        return self._room - length(strand.tokens) + 2


class RunsFormat(ChatFormat):
    """Prompts and tool results of given lengths, and turns that either call the tool or end the rollout."""

    def __init__(self, environments: Mapping[str, Environment]) -> None:
        self.environments = environments
        self.stop_tokens = frozenset({STOP})

    def prompt_tokens(self, problem: Problem) -> list[int]:
        """So many tokens as the problem says."""
        return [int(problem.payload["tokens"])]

    def response_tokens(self, responses: Sequence[str], calls: Sequence[AnyCall] = ()) -> list[int]:
        """So many tokens as the results say."""
        del calls
        return [sum(int(text) for text in responses)]

    def turn_text(self, tokens: Sequence[int]) -> str:
        """What the turn is, in a word."""
        last = tokens[-1]
        return "call" if last & CALLS else "right" if last & RIGHT else "wrong"

    @classmethod
    def calls(cls, text: str) -> tuple[AnyCall, ...]:
        """The call of a turn, if it is one."""
        return (ParsedCall(NAME, {}),) if text == "call" else ()

    def decode(self, tokens: Sequence[int]) -> str:
        """Nothing: runs have no text."""
        del tokens
        return ""

    def differences(self) -> list[str]:
        """None: there is no template."""
        return []

    def rewriting(self) -> str:
        """Nothing: there is no template."""
        return ""

    def too_long(self, problems: Sequence[Problem], longest: int) -> list[tuple[Problem, int]]:
        """None: the trace was checked."""
        del problems, longest
        return []


class ModelledTool:
    """The tool of the twin: the executor's result says how many tokens the model reads."""

    name = NAME
    schema: ClassVar[Mapping[str, Any]] = {
        "type": "function",
        "function": {"name": NAME, "description": "Modelled.", "parameters": {"type": "object", "properties": {}}},
    }
    runs = "host"
    stateful = False
    seconds = None

    async def call(self, arguments: Mapping[str, Any], state: bytes, context: Context) -> ToolOutput:
        """The twin's executors answer without it."""
        raise NotImplementedError

    def render(self, output: ToolOutput) -> str:
        """The number of tokens."""
        return output.stdout


class ModelledEnvironment(Environment):
    """Judges a rollout by the word that its last turn is."""

    tools: Sequence[Tool] = (ModelledTool(),)  # type: ignore[assignment]

    def __init__(self, *, seed: int, base: Path) -> None:
        del base
        self._tasks = DrawnTasks(seed, _problem)

    def problems(self) -> TaskSource:
        """Stand-ins: the twin's scheduler takes its problems from the trace."""
        return self._tasks

    def prompt(self, problem: Problem) -> ChatMessages:
        """The text alone."""
        return [{"role": "user", "content": problem.text}]

    def judge_at_once(self, problem: Problem, transcript: Transcript) -> Judgement:
        """Right or wrong."""
        del problem
        right = bool(transcript.texts) and transcript.texts[-1] == "right"
        return Judgement(float(right), success=right)


def _problem(rng: Random) -> Problem:
    return Problem("", str(rng.random()), payload={"tokens": 1})
