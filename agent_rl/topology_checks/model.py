"""Check that a topology's model can be loaded and has a usable chat template, and that the actors' devices exist.

No code here loads torch or transformers; `agent_rl.models.model_files` reads the files directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agent_rl.config.algorithm import STAGE_START
from agent_rl.config.placement import KIND
from agent_rl.config.source import Finding
from agent_rl.config.topology import SftStage, Topology
from agent_rl.models import architectures
from agent_rl.models.devices import Machine, device_fault
from agent_rl.models.hub import HubError, described_model, is_hub_name
from agent_rl.models.model_files import MEND, SAVE_AGAIN, ModelFiles, Unreadable, read_template, vocabulary_fault
from agent_rl.models.shapes import LEAST_WEIGHTS
from agent_rl.models.template_trial import template_fault
from agent_rl.rollout.prompts import OURS, template_file
from agent_rl.topology_checks.facts import Facts
from agent_rl.topology_checks.memory import GENERATOR, LEARNER, shape_of

PLACE = ("model", "path")


def model_findings(topology: Topology, facts: Facts) -> Iterator[Finding]:
    """What is wrong with the directory or hub name of ``model.path``, and with the chat template that is named."""
    yield from _template_findings(topology, facts.base)
    name = topology.model.path
    if name is None:
        assert topology.model.initialise is not None
        yield from _too_long(topology, topology.model.initialise.max_length, "model.initialise.max_length")
        return
    here = not is_hub_name(name)
    directory = Path(name).expanduser()
    if here and not directory.is_dir():
        remedy = "correct the path" if directory.is_absolute() else "it is relative to the working directory"
        yield Finding(PLACE, f"there is no directory {directory}", remedy)
        return
    if here and (directory / "checkpoints").is_dir():
        yield Finding(PLACE, f"{directory} is a run", "name a model in its folder `checkpoints`")
        return
    if here and not (directory / "config.json").is_file():
        yield Finding(PLACE, f"{directory} has no config.json", "it must be a Hugging Face model directory")
        yield from (Finding(PLACE, *found) for found in ModelFiles(directory, {}).files_missing())
        return
    try:
        files = described_model(name)
    except HubError as error:
        yield Finding(PLACE, str(error))
        return
    except Unreadable as error:
        yield Finding(PLACE, str(error), SAVE_AGAIN)
        return
    faults = list(files.faults(template=topology.model.chat_template is None, weights=here))
    yield from (Finding(PLACE, *found) for found in faults)
    if faults:
        return
    if "learner" in topology.actors and (fault := architectures.fault(files.config)):
        yield Finding(PLACE, f"{name} cannot be trained: it {fault}", "docs/families.md lists the models that can")
    entry, fault = topology.actors.get(GENERATOR), architectures.torch_fault(files.config)
    if fault and entry is not None and entry.settings.get("engine", "torch") == "torch":
        message = f"the torch engine cannot serve {name}: it {fault}"
        yield Finding(("actors", GENERATOR, "settings", "engine"), message, 'write engine = "vllm"')
    if files.length is not None:
        yield from _too_long(topology, files.length, "max_position_embeddings in config.json")


def _template_findings(topology: Topology, base: Path) -> Iterator[Finding]:
    """What is wrong with the file that ``model.chat_template`` names."""
    file, place = template_file(topology, base), ("model", "chat_template")
    if file is None or not file.is_file():  # that it is not there is said elsewhere
        return
    try:
        if fault := template_fault(read_template(file)):
            yield Finding(place, f"the chat template {file} {fault}", MEND)
    except Unreadable as error:
        yield Finding(place, str(error), "write it as UTF-8 text")


def reference_findings(topology: Topology, _: Facts) -> Iterator[Finding]:
    """What is wrong with the model that ``algorithm.kl.reference`` names."""
    kl, place = topology.algorithm.kl, ("algorithm", "kl", "reference")
    if kl is None or kl.reference == STAGE_START:
        return
    here = not is_hub_name(kl.reference)
    file = Path(kl.reference).expanduser() / "config.json"
    if here and not file.is_file():
        remedy = f"name a model's directory, relative to the working directory, a model of the hub, or {STAGE_START!r}"
        yield Finding(place, f"there is no {file}", remedy)
        return
    try:
        reference = described_model(kl.reference)
        missing = [Finding(place, *found) for found in reference.files_missing(weights=here)]
        yield from missing
        if missing or topology.model.path is None:  # the learner compares a vocabulary that is made here
            return
        expected, tokens = described_model(topology.model.path).vocabulary(), reference.vocabulary()
        if tokens and (fault := vocabulary_fault(tokens, expected)):
            yield Finding(place, f"{reference.directory} {fault}")
    except HubError as error:
        yield Finding(place, str(error))
    except Unreadable as error:
        yield Finding(place, str(error), SAVE_AGAIN)


def device_findings(topology: Topology, facts: Facts) -> Iterator[Finding]:
    """Devices that actors of this machine name and cannot have."""
    for role, entry in topology.actors.items():
        device, homes = entry.settings.get("device"), {*topology.homes(role).values(), *entry.rank_hosts}
        counted = facts.elsewhere and all(topology.hosts[name].gpus is not None for name in homes)
        if not isinstance(device, str) or not any(facts.is_here(topology, name) for name in homes):
            continue
        if counted and device.partition(":")[0] == KIND:
            continue
        if fault := device_fault(device, facts.machine):
            yield Finding(("actors", role, "settings", "device"), fault)


def slow_products(topology: Topology, machine: Machine) -> Iterator[Finding]:
    """Actors on this machine's processor that are told to compute in the type that it is slow at.

    Of models that `agent_rl.learning.rates` measures; engine and learner choose by themselves where they may.
    """
    shape, native, model = shape_of(topology), machine.bfloat16, topology.model
    if shape is None or shape.weights < LEAST_WEIGHTS or native is None or len(topology.hosts_in_use) > 1:
        return
    for role, entry in topology.actors.items():
        if role not in {LEARNER, GENERATOR} or str(entry.settings.get("device", "cpu")) != "cpu":
            continue
        chooses = entry.ranks == 1 and entry.settings.get("engine", "torch") == "torch"
        key = "compute" if chooses else "dtype"
        chosen = model.compute if chooses else model.dtype
        better = "bfloat16" if native else "float32"
        if chosen in {"auto", better}:
            continue
        why = "has instructions for products in bfloat16" if native else "has no instructions for bfloat16"
        message = f"{role} computes in {chosen}, several times slower than in {better}: this processor {why}"
        yield Finding(("model", key), message, 'write "auto"' if chooses else f'write dtype = "{better}"')


def named_template(topology: Topology, base: Path) -> str | None:
    """The template that the topology names in place of the tokenizer's; None when it names none. Raises Unreadable."""
    file = template_file(topology, base)
    if file is not None:
        return read_template(file) if file.is_file() else OURS["chatml"]  # that it is not there is said elsewhere
    return None if topology.model.chat_template is None else OURS[topology.model.chat_template]


def _too_long(topology: Topology, length: int, where: str) -> Iterator[Finding]:
    """The first stage whose responses are longer than any sequence of the model."""
    for index, stage in enumerate(topology.stages):
        if not isinstance(stage, SftStage) and stage.max_response_tokens > length:
            asked = f"asks for {stage.max_response_tokens} tokens of a response"
            message = f"{asked}, and a sequence has {length}, its prompt included ({where})"
            remedy = "lower it, or take a model with longer sequences"
            yield Finding(("stages", index, "max_response_tokens"), message, remedy)
            return
