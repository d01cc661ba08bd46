"""One warm interpreter's process, from the owner's side: its life, its link, the calls in flight on it."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from agent_rl.leftovers import claimed_directory, remove_tree

LENGTH = struct.Struct("!I")
ROOT = str(Path(__file__).resolve().parents[2])
"""Where the packages ``actors`` and ``agent_rl`` are found."""
BOOT = "import sys; sys.path.append({root!r}); from actors.sandbox.server import main; main()"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""All that calls find in their environment, beside HOME and TMPDIR: a pool of threads would not survive the fork."""
ENDING_SECONDS = 5.0
"""How long a server may take to kill its children and remove its directory before it is killed itself."""


class WarmUpError(Exception):
    """A warm interpreter could not be started; the text says why."""


class _Pending:
    """A call in flight: ``reply`` stays None when the interpreter was lost."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.reply: dict[str, Any] | None = None


class Interpreter:
    """A warm interpreter process. ``run`` owns it; ``call`` uses it while it is ready."""

    def __init__(self, *, modules: Sequence[str], checker: bool, warm_seconds: float) -> None:
        self._modules = tuple(modules)
        self._checker = checker
        self._warm_seconds = warm_seconds
        self._ids = itertools.count()
        self._pending: dict[int, _Pending] = {}
        self._send: trio.MemorySendChannel[dict[str, Any]]
        # Unbounded, but in truth bounded by the calls in flight: a frame must be queued whole, whoever is cancelled.
        self._send, self._to_send = trio.open_memory_channel[dict[str, Any]](math.inf)
        self._process: subprocess.Popen[bytes] | None = None
        self.ready = False

    @property
    def in_flight(self) -> int:
        """Calls sent and not answered."""
        return len(self._pending)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start the process, report it started once it is warm, and return when it has died.

        Whatever ends this, process, children and directory are gone afterwards. Raises WarmUpError.
        """
        directory, claim = claimed_directory("sandbox")
        ours, theirs = socket.socketpair()
        try:
            async with trio.SocketStream(trio.socket.from_stdlib_socket(ours)) as link:
                with theirs:
                    self._process = self._start(str(directory), theirs.fileno())
                try:
                    await self._serve(link, task_status)
                finally:
                    self.ready = False
                    self._lose()
                    link.socket.close()  # tells the server to end
                    await _end(self._process)
        finally:
            self._send.close()
            self._to_send.close()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(remove_tree, directory)  # what a killed server could not
            claim.release()

    async def call(self, request: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        """Send ``request`` and wait for its reply; None when the interpreter was lost, or silent for ``seconds``.

        The server keeps each call's own deadline, so a silent one hangs and is killed. A cancelled call is cancelled in
        the server too.
        """
        number, pending = next(self._ids), _Pending()
        self._pending[number] = pending
        self._send.send_nowait({**request, "id": number})
        try:
            with trio.move_on_after(seconds) as waiting:
                await pending.done.wait()
            if waiting.cancelled_caught:
                self.kill()
            return pending.reply
        finally:
            if self._pending.pop(number, None) is not None and self.ready:
                self._send.send_nowait({"cancel": number})

    def cpu_seconds(self) -> float:
        """Processor time of the process and of the children it has reaped; 0 when it is gone."""
        if self._process is None:
            return 0.0
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return 0.0
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # utime, stime and those of the reaped

    def kill(self) -> None:
        """Kill the process at once; ``run`` sees it and cleans up."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def _start(self, directory: str, link: int) -> subprocess.Popen[bytes]:
        packages = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
        config = {
            "owner": os.getpid(),
            "directory": directory,
            "root": ROOT,
            "paths": [ROOT, *packages] if self._checker else packages,
            "modules": self._modules,
            "checker": self._checker,
        }
        # -I and -S: nothing of the user's and no site-packages hooks; -B: code that is not trusted writes no bytecode.
        boot = BOOT.format(root=ROOT)
        command = [sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", boot, json.dumps(config)]
        # From this thread, not from a worker: Linux sends the parent-death signal when the starting *thread* ends.
        return subprocess.Popen(
            command, stdin=link, stdout=link, env=ENVIRONMENT, cwd=directory, start_new_session=True
        )

    async def _serve(self, link: trio.SocketStream, task_status: trio.TaskStatus[None]) -> None:
        received = bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, link)
            with trio.move_on_after(self._warm_seconds) as warming:
                hello = await self._read(link, received)
                if hello is None:
                    raise WarmUpError("the interpreter died while it warmed up")
                if "failed" in hello:
                    raise WarmUpError(f"the interpreter could not warm up:\n{hello['failed']}")
            if warming.cancelled_caught:
                raise WarmUpError(f"the interpreter was not warm within {self._warm_seconds} s")
            self.ready = True
            task_status.started()
            while (reply := await self._read(link, received)) is not None:
                pending = self._pending.pop(reply["id"], None)
                if pending is not None:  # otherwise it was cancelled meanwhile
                    pending.reply = reply
                    pending.done.set()
            nursery.cancel_scope.cancel()

    async def _write(self, link: trio.SocketStream) -> None:
        async for message in self._to_send:
            data = json.dumps(message).encode()
            try:
                await link.send_all(LENGTH.pack(len(data)) + data)
            except trio.BrokenResourceError:
                return  # the reader sees the end too, and judges it

    async def _read(self, link: trio.SocketStream, received: bytearray) -> dict[str, Any] | None:
        """One frame; None at the end of the link."""
        end = LENGTH.size
        while len(received) < end or len(received) < (end := LENGTH.size + LENGTH.unpack_from(received)[0]):
            try:
                data = await link.receive_some(1 << 16)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            received += data
        message: dict[str, Any] = json.loads(received[LENGTH.size : end])
        del received[:end]
        return message

    def _lose(self) -> None:
        """Wake every call in flight without a reply."""
        for pending in self._pending.values():
            pending.done.set()
        self._pending.clear()


async def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process whose link is closed; kill it and its group when it takes too long."""
    with trio.CancelScope(shield=True):
        pidfd = os.pidfd_open(process.pid)
        try:
            with trio.move_on_after(ENDING_SECONDS) as waiting:
                await trio.lowlevel.wait_readable(pidfd)
            if waiting.cancelled_caught:
                os.killpg(process.pid, signal.SIGKILL)
                await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)
        process.wait()
