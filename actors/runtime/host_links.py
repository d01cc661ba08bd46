"""What the supervisors of several hosts tell each other, and what a supervisor hears of its own actors.

::

    HostHello, both ways ---> Handshake --(admitted)--> what the other has told counts
    Wanted -----------------> Follower: processes of actors; incarnations, doubts --> nodes here, actors (lifelines)
    Observed ---------------> RunState, at the main host; statuses of actors --> Supervisor.hear_actor
    status of an actor -----> Supervisor.hear_actor; at other hosts also the next Observed
    a command --------------> Changes, at the main host

The main host's supervisor tells the others what is wanted, and hears what they have: so a host has one connection to
another rather than one to each. Both are told when they change, but not more often than once in `PACE_SECONDS`, and the
statuses of actors once in two of their own periods. A process that claims a higher incarnation than its supervisor
announced is refused, so that none can present itself as the successor of a node. Actors hear of nodes over lifelines,
which are pipes and do not depend on the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio

from actors.runtime.handshake import Handshake, Reports
from agent_rl import messages
from agent_rl.config.addresses import actor_nodes, supervisor_node
from agent_rl.messages import (
    ActorReport,
    ActorStatus,
    Changed,
    DrainWanted,
    HostHello,
    Observed,
    Progress,
    ScaleWanted,
    StopWanted,
    SwapWanted,
    Wanted,
)
from agent_rl.messages.pipes import Expect, PresumedLost

if TYPE_CHECKING:
    from actors.runtime.following import Follower
    from actors.runtime.processes import Processes
    from actors.runtime.run_state import RunState
    from actors.runtime.start import Start
    from actors.runtime.supervise import Supervisor
    from transport import AnnounceLink, Delivery, LinkEvent, Network, Node

CALLS = 8
"""Calls that a supervisor answers at once. Announcements are taken in one at a time beside them."""
PACE_SECONDS = 0.05
STATUSES_PASSED_ON = 2
"""Statuses are passed on once for so many of an actor (``run.status_seconds``)."""
AT_ONCE = {"failed", "finished"}
"""States that are passed on without waiting: the process is about to end."""
TELL_SECONDS = 10.0
"""Seconds to wait for the supervisors of other hosts when the run ends."""


class HostLinks:
    """The nodes of a supervisor's process. ``state`` is the main host's, and None at others."""

    def __init__(
        self, start: Start, processes: Processes, follower: Follower, state: RunState | None, supervision: Supervisor
    ) -> None:
        self._start, self._processes, self._follower = start, processes, follower
        self._state, self._supervision = state, supervision
        self._of = {
            supervisor_node(host): [node for node, _ in actor_nodes(start.topology, host)]
            for host in start.topology.hosts_in_use
        }
        """The actors that a supervisor speaks for."""
        self._own = [node for name in map(supervisor_node, start.hosts) for node in self._of[name]]
        self.incarnations = dict.fromkeys([*map(supervisor_node, start.hosts), *self._own], start.incarnation)
        """Those of all nodes, as far as they are known here."""
        reports = Reports(self._say_of_host, self._refused, self._take_in)
        self._handshake = Handshake(start.topology, start.hosts, start.agreed, reports)
        self._nodes: list[Node] = []
        self._link: AnnounceLink | None = None
        self._refused_by_main = False
        self._statuses: dict[str, ActorReport] = {}
        self._told: Wanted | Observed | None = None
        self._news = trio.Event()
        self._as = "running", ""
        """What this supervisor does, and why."""
        optional = {host for host, entry in start.topology.hosts.items() if entry.optional}
        lost = {*optional} - {*start.hosts}
        runs = {f"{role}.{number}" for role in start.topology.actors for number in start.topology.wanted(role)}
        named = [(host, name) for host in start.topology.hosts_in_use for name, _ in actor_nodes(start.topology, host)]
        self._presumed_lost = PresumedLost(tuple(name for host, name in named if host in lost or name not in runs))
        self._main_lost = False

    async def open(self, nursery: trio.Nursery, network: Network) -> None:
        """Listen as the supervisor of each host of this process."""
        from transport import Limits, Node, Registry

        start, registry = self._start, Registry.of(messages)
        for host in start.hosts:
            node = Node(
                supervisor_node(host),
                network,
                registry,
                incarnation=start.incarnation,
                limits=Limits(lost_after=start.topology.run.host_lost_after_seconds),
                on_event=self._link_event,
            )
            for name, incarnation in self.incarnations.items():
                node.expect(name, incarnation)
            self._nodes.append(node)
            if start.others and self._link is None:
                self._link = node.announce("run", list(start.others) if start.is_main else [start.main])
            await nursery.start(partial(node.run, self._hear, concurrency=CALLS))
            nursery.start_soon(self._handshake.run, node)
        nursery.start_soon(self._tell)

    # What is told.

    def news(self) -> None:
        """Something is new that others are to hear at once."""
        self._news.set()
        self._news = trio.Event()
        if self._state is not None:
            self._state.wake()

    def reached(self) -> None:
        """The actors here have reached what is wanted, or cannot."""
        if self._state is not None:
            self._state.observed(self._start.hosts[0], self._observed(), self._start.incarnation)
        self.news()

    async def _tell(self) -> None:
        period = STATUSES_PASSED_ON * self._start.topology.run.status_seconds
        while True:
            news = self._news if self._state is None else self._state.changed
            self._tell_now()
            with trio.move_on_after(period):
                await news.wait()
            await trio.sleep(PACE_SECONDS)

    def _tell_now(self) -> None:
        if self._state is not None:
            self._state.observed(self._start.hosts[0], self._observed(), self._start.incarnation)
            wanted = self._state.wanted(self.incarnations)
            self._follower.told(wanted)
            self._doubt()
        message = self._observed() if self._state is None else wanted
        if message != self._told:
            self._told = message
            if self._link is not None and not self._refused_by_main:
                self._link.set(message)

    def _observed(self) -> Observed:
        follower, own = self._follower, {name: self.incarnations[name] for name in self._own}
        statuses = () if self._start.is_main else tuple(self._statuses.values())
        done, faults = tuple(follower.done), tuple(follower.faults)
        spent, states = self._processes.spent, self._processes.states
        return Observed(follower.generation, done, faults, own, states, statuses, spent, *self._as)

    # What arrives.

    async def _hear(self, delivery: Delivery) -> HostHello | Changed | None:
        """Take in an announcement of an actor or another supervisor; answer a greeting; carry out a command."""
        sender, message = delivery.sender, delivery.message
        match message:
            case HostHello():
                return self._handshake.heard(sender, message)
            case SwapWanted() | DrainWanted() | ScaleWanted() | StopWanted() | Progress():
                return await self._supervision.asked(sender, message)
            case Observed() if sender in self._start.others and self._state is not None:
                if message.state == "failed":
                    self._host_failed(sender, message.detail)
                self._handshake.told(sender, (message, delivery.inbound))
            case Wanted() if sender == self._start.main:
                if message.ending:
                    self._supervision.end(
                        message.exit_code, "the learner's host ends the run", finished=message.finished
                    )
                self._handshake.told(sender, (message, delivery.inbound))
            case ActorStatus() if message.actor == sender:  # an actor reports for itself only
                self._note(message, delivery.inbound.incarnation)
                self._supervision.hear_actor(message, delivery.inbound)
        return None

    def _note(self, status: ActorStatus, incarnation: int) -> None:
        """An actor of this host reports: the main host is to hear it."""
        actor = self._processes.actors.get(status.actor)
        if self._state is not None or actor is None or actor.ended.is_set():
            return
        before = self._statuses.get(status.actor)
        self._statuses[status.actor] = ActorReport(status, incarnation, 1 if before is None else before.number + 1)
        if status.state in AT_ONCE or actor.life.stops:  # it may be the last
            self.news()

    def _take_in(self, sender: str, told: object) -> None:
        """What a supervisor has told that was admitted: it speaks for the actors of its host alone."""
        assert isinstance(told, tuple)
        message, inbound = told
        if isinstance(message, Wanted):
            elsewhere = {name for supervisor in self._start.others for name in self._of[supervisor]}
            self._expect({name: number for name, number in message.incarnations.items() if name in elsewhere})
            self._main_lost = False
            self._doubt(message.doubted)
            hosts = self._start.hosts
            if any(message.leaving.get(host, -1) >= self._start.incarnation for host in hosts):
                self._supervision.end(0, f"host {', '.join(hosts)} is drained")
            else:
                self._follower.told(message)
        elif isinstance(message, Observed) and self._state is not None:
            host, speaks = self._start.others[sender], self._of[sender]
            self._expect({name: number for name, number in message.incarnations.items() if name in speaks})
            seen = self._state.hosts[host]
            before, reports = seen.statuses, [each for each in message.actors if each.status.actor in speaks]
            seen.statuses = {each.status.actor: (each.incarnation, each.number) for each in reports}
            for name in before.keys() - seen.statuses.keys():
                self._supervision.left(name)
            self._state.observed(host, message, inbound.incarnation)
            for each in reports:
                if before.get(each.status.actor) != seen.statuses[each.status.actor]:
                    self._supervision.hear_actor(each.status, inbound)
            self.news()

    def _expect(self, incarnations: Mapping[str, int]) -> None:
        """Nodes have these incarnations: say it to those that hear them."""
        new = {name: number for name, number in incarnations.items() if self.incarnations.get(name) != number}
        if new:
            self.incarnations |= new
            for node in self._nodes:
                for name, incarnation in new.items():
                    node.expect(name, incarnation)
            self._tell_actors(Expect(new))

    def _doubt(self, actors: tuple[str, ...] | None = None) -> None:
        """These are not to be waited for; None: those of the document, and of a main host that is not heard."""
        if actors is None:
            actors = self._presumed_lost.actors if self._state is None else self._state.doubted
        if self._main_lost:
            actors = (*actors, *self._of[self._start.main])
        if self._presumed_lost.actors != actors:
            self._presumed_lost = PresumedLost(actors)
            self._tell_actors(self._presumed_lost)

    def _link_event(self, event: LinkEvent) -> None:
        from transport import KeyRefused, PeerBack, PeerGone, PeerLeft, PeerReplaced, PeerSilent

        left, log = isinstance(event, PeerLeft), self._start.log
        if not isinstance(event, KeyRefused):  # it comes at every attempt, and its mistake is said once
            (log.info if left else log.warning)("link", link_event=type(event).__name__, detail=str(event))
        peer = getattr(event, "peer", "")
        host, state = self._start.others.get(peer, ""), self._state
        if left and peer not in self._processes.actors:
            for node in (peer, *(state.hosts[host].statuses if host and state else ())):
                self._supervision.left(node)
        if host and state is not None:
            if left:
                state.hosts[host].statuses = {}
            if isinstance(event, PeerGone | PeerLeft):
                state.lost(host, left=left)
            elif isinstance(event, PeerBack):
                state.heard(host)
            elif isinstance(event, PeerReplaced):
                state.replaced(host, event.incarnation)
            self.news()
        elif peer == self._start.main and isinstance(event, PeerGone | PeerLeft | PeerBack):
            self._main_lost = not isinstance(event, PeerBack)
            self._doubt(tuple(name for name in self._presumed_lost.actors if name not in self._of[peer]))
        optional = bool(host) and self._start.topology.hosts[host].optional
        if not (isinstance(event, PeerSilent) and (optional or (state is not None and host in state.away))):
            self._handshake.link_event(event)  # else it is no mistake: it may come or go

    # What actors of this host are told.

    def starts(self, actor: str, incarnation: int) -> None:
        """A process of an actor of this host starts."""
        self._expect({actor: incarnation})
        self.ended(actor)

    def ended(self, actor: str) -> None:
        """The process of an actor of this host has ended: nothing is expected of it until it reports again."""
        self._statuses.pop(actor, None)
        self.news()

    def known(self) -> tuple[PresumedLost, Expect]:
        """What a new process is told first: who is not to be waited for, and all incarnations."""
        return self._presumed_lost, Expect(dict(self.incarnations))

    def _tell_actors(self, message: PresumedLost | Expect) -> None:
        for actor in self._processes.actors.values():
            actor.tell(message)

    # How hosts and the run end.

    def _say_of_host(self, text: str) -> None:
        if not self._supervision.ends:
            self._supervision.say(text)

    def _host_failed(self, supervisor: str, why: str) -> None:
        host, state = self._start.others[supervisor], self._state
        if state is None or state.hosts[host].ended:
            return
        state.hosts[host].ended = True
        if self._start.topology.hosts[host].optional:
            self._say_of_host(f"{supervisor} has failed: {why}; the run goes on without its host")
        elif not self._handshake.is_refused(supervisor):
            self._supervision.end(1, f"{supervisor}: {why}")

    def _refused(self, reason: str) -> None:
        """The main host has another key, release or topology."""
        self._refused_by_main = True
        self._supervision.end(2, reason)

    @property
    def final_words(self) -> list[str]:
        """What was wrong with other hosts to the end."""
        return self._handshake.final_words

    def ending(self, exit_code: int, reason: str, *, finished: bool) -> None:
        """Tell the others that this host ends, and with the main host the run."""
        if self._state is not None:
            self._state.end(exit_code, finished=finished)
        self._as = "failed" if exit_code else "stopping", reason
        self._tell_now()

    async def leave(self, exit_code: int, reason: str, *, patient: bool) -> list[str]:
        """Wait until the other hosts know that the run ends. Returns the supervisors that did not confirm it."""
        seconds = TELL_SECONDS if patient else 0.0
        if self._state is not None:
            return [supervisor_node(host) for host in await self._state.ended(seconds)]
        self._as = "failed" if exit_code else "finished", reason
        self._tell_now()
        if self._link is not None and not self._refused_by_main:
            with trio.move_on_after(seconds):
                await self._link.acknowledged()
        return []
