"""Two generators with their engines as processes, a core each, and one scheduler after the other in this process.

::

    KVScheduler (this process, a policy each round) <--links over Unix sockets--> ShapedGenerator x 2 (processes)
    Stands: supervisor, learner, filter and executor (this process)           <---'    `--> engine

All but learner, filter and executor is production code. The engines serve all rounds. A round begins with a policy of
its own of the same weights, with which an engine drops its KV cache.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio

from actors.base import Actor
from actors.kv_scheduler import KVScheduler
from actors.runtime.children import ActorChild, start_child
from actors.runtime.lifecycle import actor_environment
from actors.runtime.networks import run_network
from actors.runtime.roster import written
from actors.testing import SUPERVISOR, Peer, Stage, running
from agent_rl import messages
from agent_rl.config.addresses import actor_nodes, addresses, runtime_directory
from agent_rl.config.load import load_topology
from agent_rl.figures import SchedulerFigures
from agent_rl.learning.tiny import initialise_model
from agent_rl.messages import (
    EnvironmentMessage,
    GroupOpened,
    GroupsUnfinished,
    ObserveTurn,
    PolicyPublished,
    PolicyVersion,
    Trajectory,
    TurnObserved,
    UnfinishedGroups,
)
from agent_rl.records.run_directory import RESTARTS, read_epoch, socket_directory
from agent_rl.simulation.trace import Shape
from benchmarks.command import Failure
from benchmarks.policies.generator import RECORD_SECONDS, Row, read_rows, record_of
from benchmarks.policies.workload import LIMIT, MAX_TURNS, MODEL, shape_in, shapes
from transport import Registry

SCHEDULER, GENERATOR = "kv_scheduler", "rollout_generator"
ENGINES = 2
TOPOLOGY = """
[run]
name = "policies"
directory = "{folder}/run"
[model]
path = "{folder}/model"
[[environments]]
class = "benchmarks.policies.workload:ShapedEnvironment"
settings = {{ groups = {groups}, samples = {samples} }}
[algorithm]
groups_per_step = {groups}
samples = {samples}
max_staleness = 0
[[stages]]
kind = "rl"
name = "rl"
steps = 1
learning_rate = 1e-4
max_response_tokens = {limit}
max_turns = {turns}
[actors.kv_scheduler]
settings = {{ template_tokens = 1 }}
[actors.rollout_generator]
class = "benchmarks.policies.generator:ShapedGenerator"
replicas = {engines}
[actors.rollout_generator.settings]
engine = "{engine}"
max_rollouts = {rows}
kv_tokens = {kv_tokens}
threads = 1
tool_calls_outstanding = 4096
engine_settings = {{ kv_on_update = "recompute" }}
"""
STARTING_SECONDS = 300.0
ROUND_SECONDS = 300.0
ENDING_SECONDS = 30.0
RECORDED_SECONDS = 10.0


class RoundFailed(Failure):
    """A generator has ended, a rollout has another length than it shall have, or a round takes too long."""


@dataclass(frozen=True)
class Sizes:
    """Of a round, and of the engines."""

    engine: str
    groups: int
    samples: int
    kv_tokens: int
    max_rollouts: int

    @property
    def rollouts(self) -> int:
        """Of a round."""
        return self.groups * self.samples

    def topology(self, folder: Path) -> str:
        """The topology, whose files are in ``folder``."""
        return TOPOLOGY.format(
            folder=folder,
            groups=self.groups,
            samples=self.samples,
            limit=LIMIT,
            turns=MAX_TURNS,
            engines=ENGINES,
            engine=self.engine,
            rows=self.max_rollouts,
            kv_tokens=self.kv_tokens,
        )


@dataclass(frozen=True)
class Measured:
    """A round: seconds from its first group to its last rollout, and the records of both engines over that time."""

    policy: str
    seed: int
    makespan_s: float
    moved: int
    records: Sequence[Sequence[Row]]

    def total(self, name: str) -> float:
        """By how much a total of the engines has grown, all together."""
        return float(sum(getattr(rows[-1], name) - getattr(rows[0], name) for rows in self.records))

    @property
    def preempted_share(self) -> float:
        """Preemptions, by the turns."""
        return self.total("preempted") / self.total("turns")

    @property
    def hit_rate(self) -> float:
        """Tokens that were found in the KV cache, of those that turns began with."""
        return self.total("cached") / (self.total("cached") + self.total("prefilled"))

    @property
    def idle_share(self) -> float:
        """Of the engines' time."""
        return max(0.0, 1 - self.total("busy_s") / (len(self.records) * self.makespan_s))


