"""Check a topology before any process starts: classes, settings, links, cycles, windows, files, hosts.

A check yields a `Finding` for each fault. Actor classes are inspected only through their declarations (``receives``,
``links``, ``Settings``; optionally ``single`` and a classmethod ``check``), so that a substitute must fulfil the
contract of its role.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Protocol, cast

from pydantic import BaseModel, ValidationError

from agent_rl.config.algorithm import Algorithm
from agent_rl.config.load import in_order, invalid_values
from agent_rl.config.plugins import PluginError, find, resolve
from agent_rl.config.processes import ActorEntry
from agent_rl.config.selection import SelectStage
from agent_rl.config.source import Fault, Files, Finding, Source, first_of
from agent_rl.config.suggestions import suggest
from agent_rl.config.toml_lines import KeyPath
from agent_rl.config.topology import SftStage, Topology
from agent_rl.models.devices import Machine
from agent_rl.topology_checks import contracts, environments, files, hosts, memory, model, placement, programs
from agent_rl.topology_checks.facts import Facts

HIGH_RATE = 1e-4
"""Full training of a given model diverges, or forgets what the model knew, at higher supervised rates."""


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
    settings: BaseModel | None = None


def check_topology(
    topology: Topology,
    files: Files,
    overrides: Sequence[str] = (),
    *,
    host: str | None = None,
    beside: Path | None = None,
    elsewhere: bool = False,
    noted: list[Fault] | None = None,
) -> list[Fault]:
    """All that is wrong with a topology that could be loaded from ``files``; an empty list means it is sound.

    Ports are looked at for the ``host`` that is to be started here, or for all. Relative paths start from the folder of
    the file ``beside`` (default: the first file). ``elsewhere``: hosts whose GPUs the file counts may be other
    machines. What is only probably a mistake in the data is added to ``noted``.
    """
    source, facts = Source(files, overrides), Facts((beside or first_of(files)).parent, host, elsewhere)
    found: list[Finding] = []
    notes: list[Finding] = []
    actors = {role: actor for role in topology.actors if (actor := _find_actor(topology, role, found)) is not None}
    for actor in actors.values():
        found += [*_declaration(topology, actor), *_unreceived(actor, actors)]
    if not found:  # else what nobody sends follows from them
        found += [*_unsent(actors), *_other_format(actors)]
    found += [*_circle(actors), *_two_of_one(actors)]
    for check in CHECKS:
        found += check(topology, facts)
    if not found:  # reading the tasks takes a while, and says nothing new about files that are not there
        found += [*memory.memory_findings(topology, facts), *environments.environment_findings(topology, facts, notes)]
    found += hosts.host_findings(topology, facts)
    if noted is not None:
        noted += [source.fault(*each) for each in notes]
    return in_order([source.fault(*each) for each in found])


def warnings(topology: Topology, files: Files, overrides: Sequence[str] = ()) -> list[Fault]:
    """What is probably a mistake in a sound topology. `check` and `run` print it and go on."""
    source = Source(files, overrides)
    machine = Machine.here()
    found = (*model.slow_products(topology, machine), *memory.memory_warnings(topology, machine))
    slow = [source.fault(*each) for each in found]
    message, remedy = f"is above {HIGH_RATE:g}, which can destroy what the given model knows", "the default is 5e-6"
    return slow + [
        source.fault(("stages", index, "learning_rate"), f"{stage.learning_rate:g} {message}", remedy)
        for index, stage in enumerate(topology.stages)
        if isinstance(stage, SftStage) and stage.learning_rate > HIGH_RATE and topology.model.initialise is None
    ]


def _plugins(topology: Topology, _: Facts) -> Iterator[Finding]:
    """Names of the recipe and of trackers that stand for nothing. A loss is not imported, since it loads torch."""
    algorithm = topology.algorithm
    lookups: list[tuple[Any, Any, str, KeyPath]] = [
        (resolve, "selection", algorithm.resampling, ("algorithm", "resampling")),
        (resolve, "curriculum", algorithm.curriculum, ("algorithm", "curriculum")),
        (resolve, "advantage", algorithm.advantage, ("algorithm", "advantage")),
        (find, "loss", algorithm.loss, ("algorithm", "loss")),
        *((resolve, "tracker", name, ("run", "trackers", at)) for at, name in enumerate(topology.run.trackers)),
    ]
    for look_up, kind, name, place in lookups:
        try:
            look_up(kind, name)
        except PluginError as error:
            yield Finding(place, error.message, error.remedy)


def _algorithm(topology: Topology, _: Facts) -> Iterator[Finding]:
    algorithm = topology.algorithm
    yield from _samples(algorithm, ("algorithm", "keep"), ("algorithm", "minimum_samples"))
    for index, stage, own in topology.rl_algorithms:
        if stage.samples is not None:
            yield from _samples(own, ("stages", index, "samples"), ("stages", index, "samples"))
        if algorithm.overlong == "penalty" and algorithm.overlong_cache > stage.max_response_tokens:
            message = f"is more than the {stage.max_response_tokens} max_response_tokens of stage {stage.name!r}"
            yield Finding(("algorithm", "overlong_cache"), message, "lower it, to a fifth for instance")


def _samples(algorithm: Algorithm, keep: KeyPath, least: KeyPath) -> Iterator[Finding]:
    """Groups with fewer samples than they need; ``keep`` and ``least`` are the keys that say how many they need."""
    if algorithm.keep > algorithm.samples:
        message = f"keeps {algorithm.keep} of {algorithm.samples} samples of a group"
        yield Finding(keep, message, "keep at most as many as are sampled")
    if algorithm.minimum_samples > algorithm.samples:
        message = f"no group of {algorithm.samples} samples can have {algorithm.minimum_samples} usable ones"
        yield Finding(least, message, "lower it, or sample more")


def _selections(topology: Topology, _: Facts) -> Iterator[Finding]:
    """Select stages whose problems no later stage trains on."""
    last = max((index for index, _, _ in topology.rl_algorithms), default=-1)
    for index, stage in enumerate(topology.stages):
        if isinstance(stage, SelectStage) and index > last:
            message = "nothing trains on the problems that it keeps"
            yield Finding(("stages", index), message, "add an rl stage after it, or remove it")


CHECKS = (
    _algorithm,
    _selections,
    _plugins,
    environments.class_findings,
    files.missing_files,
    files.run_directory,
    model.model_findings,
    model.reference_findings,
    model.device_findings,
    placement.rank_findings,
    placement.placement_findings,
    programs.program_findings,
)
"""The checks of a whole topology that need no sound actors."""


def _find_actor(topology: Topology, role: str, found: list[Finding]) -> CheckedActor | None:
    """A role whose class can be an actor; None, and findings that say why, for any other."""
    entry, place = topology.actors[role], ("actors", role, "class")
    try:
        cls = resolve("actor", entry.class_path)
    except PluginError as error:
        found.append(Finding(place, error.message, error.remedy))
        return None
    if objections := [Finding(place, *each) for each in contracts.class_findings(cls, entry.class_path)]:
        found += objections
        return None
    actor_class, settings = cast("ActorClass", cls), None
    try:
        settings = actor_class.Settings.model_validate(entry.settings)
    except ValidationError as error:
        found += invalid_values(error, actor_class.Settings, entry.settings, ("actors", role, "settings"))
    return CheckedActor(role, entry, actor_class, settings)


def _declaration(topology: Topology, actor: CheckedActor) -> Iterator[Finding]:
    """Replicas, link names, and what the class itself objects to."""
    role, entry, cls = actor.role, actor.entry, actor.cls
    place = ("actors", role)
    if getattr(cls, "single", False) and len(entry.homes) != 1:
        message = f"{entry.class_path} keeps state of the whole run, so there is exactly one"
        count, several = "replicas" if entry.replicas is not None else "replicas_per_host", entry.hosts or ()
        key, remedy = ("hosts", f'write host = "{several[0]}"') if len(several) > 1 else (count, f"write {count} = 1")
        yield Finding((*place, key), message, remedy)
    yield from _coming_and_going(topology, actor)
    for link, declared in cls.links.items():
        if link not in entry.links and getattr(declared, "required", True):
            types = " or ".join(message.__name__ for message in declared.messages)
            remedy = f"say which role receives its {types}: {link} = '...'"
            yield Finding((*place, "links"), f"the link {link!r} leads nowhere", remedy)
    for link in entry.links:
        if link not in cls.links:
            yield Finding((*place, "links", link), f"{entry.class_path} has no such link", suggest(link, cls.links))
    if actor.settings is not None:
        yield from (Finding(*each) for each in contracts.objections(role, cls, topology, actor.settings))
        for found in contracts.option_findings(cls, entry.class_path, actor.settings):
            yield Finding((*place, "class"), *found)


def _coming_and_going(topology: Topology, actor: CheckedActor) -> Iterator[Finding]:
    """Optional hosts and replicas that start later, where the run would stand still without them."""
    role, entry = actor.role, actor.entry
    homes = dict.fromkeys((*entry.homes, *entry.rank_hosts))
    optional = [name for name in homes if name in topology.hosts and topology.hosts[name].optional]
    all_needed = entry.ranks > 1 or getattr(actor.cls, "each_needed", False)
    if optional and (all_needed or not homes.keys() - set(optional)):
        message = f"the run stands still without {role} of this host"
        remedy = f"leave the key out, or let another host run {role} too"
        yield Finding(("hosts", optional[0], "optional"), message, remedy)
    if entry.start is not None and all_needed and entry.start < len(entry.homes):
        message = f"each process of {role} does a part that no other can do, so all must run"
        yield Finding(("actors", role, "start"), message, "leave the key out")


def _unreceived(actor: CheckedActor, actors: Mapping[str, CheckedActor]) -> Iterator[Finding]:
    """Whether every target receives what a link carries."""
    for link, declared in actor.cls.links.items():
        if link not in actor.entry.links:
            continue
        place, targets = ("actors", actor.role, "links", link), actor.entry.targets(link)
        if not targets:
            yield Finding(place, "leads nowhere", "name the role it leads to")
        for target in targets:
            if target in actors and (message := _not_received(declared, actors[target])):
                yield Finding(place, message, f"lead it to a role that does, or give {target} a class that does")


def _not_received(declared: LinkDeclaration, target: CheckedActor) -> str:
    """What of the link's messages the target does not receive or answers otherwise; empty: it takes all."""
    name = f"{target.role} ({target.entry.class_path})"
    same_kind = [received for received in target.cls.receives if received.kind == declared.kind]
    verb = "answer" if declared.kind == "call" else "receive"
    known = {message for received in same_kind for message in received.messages}
    lacking = [message.__name__ for message in declared.messages if message not in known]
    if lacking:
        return f"{name} does not {verb} {', '.join(lacking)} by {declared.kind}"
    wanted = getattr(declared, "reply", None)
    replies = {getattr(received, "reply", None) for received in same_kind if received.messages == declared.messages}
    if wanted is not None and wanted not in replies:
        given = ", ".join(sorted(reply.__name__ for reply in replies if reply is not None))
        return f"{name} answers {declared.messages[0].__name__} with {given}, not with {wanted.__name__}"
    return ""


