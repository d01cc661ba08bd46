"""Start the hosts of a run, show what they say, and end them all together.

::

    every host: starting --(STARTS on stderr)--> running --(exit)--> ended
                    `-(exit)--> named; all others are stopped; exit code 2

    main host ended --> the others have been told; who does not end is stopped, then killed, then cut off
    Ctrl-C          --> the main host is stopped, and tells the others; once more: all actors are killed
    connection lost, or killed --> another host: started again when it can be reached; the main host: the run is over

Each host is a child process: ``agent-rl up-host``, or ssh with the same command. Its standard input carries orders
(`actors.cluster.orders`). When this process dies, the end of these pipes stops all hosts.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import trio

from actors.cluster.orders import BEAT_SECONDS, STARTS, STOPPED
from actors.exits import describe_exit
from actors.runtime.interrupts import INTERRUPTED
from agent_rl.messages.pipes import Alive, Kill, Order, Say, Stop
from transport.stream import packed

CONNECTION_LOST = 255
"""The exit code of ssh for its own failures."""
MISTAKE = 2
RETRY_SECONDS = 10.0
"""Seconds before a host is started again whose connection was lost."""
TOLD_SECONDS = 20.0
"""Seconds that hosts have to end after the main host, which tells them that the run ends."""
DRAIN_SECONDS = 180.0
"""Seconds that a host has to stop in order."""
CUT_SECONDS = 15.0
"""Seconds that a host has after all its actors were told to die."""


@dataclass(frozen=True, slots=True)
class HostCommand:
    """How a host is started."""

    order: Order
    words: Sequence[str]
    place: str
    """Where it is, for messages."""

    @property
    def name(self) -> str:
        """The host's."""
        return self.order.host


class HostProcess:
    """The process of one host, on this machine or at the other end of a connection."""

    def __init__(self, command: HostCommand, tell: Callable[[str], None]) -> None:
        """``tell`` shows a line to the user."""
        self.command = command
        self.started = False
        self.code: int | None = None
        """The exit code; None while the process runs."""
        self.ended = trio.Event()
        self._tell = tell
        self._process: trio.Process | None = None
        self._outbox, self._written = trio.open_memory_channel[Order | Say | Stop | Kill | Alive](math.inf)

    async def run(self) -> int:
        """Start the process, wait for its end, and return its exit code."""
        command = self.command
        pipe = subprocess.PIPE
        try:
            process = await trio.lowlevel.open_process(
                list(command.words), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            self._tell(f"{command.name}: {command.words[0]}: {error.strerror}")
            return self._end(MISTAKE)
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, process.stdin)
                readers = [trio.Event(), trio.Event()]
                shown = self._pass_on if command.order.main else self._show
                nursery.start_soon(_then, readers[0], shown, process.stdout)
                nursery.start_soon(_then, readers[1], self._hear, process.stderr)
                code = await process.wait()
                with trio.move_on_after(2):  # a process that ssh left in the background may have the pipes
                    for reader in readers:
                        await reader.wait()
                nursery.cancel_scope.cancel()
        finally:
            if process.returncode is None:
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()
        return self._end(code)

    def _end(self, code: int) -> int:
        self.code = code
        self.ended.set()
        return code

    def say(self, text: str) -> None:
        """Show a text above the table of this host."""
        self._outbox.send_nowait(Say(text))

    def stop(self) -> None:
        """Stop the host in order."""
        self._outbox.send_nowait(Stop())

    def kill(self) -> None:
        """Have the host kill all its actors."""
        self._outbox.send_nowait(Kill())

    def cut(self) -> None:
        """Kill the process here. The end of its connection stops what is left at the other end."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _write(self, stream: trio.abc.SendStream) -> None:
        message: Order | Say | Stop | Kill | Alive = self.command.order
        try:
            while True:
                await stream.send_all(packed(message))
                message = Alive()
                with trio.move_on_after(BEAT_SECONDS):
                    message = await self._written.receive()
        except (trio.BrokenResourceError, trio.ClosedResourceError):  # the process ends
            await trio.sleep_forever()

    async def _pass_on(self, stream: trio.abc.ReceiveStream) -> None:
        """The main host's table and results are shown as they are."""
        async for data in stream:
            try:
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            except OSError:  # nobody reads it; the run goes on
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    async def _show(self, stream: trio.abc.ReceiveStream) -> None:
        async for line in _lines(stream):
            self._tell(f"{self.command.name}: {line}")

    async def _hear(self, stream: trio.abc.ReceiveStream) -> None:
        async for line in _lines(stream):
            if line == STARTS:
                self.started = True
                continue
            self._tell(f"{self.command.name}: {line}")


