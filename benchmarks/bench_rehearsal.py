"""Steps of hundreds of long rollouts on this machine: whether anything stalls, and what the paper's size would need.

    agent-rl bench rehearsal
    agent-rl bench rehearsal --steps 1 --groups 2 --generators 4 --ranks 2 --tokens 2000

Scheduler, filter, executors, journal, links, sandbox, and the learner's ranks are the real ones. The engines write
scripted turns of a given length without a model, and the learner's model is tiny: one layer, one head of 16 values.
Only the costs that do not depend on the model are measured so: the ranks' own seconds say nothing of a large model.

Processor time and memory of each actor are read from /proc, from the moment when the first rollouts can begin. The last
columns multiply them by the paper's 16,384 rollouts a step over those of the rehearsal: for roles of which the recipe
has more processes than the rehearsal, over the rollouts that each of them has. A process with one busy thread saturates
when its seconds for a step reach the 1,186 s that a step of the paper took.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import trio

from agent_rl.config.topology import InitialiseModel
from agent_rl.learning.tiny import initialise_model
from agent_rl.observe.logs import log_directory
from agent_rl.records.audit import Audit, audit_journal
from agent_rl.records.journal import read_journal
from benchmarks.chaos.sight import WORK, Lines
from benchmarks.command import Overrides
from benchmarks.rehearsal.usage import Seen, Watch, read_processes, usage
from benchmarks.reporting import print_figures, print_table
from benchmarks.runs import Run, running, stage_rows

PAPER_ROLLOUTS = 16_384
"""512 groups of 32 (arXiv 2508.20722)."""
PAPER_SECONDS = 1186.0
"""A week for 510 steps on 64 GPUs, as the paper says."""
RECIPE = {"rollout_generator": 56, "tool_executor": 7}
"""Processes of these roles in examples/rstar2_14b_mi300x.toml; the others have one."""
SAMPLES = 32
LOOK_SECONDS = 1.0
BUSY_SHARE = 0.2
"""A learner that computes for so much of a row's time gets on."""
ROOM = 1024
"""Tokens of a sequence beyond the mean response: prompt, longer turns, results of tools."""

TOPOLOGY = """\
[run]
name = "rehearsal"
directory = "run"
checkpoint_every = 1
keep_checkpoints = 1
report_standstill_seconds = 60

[model]
path = "{model}"

[[environments]]
class = "arithmetic"

[algorithm]
groups_per_step = {groups}
samples = {samples}
keep = {keep}
microbatch_tokens = {longest}
max_staleness = 1

[[stages]]
kind = "rl"
steps = {steps}
learning_rate = 1e-4
warmup_steps = 0
max_response_tokens = {response}
max_turns = {turns}

[actors.learner]
ranks = {ranks}

[actors.rollout_generator]
class = "benchmarks.rehearsal.generator:LongGenerator"
replicas = {generators}
settings = {{ max_rollouts = {rows}, response_tokens = {tokens}, turns = {turns}, tokens_per_s = {pace} }}
"""


@dataclass(kw_only=True)
class Options:
    """The options."""

    steps: int = 3
    """Steps of reinforcement learning."""
    groups: int = 16
    """Groups of 32 rollouts in a step."""
    tokens: int = 10_000
    """The mean length of a response, with the results of tools."""
    turns: int = 4
    """Turns of a rollout; all but the last call the tool."""
    generators: int = 16
    """Processes that generate."""
    ranks: int = 4
    """Processes of the learner."""
    pace: float = 500.0
    """Tokens a second that the scripted engines write for each rollout."""
    keep: bool = False
    """Keep the run directory, and print where it is."""
    overrides: Overrides = ()
    """As for agent-rl run."""


@dataclass(frozen=True)
class Measured:
    """What is known of the run."""

    watch: Watch
    seconds: float
    """From the first rollout to the end of the last step."""
    step_seconds: Sequence[float]
    """Of training, by step."""
    idle_seconds: float
    """See `longest_idle`."""
    complaints: Counter[str]
    """See `complaints`."""
    journal: int
    """Bytes."""
    audit: Audit
    summary: Mapping[str, Any]


