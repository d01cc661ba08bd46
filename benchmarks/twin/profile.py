"""Profiles: how fast devices, tools and learner are, and how long rollouts become. TOML files.

A profile describes a device (``[device]``, from which the seconds of an engine follow for every model), or an engine
that was measured (``[engine]``). ``measured`` says which. Those that come
along are in ``benchmarks/twin/profiles/``; they are from public figures, with their sources.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from agent_rl.files.reading_json import read_text

FOLDER = Path(__file__).parent / "profiles"
Share = Annotated[float, Field(gt=0, le=1)]


class ProfileError(ValueError):
    """A profile that cannot be used: the file, the field, and what is wrong."""


class Table(BaseModel):
    """A table of a profile."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class Device(Table):
    """One device: bytes, bytes a second, operations a second, and the shares of these that are reached.

    An engine on n devices reaches ``parallel_share`` of n. A decode step takes ``step_overhead_s`` beside its work.
    """

    memory_bytes: PositiveFloat
    bandwidth: PositiveFloat
    flops: PositiveFloat
    bandwidth_share: Share
    flops_share: Share
    step_overhead_s: NonNegativeFloat
    parallel_share: Share
    memory_share: Share


class ModelSizes(Table):
    """Sizes of a model of transformer layers.

    ``of``: the names of the models on the hub that have them, so that the hub is not asked. None: any model that is not
    on this machine.
    """

    of: tuple[str, ...] = ()
    parameters: PositiveFloat
    layers: PositiveInt
    hidden_size: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt


class Engine(Table):
    """Seconds of an engine, as `benchmarks.twin.trace.EngineModel` has them, and its KV cache if it is known."""

    step_s: PositiveFloat
    row_s: NonNegativeFloat
    context_s: NonNegativeFloat
    prefill_s: NonNegativeFloat
    prefill_context_s: NonNegativeFloat = 0.0
    kv_tokens: PositiveInt | None = None


class Learner(Table):
    """Tokens a second of the whole learner, or operations a parameter and token; and seconds of an update.

    ``publish_s`` pass until engines have new weights; they then pause ``pause_s``.
    """

    tokens_per_s: PositiveFloat | None = None
    operations_per_parameter: PositiveFloat = 8.0
    publish_s: NonNegativeFloat = 0.0
    pause_s: NonNegativeFloat = 0.0


class Tools(Table):
    """Seconds of a call and tokens of its result: log-normal, with median and spread of the logarithm, and cut."""

    median_s: PositiveFloat
    spread: NonNegativeFloat
    longest_s: PositiveFloat
    median_tokens: PositiveFloat
    tokens_spread: NonNegativeFloat
    longest_tokens: PositiveInt


class Rollouts(Table):
    """Tokens that rollouts write: log-normal, cut at the stage's limit. The logarithm varies between and within groups.

    ``calls`` is the mean, of a binomial distribution up to ``most_calls``. ``prompt_tokens``: least and most. The share
    ``signal`` of the groups has unlike rewards; the others count towards a step, and nothing of them is trained.
    ``reserved_tokens``: what the scheduler estimates of a prompt, which it reserves; None: the longest prompt.
    """

    mean_tokens: PositiveFloat
    spread_between: NonNegativeFloat
    spread_within: NonNegativeFloat
    prompt_tokens: tuple[PositiveInt, PositiveInt]
    calls: NonNegativeFloat
    most_calls: PositiveInt
    reserved_tokens: PositiveInt | None = None
    signal: Annotated[float, Field(ge=0, le=1)] = 1.0

    @model_validator(mode="after")
    def _sorted(self) -> Rollouts:
        if self.prompt_tokens[0] > self.prompt_tokens[1]:
            raise ValueError("prompt_tokens is unsorted; write the least and the most")
        if self.calls > self.most_calls:
            raise ValueError(f"calls, the mean, is above most_calls = {self.most_calls}")
        return self


class Profile(Table):
    """A whole profile."""

    about: str
    measured: bool
    device: Device | None = None
    model: ModelSizes | None = None
    engine: Engine | None = None
    learner: Learner
    tools: Tools
    rollouts: Rollouts

    @model_validator(mode="after")
    def _has_speeds(self) -> Profile:
        if (self.device is None) == (self.engine is None):
            raise ValueError("write either [device], or [engine] with measured seconds")
        if self.device is None and self.learner.tokens_per_s is None:
            raise ValueError("learner.tokens_per_s is missing, and there is no [device] that it follows from")
        return self


def names() -> list[str]:
    """The profiles that come along."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read_profile(name: str) -> Profile:
    """A profile by its file, or by the name of one that comes along.

    Raises ProfileError, which names the file and the field.
    """
    path = FOLDER / f"{name}.toml" if name in names() else Path(name)
    try:
        return Profile.model_validate(tomllib.loads(read_text(path)))
    except FileNotFoundError as error:
        raise ProfileError(f"there is no profile {name}; name a file, or one of {', '.join(names())}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ProfileError(f"{path}: it cannot be read as TOML ({error})") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "the profile"
        what = "is missing" if first["type"] == "missing" else first["msg"].removeprefix("Value error, ")
        shown = f", not {first['input']!r}" if isinstance(first["input"], int | float | str) else ""
        raise ProfileError(f"{path}, {field}: {what}{shown}") from error
