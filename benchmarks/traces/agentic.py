"""A trace of coding agents: 43 turns and 142K input tokens at the median.

Source of the shape: public traces of coding agents (TraceLab, tracelab.cs.washington.edu: long loops of tool calls,
long contexts, short outputs, tool times and calls with heavy tails). 43 turns and 142K tokens at the median are read as
follows: a rollout reads 142K tokens over its turns, prompt and tool results, each counted once. Assumed: 250 tokens
written in a turn in the median; tools take 1 s in the median with a tail to 120 s; a prompt of 8K tokens.
"""

from __future__ import annotations

import math

import numpy as np

from agent_rl.simulation.trace import EngineLife, Shape, Trace
from benchmarks.traces.devices import learner, mi300x
from benchmarks.traces.maths import sized

SOURCE = "TraceLab (University of Washington), coding agents; medians of 43 turns and 142K input tokens"
STEPS = 10
LIMIT = 600_000
PROMPT = 8000
TURNS, MOST_TURNS = 43, 200
INPUT = 142_000


def agentic(seed: int, scale: float = 1.0) -> Trace:
    """16 problems x 16 rollouts a step on 8 engines of four devices each."""
    random = np.random.default_rng([seed, 43])
    (count, per_step), samples = sized(8, 16, scale, least=2), 16
    groups = []
    for _ in range(STEPS * per_step):
        turns_of, tokens_of = math.log(TURNS) + 0.3 * random.standard_normal(), 0.3 * random.standard_normal()
        groups.append(tuple(_rollout(random, turns_of, tokens_of) for _ in range(samples)))
    engines = tuple(EngineLife(f"engine.{number}", mi300x(4)) for number in range(count))
    devices = 4 * count
    made = tuple(groups)
    return Trace("agentic", seed, SOURCE, samples, per_step, STEPS, 1, LIMIT, engines, learner(devices), made)


def _rollout(random: np.random.Generator, turns_of: float, tokens_of: float) -> Shape:
    turns = int(np.clip(np.exp(turns_of + 0.3 * random.standard_normal()), 2, MOST_TURNS))
    written = np.clip(random.lognormal(math.log(250), 0.9, turns), 16, 4000).astype(int)
    each = (INPUT - PROMPT) / (TURNS - 1) * math.exp(tokens_of)
    read = np.clip(random.lognormal(math.log(each) - 0.5, 1.0, turns - 1), 16, 40_000)
    room = LIMIT - PROMPT - int(written.sum())
    read = (read * min(1.0, room / max(1.0, read.sum()))).astype(int)
    seconds = np.clip(random.lognormal(0.0, 1.2, turns - 1), 0.02, 120)
    return Shape(
        PROMPT,
        tuple(int(tokens) for tokens in written),
        tuple(round(float(second), 4) for second in seconds),
        tuple(int(tokens) for tokens in read),
    )
