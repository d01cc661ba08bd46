"""What is left behind: nothing. Killed, cancelled and orphaned interpreters, groups and escapees."""

import contextlib
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import trio

from actors.sandbox.inside.children import SandboxCall
from actors.sandbox.inside.directories import Directories
from actors.sandbox.inside.server import Farewell, Server
from actors.sandbox.inside.shares import Shares
from actors.sandbox.isolation.rlimits import Bounds
from actors.sandbox.owner.client import ExecutionLimits, Sandbox
from actors.sandbox.owner.interpreter import ENDING_SECONDS, WarmUpError, _end
from actors.sandbox.wire import DONE, NOT_RUN, REPLY
from agent_rl.files.leftovers import sweep_one
from benchmarks.tool_processes import zombies_below
from tests.actors.sandbox.running import (
    below,
    eventually,
    interpreter_pid,
    is_alive,
    live,
    living,
    named,
    require,
    sandboxed,
    wait_until,
)

pytestmark = pytest.mark.real_time
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    """Where interpreters put their directories in this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_process_that_kill_has_collected_has_ended():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        trio.run(_end, process)


async def test_files_of_a_call_are_gone_after_it_and_all_after_the_sandbox(own_directory):
    async with sandboxed("limits") as sandbox:
        code = "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').write('x')\nos.chmod('a/b', 0)\nprint(os.getcwd())"
        result = await sandbox.execute(code)
        directory = Path(result.stdout.strip())
        assert directory.parent.parent == own_directory
        assert await eventually(lambda: not directory.exists())
        killed = await sandbox.execute(code + "\nimport time\ntime.sleep(60)", limits=ExecutionLimits(wall_seconds=2.0))
        assert killed.outcome == "timeout"
        assert await eventually(lambda: not Path(killed.stdout.strip()).exists())
    assert list(own_directory.iterdir()) == []


LEAVING = """
import os, time
if os.fork() == 0:
    time.sleep(60)
if os.fork() == 0:
    os.setpgid(0, 0)  # leaves the group, and then its parent
    if os.fork() == 0:
        time.sleep(61)
    os._exit(0)
