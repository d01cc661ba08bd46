"""Check the ranks of actors: which role may have several, whether they make a mesh, and whether each has a device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from agent_rl.config.algorithm import STAGE_START
from agent_rl.config.parallel import mesh_sizes
from agent_rl.config.plugins import PluginError, resolve
from agent_rl.config.processes import ActorEntry
from agent_rl.config.source import Fault, Source
from agent_rl.config.topology import Topology
from agent_rl.models.shapes import DENSE, Shape
from agent_rl.topology_checks.memory import config_of


def rank_faults(topology: Topology, source: Source) -> Iterator[Fault]:
    """Ranks that no class computes with, that make no mesh, that name one GPU for all, or that do not divide layers.

    Whether there are enough GPUs is checked with the placement.
    """
    for role, entry in topology.actors.items():
        place = ("actors", role, "ranks")
        try:
            actor: Any = resolve("actor", entry.class_path)
        except PluginError:
            continue  # told elsewhere
        if not getattr(actor, "ranked", False):
            if entry.ranks > 1:
                yield source.fault(place, f"{entry.class_path} is one process", "leave ranks out, or use replicas")
            continue
        try:
            mesh_sizes(entry.ranks, topology.model.parallel)
        except ValueError as error:
            yield source.fault(place, str(error))
            continue
        if entry.ranks > 1:
            yield from _host_faults(entry, role, source)
            yield from _device_faults(entry, role, source)
        if topology.model.parallel.tensor > 1:
            yield from _layer_faults(topology, source)


def _host_faults(entry: ActorEntry, role: str, source: Source) -> Iterator[Fault]:
    """Hosts that cannot have equal parts of the ranks, or that would have to write into the memory of another."""
    hosts = len(entry.rank_hosts)
    if hosts == 1:
        return
    if entry.ranks % hosts:
        more = entry.ranks + hosts - entry.ranks % hosts
        message = f"{entry.ranks} ranks cannot be shared by {hosts} hosts: each has as many"
        yield source.fault(("actors", role, "ranks"), message, f"write a multiple of {hosts}, as {more}")
    if entry.share == "time":
        message = "the devices of the other hosts are not shared in time"
        yield source.fault(("actors", role, "share"), message, "leave it out, or put all ranks on one host")
    if entry.settings.get("weights_in") == "shared_memory":
        message = f"the ranks write policies together, and are on {hosts} hosts, which share no memory"
        remedy = 'leave it at "run_directory", which these hosts must share'
        yield source.fault(("actors", role, "settings", "weights_in"), message, remedy)


def _device_faults(entry: ActorEntry, role: str, source: Source) -> Iterator[Fault]:
    device = str(entry.settings.get("device", "cpu"))
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return
    if number:
        message = f"{device} is one GPU, and each of {entry.ranks} ranks has its own"
        yield source.fault(("actors", role, "settings", "device"), message, 'write "cuda": rank 0 has cuda:0')
        return


def _layer_faults(topology: Topology, source: Source) -> Iterator[Fault]:
    """Models whose layers ``model.parallel.tensor`` ranks cannot share. Another check tells which cannot be read."""
    place, ranks = ("model", "parallel", "tensor"), topology.model.parallel.tensor
    for name, config in _models(topology).items():
        shape = Shape.of(config)
        if shape is None:
            message = f"{name} is of the kind {config.get('model_type')}, whose layers ranks cannot share"
            yield source.fault(place, message, f"write shard in its place; {', '.join(DENSE)} can be shared")
            continue
        sizes = {"heads": shape.heads, "heads of keys and values": shape.kv_heads, "values in an MLP": shape.mlp}
        if whole := [f"{size} {what}" for what, size in sizes.items() if size % ranks]:
            message = f"{ranks} ranks cannot share {' and '.join(whole)} of {name}"
            yield source.fault(place, message, f"write a divisor of {math.gcd(*sizes.values())}, or shard in its place")


def _models(topology: Topology) -> dict[str, Mapping[str, Any]]:
    """The config.json of each model that the learner computes with, by the key that names the model."""
    spec, kl = topology.model.initialise, topology.algorithm.kl
    found: dict[str, Mapping[str, Any] | None] = {}
    if spec is not None:
        found["model.initialise"] = {
            "model_type": spec.architecture,
            "hidden_size": spec.hidden_size,
            "num_hidden_layers": spec.layers,
            "num_attention_heads": spec.heads,
            "num_key_value_heads": spec.kv_heads,
            "head_dim": spec.head_dim,
            "intermediate_size": spec.mlp_size,
            "vocab_size": 0,  # that of the tokenizer, which any number of ranks can share
            "max_position_embeddings": spec.max_length,
        }
    if topology.model.path is not None:
        found["model.path"] = config_of(topology.model.path)
    if kl is not None and kl.reference != STAGE_START:
        found["algorithm.kl.reference"] = config_of(kl.reference)
    return {name: config for name, config in found.items() if config is not None}
