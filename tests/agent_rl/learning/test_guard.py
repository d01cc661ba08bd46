"""The numerics guard names what an engine does wrong. The engine's side is computed by transformers alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from agent_rl.config.topology import InitialiseModel, Lora
from agent_rl.learning.guard import Guard, Sampled
from agent_rl.learning.mismatch import OlderWeights
from agent_rl.learning.policy_model import ModelOptions, PolicyModel
from agent_rl.learning.sequences import TrainingSequence
from agent_rl.learning.tiny import initialise_model

SIZES = InitialiseModel(
    hidden_size=64, layers=4, heads=4, kv_heads=2, head_dim=16, mlp_size=96, max_length=256, byte_fallback=True
)
PROMPT, SAMPLED, TOLD = 12, 20, 4
Logits = Callable[[Tensor], Tensor]
PLAIN = Sampled(1.0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose distributions are as peaked as a trained one's."""
    directory = tmp_path_factory.mktemp("model")
    initialise_model(SIZES, directory, 0)
    model = AutoModelForCausalLM.from_pretrained(directory)
    torch.manual_seed(0)
    for tensor in model.parameters():
        if tensor.ndim == 2:
            tensor.data = torch.randn_like(tensor) * 2.5 / tensor.shape[1] ** 0.5
    model.save_pretrained(directory)
    return directory


class Run:
    """A learner at version 2, with the weights of version 1, which moved from those of the run's beginning."""

    def __init__(self, path: Path, lora: Lora | None = None) -> None:
        self.model = PolicyModel(path, dtype="float32", device="cpu", options=ModelOptions(), lora=lora)
        self.older = OlderWeights(keep=1)
        self.engine: Any = AutoModelForCausalLM.from_pretrained(path)
        self.first = copy.deepcopy(self.engine)
        for version in (1, 2):
            self.old = copy.deepcopy(self.engine)
            torch.manual_seed(version)
            for name, tensor in self.model.named_parameters():
                tensor.data += 0.03 * torch.randn_like(tensor)
                if not lora:
                    self.engine.get_parameter(name).data.copy_(tensor.data)
            self.older.remember(version, {name: t.clone() for name, t in self.model.trained().items()})
        if lora:
            self.engine.load_state_dict(dict(self.model.served()), strict=False)
        self.guard = Guard(self.model, self.older, path)

    def rollouts(
        self,
        logits: Logits,
        *,
        temperature: float = 1.0,
        filtered: Callable[[Tensor], Tensor] = lambda scaled: scaled,
        said: Callable[[Tensor], Tensor] = lambda logprobs: logprobs,
        count: int = 6,
        generator: str = "rollout_generator.0",
        seed: int = 3,
    ) -> list[TrainingSequence]:
        """Sampled from the engine's logits [rows, vocabulary] after prefixes [rows, n]."""
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
            versions, turns = torch.full((SAMPLED,), 2), torch.zeros(SAMPLED, dtype=torch.int64)
            of_row = (f"r{number}", tokens[number], PROMPT, mask, turns, behaviour, versions, 1.0, 0.5, generator)
            made.append(TrainingSequence(*of_row))
        return made

    def found(self, rollouts: list[TrainingSequence], how: Sampled = PLAIN) -> str:
        return self.guard.check(rollouts, how)


@pytest.fixture(scope="module")
def run(path: Path) -> Run:
    return Run(path)


@pytest.fixture(autouse=True)
def anew(run: Run) -> None:
    run.guard._steps = run.guard._suspected = 0


