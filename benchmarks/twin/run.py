"""Runs a twin: all actors of a topology on an in-memory network, in virtual time.

The order of events is a function of topology, trace and seed. trio orders tasks that may run at the same instant by
chance, so that programs do not depend on their order; for the time of a twin, chance is a seeded generator.
"""

from __future__ import annotations

import gc
import logging
import math
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import trio
from trio._core import _run as scheduling

from agent_rl import messages
from agent_rl.config.addresses import actor_nodes
from agent_rl.config.placement import gpus_of
from agent_rl.config.selection import TaskFilter
from agent_rl.config.topology import EnvironmentEntry, RlStage, Topology
from agent_rl_contract.stage import SUPERVISOR, Peer, Stage, running
from benchmarks.twin.clock import VirtualClock, in_place
from benchmarks.twin.modelled_engine import ModelledEngine
from benchmarks.twin.outcome import Outcome
from benchmarks.twin.plan import SCHEDULER, Plan
from benchmarks.twin.profile import Profile
from benchmarks.twin.roles import ROLES, not_used, twin_class
from benchmarks.twin.tokens import NAME
from benchmarks.twin.trace import TraceError
from benchmarks.twin.world import World
from transport import Limits, LinkEvent, PeerLeft, Registry
from transport.memory import MemoryNetwork

HEARTBEAT_S = 600.0
"""Nothing is lost in memory, so heartbeats would only cost time of the simulation."""
LIMITS = Limits(
    heartbeat_interval=HEARTBEAT_S,
    silent_after=5 * HEARTBEAT_S,
    lost_after=20 * HEARTBEAT_S,
    credit_report_after=math.inf,
    handling=math.inf,
)
STATUS_S = 1e9
GARBAGE = 200_000, 20, 50
"""Thresholds of the garbage collector: a twin makes few cycles, and its heap is large."""
WITHOUT = ("weights", "transfer", "ranks")
"""Links that move weights, or lead to other ranks: the learner's model says how long their work takes."""


def twin_topology(topology: Topology, plan: Plan, directory: Path) -> Topology:
    """The topology of the twin: the same actors and settings, one stage, and a modelled environment."""
    if missing := [role for role in ROLES if role not in topology.actors]:
        raise TraceError(f"actors: the twin needs the role {missing[0]}, which is not there")
    stage = next(stage for stage in topology.stages if isinstance(stage, RlStage) and stage.name == plan.stage)
    shapes = [shape for group in plan.trace.groups for shape in group]
    stage = stage.model_copy(
        update={
            "steps": plan.trace.steps,
            "evaluate": None,
            "filter": TaskFilter(),
            "max_response_tokens": max(stage.max_response_tokens, *(each.context - each.prompt for each in shapes)),
            "max_turns": max(stage.max_turns, *(len(each.written) for each in shapes)),
        }
    )
    actors = {role: topology.actors[role] for role in ROLES}
    for role, entry in actors.items():
        links = {name: to for name, to in entry.links.items() if name not in WITHOUT}
        gpus = gpus_of(entry) * entry.ranks_per_host  # the twin has no process of another rank
        actors[role] = entry.model_copy(update={"links": links, "gpus_per_replica": gpus})
    scheduler = actors[SCHEDULER]
    policy = {"policy": plan.policy, "policy_settings": plan.policy_settings}
    actors[SCHEDULER] = scheduler.model_copy(update={"settings": {**scheduler.settings, **policy}})
    run = topology.run.model_copy(
        update={
            "directory": directory,
            "status_seconds": STATUS_S,
            "metrics_port": None,
            "max_minutes": None,
            "checkpoint_every": 1 << 30,
            "keep_trajectories": "replay",
        }
    )
    environment = EnvironmentEntry.model_validate({"class": "benchmarks.twin.tokens:ModelledEnvironment", "name": NAME})
    model = topology.model.model_copy(update={"path": str(directory)})
    changed = {"run": run, "model": model, "environments": (environment,), "stages": (stage,), "actors": actors}
    return topology.model_copy(update=changed)


