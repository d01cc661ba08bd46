"""Any topology: rollouts, tokens and tool calls a second, how busy each actor is, and what limits them.

    agent-rl bench throughput FILE --seconds 60
    agent-rl bench throughput FILE --namespaces --mbit 20    # its hosts as namespaces of this machine, over slow links

The topology runs as `agent-rl run` would run it, in a directory of its own. Once the stage to be measured (the first of
kind rl, or else evaluate; or --stage NAME) has done --warm-steps steps, what the actors do is measured for --seconds;
then the run is interrupted. A file with several hosts is started as by `agent-rl up`, from its main host; bytes between
hosts are those at their network interfaces. Stages before the measured one run first: name a trained model by --set to
skip them.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import trio

from agent_rl.config.examples import topology_file
from agent_rl.config.load import load_topology
from agent_rl.config.source import TopologyError
from agent_rl.config.topology import Stage
from agent_rl.topology_checks.topology import check_topology
from benchmarks.command import Overrides, WrongOptions
from benchmarks.hosts import Hosts, Traffic, hosts_of, settings_of
from benchmarks.reporting import print_figures, print_table
from benchmarks.runs import LOOK_SECONDS, RunFailed, Window, stage_rows, window

SATURATED = 0.9
"""A share of the time, of the cores or of what a link carries, from which on something is held to be the limit."""
SATURATED_LINK = 0.75
"""A link is used in bursts: while it carries nothing, the run waits for what it has carried."""
BUDGET_SPENT = "the staleness budget is spent"
"""How the scheduler says that it waits for the next policy."""


@dataclass
class Options:
    """The options."""

    file: str
    """The topology file, or the name of an example."""
    _: KW_ONLY
    seconds: float = 60.0
    """How long to measure."""
    stage: str | None = None
    """The stage's name."""
    warm_steps: int = 2
    """Steps of the stage that come before."""
    namespaces: bool = False
    """Hosts are namespaces of this machine, with networks of their own, whatever their addresses. Needs root."""
    mbit: float | None = None
    """With --namespaces: what each host can send, in Mbit/s."""
    ssh: str = "ssh"
    """How other machines are reached, as for agent-rl up."""
    overrides: Overrides = ()
    """As for agent-rl run."""


@dataclass(frozen=True)
class Measured:
    """What the actors of a run did, and its hosts meanwhile."""

    actors: Window
    hosts: Mapping[str, Traffic]


def limit(measured: Measured, cores: int) -> str:
    """What keeps the topology from being faster, said from the shares that were measured.

    An actor or a link that is in use all the time; else the cores; else the staleness budget, when the scheduler waits
    for the next policy most of the time, and what takes most of the time from one policy to the next.
    """
    actors = measured.actors
    shares = {_busy(actor): share / SATURATED for actor, share in actors.busy.items()}
    if not shares:
        return "nothing was heard of any actor"
    shares |= {_sends(host, each): each.used / SATURATED_LINK for host, each in measured.hosts.items() if each.capacity}
    most = max(shares, key=lambda name: shares[name])
    if shares[most] >= 1:
        return most
    full = [host for host, each in measured.hosts.items() if each.cores_busy >= SATURATED]
    if full or sum(actors.cpu.values()) >= SATURATED * cores:
        hungriest = max(actors.cpu, key=lambda actor: actors.cpu[actor])
        return f"cores{' of ' + ', '.join(full) if len(measured.hosts) > 1 else ''} (most: {hungriest})"
    spent = sum(
        share
        for actor, waits in actors.waits.items()
        if actor.startswith("kv_scheduler.")
        for what, share in waits.items()
        if BUDGET_SPENT in what
    )
    if spent >= 0.5:
        return f"staleness budget (spent {100 * spent:.0f} % of the time; from policy to policy mostly {most})"
    return f"{most} (and waiting)"


def _busy(actor: str) -> str:
    return f"the engine of {actor}" if actor.startswith("rollout_generator.") else actor


def _sends(host: str, traffic: Traffic) -> str:
    capacity = traffic.capacity or 0.0
    return f"the link of {host}, which sends {traffic.sent / 1e6:.2f} of {capacity / 1e6:.2f} MB/s"


def stage_to_measure(stages: Sequence[Stage], name: str | None) -> int | None:
    """Its index; None when no stage is called so, or none makes rollouts."""
    if name is not None:
        return next((index for index, stage in enumerate(stages) if stage.name == name), None)
    for kind in ("rl", "evaluate"):
        for index, stage in enumerate(stages):
            if stage.kind == kind:
                return index
    return None


