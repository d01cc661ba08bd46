"""Random faults: runs whose processes, disk and clock fail at random moments, beside twins that are left alone.

    agent-rl bench chaos --faults 200 --seed 0        # about 10 runs of the shortened quickstart
    agent-rl bench chaos --faults 10 --short          # one run of a tiny model, without a twin
    agent-rl bench chaos --faults 10 --scripted       # one run without a model, with scripted turns
    agent-rl bench chaos --faults 200 --hosts         # over three hosts, whose links fail too
    agent-rl bench chaos --agent --faults 20 --kinds kill double_kill   # rollouts by programs of others in jails
    agent-rl bench chaos --each-once                  # SIGKILL to each process once, in turn, and the twin

A seed decides the plan: which fault (SIGKILL, SIGSTOP, double kills, the supervisor, the whole host, a full disk, a
jump of the clock; of a scripted run on one host also a swap or a scaling), whom it hits, and at which moment (start,
supervised training, evaluation, change of stage, weight transfer, checkpoint). The next fault comes only after the run
went on. A full disk needs root. benchmarks/README.md explains the figures.
"""

from __future__ import annotations

import os
import shlex
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import trio

from actors.runtime.host_links import STATUSES_PASSED_ON
from agent_rl.config.addresses import wanted_nodes
from agent_rl.config.examples import EXAMPLES
from agent_rl.config.load import load_topology
from agent_rl.config.user_modules import look_beside
from benchmarks.chaos.accounting import (
    Finished,
    Verdict,
    accounts_of,
    besides_engine,
    is_heavy,
    kept,
    seconds_lost,
    summary_in,
)
from benchmarks.chaos.actors import Record, Turns, read_turns, write_model
from benchmarks.chaos.doing import Chaos, Done
from benchmarks.chaos.host import cluster_overrides, one_host, three_hosts
from benchmarks.chaos.plan import CHANGES, KINDS, MOST_REPLICAS, NETWORK, SCALED, Fault, each_once, in_order, make_plan
from benchmarks.chaos.sight import REPORTS_OF_BLUR, Sight
from benchmarks.command import Overrides, WrongOptions
from benchmarks.machines import unavailable
from benchmarks.quickstart import EXAMPLE
from benchmarks.reporting import percentile, print_figures, print_table
from benchmarks.runs import RUN_SECONDS, RunFailed

AGENT_EXAMPLE = EXAMPLES / "coding_agent" / "coding_agent.toml"
SHORTENED = (
    "stages.0.steps=600",
    "stages.1.problems=300",
    "stages.2.steps=42",
    "stages.3.problems=500",
    "run.checkpoint_every=10",
)
TINY = (
    "model.initialise={hidden_size=32, layers=1, heads=2, kv_heads=1, head_dim=16, mlp_size=32}",
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
    "actors.learner.class=benchmarks.chaos.actors:ScriptedLearner",
    "actors.rollout_generator.settings.max_rollouts=8",
)
CLIENTS = EXAMPLES.parent / ".venv-clients" / "installed"
WITH_AGENT = (
    "run.keep_trajectories=all",
    "stages.2.max_response_tokens=160",
    "environments.0.harness.isolation=strong",
    "actors.rollout_generator.replicas=2",
    "actors.gateway.replicas=2",
)
STEPS_PER_FAULT = 12
"""Steps of reinforcement learning that a tiny run has for each fault. Another run takes the faults that are left."""
SCRIPTED_STEPS_PER_FAULT = 5
PER_RUN = 16
"""Faults that a run of the shortened quickstart has room for. Another run takes those that are left."""
RESTARTS = 1000
"""Far more deaths come than the default of three in a minute allows."""


@dataclass(kw_only=True)
class Options:
    """The options."""

    faults: int = 20
    """How many."""
    seed: int = 0
    """Seed of the plan; runs have the seeds from here on."""
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
    agent: bool = False
    """As ``scripted``, but an agent of others in jails writes the rollouts (`examples/coding_agent`), by two
    generators and two gateways."""
    hosts: bool = False
    """Three hosts with networks and disks of their own, in namespaces. Needs root, ``ip``, ``tc`` and ``nsenter``."""
    twins: int | None = None
    """How many of the runs are repeated without faults; by default 3, and none of a tiny or a scripted run."""
    overrides: Overrides = ()
    """As for agent-rl run."""

    def __post_init__(self) -> None:
        self.scripted = self.scripted or self.agent

    @property
    def example(self) -> Path:
        """The topology."""
        return AGENT_EXAMPLE if self.agent else EXAMPLE

    @property
    def changes(self) -> bool:
        """Whether changes by commands are among the faults: swaps, scalings, drains and refusals."""
        return self.scripted and not self.agent

    @property
    def per_run(self) -> int:
        """Faults of a run at most. Each run begins with some before reinforcement learning."""
        return min(self.faults, PER_RUN)

    @property
    def command(self) -> str:
        """The command that repeats the plan."""
        words = ["agent-rl", "bench", "chaos", "--faults", str(self.faults), "--seed", str(self.seed)]
        flags = ("short", "scripted", "agent", "hosts", "full", "each_once")
        words += [f"--{name.replace('_', '-')}" for name in flags if getattr(self, name)]
        return shlex.join([*words, *(["--kinds", *self.kinds] if self.kinds else [])])


