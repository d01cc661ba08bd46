"""The table ``[algorithm]`` of the topology file: GRPO-RoC, its losses, and the staleness of what is trained."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from agent_rl.config.plugins import Kind, PluginError, path_of
from agent_rl.config.processes import Part


def _named(kind: Kind, name: str) -> str:
    try:
        path_of(kind, name)
    except PluginError as error:
        raise ValueError(str(error)) from error
    return name


SelectionName = Annotated[str, AfterValidator(partial(_named, "selection"))]
CurriculumName = Annotated[str, AfterValidator(partial(_named, "curriculum"))]
AdvantageName = Annotated[str, AfterValidator(partial(_named, "advantage"))]
LossName = Annotated[str, AfterValidator(partial(_named, "loss"))]
TopP = Annotated[float, Field(gt=0, le=1)]

STAGE_START = "stage_start"


class KlPenalty(Part):
    """A penalty on the distance from a reference policy; there is none without this table."""

    coefficient: PositiveFloat
    """Weight of the penalty in the loss."""
    estimator: Literal["k1", "k3"] = "k3"
    """How a token's divergence is estimated."""
    reference: str = Field(default=STAGE_START, min_length=1)
    """``stage_start``: the policy at the start of the stage; or a directory or hub name of a model of the same
    vocabulary."""


class Algorithm(Part):
    """GRPO-RoC and its step. Defaults are the paper's, where the paper gives them."""

    groups_per_step: PositiveInt = 512
    """Groups in a step."""
    samples: PositiveInt = 32
    """Rollouts of a problem; they are a group."""
    keep: PositiveInt = 16
    """Rollouts of a group that are trained on."""
    minimum_samples: PositiveInt = 2
    """A group with fewer usable rollouts is dropped."""
    resampling: SelectionName = "paper"
    """How the rollouts to train on are selected: ``paper``, ``release`` (the authors' code), ``none`` (a uniform draw),
    or ``module:function``."""
    advantage: AdvantageName = "group"
    """``group`` (reward less the group's mean), or ``module:function``."""
    loss: LossName = "grpo"
    """``grpo`` (the paper's), ``sequence_mean``, ``dr_grpo``, ``gspo``, ``cispo``, or ``module:function``."""
    kl: KlPenalty | None = None
    """The paper has none."""
    overlong: Literal["train", "mask", "penalty"] = "train"
    """Responses that are too long: ``train``; ``mask``: truncated ones are not trained; ``penalty``: their reward falls
    by up to 1 over the last ``overlong_cache`` tokens before ``max_response_tokens`` (DAPO)."""
    overlong_cache: PositiveInt = 4096
    """Tokens over which the penalty grows."""
    temperature: PositiveFloat = 1.0
    """Of sampling and losses."""
    top_p: TopP = 1.0
    """Rollouts are sampled from the fewest likeliest tokens whose share of probability reaches it. The correction
    weighs a token by the share that was kept."""
    top_k: PositiveInt | None = None
    """Likewise from so many likeliest tokens. None: all."""
    clip_low: float = Field(default=0.2, gt=0, le=1)
    """A ratio below ``1 - clip_low`` is clipped."""
    clip_high: PositiveFloat = 0.28
    """A ratio above ``1 + clip_high`` is clipped."""
    updates_per_step: PositiveInt = 1
    """Mini-batches of a step."""
    epochs: PositiveInt = 1
    """Passes over a step's rollouts, each with ``updates_per_step`` updates. Several learn more of each rollout, where
    sampling takes most of the time; `clip_share` says whether they go too far."""
    microbatch_tokens: PositiveInt = 16384
    """Tokens of a packed row, prompts included. A longer sequence is computed alone."""
    gradient_clip: PositiveFloat = 1.0
    """Largest norm of a gradient."""
    target_kl: PositiveFloat | None = None
    """How far an update should move the policy: an estimated KL divergence in nats for each token. The rate is steered
    towards it, and an update that moves much further is taken back in part. None: the rate is as it stands."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of the optimizer."""
    entropy_coefficient: float = 0.0
    """Weight of an entropy bonus; the paper has none."""
    correction: Literal["none", "truncated", "masked", "decoupled"] = "truncated"
    """The factor on a token's loss, by r = pi_prox / mu: the probability by the learner's policy before the step, by
    that of the policy that sampled it. ``none``: 1; ``truncated``: min(r, cap); ``masked``: r between floor and cap,
    else 0 (IcePop); ``decoupled``: r (AReaL)."""
    correction_cap: float = Field(default=2.0, ge=1)
    """The cap of ``truncated`` and ``masked``."""
    correction_floor: float = Field(default=0.5, gt=0, le=1)
    """The floor of ``masked``."""
    sequence_mask: tuple[float, float] | None = None
    """Bounds on the geometric mean of r over a response; responses outside are left out of the loss."""
    advantage_std: bool = True
    """Whether advantages are divided by the standard deviation of the group's rewards."""
    max_staleness: NonNegativeInt = 1
    """Steps that a group's oldest policy may be behind the policy that is trained."""
    on_stale: Literal["wait", "drop", "train_corrected"] = "wait"
    """An older group: training waits for it, it is dropped, or trained with the correction. The last two favour short
    rollouts (docs/guarantees.md)."""
    max_corrected_staleness: NonNegativeInt = 4
    """With ``train_corrected``, an open group that would grow older is dropped. At least ``max_staleness`` counts."""
    refill: bool = False
    """Whether groups with equal rewards are replaced, so that the batch does not shrink."""
    max_refill: PositiveInt = 3
    """Groups that a step may replace, as a multiple of ``groups_per_step``."""
    curriculum: CurriculumName = "in_order"
    """Which problem a group gets, and whether it is trained: ``in_order``; ``frontier`` (half of the groups get
    problems again that were solved sometimes); or ``module:Name`` (docs/choosing_problems.md)."""
    curriculum_settings: dict[str, Any] = Field(default={})
    """Arguments of the curriculum's class."""
    rollout_attempts: PositiveInt = 3
    """How often a rollout is sampled that the infrastructure fails."""

    @field_validator("keep")
    @classmethod
    def _keeps_two(cls, keep: int) -> int:
        if keep < 2:
            raise ValueError("an advantage within a group needs at least 2 trajectories; write keep = 2 or more")
        return keep

    @field_validator("sequence_mask")
    @classmethod
    def _mask_holds_one(cls, bounds: tuple[float, float] | None) -> tuple[float, float] | None:
        if bounds and not 0 < bounds[0] <= 1 <= bounds[1]:
            raise ValueError("must be two bounds on a ratio, the first in (0, 1], the second at least 1")
        return bounds
