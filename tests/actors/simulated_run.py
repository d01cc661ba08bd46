"""A whole run in virtual time: real scheduler, filter and generators, scripted engines, a learner that trains nothing.

::

    async with simulated(folder) as run:
        run.vanish("rollout_generator.0")       # nobody hears it any more; it goes on by itself
        await run.steps(20)

Actors are killed, stopped in order, cut off and heard again while the run goes on. Hours pass in seconds, and a run is
a function of its arguments. The tool executors are stand-ins, since processes do not follow virtual time, and so are
the supervisors, but for the decision which hosts are lost. The first generator has the host ``far`` to itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from actors.base import Actor, ask
from actors.engines.base import TurnRequest
from actors.kv_scheduler import KVScheduler
from actors.roc_filter import RoCFilter
from actors.rollout_generator import RolloutGenerator
from agent_rl import messages
from agent_rl.config.addresses import actor_nodes, supervisor_node
from agent_rl.config.processes import Host
from agent_rl.config.topology import Topology
from agent_rl.figures import SchedulerFigures, TrainingFigures
from agent_rl.messages import (
    Judgement,
    JudgementReply,
    JudgementWanted,
    PolicyPublished,
    PolicyVersion,
    RolloutRequest,
    StageEntered,
    StageRecorded,
    StepReady,
    StepTrained,
    ToolCall,
    ToolResult,
)
from agent_rl.rollout.episode import Episode
from agent_rl.scheduling.policies.base import EngineFacts, Placement, PlacementPolicy, WaitingTurn
from agent_rl_contract.base import RoleContract
from agent_rl_contract.scripted import ScriptedEngine
from agent_rl_contract.stage import Peer, Stage, running
from transport import Delivery, Limits, LinkEvent, Node, PeerBack, PeerGone, Registry
from transport.memory import MemoryNetwork, MemoryPort
from transport.network import read_identity
from transport.plans import Buffer

NEAR, FAR = "local", "far"
"""The hosts. The first generator is on ``far``, all else on ``local``."""
ROWS = 8
"""Rollouts at once of an engine."""
TRAIN_SECONDS = 0.05
"""Of a step: little, so that the generators limit the run."""


class CutNetwork(MemoryNetwork):
    """A network that loses all frames from and to the nodes in ``cut``."""

    def __init__(self) -> None:
        super().__init__()
        self.cut: set[str] = set()

    def to_inbox(self, source: MemoryPort, peer: str, frames: Sequence[Buffer]) -> None:
        """Carry frames to a node's inbox."""
        if not self.cut & {source.name, peer}:
            super().to_inbox(source, peer, frames)

    def back(self, source: MemoryPort, identity: bytes, frames: Sequence[Buffer]) -> None:
        """Carry frames back to a connected process."""
        who = read_identity(identity)
        if who is not None and not self.cut & {source.name, who[0]}:
            super().back(source, identity, frames)


class Generator(RolloutGenerator):
    """Answers half of the samples right, after a tool call in ``turns`` - 1 turns."""

    turns = 1
    answers: dict[str, str]

    def make_episode(self, request: RolloutRequest) -> Episode:
        """Keep the answer for the script."""
        self.answers[request.rollout] = request.problem.answer if request.sample % 2 else "no answer"
        return super().make_episode(request)

    def _make_engine(self, directory: Path, settings: Any) -> Any:
        self.answers = {}
        del settings

        def script(turn: int, request: TurnRequest) -> str:
            if turn < self.turns:
                arguments = '{"code": "print(4)", "input": ""}'
                return f'<tool_call>{{"name": "python_code_with_standard_io", "arguments": {arguments}}}</tool_call>'
            return f"<answer>\\boxed{{{self.answers[request.rollout]}}}</answer>"

        return ScriptedEngine(
            directory,
            initial_policy=PolicyVersion(0, 0),
            script=script,
            pace=lambda request: 0.5 + request.seed % 1000 / 1000,
            rows=ROWS,
            cache_tokens=1_000_000,
        )


