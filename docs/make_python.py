"""Make docs/python.md from docstrings: ``python docs/make_python.py``; a test notices when it is old."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from agent_rl.records import run_data
from agent_rl.records.tables import columns

OUTPUT = Path(__file__).with_name("python.md")
HEAD = """\
# Python

What code of your own may import, and each interface that it may implement. Made from docstrings by
`python docs/make_python.py`. [messages.md](messages.md) has what actors send one another.
"""
PUBLIC = {
    "A run by a call": ("agent_rl:train", "agent_rl:evaluate"),
    "A run as data": (
        "agent_rl:load_run",
        *(f"agent_rl.records.run_data:{name}" for name in ("Run", "Step", "Evaluation", "Group", "Trajectory", "Call")),
    ),
    "Tasks": (
        *(
            f"agent_rl.environments.base:{name}"
            for name in ("Environment", "TaskSource", "Demonstration", "Context", "Observation", "Model")
        ),
        *(f"agent_rl.messages:{name}" for name in ("Problem", "Transcript", "Judgement")),
        *(f"agent_rl.environments.tasks:{name}" for name in ("ListedTasks", "DrawnTasks")),
    ),
    "Tools": (
        *(f"agent_rl.environments.tools:{name}" for name in ("tool", "FunctionTool")),
        *(f"agent_rl.environments.base:{name}" for name in ("Tool", "ToolOutput")),
    ),
    "Interfaces of actors": (
        "actors.base:Actor",
        "agent_rl.scheduling.policies.base:PlacementPolicy",
        "agent_rl.rollout.prompts:ChatFormat",
        "actors.engines.base:Engine",
        "agent_rl.observe.trackers.base:Tracker",
    ),
    "Tests of your own classes": (
        *(
            f"agent_rl_contract:{role}Contract"
            for role in ("Environment", "Filter", "Scheduler", "Generator", "Executor", "Learner")
        ),
        "agent_rl_contract:TrackerContract",
    ),
}
"""``module:name`` by the heading under which the page shows it."""


TABLES = {
    "steps": run_data.Step,
    "evaluations": run_data.Evaluation,
    "groups": run_data.Group,
    "trajectories": run_data.Trajectory,
    "calls": run_data.Call,
    "timeline": run_data.Moment,
    "alarms": run_data.Held,
}
"""The rows of each table of a run."""
COLUMNS = """\
## Columns of tables

Names and types of columns stay; new ones may come. A `json` column holds a JSON text. Meanings stand beside the fields,
in `agent_rl/figures.py` and `agent_rl/records/run_data.py`.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for heading, names in PUBLIC.items():
        parts.append(f"## {heading}\n")
        for name in names:
            module, _, attribute = name.partition(":")
            parts += [f"### {attribute}\n", *_described(module, getattr(importlib.import_module(module), attribute))]
    parts.append(COLUMNS)
    for name, row in TABLES.items():
        listed = ", ".join(f"`{column}` {kind}" for column, kind in columns(row).items())
        parts += [f"### `{name}`\n", textwrap.fill(listed, 120, **WRAP) + "\n"]
    return "\n".join(parts).rstrip() + "\n"


def _described(module: str, value: object) -> Iterator[str]:
    yield f"```python\nfrom {module} import {value.__name__}\n```\n"  # type: ignore[attr-defined]
    node = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]  # type: ignore[arg-type]
    if isinstance(node, ast.FunctionDef):
        yield f"{_call(node)}\n"
    yield from _prose(ast.get_docstring(node) or "")
    if isinstance(node, ast.ClassDef):
        shown = [each for each in [*node.body, ast.Pass()] if not (_is_suite(node) and isinstance(each, FUNCTIONS))]
        items = [item for pair in pairwise(shown) for item in _item(*pair)]
        yield "\n".join(items) + ("\n" if items else "")


def _item(node: ast.stmt, below: ast.stmt) -> Iterator[str]:
    """A public field with the text below it, or a public method with its docstring, as an item of a list."""
    match node:
        case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
            code = f"`{name}: {ast.unparse(node.annotation)}`"
            text = below.value.value if _is_text(below) else ""
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name == "__call__" or name[0] != "_":
            shown = isinstance(node, ast.FunctionDef) and any(_is_property(each) for each in node.decorator_list)
            code = f"`{name}: {ast.unparse(node.returns)}`" if shown and node.returns else _call(node)
            text = ast.get_docstring(node) or ""
        case _:
            return
    yield textwrap.fill(f"- {code}" + (f": {_line(text)}" if text else ""), 120, subsequent_indent="  ", **WRAP)


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
WRAP = {"break_long_words": False, "break_on_hyphens": False}


def _is_suite(node: ast.ClassDef) -> bool:
    """Whether the class is one of tests, which its file describes."""
    return node.name.endswith("Contract")


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_property(decorator: ast.expr) -> bool:
    return ast.unparse(decorator) in {"property", "cached_property"}


def _call(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = re.sub(r"^(self|cls)(, /)?(, )?", "", ast.unparse(node.args))
    before = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"`{before}{node.name}({arguments}) -> {ast.unparse(node.returns) if node.returns else None}`"


def _line(text: str) -> str:
    return re.sub(r"`{1,2}([^`]+)`{1,2}", r"`\1`", " ".join(text.split()))


def _prose(docstring: str) -> Iterator[str]:
    """Paragraphs of a docstring; what is indented, and what follows ``::``, is a block of code."""
    for block in re.split(r"\n\s*\n", docstring.strip()):
        if block.startswith(" "):
            yield f"```text\n{textwrap.dedent(block)}\n```\n"
        elif block.strip() != "::":
            yield textwrap.fill(_line(block.removesuffix(":")) + ":" * block.endswith("::"), 120, **WRAP) + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(page())
