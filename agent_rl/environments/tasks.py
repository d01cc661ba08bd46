"""Sources of problems: lists, filters per stage, and several sources mixed by weight.

::

    Environment.problems --TaskSource--> restricted by each stage's filter --> MixedTasks --> problem(stage, number)
                                                                                          --> evaluation(number)
                                                                                          --> demonstrations(rng)

Which problem a group is about is a pure function of seed, stage and number, so a restarted scheduler asks for the same
ones again. Nothing here reads a clock or global randomness.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain, count, repeat
from typing import TYPE_CHECKING

from agent_rl.config.plugins import described
from agent_rl.environments.base import Demonstration, TaskError, TaskSource
from agent_rl.files.reading_json import read_text
from agent_rl.messages import Problem

if TYPE_CHECKING:
    from pathlib import Path

    from agent_rl.config.selection import TaskFilter

_DRAWS = 1000
"""Draws from an endless source after which a filter counts as passing nothing."""
_NO_DEMONSTRATIONS = "there are no demonstrations: give the sft stage files of its own (`data`), or leave it out"


class Restriction:
    """A stage's filter with its list of ids read. Raises TaskError when the list cannot be read."""

    def __init__(self, wanted: TaskFilter, base: Path) -> None:
        self._max_chars = wanted.max_problem_chars
        self._ids: frozenset[str] | None = None
        self._source = ""
        if wanted.ids is not None:
            path = base / wanted.ids
            try:
                lines = read_text(path).splitlines()
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
        """Whether the stage may draw the problem."""
        if self._max_chars is not None and len(problem.text) > self._max_chars:
            return False
        return self._ids is None or problem.id in self._ids


class _Redrawn:
    """A source whose training problems are drawn again, under further numbers, until one passes the stage's filter."""

    def __init__(self, source: TaskSource, restrictions: Mapping[int, Restriction]) -> None:
        self._source = source
        self._restrictions = restrictions
        self.evaluation = source.evaluation
        self.demonstrations = source.demonstrations

    @property
    def evaluation_count(self) -> int | None:
        return self._source.evaluation_count

    def problem(self, stage: int, number: int) -> Problem:
        restriction = self._restrictions.get(stage)
        if not restriction:
            return self._source.problem(stage, number)
        for draw in range(_DRAWS):
            # Numbers of different groups never meet: a group's draws are its own residue class.
            problem = self._source.problem(stage, number * _DRAWS + draw)
            if restriction.allows(problem):
                return problem
        raise TaskError(f"stage {stage}: none of {_DRAWS} problems drawn passes the filter ({restriction}); relax it")


class DrawnTasks:
    """Problems without end, each drawn with randomness of its own; the held-out ones are the same for every seed.

    ``draw`` makes a problem, whose id it leaves empty, and ``show`` a demonstration. Training and held-out problems are
    different draws: they differ where few draws give the same problem.
    """

    evaluation_count = None

    def __init__(
        self,
        seed: int,
        draw: Callable[[random.Random], Problem],
        show: Callable[[random.Random], Demonstration] | None = None,
    ) -> None:
        self._seed, self._draw, self._show = seed, draw, show

    def problem(self, stage: int, number: int) -> Problem:
        """Training problem ``number`` of ``stage``."""
        return self._drawn(f"{stage}.{number}", f"drawn/{self._seed}/{stage}/{number}")

    def evaluation(self, number: int) -> Problem:
        """Held-out problem ``number``."""
        return self._drawn(f"held-out.{number}", f"drawn/held-out/{number}")

    def demonstrations(self, rng: random.Random) -> Iterator[Demonstration]:
        """Demonstrations without end. Raises TaskError when there are none."""
        if self._show is None:
            raise TaskError(_NO_DEMONSTRATIONS)
        return map(self._show, repeat(rng))

    def _drawn(self, name: str, seed: str) -> Problem:
        return replace(self._draw(random.Random(seed)), id=name)