class Learner:
    """A stand-in that takes each step as trained after ``TRAIN_SECONDS``, and publishes the next version."""

    def __init__(self, peer: Peer, steps: int) -> None:
        self.version = 0
        self.finished = trio.Event()
        self._peer, self._steps = peer, steps
        self._policy = peer.node.announce("policy", ["kv_scheduler.0", "rollout_generator.0", "rollout_generator.1"])
        self._trained = trio.Event()

    async def trained(self) -> None:
        """Wait until another step is trained."""
        await self._trained.wait()

    async def _ask(self, link: str, message: Any) -> Any:
        return await ask(self._peer.call(link, "roc_filter.0"), message, timeout=60.0)

    def _publish(self, epoch: int, stage: int) -> None:
        policy = PolicyVersion(epoch, self.version)
        self._policy.set(PolicyPublished(policy, f"file:///weights/{self.version}", stage, 0))

    async def walk(self) -> None:
        """Enter the first stage, train its steps, and leave it."""
        entered: StageRecorded = await self._ask("stages", StageEntered(0, 0, 0, restored=True))
        while self.version < self._steps:
            self._publish(entered.epoch, 0)
            ready: StepReady = await self._peer.next(StepReady)
            await trio.sleep(TRAIN_SECONDS)
            await self._ask("steps", StepTrained(0, ready.version, ready.groups, TrainingFigures()))
            self.version += 1
            self._trained.set()
            self._trained = trio.Event()
        await self._ask("stages", StageEntered(1, self.version, self.version, restored=False))
        self._publish(entered.epoch, 1)
        self.finished.set()


class PlacesAtOnce(PlacementPolicy):
    """Places each rollout as soon as it waits, on the engines in turn: they run out of rows and of KV cache."""

    def __init__(self) -> None:
        self._engines: list[str] = []
        self._waiting: list[str] = []

    def engine_reported(self, facts: EngineFacts, now: float) -> None:
        if facts.engine not in self._engines:
            self._engines.append(facts.engine)

    def engine_gone(self, engine: str, now: float) -> None:
        self._engines = [other for other in self._engines if other != engine]

    engine_draining = engine_gone

    def turn_waits(self, turn: WaitingTurn, now: float) -> None:
        self._waiting.append(turn.rollout)

    def rollout_dropped(self, rollout: str, now: float) -> None:
        self._waiting = [each for each in self._waiting if each != rollout]

    def decide(self, now: float) -> Iterator[Placement]:
        while self._engines and self._waiting:
            self._engines.append(self._engines.pop(0))
            yield Placement(self._waiting.pop(0), self._engines[-1])


class Whole(RoleContract):
    """For its topology."""

    actor = KVScheduler
    role = "kv_scheduler"


async def _ignore(_: Delivery) -> None:
    """What other supervisors say counts for nothing here: only that they are heard."""


def _answered(message: Any) -> ToolResult | JudgementReply | None:
    """An executor's answer: a call prints 4, and what is not judged at once is wrong."""
    match message:
        case ToolCall():
            return ToolResult(message.call, "success", "4\n", "", "", 0.0, 0.001)
        case JudgementWanted():
            return JudgementReply(message.rollout, Judgement(0.0, success=False))
    return None


@dataclass
class _Process:
    cls: type[Actor]
    role: str
    replica: int
    incarnation: int
    actor: Any = None
    stop: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)


