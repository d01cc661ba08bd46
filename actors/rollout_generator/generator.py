"""The rollout generator: runs the multi-turn agent loop over an engine; tokens in, tokens out.

::

    RolloutRequest --> Episode --> AgentLoop: turns and tool calls --> Trajectory

A request is acknowledged when its trajectory is. Completed turns go to the scheduler as they happen. A request that
brings turns goes on from the last of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import trio

from actors.base import Actor, Announce, Call, Push
from actors.engines.base import Engine, EngineError, EngineFigures, EngineRefusedError, ModelError
from actors.engines.checking import engine_faults
from actors.processor_time import seconds_of_children
from actors.rollout_generator.agent_loop import AgentLoop, EnvironmentFaultError, TaskFaultError
from actors.rollout_generator.harness import Harnesses
from actors.rollout_generator.kept_turns import LINK, KeptTurns
from actors.rollout_generator.policy_updates import EngineTurns, ServedPolicy, shares_device
from actors.rollout_generator.running import Running, RunningRollouts
from actors.rollout_generator.served import ServedRollouts
from actors.rollout_generator.sessions import Sessions
from actors.rollout_generator.starting import RolloutGeneratorSettings, long_prompts, make_engine, require_append_only
from actors.rollout_generator.tool_calls import ToolCaller, ToolsUnavailableError
from actors.rollout_generator.tracing import Tracing
from actors.rollout_generator.turns import Written
from actors.rollout_generator.user_loop import UserLoop
from actors.sandbox.owner.functions import hidden_of
from actors.user_threads import Pause, interruptible
from actors.weights.files import model_directory
from agent_rl.config.addresses import run_digest
from agent_rl.config.gateway import ROLE as GATEWAY
from agent_rl.config.gateway import gateway_url
from agent_rl.config.plugins import PluginError
from agent_rl.config.topology import SftStage, Topology
from agent_rl.environments.judging import judged_at_once
from agent_rl.environments.load import Environments, sound_prompt
from agent_rl.figures import ActorFigures, GeneratorFigures
from agent_rl.messages import (
    DeviceTurn,
    EngineLoad,
    GroupsUnwanted,
    ObserveTurn,
    PolicyPublished,
    PolicyVersion,
    RolloutRequest,
    SessionAsked,
    SessionGiven,
    ToolCall,
    ToolResult,
    Trajectory,
    TransferOffer,
    TransferWanted,
    TurnAsked,
    TurnGiven,
    TurnObserved,
    TurnsCompleted,
    WeightsPart,
    WeightsWanted,
)
from agent_rl.models.model_files import ModelFiles
from agent_rl.observe.prometheus import Rate
from agent_rl.rollout.episode import Episode, RolloutTally
from agent_rl.rollout.prompts import ChatFormat, PromptError, load_tokenizer
from agent_rl.rollout.template import made_format
from agent_rl.topology_checks.contracts import declaration, format_faults
from transport import LinkEvent, PeerBack, PeerGone, PeerLeft, PeerReplaced, PeerSilent


def engine_load(
    figures: EngineFigures, policy: PolicyVersion, generator: str, incarnation: int, orphans: Mapping[str, int]
) -> EngineLoad:
    """The load of the engine of a generator's process. ``orphans``: as `EngineLoad` has them."""
    return EngineLoad(
        generator=generator,
        incarnation=incarnation,
        policy=policy,
        kv_tokens_total=figures.kv_tokens_total,
        kv_tokens_used=figures.kv_tokens_used,
        max_rollouts=figures.max_rollouts,
        running=figures.running,
        waiting=figures.waiting,
        preempted=figures.preempted,
        generated_tokens=figures.generated_tokens,
        orphans=dict(orphans),
        prefilled_tokens=figures.prefilled_tokens,
        cached_tokens=figures.cached_tokens,
    )


