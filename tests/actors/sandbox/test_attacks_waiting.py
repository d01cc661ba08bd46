"""Attacks on the children that wait for their call, and what becomes of these when something dies."""

import os
import signal
import socket
import subprocess
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from actors.sandbox.inside.child import USER_FILE
from actors.sandbox.inside.children import Child
from actors.sandbox.inside.directories import Directory
from actors.sandbox.inside.server import Farewell, Server
from actors.sandbox.inside.shares import Shares
from actors.sandbox.inside.slots import NamespaceSlots
from actors.sandbox.owner.client import ExecutionLimits, Sandbox
from benchmarks.tool_processes import children_of, processes_of
from tests.actors.sandbox.running import eventually, interpreter_pid, is_alive, sandboxed, state, wait_until

SPARES = NamespaceSlots.spares


pytestmark = pytest.mark.real_time
strong = partial(sandboxed, "strong")


def forked(interpreter: int) -> list[int]:
    """Every child below the interpreter: of its forker, which came after the maker of slots."""
    return [pid for forker in children_of(interpreter)[1:2] for pid in children_of(forker)]


def waiting(interpreter: int) -> list[int]:
    """The children that wait, as long as no call runs: all that sleep."""
    return [pid for pid in forked(interpreter) if state(pid) == "S"]


async def all_waiting(sandbox: Sandbox) -> list[int]:
    """They, when no call's child is left."""
    interpreter = interpreter_pid(sandbox)
    assert await eventually(lambda: len(waiting(interpreter)) == len(forked(interpreter)) == SPARES)
    return waiting(interpreter)


async def kill_waiting(sandbox: Sandbox) -> None:
    """Kill them and wait until they are dead."""
    pids = await all_waiting(sandbox)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert await eventually(lambda: not any(map(is_alive, pids)))


WAITING = tomllib.loads(Path(__file__).with_name("attacks.toml").read_text())["waiting"]


async def test_a_waiting_child_cannot_be_reached():
    async with strong(limits=ExecutionLimits(wall_seconds=20, cpu_seconds=20)) as sandbox:
        interpreter = interpreter_pid(sandbox)
        for name, (kind, tried) in WAITING["reaching"].items():
            first, *others = await all_waiting(sandbox)
            pids = ", ".join(map(str, (first, *others, *children_of(interpreter), interpreter, os.getpid())))
            code = WAITING[kind].replace("{}", tried).replace("PIDS", pids)
            result = await sandbox.execute(f"{code}\nprint(found)", name="attack")
            assert (name, result.outcome, result.stdout) == (name, "success", "0\n"), result
            assert first in await all_waiting(sandbox)  # the newest ran the attack
            assert state(first) == "S"
            assert (await sandbox.execute("print(1)")).stdout == "1\n"
        assert sandbox.figures["restarts"] == 0


