"""Conversations that teach the format of tool calls, made of problems whose equation is known."""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Mapping
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


def demonstration(row: Row) -> list[Message] | None:
    """One call of Python that computes the row's ``equation``, then the answer in a box.

    ``equation`` is an expression of numbers, + - * / and parentheses, and may go on with ``=`` and its value, as in
    ASDiv and SVAMP. None for a row without one, or whose value is not ``answer``.
    """
    problem, answer, equation = (row.get(name) for name in ("problem", "answer", "equation"))
    if not all(isinstance(text, str) for text in (problem, answer, equation)) or len(str(equation)) > _LONGEST:
        return None
    code = _WHOLE.sub(r"\1", str(equation).partition("=")[0]).strip()
    try:
        value = _value(ast.parse(code, mode="eval").body)
        if abs(value - float(str(answer).replace(",", ""))) > 1e-9:
            return None
    except (SyntaxError, ValueError, ArithmeticError, RecursionError):
        return None
    call = json.dumps({"name": PYTHON_TOOL, "arguments": {"code": f"print({code})"}})
    return [
        {"role": "user", "content": str(problem)},
        {"role": "assistant", "content": f"<tool_call>{call}</tool_call>"},
        {"role": "tool", "content": str(value)},
        {"role": "assistant", "content": f"<answer>\\boxed{{{answer}}}</answer>"},
    ]


def _value(node: ast.expr) -> int | float:
    """What Python computes. Raises ValueError for anything but arithmetic of numbers."""
    if isinstance(node, ast.Constant) and type(node.value) in {int, float}:
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        value: int | float = _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
        return value
    raise ValueError(f"no arithmetic: {type(node).__name__}")
