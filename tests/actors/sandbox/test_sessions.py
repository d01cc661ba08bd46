"""Sessions: state from cell to cell, cells that run once, ends and returns of a session, eviction."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from actors.sandbox.owner import client
from actors.sandbox.owner.client import ExecutionLimits, Sandbox, SessionTable
from agent_rl.environments.base import ToolOutput
from tests.actors.sandbox.running import eventually, living, named, pids, require, run_with

SHORT = ExecutionLimits(wall_seconds=0.6, memory_bytes=64 << 20, output_bytes=1000, processes=8)


class Notebook:
    """A rollout's side of a session: numbers its cells and keeps those that the state consists of."""

    def __init__(self, sandbox: Sandbox, name: str = "r1") -> None:
        self.sandbox, self.name, self.cells, self.kept = sandbox, name, 0, list[str]()

    async def run(self, code: str) -> ToolOutput:
        self.cells += 1
        result = await self.sandbox.run_cell(self.name, self.cells, code, self.kept, limits=SHORT)
        if result.kept:
            self.kept.append(code)
        return result


def in_notebook(main: Callable[[Notebook], Awaitable[Any]], level: str = "host", **settings: Any) -> Any:
    return run_with(Sandbox(isolation=level, **settings), lambda sandbox: main(Notebook(sandbox)))


@pytest.mark.parametrize("level", ["strong", "filtered", "limits"])
def test_cells_share_their_variables_files_and_imports(level: str) -> None:
    require(level)

    async def main(notebook: Notebook) -> list[ToolOutput]:
        cells = (
            "import math\nx = 20",
            "def f(a): return a + x\nopen('file', 'w').write('x')",
            "print(f(22), open('file').read())",
            "math.pi",
        )
        return [await notebook.run(cell) for cell in cells]

    results = in_notebook(main, level)
    assert [result.outcome for result in results] == ["success"] * 4
    assert (results[2].stdout, results[3].value) == ("42 x\n", "3.141592653589793")
    assert all(result.kept and result.stderr == result.note == "" for result in results)


def test_an_exception_keeps_what_was_done_before_it() -> None:
    async def main(notebook: Notebook) -> list[ToolOutput]:
        return [await notebook.run(cell) for cell in ("x = 1\n1/0", "x", "raise SystemExit(3)", "x + 1", "x = [", "x")]

    failed, after, left, still, unparsed, last = in_notebook(main)
    assert (failed.outcome, failed.kept, after.value) == ("error", True, "1")
    assert "ZeroDivisionError" in failed.stderr
    assert (left.outcome, left.kept, still.value) == ("error", True, "2")
    assert ("SyntaxError" in unparsed.stderr, last.value) == (True, "1")


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("x = 2\nwhile True: pass", "timeout"),
        ("x = 2\nimport os\nos.kill(os.getpid(), 9)", "killed"),
        ("x = 2\nimport os\nos._exit(0)", "error"),
        ("x = 2\nimport ctypes\nctypes.string_at(0)", "killed"),
    ],
)
def test_a_session_whose_process_ends_has_the_state_before(code: str, outcome: str) -> None:
    async def main(notebook: Notebook) -> tuple[ToolOutput, ToolOutput, ToolOutput]:
        await notebook.run("x = 1\nprint('once')")
        return await notebook.run(code), await notebook.run("x"), await notebook.run("x = x + 1\nx")

    ended, after, later = in_notebook(main)
    assert (ended.outcome, ended.kept) == (outcome, False)
    assert ended.note.startswith("[The session's process has ended; its state is that before this cell.]")
    assert (after.outcome, after.value, after.stdout) == (
        "success",
        "1",
        "",
    )  # what earlier cells printed is not said twice
    assert after.note.startswith("[The session was lost (its last cell ended as")
    assert (later.value, later.note) == ("2", "")


