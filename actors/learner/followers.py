"""The processes of a learner's other ranks on one host, as the actor has them that starts, watches and ends them.

On rank 0's host that is rank 0's actor, on other hosts a keeper (`actors.learner.keeper`). The processes are in the
actor's process group and die with it (`actors/runtime/lifeline.py`), so the supervisor starts, kills and restarts all
ranks as one. When one of them ends, falls silent or says that it cannot go on, rank 0 fails and names it; the
supervisor then starts the learner again, which goes on from its newest checkpoint.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import trio

import actors
from actors.exits import MemoryKills, describe_exit
from actors.learner.signs import Signs, SilentError
from agent_rl.learning.finite import TrainingStoppedError
from transport.stream import packed

if TYPE_CHECKING:
    import structlog

    from agent_rl.messages.pipes import Beginning

LIFELINE = Path(actors.__path__[0]) / "runtime" / "lifeline.py"
MODULE = "actors.learner.follower"
LEAVE_SECONDS = 10.0
"""How long a rank that was told to end may take."""
OTHER_SECONDS = 5.0
"""How long after an error of torch another rank may be found that has caused it."""
ENDED_SECONDS = 5.0
"""How long the process of a rank may take to end after it has closed its pipe."""


class RankLostError(Exception):
    """A rank has ended by itself, is silent, or cannot go on. The message names the rank."""


class Followers:
    """The processes of some ranks."""

    def __init__(
        self,
        beginning: Beginning,
        ranks: Sequence[int],
        log: structlog.typing.FilteringBoundLogger,
        *,
        host: str = "",
    ) -> None:
        """Start these. The caller is the main thread: a rank dies with the thread that started it.

        ``host`` names a host other than that of rank 0. Rank 0 tells the ranks there to end, and not this process.
        """
        self._host = host
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._signs: dict[int, Signs] = {}
        self._leaving = False
        self._memory_kills = MemoryKills()
        self._silent_seconds = beginning.silent_seconds
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # the user's modules beside the topology
        for rank in ranks:
            reading, writing = os.pipe()
            command = [sys.executable, "-P", str(LIFELINE), str(os.getpid()), MODULE, str(writing)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, pass_fds=[writing])
            os.close(writing)
            self._signs[rank] = Signs(reading, self._silent_seconds)
            self._processes[rank] = process
            assert process.stdin is not None
            process.stdin.write(packed(replace(beginning, rank=rank)))
            process.stdin.close()
            log.info("rank started", rank=rank, pid=process.pid)

    async def watch(self) -> None:
        """Wait until all have ended because they were told to.

        Raises RankLostError when a rank ends before, or is silent.

        Raises TrainingStoppedError when a rank cannot go on, and a restart would not help. All ranks are then killed.
        """
        try:
            async with trio.open_nursery() as nursery:
                for rank in self._processes:
                    nursery.start_soon(self._watch, rank)
        except* (RankLostError, TrainingStoppedError):
            self.kill()
            raise

    async def _watch(self, rank: int) -> None:
        process = self._processes[rank]
        name = f"rank {rank} of the learner (process {process.pid}{self._host and f' of host {self._host}'})"
        try:
            words = await self._signs[rank].watch()
        except SilentError:
            stopped = "; the process is stopped (SIGSTOP or a debugger)" if _stopped(process.pid) else ""
            raise RankLostError(
                f"{name} has given no sign of life for rank_silent_seconds ({self._silent_seconds:g} s){stopped}"
            ) from None
        if words is not None:
            text = f"{name} cannot go on: {words.fault}"
            if words.kind == "torch":
                await trio.sleep(OTHER_SECONDS)  # cancelled when another rank is named
            raise TrainingStoppedError(text) if words.kind == "mistake" else RankLostError(text)
        if not self._leaving:
            how = await _ended(process, self._memory_kills)
            if not (self._host and process.returncode == 0):  # it ends by itself only when rank 0 has told it to
                raise RankLostError(f"{name} {how}")

    def kill(self) -> None:
        """End all ranks now: one that waits for another would wait on."""
        for process in self._processes.values():
            process.kill()

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


async def _ended(process: subprocess.Popen[bytes], kills: MemoryKills) -> str:
    """How a process that has closed its pipe ended; one that has not is killed."""
    descriptor = os.pidfd_open(process.pid)
    try:
        with trio.move_on_after(ENDED_SECONDS) as limit:
            await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)
    if limit.cancelled_caught:
        process.kill()
        process.wait()
        return "closed its pipe and did not end"
    status = process.wait()
    return describe_exit(status, lacked_memory=kills.killed(status))


def _stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped a process."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in {"T", "t"}
