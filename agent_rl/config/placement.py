"""Which GPUs of its host each actor has. Pure: a function of the topology, on every host the same.

::

    an actor that names its GPU ("cuda:2")     has it, and the next ones where it needs several
    every other actor with device = "cuda"     has the next free ones of its host, in the order of the file
    roles with share = "time"                  use GPUs that other such roles use, from the first on (`partners`)
    roles with share = "space"                 likewise, and compute at once

A learner's other ranks are placed as the learner is, after it and before all that follows it in the file.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from agent_rl.config.addresses import actor_nodes
from agent_rl.config.plugins import resolve
from agent_rl.config.processes import ActorEntry
from agent_rl.config.standard import learner_of
from agent_rl.config.topology import Topology
from agent_rl.models.shapes import LEAST_WEIGHTS

PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
"""The settings of vLLM that multiply the GPUs of an engine."""
KIND = "cuda"
"""How torch names GPUs, also AMD's."""
ALONE, IN_TURNS, AT_ONCE = "none", "time", "space"
"""The values of ``share``: of a role with devices of its own, of one that takes turns, and of one that does not."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An actor, its host, and its GPUs by the numbers that the host gives them."""

    actor: str
    role: str
    """The role whose entry places it: the learner's, for its other ranks."""
    host: str
    gpus: tuple[int, ...]
    named: bool
    """Whether the file names the first of them; such a process sees all GPUs of its host."""
    share: str


def gpus_of(entry: ActorEntry) -> int:
    """The GPUs of one process."""
    if entry.gpus_per_replica is not None:
        return entry.gpus_per_replica
    return engine_gpus(entry) if _device(entry)[0] == KIND else 0


def engine_gpus(entry: ActorEntry) -> int:
    """The GPUs over which the engine's settings spread a model; 1 where they say nothing."""
    engine = entry.settings.get("engine_settings", {})
    sizes = [engine.get(name, 1) for name in PARALLEL] if isinstance(engine, dict) else []
    return math.prod(size for size in sizes if isinstance(size, int))


def _device(entry: ActorEntry) -> tuple[str, int | None]:
    kind, _, number = str(entry.settings.get("device", "cpu")).partition(":")
    return kind, int(number) if number.isdecimal() else None


def placement(topology: Topology) -> list[Placed]:
    """The GPUs of every actor that has any, host by host."""
    return [placed for host in topology.hosts_in_use for placed in _on(topology, host)]


def gpus_of_actor(topology: Topology, actor: str) -> tuple[int, ...] | None:
    """The GPUs that an actor's process is to see alone; None: it sees what its host has."""
    found = next((each for each in placement(topology) if each.actor == actor), None)
    return None if found is None or found.named else found.gpus


def _processes(topology: Topology, host: str) -> list[tuple[str, str, ActorEntry]]:
    """The actors of a host, each with the role and the entry that place it."""
    nodes = [(node, learner_of(role, topology.actors[role].class_path)) for node, role in actor_nodes(topology, host)]
    places = list(topology.actors)
    nodes.sort(key=lambda node: places.index(node[1]))
    return [(node, role, topology.actors[role]) for node, role in nodes]


def _on(topology: Topology, host: str) -> Iterator[Placed]:
    wanting = [(node, role, entry) for node, role, entry in _processes(topology, host) if gpus_of(entry)]
    named: set[int] = set()
    for _, _, entry in wanting:
        first = _device(entry)[1]
        if first is not None:
            named.update(range(first, first + gpus_of(entry)))
    taken: dict[str, set[int]] = {ALONE: set(named), IN_TURNS: set(), AT_ONCE: set()}
    next_of: dict[str, int] = {}
    """By role: where its next replica begins. Replicas of one role share nothing with each other."""
    for node, role, entry in wanting:
        count, first, share = gpus_of(entry), _device(entry)[1], entry.share
        if first is not None:
            yield Placed(node, role, host, tuple(range(first, first + count)), True, share)
            continue
        others = set[int]().union(*(gpus for way, gpus in taken.items() if way != share or way == ALONE))
        free = (number for number in itertools.count(next_of.get(role, 0)) if number not in others)
        gpus = tuple(itertools.islice(free, count))
        next_of[role] = gpus[-1] + 1
        taken[share].update(gpus)
        yield Placed(node, role, host, gpus, False, share)


def partners(topology: Topology, actor: str, share: str = IN_TURNS) -> tuple[str, ...]:
    """The actors of other roles with which an actor shares devices: GPUs, or in time also the processor of its host."""
    role = actor.rpartition(".")[0]
    entry = topology.actors.get(role)
    if entry is None or entry.share != share:
        return ()  # an actor on trial is in no table
    used = _shared_devices(topology, share)
    here = used.get(actor, set())
    return tuple(other for other, its in used.items() if its & here and other.rpartition(".")[0] != role)


def _shared_devices(topology: Topology, share: str) -> dict[str, set[tuple[str, str, int]]]:
    """The devices of each actor whose role shares them in this way, each as host, kind and number."""
    gpus = [(placed.actor, placed.role, placed.gpus) for placed in placement(topology)]
    found = {}
    for role, entry in topology.actors.items():
        if entry.share == share:
            on_processor = share == IN_TURNS and _device(entry)[0] == "cpu" and not gpus_of(entry)
            for number, host in topology.homes(role).items():
                actor = f"{role}.{number}"
                its = [numbers for other, of, numbers in gpus if other == actor or (entry.ranks > 1 and of == role)]
                used = {(host, KIND, gpu) for numbers in its for gpu in numbers}
                found[actor] = {(host, "cpu", 0)} if on_processor else used
    return found


def threads_of(topology: Topology, actor: str, *, weights: int, cores: int) -> tuple[int, int]:
    """Threads of torch of an actor with ``threads = "auto"`` and a model of so many weights, on a host of ``cores``:
    its own, and the most while other processes are idle.

    The cores are divided among the processes of the host that hold a model, also on a GPU. Roles that take turns count
    as the largest of them. Small models get one thread, since more would wait for each other.
    """
    if weights < LEAST_WEIGHTS:
        return 1, 1
    role, _, number = actor.rpartition(".")
    host = topology.homes(role).get(int(number), topology.main_host)
    holding = Counter[str]()
    for _, other, entry in _processes(topology, host):
        if "device" in resolve("actor", entry.class_path).Settings.model_fields:
            holding[other] += 1
    in_turns = [count for other, count in holding.items() if topology.actors[other].share == IN_TURNS]
    return max(1, cores // max(1, holding.total() - sum(in_turns) + max(in_turns, default=0))), cores


def conflicts(placed: list[Placed]) -> Iterator[tuple[int, Placed, Placed]]:
    """The GPUs that two actors have, though their roles do not share them in the same way."""
    users: dict[tuple[str, int], Placed] = {}
    for each in placed:
        for gpu in each.gpus:
            first = users.setdefault((each.host, gpu), each)
            both = first.share == each.share != ALONE and first.role != each.role
            if first is not each and not both:
                yield gpu, first, each


def most_gpus(topology: Topology, host: str) -> int:
    """How many GPUs a host must have."""
    return max((max(each.gpus) + 1 for each in placement(topology) if each.host == host), default=0)
