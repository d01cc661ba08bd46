"""A clairvoyant lower bound on the makespan: no policy is faster, though it knew every length in advance.

Symbols. An engine e takes ``a + b B + c C`` seconds for a decode step of B rollouts with C tokens of context, has K
tokens of KV cache, and at most R rollouts at once. A token written after x tokens of context is *at depth* x. Batch k
are the groups that the order of opening makes the k-th g groups; S is max_staleness; T(v) is when v steps are trained,
L(v) the seconds of the training of step v, at least those of the g groups with the fewest tokens that may be in it.

**Work.** In a step, C <= K and B <= R, so for any share 0 <= s <= 1::

    a + b B + c C  >=  sum over its rollouts i of  b + c x_i + a (s x_i / K + (1 - s) / R)

Every written token is in exactly one step, so its engine spends at least w_e(x) = (b + a (1 - s) / R) + (c + a s / K) x
seconds on it, for a fixed s; with it, prefills and idle time only add. Each rollout's prompt and tool results are
prefilled once at least, except that a group's prompt may be shared: that costs p_e + q_e x for a token at depth x. (The
largest total over s = 0 and s = 1 is taken, as the total is linear in s.) Weight the engines by y_e >= 0, sum 1, and
let A_e(t) be the seconds until t in which e is there. By t, the engines have done no more weighted work than sum_e y_e
A_e(t), and a token costs at least min_e y_e w_e(x). So t is at least the smallest t with::

    sum_e y_e A_e(t)  >=  sum over tokens of min_e y_e w_e(x)

This holds for every y; y_e proportional to the reciprocal of the work of e alone is taken. min_e of linear functions is
bounded from below by the minimum of their constants plus the minimum of their slopes times x.

**Path.** A rollout alone on the fastest engine needs at least sum (a + b + c x) over its tokens, its tools' seconds,
and the prefill of its tool results. (Each engine is bounded by the minimum of every coefficient over all engines.)

**Chain.** Groups of batch k are opened when max(0, k - S) steps are trained and published. They may be S versions old
when they are trained, so they are in the first max(k, S) + 1 steps (staleness.py, rule ``wait``). The first v steps
have v g groups. For v > S, these are therefore all the groups of batches 0 .. v - 1. For v > S + 1, the groups of step
v are those of batch v - 1. E(v) are the groups of batches 0 .. max(v - 1, S), of which the first v steps are made::

    T(v)  >=  T(v - 1) + L(v)
    T(v)  >=  time of the work of the v g cheapest groups of E(v), then L(v)
    T(v)  >=  longest path of the groups of E(v), then L(v), for v > S
    T(v)  >=  T(k - S) + publish_s + time of the work of batches k .. v - 1, then L(v), for S < k < v
    T(v)  >=  T(k - S) + publish_s + longest path of batches k .. v - 1, then L(v), for S < k < v

Where groups are opened late (`Trace.opens_late`), they may be of a newer version than their batch permits. E(v) are
then the groups of batches 0 .. v - 1 + S, and the last three hold for v = n alone: all n g groups end before step n is
trained. A lost engine, a move or a preemption only adds work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.twin.trace import EngineLife, EngineModel, Shape, Trace


@dataclass(frozen=True, slots=True)
class Work:
    """What rollouts ask of engines: tokens written and tokens prefilled once at least, each with the sum of depths."""

    written: int = 0
    depth: float = 0
    prefilled: int = 0
    prefill_depth: float = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.written + other.written,
            self.depth + other.depth,
            self.prefilled + other.prefilled,
            self.prefill_depth + other.prefill_depth,
        )


def work_of(group: Sequence[Shape]) -> Work:
    """The work of a group; its prompt is prefilled once."""
    written = depth = prefilled = 0
    prefill_depth = group[0].prompt ** 2 / 2
    for shape in group:
        context = shape.prompt
        for turn, tokens in enumerate(shape.written):
            written += tokens
            depth += tokens * context + tokens * (tokens - 1) // 2
            context += tokens
            if turn < len(shape.tool_tokens):
                read = shape.tool_tokens[turn]
                prefilled += read
                prefill_depth += read * (context + read / 2)
                context += read
    return Work(written, depth, prefilled + group[0].prompt, prefill_depth)


def lower_bound(trace: Trace) -> float:
    """The makespan of the trace is at least this many seconds, for every policy."""
    g, staleness, steps, learner = trace.groups_per_step, trace.max_staleness, trace.steps, trace.learner
    works = [work_of(group) for group in trace.groups]
    tokens = [sum(shape.context for shape in group) for group in trace.groups]
    paths = [max(_path(shape, trace.engines) for shape in group) for group in trace.groups]
    fleet = _Fleet(trace.engines)
    trained = [0.0] * (steps + 1)
    for v in range(1, steps + 1):
        eligible = slice((v + staleness if trace.opens_late else max(v, staleness + 1)) * g)
        at = max(trained[v - 1], fleet.time(sum(_cheapest(works[eligible], v * g, fleet), Work())))
        if v == steps or (v > staleness and not trace.opens_late):
            at = max(at, *paths[: v * g])
            for first in range(staleness + 1, v):
                opened, since = trained[first - staleness] + learner.publish_s, slice(first * g, v * g)
                at = max(at, opened + max(paths[since]), fleet.time(sum(works[since], Work()), opened))
        may_be_in = slice((v - 1) * g, v * g) if v > staleness + 1 and not trace.opens_late else eligible
        trained[v] = at + sum(sorted(tokens[may_be_in])[:g]) * learner.kept / learner.tokens_per_s
    return trained[steps]


def _cheapest(works: Sequence[Work], count: int, fleet: _Fleet) -> Iterable[Work]:
    return sorted(works, key=fleet.weighted)[:count]


def _path(shape: Shape, engines: Sequence[EngineLife]) -> float:
    """Seconds of the rollout alone on an engine as fast as the fastest in every respect."""
    models = [engine.model for engine in engines]
    work = work_of([shape])
    each = min(model.step_s for model in models) + min(model.row_s for model in models)
    tools = sum(shape.tool_s)
    prefill = min(model.prefill_s for model in models) * (work.prefilled - shape.prompt)
    attention = work.prefill_depth - shape.prompt**2 / 2
    prefill += min(model.prefill_context_s for model in models) * attention
    return work.written * each + work.depth * min(model.context_s for model in models) + prefill + tools


class _Fleet:
    """The engines, and the time that they need at least for some work, by the two choices of s."""

    def __init__(self, engines: Sequence[EngineLife]) -> None:
        self._engines = engines
        self._choices = [self._prices(share) for share in (0.0, 1.0)]

    def _prices(self, share: float) -> tuple[list[float], float, float, float, float]:
        """The weights y, and the least price of a token, of its depth, of a token's prefill, and of its depth."""
        each = [self._costs(engine.model, share) for engine in self._engines]
        typical = 5000.0
        speeds = [1 / max(1e-30, token + depth * typical) for token, depth, *_ in each]
        y = [speed / sum(speeds) for speed in speeds]
        least = [min(w * cost[i] for w, cost in zip(y, each, strict=True)) for i in range(4)]
        return y, least[0], least[1], least[2], least[3]

    def _costs(self, model: EngineModel, share: float) -> tuple[float, float, float, float]:
        token = model.row_s + model.step_s * (1 - share) / model.max_rollouts
        depth = model.context_s + model.step_s * share / model.kv_total
        return token, depth, model.prefill_s, model.prefill_context_s

    def weighted(self, work: Work) -> float:
        """The weighted price of the work, by the choice that fits it best: an order of groups from cheap to dear."""
        return max(self._price(work, choice) for choice in range(2))

    def _price(self, work: Work, choice: int) -> float:
        _, token, depth, prefill, attention = self._choices[choice]
        prefills = work.prefilled * prefill + work.prefill_depth * attention
        return work.written * token + work.depth * depth + prefills

    def time(self, work: Work, start: float = 0.0) -> float:
        """The earliest time at which work that begins at ``start`` can be done."""
        return max(self._time(self._price(work, choice), self._choices[choice][0], start) for choice in range(2))

    def _time(self, price: float, y: Sequence[float], start: float) -> float:
        """The smallest t with the weighted seconds of the engines between start and t at least ``price``."""
        lives = [(e.joins, min(e.lost, e.drains), w) for e, w in zip(self._engines, y, strict=True)]
        edges = sorted({start, *(edge for life in lives for edge in life[:2] if start < edge < math.inf)})
        done = 0.0
        for edge, after in zip(edges, [*edges[1:], math.inf], strict=True):
            rate = sum(w for joins, leaves, w in lives if joins <= edge < leaves)
            if rate > 0 and done + rate * (after - edge) >= price:
                return edge + (price - done) / rate
            done += rate * (after - edge)
        raise ValueError("no engine stays")
