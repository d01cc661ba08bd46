"""A tool executor with one tool more: a calculator that needs no sandbox, since it runs no code.

Two lines of a topology beside it choose it; what it declares is what the model is told of in its prompt::

    [actors.tool_executor]
    class = "calculator_executor:CalculatorExecutor"
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any, ClassVar

from actors.tool_executor import ToolExecutor, refused
from agent_rl.messages import ToolCall, ToolResult

CALCULATOR = "calculator"
MOST_CHARACTERS = 500
MOST_BITS = 4096
"""Of a power's result: what takes longer is no arithmetic a model needs."""

OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


class CalculatorExecutor(ToolExecutor):
    """Python and answers are run and judged as before."""

    tools: ClassVar[tuple[dict[str, Any], ...]] = (
        *ToolExecutor.tools,
        {
            "type": "function",
            "function": {
                "name": CALCULATOR,
                "description": "Evaluate an arithmetic expression, as in (3 + 4) * 5 // 2.",
                "parameters": {
                    "type": "object",
                    "properties": {"expression": {"type": "string", "description": "Numbers, + - * / // % ** ( )."}},
                    "required": ["expression"],
                },
            },
        },
    )

    async def execute(self, call: ToolCall) -> ToolResult:
        """Run one call. What is wrong with it is an outcome for the model to read, never an exception."""
        if call.tool != CALCULATOR:
            return await super().execute(call)
        expression = call.arguments.get("expression")
        if not isinstance(expression, str) or len(expression) > MOST_CHARACTERS:
            wanted = f'the arguments must be {{"expression": string of at most {MOST_CHARACTERS} characters}}'
            return refused(call, "malformed", wanted)
        try:
            value = evaluate(expression)
        except (ArithmeticError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return refused(call, "error", f"{type(error).__name__}: {error}")
        return ToolResult(call.call, "success", f"{value}\n", "", "", queue_seconds=0.0, run_seconds=0.0)


def evaluate(expression: str) -> float:
    """The value of an arithmetic expression. Raises SyntaxError, ValueError or ArithmeticError for anything else."""
    value: float = _value(ast.parse(expression.strip(), mode="eval").body)
    return value


def _value(node: ast.AST) -> Any:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            first, second = _value(left), _value(right)
            if isinstance(op, ast.Pow) and _bits(first) * abs(second) > MOST_BITS:
                raise ValueError("the power is too large")
            return OPERATORS[type(op)](first, second)
    raise ValueError(f"only numbers and + - * / // % ** ( ) are known, not {ast.unparse(node)}")


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 64
