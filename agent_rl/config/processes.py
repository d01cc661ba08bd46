"""The tables ``[run]``, ``[hosts]``, ``[security]`` and ``[actors]`` of a topology."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)


class Part(BaseModel):
    """A table of the file. Unknown keys are errors; values never change."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True, populate_by_name=True)


class Run(Part):
    """The run: its name, where its files go, and when it ends."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Letters, digits, ``.``, ``_`` and ``-``. The name is shown to people and is part of the names of sockets."""
    seed: int = 0
    """The seed of all that is drawn in the run: problems, sampling, order, initial weights."""
    directory: Path
    """The folder of journal, logs, metrics and checkpoints, on a local disk; relative to the working directory."""
    mode: Literal["asynchronous", "synchronous"] = "asynchronous"
    """``synchronous``: rollout and training take turns, as with a staleness budget of 0."""
    max_minutes: PositiveFloat | None = None
    """Training and select stages end when this start of the run has lasted so long, by the monotonic clock. Evaluation
    stages after them still run. The restart of an actor changes nothing, and the next ``agent-rl run`` has the same
    time again."""
    checkpoint_every: PositiveInt = 50
    """RL steps between checkpoints. The end of a stage is always a checkpoint."""
    checkpoint_seconds: PositiveFloat = 5.0
    """Seconds between checkpoints within a supervised stage, of which the newest is kept. Where saving is slow, the
    time between them grows, so that saving takes at most a twentieth of the time."""
    keep_checkpoints: PositiveInt = 3
    """How many of the newest checkpoints are kept."""
    keep_trajectories: Literal["all", "replay"] | PositiveInt = "replay"
    """Which training trajectories stay in the journal, for `agent-rl export` and the report. ``all``; ``replay``: those
    that a restart from the oldest checkpoint may need, and samples; a number: also those of so many last steps.
    Trajectories of evaluate stages always stay."""
    log_mib: PositiveFloat = 16.0
    """The size at which a log is renamed to ``.1``; an actor's logs take at most four times as much."""
    timeline_mib: PositiveFloat = 64.0
    """The size at which ``timeline.jsonl`` is renamed in the same way; both files take at most twice as much."""
    lost_after_seconds: PositiveFloat = 20.0
    """An actor that its peers hear nothing of for so long is lost to them, until they hear it again: rollouts and tool
    calls go to other generators and executors."""
    host_lost_after_seconds: PositiveFloat = 7.0
    """The same for an actor of another host whose supervisor is silent as well: such a host has lost its power or its
    network, where a single silent process may only be slow. Less than 5 s has no effect: so long a silence is none."""
    give_up_minutes: PositiveFloat | None = None
    """The run ends when some actor has had no generator, executor, filter or learner to send to for so long. None: the
    actor waits for ever."""
    status_seconds: float = Field(default=0.5, gt=0, le=1)
    """How often an actor reports its figures. A row of ``timeline.jsonl`` covers two reports, and more in long runs."""
    report_standstill_seconds: PositiveFloat = 180.0
    """After so long without progress, the run prints which actor waits for what, and goes on."""
    trackers: tuple[str, ...] = ()
    """Where the rows of ``metrics.jsonl`` also go: ``tensorboard``, ``wandb``, or ``module:Name`` of your own."""
    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """The port at which the learner's host answers ``GET /metrics`` with the metrics of all actors, for Prometheus."""
    metrics_address: str = "127.0.0.1"
    """The address of ``metrics_port``. The default address can be reached from this machine only."""


class Host(Part):
    """A machine that runs actors."""

    address: str = "127.0.0.1"
    """The name or address under which other hosts reach it."""
    base_port: int = Field(default=5700, ge=1024, le=60000)
    """The first of its TCP ports: the supervisor has this one, and each actor one of the next."""
    gpus: NonNegativeInt | None = None
    """How many GPUs the machine has. None: as many as are found there. ``agent-rl check`` believes this number on a
    machine without GPUs."""
    optional: bool = False
    """Whether the host may come and go while the run is under way (``agent-rl run FILE --host NAME``, ``agent-rl
    drain``). The run neither waits for an optional host nor ends because it fails."""


class Security(Part):
    """The protection of links between hosts."""

    key_file: Path | None = None
    """The CURVE key that all hosts of the run share (``agent-rl keys FILE`` makes one); relative to the topology file.
    It encrypts and authenticates links between hosts. Without it several hosts are refused, also on loopback, which
    every user of the machine can reach."""