def test_memory_and_output_limits_hold_for_each_cell_and_leave_the_state() -> None:
    async def main(notebook: Notebook) -> list[ToolOutput]:
        cells = ("x = 5", "y = bytearray(10**9)", "x", "print('x' * 5000)", "print('short')\nx")
        return [await notebook.run(cell) for cell in cells]

    _, memory, after, output, last = in_notebook(main)
    assert (memory.outcome, memory.kept, after.value) == ("memory_limit", True, "5")
    assert (output.outcome, len(output.stdout) < 1100) == ("output_limit", True)
    assert (last.stdout, last.value) == ("short\n", "5")


def test_a_repeated_request_returns_the_first_result_without_running_again() -> None:
    async def main(notebook: Notebook) -> tuple[list[ToolOutput], ToolOutput]:
        await notebook.run("count = 0")
        results: list[ToolOutput] = []

        async def ask() -> None:
            results.append(await notebook.sandbox.run_cell("r1", 2, "count += 1\nprint(count)", ["count = 0"]))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
        return results, await notebook.sandbox.run_cell("r1", 3, "count", ["count = 0", "count += 1\nprint(count)"])

    results, after = in_notebook(main)
    assert {result.stdout for result in results} == {"1\n"}
    assert len(set(results)) == 1
    assert after.value == "1"


def test_a_turn_that_is_written_again_otherwise_runs_its_own_cell() -> None:
    async def main(notebook: Notebook) -> list[str]:
        return [(await notebook.sandbox.run_cell("r1", "2.0", code)).value for code in ("1", "2", "1")]

    assert in_notebook(main) == ["1", "2", "1"]


def test_a_session_that_was_elsewhere_is_rebuilt_and_says_so() -> None:
    async def main(notebook: Notebook) -> ToolOutput:
        return await notebook.sandbox.run_cell(
            "r9", 3, "x + y", ["x = 40\nprint('loud')\n1/0", "import os\nos.write(1, b'!')\ny = 2"]
        )

    result = in_notebook(main)
    assert (result.outcome, result.value, result.stdout, result.kept) == ("success", "42", "", True)
    assert (result.note, result.stderr) == ("[The session was lost: its 2 earlier cells were run again.]\n", "")


def test_a_killed_interpreter_loses_no_session() -> None:
    async def main(notebook: Notebook) -> ToolOutput:
        await notebook.run("x = 7")
        notebook.sandbox._ready[0].kill()
        await trio.sleep(0.1)
        return await notebook.run("x")

    result = in_notebook(main)
    assert (result.value, "run again" in result.note) == ("7", True)


def test_too_many_sessions_end_the_one_idle_longest_and_its_model_is_told() -> None:
    async def main(notebook: Notebook) -> tuple[list[ToolOutput], dict[str, float]]:
        books = [Notebook(notebook.sandbox, f"r{number}") for number in range(3)]
        for number, book in enumerate(books):
            await book.run(f"x = {number}")
        figures = notebook.sandbox.figures
        return [await book.run("x") for book in reversed(books)], figures

    results, figures = in_notebook(main, sessions=2)
    assert [result.value for result in results] == ["2", "1", "0"]
    assert [result.note for result in results[:2]] == ["", ""]
    assert (
        results[2].note == "[The session was lost (too many sessions were open, and it was idle longest): "
        "its 1 earlier cells were run again.]\n"
    )
    assert (figures["sessions"], figures["sessions_evicted"]) == (2, 1)


def test_sessions_see_nothing_of_each_other() -> None:
    async def main(notebook: Notebook) -> ToolOutput:
        other = Notebook(notebook.sandbox, "other")
        await notebook.run("import builtins\nbuiltins.secret = x = 1\nopen('secret', 'w').write('x')")
        return await other.run(
            "import builtins, os\nprint('x' in globals(), hasattr(builtins, 'secret'), os.listdir('.'))"
        )

    assert in_notebook(main).stdout == "False False []\n"


GOES_ON = (
    "import os\ndef go_on():\n    while True:\n        try: os.kill(os.getpid(), 18)\n        except OSError: return\n"
)


