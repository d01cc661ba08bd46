"""Programs of others from the owner's side: the process that starts them, and each program's warden.

::

    Zygote.program --asked, output, control--> zygote.py --fork--> warden.py --fork--> the program
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import trio

from actors.sandbox.isolation.control_groups import ControlGroups
from actors.sandbox.isolation.syscalls import ARCHITECTURES, jail_program
from actors.sandbox.programs.jail import Jail
from agent_rl.files.leftovers import temporary_directory

OUTPUT_CHARS = 16 * 1024
"""The end of what a program writes that is kept."""
LOAD_SECONDS = 120.0
"""How long a program that is forked may take to load."""
START_SECONDS = 30.0
"""How long starting a program may take once it is loaded, and hearing of its end once it was stopped."""
WARDEN_LOST = "its warden was lost"
RESULT_BYTES = 16 * 1024 * 1024
"""Of what a warden tells: files as JSON."""
FIRST_LINE_BYTES = 256
"""Of a script, which names its interpreter; the kernel reads no more."""
ZYGOTE = Path(__file__).parents[1] / "programs" / "zygote.py"
_READY = re.compile(rb"(?:^|\n)ready (.*)\n")


class StartError(Exception):
    """Why a program cannot be started."""


class Program:
    """A program that runs: what it writes, and its warden at the other end of ``control``."""

    def __init__(self, output: trio.lowlevel.FdStream, control: trio.socket.SocketType) -> None:
        self.listener: trio.SocketListener | None = None
        self.written_all = trio.Event()
        self.flooded = False
        self.starved: Callable[[], bool] = lambda: False
        """Whether the kernel ended a process of it, or of its check, for memory that others took."""
        self._output, self._control = output, control
        self._written = bytearray()
        self._told = bytearray()
        self._check: Mapping[str, Any] = {}
        self._saying = trio.Lock()

    async def begun(self, asked: Mapping[str, Any]) -> None:
        """Wait until the warden is there, and say what to run, ``asked``. Raises StartError."""
        data, extra, _, _ = await self._control.recvmsg(65536, socket.CMSG_SPACE(4))
        self._told += data
        for _, _, raw in extra:
            found = socket.socket(fileno=int.from_bytes(raw[:4], sys.byteorder))
            found.setblocking(False)
            self.listener = trio.SocketListener(trio.socket.from_stdlib_socket(found))
        told = await self._line()
        if not told.get("ready"):
            raise StartError(f"its warden failed: {told.get('fault', 'it ended at once')}")
        check = {"check", "check_files"}
        self._check = {name: asked[name] for name in check}
        await self._say({name: value for name, value in asked.items() if name not in check})

    async def result(self) -> dict[str, Any]:
        """What the warden tells at the end."""
        told = await self._line()
        if "ended" not in told:
            return told
        await self._say(self._check)
        return await self._line()

    async def stop(self) -> None:
        """End the program; its check still runs."""
        await self._say({"stop": True})

    async def _say(self, message: Mapping[str, Any]) -> None:
        """A line for the warden; one that is lost says so at the other end."""
        data = json.dumps(message).encode() + b"\n"
        with suppress(OSError):
            async with self._saying:
                while data:
                    data = data[await self._control.send(data) :]

    async def read(self, most: int) -> None:
        """Keep the end of what the program writes; stop it when this is more than ``most`` bytes."""
        count = 0
        while data := await self._output.receive_some(65536):
            count += len(data)
            self._written += data
            del self._written[: -4 * OUTPUT_CHARS]
            if count > most and not self.flooded:
                self.flooded = True
                await self.stop()
        self.written_all.set()

    @property
    def text(self) -> str:
        """The end of what it wrote."""
        return self._written.decode(errors="replace")[-OUTPUT_CHARS:]

    async def _line(self) -> dict[str, Any]:
        while b"\n" not in self._told:
            try:
                data = await self._control.recv(1 << 20)
            except OSError:
                data = b""
            if not data:
                return {"fault": WARDEN_LOST}
            if len(self._told) > RESULT_BYTES:  # which is the program's doing
                return {"fault": f"its files are more than {RESULT_BYTES} bytes"}
            self._told += data
        line, _, rest = self._told.partition(b"\n")
        self._told = bytearray(rest)
        found: dict[str, Any] = json.loads(line)
        return found

    async def close(self) -> None:
        """The warden ends what still runs."""
        self._control.close()
        await self._output.aclose()
        if self.listener is not None:
            await self.listener.aclose()


class Zygote:
    """A process that starts programs (`zygote.py`); with a ``script``, it has loaded that and forks for each run."""

    def __init__(self, interpreter: str, script: str, jail: Jail | None, groups: ControlGroups | None = None) -> None:
        """``groups``: in which each program has groups of its own."""
        machine = platform.machine()
        filters = jail_program(machine).hex() if machine in ARCHITECTURES else ""  # without one there are no jails
        self._jail = jail and replace(jail, filter=filters)
        self._interpreter, self._script = interpreter, script
        self._groups = groups or ControlGroups()
        self._loaded = trio.Event()
        self._folder = Path()
        self._fault = ""
        self.why_plain = ""
        self.refused = ""
        """Why it must not start any."""

    @property
    def ended(self) -> bool:
        """Whether it serves no more."""
        return bool(self._fault)

    @property
    def jailed(self) -> bool:
        """Whether programs get jails."""
        return self._jail is not None and not self.why_plain

    async def run(self, variables: Mapping[str, str]) -> None:
        """Serve until cancelled, or until the interpreter ends."""
        variables = {name: value for name, value in variables.items() if not name.endswith("_API_KEY")}
        with temporary_directory("zygote") as self._folder:
            jail = json.dumps(asdict(self._jail) if self._jail is not None else None)
            command = [self._interpreter, str(ZYGOTE), f"{self._folder}/socket", jail, *filter(None, [self._script])]
            try:
                process = await trio.lowlevel.open_process(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=variables | {"HOME": str(self._folder)},
                )
            except OSError as error:
                self._fault = (
                    f"{self._interpreter!r} not being started: {error.strerror}; write its path in `harness.command`"
                )
                self._loaded.set()
                return
            written = bytearray()
            assert process.stdout is not None
            try:
                while data := await process.stdout.receive_some(65536):
                    written += data
                    del written[:-OUTPUT_CHARS]
                    if not self._loaded.is_set() and (found := _READY.search(written)):
                        self.why_plain = found[1].decode()
                        self._loaded.set()
            finally:
                said = written.decode(errors="replace").strip() or "nothing"
                self._fault = (
                    f"{self._script or ZYGOTE.name} could not be loaded by {self._interpreter}, which wrote: {said}"
                )
                self._loaded.set()
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()
                    for stream in (process.stdin, process.stdout):
                        if stream is not None:
                            await stream.aclose()

    async def loaded(self) -> None:
        """Wait until it can start programs. Raises StartError."""
        with trio.move_on_after(LOAD_SECONDS):
            await self._loaded.wait()
        fault = self._fault or self.refused
        if fault or not self._loaded.is_set():
            raise StartError(fault or f"{self._script} did not load within {LOAD_SECONDS:g} s")

    @asynccontextmanager
    async def program(self, asked: Mapping[str, Any]) -> AsyncIterator[Program]:
        """A program that runs within this block. Raises StartError."""
        reads, writes = os.pipe()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        program = Program(trio.lowlevel.FdStream(reads), trio.socket.from_stdlib_socket(ours))
        memory = self._jail.memory + self._jail.disk if self._jail is not None and asked["jailed"] else 0
        parts = self._groups.open(memory)
        program.starved = lambda: self._groups.starved(parts, memory)
        start = {"jailed": asked["jailed"], "groups": [self._groups.joins(part) for part in parts]}
        try:
            try:
                await self._fork(json.dumps(start).encode() + b"\n", [writes, theirs.fileno()])
            finally:
                os.close(writes)
                theirs.close()
            with trio.fail_after(START_SECONDS):
                await program.begun(asked)
            yield program
        except (OSError, ValueError, trio.BrokenResourceError, trio.TooSlowError) as error:
            raise StartError(f"the process that starts programs has failed: {error!r}") from error
        finally:
            with trio.CancelScope(shield=True):
                await program.close()
            self._groups.close(parts)

    async def _fork(self, asked: bytes, fds: list[int]) -> None:
        """Have a program started. Raises OSError, ValueError, TooSlowError, BrokenResourceError."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(f"{self._folder}/socket")  # it is there, and listens with a long queue
            connection.setblocking(False)
            sent = socket.send_fds(connection, [asked], fds)
        except OSError:
            connection.close()
            raise
        async with trio.SocketStream(trio.socket.from_stdlib_socket(connection)) as stream:
            with trio.fail_after(START_SECONDS):
                await stream.send_all(asked[sent:])
                int(await stream.receive_some(64))


def installation(program: str) -> list[str]:
    """What a program is installed in, beyond the system's folders, and what the interpreter of a script is."""
    path = Path(shutil.which(program) or program)
    begin = b""
    if path.is_file():
        with path.open("rb") as file:
            begin = file.readline(FIRST_LINE_BYTES)
    words = begin[2:].decode(errors="replace").split() if begin.startswith(b"#!") else []
    interpreter = [word for word in words if not word.startswith("-") and word != "/usr/bin/env"][:1]
    return [found for each in (program, *interpreter) for found in _installed(each)]


def _installed(program: str) -> Iterator[str]:
    """A virtual environment, a prefix with bin and lib, or the file alone."""
    path = Path(shutil.which(program) or program)
    if (path.parent.parent / "pyvenv.cfg").is_file():
        yield str(path.parent.parent)
    real = path.resolve()
    prefix = real.parent.parent
    if not str(real).startswith(("/usr/", "/bin/")):
        whole = real.parent.name == "bin" and (prefix / "lib").is_dir() and prefix not in (Path("/"), Path.home())
        yield str(prefix if whole else real)
