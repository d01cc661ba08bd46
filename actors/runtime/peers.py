"""What a supervisor exchanges with the supervisors of other hosts and with commands.

::

    HostHello, Incarnations ---> Handshake --(admitted)--> Roster --> nodes of this process, its actors (lifelines)
    SwapWanted, ScaleWanted, DrainWanted, StopWanted, ChangesInForce ---> Changes --> processes of actors
    RunState, status of a supervisor ---> OtherHosts --> Supervisor.end
    silence of a supervisor, replicas --> Ledger.doubted --> nodes of the actors of this process (lifelines)
    status of an actor --------------------------------> Supervisor.hear_actor
                       `-(not the main host)-----------> StatusReports --HostReport--> the main host
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from actors.runtime.changes import CALLS, Changes
from actors.runtime.handshake import Handshake, Reports
from actors.runtime.ledger import Ledger
from actors.runtime.other_hosts import OtherHosts, is_supervisor
from actors.runtime.reports import StatusReports
from actors.runtime.roster import Roster
from agent_rl import messages
from agent_rl.config.addresses import supervisor_node
from agent_rl.config.topology import Topology
from agent_rl.messages import (
    ActorStatus,
    Changed,
    ChangesInForce,
    DrainWanted,
    HostHello,
    HostReport,
    Incarnations,
    ReplicasWanted,
    RunState,
    ScaleWanted,
    StopWanted,
    SwapWanted,
    TakeBackWanted,
)
from agent_rl.messages.pipes import Doubt, Expect

if TYPE_CHECKING:
    import structlog

    from actors.runtime.processes import Processes
    from actors.runtime.supervise import Supervisor
    from transport import Delivery, LinkEvent, Network


class Peers:
    """The nodes of the supervisor of ``hosts``, and the parts that handle their messages.

    ``path`` is the resolved topology, ``beside`` the file from whose folder relative paths start, ``agreed`` the
    settings that all hosts must have (`settings_to_agree`); ``incarnation`` is that of this process's nodes.
    """

    def __init__(
        self,
        topology: Topology,
        path: Path,
        beside: Path,
        hosts: Sequence[str],
        kept: Processes,
        ledger: Ledger,
        supervision: Supervisor,
        *,
        again: str,
        agreed: dict[str, str],
        incarnation: int,
        ending: trio.Event,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._main = supervisor_node(topology.main_host)
        self._hosts = tuple(hosts)
        self._actors = kept.actors
        self._ledger = ledger
        self._supervision = supervision
        self._incarnation = incarnation
        self._ending = ending
        self._log = log
        self.others = OtherHosts(topology, hosts)
        self._roster = Roster(topology, hosts, incarnation)
        self._roster.tell_actors = self._tell_actors
        self._doubted = ledger.doubted
        self._host_lost_after = topology.run.host_lost_after_seconds
        self._reports = StatusReports(topology, hosts, self._roster)
        reports = Reports(self._say_of_host, self._refused, self._roster.heard)
        self._handshake = Handshake(topology, hosts, agreed, reports)
        self.changes = Changes(
            topology,
            path,
            beside,
            hosts,
            kept,
            ledger,
            again=again,
            reports=supervision,
            ending=ending,
            leave=supervision.end,
            numbered=self._tell_doubts,
        )
        self._optional = {supervisor_node(name) for name, host in topology.hosts.items() if host.optional}

    async def open(self, nursery: trio.Nursery, network: Network) -> None:
        """Listen as the supervisor of each host that this process serves."""
        from transport import Limits, Node, Registry

        registry = Registry.of(messages)
        for host in self._hosts:
            node = Node(
                supervisor_node(host),
                network,
                registry,
                incarnation=self._incarnation,
                limits=Limits(lost_after=self._host_lost_after),
                on_event=self._link_event,
            )
            self.others.link(node)
            self._reports.link(node)
            self._roster.link(node)
            self.changes.link(node)
            await nursery.start(partial(node.run, self._hear, concurrency=CALLS))
            nursery.start_soon(self._handshake.run, node)
        nursery.start_soon(self._reports.run)

    # What arrives.

    async def _hear(self, delivery: Delivery) -> HostHello | Changed | None:
        """Take in an announcement of an actor or another supervisor; answer a greeting; carry out a change."""
        sender, message = delivery.sender, delivery.message
        match message:
            case HostHello():
                return self._handshake.heard(sender, message)
            case SwapWanted() | TakeBackWanted() | DrainWanted() | ScaleWanted() | ReplicasWanted() | StopWanted():
                return await self.changes.asked(sender, message)
            case Incarnations() if is_supervisor(sender):
                self.others.up(sender)
                self._ledger.heard(sender)
                self._tell_doubts()
                self._handshake.told(sender, message)
            case ChangesInForce() if sender == self._main:
                self.changes.told(message)
            case RunState() if sender == self._main and message.ending:
                self._supervision.end(message.exit_code, "the learner's host ends the run", finished=message.finished)
            case ActorStatus() if message.actor == sender:  # an actor reports for itself only
                if is_supervisor(sender):
                    self._hear_supervisor(message)
                else:
                    actor = self._actors.get(sender)
                    if actor is not None and not actor.ended.is_set():
                        self._reports.observe(message, delivery.inbound.incarnation, at_once=actor.life.stops)
                    self._supervision.hear_actor(message, delivery.inbound)
            case HostReport():
                statuses, stopped = self._reports.heard(sender, message)
                for node in stopped:
                    self._supervision.left(node)
                for status in statuses:
                    self._supervision.hear_actor(status, delivery.inbound)
        return None

    def _hear_supervisor(self, status: ActorStatus) -> None:
        why = self.others.heard(status)
        if status.state == "failed" and status.actor in self._optional:
            self._say_of_host(f"{status.actor} has failed: {status.detail}; the run goes on without its host")
        elif why and not self._handshake.is_refused(status.actor):
            self._supervision.end(1, why)

    def _link_event(self, event: LinkEvent) -> None:
        from transport import KeyRefused, PeerLeft, PeerSilent

        left = isinstance(event, PeerLeft)
        if not isinstance(event, KeyRefused):  # it comes at every attempt, and its mistake is said once
            (self._log.info if left else self._log.warning)("link", link_event=type(event).__name__, detail=str(event))
        if isinstance(event, PeerLeft) and event.peer not in self._actors:  # another host stopped in order
            self.others.left(event.peer)
            for node in (event.peer, *self._reports.left(event.peer)):
                self._supervision.left(node)
        away = self._optional.union(map(supervisor_node, self._ledger.away))
        if not (isinstance(event, PeerSilent) and event.peer in away):  # no mistake: it may come or go
            self._handshake.link_event(event)
        self._ledger.link_event(event)
        self._tell_doubts()

    @property
    def incarnations(self) -> Mapping[str, int]:
        """Those of all nodes, as far as they are known here."""
        return self._roster.incarnations

    # What is told.

    def starts(self, actor: str, incarnation: int) -> None:
        """A process of an actor of this host starts."""
        self._roster.started(actor, incarnation)
        self._reports.forget(actor)

    def ended(self, actor: str) -> None:
        """An actor of this host has ended, and is not started again."""
        self._reports.forget(actor)

    def known(self) -> tuple[Doubt, Expect]:
        """What a new process is told first: lost hosts, all incarnations."""
        return self._doubted, Expect(dict(self._roster.incarnations))

    def _tell_doubts(self) -> None:
        if self._doubted != self._ledger.doubted:
            self._doubted = self._ledger.doubted
            self._tell_actors(self._doubted)

    def _tell_actors(self, message: Doubt | Expect) -> None:
        for actor in self._actors.values():
            actor.tell(message)

    def _say_of_host(self, text: str) -> None:
        if not self._ending.is_set():
            self._supervision.say(text)

    def _refused(self, reason: str) -> None:
        """The main host has another key, release or topology."""
        self.others.refused()
        self._supervision.end(2, reason)

    # How the run ends.

    @property
    def final_words(self) -> list[str]:
        """What was wrong with other hosts to the end."""
        return self._handshake.final_words

    async def leave(self, exit_code: int, reason: str, *, patient: bool) -> list[str]:
        """Wait until the other hosts know that the run ends. Returns the supervisors that did not confirm it."""
        return await self.others.leave(exit_code, reason, patient=patient)
