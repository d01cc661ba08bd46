"""The processes of a supervisor's actors: those that are to run now, also while roles are scaled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import trio

from actors.runtime.actor_process import ActorProcess, Reports, stop_in_order
from actors.runtime.lifecycle import drain_order
from agent_rl.config.addresses import wanted_nodes
from agent_rl.config.topology import Topology
from agent_rl.files.leftovers import Janitor


class Replicas:
    """Starts and stops the processes of ``hosts``. ``make`` makes the record of an actor by name, role and topology."""

    def __init__(
        self,
        topology: Topology,
        hosts: Sequence[str],
        make: Callable[[str, str, Topology], ActorProcess],
        reports: Reports,
        ending: trio.Event,
    ) -> None:
        self._hosts = tuple(hosts)
        self._make = make
        self._reports = reports
        self._ending = ending
        self._start: Callable[[ActorProcess], object] | None = None
        self._stop: Callable[[list[str], list[ActorProcess]], object] | None = None
        self.actors: dict[str, ActorProcess] = {
            name: make(name, role, topology) for name, role in self._wanted(topology).items()
        }
        """By name. Actors that are wanted no more stay, and have ended."""

    def _wanted(self, topology: Topology) -> dict[str, str]:
        """The role of each actor that is to run on these hosts."""
        return {name: role for host in self._hosts for name, role in wanted_nodes(topology, host).items()}

    def begin(self, nursery: trio.Nursery, janitor: Janitor, log: Callable[..., Any]) -> None:
        """Start all processes, in this nursery."""

        async def stop(order: list[str], actors: list[ActorProcess]) -> None:
            await stop_in_order(order, actors, self._reports, failed=False)

        self._start = lambda actor: nursery.start_soon(actor.keep, janitor, log)
        self._stop = lambda order, actors: nursery.start_soon(stop, order, actors)
        for actor in self.actors.values():
            self._start(actor)

    def follow(self, topology: Topology) -> None:
        """Start the replicas that are wanted now, and stop those that are wanted no more."""
        if self._ending.is_set():
            return
        wanted = self._wanted(topology)
        for name, role in wanted.items():
            former = self.actors.get(name)
            if former is None or former.ended.is_set():
                actor = self.actors[name] = self._make(name, role, topology)
                if former is not None:  # peers refuse a process that is not newer
                    actor.incarnation = former.incarnation + 1
                if self._start is not None:
                    actor.adds()
                    self._start(actor)
        gone = [actor for name, actor in self.actors.items() if name not in wanted and not actor.stopping]
        if self._stop is None:
            for actor in gone:
                del self.actors[actor.name]
        elif gone:
            self._stop(drain_order(topology), gone)

    async def carry_out(
        self, starts: Collection[str], stops: Collection[str], topology: Topology
    ) -> tuple[list[str], list[str]]:
        """Wait until those replicas that come are ready, and stop others. Returns what failed, and what was done."""
        faults, done = [], []
        for name in starts:
            actor = self.actors.get(name)  # none is made any more once the run ends
            if fault := f"{name} does not start: the run is ending" if actor is None else await actor.added():
                faults.append(fault)
            else:
                done.append(f"{name} runs")
        leaving = [self.actors[name] for name in stops if name in self.actors]
        await stop_in_order(drain_order(topology), leaving, self._reports, failed=False)
        return faults, done + [has_left(name) for name in stops]


def has_left(replica: str) -> str:
    """The line about a replica that has stopped, in what was done (`Changed.done`)."""
    return f"{replica} has left"
