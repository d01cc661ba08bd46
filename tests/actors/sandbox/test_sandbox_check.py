"""Functions called in children that can be killed: checks of answers, and functions of the user's own."""

import sys

import pytest
import trio

from actors.sandbox.owner.client import ExecutionLimits
from actors.sandbox.owner.functions import FunctionSandbox
from actors.sandbox.owner.interpreter import WarmUpError
from agent_rl.environments.base import CheckError, CheckUnavailableError
from tests.actors.sandbox.running import live, require

pytestmark = pytest.mark.real_time
CHECK = "agent_rl.environments.maths.rewards:check"
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


async def test_answers_that_take_long_keep_no_other_answer_waiting_for_their_limit():
    limits = ExecutionLimits(wall_seconds=60.0, cpu_seconds=60.0)
    async with live(FunctionSandbox([CHECK], children=2, limits=limits)) as sandbox, trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(checked, sandbox, CHECK, "7", "\\sum_{k=1}^{10^{10}} k^k")
        await trio.sleep(0.05)
        with trio.fail_after(20.0):
            assert await sandbox.check(CHECK, "\\frac{1}{2}", "0.5") == "equal"
        nursery.cancel_scope.cancel()


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a module of the user's, one that it imports, and a file."""
    (tmp_path / "own_functions.py").write_text(OWN)
    (tmp_path / "beside_it.py").write_text("LOADED = []\n")
    (tmp_path / "secret.txt").write_text("42")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("own_functions", "beside_it"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("level", ["strong", "filtered", "limits"])
async def test_a_function_of_the_users_is_called_with_its_module_and_what_that_imports_read_only(level, own):
    await trio.to_thread.run_sync(require, level)
    async with live(FunctionSandbox(["own_functions:shout"], isolation=level)) as sandbox:
        assert await sandbox.check("own_functions:shout", "hé") == "HÉ!"
        seen = await sandbox.check("own_functions:see", str(own / "secret.txt"))
        assert seen == "False" or level != "strong"
        written = await checked(sandbox, "own_functions:write", str(own / "new.txt"))
        assert level == "limits" or (written == "CheckError" and not (own / "new.txt").exists())


async def test_what_a_function_does_wrong_is_an_outcome_with_the_line(own):
    limits = ExecutionLimits(wall_seconds=20.0, cpu_seconds=1.0)
    outcomes = {
        "shout": "success", "nothing": "success", "number": "error", "endless": "timeout", "killed": "killed",
        "crash": "error", "missing": "error",
    }  # fmt: skip
    async with live(FunctionSandbox(["own_functions:shout"], limits=limits)) as sandbox:
        found = {name: await sandbox.call(f"own_functions:{name}", "a") for name in outcomes}
        died = []
        for name in ("crash", "killed", "endless"):
            with pytest.raises(CheckError) as caught:
                await sandbox.check(f"own_functions:{name}", "bad text")
            died.append(caught.value)
    assert {name: result.outcome for name, result in found.items()} == outcomes
    assert (found["shout"].value, found["nothing"].value) == ("A!", "")
    assert "own_functions:number returned a value of type int; it must return a text" in found["number"].stderr
    assert 'own_functions.py", line 31, in crash' in found["crash"].stderr
    assert found["crash"].stderr.endswith("ValueError: a\n")
    assert "has no attribute 'missing'" in found["missing"].stderr
    assert [str(error) for error in died] == ["crashed", "crashed", "timeout"], "a word each, and the rest in a note"
    assert "ValueError: bad text" in died[0].__notes__[0]


def test_a_module_that_does_not_import_is_one_error_with_file_and_line(own):
    (own / "own_functions.py").write_text("import beside_it\n\nbeside_it.missing()\n")
    with pytest.raises(
        WarmUpError, match=r"^importing own_functions fails with AttributeError: .* \(own_functions.py, line 3\)$"
    ):
        FunctionSandbox(["own_functions:shout"])
    with pytest.raises(WarmUpError, match="no_such_module_anywhere"):
        FunctionSandbox(["no_such_module_anywhere:shout"])


async def test_a_checker_that_is_killed_from_outside_says_nothing_of_the_text(own):
    code = "import os, signal\ndef die(text):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    (own / "own_functions.py").write_text(code)
    async with live(FunctionSandbox(["own_functions:die"])) as sandbox:
        with pytest.raises(CheckUnavailableError, match="killed: "):
            await sandbox.check("own_functions:die", "a")
