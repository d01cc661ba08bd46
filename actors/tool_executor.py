"""The tool executor: runs the model's Python and judges answers, each in a forked child of a warm interpreter."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import PositiveFloat, PositiveInt

from actors.base import Actor, Call, Settings
from actors.rates import Rate
from actors.sandbox.client import ExecutionLimits, Sandbox
from agent_rl.declared import tool_faults
from agent_rl.messages import ToolCall, ToolOutcome, ToolResult, Verdict, VerifyAnswer
from agent_rl.prompts import PYTHON_TOOL, TOOLS
from agent_rl.topology import Topology


class ToolExecutorSettings(Settings):
    """Warm interpreters and the limits of a call."""

    interpreters: PositiveInt = 1
    children: PositiveInt = 8
    """Calls running at once per interpreter."""
    checkers: PositiveInt = 1
    """Interpreters that judge answers; they never run model code."""
    warm_modules: tuple[str, ...] = ()
    """Modules imported before forking, for code that needs them; each makes every fork a little dearer."""
    wall_seconds: PositiveFloat = 4.0
    cpu_seconds: PositiveFloat = 4.0
    memory_mib: PositiveInt = 512
    output_bytes: PositiveInt = 65536
    check_seconds: PositiveFloat = 10.0


class ToolExecutor(Actor):
    """Stateless: any number of calls at once, bounded by the sandbox's children."""

    concurrency = 4096
    drain_order = 40
    Settings = ToolExecutorSettings
    receives = (Call(ToolCall, ToolResult), Call(VerifyAnswer, Verdict))
    links: ClassVar = {}
    tools: ClassVar[tuple[dict[str, Any], ...]] = TOOLS
    """What the model is told it may call, as JSON schemas: an executor with another tool adds it here, and to `execute`."""

    @classmethod
    def probe(cls, topology: Topology, settings: ToolExecutorSettings) -> list[str]:
        """Look at the tools it declares."""
        del topology, settings
        return tool_faults(cls.tools)

    async def start(self) -> None:
        """Warm the interpreters up."""
        settings: ToolExecutorSettings = self.context.settings
        limits = ExecutionLimits(
            wall_seconds=settings.wall_seconds,
            cpu_seconds=settings.cpu_seconds,
            memory_bytes=settings.memory_mib * 2**20,
            output_bytes=settings.output_bytes,
        )
        self._tools = Sandbox(
            interpreters=settings.interpreters,
            children=settings.children,
            warm_modules=settings.warm_modules,
            limits=limits,
        )
        checks = ExecutionLimits(
            wall_seconds=settings.check_seconds, cpu_seconds=settings.check_seconds, memory_bytes=2**30
        )
        self._checks = Sandbox(interpreters=settings.checkers, children=settings.children, limits=checks, checker=True)
        await self.context.nursery.start(self._tools.run)
        await self.context.nursery.start(self._checks.run)
        self._outcomes: dict[str, int] = {}
        self._done = self._checked = 0
        self._busy = 0.0
        self._rate = Rate(self.context.now)

    async def handle(self, message: Any) -> ToolResult | Verdict:
        """Run a call or judge an answer."""
        if isinstance(message, ToolCall):
            result = await self.execute(message)
            self._outcomes[result.outcome] = self._outcomes.get(result.outcome, 0) + 1
            self._done += 1
            self._busy += result.run_seconds
            return result
        if isinstance(message, VerifyAnswer):
            self._checked += 1
            check = await self._checks.check(message.gold, message.prediction)
            return Verdict(message.check, check.equal, check.method, check.failure, check.seconds)
        raise TypeError(f"ToolExecutor does not handle {type(message).__name__}")

    async def execute(self, call: ToolCall) -> ToolResult:
        """Run one call. What is wrong with it is an outcome for the model to read, never an exception."""
        if call.tool != PYTHON_TOOL:
            known = ", ".join(tool["function"]["name"] for tool in self.tools)
            return refused(call, "unknown_tool", f"there is no tool {call.tool!r}; there is {known}")
        code, stdin = call.arguments.get("code"), call.arguments.get("input", "")
        if not isinstance(code, str) or not isinstance(stdin, str):
            return refused(call, "malformed", 'the arguments must be {"code": string, "input": string (optional)}')
        done = await self._tools.execute(code, stdin)
        return ToolResult(
            call=call.call,
            outcome=done.outcome,
            stdout=done.stdout,
            stderr=done.stderr,
            value=done.value,
            queue_seconds=done.queue_seconds,
            run_seconds=done.run_seconds,
        )

    def busy_seconds(self) -> float:
        """Seconds of all children, shared among the places for them: 1 s is a second in which every place was taken."""
        settings: ToolExecutorSettings = self.context.settings
        return self._busy / (settings.interpreters * settings.children)

    def cpu_seconds(self) -> float:
        """With that of the interpreters and of the calls they ran."""
        return super().cpu_seconds() + self._tools.cpu_seconds() + self._checks.cpu_seconds()

    def status(self) -> tuple[str, dict[str, float]]:
        """Rates since the last status, outcomes since the start."""
        rates = self._rate({"calls": self._done, "checks": self._checked, "busy": self._busy})
        figures = {
            "calls_per_s": rates["calls"],
            "checks_per_s": rates["checks"],
            "children_busy": rates["busy"],
            "queue": self._tools.figures.get("waiting", 0.0),
            "calls": self._done,
        }
        return "running", figures | {f"outcome_{name}": float(count) for name, count in self._outcomes.items()}


def refused(call: ToolCall, outcome: ToolOutcome, reason: str) -> ToolResult:
    """The result of a call that was not run; the model reads the reason."""
    return ToolResult(
        call=call.call, outcome=outcome, stdout="", stderr=reason, value="", queue_seconds=0.0, run_seconds=0.0
    )
