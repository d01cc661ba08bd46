"""Whether the numerics guard finds and names the faults that are injected into an engine on purpose.

    agent-rl bench guard
    agent-rl bench guard --updates 1000

A learner's model of random weights has been updated twice. The engine's side is computed by transformers alone, with
one fault of `FAULTS` at a time, and the guard checks its rollouts once. Then engines without a fault follow a learner
through updates, in float32, in bfloat16, and one version behind as their rollouts say; the guard checks them as in a
run: the first two, and every fourth. The exit code is 1 when a fault is not found or not named, or an alarm is false.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from agent_rl.config.topology import InitialiseModel, Lora
from agent_rl.learning.guard import Guard, Sampled
from agent_rl.learning.mismatch import OlderWeights
from agent_rl.learning.policy_model import ModelOptions, PolicyModel
from agent_rl.learning.sequences import TrainingSequence
from agent_rl.learning.tiny import initialise_model
from benchmarks.reporting import print_figures, print_table

SIZES = InitialiseModel(
    hidden_size=64, layers=4, heads=4, kv_heads=2, head_dim=16, mlp_size=96, max_length=256, byte_fallback=True
)
PROMPT, SAMPLED, TOLD = 12, 20, 4
"""Tokens of a rollout: its prompt; those after it, and how many of these a tool wrote."""
MOVED, MOVED_IN_HEALTH = 0.03, 0.01
"""The standard deviation of what an update adds to each weight; many updates add less, so that the model stays one."""
Logits: TypeAlias = Callable[[Tensor], Tensor]
"""Of the next token, [rows, vocabulary], after tokens [rows, n]."""


@dataclass(kw_only=True)
class Options:
    """The options."""

    updates: int = 48
    """Healthy updates, in all."""


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

    def __init__(self, path: Path, *, lora: Lora | None = None) -> None:
        """``path``: of `write_model`."""
        self.model = PolicyModel(path, dtype="float32", device="cpu", options=ModelOptions(), lora=lora)
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
        tokens, spoken = torch.randint(20, 200, (count, PROMPT), generator=rng), []
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


# Faults


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


def _old_prefix(pair: Pair) -> Logits:
    def logits(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            past = pair.before(input_ids=tokens[:, : PROMPT - 1], use_cache=True).past_key_values
            rest = pair.engine(input_ids=tokens[:, PROMPT - 1 :], past_key_values=past, use_cache=True)
        found: Tensor = rest.logits[:, -1]
        return found

    return logits


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
    "old prefix cache": _wrong(_old_prefix, "keys and values of prompts are those of version 1"),
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


def said_of(fault: Fault, path: Path) -> str:
    """What the guard says after its first check of rollouts with this fault."""
    pair = Pair(path, lora=Lora(rank=4) if fault.lora else None)
    return pair.guard.check(fault.rollouts(pair), fault.known)


def alarms_in_health(path: Path, updates: int) -> list[str]:
    """What the guard says of engines without a fault: it should be nothing."""
    alarms = []
    kinds = ((torch.float32, 0), (torch.bfloat16, 0), (torch.float32, 1))
    for number, (kind, behind) in enumerate(kinds):
        pair = Pair(path)
        for seed in range(number, updates, len(kinds)):
            pair.update(MOVED_IN_HEALTH)
            engine = copy.deepcopy(pair.before if behind else pair.engine).to(kind)
            alarms.append(pair.guard.check(pair.rollouts(plain(engine), seed=seed, behind=behind), Sampled(1.0)))
    return [text for text in alarms if text]


def main(options: Options) -> int:
    """Inject each fault, go through healthy updates, and print what the guard said."""
    disable_progress_bar()
    torch.set_num_threads(1)  # more are slower for so small a model
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder))
        said = {name: said_of(fault, path) for name, fault in FAULTS.items()}
        alarms = alarms_in_health(path, options.updates)
    named = sum(fault.named in said[name] for name, fault in FAULTS.items())
    found = sum(map(bool, said.values()))
    print_table("What the guard says", ("fault", "said"), [*said.items(), *(("none", text) for text in alarms)])
    print_figures(
        {
            "guard.faults": len(FAULTS),
            "guard.found": found,
            "guard.named": named,
            "guard.updates": options.updates,
            "guard.false_alarms": len(alarms),
        }
    )
    return int(found < len(FAULTS) or named < len(FAULTS) or bool(alarms))
