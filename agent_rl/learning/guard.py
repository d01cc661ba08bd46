"""The numerics guard: whether log-probabilities come from the weights that the engine names, and if not, from what.

Where the mean difference is above what types explain (`Guard._limit`), the cause that explains it best is named
(`guard_causes`), or where the difference is.

The tokens are those that engines have sampled for training, so engines compute nothing twice. The limit never comes
from what an engine says, so that a fault which is there from the beginning does not raise it. One rank only.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from agent_rl.learning.guard_causes import CAST, Cause, Checked, Sampled, Simulator, Types, at, gap, of_logits, places
from agent_rl.learning.mismatch import OlderWeights
from agent_rl.learning.policy_model import PolicyModel
from agent_rl.learning.sequences import TrainingSequence

LEAST, MEANT, OTHER_WEIGHTS = 1e-5, 2e-3, 1.5
"""Nats a token, in the mean: below the first nothing is wrong. What is meant to be so is said above the second. Above
the third an unexplained difference is that of other weights."""
MARGIN, FINER = 4.0, 2048.0
"""Types explain so many times what bfloat16 changes, where it is in play. In float32 they explain that divided by the
second: float32 is 65,536 times finer, and the margin is 32, since long sums round often."""
BFLOAT, EXACT = (torch.bfloat16, torch.bfloat16), (None, torch.float32)
TYPES: tuple[Types, ...] = (BFLOAT, (torch.bfloat16, torch.float32), (torch.float16, torch.float32), CAST)
SHARED, DEVIATIONS = 0.2, 2.0
"""A type may be the engine's where the cosine of the difference and of what the type changes is above the first, and
above so many deviations of chance: all kernels share the rounding of weights, and faults share it with no type."""
FACTOR, SURE_FACTOR, ALIKE, CLOSE = 4.0, 3.0, 1.5, 0.7
"""What a cause leaves of a difference is smaller by this factor; the second is for sure ones of a pair that rounds
much. A second cause is named that leaves at most so many times as much; the closest, if it leaves less than a share."""
UNEXPLAINED = "?"
"""Found by a check in place of a cause. Parts of weights, which take most passes, are then tried less often."""
TOKENS, FIRST, EVERY, SEARCH_EVERY = 256, 2, 4, 4
"""Tokens of a check; checks after each of the first steps, then every few steps; of those, which look for causes of
differences that may be of types."""


class Limit(NamedTuple):
    """What types explain, in nats a token: ``most``. ``ours``: log-probabilities in the types closest to the engine's.

    ``rough``: what bfloat16 could explain by its size, where the pair seems to compute in float32; else 0.
    """

    types: Types | None
    ours: list[Tensor]
    most: float
    rough: float = 0.0


class Guard:
    """Checks rollouts before they are trained on."""

    def __init__(self, model: PolicyModel, older: OlderWeights, path: Path) -> None:
        """``path``: the model that the run began with."""
        self._model, self._older = model, older
        self._simulator = Simulator(model, older, path)
        self._pure = model.dtype == torch.float32 and model.cast is None
        """Whether the learner computes all in float32."""
        self._steps = self._suspected = 0
        self._found = ""
        """The cause that the last check found, without numbers of versions."""

    @torch.no_grad()
    def check(self, rollouts: Sequence[TrainingSequence], how: Sampled) -> str:
        """What is wrong, in words; empty when nothing is, or when no check is due. Weights are as before."""
        self._steps += 1
        due = self._steps <= FIRST or self._steps % EVERY == 0
        if not due or self._model.ranks.size > 1 or (checked := self._choose(rollouts)) is None:
            return ""
        with self._model.with_weights(checked.weights):
            return self._judged(checked, how)

    def _judged(self, checked: Checked, how: Sampled) -> str:
        logits = [self._simulator.logits(rollout) for rollout in checked.rollouts]
        ours = [at(*each, how) for each in zip(checked.rollouts, logits, strict=True)]
        if self._steps <= FIRST and (text := self._own_fault(checked, logits, how)):
            return text
        wrong, where = _wrong_generators(checked, ours), ""
        if wrong and len(wrong) < len({rollout.generator for rollout in checked.rollouts}):
            where = f" on {', '.join(sorted(wrong))} alone"
            left = [at for at, rollout in enumerate(checked.rollouts) if rollout.generator in wrong]
            checked, ours = checked._replace(rollouts=[checked.rollouts[at] for at in left]), [ours[at] for at in left]
        if gap(ours, checked.said) < LEAST:
            return ""
        limit = self._limit(checked, how, ours)
        differ = gap(limit.ours, checked.said)
        sure = differ > limit.most
        if not sure and (limit.rough or differ < LEAST):
            return ""
        self._suspected += 1
        before, self._found = self._found, ""
        if not sure and not before and self._suspected > FIRST and self._suspected % SEARCH_EVERY:
            return ""
        self._simulator.types = limit.types
        parts = sure and (before != UNEXPLAINED or self._suspected % SEARCH_EVERY == 0)
        text, named = self._cause(checked, how, limit, sure=sure, parts=parts)
        self._simulator.types = None
        self._found = re.sub(r"\d+", "", text) if named or not sure else UNEXPLAINED
        surely = sure and (named or differ > limit.rough)
        if not text or (not surely and self._found != before):
            return ""  # a cause may fit a few tokens by chance, and a type may not seem alike; the next check tells
        return f"engine and learner differ by {differ:.2g} nats a token{where}: {text}"

    def _cause(self, checked: Checked, how: Sampled, limit: Limit, *, sure: bool, parts: bool) -> tuple[str, bool]:
        """What explains the difference, and whether it is a cause; empty when types may, or it is meant to be so."""
        differ = gap(limit.ours, checked.said)
        logits = [self._simulator.logits(rollout) for rollout in checked.rollouts]
        found: list[Cause] = []
        of_model = self._simulator.causes(checked, how, sure=sure, parts=parts)
        for cause in chain(of_logits(checked, logits, how, sure=sure), of_model):
            found.append(cause)
            if cause.left < LEAST and cause.left * FACTOR < differ:
                break
        best, *others = sorted(found, key=lambda cause: cause.left)[:2]
        if best.left * (SURE_FACTOR if sure and differ > limit.rough else FACTOR) < differ:
            alike = [each.text for each in others if each.left < ALIKE * best.left]
            meant = differ < MEANT and "as it is meant to" in best.text
            return ("" if meant else "; or ".join([best.text, *alike])), True
        if not sure:
            return "", False
        if text := _pattern(checked, limit):
            return text, True
        if differ > OTHER_WEIGHTS:
            text = "it has other weights (damaged, of another model, for another tokenizer), or saw another prompt"
            return text, False
        text, share = "no known cause explains it: compare compute types, kernels and prompts", best.left / differ
        return (text if share > CLOSE else f"{text}; the closest one leaves {share:.0%} of it: {best.text}"), False

    def _limit(self, checked: Checked, how: Sampled, ours: list[Tensor]) -> Limit:
        """What types explain of a difference on these tokens, measured with the learner's weights alone."""
        said, pure = checked.said, self._pure
        exact = ours if pure else self._simulator.ours(checked, how, types=EXACT)
        typed = {types: self._simulator.ours(checked, how, types=types) for types in TYPES}
        half = gap(typed[BFLOAT], exact)
        fine = max(LEAST, half / FINER)
        if gap(exact, said) < fine:
            return Limit(None if pure else EXACT, exact, fine, MARGIN * half)
        wrong = torch.cat(said) - torch.cat(exact)
        limits = [] if pure else [Limit(None, ours, MARGIN * max(half, gap(ours, exact)))]
        for types, found in typed.items():
            spread = gap(found, exact)
            alike = _cosine(wrong, torch.cat(found) - torch.cat(exact)) > max(SHARED, DEVIATIONS / len(wrong) ** 0.5)
            if not pure or (alike and spread / MARGIN < gap(exact, said) > gap(found, said)):
                limits.append(Limit(types, found, MARGIN * (spread if pure else half)))
        return min(limits, key=lambda limit: gap(limit.ours, said), default=Limit(None, ours, fine, MARGIN * half))

    def _own_fault(self, checked: Checked, logits: Sequence[Tensor], how: Sampled) -> str:
        """What is wrong with the packed rows that the learner trains with, beside one sequence a row."""
        way = Sampled(how.temperature)
        plain = [at(*each, way) for each in zip(checked.rollouts, logits, strict=True)]
        packed = self._packed(checked, how)
        if (differ := gap(packed, plain)) < LEAST:
            return ""
        half = gap(*(self._simulator.ours(checked, way, types=types) for types in (BFLOAT, EXACT)))
        if differ < (limit := max(LEAST, half / FINER if self._pure else MARGIN * half)):
            return ""
        cause = "its attention, positions or borders of rows are wrong"
        if gap(self._packed(checked, how, seed=1), packed) > limit:
            cause = "it computes at random: set the dropouts in its config.json to 0"
        return f"the learner is at fault: its packed rows differ from single ones by {differ:.2g} nats a token; {cause}"

    def _packed(self, checked: Checked, how: Sampled, seed: int = 0) -> list[Tensor]:
        """As the trainer computes them; random numbers of the run are not used up."""
        module, device, training = self._model.module, self._model.device, self._model.module.training
        tokens, wanted = zip(*(next(iter(r.paths(r.mask))) for r in checked.rollouts), strict=True)
        module.train()
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            found, _ = self._model.logprobs(tokens, wanted, temperature=how.temperature, with_entropy=False)
        module.train(training)
        return list(torch.split(found.cpu(), [len(each) for each in checked.said]))

    def _choose(self, rollouts: Sequence[TrainingSequence]) -> Checked | None:
        """The beginnings of some rollouts of the newest version whose weights are here, of each generator some."""
        by_version: dict[int, list[TrainingSequence]] = {}
        for part in filter(None, map(_beginning, rollouts)):
            by_version.setdefault(int(part.versions[part.mask][0]), []).append(part)
        for version in sorted(by_version, reverse=True):
            weights = {} if version == self._older.version else self._older.of(version)
            if weights is not None:
                return Checked(_spread(by_version[version]), version, weights)
        return None


