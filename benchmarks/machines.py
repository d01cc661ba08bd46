"""Machines on one machine: each has network, host name and mounts of its own (namespaces), all are on one bridge."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NETWORK = "10.77.0"
_UNSHARE = ("unshare", "--net", "--uts", "--mount")
SECONDS = 20.0


class MachineError(Exception):
    """A command failed on a machine."""


class Machine:
    """One machine: its namespaces live as long as the process that holds them."""

    def __init__(self, name: str, number: int, hosts: Path) -> None:
        self.name = name
        self.address = f"{NETWORK}.{number}"
        self._keeper = subprocess.Popen([*_UNSHARE, "sh", "-c", "echo; exec sleep infinity"], stdout=subprocess.PIPE)
        assert self._keeper.stdout is not None
        with self._keeper.stdout:
            self._keeper.stdout.readline()
        self._started: list[subprocess.Popen[Any]] = []
        self.pid = self._keeper.pid
        self.run("hostname", name)
        self.run("mount", "--bind", str(hosts), "/etc/hosts")
        self.run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")  # noqa: S108 - a machine's own memory
        self.run("ip", "link", "set", "lo", "up")

    def command(self, *words: str) -> list[str]:
        """The words that run a command on this machine."""
        folder = f"--wdns={Path.cwd()}"
        return ["nsenter", f"--target={self.pid}", "--net", "--uts", "--mount", folder, "--", *words]

    def run(self, *words: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        done = subprocess.run(self.command(*words), capture_output=True, text=True, check=False, **options)
        if check and done.returncode:
            raise MachineError(f"{self.name}: {' '.join(words)}: {done.stdout}{done.stderr}")
        return done

    def start(self, *words: str, **options: Any) -> subprocess.Popen[Any]:
        """Start a command, in a session of its own."""
        self._started.append(subprocess.Popen(self.command(*words), start_new_session=True, **options))
        return self._started[-1]

    def processes(self) -> dict[int, str]:
        """Processes of this machine besides its keeper: command lines by process."""
        own = Path(f"/proc/{self.pid}/ns/net").readlink()
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.pid:
                with contextlib.suppress(OSError):
                    if (entry / "ns/net").readlink() == own:
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        return {pid: command for pid, command in found.items() if command}

    def plug(self, bridge: Machine) -> None:
        """Connect this machine with the bridge of another one."""
        port = f"to-{self.name}"
        ends = ["type", "veth", "peer", "name", port, "netns", str(bridge.pid)]
        self.run("ip", "link", "add", "eth0", *ends)
        bridge.run("ip", "link", "set", port, "master", "br0", "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    def end(self) -> None:
        """Kill what runs here, and give the namespaces up."""
        deadline = time.monotonic() + SECONDS
        while (left := self.processes()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self._keeper.kill()
        for process in (self._keeper, *self._started):
            process.wait()


@contextlib.contextmanager
def machines(names: Sequence[str], folder: Path) -> Iterator[list[Machine]]:
    """Machines that know each other by name. The first one has the bridge."""
    hosts = folder / "hosts"
    lines = [f"{NETWORK}.{number} {name}\n" for number, name in enumerate(names, 1)]
    hosts.write_text("127.0.0.1 localhost\n" + "".join(lines))
    with contextlib.ExitStack() as stack:
        made = []
        for number, name in enumerate(names, 1):
            made.append(Machine(name, number, hosts))
            stack.callback(made[-1].end)
        first = made[0]
        first.run("ip", "link", "add", "br0", "type", "bridge")
        first.run("ip", "address", "add", f"{first.address}/24", "dev", "br0")
        first.run("ip", "link", "set", "br0", "up")
        for machine in made[1:]:
            machine.plug(first)
        yield made


def unavailable(*programs: str) -> str:
    """Why there can be no such machines with these programs here; empty where there can."""
    if os.geteuid() != 0:
        return "namespaces of networks need root"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in ("unshare", "nsenter", "ip", *programs) if shutil.which(name, path=path) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else ""
