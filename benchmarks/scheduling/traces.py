"""Traces on which scheduling policies are compared: generated from seeds, each with the source of its shape.

The shapes were fixed before the policies. ``TRAINING_SEEDS`` serve every kind of tuning; ``JUDGING_SEEDS`` serve tables
only. A seed of one kind is never used as the other.

**Devices.** Engines and learner of the traces: Qwen3-14B on MI300X, from public figures. Nothing here was measured by
us. Sources. MI300X: 192 GB, 5.3 TB/s, 1307 TFLOPS in bf16 (AMD's data sheet). Qwen3-14B: 14.8e9 parameters, 40 layers,
width 5120, 8 KV heads of 128 (its config.json): 29.6 GB of weights, 163,840 bytes of KV cache a token.

Assumed: 60 % of the bandwidth and 35 % of the arithmetic are reached, which is usual for vLLM on this device; 3 ms of
every decode step are launches and sampling; tensor parallelism over 4 devices reaches 85 % of 4 devices.

**Maths.** Traces of mathematical problems with short tool calls, after rStar2-Agent's report (arXiv 2508.20722). From
the report: 512 problems x 32 rollouts a step; responses of 9,340 to 10,943 tokens in the mean, at most 30K (in its
evaluations; training had limits of 8K and 12K); at most 10 calls, up to 45,000 a step, which are 2.75 a rollout; 0.3 s
a call, queueing included. Assumed: lengths are log-normal; of the variance of their logarithm, 0.20 is of the problem
and 0.16 of the rollout (Seer and Heddle build on samples of a problem being alike); the median of calls is 0.15 s.

**Agentic.** A trace of coding agents: 43 turns and 142K input tokens at the median. Source of the shape: public traces
of coding agents (TraceLab, tracelab.cs.washington.edu: long loops of tool calls, long contexts, short outputs, tool
times and calls with heavy tails). 43 turns and 142K tokens at the median are read as follows: a rollout reads 142K
tokens over its turns, prompt and tool results, each counted once. Assumed: 250 tokens written in a turn in the median;
tools take 1 s in the median with a tail to 120 s; a prompt of 8K tokens.

**Recorded.** A trace of lengths from a real run: the quickstart's model, which learnt to call Python, with its tools'
seconds. ``recorded.jsonl`` holds 440 groups of that run, and in its first line the commands that made it. Each further
line is a group: the tokens of its prompt, then a list for each rollout: tokens written, and for each further turn the
milliseconds of the tools before it, the tokens of their results, and the tokens written.

Groups are drawn from these, with replacement, by the seed. A rollout of the run has 52 tokens at its end, where the
paper's has 10,400. So the engines are MI300X of which the KV cache holds 200 times fewer tokens, and reading a token of
it takes 200 times as long: such an engine holds as many of these rollouts as one of the trace `paper` holds of the
paper's, and the full cache is read in the same time. New weights are published as fast as in the run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.twin.trace import EngineLife, EngineModel, LearnerModel, Shape, Trace, check

WEIGHT_BYTES = 29.6e9
KV_BYTES = 163_840
BANDWIDTH = 0.6 * 5.3e12
FLOPS = 0.35 * 1307e12
OVERHEAD_S = 3e-3


def mi300x(devices: int = 1, *, speed: float = 1.0, memory: float = 1.0) -> EngineModel:
    """An engine on so many devices, of which ``speed`` and ``memory`` scale the device."""
    reached = speed * (devices if devices == 1 else 0.85 * devices)
    return EngineModel(
        kv_total=int((0.9 * 192e9 * memory * devices - WEIGHT_BYTES) / KV_BYTES),
        max_rollouts=512 * devices,
        step_s=OVERHEAD_S + WEIGHT_BYTES / (BANDWIDTH * reached),
        row_s=2 * 14.8e9 / (FLOPS * reached),
        context_s=KV_BYTES / (BANDWIDTH * reached),
        prefill_s=2 * 14.8e9 / (FLOPS * reached),
        prefill_context_s=4 * 40 * 5120 / (FLOPS * reached),
    )


def learner(devices: float) -> LearnerModel:
    """A learner on so many devices: 8 operations a parameter and token (recomputed activations), half of them kept."""
    return LearnerModel(tokens_per_s=devices * FLOPS / (8 * 14.8e9), kept=0.5)


# Maths

SOURCE = "rStar2-Agent's report, arXiv 2508.20722, sections on infrastructure and recipe"
STEPS = 10
LIMIT = 30_000
PROMPT = 600
TOOL_TOKENS = 512
CALLS = 10
BETWEEN, WITHIN = 0.45, 0.40
"""Standard deviations of the logarithm of the length: of problems, and of the rollouts of one problem."""

Random = np.random.Generator


def lengths(random: Random, groups: int, samples: int, mean: float, spread: float = 1.0) -> np.ndarray:
    """Tokens that rollouts write [groups, samples]: log-normal, cut at the limit. ``spread`` scales the deviations."""
    between, within = BETWEEN * spread, WITHIN * spread
    center = math.log(mean) - (between**2 + within**2) / 2
    logs = center + between * random.standard_normal((groups, 1)) + within * random.standard_normal((groups, samples))
    return np.clip(np.exp(logs), 32, LIMIT).astype(int)


def shape(random: Random, prompt: int, written: int, calls: int) -> Shape:
    """A rollout that writes so many tokens over its turns, with calls between them."""
    calls = min(calls, written // 16)
    written = min(written, LIMIT - calls * TOOL_TOKENS)  # the response's limit counts tool results too
    cuts = np.sort(random.integers(1, written, calls)) if calls else np.zeros(0, int)
    parts = np.diff(np.concatenate([[0], cuts, [written]]))
    parts = parts[parts > 0]
    calls = len(parts) - 1
    seconds = np.minimum(4.0, random.lognormal(math.log(0.15), 1.18, calls))
    tokens = np.minimum(TOOL_TOKENS, 8 + random.lognormal(math.log(60), 1.0, calls)).astype(int)
    return Shape(
        prompt,
        tuple(int(part) for part in parts),
        tuple(round(float(second), 4) for second in seconds),
        tuple(int(count) for count in tokens),
    )


def trace(
    name: str,
    seed: int,
    engines: tuple[EngineLife, ...],
    groups: int,
    samples: int,
    *,
    written: np.ndarray | None = None,
    mean: float = 10_000.0,
    spread: float = 1.0,
    source: str = SOURCE,
) -> Trace:
    """A trace of ``STEPS`` steps of so many groups. ``written`` replaces the lengths of ``mean`` and ``spread``."""
    random = np.random.default_rng([seed, sum(name.encode())])
    total = STEPS * groups
    if written is None:
        written = lengths(random, total, samples, mean, spread)
    prompts = random.integers(250, PROMPT, total)
    calls = random.binomial(CALLS, 0.275, (total, samples))
    made = tuple(
        tuple(shape(random, int(prompts[g]), int(written[g, s]), int(calls[g, s])) for s in range(samples))
        for g in range(total)
    )
    devices = sum(engine.model.max_rollouts for engine in engines) // 512
    return Trace(name, seed, source, samples, groups, STEPS, 1, PROMPT + LIMIT, engines, learner(max(1, devices)), made)


def fleet(count: int, model: EngineModel) -> tuple[EngineLife, ...]:
    """So many engines of one model."""
    return tuple(EngineLife(f"engine.{number}", model) for number in range(count))


def paper(seed: int, scale: float = 1.0) -> Trace:
    """The paper's step: 512 problems x 32 on 64 engines of one device each."""
    engines, groups = sized(64, 512, scale)
    return trace("paper", seed, fleet(engines, mi300x()), groups, 32)


