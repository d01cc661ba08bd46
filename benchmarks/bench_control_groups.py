"""Control groups: what limits on all calls together cost a call, and what a group for each call would.

    agent-rl bench control_groups

Two sandboxes take the mix of `agent-rl bench tools` at full load in turn: one whose interpreters are in control groups
and one without. Then processes are forked, and half of them moved into a group as a call would have to be: how long
that takes.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import trio

from actors.sandbox.isolation.control_groups import ControlGroups, Wanted, control_groups
from actors.sandbox.owner.client import Sandbox
from benchmarks.bench_tools import MODULES, Side, full_load, loaded, mix, spent
from benchmarks.reporting import print_figures, print_table
from benchmarks.tool_processes import children_of
from benchmarks.tool_snippets import SNIPPETS

SIDES: tuple[Wanted, ...] = ("off", "required")


async def measure(options: Options) -> dict[str, float | str | None]:
    """Both parts. Raises (in groups) ControlGroupsError where there are none."""
    draw = random.Random(0)
    sandboxes: dict[Wanted, Sandbox] = {}
    pids: dict[Wanted, list[int]] = {}
    sides = {wanted: Side() for wanted in SIDES}
    weights = len({loaded(code) for code in SNIPPETS})
    async with trio.open_nursery() as nursery:
        for wanted in SIDES:
            known = set(children_of(os.getpid()))
            sandbox = Sandbox(interpreters=2, children=4, warm_modules=MODULES, control_groups=wanted)
            sandboxes[wanted] = sandbox
            await nursery.start(sandbox.run)
            while sandbox.figures["interpreters"] < 2 * weights:  # the rest is started when needed
                await full_load(sandbox, mix(1, draw), options.callers)
            pids[wanted] = [pid for pid in children_of(os.getpid()) if pid not in known]
        for number in range(options.rounds):
            codes = mix(options.passes, draw)
            for wanted in SIDES if number % 2 else SIDES[::-1]:
                before = spent(pids[wanted])
                seconds, _ = await full_load(sandboxes[wanted], codes, options.callers)
                sides[wanted].count(len(codes), seconds, before, spent(pids[wanted]))
        nursery.cancel_scope.cancel()
    cpu = {wanted: sum(sides[wanted].cpu_ms()) for wanted in SIDES}
    rates = {wanted: statistics.median(sides[wanted].rates) for wanted in SIDES}
    rows = [(wanted, rates[wanted], cpu[wanted]) for wanted in SIDES]
    print_table(f"full load, {options.callers} callers", ("control groups", "calls/s", "processor ms a call"), rows)
    async with control_groups("required", None, 1000) as groups:
        moves = await trio.to_thread.run_sync(move_processes, groups, options.moves)
    return {
        "rate_off": rates["off"],
        "rate_on": rates["required"],
        "cpu_ms_off": cpu["off"],
        "cpu_ms_on": cpu["required"],
        "cpu_ratio": cpu["required"] / cpu["off"],
        "move_ms_median": 1e3 * statistics.median(moves),
        "move_ms_mean": 1e3 * statistics.mean(moves),
        "move_ms_max": 1e3 * max(moves),
    }


def move_processes(groups: ControlGroups, count: int) -> list[float]:
    """Seconds to move a process that was just forked into a call's groups, one after the other."""
    taken = []
    members = [os.open(Path(path), os.O_WRONLY) for path in groups.to_join]
    for _ in range(count):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        started = time.perf_counter()
        for fd in members:
            os.write(fd, str(pid).encode())
        taken.append(time.perf_counter() - started)
        os.close(write)
        os.close(read)
        os.waitpid(pid, 0)
    for fd in members:
        os.close(fd)
    return taken


@dataclass(kw_only=True)
class Options:
    """The options."""

    rounds: int = 10
    """Rounds of both sides."""
    passes: int = 12
    """Passes over the 40 snippets a round."""
    callers: int = 8
    """Calls outstanding at once."""
    moves: int = 1000
    """Processes that are moved."""


def main(options: Options) -> int:
    """Measure and print."""
    print_figures(trio.run(measure, options))
    return 0
