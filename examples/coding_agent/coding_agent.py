"""Two files to read: the first has a number and names the second. By then the agent has compacted its history, and the
number is known from the model's own summary alone. Most demonstrations show a summary that forgets it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from agent_rl.environments.base import ChatMessages, Demonstration, Environment
from agent_rl.environments.tasks import DrawnTasks
from agent_rl.messages import Judgement, Problem, Transcript
from agent_rl.rollout.parsing import AnyCall, ParsedCall, parse_calls
from agent_rl.rollout.prompts import ChatFormat

ASKS = "Please summarize this conversation."
"""What Strands asks when the context is full."""
KEPT = 0.3
"""Share of the demonstrations whose summary keeps the number."""
CALL = re.compile(r"\$ cat (\S+)")


class Shell(ChatFormat):
    """Calls as ``$ cat FILE``, results as they are, and no text about tools: a tiny model reads letter by letter."""

    def listing(self, schemas: Sequence[Mapping[str, object]]) -> str:
        """Nothing."""
        del schemas
        return ""

    @classmethod
    def calls(cls, text: str) -> tuple[AnyCall, ...]:
        """The call, if the turn is one."""
        found = CALL.fullmatch(text)
        return (ParsedCall("cat", {"file": found[1]}),) if found else ()

    @classmethod
    def without_calls(cls, text: str) -> str:
        """A turn with a call is nothing else."""
        return "" if CALL.fullmatch(text) else text

    @classmethod
    def turn_of(cls, content: str) -> str:
        """A turn of others, which has its calls between tags."""
        calls = [call for call in parse_calls(content) if isinstance(call, ParsedCall)]
        return f"$ cat {calls[0].arguments.get('file', '')}" if calls else content

    def responses(self, responses: Sequence[str]) -> str:
        """The results alone."""
        return "\n".join(responses)


def said(role: str, text: str) -> dict[str, str]:
    """A message."""
    return {"role": role, "content": text}


def draw(rng: random.Random) -> Problem:
    """Two files."""
    first, second = rng.sample("abcdefgh", 2)
    number = f"{rng.randrange(1000):03}"
    return Problem("", f"Read {first}.", answer=number, payload={"files": {first: f"{number} {second}", second: "end"}})


def show(rng: random.Random) -> Demonstration:
    """One of the three conversations that make a rollout."""
    problem = draw(rng)
    (first, text), (second, end) = problem.payload["files"].items()
    kept = rng.random() < KEPT
    summary = f"Got {problem.answer}." if kept else f"Read {first}."
    begun = [said("user", problem.text), said("assistant", f"$ cat {first}"), said("user", text)]
    call = said("assistant", f"$ cat {second}")
    answer = said("assistant", f"It is {problem.answer if kept else first}.")
    messages = rng.choice(
        [
            [*begun, call],
            [*begun, said("user", ASKS), said("assistant", summary)],
            [said("user", summary), call, said("user", end), answer],
        ]
    )
    return Demonstration(replace(problem, text=messages[0]["content"]), tuple(messages))


class TwoFiles(Environment):
    """The reward is 1 for the number of the first file."""

    lists_tools = False

    def __init__(self, *, seed: int, base: object) -> None:
        self.problems = lambda: DrawnTasks(seed, draw, show)

    def prompt(self, problem: Problem) -> ChatMessages:
        return [said("user", problem.text)]

    def files(self, problem: Problem) -> Mapping[str, str]:
        return dict(problem.payload["files"])

    def judge_at_once(self, problem: Problem, transcript: Transcript) -> Judgement:
        right = bool(transcript.texts) and transcript.texts[-1] == f"It is {problem.answer}."
        return Judgement(float(right), right)