"""
BROOD = "import os, time\nfor generation in range(4): os.fork()\ntime.sleep(60)"  # where no limit binds it ends too


@pytest.mark.parametrize("level", ["strong", "limits"])
async def test_what_a_call_started_ends_with_it_and_neighbours_live(level):
    async with sandboxed(level) as sandbox:
        ended = await sandbox.execute(named("left-behind") + LEAVING)
        results = {}

        async def call(name, code, seconds):
            results[name] = await sandbox.execute(code, limits=ExecutionLimits(wall_seconds=seconds))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, "stopped", f"{named('left-behind')}{LEAVING}time.sleep(9)", 0.3)
            nursery.start_soon(call, "brood", named("left-behind") + BROOD, 0.5)
            nursery.start_soon(call, "neighbour", "import time\ntime.sleep(0.8)\nprint('well')", 30)
        assert (ended.outcome, results["stopped"].outcome, results["brood"].outcome) == (
            "success",
            "timeout",
            "timeout",
        )
        assert results["neighbour"].stdout == "well\n"
        await sandbox.execute("1")  # orphans that had not become the server's are found by the next call
        assert await eventually(lambda: living("left-behind") == 0)


async def test_a_call_that_has_no_room_on_disk_says_so_and_the_next_one_runs(own_directory):
    async with sandboxed("limits") as sandbox:
        [directory] = list(own_directory.glob("agent-rl.sandbox-*"))
        directory.rename(own_directory / "away")
        refused = await sandbox.execute("1")
        (own_directory / "away").rename(directory)
        assert sandbox.figures["restarts"] == 0
        assert refused.outcome == "unavailable"
        assert refused.stderr.startswith("The call could not be started: [Errno 2]")
        fine = await sandbox.execute("1")
        assert (fine.outcome, fine.value) == ("success", "1")


def test_what_a_call_left_is_removed_once_there_can_be_a_process_that_does_it(tmp_path, monkeypatch):
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "no process")

    places = Directories(str(tmp_path), 2, [], [], Shares([], ""), filtered=False)
    first, second = places.get(), places.get()
    Path(first.path, "file").write_text("x")
    with monkeypatch.context() as bombed:
        bombed.setattr(os, "fork", refuse)
        assert not places.put_back(first)
    assert Path(first.path).exists()
    places.put_back(second)
    assert wait_until(lambda: list(tmp_path.iterdir()) == [])
    assert wait_until(lambda: not places.kill_orphans(set()))


async def test_where_there_is_no_room_for_temporary_files_the_start_says_so(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.RaisesGroup(pytest.RaisesExc(WarmUpError, match="no directory.*/nowhere"), flatten_subgroups=True):
        async with live(Sandbox(isolation="limits")):
            pass


async def test_calls_beyond_the_descriptors_there_are_say_so_and_the_next_one_runs():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with sandboxed() as sandbox:
        held = os.dup(0)
        os.close(held)
        resource.setrlimit(resource.RLIMIT_NOFILE, (held + 2, hard))
        try:
            refused = await sandbox.execute("1", "input")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert (refused.outcome, "Too many open files" in refused.stderr) == ("unavailable", True)
        assert (await sandbox.execute("1", "input")).outcome == "success"


class NoSlots:
    """Slots of which none can be made."""

    asked = 0

    def get(self) -> None:
        return None

    def want(self, count: int) -> None:
        self.asked = count

    def arrive(self) -> None:
        self.asked -= 1
        raise OSError(errno.ENOSPC, "no room for namespaces")


def test_calls_wait_for_places_until_none_can_be_made_and_are_refused_then():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.settimeout(0)
        server = Server(theirs, Farewell(), 8)
        server.slots = NoSlots()
        for number in (1, 2):
            server.start(SandboxCall(number, 0, Bounds(1.0, 1, 0, 0, 0, 0, 0), []))
        server.slot_arrived()
        with pytest.raises(BlockingIOError):  # another is on its way
            ours.recv(1000)
        server.slot_arrived()
        for number in (1, 2):
            reply = ours.recv(1000)
            assert REPLY.unpack_from(reply)[:3] == (DONE, number, NOT_RUN)
            assert reply[REPLY.size :].endswith(b"no room for namespaces")


async def test_a_brood_has_a_limit_and_places_that_calls_left_something_in_are_replaced_and_reaped():
    async with sandboxed("strong") as sandbox:
        code = "import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(60)"
        assert "BlockingIOError" in (await sandbox.execute(code, limits=ExecutionLimits(processes=8))).stderr
        for _ in range(5):
            assert (await sandbox.execute("open('left', 'w').write('x')")).outcome == "success"
        assert await eventually(lambda: zombies_below(interpreter_pid(sandbox)) == 0)


async def test_a_killed_child_and_then_a_killed_interpreter_harm_no_neighbour():
    async with sandboxed(limits=ExecutionLimits(wall_seconds=30)) as sandbox:
        first, results = interpreter_pid(sandbox), []

        async def neighbour():
            code = f"{named('neighbour')}import time\ntime.sleep(2)\nprint('well')"
            results.append(await sandbox.execute(code))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(neighbour)
            killed = await sandbox.execute("import os\nprint('x')\nos.kill(os.getpid(), 9)")
            assert (killed.outcome, killed.stdout) == ("killed", "x\n")
        assert interpreter_pid(sandbox) == first
        async with trio.open_nursery() as nursery:
            nursery.start_soon(neighbour)
            assert await eventually(lambda: living("neighbour") == 1)
            os.kill(first, signal.SIGKILL)
        assert [result.stdout for result in results] == ["well\n"] * 2
        assert interpreter_pid(sandbox) != first
        assert (sandbox.figures["restarts"], sandbox.figures["retries"]) == (1, 1)


async def test_a_call_that_kills_its_interpreter_every_time_is_unavailable():
    async with sandboxed("limits") as sandbox:  # elsewhere a call can't
        result = await sandbox.execute("import os\nos.kill(os.getppid(), 9)\nimport time\ntime.sleep(9)")
        assert result.outcome == "unavailable"
        assert (await sandbox.execute("print('well')")).stdout == "well\n"
        assert sandbox.figures["restarts"] == 2


async def test_a_cancelled_call_is_killed_in_the_server_too():
    async with sandboxed(children=1) as sandbox:
        with trio.move_on_after(0.3) as scope:
            await sandbox.execute(named("unwanted") + "import time\ntime.sleep(60)")
        assert scope.cancelled_caught
        assert await eventually(lambda: living("unwanted") == 0)
        assert (await sandbox.execute("print('well')")).stdout == "well\n"
        assert sandbox.figures["in_flight"] == 0


async def test_cancelling_the_sandbox_with_calls_in_flight_leaves_nothing(own_directory):
    async with trio.open_nursery() as nursery:
        sandbox = Sandbox(interpreters=2)
        await nursery.start(sandbox.run)
        pids = [interpreter._process.pid for interpreter in sandbox._ready]
        for _ in range(4):
            nursery.start_soon(sandbox.execute, named("cancelled") + "import time\ntime.sleep(60)")
        assert await eventually(lambda: living("cancelled") == 4)
        cancelled = time.monotonic()
        nursery.cancel_scope.cancel()
    assert time.monotonic() - cancelled < ENDING_SECONDS  # they ended by themselves: nobody had to be killed
    assert len(pids) == 2
    assert not any(is_alive(pid) for pid in pids)
    assert await eventually(lambda: living("cancelled") == 0)
    assert list(own_directory.iterdir()) == []


OWNER = """
import tempfile, trio
from actors.sandbox.owner.client import Sandbox
tempfile.tempdir = {directory!r}
async def main():
    sandbox = Sandbox(isolation={level!r})
    async with trio.open_nursery() as nursery:
        await nursery.start(sandbox.run)
        print(sandbox._ready[0]._process.pid, flush=True)
        await sandbox.execute({code!r}, limits=None)
