"""The RoC filter's decisions: when a group is complete, which of its rollouts are kept, which groups make a step.

Pure: events in, instructions out. The filter writes the journal and sends messages as the instructions say. All changes
of a group's state happen here. A group is open until every sample is settled: judged, or lost after its last attempt.
Then the group is ready to be trained, or dropped for a named reason.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap

import numpy as np

from agent_rl.config.algorithm import Algorithm
from agent_rl.config.selection import SelectStage, Solved
from agent_rl.config.topology import EvaluateStage, RlStage, Stage
from agent_rl.groups.instructions import (
    EQUAL_REWARDS,
    NOT_ADMITTED,
    NOT_SELECTED,
    PROMPT_TOO_LONG,
    STAGE_BOUNDARY,
    STALE,
    TOO_FEW_ROLLOUTS,
    Closed,
    Decided,
    Dropped,
    Evaluated,
    EvaluationGroupDone,
    Instruction,
    Judge,
    Judged,
    Outage,
    Ready,
)
from agent_rl.groups.outages import MOST_LOST, LostGroups
from agent_rl.groups.resampling import Candidate, Select, has_signal, sound_selection
from agent_rl.groups.selection import InterimEvaluations, Selection, StageEvaluation, sampled_problem
from agent_rl.groups.statistics import RolloutFigures, delivered, fated, step_figures
from agent_rl.messages import (
    LOST,
    Evaluation,
    GroupOpened,
    GroupOutcome,
    GroupsProgress,
    GroupsUnfinished,
    InterimOpened,
    Judgement,
    Retry,
    StageEntered,
    Trajectory,
    UnfinishedGroup,
)
from agent_rl.scheduling.curriculum import TOLD, Curricula, Curriculum, curriculum_of
from agent_rl.scheduling.ids import rollout_seed
from agent_rl.scheduling.staleness import StepAssembler


@dataclass(slots=True)
class SampleState:
    """One sample of a group. ``ended`` and ``judgement`` are of its newest attempt."""

    attempt: int = 0
    lost: bool = False
    """No attempt is left."""
    prompt_too_long: bool = False
    ended: RolloutFigures | None = None
    judgement: Judgement | None = None

    @property
    def settled(self) -> bool:
        """Whether the sample is judged or lost."""
        return self.lost or self.judgement is not None

    @property
    def figures(self) -> RolloutFigures:
        """The figures of a judged sample."""
        assert self.ended is not None
        assert self.judgement is not None
        return self.ended.judged(self.judgement)

    def candidate(self, position: int) -> Candidate:
        """A judged sample, as a selection sees it."""
        figures = self.figures
        assert self.judgement is not None
        return Candidate(
            sample=position,
            reward=figures.reward,
            turns=figures.turns,
            tool_calls=figures.calls,
            failed_calls=figures.failed_calls,
            format_penalty=self.judgement.format_penalty,
            tokens=figures.tokens,
            success=figures.success,
            tags=figures.tags,
        )


@dataclass(slots=True)
class UndecidedGroup:
    """The group's samples, and the attempts that were lost."""

    opened: GroupOpened
    samples: list[SampleState]
    lost: list[Trajectory] = field(default_factory=list)

    @property
    def running(self) -> set[int]:
        """The samples that an attempt may still be in flight of."""
        return {position for position, sample in enumerate(self.samples) if not sample.lost and sample.ended is None}

    @property
    def seconds(self) -> float:
        """How long the group's longest rollout took, of those that have ended."""
        return max((sample.ended.seconds for sample in self.samples if sample.ended is not None), default=0.0)

    def awaits(self, position: int, attempt: int) -> bool:
        """Whether a judgement of this attempt at a sample is still wanted."""
        sample = self.samples[position]
        return not sample.settled and sample.attempt == attempt

    def candidates(self) -> list[Candidate]:
        """The judged samples, as a selection sees them."""
        return [each.candidate(p) for p, each in enumerate(self.samples) if each.judgement is not None]

    def judged_figures(self) -> list[RolloutFigures]:
        """The figures of the judged samples."""
        return [sample.figures for sample in self.samples if sample.judgement is not None]

    def lost_figures(self) -> tuple[RolloutFigures, ...]:
        """The figures of the lost attempts."""
        return tuple(RolloutFigures.of(attempt, self.opened) for attempt in self.lost)

    def counted_figures(self) -> list[RolloutFigures]:
        """What an evaluation counts: the judged samples, or else one attempt that was lost."""
        return self.judged_figures() or list(self.lost_figures()[:1])

    def retry(self, position: int) -> Retry:
        """The request for a sample's next attempt."""
        opened = self.opened
        attempt = self.samples[position].attempt
        return Retry(opened.group, position, attempt, opened.number, opened.evaluation, opened.drawn)

    def unfinished(self) -> UnfinishedGroup | None:
        """The samples to request after a restart of the scheduler; None when none is missing."""
        missing = tuple(self.retry(p) for p, each in enumerate(self.samples) if not each.settled and each.ended is None)
        return UnfinishedGroup(self.opened, missing) if missing else None


