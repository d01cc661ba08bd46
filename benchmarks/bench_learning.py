"""Learning of a topology over several seeds: success before and after training, and minutes.

    agent-rl bench learning --seeds 5                        # the quickstart
    agent-rl bench learning doors --seeds 3
    agent-rl bench learning my_run.toml --seeds 2 --mode synchronous

Each run is `agent-rl run FILE` with its own seed, in a directory of its own, one run after the other. The success of
each evaluation of the topology is a figure, sampled and greedy, with Wilson's 95 % interval in the table. `overlap`
counts the problems that a run both trained and evaluated on, read from its journal. Arithmetic problems with the same
operands count as the same problem. It must be 0, or held-out success says less than it seems to. `guard.false_alarms`
counts the updates, of `guard.updates`, after which the numerics guard found a fault in these sound runs.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

import trio

from actors.cli.records import decode_stored
from agent_rl.config.examples import topology_file
from agent_rl.records.journal import read_journal
from benchmarks.command import Failure, Overrides
from benchmarks.reporting import print_figures, print_table
from benchmarks.runs import finished, guarded

MEDIANS = ("minutes", "minutes_rl", "mean_staleness")


@dataclass
class Options:
    """The options."""

    file: str = "quickstart"
    """The topology file, or the name of an example."""
    _: KW_ONLY
    seeds: int = 5
    first_seed: int = 0
    mode: Literal["asynchronous", "synchronous"] = "asynchronous"
    overrides: Overrides = ()
    """As for agent-rl run."""


def shared_problems(trained: Sequence[str], evaluated: Sequence[str]) -> int:
    """Problems in both lists of ids; for arithmetic problems, operand tuples in both."""
    try:
        return len(operands(trained) & operands(evaluated))
    except ValueError:  # ids of another environment
        return len(set(trained) & set(evaluated))


def operands(ids: Iterable[str]) -> set[tuple[int, ...]]:
    """The sorted operands that ids of arithmetic problems hold: ``sum:12+345`` has 12 and 345."""
    return {tuple(sorted(int(operand) for operand in name.partition(":")[2].split("+"))) for name in ids}


def overlap_of(directory: Path) -> int:
    """Problems that the run both trained and evaluated on. Raises Failure when one of the two is missing."""
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
    return shared_problems(ids[True], ids[False])


def successes(summary: dict[str, Any]) -> list[str]:
    """Names of the success figures of a summary, in the order of the evaluations."""
    return [name for name in summary if name.startswith("success_") and not name.endswith(("_low", "_high"))]


def interval(summary: dict[str, Any], name: str) -> str:
    """A share in percent with its interval."""
    value, low, high = (100 * summary[f"{name}{end}"] for end in ("", "_low", "_high"))
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def run(file: Path, folder: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """The summary of one run, with its overlap. Raises Failure when the run fails."""
    folder.mkdir()
    done = trio.run(finished, file, folder, overrides)
    return {**done.summary(), "overlap": overlap_of(done.directory), **guarded(done.directory)}


def main(options: Options) -> int:
    """Run the seeds one after the other."""
    file, summaries = topology_file(options.file), []
    with tempfile.TemporaryDirectory(prefix="agent-rl-bench-") as folder:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            settings = [f"run.seed={seed}", f"run.mode={options.mode}", *options.overrides]
            summaries.append(run(file, Path(folder) / str(seed), settings))
            print(f"seed {seed}: {summaries[-1]['minutes']:.1f} minutes", flush=True)
    names = successes(summaries[0])
    rows = [
        (
            options.first_seed + number,
            *(interval(summary, name) for name in names),
            f"{summary['minutes']:.1f} ({summary['minutes_rl']:.1f})",
            "none trained" if summary["mean_staleness"] is None else f"{summary['mean_staleness']:.2f}",
        )
        for number, summary in enumerate(summaries)
    ]
    header = ("seed", *(f"{name.removeprefix('success_')} %" for name in names), "minutes (RL)", "mean staleness")
    print_table(f"{file.name}, {options.mode}: success with 95 % intervals", header, rows)
    sums = ("overlap", "guard.updates", "guard.false_alarms")
    figures: dict[str, Any] = {"seeds": len(summaries)} | {name: sum(each[name] for each in summaries) for name in sums}
    for name in (*names, *MEDIANS):
        values = [summary[name] for summary in summaries]
        figures[f"{name}_median"] = None if None in values else round(statistics.median(values), 4)
    print_figures(figures)
    return 0
