"""What README, documents and the gallery show: blocks of Python are run by a test, blocks of TOML or JSON can be read,
commands and topologies are ones that this version reads, and each example is found and told of.
"""

import ast
import json
import random
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from actors.cli.main import command_line, main
from agent_rl.config.examples import EXAMPLES, described_examples, example_files, topology_file
from agent_rl.config.load import load_topology
from agent_rl.config.selection import Solved
from agent_rl.config.topology import SftStage
from agent_rl.messages import Transcript
from tests.examples.following import BLOCK, ROOT

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("skills/**/*.md"))]
}
TEXTS = PAGES | {"benchmarks/README.md": (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")}
RUN_BY = {
    "README.md": "tests/agent_rl/test_calls.py",
    "docs/coming_from.md": "tests/agent_rl/test_calls.py",
    "docs/write_an_actor.md": "tests/examples/test_guides.py",
    "docs/write_a_tool.md": "tests/examples/test_environment_guide.py",
    "docs/write_an_environment.md": "tests/examples/test_environment_guide.py",
    "docs/adapters.md": "tests/end_to_end/test_mcp.py",
    "docs/run_data.md": "tests/agent_rl/records/test_run_data.py",
    "docs/python.md": "tests/test_import_rule.py",
    "docs/choosing_problems.md": "tests/examples/test_pages.py",
    "docs/harnesses.md": "tests/examples/test_pages.py",
    **{page: "tests/examples/test_guides.py" for page in PAGES if page.startswith("docs/tutorials/")},
}
"""The test that runs the Python of a page."""


def python(page: str) -> list[str]:
    return [text for language, text in BLOCK.findall(PAGES[page]) if language == "python"]


def test_the_python_of_each_page_is_run_by_a_test(record_property):
    with_python = {page: len(python(page)) for page in PAGES if python(page)}
    assert with_python.keys() - RUN_BY.keys() == set(), "run the blocks of these pages in a test, and name it here"
    for page in with_python:
        name = page.removeprefix("docs/").partition("/")[0].removesuffix(".md")
        assert name in (ROOT / RUN_BY[page]).read_text() or "GUIDE" in (ROOT / RUN_BY[page]).read_text(), page
    record_property("docs_blocks_run", sum(with_python.values()))


def test_the_curriculum_of_its_page_asks_again_until_a_problem_is_solved():
    names: dict[str, Any] = {}
    (text,) = python("docs/choosing_problems.md")
    exec(compile(text, "choosing_problems.md", "exec"), names)
    curriculum = names["OneMore"]()
    assert curriculum.choose(4, random.Random(0)) == 4
    curriculum.observe(4, Solved(0, 8))
    assert curriculum.admits(Solved(0, 8))
    assert [curriculum.choose(5, random.Random(0)) for _ in range(2)] == [4, 5]


def test_the_outcome_that_the_page_about_harnesses_reads_is_there():
    names: dict[str, Any] = {"transcript": Transcript(("a turn",))}
    (text,) = python("docs/harnesses.md")
    exec(compile(text, "harnesses.md", "exec"), names)
    assert names["outcome"] is None


@pytest.mark.parametrize("page", PAGES)
def test_toml_and_json_of_a_page_can_be_read(page):
    for language, text in BLOCK.findall(PAGES[page]):
        if language == "toml":
            tomllib.loads(re.sub(r"(?m)^( *\.\.\.|# \.\.\.)$", "", text))
        elif language == "json":
            json.loads(text)


def commands(text: str) -> list[str]:
    """Lines of blocks, and words set as code, that call ``agent-rl``."""
    block = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    lines = [line for found in block.findall(text) for line in re.sub(r"\\\n\s*", "", found).splitlines()]
    inline = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", block.sub("", text))]
    called = (re.fullmatch(r"\s*(?:\$ )?(?:\S+/)?agent-rl (\w.*?)(?:\s+#.*)?", line) for line in lines + inline)
    return [match[1] for match in called if match and "-->" not in match[1]]  # which is a picture of messages


def options_of(subject: str) -> set[str]:
    """The options of a benchmark, read from its source: importing some of them takes seconds."""
    tree = ast.parse((ROOT / "benchmarks" / f"bench_{subject}.py").read_text())
    (options,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Options")
    names = [node.target.id for node in options.body if isinstance(node, ast.AnnAssign) and hasattr(node.target, "id")]
    return {"--set" if name == "overrides" else f"--{name.replace('_', '-')}" for name in names}


CURRENT = {page: text for page, text in TEXTS.items() if not page.startswith("docs/decisions/")}
"""Decisions name commands of the commit at which they were taken."""
CASES = sorted({(page, command) for page, text in CURRENT.items() for command in commands(text)})


@pytest.mark.parametrize(("page", "command"), CASES, ids=[f"{page}: {command[:60]}" for page, command in CASES])
def test_a_documented_command_is_understood(page, command):
    """A whole command is parsed; of one that is only named, as in `agent-rl data`, the name is looked up."""
    plain = re.sub(r"\[[^]]*\]|\.\.\.", "", command)
    words = ["3" if word == "N" else word for word in shlex.split(plain) if word != "SUBJECT"]
    app = command_line()
    if words[0] == "bench":
        assert {word for word in words[2:] if word.startswith("--")} <= options_of(words[1]) if words[1:] else True
        return
    _, _, rest = app.parse_commands(words)
    if rest and words[:2] != ["data", "FILE"]:
        app.parse_args(words)
    else:
        assert rest == [] or words[1] == "FILE"
        assert words[0] in app


def test_every_command_and_every_benchmark_has_its_place_in_a_document():
    app, headings = command_line(), re.findall(r"(?m)^### `agent-rl ([a-z-]+)", TEXTS["docs/command_line.md"])
    assert {name for name in app if not name.startswith("-") and app[name].show} == set(headings)
    subjects = [path.stem.removeprefix("bench_") for path in (ROOT / "benchmarks").glob("bench_*.py")]
    assert [name for name in subjects if f"\n## {name}\n" not in TEXTS["benchmarks/README.md"]] == []


def test_the_readme_is_short_and_its_topology_is_whole(tmp_path):
    assert len(TEXTS["README.md"].splitlines()) <= 150
    (block,) = re.findall(r"^```toml\n(.*?)^```$", TEXTS["README.md"], re.MULTILINE | re.DOTALL)
    path = tmp_path / "mine.toml"
    path.write_text(block)
    assert len(block.splitlines()) <= 28
    assert load_topology(path).stages


def test_the_recipe_of_the_paper_is_one_topology(tmp_path):
    (block,) = re.findall(r"^```toml\n(.*?)^```$", TEXTS["docs/reproduction.md"], re.MULTILINE | re.DOTALL)
    path = tmp_path / "recipe.toml"
    path.write_text(tomli_w.dumps(tomllib.loads(block)))
    topology = load_topology(path)
    sft, *rl = topology.stages
    assert isinstance(sft, SftStage)
    assert sft.steps == round(3 * (165_000 + 30_000 + 27_000) / sft.batch)
    assert sft.warmup_steps == round(0.04 * sft.steps)
    assert [(stage.kind, getattr(stage, "steps", None)) for stage in rl] == [
        ("rl", 300),
        ("rl", 85),
        ("select", None),
        ("rl", 125),
    ]
    algorithm = topology.algorithm
    assert (algorithm.groups_per_step, algorithm.samples, algorithm.keep) == (512, 32, 16)
    assert (algorithm.clip_low, algorithm.clip_high, algorithm.entropy_coefficient) == (0.2, 0.28, 0)


PARTS = [each for each in re.split(r"(?m)^#+ |^(?=\|)", PAGES["docs/gallery.md"]) if "agent-rl" in each]
"""Sections, and rows of tables."""


def test_the_first_line_of_each_example_says_what_it_takes_and_shows():
    assert [example.name for example in described_examples()] == list(example_files())
    assert len(example_files()) == len([*EXAMPLES.glob("*.toml"), *EXAMPLES.glob("*/*.toml")])


@pytest.mark.parametrize("name", example_files())
def test_an_example_is_found_by_its_name_also_beside_a_folder_of_that_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    for given in (name, f"{name}.toml", f"examples/{name}", f"examples/{name}.toml"):
        assert topology_file(given) == example_files()[name]
    (tmp_path / f"{name}.toml").touch()
    assert topology_file(f"{name}.toml") == Path(f"{name}.toml")
    assert topology_file(f"elsewhere/{name}") == Path(f"elsewhere/{name}")


def test_a_run_without_a_file_lists_the_examples(capsys):
    assert main(["run"]) == 2
    out, err = capsys.readouterr()
    listed = [line.split() for line in out.splitlines()[1:]]
    assert listed == [" ".join(example).split() for example in described_examples()]
    assert err == (
        "agent-rl: name a topology file or an example: agent-rl run FILE (agent-rl run --help tells what there is)\n"
    )


@pytest.mark.parametrize("example", described_examples(), ids=lambda example: example.name)
def test_the_gallery_says_of_an_example_what_it_takes_and_shows(example):
    name, takes, shows = example
    (part,) = (
        part for part in PARTS if re.search(rf"agent-rl [a-z]+ (MODEL --topology )?{re.escape(name)}[\n`]", part)
    )
    assert shows in " ".join(part.split())
    assert re.search(rf"(^|\n|\| ){takes}(: | \|)", part)


def test_the_commands_that_fetch_the_data_of_an_example_are_understood():
    fetched = [each for file in example_files().values() for each in load_topology(file).fetch.items()]
    assert len(fetched) > 5
    for folder, arguments in fetched:
        command_line().parse_args(["data", "fetch", *shlex.split(arguments), "--out", folder])
