"""Loads that a tool executor must bear: 45,000 calls outstanding, a thousand children alive, days of calls."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

import trio

from actors.sandbox.isolation.levels import Level
from actors.sandbox.owner.client import ExecutionLimits, Sandbox
from agent_rl.files.leftovers import PREFIX
from benchmarks.reporting import print_table
from benchmarks.tool_processes import children_of, processes_of, resident_mib, zombies_below

SAMPLE = 2000
"""Calls that tell the trivial rate, before and after; and those between two looks of the endurance test."""
WAYS = (
    "print({0})",
    "import sys\nprint({0}, file=sys.stderr)\nprint({0})",
    "open('f', 'w').write('x')\nprint({0})",
    "print({0})\n1/0",
)
"""What calls of the endurance test do in turn."""
LOOKS = 8
ENDING_SECONDS = 2.0
"""What the last calls' children have to end in before they count as zombies."""
PATIENT = ExecutionLimits(wall_seconds=120.0)
"""For calls that wait for each other."""


@asynccontextmanager
async def running(sandbox: Sandbox) -> AsyncIterator[Sandbox]:
    """The sandbox, started and ended."""
    async with trio.open_nursery() as nursery:
        await nursery.start(sandbox.run)
        yield sandbox
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def temporary_files() -> AsyncIterator[None]:
    """A place of its own for this process' temporary files, so that those of others are not counted."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory() as directory:
        tempfile.tempdir = directory
        try:
            yield
        finally:
            tempfile.tempdir = before


async def ask_all(sandbox: Sandbox, codes: Sequence[str], callers: int) -> tuple[float, list[str]]:
    """Run all, ``callers`` outstanding at once: seconds, and what each printed, in the order of ``codes``."""
    texts = [""] * len(codes)
    rest = iter(enumerate(codes))

    async def caller() -> None:
        for at, code in rest:
            result = await sandbox.execute(code, name=str(at % 1000))
            texts[at] += result.stdout or f"[{result.outcome}]"

    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(callers):
            nursery.start_soon(caller)
    return time.perf_counter() - started, texts


def service_mib() -> float:
    """The most memory this process has had, and what the warm interpreters below it have."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return own + sum(resident_mib(pid) for pid in interpreters_of(os.getpid()))


def interpreters_of(pid: int) -> list[int]:
    """All processes of the warm interpreters below a process."""
    return [one for interpreter in children_of(pid) for one in processes_of(interpreter)]


async def outstanding(calls: int, interpreters: int, children: int, level: Level) -> dict[str, float]:
    """So many trivial calls at once, each with an answer of its own. Callers and service share the measured process."""
    codes = [f"print({number})" for number in range(calls)]
    async with running(Sandbox(interpreters=interpreters, children=children, isolation=level)) as sandbox:
        sample = min(SAMPLE, calls)
        callers = 2 * interpreters * children
        await ask_all(sandbox, codes[:sample], callers)
        rates = [sample / (await ask_all(sandbox, codes[:sample], callers))[0]]
        counted = sandbox.figures["calls"]
        seconds, texts = await ask_all(sandbox, codes, calls)
        counted = sandbox.figures["calls"] - counted
        memory = service_mib()
        rates.append(sample / (await ask_all(sandbox, codes[:sample], callers))[0])
    rate = sum(rates) / 2
    lost = sum(f"{number}\n" not in text for number, text in enumerate(texts))
    twice = sum(len(text.split()) > 1 for text in texts) + max(0.0, counted - calls)
    row = [calls, lost, twice, seconds, *rates, seconds * rate / calls, memory]
    header = ["calls", "lost", "twice", "seconds", "calls/s before", "after", "time ratio", "memory MiB"]
    print_table("Outstanding at once", header, [row])
    return {
        "trivial_calls_per_s": rate,
        "outstanding_lost": lost,
        "outstanding_duplicated": twice,
        "outstanding_time_ratio": seconds * rate / calls,
        "outstanding_rss_mib": memory,
    }


async def all_alive(children: int, interpreters: int, level: Level) -> dict[str, float | str | None]:
    """So many children alive at once, by their own clocks; each sleeps 0.3 s from when all should have been started."""
    code = (
        "import time\nbegun = time.monotonic()\ntime.sleep(max(0, {due} - begun) + 0.3)\nprint(begun, time.monotonic())"
    )
    share = -(-children // interpreters)
    sandbox = Sandbox(interpreters=interpreters, children=share, isolation=level, limits=PATIENT)
    async with running(sandbox):
        first, _ = await ask_all(sandbox, [code.format(due=0)] * children, children)  # makes the places for them
        due = time.monotonic() + first
        seconds, texts = await ask_all(sandbox, [code.format(due=due)] * children, children)
    spans = [(float(begin), float(end)) for begin, end in (text.split() for text in texts if "[" not in text)]
    edges = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    alive = most = 0
    for _, change in edges:
        alive += change
        most = max(most, alive)
    header = ["children", "answered", "alive at once", "seconds, places to be made", "seconds"]
    print_table("Alive at once, each sleeping 0.3 s", header, [[children, len(spans), most, first, seconds]])
    return {"alive_answered": len(spans), "alive_at_once": most}


@dataclass(frozen=True)
class Look:
    """What a service holds at one time."""

    calls: int
    callers_mib: float
    interpreters_mib: float
    descriptors: int
    zombies: int
    files: int


def look(calls: int) -> Look:
    """At this process, and the interpreters below it."""
    pid = os.getpid()
    interpreters = interpreters_of(pid)
    return Look(
        calls,
        resident_mib(pid),
        sum(map(resident_mib, interpreters)),
        sum(len(os.listdir(f"/proc/{one}/fd")) for one in (pid, *interpreters)),  # noqa: PTH208
        zombies_below(pid),
        len(list(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))),
    )


async def endurance(calls: int, interpreters: int, children: int, level: Level) -> dict[str, float | str | None]:
    """So many calls in one sandbox; what has grown between the first eighth and the end."""
    looks: list[Look] = []
    lost = 0
    started = time.perf_counter()
    sandbox = Sandbox(interpreters=interpreters, children=children, isolation=level)
    async with temporary_files(), running(sandbox):
        for turn in range(LOOKS):
            numbers = range(turn * calls // LOOKS, (turn + 1) * calls // LOOKS)
            codes = [WAYS[number % len(WAYS)].format(number) for number in numbers]
            _, texts = await ask_all(sandbox, codes, 2 * interpreters * children)
            lost += sum(text != f"{number}\n" for number, text in zip(numbers, texts, strict=True))
            del codes, texts
            with trio.move_on_after(ENDING_SECONDS):  # calls are answered before their children have ended
                while zombies_below(os.getpid()):  # noqa: ASYNC110  there is no event for processes of others
                    await trio.sleep(0.01)
            looks.append(look(numbers.stop))
    print_table("Endurance", list(Look.__annotations__), [astuple(one) for one in looks])
    first, last = looks[0], looks[-1]
    return {
        "endurance_calls": calls,
        "endurance_lost": lost,
        "endurance_calls_per_s": calls / (time.perf_counter() - started),
        "endurance_callers_mib": last.callers_mib - first.callers_mib,
        "endurance_interpreters_mib": last.interpreters_mib - first.interpreters_mib,
        "endurance_descriptors": last.descriptors - first.descriptors,
        "endurance_zombies": last.zombies,
        "endurance_files": last.files - first.files,
    }
