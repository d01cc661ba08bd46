"""Who may import whom, and what stays unloaded."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("agent_rl", "transport", "actors")
FORBIDDEN = {
    "agent_rl": {"transport", "actors"},
    "transport": {"agent_rl", "actors"},
    "actors": {"tests", "benchmarks"},
}
LAZILY = {ROOT / "agent_rl" / name for name in ("cli.py", "networks.py", "other_hosts.py", "supervise.py")}


def imported(tree: ast.AST, *, inside_functions: bool) -> Iterator[str]:
    """Top-level package names that a module imports at run time."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        elif inside_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imported(node, inside_functions=inside_functions)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_they_may(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        names = set(imported(ast.parse(path.read_text()), inside_functions=path not in LAZILY))
        assert not names & FORBIDDEN[package], f"{path.relative_to(ROOT)} imports {names & FORBIDDEN[package]}"


def test_the_rule_is_noticed_when_broken() -> None:
    tree = ast.parse("def f():\n    from actors import base\nif TYPE_CHECKING:\n    import transport\n")
    assert set(imported(tree, inside_functions=True)) == {"actors"}
    assert set(imported(tree, inside_functions=False)) == set()


def test_no_module_uses_pickle() -> None:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            assert "pickle" not in set(imported(ast.parse(path.read_text()), inside_functions=True)), path


def test_checking_a_topology_loads_neither_torch_nor_vllm() -> None:
    code = (
        "import sys; from agent_rl.cli import main; code = main(['check', 'examples/quickstart.toml']); "
        "print(code, [name for name in ('torch', 'transformers', 'vllm') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 []"


def test_the_page_of_messages_is_up_to_date() -> None:
    code = "import runpy; print(runpy.run_path('docs/make_messages.py')['page']() == open('docs/messages.md').read())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "True", "run python docs/make_messages.py"
