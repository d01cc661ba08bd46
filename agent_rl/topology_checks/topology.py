"""Check a topology before any process starts: classes, settings, links, cycles, windows, files, hosts.

Actor classes are inspected only through their declarations (``receives``, ``links``, ``Settings``; optionally
``single`` and a classmethod ``check``), so that a substitute must fulfil the contract of its role.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from pydantic import BaseModel, ValidationError

from agent_rl.config.algorithm import Algorithm
from agent_rl.config.load import in_order, validation_faults
from agent_rl.config.plugins import Kind, PluginError, find, resolve
from agent_rl.config.processes import ActorEntry
from agent_rl.config.selection import SelectStage
from agent_rl.config.source import Fault, Files, Source, first_of
from agent_rl.config.suggestions import suggest
from agent_rl.config.toml_lines import KeyPath
from agent_rl.config.topology import Topology
from agent_rl.topology_checks.contracts import class_findings, declaration, objections, option_findings
from agent_rl.topology_checks.environments import class_faults, environment_faults
from agent_rl.topology_checks.files import file_faults
from agent_rl.topology_checks.hosts import host_faults
from agent_rl.topology_checks.model import device_faults, model_faults, reference_faults
from agent_rl.topology_checks.placement import placement_faults
from agent_rl.topology_checks.ranks import rank_faults


class LinkDeclaration(Protocol):
    """An actor class's declaration of a link: its kind (push, call, announce) and its message types."""

    kind: str

    @property
    def messages(self) -> tuple[type, ...]:
        """The types sent, or those received."""


class ActorClass(Protocol):
    """What checking asks of an actor class."""

    Settings: type[BaseModel]
    receives: Sequence[LinkDeclaration]
    links: Mapping[str, LinkDeclaration]


@dataclass(frozen=True)
class CheckedActor:
    """An actor whose class was found; ``settings`` is None when they are not valid."""

    role: str
    entry: ActorEntry
    cls: ActorClass
    settings: BaseModel | None = field(default=None)


def check_topology(
    topology: Topology,
    files: Files,
    overrides: Sequence[str] = (),
    *,
    host: str | None = None,
    beside: Path | None = None,
    elsewhere: bool = False,
) -> list[Fault]:
    """All that is wrong with a topology that could be loaded from ``files``; an empty list means it is sound.

    Ports are looked at for the ``host`` that is to be started here, or for all. Relative paths start from the folder of
    the file ``beside`` (default: the first file). ``elsewhere``: hosts whose GPUs the file counts may be other
    machines.
    """
    source, path = Source(files, overrides), beside or first_of(files)
    faults: list[Fault] = []
    actors = {}
    for role in topology.actors:
        actor = _find_actor(topology, role, source, faults)
        if actor is not None:
            actors[role] = actor
    for actor in actors.values():
        faults += _declaration_faults(topology, actor, source)
        faults += _link_faults(actor, actors, source)
    if not faults:  # else what nobody sends follows from them
        faults += _unsent_faults(actors, source) + _disagreement_faults(actors, source)
    cycle = find_cycle({role: _waits_for(actor) for role, actor in actors.items()})
    if cycle:
        message = f"actors wait for each other in a circle: {' -> '.join(cycle)}"
        remedy = "a full queue would stop them all; break the circle, or wait in a task of its own"
        faults.append(source.fault(("actors", cycle[0], "links"), message, remedy))
    faults += _algorithm_faults(topology, source) + _selection_faults(topology, source)
    algorithm = topology.algorithm
    _resolved("selection", algorithm.resampling, ("algorithm", "resampling"), source, faults)
    _resolved("advantage", algorithm.advantage, ("algorithm", "advantage"), source, faults)
    try:
        find("loss", algorithm.loss)
    except PluginError as error:
        faults.append(source.fault(("algorithm", "loss"), error.message, error.remedy))
    faults += _shared_role_faults(actors, source)
    faults += class_faults(topology, source)
    for index, tracker in enumerate(topology.run.trackers):
        _resolved("tracker", tracker, ("run", "trackers", index), source, faults)
    faults += file_faults(topology, path, source, host)
    faults += model_faults(topology, path, source) + reference_faults(topology, source)
    faults += device_faults(topology, source, host, elsewhere=elsewhere)
    faults += rank_faults(topology, source)
    faults += placement_faults(topology, source, host)
    if not faults:  # reading the tasks takes a while, and says nothing new about files that are not there
        faults += environment_faults(topology, path, source)
    faults += host_faults(topology, path, source, host)
    return in_order(faults)


def _shared_role_faults(actors: Mapping[str, Any], source: Source) -> list[Fault]:
    """Two roles of one class that keeps state of the whole run."""
    seen: dict[str, str] = {}
    faults = []
    for role, actor in actors.items():
        first = seen.setdefault(actor.entry.class_path, role)
        if first != role and getattr(actor.cls, "single", False):
            message = f"{actor.entry.class_path} keeps state of the whole run, and {first} is one already"
            faults.append(source.fault(("actors", role, "class"), message, "remove one of them"))
    return faults


