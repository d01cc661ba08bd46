"""What is left behind: nothing. Killed, cancelled and orphaned interpreters, groups and escapees."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.sandbox.client import ExecutionLimits, ExecutionResult, Sandbox

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where interpreters put their directories in this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def run_with(sandbox: Sandbox, main: Callable[[Sandbox], Awaitable[Any]]) -> Any:
    async def body() -> Any:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                await nursery.start(sandbox.run)
                result = await main(sandbox)
                nursery.cancel_scope.cancel()
                return result

    return trio.run(body)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)  # the kernel's business: there is no event for processes of others
    return condition()


def interpreter_pid(sandbox: Sandbox) -> int:
    process = sandbox._ready[0]._process
    assert process is not None
    return process.pid


def test_files_of_a_call_are_gone_after_it_and_all_after_the_sandbox(own_directory: Path) -> None:
    async def main(sandbox: Sandbox) -> None:
        code = "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').write('x')\nos.chmod('a/b', 0)\nprint(os.getcwd())"
        result = await sandbox.execute(code)
        directory = Path(result.stdout.strip())
        assert directory.parent.parent == own_directory
        assert await trio.to_thread.run_sync(wait_until, lambda: not directory.exists())
        killed = await sandbox.execute(code + "\nimport time\ntime.sleep(9)", limits=ExecutionLimits(wall_seconds=0.2))
        assert killed.outcome == "timeout"
        assert await trio.to_thread.run_sync(wait_until, lambda: not Path(killed.stdout.strip()).exists())

    run_with(Sandbox(), main)
    assert list(own_directory.iterdir()) == []


def test_what_a_call_started_ends_with_it() -> None:
    code = (
        "import subprocess, os\n"
        "kept = subprocess.Popen(['sleep', '60'])\n"
        "left = subprocess.Popen(['sleep', '61'], start_new_session=True)\n"  # leaves the group
        "print(kept.pid, left.pid, flush=True)\n"
    )

    async def main(sandbox: Sandbox) -> None:
        ended = await sandbox.execute(code)
        stopped = await sandbox.execute(code + "import time\ntime.sleep(9)", limits=ExecutionLimits(wall_seconds=0.3))
        assert (ended.outcome, stopped.outcome) == ("success", "timeout")
        await sandbox.execute("1")  # orphans that had not become the server's are found by the next call
        for pid in map(int, (ended.stdout + stopped.stdout).split()):
            assert await trio.to_thread.run_sync(wait_until, lambda pid=pid: not is_alive(pid))

    run_with(Sandbox(), main)


def test_a_brood_of_processes_is_killed_and_neighbours_live() -> None:
    brood = (  # bounded here, for where the limit on processes does not bind
        "import os, time\n"
        "for generation in range(5):\n"
        "    os.fork()\n"
        "open(f'/proc/self/comm', 'w').write('brood')\n"
        "time.sleep(60)"
    )

    def living() -> int:
        names = (path / "comm" for path in Path("/proc").iterdir() if path.name.isdigit())
        count = 0
        for name in names:
            try:
                count += name.read_text() == "brood\n"
            except (FileNotFoundError, ProcessLookupError):
                continue
        return count

    async def main(sandbox: Sandbox) -> None:
        results: dict[str, ExecutionResult] = {}

        async def call(name: str, code: str, seconds: float) -> None:
            results[name] = await sandbox.execute(code, limits=ExecutionLimits(wall_seconds=seconds))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, "brood", brood, 0.5)
            nursery.start_soon(call, "neighbour", "import time\ntime.sleep(0.8)\nprint('well')", 4)
        assert results["brood"].outcome == "timeout"
        assert results["neighbour"].stdout == "well\n"
        assert await trio.to_thread.run_sync(wait_until, lambda: living() == 0)

    run_with(Sandbox(), main)


@pytest.mark.skipif(os.geteuid() == 0, reason="root is exempt from the limit on processes")
def test_the_number_of_processes_is_limited() -> None:
    code = "import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(60)"
    limits = ExecutionLimits(processes=8)
    result = run_with(Sandbox(), lambda sandbox: sandbox.execute(code, limits=limits))
    assert "BlockingIOError" in result.stderr


def test_a_killed_child_is_reported_and_its_neighbours_are_unharmed() -> None:
    async def main(sandbox: Sandbox) -> tuple[ExecutionResult, ExecutionResult]:
        results: list[ExecutionResult] = []

        async def neighbour() -> None:
            results.append(await sandbox.execute("import time\ntime.sleep(0.3)\nprint('well')"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(neighbour)
            killed = await sandbox.execute("import os\nprint('x')\nos.kill(os.getpid(), 9)")
        return killed, results[0]

    killed, neighbour = run_with(Sandbox(), main)
    assert (killed.outcome, killed.stdout) == ("killed", "x\n")
    assert neighbour.stdout == "well\n"


def test_a_killed_interpreter_is_replaced_and_its_calls_are_tried_again(own_directory: Path) -> None:
    async def main(sandbox: Sandbox) -> None:
        first = interpreter_pid(sandbox)
        results: list[ExecutionResult] = []

        async def call() -> None:
            results.append(await sandbox.execute("import time, os\ntime.sleep(0.3)\nprint(os.getppid())"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await trio.sleep(0.1)
            os.kill(first, signal.SIGKILL)
        assert results[0].outcome == "success"
        assert int(results[0].stdout) == interpreter_pid(sandbox) != first
        assert (sandbox.figures["restarts"], sandbox.figures["retries"]) == (1, 1)
        assert len(os.listdir(own_directory)) == 1  # noqa: PTH208

    run_with(Sandbox(), main)


def test_a_call_that_kills_its_interpreter_every_time_is_unavailable() -> None:
    async def main(sandbox: Sandbox) -> None:
        result = await sandbox.execute("import os\nos.kill(os.getppid(), 9)\nimport time\ntime.sleep(9)")
        assert result.outcome == "unavailable"
        assert (await sandbox.execute("print('well')")).stdout == "well\n"
        assert sandbox.figures["restarts"] == 2

    run_with(Sandbox(), main)


def test_a_cancelled_call_is_killed_in_the_server_too() -> None:
    async def main(sandbox: Sandbox) -> None:
        with trio.move_on_after(0.3) as scope:
            await sandbox.execute("import time\ntime.sleep(60)")
        assert scope.cancelled_caught
        server = interpreter_pid(sandbox)
        children = Path(f"/proc/{server}/task/{server}/children")
        assert await trio.to_thread.run_sync(wait_until, lambda: children.read_text() == "")
        assert (await sandbox.execute("print('well')")).stdout == "well\n"
        assert sandbox.figures["in_flight"] == 0

    run_with(Sandbox(children=1), main)


def test_cancelling_the_sandbox_with_calls_in_flight_leaves_nothing(own_directory: Path) -> None:
    pids: list[int] = []

    async def main() -> None:
        sandbox = Sandbox(interpreters=2)
        with trio.move_on_after(0.5):
            async with trio.open_nursery() as nursery:
                await nursery.start(sandbox.run)
                pids.extend(interpreter._process.pid for interpreter in sandbox._ready if interpreter._process)
                for _ in range(4):
                    nursery.start_soon(sandbox.execute, "import subprocess\nsubprocess.run(['sleep', '60'])")

    started = time.monotonic()
    trio.run(main)
    assert time.monotonic() - started < 4  # they ended by themselves: nobody had to be killed at the deadline
    assert len(pids) == 2
    assert not any(is_alive(pid) for pid in pids)
    assert list(own_directory.iterdir()) == []


OWNER = """
import tempfile, trio
from actors.sandbox.client import Sandbox
tempfile.tempdir = {directory!r}
async def main():
    sandbox = Sandbox()
    async with trio.open_nursery() as nursery:
        await nursery.start(sandbox.run)
        print(sandbox._ready[0]._process.pid, flush=True)
        await sandbox.execute({code!r})
trio.run(main)
"""
HELD = """
import os, subprocess
child = subprocess.Popen(['sleep', '60'])
open('pids', 'w').write(f'{os.getpid()} {child.pid}')
child.wait()
"""


@pytest.mark.parametrize("storm", [0, 0.2])  # seconds of further signals, to hit every moment of the cleaning up
def test_nothing_survives_an_owner_that_is_killed(own_directory: Path, storm: float) -> None:
    script = OWNER.format(directory=str(own_directory), code=HELD)
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        server = int(owner.stdout.readline())
        assert wait_until(lambda: any(path.read_text().count(" ") for path in own_directory.glob("*/*/pids")))
        pids = [int(pid) for path in own_directory.glob("*/*/pids") for pid in path.read_text().split()]
        assert all(is_alive(pid) for pid in (server, *pids))
        owner.kill()
        calm = time.monotonic() + storm
        while time.monotonic() < calm:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server, signal.SIGTERM)
    assert wait_until(lambda: not any(is_alive(pid) for pid in (server, *pids)))
    assert wait_until(lambda: list(own_directory.iterdir()) == [])
