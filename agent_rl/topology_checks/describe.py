"""A sound topology in words: its actors, links, addresses, and what it needs of memory and disk."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_rl.config.addresses import actor_nodes, addresses, runtime_directory
from agent_rl.config.algorithm import STAGE_START, Algorithm
from agent_rl.config.plugins import resolve
from agent_rl.config.topology import RlStage, Topology
from agent_rl.models.devices import gpus_here
from agent_rl.models.hub import is_hub_name
from agent_rl.models.model_files import weight_count
from agent_rl.topology_checks.memory import plan, plan_rows
from agent_rl.topology_checks.placement import placement_rows

MEMORY_BYTES = 4 + 4 + 1 + 8
"""Of a token as the learner holds it: id, log-probability, loss mask, policy. Its text stays with the journal."""
BYTES = {"float32": 4, "bfloat16": 2}
"""Of a weight as the learner computes with it, by ``model.dtype``."""
JOURNAL_BYTES = 8
"""Of a token in the journal, texts included: 6.7 (docs/decisions/studies.md), and tools' texts come on top."""


def describe(topology: Topology) -> list[str]:
    """The lines ``agent-rl check`` prints of a topology without faults."""
    gpus = _columns(placement_rows(topology, gpus_here()))
    memory = _columns(plan_rows(plan(topology), size_text))
    parts = [_actors(topology), _hosts(topology), gpus, _links(topology), _addresses(topology), needs(topology), memory]
    return [line for part in parts if part for line in ("", *part)][1:]


def _actors(topology: Topology) -> list[str]:
    rows = [("actors:", "", "")]
    for role, entry in topology.actors.items():
        homes = Counter(topology.homes(role).values())
        rows.append((f"  {role}", f"{homes.total()} x {entry.class_path}", f"on {_shares(homes)}"))
    return _columns(rows)


def _shares(homes: Counter[str]) -> str:
    """The hosts of a role, and how many replicas each has where that differs."""
    if len(homes) > 1 and len(set(homes.values())) == 1:
        return f"{', '.join(homes)} ({next(iter(homes.values()))} each)"
    return ", ".join(f"{host} ({count})" if len(homes) > 1 else host for host, count in homes.items())


def _hosts(topology: Topology) -> list[str]:
    """What runs where; nothing for a run on one host."""
    if len(topology.hosts_in_use) == 1:
        return []
    rows = [("hosts:", "", "", "")]
    for name in topology.hosts_in_use:
        host = topology.hosts[name]
        nodes = [node for node, _ in actor_nodes(topology, name)]
        ports = f"ports {host.base_port} to {host.base_port + len(nodes)}"
        rows.append((f"  {name}", host.address, ports, ", ".join(nodes)))
    return _columns(rows)


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows as lines, whose columns are as wide as the widest cell."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _links(topology: Topology) -> list[str]:
    lines = ["links:"]
    for role, entry in topology.actors.items():
        for link, declared in resolve("actor", entry.class_path).links.items():
            types = ", ".join(message.__name__ for message in declared.messages)
            reply = f" / {declared.reply.__name__}" if declared.kind == "call" else ""
            if not entry.targets(link) and not getattr(declared, "required", True):
                continue
            targets = ", ".join(entry.targets(link)) or "nobody"
            lines.append(f"  {role}.{link} -> {targets}: {declared.kind} {types}{reply}")
    return lines


def _addresses(topology: Topology) -> list[str]:
    table = addresses(topology, runtime_directory(topology))
    processes = len(list(actor_nodes(topology)))
    return [f"addresses ({processes} actor processes):", *(f"  {node:<24} {where}" for node, where in table.items())]


def steps_kept(topology: Topology) -> int:
    """Steps whose trajectories are in the journal at once, at most: of a replay, and those kept for reading."""
    run = topology.run
    recipe = sum(stage.steps for _, stage, _ in topology.rl_algorithms)
    # A segment leaves when the last group that was opened in its step is settled.
    ahead = 2 * (max((algorithm.max_staleness for _, _, algorithm in topology.rl_algorithms), default=0) + 1)
    replay = run.keep_checkpoints * run.checkpoint_every
    wanted = {"all": recipe, "replay": replay}.get(str(run.keep_trajectories), run.keep_trajectories)
    return min(recipe, max(replay, int(wanted)) + ahead)


