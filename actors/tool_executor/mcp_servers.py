"""The MCP servers of an executor: started, asked, and ended. `agent_rl.environments.mcp` says what is exchanged.

::

    McpServers.call --> the server of all rollouts, or of this one, started if need be --> ToolOutput
                             `--a task of the nursery--> _Program: a child process | _Address: streamable HTTP

A server that ends is logged once. The calls that wait for it start it again, and are made again, once and one by one.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, TypeAlias

import trio

from agent_rl.config.hidden import with_environment
from agent_rl.config.plugins import ContractError
from agent_rl.config.topology import McpServer, Topology
from agent_rl.environments import mcp
from agent_rl.environments.base import TaskError, ToolOutput, joined
from agent_rl.environments.mcp import McpError
from agent_rl.environments.schemas import ToolError
from agent_rl.files.reading_json import read_json

START_SECONDS = 60.0
"""How long a server may take until it has listed its tools."""
AT_ONCE_BYTES = 1 << 18
"""Of a message; a longer one is read in a thread."""
MOST_WAITING = 1000
"""Messages that a server has not read."""
LEAVE_SECONDS = 2.0
"""How long a server may take to end once its standard input is closed."""
PING_SECONDS = 15.0
"""How long a program may take to answer a ping, once a call was given up at its deadline. One that hangs is ended."""
PAUSES = (1.0, 2.0)
"""Seconds between the starts that a call waits for, when its server does not start."""
ERROR_BYTES = 2000
"""The end of what a program writes to standard error that messages show."""
ROLLOUT_ENDED = "was ended with its rollout"
THREADS = 64
"""Requests to one address at once."""

Key: TypeAlias = tuple[str, str, str]
"""Environment, server, and the rollout that has the server for itself: empty where all share it."""


class _Here(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the headers of the server may be secrets."""

    def redirect_request(self, *_: Any) -> None:
        """None: the redirect is an error."""


_OPENER = urllib.request.build_opener(_Here)


