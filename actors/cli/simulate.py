"""``agent-rl simulate`` and ``calibrate``: what a run will take, by models of engines, tools and learner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from actors.cli.output import Mistake, showing
from actors.cli.parameters import Overlays, Overrides, Positive, RunDirectory, TopologyFile, several

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent_rl.config.topology import Topology
    from agent_rl.simulation.plan import Plan
    from agent_rl.simulation.profile import Profile

PROFILE, TRACES = "profile.toml", "traces"


def simulate(
    file: TopologyFile,
    /,
    *overlays: Overlays,
    overrides: Overrides = (),
    profile: Annotated[str, Parameter(help="a name (mi300x, h200) or a file of agent-rl calibrate")] = "mi300x",
    steps: Annotated[Positive, Parameter(help="RL steps to simulate")] = 10,
    stage: Annotated[str, Parameter(help="the rl stage by its name; left out: the first one")] = "",
    policy: Annotated[str, Parameter(help="the scheduling policy; left out: the topology's")] = "",
    seed: Annotated[int, Parameter(help="of the lengths of rollouts", validator=Number(gte=0))] = 0,
    traces: Annotated[
        Path | None, Parameter(metavar="DIR", help="take groups from the traces (*.jsonl) there, in order of names")
    ] = None,
    schedule: Annotated[
        Path | None, Parameter(metavar="FILE", help="write each decision with its time there, as JSON lines")
    ] = None,
    tuned: Annotated[
        bool,
        Parameter(name="--tune", help="try other splits of the devices, staleness budgets and rollouts an engine"),
    ] = False,
    full: Annotated[
        bool, Parameter(negative="", help="run the production actors in virtual time, and charge their messages")
    ] = False,
    gantt: Annotated[
        tuple[Path, ...], several("FILE", "draw a chart of the run (.html or .png) there; needs --full")
    ] = (),
) -> None:
    """Simulate the rl stage of a topology, and print what takes how long. Nothing is started."""
    from functools import partial

    from agent_rl.config.examples import topology_file
    from agent_rl.config.load import load_topology
    from agent_rl.config.source import TopologyError
    from agent_rl.files.disk import DiskError, whole
    from agent_rl.simulation.gantt import GanttError, check_paths
    from agent_rl.simulation.plan import plan_of
    from agent_rl.simulation.prediction import lines, predict, schedule_line
    from agent_rl.simulation.profile import ProfileError, read_profile
    from agent_rl.simulation.trace import TraceError
    from agent_rl.simulation.tuning import lines_of, tune

    refuse_combination(full=full, tuned=tuned, schedule=schedule, gantt=gantt)
    found = topology_file(str(file))
    try:
        check_paths(gantt)
        topology = load_topology((found, *overlays), overrides)
        speeds = read_profile(profile)
        planned = partial(
            plan_of,
            topology,
            speeds,
            where=str(file),
            steps=steps,
            seed=seed,
            stage=stage,
            policy=policy,
            traces=traces,
        )
        if tuned:
            print("\n".join(lines_of(tune(lambda choice: planned(choice=choice)))))
            return
        plan = planned()
        if full:
            print("\n".join(full_twin(topology, plan, speeds, seed, gantt)))
            return
        decisions: list[str] = []
        made = predict(plan, lambda now, decision: decisions.append(schedule_line(now, decision)) if schedule else None)
        if schedule is not None:
            with whole(schedule) as written:
                written.write_text("".join(decisions), encoding="utf-8")
    except TopologyError as error:
        raise Mistake(lines=str(error).splitlines()) from error
    except (GanttError, ProfileError, TraceError, DiskError) as error:
        raise Mistake(str(error)) from error
    with showing(schedule or Path()):
        print("\n".join(lines(made, speeds)))


def refuse_combination(*, full: bool, tuned: bool, schedule: Path | None, gantt: tuple[Path, ...]) -> None:
    """Raise Mistake for options that do not go together."""
    if gantt and not full:
        raise Mistake("--gantt draws what actors do, and only the full twin has actors; add --full")
    if full and (tuned or schedule is not None):
        name = "--tune" if tuned else "--schedule"
        raise Mistake(f"{name} belongs to the fast level; leave it out, or leave out --full")


def full_twin(topology: Topology, plan: Plan, speeds: Profile, seed: int, gantt: tuple[Path, ...]) -> Iterator[str]:
    """Run the full twin, and give the lines of its result. Raises GanttError and DiskError."""
    from actors.twin.report import chart, twin_lines
    from actors.twin.run import run_twin
    from agent_rl.simulation.gantt import write
    from agent_rl.simulation.prediction import lines

    made = run_twin(topology, plan, speeds, seed=seed)
    yield from lines(made.prediction, speeds)
    yield ""
    yield from twin_lines(made.prediction, made.world, made.warnings)
    for path in write(chart(made.prediction, made.world), gantt):
        yield f"{path}: the chart"


def calibrate(
    directory: RunDirectory | None = None,
    /,
    *,
    out: Annotated[
        Path | None, Parameter(metavar="DIR", help="where profile.toml and traces/recorded.jsonl go; left out: RUN")
    ] = None,
    costs: Annotated[
        bool,
        Parameter(
            name="--messages",
            negative="",
            help="measure what messages cost actors on this machine, and print the table of a profile; needs no RUN",
        ),
    ] = False,
) -> None:
    """Fit a profile to a run, for ``agent-rl simulate --profile``, and write its rollouts' lengths as a trace."""
    from actors.cli.records import decode_stored
    from agent_rl.config.full import toml_text
    from agent_rl.files.disk import DiskError, whole
    from agent_rl.records.journal import JournalError
    from agent_rl.simulation.calibration import CalibrationError, fit, read_run, trace_of
    from agent_rl.simulation.trace import write

    if costs == (directory is not None):
        raise Mistake("name the directory of a run, or --messages" + (", not both" if costs else ""))
    if directory is None:
        from actors.twin.measuring import measured_costs

        table = {
            role: {kind: cost.model_dump() for kind, cost in kinds.items()} for role, kinds in measured_costs().items()
        }
        print(toml_text({"messages": table}))
        return
    folder = out or directory
    try:
        run = read_run(directory, decode_stored)
        made = fit(run)
        (folder / TRACES).mkdir(parents=True, exist_ok=True)
        with whole(folder / PROFILE) as partial:
            partial.write_text(toml_text(made.model_dump()), encoding="utf-8")
        with whole(folder / TRACES / "recorded.jsonl") as partial:
            write(trace_of(run, made), partial)
    except (CalibrationError, JournalError, DiskError) as error:
        raise Mistake(str(error)) from error
    with showing(folder / PROFILE):
        print(f"{folder / PROFILE} and {folder / TRACES}: of {len(run.groups)} groups and {len(run.timeline)} rows")
