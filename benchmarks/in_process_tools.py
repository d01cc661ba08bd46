"""Python run and answers judged in the caller's own process, without a sandbox: for benchmarks of tiny models alone.

Whatever the code does, it does to this process; nothing bounds its time or memory.
"""

from __future__ import annotations

import ast
import io
import sys
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from actors.tool_executor import ToolExecutor
from agent_rl.environments.maths.rewards import answers_equal, final_answer
from agent_rl.environments.python_tools import PYTHON_TOOL
from agent_rl.messages import (
    Judgement,
    JudgementReply,
    JudgementWanted,
    ToolCall,
    ToolOutcome,
    ToolResult,
    TurnObserved,
)


@dataclass(frozen=True, slots=True)
class Ran:
    """How code ended. ``value`` is the representation of its last expression's value, empty for None."""

    outcome: ToolOutcome
    stdout: str
    stderr: str
    value: str
    seconds: float


def run_python(code: str, stdin: str = "") -> Ran:
    """Run code. The result is as the sandbox's: output, the value of a last expression, or the error's last line."""
    started = time.perf_counter()
    namespace: dict[str, object] = {"__name__": "__main__"}
    out, err, own_stdin = io.StringIO(), io.StringIO(), sys.stdin
    outcome: ToolOutcome = "success"
    value = ""
    sys.stdin = io.StringIO(stdin)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            tree = ast.parse(code, "<code>")
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "<code>", "exec", dont_inherit=True), namespace)  # noqa: S102  what it is for
            if isinstance(last, ast.Expr):
                expression = compile(ast.Expression(last.value), "<code>", "eval", dont_inherit=True)
                shown = eval(expression, namespace)  # noqa: S307
                value = "" if shown is None else repr(shown)
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever the model's code raises is its result
        outcome = "error"
        err.write(traceback.format_exception_only(error)[-1])
    finally:
        sys.stdin = own_stdin
    return Ran(outcome, out.getvalue(), err.getvalue(), value, time.perf_counter() - started)


class InProcessExecutor(ToolExecutor):
    """One changed line of a topology chooses it. The sandbox's interpreters are started all the same, and not used."""

    async def execute(self, call: ToolCall) -> ToolResult:
        """Run one call in this process."""
        code, stdin = call.arguments.get("code"), call.arguments.get("input", "")
        if call.tool != PYTHON_TOOL or not isinstance(code, str) or not isinstance(stdin, str):
            return await super().execute(call)
        ran = run_python(code, stdin)
        return ToolResult(call.call, ran.outcome, ran.stdout, ran.stderr, ran.value, 0.0, ran.seconds)

    async def handle(self, message: ToolCall | JudgementWanted) -> ToolResult | TurnObserved | JudgementReply:
        """Answers are judged in this process too."""
        if isinstance(message, JudgementWanted):
            started = time.perf_counter()
            equal = answers_equal(
                message.problem.answer, final_answer(*message.transcript.texts) or "", message.problem.text
            )
            judgement = Judgement(float(equal), equal, note="in process")
            return JudgementReply(message.rollout, judgement, seconds=time.perf_counter() - started)
        return await super().handle(message)
