"""Any topology: rollouts, tokens and tool calls a second, how busy each actor is, and what limits them.

    agent-rl bench throughput FILE --seconds 60

The topology runs as `agent-rl run` would run it, in a directory of its own. Once the stage to be measured (the first of
kind rl, or else evaluate; or --stage NAME) has done --warm-steps steps, what the actors do is measured for --seconds;
then the run is interrupted. A file with several hosts is started as by `agent-rl up`, from its main host. Stages before
the measured one run first: name a trained model by --set to skip them.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import trio

from actors.cluster.places import is_here
from agent_rl.config.examples import topology_file
from agent_rl.config.load import load_topology
from agent_rl.config.source import TopologyError
from agent_rl.config.topology import Stage
from agent_rl.config.user_modules import look_beside
from agent_rl.topology_checks.topology import check_topology
from benchmarks.command import Overrides, WrongOptions
from benchmarks.reporting import print_figures, print_table
from benchmarks.runs import LOOK_SECONDS, RunFailed, Window, running, stage_rows, window

SATURATED = 0.9
"""Share of the time, or of the cores, from which on an actor or the cores are held to be the limit."""
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
    ssh: str = "ssh"
    """How other machines are reached, as for agent-rl up."""
    overrides: Overrides = ()
    """As for agent-rl run."""


# What limits ---------------------------------------------------------------------------------------------------------


def limit(actors: Window, cores: float) -> str:
    """Name what keeps the topology from being faster, from the shares that were measured.

    An actor that is busy all the time; else the cores; else the staleness budget, when the scheduler waits for the next
    policy most of the time, and the actor that takes most of the time from one policy to the next.
    """
    if not actors.busy:
        return "nothing was heard of any actor"
    busiest = max(actors.busy, key=actors.busy.__getitem__)
    most = f"the engine of {busiest}" if busiest.startswith("rollout_generator.") else busiest
    if actors.busy[busiest] >= SATURATED:
        return most
    if sum(actors.cpu.values()) >= SATURATED * cores:
        return f"cores (most: {max(actors.cpu, key=actors.cpu.__getitem__)})"
    waits = [each for actor, each in actors.waits.items() if actor.startswith("kv_scheduler.")]
    spent = sum(share for each in waits for what, share in each.items() if BUDGET_SPENT in what)
    if spent >= 0.5:
        return f"staleness budget (spent {100 * spent:.0f} % of the time; from policy to policy mostly {most})"
    return f"{most} (and waiting)"


# Measuring -----------------------------------------------------------------------------------------------------------


def stage_to_measure(stages: Sequence[Stage], name: str | None) -> int:
    """The index of the stage of that name, or of the first that makes rollouts. Raises WrongOptions."""
    wanted = [[stage.name == name for stage in stages]] if name else []
    wanted = wanted or [[stage.kind == kind for stage in stages] for kind in ("rl", "evaluate")]
    for found in wanted:
        if any(found):
            return found.index(True)
    names = ", ".join(stage.name for stage in stages)
    raise WrongOptions(f"the file has no stage to measure among {names}: name one of kind rl or evaluate with --stage")


async def measure(
    options: Options, file: Path, folder: Path, stage: int, warm_steps: int, up: Sequence[str] | None
) -> Window:
    """Run the topology until the stage was measured for so long, or has ended. ``up``: as of `running`."""
    async with running(file, folder, options.overrides, up=up) as run:
        await run.until(lambda rows: bool(stage_rows(rows, stage, after_step=warm_steps)))
        with trio.move_on_after(options.seconds + 1):
            await run.process.wait()
        await run.stop()
        rows = stage_rows(run.rows(), stage, after_step=warm_steps)
    if len(rows) < 2:
        raise RunFailed(
            f"the stage was over before {warm_steps} steps were done and a second had passed: nothing to measure"
        )
    return window([row for row in rows if row["wall"] - rows[0]["wall"] <= options.seconds + LOOK_SECONDS])


def main(options: Options) -> int:
    """Measure one topology."""
    file = topology_file(options.file)
    look_beside(file)
    try:
        topology = load_topology(file, options.overrides)
        faults = check_topology(topology, file, options.overrides)
    except TopologyError as error:
        faults = error.faults
    if faults:
        print("\n".join(fault.render(file) for fault in faults), file=sys.stderr)
        return 2
    up = ("--ssh", options.ssh) if len(topology.hosts_in_use) > 1 else None
    if up and not is_here(topology.hosts[topology.main_host].address):
        raise WrongOptions(f"{file}: the main host {topology.main_host} is another machine; call this there")
    number = stage_to_measure(topology.stages, options.stage)
    stage = topology.stages[number]
    warm_steps = options.warm_steps if stage.kind == "rl" else 0
    with tempfile.TemporaryDirectory(prefix="agent-rl-bench-") as folder:
        measured = trio.run(measure, options, file, Path(folder), number, warm_steps, up)
    report(measured, stage.name, math.inf if up else len(os.sched_getaffinity(0)))
    return 0


def report(actors: Window, stage: str, cores: float) -> None:
    """Print tables and figures. ``cores``: those that all actors share; infinite for several hosts."""
    limited_by = limit(actors, cores)
    names = ("rollouts", "generated_tokens", "trained_tokens", "tool_calls", "steps")
    rates: dict[str, float] = {f"{name}_per_s": getattr(actors, f"{name}_per_s") for name in names}
    print_table(f"stage {stage}, {actors.seconds:.0f} s", ("figure", "value"), list(rates.items()))
    rows = []
    for actor in sorted(actors.busy, key=lambda name: -actors.busy[name]):
        waits = sorted(actors.waits.get(actor, {}).items(), key=lambda item: -item[1])
        waited = "; ".join(f"{what} {100 * share:.0f} %" for what, share in waits[:2] if share >= 0.01)
        rows.append((actor, 100 * actors.busy[actor], 100 * actors.cpu[actor], waited or "-"))
    print_table("actors", ("actor", "busy %", "cpu % of a core", "waited for (share of the time)"), rows)
    figures: dict[str, float | str] = {
        "seconds": actors.seconds,
        **rates,
        **{f"busy_{actor}": share for actor, share in sorted(actors.busy.items())},
        **{f"cpu_{actor}": share for actor, share in sorted(actors.cpu.items())},
        "limited_by": limited_by,
    }
    print(f"limited by: {limited_by}; {sum(actors.cpu.values()):.2f} cores in use by the actors")
    print_figures(figures)