class SimulatedRun:
    """The actors of a run, by name, and what may happen to them."""

    learner: Learner

    def __init__(
        self, topology: Topology, folder: Path, nursery: trio.Nursery, classes: Mapping[str, type[Actor]]
    ) -> None:
        self.topology = topology
        self.network = CutNetwork()
        self.stage = Stage(self.network, Registry.of(messages), {})
        self._classes = classes
        self._folder = folder
        self._nursery = nursery
        self._processes: dict[str, _Process] = {}

    def __getitem__(self, name: str) -> Any:
        return self._processes[name].actor

    async def stand_in(self, name: str) -> Peer:
        """Start a stand-in that answers tool calls at once."""
        peer = self.stage.peers[name] = Peer(name, self.network, self.stage.registry, 1)
        peer.reply = _answered
        peer.concurrency = 1024
        await self._nursery.start(peer.run)
        return peer

    async def start(self, name: str) -> None:
        """Start an actor, or its next process."""
        role, replica = name.rsplit(".", 1)
        before = self._processes.get(name)
        incarnation = 1 if before is None else before.incarnation + 1
        process = self._processes[name] = _Process(self._classes[role], role, int(replica), incarnation)
        await self._nursery.start(self._live, process)

    async def _live(self, process: _Process, *, task_status: trio.TaskStatus[None]) -> None:
        made = partial(running, process.cls, self.topology, process.role, self._folder, self.stage)
        with process.scope:
            async with made(replica=process.replica, incarnation=process.incarnation) as actor:
                process.actor = actor
                task_status.started()
                await process.stop.wait()
        process.ended.set()

    def vanish(self, *names: str) -> None:
        """Nobody hears these any more, nor do they hear anybody."""
        self.network.cut.update(names)

    def back(self, *names: str) -> None:
        """These are heard again."""
        self.network.cut.difference_update(names)

    @property
    def of_far(self) -> list[str]:
        """All that vanishes with the host ``far``, when it has lost its power or its network."""
        return [supervisor_node(FAR), *(name for name, _ in actor_nodes(self.topology, FAR))]

    @property
    def scheduled(self) -> SchedulerFigures:
        """The figures of the scheduler."""
        figures: SchedulerFigures = self["kv_scheduler.0"].status()[1].scheduler
        return figures

    async def supervise(self) -> None:
        """Start what supervisors do for lost hosts: they hear each other, and tell the actors of those."""
        limits = Limits(lost_after=self.topology.run.host_lost_after_seconds)

        def on_event(event: LinkEvent) -> None:
            if isinstance(event, PeerGone | PeerBack):
                gone = isinstance(event, PeerGone)
                self._doubt(tuple(name for name, _ in actor_nodes(self.topology, FAR)) if gone else ())

        registry = self.stage.registry
        near = Node("witness", self.network, registry, incarnation=1, limits=limits, on_event=on_event)
        near.announce("run", [supervisor_node(FAR)])
        await self.stand_in(supervisor_node(FAR))
        await self._nursery.start(near.run, _ignore)

    def _doubt(self, actors: tuple[str, ...]) -> None:
        for process in self._processes.values():
            process.actor.context.node.doubt(actors)

    async def kill(self, name: str) -> None:
        """As by SIGKILL: without a goodbye. Its supervisor tells all others which process comes next."""
        self.vanish(name)
        killed = self._processes[name]
        killed.scope.cancel()
        await killed.ended.wait()
        self.back(name)
        for process in self._processes.values():
            if process is not killed:
                process.actor.context.node.expect(name, killed.incarnation + 1)

    async def stop(self, name: str) -> None:
        """Stop the actor in order."""
        self._processes[name].stop.set()
        await self._processes[name].ended.wait()

    async def steps(self, version: int) -> None:
        """Wait until so many steps are trained."""
        while self.learner.version < version:
            await self.learner.trained()


@asynccontextmanager
async def simulated(
    folder: Path, *, executors: int = 1, turns: int = 1, steps: int = 20, **run: Any
) -> AsyncIterator[SimulatedRun]:
    """A run of two generators that has begun. ``run``: its table."""
    topology = Whole().topology(
        folder,
        replicas=2,
        run={"name": "simulated", "directory": folder, **run},
        stages=[{"kind": "rl", "steps": steps, "max_response_tokens": 9000, "max_turns": 99}],
        algorithm={"groups_per_step": 4, "samples": 4, "max_staleness": 2},
    )
    entry = topology.actors["tool_executor"].model_copy(update={"replicas": executors})
    placed = {"host": None, "hosts": (FAR, NEAR)}
    spread = topology.actors["rollout_generator"].model_copy(update=placed)
    actors = {**topology.actors, "tool_executor": entry, "rollout_generator": spread}
    topology = topology.model_copy(update={"hosts": {NEAR: Host(), FAR: Host()}, "actors": actors})
    classes = {
        "kv_scheduler": KVScheduler,
        "roc_filter": RoCFilter,
        "rollout_generator": type("Generator", (Generator,), {"turns": turns}),
    }
    async with trio.open_nursery() as nursery:
        made = SimulatedRun(topology, folder, nursery, classes)
        for name in [supervisor_node(NEAR), *(f"tool_executor.{number}" for number in range(executors))]:
            await made.stand_in(name)
        for name in ("roc_filter.0", "kv_scheduler.0", "rollout_generator.0", "rollout_generator.1"):
            await made.start(name)
        made.learner = Learner(await made.stand_in("learner.0"), steps)
        nursery.start_soon(made.learner.walk)
        await made.supervise()
        yield made
        nursery.cancel_scope.cancel()


def in_virtual_time(main: Any) -> Any:
    """Run ``main`` in virtual time. Raises TooSlowError when it takes longer than an hour of that time."""

    async def bounded() -> Any:
        with trio.fail_after(3600.0):
            return await main()

    return trio.run(bounded, clock=MockClock(autojump_threshold=0))
