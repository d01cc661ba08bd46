"""What every actor is: a class that handles messages one task each, and the context it is given.

An actor class declares, as data, what it receives and what links it has, so that ``agent-rl check`` can prove a topology
sound and refuse a substitute that breaks its role's contract::

    class RoCFilter(Actor):
        Settings = RoCFilterSettings                      # a pydantic model; the topology's [actors.x.settings]
        receives = (Push(GroupOpened), Push(Trajectory), Call(StepTrained, Recorded))
        links = {"training": Push(TrainingGroup, StepReady), "checks": Call(JudgementWanted, JudgementReply)}
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

import trio
from pydantic import BaseModel, ConfigDict

from agent_rl.figures import ActorFigures
from agent_rl.records.incarnations import is_first

if TYPE_CHECKING:
    import random

    import structlog

    from agent_rl.config.topology import Topology
    from agent_rl.messages import Metric
    from agent_rl.records.journal import Journal
    from transport import CallLink, Node


class Settings(BaseModel):
    """Base of every actor's settings: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


@dataclass(frozen=True)
class Push:
    """A push link, or what is received over one: any of these message types.

    ``required``, of what is received, says that the actor is no use unless somebody sends it.
    """

    messages: tuple[type, ...]
    awaited_in_handler: bool = True
    required: bool = True
    kind: ClassVar[Literal["push"]] = "push"

    def __init__(self, *messages: type, awaited_in_handler: bool = True, required: bool = True) -> None:
        object.__setattr__(self, "messages", messages)
        object.__setattr__(self, "awaited_in_handler", awaited_in_handler)
        object.__setattr__(self, "required", required)


@dataclass(frozen=True)
class Call:
    """A call link, or what is answered over one. ``awaited_in_handler`` False: a task of its own waits, never a handler.

    ``required``, of what is answered, says that the actor is no use unless somebody asks it; of a link, that every topology
    must say where it leads.
    """

    request: type
    reply: type
    awaited_in_handler: bool = True
    required: bool = True
    kind: ClassVar[Literal["call"]] = "call"

    @property
    def messages(self) -> tuple[type, ...]:
        """The request's type, as a tuple like the other kinds have."""
        return (self.request,)


@dataclass(frozen=True)
class Announce:
    """An announce link, or what is received over one; ``required`` as of a push."""

    messages: tuple[type, ...]
    required: bool = True
    kind: ClassVar[Literal["announce"]] = "announce"

    def __init__(self, *messages: type, required: bool = True) -> None:
        object.__setattr__(self, "messages", messages)
        object.__setattr__(self, "required", required)


LinkKind = Push | Call | Announce


@dataclass
class ActorContext:
    """What an actor is given: names, settings, clock, randomness, links, logger. Nothing is global."""

    name: str
    """``role.replica``, as in ``rollout_generator.0``."""
    role: str
    replica: int
    incarnation: int
    topology: Topology
    settings: Any
    directory: Path
    """The run directory."""
    base: Path
    """The folder of the topology file, which relative paths in it start from."""
    node: Node
    nursery: trio.Nursery
    """For the actor's own background tasks; cancelled when the actor stops."""
    rng: random.Random
    log: structlog.typing.FilteringBoundLogger
    links: Mapping[str, Any]
    """PushLink, CallLink or AnnounceLink by the name the class gave it."""
    open_journal: Callable[[], Journal]
    """The run's journal, for the one actor that writes it."""
    started_at: float
    """When this start of the run began, in seconds of ``wall``."""
    now: Callable[[], float] = field(default=trio.current_time)
    """Monotonic seconds of the event loop."""
    wall: Callable[[], float] = field(default=time.time)
    """Seconds since the epoch as this start of the run counts them: setting the clock changes nothing (`run_clock`)."""
    cpu: Callable[[], float] = field(default=time.process_time)
    """Processor seconds of this process, its threads included."""
    in_thread: Callable[..., Awaitable[Any]] = field(default=trio.to_thread.run_sync)
    """Run blocking work without holding up the event loop; in virtual time, which would run away from a thread, in place."""

    @property
    def first(self) -> bool:
        """Whether no process of this actor came before, in this start of the run."""
        return is_first(self.incarnation)

    def link(self, name: str) -> Any:
        """The link of that name."""
        return self.links[name]


ASK_ATTEMPTS = 5