class ListedTasks:
    """Problems from lists: each pass over a stage's problems, or with weights over each part of them, is a permutation.

    ``parts`` are the training problems, by part. ``weights`` says how often a problem comes from each part, in
    proportion; without weights every problem is as likely as any other. ``names`` are the parts' names for messages.
    Raises TaskError when two problems have one id, or when a held-out problem has the text of a training problem.
    """

    def __init__(
        self,
        parts: Sequence[Sequence[Problem]],
        held_out: Sequence[Problem] = (),
        *,
        seed: int,
        weights: Sequence[float] = (),
        names: Sequence[str] = (),
        demonstrations: Sequence[Demonstration] = (),
    ) -> None:
        self._parts = [tuple(part) for part in parts] if weights else [tuple(chain.from_iterable(parts))]
        self._weights = [Fraction(str(weight)) for weight in weights] or [Fraction(1)]
        self._names = names
        texts: dict[str, str] = {}
        for problem in chain(self.trained, held_out):
            if problem.id in texts:
                both = f"{texts[problem.id]!r:.60} and {problem.text!r:.60}"
                raise TaskError(f"two problems have the id {problem.id!r:.80}, {both}; give each an id of its own")
            texts[problem.id] = problem.text
        trained = {problem.text: problem.id for problem in self.trained}
        for problem in held_out:
            if problem.text in trained:
                raise TaskError(
                    f"held-out problem {problem.id} has the text of training problem {trained[problem.text]}: "
                    "remove one of them"
                )
        self.held_out = tuple(held_out)
        self._seed = seed
        self._demonstrations = demonstrations
        self._stages: dict[int, list[tuple[Problem, ...]]] = {}
        self._orders: dict[int, tuple[str, list[int]]] = {}

    @property
    def trained(self) -> Iterator[Problem]:
        """The training problems, whatever the stages draw from."""
        return chain.from_iterable(self._parts)

    def restrict(self, restrictions: Mapping[int, Restriction]) -> None:
        """From now on each stage draws only from what its filter allows. Raises TaskError when that is nothing."""
        for stage, restriction in restrictions.items():
            self._stages[stage] = [tuple(filter(restriction.allows, part)) for part in self._parts]
            for index, (allowed, part) in enumerate(zip(self._stages[stage], self._parts, strict=True)):
                if not allowed:
                    whose = f" of {self._names[index]}" if len(self._parts) > 1 and self._names else ""
                    raise TaskError(
                        f"stage {stage}: none of {len(part)} problems{whose} passes the filter ({restriction}); "
                        "relax it"
                    )

    def listed(self, stage: int) -> Sequence[Problem]:
        """All problems that the stage may draw, each once."""
        return tuple(chain.from_iterable(self._stages.get(stage, self._parts)))

    def keep(self, stage: int, ids: Container[str]) -> int:
        """From now on the stage draws only from these problems; return how many of them its filter allows.

        A part without any is drawn from no more, and the others come more often.
        """
        parts = self._stages.get(stage, self._parts)
        self._stages[stage] = [tuple(problem for problem in part if problem.id in ids) for part in parts]
        return sum(map(len, self._stages[stage]))

    def problem(self, stage: int, number: int) -> Problem:
        """Training problem ``number`` of ``stage``. Raises TaskError when there are none."""
        parts = self._stages.get(stage, self._parts)
        there = [part for part, problems in enumerate(parts) if problems]
        if not there:
            raise TaskError("there are no training problems, and a stage trains")
        index, place = mixed(number, [self._weights[part] for part in there])
        part = there[index]
        turn, position = divmod(place, len(parts[part]))
        return parts[part][self._permutation(stage, turn, part, len(parts[part]))[position]]

    def _permutation(self, stage: int, turn: int, part: int, size: int) -> list[int]:
        name = f"tasks/{self._seed}/{stage}/{turn}" + (f"/{part}" if len(self._parts) > 1 else "")
        if self._orders.get(part, ("",))[0] != name:
            order = list(range(size))
            random.Random(name).shuffle(order)
            self._orders[part] = (name, order)
        return self._orders[part][1]

    def evaluation(self, number: int) -> Problem:
        """Held-out problem ``number``. Raises TaskError when there are fewer."""
        if number >= len(self.held_out):
            raise TaskError(f"held-out problem {number} was asked for, and there are {len(self.held_out)}")
        return self.held_out[number]

    @property
    def evaluation_count(self) -> int | None:
        """How many held-out problems there are."""
        return len(self.held_out)

    def demonstrations(self, rng: random.Random) -> Iterator[Demonstration]:
        """Demonstrations in random order, without end. Raises TaskError when there are none."""
        if not self._demonstrations:
            raise TaskError(_NO_DEMONSTRATIONS)
        return (rng.choice(self._demonstrations) for _ in count())


