"""What a simulation runs: groups of rollouts with their hidden lengths, engines with their speeds, and a learner.

A trace is a file of JSON lines: the first holds everything but the groups (`Trace`), each further line is a group::

    {"prompt": 310, "rollouts": [{"written": [512, 90], "tool_s": [0.3], "tool_tokens": [41]}, ...]}

A trace with missing, negative, unsorted or impossible numbers is refused with the name of the file, the line and the
field.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class TraceError(ValueError):
    """A trace that cannot be simulated, with the place and the reason."""


class Shape(NamedTuple):
    """A rollout's hidden lengths, in tokens: what it writes in each turn, and the results of its tools in between.

    ``written`` has one more entry than ``tool_s``, the seconds that the tools of a turn take, and ``tool_tokens``.
    """

    prompt: int
    written: tuple[int, ...]
    tool_s: tuple[float, ...] = ()
    tool_tokens: tuple[int, ...] = ()

    @property
    def context(self) -> int:
        """All tokens of the rollout at its end."""
        return self.prompt + sum(self.written) + sum(self.tool_tokens)


@dataclass(frozen=True, slots=True)
class EngineModel:
    """How fast an engine is. A decode step of B rollouts with C tokens of context takes
    ``step_s + B * row_s + C * context_s`` seconds; the prefill of a token that follows x tokens takes
    ``prefill_s + x * prefill_context_s``, and the decode steps wait for it.

    ``kv_total`` is the KV cache in tokens, in pages of ``page`` tokens. A turn is admitted while the share
    ``watermark`` of the cache stays free.

    ``kv_host`` tokens of what leaves the cache are kept in host memory. To bring a token back takes ``restore_s``, and
    the decode steps wait for it.

    Turns that wait join the running ones once they are the share ``join_share`` of them, or the first has waited
    ``join_steps`` decode steps.
    """

    kv_total: int
    max_rollouts: int
    step_s: float
    row_s: float
    context_s: float
    prefill_s: float
    prefill_context_s: float
    page: int = 16
    watermark: float = 0.01
    kv_host: int = 0
    restore_s: float = 0.0
    join_share: float = 0.0
    join_steps: int = 0

    def largest(self) -> int:
        """The longest context that an empty engine admits."""
        return int(self.kv_total * (1 - self.watermark)) - self.page


@dataclass(frozen=True, slots=True)
class EngineLife:
    """An engine's name and model, and when it comes and goes, in seconds: it joins, is lost, or drains and leaves."""

    name: str
    model: EngineModel
    joins: float = 0.0
    lost: float = math.inf
    drains: float = math.inf


@dataclass(frozen=True, slots=True)
class LearnerModel:
    """A step trains the share ``kept`` of its groups' tokens, and is published ``publish_s`` seconds later.

    The engines then pause ``pause_s`` to load the weights, and keep their KV cache or not. ``gather_s`` seconds pass
    from the end of a step's last rollout until the step may be trained.
    """

    tokens_per_s: float
    kept: float = 0.5
    publish_s: float = 10.0
    pause_s: float = 2.0
    kv_kept: bool = True
    gather_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SharedCores:
    """Cores of a host that engines, learner and tools share; their seconds are then those of a core of their own.

    An engine asks for ``engine`` cores while it computes, the learner for ``learner``, tools for ``tools``. The calls
    of a turn take ``call_s`` seconds of a core, one turn after the other; ``tool_s`` of the turn follows without one.
    """

    cores: float
    engine: float = 1.0
    learner: float = 1.0
    tools: float = 1.0
    call_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Trace:
    """A run: its groups in the order in which they are opened, its engines and its learner.

    ``limit`` bounds a rollout's context, in tokens, and is known to policies. ``source`` says where the shape is from.
    """

    name: str
    seed: int
    source: str
    samples: int
    groups_per_step: int
    steps: int
    max_staleness: int
    limit: int
    engines: tuple[EngineLife, ...]
    learner: LearnerModel
    groups: tuple[tuple[Shape, ...], ...] = field(repr=False)
    opens_late: bool = False
    """Groups are opened one by one, while nothing waits to be placed, as in a real run; else as soon as may be."""
    shared: SharedCores | None = None
    """None: each engine and the learner has a device of its own."""

    def written(self) -> int:
        """All tokens that the rollouts write."""
        return sum(sum(shape.written) for group in self.groups for shape in group)


def check(trace: Trace, where: str = "") -> Trace:
    """The trace. Raises TraceError, which names the field, when it cannot be simulated."""
    where = where or f"trace {trace.name}"
    for name in ("samples", "groups_per_step", "steps", "limit"):
        _positive(getattr(trace, name), f"{where}, {name}")
    if trace.max_staleness < 0:
        raise TraceError(f"{where}, max_staleness: {trace.max_staleness} is negative")
    if len(trace.groups) != trace.steps * trace.groups_per_step:
        wanted = f"{trace.steps} steps of {trace.groups_per_step} groups need {trace.steps * trace.groups_per_step}"
        raise TraceError(f"{where}: {len(trace.groups)} groups are there; {wanted}")
    _check_learner(trace.learner, f"{where}, learner")
    _check_engines(trace, where)
    if trace.shared is not None:
        _check_cores(trace.shared, f"{where}, shared")
    for number, group in enumerate(trace.groups):
        _check_group(trace, group, f"{where}, group {number}")
    return trace


def _positive(value: float, what: str) -> None:
    if not 0 < value < math.inf:
        raise TraceError(f"{what}: {value} is no number above 0")


