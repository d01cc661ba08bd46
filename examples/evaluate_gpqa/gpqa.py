"""GPQA: questions with four choices, from a file that `agent-rl data fetch` wrote; evaluate_gpqa.toml says how."""

import random
from dataclasses import replace
from pathlib import Path

from agent_rl.environments.base import TaskError
from agent_rl.environments.maths import Maths
from agent_rl.environments.task_files import problem_of, read_rows, resolve
from agent_rl.environments.tasks import ListedTasks
from agent_rl.messages import Problem

WRONG = [f"Incorrect Answer {number}" for number in (1, 2, 3)]
LETTERS = "ABCD"


class Gpqa(Maths):
    """The answer is the letter of a choice. A question's choices always stand in the same random order."""

    def __init__(self, *, seed: int, base: Path, evaluation_files: tuple[str, ...]) -> None:
        super().__init__(seed=seed, base=base, evaluation_files=evaluation_files, prompt="rstar2")
        self._seed, self._base, self._files = seed, base, evaluation_files

    def problems(self) -> ListedTasks:
        found = [
            with_choices(problem_of(row, where), [str(row.get(column) or "").strip() for column in WRONG], where)
            for index, pattern in enumerate(self._files)
            for name, path in resolve(pattern, self._base, ("evaluation_files", index))
            for where, row in read_rows(name, path)
        ]
        return ListedTasks((), tuple(found), seed=self._seed)


def with_choices(problem: Problem, wrong: list[str], where: str) -> Problem:
    """The question with its choices, and the letter of the right one as its answer."""
    if not all(wrong):
        raise TaskError(f"{where}: the columns {', '.join(WRONG)} must hold text; fetch the data set as it is")
    choices = random.Random(problem.text).sample([problem.answer, *wrong], 4)
    lines = [f"{letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=True)]
    text = "\n".join([problem.text.strip(), "", *lines, "", "Answer with the letter of the right choice alone."])
    return replace(problem, text=text, answer=LETTERS[choices.index(problem.answer)])