@dataclass
class Round:
    """What the filter has seen of a round."""

    shapes: Sequence[Sequence[Shape]]
    began: float = math.inf
    ended: float = math.inf
    wrong: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    over: trio.Event = field(default_factory=trio.Event)

    @property
    def rollouts(self) -> int:
        """How many there are."""
        return sum(map(len, self.shapes))

    def opened(self) -> None:
        """A group was opened."""
        self.began = min(self.began, time.monotonic())

    def ends(self, made: Trajectory) -> None:
        """A rollout has ended."""
        shape = self.shapes[int(made.group.rpartition("g")[2])][made.sample]
        wrote, wanted = made.prompt_length + made.response_length, shape.context
        if made.status != "finished" or wrote != wanted:
            self.wrong.append(f"{made.rollout} is {made.status} with {wrote} of {wanted} tokens ({made.reason})")
        self.seen.add(made.rollout)
        if len(self.seen) == self.rollouts or self.wrong:
            self.ended = time.monotonic()
            self.over.set()


async def answer(asked: ObserveTurn) -> TurnObserved:
    """The environment's answer to a turn, after the seconds that its tools sleep."""
    shape = shape_in(asked.problem, int(asked.rollout.split("/")[1]))
    turn = len(asked.transcript.texts)
    if turn == len(shape.written):
        return TurnObserved(done=True)
    await trio.sleep(shape.tool_s[turn - 1])
    return TurnObserved((EnvironmentMessage(turn, "user", str(shape.tool_tokens[turn - 1])),))


