"""The numerics guard: whether log-probabilities come from the weights that the engine names, and if not, from what.

::

    rollouts of one policy version --> the learner's logits with that version's weights --> mean |difference|
                                       with older, half-loaded, transposed weights, an old cache,    |
                                       another temperature or filter ...  <-- which explains it? <---'

The tokens are those that engines have sampled for training, so engines compute nothing twice. A difference that types
explain stays below `LEAST`, in bfloat16 below `SURE`, where no other cause explains it better in two checks. One
rank only.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from agent_rl.learning.mismatch import OlderWeights
from agent_rl.learning.policy_model import PolicyModel
from agent_rl.learning.sequences import TrainingSequence
from agent_rl.learning.tensor_files import TensorFiles, model_files_of

LEAST, SURE = 2e-3, 0.1
"""Nats a token, in the mean: below the first nothing is wrong; above the second something is, named or not."""
FACTOR, SURE_FACTOR = 4.0, 2.0
"""A cause must explain a difference so well: what it leaves is smaller by this factor; the second is for large ones."""
OTHER_WEIGHTS = 1.5
"""Nats a token from which an unexplained difference is that of other weights."""
TOKENS, FIRST, EVERY, SEARCH_EVERY = 256, 2, 4, 4
"""Tokens of a check; checks after each of the first steps, then every few steps; of those, which look for causes of
differences that may be of types."""
TEMPERATURES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.4, 1.6, 2.0)
TOP_K, TOP_P = (5, 10, 20, 50, 100), (0.5, 0.8, 0.9, 0.95)

Weights: TypeAlias = Mapping[str, Tensor]


class Sampled(NamedTuple):
    """How tokens are sampled. ``top_k`` 0: from all."""

    temperature: float
    top_p: float = 1.0
    top_k: int = 0


class Cause(NamedTuple):
    """What explains a difference, and what it leaves of it, in nats a token."""

    text: str
    left: float


class Checked(NamedTuple):
    """Beginnings of rollouts, as far as one version has sampled them."""

    rollouts: Sequence[TrainingSequence]
    version: int
    weights: Weights
    """Of that version; empty for the present ones."""

    @property
    def said(self) -> list[Tensor]:
        """By the engine, of each rollout's sampled tokens."""
        return [rollout.behaviour[rollout.mask] for rollout in self.rollouts]


