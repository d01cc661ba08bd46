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
host decides and tells the others (Wanted). The other hosts report when they had to give up (Observed).
"""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from actors.http import Reply, Request, Server, listen
from actors.runtime.changes import Changes
from actors.runtime.following import Follower
from actors.runtime.host_links import HostLinks
from actors.runtime.lifecycle import drain_order, needed_to_drain
from actors.runtime.processes import Process, Processes, stop_in_order
from actors.runtime.run_state import RunState
from actors.runtime.target import UNREADABLE, target_of
from actors.runtime.tracking import Tracking, writes_rows
from agent_rl.config.full import resolved_text
from agent_rl.config.hidden import redacted
from agent_rl.config.topology import Topology
from agent_rl.files.disk import DiskError
from agent_rl.files.leftovers import Janitor
from agent_rl.messages import ActorStatus, Changed, Progress
from agent_rl.observe.live import Display, LiveView
from agent_rl.observe.prometheus import MetricsBoard
from agent_rl.observe.silence import Missing, Movement, Notice, Overdue, ProcessSeen, Silence, final_words
from agent_rl.records.document import FILE as STATE
from agent_rl.records.document import Document
from agent_rl.records.run_directory import RunRefused, record_end, record_memory_kill
from agent_rl.records.timeline import FILE as TIMELINE
from agent_rl.records.timeline import TimelineFile

if TYPE_CHECKING:
    from actors.runtime.change_rules import Command
    from actors.runtime.start import Start
    from transport import Network
    from transport.inbound import Inbound

NO_DIRECTORY = 2
"""Exit code: the run directory has gone."""
KILLED = 130
"""The exit code after a second signal."""

REFRESH_SECONDS = 0.5
MIB = 1 << 20
SCRAPES_AT_ONCE = 8
"""Clients of ``GET /metrics`` served at once; further clients get status 503."""
METRICS = "text/plain; version=0.0.4; charset=utf-8"


class Supervisor:
    """Start, watch, restart and stop the actors of ``hosts``. The file's header draws how a run ends.

    ``former``: the document of the last start. Raises RunRefused where a swap of it is in force and cannot be.
    """

    def __init__(
        self,
        start: Start,
        view: LiveView,
        timeline: TimelineFile,
        display: Display,
        former: Document | None,
        *,
        stopped_exit_code: int,
    ) -> None:
        topology, hosts = start.topology, start.hosts
        self._start, self._topology, self._hosts, self._log = start, topology, hosts, start.log
        self._view, self._timeline, self._display = view, timeline, display
        self._metrics = MetricsBoard()
        self._tracking = Tracking(topology, start.file, self.say) if writes_rows(topology, hosts) else None
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
        self._silence = Silence(self._look)
        self._missing = Missing()
        self._movement = Movement(topology.run.report_standstill_seconds)
        try:
            self._state = RunState(start, former, self.say) if start.is_main else None
            roles = {} if self._state is None else self._state.roles
            staying = hosts if self._state is None else [host for host in hosts if host not in self._state.away]
            target = target_of(resolved_text(topology), roles, staying)
        except UNREADABLE as error:
            if former is None or not former.swapped:
                raise
            remedy = f"put its module back, or move {topology.run.directory / STATE} elsewhere to go by the file"
            swapped = ", ".join(former.swapped)
            raise RunRefused(f"{swapped} was swapped, and cannot be started again: {error}; {remedy}") from error
        self._processes = Processes(start, target, self, self._ending)
        self._actors = self._processes.actors
        self._follower = Follower(start, self._processes, self.say)
        self._links = HostLinks(start, self._processes, self._follower, self._state, self)
        self._changes = None
        if self._state is not None:
            self._changes = Changes(start, self._state, self._ending, self.end, self.say)

    def after(self, former: Document) -> None:
        """Say which swaps of the last start the topology holds, and which of its changes it does not hold."""
        for line in former.differences(self._topology):
            self.say(line)
        for role in former.swapped:
            if role in self._processes.topology.actors:
                entry = self._processes.topology.actors[role]
                self.say(
                    f"{role} stays what it was swapped for before this supervisor was killed: class {entry.class_path},"
                    f" settings {json.dumps(redacted(entry.settings))}; stop the run and start it again to go by the"
                    " file"
                )

    async def run(
        self, network: Network, received: AsyncIterator[int], beside: Callable[[], Awaitable[None]] | None = None
    ) -> int:
        """Run until the end, over ``network``, and obey the signals in ``received``. Returns the exit code.

        ``beside`` runs until the end too, and raises nothing.
        """
        listeners = await _listeners(self._topology, self._hosts)
        janitor = Janitor()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._obey, received)
                if beside is not None:
                    nursery.start_soon(beside)
                if listeners:
                    nursery.start_soon(serve_metrics, listeners, lambda: self._metrics.text(trio.current_time()))
                self._processes.prepare(nursery, janitor)
                await self._links.open(nursery, network)
                nursery.start_soon(self._watch)
                if self._tracking is not None:
                    nursery.start_soon(self._tracking.run, janitor)
                self._processes.begin()
                nursery.start_soon(self._follower.run, janitor, self._links.reached)
                if self._changes is not None:
                    await nursery.start(self._changes.run)
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
                    self.say(f"stopped; continue with: {self._start.again}")
                if self._state is not None:
                    self._state.close()
                nursery.cancel_scope.cancel()
        finally:
            for actor in self._actors.values():
                for child in actor.children:
                    child.reap()
                    janitor.ended(child.pid)
            janitor.dismiss()
        return self._exit_code or (0 if self._finished else self._stopped_exit_code)

    # How the run is watched.

    def left(self, node: str) -> None:
        """A node has stopped in order, was asked to, or is replaced."""
        self._silence.forget(node)
        self._movement.forget(node)

    def hear_actor(self, status: ActorStatus, sender: Inbound) -> None:
        """An actor of this or another host tells its status."""
        now = trio.current_time()
        self._view.observe(status, now)
        if (
            self._state is not None
        ):  # the main host hears all; hosts may share the directory, and the file has one writer
            self._timeline.observe(status, now)
        self._metrics.observe(status, now)
        if self._tracking is not None:
            self._tracking.observe(status.figures)
        actor = self._actors.get(status.actor)
        if actor is not None:
            actor.heard(status, sender.incarnation)
        if not sender.gone if actor is None else sender.incarnation == actor.life.incarnation and not actor.life.stops:
            if self._state is not None and actor is not None:  # of others, their supervisors say it
                self._state.process(status.actor, status.state, status.detail)
            self._silence.heard(status)
            if not self._ending.is_set():
                self._note(*self._missing.heard(status))
            self._note(*self._movement.observe(status, now))
        if status.state == "failed":
            self._log.warning("failed", actor=status.actor, reason=status.detail)
        elif status.state == "finished":
            self.end(0, f"{status.actor} has finished", finished=True)

    async def _watch(self) -> None:
        """Refresh the display, and notice actors that are silent."""
        directory = self._topology.run.directory
        known = _identity(directory)
        while True:
            now = trio.current_time()
            if _identity(directory) != known and not self._ending.is_set():
                remedy = "put it back, and start the run again: it goes on from its newest checkpoint and its journal"
                self.fail(f"{directory} was moved or removed under the run; {remedy}", NO_DIRECTORY)
            self._note(*self._silence.tick(now))
            silent = self._silence.silent
            self._note(*self._movement.tick(now, silent))
            self._view.silences = {actor: self._silence.state(actor) for actor in silent}
            self._display.refresh(now)
            if self._state is not None:
                self._state.tick(self._links.incarnations)
            for actor in self._actors.values():
                if actor.child is not None:
                    actor.child.rotate_stderr(self._topology.run.log_mib * MIB)
            await trio.sleep(REFRESH_SECONDS)  # the refresh rate of the display, and how soon silence is noticed

    def _note(self, *decided: Notice | Overdue) -> None:
        for each in decided:
            actor = self._actors.get(each.actor)
            if isinstance(each, Overdue):
                self._log.error("silent too long", actor=each.actor, text=each.text)
                if actor is not None and not actor.life.stops:
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
                    self.end(0, "")
                continue
            self._signals += 1
            if self._signals == 1:
                self.say(f"{signal.Signals(number).name}: stopping; once more kills all actors")
                self.end(0, "")
            else:
                self._exit_code = KILLED
                self.say("killing all actors")
                if self._tracking is not None:
                    self._tracking.abandon()
                for actor in self._actors.values():
                    actor.kill(last=True)

    # Reports of the actors' processes.

    def process(self, actor: Process, state: str) -> None:
        """An actor's process is starting, restarting, stopping or stopped."""
        self._view.process(actor.name, state)
        if self._state is not None:
            self._state.process(actor.name, state)
        if state in {"starting", "restarting"}:
            self._links.starts(actor.name, actor.life.incarnation)
            self._silence.started(actor.name, actor.life.plan.entry.silent_seconds)
        else:
            self.left(actor.name)
            if state == "stopped":
                self._links.ended(actor.name)

    async def asked(self, sender: str, command: Command | Progress) -> Changed:
        """A command asks for a change of the run. Raises CallRefused."""
        from transport import CallRefused

        if self._changes is None:
            raise CallRefused(f"{sender} may not change the run")
        return await self._changes.asked(sender, command)

    @property
    def ends(self) -> bool:
        """Whether the run ends."""
        return self._ending.is_set()

    def known(self) -> Sequence[Any]:
        """The messages about other nodes that a new process gets first."""
        return self._links.known()

    def say(self, text: str) -> None:
        """Show a notice to the user and log it."""
        self._log.info("notice", text=text)
        self._display.notice(text)

    def lacked_memory(self, actor: Process) -> None:
        """Record for summary and report that the kernel killed the process. Only the main host writes the record."""
        if self._topology.main_host in self._hosts:
            try:
                record_memory_kill(self._topology.run.directory, actor.name)
            except (DiskError, OSError) as error:
                self._log.warning("that the kernel killed a process is not on disk", error=str(error))

    def fail(self, reason: str, exit_code: int) -> None:
        """End the run: it cannot continue."""
        self._log.error("run stopped", reason=reason)
        self._fault = self._fault or reason
        if self._ending.is_set() and not self._exit_code:  # ending with 0, an actor failed to save its state
            self._exit_code = exit_code
            self.say(f"the run did not end in order: {reason}")
        self.end(exit_code, f"stopping the run: {reason}")

    # How the run ends.

    def end(self, exit_code: int, reason: str, *, finished: bool = False) -> None:
        """Begin to end the run. Only the first reason counts."""
        if self._ending.is_set():
            return
        self._exit_code, self._reason, self._finished = exit_code, reason, finished
        silent = self._silence.silent
        standing = self._movement.describe(trio.current_time(), silent) if self._movement.stands else ""
        self._final_words = [*final_words(self._silence.descriptions, standing), *self._links.final_words]
        if reason:
            self.say(reason)
        self._links.ending(exit_code, reason, finished=finished)
        self._ending.set()

    async def _drain(self) -> None:
        """Stop the roles in the order in which messages flow, then wait for the other hosts."""
        for name in self._silence.silent:
            if name in self._actors:
                self._end_silence(self._actors[name])
        order = drain_order(self._processes.topology)
        await stop_in_order(order, list(self._actors.values()), failed=self._exit_code != 0)
        patient = self._exit_code != KILLED
        unheard = await self._links.leave(self._exit_code, self._reason, patient=patient)
        if unheard:
            self.say(f"no word that {', '.join(unheard)} stopped; look at these hosts")

    def _record_end(self) -> None:
        """Record why the run failed, for summary and report. Only the main host writes the record."""
        if self._exit_code and self._fault and self._topology.main_host in self._hosts:
            try:
                record_end(self._topology.run.directory, self._exit_code, self._fault)
            except (DiskError, OSError) as error:
                self._log.warning("why the run ended is not on disk", error=str(error))

    def _end_silence(self, actor: Process) -> None:
        """Kill a silent actor. If others still have messages for it, a new process takes its place to receive them."""
        text = self._silence.describe(actor.name)
        if not self._exit_code and needed_to_drain(self._processes.topology, actor.role):
            actor.kill(f"{text}; it was killed, so that others can hand over to a new one")
        else:
            self.say(f"{text}; it is killed")
            actor.kill(last=True)


