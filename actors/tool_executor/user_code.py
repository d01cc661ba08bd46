"""Runs tools, judgements and observations of users under a deadline.

An error of the user's code becomes part of the reply, with its place in the code where that is known.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING

import trio

from actors.user_threads import DeadlineError, NoThreadError
from agent_rl.config.plugins import ContractError, defined_at, described, place_of
from agent_rl.environments.base import BadArgumentError, BlockedError, CheckError, CheckUnavailableError, ToolOutput
from agent_rl.environments.judging import fault_of, observation, sound_judgement
from agent_rl.environments.tools import as_output, bounded
from agent_rl.messages import Judgement, JudgementReply, TurnObserved

if TYPE_CHECKING:
    from actors.tool_executor.context import ExecutorContext
    from actors.user_threads import Threads
    from agent_rl.environments.base import Environment, Tool
    from agent_rl.messages import JudgementWanted, ObserveTurn, ToolCall


LAST_CALLS = 16
"""How many calls of a tool are remembered for an alarm."""


class Unanswered:
    """The tools that do not answer on this host: those that hold threads, and those whose calls end at their deadline.

    The words of an alarm stay the same while its cause does, so that it is shown once.
    """

    def __init__(self, threads: Threads) -> None:
        self.threads = threads
        self._given_up: defaultdict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=LAST_CALLS))
        self._where: dict[str, str] = {}

    def ended(self, tool: str, given_up_at: str = "") -> None:
        """A call has ended: in order, or given up at this place of the tool's code."""
        self._given_up[tool].append(bool(given_up_at))
        if given_up_at:
            self._where.setdefault(tool, given_up_at)
        elif not any(self._given_up[tool]):
            self._where.pop(tool, None)

    def alarm(self) -> str:
        """What the user must mend, in words: tool, place, and share; empty where there is nothing."""
        said, threads = [], self.threads
        if quarters := 4 * len(threads.hung) // threads.most:
            tools: dict[str, str] = {}
            for hung in threads.hung.values():
                tools.setdefault(hung.partition(" (")[0], hung)
            who = ", ".join(tools[name] for name in sorted(tools))
            share = f"{25 * quarters} % of the {threads.most} threads" + (" or more" if quarters < 4 else "")
            said.append(f"{share} for tools are held by calls that hang: {who}")
        for tool, calls in sorted(self._given_up.items()):
            if len(calls) == LAST_CALLS and 2 * Counter(calls)[True] >= LAST_CALLS:
                said.append(f"half of the last calls of {tool}, or more, were given up ({self._where[tool]})")
        return "; ".join(said)


async def observed(environment: Environment, asked: ObserveTurn, context: ExecutorContext) -> TurnObserved:
    """The environment's answer to a turn, or its fault."""
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


async def judged(environment: Environment, asked: JudgementWanted, context: ExecutorContext) -> JudgementReply:
    """The environment's judgement of a rollout, its fault, or why no checker judged it."""
    began = trio.current_time()
    judgement: Judgement | None = None
    fault = unavailable = ""
    try:
        async with context.enforced():
            judgement = sound_judgement(await environment.judge(asked.problem, asked.transcript, context))
    except CheckError as error:
        judgement = Judgement(0.0, success=False, note=str(error))
    except (CheckUnavailableError, NoThreadError) as error:
        unavailable = str(error)
    except DeadlineError as error:
        where = str(error) or defined_at(type(environment).judge)
        fault = f"{type(environment).__name__}.judge took longer than judge_seconds = {context.seconds:g}"
        fault += f" ({where})" if where else ""
    except (Exception, SystemExit, BlockedError) as error:  # noqa: BLE001  the user's code may raise anything
        fault = fault_of(environment, "judge", error)
    return JudgementReply(asked.rollout, judgement, fault, unavailable, trio.current_time() - began)


async def run_tool(
    tool: Tool, call: ToolCall, context: ExecutorContext, unanswered: Unanswered, output_bytes: int
) -> ToolOutput:
    """The tool's output, each text at most ``output_bytes`` long. A failure is an outcome that the model reads."""
    given_up_at, threads = "", unanswered.threads
    try:
        async with context.enforced():
            returned = await tool.call(call.arguments, call.state, context)
        return bounded(as_output(returned), output_bytes, stateful=tool.stateful)
    except BadArgumentError as error:
        return bounded(ToolOutput("malformed", stderr=str(error)), output_bytes, stateful=False)
    except DeadlineError as error:
        given_up_at = str(error) or _defined(tool)
        hung = f"{len(threads.hung)} of {threads.most} threads"
        context.log.warning("a tool was given up at its deadline", call=call.call, where=str(error), hung=hung)
        return ToolOutput("timeout", run_seconds=context.seconds)
    except NoThreadError as error:
        context.log.error("no thread for a tool", call=call.call, why=str(error))  # noqa: TRY400
        return ToolOutput("unavailable", stderr=str(error))
    except BlockedError as error:
        given_up_at = place_of(error) or _defined(tool)
        context.log.error("a tool blocked the executor", call=call.call, why=str(error))  # noqa: TRY400
        return ToolOutput("timeout")
    except (Exception, SystemExit) as error:  # noqa: BLE001  a tool may raise anything: the model reads it
        where = place_of(error) or _defined(tool)
        message = f"{type(error).__name__}: {error}"
        context.log.warning("a tool failed", call=call.call, error=message, where=where)
        return bounded(ToolOutput("error", stderr=message), output_bytes, stateful=False)
    finally:
        unanswered.ended(tool.name, given_up_at)


def _defined(tool: Tool) -> str:
    return defined_at(getattr(tool, "function", type(tool)))