def _beginning(rollout: TrainingSequence) -> TrainingSequence | None:
    """A rollout up to the first token that another version has sampled, at most `TOKENS` tokens after the prompt.

    Its branches are left out.
    """
    first = len(rollout.tokens) - rollout.prompt
    sampled = rollout.mask[:first].nonzero().squeeze(-1)
    if not len(sampled) or sampled[0] >= TOKENS:
        return None
    others = (rollout.mask & (rollout.versions != rollout.versions[sampled[0]])).nonzero().squeeze(-1)
    end = min([TOKENS, first, *others[:1].tolist()])
    return replace(
        rollout,
        tokens=rollout.tokens[: rollout.prompt + end],
        mask=rollout.mask[:end],
        behaviour=rollout.behaviour[:end],
        versions=rollout.versions[:end],
        branches=(),
    )


def _spread(rollouts: Sequence[TrainingSequence]) -> list[TrainingSequence]:
    """Rollouts of at most some `TOKENS` tokens, at least one, the generators in turn."""
    turns: dict[str, Iterator[int]] = defaultdict(count)
    chosen: list[TrainingSequence] = []
    tokens = 0
    for rollout in sorted(rollouts, key=lambda each: next(turns[each.generator])):
        tokens += len(rollout.tokens)
        if chosen and tokens > TOKENS:
            break
        chosen.append(rollout)
    return chosen


