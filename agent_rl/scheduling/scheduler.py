"""The KV-cache scheduler's decisions: when to open a group, and which engine gets which rollout.

A group is opened only when all earlier rollouts are placed and the engines have room beyond the groups being recorded.
So a group's policy is as fresh as possible. The staleness budget bounds the number of open groups: ``opened - uncounted
< (S + served - stage_version + 1) * groups_per_step``, where ``served`` is the oldest version that an engine serves;
staleness.py proves that this keeps the budget. The groups of evaluations within an rl stage are outside this budget.
They have their own numbers, are opened once every engine serves their step's policy, take turns with the groups to
train, and are never trained.

Placement follows the paper's dynamic scheduler. The maximum length L of a rollout and the KV cache of an engine
determine how many rollouts fit. An engine never gets more, and when a rollout ends the next one is placed at once. The
KV cache promised on an engine is the sum of L over its rollouts. The engine's room is its cache less the promised part,
and less what it uses beyond that. A `Placement` (placement.py) chooses the next rollout, and its engine among those
with room.

Engines come and go (members.py). The rollouts of an engine that is lost, leaves or restarts are placed again, on the
same or another engine, with the same id. An engine gets no rollout of a group that was opened under a newer policy.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TypeAlias

from agent_rl.config.algorithm import Algorithm
from agent_rl.config.topology import EvaluateStage, RlStage, Stage
from agent_rl.figures import SchedulerFigures
from agent_rl.messages import (
    EngineLoad,
    Evaluation,
    GroupOpened,
    GroupsProgress,
    GroupsUnfinished,
    Policy,
    PolicyPublished,
    Problem,
    Purpose,
    Retry,
    RolloutRequest,
    Sampling,
    TurnsCompleted,
    UnfinishedGroups,
)
from agent_rl.scheduling.ids import group_id, rollout_id, rollout_seed
from agent_rl.scheduling.instructions import AskUnfinished, Instruction, OpenGroup, Place, Unwanted, Withdraw
from agent_rl.scheduling.kept_turns import KeptTurns
from agent_rl.scheduling.members import Members
from agent_rl.scheduling.placement import (
    EngineRoom,
    MostRoom,
    Placement,
    Waiting,
    chosen_engine,
    chosen_rollout,
)

Problems: TypeAlias = Callable[[int, int, Purpose], Problem]
"""(stage, number, purpose) to the problem. A pure function: a restarted scheduler gets the same problem."""


class GroupScheduler:
    """Pure: events in, instructions out. It uses no clock, and no random numbers except seeds from counters."""

    def __init__(
        self,
        *,
        seed: int,
        stages: Sequence[Stage],
        algorithm_of: Callable[[Stage], Algorithm],
        problems: Problems,
        prompt_tokens: Callable[[Problem], int],
        placement: Placement | None = None,
        kept: KeptTurns | None = None,
        awaited: Collection[str] = (),
    ) -> None:
        """``kept`` keeps the completed turns of rollouts in flight; None: they are not kept.

        ``awaited`` are generators that may run rollouts for a former process of the scheduler. The filter is asked
        what is unfinished once each has reported, or after `awaits_no_longer`.
        """
        self._awaited = set(awaited)
        self._running_at: dict[str, tuple[str, int]] = {}
        """Before the answer of the filter: where the rollouts of a former process run, and their moves."""
        self._kept = KeptTurns(0) if kept is None else kept
        self._seed = seed
        self._stages = stages
        self._algorithms = [algorithm_of(stage) for stage in stages]
        self._problems = problems
        self._prompt_tokens = prompt_tokens
        self._placement = placement or MostRoom()
        self._members = Members()
        self._pending: deque[Waiting] = deque()
        self._recording: dict[str, GroupOpened] = {}
        self._in_flight: dict[str, Place] = {}
        self._retried: set[Retry] = set()
        self._dropped: frozenset[str] = frozenset()
        self._announced_unwanted = Unwanted(())
        self._moved: dict[str, int] = {}
        """The rollouts in flight that another generator may still have, each with its move."""
        self._moves = 0
        self._other_stages_in_flight = False
        self._published: PolicyPublished | None = None
        self._oldest = Policy(0, 0)
        """The newest policy under which a group of the stage was opened; at first that of the stage's start."""
        self._ready = False
        self._opened = 0
        self._interim_opened: Counter[int] = Counter()
        self._interim_next = False
        self._uncounted = 0

    # Events

    def policy_published(self, published: PolicyPublished) -> list[Instruction]:
        """The learner published a newer policy, and may have entered a new stage."""
        if self._published is not None and published.policy < self._published.policy:
            return []
        before, self._published = self._published, published
        entered = (published.stage, published.policy.epoch)
        if before is None or (before.stage, before.policy.epoch) != entered:
            self._ready = False
            self._other_stages_in_flight = True
            self._keep_pending(lambda request: request.stage == published.stage)
            self._pending.clear()  # the filter says what is missing
            self._retried.clear()
            self._recording.clear()
            self._oldest = Policy(published.policy.epoch, published.stage_version)
            if self._stage is not None:
                return [*self._unwanted(), *self._ask()]
        return self._decide()

    def unfinished(self, answer: GroupsUnfinished) -> list[Instruction]:
        """The filter answered: groups may be opened from now on."""
        if self._published is None or answer.stage != self._published.stage or self._ready:
            return []
        self._ready = True
        self._opened = answer.opened
        self._interim_opened = Counter({each.at_step: each.groups for each in answer.interim_opened})
        self._uncounted = 0
        for group in answer.groups:
            if group.opened.policy.epoch == self._oldest.epoch:
                self._oldest = max(self._oldest, group.opened.policy)
            for missing in group.missing:
                self._retried.add(missing)
                if rollout_id(missing.group, missing.sample, missing.attempt) not in self._in_flight:
                    self._enqueue(group.opened, missing.sample, missing.attempt)
        self._kept.retain({*self._in_flight, *(item.request.rollout for item in self._pending)})
        return [*self._rejoin(), *self._decide()]

    def engine_load(self, load: EngineLoad) -> list[Instruction]:
        """An engine reported its load. A new engine joins, and a new process has lost what its predecessor had."""
        instructions = self._lost(load.generator, self._members.report(load))
        if not self._ready:
            self._running_at.update({rollout: (load.generator, move) for rollout, move in load.orphans.items()})
        return [*instructions, *self._awaits_less({load.generator})] if self._awaited else instructions

    def awaits_no_longer(self) -> list[Instruction]:
        """Generators that have not reported by now run nothing, or cannot be heard."""
        return self._awaits_less(self._awaited)

    def engine_replaced(self, generator: str, incarnation: int) -> list[Instruction]:
        """The generator has a new process, which reports its load when it can serve."""
        return self._lost(generator, self._members.replaced(generator, incarnation))

    def engine_gone(self, generator: str) -> list[Instruction]:
        """The generator is lost, or has left: its rollouts move. It is here again when it reports its load."""
        return self._lost(generator, self._members.gone(generator))

    def engine_silent(self, generator: str) -> list[Instruction]:
        """Nothing is heard of the generator: it gets no new rollouts, and keeps those that it has."""
        self._members.silent(generator)
        return []

    def engine_heard(self, generator: str) -> list[Instruction]:
        """A silent generator is heard again."""
        self._members.heard(generator)
        return self._decide()

    def engine_draining(self, generator: str) -> list[Instruction]:
        """The generator is about to leave: it gets no new rollouts. Those that it cannot finish move when it leaves."""
        self._members.draining(generator)
        return self._decide()

    def group_recorded(self, group: str) -> list[Instruction]:
        """The journal has recorded the group: its rollouts may be requested."""
        opened = self._recording.pop(group, None)
        if opened is not None:
            for sample in range(opened.samples):
                self._enqueue(opened, sample, attempt=0)
        return self._decide()

    def turns_completed(self, completed: TurnsCompleted) -> None:
        """A generator completed turns of a rollout. Those of a rollout that is placed elsewhere are left out."""
        place = self._in_flight.get(completed.rollout)
        runs_at = self._running_at.get(completed.rollout, ("", 0))[0] if place is None else place.generator
        if runs_at == completed.generator:
            self._kept.add(completed)

    def with_turns(self, request: RolloutRequest) -> RolloutRequest:
        """The request with the turns that are kept of its rollout, for a generator that has not run the rollout."""
        turns = self._kept.of(request.rollout)
        return replace(request, turns=turns) if turns else request

    def rollout_done(self, rollout: str) -> list[Instruction]:
        """The request is acknowledged: the journal holds the trajectory, whatever its status."""
        self._kept.forget(rollout)
        place = self._in_flight.pop(rollout, None)
        if place is not None:
            self._moved.pop(rollout, None)
            self._members.free(place.generator, rollout)
        return self._decide()

    def current(self, place: Place) -> bool:
        """Whether the rollout is still where this instruction places it."""
        return self._in_flight.get(place.request.rollout) is place

    def progress(self, progress: GroupsProgress) -> list[Instruction]:
        """The filter's totals for the current stage."""
        if self._published is None or progress.stage != self._published.stage or not self._ready:
            return []
        self._uncounted = progress.uncounted
        self._dropped = frozenset(progress.dropped_groups)
        self._keep_pending(lambda request: request.group not in self._dropped)
        for retry in progress.retries:
            if retry not in self._retried and retry.group not in self._dropped:
                self._retried.add(retry)
                at_step = None if retry.evaluation is None else retry.evaluation.at_step
                self._enqueue(self._group(retry.number, at_step), retry.sample, retry.attempt)
        return self._decide()

    # Figures of the live table

    @property
    def figures(self) -> SchedulerFigures:
        """Live figures."""
        return SchedulerFigures(
            groups_opened=self._opened,
            rollouts_in_flight=len(self._in_flight),
            rollouts_pending=len(self._pending),
            kv_promised=sum(engine.promised for engine in self._members.here()),
            kv_total=sum(engine.load.kv_tokens_total for engine in self._members.here()),
            kept_mib=self._kept.bytes / 2**20,
            turns_left_out=self._kept.left_out,
            engines=len(list(self._members.here())),
            rollouts_moved=self._moves,
        )

    @property
    def waiting_for(self) -> tuple[type, str] | None:
        """What the next group or rollout waits for; None when nothing is awaited.

        The type is that of the message which the actor that is waited for sends or receives.
        """
        if self._published is None:
            return PolicyPublished, "a policy"
        if self._stage is None:
            return PolicyPublished, "the next stage"
        if self._awaited:
            return EngineLoad, f"the rollouts that {', '.join(sorted(self._awaited))} may run"
        if not self._ready:
            return UnfinishedGroups, "the unfinished groups"
        if absent := self._members.absent:
            return EngineLoad, f"an engine ({absent})"
        if not self._members.serving(self._oldest):
            return EngineLoad, f"policy {self._published.policy.version}"
        if self._recording:
            return GroupOpened, f"{len(self._recording)} groups to be recorded"
        if self._pending or self._next_group() is not None:
            return EngineLoad, f"room for {max(1, len(self._pending))} rollouts"
        if self._stage.kind == "rl":
            return PolicyPublished, "a newer policy (the staleness budget is spent)"
        return (RolloutRequest, f"{len(self._in_flight)} rollouts") if self._in_flight else None

    # Decisions

    @property
    def _stage(self) -> EvaluateStage | RlStage | None:
        if self._published is None or self._published.stage >= len(self._stages):
            return None
        stage = self._stages[self._published.stage]
        return None if stage.kind == "sft" else stage

    def _decide(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        if self._ready and self._stage is not None:
            self._place_and_open(instructions)
        return [*self._unwanted(), *instructions]

    def _place_and_open(self, instructions: list[Instruction]) -> None:
        while True:
            while self._pending:
                position = chosen_rollout(self._placement, self._pending)
                item = self._pending[position]
                generator = self._engine_for(item)
                if generator is None:
                    break
                del self._pending[position]
                instructions.append(self._place(item.request, item.need, generator))
                if item.last not in {"", generator}:
                    self._moved[item.request.rollout] = item.request.move
            opened = None if self._pending else self._next_group()
            if opened is None:
                return
            need = self._need(opened.problem, self._spec(opened.at_step).max_response_tokens)
            if self._places(need) <= sum(group.samples for group in self._recording.values()):
                return  # the groups being recorded will fill the free room
            if opened.at_step is None:
                self._opened += 1
            else:
                self._interim_opened[opened.at_step] += 1
            self._interim_next = opened.at_step is None
            self._recording[opened.group] = opened
            self._oldest = max(self._oldest, opened.policy)
            instructions.append(OpenGroup(opened))

    def _place(self, request: RolloutRequest, need: int, generator: str) -> Place:
        self._members[generator].take(request.rollout, need)
        place = self._in_flight[request.rollout] = Place(request, generator)
        return place

    def _rejoin(self) -> list[Instruction]:
        """Place what generators run for a former process of the scheduler where it runs, whatever their room."""
        running_at, self._running_at = self._running_at, {}
        here = {engine.load.generator for engine in self._members.here()}
        pending, self._pending = self._pending, deque()
        placed: list[Instruction] = []
        for item in pending:
            generator, move = running_at.get(item.request.rollout, ("", 0))
            if generator in here:
                placed.append(self._place(replace(item.request, move=move), item.need, generator))
            else:
                self._pending.append(item)
        return placed

    def _awaits_less(self, reported: Collection[str]) -> list[Instruction]:
        before, self._awaited = self._awaited, self._awaited - set(reported)
        return self._ask() if before and not self._awaited and not self._ready else []

    def _ask(self) -> list[Instruction]:
        """Ask the filter what is unfinished, once it is known what runs."""
        if self._awaited or self._published is None or self._stage is None:
            return []
        return [AskUnfinished(self._published.stage)]

    def _next_group(self) -> GroupOpened | None:
        """The next group to open, if any may be opened. Groups to train and groups of a due evaluation take turns."""
        at_step, trains = self._evaluation_due(), self._may_open()
        if at_step is not None and (self._interim_next or not trains):
            return self._group(self._interim_opened[at_step], at_step)
        return self._group(self._opened) if trains else None

    def _evaluation_due(self) -> int | None:
        """The first evaluation within the stage that every engine serves the policy of, and that lacks groups."""
        stage, served = self._stage, self._served()
        if not isinstance(stage, RlStage) or stage.evaluate is None or served is None or self._published is None:
            return None
        problems, steps = stage.evaluate.problems, served - self._published.stage_version
        served_steps = takewhile(lambda at_step: at_step <= steps, stage.evaluation_steps)
        return next((at_step for at_step in served_steps if self._interim_opened[at_step] < problems), None)

    def _served(self) -> int | None:
        return min((engine.load.policy.version for engine in self._members.serving(self._oldest)), default=None)

    def _may_open(self) -> bool:
        stage, served = self._stage, self._served()
        if stage is None or served is None or self._published is None:
            return False
        if stage.kind == "evaluate":
            return self._opened < stage.groups
        algorithm = self._algorithms[self._published.stage]
        steps = min(algorithm.max_staleness + served - self._published.stage_version + 1, stage.steps)
        return self._opened - self._uncounted < steps * algorithm.groups_per_step

    def _group(self, number: int, at_step: int | None = None) -> GroupOpened:
        assert self._published is not None
        served = self._served()
        index, spec = self._published.stage, self._spec(at_step)
        purpose: Purpose = "train"
        samples = self._algorithms[index].samples
        if spec.kind == "evaluate":
            sampled = number < spec.problems
            purpose, samples = ("evaluate_sampled", spec.samples) if sampled else ("evaluate_greedy", 1)
        return GroupOpened(
            group=group_id(index, number, at_step),
            stage=index,
            number=number,
            purpose=purpose,
            problem=self._problems(index, number, purpose),
            samples=samples,
            policy=Policy(self._oldest.epoch, self._oldest.version if served is None else served),
            evaluation=Evaluation(index, at_step) if spec.kind == "evaluate" else None,
        )

    def _spec(self, at_step: int | None) -> EvaluateStage | RlStage:
        """The stage, or the evaluation within it after ``at_step`` steps: it says how rollouts are sampled."""
        stage = self._stage
        assert stage is not None
        return stage.interim(at_step) if at_step is not None and isinstance(stage, RlStage) else stage

    def _enqueue(self, opened: GroupOpened, sample: int, attempt: int) -> None:
        stage = self._spec(opened.at_step)
        if stage.kind == "evaluate":
            temperature = stage.temperature if opened.purpose == "evaluate_sampled" else 0.0
        else:
            temperature = self._algorithms[opened.stage].temperature
        filters = self._algorithms[opened.stage] if stage.kind == "rl" else stage
        request = RolloutRequest(
            rollout=rollout_id(opened.group, sample, attempt),
            group=opened.group,
            stage=opened.stage,
            sample=sample,
            attempt=attempt,
            purpose=opened.purpose,
            problem=opened.problem,
            sampling=Sampling(
                temperature, stage.max_response_tokens, stage.max_turns, filters.top_p, filters.top_k or 0
            ),
            seed=rollout_seed(self._seed, opened.group, sample, attempt),
        )
        self._pending.append(Waiting(request, self._need(request.problem, request.sampling.max_response_tokens)))

    def _lost(self, generator: str, rollouts: Sequence[str]) -> list[Instruction]:
        """A generator has lost these rollouts, which are all that it had."""
        for rollout in reversed(rollouts):
            self._move(rollout)
        return [*([Withdraw(generator)] if rollouts else []), *self._decide()]

    def _move(self, rollout: str) -> None:
        """Place a rollout again before all that wait. Only this method lets a rollout change its generator."""
        place = self._in_flight.pop(rollout)
        self._moved.pop(rollout, None)
        request = place.request
        stage = self._published.stage if self._published is not None else None
        if not self._ready or request.stage != stage or request.group in self._dropped:
            if request.stage != stage or request.group in self._dropped:  # otherwise the filter says that it is missing
                self._kept.forget(rollout)
            return
        self._moves += 1
        need = self._need(request.problem, request.sampling.max_response_tokens)
        self._pending.appendleft(Waiting(replace(request, move=request.move + 1), need, last=place.generator))

    def _keep_pending(self, wanted: Callable[[RolloutRequest], bool]) -> None:
        """Drop the other rollouts that wait, with the turns that are kept of them."""
        for item in self._pending:
            if not wanted(item.request):
                self._kept.forget(item.request.rollout)
        self._pending = deque(item for item in self._pending if wanted(item.request))

    def _need(self, problem: Problem, longest_response: int) -> int:
        return self._prompt_tokens(problem) + longest_response

    def _places(self, need: int) -> int:
        """How many rollouts of this need fit on the engines that may get some."""
        return sum(engine.places(need) for engine in self._members.open(self._oldest))

    def _engine_for(self, item: Waiting) -> str | None:
        """The placement's choice among the engines with room; None when there is none."""
        fitting = [
            EngineRoom(e.load.generator, e.room, len(e.rollouts), e.groups[item.request.group])
            for e in self._members.open(self._oldest)
            if e.places(item.need)
        ]
        return chosen_engine(self._placement, item, fitting) if fitting else None

    def _unwanted(self) -> list[Instruction]:
        announced = self._announced_unwanted.groups or self._announced_unwanted.moved
        if not (self._dropped or announced or self._moved or self._other_stages_in_flight):
            return []
        current = self._published.stage if self._published else 0
        stages = {place.request.group: place.request.stage for place in self._in_flight.values()}
        others = {group for group, stage in stages.items() if stage != current}
        self._other_stages_in_flight = bool(others)
        unwanted = Unwanted(tuple(sorted(others | (stages.keys() & self._dropped))), dict(self._moved))
        if unwanted == self._announced_unwanted:
            return []
        self._announced_unwanted = unwanted
        return [unwanted]