def find_cycle(edges: Mapping[str, Iterable[str]]) -> list[str]:
    """A circle in a directed graph, as ``[a, b, a]``; empty when there is none."""
    finished: set[str] = set()

    def follow(node: str, way: list[str]) -> list[str]:
        if node in way:
            return [*way[way.index(node) :], node]
        if node in finished:
            return []
        for target in edges.get(node, ()):
            cycle = follow(target, [*way, node])
            if cycle:
                return cycle
        finished.add(node)
        return []

    for node in edges:
        cycle = follow(node, [])
        if cycle:
            return cycle
    return []


def _find_actor(topology: Topology, role: str, source: Source, faults: list[Fault]) -> CheckedActor | None:
    entry = topology.actors[role]
    place = ("actors", role, "class")
    cls = _resolved("actor", entry.class_path, place, source, faults)
    if cls is None:
        return None
    findings = list(class_findings(cls, entry.class_path))
    if findings:
        faults += [source.fault(place, message, remedy) for message, remedy in findings]
        return None
    actor_class = cast("ActorClass", cls)
    settings = None
    try:
        settings = actor_class.Settings.model_validate(entry.settings)
    except ValidationError as error:
        faults += validation_faults(error, actor_class.Settings, source, entry.settings, ("actors", role, "settings"))
    return CheckedActor(role, entry, actor_class, settings)


def _resolved(kind: Kind, name: str, place: KeyPath, source: Source, faults: list[Fault]) -> Any:
    """The plug-in, or None and a fault that says why there is none."""
    try:
        return resolve(kind, name)
    except PluginError as error:
        faults.append(source.fault(place, error.message, error.remedy))
        return None


def _coming_and_going_faults(topology: Topology, actor: CheckedActor, source: Source) -> Iterator[Fault]:
    """Optional hosts and replicas that start later, where the run would stand still without them."""
    role, entry = actor.role, actor.entry
    homes = dict.fromkeys((*entry.homes, *entry.rank_hosts))
    optional = [name for name in homes if name in topology.hosts and topology.hosts[name].optional]
    all_needed = entry.ranks > 1 or getattr(actor.cls, "each_needed", False)
    if optional and (all_needed or not homes.keys() - set(optional)):
        message = f"the run stands still without {role} of this host"
        remedy = f"leave the key out, or let another host run {role} too"
        yield source.fault(("hosts", optional[0], "optional"), message, remedy)
    if entry.start is not None and all_needed and entry.start < len(entry.homes):
        message = f"each process of {role} does a part that no other can do, so all must run"
        yield source.fault(("actors", role, "start"), message, "leave the key out")


def _declaration_faults(topology: Topology, actor: CheckedActor, source: Source) -> list[Fault]:
    """Replicas, link names, and what the class itself objects to."""
    faults = []
    place = ("actors", actor.role)
    if getattr(actor.cls, "single", False) and len(actor.entry.homes) != 1:
        message = f"{actor.entry.class_path} keeps state of the whole run, so there is exactly one"
        count = "replicas" if actor.entry.replicas is not None else "replicas_per_host"
        hosts = actor.entry.hosts or ()
        key, remedy = ("hosts", f'write host = "{hosts[0]}"') if len(hosts) > 1 else (count, f"write {count} = 1")
        faults.append(source.fault((*place, key), message, remedy))
    faults += _coming_and_going_faults(topology, actor, source)
    for link, declared in actor.cls.links.items():
        if link not in actor.entry.links and getattr(declared, "required", True):
            types = " or ".join(message.__name__ for message in declared.messages)
            remedy = f"say which role receives its {types}: {link} = '...'"
            faults.append(source.fault((*place, "links"), f"the link {link!r} leads nowhere", remedy))
    for link in actor.entry.links:
        if link not in actor.cls.links:
            message = f"{actor.entry.class_path} has no such link"
            faults.append(source.fault((*place, "links", link), message, suggest(link, actor.cls.links)))
    if actor.settings is not None:
        found = objections(actor.role, actor.cls, topology, actor.settings)
        faults += [source.fault(key, message) for key, message in found]
        options = option_findings(actor.cls, actor.entry.class_path, actor.settings)
        faults += [source.fault((*place, "class"), message, remedy) for message, remedy in options]
    return faults


def _link_faults(actor: CheckedActor, actors: Mapping[str, CheckedActor], source: Source) -> list[Fault]:
    """Whether every target receives what a link carries."""
    faults = []
    for link, declared in actor.cls.links.items():
        if link not in actor.entry.links:
            continue
        place = ("actors", actor.role, "links", link)
        targets = actor.entry.targets(link)
        if not targets:
            faults.append(source.fault(place, "leads nowhere", "name the role it leads to"))
        for target in targets:
            if target in actors:
                faults += [
                    source.fault(place, message, f"lead it to a role that does, or give {target} a class that does")
                    for message in _not_received(declared, actors[target])
                ]
    return faults