class WarningLog:
    """The warnings that actors log, counted by their text, and the faults of the scheduling policy by their name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()

    def logger(self) -> Any:
        """A logger that drops all but warnings, and counts these."""
        return structlog.wrap_logger(
            None, processors=[self._count], wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING)
        )

    def link_event(self, event: LinkEvent) -> None:
        """Count what happens to a peer. Peers that leave do so at the end."""
        if not isinstance(event, PeerLeft):
            self.counts[type(event).__name__] += 1

    def _count(self, _: Any, method: str, event: Any) -> Any:
        del method
        if "fault" in event:
            self.faults[str(event["fault"])] += 1
        else:
            self.counts[str(event["event"])] += 1
        raise structlog.DropEvent


@contextmanager
def in_order(seed: int) -> Iterator[None]:
    """Within the block, trio's choices among tasks that may run are those of a seeded generator.

    trio has no public way to say so. These two names are those that its own plug-ins for tests set.
    """
    chosen: Any = scheduling
    flag, chance = "_ALLOW_DETERMINISTIC_SCHEDULING", chosen._r  # noqa: SLF001 - see above
    before = getattr(chosen, flag), chance.getstate()
    setattr(chosen, flag, True)
    chance.seed(seed)
    try:
        yield
    finally:
        setattr(chosen, flag, before[0])
        chance.setstate(before[1])


@dataclass(frozen=True, slots=True)
class TwinRun:
    """What a twin gave: figures, engines, what was observed, and the warnings that actors logged."""

    plan: Plan
    outcome: Outcome
    engines: tuple[ModelledEngine, ...]
    world: World
    warnings: Counter[str]


def run_twin(topology: Topology, plan: Plan, profile: Profile, *, seed: int) -> TwinRun:
    """Run the twin of a plan, with a folder that is removed at its end, in an order of events that ``seed`` decides."""
    world = World(plan, signal=profile.rollouts.signal, seed=seed)
    thresholds = gc.get_threshold()
    with tempfile.TemporaryDirectory(prefix="agent-rl-twin-") as folder, in_order(seed):
        gc.freeze()
        gc.set_threshold(*GARBAGE)
        try:
            return trio.run(play, topology, world, Path(folder), clock=VirtualClock())
        finally:
            gc.set_threshold(*thresholds)
            gc.unfreeze()


async def play(topology: Topology, world: World, folder: Path) -> TwinRun:
    """Run all actors until the last step is trained. The journal is in the folder."""
    plan = world.plan
    made = twin_topology(topology, plan, folder)
    log = WarningLog()
    stage = Stage(MemoryNetwork(), Registry.of(messages), {})
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        supervisor = Peer(SUPERVISOR, stage.network, stage.registry, 1, LIMITS)
        await nursery.start(supervisor.run)
        classes = {role: twin_class(made, role, world) for role in ROLES}
        log.counts.update(f"actors.{role}: {not_used(made, role)}" for role in ROLES if not_used(made, role))
        for name, role in actor_nodes(made):
            actor = partial(
                running,
                classes[role],
                made,
                role,
                folder,
                stage,
                replica=int(name.rpartition(".")[2]),
                kill=True,
                limits=LIMITS,
                log=log.logger(),
                on_event=log.link_event,
                in_thread=in_place,
            )
            await nursery.start(_live, actor)
        await world.done.wait()
        nursery.cancel_scope.cancel()
    outcome = world.outcome.measured(trio.current_time() - began, list(world.engines.values()), log.faults)
    return TwinRun(plan, outcome, tuple(world.engines.values()), world, log.counts)


async def _live(actor: Any, *, task_status: trio.TaskStatus[None]) -> None:
    async with actor():
        task_status.started()
        await trio.sleep_forever()
