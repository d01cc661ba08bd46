"""A rollout by a program of its own, the harness: it asks the gateway for turns, with the rollout's key.

The program runs in a folder of its own, in a session of its own, as a plain process of the generator's user: whoever
starts it must trust it. It sees no variable of the generator's environment but ``PATH`` and what the topology gives it.
When the rollout or the generator ends, the program and all that it started in its session are killed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from actors.rollout_generator.agent_loop import AgentLoop, EnvironmentFaultError
from agent_rl.config.hidden import with_environment
from agent_rl.environments.load import sound_files, sound_prompt
from agent_rl.messages import EnvironmentMessage
from agent_rl.rollout.keys import MODEL

if TYPE_CHECKING:
    from actors.rollout_generator.served import ServedRollouts
    from actors.rollout_generator.turns import Written
    from agent_rl.config.topology import Harness
    from agent_rl.environments.base import Environment
    from agent_rl.rollout.episode import Episode

OUTPUT_CHARS = 16 * 1024
"""The end of what a program writes that the transcript keeps."""
LEAVE_SECONDS = 5.0
"""How long a program may go on once it was told that its rollout has ended."""
LOAD_SECONDS = 120.0
"""How long a program that is forked may take to load."""
START_SECONDS = 30.0
"""How long starting a program may take once it is loaded, and hearing of its end once it was killed."""
ZYGOTE = Path(__file__).with_name("zygote.py")


@dataclass(frozen=True, slots=True)
class _Program:
    """A program that runs: its process, what it writes, and how it ends."""

    pid: int
    output: trio.abc.ReceiveStream
    status: Callable[[], Awaitable[str]]


class _StartError(Exception):
    """Why a program cannot be started."""


class Harnesses:
    """Runs the programs of a generator's rollouts."""

    def __init__(
        self, agent: AgentLoop, served: ServedRollouts, nursery: trio.Nursery, *, url: str, base: Path
    ) -> None:
        """``url``: the gateway's; ``base``: the topology file's folder; ``nursery``: for programs that are forked."""
        self._agent, self._served, self._nursery = agent, served, nursery
        self._url, self._base = url, base
        self._zygotes: dict[tuple[str, str], _Zygote] = {}

    async def run(
        self, environment: Environment, episode: Episode, written: Callable[[Written], None] | None = None
    ) -> None:
        """Run the program of a rollout to its end; ``written`` is told of each turn.

        Raises EngineError, ContractError, and EnvironmentFaultError for the program's faults.
        """
        name = episode.request.problem.environment
        status, output = "", ""
        async with self._served.serving(self._agent, episode, written) as (key, rollout):
            with tempfile.TemporaryDirectory(prefix="agent-rl-harness-", ignore_cleanup_errors=True) as folder:
                try:
                    status, output = await self._run(environment, episode, key, Path(folder), rollout.over)
                except _StartError as error:
                    status = str(error)
        if rollout.failure is not None:
            raise rollout.failure
        if not episode.turns and rollout.overflowed:
            episode.ended = "prompt_too_long"
            return
        if not episode.turns:
            said = output.strip()[-2000:] or "nothing"
            raise EnvironmentFaultError(
                f"environment {name!r}: its harness asked for no turn; it ended with {status}, and wrote: {said}"
            )
        episode.said([EnvironmentMessage(episode.turns, "harness", output)])
        episode.finish()

    async def _run(
        self, environment: Environment, episode: Episode, key: str, folder: Path, over: trio.Event
    ) -> tuple[str, str]:
        """How it ended, and the end of its output."""
        harness, problem = environment.harness, episode.request.problem
        assert harness is not None
        for name, content in sound_files(environment, problem).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        values = {
            "{prompt}": sound_prompt(environment, problem)[-1]["content"],
            "{id}": problem.id,
            "{model}": MODEL,
            "{seed}": str(episode.request.seed),
            "{base}": str(self._base.absolute()),
        }
        command = [_filled(part, values) for part in harness.command]
        written = bytearray()
        program = await self._start(command, folder, self._variables(harness, key, folder), fork=harness.fork)
        status = ""
        try:
            with trio.move_on_after(harness.seconds) as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_read, program.output, written)
                    nursery.start_soon(_leaves, over, nursery.cancel_scope)
                    status = await program.status()
                    nursery.cancel_scope.cancel()
            if scope.cancelled_caught:
                status = f"no end within {harness.seconds:g} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            with trio.CancelScope(shield=True):
                with trio.move_on_after(START_SECONDS):
                    await program.status()
                with trio.move_on_after(0.1):  # what it wrote last; what it has started may hold the pipe
                    await _read(program.output, written)
                await program.output.aclose()
        return status, written.decode(errors="replace")[-OUTPUT_CHARS:]

    async def _start(
        self, command: Sequence[str], folder: Path, variables: Mapping[str, str], *, fork: bool
    ) -> _Program:
        if fork and len(command) < 2:
            raise _StartError("fork = true needs a command of an interpreter, a Python script and its arguments")
        interpreter, script = command[:2] if fork else (sys.executable, "")
        zygote = self._zygotes.get((interpreter, script))
        if zygote is None or zygote.ended:
            zygote = self._zygotes[interpreter, script] = _Zygote(interpreter, script)
            self._nursery.start_soon(zygote.run, variables)
        return await zygote.start(command[2:] if fork else command, folder, variables)

    def _variables(self, harness: Harness, key: str, folder: Path) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "OPENAI_BASE_URL": f"{self._url}/v1",
            "OPENAI_API_BASE": f"{self._url}/v1",
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": self._url,
            "ANTHROPIC_API_KEY": key,
            "AGENT_RL_MODEL": MODEL,
            **dict(with_environment(harness.environment)),
        }


