"""How the main host hears of the actors of other hosts: their supervisors pass on what the actors report to them.

::

    actors of a host --ActorStatus--> its supervisor --HostReport, once a second--> supervisor of the main host
                                                     `-(at once, for an actor that failed or finished)

So the main host has a connection to each host rather than to each actor, and few messages. A report holds the newest
status of every actor of the host, so a lost report loses nothing. A status that was there before is not heard again: an
actor that is silent on its host is silent on the main host.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import trio

from actors.runtime.roster import Roster
from agent_rl.config.addresses import supervisor_node
from agent_rl.config.topology import Topology
from agent_rl.messages import ActorReport, ActorStatus, HostReport

if TYPE_CHECKING:
    from transport import Node

STATUSES_PASSED_ON = 2
"""Statuses are passed on once for so many of an actor (``run.status_seconds``)."""
AT_ONCE = {"failed", "finished"}
"""States that are passed on without waiting: the process is about to end."""


class StatusReports:
    """What the supervisor of ``hosts`` passes on, and what it has heard from other supervisors."""

    def __init__(self, topology: Topology, hosts: Collection[str], roster: Roster) -> None:
        self._main = supervisor_node(topology.main_host)
        self._passes_on = topology.main_host not in hosts
        self._roster = roster
        self._set: Callable[[object], None] | None = None
        self._own: dict[str, ActorReport] = {}
        self._changed = False
        self._interval = STATUSES_PASSED_ON * topology.run.status_seconds
        self._heard: dict[str, dict[str, tuple[int, int]]] = {}
        """Of each supervisor's newest report: the actors, each with the process and the number of its status."""

    def link(self, node: Node) -> None:
        """Add a node of this supervisor. The first passes on the statuses of all actors."""
        if self._passes_on and self._set is None:
            self._set = node.announce("reports", [self._main]).set

    # On a host that is not the main host.

    def observe(self, status: ActorStatus, incarnation: int, *, at_once: bool = False) -> None:
        """An actor of this host reports. ``at_once``: it may be its last status."""
        if self._set is None:
            return
        before = self._own.get(status.actor)
        self._own[status.actor] = ActorReport(status, incarnation, 1 if before is None else before.number + 1)
        self._changed = True
        if at_once or status.state in AT_ONCE:
            self._pass_on()

    def forget(self, actor: str) -> None:
        """The process of an actor has ended: the main host expects nothing of the actor until it reports again."""
        self._changed |= self._own.pop(actor, None) is not None

    async def run(self) -> None:
        """Pass on what is new, now and then, until cancelled."""
        while self._set is not None:
            self._pass_on()
            await trio.sleep(self._interval)

    def _pass_on(self) -> None:
        if self._set is not None and self._changed:
            self._changed = False
            self._set(HostReport(tuple(self._own.values())))

    # On the main host.

    def heard(self, sender: str, report: HostReport) -> tuple[list[ActorStatus], list[str]]:
        """A supervisor reports. Returns the statuses that are new, and the actors that stopped since its last report.

        A supervisor speaks for the actors of its host only.
        """
        before = self._heard.get(sender, {})
        spoken = [each for each in report.actors if self._roster.speaks_for(sender, each.status.actor)]
        now = self._heard[sender] = {each.status.actor: (each.incarnation, each.number) for each in spoken}
        new = [each.status for each in spoken if before.get(each.status.actor) != now[each.status.actor]]
        return new, [actor for actor in before if actor not in now]

    def left(self, supervisor: str) -> list[str]:
        """A supervisor has stopped in order. Returns its actors, which stopped before it."""
        return list(self._heard.pop(supervisor, ()))
