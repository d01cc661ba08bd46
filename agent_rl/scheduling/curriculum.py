"""Which problem each training group gets, and which groups are trained, by what is known of the problems' success.

A curriculum is a fold over outcomes: the scheduler has one that chooses problems, the filter one that admits groups.
Both observe the same outcomes. The journal keeps those of the stage, so that a new process has the same state.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from agent_rl.config.algorithm import Algorithm
from agent_rl.config.plugins import ContractError, called, resolve
from agent_rl.config.selection import Solved

TOLD = 64
"""The newest outcomes, which each report of progress repeats."""


class Curriculum(Protocol):
    """Chooses problems by number. The environment has a problem for each number; a list begins anew after its last."""

    def choose(self, fresh: int, rng: random.Random) -> int:
        """The number of the next group's problem: ``fresh``, the first that no group had, or an earlier one.

        A higher number leaves out those between. ``rng`` is the group's own.
        """

    def observe(self, problem: int, solved: Solved) -> None:
        """A group of the problem with this number was decided: so many of its judged rollouts were right."""

    def admits(self, solved: Solved) -> bool:
        """Whether a group that was sampled so is trained. A refused one has no signal, and `refill` replaces it."""


class InOrder:
    """Each group gets the next problem, and every group is admitted."""

    def choose(self, fresh: int, rng: random.Random) -> int:
        """The next."""
        del rng
        return fresh

    def observe(self, problem: int, solved: Solved) -> None:
        """Nothing is remembered."""

    def admits(self, solved: Solved) -> bool:
        """Always."""
        del solved
        return True


@dataclass(slots=True)
class _Known:
    solved: Solved
    rests_until: int


class Frontier:
    """A share ``again`` of the groups gets problems that were solved sometimes, half-solved ones most often.

    A problem comes again once ``rest`` more groups were decided. Its success is that of its newest group, and half as
    much of what was known before. Groups whose success is not between the two shares ``admit`` are refused.
    """

    def __init__(self, again: float = 0.5, rest: int = 64, admit: tuple[float, float] = (-1.0, 2.0)) -> None:
        if not 0 <= again <= 1:
            raise ValueError(f"again is a share between 0 and 1, not {again}")
        self._again, self._rest, (self._low, self._high) = again, rest, admit
        self._known: dict[int, _Known] = {}
        self._decided = 0

    def choose(self, fresh: int, rng: random.Random) -> int:
        """Half fresh, half known."""
        if rng.random() >= self._again:
            return fresh
        weights = {
            number: known.solved.right * (known.solved.samples - known.solved.right) / known.solved.samples**2
            for number, known in self._known.items()
            if known.rests_until <= self._decided
        }
        if not any(weights.values()):
            return fresh
        (chosen,) = rng.choices(list(weights), list(weights.values()))
        self._known[chosen].rests_until = self._decided + self._rest
        return chosen

    def observe(self, problem: int, solved: Solved) -> None:
        """Remember how often the problem was solved."""
        self._decided += 1
        if not solved.samples:
            return
        before = self._known.get(problem)
        if before is not None:
            solved += Solved(before.solved.right // 2, before.solved.samples // 2)
        self._known[problem] = _Known(solved, self._decided + self._rest)

    def admits(self, solved: Solved) -> bool:
        """Whether the success is within the bounds."""
        return bool(solved.samples) and self._low < solved.share < self._high


Curricula: TypeAlias = Callable[[Algorithm], Curriculum | None]
"""A new curriculum of a stage's algorithm; None where problems come in order and every group is admitted."""


def curriculum_of(algorithm: Algorithm) -> Curriculum | None:
    """The curriculum that ``algorithm.curriculum`` names, checked at each use. Raises PluginError, ContractError."""
    if algorithm.curriculum == "in_order":
        return None
    name, settings = algorithm.curriculum, algorithm.curriculum_settings
    code: Any = resolve("curriculum", name)
    return Checked(name, called(name, lambda: code(**settings), f"with curriculum_settings {settings}", code))


class Checked:
    """A curriculum of a user, whose faults name its code and what it was given."""

    def __init__(self, name: str, curriculum: Curriculum) -> None:
        self._name, self._made = name, curriculum

    def choose(self, fresh: int, rng: random.Random) -> int:
        """The number that was chosen. Raises ContractError where it is none."""
        given = f"with fresh = {fresh}"
        number = called(f"{self._name}.choose", lambda: self._made.choose(fresh, rng), given, type(self._made))
        if type(number) is not int or number < 0:
            raise ContractError(f"{self._name}.choose returned {number!r:.60} {given}: return a number of 0 or more")
        return number

    def observe(self, problem: int, solved: Solved) -> None:
        """Pass it on."""
        given = f"with problem {problem}, {solved}"
        called(f"{self._name}.observe", lambda: self._made.observe(problem, solved), given, type(self._made))

    def admits(self, solved: Solved) -> bool:
        """Whether the group is admitted. Raises ContractError where the answer is neither True nor False."""
        admits = called(f"{self._name}.admits", lambda: self._made.admits(solved), f"with {solved}", type(self._made))
        if type(admits) is not bool:
            raise ContractError(f"{self._name}.admits returned {admits!r:.60} with {solved}: return True or False")
        return admits


def try_curriculum(curriculum: Curriculum, samples: int) -> None:
    """Use it on made-up outcomes. Raises ContractError."""
    fresh = 0
    for number, solved in enumerate(_made_up(samples)):
        chosen = curriculum.choose(fresh, random.Random(number))
        fresh = max(fresh, chosen + 1)
        curriculum.admits(solved)
        curriculum.observe(chosen, solved)


def _made_up(samples: int) -> Iterator[Solved]:
    for number in range(200):
        yield Solved(number % (samples + 1), samples)
    yield Solved(0, 0)