def _unsent(actors: Mapping[str, CheckedActor]) -> Iterator[Finding]:
    """Messages that an actor requires and that no actor sends."""
    for role, actor in actors.items():
        sent = {
            (declared.kind, message)
            for other in actors.values()
            for link, declared in other.cls.links.items()
            if role in other.entry.targets(link)
            for message in declared.messages
        }
        for received in actor.cls.receives:
            unsent = ", ".join(each.__name__ for each in received.messages if (received.kind, each) not in sent)
            if unsent and getattr(received, "required", True):
                message = f"{actor.entry.class_path} receives {unsent} by {received.kind}, and nobody sends it"
                remedy = f"lead a link to {role} that carries it, or declare it as received with required=False"
                yield Finding(("actors", role, "class"), message, remedy)


def _other_format(actors: Mapping[str, CheckedActor]) -> Iterator[Finding]:
    """Roles that declare different formats of episodes: conversations have one."""
    found = {role: contracts.declaration(actor.cls, actor.entry.settings) for role, actor in actors.items()}
    declared = {role: value for role, value in found.items() if value is not None}
    first = next(iter(declared), "")
    for role, value in declared.items():
        if value != declared[first]:
            message = f"{actors[role].entry.class_path} declares another format of episodes than {first} does"
            yield Finding(("actors", role, "class"), message, "give both the same")


