"""Load a Topology from TOML files and ``--set`` overrides, or report every fault with its line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from agent_rl.config.hidden import is_reference, redacted
from agent_rl.config.processes import Misfit
from agent_rl.config.schema import inner, names_of, stage_key
from agent_rl.config.source import SMALLER, Fault, Files, Finding, Source, TopologyError, first_of
from agent_rl.config.standard import RANK, STANDARD, completed, several_ranks
from agent_rl.config.suggestions import suggest
from agent_rl.config.toml_lines import KeyPath
from agent_rl.config.topology import Topology


def load_topology(files: Files, overrides: Sequence[str] = (), text: str | None = None) -> Topology:
    """Read a topology file, or several, of which later ones are laid over those before; or a ``text`` of that name.

    Each override is ``dotted.key=value``, the value in TOML (a string needs no quotes).
    Raises TopologyError with all faults of syntax, keys, types and references. That the actors exist and fit together
    is for ``agent_rl.topology_checks.topology`` to say.
    """
    source = Source(files, overrides, text)
    data = completed(source.data)
    topology: Topology | None = None
    findings: list[Finding] = []
    try:
        topology = Topology.model_validate(data)
    except ValidationError as error:
        findings += invalid_values(error, Topology, data)
    findings += [*_reference_findings(data), *_number_findings(data, ())]
    faults = source.faults + [source.fault(*found) for found in findings]
    if faults or topology is None:
        raise TopologyError(first_of(files), in_order(faults))
    return topology


def in_order(faults: Sequence[Fault]) -> list[Fault]:
    """Faults as their keys stand in the files; those without a line come last."""
    return sorted(faults, key=lambda fault: (fault.line is None, str(fault.file or ""), fault.line or 0))


def invalid_values(
    error: ValidationError, model: type[BaseModel], data: Any, prefix: KeyPath = (), *, secrets: bool = False
) -> Iterable[Finding]:
    """Translate pydantic's errors to the keys of the file; ``prefix`` is the path of the validated table ``data``.

    With ``secrets``, no message repeats one, and a value ``env:NAME`` is not judged here: what it stands for is judged
    where that is known.
    """
    found: dict[KeyPath, Finding] = {}
    mistakes = error.errors(include_url=False)
    for mistake in mistakes:
        if secrets and is_reference(mistake["input"]):
            continue
        kind = mistake["type"]
        if kind == "too_short" and any(
            len(other["loc"]) > len(mistake["loc"])
            for other in mistakes
            if other is not mistake and other["loc"][: len(mistake["loc"])] == mistake["loc"]
        ):
            continue  # items that are wrong are said so themselves; pydantic then also misses them
        path = _file_path(mistake["loc"], data, missing=kind == "missing")
        if kind.startswith("union_tag"):
            path = (*path, str(mistake["ctx"]["discriminator"]).strip("'"))
        if secrets and isinstance(mistake["input"], str):
            mistake["input"] = _at(redacted(data, model), path, mistake["input"])
        message, remedy = _explain(kind, mistake, path, model, data)
        if path in found:  # each member of a union objects to the same value
            message = f"{found[path].message} or {message}"
        found[path] = Finding((*prefix, *path), message, remedy)
    return found.values()


def _at(data: Any, path: KeyPath, other: str) -> Any:
    """The value at ``path``; ``other`` where there is none."""
    for part in path:
        try:
            data = data[part]
        except (LookupError, TypeError):
            return other
    return data


_WANTED = {
    "int": "write a whole number, as in 5",
    "float": "write a number, as in 0.5",
    "bool": "write true or false",
    "string_type": 'write text in quotes, as in "text"',
    "tuple": "write an array, as in [1, 2]",
    "model": "write a table, as in [table]",
    "dict": "write a table, as in [table]",
}


def _explain(kind: str, mistake: Any, path: KeyPath, model: type[BaseModel], data: Any) -> tuple[str, str]:
    """Message and remedy for one of pydantic's errors."""
    if kind == "missing" and path[0] == "actors" and path[-1] == "class":
        role = str(path[1])
        remedy = f"{suggest(role, STANDARD)} A role of your own needs a class"
        return f"is missing, and {role!r} is no standard role", remedy
    if kind == "missing":
        return "is missing", "add it"
    if kind == "extra_forbidden" and (elsewhere := stage_key(path)):
        return elsewhere
    if kind == "extra_forbidden":
        annotation: Any = model
        for part in path[:-1]:
            annotation, data = inner(annotation, part, data), data[part]
        return "is no known key", suggest(str(path[-1]), names_of(annotation, {}, path[:-1]) or [])
    if kind == "union_tag_not_found":
        return "is missing", "it says what the entry is"
    if kind == "union_tag_invalid":
        tags = re.findall(r"'([^']*)'", mistake["ctx"]["expected_tags"])
        return f"{mistake['ctx']['tag']!r} is unknown", suggest(mistake["ctx"]["tag"], tags)
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", mistake["ctx"]["expected"])
        message = f"must be {mistake['ctx']['expected']}, not {mistake['input']!r}"
        return message, suggest(str(mistake["input"]), choices)
    if kind == "string_pattern_mismatch" and path[-1] == "class":
        return f"must be 'module:Class', not {mistake['input']!r}", "write for example 'actors.learner:Learner'"
    if kind.startswith(("model_", "dict_type")):
        return f"must be a table, not {mistake['input']!r}", _WANTED["dict"]
    message = mistake["msg"].removeprefix("Value error, ")
    if kind == "value_error":  # of a validator of ours, which says all there is to say
        return message, ""
    message = re.sub(r"^Input should be |^(?:String|Tuple|List|Value) should ", "must be ", message)
    message = message.replace("must be have", "must have").replace("must be match", "must match")
    message = message.split(", unable to parse")[0].replace("a valid integer", "a whole number")
    message = message.replace("a valid tuple", "a list").replace("a valid dictionary", "a table")
    remedy = next((text for start, text in _WANTED.items() if kind.startswith(start)), "")
    plain = isinstance(mistake["input"], str | int | float | bool | Misfit)
    return f"{message}, not {_shown(mistake['input'])}" if plain else message, remedy