async def ask(link: CallLink, message: Any, *, timeout: float, log: Any = None) -> Any:
    """Call a single peer and insist: again when it was replaced by a restart or did not answer within ``timeout`` seconds.

    For requests that may be repeated. Raises what the last attempt raised.
    """
    from transport import CallTimeout, PeerLost

    for attempt in range(1, ASK_ATTEMPTS + 1):
        try:
            return await link(message, timeout=timeout)
        except (PeerLost, CallTimeout) as error:
            if attempt == ASK_ATTEMPTS:
                raise
            if log is not None:
                log.warning("asking again", request=type(message).__name__, attempt=attempt, error=str(error))
    raise AssertionError("the last attempt returned or raised")


class Actor:
    """Handle each message in its own task, at most ``concurrency`` at once.

    Stateful actors keep ``concurrency = 1``: messages in order, no locks. Such an actor's handler never awaits a push or
    a call; it records what is to be done, and a task of its own does it.
    """

    concurrency: ClassVar[int] = 1
    single: ClassVar[bool] = False
    """Whether the role has exactly one replica."""
    drain_order: ClassVar[int] = 50
    """Lower ones are stopped first when a run ends."""
    drain_seconds: ClassVar[float] = 30.0
    """How long ``stop`` may take before the process is killed."""
    Settings: ClassVar[type[BaseModel]] = Settings
    receives: ClassVar[tuple[LinkKind, ...]] = ()
    links: ClassVar[Mapping[str, LinkKind]] = {}

    @classmethod
    def link_options(cls, link: str, settings: Any) -> dict[str, Any]:
        """Keyword arguments for making a link: ``window`` of a push, ``outstanding`` and ``timeout`` of a call."""
        del link, settings
        return {}

    @classmethod
    def check(cls, topology: Topology, settings: Any) -> list[str]:
        """What these settings make impossible in this topology, for ``agent-rl check`` to say before anything starts."""
        del topology, settings
        return []

    @classmethod
    def probe(cls, topology: Topology, settings: Any) -> list[str]:
        """What is wrong with code of the user's own that the role calls, tried on made-up input before anything starts.

        A role with such code overrides it; see `on_trial`.
        """
        del topology, settings
        return []

    @classmethod
    def on_trial(cls, topology: Topology, settings: Any) -> Self:
        """The actor with settings and topology, yet without links: for a `probe` to try its pure methods."""
        import random
        from pathlib import Path

        import structlog

        return cls(
            ActorContext(
                name="on_trial.0",
                role="on_trial",
                replica=0,
                incarnation=0,
                topology=topology,
                settings=settings,
                directory=Path(topology.run.directory),
                base=Path(),
                node=cast("Node", None),
                nursery=cast("trio.Nursery", None),
                rng=random.Random(0),
                log=structlog.get_logger(),
                links=dict.fromkeys(cls.links),
                open_journal=cast("Callable[[], Journal]", None),
                started_at=0.0,
            )
        )

    def __init__(self, context: ActorContext) -> None:
        self.context = context
        self.log = context.log

    def defer_ack(self) -> Callable[[], None]:
        """Within `handle`: keep the push unacknowledged until the returned function is called, at any later time."""
        from transport import current_delivery

        return current_delivery().defer()

    async def start(self) -> None:
        """Load what the actor needs. Messages are handled once this has returned."""

    async def handle(self, message: Any) -> Any:
        """Handle one message; what is returned answers a call."""
        raise TypeError(f"{type(self).__name__} does not handle {type(message).__name__}")

    async def stop(self) -> None:
        """Finish what must not be lost; called after the last message is handled."""

    def status(self) -> tuple[str, ActorFigures]:
        """A word for what the actor is doing, and its live figures: the role's, and ``extra`` ones of your own."""
        return "running", ActorFigures()

    def detail(self) -> str:
        """What people should see beside the figures; empty for nothing."""
        return ""

    def metrics(self) -> tuple[Metric, ...]:
        """Counters and histograms for Prometheus; the figures of `status` are there without it."""
        return ()

    def waiting_for(self) -> str:
        """Whom and what an idle actor waits for, as in ``"roc_filter: step 13"``; empty while it works."""
        return ""

    def busy_seconds(self) -> float:
        """Seconds since the process started in which the actor did what its role is for.

        Its share of the time says how near the actor is to limiting the run: 1 is all it can do. The default, processor
        time, suits actors that decide and pass on.
        """
        return self.cpu_seconds()

    def cpu_seconds(self) -> float:
        """Processor time of the process and its children, in seconds."""
        return self.context.cpu()
