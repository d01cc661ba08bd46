"""One actor's process as the supervisor keeps it: started, started again within its budget, asked to stop, killed.

::

    start --> (ends) --> budget left: restarting --> start
                    `--> spent, or USER_MISTAKE --> Reports.fail
    stopping: SIGTERM --> (ends) | deadline --> SIGKILL
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import trio

from actors.runtime.children import ActorChild, start_child
from actors.runtime.lifecycle import RestartBudget, actor_environment, describe_exit, drain_seconds
from actors.runtime.roster import written
from agent_rl.config.topology import ActorEntry, Topology
from agent_rl.files.leftovers import Janitor
from agent_rl.messages import ActorStatus
from agent_rl.observe.logs import log_directory

USER_MISTAKE = 3
"""The exit status by which an actor says that starting it again would not help; the message it leaves says why."""

EARLY_SECONDS = 5.0
"""An actor that dies of itself so soon after it has started has done nothing."""

FAILED_DRAIN_SECONDS = 10.0
"""A run that has failed waits no longer than this for each role: what they wait for themselves may be gone."""


class Reports(Protocol):
    """Whom an actor's process tells what becomes of it."""

    def process(self, actor: ActorProcess, state: str) -> None:
        """It is starting, restarting, stopping or stopped."""

    def incarnations(self) -> Mapping[str, int]:
        """Those of all nodes, as far as they are known: what a new process is told first."""

    def say(self, text: str) -> None:
        """Something the user wants to know."""

    def fail(self, reason: str, exit_code: int) -> None:
        """The run cannot go on."""