@pytest.mark.parametrize("level", ["strong", "filtered"])
@pytest.mark.parametrize(
    "attack", ["", GOES_ON + "threading.Thread(target=go_on, daemon=True).start()\n"], ids=["", "going on"]
)
def test_an_idle_session_does_not_run(level: str, attack: str) -> None:
    require(level)

    async def main(notebook: Notebook) -> tuple[ToolOutput, ToolOutput]:
        await notebook.run(
            "import threading, time\nticks = 0\ndef tick():\n    global ticks\n    while True:\n        "
            "time.sleep(0.01)\n"
            f"        ticks += 1\nthreading.Thread(target=tick, daemon=True).start()\n{attack}"
        )
        before = await notebook.run("ticks")
        await trio.sleep(0.3)
        return before, await notebook.run("ticks")

    before, after = in_notebook(main, level)
    assert int(after.value) - int(before.value) < 10


@pytest.mark.parametrize("level", ["strong", "limits"])
def test_a_cell_that_leaves_processes_ends_its_session(level: str) -> None:
    require(level)
    code = named("left-by-cell") + "import os, time\nif os.fork() == 0:\n    time.sleep(60)\n    os._exit(0)\nx = 2"

    async def main(notebook: Notebook) -> tuple[ToolOutput, ToolOutput]:
        await notebook.run("x = 1")
        left = await notebook.run(code)
        assert await eventually(lambda: living("left-by-cell") == 0)
        return left, await notebook.run("x")

    left, after = in_notebook(main, level)
    assert (left.outcome, left.kept, after.value) == ("error", False, "1")
    assert "left processes running" in left.stderr


def test_a_process_forked_while_the_session_is_being_stopped_ends_too() -> None:
    code = (
        "import ctypes, os, time\nlibc = ctypes.CDLL(None)\nos.write(4, b'.')\nif libc.fork() == 0:\n"
        "    libc.prctl(15, b'forked-late')\n    while True: pass\ntime.sleep(60)"
    )

    async def main(notebook: Notebook) -> None:
        for attempt in range(10):
            await Notebook(notebook.sandbox, f"late {attempt}").run(code)
        assert await eventually(lambda: living("forked-late") == 0)
        assert (await notebook.run("1")).value == "1"

    in_notebook(main)


def test_a_process_that_an_idle_session_gave_away_ends_too() -> None:
    """Without namespaces the interpreter adopts it, and finds it when the session stops."""
    require("filtered")
    code = (
        "import ctypes, os, time\nlibc = ctypes.CDLL(None)\nif os.fork() == 0:\n    os.setpgid(0, 0)\n    if os.fork() "
        "== 0:\n"
        "        libc.prctl(15, b'given-away')\n        time.sleep(60)\n    os._exit(0)\nos.wait()\ntime.sleep(0.1)"
    )

    async def main(notebook: Notebook) -> str:
        await notebook.run(code)
        assert await eventually(lambda: living("given-away") == 0)
        return (await notebook.run("1")).value

    assert in_notebook(main, "filtered") == "1"


POISON = """
import builtins, json, os, sys, socket
child = sys.modules["actors.sandbox.inside.child"]
child.traceback_text = lambda *a: "all is well"
def forged(request): return "forged"
child.run_code.__code__ = forged.__code__
os.ftruncate = lambda *a: None
print = builtins.print = None
"""


def test_a_poisoned_session_harms_no_other_and_ends_at_its_deadline() -> None:
    async def main(notebook: Notebook) -> tuple[ToolOutput, ...]:
        other = Notebook(notebook.sandbox, "other")
        await other.run("x = 1")
        await notebook.run(POISON)
        poisoned = await notebook.run("1/0")
        hung = Notebook(notebook.sandbox, "hung")
        silent = await hung.run("import sys\nsys.modules['actors.sandbox.inside.child'].DONE_SAID = b''")
        return poisoned, silent, await other.run("print(x)"), await notebook.sandbox.execute("print(2)")

    poisoned, hung, other, call = in_notebook(main)
    assert poisoned.outcome in ("success", "error")  # its own result is all it can forge
    assert hung.outcome == "timeout"
    assert (other.stdout, call.stdout) == ("1\n", "2\n")


