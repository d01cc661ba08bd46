"""Ranks as processes, against one rank: ``python rank_cases.py LAYOUT MODEL FOLDER CASE...`` prints figures.

The first process is rank 0, and forks the others after it has loaded torch, so that many ranks load it once. When they
are done, it computes the same alone. A case is a name of `CASES`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import numpy as np
import pytest
import torch

from agent_rl.config.algorithm import Algorithm, KlPenalty
from agent_rl.config.parallel import MeshSizes
from agent_rl.config.topology import Lora, RlStage, SftStage
from agent_rl.learning import ranks as joining
from agent_rl.learning import sharding
from agent_rl.learning.finite import NotFiniteError
from agent_rl.learning.policy_model import ModelOptions
from agent_rl.learning.ranks import Ranks
from agent_rl.learning.reference import StageStart
from agent_rl.learning.sharding import gathered, local
from agent_rl.learning.trainer import Trainer
from agent_rl.messages import TrainingGroup
from agent_rl.records.checkpoint_files import Position
from agent_rl_contract import builders
from tests.agent_rl.learning.trainers import before_updates, small_trainer

RATE = 1e-3
"""The learning rate: five steps at it move each weight by up to 5e-3, a tenth of what the weights are."""
STEPS = 5
LONGEST = 14
SFT = SftStage(kind="sft", steps=STEPS, batch=6, learning_rate=RATE, warmup_steps=0, schedule="constant")
RL = RlStage(kind="rl", steps=STEPS, max_response_tokens=LONGEST, max_turns=3, learning_rate=RATE, warmup_steps=0)
PLAIN = Algorithm(microbatch_tokens=24, gradient_clip=0.5)
KL = KlPenalty(coefficient=0.1)


def groups(seed: int, *, count: int = 2, kept: int = 4) -> list[TrainingGroup]:
    """Rollouts of random tokens and lengths, and mu near what a new model says."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        opened = builders.opened(number)
        rollouts = []
        for sample in range(kept):
            plain = builders.trajectory(opened, sample, tokens=int(rng.integers(3, LONGEST)))
            size = plain.response_length
            mask = (rng.random(size) < 0.7).astype(np.uint8)
            mask[-1] = 1
            rollouts.append(
                builders.repacked(
                    plain,
                    prompt_tokens=rng.integers(7, 100, rng.integers(1, 6)).astype(np.int32),
                    tokens=rng.integers(7, 100, size).astype(np.int32),
                    loss_mask=mask,
                    logprobs=(mask * (-4.6 + 0.3 * rng.standard_normal(size))).astype(np.float32),
                )
            )
        rewards = np.array([float(sample % 2 == 0) for sample in range(kept)], dtype=np.float32)
        made.append(TrainingGroup(opened.group, 0, opened.policy, tuple(rollouts), rewards))
    return made


def demonstrations(seed: int, count: int = 6) -> list[tuple[list[int], list[int]]]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(4, 20, count)
    return [(rng.integers(7, 100, size).tolist(), [0, 0, *[1] * int(size - 2)]) for size in sizes]


def rl(trainer: Trainer, step: int) -> Any:
    return trainer.rl_step(groups(step), RL, step)


def shared(trainer: Trainer, step: int) -> Any:
    """The rollouts of a group have one prompt, which a rank computes once; of one group alone, each rank has a part."""
    trainer.model.block = 1
    made = groups(step, count=1 + step % 2)
    prompt = np.arange(20, 32, dtype=np.int32)
    of = [
        replace(g, trajectories=tuple(builders.repacked(t, prompt_tokens=prompt) for t in g.trajectories)) for g in made
    ]
    return trainer.rl_step(of, RL, step)


def few(trainer: Trainer, step: int) -> Any:
    return trainer.rl_step(groups(step, count=1, kept=2), RL, step)


def sft(trainer: Trainer, step: int) -> Any:
    return trainer.sft_step(demonstrations(step), SFT, step)


def poisoned(trainer: Trainer, step: int) -> Any:
    """The third step's loss is not finite, of the ranks that have one certain rollout; all must skip it."""
    longest = max((t for group in groups(step) for t in group.trajectories), key=lambda t: t.response_length)
    return skipped(
        trainer, step, lambda batch: bool((batch.mask.sum(-1) == int(longest.unpack().loss_mask.sum())).any())
    )


