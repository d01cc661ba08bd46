"""The base class of actors, which handle each message in a task of its own, and the context an actor is given.

An actor class declares as data which messages it receives and which links it has. From this data ``agent-rl check``
verifies a topology, and refuses a class that breaks the contract of its role::

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

from agent_rl.config.links import wait_for
from agent_rl.config.processes import Written
from agent_rl.figures import ActorFigures
from agent_rl.records.run_directory import is_first

if TYPE_CHECKING:
    import random

    import structlog

    from agent_rl.config.topology import Topology
    from agent_rl.messages import Metric
    from agent_rl.records.journal import Journal
    from transport import CallLink, LinkEvent, Node


class Settings(Written):
    """Base of every actor's settings: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


@dataclass(frozen=True)
class Push:
    """A push link, or the message types that an actor receives over push links.

    ``required`` matters for received messages only: the actor needs at least one sender of them.
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
    """A call link, or a request that an actor answers.

    ``awaited_in_handler`` False: a separate task waits for the reply, never a handler.
    ``required``: an answered request needs at least one caller; every topology must say where a link leads.
    """

    request: type
    reply: type
    awaited_in_handler: bool = True
    required: bool = True
    kind: ClassVar[Literal["call"]] = "call"

    @property
    def messages(self) -> tuple[type, ...]:
        """The type of the request, as a tuple: the other link kinds have several types."""
        return (self.request,)


@dataclass(frozen=True)
class Announce:
    """An announce link, or the message types an actor receives over one. ``required`` means the same as for `Push`."""

    messages: tuple[type, ...]
    required: bool = True
    kind: ClassVar[Literal["announce"]] = "announce"

    def __init__(self, *messages: type, required: bool = True) -> None:
        object.__setattr__(self, "messages", messages)
        object.__setattr__(self, "required", required)


LinkKind = Push | Call | Announce


@dataclass
class ActorContext:
    """Everything an actor is given: name, settings, clocks, random numbers, links, logger. There are no globals."""

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
    """The folder of the topology file. Relative paths in the topology start from this folder."""
    node: Node
    nursery: trio.Nursery
    """For the actor's own background tasks; cancelled when the actor stops."""
    rng: random.Random
    log: structlog.typing.FilteringBoundLogger
    links: Mapping[str, Any]
    """The PushLink, CallLink or AnnounceLink for each name in the class's ``links``."""
    open_journal: Callable[[], Journal]
    """Opens the run's journal. Only one actor writes it."""
    started_at: float
    """When this start of the run began, in seconds of ``wall``."""
    restarted: bool = False
    """Whether the former process of the actor died, so that others wait for this one to be ready."""
    now: Callable[[], float] = field(default=trio.current_time)
    """Monotonic seconds of the event loop."""
    wall: Callable[[], float] = field(default=time.time)
    """Seconds since the epoch by this start's own clock. Setting the host's clock does not move it (`run_clock`)."""
    cpu: Callable[[], float] = field(default=time.process_time)
    """Processor seconds of this process, with its threads."""
    in_thread: Callable[..., Awaitable[Any]] = field(default=trio.to_thread.run_sync)
    """Run blocking work in a thread. In virtual time, which would run ahead of a thread, the work runs in place."""

    @property
    def first(self) -> bool:
        """Whether this is the actor's first process in this start of the run."""
        return is_first(self.incarnation)

    def link(self, name: str) -> Any:
        """The link of that name."""
        return self.links[name]

    def wait(self, message: type, thing: str) -> str:
        """A text for `Actor.waiting_for`: ``thing`` is awaited from the peers that send or receive ``message``."""
        return wait_for(self.topology, self.role, message, thing)


def passing_link(link: str, peer: str) -> str:
    """The name of the link to a peer that passes on what it gets over ``link``."""
    return f"{link} of {peer}"


ASK_ATTEMPTS = 5


