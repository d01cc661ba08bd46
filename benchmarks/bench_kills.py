"""What SIGKILL costs: the quickstart with each actor and the supervisor killed once, beside a twin that is left alone.

    agent-rl bench kills                 # a shortened quickstart, two runs of 2 to 4 minutes
    agent-rl bench kills --full          # the whole quickstart, twice
    agent-rl bench kills --without-twin  # the run with kills alone

Every actor is killed in turn during reinforcement learning, a fixed number of steps apart, then the supervisor, whose
run the next `agent-rl run` continues. Time lost is read from the run's timeline: from SIGKILL until the role's own work
goes on. benchmarks/README.md explains the figures.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from agent_rl.config.examples import EXAMPLES
from agent_rl.config.load import load_topology
from agent_rl.files.leftovers import PREFIX
from agent_rl.records.audit import audit
from agent_rl.records.opening import read_journal
from benchmarks.command import Overrides
from benchmarks.reporting import print_figures, print_table
from benchmarks.runs import Run, RunFailed, running, stage_rows

EXAMPLE = EXAMPLES / "quickstart.toml"
SHORTENED = (
    "stages.0.steps=600",
    "stages.1.problems=300",
    "stages.2.steps=42",
    "stages.3.problems=500",
    "run.checkpoint_every=10",
)
RL_STAGE = 2
WORK = {
    "kv_scheduler": "groups_opened",
    "rollout_generator": "generated_tokens",
    "tool_executor": "calls",
    "roc_filter": "trajectories",
    "learner": "step",
}
"""By role, the figure that counts what the role is for."""
RESTORED = {"kv_scheduler", "learner"}
"""Roles that count on from where the killed process was; the others count from nothing."""
SUPERVISOR = "supervisor"
BLUR_SECONDS = 1.5
"""A row of the timeline may hold, so long after a kill, what the killed process said before it."""
SHARES = ("success_before_sampled", "success_before_greedy", "success_after_sampled", "success_after_greedy")


@dataclass(kw_only=True)
class Options:
    """The options."""

    full: bool = False
    """The whole quickstart."""
    without_twin: bool = False
    """Leave out the run without kills."""
    overrides: Overrides = ()
    """As for agent-rl run."""


@dataclass(frozen=True)
class Kill:
    """A process that was killed: whose, when (seconds since the epoch), and at which step of reinforcement learning."""

    role: str
    wall: float
    step: int


@dataclass(frozen=True)
class Outcome:
    """A finished run: wall time, summary; seconds from each SIGKILL to the next work, and to the next process."""

    seconds: float
    summary: dict[str, Any]
    lost: dict[str, float | None]
    restarted: dict[str, float]


def flows_again(rows: Sequence[Mapping[str, Any]], kill: Kill) -> float | None:
    """When, in seconds since the epoch, the killed role's own work went on; None if it never did.

    For the supervisor and the learner: the first step that was not yet trained when it was killed. Exact to a row.
    """
    role = "learner" if kill.role == SUPERVISOR else kill.role
    counts = [(row["wall"], row["actors"].get(f"{role}.0", {}).get("figures", {}).get(WORK[role])) for row in rows]
    before = [count for wall, count in counts if count is not None and wall <= kill.wall + BLUR_SECONDS][-1]
    seen = None
    for wall, count in counts:
        if wall <= kill.wall + BLUR_SECONDS or count is None:
            continue
        if count > before or (role not in RESTORED and count > (0 if seen is None else seen)):
            return float(wall)
        seen = count
    return None


def process_of(directory: Path, actor: str) -> int:
    """The newest process of an actor, from the supervisor's log."""
    rows = [json.loads(line) for line in (directory / "logs" / "supervisor.local.jsonl").read_text().splitlines()]
    return int([row["pid"] for row in rows if row["event"] == "started" and row["actor"] == actor][-1])


def reached(rows: Sequence[dict[str, Any]], step: int) -> bool:
    """Whether so many steps of reinforcement learning are done."""
    return bool(stage_rows(rows, RL_STAGE, after_step=step))


async def reach(run: Run, step: int) -> None:
    """Wait for a step. Raises RunFailed when the run ends before it."""
    await run.until(lambda rows: reached(rows, step))
    if run.process.returncode is not None:
        await run.wait(0)
        raise RunFailed(f"the run ended before step {step}")


async def killed_run(folder: Path, overrides: Sequence[str], steps: int) -> Outcome:
    """A run in which every process is killed once, a fixed number of steps apart."""
    began = time.monotonic()
    kills: list[Kill] = []
    apart = steps // (len(WORK) + 2)
    async with running(EXAMPLE, folder, overrides) as run:
        for number, role in enumerate(WORK, start=1):
            await reach(run, number * apart)
            kills.append(Kill(role, time.time(), number * apart))
            os.kill(process_of(run.directory, f"{role}.0"), signal.SIGKILL)
        last = (len(WORK) + 1) * apart
        await reach(run, last)
        kills.append(Kill(SUPERVISOR, time.time(), last))
        run.process.kill()
        await run.process.wait()
    async with running(EXAMPLE, folder, overrides) as run:
        await run.wait()
        lost: dict[str, float | None] = {}
        for kill in kills:
            again = flows_again(run.rows(), kill)
            lost[kill.role] = None if again is None else round(again - kill.wall, 1)
            print(f"step {kill.step}: {kill.role} killed, work lost for {lost[kill.role]} s", flush=True)
        restarted = restart_seconds(run.directory)
        return Outcome(time.monotonic() - began, read_summary(run.directory), lost, restarted)


