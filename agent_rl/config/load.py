"""From a TOML file and ``--set`` overrides to a Topology, or to all that is wrong with them, line by line."""

from __future__ import annotations

import copy
import re
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from agent_rl.config.standard import STANDARD, completed
from agent_rl.config.suggestions import suggest
from agent_rl.config.toml_lines import KeyPath, dotted_key, duplicate, key_lines, nearest_line
from agent_rl.config.topology import Topology


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a topology file: what, where, and what helps.

    ``line`` counts from 1; it is None when the key stands on none, as one set by ``--set``.
    """

    line: int | None
    key: str
    message: str
    remedy: str = ""

    def render(self, file: Path | str) -> str:
        """``file:line: key: message; remedy``, without the parts there are none of."""
        place = f"{file}:{self.line}" if self.line is not None else str(file)
        message, key = _cut(self.message, LONGEST_MESSAGE), _cut(self.key, LONGEST_KEY)
        said = f"{message}; {self.remedy}" if self.remedy else message
        return f"{place}: {key}: {said}" if key else f"{place}: {said}"


LONGEST_MESSAGE, LONGEST_KEY = 800, 100
"""Characters: what a file repeats in a key or a value may be a megabyte."""


def _cut(text: str, most: int) -> str:
    """A text, or its beginning and its end."""
    return text if len(text) <= most else f"{text[: most // 2]} [...] {text[-most // 4 :]}"


class TopologyError(Exception):
    """The topology file cannot be used; ``faults`` lists every reason found."""

    def __init__(self, path: Path, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(fault.render(path) for fault in faults))
        self.path = path
        self.faults = list(faults)


def load_topology(path: Path, overrides: Sequence[str] = ()) -> Topology:
    """Read a topology file; each override is ``dotted.key=value``, the value in TOML (a string needs no quotes).

    Raises TopologyError with all faults of syntax, keys, types and references. That the actors exist and fit together
    is for ``agent_rl.checks.topology`` to say.
    """
    source = Source.read(path, overrides)
    faults = list(source.faults)
    data = completed(source.data)
    topology = None
    try:
        topology = Topology.model_validate(data)
    except ValidationError as error:
        faults += validation_faults(error, Topology, source, data)
    faults += _reference_faults(data, source)
    faults += _number_faults(data, (), source)
    if faults or topology is None:
        raise TopologyError(path, sorted(faults, key=lambda fault: (fault.line is None, fault.line or 0)))
    return topology


SMALLER = "numbers in TOML have 64 bits: write one from -9223372036854775808 to 9223372036854775807"


class Source:
    """The values of a topology file after overrides, and where each key stands."""

    def __init__(self, text: str, overrides: Sequence[str] = ()) -> None:
        self.data = tomllib.loads(text)
        self.lines = key_lines(text)
        self.overridden: set[KeyPath] = set()
        self.faults: list[Fault] = []
        """What is wrong with the overrides."""
        for override in overrides:
            self._override(override)

    @classmethod
    def read(cls, path: Path, overrides: Sequence[str] = ()) -> Source:
        """Read and parse the file. Raises TopologyError when it is not readable or not TOML."""
        try:
            return cls(path.read_text(encoding="utf-8-sig"), overrides)
        except OSError as error:
            raise TopologyError(path, [Fault(None, "", f"cannot be read: {error.strerror}")]) from error
        except UnicodeDecodeError as error:
            raise TopologyError(path, [Fault(None, "", f"is not UTF-8: {error.reason}")]) from error
        except tomllib.TOMLDecodeError as error:
            raise TopologyError(path, [_syntax_fault(error, path.read_text(encoding="utf-8-sig"))]) from error
        except RecursionError as error:
            raise TopologyError(
                path, [Fault(None, "", "is nested too deeply; no key needs more than a few levels")]
            ) from error
        except ValueError as error:  # Python's own bound on the digits of an integer
            line = _line_of_digits(path.read_text(encoding="utf-8-sig"))
            raise TopologyError(path, [Fault(line, "", f"a number has thousands of digits; {SMALLER}")]) from error

    def fault(self, path: KeyPath, message: str, remedy: str = "") -> Fault:
        """A fault at a key, with the line of the key or of the table it is missing from."""
        if any(path[: len(key)] == key for key in self.overridden):
            return Fault(None, dotted_key(path), f"{message} (from --set)", remedy)
        return Fault(nearest_line(self.lines, path), dotted_key(path), message, remedy)

    def _override(self, override: str) -> None:
        key, equals, value = override.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            self._refuse(override, "is not KEY=VALUE", "write for example --set stages.1.steps=5")
            return
        data: Any = copy.deepcopy(self.data)  # so that a refused override leaves nothing behind
        here: Any = data
        annotation: Any = Topology
        path: KeyPath = ()
        for position, part in enumerate(parts):
            last = position == len(parts) - 1
            step: str | int = part
            if isinstance(here, list):
                if not part.isdecimal() or int(part) >= len(here):
                    self._refuse(key, f"{dotted_key(path)} has no entry {part!r}", _entries(len(here)))
                    return
                step = int(part)
            elif not isinstance(here, dict):
                self._refuse(key, f"{dotted_key(path)} is a value and has no keys")
                return
            elif part not in here:
                names = _names(annotation, here, path)
                if names is not None and part not in names:
                    where = dotted_key(path) or "a topology"
                    self._refuse(key, f"{where} has no key {part!r}", suggest(part, names))
                    return
                if not last:
                    here[part] = [] if get_origin(_plain(_inner(annotation, part, here))) is tuple else {}
            annotation = _inner(annotation, step, here)
            path = (*path, step)
            holder: Any = here
            if last:
                holder[step] = parse_value(value)
            else:
                here = holder[step]
        self.data = data
        self.overridden.add(path)

    def _refuse(self, key: str, message: str, remedy: str = "") -> None:
        self.faults.append(Fault(None, f"--set {key.strip()}", message, remedy))


def parse_value(text: str) -> Any:
    """A value as TOML writes it; what is not TOML is a string."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # no TOML, or nothing that Python reads
        return text
    return parsed["value"] if len(parsed) == 1 else text


