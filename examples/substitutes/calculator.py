"""A tool of one's own: a calculator that needs no sandbox, since it runs no code.

One line of an environment's entry adds it; what the model is told is made of the function's signature and docstring::

    [[environments]]
    class = "maths"
    tools = ["calculator:calculator"]
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from agent_rl.environments.tools import tool

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


@tool
def calculator(expression: Annotated[str, Field(max_length=500)]) -> float:
    """Evaluate an arithmetic expression, as in (3 + 4) * 5 // 2.

    expression: Numbers, + - * / // % ** ( ).
    """
    value: float = evaluate(ast.parse(expression.strip(), mode="eval").body)
    return value


def evaluate(node: ast.AST) -> Any:
    """The value of an expression. Raises ValueError or ArithmeticError, which the model reads."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            return OPERATORS[type(op)](evaluate(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            first, second = evaluate(left), evaluate(right)
            if isinstance(op, ast.Pow) and _bits(first) * abs(second) > MOST_BITS:
                raise ValueError("the power is too large")
            return OPERATORS[type(op)](first, second)
    raise ValueError(f"only numbers and + - * / // % ** ( ) are known, not {ast.unparse(node)}")


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 64
