"""The RoC filter: journals trajectories, has them judged, selects, and sends groups and steps to the learner.

::

    Trajectory --> journal --(commit)--> acknowledged
               --> GroupBook --> Judge --> JudgementWanted / JudgementReply --> GroupBook
    GroupBook  --> TrainingGroup, StepReady --> learner

`agent_rl.groups.book.GroupBook` decides. This actor alone writes the journal. Tasks of their own send messages, so no
handler waits for a push or a call.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import trio
from pydantic import PositiveFloat, PositiveInt

from actors.base import Actor, Announce, Call, Push, Settings
from actors.roc_filter.judging import Compaction, Judging
from actors.roc_filter.replay import (
    LEARNER_AT,
    ToLearner,
    encode_stored,
    entered_before,
    kept_problems,
    restore,
    sampled_row,
)
from agent_rl.config.plugins import ContractError, naming, needs_start
from agent_rl.config.topology import Topology
from agent_rl.environments.load import Environments
from agent_rl.figures import ActorFigures, FilterFigures
from agent_rl.groups.book import GroupBook
from agent_rl.groups.instructions import (
    NOT_FINITE,
    STAGE_BOUNDARY,
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
    Sampled,
    Selected,
)
from agent_rl.groups.outages import EnvironmentTrust, OutageError
from agent_rl.groups.resampling import Candidate, Select, made_up_groups, named_selection, sound_selection
from agent_rl.messages import (
    CheckpointSaved,
    Evaluation,
    EvaluationReady,
    GroupOpened,
    GroupsProgress,
    GroupsUnfinished,
    JudgementReply,
    JudgementWanted,
    Recorded,
    StageEntered,
    StageRecorded,
    StepReady,
    StepTrained,
    TrainingGroup,
    Trajectory,
    UnfinishedGroups,
)
from agent_rl.records.continuing import check_history, refuse_learner
from agent_rl.records.retention import SELECTED_TOGETHER
from agent_rl.records.run_records import RunRecords
from agent_rl.scheduling.curriculum import curriculum_of, try_curriculum
from transport import CallRefused


class RoCFilterSettings(Settings):
    """When to commit, and how long to wait for judgements."""

    commit_seconds: PositiveFloat = 0.02
    """Longest wait of a message for the commit that acknowledges it."""
    check_timeout_seconds: PositiveFloat = 300.0
    """From asking an executor to its judgement, queueing included. Then the filter asks again."""
    check_attempts: PositiveInt = 3
    """How often executors may fail at judging a rollout before it counts as lost."""
    training_window: PositiveInt = 4096
    """Most groups and steps that the learner has not taken."""


WATCH_SECONDS = 1.0
"""How often the filter looks whether its journal is still there. Every commit looks too."""


FAULTS = "environment_faults"
"""The journal's fact with the rollouts in a row that each environment lost: a restarted filter continues the count."""


