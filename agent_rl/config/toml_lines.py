"""Where each key of a TOML document stands: ``tomllib`` reads values but forgets their lines.

The scanner follows the grammar only as far as finding keys requires, on text ``tomllib`` has already accepted.
"""

from __future__ import annotations

import bisect
import re
import tomllib
from collections.abc import Mapping
from typing import TypeAlias, TypeVar

T = TypeVar("T")
KeyPath: TypeAlias = tuple[str | int, ...]
"""The way to a value: keys of tables and indices of arrays, as in ``("stages", 1, "steps")``."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\])*"|\'[^\']*\'', re.DOTALL)
_SCALAR = re.compile(r"[^,\]}#\r\n]+")
_BLANK = re.compile(r"[ \t]*")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line (from 1) of every table, array entry and key of a valid TOML document."""
    return _Scanner(text).scan()


def nearest(places: Mapping[KeyPath, T], path: KeyPath) -> T | None:
    """The place of ``path``, else of the innermost table around it that has one; None when there is none."""
    found = (places[path[:length]] for length in range(len(path), 0, -1) if path[:length] in places)
    return next(found, None)


def duplicate(text: str) -> tuple[KeyPath, int, int] | None:
    """The first key or table given a second time, with both its lines; None when there is none.

    ``text`` must be valid TOML up to there.
    """
    try:
        _Scanner(text).scan()
    except _DuplicateError as found:
        return found.path, found.first, found.second
    return None


class _DuplicateError(Exception):
    def __init__(self, path: KeyPath, first: int, second: int) -> None:
        super().__init__(dotted_key(path))
        self.path, self.first, self.second = path, first, second


def dotted_key(path: KeyPath) -> str:
    """``("stages", 1, "steps")`` as ``stages.1.steps``."""
    return ".".join(str(part) for part in path)


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.newlines = [index for index, char in enumerate(text) if char == "\n"]
        self.lines: dict[KeyPath, int] = {}
        self.entries: dict[KeyPath, int] = {}
        """How many entries each array of tables has so far."""
        self.given: dict[KeyPath, int] = {}
        """The keys with a value and the tables with a header: what may not be given again."""
        self.dotted: dict[KeyPath, int] = {}
        """The tables that dotted keys made: only dotted keys may add to them."""

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while True:
            self.skip(_BLANK_LINES)
            if self.at >= len(self.text):
                return self.lines
            if self.text.startswith("[[", self.at):
                table = self.header(2)
            elif self.text.startswith("[", self.at):
                table = self.header(1)
            else:
                self.pair(table)

    def header(self, brackets: int) -> KeyPath:
        """Read ``[a.b]`` or ``[[a.b]]``; what follows belongs to the path returned."""
        line = self.line()
        self.at += brackets
        *outer, last = self.dotted_key()
        self.at += brackets
        path: KeyPath = ()
        for part in outer:
            path = self.enter(path, part)
        if brackets == 1:
            self.give((*path, last), line)
            path = self.enter(path, last)
        else:
            array = (*path, last)
            if array not in self.entries:
                self.give(array, line)
            self.lines.setdefault(array, line)
            index = self.entries.get(array, 0)
            self.entries[array] = index + 1
            path = (*array, index)
        self.lines[path] = line
        return path

    def enter(self, path: KeyPath, part: str) -> KeyPath:
        """Go into a table, or into the newest entry when it is an array of tables."""
        inner = (*path, part)
        self.lines.setdefault(inner, self.line())
        return (*inner, self.entries[inner] - 1) if inner in self.entries else inner

    def give(self, path: KeyPath, line: int) -> None:
        """A key gets a value, or a table its header: once."""
        for given in (self.given, self.dotted):
            if path in given:
                raise _DuplicateError(path, given[path], line)
        self.given[path] = line

    def pair(self, table: KeyPath) -> None:
        """Read ``key = value``."""
        line = self.line()
        path = table
        *outer, last = self.dotted_key()
        for part in outer:
            path = (*path, part)
            if path in self.given:
                raise _DuplicateError(path, self.given[path], line)
            self.lines.setdefault(path, line)
            self.dotted.setdefault(path, line)
        path = (*path, last)
        self.give(path, line)
        self.lines.setdefault(path, line)
        self.skip(_BLANK)
        self.at += 1  # the equals sign
        self.skip(_BLANK)
        self.value(path)

    def value(self, path: KeyPath) -> None:
        char = self.text[self.at]
        if char == "[":
            self.array(path)
        elif char == "{":
            self.inline_table(path)
        elif char in "\"'":
            self.skip(_STRING)
        else:
            self.skip(_SCALAR)

    def array(self, path: KeyPath) -> None:
        self.at += 1
        index = 0
        while self.separated("]"):
            entry = (*path, index)
            self.lines[entry] = self.line()
            self.value(entry)
            index += 1

    def inline_table(self, path: KeyPath) -> None:
        self.at += 1
        while self.separated("}"):
            self.pair(path)

    def separated(self, closing: str) -> bool:
        """Go to the next entry; False, and past the closing bracket, when there is none."""
        self.skip(_BLANK_LINES)
        if self.text[self.at] == ",":
            self.at += 1
            self.skip(_BLANK_LINES)
        if self.text[self.at] == closing:
            self.at += 1
            return False
        return True

    def dotted_key(self) -> list[str]:
        parts = []
        while True:
            self.skip(_BLANK)
            start = self.at
            if self.text[start] in "\"'":
                self.skip(_STRING)
                parts.append(tomllib.loads(f"key = {self.text[start : self.at]}")["key"])
            else:
                self.skip(_BARE_KEY)
                parts.append(self.text[start : self.at])
            self.skip(_BLANK)
            if self.text[self.at] != ".":
                return parts
            self.at += 1

    def skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        if match is not None:
            self.at = match.end()

    def line(self) -> int:
        return bisect.bisect_left(self.newlines, self.at) + 1
