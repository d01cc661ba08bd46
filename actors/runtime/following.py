"""Brings the actors of a supervisor to what is wanted, one generation after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from actors.runtime.dry_run import faults_of
from actors.runtime.target import UNREADABLE, in_force, target_of
from agent_rl.config.full import resolved_text
from agent_rl.files.disk import DiskError
from agent_rl.observe.logs import log_directory
from agent_rl.records.continuing import write_resolved

if TYPE_CHECKING:
    from actors.runtime.processes import Processes
    from actors.runtime.start import Start
    from agent_rl.files.leftovers import Janitor
    from agent_rl.messages import Wanted


RETRY_SECONDS = 5.0
"""After so long what failed is tried again, and then after twice as long, at most `LONGEST_RETRY`: no command takes it
back where a host starts again, and a process dies as it gets what is in force.
"""
LONGEST_RETRY = 300.0


class Follower:
    """``say`` tells the user."""

    def __init__(self, start: Start, processes: Processes, say: Callable[[str], object]) -> None:
        self.generation = 0
        """The newest that was reached, or cannot be for the reasons in ``faults``; ``done``: how."""
        self.done: list[str] = []
        self.faults: list[str] = []
        self._start, self._processes, self._say = start, processes, say
        self._text = resolved_text(start.topology)
        self._wanted: Wanted | None = None
        self._news = trio.Event()

    def told(self, wanted: Wanted) -> None:
        """What is wanted now."""
        self._wanted = wanted
        self._processes.trials = {name for name, role in wanted.roles.items() if role.trial}
        self._news.set()

    async def run(self, janitor: Janitor, reached: Callable[[], object]) -> None:
        """Follow until cancelled. ``reached`` is called whenever a generation is."""
        patience = again = math.inf
        while True:
            with trio.move_on_at(again):
                await self._news.wait()
            self._news = trio.Event()
            wanted = self._wanted
            assert wanted is not None
            new = wanted.generation != self.generation
            if new or trio.current_time() >= again:
                self.done, self.faults = await self._follow(wanted, janitor)
                self.generation = wanted.generation
                reached()
                patience = RETRY_SECONDS if new else min(2 * patience, LONGEST_RETRY)
                again = trio.current_time() + patience if self.faults and not wanted.check else math.inf
            for name in self._processes.spent:
                if name.rpartition(".")[0] not in self._processes.trials:
                    self._processes.actors[name].given_up()

    async def _follow(self, wanted: Wanted, janitor: Janitor) -> tuple[list[str], list[str]]:
        """What was done, and what failed, as lines."""
        staying = [host for host in self._start.hosts if wanted.leaving.get(host, -1) < self._start.incarnation]
        try:
            if wanted.check:
                stderr = log_directory(self._start.topology.run.directory) / "dry_run.stderr"
                now = resolved_text(in_force(self._text, wanted.roles))
                return [], await faults_of(now, self._start.file, wanted.check, stderr, janitor)
            target = target_of(self._text, wanted.roles, staying)
        except UNREADABLE as error:  # the dry run read another version of the module
            remedy = "if its module has changed since the run began, give the class another module"
            return [], [f"it cannot be swapped: {error}; {remedy}"]
        done, faults = await self._processes.become(target)
        if not faults:
            try:
                topology = target.topology
                write_resolved(topology, topology.run.directory, self._start.hosts[0], self._start.again)
            except (DiskError, OSError) as error:
                self._say(f"commands read what was before: {error}")
        return done, faults
