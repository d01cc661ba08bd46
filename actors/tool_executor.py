"""The tool executor: runs the model's Python and judges answers, each in a forked child of a warm interpreter."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Annotated, Any, ClassVar, get_args

from pydantic import Field, PositiveFloat, PositiveInt

from actors.base import Actor, Call, Settings
from actors.sandbox.isolation.control_groups import WEIGHT, Wanted
from actors.sandbox.isolation.levels import Isolation
from actors.sandbox.owner.client import ExecutionLimits, Sandbox
from actors.sandbox.owner.interpreter import Scratch
from agent_rl.checks.declared import tool_faults
from agent_rl.config.topology import Topology
from agent_rl.messages import Metric, ToolCall, ToolOutcome, ToolResult, Verdict, VerifyAnswer
from agent_rl.observe.metrics import Histogram, counter, gauge
from agent_rl.observe.rates import Rate
from agent_rl.rollout.prompts import JUPYTER_TOOL, JUPYTER_TOOLS, PYTHON_TOOL, TOOLS


class ToolExecutorSettings(Settings):
    """Warm interpreters and the limits of a call."""

    isolation: Isolation = "host"
    """How model code is isolated: as strongly as the host allows, or a level to insist on; see docs/sandbox.md."""
    interpreters: PositiveInt = 1
    children: PositiveInt = 8
    """Calls running at once, times ``interpreters``."""
    checkers: PositiveInt = 1
    """Interpreters that judge answers; they never run model code."""
    warm_modules: tuple[str, ...] = ("numpy", "sympy")
    """Modules imported before forking, for code that names them. Each has interpreters of its own, and so have the first two,
    the first three and so on; they are started when the first code comes that names all of these."""
    wall_seconds: PositiveFloat = 4.0
    """The most a call may take; its argument ``timeout`` may ask for less."""
    cpu_seconds: PositiveFloat = 4.0
    memory_mib: PositiveInt = 512
    """Address space of each process of a call, beyond the interpreter's."""
    processes: PositiveInt = 16
    """Processes and threads of a call. Those of one call that hold a lock of the kernel keep its neighbours waiting the longer the more they are."""
    control_groups: Wanted = "host"
    """Whether the calls are limited in total too: where the host allows it, always ("required"), or not ("off")."""
    calls_memory_mib: PositiveInt | None = None
    """Memory of all calls and their interpreters together; by default half of what the machine, or the groups around the executor,
    have. The checkers have half as much, in a group of their own."""
    calls_weight: Annotated[int, Field(ge=1, le=10000)] = WEIGHT
    """Processor time of all calls and their interpreters together, where there is not enough for all who want some: against 100 for each
    group beside theirs, and in version 1 for each process of the executor's own group. The checkers have as much."""
    output_bytes: PositiveInt = 65536
    file_mib: PositiveInt = 16
    """Size of a file."""
    scratch_mib: PositiveInt = 64
    """Size of a call's /tmp, which is memory."""
    sessions: PositiveInt = 64
    """Live sessions of the notebook tool; the one idle longest is ended to make room."""
    code_bytes: PositiveInt = 1 << 20
    """Larger code, or input, is refused."""
    check_seconds: PositiveFloat = 10.0


class BadArgumentError(Exception):
    """What is wrong with a call's arguments, in words for the model."""