def paper_tp4(seed: int, scale: float = 1.0) -> Trace:
    """The paper's step on 16 engines of four devices each."""
    engines, groups = sized(16, 512, scale)
    return trace("paper_tp4", seed, fleet(engines, mi300x(4)), groups, 32)


def mild(seed: int, scale: float = 1.0) -> Trace:
    """Easy for every policy: rollouts of 4,000 tokens that differ little, and much KV cache."""
    engines, groups = sized(16, 128, scale)
    return trace("mild", seed, fleet(engines, mi300x()), groups, 16, mean=4000, spread=0.4)


def brutal(seed: int, scale: float = 1.0) -> Trace:
    """One rollout of a hundred is 30 times as long as the mean of the others, which write 1,000 tokens."""
    (engines, groups), samples = sized(16, 128, scale), 16
    random = np.random.default_rng([seed, 30])
    written = np.maximum(32, random.lognormal(math.log(1000) - 0.08, 0.4, (STEPS * groups, samples)))
    written[random.random(written.shape) < 0.01] = 30_000
    written = np.minimum(written, LIMIT).astype(int)
    return trace("brutal", seed, fleet(engines, mi300x(memory=0.3)), groups, samples, written=written)


def mixed_engines(seed: int, scale: float = 1.0) -> Trace:
    """A quarter of the engines have four devices, a quarter half the speed, a quarter half the memory."""
    models = (mi300x(4), mi300x(speed=0.5), mi300x(memory=0.5), mi300x())
    count, groups = sized(16, 256, scale, least=4)
    engines = tuple(EngineLife(f"engine.{number}", models[number % 4]) for number in range(count))
    return trace("mixed_engines", seed, engines, groups, 16)