async def ask(link: CallLink, message: Any, *, timeout: float, log: Any = None) -> Any:
    """Call a peer, and repeat the call when a restart replaced the peer or no reply came within ``timeout`` seconds.

    The request must be safe to repeat. Raises the error of the last attempt.
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

    Actors with state keep ``concurrency = 1``: messages are handled in order, and no locks are needed. The handler of
    such an actor never awaits a push or a call. The handler records the work, and a separate task does the work.
    """

    _is_prepared = False
    concurrency: ClassVar[int] = 1
    single: ClassVar[bool] = False
    """Whether the role has exactly one replica."""
    each_needed: ClassVar[bool] = False
    """Whether each replica does a part of the work that no other can do: none can be added, and none taken away."""
    drain_order: ClassVar[int] = 50
    """When a run ends, actors with a lower number are stopped first."""
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
        """The faults of these settings in this topology. ``agent-rl check`` prints them before a run starts."""
        del topology, settings
        return []

    @classmethod
    def probe(cls, topology: Topology, settings: Any) -> list[str]:
        """The faults of user code that this role calls. The code is tried on made-up input before a run starts.

        A role that calls user code overrides this method; see `on_trial`.
        """
        del topology, settings
        return []

    @classmethod
    def on_trial(cls, topology: Topology, settings: Any) -> Self:
        """The actor with settings and topology but without links, so that `probe` can call its pure methods."""
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
        """Call this in `handle`: the push stays unacknowledged until the returned function is called."""
        from transport import current_delivery

        return current_delivery().defer()

    @property
    def sender(self) -> str:
        """In `handle`: the node that sent the message."""
        from transport import current_delivery

        return current_delivery().sender

    async def prepare(self) -> None:
        """Load what needs no peer, and nothing that a former process of the actor has still: no journal, no checkpoint.

        A process that takes the place of another (`agent-rl swap`) is prepared while the former one works.
        """

    async def prepared(self) -> None:
        """Prepare, unless that is done. A role that overrides `prepare` calls this first in `start`."""
        if not self._is_prepared:
            self._is_prepared = True
            await self.prepare()

    async def start(self) -> None:
        """Load what the actor needs. Messages are handled once this has returned."""

    async def handle(self, message: Any) -> Any:
        """Handle one message. The returned value is the reply to a call."""
        raise TypeError(f"{type(self).__name__} does not handle {type(message).__name__}")

    def peer_changed(self, event: LinkEvent) -> None:
        """A peer is silent, lost, heard again, restarted, about to leave, or has left (`transport.errors`).

        Called at once, after `start`, between two messages. Announcements of a peer that is gone do not arrive after
        this. The links of the actor go to other replicas by themselves.
        """

    async def stop(self) -> None:
        """Finish work that must not be lost.

        Messages are handled until this returns, and none after: the actor's next process gets what is unacknowledged.
        """

    def lacking(self) -> str:
        """The peers that `start` waits for, in words, as in ``"host b is not heard"``; empty where it waits for none.

        Shown to the user. Called before `start` has returned, and not after.
        """
        return ""

    def alarm(self) -> str:
        """What goes wrong and the user must mend, in words; empty where nothing does.

        Shown to the user once as long as the words stay the same. Called after `start` has returned.
        """
        return ""

    def status(self) -> tuple[str, ActorFigures]:
        """One word for the actor's state, and its live figures: the role's figures, and your own in ``extra``."""
        return "running", ActorFigures()

    def detail(self) -> str:
        """Text that the live display shows beside the figures; empty for none."""
        return ""

    def metrics(self) -> tuple[Metric, ...]:
        """Further counters and histograms for Prometheus. Prometheus gets the figures of `status` in any case."""
        return ()

    def waiting_for(self) -> str:
        """The roles and the thing that an idle actor waits for, as in ``"roc_filter: step 13"``; empty while it works.

        `ActorContext.wait` finds the roles from the links of the topology, where a role may have any name.
        """
        return ""

    def busy_seconds(self) -> float:
        """Seconds of work in the actor's role since the process started.

        The share of the elapsed time shows how close the actor is to limiting the run; 1 means that the actor is always
        busy. The default is processor time, which suits actors that decide and forward messages.
        """
        return self.cpu_seconds()

    def cpu_seconds(self) -> float:
        """Processor time of the process and its children, in seconds."""
        return self.context.cpu()
