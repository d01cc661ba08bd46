"""Sessions: state from cell to cell, cells that run once, ends and returns of a session, eviction."""

import os
import signal
import tomllib
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from actors.sandbox.owner import client
from actors.sandbox.owner.client import ExecutionLimits, SessionTable
from agent_rl.environments.base import ToolOutput
from tests.actors.sandbox.running import eventually, living, named, pids, sandboxed

pytestmark = pytest.mark.real_time
SHORT = ExecutionLimits(wall_seconds=2.0, memory_bytes=64 << 20, output_bytes=1000, processes=8)


class Notebook:
    """A rollout's side of a session: numbers its cells and keeps those that the state consists of."""

    def __init__(self, sandbox, name="r1"):
        self.sandbox, self.name, self.cells, self.kept = sandbox, name, 0, []
        self.run_cell = partial(sandbox.run_cell, limits=SHORT)

    async def run(self, code):
        self.cells += 1
        result = await self.run_cell(self.name, self.cells, code, self.kept)
        if result.kept:
            self.kept.append(code)
        return result

    def other(self, name="other"):
        return Notebook(self.sandbox, name)


@asynccontextmanager
async def notebook(level="host", **settings):
    async with sandboxed(level, **settings) as sandbox:
        yield Notebook(sandbox)


ENDED = "[The session's process has ended; its state is that before this cell.]"
LOST = "[The session was lost ({}): its {} earlier cells were run again.]\n"
LIMITED = "[The session was lost (its last cell ended as"
STORIES = {
    f"{level}: {story['name']}": story["cells"]
    for story in tomllib.loads(Path(__file__).with_name("sessions.toml").read_text())["story"]
    for level in story["levels"]
}
PARTS = {"{{named}}": named("left-by-cell"), "{{ended}}": ENDED, "{{limited}}": LIMITED}


def filled(text: str) -> str:
    for name, part in PARTS.items():
        text = text.replace(name, part)
    return text


@pytest.mark.parametrize("story", STORIES)
async def test_cells(story):
    async with notebook(story.partition(":")[0]) as note:
        for code, *expected in (map(filled, cell) for cell in STORIES[story]):
            result = await note.run(code)
            assert result.kept == ("~" not in expected), (code, result)
            assert result.note == "" or any(word in result.note for word in (ENDED, LIMITED) if word in expected)
            assert len(result.stdout) < 1100
            for word in expected:
                seen = {"=": "=" + result.value, ">": ">" + result.stdout, "~": "~"}.get(word[0], result.outcome)
                assert word == seen or word in result.stderr + result.note, (code, result)
        assert await eventually(lambda: living("left-by-cell") == 0)


async def test_a_repeated_request_returns_the_first_result_without_running_again():
    async with notebook() as note:
        results = []

        async def ask():
            results.append(await note.run_cell("r1", 2, "count += 1\nprint(count)", ["count = 0"]))

        await note.run("count = 0")
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
        assert ({result.stdout for result in results}, len(set(results))) == ({"1\n"}, 1)
        assert (await note.run_cell("r1", 3, "count", ["count = 0", "count += 1\nprint(count)"])).value == "1"
        again = [(await note.run_cell("r2", "2.0", code)).value for code in ("1", "2", "1")]
        assert again == ["1", "2", "1"], "a turn that is written again otherwise runs its own cell"


async def test_a_session_that_was_elsewhere_is_rebuilt_and_says_so():
    async with notebook() as note:
        earlier = ["x = 40\nprint('loud')\n1/0", "import os\nos.write(1, b'!')\ny = 2"]
        result = await note.run_cell("r9", 3, "x + y", earlier)
        assert (result.outcome, result.value, result.stdout, result.stderr) == ("success", "42", "", "")
        assert (result.note, result.kept) == (LOST.replace(" ({})", "").format(2), True)


async def kill_interpreter(note):
    note.sandbox._ready[0].kill()
    await trio.sleep(0.1)


async def kill_idle_process(note):
    (pid,) = pids("idle-session")
    os.kill(pid, signal.SIGKILL)  # as the system does when memory runs out
    assert await eventually(lambda: living("idle-session") == 0)


async def give_up(note):
    with trio.move_on_after(0.2):
        await note.run("x = 2\nimport time\ntime.sleep(60)")


@pytest.mark.parametrize(
    ("harm", "cause"),
    [
        (kill_interpreter, "run again"),
        (kill_idle_process, LOST.format("its process was gone", 1)),
        (give_up, LOST.format("its last cell was given up", 1)),
    ],
)
async def test_a_session_that_is_lost_between_two_cells_is_rebuilt_and_says_why(harm, cause):
    async with notebook() as note:
        await note.run(named("idle-session") + "x = 1")
        await harm(note)
        result = await note.run("x")
        assert (result.outcome, result.value) == ("success", "1")
        assert cause in result.note