class ToolExecutor(Actor):
    """Any number of calls at once, bounded by the sandbox's children; without state between the calls of a rollout."""

    concurrency = 4096
    drain_order = 40
    Settings = ToolExecutorSettings
    receives = (Call(ToolCall, ToolResult, required=False), Call(VerifyAnswer, Verdict, required=False))
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
            file_bytes=settings.file_mib * 2**20,
            processes=settings.processes,
        )
        self._tools = Sandbox(
            interpreters=settings.interpreters,
            children=settings.children,
            warm_modules=settings.warm_modules,
            limits=limits,
            isolation=settings.isolation,
            sessions=settings.sessions if JUPYTER_TOOL in self._known() else 0,
            scratch=Scratch(settings.scratch_mib * 2**20),
            control_groups=settings.control_groups,
            memory_bytes=settings.calls_memory_mib and settings.calls_memory_mib * 2**20,
            weight=settings.calls_weight,
        )
        self._limits = limits
        checks = ExecutionLimits(
            wall_seconds=settings.check_seconds, cpu_seconds=settings.check_seconds, memory_bytes=2**30
        )
        await self.context.nursery.start(self._tools.run)
        assert self._tools.level is not None
        memory_bytes = self._tools.groups.memory_bytes
        self._checks = Sandbox(
            interpreters=settings.checkers,
            children=settings.children,
            limits=checks,
            checker=True,
            isolation=self._tools.level,
            control_groups=settings.control_groups,
            memory_bytes=memory_bytes and memory_bytes // 2,
            weight=settings.calls_weight,
        )
        await self.context.nursery.start(self._checks.run)
        log = self.log.info if self._tools.level == "strong" else self.log.warning
        groups = self._tools.groups
        log(
            "isolation of model code",
            level=self._tools.level,
            stronger_levels_lack=self._tools.reasons,
            control_groups=groups.limits,
            control_groups_lack=groups.lacking,
        )
        self._outcomes: Counter[str] = Counter()
        self._judged: Counter[str] = Counter()
        self._queued, self._ran, self._checked = Histogram(), Histogram(), Histogram()
        self._busy = 0.0
        self._rate = Rate(self.context.now)

    async def handle(self, message: Any) -> ToolResult | Verdict:
        """Run a call or judge an answer."""
        if isinstance(message, ToolCall) and message.ends:
            self._tools.end_session(message.session)
            return refused(message, "success", "")
        if isinstance(message, ToolCall):
            result = await self.execute(message)
            self._outcomes[result.outcome] += 1
            self._queued.observe(result.queue_seconds)
            self._ran.observe(result.run_seconds)
            self._busy += result.run_seconds
            return result
        if isinstance(message, VerifyAnswer):
            check = await self._checks.check(message.gold, message.prediction, name=message.group)
            self._judged["failed" if check.failure else check.method] += 1
            self._checked.observe(check.seconds)
            return Verdict(message.check, check.equal, check.method, check.failure, check.seconds)
        raise TypeError(f"ToolExecutor does not handle {type(message).__name__}")

    async def execute(self, call: ToolCall) -> ToolResult:
        """Run one call. What is wrong with it is an outcome for the model to read, never an exception."""
        known = self._known()
        if call.tool not in known or call.tool not in (PYTHON_TOOL, JUPYTER_TOOL):
            return refused(call, "unknown_tool", f"there is no tool {call.tool!r:.100}; there is {', '.join(known)}")
        try:
            code, stdin, limits = self._read(call.arguments)
        except BadArgumentError as error:
            return refused(call, "malformed", str(error))
        if call.tool == JUPYTER_TOOL:
            done = await self._tools.run_cell(call.session, call.cell, code, call.earlier, limits=limits)
        else:
            done = await self._tools.execute(code, stdin, limits=limits, name=call.session)
        return ToolResult(
            call=call.call,
            outcome=done.outcome,
            stdout=done.stdout,
            stderr=done.stderr,
            value=done.value,
            queue_seconds=done.queue_seconds,
            run_seconds=done.run_seconds,
            kept=done.kept,
            note=done.note,
        )

    def _read(self, arguments: dict[str, Any]) -> tuple[str, str, ExecutionLimits]:
        """Code, standard input and limits of a call. Raises BadArgumentError."""
        settings: ToolExecutorSettings = self.context.settings
        code, stdin = arguments.get("code"), arguments.get("input", "")
        if not isinstance(code, str) or not isinstance(stdin, str):
            raise BadArgumentError('the arguments must be {"code": string, "input": string (optional)}')
        for name, text in (("code", code), ("input", stdin)):
            if len(text) > settings.code_bytes or len(text.encode("utf-8", "replace")) > settings.code_bytes:
                raise BadArgumentError(f'"{name}" is larger than {settings.code_bytes} bytes')
        if arguments.get("language", "python") != "python":
            raise BadArgumentError(f"there is no language {arguments['language']!r:.100}; there is python")
        timeout = arguments.get("timeout", settings.wall_seconds)
        if (
            isinstance(timeout, bool)
            or not isinstance(timeout, int | float)
            or not 0 < timeout <= settings.wall_seconds
        ):
            raise BadArgumentError(f'"timeout" must be a number of seconds up to {settings.wall_seconds:g}')
        return code, stdin, dataclasses.replace(self._limits, wall_seconds=float(timeout))

    def busy_seconds(self) -> float:
        """Seconds of all children, shared among the places for them: 1 s is a second in which every place was taken."""
        settings: ToolExecutorSettings = self.context.settings
        return self._busy / (settings.interpreters * settings.children)

    def cpu_seconds(self) -> float:
        """With that of the interpreters and of the calls they ran."""
        return super().cpu_seconds() + self._tools.cpu_seconds() + self._checks.cpu_seconds()

    def detail(self) -> str:
        """How model code is isolated."""
        return f"isolation {self._tools.level}"

    def status(self) -> tuple[str, dict[str, float]]:
        """Rates of the last seconds, what is alive now, outcomes since the start."""
        calls, checks = self._outcomes.total(), self._judged.total()
        rates, tools = self._rate({"calls": calls, "checks": checks, "busy": self._busy}), self._tools.figures
        figures = {
            "calls_per_s": rates["calls"],
            "checks_per_s": rates["checks"],
            "children_busy": rates["busy"],
            "queue": tools["waiting"],
            "calls": float(calls),
            "checks": float(checks),
            "children": tools["children"],
            "checks_failed": float(self._judged["failed"]),
            "checks_timed_out": float(self._judged["timeout"]),
        }
        if JUPYTER_TOOL in self._known():
            figures |= {name: tools[name] for name in ("sessions", "sessions_evicted", "sessions_rebuilt")}
        return "running", figures | {f"outcome_{name}": float(count) for name, count in self._outcomes.items()}

    def metrics(self) -> tuple[Metric, ...]:
        """Calls and checks by how they ended, how long they waited and ran, and what there is of processes."""
        tools, checks = self._tools.figures, self._checks.figures
        calls_help, checks_help = "Tool calls answered, by outcome.", "Answers judged, by method or why not."
        return (
            *(
                counter("tool_calls_total", self._outcomes[name], calls_help, outcome=name)
                for name in get_args(ToolOutcome)  # also what has not happened, so that rates have a beginning
            ),
            *(counter("answer_checks_total", n, checks_help, method=name) for name, n in self._judged.items()),
            self._queued.metric("tool_call_queue_seconds", "From a call's arrival to its answer, without its run."),
            self._ran.metric("tool_call_run_seconds", "Wall time of the code of a call."),
            self._checked.metric("answer_check_seconds", "Waiting and judging of an answer."),
            gauge("tool_calls_waiting", tools["waiting"], "Calls that wait for a place."),
            gauge("tool_children", tools["children"], "Processes that run a call or hold a session."),
            gauge("tool_sessions", tools["sessions"], "Live sessions of the notebook tool."),
            counter("tool_sessions_evicted_total", tools["sessions_evicted"], "Sessions ended to make room."),
            counter("tool_sessions_rebuilt_total", tools["sessions_rebuilt"], "Sessions whose cells were run again."),
            *(
                gauge("warm_interpreters", pool["interpreters"], "Warm interpreters that are ready.", runs=runs)
                for pool, runs in ((tools, "code"), (checks, "checks"))
            ),
            *(
                counter("warm_interpreters_restarted_total", pool["restarts"], "Ones that died.", runs=runs)
                for pool, runs in ((tools, "code"), (checks, "checks"))
            ),
            counter("tool_calls_retried_total", tools["retries"], "Calls run again after their interpreter died."),
            gauge("tool_isolation", 1, "How model code is isolated.", level=str(self._tools.level)),
            *(
                gauge(
                    "tool_control_group_limit",
                    one.limit,
                    "Of all calls: bytes, tasks, weight.",
                    controller=one.controller,
                )
                for one in self._tools.groups.groups
            ),
        )

    def _known(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.tools]


class JupyterExecutor(ToolExecutor):
    """Its tool is a notebook instead: the cells of a rollout share their variables."""

    tools: ClassVar[tuple[dict[str, Any], ...]] = JUPYTER_TOOLS


def refused(call: ToolCall, outcome: ToolOutcome, reason: str) -> ToolResult:
    """The result of a call that was not run; the model reads the reason."""
    return ToolResult(
        call=call.call, outcome=outcome, stdout="", stderr=reason, value="", queue_seconds=0.0, run_seconds=0.0
    )
