"""What may explain that an engine's log-probabilities differ from the learner's. Each cause is computed and compared.

Some are told from the right weights' logits; for the others the learner's own model computes as an engine with that
cause would: one sequence a row, with transformers' own attention. What is changed for it is put back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from agent_rl.learning.mismatch import OlderWeights
from agent_rl.learning.policy_model import PolicyModel
from agent_rl.learning.sequences import TrainingSequence
from agent_rl.learning.tensor_files import TensorFiles, model_files_of

HALVINGS, STEP = 10, 1.6
"""A fitted value is searched among powers of the second, and then by halving so many times."""
TOP_K = (1, 5, 10, 20, 30, 40, 50, 64, 100, 128, 200)
TOP_P = (0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.97, 0.99)
EPSILONS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-12)
ROTARY_BASES = (1e3, 1e4, 1e5, 2.5e5, 5e5, 1e6, 5e6, 1e7)
BIASED = 4
"""Tokens that an engine may mask or favour, at most."""
Weights: TypeAlias = Mapping[str, Tensor]
Types: TypeAlias = tuple[torch.dtype | None, torch.dtype]
"""That weights are rounded to, and that all is computed in."""
CAST: Types = (None, torch.bfloat16)
"""Only products are computed in the second."""
Changes: TypeAlias = Sequence[tuple[Any, str, Any]]
"""Owner, attribute, value."""
_LAYER = re.compile(r"\.layers\.(\d+)\.")


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


def places(rollout: TrainingSequence) -> Tensor:
    """Where the sampled tokens [m] stand."""
    return rollout.prompt + rollout.mask.nonzero().squeeze(-1)


def at(rollout: TrainingSequence, logits: Tensor, how: Sampled, ordered: Tensor | None = None) -> Tensor:
    """Log-probabilities [m] of the sampled tokens by ``logits`` [m, vocabulary]; ``ordered``: see `_ordered`."""
    scaled = (logits / how.temperature).log_softmax(-1)
    found = scaled.gather(-1, rollout.tokens[places(rollout)][:, None])[:, 0]
    if how[1:] == (1.0, 0):
        return found
    kept = (_ordered(logits, how) if ordered is None else ordered)[:, : how.top_k or None]
    running = kept.cumsum(-1)
    return found - (kept * (running - kept < how.top_p * running[:, -1:])).sum(-1).log()


def _ordered(logits: Tensor, how: Sampled) -> Tensor:
    """Probabilities [m, vocabulary], the largest first; the filters are not applied."""
    return (logits / how.temperature).softmax(-1).sort(-1, descending=True)[0]


def gap(ours: Sequence[Tensor], said: Sequence[Tensor]) -> float:
    """Mean absolute difference; infinite of nothing, and of what is no number."""
    gaps = (torch.cat(list(ours)) - torch.cat(list(said))).abs()
    return float(gaps.mean().nan_to_num(math.inf)) if len(gaps) else math.inf


def fitted(left: Callable[[float], float]) -> tuple[float, float]:
    """The factor from a quarter to four that leaves least, and what it leaves."""
    best = min((left(STEP**power), STEP**power) for power in range(-3, 4))
    for halving in range(HALVINGS):
        step = STEP ** (0.5 ** (halving + 1))
        best = min(best, *((left(best[1] * each), best[1] * each) for each in (1 / step, step)))
    return best[1], best[0]


def of_logits(checked: Checked, logits: Sequence[Tensor], how: Sampled, *, sure: bool) -> Iterator[Cause]:
    """Causes that the right weights' logits tell; ``sure``: all."""
    rollouts, said = checked.rollouts, checked.said
    ours = [at(*each, how) for each in zip(rollouts, logits, strict=True)]
    ordered = [_ordered(each, how) for each in logits]

    def left(by: Sequence[Tensor | None], **values: Any) -> float:
        way = how._replace(**values)
        return gap([at(r, each, way, known) for r, each, known in zip(rollouts, logits, by, strict=True)], said)

    none = [None] * len(rollouts)
    factor, rest = fitted(lambda each: left(none, temperature=how.temperature * each))
    text = f"it samples at a temperature of about {how.temperature * factor:.3g}, or multiplies logits by"
    yield Cause(f"{text} {1 / factor:.3g}", rest)
    yield Cause("it samples from all tokens: top_p and top_k do not reach it", left(ordered, top_p=1.0, top_k=0))
    for name, values in (("top_k", TOP_K), ("top_p", TOP_P)):
        text = f"it samples from fewer tokens than the run knows of: {name} ="
        yield from (Cause(f"{text} {value}", left(ordered, **{name: value})) for value in values)
    text = "it gives log-probabilities from before temperature and filters"
    yield Cause(text, left(none, temperature=1.0, top_p=1.0, top_k=0))
    for shift, what in ((1, "before"), (-1, "after")):
        shifted = [torch.roll(own, shift)[1:-1] for own in ours]
        text = f"its log-probabilities are of the token {what}: they are shifted by one"
        yield Cause(text, gap(shifted, [each[1:-1] for each in said]))
    own, given = torch.cat(ours), torch.cat(said)
    zeros = given == 0.0
    text = f"it gives a log-probability of 0 for {float(zeros.float().mean()):.0%} of the tokens: the mask is wrong, or"
    yield Cause(f"{text} it gives none", float((own - given).abs()[~zeros].sum()) / len(zeros))
    yield Cause("its logarithms have the base 2", gap([own / math.log(2.0)], [given]))
    yield Cause("it adds log-probabilities up over a rollout", gap([each.cumsum(0) for each in ours], said))
    if sure:
        yield from _of_penalties(checked, logits, how)
        yield from _of_tokens(checked, logits, how)


