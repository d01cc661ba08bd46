"""Programs of rollouts in containers: the same as jails of `programs.py`, made by `docker`.

::

    Containers.program --> make NAME (its process 1 waits) --> inside: the program --> end all --> inside: the check
                                                                   --> files and reward --> remove NAME

Every container has the label ``agent-rl`` with the name of its owner, who removes what an earlier process of the same
name has left. Values of variables are given by standard input, so that no list of processes shows them.
"""

from __future__ import annotations

import io
import math
import secrets
import shlex
import subprocess
import tarfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import trio

from actors.sandbox.owner.programs import OUTPUT_CHARS, START_SECONDS, Program, StartError
from actors.sandbox.programs.warden import (
    FILE_BYTES,
    FILES_BYTES,
    MOST_ENTRIES,
    MOST_FILES,
    content_of,
    matches,
    of_check,
)

LABEL, NETWORK = "agent-rl", "agent-rl"
MAKE_SECONDS = 600.0
"""How long making a container may take, its image being fetched or built."""
REMOVE_SECONDS = 30.0
"""How long removing one may take: nothing may cancel it. What is left then is removed at the owner's next start."""
ARCHIVE_BYTES = 64 * 1024 * 1024
"""Of a program's folder, in which collected files are looked for."""
REWARD_BYTES = 64 * 1024
WAIT = 'n=0; while [ $n -lt "$0" ]; do sleep 60 & wait; n=$((n + 1)); done'
"""Process 1 of a container: it waits for so many minutes, so that none outlives a lost owner for long."""
BEGIN = 'eval "$(cat)"; cd "$0" && exec "$@" </dev/null'
APART = """unset ENV BASH_ENV CDPATH JAVA_TOOL_OPTIONS $(set | while IFS= read -r each
do case ${each%%=*} in *[!A-Z0-9_]*) ;; LD_*|PYTHON*|PERL*|RUBY*|NODE_*|GIT_*) echo "${each%%=*}";; esac; done)
IFS=:; kept=; for each in $PATH; do
case $each in /*) each=$(cd -P "$each" 2>/dev/null && pwd) || continue;; *) continue;; esac
case $each/ in /app/*|/tmp/*|/var/tmp/*|/dev/*|/logs/*|/tests/*) continue;; esac
[ -w / ] || ! [ -w "$each" ] || continue; kept=$kept${kept:+:}$each; done; PATH=$kept; unset IFS; """
"""Of the image's variables, none that leads what comes after the program to what that could write. Only the shell's own
commands run before that.
"""
END = ("/bin/sh", "-c", "kill -9 -1")
"""Ends every process but process 1, which no process inside can end."""
UNPACK = 'mkdir -p "$0" && tar -xf - -C "$0"'
PACK = 'tar -cf - -C "$0" .'
EMPTY = 'rm -rf "$0"; '
REWARD = 'cat "$0/verifier/reward.json" 2>/dev/null || cat "$0/verifier/reward.txt" 2>/dev/null'
Command = tuple[Sequence[str], bytes]
"""Words, and standard input."""


@dataclass(frozen=True)
class Limits:
    """Of a container; ``cpus`` 0 is without one. ``seconds``: how long it may exist."""

    memory_mib: int
    processes: int
    cpus: float
    seconds: float


