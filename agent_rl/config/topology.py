"""The topology file: one TOML file names the run, the model, the environments, the recipe, the hosts and the actors.

This module holds the schema alone (pydantic); reading it imports neither torch nor vLLM.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from agent_rl.config.plugins import Kind, PluginError, path_of


def _named(kind: Kind, name: str) -> str:
    try:
        path_of(kind, name)
    except PluginError as error:
        raise ValueError(str(error)) from error
    return name


SelectionName = Annotated[str, AfterValidator(partial(_named, "selection"))]
AdvantageName = Annotated[str, AfterValidator(partial(_named, "advantage"))]
LossName = Annotated[str, AfterValidator(partial(_named, "loss"))]


class Part(BaseModel):
    """A table of the file: unknown keys are errors, values are never changed afterwards."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True, strict=False)


class Run(Part):
    """What is run, where its files go, and when it ends."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Letters, digits, ``.``, ``_`` and ``-``; what people see, and part of the names of sockets."""
    seed: int = 0
    """Of everything drawn in the run: problems, sampling, order, initial weights."""
    directory: Path
    """Journal, logs, metrics and checkpoints; relative to the working directory. On a local disk."""
    mode: Literal["asynchronous", "synchronous"] = "asynchronous"
    """``synchronous``: rollout and training take turns, as with a staleness budget of 0."""
    max_minutes: PositiveFloat | None = None
    """Training stages end when this start of the run has lasted so long, by the monotonic clock, which nobody sets; evaluation
    stages after them still run. A restarted actor changes nothing, and the next ``agent-rl run`` has the same time again."""
    checkpoint_every: PositiveInt = 50
    """RL steps between checkpoints; stage ends are always checkpoints."""
    checkpoint_seconds: PositiveFloat = 5.0
    """Seconds between checkpoints within a supervised stage, of which the newest is kept; more where saving takes long, so that
    it takes at most a twentieth of the time."""
    keep_checkpoints: PositiveInt = 3
    """The newest checkpoints that are kept."""
    keep_trajectories: Literal["all", "replay"] | PositiveInt = "replay"
    """Which trajectories of training stay in the journal, for `agent-rl export` and the report: all; those that a restart from the
    oldest checkpoint may need, and samples; or also those of so many last steps. Those of evaluate stages always stay."""
    log_mib: PositiveFloat = 16.0
    """A log or stderr file of this size is kept as ``.1``, in place of the one before: an actor's take at most four times as much."""
    timeline_mib: PositiveFloat = 64.0
    """So of ``timeline.jsonl``, which with the one before takes at most twice as much."""
    report_standstill_seconds: PositiveFloat = 180.0
    """After so long without anything moving, the run says who waits for what; it goes on."""
    trackers: tuple[str, ...] = ()
    """Where the rows of ``metrics.jsonl`` go too: ``tensorboard``, ``wandb``, or ``module:Name`` of a tracker of your own."""
    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """Where the learner's host answers ``GET /metrics``, with the metrics of all actors, for Prometheus."""
    metrics_address: str = "127.0.0.1"
    """What ``metrics_port`` is listened on at: this machine alone, unless another address of it is named."""


