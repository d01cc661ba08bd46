"""A learner with its guard beside an engine that has its weights, and the faults that are injected on purpose.

`FAULTS` are those that the guard was first made for. `FRESH` are others: what readers and tired engineers put into an
engine or a learner. The guard knows no cause for some of them; it can find these, and its sentence cannot be right.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from agent_rl.config.topology import InitialiseModel, Lora
from agent_rl.learning.guard import Guard
from agent_rl.learning.guard_causes import Sampled
from agent_rl.learning.mismatch import OlderWeights
from agent_rl.learning.policy_model import ModelOptions, PolicyModel
from agent_rl.learning.rates import Type
from agent_rl.learning.sequences import TrainingSequence
from agent_rl.learning.tiny import initialise_model

SIZES = InitialiseModel(
    hidden_size=64, layers=4, heads=4, kv_heads=2, head_dim=16, mlp_size=96, max_length=256, byte_fallback=True
)
PROMPT, SAMPLED, TOLD, GROUP = 12, 20, 4, 3
"""Tokens of a rollout: its prompt; those after it, and how many of these a tool wrote. Rollouts of a prompt."""
MOVED, MOVED_IN_HEALTH = 0.03, 0.01
"""The standard deviation of what an update adds to each weight; many updates add less, so that the model stays one."""
Logits: TypeAlias = Callable[[Tensor], Tensor]
"""Of the next token, [rows, vocabulary], after tokens [rows, n]."""


def write_model(directory: Path) -> Path:
    """A model whose distributions are as peaked as a trained one's."""
    initialise_model(SIZES, directory, 0)
    model = AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=False)
    torch.manual_seed(0)
    for tensor in model.parameters():
        if tensor.ndim == 2:
            tensor.data = torch.randn_like(tensor) * 2.5 / tensor.shape[1] ** 0.5
    model.save_pretrained(directory)
    return directory


