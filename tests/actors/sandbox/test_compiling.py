"""The last statement's value, and code compiled without the tree of all of it, are what a parser makes of it."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from actors.sandbox.inside.child import USER_FILE, compiled_apart
from benchmarks.tool_processes import SNIPPETS

CODES = (
    "",
    "1",
    " 1",
    "\t1",
    "\n\n1\n\n# the end\n",
    "x = 1",
    "x = 1\nx",
    "x = 1\nx  # x",
    "x = 1\n x",
    "x = 1; x",
    "x = 1\nx; x + 1",
    "x = [\n1,\n2\n]",
    "max(\n1,\n2\n)",
    "max(\n    1,\n    2)",
    "max(1,\n2)",
    "(1,\n2)[\n0\n]",
    'x = """\n1\n"""',
    'x = """\n1""" + "2"',
    '"doc"',
    '"doc"\n__doc__',
    "'''\n1\n'''\n__doc__",
    "x = 1 + \\\n2",
    "1 + \\\n2",
    "x = 2\n-x",
    "if True:\n    1",
    "if False:\n    x = 1\nelse:\n    x = 2\nx",
    "if True: 1",
    "for x in range(3):\n    x\nelse:\n    x = 5\nx",
    "def f():\n    return 3\nf()",
    "@\\\nid\ndef f(): pass\nf > 0",
    "class C:\n    x = 4\nC.x",
    "(y := 3)",
    "*[1], 2",
    "from math import sqrt",
    "from __future__ import annotations\nx: y = 1\n__annotations__",
    "lambda: 1",
    "x = 1\r\nx",
    "x = 1\rx",
    "'\r1'",
    "\ufeff1",
    "# coding: latin-1\n'\u00e4'",
    "1\n\x0c",
    "\x0c1",
    "await x",
    "yield 1",
    "return 1",
    "f(",
    ")",
    "x = 1\nx x",
    "x = (1\nx",
    "x = 'a\nx",
    "a\x00",
    "1/0",
    "x = 0\n\n1/x",
    "def f(): 1/0\nf()",
    "x = 1\n\n\nmax(x,\n  1/0)",
    "..." + "".join("\n" + "x = 1" for _ in range(50)) + "\nx",
)


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
def test_it_is_as_a_parser_would_have_it(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = compiled_or_not(by_parser, code)
    said = capsys.readouterr().out
    assert compiled_or_not(compiled_apart, code) == expected
    assert capsys.readouterr().out == said
