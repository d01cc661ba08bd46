"""The topology file: one TOML file names the run, the model, the environments, the recipe, the hosts and the actors.

This module holds the schema alone (pydantic); reading it imports neither torch nor vLLM.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from agent_rl.config.algorithm import Algorithm, TopP
from agent_rl.config.parallel import Parallel
from agent_rl.config.processes import ActorEntry, Host, Part, Run, Security
from agent_rl.config.selection import SelectStage, TaskFilter

Word = Annotated[str, Field(pattern=r"\A[^\x00]*\z")]
"""What a program can be given: a text without NUL."""
VariableName = Annotated[str, Field(pattern=r"\A[^=\x00]+\z")]


class InitialiseModel(Part):
    """A small model with fresh weights, a function of the run's seed."""

    architecture: Literal["qwen3"] = "qwen3"
    """The only architecture."""
    hidden_size: PositiveInt = 128
    """Width of the residual stream."""
    layers: PositiveInt = 3
    """Transformer blocks."""
    heads: PositiveInt = 4
    """Attention heads, a multiple of ``kv_heads``."""
    kv_heads: PositiveInt = 2
    """Heads of keys and values."""
    head_dim: PositiveInt = 32
    """Width of a head."""
    mlp_size: PositiveInt = 384
    """Width of the feed-forward layers."""
    max_length: PositiveInt = 256
    """Most tokens of a sequence, prompt included."""
    tie_embeddings: bool = True
    """Whether input and output embeddings are one tensor."""
    byte_fallback: bool = False
    """Whether a character beyond printable ASCII becomes its UTF-8 bytes (256 more tokens), not the unknown token."""

    @model_validator(mode="after")
    def _heads_share_evenly(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        return self


class Lora(Part):
    """Low-rank adapters (peft), trained instead of all weights. Published and saved weights have them merged."""

    rank: PositiveInt = 16
    """Rank of the adapters."""
    alpha: PositiveFloat = 32.0
    """Adapters are scaled by ``alpha / rank``."""
    targets: tuple[str, ...] = Field(default=("all-linear",), min_length=1)
    """Linear layers to adapt, as in ``["q_proj", "v_proj"]``."""


class Model(Part):
    """The model to start from: exactly one of ``path`` and ``initialise``."""

    path: str | None = None
    """A Hugging Face model: a directory, or a name on the hub."""
    initialise: InitialiseModel | None = None
    """A small model with fresh weights."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights served. With bfloat16 the learner updates float32 copies."""
    compute: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of matrix products. ``auto``: each engine and the learner measures which its device is fast at; models below
    20M weights, several ranks and vLLM take ``dtype``."""
    lora: Lora | None = None
    """None: all weights are trained."""
    parallel: Parallel = Parallel()
    """How the learner's processes share the model."""
    chat_template: str | None = None
    """``chatml``, or a Jinja file relative to the topology file; None: the tokenizer's."""


_ADDRESS = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")


class Container(Part):
    """A container for each program of a harness, made by docker on the generator's host."""

    image: str = ""
    """The image. An environment that builds images, such as `harbor`, needs none here."""
    cpus: float = Field(default=0.0, ge=0)
    """Processors of a container; 0 is without a limit."""


class Harness(Part):
    """A program that writes the rollouts of an environment: it asks the gateway for turns (docs/gateway.md)."""

    source: Literal["command", "live"] = "command"
    """``live``: no program is started. Sessions begin, are rewarded and end by HTTP (docs/live.md)."""
    command: tuple[Word, ...] = ()
    """The program and its arguments. ``{prompt}`` is the last message of the problem's prompt, ``{id}`` the problem,
    ``{seed}`` the rollout's seed, ``{model}`` the name of the model, ``{base}`` the folder of the topology file."""
    fork: bool = False
    """For ``[interpreter, script, ...]`` of Python: the script and what it imports are loaded once and forked for each
    rollout, which then runs it as ``__main__``. It must begin no threads while it loads."""
    environment: dict[VariableName, Word] = Field(default={})
    """Environment variables of the program, besides those that lead to the gateway. A value ``"env:NAME"`` is that of
    NAME on each host."""
    seconds: PositiveFloat = 600.0
    """A program that takes longer is killed; what it has asked for is judged. A session that has no reward by then is
    dropped."""
    isolation: Literal["host", "strong", "off"] = "host"
    """``strong``: a jail for each program, or refuse to run. ``off``: a plain process, which you trust. ``host``: a
    jail if the host permits one, else a plain process, and the log says why."""
    network: Literal["gateway", "host"] | tuple[str, ...] = "gateway"
    """What a program in a jail reaches: the gateway alone, or all that its host does. Or a list of addresses, each
    ``"host:port"``, which it reaches besides the gateway by the HTTP proxy that ``HTTPS_PROXY`` names."""
    shows: tuple[Word, ...] = ()
    """Folders and files that a jail shows, read-only, besides the system's, the program's own installation and what the
    command names; relative to the topology file."""
    container: Container | None = None
    """A container in place of a jail; ``isolation`` does not count. The image has ``sh`` and ``tar``."""
    memory_mib: PositiveInt = 4096
    """Private memory of each process in a jail, and where groups count it of all; all memory of a container."""
    disk_mib: PositiveInt = 512
    """All files that a program in a jail writes; they are in memory."""
    processes: PositiveInt = 256
    """Processes and threads in a jail at once."""
    output_mib: PositiveInt = 64
    """A program that writes more to its output is killed."""
    collect: tuple[str, ...] = ()
    """Patterns of files in the program's folder whose texts the reward sees, such as ``"**/*.py"``."""
    check: tuple[Word, ...] = ()
    """A command that runs where the program ran, once that has ended: ``["bash", "{tests}/test.sh"]``. Its files
    (`Environment.check_files`) are in ``{tests}``, which the program never sees. The reward sees how it ended, what it
    wrote, and ``{logs}/verifier/reward.txt`` or ``reward.json``."""
    check_seconds: PositiveFloat = 120.0
    """A check that takes longer is killed."""

    tools: bool = False
    """With ``source = "live"``: where a request lists no tools, the environment's are listed, and run here."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if bool(self.command) == (self.source == "live"):
            remedy = 'name the program in command, or write source = "live" for sessions from outside'
            raise ValueError(f'{"both" if self.command else "neither"} of command and source = "live" given; {remedy}')
        return self

    @model_validator(mode="after")
    def _contained(self) -> Self:
        if self.container is not None and (found := [name for name in ("fork", "shows") if getattr(self, name)]):
            raise ValueError(f"{' and '.join(found)} is for jails, and this harness has a container; leave it out")
        return self

    @property
    def named(self) -> tuple[str, ...]:
        """The addresses that ``network`` names."""
        return () if isinstance(self.network, str) else self.network

    @field_validator("network", mode="before")
    @classmethod
    def _addresses(cls, network: Any) -> Any:
        if network in ("gateway", "host"):
            return network
        listed = network if isinstance(network, list | tuple) else [network]
        if wrong := [each for each in listed if listed[0] is network or not _ADDRESS.fullmatch(str(each))]:
            raise ValueError(f'{wrong[0]!r} is no address; write "gateway", "host", or a list such as ["pypi.org:443"]')
        return network


class McpServer(Part):
    """A server whose tools the model may call, by the Model Context Protocol (docs/adapters.md)."""

    command: tuple[Word, ...] = ()
    """The program and its arguments, for a server that talks over its standard input and output. It runs in the folder
    of the environment."""
    url: str = Field(default="", pattern=r"^$|^https?://.+")
    """Or the address of a server that talks streamable HTTP."""
    environment: dict[VariableName, Word] = Field(default={})
    """Environment variables of the program, besides ``PATH``, ``HOME`` and ``LANG``. A value ``"env:NAME"`` is that of
    NAME on each host."""
    headers: dict[str, str] = Field(default={})
    """Headers of each request to ``url``, as in ``Authorization = "env:NAME"``."""
    per: Literal["executor", "rollout"] = "executor"
    """Who shares a server: all rollouts of an executor, or nobody."""
    prefix: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]*$")
    """Text before the names of the server's tools."""
    seconds: PositiveFloat = 30.0
    """Deadline of a call."""
    tools: str = ""
    """The JSON file of the tools that the server lists, which ``agent-rl mcp`` writes; else ``NAME.tools.json``."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError(f"{'both' if self.url else 'neither'} of command and url given; write one of them")
        return self


class EnvironmentEntry(Part):
    """One environment: its problems, its tools, and the judgement of its rollouts."""

    class_path: str = Field(alias="class", min_length=1)
    """``module:Class`` (agent_rl/environments/base.py), or a short name."""
    name: str = Field(default="", pattern=r"^$|^[A-Za-z0-9][A-Za-z0-9_.-]*$", validate_default=True)
    """Name in figures; else the name of the class, or its short name."""
    weight: PositiveFloat = 1.0
    """Share of the groups, relative to the other environments."""
    settings: dict[str, Any] = Field(default={})
    """Keyword arguments of the constructor, besides ``seed`` and ``base``. A value ``"env:NAME"`` is that of the
    environment variable NAME on each host."""
    base: Path = Path()
    """Folder from which relative paths of the settings start, relative to the topology file's."""
    tools: tuple[str, ...] = ()
    """Further tools, each ``module:name`` or a short name."""
    mcp: dict[str, McpServer] = Field(default={})
    """Servers of further tools, by name."""
    rollout: str | None = None
    """A loop in place of the agent loop: ``module:function`` (``async def rollout(problem, model, tools)``)."""
    harness: Harness | None = None
    """A program in place of the agent loop."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("name") and isinstance(path := data.get("class"), str):
            return {**data, "name": path.rpartition(":")[2]}
        return data


class SftStage(Part):
    """Supervised steps on demonstrations."""

    kind: Literal["sft"]
    name: str = "sft"
    """The name shown."""
    steps: NonNegativeInt = 0
    """Optimizer steps; write either ``steps`` or ``epochs``."""
    epochs: float = Field(default=0.0, ge=0)
    """Passes over ``data``, also a fraction of one."""
    batch: PositiveInt = 64
    """Demonstrations in a step."""
    data: tuple[str, ...] = ()
    """Files or globs of conversations (docs/data.md), relative to the topology file; none: the environments'
    demonstrations."""
    weights: tuple[PositiveFloat, ...] = ()
    """How often the rows of each entry of ``data`` come in an epoch; none: once."""
    learning_rate: PositiveFloat = 5e-6
    """Rate after the warm-up; with ``[model.initialise]`` 3e-3 by default."""
    warmup_steps: NonNegativeInt = 10
    """Steps in which the rate rises linearly."""
    schedule: Literal["constant", "cosine"] = "cosine"
    """After the warm-up: constant, or a cosine to zero at the last step."""
    dropout: bool = False
    """Whether the dropout of the model's config.json is active. It is off in all other stages."""

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        if bool(self.steps) == bool(self.epochs):
            raise ValueError(f"{'both' if self.steps else 'neither'} of steps and epochs given; write one of them")
        if self.epochs and not self.data:
            raise ValueError("epochs are passes over data, and there is no data; write steps, or name files as data")
        if self.weights and len(self.weights) != len(self.data):
            raise ValueError(f"{len(self.weights)} weights for {len(self.data)} entries of data; write one for each")
        return self


class EvaluateStage(Part):
    """Success on held-out problems, sampled and greedy, on the live generators."""

    kind: Literal["evaluate"]
    name: str
    """The name shown, and the key of the figures; unique."""
    problems: PositiveInt
    """Held-out problems asked, from the first one."""
    max_response_tokens: PositiveInt
    """Most tokens of a response, tool responses included."""
    max_turns: PositiveInt
    """Most turns of the model in a rollout."""
    temperature: PositiveFloat = 1.0
    """Of sampled rollouts."""
    top_p: TopP = 1.0
    """Sampled are the fewest likeliest tokens whose share of probability reaches it."""
    top_k: PositiveInt | None = None
    """Sampled are so many likeliest tokens. None: all."""
    samples: PositiveInt = 1
    """Sampled rollouts of each problem."""
    greedy: bool = True
    """Whether each problem is also answered once greedily."""

    @property
    def groups(self) -> int:
        """The number of groups: one for each problem that is sampled, and one for each that is answered greedily."""
        return self.problems * (1 + self.greedy)

    @property
    def rollouts(self) -> int:
        """The number of rollouts."""
        return self.problems * (self.samples + self.greedy)


class Collapse(Part):
    """When training counts as collapsed, by means over ``window`` steps. The run then stops.

    The best checkpoint before the collapse is kept, whatever ``run.keep_checkpoints`` says.
    """

    window: PositiveInt = 20
    """Steps of each mean."""
    success_below: float = Field(default=0.5, ge=0, lt=1)
    """Success below this share of the best window, and at least 0.1 lower; 0: never."""
    entropy_below: float = Field(default=0.0, ge=0)
    """Entropy of the policy below this, in nats a token; 0: never."""
    length_factor: float | None = Field(default=None, gt=1)
    """Responses longer or shorter than in the best window by this factor; None: never."""


class Interim(Part):
    """Evaluations within an rl stage, on the live generators, while training goes on."""

    every: PositiveInt
    """Steps between them; none at the end of the stage (add an evaluate stage for that)."""
    problems: PositiveInt
    """Held-out problems asked, from the first one; the same each time."""
    samples: PositiveInt = 1
    """Sampled rollouts of each problem."""
    temperature: PositiveFloat = 1.0
    """As of an evaluate stage."""
    top_p: TopP = 1.0
    """As of an evaluate stage."""
    top_k: PositiveInt | None = None
    """As of an evaluate stage."""
    max_response_tokens: PositiveInt | None = None
    """None: as the stage."""
    max_turns: PositiveInt | None = None
    """None: as the stage."""


class RlStage(Part):
    """Steps of GRPO-RoC."""

    kind: Literal["rl"]
    name: str = "rl"
    """The name shown."""
    steps: PositiveInt
    """Training steps."""
    max_response_tokens: PositiveInt
    """Most tokens of a response, tool responses included."""
    max_turns: PositiveInt
    """Most turns of the model in a rollout."""
    learning_rate: PositiveFloat = 1e-6
    """Rate after the warm-up."""
    warmup_steps: NonNegativeInt = 20
    """Steps in which the rate rises linearly."""
    schedule: Literal["constant", "cosine"] = "constant"
    """After the warm-up: constant, or a cosine to zero at the last step."""
    reset_optimizer: bool = False
    """Whether the stage starts with a fresh optimizer."""
    filter: TaskFilter = TaskFilter()
    """The problems that the stage draws from."""
    collapse: Collapse = Collapse()
    """When training counts as collapsed."""
    evaluate: Interim | None = None
    """Evaluations while the stage trains."""
    samples: PositiveInt | None = None
    """In place of ``algorithm.samples``."""
    groups_per_step: PositiveInt | None = None
    """In place of ``algorithm.groups_per_step``."""
    temperature: PositiveFloat | None = None
    """In place of ``algorithm.temperature``."""
    clip_low: float | None = Field(default=None, gt=0, le=1)
    """In place of ``algorithm.clip_low``."""
    clip_high: PositiveFloat | None = None
    """In place of ``algorithm.clip_high``."""
    max_staleness: NonNegativeInt | None = None
    """In place of ``algorithm.max_staleness``."""

    @property
    def evaluation_steps(self) -> range:
        """The steps of the stage after which it is evaluated; not its last one."""
        return range(0) if self.evaluate is None else range(self.evaluate.every, self.steps, self.evaluate.every)

    def interim(self, at_step: int) -> EvaluateStage:
        """The evaluation after ``at_step`` steps as an evaluate stage, named ``rl@50``."""
        assert self.evaluate is not None
        return EvaluateStage(
            kind="evaluate",
            name=f"{self.name}@{at_step}",
            problems=self.evaluate.problems,
            samples=self.evaluate.samples,
            greedy=False,
            temperature=self.evaluate.temperature,
            top_p=self.evaluate.top_p,
            top_k=self.evaluate.top_k,
            max_response_tokens=self.evaluate.max_response_tokens or self.max_response_tokens,
            max_turns=self.evaluate.max_turns or self.max_turns,
        )


Stage = Annotated[SftStage | EvaluateStage | SelectStage | RlStage, Field(discriminator="kind")]
PER_STAGE = ("samples", "groups_per_step", "temperature", "clip_low", "clip_high", "max_staleness")
"""Keys of ``[algorithm]`` that an rl stage may override."""
FRESH_MODEL_RATE = 3e-3
"""The default learning rate of a supervised stage for a model with fresh weights."""


class Topology(Part):
    """The whole file: its tables."""

    run: Run
    model: Model
    environments: tuple[EnvironmentEntry, ...] = Field(min_length=1)
    algorithm: Algorithm = Algorithm()
    stages: tuple[Stage, ...] = Field(min_length=1)
    fetch: dict[str, str] = Field(default={})
    """By folder, the arguments of ``agent-rl data fetch`` that fill it, as in ``"data/gsm8k" = "openai/gsm8k"``. Where
    a file is missing, ``check`` shows the command."""
    hosts: dict[str, Host] = Field(default={"local": Host()})
    security: Security = Security()
    actors: dict[str, ActorEntry] = Field(min_length=1)
    """By role. A file may leave out standard roles, classes and links (`agent_rl.config.standard`)."""

    @model_validator(mode="before")
    @classmethod
    def _rate_of_a_fresh_model(cls, data: Any) -> Any:
        match data:
            case {"model": {"initialise": initialise}, "stages": [*stages]} if initialise is not None:
                rate = {"learning_rate": FRESH_MODEL_RATE}
                fresh = [
                    rate | stage if isinstance(stage, dict) and stage.get("kind") == "sft" else stage
                    for stage in stages
                ]
                return {**data, "stages": fresh}
        return data

    @field_validator("environments")
    @classmethod
    def _environments_have_names_of_their_own(
        cls, entries: tuple[EnvironmentEntry, ...]
    ) -> tuple[EnvironmentEntry, ...]:
        names = [entry.name for entry in entries]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two of them are named {twice[0]!r}; give one another name")
        return entries

    @model_validator(mode="after")
    def _figures_have_names_of_their_own(self) -> Self:
        names = [stage.name for stage in self.stages if stage.kind in {"evaluate", "select"}]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            what = "two evaluate or select stages are named"
            raise ValueError(f"{what} {twice[0]!r}; their figures would overwrite each other")
        return self

    def algorithm_of(self, stage: Stage) -> Algorithm:
        """The algorithm of a stage: its own values over the run's; synchronous mode has ``max_staleness`` 0."""
        own = {}
        if isinstance(stage, RlStage):
            own = {key: value for key in PER_STAGE if (value := getattr(stage, key)) is not None}
        if self.run.mode == "synchronous":
            own["max_staleness"] = 0
        return self.algorithm.model_copy(update=own)

    @property
    def rl_algorithms(self) -> list[tuple[int, RlStage, Algorithm]]:
        """Each rl stage with its index and the algorithm in force in it."""
        stages = enumerate(self.stages)
        return [(index, stage, self.algorithm_of(stage)) for index, stage in stages if isinstance(stage, RlStage)]

    def selection_before(self, stage: int) -> int | None:
        """The select stage that says what a stage draws from: the last one before it. None: there is none."""
        return next((at for at in reversed(range(stage)) if isinstance(self.stages[at], SelectStage)), None)

    @property
    def hosts_in_use(self) -> tuple[str, ...]:
        """The hosts that have an actor, in the order of ``[hosts]``."""
        used = {host for entry in self.actors.values() for host in entry.homes}
        return tuple(name for name in self.hosts if name in used)

    def homes(self, role: str) -> dict[int, str]:
        """The host of each replica of a role, by the number of the replica."""
        return dict(enumerate(self.actors[role].homes))

    def wanted(self, role: str) -> dict[int, str]:
        """The replicas of a role that are to run now: the first ones, as many as ``start`` says."""
        return dict(enumerate(self.actors[role].homes[: self.actors[role].start]))

    @property
    def journal_host(self) -> str | None:
        """The host of the filter, which keeps the journal; None without a filter."""
        entry = self.actors.get("roc_filter")
        return None if entry is None else entry.homes[0]

    @property
    def main_host(self) -> str:
        """The learner's host, whose supervisor ends the run; without a learner, the host of the first actor."""
        entry = self.actors.get("learner") or next(iter(self.actors.values()))
        return entry.homes[0]
