"""Rollouts that nobody has seen: groups of shapes drawn from a profile, with the limits of a stage."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.twin.profile import Profile
from benchmarks.twin.trace import Shape

LEAST_TOKENS = 16
"""A turn writes at least so many tokens."""


def draw_groups(
    profile: Profile, *, seed: int, groups: int, samples: int, max_response: int, max_turns: int
) -> tuple[tuple[Shape, ...], ...]:
    """So many groups of so many rollouts. ``max_response`` counts tokens of the model and of tools."""
    of = profile.rollouts
    random = np.random.default_rng([seed, groups, samples])
    between, within = of.spread_between, of.spread_within
    center = math.log(of.mean_tokens) - (between**2 + within**2) / 2
    logs = center + between * random.standard_normal((groups, 1)) + within * random.standard_normal((groups, samples))
    written = np.clip(np.exp(logs), LEAST_TOKENS, max_response).astype(int)
    prompts = random.integers(of.prompt_tokens[0], of.prompt_tokens[1] + 1, groups)
    most = min(of.most_calls, max_turns - 1)
    calls = (
        random.binomial(most, min(1.0, of.calls / most), (groups, samples)) if most else np.zeros(written.shape, int)
    )
    return tuple(
        tuple(
            _shape(
                random,
                profile,
                int(prompts[group]),
                int(written[group, sample]),
                int(calls[group, sample]),
                max_response,
            )
            for sample in range(samples)
        )
        for group in range(groups)
    )


def _shape(random: np.random.Generator, profile: Profile, prompt: int, written: int, calls: int, limit: int) -> Shape:
    """A rollout that writes so many tokens over its turns, with calls between them."""
    tools = profile.tools
    calls = min(calls, written // LEAST_TOKENS, limit // (2 * tools.longest_tokens))
    written = min(written, limit - calls * tools.longest_tokens)
    cuts = np.sort(random.integers(1, written, calls)) if calls else np.zeros(0, int)
    parts = np.diff(np.concatenate([[0], cuts, [written]]))
    parts = parts[parts > 0]
    calls = len(parts) - 1
    seconds = np.minimum(tools.longest_s, random.lognormal(math.log(tools.median_s), tools.spread, calls))
    results = random.lognormal(math.log(tools.median_tokens), tools.tokens_spread, calls)
    tokens = np.minimum(tools.longest_tokens, np.ceil(results)).astype(int)
    return Shape(
        prompt,
        tuple(int(part) for part in parts),
        tuple(round(float(each), 4) for each in seconds),
        tuple(int(count) for count in tokens),
    )
