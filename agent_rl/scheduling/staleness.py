"""Decides which groups make up which step. This is the only place that closes steps and handles stale groups.

Symbols. v: the version at which the learner trains (the step brings v to v + 1). o: the oldest policy version among a
group's tokens, at least the version its engines served at opening. S: the staleness budget `max_staleness`. A group
trained at v has staleness v - o.

A group must be trained by version o + S. Each step trains g = groups_per_step groups. So before the step at v is
closed, this must hold, and it is the whole rule: for each version d >= v, at most (d - v + 1) * g untrained groups are
due by d.

Opening keeps the rule. Openings are bounded by ``counted groups opened < (S + served + 1) * g`` (scheduler.py), where
``served <= v`` is the oldest version that an engine serves. A new group is due at served + S or later. v * g groups are
already trained, so at most (served + S - v + 1) * g are left.

Closing keeps the rule, because it takes the oldest groups first and waits where needed. For each d there are two cases.
Either all g groups taken are due by d, and the bound falls by g as well. Or all decided groups due by d are taken, and
the rest due by d are open. If the rest are more than (d - v) * g, ``wait`` does not close the step until some are
decided. The wait ends, because decided groups are taken first. So no group is trained beyond S. (For S = 1: the step
waits for each open group that is due now.)

Restarts. The journal has every closed step, decided group and open group, so a new assembler continues where the last
one stood. A restored learner trains the closed steps again. It publishes none of the policies in between (learner.py),
so no engine goes back behind the version at which the next step is trained, and o stays above its bound.

Closing does not rely on any of this. `close` compares the versions that the group's tokens have with v. A decided group
that is older than S is never in a step: it is dropped as stale, and another group may be opened in its place.

The other choices: ``drop`` closes the step and drops such open groups. ``train_corrected`` closes it and trains them
when they are ready; the loss then corrects for the gap. It drops the open groups that would grow older than C, its cap
`max_corrected_staleness`: the same rule with C in place of S. Groups that last long are the ones that grow old, so both
choices favour short rollouts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Step:
    """A closed step: its version, groups to train (oldest first), all groups it decided, groups it drops as stale."""

    version: int
    trained: tuple[str, ...]
    decided: tuple[str, ...]
    dropped: tuple[str, ...]
    staleness: tuple[int, ...]
    limit: int
    """The most staleness that the rule permits."""


@dataclass(slots=True)
class _Decided:
    group: str
    oldest: int
    signal: bool
    order: int


@dataclass(slots=True)
class StepAssembler:
    """Takes the groups of one RL stage as they open and are decided, and closes steps. Deterministic, no clock.

    ``version`` is the version of the next step. Groups without signal (equal rewards, too few rollouts) count towards a
    step unless ``refill``. With ``refill`` they only count once ``max_refill`` times the groups of a step were decided.
    """

    version: int
    groups_per_step: int
    max_staleness: int
    on_stale: Literal["wait", "drop", "train_corrected"]
    refill: bool = False
    max_refill: int = 3
    max_corrected_staleness: int = 4
    _open: dict[str, int] = field(default_factory=dict)
    _waiting: list[_Decided] = field(default_factory=list)
    surplus: int = 0
    """Opened groups that do not count: dropped ones, and those that closed steps took beyond their number."""
    _order: int = 0

    def opened(self, group: str, oldest: int) -> None:
        """A group was opened. Its tokens will be of version ``oldest`` or newer."""
        self._open[group] = oldest

    def decided(self, group: str, oldest: int, *, signal: bool) -> None:
        """A group was decided: with signal it is trained, otherwise it is only counted."""
        self._open.pop(group, None)
        self._order += 1
        self._waiting.append(_Decided(group, oldest, signal, self._order))

    def forgotten(self, group: str) -> None:
        """An open group was dropped for a reason that does not count towards a step."""
        if self._open.pop(group, None) is not None:
            self.surplus += 1

    @property
    def uncounted(self) -> int:
        """Opened groups that no step counts: as many more may be opened. May fall when a short step closes."""
        timely = self._timely()
        replaced = sum(not item.signal for item in timely) if self.refill else 0
        return self.surplus + replaced + len(self._waiting) - len(timely)

    @property
    def waiting(self) -> int:
        """Number of decided groups that are not in a step yet."""
        return len(self._waiting)

    @property
    def limit(self) -> int:
        """The most staleness with which a group is trained."""
        corrected = self.on_stale == "train_corrected"
        return max(self.max_staleness, self.max_corrected_staleness) if corrected else self.max_staleness

    def waits_for(self) -> tuple[str, ...]:
        """The open groups that alone hold back the next step, oldest first; empty when others are missing too."""
        if self.on_stale != "wait" or not self._complete():
            return ()
        return self._overdue()

    def close(self) -> Step | None:
        """Close the next step if it is complete and the staleness rule permits. Call it until None after each event."""
        if not self._complete():
            return None
        overdue = self._overdue()
        if self.on_stale == "wait" and overdue:
            return None
        for group in overdue:
            self.forgotten(group)
        taken, timely = self._oldest(), {item.group for item in self._timely()}
        left = timely - {item.group for item in taken}
        late = tuple(item.group for item in self._waiting if item.group not in timely)
        self._waiting = [item for item in self._waiting if item.group in left]
        step = Step(
            version=self.version,
            trained=tuple(item.group for item in taken if item.signal),
            decided=tuple(item.group for item in taken),
            dropped=overdue + late,
            staleness=tuple(self.version - item.oldest for item in taken if item.signal),
            limit=self.limit,
        )
        self.surplus += len(taken) + len(late) - self.groups_per_step
        self.version += 1
        return step

    def _complete(self) -> bool:
        timely = self._timely()
        if not self.refill:
            return len(timely) >= self.groups_per_step
        with_signal = sum(item.signal for item in timely)
        return with_signal >= self.groups_per_step or len(timely) >= self.max_refill * self.groups_per_step

    def _timely(self) -> list[_Decided]:
        """The decided groups that may be in the next step: those with signal must be young enough to be trained."""
        oldest = self.version - self.limit
        return [item for item in self._waiting if item.oldest >= oldest or not item.signal]

    def _overdue(self) -> tuple[str, ...]:
        """Open groups that could not be trained within the limit if this step closed now, oldest first."""
        taken = {item.group for item in self._oldest()}
        # Groups that are only counted take places of a step like others, unless they are replaced.
        left = [i.oldest for i in self._timely() if i.group not in taken and (i.signal or not self.refill)]
        open_groups = sorted((oldest, group) for group, oldest in self._open.items())
        late: list[str] = []
        due = 0
        for oldest in sorted({*left, *self._open.values()}):
            room = max(0, oldest + self.limit - self.version) * self.groups_per_step
            due += left.count(oldest)
            here = [group for version, group in open_groups if version == oldest]
            fitting = min(len(here), max(0, room - due))
            late += here[fitting:]
            due += fitting
        return tuple(late)

    def _oldest(self) -> list[_Decided]:
        """The groups of this step, oldest first. With refill, replaced groups leave along with their replacements."""
        ranked = sorted(self._timely(), key=lambda item: (item.oldest, item.order))
        if not self.refill:
            return ranked[: self.groups_per_step]
        signal = [item for item in ranked if item.signal][: self.groups_per_step]
        taken = [item for item in ranked if not item.signal] + signal
        return sorted(taken, key=lambda item: (item.oldest, item.order))
