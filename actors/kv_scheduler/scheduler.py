"""The actor around `agent_rl.scheduling.scheduler`: opens groups and places rollouts as that module decides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import trio
from pydantic import Field, PositiveFloat, PositiveInt

from actors.base import Actor, Announce, Call, Push, Settings, ask
from actors.kv_scheduler.turn_log import TurnLog
from agent_rl.config.addresses import actor_nodes
from agent_rl.config.plugins import ContractError, PluginError, called, needs_start, resolve
from agent_rl.config.selection import SelectStage
from agent_rl.config.topology import EvaluateStage, RlStage, Topology
from agent_rl.environments.load import Environments
from agent_rl.figures import ActorFigures
from agent_rl.messages import (
    EngineLoad,
    GroupOpened,
    GroupsProgress,
    GroupsUnfinished,
    GroupsUnwanted,
    PolicyPublished,
    Problem,
    Purpose,
    RolloutRequest,
    TurnsCompleted,
    UnfinishedGroups,
)
from agent_rl.scheduling.instructions import AskUnfinished, Assign, Instruction, OpenGroup, Unwanted, Withdraw
from agent_rl.scheduling.kept_turns import KeptTurns
from agent_rl.scheduling.policies.base import PlacementPolicy
from agent_rl.scheduling.policies.check import check_policy
from agent_rl.scheduling.scheduler import GroupScheduler
from transport import LinkEvent, PeerBack, PeerDraining, PeerGone, PeerLeft, PeerReplaced, PeerSilent

REPORT_SECONDS = 3.0
"""How long a restarted scheduler waits for reports of what generators run. A connection is made anew within 2 s."""


class KVSchedulerSettings(Settings):
    """The scheduling policy, estimates of prompt lengths, and windows."""

    policy: str = "sticky"
    """Places rollouts on engines: a short name, or ``module:Class`` (docs/scheduling.md)."""
    policy_settings: dict[str, Any] = Field(default={})
    """Arguments of the policy's class."""
    characters_per_token: PositiveFloat = 1.0
    """Of a prompt. A value below the tokenizer's is safe: it promises rollouts too much KV cache."""
    template_tokens: PositiveInt = 16
    """Tokens that the chat template adds to a problem."""
    request_window: PositiveInt = 1024
    """Most requests that a generator has not acknowledged."""
    kept_turns_mib: PositiveInt = 1024
    """Memory for completed turns of rollouts in flight, and as much in files of the run directory. When it is full, a
    rollout whose generator is lost goes on from an earlier turn, or begins again."""
    unfinished_timeout_seconds: PositiveFloat = 60.0
    """After so long without an answer about unfinished groups, the scheduler asks again."""


