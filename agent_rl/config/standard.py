"""What a topology need not say: the standard class of each role, and where links lead that the file does not lead
anywhere.

A file may name the five roles, some of them, or none. A role without ``class`` has its standard class. A link that the
class must have and the file does not lead anywhere leads to every role that receives what it carries. A standard role
that the file does not name is added where another role needs it: as the one that receives what a link carries, or as
the one that sends what must be received. So nothing is added to a file that says all of it. A role that shares its
devices in time has a further link, by which it says whose turn it is.

A learner of several ranks gets a role with a process for each rank but the first, the learner's own: ``learner_ranks``
(`actors.learner.rank`), on the hosts of the ranks. The role follows from the learner's entry alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agent_rl.config.gateway import ROLE as GATEWAY
from agent_rl.config.plugins import ALIASES, PluginError, resolve

STANDARD = ALIASES["actor"]
"""The class of each role, ``module:Class``."""

DEVICE = "device"
"""The link by which the learner says whose turn it is on devices that it shares."""
RANK = "actors.learner.rank:Rank"
"""The class of the role that has a learner's other ranks."""
OF_RANKS = "_ranks"
"""What the name of that role adds to the learner's."""
RANKS = "ranks"
"""The learner's link to that role."""
SILENT_MARGIN = 5.0
"""A rank is killed for its silence so many seconds after the learner has named it, or later."""
SILENT_LEAST = 40.0
"""No rank is killed for a shorter silence: its process is silent until it has started."""

Entries = dict[str, dict[str, Any]]
Targets = str | list[str]


def completed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a file with all actors and links. A value of the wrong type stays, and validation names it."""
    actors = data.get("actors", {})
    if not isinstance(actors, dict) or not all(isinstance(entry, dict) for entry in actors.values()):
        return dict(data)
    named = actors or {role: {} for role in STANDARD if role != GATEWAY}
    entries: Entries = {role: dict(entry) for role, entry in named.items()}
    environments = data.get("environments")
    listed = environments if isinstance(environments, list | tuple) else ()
    if any(isinstance(each, Mapping) and each.get("harness") for each in listed):
        entries.setdefault(GATEWAY, {})
    classes = {role: _actor_class(role, entry) for role, entry in entries.items()}
    while lacking := _lacking(entries, classes):
        entries |= {role: {} for role in lacking}
        entries = {role: entries[role] for role in sorted(entries, key=_place)}
        classes = {role: _actor_class(role, entry) for role, entry in entries.items()}
    for role, entry in entries.items():
        if role in STANDARD:
            entries[role] = {"class": STANDARD[role], **entry}
        leads = dict(_unwritten(role, entry, classes)) | dict(_between_sharers(role, entries, classes))
        if leads:
            entries[role]["links"] = {**entry.get("links", {}), **leads}
    return {**data, "actors": _with_ranks(entries, classes)}


def several_ranks(entry: Mapping[str, Any]) -> bool:
    """Whether an entry, which may hold values of wrong types, has several ranks."""
    ranks = entry.get("ranks")
    return isinstance(ranks, int) and ranks > 1


def learner_of(role: str, class_path: str) -> str:
    """The learner whose ranks a role has; of any other role its own name."""
    return role.removesuffix(OF_RANKS) if class_path == RANK else role


def _with_ranks(entries: Entries, classes: Mapping[str, Any]) -> Entries:
    """The entries, and a role for the ranks of each learner but its rank 0."""
    found = dict(entries)
    for role, entry in entries.items():
        hosts = entry.get("hosts", (entry.get("host", "local"),))
        settings, links = entry.get("settings", {}), entry.get("links", {})
        if not (getattr(classes.get(role), "ranked", False) and several_ranks(entry)):
            continue
        if not (isinstance(hosts, list | tuple) and hosts and isinstance(settings, dict) and isinstance(links, dict)):
            continue  # validation names the value of the wrong type
        on_each = max(1, entry["ranks"] // len(hosts))
        homes = [hosts[min(rank // on_each, len(hosts) - 1)] for rank in range(1, entry["ranks"])]
        silent = _setting(classes[role], settings, "rank_silent_seconds")
        its = {"class": RANK, "hosts": homes, "replicas": len(homes)}
        its |= {key: entry[key] for key in ("restarts", "restart_window_seconds") if key in entry}
        if isinstance(silent, int | float):
            its["silent_seconds"] = max(silent + SILENT_MARGIN, SILENT_LEAST)
        found[f"{role}{OF_RANKS}"] = found.get(f"{role}{OF_RANKS}", {}) | its
        found[role] = {**entry, "links": {**links, RANKS: f"{role}{OF_RANKS}"}}
    return found


def _setting(cls: Any, settings: Mapping[str, Any], name: str) -> Any:
    """A setting of an actor, or its default; None where its class has none of that name."""
    fields = getattr(getattr(cls, "Settings", None), "model_fields", {})
    return settings.get(name, fields[name].default) if name in fields else None


def _place(role: str) -> int:
    """Where a role stands among others: the standard ones in their order, then those of the user's own."""
    return list(STANDARD).index(role) if role in STANDARD else len(STANDARD)