def memory_holds(pid: int, mark: bytes) -> bool:
    """Whether the process has the mark in memory it can write to."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            start, end = (int(edge, 16) for edge in span.split("-"))
            if rights.startswith("rw"):
                memory.seek(start)
                if mark in memory.read(end - start):
                    return True
    return False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look into such a process")
async def test_a_waiting_child_knows_no_call():
    mark = "what-the-earlier-call-held"
    async with strong() as sandbox:
        before = await all_waiting(sandbox)
        for _ in range(2 * SPARES):
            done = await sandbox.execute(f"secret = {mark!r}\nprint(secret, input())", mark)
            assert done.stdout.count(mark) == 2
            after = await all_waiting(sandbox)
        fresh = set(after) - set(before)
        assert fresh
        knowing = processes_of(interpreter_pid(sandbox))[::2]  # without the maker of slots, which knows less
        for pid in (*fresh, *knowing):
            assert not memory_holds(pid, mark.encode())
            assert memory_holds(pid, USER_FILE.encode())  # so that it would have been found


TIMES = {"queue_seconds": 0.0, "run_seconds": 0.0}
FOUND = WAITING["found"]


async def test_children_that_die_waiting_take_no_call_with_them_and_a_call_finds_the_same_in_a_new_one():
    async with strong() as sandbox:
        await all_waiting(sandbox)
        waited = await sandbox.execute(FOUND)
        assert waited.outcome == "success"
        for _ in range(3):
            await kill_waiting(sandbox)  # there is no other before the next call
            assert replace(await sandbox.execute(FOUND), **TIMES) == replace(waited, **TIMES)
        assert sandbox.figures["restarts"] == 0


async def test_a_slot_that_dies_with_the_child_waiting_in_it_is_replaced():
    async with strong() as sandbox:
        pids = await all_waiting(sandbox)
        maker = children_of(interpreter_pid(sandbox))[0]
        for init in children_of(maker):
            os.kill(init, signal.SIGKILL)
        assert await eventually(lambda: not any(map(is_alive, pids)))
        await sandbox.execute("print(1)")  # at the most it finds that the slots that are left are dead too
        assert (await sandbox.execute("print(1)")).stdout == "1\n"
        assert not set(pids) & set(await all_waiting(sandbox))
        assert sandbox.figures["restarts"] == 0


async def test_after_a_storm_as_many_wait_as_before():
    async with strong() as sandbox:
        for code in ("1", "import os\nos.kill(os.getpid(), 9)", "open('x', 'w')", "import os\nos.fork()"):
            for _ in range(20):
                await sandbox.execute(code)
        await all_waiting(sandbox)  # and none is left as a zombie


@pytest.mark.parametrize("call", ["print(1)", "import time\ntime.sleep(0.5)\nprint(1)"])
async def test_an_interpreter_whose_forker_dies_is_replaced_and_its_call_tried_again(call):
    async with strong() as sandbox:
        pids = await all_waiting(sandbox)
        interpreter = interpreter_pid(sandbox)
        results = []

        async def one():
            results.append((await sandbox.execute(call)).stdout)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            await trio.sleep(0.1)
            os.kill(children_of(interpreter)[1], signal.SIGKILL)
        assert await eventually(lambda: not any(map(is_alive, (interpreter, *pids))))
        await one()
        assert results == ["1\n"] * 2
        assert sandbox.figures["restarts"] == 1


def test_a_child_that_a_dying_forker_has_reaped_does_not_stop_the_killing_of_others(tmp_path):
    processes = [subprocess.Popen(["/bin/sleep", "60"], start_new_session=True) for _ in range(2)]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        server = Server(ours, Farewell(), 2)
        for process in processes:
            child = Child(process.pid, Directory(str(tmp_path / str(process.pid)), Shares([], "").get()), theirs)
            server.running[child.pidfd] = child
        processes[0].kill()
        processes[0].wait()
        try:
            server.kill_all()
            assert not is_alive(processes[1].pid)
        finally:
            server.epoll.close()
            processes[1].kill()
            processes[1].wait()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_waiting_children_end_with_their_interpreter(number):
    async with strong() as sandbox:
        pids = await all_waiting(sandbox)
        os.kill(interpreter_pid(sandbox), number)
        assert await eventually(lambda: not any(map(is_alive, pids)))
        assert (await sandbox.execute("print(1)")).stdout == "1\n"
        assert not set(pids) & set(await all_waiting(sandbox))


async def test_none_waits_where_calls_could_reach_it():
    async with sandboxed("limits") as sandbox:
        assert (await sandbox.execute("print(1)")).stdout == "1\n"
        [forker] = children_of(interpreter_pid(sandbox))
        assert await eventually(lambda: not children_of(forker))


def test_a_process_is_at_rest_only_when_it_stands_and_has_no_other(tmp_path):
    """Whatever makes a stopped session go on, such as a group of processes that is orphaned, it is found and ended."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    command = ["/bin/sh", "-c", "/bin/sleep 60 & read line; kill -9 $!; wait; exec /bin/sleep 60"]
    with ours, theirs, subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0) as process:
        try:
            child = Child(process.pid, Directory(str(tmp_path / "d"), Shares([], "").get()), theirs)
            assert wait_until(lambda: child.has_descendants(proc))
            process.send_signal(signal.SIGSTOP)
            assert wait_until(lambda: state(process.pid) == "T")
            assert not child.is_at_rest(proc)
            process.send_signal(signal.SIGCONT)
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert wait_until(lambda: not child.has_descendants(proc))
            assert not child.is_at_rest(proc)
            process.send_signal(signal.SIGSTOP)
            assert wait_until(lambda: state(process.pid) == "T")
            assert child.is_at_rest(proc)
        finally:
            process.kill()
            os.close(proc)