class _Server:
    """A server. ``fault`` says why it serves no more."""

    def __init__(self, settings: McpServer, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.listed: list[Mapping[str, Any]] = []
        self.fault, self.over = "", trio.Event()
        self.headers: dict[str, str] = {}
        self._numbers = itertools.count(1)

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until ``end``. Started once the tools are listed, or there is a fault."""
        raise NotImplementedError

    async def exchange(self, message: bytes, number: int | None) -> Mapping[str, Any]:
        """Send a message. Returns the response to that of a number, else nothing. Raises McpError."""
        raise NotImplementedError

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The result of a request. Raises McpError."""
        number = next(self._numbers)
        return mcp.result_of(await self.exchange(mcp.request(number, method, params), number))

    def end(self, why: str) -> None:
        """Serve no more."""
        self.fault = self.fault or why
        self.over.set()

    async def greet(self) -> None:
        """Greet the server and learn its tools. What goes wrong is its fault."""
        try:
            with trio.fail_after(START_SECONDS):
                self.headers["MCP-Protocol-Version"] = mcp.revision(await self.request("initialize", mcp.HELLO))
                await self.exchange(mcp.notification("notifications/initialized"), None)
                listing = mcp.Listing()
                cursor = listing.add(await self.request("tools/list", {}))
                while cursor is not None:
                    cursor = listing.add(await self.request("tools/list", {"cursor": cursor}))
                self.listed = listing.tools
        except McpError as error:
            self.end(str(error))
        except trio.TooSlowError:
            self.end(f"did not list its tools within {START_SECONDS:g} seconds")


class _Program(_Server):
    """A server that is a child process: a message is a line of its standard input or output."""

    def __init__(self, settings: McpServer, folder: Path) -> None:
        super().__init__(settings, folder)
        self._outgoing, self._written = trio.open_memory_channel[bytes](MOST_WAITING)
        self._waiting: dict[int, tuple[trio.Event, list[Mapping[str, Any]]]] = {}
        self._errors = bytearray()
        self._doubted = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until ``end``, then end the process and its group."""
        try:
            process = self._started()
        except (OSError, LookupError) as error:
            self.end(f"cannot be started: {error}")
            return task_status.started()
        stdin, stdout, stderr = (_stream(pipe) for pipe in (process.stdin, process.stdout, process.stderr))
        try:
            async with stdin, stdout, stderr, trio.open_nursery() as nursery:
                nursery.start_soon(self._write, stdin)
                nursery.start_soon(self._read, stdout, process)
                nursery.start_soon(self._hear, stderr)
                nursery.start_soon(self._doubt)
                await self.greet()
                task_status.started()
                await self.over.wait()
                nursery.cancel_scope.cancel()
        finally:
            await _exited(process)

    def _started(self) -> subprocess.Popen[bytes]:
        variables = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | {"LANG": "C.UTF-8"}
        starter = str(Path(__file__).with_name("start_server.py"))
        # From this thread, not a worker: Linux sends the parent-death signal when the starting *thread* ends.
        return subprocess.Popen(
            [sys.executable, "-I", "-S", starter, str(os.getpid()), *self.settings.command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables | dict(with_environment(self.settings.environment)),
            cwd=self.folder,
            start_new_session=True,
        )

    def end(self, why: str) -> None:
        """Serve no more; what waits has failed."""
        super().end(why)
        for arrived, _ in self._waiting.values():
            arrived.set()

    async def exchange(self, message: bytes, number: int | None) -> Mapping[str, Any]:
        """Send a message, and wait for the response to that of a number. Raises McpError."""
        if self.fault:
            raise McpError(self.fault)
        await self._outgoing.send(message)
        if number is None:
            return {}
        arrived, replies = self._waiting[number] = (trio.Event(), [])
        try:
            await arrived.wait()
        except trio.Cancelled:
            with suppress(trio.WouldBlock):  # it reads nothing, and is doubted
                self._outgoing.send_nowait(mcp.notification("notifications/cancelled", requestId=number))
            self._doubted.set()
            raise
        finally:
            del self._waiting[number]
        if not replies:
            raise McpError(self.fault)
        return replies[0]

    async def _doubt(self) -> None:
        """Ping the server after each call that was given up."""
        while True:
            await self._doubted.wait()
            with trio.move_on_after(PING_SECONDS) as scope, suppress(McpError):
                await self.request("ping", {})
            if scope.cancelled_caught:
                return self.end(f"hangs: it answered no ping within {PING_SECONDS:g} seconds")
            self._doubted = trio.Event()

    async def _write(self, stdin: trio.lowlevel.FdStream) -> None:
        with suppress(trio.BrokenResourceError):  # it has ended, and `_read` says how
            async for message in self._written:
                await stdin.send_all(message + b"\n")

    async def _read(self, stdout: trio.lowlevel.FdStream, process: subprocess.Popen[bytes]) -> None:
        data = bytearray()
        while more := await stdout.receive_some(1 << 20):
            *lines, rest = more.split(b"\n")
            for line in lines:
                data += line
                try:
                    whole = bytes(data)
                    threaded = len(whole) > AT_ONCE_BYTES
                    self._take(await trio.to_thread.run_sync(mcp.received, whole) if threaded else mcp.received(whole))
                except McpError as error:
                    self.end(f"{error}; its logs belong on standard error")
                data.clear()
            data += rest
            if len(data) > mcp.MESSAGE_BYTES:
                self.end(f"wrote a message of more than {mcp.MESSAGE_BYTES} bytes")
                return
        status = await _exited(process)
        said = self._errors.decode(errors="replace").strip() or "nothing"
        self.end(f"ended with exit status {status} and wrote: {said}")

    def _take(self, message: Mapping[str, Any]) -> None:
        if reply := mcp.answer(message):
            try:
                self._outgoing.send_nowait(reply)
            except trio.WouldBlock:
                self.end("asks, and reads no answers")
        elif "method" not in message and (waiting := self._waiting.get(message.get("id", 0))):
            waiting[1].append(message)
            waiting[0].set()

    async def _hear(self, stderr: trio.lowlevel.FdStream) -> None:
        while data := await stderr.receive_some(1 << 16):
            self._errors += data
            del self._errors[:-ERROR_BYTES]


class _Address(_Server):
    """A server that is asked by streamable HTTP: a message is the body of a POST."""

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until ``end``, then end the session."""
        self._threads = trio.CapacityLimiter(THREADS)
        await self.greet()
        task_status.started()
        await self.over.wait()
        if "Mcp-Session-Id" in self.headers:
            with trio.move_on_after(LEAVE_SECONDS), suppress(McpError):
                await self.exchange(b"", None)

    async def exchange(self, message: bytes, number: int | None) -> Mapping[str, Any]:
        """Post a message in a thread. Raises McpError."""
        asked = partial(self._post, message, number)
        try:
            return await trio.to_thread.run_sync(asked, abandon_on_cancel=True, limiter=self._threads)
        except (OSError, HTTPException, LookupError, ValueError, OverflowError) as error:
            self.end(f"does not serve {self.settings.url}: {error}")
            raise McpError(self.fault) from error

    def _post(self, message: bytes, number: int | None) -> Mapping[str, Any]:
        """The response to a message. An empty one ends the session."""
        headers = {**mcp.HEADERS, **self.headers, **with_environment(self.settings.headers)}
        method = "POST" if message else "DELETE"
        asked = urllib.request.Request(self.settings.url, message, headers, method=method)  # noqa: S310  http or https
        with _OPENER.open(asked, timeout=self.settings.seconds + LEAVE_SECONDS) as response:
            if session := response.headers.get("Mcp-Session-Id"):
                self.headers["Mcp-Session-Id"] = session
            streamed = response.headers.get_content_type() == "text/event-stream"
            lines = mcp.bounded(self._lines(response))
            for data in () if number is None else mcp.events(lines) if streamed else [b"".join(lines)]:
                reply = mcp.received(data)
                if reply.get("id") == number and "method" not in reply:
                    return reply
        if number is not None:
            raise HTTPException("it closed the connection without a response")
        return {}

    def _lines(self, response: IO[bytes]) -> Iterator[bytes]:
        """The lines of a body, as long as anybody may wait for it. Raises OSError."""
        until = time.monotonic() + max(self.settings.seconds, START_SECONDS) + LEAVE_SECONDS
        while line := response.readline(mcp.MESSAGE_BYTES + 1):
            yield line
            if time.monotonic() > until:
                raise TimeoutError("its answer has no end")


async def _exited(process: subprocess.Popen[bytes]) -> int:
    """The exit status of a process whose standard input or output is closed. In the end its group is killed."""
    if process.returncode is None:
        with trio.CancelScope(shield=True), os.fdopen(os.pidfd_open(process.pid)) as pidfd:
            with trio.move_on_after(LEAVE_SECONDS):
                await trio.lowlevel.wait_readable(pidfd)
            os.killpg(process.pid, signal.SIGKILL)
            await trio.lowlevel.wait_readable(pidfd)
    return process.wait()


def _stream(pipe: IO[bytes] | None) -> trio.lowlevel.FdStream:
    assert pipe is not None
    with pipe:
        return trio.lowlevel.FdStream(os.dup(pipe.fileno()))


@dataclass(slots=True)
class _Place:
    """Where a server is, or will be."""

    lock: trio.Lock = field(default_factory=trio.Lock)
    alone: trio.Lock = field(default_factory=trio.Lock)
    """Held by a call that is made again because the server ended during it."""
    server: _Server | None = None
    starts: int = 0
    fault: str = ""
    """Of the last start. Those that waited for it do not start the server again at once."""


class McpServers:
    """The servers of a topology's environments, on this host."""

    def __init__(self, topology: Topology, base: Path, nursery: trio.Nursery, log: Any) -> None:
        """``base`` is the topology file's folder. Servers end with ``nursery``."""
        self._entries = {entry.name: entry for entry in topology.environments}
        self._base, self._nursery, self._log = base, nursery, log
        self._places: dict[Key, _Place] = {}

    async def listings(self) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
        """The tools that each server lists, by environment and server. Raises TaskError for the servers that do not."""
        found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        errors: list[TaskError] = []

        async def ask(environment: str, name: str) -> None:
            try:
                listed = (await self._serving((environment, name, ""))).listed
                mcp.sound_listing(listed, f"environment {environment!r}: mcp.{name}")
                found[environment, name] = listed
            except (McpError, ToolError) as error:
                errors.append(TaskError(str(error), environment=environment))

        async with trio.open_nursery() as nursery:
            for entry in self._entries.values():
                for name in entry.mcp:
                    nursery.start_soon(ask, entry.name, name)
        if errors:
            raise joined(errors)
        return found

    async def check(self) -> None:
        """Start the servers, and compare what they list with the files. Raises TaskError."""
        for (environment, name), listed in (await self.listings()).items():
            entry = self._entries[environment]
            path = mcp.listing_path(entry, name, self._base)
            if changed := mcp.changed_tool(read_json(path), listed):
                fault = f"the server does not list the tool {changed!r} as {path} does; run `agent-rl mcp` again"
                raise TaskError(f"environment {environment!r}: mcp.{name}: {fault}", environment=environment)
            if entry.mcp[name].per == "rollout":
                self._end((environment, name, ""))

    async def call(
        self,
        environment: str,
        server: str,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        rollout: str,
        again: bool,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> ToolOutput:
        """Call a tool, again if its server ends or does not start. ``waiting`` is entered while the server starts.

        Raises BadArgumentError for arguments that the server refuses.
        """
        if (settings := self._entries[environment].mcp.get(server)) is None:
            missing = (
                f"environment {environment!r} has no MCP server {server!r}; write it as [environments.mcp.{server}]"
            )
            raise ContractError(missing)
        private = settings.per == "rollout"
        key = (environment, server, rollout if private else "")
        place = self._places.setdefault(key, _Place())
        before = place.server
        asked = {"name": tool, "arguments": arguments}
        try:
            serving, output = await self._asked(key, asked, waiting)
            if serving.fault not in ("", ROLLOUT_ENDED):
                with waiting():
                    await place.alone.acquire()  # so that a call which ends its server ends no other call again
                try:
                    serving, output = await self._asked(key, asked, waiting)
                finally:
                    place.alone.release()
        except McpError as error:
            return ToolOutput("unavailable", stderr=str(error))
        if private and again and serving is not before:
            return replace(output, note="The server was started again: its state is lost.")
        return output

    async def _asked(
        self, key: Key, asked: Mapping[str, Any], waiting: Callable[[], AbstractContextManager[None]]
    ) -> tuple[_Server, ToolOutput]:
        """What came of a call, and the server, which may have ended meanwhile. Raises McpError if it does not start."""
        with waiting():
            serving = await self._patiently(key)
        try:
            return serving, mcp.output_of(await serving.request("tools/call", asked))
        except McpError as error:
            ended = ToolOutput("error", stderr=f"The server {key[1]!r} of this tool ended during the call.")
            return serving, ended if serving.fault else mcp.refused_call(error)

    async def _patiently(self, key: Key) -> _Server:
        """The server of a key, which may need several starts. Raises McpError as `_serving` does."""
        for pause in PAUSES:
            with suppress(McpError):
                return await self._serving(key)
            await trio.sleep(pause)
        return await self._serving(key)

    def end(self, environment: str, rollout: str) -> None:
        """The rollout has ended, and so do its servers."""
        for name in self._entries[environment].mcp:
            self._end((environment, name, rollout))

    def _end(self, key: Key) -> None:
        if (place := self._places.pop(key, None)) and place.server is not None:
            place.server.end(ROLLOUT_ENDED)

    async def _serving(self, key: Key) -> _Server:
        """The server of a key, started where there is none. Raises McpError with environment, server and remedy."""
        environment, name, _ = key
        place = self._places.setdefault(key, _Place())
        starts = place.starts
        async with place.lock:
            if place.starts > starts and place.fault:
                raise McpError(place.fault)
            if place.server is None or place.server.fault:
                entry = self._entries[environment]
                settings = entry.mcp[name]
                server = (_Program if settings.command else _Address)(settings, self._base / entry.base)
                await self._nursery.start(self._keep, key, server)
                if self._places.get(key) is not place:
                    server.end(ROLLOUT_ENDED)
                place.starts += 1
                place.fault = self._said(key, server) if server.fault else ""
                if place.fault:
                    raise McpError(place.fault)
                place.server = server
            return place.server

    def _said(self, key: Key, server: _Server) -> str:
        environment, name, _ = key
        what = " ".join(server.settings.command) or server.settings.url
        return (
            f"environment {environment!r}: the MCP server {name!r} ({what}) {server.fault}; correct the server, or "
            f"mcp.{name} of the environment"
        )

    async def _keep(self, key: Key, server: _Server, *, task_status: trio.TaskStatus[None]) -> None:
        await server.run(task_status=task_status)
        if server.fault != ROLLOUT_ENDED:
            self._log.error("an MCP server has ended; the next call starts it again", why=self._said(key, server))
