"""What a supervisor is started with: all that holds until it ends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent_rl.config.addresses import supervisor_node
from agent_rl.config.topology import Topology

if TYPE_CHECKING:
    import structlog


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A start of the supervisor of ``hosts``, the main host first if it is among them."""

    topology: Topology
    """Of the files and overrides, with whole paths; changes of the run are not in it."""
    file: Path
    """The first topology file: relative paths start from its folder, and modules are looked for there first."""
    hosts: tuple[str, ...]
    incarnation: int
    """Of this supervisor's nodes, and of the first process of each actor. Generations of changes count on from it."""
    entry_module: str
    """What a process of an actor runs."""
    again: str
    """The command that starts the run again."""
    agreed: dict[str, str]
    """The settings that all hosts must have."""
    epoch: float
    started_at: float
    log: structlog.typing.FilteringBoundLogger

    @property
    def is_main(self) -> bool:
        """Whether the main host is among the hosts."""
        return self.topology.main_host in self.hosts

    @property
    def main(self) -> str:
        """The node of the main host's supervisor."""
        return supervisor_node(self.topology.main_host)

    @property
    def others(self) -> dict[str, str]:
        """The hosts that other processes supervise, by the nodes of their supervisors."""
        return {supervisor_node(host): host for host in self.topology.hosts_in_use if host not in self.hosts}
