"""Merge topology files and ``--set`` overrides into one table of values, each with its file and line."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, get_origin

from agent_rl.config.examples import named_example
from agent_rl.config.schema import inner, names_of, plain, stage_key
from agent_rl.config.suggestions import suggest
from agent_rl.config.toml_lines import KeyPath, dotted_key, duplicate, key_lines, nearest
from agent_rl.config.topology import Topology
from agent_rl.files.reading_json import MAX_DEPTH, read_text

TOPOLOGY_BYTES = 16 << 20
"""The most of a topology file."""


class Finding(NamedTuple):
    """What a check finds: a key, what is wrong there, and what helps. `Source.fault` adds file and line."""

    key: KeyPath
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a topology file: what, where, and what helps.

    ``line`` counts from 1; it is None when the key stands on none, as one set by ``--set``. ``file`` is None for the
    first one.
    """

    line: int | None
    key: str
    message: str
    remedy: str = ""
    file: Path | None = None

    def render(self, file: Path | str) -> str:
        """``file:line: key: message; remedy``, without the parts there are none of; ``file`` is the first one."""
        place = f"{self.file or file}" + (f":{self.line}" if self.line is not None else "")
        message, key = _cut(self.message, LONGEST_MESSAGE), _cut(self.key, LONGEST_KEY)
        said = f"{message}; {self.remedy}" if self.remedy else message
        return f"{place}: {key}: {said}" if key else f"{place}: {said}"


LONGEST_MESSAGE, LONGEST_KEY = 800, 100
"""Characters of a key or value in a message; a file may contain a megabyte."""


def _cut(text: str, most: int) -> str:
    """A text, or its beginning and its end."""
    return text if len(text) <= most else f"{text[: most // 2]} [...] {text[-most // 4 :]}"


class TopologyError(Exception):
    """The topology file cannot be used; ``faults`` lists every reason found."""

    def __init__(self, path: Path, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(fault.render(path) for fault in faults))
        self.path = path
        self.faults = list(faults)


SMALLER = "numbers in TOML have 64 bits: write one from -9223372036854775808 to 9223372036854775807"


Table: TypeAlias = Mapping[str, Any]
Files: TypeAlias = Path | Sequence[Path]
"""A topology file, or several, of which later ones are laid over those before."""


def first_of(files: Files) -> Path:
    """The file whose folder relative paths start from, whichever of the files they stand in."""
    return files if isinstance(files, Path) else files[0]


REPLACED: Mapping[KeyPath, str] = {
    ("model", "path"): "initialise",
    ("model", "initialise"): "path",
    ("actors", "*", "host"): "hosts",
    ("actors", "*", "hosts"): "host",
    ("actors", "*", "replicas"): "replicas_per_host",
    ("actors", "*", "replicas_per_host"): "replicas",
}
"""The key whose place a key of a later file takes, beside what is under that key; ``*``: any role."""


def _replaced(path: KeyPath, key: str) -> str | None:
    """The key of the same table whose place ``key`` takes."""
    return REPLACED.get((*path, key)) or REPLACED.get((*path[:-1], "*", key))


