"""Measures what messages cost the event loops of production actors, for `agent_rl.simulation.costs`.

::

    a twin with plain tokens --> seconds of each role's tasks in windows of virtual time
    windows: seconds ~ sum over types of (messages * seconds + tokens * token_s), least squares, none negative --> table

All actors run in one process, so the processor time of a task step is that of its actor. Tokens are arrays of real
sizes. The in-memory network takes the place of ZeroMQ: its sockets are not in the table.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from time import thread_time
from typing import NamedTuple

import numpy as np
import trio
from numpy.typing import NDArray
from trio.abc import Instrument

from actors.twin.run import ACTOR, in_virtual_time, play
from actors.twin.world import World
from agent_rl.config.examples import topology_file
from agent_rl.config.load import load_topology
from agent_rl.simulation.costs import TURN, Cost, Costs, CostTable
from agent_rl.simulation.plan import plan_of
from agent_rl.simulation.profile import read_profile

EXAMPLE, PROFILE = "examples/paper_size.toml", "mi300x"
SIZE = (
    "algorithm.groups_per_step=32",
    "algorithm.samples=16",
    "algorithm.keep=8",
    "actors.rollout_generator.replicas=16",
    "actors.rollout_generator.settings.max_rollouts=64",
)
STEPS, LEAST = 2, 30
"""Steps of the measurement, and the messages of a type without which nothing is said about it."""
WINDOW_S = 10.0
"""Virtual seconds of a window."""
TOKENS = {"TurnsCompleted", "Trajectory", "TrainingGroup", TURN}
"""What carries tokens."""
MODELLED = {"tool_executor"}
"""Roles without production code in a twin."""


class Meter(Instrument):
    """Processor seconds of the tasks of each actor."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._began = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task begins to run."""
        del task
        self._began = thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """It waits again."""
        self.seconds[task.context.get(ACTOR, "")] += thread_time() - self._began


class Window(NamedTuple):
    """Totals of an actor up to a moment."""

    seconds: float
    handled: Counter[str]
    tokens: Counter[str]


def measured_costs(steps: int = STEPS) -> CostTable:
    """Measure on this machine: it must be quiet. Takes a minute or so."""
    where = str(topology_file(EXAMPLE))
    topology, profile = load_topology((topology_file(EXAMPLE),), SIZE), read_profile(PROFILE)
    plan = plan_of(topology, profile, where=where, steps=steps, seed=0)
    world = World(plan, Costs({}), signal=profile.rollouts.signal, seed=0, plain=True)
    meter = Meter()
    windows: dict[str, list[Window]] = {}

    async def main(folder: Path) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, world, meter, windows)
            await play(topology, world, folder)
            nursery.cancel_scope.cancel()

    in_virtual_time(main, seed=0, instruments=[meter])
    return fitted(windows, {name: each.role for name, each in world.processors.items()})


async def _watch(world: World, meter: Meter, windows: dict[str, list[Window]]) -> None:
    while True:
        for name, each in world.processors.items():
            window = Window(meter.seconds[name], Counter(each.handled), Counter(each.tokens))
            windows.setdefault(name, []).append(window)
        await trio.sleep(WINDOW_S)


def fitted(windows: Mapping[str, list[Window]], roles: Mapping[str, str]) -> CostTable:
    """The table. ``windows``: totals of each actor, in order; ``roles``: of the actors."""
    table: CostTable = {}
    for role in sorted(set(roles.values()) - MODELLED):
        series = [windows[name] for name in sorted(windows) if roles[name] == role]
        total: Counter[str] = sum((each[-1].handled for each in series), Counter())
        kinds = sorted(kind for kind, count in total.items() if count >= LEAST)
        carrying = [kind for kind in kinds if kind in TOKENS]
        rows, seconds = [], []
        for before, after in (pair for each in series for pair in pairwise(each)):
            counts = [after.handled[kind] - before.handled[kind] for kind in kinds]
            rows.append(counts + [after.tokens[kind] - before.tokens[kind] for kind in carrying])
            seconds.append(after.seconds - before.seconds)
        if not kinds or len(rows) < len(kinds) + len(carrying):
            continue
        found = not_negative(np.array(rows, dtype=np.float64), np.array(seconds))
        per_token = dict(zip(carrying, found[len(kinds) :], strict=True))
        table[role] = {
            kind: Cost(seconds=_short(cost), token_s=_short(per_token.get(kind, 0.0)))
            for kind, cost in zip(kinds, found, strict=False)
        }
    return table


def not_negative(rows: NDArray[np.float64], seconds: NDArray[np.float64]) -> list[float]:
    """The coefficients, none negative, with the least squared error: rows [n, k] times them are about seconds [n]."""
    count = rows.shape[1]
    best, error = np.zeros(count), math.inf
    for chosen in (each for size in range(1, count + 1) for each in itertools.combinations(range(count), size)):
        columns = list(chosen)
        found, *_ = np.linalg.lstsq(rows[:, columns], seconds, rcond=None)
        squared = float(np.square(rows[:, columns] @ found - seconds).sum())
        if (found >= 0).all() and squared < error * (1 - 1e-9):
            best, error = np.zeros(count), squared
            best[columns] = found
    return [float(each) for each in best]


def _short(value: float) -> float:
    return float(f"{value:.3g}")
