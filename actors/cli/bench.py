"""``agent-rl bench``: hands the command line to a benchmark, or lists them."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import textwrap
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import benchmarks
from actors.cli.output import Mistake, say

PREFIX = "bench_"


def bench(
    subject: Annotated[str, Parameter(help="left out: they are listed", allow_leading_hyphen=True)] = "",
    /,
    *arguments: Annotated[str, Parameter(help="what the subject takes", allow_leading_hyphen=True)],
) -> int:
    """Run a benchmark with its own arguments."""
    subjects = sorted(
        module.name.removeprefix(PREFIX)
        for module in pkgutil.iter_modules(benchmarks.__path__)
        if module.name.startswith(PREFIX)
    )
    if subject in {"", "-h", "--help"}:
        say("usage: agent-rl bench SUBJECT ...\n")
        for name in subjects:
            text = f"  {name:16}{_first_line(name)}"
            say(textwrap.fill(text, 80, subsequent_indent=" " * 18, drop_whitespace=True))
        return 0
    subject = subject.replace("-", "_")
    if subject not in subjects:
        raise Mistake(f"there is no benchmark {subject!r}; there are {', '.join(subjects)}")
    return int(importlib.import_module("benchmarks.command").call(subject, arguments))


def _first_line(subject: str) -> str:
    """What a benchmark's docstring begins with; the benchmark is not imported, which may take seconds."""
    source = Path(*benchmarks.__path__, f"{PREFIX}{subject}.py")
    return (ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "").partition("\n")[0]
