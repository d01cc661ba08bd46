"""The processes of a supervisor's actors: those that the topology names, also while hosts are scaled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import trio

from actors.runtime.actor_process import ActorProcess, Reports, stop_in_order
from actors.runtime.lifecycle import drain_order
from agent_rl.config.addresses import actor_nodes
from agent_rl.config.placement import gpus_of_actor
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
            name: make(name, role, topology) for name, role in self._named(topology).items()
        }
        """By name. Actors that were removed stay, and have ended."""

    def _named(self, topology: Topology) -> dict[str, str]:
        """The role of each actor of these hosts."""
        return {name: role for host in self._hosts for name, role in actor_nodes(topology, host)}

    def begin(self, nursery: trio.Nursery, janitor: Janitor, log: Callable[..., Any]) -> None:
        """Start all processes, in this nursery."""

        async def stop(order: list[str], actors: list[ActorProcess]) -> None:
            await stop_in_order(order, actors, self._reports, failed=False)

        self._start = lambda actor: nursery.start_soon(actor.keep, janitor, log)
        self._stop = lambda order, actors: nursery.start_soon(stop, order, actors)
        for actor in self.actors.values():
            self._start(actor)

    def follow(self, topology: Topology) -> None:
        """Start the replicas that came, and stop those that have gone and run still."""
        if self._ending.is_set():
            return
        named = self._named(topology)
        for name, role in named.items():
            if name not in self.actors:
                actor = self.actors[name] = self._make(name, role, topology)
                if self._start is not None:
                    actor.adds()
                    self._start(actor)
        gone = [actor for name, actor in self.actors.items() if name not in named and not actor.stopping]
        if self._stop is None:
            for actor in gone:
                del self.actors[actor.name]
        elif gone:
            self._stop(drain_order(topology), gone)

    def taken_gpus(self, topology: Topology) -> str:
        """Why replicas that this topology adds here would get GPUs of processes that run; empty: they would not.

        A process keeps its GPUs, and the topology deals them anew.
        """
        running = {
            gpu: actor.name
            for actor in self.actors.values()
            if not actor.ended.is_set() and actor.entry.share == "none"
            for gpu in actor.gpus or ()
        }
        for name in self._named(topology).keys() - self.actors.keys():
            if taken := set(gpus_of_actor(topology, name) or ()) & running.keys():
                gpu = min(taken)
                remedy = "stop the run, write the number of processes into the file, and run it again"
                return f"{name} would get GPU {gpu}, which {running[gpu]} has; {remedy}"
        return ""

    async def carry_out(
        self, starts: Sequence[str], stops: Sequence[str], topology: Topology
    ) -> tuple[list[str], list[str]]:
        """Wait until those replicas that come are ready, and stop others. Returns what failed, and what was done."""
        faults, done = [], []
        for name in starts:
            actor = self.actors.get(name)  # none is made any more once the run ends
            if fault := f"{name} does not start: the run is ending" if actor is None else await actor.added():
                faults.append(fault)
            else:
                done.append(f"{name} runs")
        leaving = [self.actors[name] for name in stops]
        await stop_in_order(drain_order(topology), leaving, self._reports, failed=False)
        return faults, done + [has_left(name) for name in stops]


def has_left(replica: str) -> str:
    """The line about a replica that has stopped, in what was done (`Changed.done`)."""
    return f"{replica} has left"