def generator_figures(
    figures: EngineFigures,
    policy: PolicyVersion,
    rates: Mapping[str, float],
    tally: RolloutTally,
    *,
    calls_waiting: int,
) -> GeneratorFigures:
    """The live figures. ``rates``: tokens and rollouts a second."""
    return GeneratorFigures(
        tokens_per_s=rates["tokens"],
        rollouts_per_s=rates["rollouts"],
        kv_used=figures.kv_tokens_used,
        kv_total=figures.kv_tokens_total,
        running=figures.running,
        waiting=figures.waiting,
        preempted=figures.preempted,
        generated_tokens=figures.generated_tokens,
        engine_steps=figures.steps,
        prefilled_tokens=figures.prefilled_tokens,
        cached_tokens=figures.cached_tokens,
        passes=dict(figures.passes),
        engine_cpu_seconds=sum(each.cpu_seconds for each in figures.passes.values()),
        rollouts=tally.rollouts,
        rollouts_truncated=tally.by_status["truncated"],
        rollouts_failed=tally.by_status["failed"],
        rollouts_cancelled=tally.by_status["cancelled"],
        prompts_too_long=tally.by_status["prompt_too_long"],
        calls_malformed=tally.by_outcome["malformed"],
        calls_unknown_tool=tally.by_outcome["unknown_tool"],
        calls_failed=tally.calls_failed,
        responses_cut=tally.responses_cut,
        calls_waiting=calls_waiting,
        policy_version=policy.version,
        compute_bits=figures.compute_bits,
    )


TURNS_SECONDS = 5.0
"""How long a generator that leaves waits until the scheduler has the completed turns."""
LONG_SECONDS = 1.0
"""A judgement at once that takes longer is followed by a pause."""


