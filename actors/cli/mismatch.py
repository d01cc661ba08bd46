"""``agent-rl mismatch``: whether rollouts of any trainer have the log-probabilities of its own model."""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from actors.cli.output import Mistake, say
from actors.cli.parameters import PositiveNumber, TopP, several

if TYPE_CHECKING:
    from agent_rl.figures import MismatchFigures
    from agent_rl.learning.other_trainers import Comparison, Rollout


def mismatch(
    file: Annotated[
        Path, Parameter(name="FILE", help="JSONL or parquet: prompt_ids, response_ids, logprobs; mask, version")
    ],
    /,
    *,
    model: Annotated[Path, Parameter(metavar="DIR", help="the newest policy that sampled any of them")],
    older: Annotated[
        tuple[str, ...], several("VERSION=DIR", "policies of lower versions, for rollouts that they sampled")
    ] = (),
    temperature: Annotated[PositiveNumber, Parameter(help="that the engine was told to sample at")] = 1.0,
    top_p: TopP = 1.0,
    top_k: Annotated[int, Parameter(help="tokens that are sampled from; 0: all", validator=Number(gte=0))] = 0,
    dtype: Annotated[
        Literal["float32", "bfloat16"], Parameter(help="to compute in here; float32 tells most")
    ] = "float32",
    device: Annotated[str, Parameter(help="to compute on")] = "cpu",
    json: Annotated[bool, Parameter(negative="", help="print a JSON object in place of lines")] = False,
) -> int:
    """Measure how far an engine's log-probabilities are from its model's, and how far the policy has moved since.

    Where the engine differs by more than types explain, the likely cause is named, and the exit code is 1.
    """
    from agent_rl.environments.base import TaskError
    from agent_rl.environments.task_files import read_rows
    from agent_rl.learning.finite import NotFiniteError, TrainingStoppedError
    from agent_rl.learning.guard_causes import Sampled
    from agent_rl.learning.other_trainers import Comparison

    paths = dict(map(_older, older))
    try:
        rollouts = [_rollout(where, row) for where, row in read_rows(str(file), file)]
        if not any(any(rollout.mask) for rollout in rollouts):
            raise Mistake(f"{file}: no rollout has a token that the model wrote")
        newest = max(version for each in rollouts for version, own in zip(each.versions, each.mask, strict=True) if own)
        if wrong := [version for version in paths if version >= newest]:
            raise Mistake(f"--older {wrong[0]}: --model is version {newest}, the newest in {file}; name lower ones")
        found = Comparison(model, rollouts, paths, how=Sampled(temperature, top_p, top_k), dtype=dtype, device=device)
    except (TaskError, NotFiniteError, TrainingStoppedError, ValueError) as error:
        raise Mistake(str(error)) from error
    figures = found.figures()
    if not json:
        _say_figures(found, figures, len(rollouts))
    cause = found.cause()
    if json:
        counted = {"tokens": found.wrote.total(), "unknown": found.unknown, "cause": cause}
        say(json_format.dumps(counted | {"figures": figures and asdict(figures)}))
    else:
        say(cause or "no fault: types explain what differs")
    return int(bool(cause))


def _older(text: str) -> tuple[int, Path]:
    version, _, path = text.partition("=")
    if not version.isdecimal() or not path:
        raise Mistake(f"--older {text}: give a version and its directory, as in --older 3=checkpoints/step-3")
    return int(version), Path(path)


def _rollout(where: str, row: Mapping[str, Any]) -> Rollout:
    from agent_rl.environments.base import TaskError
    from agent_rl.learning.other_trainers import Rollout

    def values(name: str, kinds: tuple[type, ...], default: Any = None) -> list[Any]:
        given = row.get(name, default)
        if not isinstance(given, list) or not all(type(each) in kinds for each in given):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise TaskError(f"{where}: `{name}` must be a list of {wanted}; columns are {sorted(row)}")
        return given

    prompt, response = values("prompt_ids", (int,)), values("response_ids", (int,))
    size, version = len(response), row.get("version", 0)
    parts = {
        "logprobs": values("logprobs", (float, int)),
        "mask": values("mask", (int, bool), [1] * size),
        "version": [version] * size if type(version) is int else values("version", (int,)),
    }
    if not prompt or min([*prompt, *response]) < 0:
        raise TaskError(f"{where}: `prompt_ids` must not be empty, and no token is below 0")
    for name, each in parts.items():
        if len(each) != size:
            raise TaskError(f"{where}: `{name}` has {len(each)} values, and `response_ids` {size}: one for each")
    return Rollout(where, prompt, response, parts["logprobs"], list(map(bool, parts["mask"])), parts["version"])


def _say_figures(found: Comparison, figures: MismatchFigures | None, rollouts: int) -> None:
    say(f"{found.wrote.total():,} tokens of {rollouts:,} rollouts")
    if figures is not None:
        engine = f"{figures.mismatch_gap:.2g} nats a token from its weights, at most {figures.mismatch_max:.2g}"
        moved = f"{figures.staleness_gap:.2g} nats a token, newest weights from those that sampled"
        say(f"engine     {engine}; mean ratio {figures.mismatch_ratio:.4f}")
        say(f"staleness  {moved}; mean ratio {figures.staleness_ratio:.4f}", flush=True)
    for version, tokens in found.unknown.items():
        say(f"not measured: {tokens:,} tokens of version {version}; give its weights by --older {version}=DIR")
