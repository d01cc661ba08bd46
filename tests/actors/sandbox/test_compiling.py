"""The last statement's value, and code compiled without the tree of all of it, are what a parser makes of it."""

import ast
import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.sandbox.inside.child import USER_FILE, compiled_apart
from benchmarks.tool_processes import SNIPPETS

CODES = json.loads(Path(__file__).with_name("compiled_codes.json").read_text())


def outcome(statements: Any, expression: Any) -> tuple[str, list[str], list[tuple[int | None, int | None]]]:
    """Value, names, and the places of a traceback."""
    namespace: dict[str, Any] = {"__builtins__": __builtins__}
    try:
        exec(statements, namespace)
        value = None if expression is None else eval(expression, namespace)
    except Exception as error:  # noqa: BLE001  it is what is compared
        frames = traceback.extract_tb(error.__traceback__)
        return repr(error), sorted(namespace), [(f.lineno, f.colno) for f in frames if f.filename == USER_FILE]
    return (str(value).partition(" at 0x")[0], sorted(namespace), [])


def by_parser(code: str) -> tuple[Any, Any]:
    tree = ast.parse(code, USER_FILE)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    statements = compile(tree, USER_FILE, "exec", dont_inherit=True)
    return statements, last and compile(ast.Expression(last.value), USER_FILE, "eval", dont_inherit=True)


def compiled_or_not(compiling: Callable[[str], tuple[Any, Any]], code: str) -> tuple[Any, ...]:
    """What becomes of the code, or what is wrong with it."""
    try:
        both = compiling(code)
    except (SyntaxError, ValueError) as error:
        return repr(error), error.__context__
    return outcome(*both)


@pytest.mark.parametrize("code", [*CODES, *(code for code in SNIPPETS if "numpy" not in code and "sympy" not in code)])
def test_it_is_as_a_parser_would_have_it(code, capsys):
    expected = compiled_or_not(by_parser, code)
    said = capsys.readouterr().out
    assert compiled_or_not(compiled_apart, code) == expected
    assert capsys.readouterr().out == said
