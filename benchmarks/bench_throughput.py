"""Any topology: rollouts, tokens and tool calls a second, how busy each actor is, and what limits them.

    agent-rl bench throughput FILE --seconds 60

The topology runs as `agent-rl run` would run it, in a directory of its own. Once the stage to be measured (the first of
kind rl, or else evaluate; or --stage NAME) has done --warm-steps steps, what the actors do is measured for --seconds;
then the run is interrupted. Stages before the measured one run first: name a trained model by --set to skip them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import trio

from agent_rl.checks.topology import check_topology
from agent_rl.config.examples import topology_file
from agent_rl.config.load import load_topology
from agent_rl.config.source import TopologyError
from agent_rl.config.topology import Stage
from benchmarks.command import Overrides, WrongOptions
from benchmarks.reporting import print_figures, print_table
from benchmarks.runs import LOOK_SECONDS, RunFailed, Window, running, stage_rows, window

SATURATED = 0.9
"""A share of the time, or of the cores, from which on something is held to be the limit."""


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
    overrides: Overrides = ()
    """As for agent-rl run."""


def limit(measured: Window, cores: int) -> str:
    """What keeps the topology from being faster: an actor, the machine's cores, or waiting."""
    busiest = max(measured.busy, key=lambda actor: measured.busy[actor], default="")
    if busiest and measured.busy[busiest] >= SATURATED:
        return busiest
    if sum(measured.cpu.values()) >= SATURATED * cores:
        hungriest = max(measured.cpu, key=lambda actor: measured.cpu[actor])
        return f"cores (most: {hungriest})"
    return f"{busiest} (and waiting)" if busiest else "nothing was heard of any actor"


def stage_to_measure(stages: Sequence[Stage], name: str | None) -> int | None:
    """Its index; None when no stage is called so, or none makes rollouts."""
    if name is not None:
        return next((index for index, stage in enumerate(stages) if stage.name == name), None)
    for kind in ("rl", "evaluate"):
        for index, stage in enumerate(stages):
            if stage.kind == kind:
                return index
    return None


async def measure(file: Path, overrides: Sequence[str], stage: int, warm_steps: int, seconds: float) -> Window:
    """Run the topology until the stage was measured for so long, or has ended."""
    with tempfile.TemporaryDirectory(prefix="agent-rl-bench-") as folder:
        async with running(file, Path(folder), overrides) as run:
            await run.until(lambda rows: bool(stage_rows(rows, stage, after_step=warm_steps)))
            with trio.move_on_after(seconds + 1):
                await run.process.wait()
            await run.stop()
            rows = stage_rows(run.rows(), stage, after_step=warm_steps)
    if len(rows) < 2:
        raise RunFailed(
            f"the stage was over before {warm_steps} steps were done and a second had passed: nothing to measure"
        )
    first = rows[0]["wall"]
    return window([row for row in rows if row["wall"] - first <= seconds + LOOK_SECONDS])


def main(options: Options) -> int:
    """Measure one topology."""
    file = topology_file(options.file)
    try:
        topology = load_topology(file, options.overrides)
        faults = check_topology(topology, file, options.overrides)
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
    measured = trio.run(measure, file, options.overrides, stage, warm_steps, options.seconds)
    report(measured, topology.stages[stage].name)
    return 0


def report(measured: Window, stage: str) -> None:
    """Print tables and figures."""
    cores = len(os.sched_getaffinity(0))
    limited_by = limit(measured, cores)
    rates = [
        ("rollouts/s", measured.rollouts_per_s),
        ("generated tokens/s", measured.generated_tokens_per_s),
        ("trained tokens/s", measured.trained_tokens_per_s),
        ("tool calls/s", measured.tool_calls_per_s),
        ("steps/min", 60 * measured.steps_per_s),
    ]
    print_table(f"stage {stage}, {measured.seconds:.0f} s", ("figure", "value"), rates)
    actors = []
    for actor in sorted(measured.busy, key=lambda name: -measured.busy[name]):
        waits = sorted(measured.waits.get(actor, {}).items(), key=lambda item: -item[1])
        waited = "; ".join(f"{what} {100 * share:.0f} %" for what, share in waits[:2] if share >= 0.01)
        actors.append((actor, 100 * measured.busy[actor], 100 * measured.cpu[actor], waited or "-"))
    print_table("actors", ("actor", "busy %", "cpu % of a core", "waited for (share of the time)"), actors)
    print(f"limited by: {limited_by}; {sum(measured.cpu.values()):.2f} of {cores} cores in use by the actors")
    print_figures(
        {
            "seconds": measured.seconds,
            "rollouts_per_s": measured.rollouts_per_s,
            "generated_tokens_per_s": measured.generated_tokens_per_s,
            "trained_tokens_per_s": measured.trained_tokens_per_s,
            "tool_calls_per_s": measured.tool_calls_per_s,
            "steps_per_s": measured.steps_per_s,
            **{f"busy_{actor}": share for actor, share in sorted(measured.busy.items())},
            **{f"cpu_{actor}": share for actor, share in sorted(measured.cpu.items())},
            "limited_by": limited_by,
        }
    )