async def twin_run(folder: Path, overrides: Sequence[str]) -> Outcome:
    """The same run, left alone."""
    began = time.monotonic()
    async with running(EXAMPLE, folder, overrides) as run:
        await run.wait()
        return Outcome(time.monotonic() - began, read_summary(run.directory), {}, {})


def read_summary(directory: Path) -> dict[str, Any]:
    """A finished run's figures, and whether its journal balances."""
    summary: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    balance = audit(directory)
    journal = read_journal(directory)
    trained = [group for step in journal.steps() for group in step.groups]
    journal.close()
    return summary | {"balanced": balance.balanced, "trained_twice": len(trained) - len(set(trained))}


def restart_seconds(directory: Path) -> dict[str, float]:
    """By role, the seconds from the end of its process to the first sign of the next one, from the run's log."""
    seconds: dict[str, float] = {}
    for line in (directory / "logs" / "supervisor.local.jsonl").read_text().splitlines():
        row = json.loads(line)
        actor, runs, rest = str(row.get("text", "")).partition(" runs again, ")
        if runs:
            seconds[actor.rpartition(".")[0]] = float(rest.split()[0])
    return seconds


def kept_outside() -> set[str]:
    """What runs have put where temporary files go."""
    return {path.name for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*")}


def intervals_meet(one: Mapping[str, Any], other: Mapping[str, Any], share: str) -> bool:
    """Whether the 95 % intervals of two runs' success meet."""
    return bool(one[f"{share}_low"] <= other[f"{share}_high"] and other[f"{share}_low"] <= one[f"{share}_high"])


async def measure(options: Options) -> tuple[Outcome, Outcome | None]:
    """The run with kills, and its twin."""
    overrides = [*(() if options.full else SHORTENED), *options.overrides]
    stage = load_topology(EXAMPLE, overrides).stages[RL_STAGE]
    assert stage.kind == "rl"
    with tempfile.TemporaryDirectory(prefix="agent-rl-bench-") as name:
        killed, alone = Path(name) / "killed", Path(name) / "alone"
        killed.mkdir()
        alone.mkdir()
        outcome = await killed_run(killed, overrides, stage.steps)
        return outcome, None if options.without_twin else await twin_run(alone, overrides)


def figures_of(killed: Outcome, twin: Outcome | None, left_behind: int) -> dict[str, float | None]:
    """All figures by name."""
    figures: dict[str, float | None] = {f"seconds_lost_{role}": value for role, value in killed.lost.items()}
    figures |= {f"seconds_restarting_{role}": killed.restarted.get(role) for role in WORK}
    figures["recovered"] = sum(value is not None for value in killed.lost.values())
    figures["balanced"] = int(killed.summary["balanced"])
    figures["trained_twice"] = killed.summary["trained_twice"]
    figures["left_behind"] = left_behind
    figures["seconds_with_kills"] = round(killed.seconds, 1)
    figures |= {f"{share}_with_kills": killed.summary[share] for share in SHARES}
    if twin is not None:
        figures["seconds_without_kills"] = round(twin.seconds, 1)
        figures["seconds_lost_whole_run"] = round(killed.seconds - twin.seconds, 1)
        figures |= {f"{share}_without_kills": twin.summary[share] for share in SHARES}
        agree = all(intervals_meet(killed.summary, twin.summary, share) for share in SHARES)
        figures["success_within_intervals"] = int(agree)
    return figures


def main(options: Options) -> int:
    """Measure, and print what was measured."""
    before = kept_outside()
    killed, twin = trio.run(measure, options)
    rows = [
        (role, "-" if lost is None else lost, killed.restarted.get(role, "-")) for role, lost in killed.lost.items()
    ]
    print_table("seconds from SIGKILL", ("killed", "until its work went on", "until its process ran"), rows)
    runs = [("with kills", killed)] + ([("without", twin)] if twin is not None else [])
    shown = [(name, run.seconds, *(_interval(run.summary, share) for share in SHARES)) for name, run in runs]
    print_table("whole runs; success in %, with 95 % intervals", ("run", "seconds", *map(_title, SHARES)), shown)
    print_figures(figures_of(killed, twin, len(kept_outside() - before)))
    return 0


def _interval(summary: Mapping[str, Any], share: str) -> str:
    value, low, high = (100 * summary[f"{share}{end}"] for end in ("", "_low", "_high"))
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def _title(share: str) -> str:
    return share.removeprefix("success_").replace("_", ", ")
