"""The tool executor: runs the tools of the run's environments and judges answers.

::

    ToolCall --> the environment's Tool.call, within its deadline --> ToolResult
                     `--Context--> sandbox, functions, checkers, threads

What a model wrote runs only in forked children of warm interpreters. An error of a call or of its tool is an outcome
that the model reads.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, get_args

import trio
from pydantic import Field, PositiveFloat, PositiveInt

from actors.base import Actor, Call, Settings
from actors.sandbox.isolation.control_groups import WEIGHT, Wanted
from actors.sandbox.isolation.levels import Isolation
from actors.sandbox.owner.client import ExecutionLimits, Sandbox
from actors.sandbox.owner.functions import FunctionSandbox, hidden_of
from actors.sandbox.owner.interpreter import Scratch
from actors.sandbox.owner.pool import Pool
from actors.tool_executor.context import ExecutorContext, Services, session_name
from actors.tool_executor.mcp_servers import McpServers
from actors.tool_executor.user_code import Unanswered, judged, observed, run_tool
from actors.user_threads import Pause, Threads
from agent_rl.environments.base import SNAPSHOT_BYTES, Tool
from agent_rl.environments.load import Environments
from agent_rl.figures import ActorFigures, ExecutorFigures
from agent_rl.messages import (
    JudgementReply,
    JudgementWanted,
    Metric,
    ObserveTurn,
    ToolCall,
    ToolOutcome,
    ToolResult,
    TurnObserved,
)
from agent_rl.observe.prometheus import Histogram, Rate, counter, gauge

HOW = ("timeout", "memory_limit", "output_limit", "crashed", "unavailable", "fault")
"""Outcomes of judging, beside ``judged``."""


class ToolExecutorSettings(Settings):
    """Warm interpreters and the limits of a call."""

    isolation: Isolation = "host"
    """``host``: as strongly as the host allows; or the level to insist on: ``strong``, ``filtered``, ``limits``
    (docs/sandbox.md)."""
    interpreters: PositiveInt = 1
    """Warm interpreters."""
    children: PositiveInt = 8
    """Calls running at once, times ``interpreters``."""
    checkers: PositiveInt = 1
    """Interpreters that judge answers; they never run model code."""
    warm_modules: tuple[str, ...] = ("numpy", "sympy")
    """Modules imported before forking, for code that names them. Each has interpreters of its own, and so have the
    first two, three and so on, started when first needed."""
    wall_seconds: PositiveFloat = 4.0
    """Most seconds of a call: of the model's code, and of a tool's code on the host unless the tool says otherwise."""
    cpu_seconds: PositiveFloat = 4.0
    """Processor time of each process of a call."""
    memory_mib: PositiveInt = 512
    """Address space of each process of a call, beyond the interpreter's."""
    processes: PositiveInt = 16
    """Processes and threads of a call. Many of them can keep neighbours waiting."""
    control_groups: Wanted = "host"
    """Whether calls are limited in total too: where the host allows it, ``required``, or ``off``."""
    calls_memory_mib: PositiveInt | None = None
    """Memory of all calls and interpreters together; the checkers have half as much. None: half of what the machine, or
    the groups around the executor, have."""
    calls_weight: Annotated[int, Field(ge=1, le=10000)] = WEIGHT
    """Share of processor time of all calls and interpreters where there is not enough (docs/sandbox.md)."""
    output_bytes: PositiveInt = 65536
    """A longer output of a call is cut."""
    file_mib: PositiveInt = 16
    """Size of a file."""
    scratch_mib: PositiveInt = 64
    """Size of a call's /tmp, which is memory."""
    sessions: PositiveInt = 64
    """Live notebooks; the one idle longest is ended to make room."""
    code_bytes: PositiveInt = 1 << 20
    """A call with larger arguments, as JSON, is refused."""
    threads: PositiveInt = 32
    """Threads for tools that block; a call that hangs keeps its thread."""
    check_seconds: PositiveFloat = 10.0
    """Most seconds of a check, in a checker's child. It runs for 0.25 s first; one that needs longer runs again, in one
    of the places for long checks."""
    finish_seconds: PositiveFloat = 20.0
    """How long an executor that is stopped while the run goes on finishes calls. The others run elsewhere."""
    judge_seconds: PositiveFloat = 10.0
    """Most seconds of an environment's own code to judge a rollout, without its checks."""
    observe_seconds: PositiveFloat = 30.0
    """Most seconds of an environment to answer a turn, without waiting for the sandbox."""


