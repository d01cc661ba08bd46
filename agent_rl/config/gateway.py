"""Where agents reach the gateway of a run, from the topology alone."""

from __future__ import annotations

from collections.abc import Iterator

from agent_rl.config.topology import Topology

ROLE = "gateway"
ADDRESS, PORT = "127.0.0.1", 8642
"""Where it listens by default."""
_EVERYWHERE = {"0.0.0.0", "::"}  # noqa: S104 - compared with, not bound to
_HERE = {ADDRESS, "localhost", "::1"}


def gateway_url(topology: Topology, actor: str) -> str:
    """Where an agent that ``actor`` starts reaches a gateway; empty where it reaches none."""
    entry = topology.actors.get(ROLE)
    if entry is None:
        return ""
    role, _, replica = actor.rpartition(".")
    host = topology.homes(role)[int(replica)]
    homes = set(topology.homes(ROLE).values())
    address = str(entry.settings.get("address", ADDRESS))
    port = entry.settings.get("port", PORT)
    if host in homes:
        name = ADDRESS if address in _EVERYWHERE | _HERE else address
    elif address in _HERE:
        return ""
    else:
        name = topology.hosts[min(homes)].address
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"


def listens_beyond(address: str) -> bool:
    """Whether a gateway at this address can be reached from other hosts."""
    return address not in _HERE


def unreachable(topology: Topology) -> Iterator[str]:
    """The actors with harnesses that reach no gateway."""
    if not any(each.harness and each.harness.source == "command" for each in topology.environments):
        return
    for role, entry in topology.actors.items():
        if entry.links and "trajectories" in entry.links:
            for replica in topology.homes(role):
                if not gateway_url(topology, f"{role}.{replica}"):
                    yield f"{role}.{replica}"
