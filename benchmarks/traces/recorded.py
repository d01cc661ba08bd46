"""A trace of lengths from a real run: the quickstart's model, which learnt to call Python, with its tools' seconds.

``recorded.jsonl`` holds 440 groups of that run, and in its first line the commands that made it. Each further line is a
group: the tokens of its prompt, then a list for each rollout: tokens written, and for each further turn the
milliseconds of the tools before it, the tokens of their results, and the tokens written.

Groups are drawn from these, with replacement, by the seed. A rollout of the run has 52 tokens at its end, where the
paper's has 10,400. So the engines are MI300X of which the KV cache holds 200 times fewer tokens, and reading a token of
it takes 200 times as long: such an engine holds as many of these rollouts as one of the trace `paper` holds of the
paper's, and the full cache is read in the same time. New weights are published as fast as in the run.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from agent_rl.simulation.trace import EngineModel, Shape, Trace
from benchmarks.traces.devices import learner, mi300x
from benchmarks.traces.maths import STEPS, fleet, sized

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
        "recorded", seed, head["source"], samples, per_step, STEPS, 1, limit, fleet(count, _engine()), training, made
    )


def _engine() -> EngineModel:
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
        groups.append(tuple(_shape(prompt, rollout) for rollout in rollouts))
    return json.loads(head), groups


def _shape(prompt: int, numbers: list[int]) -> Shape:
    first, further = numbers[0], numbers[1:]
    return Shape(
        prompt,
        (first, *further[2::3]),
        tuple(milliseconds / 1000 for milliseconds in further[0::3]),
        tuple(further[1::3]),
    )