def _two_of_one(actors: Mapping[str, CheckedActor]) -> Iterator[Finding]:
    """Two roles of one class that keeps state of the whole run."""
    seen: dict[str, str] = {}
    for role, actor in actors.items():
        first = seen.setdefault(actor.entry.class_path, role)
        if first != role and getattr(actor.cls, "single", False):
            message = f"{actor.entry.class_path} keeps state of the whole run, and {first} is one already"
            yield Finding(("actors", role, "class"), message, "remove one of them")


def _circle(actors: Mapping[str, CheckedActor]) -> Iterator[Finding]:
    if cycle := find_cycle({role: _waits_for(actor) for role, actor in actors.items()}):
        message = f"actors wait for each other in a circle: {' -> '.join(cycle)}"
        remedy = "a full queue would stop them all; break the circle, or wait in a task of its own"
        yield Finding(("actors", cycle[0], "links"), message, remedy)


def _waits_for(actor: CheckedActor) -> list[str]:
    """The roles an actor may wait for inside a handler: by a push without credit, by a call without an answer."""
    return [
        target
        for link, declared in actor.cls.links.items()
        if getattr(declared, "awaited_in_handler", False) and link in actor.entry.links
        for target in actor.entry.targets(link)
    ]


def find_cycle(edges: Mapping[str, Iterable[str]]) -> list[str]:
    """A circle in a directed graph, as ``[a, b, a]``; empty when there is none."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for node, targets in edges.items():
        for target in targets:
            sorter.add(target, node)
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []
