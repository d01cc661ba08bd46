"""The tables ``[run]``, ``[hosts]``, ``[security]`` and ``[actors]`` of a topology."""

from __future__ import annotations

from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator


class Misfit:
    """A text or a truth value where a number belongs, or either or a number where a truth value belongs.

    pydantic would convert the value, so that ``steps = true`` means one step. It refuses a Misfit.
    """

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        return repr(self._value)


def _as_written(value: Any, annotation: Any) -> Any:
    members = _members(annotation)
    if isinstance(value, list | tuple):
        inner = next((get_args(each)[0] for each in members if get_origin(each) is tuple), Any)
        return [_as_written(item, inner) for item in value]
    if isinstance(value, dict):
        inner = next((get_args(each)[1] for each in members if get_origin(each) is dict), Any)
        return {key: _as_written(item, inner) for key, item in value.items()}
    kinds = {type(each) for member in members if get_origin(member) is Literal for each in get_args(member)}
    kinds |= {member for member in members if isinstance(member, type)}
    number, truth = bool(kinds & {int, float}), bool in kinds
    match value:
        case bool():
            fits = truth or not number
        case str():
            fits = not (number or truth) or not kinds <= {int, float, bool, NoneType}
        case int() | float():
            fits = number or not truth
        case _:
            fits = True
    return value if fits else Misfit(value)


def _members(annotation: Any) -> list[Any]:
    """The members of a union, or the one annotation; without Annotated."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in {Union, UnionType}:
        return [member for each in get_args(annotation) for member in _members(each)]
    return [annotation]


class Written(BaseModel):
    """A table whose numbers and truth values are written as such."""

    @model_validator(mode="before")
    @classmethod
    def _with_misfits(cls, data: Any) -> Any:
        """Each value that pydantic would convert as a `Misfit`."""
        if not isinstance(data, dict):
            return data
        types = {field.alias or name: field.annotation for name, field in cls.model_fields.items()}
        return {key: _as_written(value, types[key]) if key in types else value for key, value in data.items()}


class Part(Written):
    """A table of the file. Unknown keys are errors; values never change."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True, populate_by_name=True)


class Run(Part):
    """The run: its name, where its files go, and when it ends."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Letters, digits, ``.``, ``_`` and ``-``. Shown to people, and part of the names of sockets."""
    seed: int = 0
    """The seed of problems, sampling, order and initial weights."""
    directory: Path
    """The folder of journal, logs, metrics and checkpoints: on a local disk, relative to the working directory."""
    mode: Literal["asynchronous", "synchronous"] = "asynchronous"
    """``synchronous``: rollout and training take turns, without staleness."""
    max_minutes: PositiveFloat | None = None
    """Training and select stages end so long after the start; evaluation stages after them still run. The next
    ``agent-rl run`` has the same time again."""
    checkpoint_every: PositiveInt = 50
    """RL steps between checkpoints. The end of a stage is always a checkpoint."""
    checkpoint_seconds: PositiveFloat = 5.0
    """Seconds between checkpoints within a supervised stage, of which the newest is kept; more where saving is slow."""
    keep_checkpoints: PositiveInt = 3
    """How many of the newest are kept."""
    keep_trajectories: Literal["all", "replay"] | PositiveInt = "replay"
    """Which training trajectories stay in the journal, for `agent-rl export` and the report: ``all``; ``replay``: those
    that a restart may need, and samples; a number: also those of so many last steps. Those of evaluate stages always
    stay."""
    log_mib: PositiveFloat = 16.0
    """A larger log is renamed to ``.1``; an actor's logs take at most four times as much."""
    timeline_mib: PositiveFloat = 64.0
    """A larger ``timeline.jsonl`` is renamed likewise; both files take at most twice as much."""
    lost_after_seconds: PositiveFloat = 20.0
    """After so long a silence peers take an actor for lost: its rollouts and tool calls go to others."""
    host_lost_after_seconds: PositiveFloat = 7.0
    """The same where the supervisor of the actor's host is silent as well. Less than 5 has no effect."""
    give_up_minutes: PositiveFloat | None = None
    """The run ends when an actor has had no peer of some role to send to for so long. None: never."""
    status_seconds: float = Field(default=0.5, gt=0, le=1)
    """How often an actor reports its figures; a row of ``timeline.jsonl`` covers two reports or more."""
    report_standstill_seconds: PositiveFloat = 180.0
    """After so long without progress, the run prints which actor waits for what."""
    trackers: tuple[str, ...] = ()
    """Where rows of ``metrics.jsonl`` also go: ``mlflow``, ``tensorboard``, ``trackio``, ``wandb``, ``module:Name``."""
    otel: str | None = Field(default=None, pattern=r"^https?://[^\s/]+(/\S*)?$")
    """An OpenTelemetry collector (OTLP over HTTP), as ``http://127.0.0.1:4318``: each rollout is sent as a trace. None:
    nothing is sent."""
    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """The port at which the learner's host answers ``GET /metrics`` for Prometheus."""
    metrics_address: str = "127.0.0.1"
    """Its address; the default can be reached from this machine only."""


class Host(Part):
    """A machine that runs actors."""

    address: str = "127.0.0.1"
    """The name or address under which other hosts reach it."""
    base_port: int = Field(default=5700, ge=1024, le=60000)
    """The first of its TCP ports, the supervisor's; each actor has one of the next."""
    gpus: NonNegativeInt | None = None
    """Number of GPUs. None: those found there. ``agent-rl check`` believes it on a machine without GPUs."""
    gpu_gib: PositiveFloat | None = None
    """Memory of each of its GPUs in GiB. None: that of NVIDIA's GPUs found there. ``agent-rl check`` compares it with
    what roles need that share a GPU in space."""
    optional: bool = False
    """Whether the host may come (``agent-rl run FILE --host NAME``) and go (``agent-rl drain``) during the run, which
    neither waits for it nor ends because it fails."""


class Security(Part):
    """The protection of links between hosts."""

    key_file: Path | None = None
    """The CURVE key of all hosts (``agent-rl keys FILE`` makes one), relative to the topology file. It encrypts and
    authenticates links. Several hosts need it, also on loopback."""


class ActorEntry(Part):
    """One role: its class, hosts, number of processes, settings and links."""

    class_path: str = Field(alias="class", pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """``module:Class``; a standard role may leave it out."""
    host: str | None = None
    """The machine that runs it, a name of ``[hosts]``; else ``local``."""
    hosts: tuple[str, ...] | None = Field(default=None, min_length=1)
    """The machines that run it, in place of ``host``. One that is not up yet may start later."""
    replicas: PositiveInt | None = None
    """Number of processes, dealt round over the hosts. Without it and ``replicas_per_host``: one on each host."""
    start: PositiveInt | None = None
    """How many of them run at first, the lowest numbers. ``agent-rl scale`` changes it, up to ``replicas``. None:
    all."""
    replicas_per_host: PositiveInt | None = None
    """Number of processes on each host, in place of ``replicas``; a further host at the end of ``hosts`` changes no
    name."""
    ranks: PositiveInt = 1
    """Processes that train one model together (``model.parallel``), an equal part on each of ``hosts``. Rank 0 is the
    learner; the others are the role ``learner_ranks``, which follows from this table. Learner only."""
    gpus_per_replica: NonNegativeInt | None = None
    """GPUs of each process, which sees these alone, as ``cuda:0`` and so on. None: with ``device = "cuda"`` as many as
    the engine's parallel sizes make, else none."""
    share: Literal["none", "time", "space"] = "none"
    """``time``: the role may share devices with other roles that say so. While the learner trains, an engine on its
    device sleeps and gives its memory back. ``space``: roles that say so compute at once on one GPU, which must hold
    the memory of both."""
    settings: dict[str, Any] = {}
    """Settings of the class; those of standard classes are below."""
    links: dict[str, str | tuple[str, ...]] = {}
    """By link of the class, the role or roles that it leads to."""
    restarts: NonNegativeInt = 3
    """Restarts within ``restart_window_seconds``; also, in a row, of a process that ends before it did anything."""
    restart_window_seconds: PositiveFloat = 60.0
    """The time in which ``restarts`` are counted."""
    silent_seconds: float = Field(default=120.0, gt=0, allow_inf_nan=True)
    """An actor without status for so long is killed and restarted; ``inf``: never."""
    start_seconds: float = Field(default=900.0, gt=0, allow_inf_nan=True)
    """Most seconds that a process which `swap` or `scale` brings takes to start. Then the former class or number holds
    again; ``inf``: no limit."""

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
