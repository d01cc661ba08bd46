"""The rollout generator: runs the multi-turn agent loop over an engine, token in and token out.

::

    RolloutRequest --> Episode --> AgentLoop: turns and tool calls --> Trajectory (the request is acknowledged when it is)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import trio
from pydantic import Field, PositiveFloat, PositiveInt

from actors.base import Actor, Announce, Call, Push, Settings
from actors.engines.base import Engine, EngineError, EngineRefusedError, ModelError
from actors.engines.checking import engine_faults
from actors.execution.blocking import interruptible
from actors.generation.agent_loop import AgentLoop, EnvironmentFaultError
from actors.generation.serving import ServedPolicy
from actors.generation.tool_calls import ToolCaller, ToolsUnavailableError
from actors.generation.user_loop import UserLoop
from actors.weights import transfer
from actors.weights.files import model_directory
from agent_rl.checks.contracts import declaration
from agent_rl.checks.declared import format_faults
from agent_rl.config.plugins import PluginError, resolve
from agent_rl.config.topology import EvaluateStage, RlStage, Topology
from agent_rl.environments.base import TaskError
from agent_rl.environments.judging import judged_at_once
from agent_rl.environments.load import Environments
from agent_rl.environments.tasks import ListedTasks
from agent_rl.figures import ActorFigures, GeneratorFigures
from agent_rl.messages import (
    EngineLoad,
    GroupsUnwanted,
    ObserveTurn,
    Policy,
    PolicyPublished,
    RolloutRequest,
    ToolCall,
    ToolResult,
    Trajectory,
    TransferOffer,
    TransferWanted,
    TurnObserved,
    WeightsPart,
    WeightsWanted,
)
from agent_rl.observe.rates import Rate
from agent_rl.rollout.chat_templates import load_tokenizer
from agent_rl.rollout.episode import Episode, RolloutTally
from agent_rl.rollout.prompts import ChatFormat

NAMED_PROBLEMS = 5
"""How many of the problems that are too long are named."""


class RolloutGeneratorSettings(Settings):
    """The engine and the agent loop's limits."""

    engine: str = "torch"
    """A short name, or ``module:Class`` (``actors.engines.base.Engine``)."""
    chat_format: str = ""
    """The format of episodes: a short name or ``module:Class`` (`agent_rl.rollout.prompts.ChatFormat`); empty: what the actor's class says."""
    engine_settings: dict[str, Any] = Field(default={})
    """Of the engine; listed below for those that are built in."""
    max_rollouts: PositiveInt = 64
    """Rollouts at once: rows of the embedded engine's KV cache."""
    kv_tokens: PositiveInt | None = None
    """Capacity of the KV cache in tokens; None: what max_rollouts of the model's maximum length take."""
    threads: PositiveInt = 1
    """Of torch."""
    device: str = "cpu"
    """As torch names it: ``cpu``, ``cuda``, ``cuda:1``."""
    tool_timeout_seconds: PositiveFloat = 300.0
    """From sending a call to its result, queueing at the executor included; its own limits are shorter, and one that falls silent
    is noticed within seconds."""
    loop_seconds: PositiveFloat = 60.0
    """What a user's own loop may take for itself in a rollout, beside waiting for model and tools."""
    tool_attempts: PositiveInt = 3
    """A call whose executor was lost, or could not run it, is tried again, elsewhere if it can be; then its rollout fails."""
    tool_calls_outstanding: PositiveInt = 256
    """Calls under way at once per executor; further ones wait here, those of different rollouts in turn, for however long."""
    tool_calls_at_once: PositiveInt = 16
    """Calls of one turn under way or waiting at once; further ones are not begun."""
    tool_response_chars: PositiveInt = 4096
    """A longer tool response is cut in the middle."""
    error_detail: Literal["traceback", "last_line"] = "traceback"
    """What the model sees of an error; the last line alone suits models whose budget cannot hold tracebacks."""
    load_interval_seconds: PositiveFloat = 0.25
    """How often the scheduler hears of the engine's load."""
    trajectory_window: PositiveInt = 256
    """Trajectories under way to the filter that it has not acknowledged."""


