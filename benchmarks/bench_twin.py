"""How many engines a run needs: its production actors in virtual time, with models of its devices.

    agent-rl bench twin                                       # 512 groups of 32 rollouts, on 64 devices
    agent-rl bench twin FILE --engines 32 40 48
    agent-rl bench twin FILE --profile h200 --set actors.learner.ranks=16

A row for each number of engines: seconds of a step, tokens written for training a second, and the shares of the time
in which engines and learner are idle. Nothing is started; docs/scheduling.md says what is
modelled. The same file, seed and profile give the same table.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from agent_rl.config.examples import topology_file
from agent_rl.config.load import load_topology
from agent_rl.config.plugins import ContractError, called, resolve
from agent_rl.config.source import TopologyError
from agent_rl.config.user_modules import look_beside
from agent_rl.scheduling.policies.check import check_policy
from benchmarks.command import Overrides, WrongOptions
from benchmarks.reporting import print_figures, print_table
from benchmarks.twin.plan import GENERATOR, plan_of
from benchmarks.twin.profile import Profile, ProfileError, read_profile
from benchmarks.twin.run import TwinRun, run_twin
from benchmarks.twin.trace import TraceError

PAPER = Path(__file__).with_name("twin") / "paper_size.toml"
"""A run of rStar2-Agent's size."""
FULL = 0.05
"""An executor whose places are all taken for a larger share of the makespan lets calls wait."""


@dataclass
class Options:
    """The options."""

    file: str = str(PAPER)
    """The topology file, or the name of an example."""
    _: KW_ONLY
    engines: tuple[int, ...] = ()
    """Numbers of engines to try; none: the topology's."""
    profile: str = "mi300x"
    """Its name (mi300x, h200), or a file of your own."""
    steps: int = 2
    """RL steps to simulate."""
    stage: str = ""
    """The rl stage by its name; left out: the first one."""
    policy: str = ""
    """The scheduling policy; left out: the topology's."""
    seed: int = 0
    """Of the lengths of rollouts."""
    overrides: Overrides = ()
    """As for agent-rl run."""


def main(options: Options) -> int:
    """Run the twin of each number of engines, and print the table."""
    if options.steps < 1:
        raise WrongOptions("--steps must be at least 1")
    file = topology_file(options.file)
    look_beside(file)
    try:
        profile = read_profile(options.profile)
        made = [
            simulated(file, profile, options, (f"actors.{GENERATOR}.replicas={number}",)) for number in options.engines
        ] or [simulated(file, profile, options)]
    except (TopologyError, ContractError, ProfileError, TraceError) as error:
        raise WrongOptions(str(error)) from error
    rows = [figures_of(each) for each in made]
    speeds = "measured" if profile.measured else "not measured here"
    print_table(f"{file.name}, {profile.about} ({speeds})", list(rows[0]), [list(row.values()) for row in rows])
    for row, each in zip(rows, made, strict=True):
        for warning in warnings_of(each):
            print(f"{row['engines']} engines: {warning}")
    print_figures({f"{row['engines']}.{name}": value for row in rows for name, value in row.items()})
    return 0


def simulated(file: Path, profile: Profile, options: Options, engines: tuple[str, ...] = ()) -> TwinRun:
    """The twin of the topology with this number of engines."""
    topology = load_topology((file,), (*options.overrides, *engines))
    plan = plan_of(
        topology,
        profile,
        where=str(file),
        steps=options.steps,
        seed=options.seed,
        stage=options.stage,
        policy=options.policy,
    )
    code = resolve("scheduling_policy", plan.policy)
    check_policy(called(plan.policy, lambda: code(**plan.policy_settings), "before the start", code))
    return run_twin(topology, plan, profile, seed=options.seed)


def figures_of(made: TwinRun) -> dict[str, float]:
    """The figures of a run, by the heading of their column. Shares are of the makespan."""
    outcome, plan = made.outcome, made.plan
    return {
        "engines": len(made.engines),
        "devices": plan.devices,
        "step s": outcome.makespan_s / outcome.steps,
        "tokens/s": outcome.tokens_per_s,
        "engines idle": outcome.idle_share,
        "learner idle": outcome.learner_idle_share,
        "executor full": max((each.full_s for each in made.world.places.values()), default=0.0) / outcome.makespan_s,
        "preempted": outcome.preempted_share,
        "hits": outcome.hit_rate,
        "staleness": statistics.fmean(outcome.staleness or (0,)),
    }


def warnings_of(made: TwinRun) -> Iterator[str]:
    """Executors that let calls wait, unsafe decisions of the policy, and the warnings that actors logged."""
    for executor, places in sorted(made.world.places.items()):
        if (full := places.full_s / made.outcome.makespan_s) > FULL:
            yield f"{executor}: its {places.count} places are all taken for {full:.1%} of the makespan; more are due"
    for what, count in sorted((made.outcome.faults + made.warnings).items()):
        yield f"{what}: {count:,} times"
