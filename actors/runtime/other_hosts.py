"""How the supervisors of several hosts end a run together: the learner's host decides; the others obey and answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio

from agent_rl.config.addresses import supervisor_node
from agent_rl.config.topology import Topology
from agent_rl.figures import ActorFigures
from agent_rl.messages import ActorStatus, RunState

if TYPE_CHECKING:
    from transport import Node

TELL_SECONDS = 10.0
"""Seconds to wait for the supervisors of other hosts when the run ends."""


class OtherHosts:
    """The hosts whose actors another process supervises. ``hosts`` are the hosts of this process."""

    def __init__(self, topology: Topology, hosts: Sequence[str]) -> None:
        self.is_main = topology.main_host in hosts
        self._main = supervisor_node(topology.main_host)
        self._name = supervisor_node(hosts[0])
        remote = [supervisor_node(name) for name in topology.hosts_in_use if name not in hosts]
        self._ended = {name: trio.Event() for name in remote}
        self._tell: list[Callable[[object], None]] = []

    def __bool__(self) -> bool:
        """Whether the topology has other hosts."""
        return bool(self._ended)

    def link(self, node: Node) -> None:
        """Open the announcements: from the main host to all others, from each other host to the main host."""
        if not self._ended:
            return
        if not self.is_main:
            self._tell.append(node.announce("status", [self._main]).set)
        elif node.name == self._main:
            self._tell.append(node.announce("run", list(self._ended)).set)

    def heard(self, status: ActorStatus) -> str:
        """Take in another supervisor's status. Returns why the run must end, where that is decided; else empty."""
        if status.state in {"failed", "finished"} and status.actor in self._ended:
            self._ended[status.actor].set()
        return f"{status.actor}: {status.detail}" if status.state == "failed" and self.is_main else ""

    def left(self, peer: str) -> None:
        """A node said goodbye: a supervisor does when it has stopped. Its last status may be lost with it."""
        if peer in self._ended:
            self._ended[peer].set()

    def ending(self, exit_code: int, reason: str, *, finished: bool) -> None:
        """Tell the others that this host ends."""
        if self.is_main:
            self._announce(RunState(ending=True, exit_code=exit_code, finished=finished))
        else:
            self._announce_self("failed" if exit_code else "stopping", reason)

    async def leave(self, exit_code: int, reason: str, *, patient: bool) -> list[str]:
        """Wait until the other hosts know that the run ends, before this supervisor stops sending.

        Returns the hosts that did not confirm that they stopped.
        """
        if not self.is_main:
            self._announce_self("failed" if exit_code else "finished", reason)
            await trio.lowlevel.checkpoint()
            return []
        with trio.move_on_after(TELL_SECONDS if patient else 0):
            for ended in self._ended.values():
                await ended.wait()
        return [name for name, ended in self._ended.items() if not ended.is_set()]

    def _announce(self, message: object) -> None:
        for tell in self._tell:
            tell(message)

    def _announce_self(self, state: str, reason: str) -> None:
        self._announce(
            ActorStatus(self._name, "supervisor", state, reason, ActorFigures(), "", 0.0, time.process_time())
        )


def is_supervisor(node: str) -> bool:
    """Whether the node is a supervisor."""
    return node.startswith("supervisor.")