def _check_learner(learner: LearnerModel, where: str) -> None:
    _positive(learner.tokens_per_s, f"{where}, tokens_per_s")
    for name in ("kept", "publish_s", "pause_s", "gather_s"):
        if not 0 <= getattr(learner, name) < math.inf:
            raise TraceError(f"{where}, {name}: {getattr(learner, name)} is negative or no number")


def _check_cores(shared: SharedCores, where: str) -> None:
    for name in ("cores", "engine", "learner", "tools"):
        _positive(getattr(shared, name), f"{where}, {name}")
    if not 0 <= shared.call_s < math.inf:
        raise TraceError(f"{where}, call_s: {shared.call_s} is negative or no number")


def _check_engines(trace: Trace, where: str) -> None:
    names = [engine.name for engine in trace.engines]
    if len(set(names)) != len(names) or not names:
        raise TraceError(f"{where}, engines: each needs a name of its own, and there must be one")
    if not any(engine.joins == 0 and min(engine.lost, engine.drains) == math.inf for engine in trace.engines):
        raise TraceError(f"{where}, engines: one must be there from the start and stay")
    for engine in trace.engines:
        place = f"{where}, engine {engine.name}"
        for name in ("kv_total", "max_rollouts", "step_s", "page"):
            _positive(getattr(engine.model, name), f"{place}, {name}")
        seconds = "row_s", "context_s", "prefill_s", "prefill_context_s", "restore_s"
        for name in (*seconds, "watermark", "kv_host", "join_share", "join_steps"):
            if not 0 <= getattr(engine.model, name) < math.inf:
                raise TraceError(f"{place}, {name}: {getattr(engine.model, name)} is negative or no number")
        if not 0 <= engine.joins < min(engine.lost, engine.drains):
            raise TraceError(f"{place}: it joins at {engine.joins} s, which is unsorted: it must be before it leaves")
        if engine.model.largest() < trace.limit:
            raise TraceError(f"{place}, kv_total: a rollout of {trace.limit} tokens (limit) does not fit")


def _check_group(trace: Trace, group: tuple[Shape, ...], where: str) -> None:
    if len(group) != trace.samples:
        raise TraceError(f"{where}: {len(group)} rollouts are there; samples says {trace.samples}")
    for sample, shape in enumerate(group):
        place = f"{where}, rollout {sample}"
        if not len(shape.written) - 1 == len(shape.tool_s) == len(shape.tool_tokens):
            turns = f"{len(shape.written)} turns, {len(shape.tool_s)} tool_s, {len(shape.tool_tokens)} tool_tokens"
            raise TraceError(f"{place}: {turns}; tools run between turns, so a number is missing")
        if shape.prompt < 1 or any(tokens < 1 for tokens in shape.written):
            raise TraceError(f"{place}: prompt and written must be above 0, in whole tokens")
        if any(tokens < 0 for tokens in shape.tool_tokens) or any(not 0 <= s < math.inf for s in shape.tool_s):
            raise TraceError(f"{place}: tool_s or tool_tokens is negative or no number")
        if shape.context > trace.limit:
            raise TraceError(f"{place}: {shape.context} tokens are more than the limit of {trace.limit}")


def write(trace: Trace, path: Path) -> None:
    """Write the trace as JSON lines."""
    head = {name: value for name, value in asdict(trace).items() if name != "groups"}
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(head) + "\n")
        for group in trace.groups:
            rollouts = [{name: getattr(s, name) for name in ("written", "tool_s", "tool_tokens")} for s in group]
            file.write(json.dumps({"prompt": group[0].prompt, "rollouts": rollouts}) + "\n")


def read(path: Path) -> Trace:
    """The trace of a file. Raises TraceError, which names file, line and field."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: it cannot be read ({error})") from error
    if not lines:
        raise TraceError(f"{path}: it is empty")
    head = _parsed(lines[0], path, 1)
    groups = tuple(_group(_parsed(line, path, number), path, number) for number, line in enumerate(lines[1:], 2))
    try:
        engines = tuple(EngineLife(**{**each, "model": EngineModel(**each["model"])}) for each in head.pop("engines"))
        cores = head.pop("shared", None)
        shared = None if cores is None else SharedCores(**cores)
        learner = LearnerModel(**head.pop("learner"))
        trace = Trace(**head, engines=engines, learner=learner, shared=shared, groups=groups)
        return check(trace, str(path))
    except KeyError as error:
        raise TraceError(f"{path}, line 1: {error} is missing") from error
    except TypeError as error:
        raise TraceError(f"{path}, line 1: a field is missing, unknown or of another type ({error})") from error


def _parsed(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}, line {number}: no JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise TraceError(f"{path}, line {number}: a JSON object is expected")
    return parsed


def _group(parsed: dict[str, Any], path: Path, number: int) -> tuple[Shape, ...]:
    try:
        prompt = parsed["prompt"]
        group = tuple(
            Shape(prompt, tuple(each["written"]), tuple(each["tool_s"]), tuple(each["tool_tokens"]))
            for each in parsed["rollouts"]
        )
    except KeyError as error:
        raise TraceError(f"{path}, line {number}: {error} is missing") from error
    except TypeError as error:
        raise TraceError(f"{path}, line {number}: {error}") from error
    whole = [prompt, *(tokens for shape in group for tokens in (*shape.written, *shape.tool_tokens))]
    seconds = [s for shape in group for s in shape.tool_s]
    if not all(type(tokens) is int for tokens in whole) or not all(type(s) in {int, float} for s in seconds):
        raise TraceError(f"{path}, line {number}: tokens are whole numbers, and tool_s are seconds")
    return group
