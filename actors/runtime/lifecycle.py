"""Decisions of the supervisor: the order of stopping, the hosts that a process serves, what a process is given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_rl.config.addresses import is_loopback
from agent_rl.config.plugins import resolve
from agent_rl.config.processes import ActorEntry
from agent_rl.config.topology import Topology
from agent_rl.models.devices import Machine, cores_near, gpus_here, visible_devices
from agent_rl.records.run_directory import RunRefused

CLOSE_SECONDS = 15.0


def drain_order(topology: Topology) -> list[str]:
    """Roles in the order of stopping: by the ``drain_order`` of their class (default 50), then upstream first."""
    position = {role: index for index, role in enumerate(_upstream_first(topology))}
    order = {
        role: getattr(resolve("actor", entry.class_path), "drain_order", 50) for role, entry in topology.actors.items()
    }
    return sorted(topology.actors, key=lambda role: (order[role], position[role]))


def _upstream_first(topology: Topology) -> list[str]:
    """Roles in an order that puts each one before the targets of its push and call links. Cycles are cut."""
    visited: dict[str, None] = {}
    entered: set[str] = set()

    def visit(role: str) -> None:
        if role in entered:
            return
        entered.add(role)
        for target in _receivers(topology, role):
            visit(target)
        visited[role] = None

    for role in topology.actors:
        visit(role)
    return list(reversed(visited))


def needed_to_drain(topology: Topology, role: str) -> bool:
    """Whether a role that is stopped earlier has a push or call link to this role, and may need it to finish."""
    order = drain_order(topology)
    return any(role in _receivers(topology, earlier) for earlier in order[: order.index(role)])


def _receivers(topology: Topology, role: str) -> list[str]:
    """The targets of a role's push and call links."""
    entry = topology.actors[role]
    declared: Any = getattr(resolve("actor", entry.class_path), "links", {})
    names = [name for name in entry.links if name in declared and declared[name].kind != "announce"]
    return [target for name in names for target in entry.targets(name)]


def drain_seconds(role: str, entry: ActorEntry) -> float:
    """Seconds an actor may take to stop: its class's ``drain_seconds``; else enough for a learner's checkpoint.

    At least `CLOSE_SECONDS` more than its settings let it finish its work (``finish_seconds``).
    """
    cls = resolve("actor", entry.class_path)
    seconds = float(getattr(cls, "drain_seconds", 120.0 if role == "learner" else 30.0))
    settings = cls.Settings.model_validate(entry.settings) if hasattr(cls, "Settings") else None
    finish = getattr(settings, "finish_seconds", 0.0)
    return max(seconds, finish + CLOSE_SECONDS if finish else 0.0)


def hosts_to_start(topology: Topology, host: str | None) -> tuple[str, ...]:
    """The hosts whose actors this process starts, the main host first. Raises RunRefused when ``host`` does not fit."""
    in_use = topology.hosts_in_use
    if host is not None:
        if host not in in_use:
            raise RunRefused(f"no actor runs on a host named {host!r}; there is {', '.join(in_use)}")
        return (host,)
    elsewhere = [name for name in in_use if not is_loopback(topology.hosts[name].address)]
    if elsewhere and len(in_use) > 1:
        starts = ", ".join(f"--host {name}" for name in in_use)
        raise RunRefused(f"the actors are on several machines: start each with its own, {starts}")
    # The main host first: the supervisor's process is named after it.
    return tuple(sorted(in_use, key=lambda name: name != topology.main_host))


def actor_environment(entry: ActorEntry, run_directory: Path) -> dict[str, str]:
    """The environment of an actor. The number of threads comes from its settings, then from the environment, then is 1.

    torch's caches go into the run directory, unless the environment names another place. torch's default is the folder
    for temporary files, where it would keep precompiled headers in any case, so it makes none.
    """
    cls = resolve("actor", entry.class_path)
    environment = dict(os.environ)
    environment.setdefault("PYTHONFAULTHANDLER", "1")  # a crash in native code leaves its stack on stderr
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(run_directory.absolute() / "cache" / "torchinductor"))
    environment.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
    threads = getattr(cls.Settings.model_validate(entry.settings), "threads", None)
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        if isinstance(threads, int):
            environment[variable] = str(threads)
        else:
            environment.setdefault(variable, "1")
    return environment


def devices_for(gpus: Sequence[int] | None) -> tuple[dict[str, str], frozenset[int]]:
    """The variables that show a process these GPUs alone, and the cores near them. None: the process sees all."""
    if not gpus:
        return {}, frozenset()
    machine = Machine.here()
    return visible_devices(gpus, machine), cores_near(gpus, machine, gpus_here())
