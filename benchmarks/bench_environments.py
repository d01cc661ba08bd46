"""Environments: what a game whose every turn is answered teaches, and what agent loop and retention cost.

    agent-rl bench environments
    agent-rl bench environments --seeds 1 --rounds 3 --gigabytes 1
    agent-rl bench environments --before ""

First `examples/doors.toml` is run with each seed, in a directory of its own. Then the generator runs episodes that call
tools which answer at once, and its engine alone writes the same token sequences again. The difference in processor time
of the generator's main thread is the agent loop's cost (benchmarks/loop_share.py). The same is measured of an earlier
commit, in alternate rounds. Last, how long the filter's event loop is held up by each step whose trajectories leave the
journal.
"""

from __future__ import annotations

import io
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.config.examples import EXAMPLES
from agent_rl.files.leftovers import claimed_directory, sweep_one
from benchmarks.bench_journal import compaction
from benchmarks.command import Overrides
from benchmarks.reporting import print_figures, print_table
from benchmarks.runs import summary_of

GAME = EXAMPLES / "doors.toml"
ROOT = Path(__file__).parent.parent
BEFORE = "b7eb41b"
"""The last commit before there were environments: the agent loop then knew one task and one tool."""
SUCCESS = ("success_before_sampled", "success_before_greedy", "success_after_sampled", "success_after_greedy")


def play(seed: int, overrides: Sequence[str]) -> dict[str, Any]:
    """The summary of one run of the game. Raises RunFailed when the run fails."""
    with tempfile.TemporaryDirectory() as directory:
        return summary_of(GAME, Path(directory) / "run", [f"run.seed={seed}", *overrides])


def game(seeds: int, overrides: Sequence[str]) -> dict[str, float]:
    """Success of sampled turns before and after training, and minutes, each the median over seeds."""
    summaries = [play(seed, overrides) for seed in range(seeds)]
    rows = [[seed, *(each[name] for name in SUCCESS), each["minutes"]] for seed, each in enumerate(summaries)]
    print_table("a game, held-out problems", ["seed", *SUCCESS, "minutes"], rows)
    medians = {name: statistics.median(each[name] for each in summaries) for name in (*SUCCESS, "minutes")}
    return {f"game.{name.removesuffix('_sampled')}": median for name, median in medians.items()}


@contextmanager
def files_of(commit: str) -> Iterator[Path | None]:
    """A folder with the files of a commit. None, and a message, when git does not have the commit.

    The folder stands outside of git. When the benchmark is killed, the next start of any run removes the folder.
    """
    command = ["git", "-C", str(ROOT), "archive", commit]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        reason = archive.stderr.decode().strip()
        print(f"commit {commit} is not measured: {reason}; in a shallow clone: git fetch --unshallow")
        yield None
        return
    folder, claim = claimed_directory("bench")
    try:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        yield folder
    finally:
        claim.release()
        sweep_one(folder)


class Side:
    """A process that measures rounds with the code of a tree."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    def round(self) -> float:
        """The loop's share in a further round. Raises SystemExit when the process has died."""
        self._stdin.write("\n")
        self._stdin.flush()
        line = self._stdout.readline()
        if not line:
            raise SystemExit(
                "a process that measures the agent loop has died; run it by itself: python benchmarks/loop_share.py 64"
            )
        return float(line)


@contextmanager
def side(tree: Path, rollouts: int) -> Iterator[Side]:
    """Start and end the process for a tree."""
    command = [sys.executable, str(ROOT / "benchmarks" / "loop_share.py"), str(rollouts)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield Side(process)
        finally:
            process.kill()


def loop_shares(rounds: int, rollouts: int, before: str) -> dict[str, float | None]:
    """The loop's share of the generator's processor time, of the commit ``before`` and now, medians over rounds."""
    with ExitStack() as stack:
        trees = {"loop_share_of_engine": ROOT}
        if before and (tree := stack.enter_context(files_of(before))) is not None:
            trees = {"loop_share_of_engine_before": tree, **trees}
        sides = {name: stack.enter_context(side(tree, rollouts)) for name, tree in trees.items()}
        shares = [[one.round() for one in sides.values()] for _ in range(rounds)]
    rows = [[number, *values] for number, values in enumerate(shares, 1)]
    print_table(f"the loop's share, {rollouts} rollouts a round", ["round", *sides], rows)
    medians = {name: statistics.median(values) for name, values in zip(sides, zip(*shares, strict=True), strict=True)}
    return {"loop_share_of_engine_before": None, **medians}


@dataclass(kw_only=True)
class Options:
    """The options."""

    seeds: int = 3
    """Runs of the game; 0 leaves this part out."""
    overrides: Overrides = ()
    """Of the game, as for agent-rl run."""
    rounds: int = 5
    """Of the agent loop; 0 leaves this part out."""
    rollouts: int = 512
    """Of a round."""
    before: str = BEFORE
    """The commit that the agent loop is compared with; empty for none."""
    gigabytes: float = 4.0
    """Of journal whose trajectories leave; 0 leaves this part out."""
    directory: Path = Path()
    """Where that journal is written, and removed again."""


def main(options: Options) -> int:
    """Measure, and print tables and figures."""
    figures: dict[str, float | None] = {}
    if options.seeds:
        figures |= game(options.seeds, options.overrides)
    if options.rounds:
        figures |= loop_shares(options.rounds, options.rollouts, options.before)
    if options.gigabytes:
        figures["compaction_s_per_step"] = compaction(options.gigabytes, options.directory)["compaction_s_per_step"]
    print_figures({name: None if value is None else round(value, 4) for name, value in figures.items()})
    return 0