async def test_too_many_sessions_end_the_one_idle_longest_and_its_model_is_told():
    async with notebook(sessions=2) as note:
        books = [note.other(f"r{number}") for number in range(3)]
        for number, book in enumerate(books):
            await book.run(f"x = {number}")
        figures = note.sandbox.figures
        assert (figures["sessions"], figures["sessions_evicted"]) == (2, 1)
        results = [await book.run("x") for book in reversed(books)]
        assert [result.value for result in results] == ["2", "1", "0"]
        evicted = LOST.format("too many sessions were open, and it was idle longest", 1)
        assert [result.note for result in results] == ["", "", evicted]


async def test_no_more_sessions_live_than_may_however_many_begin_at_once():
    async with notebook(children=2, sessions=3) as note:
        most = []

        async def first(name):
            await note.run_cell(name, 1, "import time\ntime.sleep(0.05)")
            most.append(note.sandbox.figures["sessions"])

        async with trio.open_nursery() as nursery:
            for number in range(16):
                nursery.start_soon(first, f"r{number}")
        assert max(most) <= 3 + 2  # those that run a cell are not evicted


POISON = """
import builtins, json, os, sys, socket
child = sys.modules["actors.sandbox.inside.child"]
child.traceback_text = lambda *a: "all is well"
def forged(request): return "forged"
child.run_code.__code__ = forged.__code__
os.ftruncate = lambda *a: None
print = builtins.print = None
"""
SECRET = "import builtins\nbuiltins.secret = x = 1\nopen('secret', 'w').write('x')"
TALK = "import os\ntry:\n    for _ in range(3): os.write(4, {})\nexcept OSError: pass"
LOOK = "import builtins, os\nprint(y, 'x' in globals(), hasattr(builtins, 'secret'), os.listdir('.'))"


async def test_what_a_session_does_to_itself_harms_and_shows_others_nothing():
    async with notebook() as note:
        other = note.other()
        await other.run("y = 1")
        for attack in (SECRET, POISON, *map(TALK.format, ("b'.'", "b'.' * 16", "b'x' * 60000"))):
            attacker = note.other(attack)
            await attacker.run(attack)
            assert (await attacker.run("1/0")).outcome in {"success", "error"}  # its own result is all it can forge
            assert (await other.run(LOOK)).stdout == "1 False False []\n"
            assert (await note.sandbox.execute("print(2)")).stdout == "2\n"
        said = await note.run("import sys\nsys.modules['actors.sandbox.inside.child'].DONE_SAID = b''")
        assert said.outcome == "timeout", "one that never says that it is done ends at its deadline"
        assert note.sandbox.figures["restarts"] == 0


TICKS = """
import os, threading, time
ticks = 0
def tick():
    global ticks
    while True:
        time.sleep(0.01)
        ticks += 1
threading.Thread(target=tick, daemon=True).start()
"""
GOES_ON = """
def go_on():
    while True:
        try: os.kill(os.getpid(), 18)
        except OSError: return
threading.Thread(target=go_on, daemon=True).start()
"""


@pytest.mark.parametrize("level", ["strong", "filtered"])
async def test_an_idle_session_does_not_run(level):
    async with notebook(level) as note:
        for attack in ("", GOES_ON):
            book = note.other(attack)
            await book.run(TICKS + attack)
            ticked = []
            for _ in range(5):  # one that runs ticks thirty times, each time
                before = await book.run("ticks")
                await trio.sleep(0.3)
                ticked.append(int((await book.run("ticks")).value) - int(before.value))
            assert min(ticked) < 10


FORKED_LATE = """
import ctypes, os, time
libc = ctypes.CDLL(None)
os.write(4, b'.')
if libc.fork() == 0:
    libc.prctl(15, b'left-behind')
    while True: pass
time.sleep(60)
"""
GIVEN_AWAY = """
import ctypes, os, time
libc = ctypes.CDLL(None)
if os.fork() == 0:
    os.setpgid(0, 0)
    if os.fork() == 0:
        libc.prctl(15, b'left-behind')
        time.sleep(60)
    os._exit(0)
os.wait()
time.sleep(0.1)
"""


@pytest.mark.parametrize(("level", "code", "times"), [("host", FORKED_LATE, 10), ("filtered", GIVEN_AWAY, 1)])
async def test_processes_that_a_session_leaves_end_too(level, code, times):
    """Without namespaces the interpreter adopts what is given away, and finds it when the session stops."""
    async with notebook(level) as note:
        for attempt in range(times):
            await note.other(f"late {attempt}").run(code)
        assert await eventually(lambda: living("left-behind") == 0)
        assert (await note.run("1")).value == "1"