class ToolExecutor(Actor):
    """Runs any number of calls at once, within the sandbox's children and the threads. Keeps no state of a rollout."""

    concurrency = 4096
    drain_order = 40
    Settings = ToolExecutorSettings
    receives = (
        Call(ToolCall, ToolResult, required=False),
        Call(ObserveTurn, TurnObserved, required=False),
        Call(JudgementWanted, JudgementReply, required=False),
    )
    links: ClassVar = {}

    async def prepare(self) -> None:
        """Warm the interpreters up. After a death, those of checks and functions warm up while the first calls run."""
        settings: ToolExecutorSettings = self.context.settings
        self._environments = Environments(self.context.topology, self.context.base)
        self._toolboxes = self._environments.toolboxes
        tools = [tool for box in self._toolboxes.values() for tool in box.values()]
        self._stateful = any(tool.stateful for tool in tools)
        limits = ExecutionLimits(
            wall_seconds=settings.wall_seconds,
            cpu_seconds=settings.cpu_seconds,
            memory_bytes=settings.memory_mib * 2**20,
            output_bytes=settings.output_bytes,
            file_bytes=settings.file_mib * 2**20,
            processes=settings.processes,
        )
        self._sandbox = Sandbox(
            interpreters=settings.interpreters,
            children=settings.children,
            warm_modules=settings.warm_modules,
            limits=limits,
            isolation=settings.isolation,
            sessions=settings.sessions if self._stateful else 0,
            scratch=Scratch(settings.scratch_mib * 2**20),
            control_groups=settings.control_groups,
            memory_bytes=settings.calls_memory_mib and settings.calls_memory_mib * 2**20,
            weight=settings.calls_weight,
            hidden=hidden_of(self.context.topology, self.context.base, settings.warm_modules),
        )
        await self.context.nursery.start(self._sandbox.run)
        functions_checked = [name for environment in self._environments.values() for name in environment.checks]
        check_limits = ExecutionLimits(
            wall_seconds=settings.check_seconds, cpu_seconds=settings.check_seconds, memory_bytes=2**30
        )
        self._checks = self._function_sandbox(functions_checked, settings.checkers, check_limits)
        await self._warm_up(self._checks)
        self._functions = None
        if apart := [function for tool in tools if tool.runs == "sandbox" for function in functions_of(tool)]:
            # What comes back holds the tool's state besides its texts.
            limits = dataclasses.replace(limits, output_bytes=4 * settings.output_bytes + 2 * SNAPSHOT_BYTES)
            self._functions = self._function_sandbox(apart, settings.interpreters, limits)
            await self._warm_up(self._functions)
        self._threads = Threads(settings.threads, self.context.in_thread)
        self._unanswered = Unanswered(self._threads)
        self._servers = McpServers(self.context.topology, self.context.base, self.context.nursery, self.log)
        if not self.context.restarted:  # after a death, calls start the servers that they need
            await self._servers.check()
        self._services = Services(self._sandbox, self._checks, self._functions, self._threads, Pause(), self._servers)
        log = self.log.info if self._sandbox.level == "strong" else self.log.warning
        groups = self._sandbox.groups
        log(
            "isolation of model code",
            level=self._sandbox.level,
            stronger_levels_lack=self._sandbox.reasons,
            control_groups=groups.limits,
            control_groups_lack=groups.lacking,
        )
        self._outcomes: Counter[str] = Counter()
        self._judged: Counter[str] = Counter()
        self._queued, self._ran, self._checked = Histogram(), Histogram(), Histogram()
        self._busy = 0.0
        self._rate = Rate(self.context.now)

    async def _warm_up(self, pool: Pool) -> None:
        """Run a pool. At a first start, or a swap, it must be warm: what cannot warm up is then refused or named.

        After a death callers have waited already, and the pool was warm before: who needs it waits for it.
        """
        if self.context.restarted:
            self.context.nursery.start_soon(pool.run)
        else:
            await self.context.nursery.start(pool.run)

    async def start(self) -> None:
        """Serve calls."""
        await self.prepared()

    async def stop(self) -> None:
        """Finish calls for a while; callers send new ones to other executors."""
        self.context.node.drain()
        with trio.move_on_after(self.context.settings.finish_seconds):
            await self.context.node.idle()

    def _function_sandbox(
        self, functions: Sequence[str], interpreters: int, limits: ExecutionLimits
    ) -> FunctionSandbox:
        settings: ToolExecutorSettings = self.context.settings
        assert self._sandbox.level is not None
        memory_bytes = self._sandbox.groups.memory_bytes
        return FunctionSandbox(
            functions,
            interpreters=interpreters,
            children=settings.children,
            limits=limits,
            isolation=self._sandbox.level,
            control_groups=settings.control_groups,
            memory_bytes=memory_bytes and memory_bytes // 2,
            weight=settings.calls_weight,
        )

    async def handle(self, message: Any) -> ToolResult | TurnObserved | JudgementReply:
        """Run a call, have an environment answer a turn, or have one judge a rollout."""
        match message:
            case ToolCall(ends=True):
                for name in self._toolboxes[message.problem.environment]:
                    self._sandbox.end_session(session_name(message.rollout, name))
                self._servers.end(message.problem.environment, message.rollout)
                return refused(message, "success", "")
            case ToolCall():
                result = await self.execute(message)
                self._outcomes[result.outcome] += 1
                self._queued.observe(result.queue_seconds)
                self._ran.observe(result.run_seconds)
                self._busy += result.run_seconds
                return result
            case ObserveTurn():
                return await self._observe(message)
            case JudgementWanted():
                return await self._judge(message)
        raise TypeError(f"ToolExecutor does not handle {type(message).__name__}")

    async def _observe(self, asked: ObserveTurn) -> TurnObserved:
        turn = len(asked.transcript.texts)
        seconds = self.context.settings.observe_seconds
        context = self._context(asked, seconds, name="observe", key=f"{asked.rollout}/{turn}")
        answer = await observed(self._environments[asked.problem.environment], asked, context)
        if answer.fault:
            context.log.error("an environment did not answer a turn", why=answer.fault, turn=turn)
        return answer

    async def execute(self, call: ToolCall) -> ToolResult:
        """Run one call. An error of the call or of its tool is an outcome for the model to read, never an exception."""
        settings: ToolExecutorSettings = self.context.settings
        tools = self._toolboxes[call.problem.environment]
        tool = tools.get(call.tool)
        if tool is None:
            there = f"there is {', '.join(tools)}" if tools else "there are none"
            return refused(call, "unknown_tool", f"there is no tool {call.tool!r:.100}; {there}")
        if len(json.dumps(call.arguments, ensure_ascii=False).encode()) > settings.code_bytes:
            return refused(call, "malformed", f"the arguments are larger than {settings.code_bytes} bytes")
        context = self._context(call, tool.seconds or settings.wall_seconds, name=tool.name, key=call.call)
        began = self.context.now()
        output = await run_tool(tool, call, context, self._unanswered, settings.output_bytes)
        seconds = self.context.now() - began
        ran = output.run_seconds or seconds - context.queue_seconds
        return ToolResult(
            call=call.call,
            outcome=output.outcome,
            stdout=output.stdout,
            stderr=output.stderr,
            value=output.value,
            queue_seconds=max(0.0, seconds - ran),
            run_seconds=max(0.0, ran),
            state=output.state,
            note=output.note,
        )

    def _context(
        self, asked: ToolCall | ObserveTurn | JudgementWanted, seconds: float, *, name: str, key: str
    ) -> ExecutorContext:
        """The context for users' code, called ``name`` in messages, for ``seconds``."""
        return ExecutorContext(self._services, asked, seconds, log=self.log, name=name, key=key)

    async def _judge(self, asked: JudgementWanted) -> JudgementReply:
        name = asked.problem.environment
        seconds = self.context.settings.judge_seconds
        context = self._context(asked, seconds, name=name, key=f"{asked.rollout}/judge")
        reply = await judged(self._environments[name], asked, context)
        how = "unavailable" if reply.unavailable else "fault" if reply.judgement is None else reply.judgement.note
        self._judged[how if how in HOW else "judged"] += 1
        self._checked.observe(reply.seconds)
        return reply

    def busy_seconds(self) -> float:
        """Seconds of all children, shared among the places for them: 1 s is a second in which every place was taken."""
        settings: ToolExecutorSettings = self.context.settings
        return self._busy / (settings.interpreters * settings.children)

    def cpu_seconds(self) -> float:
        """With that of the interpreters and of the calls they ran."""
        return super().cpu_seconds() + sum(pool.cpu_seconds() for pool in self._pools())

    def detail(self) -> str:
        """How model code is isolated."""
        hung = len(self._threads.hung)
        return f"isolation {self._sandbox.level}" + (f", {hung} of {self._threads.most} threads hang" if hung else "")

    def alarm(self) -> str:
        """Tools that hold threads or do not answer."""
        return self._unanswered.alarm()

    def status(self) -> tuple[str, ActorFigures]:
        """Rates of the last seconds, what is alive now, totals since the start."""
        calls, checks = self._outcomes.total(), self._judged.total()
        rates, tools = self._rate({"calls": calls, "checks": checks, "busy": self._busy}), self._sandbox.figures
        sessions = self._stateful
        return "running", ActorFigures(
            executor=ExecutorFigures(
                calls_per_s=rates["calls"],
                checks_per_s=rates["checks"],
                children_busy=rates["busy"],
                queue=int(tools["waiting"]),
                calls=calls,
                checks=checks,
                children=int(tools["children"]),
                checks_failed=(self._judged["unavailable"] + self._judged["fault"]),
                checks_timed_out=self._judged["timeout"],
                sessions=int(tools["sessions"]) if sessions else None,
                sessions_evicted=int(tools["sessions_evicted"]) if sessions else None,
                sessions_rebuilt=int(tools["sessions_rebuilt"]) if sessions else None,
            )
        )

    def metrics(self) -> tuple[Metric, ...]:
        """Calls and checks by how they ended, how long they waited and ran, and what there is of processes."""
        tools, checks = self._sandbox.figures, self._checks.figures
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
            gauge("tool_threads_hung", len(self._threads.hung), "Threads taken by calls that hang."),
            gauge("tool_sessions", tools["sessions"], "Live notebooks."),
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
            gauge("tool_isolation", 1, "How model code is isolated.", level=str(self._sandbox.level)),
            *(
                gauge(
                    "tool_control_group_limit",
                    one.limit,
                    "Of all calls: bytes, tasks, weight.",
                    controller=one.controller,
                )
                for one in self._sandbox.groups.groups
            ),
        )

    def _pools(self) -> Iterator[Pool]:
        yield from (self._sandbox, self._checks)
        if self._functions is not None:
            yield self._functions


def functions_of(tool: Tool) -> tuple[str, ...]:
    """The names that the sandbox loads beforehand for a tool that runs there: the tool's function, and the tool's
    class.
    """
    written = getattr(tool, "function", type(tool))
    return f"{written.__module__}:{written.__name__}", f"{type(tool).__module__}:{type(tool).__name__}"


def refused(call: ToolCall, outcome: ToolOutcome, reason: str) -> ToolResult:
    """The result of a call that was not run; the model reads the reason."""
    return ToolResult(
        call=call.call, outcome=outcome, stdout="", stderr=reason, value="", queue_seconds=0.0, run_seconds=0.0
    )