async def measure(
    hosts: Hosts, file: Path, folder: Path, overrides: Sequence[str], stage: int, warm_steps: int, seconds: float
) -> Measured:
    """Run the topology until the stage was measured for so long, or has ended."""
    capacities = await hosts.capacities()
    async with hosts.running(file, folder, overrides) as run:
        await run.until(lambda rows: bool(stage_rows(rows, stage, after_step=warm_steps)))
        before, began = await hosts.counters(), trio.current_time()
        with trio.move_on_after(seconds + 1):
            await run.process.wait()
        after, ended = await hosts.counters(), trio.current_time()
        await run.stop()
        rows = stage_rows(run.rows(), stage, after_step=warm_steps)
    if len(rows) < 2:
        raise RunFailed(
            f"the stage was over before {warm_steps} steps were done and a second had passed: nothing to measure"
        )
    first = rows[0]["wall"]
    actors = window([row for row in rows if row["wall"] - first <= seconds + LOOK_SECONDS])
    traffic = {
        host: Traffic.between(before[host], after[host], ended - began, capacities.get(host)) for host in hosts.names
    }
    return Measured(actors, traffic)


def main(options: Options) -> int:
    """Measure one topology."""
    file = topology_file(options.file)
    with tempfile.TemporaryDirectory(prefix="agent-rl-bench-") as name:
        folder, overrides = Path(name), list(options.overrides)
        try:
            if options.namespaces:
                overrides += settings_of(load_topology(file, overrides), folder)
            topology = load_topology(file, overrides)
            faults = check_topology(topology, file, overrides)
        except TopologyError as error:
            faults = error.faults
        if faults:
            print("\n".join(fault.render(file) for fault in faults), file=sys.stderr)
            return 2
        stage = stage_to_measure(topology.stages, options.stage)
        if stage is None:
            names = ", ".join(spec.name for spec in topology.stages)
            raise WrongOptions(
                f"{file} has no stage to measure among {names}: name one of kind rl or evaluate with --stage"
            )
        warm_steps = options.warm_steps if topology.stages[stage].kind == "rl" else 0
        with hosts_of(topology, folder, namespaces=options.namespaces, ssh=options.ssh, rate=options.mbit) as hosts:
            where = file, folder, overrides, stage, warm_steps, options.seconds
            measured = trio.run(measure, hosts, *where)
    report(measured, topology.stages[stage].name)
    return 0


def report(measured: Measured, stage: str) -> None:
    """Print tables and figures."""
    cores = len(os.sched_getaffinity(0))
    actors, limited_by = measured.actors, limit(measured, cores)
    rates = [
        ("rollouts/s", actors.rollouts_per_s),
        ("generated tokens/s", actors.generated_tokens_per_s),
        ("trained tokens/s", actors.trained_tokens_per_s),
        ("tool calls/s", actors.tool_calls_per_s),
        ("steps/min", 60 * actors.steps_per_s),
    ]
    print_table(f"stage {stage}, {actors.seconds:.0f} s", ("figure", "value"), rates)
    rows = []
    for actor in sorted(actors.busy, key=lambda name: -actors.busy[name]):
        waits = sorted(actors.waits.get(actor, {}).items(), key=lambda item: -item[1])
        waited = "; ".join(f"{what} {100 * share:.0f} %" for what, share in waits[:2] if share >= 0.01)
        rows.append((actor, 100 * actors.busy[actor], 100 * actors.cpu[actor], waited or "-"))
    print_table("actors", ("actor", "busy %", "cpu % of a core", "waited for (share of the time)"), rows)
    if len(measured.hosts) > 1:
        header = ("host", "sends MB/s", "receives MB/s", "can send MB/s", "in use %", "cores busy %")
        links = [
            (
                host,
                each.sent / 1e6,
                each.received / 1e6,
                math.nan if each.capacity is None else each.capacity / 1e6,
                100 * each.used,
                100 * each.cores_busy,
            )
            for host, each in measured.hosts.items()
        ]
        print_table("hosts", header, links)
    print(f"limited by: {limited_by}; {sum(actors.cpu.values()):.2f} cores in use by the actors")
    figures: dict[str, float | str | None] = {
        "seconds": actors.seconds,
        "rollouts_per_s": actors.rollouts_per_s,
        "generated_tokens_per_s": actors.generated_tokens_per_s,
        "trained_tokens_per_s": actors.trained_tokens_per_s,
        "tool_calls_per_s": actors.tool_calls_per_s,
        "steps_per_s": actors.steps_per_s,
        **{f"busy_{actor}": share for actor, share in sorted(actors.busy.items())},
        **{f"cpu_{actor}": share for actor, share in sorted(actors.cpu.items())},
        "limited_by": limited_by,
    }
    if len(measured.hosts) > 1:
        figures["bytes_between_hosts_per_s"] = sum(each.sent for each in measured.hosts.values())
        for host, each in measured.hosts.items():
            figures |= {f"sent_per_s_{host}": each.sent, f"received_per_s_{host}": each.received}
            figures |= {f"can_send_per_s_{host}": each.capacity, f"cores_busy_{host}": each.cores_busy}
    print_figures(figures)