@dataclass(frozen=True, kw_only=True)
class Ended(Finished):
    """A run that ended, its faults and its turns."""

    done: Sequence[Done]
    turns: Turns
    wrong: Sequence[str] = ()


def topology_overrides(options: Options) -> list[str]:
    """Settings of every run."""
    size: Sequence[str] = () if options.full else SHORTENED
    if options.scripted:
        size = [*SCRIPTED, f"stages.2.steps={SCRIPTED_STEPS_PER_FAULT * options.per_run}"]
    elif options.short:
        size = [*TINY, f"stages.2.steps={STEPS_PER_FAULT * options.per_run}"]
    if options.agent:
        with socket.create_server(("127.0.0.1", 0)) as free:
            size = [*size, *WITH_AGENT, f"actors.gateway.settings.port={free.getsockname()[1]}"]
    if options.changes:  # the file is the ceiling
        numbers = (f"replicas={MOST_REPLICAS}", f"start={1 + options.hosts}")
        size = [*size, *(f"actors.{role}.{key}" for role in SCALED for key in numbers)]
    restarts = [f"actors.{role}.restarts={RESTARTS}" for role in load_topology(options.example).actors]
    return [*size, *restarts, *options.overrides]


def settings_in(folder: Path, *, scripted: bool) -> list[str]:
    """Settings of a recorded run in ``folder``."""
    settings = [f"actors.rollout_generator.settings.record={folder / 'record'}"]
    if scripted:
        settings.append(f'model={{path="{write_model(folder / "model")}"}}')
        settings.append(f"actors.learner.settings.hurry={folder / 'hurry'}")
    return settings


def kinds_of(options: Options) -> list[str]:
    """The kinds that are asked for and possible here. Raises WrongOptions."""
    names = [
        kind for kind in KINDS if (options.hosts or kind not in NETWORK) and (options.changes or kind not in CHANGES)
    ]
    if unknown := [name for name in options.kinds if name not in names]:
        raise WrongOptions(f"--kinds: no fault is named {', '.join(unknown)}; there are {', '.join(names)}")
    kinds = list(options.kinds or names)
    if "full_disk" in kinds and os.geteuid() != 0:
        print("full_disk is left out: a small file system needs root", flush=True)
        kinds.remove("full_disk")
    return kinds


async def run_once(
    options: Options, folder: Path, overrides: Sequence[str], faults: Sequence[Fault]
) -> tuple[Ended, Sequence[Fault]]:
    """One run with as many of the faults as fit into it; what is known of it, and the faults that are left."""
    began, record = time.monotonic(), folder / "record"
    scripted = "ScriptedAgentGenerator" if options.agent else "ScriptedGenerator"
    generator = scripted if options.scripted else "RecordingGenerator"
    settings = [*overrides, f"actors.rollout_generator.class=benchmarks.chaos.actors:{generator}"]
    settings += settings_in(folder, scripted=options.scripted)
    topology = load_topology(options.example, settings)
    small = any(fault.kind == "full_disk" for fault in faults)
    with ExitStack() as stack:
        made = three_hosts if options.hosts else one_host
        cluster = stack.enter_context(made(options.example, folder, settings, small=small))
        kinds = [stage.kind for stage in topology.stages]
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
            raise kept(error, cluster.directory) from error
        finally:
            for host in cluster.hosts.values():
                host.end()
        run = Ended(
            done=chaos.done,
            accounts=accounts_of(
                cluster.directory, topology, options.example.parent, scripted=options.scripted, programs=options.agent
            ),
            turns=read_turns(record.read_text().splitlines() if record.exists() else ()),
            left=[line for host in cluster.hosts.values() for line in host.left_behind()],
            summary=summary_in(cluster.directory),
            seconds=time.monotonic() - began,
            wrong=chaos.wrong,
        )
    return run, left