async def serve_metrics(listeners: Sequence[trio.SocketListener], text: Callable[[], str]) -> None:
    """Answer Prometheus until cancelled. ``text`` is called for each scrape."""

    async def respond(request: Request, reply: Reply) -> None:
        if request.path.partition("?")[0] != "/metrics":
            await reply.send(404, b"there is /metrics\n", METRICS)
        elif request.method not in {"GET", "HEAD"}:
            reply.headers["Allow"] = "GET, HEAD"
            await reply.send(405, b"only GET and HEAD\n", METRICS)
        else:
            await reply.send(200, text().encode("utf-8", "replace"), METRICS)

    await Server(respond, 1024, SCRAPES_AT_ONCE).serve(listeners)


async def _listeners(topology: Topology, hosts: Sequence[str]) -> list[trio.SocketListener]:
    """The listeners for metrics; none unless one of ``hosts`` is the main host, which hears all actors."""
    run = topology.run
    if run.metrics_port is None or topology.main_host not in hosts:
        return []
    try:
        return await listen(run.metrics_address, run.metrics_port, shared=False)
    except OSError as error:
        raise RunRefused(f"run.metrics_port: {error.strerror}; choose another port or address") from error


def _identity(directory: Path) -> tuple[int, int] | None:
    """Which directory it is; None: there is none."""
    try:
        found = directory.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