@dataclass(frozen=True, slots=True)
class DecidedGroup:
    """A group that the journal holds as decided and not yet in a step, for `GroupBook.restore`."""

    group: str
    oldest: int
    signal: bool
    figures: tuple[RolloutFigures, ...] = ()


@dataclass(slots=True)
class GroupBook:
    """The groups of the stage that the learner is in."""

    algorithm_of: Callable[[Stage], Algorithm]
    """The algorithm in force in a stage, with the staleness budget in force."""
    stages: Sequence[Stage]
    seed: int
    select: Select
    several_environments: bool = False
    """The figures of a step are also given by environment."""
    curricula: Curricula = curriculum_of
    entered: StageEntered | None = None
    interim: InterimEvaluations | None = None
    """The evaluations within the stage, where an rl stage has some."""
    whole: StageEvaluation | Selection | None = None
    """What the stage has counted, in an evaluate or select stage."""
    algorithm: Algorithm = field(init=False)
    """The algorithm of the stage that was entered last."""
    _groups: dict[str, UndecidedGroup] = field(default_factory=dict)
    _assembler: StepAssembler | None = None
    _opened: int = 0
    _decided: int = 0
    _retries: dict[tuple[str, int], Retry] = field(default_factory=dict)
    _dropped: dict[str, UndecidedGroup] = field(default_factory=dict)
    """Groups dropped while open that may still have rollouts in flight."""
    _stale_seconds: list[float] = field(default_factory=list)
    """How long the groups dropped as stale lasted whose rollouts have ended since the last step."""
    _step_rollouts: dict[str, tuple[RolloutFigures, ...]] = field(default_factory=dict)
    _lost: list[RolloutFigures] = field(default_factory=list)
    """Attempts of groups that no step counts. The next step's figures count these attempts."""
    _stale: list[RolloutFigures] = field(default_factory=list)
    """Rollouts of groups that were dropped as stale since the last step, as far as they had ended."""
    _lost_groups: LostGroups | None = None
    _curriculum: Curriculum | None = None
    _outcomes: list[GroupOutcome] = field(default_factory=list)
    """Of the stage's training groups, where it has a curriculum."""

    # Events

    def enter(self, entered: StageEntered, *, next_version: int) -> list[Instruction]:
        """The learner entered a stage. The open groups of another stage are dropped.

        ``next_version`` is the version of the next step to close, after those that the journal holds.
        """
        same_stage = self.entered is not None and self.entered.stage == entered.stage
        self.entered = entered
        if same_stage:
            return []
        instructions: list[Instruction] = [self._drop(group, STAGE_BOUNDARY) for group in list(self._groups)]
        self._opened = self._decided = 0
        self._retries.clear()
        self._dropped.clear()  # the scheduler cancels all rollouts of another stage
        self._step_rollouts.clear()
        self._lost.clear()
        self._stale.clear()
        self._stale_seconds.clear()
        self._assembler = self.interim = self.whole = self._lost_groups = self._curriculum = None
        self._outcomes.clear()
        stage = self._stage
        self.algorithm = self.algorithm_of(stage or self.stages[-1])  # after the last one, nothing is opened
        if isinstance(stage, RlStage):
            self._assembler = StepAssembler(
                version=next_version,
                groups_per_step=self.algorithm.groups_per_step,
                max_staleness=self.algorithm.max_staleness,
                on_stale=self.algorithm.on_stale,
                max_corrected_staleness=self.algorithm.max_corrected_staleness,
                refill=self.algorithm.refill,
                max_refill=self.algorithm.max_refill,
            )
            self._lost_groups = LostGroups(self.algorithm.groups_per_step, trains=True)
            self._curriculum = self.curricula(self.algorithm)
            if stage.evaluate is not None:
                self.interim = InterimEvaluations(stage)
        elif isinstance(stage, EvaluateStage):
            self.whole = StageEvaluation(stage)
            self._lost_groups = LostGroups(stage.groups, trains=False)
        elif isinstance(stage, SelectStage):
            self.whole = Selection(stage)
            self._lost_groups = LostGroups(MOST_LOST, trains=True)
        return instructions

    def observe(self, outcome: GroupOutcome) -> None:
        """A training group was decided."""
        if self._curriculum is not None:
            self._outcomes.append(outcome)
            self._curriculum.observe(outcome.drawn, Solved(outcome.right, outcome.samples))

    def restore(self, decided: Sequence[DecidedGroup], *, opened: int, last_order: int, surplus: int) -> None:
        """Restore the stage just entered from the journal: the decided groups in order, and counts.

        ``last_order`` is the order of the group decided last, whether a step has it or not. The caller then replays
        open groups and their trajectories through the ordinary events.
        """
        self._opened = opened
        self._decided = last_order
        if self._assembler is not None:
            self._assembler.surplus = surplus
            for item in decided:
                self._assembler.decided(item.group, item.oldest, signal=item.signal)
                self._step_rollouts[item.group] = item.figures

    def group_opened(self, opened: GroupOpened) -> bool:
        """A group exists. False when it is not of the current stage, or already known."""
        if self.entered is None or opened.stage != self.entered.stage or opened.group in self._groups:
            return False
        if opened.at_step is not None and self.interim is None:
            return False
        self._groups[opened.group] = UndecidedGroup(opened, [SampleState() for _ in range(opened.samples)])
        if opened.at_step is not None:
            assert self.interim is not None
            self.interim.opened[opened.at_step] = max(self.interim.opened[opened.at_step], opened.number + 1)
            return True
        self._opened = max(self._opened, opened.number + 1)
        if isinstance(self.whole, Selection):
            self.whole.problems = opened.stage_groups
        if self._assembler is not None:
            # The step that brought a newer version may be lost with the power. It is then sampled again.
            self._assembler.opened(opened.group, min(opened.policy.version, self._assembler.version))
        return True

    def wants(self, trajectory: Trajectory) -> bool:
        """Whether the trajectory is new: of an open group, a sample not settled, an attempt not seen."""
        group = self._groups.get(trajectory.group)
        if group is None or not 0 <= trajectory.sample < len(group.samples):
            return False
        sample = group.samples[trajectory.sample]
        return not sample.settled and sample.ended is None and trajectory.attempt >= sample.attempt

    def trajectory(self, trajectory: Trajectory, judgement: Judgement | None = None) -> list[Instruction]:
        """A new trajectory is in the journal: judge it, sample it again, or give its sample up.

        ``judgement`` is the journal's; without one, the trajectory's own counts.
        """
        group = self._groups[trajectory.group]
        self._retries.pop((trajectory.group, trajectory.sample), None)
        if trajectory.status in LOST:
            return self._lose(group, trajectory)
        sample = group.samples[trajectory.sample]
        sample.attempt = trajectory.attempt
        sample.ended = RolloutFigures.of(trajectory, group.opened)
        judgement = judgement or trajectory.judgement
        if judgement is None:
            seed = rollout_seed(self.seed, trajectory.group, trajectory.sample, trajectory.attempt)
            return [Judge(trajectory, group.opened.problem, seed)]
        return self.judged(trajectory.group, trajectory.sample, trajectory.attempt, judgement)

    def _lose(self, group: UndecidedGroup, trajectory: Trajectory) -> list[Instruction]:
        group.lost.append(trajectory)
        sample = group.samples[trajectory.sample]
        sample.attempt = trajectory.attempt + 1
        sample.ended = None
        sample.prompt_too_long = trajectory.status == "prompt_too_long"  # another attempt has the same prompt
        if sample.attempt < self.algorithm.rollout_attempts and not sample.prompt_too_long:
            self._retries[trajectory.group, trajectory.sample] = group.retry(trajectory.sample)
            return []
        sample.lost = True
        return self._settled(group)

    def judged(self, group_name: str, position: int, attempt: int, judgement: Judgement) -> list[Instruction]:
        """A rollout is judged."""
        group = self._groups.get(group_name)
        if group is None or not group.awaits(position, attempt):
            return []
        group.samples[position].judgement = judgement
        return [Judged(group_name, position, attempt, judgement), *self._settled(group)]

    def failed(self, trajectory: Trajectory, reason: str) -> list[Instruction]:
        """An environment failed to judge a rollout. The rollout is sampled again, or given up."""
        group = self._groups.get(trajectory.group)
        if group is None or not group.awaits(trajectory.sample, trajectory.attempt):
            return []
        transcript = replace(trajectory.transcript, status="environment_failed")
        return self._lose(group, replace(trajectory, transcript=transcript, reason=reason))

    def unwanted(self, trajectory: Trajectory) -> None:
        """A trajectory that is not new: a dropped group has one rollout less in flight."""
        group = self._dropped.get(trajectory.group)
        if group is not None and trajectory.sample in group.running:
            figures = RolloutFigures.of(trajectory, group.opened)
            group.samples[trajectory.sample].ended = figures
            self._stale.append(replace(figures, fate=STALE))
            if not group.running:
                del self._dropped[trajectory.group]
                self._stale_seconds.append(group.seconds)

    # Questions

    @property
    def _stage(self) -> Stage | None:
        """The stage that the learner is in; None before the first and after the last."""
        at = self.entered.stage if self.entered else len(self.stages)
        return self.stages[at] if at < len(self.stages) else None

    def environment(self, group: str) -> str:
        """The environment of an open group's problem."""
        return self._groups[group].opened.problem.environment

    def progress(self) -> GroupsProgress:
        """The state the scheduler needs, as totals."""
        return GroupsProgress(
            stage=self.entered.stage if self.entered else 0,
            decided=self._decided,
            uncounted=self._uncounted,
            retries=tuple(self._retries.values()),
            dropped_groups=tuple(sorted(self._dropped)),
            outcomes=tuple(self._outcomes[-TOLD:]),
        )

    def unfinished(self, stage: int) -> GroupsUnfinished | None:
        """The open groups of the stage, with the samples to request; None while the learner is not in the stage."""
        if self.entered is None or self.entered.stage != stage:
            return None
        groups = tuple(each for group in self._groups.values() if (each := group.unfinished()) is not None)
        interim = tuple(starmap(InterimOpened, self.interim.opened.items())) if self.interim else ()
        outcomes = tuple(self._outcomes)
        return GroupsUnfinished(stage, self._opened, groups, interim, uncounted=self._uncounted, outcomes=outcomes)

    @property
    def _uncounted(self) -> int:
        return self._assembler.uncounted if self._assembler else 0

    @property
    def open_groups(self) -> int:
        """Number of groups that are not decided."""
        return len(self._groups)

    @property
    def waiting_groups(self) -> int:
        """Number of groups that are decided and in no step."""
        return self._assembler.waiting if self._assembler else 0

    @property
    def evaluation_progress(self) -> tuple[int, int] | None:
        """In an evaluate or select stage, the number of judged rollouts and of all rollouts; else None."""
        return None if self.whole is None else self.whole.progress()

    def waits_for(self) -> tuple[str, ...]:
        """Open groups that hold the next step back."""
        return self._assembler.waits_for() if self._assembler else ()

    # Decisions

    def _settled(self, group: UndecidedGroup) -> list[Instruction]:
        if not all(sample.settled for sample in group.samples):
            return []
        if group.opened.purpose == "train":
            return self._decide_training(group)
        return self._decide_evaluation(group)

    def _decide_training(self, group: UndecidedGroup) -> list[Instruction]:
        assert self._assembler is not None
        name = group.opened.group
        candidates = group.candidates()
        too_few = len(candidates) < self.algorithm.minimum_samples
        too_long = any(sample.prompt_too_long for sample in group.samples)
        outage = self._outage(group, lost=too_few)
        if too_few and not too_long:  # the infrastructure's fault: no step counts the group, and another one is opened
            self._assembler.forgotten(name)
            self._lost.extend(group.lost_figures())
            return [self._drop(name, TOO_FEW_ROLLOUTS), *outage, *self.close_steps()]
        observed, admitted = self._observed(group)
        self._decided += 1
        kept: tuple[int, ...] = ()
        reason = NOT_SELECTED
        if too_few:
            reason = PROMPT_TOO_LONG
        elif not has_signal([c.reward for c in candidates]):
            reason = EQUAL_REWARDS
        elif not admitted:
            reason = NOT_ADMITTED
        else:
            rng = random.Random(f"{self.seed}/{name}/select")
            kept = sound_selection(self.select, candidates, rng, f"the group {name}")
        chosen = [candidates[index] for index in kept]
        self._step_rollouts[name] = self._fated(group, chosen, NOT_SELECTED if kept else reason)
        if not kept:
            self._assembler.decided(name, group.opened.policy.version, signal=False)
            return [*observed, self._drop(name, reason, order=self._decided), *outage, *self.close_steps()]
        del self._groups[name]
        samples = [(each.sample, group.samples[each.sample]) for each in chosen]
        oldest = min(sample.figures.oldest for _, sample in samples)
        self._assembler.decided(name, oldest, signal=True)
        ready = Ready(
            group=name,
            kept=tuple((position, sample.attempt) for position, sample in samples),
            rewards=tuple(each.reward for each in chosen),
            oldest=oldest,
            order=self._decided,
        )
        return [*observed, ready, *outage, *self.close_steps()]

    def _fated(self, group: UndecidedGroup, chosen: Sequence[Candidate], reason: str) -> tuple[RolloutFigures, ...]:
        """The figures of all rollouts of a decided group, with what becomes of them."""
        kept = {each.sample for each in chosen}
        masked = self.algorithm.overlong == "mask"
        judged = (
            fated(each, "trained" if each.sample in kept else reason, masked=masked) for each in group.judged_figures()
        )
        return (*judged, *group.lost_figures())

    def _observed(self, group: UndecidedGroup) -> tuple[list[Instruction], bool]:
        """Tell the curriculum of a group that is decided; whether the group is admitted."""
        if self._curriculum is None:
            return [], True
        problem = sampled_problem(group)
        judged, opened = problem.solved.samples - problem.lost, group.opened
        admitted = self._curriculum.admits(Solved(problem.solved.right, judged))
        drawn = opened.number if opened.drawn is None else opened.drawn
        self.observe(GroupOutcome(opened.number, drawn, problem.solved.right, judged))
        return [Decided(problem)], admitted

    def _outage(self, group: UndecidedGroup, *, lost: bool) -> list[Instruction]:
        """Count a group that is lost, or that has enough rollouts. Too many lost in a row end the run."""
        assert self._lost_groups is not None
        if not lost:
            self._lost_groups.usable()
            return []
        message = self._lost_groups.lost(group.opened.group, group.lost)
        return [Outage(message, self._lost_groups.in_a_row)] if message else []

    def close_steps(self) -> list[Instruction]:
        """Close every complete step. The caller of `restore` calls it once; otherwise the events call it."""
        if self._assembler is None or self.entered is None:
            return []
        instructions: list[Instruction] = []
        while (step := self._assembler.close()) is not None:
            instructions.extend(map(self._drop_stale, step.dropped))
            rollouts = [r for group in step.decided for r in self._step_rollouts.pop(group, ())] + self._lost
            self._lost.clear()
            figures = step_figures(rollouts, step, self._stale_seconds, several=self.several_environments)
            figures = replace(figures, delivered=delivered([*rollouts, *self._stale]))
            self._stale.clear()
            self._stale_seconds.clear()
            instructions.append(Closed(self.entered.stage, step, figures))
        return instructions

    def _decide_evaluation(self, group: UndecidedGroup) -> list[Instruction]:
        assert self.entered is not None
        name, at_step = group.opened.group, group.opened.at_step
        del self._groups[name]
        outage = self._outage(group, lost=not group.judged_figures())
        if self.interim is not None and at_step is not None:
            figures = self.interim.group_done(at_step, group.counted_figures())
            evaluated = [Evaluated(Evaluation(self.entered.stage, at_step), figures)] if figures else []
            return [EvaluationGroupDone(name), *outage, *evaluated]
        self._decided += 1
        done = EvaluationGroupDone(name) if self.whole is None else self.whole.group_done(group)
        return [done, *outage, *self.close_evaluation()]

    def close_evaluation(self) -> list[Instruction]:
        """The result of an evaluate or select stage, once all its groups are evaluated."""
        if self.whole is None or self.entered is None:
            return []
        result = self.whole.result(self.entered.stage)
        return [] if result is None else [result]

    def _drop_stale(self, name: str) -> Dropped:
        """Drop a group that would be trained too late, whether it is open or decided."""
        if name in self._groups:
            return self._drop(name, STALE)
        decided = self._step_rollouts.pop(name, ())
        self._stale.extend(replace(rollout, fate=STALE) for rollout in decided)
        rollouts = [rollout for rollout in decided if not rollout.lost]
        self._stale_seconds.append(max((rollout.seconds for rollout in rollouts), default=0.0))
        success = float(np.mean([rollout.success for rollout in rollouts])) if rollouts else 0.0
        return Dropped(name, STALE, success, min((rollout.oldest for rollout in rollouts), default=0), order=0)

    def _drop(self, name: str, reason: str, order: int = 0) -> Dropped:
        group = self._groups.pop(name)
        if reason == STALE:
            ended = [sample.ended for sample in group.samples if sample.ended is not None]
            self._stale.extend(replace(rollout, fate=STALE) for rollout in (*ended, *group.lost_figures()))
        for position in range(len(group.samples)):
            self._retries.pop((name, position), None)
        if reason == STALE and group.running:
            self._dropped[name] = group
        elif reason == STALE:
            self._stale_seconds.append(group.seconds)
        judged = group.judged_figures()
        return Dropped(
            group=name,
            reason=reason,
            success=float(np.mean([rollout.success for rollout in judged])) if judged else 0.0,
            oldest=group.opened.policy.version,
            order=order,
        )