class Service:
    """The engines, and what stands for the other actors."""

    def __init__(self, path: Path, sizes: Sizes) -> None:
        self._path, self._sizes = path, sizes
        self.topology = load_topology(path)
        self.directory = self.topology.run.directory
        self.nodes = [SUPERVISOR, *(name for name, _ in actor_nodes(self.topology))]
        self.generators = [name for name in self.nodes if name.startswith(f"{GENERATOR}.")]
        network, registry = run_network(self.topology, path.parent), Registry.of(messages)
        stands = [name for name in self.nodes if name not in {*self.generators, f"{SCHEDULER}.0"}]
        self.stage = Stage(network, registry, {name: Peer(name, network, registry, 0) for name in stands})
        self.stage["tool_executor"].reply = answer
        self.stage["tool_executor"].concurrency = 1 << 14
        self.stage["roc_filter"].reply = self._take
        self.children: list[ActorChild] = []
        self._policy = self.stage["learner"].node.announce("policy", [f"{SCHEDULER}.0", *self.generators])
        self._rounds = 0
        self._round = Round(())
        self.failure: str | None = None

    def _take(self, message: Any) -> Any:
        """What the filter does with a message."""
        match message:
            case UnfinishedGroups(stage):
                return GroupsUnfinished(stage, 0, ())
            case GroupOpened():
                self._round.opened()
            case Trajectory():
                self._round.ends(message)
        return None

    async def start(self, nursery: trio.Nursery) -> None:
        """Start the generators, each on a core of its own. Raises RoundFailed when one does not start."""
        for peer in self.stage.peers.values():
            await nursery.start(peer.run)
        cores = sorted(os.sched_getaffinity(0))
        for number, name in enumerate(self.generators):
            environment = actor_environment(self.topology.actors[GENERATOR], self.directory)
            arguments = ["--topology", str(self._path), "--base", str(self._path.parent), "--actor", name]
            arguments += ["--incarnation", "0", "--started-at", repr(time.time()), "--epoch", repr(read_epoch())]
            stderr = self._path.with_name(f"{name}.stderr")
            child = start_child("actors.runtime.process", arguments, environment=environment, stderr=stderr)
            child.stay_on([cores[number % len(cores)]])
            child.tell(written(dict.fromkeys(self.nodes, 0)))
            self.children.append(child)
            nursery.start_soon(self._watch, name, child, nursery.cancel_scope)
        with trio.move_on_after(STARTING_SECONDS) as limit:
            for name in self.generators:
                await self.stage.started(name)
        if limit.cancelled_caught:
            raise RoundFailed(f"the generators did not start within {STARTING_SECONDS:g} s")

    async def _watch(self, name: str, child: ActorChild, scope: trio.CancelScope) -> None:
        status = await child.wait()
        words = child.message or "\n  ".join(child.last_words(5))
        self.failure = f"{name} has ended with {status}: {words}"
        scope.cancel()

    async def run(self, policy: str, seed: int) -> Measured:
        """A round. Raises RoundFailed."""
        self._rounds += 1
        incarnation = self._rounds * RESTARTS
        settings = [f"run.seed={seed}", f"actors.{SCHEDULER}.settings.policy={policy}"]
        topology = load_topology(self._path, settings)
        current = self._round = Round(shapes(seed, self._sizes.groups, self._sizes.samples))
        for child in self.children:
            child.tell(written({f"{SCHEDULER}.0": incarnation}))
        version = self._rounds
        weights = (self._path.parent / "model" / "model.safetensors").as_uri()
        own = self.directory / f"round-{version}"
        async with running(KVScheduler, topology, SCHEDULER, own, self.stage, incarnation=incarnation) as scheduler:
            self._policy.set(PolicyPublished(PolicyVersion(0, version), weights, 0, version))
            with trio.move_on_after(ROUND_SECONDS):
                await current.over.wait()
                while figures_of(scheduler).rollouts_in_flight:  # noqa: ASYNC110 - acknowledgements announce nothing
                    await trio.sleep(RECORD_SECONDS)
            moved = figures_of(scheduler).rollouts_moved
        for peer in self.stage.peers.values():
            peer.forget()
        if current.wrong or not current.over.is_set():
            late = f"{len(current.seen)} of {current.rollouts} rollouts have ended after {ROUND_SECONDS:g} s"
            raise RoundFailed(f"{policy}, seed {seed}: {current.wrong[0] if current.wrong else late}")
        return Measured(policy, seed, current.ended - current.began, moved, await self._records(current))

    async def _records(self, over: Round) -> list[list[Row]]:
        """What the engines recorded of a round. Their totals only change within rounds."""
        found = []
        for replica in range(ENGINES):
            with trio.fail_after(RECORDED_SECONDS):
                rows = self._rows(replica)
                while rows[-1].at < over.ended + RECORD_SECONDS:
                    await trio.sleep(RECORD_SECONDS)
                    rows = self._rows(replica)
            first = max(index for index, row in enumerate(rows) if row.at < over.began)
            found.append(rows[first:])
        return found

    def _rows(self, replica: int) -> list[Row]:
        return read_rows(record_of(self.directory, replica))

    async def stop(self) -> None:
        """End the processes of the generators."""
        for child in self.children:
            child.terminate()
        with trio.CancelScope(deadline=trio.current_time() + ENDING_SECONDS, shield=True):
            for child in self.children:
                await child.wait()
        for child in self.children:
            if not child.ended:
                child.reap()


def figures_of(scheduler: Actor) -> SchedulerFigures:
    """The scheduler's live figures."""
    figures = scheduler.status()[1].scheduler
    assert figures is not None
    return figures


@asynccontextmanager
async def service(sizes: Sizes) -> AsyncIterator[Service]:
    """The engines with all else. None of their processes outlives the block. Raises RoundFailed when one ends early."""
    with tempfile.TemporaryDirectory(prefix="bench") as name:
        folder = Path(name)
        path = folder / "topology.toml"
        path.write_text(sizes.topology(folder))
        await trio.to_thread.run_sync(partial(initialise_model, MODEL, folder / "model", seed=0))
        made = Service(path, sizes)
        made.directory.mkdir()
        runtime = runtime_directory(made.topology)
        table = addresses(made.topology, runtime)
        with socket_directory(runtime, [table[node] for node in made.nodes]):
            try:
                async with trio.open_nursery() as nursery:
                    await made.start(nursery)
                    yield made
                    nursery.cancel_scope.cancel()
            finally:
                await made.stop()
        if made.failure:
            raise RoundFailed(made.failure)