class ActorProcess:
    """An actor of this host. ``path`` is its topology file, ``base`` the folder that relative paths in it start from.

    ``incarnation`` is that of its first process; ``epoch`` makes the run's clock (`run_clock`).
    """

    def __init__(
        self,
        name: str,
        role: str,
        topology: Topology,
        *,
        path: Path,
        base: Path,
        incarnation: int,
        started_at: float,
        epoch: float,
        entry_module: str,
        reports: Reports,
    ) -> None:
        self.name = name
        self.role = role
        self.entry: ActorEntry = topology.actors[role]
        self.child: ActorChild | None = None
        self.stopping = False
        self.ended = trio.Event()
        self.failure = ""
        """What it last said of its own failure."""
        self._killed_for = ""
        self._died_at: float | None = None
        self._ready_at: float | None = None
        """When its present process was first heard as started."""
        self.drain_seconds = drain_seconds(role, self.entry)
        self.incarnation = incarnation
        self._reports = reports
        self._environment = actor_environment(self.entry, topology.run.directory)
        self._budget = RestartBudget(self.entry.restarts, self.entry.restart_window_seconds)
        self._entry_module = entry_module
        self._stderr = log_directory(topology.run.directory) / f"{name}.stderr"
        self._arguments = ["--topology", str(path), "--base", str(base), "--actor", name]
        self._arguments += ["--started-at", repr(started_at), "--epoch", repr(epoch)]

    async def keep(self, janitor: Janitor, log: Callable[..., object]) -> None:
        """Start the actor, and start it again when it dies, until the run ends or its budget is spent."""
        state = "starting"
        while not self.stopping:
            self._reports.process(self, state)
            child = self._start()
            janitor.started(child.pid)
            log("started", actor=self.name, pid=child.pid, incarnation=self.incarnation)
            status = await child.wait()
            janitor.ended(child.pid)
            log("ended", actor=self.name, pid=child.pid, status=status, stopping=self.stopping)
            if self.stopping:
                if status == USER_MISTAKE:
                    self._reports.fail(f"{self.name}: {self._why(child)}", 2)
                elif status not in {0, -signal.SIGTERM, -signal.SIGKILL}:
                    ended = f"{self.name} {describe_exit(status)} while stopping"
                    self._reports.say("\n  ".join([ended, *child.last_words()]))
            elif not self._goes_on(child, status):
                break
            state = "restarting"
        self._reports.process(self, "stopped")
        self.ended.set()

    def _goes_on(self, child: ActorChild, status: int) -> bool:
        """Whether a process that died is to be replaced; if not, the run is told why."""
        ended, last_words = self._killed_for or f"{self.name} {describe_exit(status)}", child.last_words()
        if status == USER_MISTAKE:
            self._reports.fail(f"{self.name}: {self._why(child)}", 2)
            return False
        if not self._budget.spend(trio.current_time(), early=self._died_early(status)):
            budget = f"{self.entry.restarts} restarts {self._budget.within} are spent"
            said = [f"it said: {self.failure}"] if self.failure else []
            lines = [f"{ended}, and its {budget}", *said, *last_words, f"more in {child.stderr}"]
            self._reports.fail("\n  ".join(lines), 1)
            return False
        self.incarnation += 1
        self._died_at = trio.current_time()
        reason = self.failure or child.message or (last_words[-1] if last_words else "")
        self._reports.say(f"{ended}; starting it again" + (f" ({reason})" if reason else ""))
        return True

    def _died_early(self, status: int) -> bool:
        """Whether its process ended by itself, which nobody killed, before it was started or soon after."""
        if status == -signal.SIGKILL:
            return False
        return self._ready_at is None or trio.current_time() - self._ready_at < EARLY_SECONDS

    @staticmethod
    def _why(child: ActorChild) -> str:
        """Why a process ended with USER_MISTAKE."""
        return child.message or next(iter(child.last_words(1)), "cannot run as it is configured")

    def _start(self) -> ActorChild:
        self.failure = self._killed_for = ""
        self._ready_at = None
        self.child = start_child(
            self._entry_module,
            [*self._arguments, "--incarnation", str(self.incarnation)],
            environment=self._environment,
            stderr=self._stderr,
        )
        self.tell(self._reports.incarnations())
        return self.child

    def tell(self, incarnations: Mapping[str, int]) -> None:
        """Say which incarnations nodes have; it needs them to know its peers."""
        if self.child is not None and not self.child.tell(written(incarnations)):
            self.kill(f"{self.name} did not read what its supervisor told it")

    def heard(self, status: ActorStatus, incarnation: int) -> None:
        """A status came from its process of this incarnation."""
        if incarnation != self.incarnation:  # of one that has ended
            return
        if status.state == "failed":
            self.failure = status.detail
        elif status.state != "starting" and self._ready_at is None:
            self._ready_at = trio.current_time()
        if self._ready_at is not None and self._died_at is not None:
            seconds = trio.current_time() - self._died_at
            self._died_at = None
            self._reports.say(f"{self.name} runs again, {seconds:.1f} s after it ended")

    def terminate(self) -> None:
        """Ask it to stop; it is not started again."""
        self.stopping = True
        self._reports.process(self, "stopping")
        if self.child is not None:
            self.child.terminate()

    def kill(self, reason: str = "") -> None:
        """End it and what is in its process group, now; ``reason`` is told when it is started again."""
        self._killed_for = reason
        if self.child is not None:
            self.child.kill()


async def stop_in_order(
    roles: Sequence[str], actors: Sequence[ActorProcess], reports: Reports, *, failed: bool
) -> None:
    """Stop the roles one after the other, each within its deadline; what does not stop is killed."""
    for role in roles:
        async with trio.open_nursery() as nursery:
            for actor in actors:
                if actor.role == role and not actor.ended.is_set():
                    actor.terminate()
                    seconds = actor.drain_seconds
                    nursery.start_soon(
                        _stop_within, actor, min(seconds, FAILED_DRAIN_SECONDS) if failed else seconds, reports
                    )


async def _stop_within(actor: ActorProcess, seconds: float, reports: Reports) -> None:
    with trio.move_on_after(seconds):
        await actor.ended.wait()
        return
    reports.say(f"{actor.name} did not stop in time and is killed")
    actor.kill()
    await actor.ended.wait()