def validation_faults(
    error: ValidationError, model: type[BaseModel], source: Source, data: Any, prefix: KeyPath = ()
) -> list[Fault]:
    """Say what pydantic found in words of the file; ``prefix`` is where ``data``, the validated table, stands in it."""
    messages: dict[KeyPath, Fault] = {}
    everything = error.errors(include_url=False)
    for found in everything:
        kind = found["type"]
        if kind == "too_short" and any(
            len(other["loc"]) > len(found["loc"])
            for other in everything
            if other is not found and other["loc"][: len(found["loc"])] == found["loc"]
        ):
            continue  # items that are wrong are said so themselves; pydantic then also misses them
        path = _file_path(found["loc"], data, missing=kind == "missing")
        if kind.startswith("union_tag"):
            path = (*path, str(found["ctx"]["discriminator"]).strip("'"))
        message, remedy = _explain(kind, found, path, model, data)
        fault = source.fault((*prefix, *path), message, remedy)
        if path in messages:  # each member of a union objects to the same value
            fault = Fault(fault.line, fault.key, f"{messages[path].message} or {message}", remedy)
        messages[path] = fault
    return list(messages.values())


_WANTED = {
    "int": "write a whole number, as in 5",
    "float": "write a number, as in 0.5",
    "bool": "write true or false",
    "string_type": 'write text in quotes, as in "text"',
    "tuple": "write an array, as in [1, 2]",
    "model": "write a table, as in [table]",
    "dict": "write a table, as in [table]",
}


def _explain(kind: str, found: Any, path: KeyPath, model: type[BaseModel], data: Any) -> tuple[str, str]:
    """Message and remedy for one of pydantic's errors."""
    if kind == "missing":
        return "is missing", "add it"
    if kind == "extra_forbidden":
        annotation: Any = model
        here = data
        for part in path[:-1]:
            annotation = _inner(annotation, part, here)
            here = here[part]
        return "is no known key", suggest(str(path[-1]), _names(annotation, {}, path[:-1]) or [])
    if kind == "union_tag_not_found":
        return "is missing", "it says what the entry is"
    if kind == "union_tag_invalid":
        tags = re.findall(r"'([^']*)'", found["ctx"]["expected_tags"])
        return f"{found['ctx']['tag']!r} is unknown", suggest(found["ctx"]["tag"], tags)
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", found["ctx"]["expected"])
        return f"must be {found['ctx']['expected']}, not {found['input']!r}", suggest(str(found["input"]), choices)
    if kind == "string_pattern_mismatch" and path[-1] == "class":
        return f"must be 'module:Class', not {found['input']!r}", "write for example 'actors.learner:Learner'"
    if kind.startswith(("model_", "dict_type")):
        return f"must be a table, not {found['input']!r}", _WANTED["dict"]
    message = found["msg"].removeprefix("Value error, ")
    message = re.sub(r"^Input should be |^(?:String|Tuple|List|Value) should ", "must be ", message)
    message = message.replace("must be have", "must have").replace("must be match", "must match")
    message = message.split(", unable to parse")[0].replace("a valid integer", "a whole number")
    message = message.replace("a valid tuple", "a list").replace("a valid dictionary", "a table")
    remedy = next((text for start, text in _WANTED.items() if kind.startswith(start)), "")
    return f"{message}, not {_shown(found['input'])}" if _is_plain(found["input"]) else message, remedy


def _shown(value: object) -> str:
    """A value as it is written, or its beginning."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


MOST_SHOWN = 80
"""Characters of a wrong value that a message repeats."""


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float | bool)


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


def _plain(annotation: Any) -> Any:
    """An annotation without Annotated and without None."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in {Union, types.UnionType}:
        members = [member for member in get_args(annotation) if member is not type(None)]
        if len(members) == 1:
            return _plain(members[0])
    return annotation


