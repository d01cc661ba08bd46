"""``agent-rl simulate``: what a run will take, by production actors in virtual time and models of their devices."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from actors.cli.output import Mistake, say
from actors.cli.parameters import Overlays, Overrides, Positive, TopologyFile


def simulate(
    file: TopologyFile,
    /,
    *overlays: Overlays,
    overrides: Overrides = (),
    profile: Annotated[str, Parameter(help="a name (mi300x, h200) or a file of your own")] = "mi300x",
    steps: Annotated[Positive, Parameter(help="RL steps to simulate")] = 2,
    stage: Annotated[str, Parameter(help="the rl stage by its name; left out: the first one")] = "",
    policy: Annotated[str, Parameter(help="the scheduling policy; left out: the topology's")] = "",
    seed: Annotated[int, Parameter(help="of the lengths of rollouts", validator=Number(gte=0))] = 0,
) -> None:
    """Simulate the rl stage of a topology, and print what takes how long. Nothing is started."""
    from actors.twin.report import twin_lines
    from actors.twin.run import run_twin
    from agent_rl.config.examples import topology_file
    from agent_rl.config.load import load_topology
    from agent_rl.config.plugins import ContractError, called, resolve
    from agent_rl.config.source import TopologyError
    from agent_rl.config.user_modules import look_beside
    from agent_rl.scheduling.policies.check import check_policy
    from agent_rl.simulation.plan import plan_of
    from agent_rl.simulation.prediction import lines
    from agent_rl.simulation.profile import ProfileError, read_profile
    from agent_rl.simulation.trace import TraceError

    first = topology_file(str(file))
    look_beside(first)
    try:
        topology = load_topology((first, *overlays), overrides)
        speeds = read_profile(profile)
        plan = plan_of(topology, speeds, where=str(file), steps=steps, seed=seed, stage=stage, policy=policy)
        code = resolve("scheduling_policy", plan.policy)
        check_policy(called(plan.policy, lambda: code(**plan.policy_settings), "before the start", code))
        made = run_twin(topology, plan, speeds, seed=seed)
    except TopologyError as error:
        raise Mistake(lines=str(error).splitlines()) from error
    except (ContractError, ProfileError, TraceError) as error:
        raise Mistake(str(error)) from error
    say("\n".join([*lines(made.prediction, speeds), "", *twin_lines(made.prediction, made.world, made.warnings)]))
