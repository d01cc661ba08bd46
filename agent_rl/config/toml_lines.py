"""The line of each key of a TOML document, since ``tomllib`` reads values without their lines.

The scanner takes a document that ``tomllib`` accepts, or the part before the place of a key that is given twice.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import TypeAlias, TypeVar

T = TypeVar("T")
KeyPath: TypeAlias = tuple[str | int, ...]
"""The way to a value: keys of tables and indices of arrays, as in ``("stages", 1, "steps")``."""

_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\])*"|\'[^\']*\''  # a string
    r"|#[^\n]*|[\[\]{},.=\n]|[^\s\[\]{},.=#\"']+",  # a comment, a sign, or a part of a key, number or date
    re.DOTALL,
)


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line (from 1) of every table, array entry and key."""
    scanner = _Scanner()
    scanner.scan(text)
    return scanner.lines


def nearest(places: Mapping[KeyPath, T], path: KeyPath) -> T | None:
    """The place of ``path``, else of the innermost table around it that has one; None when there is none."""
    found = (places[path[:length]] for length in range(len(path), 0, -1) if path[:length] in places)
    return next(found, None)


def duplicate(text: str) -> tuple[KeyPath, int, int] | None:
    """The last key or table of ``text``, which is given twice, or the table around it, and the lines of both places."""
    scanner = _Scanner()
    scanner.scan(text)
    return scanner.repeated


def dotted_key(path: KeyPath) -> str:
    """``("stages", 1, "steps")`` as ``stages.1.steps``."""
    return ".".join(str(part) for part in path)


class _Scanner:
    def __init__(self) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.repeated: tuple[KeyPath, int, int] | None = None
        """The newest key or header: the longest part of its path that stood earlier, with that line and its own."""
        self._sizes: dict[KeyPath, int] = {}
        """How many entries each array of tables has so far."""

    def scan(self, text: str) -> None:
        line, at = 1, 0
        table: KeyPath = ()  # of the last header
        path: KeyPath = ()  # of the value that is read
        parts: list[str] = []  # of the key that is read
        brackets = 0  # that opened the header that is read
        around: list[tuple[KeyPath, int]] = []  # open arrays with their entries so far, and inline tables with -1
        in_value = begins = False  # ``begins``: the next value is a new entry of an array
        for match in _TOKEN.finditer(text):
            token = match[0]
            line += text.count("\n", at, match.start())
            at = match.start()
            if begins and token not in {"\n", "]"} and token[0] != "#":
                array, size = around[-1]
                around[-1] = array, size + 1
                path = (*array, size)
                self.lines[path] = line
                begins = False
            match token:
                case "\n":
                    in_value = in_value and bool(around)
                case "[" if in_value:
                    around.append((path, 0))
                    begins = True
                case "{":
                    around.append((path, -1))
                    in_value = False
                case "}" | "]" if around:
                    around.pop()
                    in_value, begins = True, False
                case "," if around[-1][1] >= 0:
                    begins = True
                case ",":
                    in_value = False
                case "[":
                    brackets += 1
                case "]" if brackets:
                    table = self._header(parts, brackets, line)
                    parts, brackets = [], 0
                case "=" if not in_value:
                    path = self._key(around[-1][0] if around else table, parts, line)
                    parts, in_value = [], True
                case _ if not in_value and token[0] not in "#.]":
                    parts.append(tomllib.loads(f"key = {token}")["key"] if token[0] in "\"'" else token)
        if brackets:  # tomllib stopped within the header
            self._header(parts, brackets, line)

    def _header(self, parts: list[str], brackets: int, line: int) -> KeyPath:
        """Enter ``[a.b]`` or ``[[a.b]]``; what follows belongs to the path returned."""
        *outer, last = parts
        path: KeyPath = ()
        for part in outer:
            path = (*path, part)
            self.lines.setdefault(path, line)
            if path in self._sizes:  # the newest entry
                path = (*path, self._sizes[path] - 1)
        path = (*path, last)
        self._compare(path, line)
        if brackets == 2:
            self.lines.setdefault(path, line)
            self._sizes[path] = self._sizes.get(path, 0) + 1
            path = (*path, self._sizes[path] - 1)
        self.lines[path] = line
        return path

    def _key(self, table: KeyPath, parts: list[str], line: int) -> KeyPath:
        """Enter the dotted key of a value."""
        path = (*table, *parts)
        self._compare(path, line)
        for length in range(len(table) + 1, len(path) + 1):
            self.lines.setdefault(path[:length], line)
        return path

    def _compare(self, path: KeyPath, line: int) -> None:
        earlier = (path[:length] for length in range(len(path), 0, -1) if path[:length] in self.lines)
        found = next(earlier, None)
        self.repeated = None if found is None else (found, self.lines[found], line)
