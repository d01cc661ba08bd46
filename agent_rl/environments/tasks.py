"""Where problems come from: a generator class, or files.

::

    topology [tasks] --> load_tasks --> TaskSource --> problem(stage, number)      training, filtered per stage
                                                   --> evaluation(number)          held out
                                                   --> demonstrations(rng)         supervised training

Which problem a group is about is a pure function of seed, stage and number, so a restarted scheduler asks for the same
ones again. Nothing here reads a clock or global randomness.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING, cast

from agent_rl.config.plugins import PluginError, resolve
from agent_rl.environments.base import Demonstration, TaskError, TaskSource
from agent_rl.environments.task_files import read_tasks
from agent_rl.messages import Problem

if TYPE_CHECKING:
    from pathlib import Path

    from agent_rl.config.topology import TaskFilter, Tasks

_DRAWS = 1000
"""Draws from a generator before a filter is taken to let nothing pass: one in a hundred passes with near certainty."""


def load_tasks(tasks: Tasks, *, seed: int, base: Path, filters: Mapping[int, TaskFilter] | None = None) -> TaskSource:
    """The source that ``[tasks]`` of a topology describes.

    ``base`` is the folder of the topology file; paths of task files and of id lists are relative to it. ``filters`` says, by
    stage index, which tasks a stage draws from. A generator class is called with ``seed`` and the settings as keywords.

    Raises TaskError when the class, a file or a setting is not as it should be.
    """
    restrictions = {stage: _Restriction(wanted, base) for stage, wanted in (filters or {}).items()}
    if tasks.generator is not None and (tasks.files or tasks.evaluation_files):
        raise TaskError("[tasks] names a generator and files: keep one of them")
    if tasks.generator is not None:
        source = _load_generator(tasks.generator, tasks.settings, seed)
        return _FilteredGenerator(source, restrictions) if any(restrictions.values()) else source
    if not tasks.files and not tasks.evaluation_files:
        raise TaskError("[tasks] names neither a generator nor files: set `generator` or `files`")
    if tasks.settings:
        raise TaskError(
            f"[tasks.settings] {sorted(tasks.settings)} are for generators: remove them, or set `generator`"
        )
    training = read_tasks(tasks.files, base) if tasks.files else ()
    held_out = read_tasks(tasks.evaluation_files, base) if tasks.evaluation_files else ()
    return _FileTasks(tasks.files, training, tasks.weights, list(chain.from_iterable(held_out)), seed, restrictions)


class _Restriction:
    """A stage's filter with its list of ids read."""

    def __init__(self, wanted: TaskFilter, base: Path) -> None:
        self._max_chars = wanted.max_problem_chars
        self._ids: frozenset[str] | None = None
        self._source = ""
        if wanted.ids is not None:
            path = base / wanted.ids
            try:
                lines = path.read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise TaskError(f"filter.ids: cannot read {path}: {error}; name a text file of problem ids") from error
            self._ids = frozenset(line.strip() for line in lines if line.strip())
            self._source = str(path)

    def __bool__(self) -> bool:
        return self._max_chars is not None or self._ids is not None

    def __str__(self) -> str:
        parts = []
        if self._max_chars is not None:
            parts.append(f"max_problem_chars = {self._max_chars}")
        if self._ids is not None:
            parts.append(f"ids = {self._source} ({len(self._ids)} ids)")
        return ", ".join(parts)

    def allows(self, problem: Problem) -> bool:
        if self._max_chars is not None and len(problem.text) > self._max_chars:
            return False
        return self._ids is None or problem.id in self._ids


class _FilteredGenerator:
    """A generator whose training problems are redrawn, under further numbers, until the stage's filter lets one pass."""

    def __init__(self, source: TaskSource, restrictions: Mapping[int, _Restriction]) -> None:
        self._source = source
        self._restrictions = restrictions

    def problem(self, stage: int, number: int) -> Problem:
        restriction = self._restrictions.get(stage)
        if not restriction:
            return self._source.problem(stage, number)
        for draw in range(_DRAWS):
            # Numbers of different groups never meet: a group's draws are its own residue class.
            problem = self._source.problem(stage, number * _DRAWS + draw)
            if restriction.allows(problem):
                return problem
        raise TaskError(
            f"stage {stage}: none of {_DRAWS} generated problems passes the filter ({restriction}); relax it"
        )

    def evaluation(self, number: int) -> Problem:
        return self._source.evaluation(number)

    @property
    def evaluation_count(self) -> int | None:
        return self._source.evaluation_count

    def demonstrations(self, rng: random.Random) -> Iterator[Demonstration]:
        return self._source.demonstrations(rng)