@dataclass(frozen=True)
class Docker:
    """Says by which commands containers of this host are made. ``owner`` is the value of their label.

    ``own_network``: one that has the host's address alone, at which the relay listens; else they have the host's.
    """

    own_network: bool

    def begin(self, owner: str) -> list[Command]:
        """Remove what is left of this owner, and make the network."""
        found = f'ids=$(docker ps -aq --filter "label={LABEL}={owner}") && [ -z "$ids" ] || docker rm -f $ids'
        made = (
            f"docker network inspect {NETWORK} >/dev/null 2>&1 || docker network create --internal"
            f" -o com.docker.network.bridge.enable_icc=false --label {LABEL} {NETWORK}"
            f" || docker network inspect {NETWORK}"  # which another owner has made just now
        )
        return [(("sh", "-c", each), b"") for each in ([found, made] if self.own_network else [found])]

    def listens(self) -> Sequence[str]:
        """Prints the address of the network's bridge, at which containers reach the owner; empty without one."""
        address = "{{(index .IPAM.Config 0).Gateway}}"
        return ("docker", "network", "inspect", "-f", address, NETWORK) if self.own_network else ()

    def make(self, owner: str, name: str, image: str, limits: Limits) -> list[Command]:
        """Make a container that waits."""
        words = ["docker", "run", "-d", "--rm", "--name", name, "--label", f"{LABEL}={owner}"]
        words += ["--memory", f"{limits.memory_mib}m", "--pids-limit", str(limits.processes)]
        words += ["--security-opt", "no-new-privileges", "--network", NETWORK if self.own_network else "host"]
        words += ["--cpus", f"{limits.cpus:g}"] if limits.cpus else []
        return [((*words, "--entrypoint", "sh", image, "-c", WAIT, str(_minutes(limits))), b"")]

    def inside(self, name: str) -> Sequence[str]:
        """The words before a command that runs in a container, with standard input."""
        return ("docker", "exec", "-i", name)

    def remove(self, name: str) -> Sequence[str]:
        """Remove a container with all that is in it."""
        return ("docker", "rm", "-f", name)

    def build(self, tag: str, folder: str) -> Sequence[str]:
        """Build an image."""
        return ("docker", "build", "-q", "-t", tag, folder)


def _minutes(limits: Limits) -> int:
    return math.ceil(limits.seconds / 60) + 1