def _disagreement_faults(actors: Mapping[str, CheckedActor], source: Source) -> list[Fault]:
    """Two roles that declare different formats of episodes: conversations have one."""
    faults = []
    found = {role: declaration(actor.cls, actor.entry.settings) for role, actor in actors.items()}
    declared = {role: value for role, value in found.items() if value is not None}
    first = next(iter(declared), "")
    for role, value in declared.items():
        if value != declared[first]:
            message = f"{actors[role].entry.class_path} declares another format of episodes than {first} does"
            faults.append(source.fault(("actors", role, "class"), message, "give both the same"))
    return faults


def _unsent_faults(actors: Mapping[str, CheckedActor], source: Source) -> list[Fault]:
    """Messages that an actor requires and that no actor sends."""
    faults = []
    for role, actor in actors.items():
        sent = {
            (declared.kind, message)
            for other in actors.values()
            for link, declared in other.cls.links.items()
            if role in other.entry.targets(link)
            for message in declared.messages
        }
        for received in actor.cls.receives:
            unsent = [each.__name__ for each in received.messages if (received.kind, each) not in sent]
            if unsent and getattr(received, "required", True):
                message = (
                    f"{actor.entry.class_path} receives {', '.join(unsent)} by {received.kind}, and nobody sends it"
                )
                remedy = f"lead a link to {role} that carries it, or declare it as received with required=False"
                faults.append(source.fault(("actors", role, "class"), message, remedy))
    return faults


def _not_received(declared: LinkDeclaration, target: CheckedActor) -> list[str]:
    """The link's messages that the target does not receive."""
    name = f"{target.role} ({target.entry.class_path})"
    same_kind = [received for received in target.cls.receives if received.kind == declared.kind]
    verb = "answer" if declared.kind == "call" else "receive"
    known = {message for received in same_kind for message in received.messages}
    lacking = [message.__name__ for message in declared.messages if message not in known]
    if lacking:
        return [f"{name} does not {verb} {', '.join(lacking)} by {declared.kind}"]
    wanted = getattr(declared, "reply", None)
    replies = {getattr(received, "reply", None) for received in same_kind if received.messages == declared.messages}
    if wanted is not None and wanted not in replies:
        given = ", ".join(sorted(reply.__name__ for reply in replies if reply is not None))
        return [f"{name} answers {declared.messages[0].__name__} with {given}, not with {wanted.__name__}"]
    return []


def _waits_for(actor: CheckedActor) -> list[str]:
    """The roles an actor may wait for inside a handler: by a push without credit, by a call without an answer."""
    return [
        target
        for link, declared in actor.cls.links.items()
        if getattr(declared, "awaited_in_handler", False) and link in actor.entry.links
        for target in actor.entry.targets(link)
    ]


def _algorithm_faults(topology: Topology, source: Source) -> list[Fault]:
    algorithm = topology.algorithm
    faults = _sample_faults(algorithm, "algorithm", source)
    for index, stage, own in topology.rl_algorithms:
        if stage.samples is not None:
            faults += _sample_faults(own, index, source)
        if algorithm.overlong == "penalty" and algorithm.overlong_cache > stage.max_response_tokens:
            message = f"is more than the {stage.max_response_tokens} max_response_tokens of stage {stage.name!r}"
            faults.append(source.fault(("algorithm", "overlong_cache"), message, "lower it, to a fifth for instance"))
    return faults


def _selection_faults(topology: Topology, source: Source) -> list[Fault]:
    """Select stages whose problems no later stage trains on."""
    last = max((index for index, _, _ in topology.rl_algorithms), default=-1)
    message, remedy = "nothing trains on the problems that it keeps", "add an rl stage after it, or remove it"
    return [
        source.fault(("stages", index), message, remedy)
        for index, stage in enumerate(topology.stages)
        if isinstance(stage, SelectStage) and index > last
    ]


def _sample_faults(algorithm: Algorithm, place: str | int, source: Source) -> list[Fault]:
    """Groups with fewer samples than they need; ``place``: that of the run, or the stage with samples of its own."""
    keep: KeyPath = ("algorithm", "keep") if isinstance(place, str) else ("stages", place, "samples")
    least: KeyPath = ("algorithm", "minimum_samples") if isinstance(place, str) else keep
    faults = []
    if algorithm.keep > algorithm.samples:
        message = f"keeps {algorithm.keep} of {algorithm.samples} samples of a group"
        faults.append(source.fault(keep, message, "keep at most as many as are sampled"))
    if algorithm.minimum_samples > algorithm.samples:
        message = f"no group of {algorithm.samples} samples can have {algorithm.minimum_samples} usable ones"
        faults.append(source.fault(least, message, "lower it, or sample more"))
    return faults
