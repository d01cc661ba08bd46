"""The environment of maths problems from files, and the judgement of boxed answers, which others may derive from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import PositiveFloat

from agent_rl.environments import python_tools
from agent_rl.environments.base import ChatMessages, CheckError, Context, Environment, Tool
from agent_rl.environments.maths.rewards import answer_tags, answer_text, exactly_equal, final_answer
from agent_rl.environments.rows import FileProblems
from agent_rl.messages import Judgement, Problem, Transcript

SYSTEM = """You solve problems by reasoning step by step, with tools where they help.
Put your reasoning between <reason> and </reason>, and your final answer between <answer> and </answer>:
<reason> your reasoning </reason> <answer> your answer </answer>"""
"""The prompt ``rstar2`` (paper, section Prompt and format)."""
USER = "{problem}\n\nGive the final answer inside <answer> and \\boxed{{}}."
CHECK = "agent_rl.environments.maths.rewards:check"
BY_VALUE = "right by value"
"""The verdict, and the note of the judgement, on an answer that is right but for the work that is left in it."""


class BoxedAnswers(Environment):
    """Success is a boxed answer that means the same as the problem's; the reward is 1 for it, else 0."""

    tools: Sequence[Tool] = (python_tools.python,)
    checks = (CHECK,)

    def judge_at_once(self, problem: Problem, transcript: Transcript) -> Judgement | None:
        """Judge what the texts alone decide: no answer, the same integer, the same text."""
        prediction = final_answer(*transcript.texts)
        if prediction is None:
            return _judgement(transcript, "", "no answer", equal=False)
        equal = exactly_equal(problem.answer, prediction)
        return None if equal is None else _judgement(transcript, prediction, "exact", equal=equal)

    async def judge(self, problem: Problem, transcript: Transcript, context: Context) -> Judgement:
        """Judge by meaning, in a child that may die of the answer, which counts as wrong then."""
        prediction = final_answer(*transcript.texts) or ""
        try:
            verdict = await context.check(CHECK, problem.answer, prediction, problem.text)
        except CheckError as error:
            return _judgement(transcript, prediction, str(error), equal=False)
        note = verdict if verdict == BY_VALUE else "symbolic"
        return _judgement(transcript, prediction, note, equal=verdict == "equal")

    def control(self) -> tuple[Problem, Transcript]:
        """A half is 0.5, which only a checker that works can tell."""
        return Problem("control", "What is 1/2?", "1/2"), Transcript(("<answer>\\boxed{0.5}</answer>",))


def _judgement(transcript: Transcript, prediction: str, note: str, *, equal: bool) -> Judgement:
    return Judgement(float(equal), equal, {}, format_penalty(transcript.texts), note, answer_text(prediction))


def format_penalty(turns: Sequence[str]) -> float:
    """p_format of the paper, from 0 to 1: 1 without an answer tag, else how many too many there are, by turns."""
    tags = sum(map(answer_tags, turns))
    return 1.0 if tags == 0 else min(1.0, (tags - 1) / len(turns))


class Maths(FileProblems, BoxedAnswers):
    """Problems from files, whose answers are mathematics."""

    def __init__(
        self,
        *,
        seed: int,
        base: Path,
        files: tuple[str, ...] = (),
        weights: tuple[PositiveFloat, ...] = (),
        evaluation_files: tuple[str, ...] = (),
        prompt: Literal["plain", "rstar2", "template"] = "plain",
        notebook: bool = False,
    ) -> None:
        """``prompt``: the problem's text alone ("plain"); the structure of rStar2's prompt in our words, with system
        text, tools and answer instruction ("rstar2"); or the problem's text alone, with the tools as the model's own
        chat template lists them ("template"). A system message of the file stands before the text alone; the prompt of
        rStar2 has its own in its place. ``notebook``: the model's Python runs as the cells of a notebook, not each call
        by itself. The others are those of `FileProblems`.
        """
        super().__init__(seed=seed, base=base, files=files, weights=weights, evaluation_files=evaluation_files)
        self._prompt = prompt
        self.lists_tools = "template" if prompt == "template" else prompt == "rstar2"
        if notebook:
            self.tools = (python_tools.notebook,)

    def prompt(self, problem: Problem) -> ChatMessages:
        """The problem, as the setting ``prompt`` says."""
        if self._prompt != "rstar2":
            return super().prompt(problem)
        return [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": USER.format(problem=problem.text)},
        ]