class InitialiseModel(Part):
    """A small architecture to be initialised here, from the seed of the run."""

    architecture: Literal["qwen3"] = "qwen3"
    """The only one that is initialised here."""
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
    """The most tokens of a sequence, prompt included."""
    tie_embeddings: bool = True
    """Whether input and output embeddings are one tensor."""
    byte_fallback: bool = False
    """Whether a character beyond printable ASCII becomes the tokens of its UTF-8 bytes, as problems of the world need; without,
    it becomes the unknown token, and the vocabulary is 256 tokens smaller."""

    @model_validator(mode="after")
    def _heads_share_evenly(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        return self


class Lora(Part):
    """Train low-rank adapters (peft) instead of all weights; what is published and saved has them merged."""

    rank: PositiveInt = 16
    """Of the adapters."""
    alpha: PositiveFloat = 32.0
    """Adapters are scaled by ``alpha / rank``."""
    targets: tuple[str, ...] = Field(default=("all-linear",), min_length=1)
    """Names of the linear layers to adapt, as in ``["q_proj", "v_proj"]``."""


class Model(Part):
    """Exactly one of a Hugging Face path (or name) and a small architecture."""

    path: str | None = None
    """A Hugging Face model: a directory, or a name on the hub."""
    initialise: InitialiseModel | None = None
    """A small model to begin with, in place of ``path``."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of weights as they are served. With bfloat16 the learner keeps float32 copies, which updates are made in."""
    lora: Lora | None = None
    """None: all weights are trained."""
    chat_template: str | None = None
    """How conversations are written: "chatml", or a Jinja file relative to the topology file; None: as the tokenizer says."""


class EnvironmentEntry(Part):
    """One environment: what problems there are, what the model may call, and how its rollouts are judged."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True, populate_by_name=True)

    class_path: str = Field(alias="class", min_length=1)
    """``module:Class`` (see agent_rl/environments/base.py), or a built-in one: "maths", "arithmetic"."""
    name: str = Field(default="", pattern=r"^$|^[A-Za-z0-9][A-Za-z0-9_.-]*$", validate_default=True)
    """What figures call it; without one, the class' name or its short name."""
    weight: PositiveFloat = 1.0
    """How often a group is about a problem of this environment, relative to the others."""
    settings: dict[str, Any] = {}
    """Keywords of the class' constructor, beside ``seed`` and ``base``."""
    base: Path = Path()
    """The folder that relative paths of the settings start from; itself relative to the topology file's folder."""
    tools: tuple[str, ...] = ()
    """What the model may call beside the environment's own tools, each a ``module:name``."""
    rollout: str | None = None
    """``module:function`` of a loop of your own, in place of the agent loop: ``async def rollout(problem, model, tools)``."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("name") and isinstance(path := data.get("class"), str):
            return {**data, "name": path.rpartition(":")[2]}
        return data


class SftStage(Part):
    """Supervised steps on demonstrations of the format."""

    kind: Literal["sft"]
    """Which stage this is."""
    name: str = "sft"
    """What people see."""
    steps: PositiveInt
    """Optimizer steps."""
    batch: PositiveInt = 64
    """Demonstrations a step."""
    data: tuple[str, ...] = ()
    """Files (or globs) of conversations, relative to the topology file (see docs/data.md); without, the environments' demonstrations."""
    learning_rate: PositiveFloat = 3e-3
    """After the warm-up."""
    warmup_steps: NonNegativeInt = 10
    """Steps in which the rate rises linearly to ``learning_rate``."""
    schedule: Literal["constant", "cosine"] = "cosine"
    """What follows the warm-up: a constant rate, or a cosine to zero at the last step."""


class EvaluateStage(Part):
    """Success on held-out problems, sampled and greedy, on the live generators."""

    kind: Literal["evaluate"]
    """Which stage this is."""
    name: str
    """What people see, and the key of its figures; no two evaluate stages share one."""
    problems: PositiveInt
    """How many held-out problems are asked, the first ones."""
    max_response_tokens: PositiveInt
    """The most tokens of a response, tool responses included."""
    max_turns: PositiveInt
    """The most turns of the model in a rollout."""
    temperature: PositiveFloat = 1.0
    """Of what is sampled; the greedy answer has none."""
    samples: PositiveInt = 1
    """Rollouts sampled of each problem."""
    greedy: bool = True
    """Whether each problem is answered once more without chance."""

    @property
    def groups(self) -> int:
        """One group a problem of those sampled, then one a problem answered greedily."""
        return self.problems * (1 + self.greedy)

    @property
    def rollouts(self) -> int:
        """How many rollouts are asked for."""
        return self.problems * (self.samples + self.greedy)


class TaskFilter(Part):
    """Which problems a stage draws from; nothing set means all."""

    max_problem_chars: PositiveInt | None = None
    """Problems of more characters are left out."""
    ids: Path | None = None
    """A text file of problem ids, one a line: what a difficulty filter kept. Relative to the topology file."""


class Collapse(Part):
    """When a stage's training is taken for collapsed, by means over the last ``window`` steps; the run then stops.

    The best checkpoint before it is kept, whatever ``run.keep_checkpoints`` says.
    """

    window: PositiveInt = 20
    """Steps that each mean is taken over."""
    success_below: float = Field(default=0.5, ge=0, lt=1)
    """Success below this share of the best window's, and lower than that by 0.1 or more; 0 turns it off."""
    entropy_below: float = Field(default=0.0, ge=0)
    """Entropy of the policy, nats a token, below this; 0 turns it off."""
    length_factor: float | None = Field(default=None, gt=1)
    """Responses longer or shorter by this factor than in the best window."""


class Interim(Part):
    """Evaluations within an rl stage, every so many steps, on the live generators while training goes on."""

    every: PositiveInt
    """Steps between them; the stage's end is left to an evaluate stage."""
    problems: PositiveInt
    """The first held-out problems, the same ones each time."""
    samples: PositiveInt = 1
    """Rollouts sampled of each problem."""
    temperature: PositiveFloat = 1.0
    """Of the sampling."""
    max_response_tokens: PositiveInt | None = None
    """None: the stage's; so of turns."""
    max_turns: PositiveInt | None = None
    """None: the stage's."""


class RlStage(Part):
    """Steps of GRPO-RoC."""

    kind: Literal["rl"]
    """Which stage this is."""
    name: str = "rl"
    """What people see."""
    steps: PositiveInt
    """Steps of ``algorithm.groups_per_step`` groups."""
    max_response_tokens: PositiveInt
    """The most tokens of a response, tool responses included."""
    max_turns: PositiveInt
    """The most turns of the model in a rollout."""
    learning_rate: PositiveFloat = 1e-6
    """After the warm-up."""
    warmup_steps: NonNegativeInt = 20
    """Steps in which the rate rises linearly to ``learning_rate``."""
    schedule: Literal["constant", "cosine"] = "constant"
    """What follows the linear warm-up: the paper's constant rate, or a cosine to zero at the stage's last step."""
    reset_optimizer: bool = False
    """Whether the stage begins with a fresh optimizer."""
    filter: TaskFilter = TaskFilter()
    """Which problems the stage draws from."""
    collapse: Collapse = Collapse()
    """When the stage's training counts as collapsed."""
    evaluate: Interim | None = None
    """Evaluations while the stage trains; None: there are none."""

    @property
    def evaluation_steps(self) -> range:
        """The steps of the stage after which it is evaluated; its end is left to an evaluate stage."""
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
            max_response_tokens=self.evaluate.max_response_tokens or self.max_response_tokens,
            max_turns=self.evaluate.max_turns or self.max_turns,
        )