def _of_penalties(checked: Checked, logits: Sequence[Tensor], how: Sampled) -> Iterator[Cause]:
    """Penalties on tokens that stand before. Only what they change is computed for each strength."""
    parts = []
    for rollout, each in zip(checked.rollouts, logits, strict=True):
        known, index = torch.unique(rollout.tokens, return_inverse=True)
        counts, chosen = nn.functional.one_hot(index, len(known)).cumsum(0), places(rollout)
        rest = (each / how.temperature).index_fill(1, known, -math.inf).logsumexp(-1, keepdim=True)
        parts.append((each[:, known], counts[chosen - 1], counts[rollout.prompt - 1], rest, index[chosen][:, None]))

    def left(change: Callable[[Tensor, Tensor, Tensor, float], Tensor], strength: float) -> float:
        found = []
        for values, before, prompt, rest, index in parts:
            every = torch.cat([change(values, before, before - prompt, strength) / how.temperature, rest], 1)
            found.append(every.log_softmax(1).gather(1, index)[:, 0])
        return gap(found, checked.said)

    for name, change in (
        ("repetition", lambda v, n, _, by: v.where(n == 0, torch.where(v > 0, v / by, v * by))),
        ("presence", lambda v, _, n, by: v - by * (n > 0)),
        ("frequency", lambda v, _, n, by: v - by * n),
    ):
        factor, least = fitted(partial(left, change))
        yield Cause(f"it has a {name} penalty of about {factor:.3g}", least)


def _of_tokens(checked: Checked, logits: Sequence[Tensor], how: Sampled) -> Iterator[Cause]:
    """Single tokens that are masked or favoured, found one after the other."""
    targets = torch.cat([rollout.tokens[places(rollout)] for rollout in checked.rollouts])
    changed, names = list(logits), list[str]()
    for _ in range(BIASED):
        ours = torch.cat([at(*each, how) for each in zip(checked.rollouts, changed, strict=True)])
        wanted = (ours - torch.cat(checked.said)).expm1().clamp(-1.0, 10.0)  # a bias changes the sum by this share
        # A token's own log-probability changes by more: where it was sampled, that tells nothing of its share.
        spread = torch.cat([(each / how.temperature).softmax(-1) for each in changed]).scatter(1, targets[:, None], 0.0)
        product, square = wanted @ spread, (spread * spread).sum(0).clamp(min=1e-30)
        own = torch.zeros(len(square)).index_add(0, targets, wanted * wanted)
        token = int((own + product * product / square).argmax())
        share = float(product[token] / square[token])
        bias = math.log1p(share) * how.temperature if share > -0.98 else -math.inf
        names.append(f"{token} ({'never given' if bias == -math.inf else f'{bias:+.2g}'})")
        changed = [each + torch.zeros(len(square)).index_fill(0, torch.tensor(token), bias) for each in changed]
        found = [at(*each, how) for each in zip(checked.rollouts, changed, strict=True)]
        yield Cause(f"it masks single tokens or adds to their logits: {', '.join(names)}", gap(found, checked.said))


@contextmanager
def with_changes(changes: Changes) -> Iterator[None]:
    """With other values of attributes."""
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for each in changes:
            setattr(*each)
        yield
    finally:
        for each in kept:
            setattr(*each)