def _model(annotation: Any, data: Any) -> type[BaseModel] | None:
    """The model a table is read with; of several, the one its ``kind`` names."""
    annotation = _plain(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    kind = data.get("kind") if isinstance(data, dict) else None
    for member in get_args(annotation) if get_origin(annotation) in {Union, types.UnionType} else ():
        field = getattr(member, "model_fields", {}).get("kind")
        if field is not None and kind in get_args(field.annotation):
            return member  # type: ignore[no-any-return]
    return None


def _inner(annotation: Any, part: str | int, data: Any) -> Any:
    """The annotation of one key or entry; Any where the schema says nothing."""
    model = _model(annotation, data)
    if model is not None:
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        return fields[str(part)].annotation if str(part) in fields else Any
    annotation = _plain(annotation)
    arguments = get_args(annotation)
    if get_origin(annotation) is tuple:
        return _tagged(arguments[0], data, part)
    if get_origin(annotation) is dict:
        return arguments[1]
    return Any


def _tagged(annotation: Any, data: Any, part: str | int) -> Any:
    """Settle a union of an array's entries by the entry's own ``kind``."""
    entry = data[part] if isinstance(data, list) and isinstance(part, int) and part < len(data) else None
    return _model(annotation, entry) or annotation


def _names(annotation: Any, data: Mapping[str, Any], path: KeyPath) -> list[str] | None:
    """The keys a table may have: a model's fields, or the entries of a table of tables; None: any."""
    model = _model(annotation, data)
    if model is not None:
        return [field.alias or name for name, field in model.model_fields.items()]
    annotation = _plain(annotation)
    if get_origin(annotation) is dict and _model(get_args(annotation)[1], {}) is not None:
        standing = STANDARD if path == ("actors",) else () if data else Topology.model_fields[str(path[0])].default
        return list(dict.fromkeys([*data, *standing]))
    return None


def _entries(count: int) -> str:
    return f"it has entries 0 to {count - 1}" if count else "it has none"


def _syntax_fault(error: tomllib.TOMLDecodeError, text: str) -> Fault:
    message = str(error)
    if message.startswith(("Cannot overwrite", "Cannot declare", "Duplicate", "Cannot mutate", "Cannot redefine")):
        twice = duplicate(text)
        if twice is not None:
            path, first, second = twice
            return Fault(second, dotted_key(path), f"is given twice, first in line {first}", "remove one of them")
    place = re.search(r"\s*\(at line (\d+), column (\d+)\)$", message)
    if place is not None:
        return Fault(int(place[1]), "", f"not TOML: {message[: place.start()]} (column {place[2]})")
    return Fault(max(1, len(text.splitlines())), "", f"not TOML: {message.removesuffix(' (at end of document)')}")


def _line_of_digits(text: str) -> int | None:
    """The first line with a number that is longer than Python reads."""
    digits = re.compile(r"(?<![\w\"'])[+-]?\d[\d_]{4000,}")
    return next((number for number, line in enumerate(text.splitlines(), 1) if digits.search(line)), None)


def _number_faults(value: Any, path: KeyPath, source: Source) -> list[Fault]:
    """Whole numbers of more than 64 bits: no message between actors can carry them."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [fault for key, item in items for fault in _number_faults(item, (*path, key), source)]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return [source.fault(path, "is beyond 64 bits", SMALLER)]
    return []


def _trains(data: Mapping[str, Any]) -> bool:
    """Whether any stage needs problems to train on."""
    stages = data.get("stages")
    return not isinstance(stages, list) or any(
        not isinstance(stage, dict) or not (stage.get("kind") == "evaluate" or stage.get("data")) for stage in stages
    )


def _reference_faults(data: Mapping[str, Any], source: Source) -> list[Fault]:
    """What no type can say: either-or keys, and names that must exist elsewhere in the file.

    Looks at raw values, so that it reports these beside faults of type.
    """
    faults: list[Fault] = []
    for table, first, second in (("model", "path", "initialise"), ("tasks", "generator", "files")):
        value = data.get(table)
        if isinstance(value, dict):
            given = [key for key in (first, second) if value.get(key)]
            given += [key for key in (second,) if value.get(key) == {}]
            evaluates_alone = table == "tasks" and value.get("evaluation_files") and not _trains(data)
            if len(given) != 1 and (given or not evaluates_alone):
                said = "both are given" if given else "neither is given"
                faults.append(source.fault((table,), f"needs exactly one of {first} and {second}, {said}"))
    actors = data.get("actors")
    hosts = data.get("hosts", {"local": {}})
    if not isinstance(actors, dict) or not isinstance(hosts, dict):
        return faults
    for role, entry in actors.items():
        if not isinstance(entry, dict):
            continue
        host = entry.get("host", "local")
        if isinstance(host, str) and host not in hosts:
            faults.append(source.fault(("actors", role, "host"), f"no host is named {host!r}", suggest(host, hosts)))
        links = entry.get("links", {})
        for link, leads_to in links.items() if isinstance(links, dict) else ():
            for target in (leads_to,) if isinstance(leads_to, str) else leads_to if isinstance(leads_to, list) else ():
                if isinstance(target, str) and target not in actors:
                    key = ("actors", role, "links", link)
                    faults.append(source.fault(key, f"no actor is named {target!r}", suggest(target, actors)))
    return faults
