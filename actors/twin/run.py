"""Runs a twin: all actors of a topology on an in-memory network, in virtual time.

The order of events is a function of topology, trace and seed. trio orders tasks that may run at the same instant by
chance, so that programs do not depend on their order; for the time of a twin, chance is a seeded generator.
"""

from __future__ import annotations

import gc
import math
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import trio
from trio._core import _run as scheduling
from trio.testing import MockClock

from actors.testing import SUPERVISOR, Peer, Stage, running
from actors.twin.roles import ROLES, twin_class
from actors.twin.tokens import NAME
from actors.twin.world import World
from agent_rl import messages
from agent_rl.config.addresses import actor_nodes
from agent_rl.config.topology import EnvironmentEntry, RlStage, TaskFilter, Topology
from agent_rl.records.memory import MemoryJournal
from agent_rl.simulation.plan import GENERATOR, SCHEDULER, Plan
from agent_rl.simulation.prediction import Prediction
from agent_rl.simulation.profile import Profile
from transport import Limits, LinkEvent, MemoryNetwork, PeerLeft, Registry

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
WITHOUT = ("weights", "transfer")
"""Links that move weights: the learner's model says how long that takes."""


def twin_topology(topology: Topology, plan: Plan, directory: Path) -> Topology:
    """The topology of the twin: the same actors and settings, one stage, and a modelled environment."""
    stage = next(stage for stage in topology.stages if isinstance(stage, RlStage) and stage.name == plan.stage)
    stage = stage.model_copy(
        update={"steps": plan.trace.steps, "evaluate": None, "filter": TaskFilter(), "max_turns": 1 << 20}
    )
    actors = {role: topology.actors[role] for role in ROLES}
    generator, scheduler = actors[GENERATOR], actors[SCHEDULER]
    links = {name: to for name, to in generator.links.items() if name not in WITHOUT}
    actors[GENERATOR] = generator.model_copy(update={"links": links})
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
    environment = EnvironmentEntry.model_validate({"class": "actors.twin.tokens:ModelledEnvironment", "name": NAME})
    model = topology.model.model_copy(update={"path": str(directory)})
    changed = {"run": run, "model": model, "environments": (environment,), "stages": (stage,), "actors": actors}
    return topology.model_copy(update=changed)


class Warnings:
    """The warnings that actors log, counted: a twin prints them at its end."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def logger(self) -> Any:
        """A logger that drops all but warnings, and counts these."""
        return structlog.wrap_logger(
            None, processors=[self._count], wrapper_class=structlog.make_filtering_bound_logger(30)
        )

    def link_event(self, event: LinkEvent) -> None:
        """Count what happens to a peer. Peers that leave do so at the end."""
        if not isinstance(event, PeerLeft):
            self.counts[type(event).__name__] += 1

    def _count(self, _: Any, method: str, event: Any) -> Any:
        del method
        self.counts[str(event["event"])] += 1
        raise structlog.DropEvent


@contextmanager
def in_order(seed: int) -> Iterator[None]:
    """Within the block, trio's choices among tasks that may run are those of a seeded generator."""
    before = scheduling._ALLOW_DETERMINISTIC_SCHEDULING, scheduling._r.getstate()
    scheduling._ALLOW_DETERMINISTIC_SCHEDULING = True
    scheduling._r.seed(seed)
    try:
        yield
    finally:
        scheduling._ALLOW_DETERMINISTIC_SCHEDULING = before[0]
        scheduling._r.setstate(before[1])


def run_twin(topology: Topology, plan: Plan, profile: Profile, *, seed: int) -> tuple[Prediction, World]:
    """Run the twin of a plan. Returns what was predicted, and what was observed."""
    with tempfile.TemporaryDirectory(prefix="agent-rl-twin-") as folder, in_order(seed):
        gc.collect()
        gc.freeze()
        try:
            main = partial(_run, topology, plan, profile, seed, Path(folder))
            return trio.run(main, clock=MockClock(autojump_threshold=0))
        finally:
            gc.unfreeze()


async def _run(topology: Topology, plan: Plan, profile: Profile, seed: int, folder: Path) -> tuple[Prediction, World]:
    from agent_rl.simulation.costs import Costs

    made = twin_topology(topology, plan, folder)
    world = World(plan, Costs({}), signal=profile.rollouts.signal, seed=seed)
    warnings = Warnings()
    stage = Stage(MemoryNetwork(), Registry.of(messages), {})
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        supervisor = Peer(SUPERVISOR, stage.network, stage.registry, 1, LIMITS)
        await nursery.start(supervisor.run)
        classes = {role: twin_class(made, role, world) for role in ROLES}
        for name, role in actor_nodes(made):
            replica = int(name.rpartition(".")[2])
            actor = partial(
                running,
                classes[role],
                made,
                role,
                folder,
                stage,
                replica=replica,
                kill=True,
                limits=LIMITS,
                journal=MemoryJournal,
                log=warnings.logger(),
                on_event=warnings.link_event,
            )
            await nursery.start(_live, actor)
        await world.done.wait()
        nursery.cancel_scope.cancel()
    faults = warnings.counts
    outcome = world.outcome.measured(trio.current_time() - began, list(world.engines.values()), faults)
    return Prediction(plan, outcome, tuple(world.engines.values())), world


async def _live(actor: Any, *, task_status: trio.TaskStatus[None]) -> None:
    async with actor():
        task_status.started()
        await trio.sleep_forever()