class Simulator:
    """The learner's model in the place of an engine's."""

    def __init__(self, model: PolicyModel, older: OlderWeights, path: Path) -> None:
        """``path``: the model that the run began with."""
        self.model, self._older, self._path = model, older, path
        self.types: Types | None = None
        """None: as the learner computes."""

    def logits(self, r: TrainingSequence, skip: int = 0, **more: Any) -> Tensor:
        """[m, tokens that are sampled] float32 before each sampled token; ``skip``: so many are in a cache already."""
        head = self.model.module.get_output_embeddings()
        with self._plainly():
            states = self._states(r.tokens[skip:], **more)
            found: Tensor = head(states.last_hidden_state[0, (places(r) - 1 - skip).to(self.model.device)])
        return found[:, : self.model.tokens].float().cpu() * self.model.logit_scale

    def _states(self, tokens: Tensor, **more: Any) -> Any:
        return self.model.module.base_model(input_ids=tokens.unsqueeze(0).to(self.model.device), **more)

    def _past(self, r: TrainingSequence) -> Any:
        """Keys and values of all prompt tokens but the last."""
        with self._plainly():
            return self._states(r.tokens[: r.prompt - 1], use_cache=True).past_key_values

    def ours(self, checked: Checked, how: Sampled, changes: Changes = (), types: Types | None = None) -> list[Tensor]:
        """Log-probabilities of the sampled tokens, of each rollout."""
        with with_changes([*changes, *([(self, "types", types)] if types else [])]):
            return [at(r, self.logits(r), how) for r in checked.rollouts]

    @contextmanager
    def _plainly(self) -> Iterator[None]:
        """With the attention of transformers in place of that of packed rows, without dropout, in the types."""
        model = self.model
        config, cast, training = model.module.config.get_text_config(), model.cast, model.module.training
        with ExitStack() as stack:
            stack.enter_context(with_changes([(config, "_attn_implementation", "sdpa")]))  # read at each call
            stack.callback(model.module.train, training)
            model.module.eval()
            if self.types is not None:
                cast = None
                for each in self._hooks(*self.types):
                    stack.callback(each.remove)
            stack.enter_context(torch.autocast(model.device.type, dtype=cast) if cast else nullcontext())
            yield

    def _hooks(self, rounded: torch.dtype | None, dtype: torch.dtype) -> Iterator[Any]:
        """Each part has its weights in other types while it computes, so that memory holds few of them."""
        kept: dict[nn.Parameter, Tensor] = {}
        cast = (rounded, dtype) == CAST

        def before(module: nn.Module, inputs: Any) -> Any:
            for each in module.parameters(recurse=False):
                kept[each] = each.data
                each.data = each.data.to(rounded or each.dtype).to(dtype)
            return tuple(i.to(dtype) if isinstance(i, Tensor) and i.is_floating_point() else i for i in inputs)

        def after(module: nn.Module, _: Any, output: Tensor) -> Tensor:
            for each in module.parameters(recurse=False):
                each.data = kept.pop(each)
            return output.float() if cast else output

        for module in self.model.module.modules():
            if (isinstance(module, nn.Linear) or not cast) and next(module.parameters(recurse=False), None) is not None:
                yield module.register_forward_pre_hook(before)
                yield module.register_forward_hook(after)

    def causes(self, checked: Checked, how: Sampled, *, sure: bool, parts: bool) -> Iterator[Cause]:
        """Those that change what a model computes; ``sure``: more of them, ``parts``: also with single tensors old."""
        olds = list(self._olds(checked, sure=sure))
        for what, old in olds:
            yield from self._of_old(checked, how, what, old)
        for text, changes in self._changes(sure=sure):
            yield Cause(text, gap(self.ours(checked, how, changes), checked.said))
        for what, old in olds[:: max(1, len(olds) - 1)] if parts else ():  # the newest and the first
            yield from self._of_parts(checked, how, what, old)

    def _olds(self, checked: Checked, *, sure: bool) -> Iterator[tuple[str, Weights]]:
        """Weights that an engine may have kept, with their names; ``sure``: also those in the model's files."""
        for version in range(checked.version - 1, checked.version - 4, -1):
            if (weights := self._older.of(version)) is not None:
                yield f"version {version} in place of {checked.version}", weights
        names = [name for name, _ in self.model.named_parameters()]
        if sure and not self.model.adapted:
            with TensorFiles(model_files_of(self._path)) as files:
                if set(names) <= files.names():
                    yield "the weights that the run began with", {name: files.whole(name) for name in names}

    def _with(self, checked: Checked, how: Sampled, text: str, weights: Weights) -> Cause:
        with self.model.with_weights(weights):
            return Cause(text, gap(self.ours(checked, how), checked.said))

    def _of_old(self, checked: Checked, how: Sampled, what: str, old: Weights) -> Iterator[Cause]:
        numbers = {name: int(found[1]) for name in old if (found := _LAYER.search(name))}
        middle = (max(numbers.values(), default=0) + 1) / 2
        first = {name for name in old if numbers.get(name, 0 if "embed" in name else math.inf) < middle}
        part = f"half of its layers has {what}: a file or a transfer was loaded in part"
        for text, chosen in (
            (f"it still computes with {what}: new weights are announced and not loaded", old.keys()),
            (f"the second {part}", old.keys() - first),
            (f"the first {part}", first),
            (f"embeddings or output layer are those of {what}", old.keys() - numbers),
        ):
            yield self._with(checked, how, text, {name: old[name] for name in chosen})
        yield self._of_cache(checked, how, what, old)

    def _of_cache(self, checked: Checked, how: Sampled, what: str, old: Weights, layer: int = -1) -> Cause:
        """Old weights have computed keys and values of prompts, in one ``layer`` or in all."""
        if min(r.prompt for r in checked.rollouts) <= 1:  # the last token of the prompt is computed anew
            return Cause("", math.inf)
        found = []
        for r in checked.rollouts:
            with self.model.with_weights(old):
                past = self._past(r)
            if layer >= 0:
                stale, past = past, self._past(r)
                past.layers[layer] = stale.layers[layer]
            found.append(at(r, self.logits(r, r.prompt - 1, past_key_values=past, use_cache=True), how))
        where = "" if layer < 0 else f" in layer {layer}"
        text = f"keys and values of prompts{where} are those of {what}: its prefix cache outlives an update (as it is "
        return Cause(f'{text}meant to with kv_on_update = "keep")', gap(found, checked.said))

    def _of_parts(self, checked: Checked, how: Sampled, what: str, old: Weights) -> Iterator[Cause]:
        """Single kinds, layers and tensors that are old."""
        layers = sorted({int(found[1]) for name in old if (found := _LAYER.search(name))})
        kinds = sorted({name.split(".")[-2] for name in old if _LAYER.search(name)})
        for part in ["norm.", "self_attn.", "mlp.", *kinds, *(f".layers.{n}." for n in layers), *old]:
            if weights := {name: each for name, each in old.items() if part in name}:
                text = f"{part.strip('.')} is that of {what}: a file or a transfer was loaded in part"
                yield self._with(checked, how, text, weights)
        yield from (self._of_cache(checked, how, what, old, layer) for layer in layers)

    def _changes(self, *, sure: bool) -> Iterator[tuple[str, Changes]]:
        own = dict(self.model.module.named_parameters())
        square = [p for p in own.values() if p.ndim == 2 and len(p) == p.shape[1]]
        yield "square weights are loaded transposed", [(p, "data", p.data.T.contiguous()) for p in square]
        if adapters := [p for name, p in own.items() if ".lora_B." in name]:
            none: Changes = [(p, "data", torch.zeros_like(p)) for p in adapters]
            yield "it computes without the adapters: they were not merged", none
        if not sure:
            return
        modules = list(self.model.module.modules())
        norms = [(m, name) for m in modules for name in ("variance_epsilon", "eps") if hasattr(m, name)]
        for value in EPSILONS:
            yield f"its norms have another epsilon: {value:g}", [(m, name, value) for m, name in norms]
        rotary = [m for m in modules if isinstance(getattr(m, "inv_freq", None), Tensor)]
        for base in ROTARY_BASES:
            powers = [(m, math.log(base) / -(float(m.inv_freq[1].log()) * len(m.inv_freq))) for m in rotary]
            text = f"its rotary embedding has another base: {base:g}"
            yield text, [(m, "inv_freq", m.inv_freq**power) for m, power in powers]
        linear = [p for name, p in own.items() if name.endswith("proj.weight")]
        for kind, most in (("int8", 127.0), ("int4", 7.0), ("float8", 0.0)):
            yield f"its weights are rounded to {kind}", [(p, "data", _rounded(p.data, most)) for p in linear]


def _rounded(each: Tensor, most: float) -> Tensor:
    """By whole multiples of each row, ``most`` at the largest; 0: to float8."""
    if not most:
        return each.to(torch.float8_e4m3fn).to(each.dtype)
    unit = each.abs().amax(-1, keepdim=True).clamp(min=1e-12) / most
    return (each / unit).round() * unit