class KVScheduler(Actor):
    """`GroupScheduler` decides. This actor carries out its instructions and reports the results back."""

    concurrency = 1
    single = True
    drain_order = 10
    Settings = KVSchedulerSettings
    receives = (
        Announce(PolicyPublished),
        Announce(EngineLoad),
        Announce(GroupsProgress),
        Push(TurnsCompleted, required=False),
    )
    links: ClassVar = {
        "groups": Push(GroupOpened, awaited_in_handler=False),
        "requests": Push(RolloutRequest, awaited_in_handler=False),
        "unwanted": Announce(GroupsUnwanted),
        "journal": Call(UnfinishedGroups, GroupsUnfinished, awaited_in_handler=False),
    }

    @classmethod
    def link_options(cls, link: str, settings: KVSchedulerSettings) -> dict[str, Any]:
        """The request window from the settings."""
        return {"requests": {"window": settings.request_window}}.get(link, {})

    @classmethod
    def check(cls, topology: Topology, settings: KVSchedulerSettings) -> list[str]:
        """The request window must hold at least one group: with a smaller one, placements wait for each other."""
        sizes = [
            (f"stages.{index}.samples" if stage.samples else "algorithm.samples", algorithm.samples)
            for index, stage, algorithm in topology.rl_algorithms
        ]
        for stage in topology.stages:
            if isinstance(stage, EvaluateStage | SelectStage):
                sizes.append((f"{stage.name}.samples", stage.samples))
            elif isinstance(stage, RlStage) and stage.evaluate is not None:
                sizes.append((f"{stage.name}.evaluate.samples", stage.evaluate.samples))
        try:
            resolve("scheduling_policy", settings.policy)
        except PluginError as error:
            return [f"policy: {error}"]
        key, largest = max(sizes, key=lambda size: size[1], default=("", 0))
        if settings.request_window < largest:
            least = f"set it to at least {key} = {largest}"
            return [f"request_window {settings.request_window} is smaller than a group; {least}"]
        return []

    @classmethod
    def probe(cls, topology: Topology, settings: KVSchedulerSettings) -> list[str]:
        """Try the policy on made-up engines and rollouts."""
        actor = cls.on_trial(topology, settings)
        try:
            check_policy(called(f"{cls.__name__}.policy", actor.policy, "before the start"))
        except ContractError as error:
            if not needs_start(error, actor):
                raise
        return []

    def policy(self) -> PlacementPolicy:
        """Make the policy, which chooses rollout and engine. Your own scheduler class may override this method."""
        settings: KVSchedulerSettings = self.context.settings
        code = resolve("scheduling_policy", settings.policy)
        made: PlacementPolicy = called(
            settings.policy, lambda: code(**settings.policy_settings), "before the start", code
        )
        return made

    def _fault(self, name: str, description: str) -> None:
        self.log.warning("the scheduling policy decided what cannot be done", fault=name, what=description)

    async def prepare(self) -> None:
        """Load the tasks."""
        self._tasks = Environments(self.context.topology, self.context.base).tasks()

    async def start(self) -> None:
        """Create the `GroupScheduler`."""
        await self.prepared()
        topology = self.context.topology
        settings: KVSchedulerSettings = self.context.settings
        kept = await self._kept_turns(settings.kept_turns_mib * 2**20)
        awaited = self._may_run_rollouts()
        self._scheduler = GroupScheduler(
            seed=topology.run.seed,
            stages=topology.stages,
            algorithm_of=topology.algorithm_of,
            problems=self.problem,
            prompt_tokens=lambda problem: (
                math.ceil(len(problem.text) / settings.characters_per_token) + settings.template_tokens
            ),
            problem_count=lambda stage: len(self._tasks.listed(stage)),
            policy=self.policy(),
            fault=self._fault,
            now=self.context.now,
            kept=kept,
            awaited=awaited,
        )
        self._queues: dict[str, trio.MemorySendChannel[Instruction]] = {}
        if awaited:
            self.context.nursery.start_soon(self._await_reports)

    async def _kept_turns(self, limit: int) -> KeptTurns:
        self._kept = KeptTurns(limit, recorded=True)
        self._turn_log = TurnLog(self.context.directory, limit, self.log)
        self._kept.restore(await self.context.in_thread(self._turn_log.begin))
        return self._kept

    def _may_run_rollouts(self) -> set[str]:
        """Generators that may run rollouts for a former process. Those of this host were started with this process."""
        generators = set(self.context.link("requests").targets)
        if not self.context.first:
            return generators
        if not self._turn_log.continued:
            return set()
        topology, (role, _, replica) = self.context.topology, self.context.name.rpartition(".")
        return generators - {node for node, _ in actor_nodes(topology, topology.homes(role)[int(replica)])}

    async def stop(self) -> None:
        """Leave no file when nothing is in flight."""
        self._turn_log.close()

    async def _await_reports(self) -> None:
        await trio.sleep(REPORT_SECONDS)
        self._do(self._scheduler.awaits_no_longer())

    def problem(self, stage: int, number: int, purpose: Purpose) -> Problem:
        """The problem of the stage's group ``number``. A pure function: a restarted scheduler gets the same problem."""
        if purpose == "train":
            return self._tasks.problem(stage, number)
        if purpose == "select":
            return self._tasks.listed(stage)[number]
        spec = self.context.topology.stages[stage]  # an evaluate stage asks its problems sampled, then greedily
        return self._tasks.evaluation(number % spec.problems if spec.kind == "evaluate" else number)

    async def handle(self, message: Any) -> None:
        """Pass the event to `GroupScheduler`. A separate task carries out the resulting instructions."""
        match message:
            case TurnsCompleted():
                self._do(self._scheduler.turns_completed(message))
                self._turn_log.write(self._kept.changes())
            case PolicyPublished():
                self._do(self._scheduler.policy_published(message))
            case EngineLoad():
                self._do(self._scheduler.engine_load(message))
            case GroupsProgress():
                self._do(self._scheduler.progress(message))
            case _:
                await super().handle(message)

    def peer_changed(self, event: LinkEvent) -> None:
        """Tell `GroupScheduler` which generators are silent, lost, leaving, restarted or heard again."""
        match event:
            case PeerSilent(generator):
                self._do(self._scheduler.engine_silent(generator))
            case PeerBack(generator):
                self._do(self._scheduler.engine_heard(generator))
            case PeerDraining(generator):
                self._do(self._scheduler.engine_draining(generator))
            case PeerReplaced(generator, incarnation):
                self._do(self._scheduler.engine_replaced(generator, incarnation))
            case PeerGone(generator) | PeerLeft(generator):
                self._do(self._scheduler.engine_gone(generator))

    def _do(self, instructions: Sequence[Instruction]) -> None:
        """Withdraw and announce at once. All else is queued, for each destination apart: none holds up the others."""
        self._turn_log.write(self._kept.changes())
        for instruction in instructions:
            match instruction:
                case Withdraw(generator):
                    count = self.context.link("requests").withdraw(generator)
                    self.log.warning("the rollouts of a generator move", generator=generator, requests=count)
                case Unwanted(groups, moved):
                    self.context.link("unwanted").set(GroupsUnwanted(groups, moved))
                case Assign(_, destination):
                    self._queue(destination).send_nowait(instruction)
                case OpenGroup() | AskUnfinished():
                    self._queue("").send_nowait(instruction)

    def _queue(self, destination: str) -> trio.MemorySendChannel[Instruction]:
        """The instructions for a generator, or for the filter ("")."""
        if destination not in self._queues:
            self._queues[destination], instructions = trio.open_memory_channel[Instruction](math.inf)
            self.context.nursery.start_soon(self._perform, instructions)
        return self._queues[destination]

    def _later(self, event: Callable[[], list[Instruction]]) -> Callable[[], None]:
        return lambda: self._do(event())

    async def _perform(self, instructions: trio.MemoryReceiveChannel[Instruction]) -> None:
        """Carry out the instructions for one destination, in order."""
        async for instruction in instructions:
            match instruction:
                case OpenGroup(opened):
                    recorded = partial(self._scheduler.group_recorded, opened.group)
                    await self.context.link("groups").send(opened, on_ack=self._later(recorded))
                case Assign(request, generator) if self._scheduler.current(instruction):
                    done = partial(self._scheduler.acknowledged, instruction)
                    asked = self._scheduler.with_turns(request)
                    await self.context.link("requests").send(asked, to=generator, on_ack=self._later(done))
                case AskUnfinished(stage):
                    timeout = self.context.settings.unfinished_timeout_seconds
                    answer = await ask(
                        self.context.link("journal"), UnfinishedGroups(stage), timeout=timeout, log=self.log
                    )
                    if answer.kept is not None:
                        self._tasks.keep(stage, {name: frozenset(ids) for name, ids in answer.kept.items()})
                    self._do(self._scheduler.unfinished(answer))

    def waiting_for(self) -> str:
        """The condition that the next placement waits for."""
        wait = self._scheduler.waiting_for
        return "" if wait is None else self.context.wait(*wait)

    def status(self) -> tuple[str, ActorFigures]:
        """Groups and KV promises."""
        return "running", ActorFigures(scheduler=self._scheduler.figures)
