"""The supervisor of a host: starts the processes of its actors, restarts processes that die, and ends the run.

::

    starting --> running --(an actor says it is finished)--------------> draining --> exit 0
                    |-----(first SIGINT or SIGTERM, or SIGHUP)----------> draining --> exit 0, or --stopped-exit-code
                    |-----(a restart budget is spent)-------------------> draining --> exit 1
                    |-----(an actor exits with USER_MISTAKE)------------> draining --> exit 2
                    `-----(second SIGINT or SIGTERM, also draining)-----> all killed --> exit 130

    an actor is silent:  named, with the actors that wait for it --(heard again)--> named as back
    `-(silent_seconds)--> killed, and restarted within its budget

Draining stops the roles one after the other, upstream first, each within a deadline. With several hosts, the learner's
host decides and tells the others (RunState). The other hosts report when they had to give up (ActorStatus).
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from actors.runtime.actor_process import ActorProcess, stop_in_order
from actors.runtime.changes import CALLS, Changes
from actors.runtime.greetings import Greetings, Reports
from actors.runtime.lifecycle import drain_order, needed_to_drain
from actors.runtime.other_hosts import OtherHosts, is_supervisor
from actors.runtime.roster import Roster
from actors.runtime.scraping import listen, serve_metrics
from actors.runtime.tracking import Tracking
from agent_rl import messages
from agent_rl.config.addresses import actor_nodes, supervisor_node
from agent_rl.config.topology import Topology
from agent_rl.files.disk import DiskError
from agent_rl.files.leftovers import Janitor
from agent_rl.messages import ActorStatus, Changed, DrainWanted, HostHello, Incarnations, RunState, SwapWanted
from agent_rl.observe.live import Display, LiveView
from agent_rl.observe.metrics import MetricsBoard
from agent_rl.observe.missing import Missing
from agent_rl.observe.silence import Movement, Notice, Overdue, ProcessSeen, Silence, final_words
from agent_rl.records.incarnations import RESTARTS, run_clock
from agent_rl.records.run_directory import RunRefused, record_end
from agent_rl.records.timeline import FILE as TIMELINE
from agent_rl.records.timeline import TimelineFile

if TYPE_CHECKING:
    import structlog

    from transport import Delivery, LinkEvent, Network
    from transport.inbound import Inbound

KILLED = 130
"""The exit code after a second signal."""

REFRESH_SECONDS = 0.5
MIB = 1 << 20


def _writes_rows(topology: Topology, hosts: Sequence[str]) -> bool:
    """Whether the filter runs on these hosts and the topology names trackers."""
    entry = topology.actors.get("roc_filter")
    return bool(topology.run.trackers) and entry is not None and entry.homes[0] in hosts


class Supervisor:
    """Start, watch, restart and stop the actors of ``hosts``. The file's header draws how a run ends."""

    def __init__(
        self,
        topology: Topology,
        path: Path,
        base: Path,
        hosts: Sequence[str],
        *,
        view: LiveView,
        timeline: TimelineFile,
        display: Display,
        log: structlog.typing.FilteringBoundLogger,
        entry_module: str,
        start: int,
        epoch: float,
        again: str,
        stopped_exit_code: int,
    ) -> None:
        self._topology = topology
        self._hosts = tuple(hosts)
        self._again = again
        self._view = view
        self._timeline = timeline
        self._metrics = MetricsBoard()
        self._tracking = Tracking(topology, base / path.name, self.say) if _writes_rows(topology, hosts) else None
        self._display = display
        self._log = log
        self._incarnation = start * RESTARTS
        self._roster = Roster(topology, hosts, self._incarnation)
        started_at = run_clock(epoch)()
        self._ending = trio.Event()
        self._exit_code = 0
        self._stopped_exit_code = stopped_exit_code
        self._finished = False
        """Whether nothing of the run is left to do."""
        self._reason = ""
        self._fault = ""
        """Why the run could not continue."""
        self._final_words: list[str] = []
        self._signals = 0
        self._hung_up = False
        self._others = OtherHosts(topology, hosts)
        self._greetings = Greetings(topology, hosts, Reports(self._say_of_host, self._refused, self._roster.heard))
        self._silence = Silence(self._look)
        self._missing = Missing()
        self._movement = Movement(topology.run.report_standstill_seconds)
        self._actors = {
            name: ActorProcess(
                name,
                role,
                topology,
                path=path,
                base=base,
                incarnation=self._incarnation,
                started_at=started_at,
                epoch=epoch,
                entry_module=entry_module,
                reports=self,
            )
            for host in hosts
            for name, role in actor_nodes(topology, host)
        }
        self._roster.tell_actors = self._tell_actors
        place = (topology, path, base / path.name, hosts)
        self._changes = Changes(*place, self._actors, again=again, reports=self, ending=self._ending, leave=self._end)

    async def run(self, network: Network, received: AsyncIterator[int]) -> int:
        """Run until the end, over ``network``, and obey the signals in ``received``. Returns the exit code."""
        listeners = await self._listen()
        janitor = Janitor()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._obey, received)
                self._changes.begin(nursery, janitor)
                if listeners:
                    nursery.start_soon(serve_metrics, listeners, lambda: self._metrics.text(trio.current_time()))
                await self._open_nodes(nursery, network)
                nursery.start_soon(self._watch)
                if self._tracking is not None:
                    nursery.start_soon(self._tracking.run, janitor)
                for actor in self._actors.values():
                    nursery.start_soon(actor.keep, janitor, self._log.info)
                await self._ending.wait()
                await self._drain()
                self._record_end()
                if self._tracking is not None:
                    await self._tracking.finish()
                for line in self._final_words:
                    self.say(line)
                if self._timeline.lost:
                    self.say(f"{self._timeline.lost} rows of {TIMELINE} are missing: the disk did not take them")
                if (self._signals or self._hung_up) and not self._exit_code:
                    self.say(f"stopped; continue with: {self._again}")
                nursery.cancel_scope.cancel()
        finally:
            for actor in self._actors.values():
                if actor.child is not None and not actor.child.ended:
                    actor.child.reap()
                    janitor.ended(actor.child.pid)
            janitor.dismiss()
        return self._exit_code or (0 if self._finished else self._stopped_exit_code)

    # How the run is watched.

    async def _listen(self) -> list[trio.SocketListener]:
        """The listeners for metrics; none unless this host is the main host, which hears all actors."""
        run = self._topology.run
        if run.metrics_port is None or self._topology.main_host not in self._hosts:
            return []
        try:
            return await listen(run.metrics_address, run.metrics_port)
        except OSError as error:
            raise RunRefused(f"run.metrics_port: {error.strerror}; choose another port or address") from error

    async def _open_nodes(self, nursery: trio.Nursery, network: Network) -> None:
        """Listen as the supervisor of each host that this process serves."""
        from transport import Node, Registry

        registry = Registry.of(messages)
        for host in self._hosts:
            node = Node(
                supervisor_node(host),
                network,
                registry,
                incarnation=self._incarnation,
                on_event=self._link_event,
            )
            self._others.link(node)
            self._roster.link(node)
            self._changes.link(node)
            await nursery.start(partial(node.run, self._hear, concurrency=CALLS))
            nursery.start_soon(self._greetings.run, node)

    def _link_event(self, event: LinkEvent) -> None:
        from transport import KeyRefused, PeerLeft

        left = isinstance(event, PeerLeft)
        if not isinstance(event, KeyRefused):  # it comes at every attempt, and its mistake is said once
            (self._log.info if left else self._log.warning)("link", link_event=type(event).__name__, detail=str(event))
        if isinstance(event, PeerLeft) and event.peer not in self._actors:  # another host stopped in order
            self._others.left(event.peer)
            self._silence.forget(event.peer)
            self._movement.forget(event.peer)
            self._changes.left(event.peer)
        self._greetings.link_event(event)

    def _say_of_host(self, text: str) -> None:
        if not self._ending.is_set():
            self.say(text)

    def _refused(self, reason: str) -> None:
        """The main host has another key, release or topology."""
        self._end(2, reason)

    async def _hear(self, delivery: Delivery) -> HostHello | Changed | None:
        """Take in an announcement of an actor or another supervisor; answer a greeting; carry out a change."""
        message = delivery.message
        if isinstance(message, HostHello):
            return self._greetings.heard(delivery.sender, message)
        if isinstance(message, SwapWanted | DrainWanted):
            return await self._changes.asked(delivery.sender, message)
        if isinstance(message, Incarnations):
            self._changes.back(delivery.sender)
            self._greetings.told(delivery.sender, message)
        elif isinstance(message, RunState):
            if message.ending and delivery.sender == supervisor_node(self._topology.main_host):
                self._end(message.exit_code, "the learner's host ends the run", finished=message.finished)
        elif isinstance(message, ActorStatus) and message.actor == delivery.sender:  # an actor reports for itself only
            if is_supervisor(message.actor):
                why = self._others.heard(message)
                if why and not self._greetings.is_refused(delivery.sender):
                    self._end(1, why)
            else:
                self._hear_actor(message, delivery.inbound)
        return None

    def _hear_actor(self, status: ActorStatus, sender: Inbound) -> None:
        now = trio.current_time()
        self._view.observe(status, now)
        if self._others.is_main:  # the main host hears all; hosts may share the directory, and the file has one writer
            self._timeline.observe(status, now)
        self._metrics.observe(status, now)
        if self._tracking is not None:
            self._tracking.observe(status.figures)
        actor = self._actors.get(status.actor)
        if actor is not None:
            actor.heard(status, sender.incarnation)
        if actor is None or sender.incarnation == actor.incarnation:
            self._changes.heard(status)
        if not sender.gone if actor is None else not actor.stopping:
            self._silence.heard(status)
            if not self._ending.is_set():
                self._note(*self._missing.heard(status))
            self._note(*self._movement.observe(status, now))
        if status.state == "failed":
            self._log.warning("failed", actor=status.actor, reason=status.detail)
        elif status.state == "finished":
            self._end(0, f"{status.actor} has finished", finished=True)

    async def _watch(self) -> None:
        """Refresh the display, and notice actors that are silent."""
        while True:
            now = trio.current_time()
            self._note(*self._silence.tick(now))
            silent = self._silence.silent
            self._note(*self._movement.tick(now, silent))
            self._view.silences = {actor: self._silence.state(actor) for actor in silent}
            self._display.refresh(now)
            for actor in self._actors.values():
                if actor.child is not None:
                    actor.child.rotate_stderr(self._topology.run.log_mib * MIB)
            await trio.sleep(REFRESH_SECONDS)  # the refresh rate of the display, and how soon silence is noticed

    def _note(self, *decided: Notice | Overdue) -> None:
        for each in decided:
            actor = self._actors.get(each.actor)
            if isinstance(each, Overdue):
                self._log.error("silent too long", actor=each.actor, text=each.text)
                if actor is not None and not actor.stopping:
                    actor.kill(each.text)
            else:
                self._log.warning("silence", actor=each.actor, text=each.text)
                self._display.notice(each.text)

    def _look(self, actor: str) -> ProcessSeen | None:
        process = self._actors.get(actor)
        return None if process is None or process.child is None else process.child.seen()

    async def _obey(self, received: AsyncIterator[int]) -> None:
        async for number in received:
            if number == signal.SIGHUP:  # the terminal is gone; SIGHUP may come more than once, and never kills
                if not self._ending.is_set():
                    self._hung_up = True
                    self.say("SIGHUP: stopping, since the terminal or its connection was closed")
                    self._end(0, "")
                continue
            self._signals += 1
            if self._signals == 1:
                self.say(f"{signal.Signals(number).name}: stopping; once more kills all actors")
                self._end(0, "")
            else:
                self._exit_code = KILLED
                self.say("killing all actors")
                if self._tracking is not None:
                    self._tracking.abandon()
                for actor in self._actors.values():
                    actor.stopping = True
                    actor.kill()

    # Reports of the actors' processes.

    def process(self, actor: ActorProcess, state: str) -> None:
        """An actor's process is starting, restarting, stopping or stopped."""
        self._view.process(actor.name, state)
        if state in {"starting", "restarting"}:
            self._roster.started(actor.name, actor.incarnation)
            self._changes.starts(actor.name)
            self._silence.started(actor.name, actor.entry.silent_seconds)
        else:
            self._silence.forget(actor.name)
            self._movement.forget(actor.name)

    def incarnations(self) -> Mapping[str, int]:
        """The known incarnations of all nodes."""
        return self._roster.incarnations

    def _tell_actors(self, changed: Mapping[str, int]) -> None:
        for actor in self._actors.values():
            actor.tell(changed)

    def say(self, text: str) -> None:
        """Show a notice to the user and log it."""
        self._log.info("notice", text=text)
        self._display.notice(text)

    def fail(self, reason: str, exit_code: int) -> None:
        """End the run: it cannot continue."""
        self._log.error("run stopped", reason=reason)
        self._fault = self._fault or reason
        if self._ending.is_set() and not self._exit_code:  # ending with 0, an actor failed to save its state
            self._exit_code = exit_code
            self.say(f"the run did not end in order: {reason}")
        self._end(exit_code, f"stopping the run: {reason}")

    # How the run ends.

    def _end(self, exit_code: int, reason: str, *, finished: bool = False) -> None:
        """Begin to end the run. Only the first reason counts."""
        if self._ending.is_set():
            return
        self._exit_code, self._reason, self._finished = exit_code, reason, finished
        silent = self._silence.silent
        standing = self._movement.describe(trio.current_time(), silent) if self._movement.stands else ""
        self._final_words = [*final_words(self._silence.descriptions, standing), *self._greetings.final_words]
        if reason:
            self.say(reason)
        self._others.ending(exit_code, reason, finished=finished)
        self._ending.set()

    async def _drain(self) -> None:
        """Stop the roles in the order in which messages flow, then wait for the other hosts."""
        for name in self._silence.silent:
            if name in self._actors:
                self._end_silence(self._actors[name])
        order = drain_order(self._changes.topology)
        await stop_in_order(order, list(self._actors.values()), self, failed=self._exit_code != 0)
        patient = self._exit_code != KILLED
        unheard = await self._others.leave(self._exit_code, self._reason, patient=patient)
        if unheard:
            self.say(f"no word that {', '.join(unheard)} stopped; look at these hosts")

    def _record_end(self) -> None:
        """Record why the run failed, for summary and report. Only the main host writes the record."""
        if self._exit_code and self._fault and self._topology.main_host in self._hosts:
            try:
                record_end(self._topology.run.directory, self._exit_code, self._fault)
            except DiskError as error:
                self._log.warning("why the run ended is not on disk", error=str(error))

    def _end_silence(self, actor: ActorProcess) -> None:
        """Kill a silent actor. If others still have messages for it, a new process takes its place to receive them."""
        text = self._silence.describe(actor.name)
        if not self._exit_code and needed_to_drain(self._changes.topology, actor.role):
            actor.kill(f"{text}; it was killed, so that others can hand over to a new one")
        else:
            self.say(f"{text}; it is killed")
            actor.stopping = True
            actor.kill()
