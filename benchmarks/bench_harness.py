"""Hostile programs of rollouts beside honest ones: what they reach, what they take, what they leave.

    agent-rl bench harness
    agent-rl bench harness --quick

Each program has a jail, as the generator makes it. An honest program does what an agent does: it starts by a fork, asks
a gateway six times, which answers after 50 ms, computes for some milliseconds after each answer, and writes a file. Its
times are taken alone, then beside fifty hostile programs that run at once, whatever of them ends being started again:
they compute, fork without end, flood output, fill memory and disk, leave daemons behind, open connections, and look for
ways out. ``harness.neighbour_p95_ratio`` is the p95 beside them over the p95 alone, ``harness.escapes`` what a hostile
program reached, and ``harness.left_behind`` the processes, mounts, folders and groups that are there afterwards and
were not before. The exit code is 1 if one of the last two is not 0.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import trio

from actors.sandbox.isolation.control_groups import ControlGroups, control_groups
from actors.sandbox.isolation.levels import outer_users, visible
from actors.sandbox.owner.programs import Zygote, installation
from actors.sandbox.owner.relay import relay
from actors.sandbox.programs.jail import WORK, Jail
from benchmarks.command import Failure
from benchmarks.reporting import percentile, print_figures, print_table

PORT, ANSWER_SECONDS = 8642, 0.05
MIB = 1 << 20
OUTPUT_BYTES = MIB
RESTART_SECONDS = 1.0
"""The least from one start of a hostile program to its next."""
SCRIPT = """\
import os, signal, socket, subprocess, sys, threading, time

def ask():
    with socket.create_connection(("127.0.0.1", PORT)) as gateway:
        gateway.sendall(b"next")
        return gateway.recv(16)

def honest():
    for number in range(6):
        assert ask() == b"turn"
        sum(range(100_000))
    open("done", "w").write("done")

def spin():
    while True: pass

def fork():
    while True:
        try: os.fork()
        except OSError: time.sleep(0.01)

def flood():
    while True: os.write(1, b"x" * 65536)

def memory():
    held = []
    while True: held.append(bytearray(8 << 20))

def shared():
    held = os.memfd_create("held")
    while True: os.write(held, bytes(8 << 20))

def disk():
    for number in range(1 << 20): open(f"/tmp/{number}", "wb").write(bytes(1 << 20))

def daemons():
    for _ in range(8):
        if not os.fork():
            os.setsid()
            if os.fork(): os._exit(0)
            time.sleep(999)

def threads():
    for _ in range(999): threading.Thread(target=spin).start()

def connections():
    held = []
    while True:
        try: held.append(socket.create_connection(("127.0.0.1", PORT)))
        except OSError: held.clear()

def escape():
    def reached(what, work):
        try: found = work()
        except Exception: return
        if found: print("ESCAPED", what, found, flush=True)
    reached("host", lambda: [each for each in os.listdir("/") if each in ("home", "boot", "var", "srv")])
    reached("secret", lambda: open(SECRET).read())
    reached("process", lambda: [each for each in os.listdir("/proc") if each.isdigit() and int(each) > 200])
    reached("owner", lambda: os.kill(OWNER, 0) is None)
    reached("warden", lambda: open("/proc/1/mem", "rb+") and "mem")
    reached("root", lambda: os.setuid(0) is None)
    reached("mount", lambda: subprocess.run(["mount", "-t", "tmpfs", "x", "/tmp"], stderr=-3).returncode == 0)
    reached("namespace", lambda: subprocess.run(["unshare", "-Ur", "true"], stderr=-3).returncode == 0)
    reached("write", lambda: open("/usr/x", "w") and "usr")
    reached("device", lambda: os.mknod("/tmp/sda", 0o60600, os.makedev(8, 0)) is None)
    reached("network", lambda: socket.create_connection(("10.0.0.1", 80), 0.2))
    reached("local", lambda: socket.create_connection(("127.0.0.1", GATEWAY), 0.2))
    reached("abstract", lambda: socket.socket(socket.AF_UNIX).connect("\\0agent-rl-bench") is None)
    reached("virtual machines", lambda: socket.socket(socket.AF_VSOCK))
    reached("priority", lambda: os.setpriority(os.PRIO_PROCESS, 1, 19) or os.getpriority(os.PRIO_PROCESS, 1) == 19)
    time.sleep(0.2)

if __name__ == "__main__":
    globals()[sys.argv[1]]()
