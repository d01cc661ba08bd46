"""Traces of mathematical problems with short tool calls, after rStar2-Agent's report (arXiv 2508.20722).

From the report: 512 problems x 32 rollouts a step; responses of 9,340 to 10,943 tokens in the mean, at most 30K (in its
evaluations; training had limits of 8K and 12K); at most 10 calls, up to 45,000 a step, which are 2.75 a rollout; 0.3 s
a call, queueing included. Assumed: lengths are log-normal; of the variance of their logarithm, 0.20 is of the problem
and 0.16 of the rollout (Seer and Heddle build on samples of a problem being alike); the median of calls is 0.15 s.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from agent_rl.simulation.trace import EngineLife, EngineModel, Shape, Trace
from benchmarks.traces.devices import learner, mi300x

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