def poisoned_rank(trainer: Trainer, step: int) -> Any:
    """The same on the last rank alone."""
    return skipped(trainer, step, lambda _: trainer.ranks.rank == trainer.ranks.size - 1)


def skipped(trainer: Trainer, step: int, hit: Callable[[Any], bool]) -> Any:
    if step != 2:
        return rl(trainer, step)
    loss = trainer.loss

    def broken(batch: Any, settings: Any) -> Any:
        terms = loss(batch, settings)
        return replace(terms, shares=terms.shares * (torch.nan if hit(batch) else 1.0))

    trainer.loss = broken
    skips(trainer, step, "the loss is nan")
    trainer.loss = loss
    return None


def poisoned_gradient(trainer: Trainer, step: int) -> Any:
    """The gradient of a norm is not finite on the last rank alone."""
    if step != 2:
        return rl(trainer, step)
    apply = trainer.optimizer.step

    def spoil(_: float) -> None:
        gradient = dict(trainer.model.named_parameters())["model.norm.weight"].grad
        assert gradient is not None
        if trainer.ranks.rank == trainer.ranks.size - 1:
            local(gradient).fill_(torch.nan)

    before_updates(trainer, spoil)
    skips(trainer, step, "the gradient's norm is nan")
    trainer.optimizer.step = apply  # type: ignore[method-assign]
    return None


def skips(trainer: Trainer, step: int, message: str) -> None:
    """The step changes no bit."""
    before = whole_state(trainer)
    with pytest.raises(NotFiniteError, match=message):
        trainer.rl_step(groups(step), RL, step)
    after = whole_state(trainer)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


Step = Callable[[Trainer, int], Any]
CASES: dict[str, tuple[Step, Algorithm, dict[str, Any]]] = {
    "sft": (sft, PLAIN, {}),
    **{
        loss: (rl, PLAIN.model_copy(update={"loss": loss, "updates_per_step": 2}), {})
        for loss in ("grpo", "sequence_mean", "dr_grpo", "gspo", "cispo")
    },
    "one_update": (rl, PLAIN, {}),
    "kl": (rl, PLAIN.model_copy(update={"kl": KL, "updates_per_step": 2}), {}),
    "lora": (rl, PLAIN, {"lora": Lora(rank=4)}),
    "checkpointing": (rl, PLAIN, {"options": ModelOptions(activation_checkpointing=True)}),
    "offload": (rl, PLAIN, {"options": ModelOptions(offload=True)}),
    "shared": (shared, PLAIN.model_copy(update={"microbatch_tokens": 60}), {}),
    "few": (few, PLAIN, {}),
    "few_updates": (few, PLAIN.model_copy(update={"updates_per_step": 2}), {}),
    "poisoned": (poisoned, PLAIN, {}),
    "poisoned_rank": (poisoned_rank, PLAIN, {}),
    "poisoned_gradient": (poisoned_gradient, PLAIN, {}),
    "poisoned_updates": (poisoned, PLAIN.model_copy(update={"updates_per_step": 2}), {}),
    "bfloat16": (rl, PLAIN, {"dtype": "bfloat16"}),
}


def whole_state(trainer: Trainer) -> dict[str, torch.Tensor]:
    """The weights, whole, and this rank's part of the moments."""
    weights = {name: gathered(p.detach()).clone() for name, p in trainer.model.named_parameters()}
    return weights | {f"moment {name}": each.clone() for name, each in trainer.optimizer.state()[0].items()}