class Guard:
    """Checks rollouts before they are trained on."""

    def __init__(self, model: PolicyModel, older: OlderWeights, path: Path) -> None:
        """``path``: the model that the run began with."""
        self._model, self._older, self._path = model, older, path
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
            logits = [self._logits(rollout) for rollout in checked.rollouts]
        ours = [_at(rollout, each, how) for rollout, each in zip(checked.rollouts, logits, strict=True)]
        wrong = _wrong_generators(checked, ours)
        where = ""
        if wrong and len(wrong) < len({rollout.generator for rollout in checked.rollouts}):
            where = f" on {', '.join(sorted(wrong))} alone"
            left = [at for at, rollout in enumerate(checked.rollouts) if rollout.generator in wrong]
            checked = checked._replace(rollouts=[checked.rollouts[at] for at in left])
            logits, ours = [logits[at] for at in left], [ours[at] for at in left]
        gap = _gap(ours, checked.said)
        if gap < LEAST:
            return ""
        self._suspected += 1
        before, self._found = self._found, ""
        if gap < SURE and not before and self._suspected > FIRST and self._suspected % SEARCH_EVERY:
            return ""
        causes = [*_of_logits(checked, logits, ours, how), *self._of_weights(checked, how, sure=gap > SURE)]
        best = min(causes, key=lambda cause: cause.left)
        if best.left * (SURE_FACTOR if gap > SURE else FACTOR) < gap:
            text = best.text
            self._found = re.sub(r"\d+", "", text)
            if gap < SURE and self._found != before:
                return ""  # one of so many causes fits a few tokens by chance; the next check tells
        elif gap < SURE:
            return ""
        elif gap > OTHER_WEIGHTS:
            text = "it has other weights (damaged, of another model, for another tokenizer), or saw another prompt"
        else:
            text = "no known cause explains it: compare compute types and kernels, and the prompt that it saw"
        return f"engine and learner differ by {gap:.2g} nats a token{where}: {text}"

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

    # The learner's model

    def _logits(self, rollout: TrainingSequence, past: Any = None, skip: int = 0) -> Tensor:
        """[m, vocabulary] float32 before each sampled token, with transformers' own attention, one sequence a row.

        ``past``: keys and values of the first ``skip`` tokens.
        """
        head = self._model.module.get_output_embeddings()
        with self._plainly():
            states = self._states(rollout.tokens[skip:], past_key_values=past, use_cache=past is not None)
            logits: Tensor = head(states.last_hidden_state[0, _places(rollout) - 1 - skip])
        return logits.float().cpu()

    def _states(self, tokens: Tensor, **more: Any) -> Any:
        return self._model.module.base_model(input_ids=tokens.unsqueeze(0).to(self._model.device), **more)

    @contextmanager
    def _plainly(self) -> Iterator[None]:
        """With the attention of transformers in place of that of packed rows, and products in their type."""
        model = self._model
        config, cast = model.module.config.get_text_config(), model.cast
        kept, config._attn_implementation = config._attn_implementation, "sdpa"  # noqa: SLF001 - read at each call
        try:
            with torch.autocast(model.device.type, dtype=cast) if cast else nullcontext():
                yield
        finally:
            config._attn_implementation = kept  # noqa: SLF001 - as above

    # Causes

    def _of_weights(self, checked: Checked, how: Sampled, *, sure: bool) -> Iterator[Cause]:
        """Older weights, whole or in part, and weights that were loaded wrongly."""
        present = {name: p.data for name, p in self._model.named_parameters()} | dict(checked.weights)

        def left(weights: Weights) -> float:
            with self._model.with_weights(weights):
                found = [_at(r, self._logits(r), how) for r in checked.rollouts]
            return _gap(found, checked.said)

        for what, old in self._olds(checked, sure=sure):
            yield Cause(f"it still computes with {what}: new weights are announced and not loaded", left(old))
            first, second = _halves(old)
            for part, kept in (("second", first), ("first", second)):
                text = f"the {part} half of its layers has {what}: a file or a transfer was loaded in part"
                yield Cause(text, left({**present, **{n: t for n, t in old.items() if n not in kept}}))
            outer = {name: tensor for name, tensor in old.items() if not _LAYER.search(name)}
            yield Cause(f"embeddings or output layer are those of {what}", left({**present, **outer}))
            yield Cause(
                f"keys and values of prompts are those of {what}: its prefix cache outlives an update (as it is meant "
                'to with kv_on_update = "keep")',
                _gap([self._with_old_cache(r, old, present, how) for r in checked.rollouts], checked.said),
            )
        turned = {n: t.T.contiguous() if t.ndim == 2 and t.shape[0] == t.shape[1] else t for n, t in present.items()}
        yield Cause("square weights are loaded transposed", left(turned))
        if self._model.adapted:
            none = {name: torch.zeros_like(t) if ".lora_B." in name else t for name, t in present.items()}
            yield Cause("it computes without the adapters: they were not merged", left(none))

    def _olds(self, checked: Checked, *, sure: bool) -> Iterator[tuple[str, Weights]]:
        """Weights that an engine may have kept, with their names; ``sure``: also those in the model's files."""
        for version in range(checked.version - 1, checked.version - 4, -1):
            if (weights := self._older.of(version)) is not None:
                yield f"version {version} in place of {checked.version}", weights
        if self._model.adapted or not sure:
            return
        names = [name for name, _ in self._model.named_parameters()]
        with TensorFiles(model_files_of(self._path)) as files:
            if set(names) <= files.names():
                yield "the weights that the run began with", {name: files.whole(name) for name in names}

    def _with_old_cache(self, rollout: TrainingSequence, old: Weights, present: Weights, how: Sampled) -> Tensor:
        """Log-probabilities where old weights have computed keys and values of all prompt tokens but the last."""
        skip = rollout.prompt - 1
        if skip < 1:
            return _at(rollout, self._logits(rollout), how)
        with self._model.with_weights(old), self._plainly():
            past = self._states(rollout.tokens[:skip], use_cache=True).past_key_values
        with self._model.with_weights(present):
            return _at(rollout, self._logits(rollout, past, skip), how)


_LAYER = re.compile(r"\.layers\.(\d+)\.")


