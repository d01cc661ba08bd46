r"""Matrices in their notations: environments, lists of lists, ``[1, 2; 3, 4]``, multiples of them, transposes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from agent_rl.environments.maths.answers.formulas import Apply, Formula, Unreadable
from agent_rl.environments.maths.answers.statements import Answer, Matrix, Value

_ENVIRONMENT = re.compile(
    r"(?P<opening>[(\[]?)\s*\\begin\s*\{(?P<kind>[pbB]?(?:small)?matrix|array)\}(?:\s*\{[lcr|\s]*\})?(?P<body>.*)"
    r"\\end\s*\{(?P=kind)\}\s*(?P<closing>[)\]]?)"
    r"(?P<transposed>\s*\^\s*(?:\{\s*)?(?:\\top|\\mathsf\s*\{T\}|\\text\s*\{T\}|T)\s*\}?)?",
    re.DOTALL,
)
_ROWS = re.compile(r"\[([^\[\]();]+(?:;[^\[\]();]+)+)\]")
_NO_FACTOR = re.compile(r"\\begin|[=<>,;&]|\\(?:le|ge|ne)(?![a-zA-Z])")


def matrix_of(source: str, read: Callable[[str], Answer], number: Callable[[str], Formula]) -> Matrix | None:
    """The matrix that a text is; ``read`` reads an entry, ``number`` a factor. None if it is none; may raise
    Unreadable.
    """
    if r"\begin" not in source:
        rows = _ROWS.fullmatch(source)
        if rows is None or re.fullmatch(r"[^\s,]+;[^\s,]+", re.sub(r"\s*;\s*", ";", rows[1].strip())):
            return None  # [0; 1] is an interval
        return _checked([re.split(r"\s*,\s*|\s+", row.strip()) for row in rows[1].split(";")], read)
    match = _ENVIRONMENT.search(source)
    if match is None or match.end() != len(source) or _NO_FACTOR.search(source[: match.start()]):
        return None
    if (match["opening"] + match["closing"]) not in ("", "()", "[]"):
        return None
    body = re.sub(r"\\hline(?![a-zA-Z])", "", match["body"])
    found = _checked([row.split("&") for row in re.split(r"\\\\", body) if row.strip()], read)
    if match["transposed"]:
        found = Matrix(tuple(zip(*found.rows, strict=True)))
    factor = source[: match.start()].strip()
    if not factor:
        return found
    scale = number(factor + "1" if factor in ("-", "+") else re.sub(r"\s*(?:\\cdot|\\times|\*)$", "", factor))
    return Matrix(tuple(tuple(_scaled(entry, scale) for entry in row) for row in found.rows))


def _checked(rows: list[list[str]], read: Callable[[str], Answer]) -> Matrix:
    if len({len(row) for row in rows}) != 1:
        raise Unreadable("a matrix with rows of several lengths")
    return Matrix(tuple(tuple(read(entry) for entry in row) for row in rows))


def _scaled(entry: Answer, factor: Formula) -> Answer:
    if not isinstance(entry, Value) or entry.unit or entry.label:
        raise Unreadable("a factor before what is no matrix of numbers")
    return replace(entry, formula=Apply("mul", (factor, entry.formula)), letters="")