def _shown(value: object) -> str:
    """A value as it is written, or its beginning."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


MOST_SHOWN = 80
"""Characters of a wrong value that a message repeats."""


def _file_path(loc: tuple[str | int, ...], data: Any, *, missing: bool) -> KeyPath:
    """Where in the file pydantic's location is: without the names of union members it puts between."""
    path: KeyPath = ()
    here: Any = data
    for index, part in enumerate(loc):
        last = index == len(loc) - 1
        known = part in here if isinstance(here, dict) else isinstance(here, list) and part in range(len(here))
        if known:
            here = here[part]
            path = (*path, part)
        elif missing and last and isinstance(here, dict):
            path = (*path, part)
    return path


def _number_findings(value: Any, path: KeyPath) -> Iterator[Finding]:
    """Whole numbers of more than 64 bits: no message between actors can carry them."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _number_findings(item, (*path, key))
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        yield Finding(path, "is beyond 64 bits", SMALLER)


def _reference_findings(data: Mapping[str, Any]) -> Iterator[Finding]:
    """What no type can say: either-or keys, and names that must exist elsewhere in the file.

    Looks at raw values, so that it reports these beside faults of type.
    """
    model = data.get("model")
    if isinstance(model, dict):
        given = bool(model.get("path")) + bool(model.get("initialise") or model.get("initialise") == {})
        if given != 1:
            said = "both are given" if given else "neither is given"
            yield Finding(("model",), f"needs exactly one of path and initialise, {said}")
    actors = data.get("actors")
    hosts = data.get("hosts", {"local": {}})
    if not isinstance(actors, dict) or not isinstance(hosts, dict):
        return
    for role, entry in actors.items():
        if not isinstance(entry, dict):
            continue
        if entry.get("class") != RANK:  # its hosts are the learner's
            yield from _placement_findings(("actors", role), entry, hosts)
        links = entry.get("links", {})
        for link, leads_to in links.items() if isinstance(links, dict) else ():
            for target in (leads_to,) if isinstance(leads_to, str) else leads_to if isinstance(leads_to, list) else ():
                if isinstance(target, str) and target not in actors:
                    remedy = suggest(target, actors)
                    yield Finding(("actors", role, "links", link), f"no actor is named {target!r}", remedy)


def _placement_findings(place: KeyPath, entry: Mapping[str, Any], hosts: Mapping[str, Any]) -> Iterator[Finding]:
    """Hosts of a role that the file does not name or names twice, and keys that exclude each other."""
    for key, other in (("hosts", "host"), ("replicas_per_host", "replicas")):
        if key in entry and other in entry:
            yield Finding((*place, key), f"is given beside {other}", f"write either {key} or {other}")
    several = entry.get("hosts")
    named = several if isinstance(several, list) else [entry.get("host", "local")]
    key = "hosts" if isinstance(several, list) else "host"
    names = [name for name in named if isinstance(name, str)]
    for name in dict.fromkeys(names):
        if name not in hosts:
            yield Finding((*place, key), f"no host is named {name!r}", suggest(name, hosts))
        if names.count(name) > 1:
            remedy = "name it once; replicas_per_host says how many processes a host has"
            yield Finding((*place, key), f"names {name!r} {names.count(name)} times", remedy)
    count = entry.get("replicas")
    of_ranks = several_ranks(entry)  # the hosts share the ranks of one replica
    if isinstance(count, int) and not isinstance(count, bool) and 0 < count < len(set(names)) and not of_ranks:
        remedy = f"write replicas = {len(names)} or more, or replicas_per_host"
        yield Finding((*place, "replicas"), f"{count} for {len(names)} hosts: one would have none", remedy)