class ActorEntry(Part):
    """One role: its class, hosts, number of processes, settings and links."""

    class_path: str = Field(alias="class", pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """``module:Class``. A standard role may leave it out and has its standard class then."""
    host: str | None = None
    """The machine that runs it: a name of ``[hosts]``. Without ``host`` and ``hosts`` it is ``local``."""
    hosts: tuple[str, ...] | None = Field(default=None, min_length=1)
    """The machines that run it, in place of ``host``. A machine that is not up yet may start later."""
    replicas: PositiveInt | None = None
    """How many processes the role has. They are dealt round over the hosts, in the order of ``hosts``. Without
    ``replicas`` and ``replicas_per_host`` each host has one."""
    start: PositiveInt | None = None
    """How many of the processes run at first: those with the lowest numbers. ``agent-rl scale`` changes the number
    between 1 and ``replicas``. None: all of them."""
    replicas_per_host: PositiveInt | None = None
    """How many processes the role has on each host, in place of ``replicas``. The numbers of replicas go host by host,
    so that another host at the end of ``hosts`` changes no name."""
    ranks: PositiveInt = 1
    """Processes that train one model together (see ``model.parallel``). With ``hosts`` each host has an equal part of
    them, in the order of ``hosts``; the first host has rank 0, which is the actor. Only the learner has several."""
    gpus_per_replica: NonNegativeInt | None = None
    """The GPUs of each process. None: with ``device = "cuda"`` as many as the engine's parallel sizes make, else none.
    The process sees these alone, as ``cuda:0`` and so on, and runs on cores near them."""
    share: Literal["none", "time"] = "none"
    """``time``: the role may have devices of other roles that say so, as on a machine with one GPU. While the learner
    trains, an engine on a device of the learner's sleeps: it writes no tokens, and gives its memory back."""
    settings: dict[str, Any] = {}
    """The settings of the class; those of the standard classes are listed below."""
    links: dict[str, str | tuple[str, ...]] = {}
    """The role or roles that each link of the class leads to, by the name of the link."""
    restarts: NonNegativeInt = 3
    """Restarts within ``restart_window_seconds``, and in a row of a process that ends before it did anything."""
    restart_window_seconds: PositiveFloat = 60.0
    """The time in which ``restarts`` are counted."""
    silent_seconds: float = Field(default=120.0, gt=0, allow_inf_nan=True)
    """An actor that sends no status for so long is killed and restarted; ``inf``: never."""
    start_seconds: float = Field(default=900.0, gt=0, allow_inf_nan=True)
    """How long a process that `swap` or `scale` brings may take to start. Then it is killed, and the former class or
    number holds again; ``inf``: it is waited for."""

    @model_validator(mode="before")
    @classmethod
    def _placed(cls, data: Any) -> Any:
        """Say where an entry runs that does not say it, so that a topology written as a file says it."""
        if not isinstance(data, dict):
            return data
        several, ranks = data.get("hosts") is not None, data.get("ranks", 1)
        each = several and not (isinstance(ranks, int) and ranks > 1)  # ranks on several hosts are one replica
        count = {"replicas_per_host" if each else "replicas": 1}
        counted = any(data.get(key) is not None for key in ("replicas", "replicas_per_host"))
        placed = several or data.get("host") is not None
        return data | ({} if placed else {"host": "local"}) | ({} if counted else count)

    @model_validator(mode="after")
    def _starts_some_of_its_replicas(self) -> Self:
        if self.start is not None and self.start > len(self.homes):
            raise ValueError(f"start ({self.start}) is more than the processes of the role ({len(self.homes)})")
        return self

    @property
    def homes(self) -> tuple[str, ...]:
        """The host of each replica, by the number of the replica."""
        hosts = self.hosts or (self.host or "local",)
        if self.replicas_per_host is not None:
            return tuple(host for host in hosts for _ in range(self.replicas_per_host))
        return tuple(hosts[number % len(hosts)] for number in range(self.replicas or 1))

    @property
    def rank_hosts(self) -> tuple[str, ...]:
        """The hosts that share the ranks of a replica, that of rank 0 first."""
        return self.hosts if self.ranks > 1 and self.hosts else self.homes[:1]

    @property
    def ranks_per_host(self) -> int:
        """How many of the ranks of a replica each of `rank_hosts` has."""
        return self.ranks // len(self.rank_hosts)

    def targets(self, link: str) -> tuple[str, ...]:
        """The roles that a link leads to; none when the file has no such link."""
        value = self.links.get(link, ())
        return (value,) if isinstance(value, str) else value