class _FileTasks:
    """Problems from files: each pass over a stage's tasks, or with weights over each part of them, is a permutation."""

    def __init__(
        self,
        names: Sequence[str],
        training: Sequence[Sequence[Problem]],
        weights: Sequence[float],
        held_out: Sequence[Problem],
        seed: int,
        restrictions: Mapping[int, _Restriction],
    ) -> None:
        self._parts = [tuple(part) for part in training] if weights else [tuple(chain.from_iterable(training))]
        self._weights = [Fraction(str(weight)) for weight in weights] or [Fraction(1)]
        trained = {problem.text: problem.id for part in self._parts for problem in part}
        for problem in held_out:
            if problem.text in trained:
                raise TaskError(
                    f"held-out problem {problem.id} has the text of training problem {trained[problem.text]}: "
                    "remove it from `files` or from `evaluation_files`"
                )
        self._held_out = held_out
        self._seed = seed
        self._stages: dict[int, list[tuple[Problem, ...]]] = {}
        for stage, restriction in restrictions.items():
            self._stages[stage] = [tuple(filter(restriction.allows, part)) for part in self._parts]
            for index, (allowed, part) in enumerate(zip(self._stages[stage], self._parts, strict=True)):
                if not allowed:
                    whose = f" of the file {names[index]}" if weights else ""
                    raise TaskError(
                        f"stage {stage}: none of {len(part)} problems{whose} passes the filter ({restriction}); relax it"
                    )
        self._orders: dict[int, tuple[str, list[int]]] = {}

    def problem(self, stage: int, number: int) -> Problem:
        parts = self._stages.get(stage, self._parts)
        if not any(parts):
            raise TaskError("a training stage needs problems: set `files` in [tasks]")
        part, place = mixed(number, self._weights)
        turn, position = divmod(place, len(parts[part]))
        return parts[part][self._permutation(stage, turn, part, len(parts[part]))[position]]

    def _permutation(self, stage: int, turn: int, part: int, count: int) -> list[int]:
        name = f"tasks/{self._seed}/{stage}/{turn}" + (f"/{part}" if len(self._parts) > 1 else "")
        if self._orders.get(part, ("",))[0] != name:
            order = list(range(count))
            random.Random(name).shuffle(order)
            self._orders[part] = (name, order)
        return self._orders[part][1]

    def evaluation(self, number: int) -> Problem:
        if not self._held_out:
            raise TaskError("an evaluation needs held-out problems: set `evaluation_files` in [tasks]")
        if number >= len(self._held_out):
            raise TaskError(
                f"held-out problem {number} was asked for, but `evaluation_files` hold {len(self._held_out)}: "
                "lower the stage's `problems`"
            )
        return self._held_out[number]

    @property
    def evaluation_count(self) -> int | None:
        return len(self._held_out)

    def demonstrations(self, rng: random.Random) -> Iterator[Demonstration]:  # noqa: ARG002 the protocol's argument
        raise TaskError(
            "tasks from files hold no demonstrations: give the sft stage files of its own (`data`), or leave it out"
        )


def mixed(number: int, weights: Sequence[Fraction]) -> tuple[int, int]:
    """Which part ``number``, from 0, is of when parts take turns by weight, and how many of that part came before it.

    A part's problems come at even distances: any stretch holds its share, give or take one for each part before it.
    """
    rest = sum(weights, Fraction(0))
    for part, weight in enumerate(weights[:-1]):
        before, after = (int(count * weight / rest) for count in (number, number + 1))
        if after > before:
            return part, before
        number -= before
        rest -= weight
    return len(weights) - 1, number


def _load_generator(path: str, settings: Mapping[str, object], seed: int) -> TaskSource:
    try:
        generator = resolve("task_generator", path)
    except PluginError as error:
        raise TaskError(f"tasks.generator {path!r}: {error}") from error
    if not inspect.isclass(generator):
        raise TaskError(f"tasks.generator {path!r}: it is no class; name one that takes a seed and settings")
    parameters = list(inspect.signature(generator).parameters.values())
    accepted = {parameter.name for parameter in parameters if parameter.name != "seed"}
    unknown = sorted(set(settings) - accepted)
    if unknown and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        raise TaskError(f"[tasks.settings] {unknown} are not settings of {path}: it knows {sorted(accepted)}")
    try:
        return cast("Callable[..., TaskSource]", generator)(seed=seed, **settings)
    except TypeError as error:
        raise TaskError(
            f"tasks.generator {path!r} cannot be made: {error}; it must take a seed and settings"
        ) from error
