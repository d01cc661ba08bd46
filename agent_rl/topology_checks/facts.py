"""What checks know besides the topology. A check ``(topology, facts)`` yields a `Finding` for each fault."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from agent_rl.config.addresses import is_loopback
from agent_rl.config.topology import Topology
from agent_rl.models.devices import Machine


@dataclass(frozen=True, slots=True)
class Facts:
    """The folder that relative paths start from, what is started here, and the devices of this machine."""

    base: Path
    started: str | None = None
    """The host that is to be started here; None: any of them may be."""
    elsewhere: bool = False
    """Whether hosts whose GPUs the file counts may be other machines."""
    machine: Machine = field(default_factory=lambda: Machine.here())  # noqa: PLW0108 - looked up anew: tests set it

    def is_here(self, topology: Topology, host: str) -> bool:
        """Whether a host is this machine: the one that is started here, or all of a run that is on this machine."""
        if self.started is not None:
            return host == self.started
        return all(is_loopback(topology.hosts[each].address) for each in topology.hosts_in_use)
