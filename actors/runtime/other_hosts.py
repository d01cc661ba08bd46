"""How the supervisors of several hosts end a run together: the learner's host decides; the others obey and answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from agent_rl.config.addresses import supervisor_node
from agent_rl.config.topology import Topology
from agent_rl.figures import ActorFigures
from agent_rl.messages import ActorStatus, RunState

if TYPE_CHECKING:
    from transport import AnnounceLink, Node

TELL_SECONDS = 10.0
"""Seconds to wait for the supervisors of other hosts when the run ends."""


class OtherHosts:
    """The hosts whose actors another process supervises. ``hosts`` are the hosts of this process."""

    def __init__(self, topology: Topology, hosts: Sequence[str]) -> None:
        self.is_main = topology.main_host in hosts
        self._main = supervisor_node(topology.main_host)
        self._name = supervisor_node(hosts[0])
        remote = [name for name in topology.hosts_in_use if name not in hosts]
        self._ended = {supervisor_node(name): trio.Event() for name in remote}
        self._optional = {supervisor_node(name) for name in remote if topology.hosts[name].optional}
        self._up: set[str] = set()
        self._ending = False
        self._tell: list[AnnounceLink] = []

    def up(self, supervisor: str) -> None:
        """A supervisor is heard: the end of the run waits until it has stopped too."""
        self._up.add(supervisor)

    def link(self, node: Node) -> None:
        """Open the announcements: from the main host to all others, from each other host to the main host."""
        if not self._ended:
            return
        if not self.is_main:
            self._tell.append(node.announce("status", [self._main]))
        elif node.name == self._main:
            self._tell.append(node.announce("run", list(self._ended)))

    def refused(self) -> None:
        """The main host does not listen to this host: nothing is told or waited for."""
        self._tell.clear()

    def heard(self, status: ActorStatus) -> str:
        """Take in another supervisor's status. Returns why the run must end, where that is decided; else empty."""
        if status.state in {"failed", "finished"} and status.actor in self._ended:
            self._ended[status.actor].set()
        ends_the_run = status.state == "failed" and self.is_main and status.actor not in self._optional
        return f"{status.actor}: {status.detail}" if ends_the_run else ""

    def left(self, peer: str) -> None:
        """A node said goodbye: a supervisor does when it has stopped."""
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
            with trio.move_on_after(TELL_SECONDS if patient else 0):
                for link in self._tell:
                    await link.acknowledged()
            return []
        with trio.move_on_after(TELL_SECONDS if patient else 0):
            for name in self._up & self._ended.keys():
                await self._ended[name].wait()
        return [name for name, ended in self._ended.items() if name in self._up and not ended.is_set()]

    def _announce(self, message: object) -> None:
        for link in self._tell:
            link.set(message)

    def _announce_self(self, state: str, reason: str) -> None:
        self._announce(
            ActorStatus(self._name, "supervisor", state, reason, ActorFigures(), "", 0.0, time.process_time())
        )


def is_supervisor(node: str) -> bool:
    """Whether the node is a supervisor."""
    return node.startswith("supervisor.")
