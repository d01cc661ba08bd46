"""Who may import whom, and what stays unloaded."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from agent_rl.config.topology import Topology

ROOT = Path(__file__).parent.parent
PACKAGES = ("agent_rl", "transport", "actors")
LOADING = {"import_module", "find_spec", "run_module"}


@cache
def modules(package: str) -> list[tuple[Path, ast.AST]]:
    return [(path, ast.parse(path.read_text())) for path in (ROOT / package).rglob("*.py")]


def named_at_run_time(tree: ast.AST) -> Iterator[str]:
    """Modules that are loaded by a name in a text, which no linter of imports sees."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in LOADING and isinstance(node.args[0].value, str):
                yield node.args[0].value


@pytest.mark.parametrize("package", ["agent_rl", "transport"])
def test_no_name_in_a_text_leads_around_the_rules(package):
    others = set(PACKAGES) - {package}
    for path, tree in modules(package):
        assert not {name.partition(".")[0] for name in named_at_run_time(tree)} & others, path


def test_the_rule_is_noticed_when_broken():
    tree = ast.parse("import importlib\ndef f():\n    importlib.import_module('actors.base')\n")
    assert list(named_at_run_time(tree)) == ["actors.base"]


def test_no_module_uses_pickle():
    for package in PACKAGES:
        for path, tree in modules(package):
            for node in ast.walk(tree):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    names = [getattr(node, "module", ""), *(alias.name for alias in node.names)]
                    assert "pickle" not in names, path


def test_no_model_brings_code_of_its_own():
    """Unset, transformers asks on the terminal whether to run it."""
    for package in (*PACKAGES, "benchmarks"):
        for path, tree in modules(package):
            for node in ast.walk(tree) if "Auto" in path.read_text() else ():
                if isinstance(node, ast.Call) and re.search(
                    r"Auto\w+\.from_(pretrained|config)$", ast.unparse(node.func)
                ):
                    assert "trust_remote_code=False" in ast.unparse(node), (path, node.lineno)


def test_checking_a_topology_loads_neither_torch_nor_vllm():
    code = (
        "import sys; from actors.cli.main import main; code = main(['check', 'examples/quickstart/quickstart.toml']); "
        "print(code, [name for name in ('torch', 'transformers', 'vllm') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 []"


def test_pages_that_are_made_are_up_to_date():
    code = """if True:
        import runpy, sys
        for name in sys.argv[1:]:
            if runpy.run_path(f"docs/make_{name}.py")["page"]() != open(f"docs/{name}.md").read():
                print(f"run python docs/make_{name}.py")
    """
    names = sorted(path.stem.removeprefix("make_") for path in (ROOT / "docs").glob("make_*.py"))
    assert names
    done = subprocess.run(
        [sys.executable, "-c", code, *names], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert not done.stdout, done.stdout


def test_every_key_of_a_topology_says_what_it_means():
    page = (ROOT / "docs" / "configuration.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 120
    assert not [row for row in rows if row.endswith("|  |")]
    headings = [line for line in page.splitlines() if line.startswith("## `[")]
    for key in Topology.model_fields:
        assert any(re.match(rf"## `\[+{key}\W", heading) for heading in headings), key
