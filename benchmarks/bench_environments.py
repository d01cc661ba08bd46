"""Environments: what a game whose every turn is answered teaches, what the agent loop costs, what forgetting a step costs.

    agent-rl bench environments
    agent-rl bench environments --seeds 1 --rounds 3 --gigabytes 1
    agent-rl bench environments --before ""

First `examples/doors.toml` is run with each seed, in a directory of its own. Then the generator runs episodes that call tools which
answer at once, and its engine alone writes the same token sequences again: the share of the generator's processor time that
the engine does not need is the loop's. The same is measured of an earlier commit, in a worktree of it, round about with this one.
Last, what the filter's event loop is held up for each step whose trajectories leave the journal.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from agent_rl.config.examples import EXAMPLES
from benchmarks.bench_journal import compaction
from benchmarks.reporting import print_figures, print_table

GAME = EXAMPLES / "doors.toml"
RUN_SECONDS = 1800
ROOT = Path(__file__).parent.parent
BEFORE = "b7eb41b"
"""The commit before there were environments."""
SUCCESS = ("success_before_sampled", "success_before_greedy", "success_after_sampled", "success_after_greedy")


def play(seed: int, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The summary of one run of the game. Raises SystemExit where it fails."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "actors.cli", "run", str(GAME)]
        for setting in (f"run.directory={directory}/run", f"run.seed={seed}", *overrides):
            command += ["--set", setting]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    if done.returncode != 0:
        raise SystemExit(f"seed {seed}: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    summary: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return summary


def game(seeds: int, overrides: Sequence[str]) -> dict[str, float]:
    """Success of sampled turns before and after training, and minutes, each the median over seeds."""
    summaries = [play(seed, overrides) for seed in range(seeds)]
    rows = [[seed, *(each[name] for name in SUCCESS), each["minutes"]] for seed, each in enumerate(summaries)]
    print_table("a game, held-out problems", ["seed", *SUCCESS, "minutes"], rows)
    medians = {name: statistics.median(each[name] for each in summaries) for name in (*SUCCESS, "minutes")}
    return {
        "game.success_before": medians["success_before_sampled"],
        "game.success_after": medians["success_after_sampled"],
        "game.success_before_greedy": medians["success_before_greedy"],
        "game.success_after_greedy": medians["success_after_greedy"],
        "game.minutes": medians["minutes"],
    }


@contextmanager
def worktree(commit: str) -> Iterator[Path | None]:
    """The files of a commit in a folder of their own; None, and why, where it cannot be had."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        made = subprocess.run([*git, "add", "--detach", str(tree), commit], capture_output=True, text=True, check=False)
        if made.returncode:
            print(f"{commit} is not measured: {made.stderr.strip()}")
            yield None
            return
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], capture_output=True, check=True)


@contextmanager
def side(tree: Path, rollouts: int) -> Iterator[subprocess.Popen[str]]:
    """A process that measures rounds with the code of a tree."""
    command = [sys.executable, str(ROOT / "benchmarks" / "loop_share.py"), str(rollouts)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def asked(process: subprocess.Popen[str]) -> float:
    """A round of a process. Raises SystemExit when it has died."""
    writing, reading = _pipes(process)
    writing.write("\n")
    writing.flush()
    line = reading.readline()
    if not line:
        raise SystemExit(
            "a process that measured the agent loop has died; run it by itself: benchmarks/loop_share.py 64"
        )
    return float(line)


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def loop_shares(rounds: int, rollouts: int, before: str) -> dict[str, float | None]:
    """The loop's share of the generator's processor time, of the commit ``before`` and now, medians over alternate rounds."""
    with ExitStack() as stack:
        trees = {"loop_share_of_engine": ROOT}
        if before and (tree := stack.enter_context(worktree(before))) is not None:
            trees = {"loop_share_of_engine_before": tree, **trees}
        sides = {name: stack.enter_context(side(tree, rollouts)) for name, tree in trees.items()}
        shares = [[asked(process) for process in sides.values()] for _ in range(rounds)]
    rows = [[number, *values] for number, values in enumerate(shares, 1)]
    print_table(f"the loop's share, {rollouts} rollouts a round", ["round", *sides], rows)
    medians = {name: statistics.median(values) for name, values in zip(sides, zip(*shares, strict=True), strict=True)}
    return {"loop_share_of_engine_before": None, **medians}


def main(arguments: Sequence[str]) -> int:
    """Measure."""
    parser = argparse.ArgumentParser(
        "agent-rl bench environments", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs of the game; 0 leaves it out")
    parser.add_argument("--set", action="append", default=[], help="of the game, as for agent-rl run")
    parser.add_argument("--rounds", type=int, default=5, help="of the agent loop; 0 leaves it out")
    parser.add_argument("--rollouts", type=int, default=512, help="of a round")
    parser.add_argument(
        "--before", default=BEFORE, help="the commit that the agent loop is compared with; empty for none"
    )
    parser.add_argument(
        "--gigabytes", type=float, default=4.0, help="of journal whose trajectories leave; 0 leaves it out"
    )
    parser.add_argument(
        "--directory", type=Path, default=Path.cwd(), help="where that journal is written, and removed again"
    )
    options = parser.parse_args(arguments)
    figures: dict[str, float | None] = {}
    if options.seeds:
        figures |= game(options.seeds, options.set)
    if options.rounds:
        figures |= loop_shares(options.rounds, options.rollouts, options.before)
    if options.gigabytes:
        figures["compaction_s_per_step"] = compaction(options.gigabytes, options.directory)["compaction_s_per_step"]
    print_figures({name: None if value is None else round(value, 4) for name, value in figures.items()})
    return 0
