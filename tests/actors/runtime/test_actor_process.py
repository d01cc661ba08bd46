"""The process of one actor, and the supervisor's record of it: a process that gets ready beside another one."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from actors.runtime import process
from actors.runtime.children import ActorChild, start_child, telling
from agent_rl.messages.pipes import Expect, Go
from tests.end_to_end.topologies import write_micro
from tests.transport.clouds import Point
from transport.stream import packed


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
    (tmp_path / "stderr").unlink()
    assert child.last_words() == [message], "somebody has removed it"


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


def test_an_actor_that_never_reads_its_lifeline_is_noticed_and_one_with_many_peers_is_not(tmp_path: Path) -> None:
    child: ActorChild = start_child(
        "http.server", ["--help-me-not"], environment=os.environ, stderr=tmp_path / "stderr"
    )
    try:
        table = Expect({f"rollout_generator.{n}": 1 << 50 for n in range(5000)})
        assert len(packed(table)) > 1 << 16
        assert child.tell(table)
        told = [child.tell(Expect({"learner.0": 1234567890})) for _ in range(20_000)]
    finally:
        child.reap()
    assert told[0]
    assert child.tell(Go())  # it has ended: nobody is to be told


@pytest.mark.real_time
def test_a_process_reads_a_topology_that_nobody_else_can_change(tmp_path: Path) -> None:
    child = start_child(
        "tests.actors.runtime.fake_entry", [], environment=os.environ, stderr=tmp_path / "out", topology="a = 1\n"
    )
    assert trio.run(child.wait) == 0
    assert (tmp_path / "out").read_text() == "{'a': 1}\n"


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