def engine_lost(seed: int, scale: float = 1.0) -> Trace:
    """An eighth of the engines, or one, are lost midway, and as many join much later."""
    return _leaving("engine_lost", seed, scale, lost=True)


def drain(seed: int, scale: float = 1.0) -> Trace:
    """An eighth of the engines, or one, drain midway, and as many join much later."""
    return _leaving("drain", seed, scale, lost=False)


MIDWAY_S, BACK_S = 4500.0, 7000.0
"""The same at every scale, since the load of an engine is."""


def _leaving(name: str, seed: int, scale: float, *, lost: bool) -> Trace:
    count, groups = sized(16, 128, scale, least=4)
    leaving = max(1, count // 8)
    engines = list(fleet(count, mi300x()))
    for number in range(leaving):
        life = engines[number]
        engines[number] = replace(life, lost=MIDWAY_S) if lost else replace(life, drains=MIDWAY_S)
        engines.append(EngineLife(f"engine.{count + number}", mi300x(), joins=BACK_S))
    return trace(name, seed, tuple(engines), groups, 16)


def sized(engines: int, groups: int, scale: float, least: int = 1) -> tuple[int, int]:
    """Engines and groups of a step times ``scale``, at least ``least`` engines. An engine's share of groups stays.

    So a smaller trace has the makespan of the full one, and its engines come and go at the same point of the run.
    """
    count = max(least, round(engines * scale))
    return count, max(1, round(groups * count / engines))


# Agentic

AGENTIC_SOURCE = "TraceLab (University of Washington), coding agents; medians of 43 turns and 142K input tokens"
AGENTIC_LIMIT = 600_000
AGENTIC_PROMPT = 8000
TURNS, MOST_TURNS = 43, 200
INPUT = 142_000


def agentic(seed: int, scale: float = 1.0) -> Trace:
    """16 problems x 16 rollouts a step on 8 engines of four devices each."""
    random = np.random.default_rng([seed, 43])
    (count, per_step), samples = sized(8, 16, scale, least=2), 16
    groups = []
    for _ in range(STEPS * per_step):
        turns_of, tokens_of = math.log(TURNS) + 0.3 * random.standard_normal(), 0.3 * random.standard_normal()
        groups.append(tuple(_agent(random, turns_of, tokens_of) for _ in range(samples)))
    engines = tuple(EngineLife(f"engine.{number}", mi300x(4)) for number in range(count))
    devices = 4 * count
    made = tuple(groups)
    return Trace(
        "agentic", seed, AGENTIC_SOURCE, samples, per_step, STEPS, 1, AGENTIC_LIMIT, engines, learner(devices), made
    )


def _agent(random: np.random.Generator, turns_of: float, tokens_of: float) -> Shape:
    turns = int(np.clip(np.exp(turns_of + 0.3 * random.standard_normal()), 2, MOST_TURNS))
    written = np.clip(random.lognormal(math.log(250), 0.9, turns), 16, 4000).astype(int)
    each = (INPUT - AGENTIC_PROMPT) / (TURNS - 1) * math.exp(tokens_of)
    read = np.clip(random.lognormal(math.log(each) - 0.5, 1.0, turns - 1), 16, 40_000)
    room = AGENTIC_LIMIT - AGENTIC_PROMPT - int(written.sum())
    read = (read * min(1.0, room / max(1.0, read.sum()))).astype(int)
    seconds = np.clip(random.lognormal(0.0, 1.2, turns - 1), 0.02, 120)
    return Shape(
        AGENTIC_PROMPT,
        tuple(int(tokens) for tokens in written),
        tuple(round(float(second), 4) for second in seconds),
        tuple(int(tokens) for tokens in read),
    )


# Recorded

FILE = Path(__file__).with_name("recorded.jsonl")
RATIO = 200
"""Tokens of a rollout of the paper, over those of one of the run."""
PUBLISH_S = 0.13
"""Mean seconds from a trained step to the new weights on the engine, in the run."""


def recorded(seed: int, scale: float = 1.0) -> Trace:
    """128 groups x 16 rollouts a step on 16 engines."""
    head, groups = _recording()
    count, per_step = sized(16, 128, scale)
    drawn = np.random.default_rng([seed, len(groups)]).integers(0, len(groups), STEPS * per_step)
    made = tuple(groups[number] for number in drawn)
    training = replace(learner(count), publish_s=PUBLISH_S, pause_s=0.0)
    samples, limit = head["samples"], head["limit"]
    return Trace(
        "recorded",
        seed,
        head["source"],
        samples,
        per_step,
        STEPS,
        1,
        limit,
        fleet(count, _small_engine()),
        training,
        made,
    )


def _small_engine() -> EngineModel:
    model = mi300x()
    return replace(
        model,
        kv_total=model.kv_total // RATIO,
        page=1,
        context_s=model.context_s * RATIO,
        prefill_context_s=model.prefill_context_s * RATIO,
    )


@cache
def _recording() -> tuple[dict[str, Any], list[tuple[Shape, ...]]]:
    head, *lines = FILE.read_text(encoding="utf-8").splitlines()
    groups = []
    for line in lines:
        prompt, *rollouts = json.loads(line)
        groups.append(tuple(_recorded_shape(prompt, rollout) for rollout in rollouts))
    return json.loads(head), groups


def _recorded_shape(prompt: int, numbers: list[int]) -> Shape:
    first, further = numbers[0], numbers[1:]
    return Shape(
        prompt,
        (first, *further[2::3]),
        tuple(milliseconds / 1000 for milliseconds in further[0::3]),
        tuple(further[1::3]),
    )


# All

TRAINING_SEEDS = (101, 102, 103)
JUDGING_SEEDS = (1, 2, 3, 4, 5)

GENERATORS: Mapping[str, Callable[[int, float], Trace]] = {
    "paper": paper,
    "paper_tp4": paper_tp4,
    "mild": mild,
    "brutal": brutal,
    "agentic": agentic,
    "mixed_engines": mixed_engines,
    "engine_lost": engine_lost,
    "drain": drain,
    "recorded": recorded,
}


def generate(name: str, seed: int, scale: float = 1.0) -> Trace:
    """The trace. ``scale`` below 1 makes fewer engines and groups of the same kind. Raises ValueError for no trace."""
    if name not in GENERATORS:
        raise ValueError(f"there is no trace {name!r}; there are {', '.join(GENERATORS)}")
    return check(GENERATORS[name](seed, scale))