class Contained(Program):
    """A program in a container: `result` runs it, its check, and looks at what it left."""

    def __init__(self, inside: Sequence[str], asked: Mapping[str, Any], process: trio.Process) -> None:
        super().__init__(process.stdout, None)  # type: ignore[arg-type]
        self._inside, self._asked, self._process = inside, asked, process
        self._stopped = trio.Event()

    async def result(self) -> dict[str, Any]:
        """How the program ended, with its check and its files."""
        asked = self._asked
        status = await self._ended(self._process, asked["seconds"], stops=True)
        told: dict[str, Any] = {"status": status}
        try:
            if asked["check"]:
                told["check"] = await self._checked()
            told["files"] = await self._collected()
        except StartError as error:
            told.setdefault("check", {"status": f"not run: {error}", "output": "", "reward": ""})
        return told

    async def stop(self) -> None:
        """End the program; its check still runs."""
        self._stopped.set()

    async def _ended(self, process: trio.Process, seconds: float, *, stops: bool) -> str:
        """The status of a process in the container; all processes in there are ended."""
        status = f"no end within {seconds:g} s"
        async with trio.open_nursery() as nursery:

            async def end() -> None:
                nonlocal status
                await self._stopped.wait()
                status = "stopped"
                nursery.cancel_scope.cancel()

            if stops:
                nursery.start_soon(end)
            with trio.move_on_after(seconds):
                status = f"status {await process.wait()}"
            nursery.cancel_scope.cancel()
        with suppress(StartError):  # then the container is gone, or its shell is
            await said((*self._inside, *END), most=0, codes=None)
        with trio.move_on_after(START_SECONDS):
            await process.wait()
        if process.returncode is None:
            process.kill()
        return status

    async def _checked(self) -> dict[str, str]:
        asked, kept = self._asked, bytearray()
        for folder, files in ((asked["logs"], {}), (asked["tests"], asked["check_files"])):
            await unpacked(self._inside, folder, files, before=APART + EMPTY)
        process = await begun(self._inside, asked["check"], of_check(asked["tests"]), asked["folder"], before=APART)
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                assert process.stdout is not None
                async for data in process.stdout:
                    kept.extend(data)
                    del kept[:-OUTPUT_CHARS]

            nursery.start_soon(read)
            status = await self._ended(process, asked["check_seconds"], stops=False)
            nursery.cancel_scope.deadline = trio.current_time() + 1.0
        look = (*self._inside, "/bin/sh", "-c", APART + REWARD, asked["logs"])
        reward = await said(look, most=REWARD_BYTES, codes=None)
        return {"status": status, "output": kept.decode(errors="replace"), "reward": reward.decode(errors="replace")}

    async def _collected(self) -> dict[str, str]:
        if not self._asked["collect"]:
            return {}
        words = (*self._inside, "/bin/sh", "-c", APART + PACK, self._asked["folder"])
        return texts_of(await said(words, most=ARCHIVE_BYTES, codes=None), self._asked["collect"])

    async def close(self) -> None:
        """End the client of the program; its owner removes the container."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._output.aclose()
        if self.listener is not None:
            await self.listener.aclose()


class Containers:
    """Makes a container for each program of an environment; stands where `programs.Zygote` stands for jails."""

    jailed, ended, why_plain = True, False, ""

    def __init__(self, docker: Docker, owner: str, limits: Limits) -> None:
        """``owner``: a name that no other living process has."""
        self._docker, self._owner, self._limits = docker, owner, limits
        self._address = ""
        self._begun = False
        self._building = trio.Lock()
        self._built: set[str] = set()

    async def loaded(self) -> None:
        """Remove what an earlier process of this owner has left. Raises StartError where no container can be made."""
        async with self._building:
            if not self._begun:
                for words, given in self._docker.begin(self._owner):
                    await said(words, given)
                if words := self._docker.listens():
                    self._address = (await said(words)).decode().strip()
                self._begun = True

    @asynccontextmanager
    async def program(self, asked: Mapping[str, Any]) -> AsyncIterator[Program]:
        """A program that runs within this block. Raises StartError."""
        name = f"{LABEL}-{secrets.token_hex(8)}"
        image = await self._image(asked["image"], asked["build"])
        inside = self._docker.inside(name)
        variables, listener = asked["env"], None
        if self._address:
            (listener,) = await trio.open_tcp_listeners(0, host=self._address)
            url = f"http://{self._address}:{listener.socket.getsockname()[1]}"
            variables = {each: value.replace(asked["url"], url) for each, value in variables.items()}
        program: Contained | None = None
        try:
            for words, given in self._docker.make(self._owner, name, image, self._limits):
                await said(words, given)
            await unpacked(inside, asked["folder"], asked["files"])
            argv = asked["argv"] if asked["seconds"] else ["true"]  # else the check is tried
            process = await begun(inside, argv, variables, asked["folder"])
            program = Contained(inside, {**asked, "env": variables}, process)
            program.listener = listener
            yield program
        finally:
            with trio.CancelScope(shield=True):
                if program is not None:
                    await program.close()
                elif listener is not None:
                    await listener.aclose()
                await said(self._docker.remove(name), codes=None, seconds=REMOVE_SECONDS)

    async def _image(self, image: str, folder: str) -> str:
        """The image of a program: that of the topology, or one that is built from a folder with a Dockerfile."""
        if not folder:
            return image
        tag = f"{LABEL}-task:{await trio.to_thread.run_sync(_digest, Path(folder))}"
        async with self._building:
            if tag not in self._built:
                await said(self._docker.build(tag, folder))
                self._built.add(tag)
        return tag


def _digest(folder: Path) -> str:
    digest = blake2b(digest_size=12)
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        for part in (path.relative_to(folder).as_posix().encode(), path.read_bytes()):
            digest.update(b"%d " % len(part) + part)
    return digest.hexdigest()


async def begun(
    inside: Sequence[str], command: Sequence[str], variables: Mapping[str, str], folder: str, *, before: str = ""
) -> trio.Process:
    """Start a command in a container. Its variables come by standard input. Raises StartError."""
    lines = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    words = [*inside, "/bin/sh", "-c", before + BEGIN, folder, *command]
    try:
        process = await trio.lowlevel.open_process(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError as error:
        raise StartError(missing(words[0], error)) from error
    assert process.stdin is not None
    async with process.stdin:
        with suppress(trio.BrokenResourceError):  # it says why at its other end
            await process.stdin.send_all(lines.encode())
    return process


async def unpacked(inside: Sequence[str], folder: str, files: Mapping[str, str], before: str = "") -> None:
    """Write texts into a folder of a container, which is made. Raises StartError."""
    with io.BytesIO() as whole:
        with tarfile.open(fileobj=whole, mode="w") as archive:
            for name, text in files.items():
                data, mode = content_of(text)
                found = tarfile.TarInfo(name)
                found.size, found.mode = len(data), 0o755 if data.startswith(b"#!") else mode
                archive.addfile(found, io.BytesIO(data))
        await said((*inside, "/bin/sh", "-c", before + UNPACK, folder), whole.getvalue())


async def said(
    words: Sequence[str],
    given: bytes = b"",
    *,
    most: int = 1 << 20,
    codes: Sequence[int] | None = (0,),
    seconds: float = MAKE_SECONDS,
) -> bytes:
    """What a command writes, ``most`` of it.

    Raises StartError if it cannot run, takes more than ``seconds``, or ends with none of ``codes``.
    """
    kept, errors = bytearray(), bytearray()

    async def read(stream: trio.abc.ReceiveStream, into: bytearray, most: int) -> None:
        async for data in stream:
            into.extend(data[: max(0, most - len(into))])

    with trio.move_on_after(seconds) as waited:
        try:
            process = await trio.lowlevel.open_process(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise StartError(missing(words[0], error)) from error
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with process.stdin, trio.open_nursery() as nursery:
                nursery.start_soon(read, process.stdout, kept, most)
                nursery.start_soon(read, process.stderr, errors, 4096)
                with suppress(trio.BrokenResourceError):
                    await process.stdin.send_all(given)
                await process.stdin.aclose()
                code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
    text = errors.decode(errors="replace").strip()
    if waited.cancelled_caught:
        raise StartError(f"{shlex.join(words):.200} took more than {seconds:g} s; {text}")
    if codes is not None and code not in codes:
        raise StartError(f"{shlex.join(words):.200} ended with status {code}: {text or 'nothing'}{remedy(text)}")
    return bytes(kept)


def missing(name: str, error: OSError) -> str:
    """That there is no such program."""
    return f"{name!r} not being started: {error.strerror}; install it, or leave out `container` of the harness"


REMEDIES = {
    "permission denied": "give the user of the run the right to it (the group docker)",
    "docker daemon": "start it, or leave out `container` of the harness",
    "image": "pull or build the image, or correct `container.image`",
}


def remedy(text: str) -> str:
    """What to do about an error of docker."""
    found = next((each for word, each in REMEDIES.items() if word in text.lower()), "")
    return f"; {found}" if found else ""


def texts_of(archive: bytes, patterns: Sequence[str]) -> dict[str, str]:
    """The texts of the regular files of an archive that a pattern matches, by path, as much as is allowed."""
    found: dict[str, str] = {}
    left, wanted = FILES_BYTES, [pattern.split("/") for pattern in patterns]
    with suppress(tarfile.TarError, EOFError), tarfile.open(fileobj=io.BytesIO(archive), mode="r|") as files:
        for number, member in enumerate(files):
            name = member.name.removeprefix("./")
            if left <= 0 or len(found) == MOST_FILES or number == MOST_ENTRIES:
                break
            if member.isreg() and any(matches(name.split("/"), each) for each in wanted):
                content = files.extractfile(member)
                assert content is not None
                text = content.read(min(FILE_BYTES, left))
                left -= len(text)
                found[name] = text.decode(errors="replace")
    return found
