"""A process that does not belong to the run sends rubbish to every socket, also as its nodes: counted, told once, and
nothing is lost.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.processes import balanced, finish, more_steps, processes_of, rows, start, steps_trained, wait_for
from tests.end_to_end.topologies import write_micro

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


@pytest.mark.slow
def test_rubbish_on_every_socket_is_counted_and_loses_nothing(tmp_path: Path, temporary: Path) -> None:
    path, directory = write_micro(tmp_path, steps=400)
    process = start(path, TMPDIR=str(temporary))
    wait_for(lambda: steps_trained(directory) >= 2, "two steps")
    sockets = sorted(str(found) for found in temporary.rglob("*") if found.is_socket())
    assert len(sockets) == 6
    subprocess.run([sys.executable, "-c", STRANGER, *sockets], check=True, timeout=60)
    assert process.poll() is None, "the run was over before the stranger came"
    more_steps(directory, 3)
    os.kill(process.pid, signal.SIGINT)
    finish(process)
    balanced(directory)
    assert processes_of(path) == []
    for log in directory.glob("logs/*.jsonl"):
        assert [row for row in rows(log) if row["level"] == "error"] == []
    logs = [directory / "logs" / f"{name}.jsonl" for name in LOGS]
    for log in logs:
        told = [row for row in rows(log) if "MalformedFrames" in str(row) and "stranger" in str(row)]
        assert len(told) == 1, (log.name, told)
        refused = [row["detail"] for row in rows(log) if "IncarnationRefused" in str(row)]
        assert len(refused) == len(LOGS) - 1, (log.name, refused)
        assert all("claimed=9000000000000000000, expected=" in text for text in refused)


LOGS = ("kv_scheduler.0", "rollout_generator.0", "tool_executor.0", "roc_filter.0", "learner.0", "supervisor.local")
