"""What the supervisor decides: who may be restarted, in which order roles are stopped, which hosts a process serves."""

from __future__ import annotations

import os
import signal
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_rl.config.addresses import is_loopback
from agent_rl.config.plugins import resolve
from agent_rl.config.topology import ActorEntry, Topology
from agent_rl.records.run_directory import RunRefused


@dataclass
class RestartBudget:
    """So many restarts within so many seconds, and so many in a row of a process that dies before it has done anything.

    The second bound holds however long the process takes to start: one that loads a model for minutes and then dies would keep
    within the first for ever.
    """

    restarts: int
    seconds: float
    within: str = ""
    """What the restarts are counted in, once there is none left: of a message's words."""
    _spent: deque[float] = field(default_factory=deque)
    _early: int = 0

    def spend(self, now: float, *, early: bool = False) -> bool:
        """Take one restart at time ``now``; False when there is none left. ``early``: the process died of itself, without work."""
        self._early = self._early + 1 if early else 0
        while self._spent and self._spent[0] <= now - self.seconds:
            self._spent.popleft()
        if len(self._spent) >= self.restarts:
            self.within = f"in {self.seconds:g} s"
            return False
        if self._early > self.restarts:
            self.within = "in a row, before it did anything,"
            return False
        self._spent.append(now)
        return True


def drain_order(topology: Topology) -> list[str]:
    """Roles in the order they are stopped: by their class' ``drain_order`` (50 without), then upstream first."""
    position = {role: index for index, role in enumerate(_upstream_first(topology))}
    order = {
        role: getattr(resolve("actor", entry.class_path), "drain_order", 50) for role, entry in topology.actors.items()
    }
    return sorted(topology.actors, key=lambda role: (order[role], position[role]))


def _upstream_first(topology: Topology) -> list[str]:
    """Roles so that each stands before those its push and call links lead to, as far as the links have no circle."""
    visited: dict[str, None] = {}
    entered: set[str] = set()

    def visit(role: str) -> None:
        if role in entered:
            return
        entered.add(role)
        entry = topology.actors[role]
        declared: Any = getattr(resolve("actor", entry.class_path), "links", {})
        for link in entry.links:
            if link in declared and declared[link].kind != "announce":
                for target in entry.targets(link):
                    visit(target)
        visited[role] = None

    for role in topology.actors:
        visit(role)
    return list(reversed(visited))


def needed_to_drain(topology: Topology, role: str) -> bool:
    """Whether a role that is stopped before this one has a push or call link to it, and so may need it to end."""
    order = drain_order(topology)
    for earlier in order[: order.index(role)]:
        entry = topology.actors[earlier]
        declared: Any = getattr(resolve("actor", entry.class_path), "links", {})
        for link in entry.links:
            if link in declared and declared[link].kind != "announce" and role in entry.targets(link):
                return True
    return False


def drain_seconds(role: str, entry: ActorEntry) -> float:
    """How long an actor may take to stop: its class' ``drain_seconds``, else long enough for a learner's checkpoint."""
    return float(getattr(resolve("actor", entry.class_path), "drain_seconds", 120.0 if role == "learner" else 30.0))


def hosts_to_start(topology: Topology, host: str | None) -> tuple[str, ...]:
    """The hosts whose actors this process starts, the main one first. Raises RunRefused when it cannot be."""
    in_use = topology.hosts_in_use
    if host is not None:
        if host not in in_use:
            raise RunRefused(f"no actor runs on a host named {host!r}; there is {', '.join(in_use)}")
        return (host,)
    elsewhere = [name for name in in_use if not is_loopback(topology.hosts[name].address)]
    if elsewhere and len(in_use) > 1:
        starts = ", ".join(f"--host {name}" for name in in_use)
        raise RunRefused(f"the actors are on several machines: start each with its own, {starts}")
    # The main host first: it is the one whose supervisor gives the process its name.
    return tuple(sorted(in_use, key=lambda name: name != topology.main_host))


def actor_environment(entry: ActorEntry, run_directory: Path) -> dict[str, str]:
    """The environment of an actor: as many threads as its settings say, one unless they or the environment do.

    What torch caches goes into the run directory, unless the environment says where: otherwise it is left where
    temporary files go.
    """
    cls = resolve("actor", entry.class_path)
    environment = dict(os.environ)
    environment.setdefault("PYTHONFAULTHANDLER", "1")  # a crash in native code leaves its stack on stderr
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(run_directory.absolute() / "cache" / "torchinductor"))
    threads = getattr(cls.Settings.model_validate(entry.settings), "threads", None)
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        if threads is not None:
            environment[variable] = str(threads)
        else:
            environment.setdefault(variable, "1")
    return environment


def describe_exit(status: int) -> str:
    """An exit status (negative: a signal) in words."""
    if status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    return f"exited with status {status}"