class Pair:
    """A learner with its guard, and an engine that has the learner's weights; both were updated twice."""

    def __init__(
        self, path: Path, *, lora: Lora | None = None, dtype: Type = "float32", compute: Type = "float32"
    ) -> None:
        """``path``: of `write_model`."""
        options = ModelOptions()
        self.model = PolicyModel(path, dtype=dtype, device="cpu", options=options, compute=compute, lora=lora)
        self.older = OlderWeights(keep=1)
        self.guard = Guard(self.model, self.older, path)
        self.engine: Any = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=False)
        self.first, self.version = copy.deepcopy(self.engine), 0
        self.update()
        self.update()

    def update(self, moved: float = MOVED) -> None:
        """New weights for the learner and the engine; ``before`` keeps the engine's former ones."""
        self.version += 1
        self.before = copy.deepcopy(self.engine)
        torch.manual_seed(self.version)
        for _, tensor in self.model.named_parameters():
            tensor.data += moved * torch.randn_like(tensor)
        self.engine.load_state_dict(dict(self.model.served()), strict=False)
        self.older.remember(self.version, {name: t.clone() for name, t in self.model.trained().items()})

    def rollouts(
        self,
        logits: Logits,
        *,
        temperature: float = 1.0,
        filtered: Logits = lambda scaled: scaled,
        said: Callable[[Tensor], Tensor] = lambda logprobs: logprobs,
        count: int = 6,
        generator: str = "rollout_generator.0",
        seed: int = 3,
        behind: int = 0,
    ) -> list[TrainingSequence]:
        """Sampled from ``logits``; ``behind``: by how many versions, as the rollouts say."""
        rng = torch.Generator().manual_seed(seed)
        prompts = torch.randint(20, 200, (count, PROMPT), generator=rng)
        tokens, spoken = prompts[torch.arange(count) // GROUP], []
        mask = torch.tensor([at not in range(8, 8 + TOLD) for at in range(SAMPLED)])
        for own in mask.tolist():
            scaled = filtered(logits(tokens) / temperature).log_softmax(-1)
            drawn = torch.multinomial(scaled.exp(), 1, generator=rng) if own else torch.full((count, 1), 25)
            spoken.append(scaled.gather(1, drawn) * own)
            tokens = torch.cat([tokens, drawn], dim=1)
        made = []
        for number, behaviour in enumerate(torch.cat(spoken, dim=1)):
            behaviour[mask] = said(behaviour[mask])
            versions = torch.full((SAMPLED,), self.version - behind)
            turns = torch.zeros(SAMPLED, dtype=torch.int64)
            of_row = (f"r{number}", tokens[number], PROMPT, mask, turns, behaviour, versions, 1.0, 0.5, generator)
            made.append(TrainingSequence(*of_row))
        return made


def plain(model: Any) -> Logits:
    """What a model of transformers computes."""

    def logits(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = model(input_ids=tokens).logits[:, -1]
        return found.float()

    return logits


def _changed(model: Any, change: Callable[[str, Tensor], Tensor]) -> Logits:
    other = copy.deepcopy(model)
    for name, tensor in other.named_parameters():
        tensor.data = change(name, tensor.data)
    return plain(other)


def _partly_old(pair: Pair, stale: Callable[[str], bool]) -> Logits:
    old = dict(pair.before.named_parameters())
    return _changed(pair.engine, lambda name, tensor: old[name].data if stale(name) else tensor)


def _is_first_half(name: str) -> bool:
    numbers = [number for number in range(SIZES.layers) if f".layers.{number}." in name]
    return numbers[0] < SIZES.layers / 2 if numbers else "embed" in name


def _cached(pair: Pair, past: Callable[[Tensor], Any]) -> Logits:
    def logits(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            kept = past(tokens[:, : PROMPT - 1])
            rest = pair.engine(input_ids=tokens[:, PROMPT - 1 :], past_key_values=kept, use_cache=True)
        found: Tensor = rest.logits[:, -1]
        return found

    return logits


def _past(model: Any, tokens: Tensor, layer: int | None = None, other: Any = None) -> Any:
    past = model(input_ids=tokens, use_cache=True).past_key_values
    if layer is not None:
        past.layers[layer] = _past(other, tokens).layers[layer]
    return past


def _transposed(pair: Pair) -> Logits:
    return _changed(pair.engine, lambda _, t: t.T if t.ndim == 2 and len(t) == t.shape[1] else t)


def _random(pair: Pair, seed: int) -> Logits:
    torch.manual_seed(seed)
    return _changed(pair.engine, lambda _, t: torch.randn_like(t) * t.std() if t.ndim == 2 else t)


def _permuted(pair: Pair) -> Logits:
    order = torch.randperm(pair.engine.config.vocab_size, generator=torch.Generator().manual_seed(0))
    return lambda tokens: plain(pair.engine)(order[tokens])[:, order]


def _with_text_before(pair: Pair) -> Logits:
    begun = torch.tensor([30, 31, 32, 33])
    return lambda tokens: plain(pair.engine)(torch.cat([begun.expand(len(tokens), -1), tokens], dim=1))


def top_k(count: int) -> Logits:
    """Only the most probable tokens are left."""
    return lambda scaled: scaled.where(scaled >= scaled.topk(count)[0][:, -1:], -torch.inf)


def top_p(share: float) -> Logits:
    """Only the most probable tokens are left that have this share together."""

    def kept(scaled: Tensor) -> Tensor:
        probabilities, order = scaled.softmax(-1).sort(-1, descending=True)
        within = probabilities.cumsum(-1) - probabilities < share
        return scaled.where(within.scatter(1, order, within), -torch.inf)

    return kept


def _without_borders(pair: Pair) -> Logits:
    def logits(tokens: Tensor) -> Tensor:
        rows, length = tokens.shape
        at = torch.arange(length).repeat(rows)[None]
        with torch.no_grad():
            states = pair.engine(input_ids=tokens.reshape(1, -1), position_ids=at, attention_mask=torch.ones_like(at))
        found: Tensor = states.logits[0, length - 1 :: length]
        return found

    return logits


class Fault(NamedTuple):
    """What is wrong with an engine, and what the guard has to say of it."""

    rollouts: Callable[[Pair], list[TrainingSequence]]
    named: str
    known: Sampled = Sampled(1.0)
    """How the run believes that tokens are sampled."""
    lora: bool = False


def _wrong(logits: Callable[[Pair], Logits], named: str, *, lora: bool = False) -> Fault:
    """Wrong logits."""
    return Fault(lambda pair: pair.rollouts(logits(pair)), named, lora=lora)


def _wrongly(named: str, known: Sampled = Sampled(1.0), **how: Any) -> Fault:  # noqa: B008 - a constant
    """Right logits, from which tokens are sampled wrongly, or of which something wrong is said."""
    return Fault(lambda pair: pair.rollouts(plain(pair.engine), **how), named, known)


def _one_behind(pair: Pair) -> list[TrainingSequence]:
    behind = pair.rollouts(plain(pair.before), count=3, generator="rollout_generator.1", seed=4)
    return [*pair.rollouts(plain(pair.engine), count=3), *behind]


OLD, FEWER = "it still computes with version 1 in place of 2", "from fewer tokens than the run knows of: "
OTHER = "it has other weights (damaged, of another model, for another tokenizer)"
FAULTS: Mapping[str, Fault] = {
    "version before": _wrong(lambda pair: plain(pair.before), OLD),
    "first weights": _wrong(lambda pair: plain(pair.first), "it still computes with the weights that the run began"),
    "first half old": _wrong(
        lambda pair: _partly_old(pair, _is_first_half), "the first half of its layers has version 1"
    ),
    "second half old": _wrong(
        lambda pair: _partly_old(pair, lambda name: not _is_first_half(name)),
        "the second half of its layers has version 1",
    ),
    "outer old": _wrong(
        lambda pair: _partly_old(pair, lambda name: ".layers." not in name),
        "embeddings or output layer are those of version 1",
    ),
    "old prefix cache": _wrong(
        lambda pair: _cached(pair, partial(_past, pair.before)), "prompts are those of version 1"
    ),
    "transposed": _wrong(_transposed, "square weights are loaded transposed"),
    "adapters not merged": _wrong(lambda pair: plain(pair.first), "without the adapters", lora=True),
    "cold": _wrongly("samples at a temperature of about 0.7", temperature=0.7),
    "hot": _wrongly("samples at a temperature of about 1.4", temperature=1.4),
    "top_k": _wrongly(f"{FEWER}top_k = 10", filtered=top_k(10)),
    "top_p": _wrongly(f"{FEWER}top_p = 0.8", filtered=top_p(0.8)),
    "no top_k": _wrongly("from all tokens: top_p and top_k do not reach it", Sampled(1.0, top_k=10)),
    "late": _wrongly("are of the token before: they are shifted by one", said=lambda each: each.roll(1)),
    "early": _wrongly("are of the token after: they are shifted by one", said=lambda each: each.roll(-1)),
    "none said": _wrongly("a log-probability of 0 for 100% of the tokens", said=torch.zeros_like),
    "half masked": _wrongly(
        "a log-probability of 0 for 50% of the tokens", said=lambda each: each * (torch.arange(len(each)) % 2)
    ),
    "random": _wrong(partial(_random, seed=5), OTHER),
    "another model": _wrong(partial(_random, seed=6), OTHER),
    "another tokenizer": _wrong(_permuted, OTHER),
    "another prompt": _wrong(_with_text_before, "or saw another prompt"),
    "one engine behind": Fault(_one_behind, f"on rollout_generator.1 alone: {OLD}"),
}


def _part_old(part: str, named: str = "") -> Fault:
    return _wrong(lambda pair: _partly_old(pair, lambda name: part in name), f"{named or part} is that of version 1")


def _projections(named: str, change: Callable[[Tensor], Tensor]) -> Fault:
    return _wrong(lambda pair: _changed(pair.engine, lambda name, t: change(t) if "proj" in name else t), named)


def _set_all(model: Any, name: str, change: Callable[[Any], Any]) -> None:
    for module in model.modules():
        if hasattr(module, name):
            setattr(module, name, change(getattr(module, name)))


def _set(named: str, name: str, change: Callable[[Any], Any], *, train: bool = False) -> Fault:
    def logits(pair: Pair) -> Logits:
        other = copy.deepcopy(pair.engine).train(train)
        _set_all(other, name, change)
        return plain(other)

    return _wrong(logits, named)


def _logits(
    named: str,
    change: Callable[[Tensor, Tensor], Tensor] = lambda logits, _: logits,
    seen: Callable[[Tensor], Tensor] = lambda tokens: tokens,
    begin: int = 0,
) -> Fault:
    """Logits after the tokens that it sees, changed by how often each token stands there from ``begin`` on."""

    def changed(pair: Pair, tokens: Tensor) -> Tensor:
        found, own = plain(pair.engine)(seen(tokens)), tokens[:, begin:]
        return change(found, torch.zeros_like(found).scatter_add(1, own, torch.ones(own.shape)))

    return _wrong(lambda pair: partial(changed, pair), named)


def _swapped(pair: Pair) -> Logits:
    first, *_, last = (int(r.tokens[PROMPT]) for r in pair.rollouts(plain(pair.engine)))
    order = torch.arange(pair.engine.config.vocab_size)
    order[[first, last]] = order[[last, first]]
    return lambda tokens: plain(pair.engine)(order[tokens])[:, order]


def _trained_wrongly(pair: Pair) -> list[TrainingSequence]:
    decode = pair.model._decode
    pair.model._decode = lambda position_ids, **more: decode(position_ids=2 * position_ids, **more)
    return pair.rollouts(plain(pair.engine))


def _trained_at_random(pair: Pair) -> list[TrainingSequence]:
    _set_all(pair.model.module, "attention_dropout", lambda _: 0.1)
    pair.model.block = 0  # as for a model whose config.json has it
    return pair.rollouts(plain(pair.engine))


def _int8(each: Tensor) -> Tensor:
    unit = each.abs().amax(-1, keepdim=True) / 127
    return (each / unit).round() * unit


UNKNOWN = "the guard knows no such cause"
BIASED = torch.zeros(398).index_fill(0, torch.tensor([90]), 1.7)
FRESH: Mapping[str, Fault] = {
    "norm of a layer old": _part_old("model.layers.2.input_layernorm.weight"),
    "final norm old": _part_old("model.norm.weight"),
    "layer old": _part_old(".layers.1.", "layers.1"),
    "projection old": _part_old("model.layers.3.self_attn.v_proj.weight"),
    "projections old": _part_old("q_proj"),
    "cache of a layer old": _wrong(
        lambda pair: _cached(pair, partial(_past, pair.engine, layer=2, other=pair.before)), "prompts in layer 2 are"
    ),
    "logits scaled": _logits("multiplies logits by 1.05", lambda logits, _: logits * 1.05),
    "logits capped": _logits(UNKNOWN, lambda logits, _: 30 * torch.tanh(logits / 30)),
    "end masked": _logits(" 2 (never given)", lambda logits, _: logits.index_fill(1, torch.tensor(2), -torch.inf)),
    "token favoured": _logits(" 90 (+1.7)", lambda logits, _: logits + BIASED),
    "repetition penalty": _logits(
        "a repetition penalty of about 1.1",
        lambda logits, counts: logits.where(counts == 0, torch.where(logits > 0, logits / 1.1, logits * 1.1)),
    ),
    "frequency penalty": _logits(
        "a frequency penalty of about 0.35", lambda logits, counts: logits - 0.35 * counts, begin=PROMPT
    ),
    "first token unseen": _logits(UNKNOWN, seen=lambda tokens: tokens[:, 1:]),
    "tools unseen": _logits(
        "does not see the text of tools",
        seen=lambda tokens: torch.cat([tokens[:, : PROMPT + 8], tokens[:, PROMPT + 8 + TOLD :]], dim=1),
    ),
    "padding seen": _logits("saw another prompt", seen=lambda tokens: nn.functional.pad(tokens, (4, 0), value=1)),
    "epsilon": _set("another epsilon: 1e-05", "variance_epsilon", lambda _: 1e-5),
    "rotary base": _set("another base: 1e+06", "inv_freq", lambda each: each**1.5),
    "no rotary embedding": _set(UNKNOWN, "inv_freq", torch.zeros_like),
    "attention scaled": _set(UNKNOWN, "scaling", lambda each: each * 1.3 if isinstance(each, float) else each),
    "dropout": _set("at random (dropout)", "attention_dropout", lambda _: 0.1, train=True),
    "int8 weights": _projections("rounded to int8", _int8),
    "float8 weights": _projections("rounded to float8", lambda each: each.to(torch.float8_e4m3fn).float()),
    "rows lost": _projections(UNKNOWN, lambda each: each * (torch.arange(len(each)) >= 4)[:, None]),
    "raw log-probabilities": _wrongly("from before temperature and filters", Sampled(0.8)),
    "another top_k": _wrongly(f"{FEWER}top_k", filtered=top_k(37)),
    "base 2": _wrongly("logarithms have the base 2", said=lambda each: each / math.log(2.0)),
    "added up": _wrongly("adds log-probabilities up", said=lambda each: each.cumsum(0)),
    "no borders": _wrong(_without_borders, "(borders of packed rows)"),
    "tokens swapped": _wrong(_swapped, UNKNOWN),
    "learner's positions": Fault(_trained_wrongly, "the learner is at fault: its packed rows"),
    "learner's dropout": Fault(_trained_at_random, "it computes at random: set the dropouts"),
}
