"""The table ``[algorithm]`` of the topology file: GRPO-RoC, its losses, and the staleness of what is trained."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

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
AdvantageName = Annotated[str, AfterValidator(partial(_named, "advantage"))]
LossName = Annotated[str, AfterValidator(partial(_named, "loss"))]
TopP = Annotated[float, Field(gt=0, le=1)]

STAGE_START = "stage_start"


class KlPenalty(Part):
    """A penalty on the distance of the policy from a reference policy; there is none without this table."""

    coefficient: PositiveFloat
    """The weight of the penalty in the loss."""
    estimator: Literal["k1", "k3"] = "k3"
    """How a token's divergence is estimated (`agent_rl/learning/losses/divergence.py`)."""
    reference: str = Field(default=STAGE_START, min_length=1)
    """``stage_start`` (the policy at the start of the stage), or the directory or hub name of a model of the same
    vocabulary, such as a checkpoint."""


class Algorithm(Part):
    """GRPO-RoC and its step (paper, section GRPO-RoC). Defaults are the paper's, where the paper gives them."""

    groups_per_step: PositiveInt = 512
    """Groups in a step."""
    samples: PositiveInt = 32
    """Rollouts that are sampled for a problem; they are a group."""
    keep: PositiveInt = 16
    """Rollouts of a group that are trained on."""
    minimum_samples: PositiveInt = 2
    """A group with fewer usable rollouts is dropped."""
    resampling: SelectionName = "paper"
    """The rule that selects the rollouts to train on: ``paper``, ``release`` (of the authors' code), ``none`` (a
    uniform draw), or ``module:function`` (`agent_rl.groups.resampling.Selection`)."""
    advantage: AdvantageName = "group"
    """How rewards become advantages: ``group`` (less their mean), or an `agent_rl.learning.advantages.Advantage`."""
    loss: LossName = "grpo"
    """The loss: ``grpo`` (the paper's), ``sequence_mean``, ``dr_grpo``, ``gspo``, ``cispo``, or ``module:function``
    (`agent_rl.learning.losses.base.Loss`)."""
    kl: KlPenalty | None = None
    """A penalty on the distance from a reference policy; the paper has none."""
    overlong: Literal["train", "mask", "penalty"] = "train"
    """Responses that are too long: trained as they are; ``mask``: truncated ones are not trained; ``penalty``: their
    reward falls over the last ``overlong_cache`` tokens before ``max_response_tokens``, by up to 1 (DAPO)."""
    overlong_cache: PositiveInt = 4096
    """The tokens over which the penalty on long responses grows."""
    temperature: PositiveFloat = 1.0
    """The temperature of sampling and of losses."""
    top_p: TopP = 1.0
    """The share of probability that rollouts are sampled from: the fewest likeliest tokens that reach it. Losses take
    the whole vocabulary."""
    top_k: PositiveInt | None = None
    """The number of likeliest tokens that rollouts are sampled from. None: all. Losses take the whole vocabulary."""
    clip_low: float = Field(default=0.2, gt=0, le=1)
    """A ratio below ``1 - clip_low`` is clipped."""
    clip_high: PositiveFloat = 0.28
    """A ratio above ``1 + clip_high`` is clipped."""
    updates_per_step: PositiveInt = 1
    """Mini-batches of a step."""
    microbatch_tokens: PositiveInt = 16384
    """Tokens that are computed at once, packed, prompts included. A longer sequence is computed alone."""
    gradient_clip: PositiveFloat = 1.0
    """The largest norm of a gradient."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of the optimizer."""
    entropy_coefficient: float = 0.0
    """Weight of an entropy bonus; the paper has none."""
    correction: Literal["none", "truncated", "masked", "decoupled"] = "truncated"
    """The factor on the loss of a token, for the gap between mu, the policy that sampled it, and pi_prox, the learner's
    policy before the step. ``none``: 1; ``truncated``: min(pi_prox / mu, cap); ``masked``: pi_prox / mu between floor
    and cap, else 0 (IcePop); ``decoupled``: pi_prox / mu (AReaL)."""
    correction_cap: float = Field(default=2.0, ge=1)
    """The cap of ``truncated`` and ``masked``."""
    correction_floor: float = Field(default=0.5, gt=0, le=1)
    """The floor of ``masked``."""
    sequence_mask: tuple[float, float] | None = None
    """Bounds on the geometric mean of pi_prox / mu over a response. Responses outside them are left out of the loss."""
    advantage_std: bool = True
    """Whether advantages are divided by the standard deviation of the rewards of the group."""
    max_staleness: NonNegativeInt = 1
    """Steps that the oldest policy of a group may be behind the policy that is trained."""
    on_stale: Literal["wait", "drop", "train_corrected"] = "wait"
    """What happens to an older group: training waits for it, it is dropped, or it is trained with the correction. The
    last two favour short rollouts (docs/guarantees.md)."""
    max_corrected_staleness: NonNegativeInt = 4
    """With ``train_corrected``, an open group that would grow older than this is dropped. At least ``max_staleness``
    counts."""
    refill: bool = False
    """Whether groups with equal rewards are replaced by others, so that the batch does not shrink."""
    max_refill: PositiveInt = 3
    """Groups that a step may replace, as a multiple of ``groups_per_step``."""
    rollout_attempts: PositiveInt = 3
    """How often a rollout that the infrastructure failed is sampled."""

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
