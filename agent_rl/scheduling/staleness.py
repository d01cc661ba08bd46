"""Which groups make which step: the one place that closes steps and decides about stale groups.

Symbols: v is the version the learner trains at (the step brings v to v + 1); o the oldest policy version among a group's
tokens, which the version its engines served at opening bounds from below; S the staleness budget `max_staleness`. A group
trained at v has staleness v - o.

A group must be trained by version o + S, and g = groups_per_step groups are trained at each. So this must hold before the step at v
is closed, and is the whole rule: for each version d >= v, at most (d - v + 1) * g of the groups not yet trained are due by d.

Opening keeps it. Openings are bounded by ``counted groups opened < (S + served + 1) * g`` (scheduling.py), where ``served <= v`` is
the oldest version an engine serves. A new group is due by served + S at the earliest; v * g groups are trained already, so at most
(served + S - v + 1) * g are left in all.

Closing keeps it, because it takes the oldest groups first, if it waits where it must. For each d, either all g groups taken are
due by d, which is what the bound falls by; or every decided group due by d is taken, and what is left due by d is open. If that
is more than (d - v) * g, ``wait`` does not close the step before some of it is decided, which ends since decided groups are taken
first. Hence no group is ever trained beyond S. (For S = 1 this only says that an open group due now is waited for.)

The other choices: ``drop`` closes the step and drops such open groups instead; ``train_corrected`` closes it and trains them
whenever they are ready, leaving the gap to the loss's correction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Step:
    """A closed step: version trained at, groups to train (oldest first), all groups it decided, open groups it drops."""

    version: int
    trained: tuple[str, ...]
    decided: tuple[str, ...]
    dropped_open: tuple[str, ...]
    staleness: tuple[int, ...]


@dataclass(slots=True)
class _Decided:
    group: str
    oldest: int
    signal: bool
    order: int


@dataclass(slots=True)
class StepAssembler:
    """Takes the groups of one RL stage as they open and are decided; closes steps. Deterministic, no clock.

    ``version`` is the version of the next step to close. Groups without signal (equal rewards, too few rollouts) count
    towards a step unless ``refill``; then they only count once ``max_refill`` times as many groups as a step has were decided.
    """

    version: int
    groups_per_step: int
    max_staleness: int
    on_stale: Literal["wait", "drop", "train_corrected"]
    refill: bool = False
    max_refill: int = 3
    _open: dict[str, int] = field(default_factory=dict)
    _waiting: list[_Decided] = field(default_factory=list)
    surplus: int = 0
    """Opened groups that closed steps and drops left uncounted."""
    _order: int = 0

    def opened(self, group: str, oldest: int) -> None:
        """A group is open; its tokens will be no older than version ``oldest``."""
        self._open[group] = oldest

    def decided(self, group: str, oldest: int, *, signal: bool) -> None:
        """A group has left the open ones: to be trained when it carries signal, else only to be counted."""
        self._open.pop(group, None)
        self._order += 1
        self._waiting.append(_Decided(group, oldest, signal, self._order))

    def forgotten(self, group: str) -> None:
        """An open group was dropped for a reason that does not count towards a step."""
        if self._open.pop(group, None) is not None:
            self.surplus += 1

    @property
    def uncounted(self) -> int:
        """How many opened groups no step counts, so that as many more may be opened; may fall when a short step closes."""
        replaced = sum(not item.signal for item in self._waiting) if self.refill else 0
        return self.surplus + replaced

    @property
    def waiting(self) -> int:
        """Groups decided and not yet in a step."""
        return len(self._waiting)

    @property
    def open_groups(self) -> int:
        """Groups opened and not decided."""
        return len(self._open)

    def waits_for(self) -> tuple[str, ...]:
        """The open groups that hold the next step back, oldest first, when it is otherwise complete."""
        if self.on_stale != "wait" or not self._complete():
            return ()
        return self._overdue()

    def close(self) -> Step | None:
        """Close the next step if it is complete and the staleness rule permits; call until None after each event."""
        if not self._complete():
            return None
        overdue = self._overdue()
        if self.on_stale == "wait" and overdue:
            return None
        dropped: tuple[str, ...] = ()
        if self.on_stale == "drop":
            dropped = overdue
            for group in dropped:
                self.forgotten(group)
        taken = self._oldest()
        gone = {item.group for item in taken}
        self._waiting = [item for item in self._waiting if item.group not in gone]
        step = Step(
            version=self.version,
            trained=tuple(item.group for item in taken if item.signal),
            decided=tuple(item.group for item in taken),
            dropped_open=dropped,
            staleness=tuple(self.version - item.oldest for item in taken if item.signal),
        )
        self.surplus += len(taken) - self.groups_per_step
        self.version += 1
        return step

    def _complete(self) -> bool:
        if not self.refill:
            return len(self._waiting) >= self.groups_per_step
        with_signal = sum(item.signal for item in self._waiting)
        return with_signal >= self.groups_per_step or len(self._waiting) >= self.max_refill * self.groups_per_step

    def _overdue(self) -> tuple[str, ...]:
        """Open groups that this step would leave too many of to be trained in time, oldest first."""
        taken = {item.group for item in self._oldest()}
        # Groups that are only to be counted take places of a step like others, unless they are replaced.
        left = [i.oldest for i in self._waiting if i.group not in taken and (i.signal or not self.refill)]
        open_groups = sorted((oldest, group) for group, oldest in self._open.items())
        late: list[str] = []
        due = 0
        for oldest in sorted({*left, *self._open.values()}):
            room = max(0, oldest + self.max_staleness - self.version) * self.groups_per_step
            due += left.count(oldest)
            here = [group for version, group in open_groups if version == oldest]
            fitting = min(len(here), max(0, room - due))
            late += here[fitting:]
            due += fitting
        return tuple(late)

    def _oldest(self) -> list[_Decided]:
        """What this step takes: the oldest groups first; with refill the replaced ones leave along with those they made room for."""
        ranked = sorted(self._waiting, key=lambda item: (item.oldest, item.order))
        if not self.refill:
            return ranked[: self.groups_per_step]
        signal = [item for item in ranked if item.signal][: self.groups_per_step]
        taken = [item for item in ranked if not item.signal] + signal
        return sorted(taken, key=lambda item: (item.oldest, item.order))
