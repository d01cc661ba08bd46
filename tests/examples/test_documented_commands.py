"""Commands and topologies in README and documents are ones that this version reads."""

import ast
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import tomli_w

from actors.cli.main import command_line
from agent_rl.config.load import load_topology
from agent_rl.config.topology import SftStage

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *(ROOT / "skills").rglob("*.md")]
PAGES.append(ROOT / "benchmarks" / "README.md")
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}


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
