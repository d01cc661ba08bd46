"""When lost rollouts and lost checks end a run, because their cause would lose the next ones too. Pure.

::

    group with too few rollouts  --> LostGroups.lost --(a step's worth in a row)--> the message that ends the run
    group with enough rollouts   --> LostGroups.usable: the count restarts

    answer whose check died      --> CheckerTrust.doubted --(several in a row)--> judge the control, a right rollout
    control that is not right    --> the message that ends the run
    judged answer                --> CheckerTrust.judged: the count restarts

    rollout its environment lost --> EnvironmentTrust.failed --(three in a row)--> the message that ends the run
    judged rollout               --> EnvironmentTrust.judged: the count restarts

One failed rollout says little: it is sampled again. One answer whose check dies says that the answer is hard to judge.
A whole step of lost groups says that an engine, the tools or the checkers do not work. A run that went on would train
on nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agent_rl.messages import Trajectory

MOST_LOST = 64
"""Groups lost in a row that end a run, however many groups a step or an evaluation has."""
TOO_LONG = 100
"""The same for training groups whose tasks are at fault: sound data may have many such tasks in a row."""
TASK_FAULT = "a fault of one task: "
"""How the reason of a rollout begins that was lost to its task's own check."""
DOUBTS = 8
"""Answers in a row whose checks died, before the control is judged."""
UNAVAILABLE = 30
"""How often a check is asked for again when no executor can make it."""
FAULTS = 3
"""Rollouts in a row, of one environment, that the environment fails to judge or to answer, which end a run."""


class OutageError(Exception):
    """Rollouts or checks are lost again and again. The message says what is lost, and what to do."""


@dataclass(slots=True)
class LostGroups:
    """The groups lost in a row: the infrastructure left them with too few rollouts.

    ``limit`` lost groups in a row end the run: those of a step, or of an evaluation.
    """

    limit: int
    trains: bool
    _groups: list[str] = field(default_factory=list)
    _attempts: int = 0
    _too_long: int = 0

    def usable(self) -> None:
        """A group had enough rollouts. The count restarts."""
        self._groups.clear()
        self._attempts = self._too_long = 0

    def lost(self, group: str, attempts: Sequence[Trajectory]) -> str:
        """A group is lost with all its attempts. Returns the message that ends the run, or an empty text."""
        self._groups.append(group)
        self._attempts += len(attempts)
        last = attempts[-1]
        too_long = last.status == "prompt_too_long"
        self._too_long += too_long or last.reason.startswith(TASK_FAULT)
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
            f"too few rollouts of the last {len(self._groups)} groups came to an end ({self._attempts} attempts "
            f"failed), the last one on {last.generator}: {last.reason or last.status}; {remedy}; then run again: the "
            "run goes on and samples anew what was lost"
        )

    @property
    def in_a_row(self) -> tuple[str, ...]:
        """The groups lost since the last usable one, oldest first."""
        return tuple(self._groups)


@dataclass(slots=True)
class CheckerTrust:
    """Whether the checkers work, by the checks that died in a row."""

    _doubts: int = 0

    def judged(self) -> None:
        """A checker judged an answer. The count restarts."""
        self._doubts = 0

    def doubted(self) -> bool:
        """A check died. Returns whether the checkers must now judge the environment's control."""
        self._doubts += 1
        return self._doubts >= DOUBTS

    @staticmethod
    def message(environment: str, failure: str) -> str:
        """The message for a control that was not found right; ``failure`` says what its check returned."""
        return (
            f"the checkers of environment {environment!r} do not work: they do not find a rollout right that is "
            f"({failure}), so answers would count as wrong that are right; look at the tool executors' logs, mend the "
            "cause (memory, isolation, the installation of what the checks import) and run again: the run goes on"
        )


@dataclass(slots=True)
class EnvironmentTrust:
    """Whether environments do what they promise. ``faults`` has the rollouts in a row that each environment lost."""

    faults: dict[str, list[str]] = field(default_factory=dict)

    def judged(self, environment: str) -> bool:
        """A rollout was judged. Returns whether this restarted a count."""
        return self.faults.pop(environment, None) is not None

    def failed(self, environment: str, rollout: str, reason: str) -> str:
        """The environment lost a rollout. Returns the message that ends the run, or an empty text.

        A rollout that is lost again, after a restart of the filter, counts once. The message restarts the count: the
        next run begins with a mended environment.
        """
        rollouts = self.faults.setdefault(environment, [])
        if rollout not in rollouts:
            rollouts.append(rollout)
        if len(rollouts) < FAULTS:
            return ""
        del self.faults[environment]
        return (
            f"environment {environment!r} failed at {FAULTS} rollouts in a row, the last time: {reason}; mend it and "
            "run again: the run goes on and samples anew what was lost"
        )