def _actor_class(role: str, entry: Mapping[str, Any]) -> Any:
    """The class that says what a role sends and receives; None when there is none to go by."""
    own = _declaring(entry.get("class"))
    return own or _declaring(STANDARD.get(role))  # `agent-rl check` names a class that cannot be had


def _declaring(path: Any) -> Any:
    """The class of that path, if it is one that declares links; None otherwise."""
    try:
        cls = resolve("actor", path) if isinstance(path, str) else None
    except PluginError:
        return None
    links, receives = getattr(cls, "links", None), getattr(cls, "receives", None)
    return cls if isinstance(links, Mapping) and isinstance(receives, tuple | list) else None


def _lacking(entries: Entries, classes: Mapping[str, Any]) -> list[str]:
    """Standard roles that a role of the file needs and the file does not name."""
    absent = [role for role in STANDARD if role not in entries and role != GATEWAY]
    if not absent:
        return []
    standard = {role: _actor_class(role, {}) for role in absent}
    for role in [role for role in entries if role in STANDARD] or list(entries):
        cls, links = classes[role], entries[role].get("links", {})
        if "class" in entries[role] and _declaring(entries[role]["class"]) is None:
            continue
        written = links.values() if isinstance(links, dict) else ()
        named = [target for leads_to in written for target in _names(leads_to)]
        found = [other for other in absent if other in named]
        for _, declared in _required(cls, links):
            if not any(_receives(other, declared) for name, other in classes.items() if name != role):
                found += [other for other in absent if _receives(standard[other], declared)]
        for received in getattr(cls, "receives", ()):
            if role in STANDARD or getattr(received, "required", True):
                for message in getattr(received, "messages", ()):
                    if not any(_sends(other, received.kind, message) for other in classes.values()):
                        found += [other for other in absent if _sends(standard[other], received.kind, message)]
        if found:
            return list(dict.fromkeys(found))
    return []


def _unwritten(role: str, entry: Mapping[str, Any], classes: Mapping[str, Any]) -> Iterator[tuple[str, Targets]]:
    """The links that must lead somewhere and are not in the file, and where they lead."""
    for link, declared in _required(classes[role], entry.get("links", {})):
        others = {other: cls for other, cls in classes.items() if other != role}
        targets = [other for other, cls in others.items() if _receives(cls, declared)]
        # Where nobody receives it, check says so of the role that should.
        targets = targets or [each for each in others if _receives(_declaring(STANDARD.get(each)), declared)]
        if targets:
            yield link, targets[0] if len(targets) == 1 else targets


def _between_sharers(role: str, entries: Entries, classes: Mapping[str, Any]) -> Iterator[tuple[str, Targets]]:
    """The link by which a role takes turns on devices leads to the roles that share theirs in time, too."""
    declared = getattr(classes[role], "links", {}).get(DEVICE)
    sharers = [other for other, entry in entries.items() if entry.get("share") == "time" and other != role]
    written = entries[role].get("links", {})
    if declared is not None and entries[role].get("share") == "time" and DEVICE not in written:
        targets = [other for other in sharers if _receives(classes[other], declared)]
        if targets:
            yield DEVICE, targets[0] if len(targets) == 1 else targets


def _required(cls: Any, written: Any) -> Iterator[tuple[str, Any]]:
    """The links that a class must have and the file does not write."""
    if isinstance(written, dict):
        for link, declared in getattr(cls, "links", {}).items():
            if link not in written and declared.messages and getattr(declared, "required", True):
                yield link, declared


def _receives(cls: Any, declared: Any) -> bool:
    same = [each for each in getattr(cls, "receives", ()) if getattr(each, "kind", None) == declared.kind]
    return set(declared.messages) <= {message for each in same for message in each.messages}


def _sends(cls: Any, kind: str, message: type) -> bool:
    links = getattr(cls, "links", {}).values()
    return any(getattr(each, "kind", None) == kind and message in each.messages for each in links)


def _names(leads_to: Any) -> tuple[Any, ...]:
    return tuple(leads_to) if isinstance(leads_to, list) else (leads_to,)
