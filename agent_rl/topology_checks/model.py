"""Check that a topology's model can be loaded and has a usable chat template, and that the actors' devices exist.

No code here loads torch or transformers; `agent_rl.models.model_files` reads the files directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agent_rl.config.algorithm import STAGE_START
from agent_rl.config.placement import KIND
from agent_rl.config.source import Fault, Source
from agent_rl.config.topology import SftStage, Topology
from agent_rl.models.devices import Machine, device_fault
from agent_rl.models.hub import HubError, is_hub_name, metadata
from agent_rl.models.model_files import ModelFiles, Unreadable, read_template, vocabulary_fault
from agent_rl.rollout.prompts import OURS, template_file
from agent_rl.topology_checks.placement import is_here

PLACE = ("model", "path")


def model_faults(topology: Topology, path: Path, source: Source) -> list[Fault]:
    """What is wrong with the directory that ``model.path`` names, or with what the hub says of that name."""
    name = topology.model.path
    if name is None:
        assert topology.model.initialise is not None
        return list(
            _length_faults(topology, topology.model.initialise.max_length, "model.initialise.max_length", source)
        )
    here = not is_hub_name(name)
    directory = Path(name).expanduser()
    if here and not directory.is_dir():
        return [source.fault(PLACE, f"there is no directory {directory}", "it is relative to the working directory")]
    if here and not (directory / "config.json").is_file():
        rest = ModelFiles(directory, {}).files_missing()
        found = [(f"{directory} has no config.json", "it must be a Hugging Face model directory"), *rest]
        return [source.fault(PLACE, message, remedy) for message, remedy in found]
    try:
        files = ModelFiles.read(directory if here else metadata(name))
    except HubError as error:
        return [source.fault(PLACE, str(error))]
    except Unreadable as error:
        return [source.fault(PLACE, str(error), "save the model again, or copy it whole")]
    try:
        template = named_template(topology, path.parent)
    except Unreadable as error:
        return [source.fault(("model", "chat_template"), str(error), "write it as UTF-8 text")]
    faults = [
        source.fault(("model", "chat_template") if template and "chat template" in message else PLACE, message, remedy)
        for message, remedy in files.faults(template=template, weights=here)
    ]
    if files.length is not None:
        faults += _length_faults(topology, files.length, "max_position_embeddings in config.json", source)
    return faults


def reference_faults(topology: Topology, source: Source) -> list[Fault]:
    """What is wrong with the model that ``algorithm.kl.reference`` names."""
    kl, place = topology.algorithm.kl, ("algorithm", "kl", "reference")
    if kl is None or kl.reference == STAGE_START:
        return []
    here = not is_hub_name(kl.reference)
    directory = Path(kl.reference).expanduser()
    if here and not (directory / "config.json").is_file():
        remedy = f"name a model's directory, relative to the working directory, a model of the hub, or {STAGE_START!r}"
        return [source.fault(place, f"there is no {directory / 'config.json'}", remedy)]
    try:
        reference = ModelFiles.read(directory if here else metadata(kl.reference))
        faults = [source.fault(place, message, remedy) for message, remedy in reference.files_missing(weights=here)]
        name = topology.model.path
        if faults or name is None:  # the learner compares a vocabulary that is made here
            return faults
        model = ModelFiles.read(metadata(name) if is_hub_name(name) else Path(name).expanduser())
        tokens, expected = reference.vocabulary(), model.vocabulary()
        fault = vocabulary_fault(tokens, expected) if tokens else ""
        return [source.fault(place, f"{reference.directory} {fault}")] if fault else []
    except HubError as error:
        return [source.fault(place, str(error))]
    except Unreadable as error:
        return [source.fault(place, str(error), "save the model again, or copy it whole")]


def device_faults(topology: Topology, source: Source, host: str | None, *, elsewhere: bool = False) -> Iterator[Fault]:
    """Devices that actors of this machine name and cannot have.

    ``host`` is the one that is started here, if one is named. ``elsewhere``: hosts whose GPUs the file counts may be
    other machines.
    """
    machine = Machine.here()
    for role, entry in topology.actors.items():
        device, homes = entry.settings.get("device"), {*topology.homes(role).values(), *entry.rank_hosts}
        here = [name for name in homes if is_here(topology, name, host)]
        counted = elsewhere and all(topology.hosts[name].gpus is not None for name in homes)
        kind = str(device).partition(":")[0]
        if not here or not isinstance(device, str) or (counted and kind == KIND):
            continue
        if fault := device_fault(device, machine):
            yield source.fault(("actors", role, "settings", "device"), fault)


def named_template(topology: Topology, base: Path) -> str | None:
    """The template that the topology names in place of the tokenizer's; None when it names none. Raises Unreadable."""
    file = template_file(topology, base)
    if file is not None:
        return read_template(file) if file.is_file() else OURS["chatml"]  # that it is not there is said elsewhere
    return None if topology.model.chat_template is None else OURS[topology.model.chat_template]


def _length_faults(topology: Topology, length: int, where: str, source: Source) -> Iterator[Fault]:
    """The first stage whose responses are longer than any sequence of the model."""
    for index, stage in enumerate(topology.stages):
        if not isinstance(stage, SftStage) and stage.max_response_tokens > length:
            message = (
                f"asks for {stage.max_response_tokens} tokens of a response, and a sequence has {length}, "
                f"its prompt included ({where})"
            )
            key = ("stages", index, "max_response_tokens")
            yield source.fault(key, message, "lower it, or take a model with longer sequences")
            return