class Hosts:
    """All hosts of a run, the main host first."""

    def __init__(self, commands: Sequence[HostCommand], complain: Callable[[str], None]) -> None:
        """``complain`` prints a line on stderr."""
        self._complain = complain
        self._processes = {command.name: HostProcess(command, self._tell) for command in commands}
        self._main = next(iter(self._processes.values()))
        self._over = trio.Event()
        self._code = 0
        self._signals = 0

    async def run(self, received: AsyncIterator[int]) -> int:
        """Start all hosts, and wait until all have ended. Returns the exit code."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._obey, received)
            for name in self._processes:
                nursery.start_soon(self._keep, name)
            await self._over.wait()
            await self._wind_up()
            nursery.cancel_scope.cancel()
        return self._code

    def _tell(self, text: str) -> None:
        """Show a line: above the table where there is one."""
        if self._main.started and self._main.code is None:
            self._main.say(text)
        else:
            self._complain(text)

    async def _keep(self, name: str) -> None:
        """Run a host. One whose connection was lost, or that was killed, is started again: a run goes on without it."""
        while True:
            process = self._processes[name]
            code = await process.run()
            lost = code == CONNECTION_LOST or code < 0
            if process is self._main or not process.started or self._over.is_set() or not lost:
                self._ended(process, code)
                return
            why = f"the connection to {process.command.place} is lost" if code > 0 else f"it {describe_exit(code)}"
            self._tell(f"{name}: {why}; it is started again in {RETRY_SECONDS:g} s")
            await trio.sleep(RETRY_SECONDS)  # the other end may still be stopping
            if self._over.is_set():
                return
            self._processes[name] = HostProcess(process.command, self._tell)
            self._processes[name].started = True  # what it was before: a failure to connect is no mistake

    def _ended(self, process: HostProcess, code: int) -> None:
        name, place = process.command.name, process.command.place
        code = code if code >= 0 else 128 - code  # as in shells
        if process is self._main and self._signals and not process.started:  # it had not begun to obey
            code = INTERRUPTED
        if not process.started and not self._signals and not self._over.is_set():
            why = f"could not be started (exit code {code}); all hosts are stopped"
            self._finish(MISTAKE, f"agent-rl: the host {name} ({place}) {why}")
        elif process is self._main:
            lost = code == CONNECTION_LOST
            code = 1 if lost else 0 if code == STOPPED else code
            self._finish(code, self._lost(process) if lost else "")
        elif not self._over.is_set() and code not in {0, STOPPED}:
            self._finish(code, f"agent-rl: the host {name} ended with exit code {code}; all hosts are stopped")

    @staticmethod
    def _lost(process: HostProcess) -> str:
        return (
            f"agent-rl: the connection to the main host {process.command.name} ({process.command.place}) is lost; "
            "it stops its actors; start the run again"
        )

    def _finish(self, code: int, why: str) -> None:
        """The run is over. The first exit code that is not 0 counts."""
        self._code = self._code or code
        if why:
            self._tell(why)
        self._over.set()

    async def _obey(self, received: AsyncIterator[int]) -> None:
        async for number in received:
            if number == signal.SIGHUP and self._signals:
                continue
            self._signals += 1
            if self._signals > 1:
                for process in self._processes.values():
                    process.kill()
            elif self._main.started and self._main.code is None:
                self._main.stop()  # it tells the others
            else:
                self._over.set()

    async def _wind_up(self) -> None:
        """End all hosts that still run: the main host first, since it tells the others."""
        if self._main.code is None:
            self._main.stop()
            with trio.move_on_after(DRAIN_SECONDS):
                await self._main.ended.wait()
        measures = (
            (TOLD_SECONDS if self._main.started else 0.0, HostProcess.stop, ""),
            (DRAIN_SECONDS, HostProcess.kill, "does not stop in order; its actors are killed"),
            (CUT_SECONDS, HostProcess.cut, "does not answer; look at it, and at the network"),
        )
        for seconds, measure, text in measures:
            with trio.move_on_after(seconds):
                for process in self._processes.values():
                    await process.ended.wait()
            left = [process for process in self._processes.values() if process.code is None]
            for process in left:
                if text:
                    self._complain(f"agent-rl: the host {process.command.name} {text}")
                measure(process)
            if not left:
                return
        for process in self._processes.values():
            await process.ended.wait()


async def _then(
    event: trio.Event, read: Callable[[trio.abc.ReceiveStream], object], stream: trio.abc.ReceiveStream
) -> None:
    """Read a stream to its end, and set the event."""
    await read(stream)  # type: ignore[misc]
    event.set()


async def _lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[str]:
    """The lines of a stream, without those that are empty."""
    rest = b""
    async for data in stream:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if text := line.decode(errors="replace").strip("\r"):
                yield text
    if rest:
        yield rest.decode(errors="replace")
