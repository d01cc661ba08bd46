"""Problems from files, and a reward that is one function: ``reward(problem, transcript)``."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from itertools import chain
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from pydantic import PositiveFloat

from agent_rl.config.plugins import ContractError, defined_at, resolve
from agent_rl.environments.base import ChatMessages, Context, Environment, TaskError, TaskSource
from agent_rl.environments.task_files import read_tasks
from agent_rl.environments.tasks import ListedTasks
from agent_rl.messages import Judgement, Problem, Transcript


class FileProblems(Environment):
    """Base of environments whose problems stand in files (`task_files`), by paths and globs relative to ``base``."""

    columns = False
    """Whether a problem's payload has the file's further columns. A row needs no answer then."""

    def __init__(
        self,
        *,
        seed: int,
        base: Path,
        files: tuple[str, ...] = (),
        weights: tuple[PositiveFloat, ...] = (),
        evaluation_files: tuple[str, ...] = (),
    ) -> None:
        """``files`` hold the training problems, ``evaluation_files`` the held-out ones.

        ``weights`` says how often a training problem comes from each entry of ``files``, in proportion; without them
        every problem of every file is as likely as any other. Raises TaskError when settings contradict each other.
        """
        if weights and len(weights) != len(files):
            raise TaskError(f"`weights` holds {len(weights)} numbers for {len(files)} entries of `files`", ("weights",))
        self._seed, self._base = seed, base
        self._files, self._weights, self._evaluation_files = files, weights, evaluation_files

    def problems(self) -> TaskSource:
        """Read the files. Raises TaskError as `read_tasks` does."""
        if not self._files and not self._evaluation_files:
            raise TaskError("no file of problems is named: set `files`, or `evaluation_files` where nothing is trained")
        named = {"files": self._files, "evaluation_files": self._evaluation_files}
        problems = read_tasks(named, self._base, columns=self.columns)
        return ListedTasks(
            problems["files"],
            tuple(chain.from_iterable(problems["evaluation_files"])),
            seed=self._seed,
            weights=self._weights,
            names=[f"the file {name}" for name in self._files],
        )

    def prompt(self, problem: Problem) -> ChatMessages:
        """The problem's text, after a system message of the file."""
        system = [{"role": "system", "content": text}] if (text := problem.payload.get("system")) else []
        return [*system, {"role": "user", "content": problem.text}]


class Rows(FileProblems):
    """Problems from files, judged by a function: ``reward(problem, transcript)``, a number, a bool or a `Judgement`.

    A number is the reward, and 1 or more is success. The function runs in a thread of an executor, where it may wait;
    it may be asynchronous. `Problem.data` has all columns of the row.
    """

    columns = True

    def __init__(
        self,
        *,
        seed: int,
        base: Path,
        reward: str,
        files: tuple[str, ...] = (),
        weights: tuple[PositiveFloat, ...] = (),
        evaluation_files: tuple[str, ...] = (),
        system: str = "",
        lists_tools: bool | Literal["template"] = True,
    ) -> None:
        """``reward`` is the function's ``module:name``, ``system`` a system message before every problem.

        The others are those of `FileProblems` and `Environment`. Raises PluginError when there is no such function,
        and ContractError when it takes other arguments.
        """
        super().__init__(seed=seed, base=base, files=files, weights=weights, evaluation_files=evaluation_files)
        self._reward = reward_function(reward)
        self._system, self.lists_tools = system, lists_tools

    def prompt(self, problem: Problem) -> ChatMessages:
        """The problem, after the setting ``system`` or else the file's own."""
        if not self._system:
            return super().prompt(problem)
        return [{"role": "system", "content": self._system}, {"role": "user", "content": problem.text}]

    async def judge(self, problem: Problem, transcript: Transcript, context: Context) -> Judgement:
        """Ask the function. Raises ContractError for what is no reward, and what it raises."""
        if inspect.iscoroutinefunction(self._reward):
            return judgement(await self._reward(problem, transcript), problem, transcript, self._reward)
        given = await context.in_thread(partial(self._reward, problem, transcript))
        return judgement(given, problem, transcript, self._reward)


def reward_function(name: str) -> Callable[[Problem, Transcript], Any]:
    """The function ``module:name``. Raises PluginError, and ContractError when it cannot be called as a reward."""
    function: Callable[[Problem, Transcript], Any] = resolve("reward", name)
    refuse_other_arguments(function, name)
    return function


def refuse_other_arguments(function: Callable[..., Any], name: str) -> None:
    """Raise ContractError for a function that cannot be called as a reward."""
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError) as error:
        place = defined_at(function)
        raise ContractError(
            f"the reward {name} cannot be called with problem and transcript: {error}; "
            "write `def reward(problem, transcript) -> float`" + (f" ({place})" if place else "")
        ) from error


def judgement(given: object, problem: Problem, transcript: Transcript, function: object) -> Judgement:
    """What a reward function gave as a judgement. Raises ContractError for what is no finite number."""
    match given:
        case Judgement():
            return given
        case Real() if math.isfinite(value := float(given)):
            return Judgement(value, value >= 1.0, answer=transcript.answer)
    place = defined_at(function)
    remedy = "return a finite number, True or False, or a Judgement" + (f" ({place})" if place else "")
    kind = f"{type(given).__module__}.{type(given).__qualname__}".removeprefix("builtins.")
    raise ContractError(f"the reward returned {given!r:.100} ({kind}) for the problem {problem.id!r}; {remedy}")
