"""The actors of a twin: production classes, with a model in the place of engine, tools and training.

Each class is derived from the one that the topology names, with the `World` of the run as a class attribute, which
observes each message.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import trio

from actors.base import Actor, ActorContext
from actors.kv_scheduler import KVScheduler
from actors.learner import Learner
from actors.roc_filter import RoCFilter
from actors.rollout_generator import RolloutGenerator
from actors.tool_executor import ToolExecutor
from agent_rl.config.plugins import resolve
from agent_rl.config.topology import Topology
from agent_rl.figures import PublishFigures, TrainingFigures
from agent_rl.messages import (
    PolicyPublished,
    PolicyVersion,
    Problem,
    Purpose,
    RolloutRequest,
    ToolCall,
    ToolResult,
    TrainingGroup,
)
from agent_rl.records.checkpoint_files import Position
from agent_rl.rollout.episode import Episode
from agent_rl.rollout.prompts import ChatFormat
from benchmarks.twin.clock import sleep, sleep_until
from benchmarks.twin.engine import TwinEngine
from benchmarks.twin.tokens import RunsEpisode, RunsFormat
from benchmarks.twin.world import Places, World, tokens_of

T = TypeVar("T")


class Observed(Actor):
    """Shows each message to the world before it is handled."""

    world: ClassVar[World]

    async def handle(self, message: Any) -> Any:
        """Handle the message."""
        self.world.observe(message)
        return await super().handle(message)


class TwinScheduler(Observed):
    """The scheduler, whose problems are those of the trace."""

    def problem(self, stage: int, number: int, purpose: Purpose) -> Problem:
        """The problem of a group of the trace."""
        del stage, purpose
        settings = self.context.settings
        return self.world.problem(number, settings.characters_per_token, settings.template_tokens)


class TwinGenerator(Observed):
    """The generator, whose engine is a model, and whose episodes count runs of tokens."""

    def _make_format(self, directory: Path) -> ChatFormat:
        del directory
        environments: Any = self._environments  # type: ignore[attr-defined]
        return RunsFormat(environments)

    def make_episode(self, request: RolloutRequest) -> Episode:
        """The decisions of one rollout."""
        chat, longest = self._chat, self._engine.longest  # type: ignore[attr-defined]
        return RunsEpisode(request, chat, longest, calls_per_turn=self.context.settings.tool_calls_per_turn)

    def _make_engine(self, directory: Path, settings: Any) -> TwinEngine:
        del directory, settings
        world = self.world
        return TwinEngine(
            world.engines[self.context.name],
            world.trace.learner,
            world.shape,
            world.flag,
            longest=2 * world.trace.limit,
        )

    async def _report_load(self) -> None:
        """As the production method, without looking while nothing changes."""
        interval, began = self.context.settings.load_interval_seconds, self.context.now()
        while True:
            self._announce_load()  # type: ignore[attr-defined]
            looked = self.context.now()
            await self._engine.news()  # type: ignore[attr-defined]
            looks = max(math.ceil((each - began) / interval - 1e-6) for each in (self.context.now(), looked + interval))
            await sleep_until(began + looks * interval)


class TwinExecutor(Observed):
    """An executor whose calls take the seconds of the trace, each in one of its places."""

    Settings = ToolExecutor.Settings
    receives = ToolExecutor.receives
    links = ToolExecutor.links

    async def handle(self, message: Any) -> Any:
        """Take the time of the call, and answer with the number of tokens that the model reads."""
        self.world.observe(message)
        assert isinstance(message, ToolCall), "rollouts of the twin are judged where they end"
        turn = int(message.call.rpartition("/")[2].partition(".")[0]) - 1
        _, _, shape = self.world.shape(message.rollout)
        await self.world.places.setdefault(self.context.name, Places(self.concurrency)).run(shape.tool_s[turn])
        tokens = str(shape.tool_tokens[turn])
        return ToolResult(message.call, "success", tokens, "", "", 0.0, shape.tool_s[turn])


class TwinLearner(Observed):
    """The learner's walk, with a model that takes time in the place of one that learns."""

    @staticmethod
    def _import() -> None:
        """Nothing: torch is not needed."""

    def _make_model(self) -> ModelledModel:
        return ModelledModel(self.context, self.world)


