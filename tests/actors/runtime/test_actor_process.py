"""The process of one actor, and the supervisor's record of it: a process that gets ready beside another one."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from actors.exits import describe_exit
from actors.runtime import process, processes
from actors.runtime.children import ActorChild, telling
from actors.runtime.processes import Process, plan_of
from agent_rl.config.load import load_topology
from tests.end_to_end.topologies import write_micro
from tests.transport.clouds import Point
from transport.stream import packed


class Child:
    """A process that ends when it is asked to, and is prepared when ``ready`` is set."""

    def __init__(self, pid: int, ready: trio.Event) -> None:
        self.pid, self._ready, self._over = pid, ready, trio.Event()
        self.message, self.blocked_at, self.lacked_memory = "", "", False
        self.stderr = Path()

    @property
    def ended(self) -> bool:
        return self._over.is_set()

    async def wait(self) -> int:
        await self._over.wait()
        return 0

    async def prepared(self) -> bool:
        async with trio.open_nursery() as nursery:

            async def until(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(until, self._over)
            nursery.start_soon(until, self._ready)
        return self._ready.is_set()

    def end(self) -> None:
        self._over.set()

    terminate = kill = reap = end

    def tell(self, *_: object) -> bool:
        return True

    def stay_on(self, cores: object) -> None:
        pass

    def last_words(self, lines: int = 20) -> list[str]:
        return []

    def ending(self, status: int) -> str:
        return describe_exit(status)


def test_progress_bars_of_libraries_are_no_reason_of_an_end() -> None:
    bars = "Loading:   0%|          | 0/7 [00:00<?, ?it/s]\rLoading:  45%|####5     | 3/7 [00:01<00:02, 1.2it/s]\n"
    text = f"{bars}12it [00:03, 4.00it/s]\n  | ValueError: 45% of the rows are empty\n  +----\n"
    assert telling(text) == ["ValueError: 45% of the rows are empty"]


def test_a_process_whose_disk_took_no_words_has_its_message_as_last_words(tmp_path: Path) -> None:
    (tmp_path / "stderr").write_text("Warning: slow\n")
    process = subprocess.Popen(["true"], start_new_session=True)
    message = "/run/journal.sqlite3 cannot be written: Read-only file system; see to its disk"
    child = ActorChild(process, tmp_path / "stderr", 0, io.BytesIO(message.encode()), io.BytesIO())
    child.reap()
    assert child.last_words() == ["Warning: slow", message]
    traceback = (
        '  + Exception Group Traceback (most recent call last):\n  |   File "a.py", line 3, in run\n  |     go()\n'
    )
    (tmp_path / "stderr").write_text(f"{traceback}{message}\n")
    assert child.last_words() == [message]


def test_a_successor_that_says_what_is_no_message_is_killed_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "stderr").touch()
    reading, writing = os.pipe()
    os.write(writing, b"ready\n")
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    prepared = os.fdopen(reading, "rb", buffering=0)
    child = ActorChild(process, tmp_path / "stderr", 0, io.BytesIO(), io.BytesIO(), prepared)
    assert not trio.run(child.prepared)
    os.close(writing)
    assert trio.run(child.wait) == -signal.SIGKILL
    assert child.message.startswith("what it says cannot be read: length: ")


@pytest.mark.parametrize("ends", ["while it gets ready", "when it is ready", "by a death of the former one"])
def test_the_janitor_hears_of_the_end_of_a_process_that_was_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Another program may get its number, and the janitor kills the groups that it was told of."""
    path, _ = write_micro(tmp_path)
    topology = load_topology(path)
    groups: set[int] = set()
    janitor: Any = SimpleNamespace(started=groups.add, ended=groups.discard)
    nothing = lambda *_, **__: None  # noqa: E731
    reports: Any = SimpleNamespace(process=nothing, say=nothing, fail=nothing, known=tuple, swapped_lately=nothing)

    async def main() -> str:
        ready, children, told = trio.Event(), [], []

        def start(_: str, arguments: list[str], *, beside: bool, **__: Any) -> Child:
            told.append("beside" if beside else "restarted" if "--restarted" in arguments else "first")
            children.append(Child(len(children) + 1, ready))
            return children[-1]

        monkeypatch.setattr(processes, "start_child", start)
        role = "tool_executor"
        actor = Process(f"{role}.0", role, topology, entry_module="", arguments=[], incarnation=0, reports=reports)
        faults = []

        async def replace() -> None:
            faults.append((await actor.replaced(plan_of(role, topology), beside=True)).fault)

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(actor.keep, janitor, nothing)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(replace)
                await trio.testing.wait_all_tasks_blocked()
                assert groups == {1, 2}
                if ends == "when it is ready":
                    actor.kill(last=True)
                    ready.set()
                elif ends == "while it gets ready":
                    actor.stop(10.0)
                else:
                    children[0].end()
                    await trio.testing.wait_all_tasks_blocked()
                    assert groups == {3}, "the next process of the former class"
                    assert told == ["first", "beside", "restarted"]
                    actor.stop(10.0)
        assert all(child.ended for child in children)
        return faults[0]

    assert trio.run(main)
    assert not groups


def process_of(actor: str, folder: Path) -> list[str]:
    """The command of an actor's process."""
    path, _ = write_micro(folder)
    named = {"topology": path, "base": folder, "actor": actor, "incarnation": 0, "started-at": 0, "epoch": 0}
    arguments = [part for name, value in named.items() for part in (f"--{name}", str(value))]
    return [sys.executable, "-m", "actors.runtime.process", *arguments]


def test_an_actor_that_fails_leaves_its_traceback_before_its_last_line(tmp_path: Path) -> None:
    command = process_of("learner.first", tmp_path)
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = ended.stderr.splitlines()
    assert (ended.returncode, lines[-1]) == (1, "UnknownPeer: no address is known for learner.first")
    assert any("runtime/process.py" in line for line in lines)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"go\n doubted []", "length: 1735330336 bytes, the limit is 16777216"),
        (packed(Point(1, 2.0)), "'Point' is unknown"),
    ],
)
def test_an_actor_whose_supervisor_is_of_another_release_says_what_to_do(tmp_path: Path, said: bytes, why: str) -> None:
    reading, writing = os.pipe()
    os.write(writing, said)
    command = [*process_of("tool_executor.0", tmp_path), "--lifeline", str(reading)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=[reading])
    os.close(reading)
    os.close(writing)
    lines = ended.stderr.splitlines()
    assert (ended.returncode, len(lines)) == (process.USER_MISTAKE, 1), ended.stderr
    assert why in lines[0]
    assert lines[0].endswith("stop the run and start it again, it goes on")


@pytest.mark.parametrize(
    ("actor", "calls"),
    [
        ("learner.0", "one heap"),
        ("learner_ranks.0", "one heap"),
        ("rollout_generator.3", "one heap"),
        ("roc_filter.0", "kept for messages"),
    ],
)
def test_processes_with_a_model_have_one_heap(monkeypatch: pytest.MonkeyPatch, actor: str, calls: str) -> None:
    called: list[str] = []
    monkeypatch.setattr(process, "share_one_heap", lambda: called.append("one heap"))
    monkeypatch.setattr(process, "keep_freed_memory", lambda: called.append("kept for messages"))
    process.prepare_heap(actor)
    assert called == [calls]