class RolloutGenerator(Actor):
    """Each RolloutRequest is one task from the first token to the trajectory's acknowledgement."""

    concurrency = 4096
    drain_order = 20
    Settings = RolloutGeneratorSettings
    chat_format: ClassVar[type[ChatFormat]] = ChatFormat
    """The format of episodes and of the learner's demonstrations, for subclasses to replace."""
    receives = (
        Push(RolloutRequest),
        Announce(PolicyPublished),
        Announce(GroupsUnwanted),
        Announce(DeviceTurn, required=False),
        Call(WeightsWanted, WeightsPart, required=False),
        Call(TurnAsked, TurnGiven, required=False),
        Call(SessionAsked, SessionGiven, required=False),
    )
    tracing: Tracing | None = None
    """Sends rollouts to a collector, where ``run.otel`` names one."""
    links: ClassVar = {
        "trajectories": Push(Trajectory),
        "tools": Call(ToolCall, ToolResult),
        "turns": Call(ObserveTurn, TurnObserved),
        "load": Announce(EngineLoad),
        LINK: Push(TurnsCompleted, awaited_in_handler=False),
        "weights": Call(WeightsWanted, WeightsPart, awaited_in_handler=False, required=False),
        "transfer": Call(TransferWanted, TransferOffer, awaited_in_handler=False, required=False),
    }

    @classmethod
    def link_options(cls, link: str, settings: RolloutGeneratorSettings) -> dict[str, Any]:
        """The links' windows and deadlines, from the settings."""
        options: dict[str, dict[str, Any]] = {
            "trajectories": {"window": settings.trajectory_window},
            "tools": {"outstanding": settings.tool_calls_outstanding, "timeout": settings.tool_timeout_seconds},
            "turns": {"outstanding": settings.tool_calls_outstanding, "timeout": settings.tool_timeout_seconds},
        }
        return options.get(link, {})

    @classmethod
    def check(cls, topology: Topology, settings: RolloutGeneratorSettings) -> list[str]:
        """The engine must take its settings, and the KV cache must hold one rollout of each stage."""
        engine, rows, tokens = settings.engine, settings.max_rollouts, settings.kv_tokens
        faults = list(engine_faults(engine, settings.engine_settings, max_rollouts=rows, kv_tokens=tokens))
        try:
            declaration(cls, settings.model_dump(include={"chat_format"}))
        except PluginError as error:
            faults.append(f"chat_format: {error}")
        sampled = (stage for stage in topology.stages if not isinstance(stage, SftStage))
        longest = max(sampled, key=lambda stage: stage.max_response_tokens, default=None)
        if tokens is not None and longest is not None and longest.max_response_tokens >= tokens:
            faults.append(
                f"kv_tokens: the KV cache holds {tokens} tokens, and one rollout of stage {longest.name} may take "
                f"{longest.max_response_tokens} for its response beside its prompt; raise kv_tokens, or lower the "
                "stage's max_response_tokens"
            )
        return faults

    @classmethod
    def probe(cls, topology: Topology, settings: RolloutGeneratorSettings) -> list[str]:
        """Try the chat format on turns that a model may write."""
        del topology
        return format_faults(declaration(cls, settings.model_dump(include={"chat_format"})))

    async def prepare(self) -> None:
        """Load tokenizer and engine."""
        settings: RolloutGeneratorSettings = self.context.settings
        topology = self.context.topology
        self._environments = Environments(topology, self.context.base)
        directory = await self.context.in_thread(model_directory, topology, self.context.directory)
        self._chat = await self.context.in_thread(self._make_format, directory)
        for difference in self._chat.differences():
            self.log.warning("conversations differ from what the chat template writes", where=difference)
        require_append_only(self._environments, self._chat)
        self._engine = self._make_engine(directory, settings)
        self._engine_has_processes = getattr(self._engine, "has_processes", False)
        try:
            await self.context.nursery.start(self._engine.run)
        except EngineError as error:  # a restart does not help, or the run has just begun and never worked
            if self.context.first or isinstance(error, ModelError):
                raise EngineRefusedError(f"the engine cannot be started: {error}") from error
            raise
        if (compute := getattr(self._engine, "compute", None)) is not None:
            self.log.info("matrix products", **compute.row())
        await self.context.in_thread(self._look_for_long_prompts)

    async def start(self) -> None:
        """Begin to serve requests, once a policy is published."""
        await self.prepared()
        self._running = RunningRollouts()
        self._asking: set[str] = set()
        """The peers that requested rollouts, and are there."""
        self._nobody_asks = trio.Event()
        self._served = ServedPolicy(self.context, self._engine, self.log)
        self._sleeping = EngineTurns(self.context, self._engine, self.log)
        await self._sleeping.begin()
        self._tally = RolloutTally()
        self._pause = Pause()
        self._tools = ToolCaller(self.context, self._tally, self._environments.toolboxes)
        self._kept = KeptTurns(self.context)
        self._served_rollouts = ServedRollouts(self.context.replica)
        if self.context.topology.run.otel is not None:
            self.tracing = Tracing(self.context)
        self._loop = AgentLoop(self.context, self._chat, self._engine, self._tools, self.tracing)
        url, nursery = gateway_url(self.context.topology, self.context.name), self.context.nursery
        owner = f"{run_digest(self.context.topology)}.{self.context.name}"
        base, hidden = self.context.base, hidden_of(self.context.topology, self.context.base)
        self._harnesses = Harnesses(
            self._loop, self._served_rollouts, nursery, url=url, base=base, log=self.log, owner=owner, hidden=hidden
        )
        self._sessions = Sessions(self._loop, self._served_rollouts, self.log)
        self._rate = Rate(self.context.now)
        self._announced: EngineLoad | None = None
        self.context.nursery.start_soon(self._report_load)
        self.context.nursery.start_soon(self._served.run, self._announce_load)
        self.context.nursery.start_soon(self._kept.run)
        if self.tracing is not None:
            self.context.nursery.start_soon(self.tracing.run)

    def _make_format(self, directory: Path) -> ChatFormat:
        topology = self.context.topology
        try:
            tokenizer = load_tokenizer(directory, topology, self.context.base)
            ends = ModelFiles.read(directory).end_tokens()
        except Exception as error:  # transformers raises arbitrary errors; a restart would read the same files
            reason = " ".join(str(error).split())
            remedy = "save the tokenizer again, or copy it whole"
            raise EngineRefusedError(f"cannot load the tokenizer of {directory}: {reason}; {remedy}") from error
        declared = declaration(type(self), {"chat_format": self.context.settings.chat_format})
        try:
            made = made_format(declared, tokenizer, self._environments, self._environments.schemas)
        except PromptError as error:
            raise EngineRefusedError(f"the chat template of {directory}: {error}") from error
        made.stop_tokens |= ends
        return made

    def make_episode(self, request: RolloutRequest) -> Episode:
        """The decisions of one rollout."""
        environment = self._environments[request.problem.environment]
        return Episode(
            request,
            self._chat,
            self._engine.longest,
            observes=environment.observes,
            begun=not environment.own_loop,
            calls_per_turn=self.context.settings.tool_calls_per_turn,
        )

    def _look_for_long_prompts(self) -> None:
        for why in long_prompts(self._environments, self._chat, self._engine.longest):
            self.log.warning("groups will be dropped", why=why)

    def _make_engine(self, directory: Path, settings: RolloutGeneratorSettings) -> Engine:
        context = self.context
        return make_engine(directory, settings, context.topology, context.name, sleeps=shares_device(context))

    async def handle(self, message: Any) -> Any:
        """Run a request to its end; keep a policy; cancel rollouts of dropped groups; pass weights on."""
        match message:
            case RolloutRequest():
                await self._rollout(message)
            case TurnAsked():
                return await self._served_rollouts.answer(message)
            case SessionAsked():
                return await self._sessions.answer(message, self.sender)
            case WeightsWanted():
                return await self._served.part(message)
            case PolicyPublished():
                self._served.published(message)
            case DeviceTurn():
                await self._sleeping.follow(message, self.sender)
            case GroupsUnwanted():
                self._running.cancel(message.groups)
                if count := self._running.abandon(message.moved):
                    self.log.warning("rollouts are abandoned, since other generators have them", rollouts=count)
            case _:
                await super().handle(message)
        return None

    async def _rollout(self, request: RolloutRequest) -> None:
        self._asking.add(self.sender)
        running = await self._running.begin(request, self.defer_ack())
        if running is None:
            self._kept.repeat(request.rollout)
            return
        await self._served.ready.wait()
        started = self.context.now()
        episode = self._episode(request)
        failure: tuple[Any, str] | None = None
        with running.scope as scope:
            try:
                while not await self._run(running, episode, started):  # a session that was dropped
                    self._loop.release(episode)
                    self._tools.end(request, episode.tool_states)
                    episode = self.make_episode(request)
            except EnvironmentFaultError as error:
                failure = ("environment_failed", str(error))
            except (ToolsUnavailableError, EngineError, TaskFaultError) as error:
                failure = ("failed", str(error))
            finally:
                running.sampled = True
                self._loop.release(episode)
                self._tools.end(request, episode.tool_states)
        if running.left and episode.ended is None:
            running.abandoned = True
            self._kept.leave(
                request.rollout, running.placement_epoch, len(episode.tokens), partial(self._running.end, running)
            )
            return
        if running.abandoned:
            self._kept.forget(request.rollout)
            self._running.end(running)
            return
        if scope.cancelled_caught:
            failure = ("cancelled", "its group was dropped")
        self._kept.ended(request.rollout, len(episode.tokens) if failure is None else 0)
        trajectory = episode.trajectory(
            generator=self.context.name, seconds=self.context.now() - started, failure=failure
        )
        await self._pause.over()
        judging = self.context.now()
        with interruptible():
            trajectory = judged_at_once(self._environments, request.problem, trajectory)
        if self.context.now() - judging > LONG_SECONDS:
            self._pause.begin()
        self._tally.add(trajectory)
        if self.tracing is not None:
            self.tracing.ended(episode, trajectory, started)
        await self.context.link("trajectories").send(trajectory, on_ack=partial(self._running.end, running))

    def peer_changed(self, event: LinkEvent) -> None:
        """Tell a new process of the scheduler what runs here.

        When nobody who requests rollouts is there any more, a generator that stops need not finish any.
        """
        self._sleeping.peer_changed(event)
        if isinstance(event, PeerReplaced) and event.peer in self.context.link(LINK).targets:
            self._running.orphaned()
            self._announced = None  # the new process knows no load
            self._announce_load()  # before it can place these rollouts elsewhere
        if isinstance(event, PeerSilent | PeerGone | PeerLeft | PeerBack | PeerReplaced):
            self._gateway_changed(event)
        if isinstance(event, PeerSilent | PeerGone | PeerLeft):
            self._asking.discard(event.peer)
            if not self._asking:
                self._nobody_asks.set()
                self._nobody_asks = trio.Event()

    def _gateway_changed(self, event: PeerSilent | PeerGone | PeerLeft | PeerBack | PeerReplaced) -> None:
        """Programs that fail for a gateway that was lost are not at fault."""
        if event.peer.rpartition(".")[0] != GATEWAY:
            return
        if not isinstance(event, PeerBack):
            self._served_rollouts.gateway_lost(event.peer)
        if not isinstance(event, PeerBack | PeerSilent):
            self._sessions.gateway_lost(event.peer)
        if isinstance(event, PeerBack | PeerReplaced):
            self._served_rollouts.gateway_back(event.peer)

    async def stop(self) -> None:
        """Finish the turns under way. Their rollouts then move to other generators, with all their turns.

        At the end of a run the scheduler has left before, and nothing is finished.
        """
        self.context.node.drain()
        if self.context.settings.keep_turns:
            self._running.leaving = True
        with trio.move_on_after(self.context.settings.finish_seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._cancel_after, self._running.none_left, nursery.cancel_scope)
                if self._asking:
                    await self._nobody_asks.wait()
                nursery.cancel_scope.cancel()
        if self._asking:
            with trio.move_on_after(TURNS_SECONDS):
                await self._kept.kept()
        if self.tracing is not None:
            await self.tracing.finish()

    @staticmethod
    async def _cancel_after(wait: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
        await wait()
        scope.cancel()

    def _episode(self, request: RolloutRequest) -> Episode:
        """The rollout with the turns that other generators have completed."""
        episode = self.make_episode(request)
        if not request.turns:
            return episode
        if fault := episode.resume(request.turns):
            self.log.warning("rollout starts again from its beginning", rollout=request.rollout, why=fault)
            return self.make_episode(request)
        self._kept.resumed(episode)
        self.log.info("rollout goes on", rollout=request.rollout, after_turn=len(request.turns))
        return episode

    async def _run(self, running: Running, episode: Episode, started: float) -> bool:
        """Write a rollout. False: nothing came of it, and it begins again."""
        problem = episode.request.problem
        environment = self._environments[problem.environment]
        rollout = environment.rollout
        if environment.harness is not None and environment.harness.source == "live":
            prompt = sound_prompt(environment, problem)[-1]["content"]
            schemas = self._environments.schemas[problem.environment] if environment.harness.tools else []
            return await self._sessions.run(episode, prompt, environment.harness.seconds, json.dumps(schemas))
        if environment.harness is not None:
            written = partial(self._turn_written, episode, started) if self.context.settings.keep_turns else None
            await self._harnesses.run(environment, episode, written)
        elif rollout is None:
            completed = partial(self._turn_completed, running, episode, started)
            await self._loop.run(episode, completed if self.context.settings.keep_turns else None)
        else:
            await UserLoop(
                self._loop,
                episode,
                self._tools.known(episode.request.problem),
                self.context.settings.loop_seconds,
                self._pause,
            ).run(rollout)
        return True

    def _turn_completed(self, running: Running, episode: Episode, started: float) -> bool:
        """Whether the rollout goes on here after a turn."""
        self._kept.completed(episode, episode.complete(self.context.now() - started))
        running.left = self._running.leaving
        return not running.left

    def _turn_written(self, episode: Episode, started: float, written: Written) -> None:
        """A turn of an agent at the gateway is there."""
        seconds = self.context.now() - started
        self._kept.completed(episode, episode.complete(seconds, written.strand, written.place, written.given))

    async def _report_load(self) -> None:
        while True:
            self._announce_load()
            await trio.sleep(self.context.settings.load_interval_seconds)

    def _announce_load(self) -> None:
        """Announce the load if it has news. The link's heartbeats repeat what was announced last.

        A new policy is announced to all. Other news concern those alone that place rollouts.
        """
        load, before = self._load(), self._announced
        if before is not None and load.news == before.news:
            return
        self._announced = load
        schedulers = self.context.link(LINK).targets
        if before is None or load.policy != before.policy or not schedulers:
            self.context.link("load").set(load)
        else:
            for scheduler in schedulers:
                self.context.link("load").set(load, to=scheduler)

    def _load(self) -> EngineLoad:
        engine = self._engine
        return engine_load(
            engine.figures, engine.policy, self.context.name, self.context.incarnation, self._running.orphans
        )

    def waiting_for(self) -> str:
        """The actor that an idle engine waits for, and for what: policy, requests or tool results."""
        if asleep := self._sleeping.waiting_for:
            return asleep
        figures = self._engine.figures
        if figures.running or figures.waiting:
            return ""
        if self._served.waiting_for:
            return self._served.waiting_for
        in_flight = self._running.sampling
        if in_flight and not self.context.link("tools").reachable:
            return self.context.wait(ToolCall, "an executor, since none is heard")
        wait = (ToolCall, f"{in_flight} tool results") if in_flight else (RolloutRequest, "rollout requests")
        return self.context.wait(*wait)

    def busy_seconds(self) -> float:
        """Seconds of the engine's steps."""
        return self._engine.figures.busy_seconds

    def cpu_seconds(self) -> float:
        """With that of processes that the engine has started."""
        children = seconds_of_children(os.getpid()) if self._engine_has_processes else 0.0
        return super().cpu_seconds() + children

    def status(self) -> tuple[str, ActorFigures]:
        """The engine's load and rates since the last status."""
        figures = self._engine.figures
        rates = self._rate({"tokens": figures.generated_tokens, "rollouts": self._tally.rollouts})
        waiting = self._tools.waiting
        generator = generator_figures(figures, self._engine.policy, rates, self._tally, calls_waiting=waiting)
        return "running", ActorFigures(generator=generator)