class ModelledModel:
    """What the learner asks of `actors.learner.model.TrainedModel`, as times.

    It is its own trainer, publisher, store, checkpoints and saving: all that these have to do is to take time, or
    nothing.
    """

    beside = False
    """No checkpoint is ever being written beside training."""
    lacking = ""
    """No host has ranks of its own."""
    under_way = ""
    """No update is waited for."""
    compute_bits = None
    """There are no products."""
    tools = False
    """Nothing is learnt that could be healthy."""

    def __init__(self, context: ActorContext, world: World) -> None:
        self._context, self._world = context, world
        self._busy_s = 0.0
        self._positions: list[Position] = []
        self.trainer = self.publisher = self.store = self.checkpoints = self.saving = self
        self.tokenizer = None

    async def load(self) -> tuple[Position, dict[str, Any]]:
        """Begin with nothing."""
        await trio.lowlevel.checkpoint()
        return Position(0, 0, 0), {}

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do the work, and take its time."""
        before = self._busy_s
        made = work()
        await sleep(self._busy_s - before)
        if self._busy_s > before:
            self._world.outcome.steps += 1
            self._world.outcome.learner_busy += self._busy_s - before
        return made

    def rl_step(self, groups: Sequence[TrainingGroup], stage: object, step: int) -> TrainingFigures:
        """Train a step: its tokens take time."""
        del stage, step
        tokens = sum(map(tokens_of, groups))
        self._busy_s += max(1e-9, tokens / self._world.trace.learner.tokens_per_s)
        return TrainingFigures(trained_tokens=tokens)

    async def publish(self, policy: PolicyVersion, position: Position) -> None:
        """Announce the policy after the time of publishing, while training goes on."""
        await trio.lowlevel.checkpoint()
        if policy.version >= self._world.trace.steps:
            self._world.done.set()
        self._context.nursery.start_soon(self._announce, policy, position)

    async def _announce(self, policy: PolicyVersion, position: Position) -> None:
        if policy.version:
            await sleep(self._world.trace.learner.publish_s)
        published = PolicyPublished(policy, f"file:///{policy.version}", position.stage, position.stage_version)
        self._context.link("policy").set(published)

    async def begin_rl(self, position: Position) -> bool:
        """A stage begins at its start."""
        await trio.lowlevel.checkpoint()
        return position.version == position.stage_version

    async def give_memory_back(self) -> None:
        """Takes no time."""
        await trio.lowlevel.checkpoint()

    async def save(
        self, position: Position, extra: Mapping[str, Any], after: Callable[[], Awaitable[None]], *, beside: bool
    ) -> None:
        """Checkpoints take no time."""
        del extra, beside
        self._positions.append(position)
        await after()

    async def settled(self) -> None:
        """Nothing is being written."""
        await trio.lowlevel.checkpoint()

    def positions(self) -> list[Position]:
        """Of the checkpoints."""
        return list(self._positions)

    def path(self, position: Position) -> Path:
        """Of a checkpoint."""
        return self._context.directory / "checkpoints" / f"{position.version:08d}"

    def busy_seconds(self) -> float:
        """Seconds of training."""
        return self._busy_s

    def take_figures(self) -> PublishFigures:
        """Nothing is measured."""
        return PublishFigures()

    def begin(self) -> None:
        """Nothing."""

    def enter(self, algorithm: object) -> None:
        """Nothing."""

    def served(self, generator: str, policy: PolicyVersion) -> None:
        """Nothing."""

    def gone(self, generator: str) -> None:
        """Nothing."""

    def remove_all_but(self, count: int, best: int | None) -> None:
        """Nothing."""

    def update_seconds(self, tokens: int) -> None:
        """It measures no rate."""

    def reset_optimizer(self) -> None:
        """Nothing."""


ROLES: Mapping[str, tuple[type[Observed], type[Actor] | None]] = {
    "kv_scheduler": (TwinScheduler, KVScheduler),
    "rollout_generator": (TwinGenerator, RolloutGenerator),
    "tool_executor": (TwinExecutor, None),
    "roc_filter": (Observed, RoCFilter),
    "learner": (TwinLearner, Learner),
}
"""The standard roles: what the twin adds, and the production class that it is added to."""


def twin_class(topology: Topology, role: str, world: World) -> type[Actor]:
    """The class of a role: the topology's own where it derives from the production class, else the production class."""
    added, production = ROLES[role]
    entry = topology.actors[role]
    if production is None:
        settings = ToolExecutor.Settings.model_validate(entry.settings)
        places = settings.interpreters * settings.children
        return type("ToolExecutor", (added,), {"world": world, "concurrency": places})
    base = production if not_used(topology, role) else resolve("actor", entry.class_path)
    return type(base.__name__, (added, base), {"world": world})


def not_used(topology: Topology, role: str) -> str:
    """Why the twin does not run the class that the topology names for a role, in words; empty where it does."""
    _, production = ROLES[role]
    path = topology.actors[role].class_path
    named: type[Actor] = resolve("actor", path)
    if production is None or issubclass(named, production):
        return ""
    return f"{path} does not derive from {production.__name__}, which runs in its place"