class MixedTasks:
    """Several sources by name, taking turns by weight; each problem says which one it is of.

    Held-out problems take turns by weight too, until a source has no more: the others go on then.
    """

    def __init__(self, sources: Mapping[str, TaskSource], weights: Sequence[Fraction]) -> None:
        self.sources = sources
        self._names = tuple(sources)
        self._sources = tuple(sources.values())
        self._weights = tuple(weights)
        self._listed: dict[int, Sequence[Problem]] = {}
        """The problems of select stages."""
        self._left: dict[int, list[int]] = {}
        """The sources that stages draw from of which select stages have kept problems; other stages draw from all."""
        self._held_out: list[tuple[int, int]] = []
        """Source and place of the held-out problems asked for so far."""
        self._taken = [0] * len(self._sources)

    def problem(self, stage: int, number: int) -> Problem:
        """Training problem ``number`` of ``stage``."""
        left = self._left.get(stage, range(len(self._sources)))
        index, place = mixed(number, [self._weights[part] for part in left])
        return self._named(left[index], self._sources[left[index]].problem(stage, place))

    def listed(self, stage: int) -> Sequence[Problem]:
        """All problems that a select stage samples, each once, source by source.

        Raises TaskError when a source draws its problems without end, or when there are none.
        """
        if stage not in self._listed:
            found: list[Problem] = []
            for part, source in enumerate(self._sources):
                if not isinstance(source, ListedTasks):
                    raise TaskError(
                        f"environment {self._names[part]!r} draws its problems without end, and a select stage samples "
                        "each problem of a list: give the environment a list (ListedTasks), or remove the stage"
                    )
                found += [self._named(part, problem) for problem in source.listed(stage)]
            if not found:
                raise TaskError("there are no training problems, and a select stage samples them")
            self._listed[stage] = found
        return self._listed[stage]

    def keep(self, stage: int, kept: Mapping[str, Container[str]]) -> None:
        """From now on the stage draws only from the problems that a select stage kept: ids by environment.

        A source without any is drawn from no more, and the others come more often. Raises TaskError when the stage's
        filter allows none of them.
        """
        counts = [
            source.keep(stage, kept.get(name, ())) if isinstance(source, ListedTasks) else 0
            for name, source in self.sources.items()
        ]
        if not any(counts):
            raise TaskError(
                f"stage {stage}: its filter passes none of the problems that the select stage before it has kept; "
                "relax the filter and run again: the run goes on"
            )
        self._left[stage] = [part for part, count in enumerate(counts) if count]
        self._listed.pop(stage, None)

    def evaluation(self, number: int) -> Problem:
        """Held-out problem ``number``. Raises TaskError when there are fewer."""
        while len(self._held_out) <= number:
            counts = [source.evaluation_count for source in self._sources]
            left = [part for part, most in enumerate(counts) if most is None or self._taken[part] < most]
            if not left:
                raise TaskError(f"held-out problem {number} was asked for, and there are {len(self._held_out)}")
            part = min(left, key=lambda each: ((self._taken[each] + 1) / self._weights[each], each))
            self._held_out.append((part, self._taken[part]))
            self._taken[part] += 1
        part, place = self._held_out[number]
        return self._named(part, self._sources[part].evaluation(place))

    @property
    def evaluation_count(self) -> int | None:
        """The count of all sources; None when one has no end."""
        counts = [source.evaluation_count for source in self._sources]
        known = [each for each in counts if each is not None]
        return sum(known) if len(known) == len(counts) else None

    def demonstrations(self, rng: random.Random) -> Iterator[Demonstration]:
        """Those of the sources that have any, by weight. Raises TaskError when none has."""
        streams: list[tuple[int, Iterator[Demonstration]]] = []
        failure = TaskError("there are no environments")
        for part, source in enumerate(self._sources):
            try:
                streams.append((part, source.demonstrations(rng)))
            except TaskError as error:
                failure = error
            except (Exception, SystemExit) as error:
                raise self._refusal(part, f"fail with {described(error)}") from error
        if not streams:
            raise failure
        return self._interleaved(streams)

    def _refusal(self, part: int, fault: str) -> TaskError:
        name = self._names[part]
        return TaskError(f"environment {name!r}: its demonstrations {fault}", environment=name)

    def _interleaved(self, streams: Sequence[tuple[int, Iterator[Demonstration]]]) -> Iterator[Demonstration]:
        weights = [self._weights[part] for part, _ in streams]
        for number in count():
            part, shown = streams[mixed(number, weights)[0]]
            try:
                demonstration = next(shown)
            except TaskError:
                raise
            except StopIteration:
                raise self._refusal(part, "come to an end; give them without end") from None
            except (Exception, SystemExit) as error:
                raise self._refusal(part, f"fail with {described(error)}") from error
            if not _is_sound(demonstration):
                wanted = "Demonstrations of a Problem, with messages of role and content that begin with the user's"
                raise self._refusal(part, f"gave {demonstration!r:.100}; give {wanted}")
            yield replace(demonstration, problem=self._named(part, demonstration.problem))

    def _named(self, part: int, problem: Problem) -> Problem:
        return replace(problem, environment=self._names[part])


def _is_sound(demonstration: object) -> bool:
    """Whether it is one that tokens can be made of."""
    match demonstration:
        case Demonstration(Problem(), ({"role": "user"}, *_) as messages):
            return all(
                isinstance(each, dict) and isinstance(each.get("role"), str) and isinstance(each.get("content"), str)
                for each in messages
            )
    return False


def restricted(source: TaskSource, restrictions: Mapping[int, Restriction]) -> TaskSource:
    """The source with the filters of stages, by their index."""
    wanted = {stage: restriction for stage, restriction in restrictions.items() if restriction}
    if not wanted:
        return source
    if isinstance(source, ListedTasks):
        source.restrict(wanted)
        return source
    return _Redrawn(source, wanted)


def mixed(number: int, weights: Sequence[Fraction]) -> tuple[int, int]:
    """Which part ``number``, from 0, is of when parts take turns by weight, and how many of that part came before it.

    A part's problems come at even distances: any stretch holds its share, give or take one for each part before it.
    """
    rest = sum(weights, Fraction(0))
    for part, weight in enumerate(weights[:-1]):
        before, after = (int(each * weight / rest) for each in (number, number + 1))
        if after > before:
            return part, before
        number -= before
        rest -= weight
    return len(weights) - 1, number