async def test_a_rebuilt_sessions_cell_has_the_time_of_a_cell_and_counts_its_own_alone():
    slow, limits = ("import time\ntime.sleep(1.5)", "time.sleep(1.5)\nx = 1"), ExecutionLimits(wall_seconds=3.0)
    async with notebook() as note:
        quick = await note.sandbox.run_cell("a", 3, "x", slow, limits=limits)
        assert (quick.value, quick.run_seconds < 2.5) == ("1", True)
        endless = await note.sandbox.run_cell("b", 3, "while True: pass", slow, limits=limits)
        assert (endless.outcome, endless.kept, endless.run_seconds < 5.5) == ("timeout", False, True)


async def test_cells_that_are_run_again_take_no_place_of_others_and_end_when_a_rollout_has_used_its_time_up(
    monkeypatch,
):
    """Each rollout's process ends with its last cell, so that its slow cell runs again, as often as it asks."""
    monkeypatch.setattr(client, "REPLAYS", 1)
    slow, limits = ["import time\ntime.sleep(0.5)"], ExecutionLimits(wall_seconds=2.0)
    results, waited = {name: [] for name in "abc"}, []
    async with notebook(children=2) as note:

        async def loses(name):
            for number in range(7):
                ended = await note.sandbox.run_cell(name, number, "import os\nos._exit(1)", slow, limits=limits)
                results[name].append(ended.stderr)

        await note.run("1")
        async with trio.open_nursery() as nursery:
            for name in results:
                nursery.start_soon(loses, name)
            await trio.sleep(0.2)
            for _ in range(10):
                began = trio.current_time()
                assert (await note.sandbox.execute("print(1)")).stdout == "1\n"
                waited.append(trio.current_time() - began)
    assert sorted(waited)[5] < 0.25  # half of what a cell takes that is run again
    assert results["a"][0].startswith("The process ended")
    too_often = "The earlier cells could not be run again: this was done too often, and they took too long.\n"
    assert results["a"][-1] == too_often


EXITS = "import os\nos._exit(0)"
DONE_AND_EXITS = "import os\nos.write(4, b'.')\nos.close(4)\nos._exit(0)"
BETWEEN = ("The session's process ends between", "The earlier cells could not", "The process")


@pytest.mark.parametrize(
    ("earlier", "said"), [(EXITS, "The earlier cells could not be run again: error.\n"), (DONE_AND_EXITS, BETWEEN)]
)
async def test_earlier_cells_that_cannot_be_run_again_are_an_error_that_says_so(earlier, said):
    async with notebook() as note:
        failed = await note.run_cell("a", 3, "print(1)", [earlier])
        assert (failed.outcome, failed.stdout, failed.kept) == ("error", "", False)
        assert failed.stderr.startswith(said)
        after = await note.run_cell("a", 4, "print(os.name)", ["import os"])
        assert (after.stdout, after.kept) == ("posix\n", True)


async def test_an_interpreter_that_dies_in_every_attempt_makes_the_cell_unavailable_not_a_success():
    code, limits, result = f"{named('cell')}import time\ntime.sleep(60)", ExecutionLimits(wall_seconds=40.0), []
    async with notebook() as note:

        async def ask():
            result.append(await note.sandbox.run_cell("a", 2, code, ["x = 1"], limits=limits))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            for _ in range(2):
                assert await eventually(lambda: living("cell") == 1)
                note.sandbox._ready[0].kill()
                assert await eventually(lambda: living("cell") == 0)
    assert (result[0].outcome, result[0].kept) == ("unavailable", False)


async def test_an_interpreter_that_has_died_takes_no_call():
    async with notebook() as note:
        (interpreter,) = note.sandbox._ready
        interpreter.kill()
        assert await eventually(lambda: not interpreter.ready)
        with trio.fail_after(20):
            assert await interpreter.call({"code": "1"}, "", SHORT, 60.0) is None


def test_results_are_kept_within_bounds_those_of_the_session_idle_longest_forgotten_first(monkeypatch):
    monkeypatch.setattr(client, "RESULT_CHARACTERS", 100)
    table = SessionTable(4)

    def keep(name, number, size, note=""):
        table.keep(table.get(name), number, ToolOutput("success", "x" * size, "", note))

    def held(names):
        return [[*table.get(name).results] for name in names]

    for name in "abc":
        keep(name, 1, 30, "y" * 10)
    assert held("bca") == [[1], [1], []]
    keep("a", 2, 90)
    assert held("abc") == [[2], [], []]
    keep("a", 3, 90)  # its own are not forgotten while it goes on
    assert held("a") == [[2, 3]]
    ended = table.get("a")
    table.end("a")
    table.keep(ended, 4, ToolOutput("success", "x" * 90))  # a cell that was under way: nobody will ask
    for name in "bc":
        keep(name, 2, 40)
    assert held("bc") == [[2], [2]]