def _cosine(one: Tensor, other: Tensor) -> float:
    """Of the roots, so that a few tokens do not decide."""
    one, other = (each.sign() * each.abs().sqrt() for each in (one, other))
    return float(one @ other / (one.norm() * other.norm()).clamp(min=1e-30))


def _pattern(checked: Checked, limit: Limit) -> str:
    """Where the unexplained difference is, or that the same token after the same text has several log-probabilities."""
    same: dict[tuple[str, str], list[float]] = defaultdict(list)
    first, later, right = [torch.zeros(0)], [torch.zeros(0)], 0
    for rollout, own, said in zip(checked.rollouts, limit.ours, checked.said, strict=True):
        for place, value in zip(places(rollout).tolist(), said.tolist(), strict=True):
            same[rollout.generator, str(rollout.tokens[: place + 1].tolist())].append(value)
        wrong = (own - said).abs()
        right += float(wrong.mean()) < limit.most
        turn = int(rollout.mask.long().argmin()) or len(wrong)  # tokens before the first of a tool
        first.append(wrong[:turn])
        later.append(wrong[turn:])
    rows = "the rows of a batch see each other (borders of packed rows)"
    if (spread := max(max(values) - min(values) for values in same.values())) > max(LEAST, 2 * limit.most):
        text = f"the same token after the same text has log-probabilities that differ by {spread:.2g}"
        return f"{text}: it computes at random (dropout), or {rows}"
    if right:
        return f"{right} of {len(checked.rollouts)} rollouts are right: {rows}, a cache is wrong, or ids are exchanged"
    if len(torch.cat(later)) and float(torch.cat(first).mean()) < limit.most:
        return "it is right until the first text of a tool: it does not see the text of tools, or its cache is wrong"
    return ""


def _wrong_generators(checked: Checked, ours: Sequence[Tensor]) -> set[str]:
    """The generators whose log-probabilities differ by more than rounding."""
    gaps: dict[str, list[float]] = defaultdict(list)
    for rollout, own, said in zip(checked.rollouts, ours, checked.said, strict=True):
        gaps[rollout.generator].append(gap([own], [said]))
    least = min(sum(each) / len(each) for each in gaps.values())
    return {name for name, each in gaps.items() if sum(each) / len(each) >= max(LEAST, FACTOR * least)}