@dataclass(frozen=True, slots=True)
class _StageNeeds:
    """What an rl stage needs at most: with the longest responses, and with all open groups its budget allows."""

    tokens: int
    steps: int
    """Steps that are open at once."""
    groups: int
    """Groups of a step."""
    rollouts: int
    """Rollouts of a step, those of replaced groups not counted."""
    trained: int
    """Rollouts of a step that are trained on."""
    sampled: int
    """Rollouts of a step, those of replaced groups included."""

    @classmethod
    def of(cls, stage: RlStage, algorithm: Algorithm) -> _StageNeeds:
        rollouts = algorithm.groups_per_step * algorithm.samples
        return cls(
            tokens=stage.max_response_tokens,
            steps=algorithm.max_staleness + 1,
            groups=algorithm.groups_per_step,
            rollouts=rollouts,
            trained=algorithm.groups_per_step * min(algorithm.keep, algorithm.samples),
            sampled=rollouts * (algorithm.max_refill if algorithm.refill else 1),
        )

    @property
    def memory(self) -> int:
        """Bytes."""
        return self.steps * self.trained * self.tokens * MEMORY_BYTES


def needs(topology: Topology) -> list[str]:
    """The lines about memory and disk, each of the stage that needs most; none without reinforcement learning."""
    stages = [_StageNeeds.of(stage, algorithm) for _, stage, algorithm in topology.rl_algorithms]
    if not stages:
        return []
    kept = steps_kept(topology)
    most = max(stages, key=lambda stage: stage.memory)
    written = max(stages, key=lambda stage: stage.sampled * stage.tokens)
    disk = size_text(kept * written.sampled * written.tokens * JOURNAL_BYTES)
    groups = f"{most.steps * most.groups:,} groups = {most.steps} steps of {most.groups:,}"
    of = "the learner for trajectories, and of the filter while the learner does not take them"
    held = f"{most.steps} steps x {most.trained:,} rollouts x {most.tokens:,} tokens x {MEMORY_BYTES} bytes"
    stored = f"{kept:,} steps kept x {written.sampled:,} rollouts x {written.tokens:,} tokens x {JOURNAL_BYTES} bytes"
    run = topology.run
    replay = f"run.keep_checkpoints {run.keep_checkpoints} x run.checkpoint_every {run.checkpoint_every}"
    return [
        "needs at most, where every response is as long as its stage allows:",
        f"  open at once: {groups}, {most.steps * most.rollouts:,} rollouts",
        f"  memory of {of}: {size_text(most.memory)} = {held}",
        *_reference_needs(topology),
        f"  disk for the journal: {disk} = {stored}; {_free(run.directory)}",
        f"  steps kept: run.keep_trajectories = {run.keep_trajectories!r}, {replay}, and the steps that are open",
    ]


def _reference_needs(topology: Topology) -> list[str]:
    """The line about the reference policy of a KL penalty; none without a penalty."""
    kl, name = topology.algorithm.kl, topology.model.path
    if kl is None:
        return []
    of_stage = kl.reference == STAGE_START
    if not of_stage:
        name = kl.reference
    elif topology.model.lora is not None:
        return ["  memory of the learner for the reference policy: a copy of the adapters"]
    place = "in host memory, and as much on its device while it computes with them" if of_stage else "on its device"
    count = None if name is None or is_hub_name(name) else weight_count(Path(name).expanduser())
    size = "once more the size of the model"
    if count is not None:
        width = BYTES[topology.model.dtype]
        size = f"{size_text(count * width)} = {count:,} weights x {width} bytes"
    return [f"  memory of the learner for the reference policy: {size}, {place}"]


def size_text(size: float) -> str:
    """Bytes in the unit that reads best."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if unit != "bytes" else f"{size:.0f} bytes"
        size /= 1024
    return f"{size:.3g} TiB"


def _free(directory: Path) -> str:
    place = next((path for path in (directory, *directory.absolute().parents) if path.exists()), Path("/"))
    try:
        return f"{size_text(shutil.disk_usage(place).free)} are free at {place}"
    except OSError as error:
        return f"what is free at {place} cannot be read: {error.strerror}"
