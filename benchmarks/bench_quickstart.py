"""The quickstart over several seeds: what it reaches, how long it takes, asynchronous beside synchronous.

    agent-rl bench quickstart --seeds 5
    agent-rl bench quickstart --seeds 1 --mode synchronous

Every run is `agent-rl run examples/quickstart.toml` with its seed, in a directory of its own. benchmarks/README.md
explains the figures.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from actors.roc_filter.stored import decode_stored
from agent_rl.config.examples import EXAMPLES
from agent_rl.environments.arithmetic.problems import overlap
from agent_rl.records.journal import read_journal
from benchmarks.command import Failure, Overrides
from benchmarks.reporting import print_figures
from benchmarks.runs import summary_of

EXAMPLE = EXAMPLES / "quickstart.toml"
FIGURES = ("success_before_sampled", "success_before_greedy", "success_after_sampled", "success_after_greedy")


@dataclass(kw_only=True)
class Options:
    """The options."""

    seeds: int = 5
    first_seed: int = 0
    mode: Literal["asynchronous", "synchronous"] = "asynchronous"
    overrides: Overrides = ()
    """As for agent-rl run."""


def run(seed: int, mode: str, directory: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """The summary of one run. Raises RunFailed when the run fails."""
    summary = summary_of(EXAMPLE, directory, [f"run.seed={seed}", f"run.mode={mode}", *overrides])
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["kind"] == "step"]
    summary["overlap"] = len(held_out_overlap(directory))
    summary["rl_minutes"] = (steps[-1]["seconds"] - steps[0]["seconds"]) / 60
    return summary


def held_out_overlap(directory: Path) -> set[tuple[int, ...]]:
    """Operands that the run both trained and evaluated on, read from its journal; there must be none."""
    journal = read_journal(directory)
    ids: dict[bool, list[str]] = {True: [], False: []}
    for name in journal.group_ids():
        row = journal.group(name)
        assert row is not None
        group = decode_stored(row.opened)
        ids[group.purpose == "train"].append(group.problem.id)
    journal.close()
    if not ids[True] or not ids[False]:
        raise Failure(f"{directory}: nothing was trained or nothing evaluated")
    return overlap(ids[True], ids[False])


def main(options: Options) -> int:
    """Run the seeds one after the other."""
    summaries = []
    print("seed  after SFT: sampled / greedy   after RL: sampled / greedy   minutes (RL)   staleness mean / max")
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            summary = run(seed, options.mode, Path(folder) / str(seed), options.overrides)
            summaries.append(summary)
            shares = [
                f"{100 * summary[name]:5.1f} [{100 * summary[f'{name}_low']:.1f}, {100 * summary[f'{name}_high']:.1f}]"
                for name in FIGURES
            ]
            print(
                f"{seed:4}  {shares[0]} / {shares[1]}   {shares[2]} / {shares[3]}   "
                f"{summary['minutes']:.1f} ({summary['rl_minutes']:.1f})   "
                + (
                    "none trained"
                    if summary["mean_staleness"] is None
                    else f"{summary['mean_staleness']:.2f} / {summary['max_staleness']:.0f}"
                ),
                flush=True,
            )
    reached = sum(s["success_after_sampled"] >= 0.8 and s["success_after_greedy"] >= 0.9 for s in summaries)
    honest = sum(s["success_before_sampled"] <= 0.3 and s["success_before_greedy"] <= 0.3 for s in summaries)
    figures: dict[str, Any] = {"seeds": len(summaries), "seeds_at_goal": reached, "seeds_honest": honest}
    figures["overlap"] = sum(summary["overlap"] for summary in summaries)
    for name in (*FIGURES, "minutes", "rl_minutes", "mean_staleness"):
        values = [summary[name] for summary in summaries]
        figures[f"{name}_median"] = None if None in values else round(statistics.median(values), 4)
    print_figures(figures)
    return 0