def plain(model: Any) -> Logits:
    def logits(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            return model(input_ids=tokens).logits[:, -1].float()

    return logits


def changed(model: Any, change: Callable[[str, Tensor], Tensor]) -> Logits:
    other = copy.deepcopy(model)
    for name, tensor in other.named_parameters():
        tensor.data = change(name, tensor.data)
    return plain(other)


def top_k(count: int) -> Callable[[Tensor], Tensor]:
    return lambda scaled: scaled.where(scaled >= scaled.topk(count)[0][:, -1:], -torch.inf)


def top_p(share: float) -> Callable[[Tensor], Tensor]:
    def kept(scaled: Tensor) -> Tensor:
        probabilities, order = scaled.softmax(-1).sort(-1, descending=True)
        left = (probabilities.cumsum(-1) - probabilities < share).scatter(
            1, order, probabilities.cumsum(-1) - probabilities < share
        )
        return scaled.where(left, -torch.inf)

    return kept


def partly_old(run: Run, first: bool) -> Logits:
    old = dict(run.old.named_parameters())

    def change(name: str, tensor: Tensor) -> Tensor:
        half = [number for number in range(4) if f".layers.{number}." in name]
        stale = bool(half) and (half[0] < 2) == first
        outer = not half and ("embed" in name) == first
        return old[name].data if stale or outer else tensor

    return changed(run.engine, change)


def old_prefix(run: Run) -> Logits:
    def logits(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            past = run.old(input_ids=tokens[:, : PROMPT - 1], use_cache=True).past_key_values
            return run.engine(input_ids=tokens[:, PROMPT - 1 :], past_key_values=past, use_cache=True).logits[:, -1]

    return logits


def with_text_before(run: Run, begun: list[int]) -> Logits:
    return lambda tokens: plain(run.engine)(torch.cat([torch.tensor([begun] * len(tokens)), tokens], dim=1))


def random_like(run: Run, seed: int) -> Logits:
    torch.manual_seed(seed)
    return changed(run.engine, lambda _, t: torch.randn_like(t) * t.std() if t.ndim == 2 else t)


def permuted(run: Run) -> Logits:
    order = torch.randperm(run.model.module.config.vocab_size, generator=torch.Generator().manual_seed(0))
    return lambda tokens: plain(run.engine)(order[tokens])[:, order]


FAULTS: dict[str, tuple[Callable[[Run], list[TrainingSequence]], str]] = {
    "version before": (lambda run: run.rollouts(plain(run.old)), "it still computes with version 1 in place of 2"),
    "first weights": (
        lambda run: run.rollouts(plain(run.first)),
        "it still computes with the weights that the run began",
    ),
    "first half old": (lambda run: run.rollouts(partly_old(run, True)), "the first half of its layers has version 1"),
    "second half old": (
        lambda run: run.rollouts(partly_old(run, False)),
        "the second half of its layers has version 1",
    ),
    "outer old": (
        lambda run: run.rollouts(
            changed(run.engine, lambda n, t: t if ".layers." in n else run.old.get_parameter(n).data)
        ),
        "embeddings or output layer are those of version 1",
    ),
    "old prefix cache": (
        lambda run: run.rollouts(old_prefix(run)),
        "keys and values of prompts are those of version 1",
    ),
    "transposed": (
        lambda run: run.rollouts(changed(run.engine, lambda _, t: t.T if t.ndim == 2 and len(t) == t.shape[1] else t)),
        "square weights are loaded transposed",
    ),
    "cold": (lambda run: run.rollouts(plain(run.engine), temperature=0.7), "samples at a temperature of about 0.7"),
    "hot": (lambda run: run.rollouts(plain(run.engine), temperature=1.4), "samples at a temperature of about 1.4"),
    "top_k": (
        lambda run: run.rollouts(plain(run.engine), filtered=top_k(10)),
        "from fewer tokens than the run knows of: top_k = 10",
    ),
    "top_p": (
        lambda run: run.rollouts(plain(run.engine), filtered=top_p(0.8)),
        "from fewer tokens than the run knows of: top_p = 0.8",
    ),
    "late": (
        lambda run: run.rollouts(plain(run.engine), said=lambda each: each.roll(1)),
        "are of the token before: they are shifted by one",
    ),
    "early": (
        lambda run: run.rollouts(plain(run.engine), said=lambda each: each.roll(-1)),
        "are of the token after: they are shifted by one",
    ),
    "none said": (
        lambda run: run.rollouts(plain(run.engine), said=torch.zeros_like),
        "a log-probability of 0 for 100% of the tokens",
    ),
    "half masked": (
        lambda run: run.rollouts(plain(run.engine), said=lambda each: each * (torch.arange(len(each)) % 2)),
        "a log-probability of 0 for 50% of the tokens",
    ),
    "random": (
        lambda run: run.rollouts(random_like(run, 5)),
        "it has other weights (damaged, of another model, for another tokenizer)",
    ),
    "another model": (
        lambda run: run.rollouts(random_like(run, 6)),
        "it has other weights (damaged, of another model, for another tokenizer)",
    ),
    "another tokenizer": (
        lambda run: run.rollouts(permuted(run)),
        "it has other weights (damaged, of another model, for another tokenizer)",
    ),
    "another prompt": (
        lambda run: run.rollouts(with_text_before(run, [30, 31, 32, 33])),
        "or saw another prompt",
    ),
    "one engine behind": (
        lambda run: [
            *run.rollouts(plain(run.engine), count=3),
            *run.rollouts(plain(run.old), count=3, generator="rollout_generator.1", seed=4),
        ],
        "on rollout_generator.1 alone: it still computes with version 1 in place of 2",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_at_once_and_named(name: str, run: Run) -> None:
    inject, said = FAULTS[name]
    weights = {name: tensor.clone() for name, tensor in run.model.trained().items()}
    text = run.found(inject(run))
    assert said in text, text
    assert all(torch.equal(tensor, weights[name]) for name, tensor in run.model.trained().items())


def test_filters_that_the_run_knows_of_are_sound_and_missed_where_they_are_missing(run: Run) -> None:
    known = Sampled(1.0, top_k=10)
    assert run.found(run.rollouts(plain(run.engine), filtered=top_k(10)), known) == ""
    assert "from all tokens: top_p and top_k do not reach it" in run.found(run.rollouts(plain(run.engine)), known)
    assert run.found(run.rollouts(plain(run.engine), filtered=top_p(0.8)), Sampled(1.0, top_p=0.8)) == ""


def test_only_the_beginning_of_a_rollout_that_one_version_sampled_is_compared(run: Run) -> None:
    long = run.rollouts(plain(run.engine))
    for rollout in long:
        rollout.versions[15:] = 3
        rollout.behaviour[15:] -= 9.0
    assert run.found(long) == ""
    none = run.rollouts(plain(run.old))
    for rollout in none:
        rollout.versions[:] = 0  # whose weights are gone
    assert run.found(none) == ""


def test_adapters_that_were_not_merged_are_named(path: Path) -> None:
    run = Run(path, Lora(rank=4))
    assert run.found(run.rollouts(plain(run.engine))) == ""
    assert "without the adapters" in run.found(run.rollouts(plain(run.first)))


def test_a_sound_engine_is_never_accused(run: Run) -> None:
    for seed in range(12):
        run.guard._steps = run.guard._suspected = 0
        half = copy.deepcopy(run.engine).bfloat16()
        assert run.found(run.rollouts(plain(run.engine), count=2, seed=seed)) == ""
        assert run.found(run.rollouts(plain(half), count=2, seed=seed)) == "", "rounding to bfloat16"
