"""When lost rollouts and lost checks end a run, because what lost them would lose the next ones too. Pure.

::

    group without enough rollouts --> LostGroups.lost --(a step's worth in a row)--> the message that ends the run
    group with enough             --> LostGroups.usable: the row begins anew

    answer whose check came to nothing --> CheckerTrust.doubted --(several in a row)--> ask for the control --(not right)--> the run ends
    answer judged                      --> CheckerTrust.judged: the row begins anew

One failed rollout says little: it is sampled again. One answer whose check dies says that the answer is hard to judge. A whole
step of them says that an engine, the tools or the checkers do not work, and a run that went on would train on nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agent_rl.messages import Trajectory

MOST_LOST = 64
"""Groups lost in a row that end a run, however many groups a step or an evaluation has."""
TOO_LONG = 100
"""The same of training groups whose prompts are too long: they may come close together in sound data."""
DOUBTS = 8
"""Answers in a row whose checks came to nothing, before the checkers themselves are tried."""
UNAVAILABLE = 30
"""How often a check that no checker took up is asked again before the checkers are tried."""
FAULTS = 3
"""Rollouts in a row that an environment fails to judge, or to go on with, which end a run."""


class OutageError(Exception):
    """Rollouts or checks are lost again and again; the message says to what, and what to do."""


@dataclass(slots=True)
class LostGroups:
    """The groups lost in a row: fewer rollouts than a group needs came to an end, for reasons that are not the model's."""

    limit: int
    """So many lost in a row end the run: those of a step, or of an evaluation."""
    trains: bool
    _groups: list[str] = field(default_factory=list)
    _attempts: int = 0
    _too_long: int = 0
    _last: str = ""

    def usable(self) -> None:
        """A group had enough rollouts: what was lost before was an accident."""
        self._groups.clear()
        self._attempts = self._too_long = 0

    def lost(self, group: str, attempts: Sequence[Trajectory]) -> str:
        """A group is lost with all its attempts; the message that ends the run, empty while it goes on."""
        self._groups.append(group)
        self._attempts += len(attempts)
        last = attempts[-1]
        self._last = f"{last.generator}: {last.reason or last.status}"
        too_long = last.status == "prompt_too_long"
        self._too_long += too_long
        limit = min(self.limit, MOST_LOST)
        if self.trains and self._too_long:
            limit = max(limit, TOO_LONG)
        if len(self._groups) < limit:
            return ""
        remedy = (
            "shorten the problems, or serve a model with longer sequences"
            if too_long
            else f"look at logs/{last.generator}.jsonl and at the tool executors' logs, and mend the cause"
        )
        return (
            f"too few rollouts of the last {len(self._groups)} groups came to an end ({self._attempts} attempts failed), the last one on "
            f"{self._last}; {remedy}; then run again: the run goes on and samples anew what was lost"
        )

    @property
    def in_a_row(self) -> tuple[str, ...]:
        """The groups lost since the last usable one, oldest first."""
        return tuple(self._groups)


@dataclass(slots=True)
class CheckerTrust:
    """Whether the checkers work, by what became of the answers they were given."""

    _doubts: int = 0

    def judged(self) -> None:
        """A checker judged an answer."""
        self._doubts = 0

    def doubted(self) -> bool:
        """A check came to nothing, or killed its checker; whether the checkers are to be tried with the environment's control now."""
        self._doubts += 1
        return self._doubts >= DOUBTS

    @staticmethod
    def message(environment: str, failure: str) -> str:
        """For the user, when a rollout that must be right was not found so; ``failure`` is what became of it."""
        return (
            f"the checkers of environment {environment!r} do not work: they do not find a rollout right that is ({failure}), so answers "
            "would count as wrong that are right; look at the tool executors' logs, mend the cause (memory, isolation, the "
            "installation of what the checks import) and run again: the run goes on"
        )


@dataclass(slots=True)
class EnvironmentTrust:
    """Whether environments do what they promise, by the rollouts in a row of which they did not."""

    _faults: dict[str, int] = field(default_factory=dict)

    def judged(self, environment: str) -> None:
        """A rollout was judged."""
        self._faults.pop(environment, None)

    def failed(self, environment: str, reason: str) -> str:
        """A rollout came to nothing by the environment's fault; the message that ends the run, empty while it goes on."""
        self._faults[environment] = self._faults.get(environment, 0) + 1
        if self._faults[environment] < FAULTS:
            return ""
        return (
            f"environment {environment!r} failed at {FAULTS} rollouts in a row, the last time: {reason}; mend it and run again: the run "
            "goes on and samples anew what was lost"
        )