def _halves(weights: Weights) -> tuple[set[str], set[str]]:
    """Names of the first and the second half of the layers, with what comes before and after them."""
    numbers = {name: int(found[1]) for name in weights if (found := _LAYER.search(name))}
    middle = (max(numbers.values(), default=0) + 1) / 2
    first = {name for name in weights if numbers.get(name, 0 if "embed" in name else math.inf) < middle}
    return first, set(weights) - first


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
    seen: Counter[str] = Counter()
    turns = []
    for rollout in rollouts:
        turns.append((seen[rollout.generator], rollout))
        seen[rollout.generator] += 1
    chosen: list[TrainingSequence] = []
    tokens = 0
    for _, rollout in sorted(turns, key=lambda turn: turn[0]):
        if chosen and tokens + len(rollout.tokens) > TOKENS:
            break
        chosen.append(rollout)
        tokens += len(rollout.tokens)
    return chosen


def _places(rollout: TrainingSequence) -> Tensor:
    """Where the sampled tokens [m] stand."""
    return rollout.prompt + rollout.mask.nonzero().squeeze(-1)


def _at(rollout: TrainingSequence, logits: Tensor, how: Sampled, ordered: Tensor | None = None) -> Tensor:
    """Log-probabilities [m] of the sampled tokens by ``logits`` [m, vocabulary]; ``ordered``: see `_ordered`."""
    scaled = (logits / how.temperature).log_softmax(-1)
    found = scaled.gather(-1, rollout.tokens[_places(rollout)][:, None])[:, 0]
    if how.top_p >= 1.0 and not how.top_k:
        return found
    kept = (_ordered(logits, how) if ordered is None else ordered)[:, : how.top_k or None]
    running = kept.cumsum(-1)
    return found - (kept * (running - kept < how.top_p * running[:, -1:])).sum(-1).log()


def _ordered(logits: Tensor, how: Sampled) -> Tensor:
    """Probabilities [m, vocabulary], the largest first; the filters are not applied."""
    return (logits / how.temperature).softmax(-1).sort(-1, descending=True)[0]


def _gap(ours: Sequence[Tensor], said: Sequence[Tensor]) -> float:
    """Mean absolute difference; infinite of nothing."""
    gaps = (torch.cat(list(ours)) - torch.cat(list(said))).abs()
    return float(gaps.mean()) if len(gaps) else math.inf


def _of_logits(checked: Checked, logits: Sequence[Tensor], ours: Sequence[Tensor], how: Sampled) -> Iterator[Cause]:
    """Causes for which the right weights' logits say what the engine would have said."""
    said, pairs = checked.said, list(zip(checked.rollouts, logits, strict=True))
    ways = {how._replace(temperature=how.temperature * factor): "at a temperature of about" for factor in TEMPERATURES}
    ways |= {how._replace(top_k=count): "from fewer tokens than the run knows of: top_k =" for count in TOP_K}
    ways |= {how._replace(top_p=share): "from fewer tokens than the run knows of: top_p =" for share in TOP_P}
    ways |= {how._replace(top_p=1.0, top_k=0): "from all tokens: top_p and top_k do not reach it"}
    ordered = [_ordered(each, how) for each in logits]
    for way, what in ways.items():
        known = ordered if way.temperature == how.temperature else [None] * len(pairs)
        value = next((f" {new:.3g}" for new, old in zip(way, how, strict=True) if new != old), "")
        text = f"it samples {what}{'' if what.endswith('it') else value}"
        yield Cause(text, _gap([_at(r, each, way, by) for (r, each), by in zip(pairs, known, strict=True)], said))
    for shift, what in ((1, "before"), (-1, "after")):
        shifted = [torch.roll(own, shift)[1:-1] for own in ours]
        text = f"its log-probabilities are of the token {what}: they are shifted by one"
        yield Cause(text, _gap(shifted, [each[1:-1] for each in said]))
    zeros = torch.cat([each == 0.0 for each in said])
    rest = (torch.cat(list(ours)) - torch.cat(said)).abs()[~zeros]
    yield Cause(
        f"it gives a log-probability of 0 for {float(zeros.float().mean()):.0%} of the tokens: the mask is wrong, or "
        "it gives none",
        float(rest.sum()) / len(zeros),
    )


def _wrong_generators(checked: Checked, ours: Sequence[Tensor]) -> set[str]:
    """The generators whose log-probabilities differ by more than rounding."""
    gaps: dict[str, list[float]] = {}
    for rollout, own, said in zip(checked.rollouts, ours, checked.said, strict=True):
        gaps.setdefault(rollout.generator, []).append(_gap([own], [said]))
    least = min(sum(each) / len(each) for each in gaps.values())
    return {name for name, each in gaps.items() if sum(each) / len(each) >= max(LEAST, FACTOR * least)}