class Source:
    """The values of topology files after overrides, and where each key stands. Later files win, table by table."""

    def __init__(self, files: Files, overrides: Sequence[str] = (), text: str | None = None) -> None:
        """Read and parse the files, or the ``text`` in their place. Raises TopologyError for what is no TOML."""
        self.files = (files,) if isinstance(files, Path) else tuple(files)
        self.data: dict[str, Any] = {}
        self.places: dict[KeyPath, tuple[int, int]] = {}
        """The number of the file, from 0, and the line there that each key comes from."""
        self.overridden: set[KeyPath] = set()
        self.faults: list[Fault] = []
        """What is wrong with the overrides."""
        for number, path in enumerate(self.files):
            data, lines = self._read(path, text)
            replaced: set[KeyPath] = set()
            self.data = _laid_over(self.data, data, (), replaced)
            self.places = {
                key: place
                for key, place in self.places.items()
                if not replaced or not any(key[:length] in replaced for length in range(1, len(key) + 1))
            } | {key: (number, line) for key, line in lines.items()}
        for override in overrides:
            self._override(override)

    def _read(self, path: Path, given: str | None) -> tuple[dict[str, Any], dict[KeyPath, int]]:
        text = given or ""
        try:
            text = read_text(path, TOPOLOGY_BYTES) if given is None else given
            return _shallow(tomllib.loads(text)), key_lines(text)
        except OSError as error:
            remedy = named_example(path) if isinstance(error, FileNotFoundError) else ""
            fault = Fault(None, "", f"cannot be read: {error.strerror}", remedy)
        except UnicodeDecodeError as error:
            fault = Fault(None, "", f"is not UTF-8: {error.reason}")
        except tomllib.TOMLDecodeError as error:
            fault = _syntax_fault(error, text)
        except RecursionError:
            fault = Fault(None, "", "is nested too deeply; no key needs more than a few levels")
        except ValueError:  # Python's own bound on the digits of an integer
            fault = Fault(_line_of_digits(text), "", f"a number has thousands of digits; {SMALLER}")
        raise TopologyError(path, [fault])

    def fault(self, path: KeyPath, message: str, remedy: str = "") -> Fault:
        """A fault at a key, with the line of the key or of the table it is missing from."""
        if any(path[: len(key)] == key for key in self.overridden):
            return Fault(None, dotted_key(path), f"{message} (from --set)", remedy)
        number, line = nearest(self.places, path) or (0, None)
        return Fault(line, dotted_key(path), message, remedy, self.files[number] if number else None)

    def _override(self, override: str) -> None:
        key, equals, value = override.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts) or len(parts) > MAX_DEPTH:
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
                    entries = f"it has entries 0 to {len(here) - 1}" if here else "it has none"
                    self._refuse(key, f"{dotted_key(path)} has no entry {part!r}", entries)
                    return
                step = int(part)
            elif not isinstance(here, dict):
                self._refuse(key, f"{dotted_key(path)} is a value and has no keys")
                return
            elif part not in here:
                names = names_of(annotation, here, path)
                if names is not None and part not in names:
                    where = dotted_key(path) or "a topology"
                    fault = stage_key((*path, part)) or (f"{where} has no key {part!r}", suggest(part, names))
                    self._refuse(key, *fault)
                    return
                if not last:
                    here[part] = [] if get_origin(plain(inner(annotation, part, here))) is tuple else {}
            annotation = inner(annotation, step, here)
            path = (*path, step)
            holder: Any = here
            if last:
                holder[step] = parse_value(value)
                if path[0] == "actors" and (replaced := _replaced(path[:-1], str(step))) in holder:
                    del holder[replaced]
            else:
                here = holder[step]
        self.data = data
        self.overridden.add(path)

    def _refuse(self, key: str, message: str, remedy: str = "") -> None:
        self.faults.append(Fault(None, f"--set {key.strip()}", message, remedy))


def _laid_over(base: Table, more: Table, path: KeyPath, replaced: set[KeyPath]) -> dict[str, Any]:
    """A table of the files before with that of a later file over it; ``replaced`` takes what is no longer there."""
    gone = {key for given in more if (key := _replaced(path, given)) in base and key is not None and key not in more}
    tables = {key for key, value in more.items() if isinstance(value, dict) and isinstance(base.get(key), dict)}
    replaced |= {(*path, key) for key in gone | ((base.keys() & more.keys()) - tables)}
    kept = {key: value for key, value in base.items() if key not in gone}
    return kept | {
        key: _laid_over(base[key], value, (*path, key), replaced) if key in tables else value
        for key, value in more.items()
    }


def _shallow(data: dict[str, Any]) -> dict[str, Any]:
    """The table itself. Raises RecursionError where it has more levels than a reader of it can go down."""
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH):
        level = [
            each
            for it in level
            if isinstance(it, dict | list)
            for each in (it.values() if isinstance(it, dict) else it)
        ]
        if not level:
            return data
    raise RecursionError


def parse_value(text: str) -> Any:
    """A value as TOML writes it; what is not TOML is a string."""
    try:
        parsed = _shallow(tomllib.loads(f"value = {text}"))
    except (ValueError, RecursionError):  # no TOML, or nothing that Python reads
        return text
    return parsed["value"] if len(parsed) == 1 else text


GIVEN_TWICE = ("Cannot overwrite", "Cannot declare", "Duplicate", "Cannot mutate", "Cannot redefine")
"""So begins what tomllib says of a key that is given twice."""


def _syntax_fault(error: tomllib.TOMLDecodeError, text: str) -> Fault:
    message = str(error)
    lines = text.split("\n")
    place = re.search(r"\s*\(at line (\d+), column (\d+)\)$", message)
    line, column = (int(place[1]), int(place[2])) if place else (len(lines), len(lines[-1]) + 1)
    before = "\n".join([*lines[: line - 1], lines[line - 1][: column - 1]])
    if message.startswith(GIVEN_TWICE) and (twice := duplicate(before)):
        path, first, second = twice
        return Fault(second, dotted_key(path), f"is given twice, first in line {first}", "remove one of them")
    if place is not None:
        return Fault(line, "", f"not TOML: {message[: place.start()]} (column {column})")
    return Fault(max(1, len(text.splitlines())), "", f"not TOML: {message.removesuffix(' (at end of document)')}")


def _line_of_digits(text: str) -> int | None:
    """The first line with a number that is longer than Python reads."""
    digits = re.compile(r"(?<![\w\"'])[+-]?\d[\d_]{4000,}")
    return next((number for number, line in enumerate(text.splitlines(), 1) if digits.search(line)), None)