Stage = Annotated[SftStage | EvaluateStage | RlStage, Field(discriminator="kind")]


class Algorithm(Part):
    """GRPO-RoC and its step (paper, section GRPO-RoC); defaults as in the paper where it gives them."""

    groups_per_step: PositiveInt = 512
    """Groups that a step waits for."""
    samples: PositiveInt = 32
    """Rollouts sampled of each problem: a group."""
    keep: PositiveInt = 16
    """Rollouts of a group that are trained on."""
    minimum_samples: PositiveInt = 2
    """A group with fewer usable rollouts than this is dropped."""
    resampling: SelectionName = "paper"
    """Which rollouts of a group are kept: the paper's rule, the release's, or a uniform draw; or ``module:function``
    (`agent_rl.groups.resampling.Selection`)."""
    advantage: AdvantageName = "group"
    """How rewards of a group become advantages: less their mean; or ``module:function`` (`agent_rl.learning.advantages.Advantage`)."""
    loss: LossName = "clipped"
    """What is minimised: the paper's clipped surrogate; or ``module:function`` (`agent_rl.learning.losses.Loss`)."""
    temperature: PositiveFloat = 1.0
    """Of the sampling; losses are computed at it too."""
    clip_low: float = Field(default=0.2, gt=0, le=1)
    """A ratio below ``1 - clip_low`` is clipped."""
    clip_high: PositiveFloat = 0.28
    """A ratio above ``1 + clip_high`` is clipped."""
    updates_per_step: PositiveInt = 1
    """Mini-batches a step is split into."""
    microbatch_tokens: PositiveInt = 16384
    """Tokens computed at once, prompts included, packed without padding; a longer sequence is computed alone."""
    gradient_clip: PositiveFloat = 1.0
    """The largest norm of a gradient."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Of the optimizer."""
    entropy_coefficient: float = 0.0
    """Weight of an entropy bonus; the paper has none, nor a KL term."""
    correction: Literal["none", "truncated", "masked", "decoupled"] = "truncated"
    """What a token's loss is multiplied by, for the gap between mu, which sampled it, and pi_prox, the learner's policy before the
    step: 1; min(pi_prox / mu, cap); pi_prox / mu where that is between floor and cap, else 0 (IcePop); pi_prox / mu (AReaL)."""
    correction_cap: float = Field(default=2.0, ge=1)
    """Of the truncated and the masked correction."""
    correction_floor: float = Field(default=0.5, gt=0, le=1)
    """Of the masked correction alone."""
    sequence_mask: tuple[float, float] | None = None
    """Responses whose pi_prox / mu, in geometric mean over their tokens, is outside these bounds are left out of the loss."""
    advantage_std: bool = True
    """Whether advantages are divided by the standard deviation of the group's rewards."""
    max_staleness: NonNegativeInt = 1
    """Steps that a group's oldest policy may be behind the one that is trained."""
    on_stale: Literal["wait", "drop", "train_corrected"] = "wait"
    """What becomes of a group beyond that: training waits for it, it is dropped, or it is trained with the correction."""
    refill: bool = False
    """Whether groups with equal rewards are replaced by others, so that the batch does not shrink."""
    max_refill: PositiveInt = 3
    """Groups that a step may replace, as a multiple of ``groups_per_step``."""
    rollout_attempts: PositiveInt = 3
    """How often a rollout is sampled anew that infrastructure failed."""

    @field_validator("sequence_mask")
    @classmethod
    def _the_mask_holds_one(cls, bounds: tuple[float, float] | None) -> tuple[float, float] | None:
        if bounds and not 0 < bounds[0] <= 1 <= bounds[1]:
            raise ValueError("must be two bounds on a ratio, the first in (0, 1], the second at least 1")
        return bounds