"""
HOSTILE = ("spin", "fork", "flood", "memory", "disk", "daemons", "threads", "connections", "escape", "shared")


@dataclass(kw_only=True)
class Options:
    """The options."""

    hostile: int = 50
    """Programs at once."""
    rollouts: int = 100
    """Honest ones, of each measurement."""
    quick: bool = False
    """A few seconds: shows that the benchmark runs, and measures little."""


class Bench:
    """Starts programs and counts."""

    def __init__(self, zygote: Zygote, gateway: str) -> None:
        self._zygote, self._gateway = zygote, gateway
        self.escapes: list[str] = []
        self.hostile_runs = 0

    async def run(self, kind: str, seconds: float) -> tuple[str, str]:
        """How a program ended, and what it wrote."""
        folders = {"folder": WORK, "tests": "/tests", "logs": "/logs"}
        given: dict[str, Any] = {"files": {}, "collect": ["done"], "check": [], "check_files": {}, "check_seconds": 1.0}
        variables = {"PATH": os.environ["PATH"], "HOME": WORK}
        asked = {"argv": [kind], "env": variables, "jailed": True, "seconds": seconds, **folders, **given}
        async with self._zygote.program(asked) as program, trio.open_nursery() as nursery:
            assert program.listener is not None
            nursery.start_soon(relay, self._gateway, program.listener)
            nursery.start_soon(program.read, OUTPUT_BYTES)
            told = await program.result()
            nursery.cancel_scope.cancel()
        return str(told.get("status") or told), program.text

    async def honest(self, rollouts: int) -> list[float]:
        """Seconds of each."""
        found = []
        for _ in range(rollouts):
            began = time.perf_counter()
            status, text = await self.run("honest", 60.0)
            found.append(time.perf_counter() - began)
            if status != "status 0":
                raise Failure(f"an honest program ended with {status}: {text[-300:]}")
        return found

    async def hostile(self, kind: str) -> None:
        """Again and again, but not without a pause."""
        while True:
            due = trio.current_time() + RESTART_SECONDS
            _, text = await self.run(kind, 2.0)
            self.hostile_runs += 1
            self.escapes += [line for line in text.splitlines() if line.startswith("ESCAPED")]
            await trio.sleep_until(due)


async def answer(stream: trio.SocketStream) -> None:
    """The gateway."""
    async with stream:
        while await stream.receive_some(64):
            await trio.sleep(ANSWER_SECONDS)
            await stream.send_all(b"turn")


@asynccontextmanager
async def bench(folder: Path, groups: ControlGroups) -> AsyncIterator[Bench]:
    """Programs by forks of one script. Raises Failure where there are no jails."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, _forgiving, [listener])
        (folder / "secret").write_text("of another rollout")
        script = folder / "programs.py"
        names = {"PORT": PORT, "GATEWAY": port, "OWNER": os.getpid(), "SECRET": str(folder / "secret")}
        script.write_text("".join(f"{name} = {value!r}\n" for name, value in names.items()) + SCRIPT)
        first, users, blocks = outer_users() if os.geteuid() == 0 else (0, 1, 1)
        plan = [list(step) for step in visible([*installation(sys.executable), str(script)], ()).plan]
        jail = Jail(plan, PORT, 256 * MIB, 32 * MIB, 64, first, users * blocks)
        zygote = Zygote(sys.executable, str(script), jail, groups)
        nursery.start_soon(zygote.run, {"PATH": os.environ["PATH"]})
        await zygote.loaded()
        if zygote.why_plain:
            raise Failure(f"no jail can be made here: {zygote.why_plain}")
        yield Bench(zygote, f"http://127.0.0.1:{port}")
        nursery.cancel_scope.cancel()


async def _forgiving(stream: trio.SocketStream) -> None:
    try:
        await answer(stream)
    except trio.BrokenResourceError:
        return


def present(mark: str) -> set[str]:
    """What programs can leave: processes, mounts, folders."""
    found = {f"folder {each}" for each in Path(tempfile.gettempdir()).glob("agent-rl.zygote-*")}
    found |= {f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if mark in line}
    for each in Path("/proc").iterdir():
        try:
            if (
                each.name.isdigit()
                and int(each.name) != os.getpid()
                and mark.encode() in (each / "cmdline").read_bytes()
            ):
                found.add(f"process {each.name}")
        except OSError:
            continue
    return found


async def measure(folder: Path, options: Options) -> dict[str, float]:
    """Alone, then beside the hostile ones."""
    before = present(str(folder))
    async with control_groups("host", None, 32768, programs=True) as groups, bench(folder, groups) as made:
        print("control groups:", ", ".join(groups.limits) or f"none ({'; '.join(groups.lacking)})")
        await made.honest(5)
        quiet = await made.honest(options.rollouts)
        async with trio.open_nursery() as nursery:
            for number, kind in zip(range(options.hostile), _cycled(), strict=False):
                del number
                nursery.start_soon(made.hostile, kind)
            await trio.sleep(1.0)
            beside = await made.honest(options.rollouts)
            nursery.cancel_scope.cancel()
        again = await made.honest(max(5, options.rollouts // 4))
    await trio.sleep(0.5)
    left = present(str(folder)) - before
    left |= {f"group {each.directory}" for each in groups.groups if each.directory.exists()}
    rows = [
        [name, len(times), *(1000 * each for each in (statistics.median(times), percentile(times, 0.95), max(times)))]
        for name, times in (("alone", quiet), ("beside", beside), ("alone again", again))
    ]
    header = ["honest programs", "number", "p50 ms", "p95 ms", "most ms"]
    print_table(f"{options.hostile} hostile programs at once, {made.hostile_runs} in all", header, rows)
    for each in sorted({*made.escapes, *left}):
        print(each)
    return {
        "harness.neighbour_p95_ratio": percentile(beside, 0.95) / percentile(quiet, 0.95),
        "harness.neighbour_p50_ratio": statistics.median(beside) / statistics.median(quiet),
        "harness.escapes": float(len(made.escapes)),
        "harness.left_behind": float(len(left)),
        "harness.hostile_runs": float(made.hostile_runs),
    }


def _cycled() -> Any:
    return (HOSTILE[number % len(HOSTILE)] for number in count())


def main(options: Options) -> int:
    """Measure, and print tables and figures."""
    if options.quick:
        options = replace(options, hostile=10, rollouts=5)
    with tempfile.TemporaryDirectory(prefix="agent-rl-bench-harness-") as folder:
        figures = trio.run(measure, Path(folder), options)
    print_figures({name: round(value, 4) for name, value in figures.items()})
    return int(figures["harness.escapes"] > 0 or figures["harness.left_behind"] > 0)
