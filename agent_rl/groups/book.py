"""What the RoC filter decides: when a group is complete, what is kept of it, which groups make a step, what is dropped.

Pure: events in, instructions out; the filter's shell writes the journal and sends what the instructions say. All changes of
a group's state happen here. A group is open until every sample is settled (rewarded, or lost after its last attempt), then
ready (to be trained) or dropped for a named reason.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from agent_rl.config.topology import Algorithm, EvaluateStage, RlStage, Stage
from agent_rl.environments.judging import LOST
from agent_rl.groups.instructions import (
    EQUAL_REWARDS,
    NOT_SELECTED,
    PROMPT_TOO_LONG,
    STAGE_BOUNDARY,
    STALE,
    TOO_FEW_ROLLOUTS,
    Closed,
    Dropped,
    Evaluated,
    EvaluationGroupDone,
    Instruction,
    Judge,
    Judged,
    Outage,
    Ready,
)
from agent_rl.groups.interim import InterimEvaluations
from agent_rl.groups.outages import LostGroups
from agent_rl.groups.resampling import Candidate, Select, candidate, has_signal, sound_selection
from agent_rl.groups.statistics import RolloutFigures, evaluation_figures, step_figures
from agent_rl.messages import (
    Evaluation,
    GroupOpened,
    GroupsProgress,
    GroupsUnfinished,
    Judgement,
    Retry,
    StageEntered,
    Trajectory,
    UnfinishedGroup,
)
from agent_rl.scheduling.ids import rollout_seed
from agent_rl.scheduling.staleness import StepAssembler


@dataclass(slots=True)
class _Rollout:
    attempt: int = 0
    lost: bool = False
    prompt_too_long: bool = False
    trajectory: RolloutFigures | None = None
    candidate: Candidate | None = None
    oldest: int = 0
    judgement: Judgement | None = None

    @property
    def settled(self) -> bool:
        return self.lost or self.judgement is not None

    @property
    def reward(self) -> float:
        assert self.judgement is not None
        return self.judgement.reward

    @property
    def figures(self) -> RolloutFigures:
        assert self.trajectory is not None
        assert self.judgement is not None
        return self.trajectory.judged(self.judgement)


@dataclass(slots=True)
class _Group:
    opened: GroupOpened
    rollouts: list[_Rollout]
    lost: list[Trajectory] = field(default_factory=list)
    """Attempts that came to nothing."""

    def retry(self, sample: int, attempt: int) -> Retry:
        opened = self.opened
        return Retry(opened.group, sample, attempt, opened.number, opened.evaluation)

    def lost_figures(self) -> tuple[RolloutFigures, ...]:
        return tuple(RolloutFigures.of(attempt, self.opened.problem.environment) for attempt in self.lost)

    def judged(self) -> list[_Rollout]:
        return [rollout for rollout in self.rollouts if rollout.judgement is not None]


@dataclass(frozen=True, slots=True)
class DecidedGroup:
    """A group the journal holds as decided and not yet in a step, for `GroupBook.restore`."""

    group: str
    oldest: int
    signal: bool
    figures: tuple[RolloutFigures, ...] = ()


@dataclass(slots=True)
class GroupBook:
    """The groups of the stage the learner is in."""

    algorithm: Algorithm
    max_staleness: int
    stages: Sequence[Stage]
    seed: int
    select: Select
    entered: StageEntered | None = None
    _groups: dict[str, _Group] = field(default_factory=dict)
    _assembler: StepAssembler | None = None
    _opened: int = 0
    _decided: int = 0
    _retries: dict[tuple[str, int], Retry] = field(default_factory=dict)
    _dropped: dict[str, set[int]] = field(default_factory=dict)
    """Groups dropped while open, with the samples whose rollouts may still be in flight."""
    _step_rollouts: dict[str, tuple[RolloutFigures, ...]] = field(default_factory=dict)
    _evaluated: list[RolloutFigures] = field(default_factory=list)
    _environments: set[str] = field(default_factory=set)
    """Of all groups there were; when they are several, figures are told of each."""
    _lost: list[RolloutFigures] = field(default_factory=list)
    """Attempts of groups that no step counts; the figures of the next step tell them."""
    _lost_groups: LostGroups | None = None
    interim: InterimEvaluations | None = None
    """Those within the stage, when it is an rl stage that has any."""

    # Events ----------------------------------------------------------------------------------------------------------

    def enter(self, entered: StageEntered, *, next_version: int) -> list[Instruction]:
        """The learner entered a stage; what is open of another stage is dropped.

        ``next_version`` is the version of the next step to be closed (beyond those the journal holds).
        """
        same_stage = self.entered is not None and self.entered.stage == entered.stage
        self.entered = entered
        if same_stage:
            return []
        instructions: list[Instruction] = [self._drop(group, STAGE_BOUNDARY) for group in list(self._groups)]
        self._opened = self._decided = 0
        self._retries.clear()
        self._dropped.clear()  # of another stage: its rollouts are cancelled for that reason alone
        self._step_rollouts.clear()
        self._evaluated.clear()
        self._lost.clear()
        self._assembler = self.interim = self._lost_groups = None
        if entered.stage < len(self.stages) and self.stages[entered.stage].kind == "rl":
            self._assembler = StepAssembler(
                version=next_version,
                groups_per_step=self.algorithm.groups_per_step,
                max_staleness=self.max_staleness,
                on_stale=self.algorithm.on_stale,
                refill=self.algorithm.refill,
                max_refill=self.algorithm.max_refill,
            )
            stage = self.stages[entered.stage]
            self._lost_groups = LostGroups(self.algorithm.groups_per_step, trains=True)
            if isinstance(stage, RlStage) and stage.evaluate is not None:
                self.interim = InterimEvaluations(stage)
        elif entered.stage < len(self.stages) and isinstance(evaluation := self.stages[entered.stage], EvaluateStage):
            self._lost_groups = LostGroups(evaluation.groups, trains=False)
        return instructions

    def restore(self, decided: Sequence[DecidedGroup], *, opened: int, last_order: int, surplus: int) -> None:
        """Take up what the journal holds of the stage just entered: decided groups in order, and counts.

        ``last_order`` is that of the group decided last, whether in a step by now or not. Open groups and their trajectories are then replayed through the ordinary events.
        """
        self._opened = opened
        self._decided = last_order
        if self._assembler is not None:
            self._assembler.surplus = surplus
            for item in decided:
                self._assembler.decided(item.group, item.oldest, signal=item.signal)
                self._step_rollouts[item.group] = item.figures

    def group_opened(self, opened: GroupOpened) -> bool:
        """A group exists; False when it is not of the current stage, or known already."""
        if self.entered is None or opened.stage != self.entered.stage or opened.group in self._groups:
            return False
        self._environments.add(opened.problem.environment)
        if opened.at_step is not None:
            if self.interim is None:
                return False
            self._groups[opened.group] = _Group(opened, [_Rollout() for _ in range(opened.samples)])
            self.interim.opened[opened.at_step] = max(self.interim.opened[opened.at_step], opened.number + 1)
            return True
        self._groups[opened.group] = _Group(opened, [_Rollout() for _ in range(opened.samples)])
        self._opened = max(self._opened, opened.number + 1)
        if self._assembler is not None:
            self._assembler.opened(opened.group, opened.policy.version)
        return True

    def wants(self, trajectory: Trajectory) -> bool:
        """Whether the trajectory is news: of an open group, a sample not settled, an attempt not seen."""
        group = self._groups.get(trajectory.group)
        if group is None or not 0 <= trajectory.sample < len(group.rollouts):
            return False
        rollout = group.rollouts[trajectory.sample]
        return not rollout.settled and rollout.candidate is None and trajectory.attempt >= rollout.attempt

    def trajectory(self, trajectory: Trajectory, judgement: Judgement | None = None) -> list[Instruction]:
        """A wanted trajectory is in the journal: judge it, ask for it again, or give its sample up.

        ``judgement`` is what the journal holds already, else what came with the trajectory counts.
        """
        group = self._groups[trajectory.group]
        rollout = group.rollouts[trajectory.sample]
        self._retries.pop((trajectory.group, trajectory.sample), None)
        if trajectory.status in LOST:
            return self._lose(group, rollout, trajectory)
        rollout.attempt = trajectory.attempt
        rollout.candidate = candidate(trajectory)
        rollout.trajectory = RolloutFigures.of(trajectory, group.opened.problem.environment)
        versions = trajectory.policies[trajectory.loss_mask > 0, 1]
        rollout.oldest = int(versions.min()) if len(versions) else group.opened.policy.version
        judgement = judgement or trajectory.judgement
        if judgement is None:
            seed = rollout_seed(self.seed, trajectory.group, trajectory.sample, trajectory.attempt)
            return [Judge(trajectory, group.opened.problem, seed)]
        return self.judged(trajectory.group, trajectory.sample, trajectory.attempt, judgement)

    def _lose(self, group: _Group, rollout: _Rollout, trajectory: Trajectory) -> list[Instruction]:
        group.lost.append(trajectory)
        rollout.attempt = trajectory.attempt + 1
        rollout.candidate = rollout.trajectory = None
        rollout.prompt_too_long = trajectory.status == "prompt_too_long"  # and would be so again
        if rollout.attempt < self.algorithm.rollout_attempts and not rollout.prompt_too_long:
            key = (trajectory.group, trajectory.sample)
            self._retries[key] = group.retry(trajectory.sample, rollout.attempt)
            return []
        rollout.lost = True
        return self._settled(group)

    def judged(self, group_name: str, sample: int, attempt: int, judgement: Judgement) -> list[Instruction]:
        """A rollout's judgement."""
        group = self._groups.get(group_name)
        if group is None or group.rollouts[sample].settled or group.rollouts[sample].attempt != attempt:
            return []
        group.rollouts[sample].judgement = judgement
        return [Judged(group_name, sample, attempt, judgement), *self._settled(group)]

    def failed(self, trajectory: Trajectory, reason: str) -> list[Instruction]:
        """An environment failed to judge a rollout, which is sampled again, or given up."""
        group = self._groups.get(trajectory.group)
        if group is None:
            return []
        rollout = group.rollouts[trajectory.sample]
        if rollout.settled or rollout.attempt != trajectory.attempt:
            return []
        transcript = replace(trajectory.transcript, status="environment_failed")
        return self._lose(group, rollout, replace(trajectory, transcript=transcript, reason=reason))

    def unwanted(self, trajectory: Trajectory) -> None:
        """A trajectory that is no news: one less in flight of a dropped group."""
        samples = self._dropped.get(trajectory.group)
        if samples is not None:
            samples.discard(trajectory.sample)
            if not samples:
                del self._dropped[trajectory.group]

    # What others ask ---------------------------------------------------------------------------------------------------

    def environment(self, group: str) -> str:
        """The environment that an open group's problem is of."""
        return self._groups[group].opened.problem.environment

    def progress(self) -> GroupsProgress:
        """The state the scheduler needs, as totals."""
        return GroupsProgress(
            stage=self.entered.stage if self.entered else 0,
            decided=self._decided,
            uncounted=self._assembler.uncounted if self._assembler else 0,
            retries=tuple(self._retries.values()),
            dropped_groups=tuple(sorted(self._dropped)),
        )

    def unfinished(self, stage: int) -> GroupsUnfinished | None:
        """The open groups of the stage and what they lack; None while the learner is not there yet."""
        if self.entered is None or self.entered.stage != stage:
            return None
        groups = []
        for group in self._groups.values():
            missing = tuple(
                group.retry(sample, rollout.attempt)
                for sample, rollout in enumerate(group.rollouts)
                if not rollout.settled and rollout.candidate is None
            )
            if missing:
                groups.append(UnfinishedGroup(group.opened, missing))
        interim = tuple(self.interim.opened.items()) if self.interim else ()
        return GroupsUnfinished(stage, self._opened, tuple(groups), interim)

    @property
    def open_groups(self) -> int:
        """Groups not decided."""
        return len(self._groups)

    @property
    def waiting_groups(self) -> int:
        """Groups decided and not in a step."""
        return self._assembler.waiting if self._assembler else 0

    @property
    def evaluation_progress(self) -> tuple[int, int] | None:
        """In an evaluate stage, how many rollouts are judged of how many; else None."""
        stage = self.stages[self.entered.stage] if self.entered and self.entered.stage < len(self.stages) else None
        if stage is None or stage.kind != "evaluate":
            return None
        return sum(not rollout.lost for rollout in self._evaluated), stage.rollouts

    def waits_for(self) -> tuple[str, ...]:
        """Open groups that hold the next step back."""
        return self._assembler.waits_for() if self._assembler else ()

    # Decisions ---------------------------------------------------------------------------------------------------------

    def _settled(self, group: _Group) -> list[Instruction]:
        if not all(rollout.settled for rollout in group.rollouts):
            return []
        if group.opened.purpose == "train":
            return self._decide_training(group)
        return self._decide_evaluation(group)

    def _decide_training(self, group: _Group) -> list[Instruction]:
        assert self._assembler is not None
        name = group.opened.group
        usable = group.judged()
        too_few = len(usable) < self.algorithm.minimum_samples
        too_long = any(rollout.prompt_too_long for rollout in group.rollouts)
        outage = self._lost_or_not(group, lost=too_few)
        lost = group.lost_figures()
        if too_few and not too_long:  # not the model's doing: no step counts it, and another is opened in its place
            self._assembler.forgotten(name)
            self._lost.extend(lost)
            return [self._drop(name, TOO_FEW_ROLLOUTS), *outage, *self.close_steps()]
        self._decided += 1
        self._step_rollouts[name] = (*(r.figures for r in usable), *lost)
        candidates = [_judged(rollout) for rollout in usable]
        instruction: Instruction
        kept: tuple[int, ...] = ()
        if too_few:
            reason = PROMPT_TOO_LONG
        elif not has_signal([c.reward for c in candidates]):
            reason = EQUAL_REWARDS
        else:
            reason = NOT_SELECTED
            rng = random.Random(f"{self.seed}/{name}/select")
            kept = sound_selection(self.select, candidates, rng, f"the group {name}")
        if not kept:
            instruction = self._drop(name, reason, order=self._decided)
            self._assembler.decided(name, group.opened.policy.version, signal=False)
        else:
            del self._groups[name]
            oldest = min(usable[index].oldest for index in kept)
            pairs = tuple((usable[i].candidate.sample, usable[i].attempt) for i in kept)  # type: ignore[union-attr]
            rewards = tuple(usable[index].reward for index in kept)
            instruction = Ready(name, pairs, rewards, oldest, self._decided)
            self._assembler.decided(name, oldest, signal=True)
        return [instruction, *outage, *self.close_steps()]

    def _lost_or_not(self, group: _Group, *, lost: bool) -> list[Instruction]:
        """What a group that has enough rollouts, or is lost, says of what they come from."""
        assert self._lost_groups is not None
        if not lost:
            self._lost_groups.usable()
            return []
        message = self._lost_groups.lost(group.opened.group, group.lost)
        return [Outage(message, self._lost_groups.in_a_row)] if message else []

    def close_steps(self) -> list[Instruction]:
        """Close every step that is complete; the shell calls it once after a restore, else it follows from events."""
        if self._assembler is None or self.entered is None:
            return []
        instructions: list[Instruction] = []
        while (step := self._assembler.close()) is not None:
            instructions.extend(self._drop(group, STALE) for group in step.dropped_open)
            rollouts = [r for group in step.decided for r in self._step_rollouts.pop(group, ())] + self._lost
            self._lost.clear()
            self._environments |= {rollout.environment for rollout in rollouts}
            figures = step_figures(rollouts, step, several=len(self._environments) > 1)
            instructions.append(Closed(self.entered.stage, step, figures))
        return instructions

    def _decide_evaluation(self, group: _Group) -> list[Instruction]:
        assert self.entered is not None
        del self._groups[group.opened.group]
        outage = self._lost_or_not(group, lost=not group.judged())
        instructions: list[Instruction] = [EvaluationGroupDone(group.opened.group), *outage]
        judged = [replace(r.figures, purpose=group.opened.purpose) for r in group.judged()]
        judged = judged or list(group.lost_figures()[:1])
        if self.interim is not None and group.opened.at_step is not None:
            figures = self.interim.group_done(group.opened.at_step, judged)
            evaluation = Evaluation(self.entered.stage, group.opened.at_step)
            return instructions + ([Evaluated(evaluation, figures)] if figures else [])
        self._decided += 1
        self._evaluated.extend(judged)
        return instructions + self.close_evaluation()

    def close_evaluation(self) -> list[Instruction]:
        """The evaluation's result, once every group of its stage has been evaluated."""
        if self.entered is None or self.entered.stage >= len(self.stages):
            return []
        stage = self.stages[self.entered.stage]
        if stage.kind != "evaluate" or self._groups or self._opened < stage.groups:
            return []
        return [Evaluated(Evaluation(self.entered.stage), evaluation_figures(self._evaluated, stage))]

    def evaluated_before(self, rollouts: Iterable[RolloutFigures]) -> None:
        """Take up what the journal holds of an evaluated group."""
        self._evaluated.extend(rollouts)

    def _drop(self, name: str, reason: str, order: int = 0) -> Dropped:
        group = self._groups.pop(name)
        for sample in range(len(group.rollouts)):
            self._retries.pop((name, sample), None)
        unsettled = {sample for sample, rollout in enumerate(group.rollouts) if rollout.candidate is None}
        if unsettled and reason == STALE:
            self._dropped[name] = unsettled
        judged = group.judged()
        lengths = [r.trajectory.tokens for r in judged if r.trajectory is not None]
        successes = [r.judgement.success for r in judged if r.judgement is not None]
        return Dropped(
            group=name,
            reason=reason,
            mean_length=float(np.mean(lengths)) if lengths else 0.0,
            success=float(np.mean(successes)) if successes else 0.0,
            oldest=group.opened.policy.version,
            order=order,
        )


def _judged(rollout: _Rollout) -> Candidate:
    assert rollout.candidate is not None
    assert rollout.judgement is not None
    given = rollout.judgement
    return replace(rollout.candidate, reward=given.reward, success=given.success, format_penalty=given.format_penalty)