class Host(Part):
    """A machine. ``address`` is what other hosts reach it by; ``base_port`` the first TCP port they listen on."""

    address: str = "127.0.0.1"
    """What other hosts reach it by."""
    base_port: int = Field(default=5700, ge=1024, le=60000)
    """The first of its TCP ports; each actor has one."""


class Security(Part):
    """What protects links between hosts."""

    key_file: Path | None = None
    """The CURVE key all hosts of the run share (``agent-rl keys FILE`` makes one); relative to the topology file.
    Links between hosts are encrypted and authenticated with it, or refused: also on loopback, which every user reaches."""


class ActorEntry(Part):
    """One role: which class, where, how many, its settings, and whom its links lead to."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True, populate_by_name=True)

    class_path: str = Field(alias="class", pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """``module:Class``; of a standard role, its standard class."""
    host: str = "local"
    """A name of ``[hosts]``."""
    replicas: PositiveInt = 1
    """Processes of this actor."""
    settings: dict[str, Any] = {}
    """Of the class; those of the standard classes are listed below."""
    links: dict[str, str | tuple[str, ...]] = {}
    """Link name (the class names its links) to the role or roles it leads to."""
    restarts: NonNegativeInt = 3
    """Within ``restart_window_seconds``; and so many in a row of a process that ends by itself before it did anything."""
    restart_window_seconds: PositiveFloat = 60.0
    """The time in which ``restarts`` are counted."""
    silent_seconds: float = Field(default=120.0, gt=0, allow_inf_nan=True)
    """An actor of which nothing was heard for so long is killed and restarted; ``inf``: never. It is named after seconds."""

    def targets(self, link: str) -> tuple[str, ...]:
        """The roles the link leads to; none when the file has no such link."""
        value = self.links.get(link, ())
        return (value,) if isinstance(value, str) else value


class Topology(Part):
    """The whole file."""

    run: Run
    model: Model
    environments: tuple[EnvironmentEntry, ...] = Field(min_length=1)
    algorithm: Algorithm = Algorithm()
    stages: tuple[Stage, ...] = Field(min_length=1)
    fetch: dict[str, str] = {}
    """By folder of files, what ``agent-rl data fetch`` takes to fill it, as in ``"data/gsm8k" = "openai/gsm8k"``: ``check`` names
    the command where a file is missing. Nothing is fetched by itself."""
    hosts: dict[str, Host] = {"local": Host()}
    security: Security = Security()
    actors: dict[str, ActorEntry] = Field(min_length=1)
    """By role. A file may leave out roles, classes and links that are the standard ones (`agent_rl.config.standard`)."""

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
    def _evaluations_have_names_of_their_own(self) -> Self:
        names = [stage.name for stage in self.stages if stage.kind == "evaluate"]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two evaluate stages are named {twice[0]!r}; their figures would overwrite each other")
        return self

    @property
    def max_staleness(self) -> int:
        """The staleness budget in force; synchronous mode is the budget 0: rollout and training alternate."""
        return 0 if self.run.mode == "synchronous" else self.algorithm.max_staleness

    @property
    def hosts_in_use(self) -> tuple[str, ...]:
        """The hosts that have an actor, in the order of the file's hosts."""
        used = {entry.host for entry in self.actors.values()}
        return tuple(name for name in self.hosts if name in used)

    @property
    def main_host(self) -> str:
        """The learner's host, whose supervisor decides that the run ends; without a learner, the first actor's host."""
        entry = self.actors.get("learner") or next(iter(self.actors.values()))
        return entry.host
