"""An environment's answer to a turn, in an executor: within its deadline, looked at, and its faults told with file and line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.execution.deadlines import DeadlineError, NoThreadError
from agent_rl.config.plugins import ContractError, defined_at, described, place_of
from agent_rl.environments.base import BlockedError
from agent_rl.environments.observing import observation
from agent_rl.messages import TurnObserved

if TYPE_CHECKING:
    from actors.execution.context import ExecutorContext
    from agent_rl.environments.base import Environment
    from agent_rl.messages import ObserveTurn


async def observed(environment: Environment, asked: ObserveTurn, context: ExecutorContext) -> TurnObserved:
    """What the environment answers, or its fault."""
    try:
        async with context.enforced():
            answer = await environment.observe(asked.problem, asked.transcript, asked.state, context)
        return observation(answer, len(asked.transcript.texts), asked.state)
    except DeadlineError as error:
        fault, place = "observe took longer than its deadline", str(error)
    except (ContractError, NoThreadError) as error:
        fault, place = str(error), ""
    except (Exception, SystemExit, BlockedError) as error:  # noqa: BLE001  the user's code may raise anything
        fault, place = f"observe fails with {described(error)}", place_of(error)
    where = "" if place and place in fault else place or defined_at(type(environment).observe)
    return TurnObserved(fault=f"environment {asked.problem.environment!r}: {fault}" + (f" ({where})" if where else ""))
