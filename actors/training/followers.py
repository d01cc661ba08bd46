"""The processes of a learner's other ranks, as rank 0's actor has them: started with it, watched, ended with it.

Rank 0's actor owns the others. They are in its process group and die with it (`actors/runtime/lifeline.py`), so the
supervisor starts, kills and restarts all ranks as one. When one of them ends, rank 0 fails and names it; the supervisor
then starts the learner again, which goes on from its newest checkpoint.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import trio

import actors
from agent_rl.config.full import resolved_text

if TYPE_CHECKING:
    from actors.base import ActorContext

LIFELINE = Path(actors.__path__[0]) / "runtime" / "lifeline.py"
MODULE = "actors.training.follower"
LOOPBACK = "127.0.0.1"
LEAVE_SECONDS = 10.0
"""How long a rank that was told to end may take."""


class RankLostError(Exception):
    """A rank has ended by itself. The message names the rank."""


class Followers:
    """The processes of the ranks from 1 on."""

    def __init__(self, context: ActorContext, count: int) -> None:
        """Start so many. The caller is the main thread: a rank dies with the thread that started it."""
        from actors.training.follower import Beginning

        self.place = socket.create_server((LOOPBACK, 0))
        """Where the ranks meet."""
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._leaving = False
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # the user's modules beside the topology
        command = [sys.executable, "-P", str(LIFELINE), str(os.getpid()), MODULE]
        for rank in range(1, count + 1):
            beginning = Beginning(
                topology=resolved_text(context.topology),
                role=context.role,
                directory=context.directory.absolute(),
                base=context.base.absolute(),
                rank=rank,
                port=self.place.getsockname()[1],
            )
            process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
            self._processes[rank] = process
            assert process.stdin is not None
            process.stdin.write(beginning.model_dump_json().encode())
            process.stdin.close()
            context.log.info("rank started", rank=rank, pid=process.pid)

    async def watch(self) -> None:
        """Wait for ever. Raises RankLostError when a rank ends before it is told to."""
        async with trio.open_nursery() as nursery:
            for rank, process in self._processes.items():
                nursery.start_soon(self._watch, rank, process)

    async def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        descriptor = os.pidfd_open(process.pid)
        try:
            await trio.lowlevel.wait_readable(descriptor)
        finally:
            os.close(descriptor)
        if not self._leaving:
            raise RankLostError(f"rank {rank} of the learner (process {process.pid}) {_ended(process.wait())}")

    def leaving(self) -> None:
        """The ranks were told to end."""
        self._leaving = True

    async def ended(self) -> None:
        """Wait until all have ended after `leaving`; kill those that take too long."""
        for process in self._processes.values():
            with trio.move_on_after(LEAVE_SECONDS) as limit:
                await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
            if limit.cancelled_caught:
                process.kill()
                process.wait()


def _ended(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
