"""A run is disturbed: actors are stopped, strangers send rubbish, its journal is taken away, put back or damaged."""

import contextlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from actors.cli.main import main
from agent_rl.records.audit import deep_audit
from tests.end_to_end.processes import SECONDS, Run, alive, family, overrides, rows, wait_for
from tests.end_to_end.topologies import write_half_right, write_micro

pytestmark = pytest.mark.slow
ENGINE = '''
"""An engine without a model whose every rollout calls a tool, so that somebody always needs the tool executor."""
from pathlib import Path
from urllib.parse import quote
from agent_rl_contract.scripted import ScriptedEngine

CALL = '<tool_call>{"name": "python_code_with_standard_io", "arguments": {"code": "print(4)", "input": ""}}</tool_call>'


def script(turn, request):
    return CALL if turn == 1 else "<answer>\\\\boxed{4}</answer>"


class Engine(ScriptedEngine):
    def __init__(self, path, **settings):
        super().__init__(path, script=script, **settings)

    async def load_weights(self, path, policy):
        await super().load_weights(Path("/weights") / path.name, policy)
'''
NAMED_WITHIN = 10.0
"""Seconds from the signal to the row in the log."""


@contextlib.contextmanager
def in_a_file(run: Run, out: Path, *settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start it, with all that it says in a file."""
    command = [sys.executable, "-m", "actors.cli", "run", str(run.path), *overrides(*settings)]
    with out.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def silences(run: Run) -> list[dict[str, Any]]:
    return run.logged("supervisor.local", "silence")


def stop_and_see_it_named(run: Run, actor: str) -> str:
    """Stop the actor's process; what the log says of it, once it has said it."""
    before, stopped_at = len(silences(run)), time.time()

    def told() -> list[dict[str, Any]]:
        return [row for row in silences(run)[before:] if row["actor"] == actor]

    run.signal(actor, signal.SIGSTOP)
    wait_for(lambda: bool(told()), f"{actor} to be named")
    row = told()[0]
    assert datetime.fromisoformat(row["timestamp"]).timestamp() - stopped_at < NAMED_WITHIN
    assert f"{actor} has been silent for " in row["text"]
    assert "its process is stopped (state T)" in row["text"]
    return str(row["text"])


def test_each_stopped_actor_is_named_with_who_waits_for_it_and_nothing_is_lost_when_it_goes_on(tmp_path):
    run, out = Run(*write_micro(tmp_path, steps=100_000)), tmp_path / "out"
    (tmp_path / "talkative.py").write_text(ENGINE)
    settings = (
        "actors.rollout_generator.settings.engine=talkative:Engine",
        "stages.2.max_response_tokens=120",
        "actors.tool_executor.silent_seconds=10",
    )

    def goes_on(said: Callable[[], bool], what: str) -> None:
        done = run.trained
        wait_for(said, what)
        wait_for(lambda: run.trained >= done + 2, "steps to go on")

    with in_a_file(run, out, *settings) as process:
        wait_for(lambda: run.trained >= 2, "two steps")
        everyone = family(process.pid)

        waits = {
            "roc_filter.0": "learner.0 waits for it: ",
            "kv_scheduler.0": "rollout_generator.0 waits for it: rollout requests",
            "rollout_generator.0": " waits for it: ",  # the filter for trajectories, or the scheduler for room
            "learner.0": "kv_scheduler.0 waits for it: a newer policy",
        }
        for actor, waiting in waits.items():
            assert waiting in stop_and_see_it_named(run, actor)
            run.signal(actor, signal.SIGCONT)
            back = f"{actor} is heard again, after "
            goes_on(lambda b=back: any(row["text"].startswith(b) for row in silences(run)), f"{actor} as back")

        # One that stays silent is replaced.
        text = stop_and_see_it_named(run, "tool_executor.0")
        assert "rollout_generator.0 waits for it: " in text
        assert "learner.0 waits for roc_filter: step " in text
        killed = "it was killed, since it may be silent for 10 s; starting it again"
        goes_on(lambda: killed in out.read_text(), "its end")

        # What is silent when the run is ended is part of the exit message.
        stop_and_see_it_named(run, "roc_filter.0")
        wait_for(lambda: "(roc_filter.0 silent for " in out.read_text(), "the state in a line of the table")
        everyone |= family(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
    said = out.read_text()
    assert "at the end: roc_filter.0 has been silent for " in said
    assert "it was killed, so that others can hand over to a new one; starting it again" in said
    assert "did not stop in time" not in said
    assert "continue with: agent-rl run" in said
    assert "Traceback" not in said
    for row in silences(run):
        assert row["text"] in said
    wait_for(lambda: not alive(everyone), "every process to end")
    assert run.processes == []
    run.balanced()
    metrics = rows(run.directory / "metrics.jsonl")
    assert [row for row in metrics if row.get("groups_dropped_too_few_rollouts")] == []


STRANGER = """
import os, random, sys
import msgpack, zmq
from transport.frames import FRAMES_VERSION, AnnounceFrame, Heartbeat, PushFrame, pack

rng = random.Random(1)
context = zmq.Context()
context.setsockopt(zmq.LINGER, 2000)
for path in sys.argv[1:]:
    own = path.rpartition("/")[2]
    nodes = ("kv_scheduler.0", "rollout_generator.0", "tool_executor.0", "roc_filter.0", "learner.0", "supervisor.local")
    # A node's name with a higher incarnation than its supervisor gave it: its own frames would be a replaced process's.
    newer = [f"{name}#9000000000000000000".encode() for name in nodes if name != own]
    strangers = (None, b"\\xff\\xfe", b"nobody#1", b"nobody#99999999999", *(f"many-{n}#1".encode() for n in range(8)))
    for identity in (*strangers, *newer):
        socket = context.socket(zmq.DEALER)
        if identity is not None:
            socket.setsockopt(zmq.ROUTING_ID, identity)
        socket.connect(f"ipc://{path}")
        for _ in range(20):
            socket.send(rng.randbytes(rng.randrange(2000)))
        socket.send(b"")
        socket.send_multipart([b""] * 10000)
        socket.send(b"\\xff\\xff\\xff\\xff")
        other = msgpack.packb((FRAMES_VERSION + 1, 0, [], 1, []))
        socket.send(len(other).to_bytes(4, "big") + other)
        deep = b"\\x91" * 100000
        socket.send(len(deep).to_bytes(4, "big") + deep)
        socket.send(pack(Heartbeat(1, []))[0])
        socket.send(pack(PushFrame("trajectories", 1, 1), [rng.randbytes(500)])[0])
        socket.send(pack(AnnounceFrame("status", 1, "ActorStatus", 1 << 60), [rng.randbytes(500)])[0])
        socket.close()
    big = context.socket(zmq.DEALER)
    big.connect(f"ipc://{path}")
    big.send(bytes(257 << 20), copy=False)  # beyond what a socket takes: the connection is closed
    big.close(0)
context.term()
"""


def test_rubbish_on_every_socket_also_as_of_its_nodes_is_counted_told_once_and_loses_nothing(tmp_path, temporary):
    run = Run(*write_micro(tmp_path, steps=400), TMPDIR=str(temporary)).start().until(2)
    sockets = sorted(str(found) for found in temporary.rglob("*") if found.is_socket())
    assert len(sockets) == 6
    subprocess.run([sys.executable, "-c", STRANGER, *sockets], check=True, timeout=60)
    assert run.process.poll() is None, "the run was over before the stranger came"
    run.more(3).interrupt()
    run.balanced()
    assert run.processes == []
    for log in run.directory.glob("logs/*.jsonl"):
        assert [row for row in rows(log) if row["level"] == "error"] == []
    nodes = [Path(path).name for path in sockets]
    for name in nodes:
        logged = rows(run.directory / "logs" / f"{name}.jsonl")
        told = [row for row in logged if "MalformedFrames" in str(row) and "stranger" in str(row)]
        assert len(told) == 1, (name, told)
        refused = [row["detail"] for row in logged if "IncarnationRefused" in str(row)]
        assert len(refused) == len(nodes) - 1, (name, refused)
        assert all("claimed=9000000000000000000, expected=" in text for text in refused)


MARGIN = 90
"""Steps that no run here comes to the end of."""


def backup(journal: Path, to: Path) -> None:
    """As `sqlite3 journal.sqlite '.backup FILE'` makes it, beside the run."""
    source, target = sqlite3.connect(f"file:{journal}?mode=ro", uri=True), sqlite3.connect(to)
    source.backup(target)
    source.close()
    target.close()


def test_a_journal_replaced_by_an_older_copy_ends_the_run_and_the_next_start_is_refused(tmp_path):
    run = Run(*write_half_right(tmp_path, steps=MARGIN)).start().until(2)
    journal = run.directory / "journal.sqlite"
    backup(journal, tmp_path / "copy")
    seen = run.trained
    run.more(3)
    (tmp_path / "copy").replace(journal)
    began = time.monotonic()
    said = run.finish(2).all
    assert f"{journal} was changed by another program while the run was going" in said
    assert "Traceback" not in said
    assert time.monotonic() - began < 60
    assert "was changed by another program" in run.summary()["stopped"]
    assert run.summary()["steps"] >= seen + 3
    assert "was changed by another program" in run.log("supervisor.local")

    for name in ("journal.sqlite-wal", "journal.sqlite-shm"):  # as the message says
        (run.directory / name).unlink(missing_ok=True)
    said = run.to_end(code=2)
    assert f"{journal} is older than" in said.err
    assert "Traceback" not in said.all


def test_a_killed_run_goes_on_and_its_records_can_be_made_again(tmp_path, capsys):
    run = Run(*write_micro(tmp_path, steps=MARGIN)).start().until(3)
    run.process.kill()
    run.process.communicate()
    assert main(["audit", str(run.directory), "--deep"]) == 0, capsys.readouterr().out  # the log is there still
    done = run.trained
    run.finished(run.to_end(f"stages.2.steps={done + 2}"), steps=done + 2)
    found = deep_audit(run.directory)
    assert found.faults == found.notes == ()
    assert found.checkpoints >= 2
    files = [run.directory / name for name in ("metrics.jsonl", "summary.json")]
    before = [file.read_text() for file in files]
    for file in files:
        file.unlink()
    assert main(["report", str(run.directory), "--rebuild"]) == 0
    assert [file.read_text() for file in files] == before

    shutil.rmtree(run.directory / "checkpoints")
    said = run.to_end(f"stages.2.steps={done + 2}", code=2)
    assert "records checkpoints, but there is none" in said.err


def test_a_payload_that_is_damaged_while_the_run_goes_ends_it_at_once(tmp_path):
    run = Run(*write_half_right(tmp_path, steps=MARGIN)).start().until(2)
    (payloads,) = (run.directory / "journal.trajectories").iterdir()
    while run.process.poll() is None and run.trained < MARGIN:  # each is read soon after it was written
        with payloads.open("r+b") as file:
            file.seek(-min(2000, payloads.stat().st_size), 2)
            file.write(bytes(1000))
        time.sleep(0.01)
        if '"failed"' in run.log("roc_filter.0"):
            break
    began = time.monotonic()
    said = run.finish(2)
    assert "is not what was written); move it, journal.sqlite-wal" in said.all
    assert "Traceback" not in said.all
    assert time.monotonic() - began < 60
