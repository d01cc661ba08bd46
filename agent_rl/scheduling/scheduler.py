"""The KV-cache scheduler's decisions: when to open a group, and which engine gets which rollout.

::

    opening.py (recipe, staleness budget) --> group recorded --> waits --> policies/ --> in flight --> done
                                                                   ^    members.py (engines)  |
                                                                   `---- the engine is gone --'

Where a rollout is, stands in places.py. A scheduling policy (`agent_rl.scheduling.policies`) decides which rollout is
placed next, and on which engine. The rollout stays there until it ends or the engine is gone. The policy is told of
rollouts and engines, and its placements are made safe by `Guarded`. A group is opened only when no rollout waits
to be placed. So a group's policy of weights is as fresh as possible. While a group is being recorded, the next one is
opened only if the engines have room for more than what is being recorded.

Engines come and go (members.py). The rollouts of an engine that is lost, leaves or restarts are placed again, on the
same or another engine, with the same id. An engine gets no rollout of a group that was opened under newer weights.

An event costs O(log n) for n engines and rollouts, and what it changes: dropping a group costs its rollouts. A new
stage and the loss of an engine look at all rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from agent_rl.config.algorithm import Algorithm
from agent_rl.config.topology import Stage
from agent_rl.figures import SchedulerFigures
from agent_rl.messages import (
    EngineLoad,
    GroupOpened,
    GroupsProgress,
    GroupsUnfinished,
    PolicyPublished,
    Problem,
    Retry,
    RolloutRequest,
    TurnsCompleted,
    UnfinishedGroups,
)
from agent_rl.scheduling.ids import rollout_id
from agent_rl.scheduling.instructions import AskUnfinished, Assign, Instruction, OpenGroup, Withdraw
from agent_rl.scheduling.kept_turns import KeptTurns, tokens_of
from agent_rl.scheduling.members import Members
from agent_rl.scheduling.opening import Opening, Problems
from agent_rl.scheduling.places import Place, Places
from agent_rl.scheduling.policies import base
from agent_rl.scheduling.policies.guard import Guarded
from agent_rl.scheduling.policies.worst_case import WorstCase


class GroupScheduler:
    """Pure: events in, instructions out. It uses no random numbers except seeds from counters."""

    def __init__(
        self,
        *,
        seed: int,
        stages: Sequence[Stage],
        algorithm_of: Callable[[Stage], Algorithm],
        problems: Problems,
        prompt_tokens: Callable[[Problem], int],
        problem_count: Callable[[int], int] = lambda _: 0,
        policy: base.PlacementPolicy | None = None,
        fault: Callable[[str, str], None] | None = None,
        now: Callable[[], float] = lambda: 0.0,
        kept: KeptTurns | None = None,
        awaited: Collection[str] = (),
    ) -> None:
        """``prompt_tokens`` estimates the tokens of a problem's prompt.

        ``problem_count`` is the number of problems that a select stage samples.

        ``policy`` places rollouts (None: `WorstCase`); it is told the time ``now()``, in seconds.

        ``fault`` is called with name and description of each unsafe decision. ``kept`` keeps the completed turns of
        rollouts in flight; None: they are not kept.

        ``awaited`` are generators that may run rollouts for a former process of the scheduler. The filter is asked
        what is unfinished once each has reported or is gone, or after `awaits_no_longer`.
        """
        self._awaited = set(awaited)
        self._running_at: dict[str, tuple[str, int]] = {}
        """Before the answer of the filter: where the rollouts of a former process run, and their placement epochs."""
        self._policy = Guarded(WorstCase() if policy is None else policy, fault)
        self._now = now
        self._kept = KeptTurns(0) if kept is None else kept
        self._opening = Opening(
            seed=seed, stages=stages, algorithm_of=algorithm_of, problems=problems, problem_count=problem_count
        )
        self._members = Members(self._policy, now)
        self._prompt_tokens = prompt_tokens
        self._places = Places()
        self._moved = 0
        """How often rollouts have left or lost their generator."""
        self._recording: dict[str, tuple[GroupOpened, int]] = {}
        """The groups being recorded, each with the tokens that its rollouts may need."""
        self._recording_rollouts = self._recording_tokens = 0
        self._retried: set[Retry] = set()
        self._published: PolicyPublished | None = None
        self._ready = False

    # Events

    def policy_published(self, published: PolicyPublished) -> list[Instruction]:
        """The learner published a newer policy, and may have entered a new stage."""
        if self._published is not None and published.policy < self._published.policy:
            return []
        before, self._published = self._published, published
        if before is None:
            self._kept.forget_newer(published.policy)
        if self._opening.published(published):
            self._ready = False
            self._members.require(self._opening.oldest)
            for place in self._places.enter(published.stage):  # the filter says what is missing
                self._policy.rollout_dropped(place.request.rollout, self._now())
                if before is None or before.stage != published.stage:
                    self._kept.forget(place.request.rollout)
            self._retried.clear()
            self._recording.clear()
            self._recording_rollouts = self._recording_tokens = 0
            if self._opening.stage is not None:
                algorithm = self._opening.algorithm
                self._policy.begin(base.Setting(algorithm.samples, algorithm.groups_per_step, algorithm.max_staleness))
                return [*self._places.announcement(), *self._ask()]
        return self._decide()

    def unfinished(self, answer: GroupsUnfinished) -> list[Instruction]:
        """The filter answered: groups may be opened from now on."""
        if self._published is None or answer.stage != self._published.stage or self._ready:
            return []
        self._ready = True
        self._opening.restore(answer)
        self._members.require(self._opening.oldest)
        for group in answer.groups:
            for missing in group.missing:
                self._retried.add(missing)
                if self._places.get(rollout_id(missing.group, missing.sample, missing.attempt)) is None:
                    self._wait(self._opening.request(group.opened, missing.sample, missing.attempt))
        self._kept.retain({*self._places})
        return [*self._rejoin(), *self._decide()]

    def engine_load(self, load: EngineLoad) -> list[Instruction]:
        """An engine reported its load. A new engine joins, and a new process has lost what its predecessor had."""
        if not self._ready:
            self._running_at.update({rollout: (load.generator, epoch) for rollout, epoch in load.orphans.items()})
        instructions: list[Instruction] = []
        if self._members.news(load):
            instructions = self._lost(load.generator, gone=self._members.report(load))
        return [*instructions, *self._awaits_less({load.generator})] if self._awaited else instructions

    def awaits_no_longer(self) -> list[Instruction]:
        """Generators that have not reported by now run nothing, or cannot be heard."""
        return self._awaits_less(self._awaited)

    def engine_replaced(self, generator: str, incarnation: int) -> list[Instruction]:
        """The generator has a new process, which reports its load when it can serve."""
        return self._lost(generator, gone=self._members.replaced(generator, incarnation))

    def engine_gone(self, generator: str) -> list[Instruction]:
        """The generator is lost, or has left: its rollouts move. It is here again when it reports its load."""
        return [*self._lost(generator, gone=self._members.gone(generator)), *self._awaits_less({generator})]

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
        opened, tokens = self._recording.pop(group, (None, 0))
        if opened is not None:
            self._recording_rollouts -= opened.samples
            self._recording_tokens -= tokens
            for sample in range(opened.samples):
                self._wait(self._opening.request(opened, sample, attempt=0))
        return self._decide()

    def turns_completed(self, completed: TurnsCompleted) -> list[Instruction]:
        """A generator completed turns of a rollout. Those of a rollout that is placed elsewhere are left out."""
        rollout, place = completed.rollout, self._places.running(completed.rollout)
        runs_at = self._running_at.get(rollout, ("", 0))[0] if place is None else place.generator
        if runs_at != completed.generator:
            return []
        self._kept.add(completed)
        if place is None:
            return []
        match completed.then:
            case "goes_on":
                self._policy.turn_ended(rollout, self._context(place.request), self._now())
            case "ended":
                place.result = completed.tokens > 0
            case "left" if completed.placement_epoch == place.request.placement_epoch:  # no earlier copy
                self._members.free(place.generator, place.promised)
                self._move(place, lost=False)
        return self._decide()

    def with_turns(self, request: RolloutRequest) -> RolloutRequest:
        """The request with the turns that are kept of its rollout, for a generator that has not run the rollout."""
        turns = self._kept.of(request.rollout)
        return replace(request, turns=turns) if turns else request

    def acknowledged(self, assign: Assign) -> list[Instruction]:
        """The request is acknowledged: the journal holds the trajectory, or the generator has let go of the rollout."""
        return self.rollout_done(assign.request.rollout) if self.current(assign) else []

    def rollout_done(self, rollout: str) -> list[Instruction]:
        """The journal holds the trajectory, whatever its status."""
        place = self._places.running(rollout)
        if place is not None:
            if place.result and not self._places.unwanted(place.request.group):
                self._policy.rollout_ended(rollout, self._context(place.request), self._now())
            else:
                self._policy.rollout_dropped(rollout, self._now())
            self._members.free(place.generator, place.promised)
            self._places.remove(place)
        self._kept.forget(rollout)
        return self._decide()

    def current(self, assign: Assign) -> bool:
        """Whether the rollout is still where this instruction places it."""
        place = self._places.running(assign.request.rollout)
        return place is not None and place.request is assign.request

    def progress(self, progress: GroupsProgress) -> list[Instruction]:
        """The filter's totals for the current stage."""
        if self._published is None or progress.stage != self._published.stage or not self._ready:
            return []
        self._opening.uncounted = progress.uncounted
        self._opening.observe(progress.outcomes)
        for place in self._places.drop(progress.dropped_groups):
            self._policy.rollout_dropped(place.request.rollout, self._now())
            self._kept.forget(place.request.rollout)
        for retry in progress.retries:
            if retry not in self._retried:
                self._retried.add(retry)
                self._wait(self._opening.retry(retry, self._members.served))
        return self._decide()

    # Figures of the live table

    @property
    def figures(self) -> SchedulerFigures:
        """Live figures."""
        return SchedulerFigures(
            groups_opened=self._opening.opened,
            rollouts_in_flight=self._places.in_flight,
            rollouts_pending=self._places.waiting,
            kv_promised=round(sum(engine.promised for engine in self._members.here())),
            kv_total=sum(engine.load.kv_tokens_total for engine in self._members.here()),
            kept_mib=self._kept.bytes / 2**20,
            turns_left_out=self._kept.left_out,
            engines=len(self._members.here()),
            rollouts_moved=self._moved,
        )

    @property
    def waiting_for(self) -> tuple[type, str] | None:
        """What the next group or rollout waits for; None when nothing is awaited.

        The type is that of the message which the actor that is waited for sends or receives.
        """
        if self._published is None:
            return PolicyPublished, "a policy"
        stage = self._opening.stage
        if stage is None:
            return PolicyPublished, "the next stage"
        if self._awaited:
            return EngineLoad, f"the rollouts that {', '.join(sorted(self._awaited))} may run"
        if not self._ready:
            return UnfinishedGroups, "the unfinished groups"
        if absent := self._members.absent:
            return EngineLoad, f"an engine ({absent})"
        if self._members.served is None:
            return EngineLoad, f"policy {self._published.policy.version}"
        if self._recording:
            return GroupOpened, f"{len(self._recording)} groups to be recorded"
        if self._places.waiting or self._opening.may_open(self._members.served):
            return EngineLoad, f"room for {max(1, self._places.waiting)} rollouts"
        if stage.kind == "rl":
            return PolicyPublished, "a newer policy (the staleness budget is spent)"
        return (RolloutRequest, f"{in_flight} rollouts") if (in_flight := self._places.in_flight) else None

    # Decisions

    def _decide(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        if self._ready and self._opening.stage is not None:
            instructions += self._place(self._policy.decide(self._now()))
            self._open(instructions)
        return [*self._places.announcement(), *instructions]

    def _place(self, placements: Iterable[base.Placement]) -> list[Instruction]:
        placed: list[Instruction] = []
        for rollout, generator, need in placements:
            place = self._places.get(rollout)
            assert place is not None
            promised = self._members.take(generator, need or self._limit(place.request))
            self._places.place(place, generator, promised)
            placed.append(place.assign)
        return placed

    def _rejoin(self) -> list[Instruction]:
        """Place what generators run for a former process of the scheduler where it runs, whatever their room."""
        running_at, self._running_at = self._running_at, {}
        placed: list[Instruction] = []
        for rollout, (generator, epoch) in running_at.items():
            place = self._places.get(rollout)
            if place is not None and not place.generator and generator in self._members:
                place.request = replace(place.request, placement_epoch=epoch)
                placed += self._place([base.Placement(rollout, generator)])
                self._policy.turn_placed(rollout, generator, self._now())
        return placed

    def _awaits_less(self, reported: Collection[str]) -> list[Instruction]:
        before, self._awaited = self._awaited, self._awaited - set(reported)
        return self._ask() if before and not self._awaited and not self._ready else []

    def _ask(self) -> list[Instruction]:
        """Ask the filter what is unfinished, once it is known what runs."""
        if self._awaited or self._published is None or self._opening.stage is None:
            return []
        return [AskUnfinished(self._published.stage)]

    def _open(self, instructions: list[Instruction]) -> None:
        """Open groups while nothing waits, as far as budget and room permit."""
        while not self._places.waiting and self._members.any_offered:
            if self._recording and not self._members.room_beyond(self._recording_tokens, self._recording_rollouts):
                return  # the groups being recorded will fill the free room
            opened = self._opening.open(self._members.served)
            if opened is None:
                return
            self._members.require(self._opening.oldest)
            tokens = opened.samples * self._limit(self._opening.request(opened, 0, attempt=0))
            self._recording[opened.group] = opened, tokens
            self._recording_rollouts += opened.samples
            self._recording_tokens += tokens
            instructions.append(OpenGroup(opened))

    def _wait(self, request: RolloutRequest) -> None:
        """Let a rollout wait for the policy's decision, unless its group is dropped."""
        if not self._places.dropped(request.group):
            self._places.wait(request)
            self._policy.turn_waits(self._turn(request), self._now())

    def _lost(self, generator: str, *, gone: bool) -> list[Instruction]:
        """``gone``: a process of the generator is gone, with all its rollouts."""
        lost = self._places.at(generator) if gone else []
        for place in lost:
            self._kept.lost(place.request.rollout)
            self._move(place, lost=True)
        return [*([Withdraw(generator)] if lost else []), *self._decide()]

    def _move(self, place: Place, *, lost: bool) -> None:
        """Let a rollout wait again. Only this method lets a rollout change its generator."""
        rollout, wanted = place.request.rollout, not self._places.unwanted(place.request.group)
        if wanted and self._ready:
            self._moved += 1
            self._places.move(place, lost=lost)
            self._policy.turn_waits(self._turn(place.request), self._now())
            return
        self._policy.rollout_dropped(rollout, self._now())
        self._places.remove(place)
        if not wanted:  # otherwise the filter says that it is missing
            self._kept.forget(rollout)

    # Sizes

    def _turn(self, request: RolloutRequest) -> base.WaitingTurn:
        """The rollout's next turn, as the policy is told of it."""
        context = self._context(request)
        return base.WaitingTurn(
            request.rollout,
            request.group,
            request.problem.id,
            request.sample,
            len(self._kept.of(request.rollout)),
            min(context, self._prompt_tokens(request.problem)),
            context,
            self._limit(request),
            trains=request.purpose == "train",
        )

    def _limit(self, request: RolloutRequest) -> int:
        """The most tokens that the rollout may need, as far as its prompt's length can be estimated."""
        return self._prompt_tokens(request.problem) + request.sampling.max_response_tokens

    def _context(self, request: RolloutRequest) -> int:
        """The tokens that the rollout is known to have."""
        known = self._kept.tokens(request.rollout)
        return known or self._prompt_tokens(request.problem) + tokens_of(self._kept.of(request.rollout))
