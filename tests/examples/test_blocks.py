"""Every block of Python in a document is run by a test, and every block of TOML or JSON can be read."""

from __future__ import annotations

import json
import random
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_rl.config.selection import Solved
from agent_rl.messages import Transcript

ROOT = Path(__file__).parent.parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("skills/**/*.md"), ROOT / "README.md"])
}
BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
RUN_BY = {
    "README.md": "tests/agent_rl/test_calls.py",
    "docs/coming_from.md": "tests/agent_rl/test_calls.py",
    "docs/write_an_actor.md": "tests/examples/test_guide.py",
    "docs/write_a_tool.md": "tests/examples/test_environment_guide.py",
    "docs/write_an_environment.md": "tests/examples/test_environment_guide.py",
    "docs/adapters.md": "tests/end_to_end/test_mcp.py",
    "docs/run_data.md": "tests/agent_rl/records/test_run_data.py",
    "docs/python.md": "tests/test_import_rule.py",
    "docs/choosing_problems.md": "tests/examples/test_blocks.py",
    "docs/harnesses.md": "tests/examples/test_blocks.py",
    **{page: "tests/examples/test_tutorials.py" for page in PAGES if page.startswith("docs/tutorials/")},
}
"""The test that runs the Python of a page."""


def python(page: str) -> list[str]:
    return [text for language, text in BLOCK.findall(PAGES[page]) if language == "python"]


def test_the_python_of_each_page_is_run_by_a_test(record_property: Callable[[str, object], None]) -> None:
    with_python = {page: len(python(page)) for page in PAGES if python(page)}
    assert with_python.keys() - RUN_BY.keys() == set(), "run the blocks of these pages in a test, and name it here"
    for page in with_python:
        name = page.removeprefix("docs/").partition("/")[0].removesuffix(".md")
        assert name in (ROOT / RUN_BY[page]).read_text() or "GUIDE" in (ROOT / RUN_BY[page]).read_text(), page
    record_property("docs_blocks_run", sum(with_python.values()))


def test_the_curriculum_of_its_page_asks_again_until_a_problem_is_solved() -> None:
    names: dict[str, Any] = {}
    (text,) = python("docs/choosing_problems.md")
    exec(compile(text, "choosing_problems.md", "exec"), names)
    curriculum = names["OneMore"]()
    assert curriculum.choose(4, random.Random(0)) == 4
    curriculum.observe(4, Solved(0, 8))
    assert curriculum.admits(Solved(0, 8))
    assert [curriculum.choose(5, random.Random(0)) for _ in range(2)] == [4, 5]


def test_the_outcome_that_the_page_about_harnesses_reads_is_there() -> None:
    names: dict[str, Any] = {"transcript": Transcript(("a turn",))}
    (text,) = python("docs/harnesses.md")
    exec(compile(text, "harnesses.md", "exec"), names)
    assert names["outcome"] is None


@pytest.mark.parametrize("page", PAGES)
def test_toml_and_json_of_a_page_can_be_read(page: str) -> None:
    for language, text in BLOCK.findall(PAGES[page]):
        if language == "toml":
            tomllib.loads(re.sub(r"(?m)^( *\.\.\.|# \.\.\.)$", "", text))
        elif language == "json":
            json.loads(text)