@pytest.mark.parametrize("said", ["b'.'", "b'.' * 16", "b'x' * 60000"])
def test_a_session_that_talks_out_of_turn_harms_only_itself(said: str) -> None:
    async def main(notebook: Notebook) -> tuple[ToolOutput, ToolOutput]:
        await notebook.run(f"import os\ntry:\n    for _ in range(3): os.write(4, {said})\nexcept OSError: pass")
        await notebook.run("1")
        other = Notebook(notebook.sandbox, "other")
        return await other.run("print(1)"), await notebook.sandbox.execute("print(2)")

    other, call = in_notebook(main)
    assert (other.stdout, call.stdout) == ("1\n", "2\n")


def test_a_cell_that_is_given_up_ends_its_session_and_the_next_finds_the_state_before() -> None:
    async def main(notebook: Notebook) -> ToolOutput:
        await notebook.run("x = 1")
        with trio.move_on_after(0.2):
            await notebook.run("x = 2\nimport time\ntime.sleep(60)")
        return await notebook.run("x")

    result = in_notebook(main)
    assert (result.outcome, result.value) == ("success", "1")
    assert result.note == "[The session was lost (its last cell was given up): its 1 earlier cells were run again.]\n"


def test_a_session_whose_idle_process_is_killed_from_outside_is_rebuilt_and_says_so() -> None:
    async def main(notebook: Notebook) -> ToolOutput:
        await notebook.run(named("idle-session") + "x = 3")
        (pid,) = pids("idle-session")
        os.kill(pid, signal.SIGKILL)  # as the system does when memory runs out
        assert await eventually(lambda: living("idle-session") == 0)
        return await notebook.run("x")

    result = in_notebook(main)
    assert (result.outcome, result.value) == ("success", "3")
    assert result.note == "[The session was lost (its process was gone): its 1 earlier cells were run again.]\n"


def test_a_rebuilt_sessions_cell_has_the_time_of_a_cell_and_counts_its_own_alone() -> None:
    slow, limits = ("import time\ntime.sleep(0.8)", "time.sleep(0.8)\nx = 1"), ExecutionLimits(wall_seconds=2.0)

    async def main(notebook: Notebook) -> tuple[ToolOutput, ToolOutput]:
        quick = await notebook.sandbox.run_cell("a", 3, "x", slow, limits=limits)
        return quick, await notebook.sandbox.run_cell("b", 3, "while True: pass", slow, limits=limits)

    quick, endless = in_notebook(main)
    assert (quick.value, quick.run_seconds < 1.5) == ("1", True)
    assert (endless.outcome, endless.kept) == ("timeout", False)
    assert endless.run_seconds < 2.0 + 1.5


def test_cells_that_are_run_again_take_no_place_of_others_and_end_when_a_rollout_has_used_its_time_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each rollout's process ends with its last cell, so that its slow cell runs again, as often as it asks."""
    monkeypatch.setattr(client, "REPLAYS", 3)
    slow, limits = ["import time\ntime.sleep(0.5)"], ExecutionLimits(wall_seconds=0.6)
    results: list[ToolOutput] = []

    async def loses(sandbox: Sandbox, name: str) -> None:
        for number in range(5):
            result = await sandbox.run_cell(name, number, "import os\nos._exit(1)", slow, limits=limits)
            if name == "a":
                results.append(result)

    async def main(notebook: Notebook) -> list[float]:
        await notebook.run("1")
        waited = []
        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(loses, notebook.sandbox, name)
            await trio.sleep(0.2)
            for _ in range(10):
                began = trio.current_time()
                assert (await notebook.sandbox.execute("print(1)")).stdout == "1\n"
                waited.append(trio.current_time() - began)
        return waited

    waited = in_notebook(main, children=2)
    assert sorted(waited)[5] < 0.25  # half of what a cell takes that is run again
    assert results[0].stderr.startswith("The process ended"), results[0]
    assert (
        results[-1].stderr
        == "The earlier cells could not be run again: this was done too often, and they took too long.\n"
    )


