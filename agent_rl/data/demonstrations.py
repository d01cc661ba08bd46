"""Conversations that teach the format of tool calls, made of problems whose equation is known."""

from __future__ import annotations

import ast
import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from itertools import count
from types import MappingProxyType
from typing import Any

from agent_rl.data.conversations import Message
from agent_rl.data.rows import Row
from agent_rl.environments.python_tools import PYTHON_TOOL

_OPERATIONS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = MappingProxyType(
    {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
)
_WHOLE = re.compile(r"(?<![\d.])(\d+)\.0+(?!\d)")
"""A whole number that is written with a fraction."""
_LONGEST = 200
"""Characters of an equation."""
_STEP = re.compile(r"<<([^<>=]{1,200})=([^<>=]{1,40})>>")
"""An annotation of GSM8K: what is computed, and its value."""
_TERM = r"[$(]*\d[\d.,()%$\s]*"
_SHOWN = re.compile(rf"(?:{_TERM}(?:[-+*/x\u00d7\u00f7]\s*{_TERM})*=\s*)?[$]?<<[^<>]*>>\s*[$]?-?[\d.,/]*\d")
"""An annotation with the sum before it and the value after it, as sentences have them."""
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])")


def demonstration(row: Row) -> list[Message] | None:
    """One call of Python that computes the row's answer, then the answer in a box.

    The row has an ``equation``, or a ``solution`` whose steps are annotated. An equation is an expression of numbers,
    + - * / and parentheses, and may go on with ``=`` and its value, as in ASDiv and SVAMP: it becomes one expression.
    Annotations are those of GSM8K, ``<<48/2=24>>``: each becomes a line below a comment with its sentence, and a value
    that is used again becomes a name. None for a row without either, or whose value is not ``answer``.
    """
    problem, answer = row.get("problem"), row.get("answer")
    if not isinstance(problem, str) or not isinstance(answer, str):
        return None
    try:
        code, value = _of_equation(row.get("equation")) or _of_steps(row.get("solution"), problem) or ("", math.nan)
        if not abs(value - float(answer.replace(",", ""))) <= 1e-9:
            return None
    except (SyntaxError, ValueError, ArithmeticError, RecursionError):
        return None
    call = json.dumps({"name": PYTHON_TOOL, "arguments": {"code": code}})
    return [
        {"role": "user", "content": problem},
        {"role": "assistant", "content": f"<tool_call>{call}</tool_call>"},
        {"role": "tool", "content": str(value)},
        {"role": "assistant", "content": f"<answer>\\boxed{{{answer}}}</answer>"},
    ]


def _of_equation(equation: object) -> tuple[str, int | float] | None:
    """The program and its value; None where there is no equation."""
    if not isinstance(equation, str) or len(equation) > _LONGEST:
        return None
    code = _WHOLE.sub(r"\1", equation.partition("=")[0]).strip()
    return f"print({code})", _value(ast.parse(code, mode="eval").body)


def _of_steps(solution: object, problem: str) -> tuple[str, int | float] | None:
    """The program of an annotated solution and its value; None where nothing is annotated.

    A number that the problem gives stays a number, unless it is what the step before came to.
    """
    if not isinstance(solution, str) or not _STEP.search(solution):
        return None
    known: dict[str, int | float] = {}
    names: dict[str, str] = {}
    given = set(_NUMBER.findall(problem.replace(",", "")))
    lines = []

    def named(number: re.Match[str]) -> str:
        name = names.get(number.group(), number.group())
        return number.group() if number.group() in given and name != f"x{len(known)}" else name

    for sentence in solution.splitlines():
        steps = _STEP.findall(sentence)
        if steps:
            own = (f"x{len(known) + number}" for number in count(1))
            lines.append("# " + _SHOWN.sub(lambda _: next(own), sentence).strip())  # noqa: B023
        for computed, shown in steps:
            plain = computed.replace(",", "").replace("$", "").strip()
            code = _NUMBER.sub(named, plain)
            name = f"x{len(known) + 1}"
            known[name] = _value(ast.parse(code, mode="eval").body, known)
            names[shown.replace(",", "").strip()] = name
            lines.append(f"{name} = {code}")
    return "\n".join([*lines, f"print({name})"]), known[name]


def _value(node: ast.expr, known: Mapping[str, int | float] = MappingProxyType({})) -> int | float:
    """What Python computes. Raises ValueError for anything but arithmetic of numbers and what is ``known``."""
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.Constant) and type(node.value) in {int, float}:
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, known)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        value: int | float = _OPERATIONS[type(node.op)](_value(node.left, known), _value(node.right, known))
        return value
    raise ValueError(f"no arithmetic: {type(node).__name__}")