class _Zygote:
    """A process that starts programs (`zygote.py`); with a ``script``, it has loaded that and forks for each run."""

    def __init__(self, interpreter: str, script: str) -> None:
        self._interpreter, self._script = interpreter, script
        self._loaded = trio.Event()
        self._folder = ""
        self._fault = ""

    @property
    def ended(self) -> bool:
        """Whether it serves no more."""
        return bool(self._fault)

    async def run(self, variables: Mapping[str, str]) -> None:
        """Serve until cancelled, or until the interpreter ends."""
        variables = {name: value for name, value in variables.items() if not name.endswith("_API_KEY")}
        with tempfile.TemporaryDirectory(prefix="agent-rl-zygote-") as self._folder:
            command = [self._interpreter, str(ZYGOTE), f"{self._folder}/socket", *filter(None, [self._script])]
            try:
                process = await trio.lowlevel.open_process(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=variables | {"HOME": self._folder},
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
                    if written.endswith(b"ready\n"):
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

    async def start(self, argv: Sequence[str], folder: Path, variables: Mapping[str, str]) -> _Program:
        """Run the program once. Raises _StartError."""
        with trio.move_on_after(LOAD_SECONDS):
            await self._loaded.wait()
        if self._fault or not self._loaded.is_set():
            raise _StartError(self._fault or f"{self._script} did not load within {LOAD_SECONDS:g} s")
        reads, writes = os.pipe()
        output = trio.lowlevel.FdStream(reads)
        asked = json.dumps({"argv": list(argv), "env": dict(variables), "folder": str(folder)}).encode() + b"\n"
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(f"{self._folder}/socket")  # it is there, and listens with a long queue
            sent = socket.send_fds(connection, [asked], [writes])
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(connection))
            await stream.send_all(asked[sent:])
            lines = _Lines(stream)
            with trio.fail_after(START_SECONDS):
                pid = int(await lines.next())
        except (OSError, ValueError, trio.BrokenResourceError, trio.TooSlowError) as error:
            connection.close()
            await output.aclose()
            raise _StartError(f"the process that starts programs has failed: {error}") from error
        finally:
            os.close(writes)

        async def status() -> str:
            return f"status {(await lines.last()).decode() or 'unknown'}"

        return _Program(pid, output, status)


class _Lines:
    """The lines of a stream."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self._data = b""
        self._last: bytes | None = None

    async def next(self) -> bytes:
        """The next line; nothing once the stream has ended."""
        while b"\n" not in self._data:
            data = await self._stream.receive_some(4096)
            if not data:
                return b""
            self._data += data
        line, _, self._data = self._data.partition(b"\n")
        return line

    async def last(self) -> bytes:
        """The next line, and this one from then on; the stream is closed."""
        if self._last is None:
            self._last = await self.next()
            await self._stream.aclose()
        return self._last


def _filled(part: str, values: Mapping[str, str]) -> str:
    """A part of a command with the values of its names; a value is not searched for names again."""
    if part in values:
        return values[part]
    for name, value in values.items():
        if name != "{prompt}":
            part = part.replace(name, value)
    return part.replace("{prompt}", values["{prompt}"])


async def _read(output: trio.abc.ReceiveStream, written: bytearray) -> None:
    """Keep the end of what the program writes."""
    while data := await output.receive_some(65536):
        written += data
        del written[: -4 * OUTPUT_CHARS]


async def _leaves(over: trio.Event, scope: trio.CancelScope) -> None:
    """The rollout has ended: the program is given up after a while."""
    await over.wait()
    await trio.sleep(LEAVE_SECONDS)
    scope.cancel()
