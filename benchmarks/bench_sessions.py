"""Sessions of the notebook tool: what a cell costs, and what restoring the state of a lost session costs.

    agent-rl bench sessions

Two ways to restore the state are compared, in the sandbox as it isolates here. *Replay* runs the earlier cells again in
a new process: it costs the time of a cell in a lost session less that in a live one. A *snapshot* would be a fork of
the session's process before each cell, kept until the cell has ended: it costs the time of a cell with such a fork less
that without, both taken in the session itself, in turn. Figures are medians. The break-even is the share of cells that
must end their process for a snapshot before each cell to cost less; replay then restores half of the session's cells on
average.
"""

from __future__ import annotations

import ast
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import trio

from actors.sandbox.owner.client import Sandbox
from agent_rl.environments.base import ToolOutput
from benchmarks.reporting import print_figures, print_table


class Kind(NamedTuple):
    """A session's cells, and the one that is timed after them; it may be run any number of times."""

    cells: tuple[str, ...]
    next_cell: str


KINDS = {
    "plain": Kind(
        (
            "from math import gcd, isqrt\nfrom collections import Counter",
            "def is_prime(n):\n    return n > 1 and all(n % d for d in range(2, isqrt(n) + 1))",
            "primes = [p for p in range(3000) if is_prime(p)]\nlen(primes)",
            "pairs = [(a, b) for a in range(1, 200) for b in range(a, 200) if gcd(a, b) == 1]\nprint(len(pairs))",
            "counts = Counter((a * b) % 12 for a, b in pairs)\nprint(counts.most_common(3))",
        ),
        "print(sum(p for p in primes if p % 4 == 1), counts[5])",
    ),
    "numpy": Kind(
        (
            "import numpy as np",
            "grid = np.add.outer(np.arange(1500) ** 2, np.arange(1500) ** 2)",
            "roots = np.sqrt(grid)\nwhole = roots == np.floor(roots)\nprint(whole.sum())",
            "A = np.array([[2.0, 1], [1, 3]])\nprint(np.linalg.eigvals(A))",
            "walk = np.random.default_rng(0).choice([-1, 1], size=(200, 1000)).cumsum(1)\nprint(walk[:, -1].std())",
        ),
        "grid += 1\nprint(int(grid.sum()))",
    ),
    "sympy": Kind(
        (
            "from sympy import symbols, solve, expand, factor, integrate, sin, pi, Eq, simplify\nx, y = symbols('x y')",
            "roots = solve(x**3 - 6*x**2 + 11*x - 6, x)\nprint(roots)",
            "print(solve([Eq(x + y, 10), Eq(x*y, 21)], [x, y]))",
            "area = integrate(sin(x)**2, (x, 0, pi))\nprint(area)",
            "print(factor(expand((x + 1)**6 - (x - 1)**6)))",
        ),
        "print(simplify(sum(1/(x - r) for r in roots)), solve(x**2 - 5*x + area - area + 6, x))",
    ),
}
INSIDE = """
import os, signal, time
def timed(code, snapshot):
    started = time.perf_counter()
    if snapshot:
        pid = os.fork()
        if pid == 0:
            signal.pause()
    exec(code, globals())
    if snapshot:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return (time.perf_counter() - started) * 1000
"""
"""Run in the session: milliseconds of a cell's code, with a snapshot held meanwhile or without."""


class Times(NamedTuple):
    """Milliseconds; ``replay_ms`` restores all of the session's cells."""

    cell_ms: float
    replay_ms: float
    snapshot_ms: float

    @property
    def break_even(self) -> float:
        """Share of cells."""
        return self.snapshot_ms / (self.replay_ms / 2)


async def measure(sandbox: Sandbox, name: str, kind: Kind, rounds: int) -> Times:
    """The times of one kind of session. Raises RuntimeError when a cell does not succeed."""
    earlier: list[str] = []
    number = 0

    async def run(code: str) -> ToolOutput:
        nonlocal number
        number += 1
        return succeeded(await sandbox.run_cell(name, number, code, tuple(earlier)))

    for code in kind.cells:
        await run(code)
        earlier.append(code)
    live, lost = [], []
    for index in range(rounds):
        live.append(await in_ms(lambda: run(kind.next_cell)))
        earlier.append(kind.next_cell)

        def rebuilt(index: int = index) -> Awaitable[ToolOutput]:
            return sandbox.run_cell(f"{name}, lost {index}", len(kind.cells) + 1, kind.next_cell, kind.cells)

        lost.append(await in_ms(rebuilt))
    await run(INSIDE)
    earlier.append(INSIDE)
    code = f"[(timed({kind.next_cell!r}, False), timed({kind.next_cell!r}, True)) for _ in range({rounds})]"
    pairs: Sequence[tuple[float, float]] = ast.literal_eval((await run(code)).value)
    cell = statistics.median(live)
    snapshot = statistics.median(forked - bare for bare, forked in pairs)
    return Times(cell, statistics.median(lost) - cell, snapshot)


async def in_ms(work: Callable[[], Awaitable[ToolOutput]]) -> float:
    """How long it takes. Raises RuntimeError when it does not succeed."""
    started = trio.current_time()
    succeeded(await work())
    return (trio.current_time() - started) * 1000


def succeeded(result: ToolOutput) -> ToolOutput:
    """The result. Raises RuntimeError for another outcome."""
    if result.outcome != "success":
        raise RuntimeError(f"a cell ended as {result.outcome}: {result.stderr}")
    return result


async def measure_all(rounds: int) -> tuple[str, dict[str, Times]]:
    """The level of isolation, and the times by kind of session."""
    sandbox = Sandbox(warm_modules=("numpy", "sympy"), sessions=8)
    times = {}
    async with trio.open_nursery() as nursery:
        await nursery.start(sandbox.run)
        for name, kind in KINDS.items():
            times[name] = await measure(sandbox, name, kind, rounds)
        nursery.cancel_scope.cancel()
    return str(sandbox.level), times


@dataclass(kw_only=True)
class Options:
    """The options."""

    rounds: int = 31
    """How often each time is taken."""


def main(options: Options) -> int:
    """Measure, and print the table and the figures."""
    level, times = trio.run(measure_all, options.rounds)
    print_table(
        f"sessions of {len(KINDS['plain'].cells)} cells, isolation {level}",
        ("session", "a cell, ms", "restored by replay, ms", "a snapshot, ms a cell", "break-even, % of cells"),
        [(name, each.cell_ms, each.replay_ms, each.snapshot_ms, 100 * each.break_even) for name, each in times.items()],
    )
    print_figures(
        {
            f"{name}_{figure}": value
            for name, each in times.items()
            for figure, value in {**each._asdict(), "break_even": each.break_even}.items()
        }
    )
    return 0
