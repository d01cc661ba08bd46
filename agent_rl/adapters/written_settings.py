"""Settings of other trainers as they are written: in YAML or JSON, as arguments in a shell script, or in Python code.

Every reader returns dotted keys with values and the line of each. Nothing of a file is run: a value that only a shell
or Python would know is an `Unread`.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

Style = Literal["assigned", "options"]
"""How a trainer takes arguments: ``key.of.key=value``, or ``--key value``."""


class SettingsError(Exception):
    """A file that cannot be read as settings; the message names file, line and remedy."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A value that is computed when the script runs."""

    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A value and the line that gives it; 0 where the format does not tell."""

    value: Any
    line: int = 0


def read(path: Path, style: Style, call: str) -> dict[str, Entry]:
    """The settings in a file by dotted key. ``call`` is the class whose keywords a Python file has.

    Raises SettingsError.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: is no text; name a YAML, JSON, Python or shell file") from error
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    match path.suffix:
        case ".yaml" | ".yml" | ".json":
            found = dict(_flat(_document(path, text)))
        case ".py":
            found = dict(_keywords(path, text, call))
        case _:
            found = dict(_arguments(path, text, style))
    if not found:
        wanted = {"assigned": "key.of.key=value", "options": "--key value"}[style]
        raise SettingsError(
            f"{path}: holds no settings; name a YAML or JSON file, a script with {wanted}, or Python with {call}(...)"
        )
    return found


def _document(path: Path, text: str) -> Mapping[str, Any]:
    try:
        data = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except json.JSONDecodeError as error:
        raise SettingsError(f"{path}, line {error.lineno}: {error.msg}; mend the JSON") from error
    except yaml.YAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if isinstance(error, yaml.MarkedYAMLError) else ""
        problem = getattr(error, "problem", "") or "is no YAML"
        raise SettingsError(f"{path}{line}: {problem}; mend the YAML") from error
    if not isinstance(data, dict):
        raise SettingsError(
            f"{path}: holds {type(data).__name__ if data is not None else 'nothing'}, not a table of keys"
        )
    return data


def _flat(data: Mapping[Any, Any], before: str = "") -> Iterator[tuple[str, Entry]]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", Entry(_number(value))


def _number(value: Any) -> Any:
    """YAML reads 1e-6 as a text."""
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value):
        return float(value)
    if isinstance(value, str) and re.search(r"\$[{(A-Za-z_]", value):
        return Unread(value)
    return value


def _parsed(text: str) -> Any:
    """The value of an argument: as YAML, or else the text."""
    try:
        return _number(yaml.safe_load(text))
    except yaml.YAMLError:
        return _number(text)


def _keywords(path: Path, text: str, call: str) -> Iterator[tuple[str, Entry]]:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise SettingsError(f"{path}, line {error.lineno}: {error.msg}; mend the Python") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == call:
            for keyword in node.keywords:
                try:
                    value = ast.literal_eval(keyword.value)
                except ValueError:
                    value = Unread(ast.unparse(keyword.value))
                yield keyword.arg or "**", Entry(value, keyword.value.lineno)


VARIABLE = re.compile(r"(?:export\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)=(?!\()(.*)", re.DOTALL)
ASSIGNED = re.compile(r"(?:\+{1,2}|~)?([A-Za-z_][\w/-]*(?:\.[\w@/-]+)+)=(.*)", re.DOTALL)
COMPUTED = re.compile(r"\$\(\(?[^()]*\)?\)")
GAP = "\0"
"""Stands for a space within what a shell computes, so that it stays one word."""
OPTION = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)


def _arguments(path: Path, text: str, style: Style) -> Iterator[tuple[str, Entry]]:
    variables: dict[str, str] = {}
    for number, line in _lines(text):
        try:
            whole = COMPUTED.sub(lambda found: found[0].replace(" ", GAP), line)
            words = [word.replace(GAP, " ") for word in shlex.split(whole, comments=True)]
        except ValueError as error:
            raise SettingsError(f"{path}, line {number}: {str(error).lower()}; mend the quotes") from error
        words = [
            _with_values(word.rstrip(")") if word.count("(") < word.count(")") else word, variables) for word in words
        ]
        if words and words[0] in {"export", "local", "readonly"}:
            words = words[1:]
        if words and all(VARIABLE.fullmatch(word) for word in words):
            variables |= {match[1]: match[2] for word in words if (match := VARIABLE.fullmatch(word))}
        for key, value in _assigned(words) if style == "assigned" else _options(words):
            yield key, Entry(value, _line_of(key, text, number))


def _line_of(key: str, text: str, first: int) -> int:
    """The line of a key within a command that begins at ``first``."""
    lines = enumerate(text.splitlines()[first - 1 :], first)
    return next((number for number, line in lines if re.search(rf"{key.replace('_', '[_-]')}(?![\w.])", line)), first)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with those that continue them, each with the number of its first; a quotation may go over lines."""
    held, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if not held:
            first = number
        if line.lstrip().startswith("#"):
            continue
        held += line.removesuffix("\\") if line.endswith("\\") else f"{line}\n"
        if not line.endswith("\\"):
            yield first, held
            held = ""
    if held:
        yield first, held


def _with_values(word: str, variables: Mapping[str, str]) -> str:
    """A word with the variables that the script sets, and with the defaults of those that it does not set."""

    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], match[2]
        return variables.get(name, match[0] if default is None else default)

    return re.sub(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|([A-Za-z_]\w*))", value, word)


def _assigned(words: list[str]) -> Iterator[tuple[str, Any]]:
    for word in words:
        if match := ASSIGNED.fullmatch(word):
            yield match[1], _parsed(match[2])


def _options(words: list[str]) -> Iterator[tuple[str, Any]]:
    for at, word in enumerate(words):
        if match := OPTION.fullmatch(word):
            values = [match[2]] if match[2] is not None else []
            for following in words[at + 1 :] if not values else ():
                if OPTION.fullmatch(following):
                    break
                values.append(following)
            if values and values[-1].endswith(".py"):  # the program after the launcher's options
                values = values[:-1]
            read = [_parsed(each) for each in values]
            key = match[1].replace("-", "_")
            if not read and key.startswith("no_"):
                yield key.removeprefix("no_"), False
            else:
                yield key, True if not read else read[0] if len(read) == 1 else read