def topology_text(options: Options, model: Path) -> str:
    """The topology file."""
    response = round(1.1 * options.tokens) + ROOM // 2
    in_flight = 2 * options.groups * SAMPLES  # of two steps, as max_staleness = 1 has it
    return TOPOLOGY.format(
        model=model,
        groups=options.groups,
        samples=SAMPLES,
        keep=SAMPLES // 2,
        longest=length(options),
        steps=options.steps,
        response=response,
        turns=options.turns,
        ranks=options.ranks,
        generators=options.generators,
        rows=max(1, -(-in_flight // options.generators)),
        tokens=options.tokens,
        pace=options.pace,
    )


def length(options: Options) -> int:
    """The most tokens of a sequence."""
    return round(1.1 * options.tokens) + ROOM


class Processes:
    """The process of each actor, by the supervisor's log."""

    def __init__(self, directory: Path) -> None:
        self._lines = Lines(log_directory(directory) / "supervisor.local.jsonl")
        self._actors: dict[str, int] = {}

    def now(self) -> dict[str, int]:
        """Those that run."""
        for line in self._lines.new():
            if line["event"] == "started":
                self._actors[line["actor"]] = line["pid"]
        return self._actors


def learner_of(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The learner's newest figures."""
    actors = rows[-1]["actors"] if rows else {}
    return dict(actors.get("learner.0", {}).get("figures", {}))


async def follow(run: Run, watch: Watch, steps: int) -> tuple[float, datetime]:
    """Watch a run until its steps are done; the seconds from its first rollout on, and when that was."""
    processes, began = Processes(run.directory), 0.0
    while run.process.returncode is None:
        figures = learner_of(run.rows())
        now = usage(read_processes(), processes.now())
        if began:
            watch.look(now)
        elif "stage" in figures:
            began = time.monotonic()
            watch.begin(now)
        if figures.get("step", 0) >= steps:
            break
        with trio.move_on_after(LOOK_SECONDS):
            await run.process.wait()
    return (time.monotonic() - began if began else 0.0), datetime.now(UTC)


def worked(status: Mapping[str, Any], before: Mapping[str, Any] | None) -> bool:
    """Whether an actor has got on since a status: a total of its role has grown, or its role's work took time."""
    count = WORK[str(status["role"])]
    grown = before is not None and status["figures"].get(count, 0) > before["figures"].get(count, 0)
    return bool(grown) or (status["role"] == "learner" and float(status["busy"]) >= BUSY_SHARE)


def longest_idle(rows: Sequence[Mapping[str, Any]]) -> float:
    """The longest time in which no actor has got on, in seconds, from the first row of a timeline to the last."""
    longest, since = 0.0, rows[0]["wall"] if rows else 0.0
    for before, row in pairwise(rows):
        actors = {name: {**each, "role": name.partition(".")[0]} for name, each in row["actors"].items()}
        if any(worked(each, before["actors"].get(name)) for name, each in actors.items()):
            longest, since = max(longest, before["wall"] - since), row["wall"]
    return max(longest, rows[-1]["wall"] - since) if rows else 0.0


def complaints(directory: Path, until: datetime) -> Counter[str]:
    """Warnings and errors in the logs of supervisor and actors up to a moment, by process and event.

    A warning about the kernel's lack of some isolation says nothing of a stall, and is left out.
    """
    found: Counter[str] = Counter()
    for path in sorted(log_directory(directory).glob("*.jsonl")):
        for line in Lines(path).new():
            serious = line["level"] in {"warning", "error"} and line["event"] != "isolation of model code"
            if serious and datetime.fromisoformat(line["timestamp"]) < until:
                what = re.sub(r"\d+\.\d+", "...", str(line.get("text") or line.get("link_event") or ""))
                found[f"{path.stem}: {line['event']} {what}".strip()] += 1
    return found


async def measure(options: Options, folder: Path) -> Measured:
    """One run. Raises RunFailed when it ends badly."""
    model = folder / "model"
    spec = InitialiseModel(
        hidden_size=16, layers=1, heads=1, kv_heads=1, head_dim=16, mlp_size=16, max_length=length(options)
    )
    initialise_model(spec, model, seed=0)
    file = folder / "rehearsal.toml"
    file.write_text(topology_text(options, model))
    watch = Watch()
    async with running(file, folder, options.overrides) as run:
        seconds, done = await follow(run, watch, options.steps)
        await run.wait()
        journal = read_journal(run.directory)
        try:
            balance = audit_journal(journal)
        finally:
            journal.close()
        rows = stage_rows(run.rows(), 0)
        return Measured(
            watch=watch,
            seconds=seconds,
            step_seconds=[row["train_seconds"] for row in run.metrics("step")],
            idle_seconds=longest_idle([row for row in rows if learner_of([row]).get("step", 0) < options.steps]),
            complaints=complaints(run.directory, done),
            journal=sum(path.stat().st_size for path in run.directory.glob("journal*")),
            audit=balance,
            summary=json.loads((run.directory / "summary.json").read_text()),
        )


def factor(actor: str, options: Options) -> float:
    """The rollouts of a step that the actor has in the paper's run, over those that it has here."""
    role = actor.partition(".")[0]
    here = {"rollout_generator": options.generators}.get(role, 1)
    return PAPER_ROLLOUTS / (options.groups * SAMPLES) * here / RECIPE.get(role, 1)


@dataclass(frozen=True)
class Row:
    """An actor, and what it would use at the paper's size."""

    actor: str
    seconds: float
    """Of processor time for a step."""
    before: float
    """MiB before the first rollout."""
    grown: float
    """MiB beyond that, at most."""
    factor: float

    @property
    def scaled_seconds(self) -> float:
        """Seconds for a step of the paper's size."""
        return self.seconds * self.factor

    @property
    def scaled_mib(self) -> float:
        """MiB at the paper's size, as if what has grown were all of the rollouts."""
        return self.before + self.grown * self.factor


def rows_of(watch: Watch, options: Options) -> list[Row]:
    """One row of each actor; of replicas, and of the learner's further ranks, the one with the most processor time."""
    most: dict[str, tuple[str, Seen]] = {}
    for name, seen in watch.actors.items():
        role = "learner, other ranks" if " rank " in name else name.partition(".")[0]
        if role not in most or seen.seconds > most[role][1].seconds:
            most[role] = name, seen
    return [
        Row(
            name,
            seen.seconds / options.steps,
            seen.private_before / 2**20,
            max(0, seen.private_most - seen.private_before) / 2**20,
            factor(name, options),
        )
        for _, (name, seen) in sorted(most.items())
    ]


def report(measured: Measured, options: Options) -> int:
    """Print tables and figures; returns the exit code: 1 when anything stalled or is missing."""
    rows = rows_of(measured.watch, options)
    rollouts = options.groups * SAMPLES
    table = [
        (
            row.actor,
            row.seconds,
            1000 * row.seconds / rollouts,
            row.before,
            row.grown,
            row.factor,
            row.scaled_seconds,
            100 * row.scaled_seconds / PAPER_SECONDS,
            row.scaled_mib,
        )
        for row in rows
    ]
    header = ["actor", "s a step", "ms a rollout", "MiB before", "MiB grown", "factor", "s", "% of a core", "MiB"]
    title = f"{options.steps} steps of {rollouts} rollouts of {options.tokens:,} tokens; then the paper's size"
    print_table(title, header, table)
    for what, count in measured.complaints.most_common():
        print(f"{count} x {what}")
    first = max((row for row in rows if not row.actor.startswith("learner")), key=lambda row: row.scaled_seconds)
    at = PAPER_ROLLOUTS * PAPER_SECONDS / max(1e-9, first.scaled_seconds)
    verdict = "saturates" if first.scaled_seconds > PAPER_SECONDS else "has room"
    print(
        f"at {PAPER_ROLLOUTS:,} rollouts in {PAPER_SECONDS:,.0f} s {first.actor} {verdict}; "
        f"of all but the learner it is the first to saturate, at {at:,.0f} rollouts a step"
    )
    expected = options.steps * options.groups
    summary = measured.summary
    figures: dict[str, float | str | None] = {
        "rehearsal_steps": summary["steps_updated"],
        "rehearsal_rollouts": summary["rollouts_sampled"],
        "rehearsal_tokens": summary["tokens_sampled"],
        "rehearsal_seconds": round(measured.seconds, 1),
        "rehearsal_step_seconds": round(statistics.median(measured.step_seconds), 1),
        "rehearsal_idle_seconds": round(measured.idle_seconds, 1),
        "rehearsal_complaints": sum(measured.complaints.values()),
        "rehearsal_groups_missing": expected - summary["groups_trained"],
        "rehearsal_balanced": int(measured.audit.balanced),
        "rehearsal_journal_mib": round(measured.journal / 2**20, 1),
        "rehearsal_factor": PAPER_ROLLOUTS / rollouts,
        "rehearsal_first_to_saturate": first.actor,
        "rehearsal_saturates_at_rollouts": round(at),
    }
    for row in rows:
        name = row.actor.replace(" ", "_")
        figures[f"cpu_s_a_step_{name}"] = round(row.seconds, 3)
        figures[f"mib_{name}"] = round(row.before + row.grown, 1)
        figures[f"core_share_at_paper_size_{name}"] = round(row.scaled_seconds / PAPER_SECONDS, 4)
    print_figures(figures)
    return int(bool(figures["rehearsal_groups_missing"]) or not measured.audit.balanced)


def main(options: Options) -> int:
    """Rehearse, and print what was measured."""
    folder = Path(tempfile.mkdtemp(prefix="rehearsal-", dir="/tmp"))
    try:
        return report(trio.run(measure, options, folder), options)
    finally:
        if options.keep:
            print(f"the run is kept in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder)
