"""A sound topology in words: its actors, links, addresses, and what it needs of memory and disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from agent_rl.config.addresses import actor_nodes, addresses, runtime_directory
from agent_rl.config.plugins import resolve
from agent_rl.config.topology import RlStage, Topology

MEMORY_BYTES = 4 + 4 + 1 + 8
"""Of a token as the learner holds it: id, log-probability, loss mask, policy. Its text stays with the journal."""
JOURNAL_BYTES = 8
"""Of a token in the journal, texts included: `agent-rl bench journal` prints 6.7, and tools' texts come on top."""


def describe(topology: Topology) -> list[str]:
    """The lines ``agent-rl check`` prints of a topology without faults."""
    return [*_actors(topology), "", *_links(topology), "", *_addresses(topology), "", *needs(topology)]


def _actors(topology: Topology) -> list[str]:
    lines = ["actors:"]
    for role, entry in topology.actors.items():
        lines.append(f"  {role:<20} {entry.replicas} x {entry.class_path} on {entry.host}")
    return lines


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


def open_groups(topology: Topology) -> int:
    """How many groups may be open at once: the staleness budget, (max_staleness + 1) * groups_per_step."""
    return (topology.max_staleness + 1) * topology.algorithm.groups_per_step


def steps_kept(topology: Topology) -> int:
    """Steps whose trajectories are in the journal at once, at most: of a replay, and those kept for reading."""
    run = topology.run
    recipe = sum(stage.steps for stage in topology.stages if isinstance(stage, RlStage))
    # A segment leaves when the last group that was opened in its step is settled.
    ahead = 2 * (topology.max_staleness + 1)
    replay = run.keep_checkpoints * run.checkpoint_every
    wanted = {"all": recipe, "replay": replay}.get(str(run.keep_trajectories), run.keep_trajectories)
    return min(recipe, max(replay, int(wanted)) + ahead)


def needs(topology: Topology) -> list[str]:
    """The lines about memory and disk; none for a recipe without reinforcement learning."""
    algorithm = topology.algorithm
    tokens = max((stage.max_response_tokens for stage in topology.stages if isinstance(stage, RlStage)), default=0)
    if not tokens:
        return []
    steps, kept = topology.max_staleness + 1, steps_kept(topology)
    rollouts = algorithm.groups_per_step * algorithm.samples
    trained = algorithm.groups_per_step * min(algorithm.keep, algorithm.samples)
    memory = steps * trained * tokens * MEMORY_BYTES
    sampled = rollouts * (algorithm.max_refill if algorithm.refill else 1)
    disk = kept * sampled * tokens * JOURNAL_BYTES
    return [
        f"needs at most, where every response has {tokens:,} tokens:",
        (
            f"  open at once: {open_groups(topology):,} groups = {steps} steps of {algorithm.groups_per_step:,}, "
            f"{steps * rollouts:,} rollouts"
        ),
        (
            "  memory of the learner for trajectories, and of the filter while the learner does not take them: "
            f"{size_text(memory)} = {steps} steps x {trained:,} rollouts x {tokens:,} tokens x {MEMORY_BYTES} bytes"
        ),
        (
            f"  disk for the journal: {size_text(disk)} = {kept:,} steps kept x {sampled:,} rollouts "
            f"x {tokens:,} tokens x {JOURNAL_BYTES} bytes; {_free(topology.run.directory)}"
        ),
        (
            f"  steps kept: run.keep_trajectories = {topology.run.keep_trajectories!r}, run.keep_checkpoints "
            f"{topology.run.keep_checkpoints} x run.checkpoint_every {topology.run.checkpoint_every}, "
            "and the steps that are open"
        ),
    ]


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