def test_no_more_sessions_live_than_may_however_many_begin_at_once() -> None:
    async def main(notebook: Notebook) -> float:
        most = 0.0

        async def first(name: str) -> None:
            nonlocal most
            await notebook.sandbox.run_cell(name, 1, "import time\ntime.sleep(0.05)", limits=SHORT)
            most = max(most, notebook.sandbox.figures["sessions"])

        async with trio.open_nursery() as nursery:
            for number in range(16):
                nursery.start_soon(first, f"r{number}")
        return most

    assert in_notebook(main, children=2, sessions=3) <= 3 + 2  # those that run a cell are not evicted


def test_an_interpreter_that_has_died_takes_no_call() -> None:
    async def main(notebook: Notebook) -> object:
        (interpreter,) = notebook.sandbox._ready
        interpreter.kill()
        assert await eventually(lambda: not interpreter.ready)
        with trio.fail_after(2):
            return await interpreter.call({"code": "1"}, "", SHORT, 60.0)

    assert in_notebook(main) is None


def test_earlier_cells_that_cannot_be_run_again_are_an_error_that_says_so() -> None:
    async def main(notebook: Notebook) -> tuple[ToolOutput, ToolOutput]:
        failed = await notebook.sandbox.run_cell("a", 3, "print(1)", ["import os", "os._exit(0)"], limits=SHORT)
        return failed, await notebook.sandbox.run_cell("a", 4, "print(os.name)", ["import os"], limits=SHORT)

    failed, after = in_notebook(main)
    assert (failed.outcome, failed.stdout, failed.kept) == ("error", "", False)
    assert failed.stderr == "The earlier cells could not be run again: error.\n"
    assert (after.stdout, after.kept) == ("posix\n", True)


def test_an_interpreter_that_dies_in_every_attempt_makes_the_cell_unavailable_not_a_success() -> None:
    async def main(notebook: Notebook) -> ToolOutput:
        result: list[ToolOutput] = []

        code, limits = f"{named('cell')}import time\ntime.sleep(60)", ExecutionLimits(wall_seconds=40.0)

        async def ask() -> None:
            result.append(await notebook.sandbox.run_cell("a", 2, code, ["x = 1"], limits=limits))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            for _ in range(2):
                assert await eventually(lambda: living("cell") == 1)
                notebook.sandbox._ready[0].kill()
                assert await eventually(lambda: living("cell") == 0)
        return result[0]

    result = in_notebook(main)
    assert (result.outcome, result.kept) == ("unavailable", False)


def test_results_are_kept_within_bounds_those_of_the_session_idle_longest_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "RESULT_CHARACTERS", 100)
    table = SessionTable(4)
    for name in "abc":
        table.keep(table.get(name), 1, ToolOutput("success", "x" * 30, "", "y" * 10))
    assert [list(table.get(name).results) for name in "bca"] == [[1], [1], []]
    table.keep(table.get("a"), 2, ToolOutput("success", "x" * 90))
    assert [list(table.get(name).results) for name in "abc"] == [[2], [], []]
    table.keep(table.get("a"), 3, ToolOutput("success", "x" * 90))  # its own are not forgotten while it goes on
    assert list(table.get("a").results) == [2, 3]
    held = table.get("a")
    table.end("a")
    table.keep(held, 4, ToolOutput("success", "x" * 90))  # a cell that was under way: nobody will ask
    for name in "bc":
        table.keep(table.get(name), 2, ToolOutput("success", "x" * 40))
    assert [list(table.get(name).results) for name in "bc"] == [[2], [2]]


def test_cells_that_end_the_process_between_them_are_an_error_of_the_code_not_of_the_service() -> None:
    ending = "import os\nos.write(4, b'.')\nos.close(4)\nos._exit(0)"  # it says it is done, and ends

    async def main(notebook: Notebook) -> ToolOutput:
        return await notebook.sandbox.run_cell("a", 2, "1", [ending], limits=SHORT)

    result = in_notebook(main)
    assert (result.outcome, result.kept) == ("error", False)
    assert result.stderr.startswith(
        ("The session's process ends between", "The earlier cells could not", "The process")
    )
