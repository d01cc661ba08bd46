"""Functions called in children that can be killed: checks of answers, and functions of the user's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.sandbox.owner.client import ExecutionLimits
from actors.sandbox.owner.functions import FunctionSandbox
from actors.sandbox.owner.interpreter import WarmUpError
from agent_rl.environments.base import CheckError, CheckUnavailableError
from tests.actors.sandbox.running import require, run_with

CHECK = "agent_rl.environments.maths.rewards:check"
CASES: list[tuple[str, ...]] = [  # gold, prediction, perhaps the problem; and the verdict
    ("42", "42", "equal"),
    ("42", "43", "different"),
    ("\\frac{1}{2}", "0.5", "equal"),
    ("\\frac{1}{2}", "0.5", "Write 0.5 as a fraction.", "right by value"),
    ("x^2+2x+1", "(x+1)^2", "equal"),
    ("x", "\\frac{1}{", "different"),
    ("3", "\ud800\0", "different"),
    ("7", "\\sum_{k=1}^{10^{10}} k^k", "different"),
    ("7", "\\sqrt{" * 3000, "different"),
]
OWN = """
import os, time
import beside_it

def warm_up():
    beside_it.LOADED.append(1)

def shout(text):
    return text.upper() + "!" * (beside_it.LOADED != [])

def see(path):
    return str(os.path.exists(path))

def write(path):
    open(path, "w")

def nothing(text):
    pass

def number(text):
    return 7

def endless(text):
    while True:
        pass

def killed(text):
    os.kill(os.getpid(), 11)

def crash(text):
    raise ValueError(text)
"""


async def checked(sandbox: FunctionSandbox, function: str, *arguments: str) -> str:
    try:
        return await sandbox.check(function, *arguments)
    except (CheckError, CheckUnavailableError) as error:
        return type(error).__name__


def test_answers_are_judged() -> None:
    async def main(sandbox: Any) -> list[str]:
        return [await checked(sandbox, CHECK, *texts) for *texts, _ in CASES]

    sandbox = FunctionSandbox([CHECK], limits=ExecutionLimits(wall_seconds=4.0, cpu_seconds=1.0))
    assert run_with(sandbox, main) == [wanted for *_, wanted in CASES]


def test_answers_that_take_long_keep_no_other_answer_waiting_for_their_limit() -> None:
    async def main(sandbox: FunctionSandbox) -> float:
        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(checked, sandbox, CHECK, "7", "\\sum_{k=1}^{10^{10}} k^k")
            await trio.sleep(0.05)
            asked = trio.current_time()
            assert await sandbox.check(CHECK, "\\frac{1}{2}", "0.5") == "equal"
            nursery.cancel_scope.cancel()
        return trio.current_time() - asked

    limits = ExecutionLimits(wall_seconds=60.0, cpu_seconds=60.0)
    assert run_with(FunctionSandbox([CHECK], children=2, limits=limits), main) < 20.0


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of the user's, one that it imports, and a file."""
    (tmp_path / "own_functions.py").write_text(OWN)
    (tmp_path / "beside_it.py").write_text("LOADED = []\n")
    (tmp_path / "secret.txt").write_text("42")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("own_functions", "beside_it"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("level", ["strong", "filtered", "limits"])
def test_a_function_of_the_users_is_called_with_its_module_and_what_that_imports_read_only(
    level: str, own: Path
) -> None:
    require(level)

    async def main(sandbox: Any) -> list[str]:
        shouted = await sandbox.check("own_functions:shout", "hé")
        seen = await sandbox.check("own_functions:see", str(own / "secret.txt"))
        written = await checked(sandbox, "own_functions:write", str(own / "new.txt"))
        return [shouted, seen, written]

    shouted, seen, written = run_with(FunctionSandbox(["own_functions:shout"], isolation=level), main)
    assert shouted == "HÉ!"
    if level != "limits":
        assert written == "CheckError"
        assert not (own / "new.txt").exists()
    if level == "strong":
        assert seen == "False"


def test_what_a_function_does_wrong_is_an_outcome_with_the_line(own: Path) -> None:
    limits = ExecutionLimits(wall_seconds=0.5, cpu_seconds=1.0)

    async def main(sandbox: Any) -> dict[str, Any]:
        names = ("shout", "nothing", "number", "endless", "killed", "crash", "missing")
        return {name: await sandbox.call(f"own_functions:{name}", "a") for name in names}

    found = run_with(FunctionSandbox(["own_functions:shout"], limits=limits), main)
    assert {name: result.outcome for name, result in found.items()} == {
        "shout": "success",
        "nothing": "success",
        "number": "error",
        "endless": "timeout",
        "killed": "killed",
        "crash": "error",
        "missing": "error",
    }
    assert (found["shout"].value, found["nothing"].value) == ("A!", "")
    assert "own_functions:number returned a value of type int; it must return a text" in found["number"].stderr
    assert 'own_functions.py", line 31, in crash' in found["crash"].stderr
    assert found["crash"].stderr.endswith("ValueError: a\n")
    assert "has no attribute 'missing'" in found["missing"].stderr


def test_a_check_that_dies_says_so_in_a_word_and_what_it_printed_in_a_note(own: Path) -> None:
    async def main(sandbox: Any) -> list[CheckError]:
        found = []
        for name in ("crash", "killed", "endless"):
            with pytest.raises(CheckError) as caught:
                await sandbox.check(f"own_functions:{name}", "bad text")
            found.append(caught.value)
        return found

    limits = ExecutionLimits(wall_seconds=0.5, cpu_seconds=1.0)
    crashed, killed, endless = run_with(FunctionSandbox(["own_functions:shout"], limits=limits), main)
    assert [str(error) for error in (crashed, killed, endless)] == ["crashed", "crashed", "timeout"]
    assert "ValueError: bad text" in crashed.__notes__[0]


def test_a_module_that_does_not_import_is_one_error_with_file_and_line(own: Path) -> None:
    (own / "own_functions.py").write_text("import beside_it\n\nbeside_it.missing()\n")
    with pytest.raises(
        WarmUpError, match=r"^importing own_functions fails with AttributeError: .* \(own_functions.py, line 3\)$"
    ):
        FunctionSandbox(["own_functions:shout"])
    with pytest.raises(WarmUpError, match="no_such_module_anywhere"):
        FunctionSandbox(["no_such_module_anywhere:shout"])


def test_a_checker_that_is_killed_from_outside_says_nothing_of_the_text(own: Path) -> None:
    (own / "own_functions.py").write_text(
        "import os, signal\ndef die(text):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    async def main(sandbox: Any) -> None:
        with pytest.raises(CheckUnavailableError, match="killed: "):
            await sandbox.check("own_functions:die", "a")

    run_with(FunctionSandbox(["own_functions:die"]), main)


def test_checks_of_one_name_take_turns_with_others() -> None:
    order: list[str] = []

    async def main(sandbox: Any) -> None:
        async def one(name: str) -> None:
            await sandbox.check("builtins:str", name, name=name)
            order.append(name)

        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(one, "storm")
            await trio.sleep(0.01)
            nursery.start_soon(one, "calm")

    run_with(FunctionSandbox(["builtins:str"], children=1), main)
    assert order.index("calm") < 25