class RolloutGenerator(Actor):
    """Each RolloutRequest is one task from the first token to the trajectory's acknowledgement."""

    concurrency = 4096
    drain_order = 20
    Settings = RolloutGeneratorSettings
    chat_format: ClassVar[type[ChatFormat]] = ChatFormat
    """The format of episodes, the learner's demonstrations included: what a generator of your own replaces."""
    receives = (Push(RolloutRequest), Announce(PolicyPublished), Announce(GroupsUnwanted))
    links: ClassVar = {
        "trajectories": Push(Trajectory),
        "tools": Call(ToolCall, ToolResult),
        "turns": Call(ObserveTurn, TurnObserved),
        "load": Announce(EngineLoad),
        "weights": Call(WeightsWanted, WeightsPart, awaited_in_handler=False, required=False),
        "transfer": Call(TransferWanted, TransferOffer, awaited_in_handler=False, required=False),
    }

    @classmethod
    def link_options(cls, link: str, settings: RolloutGeneratorSettings) -> dict[str, Any]:
        """Windows as the settings say."""
        options: dict[str, dict[str, Any]] = {
            "trajectories": {"window": settings.trajectory_window},
            "tools": {"outstanding": settings.tool_calls_outstanding, "timeout": settings.tool_timeout_seconds},
            "turns": {"outstanding": settings.tool_calls_outstanding, "timeout": settings.tool_timeout_seconds},
        }
        return options.get(link, {})

    @classmethod
    def check(cls, topology: Topology, settings: RolloutGeneratorSettings) -> list[str]:
        """The engine must take its settings, and the KV cache must hold a single rollout of every stage."""
        found = list(
            engine_faults(
                settings.engine,
                settings.engine_settings,
                max_rollouts=settings.max_rollouts,
                kv_tokens=settings.kv_tokens,
            )
        )
        try:
            declaration(cls, settings.model_dump(include={"chat_format"}))
        except PluginError as error:
            found.append(f"chat_format: {error}")
        if settings.kv_tokens is None:
            return found
        return (
            found
            + [
                f"kv_tokens: the KV cache holds {settings.kv_tokens} tokens, and one rollout of stage {stage.name} may take "
                f"{stage.max_response_tokens} for its response besides its prompt; give it more, or lower the stage's max_response_tokens"
                for stage in topology.stages
                if isinstance(stage, RlStage | EvaluateStage) and stage.max_response_tokens >= settings.kv_tokens
            ][:1]
        )

    @classmethod
    def probe(cls, topology: Topology, settings: RolloutGeneratorSettings) -> list[str]:
        """Try the format on turns that a model may write."""
        del topology
        return format_faults(declaration(cls, settings.model_dump(include={"chat_format"})))

    async def start(self) -> None:
        """Load tokenizer and engine; serve requests once a policy was published."""
        settings: RolloutGeneratorSettings = self.context.settings
        topology = self.context.topology
        self._environments = Environments(topology, self.context.base)
        directory = await self.context.in_thread(model_directory, topology, self.context.directory)
        self._chat = await self.context.in_thread(self._make_format, directory)
        for difference in self._chat.differences():
            self.log.warning("conversations are not as the chat template writes them", where=difference)
        self._require_append_only()
        self._engine = self._make_engine(directory, settings)
        try:
            await self.context.nursery.start(self._engine.run)
        except EngineError as error:  # what no restart mends, or the run has just begun and was never any better
            if self.context.first or isinstance(error, ModelError):
                raise EngineRefusedError(f"the engine cannot be started: {error}") from error
            raise
        await self.context.in_thread(self._look_for_long_prompts)
        self._scopes: dict[str, dict[str, trio.CancelScope]] = {}
        self._acks: dict[str, list[Callable[[], None]]] = {}
        self._served = ServedPolicy(self.context, self._engine, self.log)
        self._tally = RolloutTally()
        self._tools = ToolCaller(self.context, self._tally, self._environments.toolboxes)
        self._loop = AgentLoop(self.context, self._chat, self._engine, self._tools)
        self._rate = Rate(self.context.now)
        self.context.nursery.start_soon(self._report_load)
        self.context.nursery.start_soon(self._served.run, self._announce_load)

    def _make_format(self, directory: Path) -> ChatFormat:
        topology = self.context.topology
        try:
            tokenizer = load_tokenizer(directory, topology, self.context.base)
        except Exception as error:  # transformers raises what it likes; a restart would read the same files
            reason = " ".join(str(error).split())
            remedy = "save the tokenizer again, or copy it whole"
            raise EngineRefusedError(f"cannot load the tokenizer of {directory}: {reason}; {remedy}") from error
        chat: type[ChatFormat] = declaration(type(self), {"chat_format": self.context.settings.chat_format})
        return chat(tokenizer, self._environments, self._environments.schemas)

    def make_episode(self, request: RolloutRequest) -> Episode:
        """The agent loop's decider for one rollout."""
        environment = self._environments[request.problem.environment]
        own_loop = environment.rollout is not None
        return Episode(request, self._chat, self._engine.longest, observes=environment.observes, begun=not own_loop)

    def _require_append_only(self) -> None:
        """Raises EngineRefusedError where turns are answered in plain words and the chat template changes earlier turns then."""
        answering = [name for name, each in self._environments.items() if each.observes or each.rollout is not None]
        if answering and (changed := self._chat.rewriting()):
            raise EngineRefusedError(
                f"environment {answering[0]!r} answers turns, and the chat template changes earlier turns then: {changed}; name a "
                'template that repeats them as they were: chat_template = "chatml" in [model], or a file'
            )

    def _look_for_long_prompts(self) -> None:
        """Name the problems in lists whose prompts the model has no room for. Raises TaskError when no problem fits."""
        for name, source in self._environments.tasks().sources.items():
            if not isinstance(source, ListedTasks):
                continue
            for kind, listed in (("training", source.trained), ("held-out", source.held_out)):
                problems = [replace(problem, environment=name) for problem in listed]
                found = self._chat.too_long(problems, self._engine.longest)
                if not found:
                    continue
                named = ", ".join(f"{problem.id} ({tokens} tokens)" for problem, tokens in found[:NAMED_PROBLEMS])
                limit = f"a sequence of {self._engine.longest} tokens has no room for the prompts of"
                if len(found) == len(problems):
                    remedy = "serve a longer model or more kv_tokens, or shorten the problems"
                    raise TaskError(
                        f"environment {name!r}: {limit} all {len(found)} {kind} problems, {named} ...; {remedy}"
                    )
                why = f"{limit} {len(found)} of {len(problems)} {kind} problems: {named}"
                self.log.warning("groups will be dropped", why=why)

    def _make_engine(self, directory: Path, settings: RolloutGeneratorSettings) -> Engine:
        try:
            engine_class = resolve("engine", settings.engine)
        except PluginError as error:
            raise EngineRefusedError(f"engine: {error}") from error
        if way := transfer.way_of(self.context.topology):
            files_alone = "" if hasattr(engine_class, "ranks") else f"{settings.engine} takes weights from files alone"
            if fault := files_alone or transfer.unavailable(way):
                raise EngineRefusedError(f'weights_in = "{way}": {fault}; choose another way, or mend that')
        try:
            engine: Engine = engine_class(
                directory,
                max_rollouts=settings.max_rollouts,
                kv_tokens=settings.kv_tokens,
                threads=settings.threads,
                device=settings.device,
                dtype=self.context.topology.model.dtype,
                initial_policy=Policy(0, 0),
                **settings.engine_settings,
            )
        except (TypeError, ValueError) as error:
            raise EngineRefusedError(
                f"engine_settings: {settings.engine} does not take them: {error}; change them"
            ) from error
        return engine

    async def handle(self, message: Any) -> None:
        """A request is run to its end; a policy is left to be taken up; unwanted rollouts are cancelled."""
        match message:
            case RolloutRequest():
                await self._rollout(message)
            case PolicyPublished():
                self._served.published(message)
            case GroupsUnwanted():
                for group in message.groups:
                    for scope in self._scopes.get(group, {}).values():
                        scope.cancel()
            case _:
                await super().handle(message)

    async def _rollout(self, request: RolloutRequest) -> None:
        asked_before = request.rollout in self._acks
        self._acks.setdefault(request.rollout, []).append(self.defer_ack())
        if asked_before:  # a restarted scheduler asks for what is under way: one rollout answers both requests
            return
        await self._served.ready.wait()
        started = self.context.now()
        episode = self.make_episode(request)
        failure: tuple[Any, str] | None = None
        scopes = self._scopes.setdefault(request.group, {})
        with trio.CancelScope() as scope:
            scopes[request.rollout] = scope
            try:
                await self._run(episode)
            except EnvironmentFaultError as error:
                failure = ("environment_failed", str(error))
            except (ToolsUnavailableError, EngineError) as error:
                failure = ("failed", str(error))
            finally:
                del scopes[request.rollout]
                if not scopes:
                    self._scopes.pop(request.group, None)
                self._engine.release(request.rollout)
                self._tools.end(request)
        if scope.cancelled_caught:
            failure = ("cancelled", "nobody wants its group any more")
        trajectory = episode.trajectory(
            generator=self.context.name, seconds=self.context.now() - started, failure=failure
        )
        with interruptible():
            trajectory = judged_at_once(self._environments, request.problem, trajectory)
        self._tally.add(trajectory)
        await self.context.link("trajectories").send(trajectory, on_ack=partial(self._acknowledge, request.rollout))

    def _acknowledge(self, rollout: str) -> None:
        for ack in self._acks.pop(rollout):
            ack()

    async def _run(self, episode: Episode) -> None:
        rollout = self._environments[episode.request.problem.environment].rollout
        if rollout is None:
            await self._loop.run(episode)
        else:
            await UserLoop(
                self._loop, episode, self._tools.known(episode.request.problem), self.context.settings.loop_seconds
            ).run(rollout)

    async def _report_load(self) -> None:
        while True:
            self._announce_load()
            await trio.sleep(self.context.settings.load_interval_seconds)

    def _announce_load(self) -> None:
        figures = self._engine.figures
        self.context.link("load").set(
            EngineLoad(
                generator=self.context.name,
                incarnation=self.context.incarnation,
                policy=self._engine.policy,
                kv_tokens_total=figures.kv_tokens_total,
                kv_tokens_used=figures.kv_tokens_used,
                max_rollouts=figures.max_rollouts,
                running=figures.running,
                waiting=figures.waiting,
                preempted=figures.preempted,
                generated_tokens=figures.generated_tokens,
            )
        )

    def waiting_for(self) -> str:
        """Policy, requests or tool results, when the engine has nothing to write."""
        figures = self._engine.figures
        if figures.running or figures.waiting:
            return ""
        if self._served.waiting_for:
            return self._served.waiting_for
        in_flight = sum(len(scopes) for scopes in self._scopes.values())
        return f"tool_executor: {in_flight} tool results" if in_flight else "kv_scheduler: rollout requests"

    def busy_seconds(self) -> float:
        """Time in the engine's steps."""
        return self._engine.figures.busy_seconds

    def status(self) -> tuple[str, ActorFigures]:
        """The engine's load and rates since the last status."""
        figures = self._engine.figures
        rates = self._rate({"tokens": figures.generated_tokens, "rollouts": self._tally.rollouts})
        tally = self._tally
        return "running", ActorFigures(
            generator=GeneratorFigures(
                tokens_per_s=rates["tokens"],
                rollouts_per_s=rates["rollouts"],
                kv_used=figures.kv_tokens_used,
                kv_total=figures.kv_tokens_total,
                running=figures.running,
                waiting=figures.waiting,
                preempted=figures.preempted,
                generated_tokens=figures.generated_tokens,
                rollouts=tally.rollouts,
                rollouts_truncated=tally.by_status["truncated"],
                rollouts_failed=tally.by_status["failed"],
                rollouts_cancelled=tally.by_status["cancelled"],
                prompts_too_long=tally.by_status["prompt_too_long"],
                calls_malformed=tally.by_outcome["malformed"],
                calls_unknown_tool=tally.by_outcome["unknown_tool"],
                calls_failed=tally.calls_failed,
                responses_cut=tally.responses_cut,
                calls_waiting=self._tools.waiting,
                policy_version=self._engine.policy.version,
            )
        )
