"""The one loader of ``module:Name``: what it finds, and what it says of what it does not find."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from agent_rl.config.plugins import ALIASES, ContractError, PluginError, called, find, path_of, resolve

_numbers = count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a module of the user's own; returns its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(source: str) -> str:
        name = f"plugged_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


@pytest.mark.parametrize(("kind", "alias"), [(kind, alias) for kind, names in ALIASES.items() for alias in names])
def test_every_short_name_leads_to_what_is_there(kind, alias) -> None:
    module, _, name = path_of(kind, alias).partition(":")
    find(kind, f"{module}:{name}")  # as if it were a user's: nothing is imported, so that vLLM need not be installed
    if kind not in {"engine", "loss"}:
        assert resolve(kind, alias) is resolve(kind, f"{module}:{name}")


def test_a_path_of_an_earlier_version_leads_to_the_class_of_today() -> None:
    assert resolve("task_generator", "agent_rl.arithmetic:ArithmeticTasks") is resolve("task_generator", "arithmetic")
    assert path_of("engine", "actors.engines.torch.engine:TorchEngine") == path_of("engine", "torch")


def test_a_module_of_the_users_own_is_imported(module) -> None:
    name = module("def mine(): return 7")
    assert resolve("selection", f"{name}:mine")() == 7


@pytest.mark.parametrize(
    ("kind", "source", "name", "said"),
    [
        (
            "loss",
            None,
            "cliped",
            "'cliped' is no loss; write module:Name of a function, or a built-in one: did you mean 'clipped'?",
        ),
        ("tracker", None, "x", "'x' is no tracker; write module:Name of a class"),
        (
            "actor",
            None,
            ":X",
            "':X' is no actor; write module:Name of a class, or a built-in one: there is kv_scheduler,",
        ),
        (
            "loss",
            None,
            "not_there:x",
            "there is no module 'not_there'; modules are looked for in the working directory",
        ),
        ("loss", None, "agent_rl.not_there:x", "there is no module 'agent_rl.not_there'; "),
        ("loss", "import missing_thing", "{}:x", "needs 'missing_thing', which is not installed (plugged_"),
        ("loss", "\n\nraise ValueError('oh')", "{}:x", ".py, line 3)"),
        ("loss", "def f(:", "{}:x", "SyntaxError: "),
        ("loss", "raise SystemExit(3)", "{}:x", "fails with SystemExit: 3 (plugged_"),
        ("loss", "def losss(): pass\nclass Loss: pass", "{}:loss", "has no function 'loss'; did you mean 'losss'?"),
        ("actor", "def Mine(): pass", "{}:Mine2", "has no class 'Mine2'; there are none"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(module, kind, source, name, said) -> None:
    name = name.format(module(source)) if source is not None else name
    with pytest.raises(PluginError) as caught:
        resolve(kind, name)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ContractError)


@pytest.mark.parametrize(
    "source",
    [
        "def mine(): pass",
        "async def mine(): pass",
        "class mine: pass",
        "mine = 3",
        "from json import loads as mine",
        "from json import *",
        "try:\n    import json\n    mine = json\nexcept ImportError:\n    pass",
        "def __getattr__(name): return 3",
    ],
)
def test_a_name_is_found_without_an_import(module, source) -> None:
    name = module(f"import not_there_at_all\n{source}")
    find("loss", f"{name}:mine")
    assert name not in sys.modules


def test_what_is_not_there_is_missed_without_an_import(module) -> None:
    name = module("import not_there_at_all\ndef mine(): pass")
    with pytest.raises(PluginError, match=r"has no function 'mime'; did you mean 'mine'\?"):
        find("loss", f"{name}:mime")
    with pytest.raises(PluginError, match="there is no module 'not_there'"):
        find("loss", "not_there:mine")
    with pytest.raises(PluginError, match="cannot be read"):
        find("loss", f"{module('def f(:')}:f")


def test_built_in_losses_and_engines_are_found_without_torch() -> None:
    code = (
        "import sys; from agent_rl.config.plugins import find; find('loss', 'clipped'); find('engine', 'vllm'); "
        "find('engine', 'torch'); print([name for name in ('torch', 'vllm', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_failure_names_the_line_that_raised_or_else_the_definition(module) -> None:
    name = module(
        "def raises(x):\n    return 1 / x\n\n\ndef takes_none():\n    pass\n\n\nclass Made:\n    def __init__(self, a): pass\n"
    )
    raises, takes_none, made = (resolve("selection", f"{name}:{each}") for each in ("raises", "takes_none", "Made"))
    with pytest.raises(ContractError, match=rf"raises fails for 0 with ZeroDivisionError: .* \({name}.py, line 2\)"):
        called("raises", partial(raises, 0), "for 0", raises)
    with pytest.raises(ContractError, match=rf"takes_none fails for 0 with TypeError: .* \({name}.py, line 5\)"):
        called("takes_none", partial(takes_none, 0), "for 0", takes_none)
    with pytest.raises(ContractError, match=rf"\({name}.py, line 9\)"):
        called("Made", made, "before the start", made)
    with pytest.raises(ContractError, match=r"len fails for 0 with TypeError: .* has no len\(\)$"):
        called("len", partial(len, 0), "for 0", len)