async def measure(options: Options, plan: Sequence[Fault], overrides: Sequence[str]) -> list[Ended]:
    """Run after run until no fault is left; the first of them with their twins."""
    ended: list[Ended] = []
    queue = list(plan)
    twins = options.twins if options.twins is not None else 0 if options.short or options.scripted else 3
    while queue:
        seeded = [*overrides, f"run.seed={options.seed + len(ended)}"]
        with tempfile.TemporaryDirectory(prefix="chaos-", dir="/tmp") as name:
            folders = [Path(name) / "f", Path(name) / "t"]
            for folder in folders:
                folder.mkdir()
            run, left = await run_once(options, folders[0], seeded, in_order(queue[: options.per_run]))
            if not run.done:  # their moments do not come
                left = [replace(fault, moment="step") for fault in left]
            queue = [*left, *queue[options.per_run :]]
            if len(ended) < twins:
                twin, _ = await run_once(options, folders[1], seeded, ())
                run = replace(run, twin=twin.summary)
            ended.append(run)
    return ended


# Figures -------------------------------------------------------------------------------------------------------------


def turns_of(runs: Sequence[Ended]) -> list[tuple[str, int, int]]:
    """By kind of fault: turns that were begun again, and turns under way where a process ended."""
    again = sum((run.turns.again for run in runs), Counter[str]())
    in_flight = sum((run.turns.in_flight for run in runs), Counter[str]())
    return [(kind, again[kind], in_flight[kind]) for kind in sorted(again.keys() | in_flight.keys())]


def figures_of(runs: Sequence[Ended]) -> dict[str, float | None]:
    """The figures by name, besides those of a `Verdict`."""
    done = [each for run in runs for each in run.done]
    turns = turns_of(runs)
    again, in_flight = sum(count for _, count, _ in turns), sum(count for _, _, count in turns)
    light = [each for each in done if not is_heavy(each)]
    figures: dict[str, float | None] = {
        "faults": len(done),
        "answers_wrong": sum(len(run.wrong) for run in runs),
        "regenerated_turns": again,
        "turns_in_flight": in_flight,
        "regenerated_turns_over_in_flight": _ratio(again, in_flight),
        "p95_s": percentile([each.lost for each in light], 0.95),
        "p95_heavy_s": percentile([each.lost for each in done if is_heavy(each)], 0.95),
        "p95_besides_engine_s": percentile([besides_engine(each) for each in light], 0.95),
    }
    figures |= {f"p95_s_{kind.replace(' ', '_')}": p95 for kind, _, _, p95, _, _ in seconds_lost(done)}
    return figures | {f"regenerated_turns_over_in_flight_{kind}": _ratio(*counts) for kind, *counts in turns}


def _ratio(again: int, in_flight: int) -> float:
    return again / in_flight if in_flight else float(again > 0)


def main(options: Options) -> int:
    """Measure, and print what was measured."""
    overrides = topology_overrides(options)
    if options.agent and not CLIENTS.is_file():
        raise WrongOptions(f"--agent: there is no {CLIENTS}; make .venv-clients/installed")
    look_beside(options.example)
    if options.hosts and (why := unavailable("tc")):
        raise WrongOptions(f"--hosts: {why}")
    topology = load_topology(options.example, [*overrides, *(cluster_overrides(Path()) if options.hosts else ())])
    homes = {actor: host for host in topology.hosts_in_use for actor in wanted_nodes(topology, host)}
    if options.each_once:
        plan = each_once(homes)
    else:
        kinds, quick = kinds_of(options), options.scripted
        plan = make_plan(options.seed, options.faults, homes, per_run=options.per_run, kinds=kinds, quick=quick)
    try:
        runs = trio.run(measure, options, plan, overrides)
    except RunFailed as error:
        raise type(error)(f"{options.command}: {error}") from error
    done = [each for run in runs for each in run.done]
    header = ("fault", "times", "median", "p95", "most", "of the median, until the process ran")
    print_table("seconds until the work went on", header, seconds_lost(done))
    print_table("where they came", ("stage", "faults"), sorted(Counter(each.hit for each in done).items()))
    print_table("turns", ("after", "generated again", "under way where a process ended"), turns_of(runs))
    verdict = Verdict(runs)
    verdict.print_faults()
    wrong = [line for run in runs for line in run.wrong]
    for line in wrong:
        print(f"FAULT {line}")
    figures = {f"chaos.{name}": value for name, value in {**figures_of(runs), **verdict.figures}.items()}
    if options.agent:
        figures["harness.rollouts"] = sum(run.accounts.programs for run in runs)
        figures["harness.kills"] = sum(len(each.fault.victims) for each in done if "kill" in each.fault.kind)
        figures |= {f"harness.{name}": verdict.figures[name] for name in ("lost", "left_behind")}
    print_figures(figures)
    return verdict.exit_code or int(bool(wrong))