def trained(case: str, model: Path, folder: Path, ranks: Ranks) -> tuple[list[torch.Tensor], ...]:
    """The first update's gradients, and what five steps change in the weights; and what each step reports."""
    step, algorithm, given = CASES[case]
    trainer = small_trainer(model, ranks=ranks, algorithm=algorithm, **given)
    if isinstance(trainer.reference, StageStart):
        trainer.reference.keep(folder / f"{case}-{ranks.size}.safetensors")
    gradients: list[torch.Tensor] = []

    def note(_: float) -> None:
        if not gradients:
            masters = trainer.optimizer._masters
            found = [masters[name].grad if p.grad is None else p.grad for name, p in trainer.model.named_parameters()]
            gradients.extend(gathered(gradient).clone() for gradient in found if gradient is not None)

    before_updates(trainer, note)
    start = [gathered(p.detach()).clone() for _, p in trainer.model.named_parameters()]
    trainer.share_weights(0, on_device=False)
    reports = []
    for number in range(STEPS):
        figures = step(trainer, number)
        published = trainer.share_weights(number + 1, on_device=False)
        if figures is not None:
            reports += [torch.tensor([figures.loss, figures.gradient_norm])]
            mismatch = getattr(figures, "mismatch", None)
            if mismatch is not None:
                reports += [torch.tensor([mismatch.mismatch_gap, mismatch.mismatch_max, mismatch.mismatch_tokens])]
    whole = {name: gathered(p.detach()) for name, p in trainer.model.named_parameters()}
    for name, (part, make) in published.parts.items() if "lora" not in given else ():
        assert torch.equal(make(), whole[name][part].to(published.layout[name][1]))
    changes = [gathered(p.detach()) - s for (_, p), s in zip(trainer.model.named_parameters(), start, strict=True)]
    return gradients, changes, reports


def difference(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """|found - expected| / |expected| of all tensors as one vector."""
    assert len(found) == len(expected)
    if not expected:
        return 0.0
    one, other = (torch.cat([each.double().flatten() for each in side]) for side in (found, expected))
    return float((one - other).norm() / other.norm())


def checkpointed(case: str, model: Path, folder: Path, ranks: Ranks) -> None:
    """``save:TYPE:TO`` trains two steps and saves; ``load:TYPE:FROM:TO`` loads a checkpoint and saves it again."""
    kind, dtype, *names = case.split(":")
    lora = Lora(rank=4) if dtype == "lora" else None
    trainer = small_trainer(model, ranks=ranks, dtype="float32" if lora else dtype, algorithm=PLAIN, lora=lora)
    position = Position(0, 0, 2)
    if kind == "load":
        assert trainer.restore(folder / names[0]) == (position, {"kept": "this"})
    else:
        for step in range(2):
            rl(trainer, step)
    if dtype != "lora" and ranks.size > 1:
        sharding.gathered = refused  # type: ignore[assignment]
    trainer.save(folder / names[-1], position, {"kept": "this"})
    if ranks.size > 1:
        trainer.write_weights(2, folder / f"{names[-1]}.safetensors")


def refused(tensor: torch.Tensor) -> torch.Tensor:
    raise AssertionError(f"a whole tensor of {list(tensor.shape)} is gathered, and each rank should write its part")


def fork(size: int) -> tuple[int, list[int], Any]:
    """This process' rank, as rank 0 the others' processes, and where they meet."""
    place = joining.meeting_place()
    children: list[int] = []
    for rank in range(1, size):
        child = os.fork()
        if not child:
            there = place.getsockname()
            place.close()
            return rank, [], there
        children.append(child)
    return 0, children, place


def main(layout: str, model: Path, folder: Path, cases: Sequence[str]) -> None:
    torch.set_num_threads(1)
    sizes = MeshSizes(*map(int, layout.split("x")))
    size = sizes.ranks
    rank, children, place = fork(size)
    ranks = (
        Ranks()
        if size == 1
        else joining.joined(rank, sizes, place=place, device="cpu", seconds=60.0, meeting_seconds=60.0)
    )
    found = {}
    for case in cases:
        if ":" in case:
            checkpointed(case, model, folder, ranks)
        else:
            found[case] = trained(case, model, folder, ranks)
    if ranks.size > 1:
        ranks.agreed("")
        ranks.leave()
    if rank:
        os._exit(0)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
    for case, sides in found.items():
        alone = trained(case, model, folder, Ranks())
        figures = [difference(one, other) for one, other in zip(sides, alone, strict=True)]
        sys.stdout.write(json.dumps([case, *figures]) + "\n")


if __name__ == "__main__":
    ends = [at for at, word in enumerate(sys.argv) if re.fullmatch(r"\d+x\d+", word)] + [len(sys.argv)]
    for begin, end in pairwise(ends):
        if not (child := os.fork()):
            main(sys.argv[begin], Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[begin + 1 : end])
            sys.stdout.flush()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, sys.argv[begin:end]