class RoCFilter(Actor):
    """The single filter of a run. Its state is rebuilt from the journal at every start."""

    concurrency = 1
    single = True
    drain_order = 35
    Settings = RoCFilterSettings
    receives = (
        Push(GroupOpened),
        Push(Trajectory),
        Call(StageEntered, StageRecorded),
        Call(StepTrained, Recorded),
        Call(CheckpointSaved, Recorded),
        Call(UnfinishedGroups, GroupsUnfinished),
    )
    links: ClassVar = {
        "checks": Call(JudgementWanted, JudgementReply, awaited_in_handler=False),
        "training": Push(TrainingGroup, StepReady, EvaluationReady, awaited_in_handler=False),
        "progress": Announce(GroupsProgress),
    }

    @classmethod
    def link_options(cls, link: str, settings: RoCFilterSettings) -> dict[str, Any]:
        """The training window from the settings."""
        return {"training": {"window": settings.training_window}}.get(link, {})

    @classmethod
    def check(cls, topology: Topology, settings: RoCFilterSettings) -> list[str]:
        """The training window must hold all groups that the staleness budget lets be ready at once."""
        algorithms = [algorithm for _, _, algorithm in topology.rl_algorithms]
        needed = max(((each.max_staleness + 1) * (each.groups_per_step + 1) for each in algorithms), default=1)
        if settings.training_window < needed:
            window = f"training_window {settings.training_window}"
            return [f"{window} cannot hold (max_staleness + 1) * groups_per_step groups; set it to at least {needed}"]
        return []

    @classmethod
    def probe(cls, topology: Topology, settings: RoCFilterSettings) -> list[str]:
        """Try the selection on made-up groups."""
        least = topology.algorithm.minimum_samples
        sizes = {algorithm.samples for _, _, algorithm in topology.rl_algorithms} or {topology.algorithm.samples}
        actor = cls.on_trial(topology, settings)
        try:
            for algorithm in [each for _, _, each in topology.rl_algorithms][:1]:
                with naming("algorithm", "curriculum"):
                    if (curriculum := curriculum_of(algorithm)) is not None:
                        try_curriculum(curriculum, algorithm.samples)
            for group in (group for size in sorted(sizes) if size > 1 for group in made_up_groups(size, least)):
                sound_selection(actor.selection(), group, random.Random(0), "a made-up group")
        except ContractError as error:
            if not needs_start(error, actor):
                raise
        return []

    def select(self, group: Sequence[Candidate], rng: random.Random) -> tuple[int, ...]:
        """The rollouts to keep of a group with signal, by position. Your own filter class may override this method.

        Keep unequal rewards, or none to drop the group. ``rng`` is the group's own generator, and the only source of
        random numbers. The result is checked (`sound_selection`): a run with an invalid selection stops.
        """
        algorithm = self.context.topology.algorithm
        return named_selection(algorithm.resampling, algorithm.keep)(group, rng)

    def selection(self) -> Select:
        """`select` where your own class defines it, else the selection that ``algorithm.resampling`` names."""
        algorithm = self.context.topology.algorithm
        own = type(self).select is not RoCFilter.select
        return self.select if own else named_selection(algorithm.resampling, algorithm.keep)

    # Life

    async def prepare(self) -> None:
        """Load the environments."""
        self._environments = Environments(self.context.topology, self.context.base)

    async def start(self) -> None:
        """Open the journal, and continue where it stands."""
        await self.prepared()
        topology = self.context.topology
        check_history(self.context.directory, topology)
        self._journal = self.context.open_journal()
        self._records = RunRecords(
            self.context.directory,
            self._journal,
            topology,
            self.context.started_at,
            self.context.wall(),
            tools=any(self._environments.toolboxes.values()),
        )
        self._book = GroupBook(
            algorithm_of=topology.algorithm_of,
            stages=topology.stages,
            seed=topology.run.seed,
            select=self.selection(),
            several_environments=len(topology.environments) > 1,
        )
        self._acks: list[Callable[[], None]] = []
        self._commit_wanted = trio.Event()
        self._to_learner = ToLearner(self.context.link("training"), self._journal, self._commit)
        settings: RoCFilterSettings = self.context.settings
        self._trust = EnvironmentTrust(json.loads(self._journal.fact(FAULTS) or "{}"))
        self._judging = Judging(
            self.context.link("checks"),
            self._judged,
            self._environments,
            self.log,
            timeout=settings.check_timeout_seconds,
            attempts=settings.check_attempts,
        )
        keep = topology.run.keep_trajectories
        self._compaction = Compaction(self._journal, keep, self._commit, self.context.in_thread)
        self._compaction.want()  # continue a compaction that the last process did not end
        self._trajectories = 0
        self._too_long: set[str] = set()
        self._tasks, self._tasks_ended = trio.CancelScope(), trio.Event()
        self.context.nursery.start_soon(self._tend)
        if (entered := entered_before(self._journal)) is not None:  # only a restarted learner says again where it is
            self._take_up(entered)
            self._resend(entered)
            self._commit()

    async def stop(self) -> None:
        """Commit, acknowledge, and write a summary. The tasks end first: no thread of theirs needs the journal then.

        The supervisor's `drain_seconds` bounds the wait for a thread that is writing.
        """
        self._tasks.cancel()
        await self._tasks_ended.wait()
        self._commit()
        try:
            self._records.write_summary(self.context.wall())
        finally:
            self._records.close()
            self._journal.close()

    async def handle(self, message: Any) -> Any:
        """Handle one event at a time, in order."""
        match message:
            case Trajectory():
                self._acks.append(self.defer_ack())
                self._trajectory(message)
            case GroupOpened():
                self._acks.append(self.defer_ack())
                known = self._journal.group(message.group)  # one that a restart has dropped may be sent again
                if (known is None or known.state == "open") and self._book.group_opened(message):
                    place = message.group, message.stage, message.number, message.purpose
                    self._journal.open_group(*place, encode_stored(message), message.at_step)
            case UnfinishedGroups():
                answer = self._book.unfinished(message.stage)
                if answer is None:
                    raise CallRefused(f"the learner is not in stage {message.stage} yet")
                return replace(answer, kept=kept_problems(self._journal, self.context.topology, message.stage))
            case StageEntered():
                return self._enter(message)
            case StepTrained():
                skipped = NOT_FINITE if message.figures.skipped else ""
                if self._journal.step_trained(message.version, message.figures, dropped_for=skipped):
                    self._records.step(message.version, self.context.wall())
                self._journal.set_fact(LEARNER_AT, str(message.version + 1))
                self._commit()
                return Recorded()
            case CheckpointSaved():
                self._records.checkpoint(message.path)
                self._journal.keep_from(message.oldest_version)
                self._commit()
                self._compaction.want()
                return Recorded()
            case _:
                return await super().handle(message)
        self._commit_wanted.set()
        return None

    # Events

    def _trajectory(self, trajectory: Trajectory) -> None:
        if not self._book.wants(trajectory):
            self._book.unwanted(trajectory)
            return
        environment = self._book.environment(trajectory.group)
        if trajectory.status == "environment_failed":
            self._environment_failed(environment, trajectory.rollout, trajectory.reason)
        elif trajectory.judgement is not None:
            self._environment_judged(environment)
        self._trajectories += 1
        # The reason names the problem, which comes back with every pass over the tasks.
        if trajectory.status == "prompt_too_long" and trajectory.reason not in self._too_long:
            self._too_long.add(trajectory.reason)
            message = "a prompt is too long: its group is not sampled"
            self.log.warning(message, group=trajectory.group, why=trajectory.reason)
        self._journal.add_trajectory(
            trajectory.group,
            trajectory.sample,
            trajectory.attempt,
            trajectory.status,
            encode_stored(trajectory),
            trajectory.judgement,
        )
        self._perform(self._book.trajectory(trajectory))

    def _enter(self, entered: StageEntered) -> StageRecorded:
        if entered.restored:
            kinds = [stage.kind for stage in self.context.topology.stages]
            refuse_learner(self._journal, entered, kinds)
        epoch = int(self._journal.fact("epoch") or 0)
        if entered.restored:
            epoch += 1
            self._journal.set_fact("epoch", str(epoch))
        self._records.spent(self.context.wall())
        self._journal.set_fact("stage", str(entered.stage))
        self._journal.set_fact("stage_version", str(entered.stage_version))
        self._journal.set_fact(LEARNER_AT, str(entered.version))
        if entered.left is not None:
            self._records.stage_left(entered.left, self.context.wall())
        if self._take_up(entered) or entered.restored:
            self._resend(entered)
        else:
            self._perform(self._book.close_evaluation())  # an earlier process may have died before it sent the result
        if entered.stage >= len(self.context.topology.stages):
            self._records.write_summary(self.context.wall())
        self._commit(flush=True)
        return StageRecorded(epoch, self._journal.fact("run") or "", self._next_version(entered))

    def _take_up(self, entered: StageEntered) -> bool:
        """Enter a stage, and restore what the journal holds of it. Returns whether the book was in another stage.

        The journal holds groups of a stage that this filter, or the learner, returns to.
        """
        fresh = self._book.entered is None or self._book.entered.stage != entered.stage
        self._perform(self._book.enter(entered, next_version=self._next_version(entered)))
        self._journal.leave_stages(but=entered.stage, reason=STAGE_BOUNDARY)
        if fresh:
            for instructions in restore(self._book, self._journal, entered.stage):
                self._perform(instructions)
        return fresh

    def _next_version(self, entered: StageEntered) -> int:
        """The version of the stage's next step to close."""
        steps = self._journal.steps(stage=entered.stage)
        return steps[-1].version + 1 if steps else entered.version

    def _resend(self, entered: StageEntered) -> None:
        """Send again what was decided from ``entered.version`` on: the learner or this filter is a new process."""
        self._to_learner.send_again(entered.stage, entered.version)
        self._perform(self._book.close_evaluation())

    # Instructions

    def _perform(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Judge():
                    self._judging.want(instruction)
                case Judged(group, sample, attempt, judgement):
                    self._journal.judge(group, sample, attempt, judgement)
                case Decided(problem):
                    self._journal.add_outcome(sampled_row(problem))
                case Ready(group, kept, rewards, oldest, order):
                    self._journal.ready(group, kept, rewards, oldest, order)
                    self._to_learner.send(group)
                case Dropped(group, reason, success, oldest, order):
                    self._journal.drop(group, reason, success, oldest, order)
                case Closed(stage, step, figures):
                    self._journal.close_step(step.version, stage, step.trained, step.decided, figures)
                    self._to_learner.send(StepReady(stage, step.version, step.trained, figures))
                case EvaluationGroupDone(group):
                    self._journal.evaluated(group)
                case Sampled(group, problem):
                    self._journal.add_sampled(group, sampled_row(problem))
                    if problem.number % SELECTED_TOGETHER == 0:
                        self._compaction.want()
                case Selected(stage, kept, figures):
                    if self._journal.add_selection(stage, kept, figures):
                        self._records.selection(figures, self.context.wall())
                    self._to_learner.send(EvaluationReady(Evaluation(stage), None, figures))
                    self._compaction.want()
                case Outage(message, again):
                    self._journal.ask_again(again)
                    self._records.write_summary(self.context.wall())
                    self._commit()
                    raise OutageError(message)
                case Evaluated(evaluation, figures):
                    if self._journal.add_evaluation(evaluation, figures):
                        self._records.evaluation(evaluation, figures, self.context.wall())
                    self._to_learner.send(EvaluationReady(evaluation, figures))
                    self._compaction.want()
        self._commit_wanted.set()

    async def _tend(self) -> None:
        with self._tasks:
            async with trio.open_nursery() as nursery:
                for task in (self._commits, self._watch_journal, self._to_learner.run, self._judging.run):
                    nursery.start_soon(task)
                nursery.start_soon(self._compaction.run)
        self._tasks_ended.set()

    async def _watch_journal(self) -> None:
        """End the run when its journal is taken away. The system does not report that, so the filter looks."""
        while True:
            await trio.sleep(WATCH_SECONDS)
            self._records.look()
            await self.context.in_thread(self._journal.settle)  # leaves little to write for the next flush

    async def _commits(self) -> None:
        """Commit and acknowledge, once for all messages that arrive within ``commit_seconds``."""
        while True:
            await self._commit_wanted.wait()
            await trio.sleep(self.context.settings.commit_seconds)
            self._commit_wanted = trio.Event()
            self._commit()

    def _commit(self, *, flush: bool = False) -> None:
        self._records.commit(flush=flush)
        acks, self._acks = self._acks, []
        for ack in acks:
            ack()
        self.context.link("progress").set(self._book.progress())

    def _judged(self, wanted: Judge, reply: JudgementReply) -> None:
        trajectory, environment = wanted.trajectory, wanted.problem.environment
        if reply.judgement is None:
            self._environment_failed(environment, trajectory.rollout, reply.fault)
            self._perform(self._book.failed(trajectory, reply.fault))
            return
        self._environment_judged(environment)
        self._perform(self._book.judged(trajectory.group, trajectory.sample, trajectory.attempt, reply.judgement))

    def _environment_judged(self, environment: str) -> None:
        if self._trust.judged(environment):
            self._journal.set_fact(FAULTS, json.dumps(self._trust.faults))

    def _environment_failed(self, environment: str, rollout: str, fault: str) -> None:
        """Count a fault. Raises OutageError when it ends the run; the next run takes up the rollout again."""
        self.log.warning("an environment failed: its rollout is sampled again", rollout=rollout, why=fault)
        message = self._trust.failed(environment, rollout, fault)
        self._journal.set_fact(FAULTS, json.dumps(self._trust.faults))
        if message:
            self._perform([Outage(message, ())])

    def waiting_for(self) -> str:
        """Judgements, or the trajectories of open groups."""
        if self._judging.under_way:
            return self.context.wait(JudgementWanted, f"{self._judging.under_way} judgements")
        if self._book.open_groups:
            return self.context.wait(Trajectory, f"trajectories of {self._book.open_groups} groups")
        return self.context.wait(GroupOpened, "groups")

    def status(self) -> tuple[str, ActorFigures]:
        """Number of groups by state, and of judgements."""
        judged, to_judge = self._book.evaluation_progress or (None, None)
        return "running", ActorFigures(
            filter=FilterFigures(
                groups_open=self._book.open_groups,
                groups_waiting=self._book.waiting_groups,
                held_back_by=len(self._book.waits_for()),
                trajectories=self._trajectories,
                queue=len(self._acks),
                checks_failed=self._judging.failed,
                fates=self._records.fates,
                rows=self._records.rows,
                rollouts_judged=judged,
                rollouts_to_judge=to_judge,
            )
        )
