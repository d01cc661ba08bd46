"""Random faults: runs whose processes, disk and clock fail at random moments, beside twins that are left alone.

    agent-rl bench chaos --faults 200 --seed 0        # about 10 runs of the shortened quickstart
    agent-rl bench chaos --faults 10 --short          # one run of a tiny model, without a twin
    agent-rl bench chaos --faults 10 --scripted       # one run without a model, with scripted turns
    agent-rl bench chaos --faults 200 --hosts         # over three hosts, whose links fail too
    agent-rl bench chaos --each-once                  # SIGKILL to each process once, in turn, and the twin

A seed decides the plan: which fault (SIGKILL, SIGSTOP, double kills, the supervisor, the whole host, a full disk, a
jump of the clock), whom it hits, and at which moment (start, supervised training, evaluation, change of stage, weight
transfer, checkpoint). The next fault comes only after the run went on. A full disk needs root. benchmarks/README.md
explains the figures.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import trio

from actors.roc_filter.stored import decode_stored
from actors.runtime.reports import STATUSES_PASSED_ON
from agent_rl.config.addresses import actor_nodes
from agent_rl.config.examples import EXAMPLES
from agent_rl.config.load import load_topology
from agent_rl.records.journal import read_journal
from benchmarks.chaos.accounting import (
    Ended,
    figures_of,
    read_accounts,
    seconds_lost,
    wrong_prompts,
    wrongly_trained,
)
from benchmarks.chaos.cluster import cluster_overrides, one_host, three_hosts
from benchmarks.chaos.doing import Chaos
from benchmarks.chaos.plan import NETWORK, Fault, Kind, Moment, each_once, in_order, make_plan
from benchmarks.chaos.recording import Record, read_turns
from benchmarks.chaos.scripted import read_trained, write_model
from benchmarks.chaos.sight import REPORTS_OF_BLUR, Sight
from benchmarks.command import Overrides, WrongOptions
from benchmarks.machines import unavailable
from benchmarks.reporting import print_figures, print_table
from benchmarks.runs import RUN_SECONDS, RunFailed

EXAMPLE = EXAMPLES / "quickstart.toml"
SHORTENED = (
    "stages.0.steps=600",
    "stages.1.problems=300",
    "stages.2.steps=42",
    "stages.3.problems=500",
    "run.checkpoint_every=10",
)
TINY = (
    "model.initialise.hidden_size=32",
    "model.initialise.layers=1",
    "model.initialise.heads=2",
    "model.initialise.kv_heads=1",
    "model.initialise.head_dim=16",
    "model.initialise.mlp_size=32",
    "algorithm.groups_per_step=2",
    "algorithm.samples=4",
    "algorithm.keep=2",
    "stages.0.steps=100",
    "stages.1.problems=20",
    "stages.2.max_response_tokens=60",
    "stages.3.problems=20",
    "run.checkpoint_every=5",
)
SCRIPTED = (
    "algorithm.groups_per_step=2",
    "algorithm.samples=4",
    "algorithm.keep=2",
    "stages.0.steps=60",
    "stages.1.problems=8",
    "stages.2.max_response_tokens=120",
    "stages.3.problems=8",
    "run.checkpoint_every=2",
    "run.status_seconds=0.2",
    "actors.learner.class=benchmarks.chaos.scripted:ScriptedLearner",
    "actors.rollout_generator.settings.max_rollouts=8",
)
STEPS_PER_FAULT = 12
"""Steps of reinforcement learning that a tiny run has for each fault. Another run takes the faults that are left."""
SCRIPTED_STEPS_PER_FAULT = 5
PER_RUN = 16
"""Faults that a run of the shortened quickstart has room for. Another run takes those that are left."""
MUST_BE_0 = ("chaos.lost", "chaos.repeated", "chaos.left_behind")
MUST_NOT_BE_0 = ("chaos.balanced", "chaos.success_within_noise")
"""Otherwise the exit code is 1. Success is None without twins."""
RESTARTS = 1000
"""Far more deaths come than the default of three in a minute allows."""


@dataclass(kw_only=True)
class Options:
    """The options."""

    faults: int = 20
    """How many."""
    seed: int = 0
    """Of the plan; runs have the seeds from here on."""
    kinds: tuple[str, ...] = ()
    """Kinds of faults, by name; all by default."""
    each_once: bool = False
    """In place of random faults: every actor is killed once during reinforcement learning, then the supervisor."""
    full: bool = False
    """The whole quickstart."""
    short: bool = False
    """A tiny model, and no twin."""
    scripted: bool = False
    """No model: scripted turns, a learner that notes down what it is trained on, shorter faults, and no twin."""
    hosts: bool = False
    """Three hosts with networks and disks of their own, in namespaces. Needs root, ``ip``, ``tc`` and ``nsenter``."""
    twins: int | None = None
    """How many of the runs are repeated without faults; by default 3, and none of a tiny or a scripted run."""
    plan: bool = False
    """Print the plan alone."""
    overrides: Overrides = ()
    """As for agent-rl run."""

    @property
    def per_run(self) -> int:
        """Faults of a run at most. Each run begins with some before reinforcement learning."""
        return min(self.faults, PER_RUN)

    @property
    def untwinned(self) -> bool:
        """Whether no run is repeated without faults by default."""
        return self.short or self.scripted


def topology_overrides(options: Options) -> list[str]:
    """Settings of every run."""
    size: Sequence[str] = () if options.full else SHORTENED
    if options.scripted:
        size = [*SCRIPTED, f"stages.2.steps={SCRIPTED_STEPS_PER_FAULT * options.per_run}"]
    elif options.short:
        size = [*TINY, f"stages.2.steps={STEPS_PER_FAULT * options.per_run}"]
    restarts = [f"actors.{role}.restarts={RESTARTS}" for role in load_topology(EXAMPLE).actors]
    return [*size, *restarts, *options.overrides]


def kinds_of(options: Options) -> list[Kind]:
    """The kinds that are asked for and possible here. Raises WrongOptions."""
    names = {kind.value: kind for kind in Kind if options.hosts or kind not in NETWORK}
    if unknown := [name for name in options.kinds if name not in names]:
        raise WrongOptions(f"--kinds: no fault is named {', '.join(unknown)}; there are {', '.join(names)}")
    kinds = [names[name] for name in options.kinds or names]
    if Kind.DISK in kinds and os.geteuid() != 0:
        print("full_disk is left out: a small file system needs root", flush=True)
        kinds.remove(Kind.DISK)
    return kinds


async def run_once(
    options: Options, folder: Path, overrides: Sequence[str], faults: Sequence[Fault]
) -> tuple[Ended, Sequence[Fault]]:
    """One run with as many of the faults as fit into it; what is known of it, and the faults that are left."""
    began = time.monotonic()
    record = folder / "record"
    generator = "scripted:ScriptedGenerator" if options.scripted else "recording:RecordingGenerator"
    settings = [*overrides, f"actors.rollout_generator.class=benchmarks.chaos.{generator}"]
    settings.append(f"actors.rollout_generator.settings.record={record}")
    if options.scripted:
        settings.append(f'model={{path="{write_model(folder / "model")}"}}')
        settings.append(f"actors.learner.settings.hurry={folder / 'hurry'}")
    topology = load_topology(EXAMPLE, settings)
    stages = topology.stages
    small = any(fault.kind is Kind.DISK for fault in faults)
    with ExitStack() as stack:
        if options.hosts:
            cluster = stack.enter_context(three_hosts(EXAMPLE, folder, settings, small=small))
        else:
            cluster = stack.enter_context(one_host(EXAMPLE, "local", folder, settings, small=small))
        kinds = [stage.kind for stage in stages]
        reports = REPORTS_OF_BLUR + (STATUSES_PASSED_ON if options.hosts else 0)  # those of other hosts come later
        sight = Sight(cluster.directory, kinds, cluster.logs, blur=reports * topology.run.status_seconds)
        chaos = Chaos(cluster, sight, Record(record))
        try:
            for host in cluster.hosts.values():
                await host.start()
            left = await chaos.go(faults)
            (folder / "hurry").touch()
            left = await chaos.go_late(left)
            for host in cluster.hosts.values():
                host.everyone()
            await chaos.finish(RUN_SECONDS)
        except RunFailed as error:
            kept = Path(tempfile.mkdtemp(prefix="chaos-kept-")) / "run"
            shutil.copytree(cluster.directory, kept, ignore=shutil.ignore_patterns("filler"))
            raise type(error)(f"{error}\nthe main host's run directory is kept in {kept}") from error
        finally:
            for host in cluster.hosts.values():
                host.end()
        journal = read_journal(cluster.directory)
        try:
            accounts = read_accounts(journal, len(stages))
            wrong = wrong_prompts(journal, topology, EXAMPLE.parent, decode_stored)
            lost, again = wrongly_trained(journal, read_trained(cluster.directory)) if options.scripted else ((), ())
        finally:
            journal.close()
        accounts = replace(accounts, lost=(*accounts.lost, *wrong, *lost), repeated=(*accounts.repeated, *again))
        summary = json.loads((cluster.directory / "summary.json").read_text())
        behind = [line for host in cluster.hosts.values() for line in host.left_behind()]
        turns = read_turns(record.read_text().splitlines() if record.exists() else ())
    return Ended(chaos.done, accounts, turns, behind, summary, time.monotonic() - began), left


async def measure(options: Options, plan: Sequence[Fault], overrides: Sequence[str]) -> list[Ended]:
    """Run after run until no fault is left; the first of them with their twins."""
    ended: list[Ended] = []
    queue = list(plan)
    per_run = options.per_run
    twins = options.twins if options.twins is not None else 0 if options.untwinned else 3
    while queue:
        seeded = [*overrides, f"run.seed={options.seed + len(ended)}"]
        with tempfile.TemporaryDirectory(prefix="chaos-", dir="/tmp") as name:
            folders = [Path(name) / "f", Path(name) / "t"]
            for folder in folders:
                folder.mkdir()
            run, left = await run_once(options, folders[0], seeded, in_order(queue[:per_run]))
            if not run.done:  # their moments do not come
                left = [replace(fault, moment=Moment.STEP) for fault in left]
            queue = [*left, *queue[per_run:]]
            if len(ended) < twins:
                twin, _ = await run_once(options, folders[1], seeded, ())
                run = replace(run, twin=twin.summary)
            ended.append(run)
    return ended


def same_again(options: Options) -> str:
    """The command that repeats the plan."""
    words = ["agent-rl", "bench", "chaos", "--faults", str(options.faults), "--seed", str(options.seed)]
    flags = ("short", "scripted", "hosts", "full", "each_once")
    words += [f"--{name.replace('_', '-')}" for name in flags if getattr(options, name)]
    return shlex.join([*words, *(["--kinds", *options.kinds] if options.kinds else [])])


def main(options: Options) -> int:
    """Measure, and print what was measured."""
    overrides = topology_overrides(options)
    if options.hosts and (why := unavailable("tc")):
        raise WrongOptions(f"--hosts: {why}")
    topology = load_topology(EXAMPLE, [*overrides, *(cluster_overrides(Path()) if options.hosts else ())])
    homes = {actor: host for host in topology.hosts_in_use for actor, _ in actor_nodes(topology, host)}
    if options.each_once:
        plan = each_once(homes)
    else:
        kinds, quick = kinds_of(options), options.scripted
        plan = make_plan(options.seed, options.faults, homes, per_run=options.per_run, kinds=kinds, quick=quick)
    if options.plan:
        print(*plan, sep="\n")
        return 0
    try:
        runs = trio.run(measure, options, plan, overrides)
    except RunFailed as error:
        raise type(error)(f"{same_again(options)}: {error}") from error
    done = [each for run in runs for each in run.done]
    header = ("fault", "times", "median", "p95", "most", "of the median, until the process ran")
    print_table("seconds until the work went on", header, seconds_lost(done))
    print_table("where they came", ("stage", "faults"), sorted(Counter(each.hit for each in done).items()))
    again = sum((run.turns.again for run in runs), Counter[str]())
    in_flight = sum((run.turns.in_flight for run in runs), Counter[str]())
    for run in runs:
        for line in (*run.accounts.lost, *run.accounts.repeated, *run.left):
            print(f"FAULT {line}")
    rows = [(kind, again[kind], in_flight[kind]) for kind in sorted(again.keys() | in_flight.keys())]
    print_table("turns", ("after", "generated again", "under way where a process ended"), rows)
    figures = figures_of(runs)
    print_figures(figures)
    return 1 if any(figures[name] for name in MUST_BE_0) or any(figures[name] == 0 for name in MUST_NOT_BE_0) else 0