trio.run(main)
"""


# The storm: seconds of further signals, to hit every moment of the cleaning up.
@pytest.mark.parametrize(("level", "storm"), [("strong", 0), ("strong", 0.2), ("limits", 0.2)])
def test_nothing_survives_an_owner_that_is_killed(own_directory, level, storm):
    require(level)
    held = named("held") + "import os, time\nos.fork()\nopen('file', 'w').write('x')\ntime.sleep(60)"
    script = OWNER.format(directory=str(own_directory), level=level, code=held)
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        try:
            server = int(owner.stdout.readline())
            assert wait_until(lambda: living("held") == 2)
            processes = [server, *below(server)]  # children that wait for a call too
        finally:
            owner.kill()
        calm = time.monotonic() + storm
        while time.monotonic() < calm:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server, signal.SIGTERM)
    assert wait_until(lambda: not any(map(is_alive, processes)) and living("held") == 0)
    assert wait_until(lambda: all("agent-rl.groups-" in path.name for path in own_directory.iterdir()))
    groups = [link.readlink() for link in own_directory.glob("*/*") if link.is_symlink()]
    assert all(sweep_one(path) for path in own_directory.iterdir())  # as the janitor does, and the next run
    assert not any(group.exists() for group in groups)


async def test_hundreds_of_calls_wait_beside_each_other():
    """Their descriptors are more than the numbers below those that slots are kept at."""
    async with sandboxed("strong", children=300, limits=ExecutionLimits(wall_seconds=30.0)) as sandbox:
        answers = []

        async def one(number):
            answer = await sandbox.execute(f"import time; time.sleep(1)\nprint({number})")
            answers.append((answer.outcome, answer.stdout))

        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(one, number)
        assert sorted(answers) == sorted(("success", f"{number}\n") for number in range(300))
        assert (sandbox.figures["restarts"], sandbox.figures["retries"]) == (0, 0)
