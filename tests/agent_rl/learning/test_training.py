"""The trainer on a tiny model: gradients, steps, checkpoints, weights."""

from __future__ import annotations

import json
import math
import shutil
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_rl.config.topology import SftStage
from agent_rl.files.disk import DiskError
from agent_rl.learning.finite import NotFiniteError, TrainingStoppedError, is_finite, not_finite
from agent_rl.learning.losses.base import MicroBatch, Terms
from agent_rl.learning.losses.grpo import grpo
from agent_rl.learning.optimizer import Optimizer
from agent_rl.learning.reference import StageStart
from agent_rl.learning.trainer import Trainer, write_weights
from agent_rl.messages import TrainingGroup
from agent_rl.records.checkpoint_files import STATE_FILE, Position, read_position
from agent_rl_contract import builders
from tests.agent_rl.learning.trainers import before_updates, small_trainer
from tests.full_disk import no_file_longer_than


def scaled(terms: Terms, factor: float) -> Terms:
    """A loss that is so many times as large."""
    return replace(terms, objective=terms.objective * factor)


def groups(trained: Trainer, *, count: int = 2, version: int = 0) -> list[TrainingGroup]:
    """Groups whose behaviour log-probabilities are the model's own, with lengths that differ."""
    rng = np.random.default_rng(0)
    made = []
    for number in range(count):
        opened = builders.opened(number)
        trajectories = []
        for sample in range(4):
            plain = builders.trajectory(opened, sample, tokens=int(rng.integers(4, 12)), version=version)
            tokens = rng.integers(7, 100, plain.response_length).astype(np.int32)
            ids = torch.tensor(np.concatenate([plain.unpack().prompt_tokens, tokens]).astype(np.int64))
            with torch.no_grad():
                logprobs, _ = trained.model.logprobs([ids], [torch.arange(len(ids)) >= 3], temperature=1.0)
            trajectories.append(builders.repacked(plain, tokens=tokens, logprobs=logprobs.numpy()))
        rewards = np.array([1, 0, 0, 1], dtype=np.float32)
        made.append(TrainingGroup(opened.group, 0, opened.policy, tuple(trajectories), rewards))
    return made


def test_dropout_of_the_models_config_is_for_supervised_stages_that_ask(model, tmp_path):
    shutil.copytree(model, tmp_path / "drops")
    config = json.loads((model / "config.json").read_text()) | {"attention_dropout": 0.3}
    (tmp_path / "drops" / "config.json").write_text(json.dumps(config))
    losses, figures = {}, []
    for path in (model, tmp_path / "drops"):
        for asked in (False, True):
            trained = small_trainer(path, updates_per_step=2)
            stage = SftStage(kind="sft", steps=1, learning_rate=1e-12, dropout=asked)
            losses[path, asked] = trained.sft_step([(list(range(20, 60)), [0] + [1] * 39)] * 2, stage, 0).loss
            figures.append(trained.rl_step(groups(small_trainer(model)), builders.rl_stage(warmup_steps=0), 0))
    assert losses[tmp_path / "drops", True] != pytest.approx(losses[model, True], rel=1e-4)
    assert losses[tmp_path / "drops", False] == pytest.approx(losses[model, False], rel=1e-5)
    assert all(each.policy_gap < 1e-4 for each in figures)
    assert figures[2].ratio_deviation == pytest.approx(figures[0].ratio_deviation, rel=1e-3)


def test_a_stage_s_own_temperature_and_clipping_are_in_force_from_its_beginning(model):
    own = {"temperature": 0.5, "clip_low": 0.01, "clip_high": 0.02, "max_staleness": 3, "updates_per_step": 2}
    stage = builders.rl_stage(learning_rate=1e-2, warmup_steps=0)
    made, entered, plain = (
        small_trainer(model, **own),
        small_trainer(model, updates_per_step=2),
        small_trainer(model, updates_per_step=2),
    )
    entered.enter(builders.algorithm(**own))
    assert (entered.older.keep, plain.older.keep) == (3, 1)
    batch = groups(plain)
    first, second, other = (each.rl_step(batch, stage, 0) for each in (made, entered, plain))
    assert first == second
    assert first.clip_share > other.clip_share
    assert_same(everything(made), everything(entered))


def test_between_two_steps_no_gradients_need_be_held(model):
    trained = small_trainer(model)
    trained.rl_step(groups(trained), builders.rl_stage(warmup_steps=0), 0)
    trained.give_memory_back()
    assert {parameter.grad for parameter in trained.model.module.parameters()} == {None}
    trained.rl_step(groups(trained), builders.rl_stage(warmup_steps=0), 1)


def everything(trained: Trainer) -> dict[str, torch.Tensor]:
    """Copies of weights and optimizer state, by name."""
    moments, steps = trained.optimizer.state()
    counts = {f"{index}.step": torch.tensor(count) for index, count in steps.items()}
    return {name: tensor.clone() for name, tensor in {**trained.model.module.state_dict(), **moments, **counts}.items()}


def assert_same(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> None:
    assert before.keys() == after.keys()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []


def test_an_empty_step_changes_nothing(model):
    trained = small_trainer(model)
    before = everything(trained)
    assert trained.rl_step([], builders.rl_stage(), 0).trained_tokens == 0
    assert_same(before, everything(trained))


@pytest.mark.parametrize(
    ("dtype", "steps_before", "updates", "epochs"),
    [("float32", 0, 4, 1), ("bfloat16", 0, 4, 1), ("float32", 1, 2, 2), ("float32", 1, 1, 3)],
)
def test_of_several_updates_those_made_are_undone(model, dtype, steps_before, updates, epochs):
    """Also in the masters of bfloat16 weights; and what follows is what would have followed without them."""

    def third_is_broken(batch: MicroBatch, settings: Any) -> Terms:
        return scaled(grpo(batch, settings), torch.nan if len(made) == 2 else 1.0)

    trained = small_trainer(model, dtype=dtype, updates_per_step=updates, epochs=epochs)
    trained.loss = third_is_broken
    stage = builders.rl_stage(learning_rate=1e-2, warmup_steps=0)
    made: list[bool] = []
    for step in range(steps_before):
        trained.rl_step(groups(trained), stage, step)
    start = everything(trained)
    norm = trained.model.module.state_dict()["model.norm.weight"]
    before_updates(trained, lambda _: made.append(not torch.equal(start["model.norm.weight"], norm)))
    batch = groups(trained)
    named = r"are finite; it is algorithm.loss = grpo \(test_training.py, line \d+\)"  # the loss was replaced here
    with pytest.raises(NotFiniteError, match=named):
        trained.rl_step(batch, stage, steps_before)
    assert made == [False, True]
    assert_same(start, everything(trained))
    twin = small_trainer(model, dtype=dtype, updates_per_step=updates, epochs=epochs)
    for step in range(steps_before):
        twin.rl_step(groups(twin), stage, step)
    trained.loss = twin.loss
    for learner in (trained, twin):
        learner.rl_step(batch, stage, steps_before)
    assert_same(everything(twin), everything(trained))


DAMAGED = "the tokens of s0-g000000/0/0 are damaged"
NO_TOKEN = r"s0-g000000, sample 0 has the token {0}, and the model the tokens 0 to {1}$"


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize(
    ("spoilt", "named"),
    [
        ("rewards", "advantage of s0-g000001, sample 0, .* and 1 more"),
        ("model", "loss is nan, not finite: the learner's log-probabilities of s0-g"),
        ("reference", "loss is nan, not finite: log-probabilities by algorithm.kl.reference of s0-g"),
        ("loss", "but all values it is computed from are finite"),
        ("stale by -150", 'loss is .?inf, because pi_prox / mu .* sample 0: algorithm.correction = "decoupled" does'),
        ("stale by -90", 'norm is inf, because pi_prox / mu .* sample 0: .*; write "truncated"'),
        ("far reference", "because pi_ref / pi_theta is above e.40 .*k3"),
        ("stale by nan", "^not finite: log-probabilities by the engine of s0-g000000, sample 0$"),
        ("body", DAMAGED),
        ("length", DAMAGED),
        ("token", NO_TOKEN),
    ],
)
def test_what_is_not_finite_or_cannot_be_read_changes_nothing_and_is_what_the_message_names(
    model, spoilt, named, updates
):
    trained = small_trainer(model, kl={"coefficient": 0.1}, correction="decoupled", updates_per_step=updates)
    assert isinstance(trained.reference, StageStart)
    batch, size = groups(trained), trained.model.module.config.vocab_size
    start = {name: tensor.clone() for name, tensor in trained.model.trained().items()}
    trained.reference._weights = start
    first, *others = batch[0].trajectories
    match spoilt:
        case "rewards":
            batch[1].rewards[2] = np.nan
        case "model":
            trained.model.trained()["model.norm.weight"][0] = torch.inf
        case "reference":
            start["model.norm.weight"][0] = torch.inf
        case "far reference":
            trained.model.trained()["model.norm.weight"].mul_(400.0)
        case "loss":
            trained.loss = lambda batch, settings: scaled(grpo(batch, settings), math.inf)
        case "body":
            first = replace(first, body=first.body[:-1])
        case "length":
            first = replace(first, response_length=99)
        case "token":
            tokens = np.append(first.unpack().tokens[:-1], np.int32(size))
            first = builders.repacked(first, tokens=tokens, branches=np.array([[0, 3, len(tokens) - 1]], np.int32))
        case _:
            behaviour = first.unpack().logprobs.copy()
            behaviour[1] = float(spoilt.removeprefix("stale by "))
            first = builders.repacked(first, logprobs=behaviour)
    batch[0] = replace(batch[0], trajectories=(first, *others))
    before = everything(trained)
    with pytest.raises(NotFiniteError, match=named.format(size, size - 1)):
        trained.rl_step(batch, builders.rl_stage(), 0)
    assert_same(before, everything(trained))


def test_a_gradient_that_is_not_finite_under_a_finite_loss_is_refused(model):
    def steep(batch: MicroBatch, settings: Any) -> Terms:
        terms = grpo(batch, settings)
        zero = 0.0 * (batch.logprobs - batch.logprobs.detach()).abs().sqrt()  # with the slope 0 * infinity
        return replace(terms, objective=terms.objective + zero)

    trained = small_trainer(model, updates_per_step=2)
    trained.loss = steep
    before = everything(trained)
    with pytest.raises(NotFiniteError, match=r"the gradient's norm is nan: see .*weight.* and \d+ more"):
        trained.rl_step(groups(trained), builders.rl_stage(), 0)
    assert_same(before, everything(trained))


def test_a_supervised_step_that_is_not_finite_changes_nothing(model):
    trained = small_trainer(model)
    stage = SftStage(kind="sft", steps=30, batch=4, learning_rate=1e-2, warmup_steps=2)
    batch = [([7, 20, 30, 40, 50], [0, 0, 1, 1, 1]), ([8, 21, 31], [0, 1, 1])]
    trained.sft_step(batch, stage, 0)
    before = everything(trained)
    logprobs = trained.model.logprobs
    trained.model.logprobs = lambda *given, **more: (logprobs(*given, **more)[0] * torch.nan, None)
    with pytest.raises(NotFiniteError, match="the loss is nan on a micro-batch of 2 demonstrations"):
        trained.sft_step(batch, stage, 1)
    assert_same(before, everything(trained))


def test_weights_and_moments_that_are_not_finite_are_never_written(model, tmp_path):
    trained = small_trainer(model)
    trained.rl_step(groups(trained), builders.rl_stage(), 0)
    moments = next(iter(trained.optimizer._adam.state.values()))["exp_avg"]
    moments[0] = torch.inf
    with pytest.raises(TrainingStoppedError, match="exp_avg"):
        trained.save(tmp_path / "checkpoint", Position(0, 0, 0))
    moments[0] = 0.0
    with torch.no_grad():
        trained.model.module.model.norm.weight[3] = torch.nan
    for write in (
        lambda: write_weights(trained.copy_weights(0), tmp_path / "policy.safetensors"),
        lambda: trained.share_weights(0, on_device=False),
        lambda: trained.save(tmp_path / "checkpoint", Position(0, 0, 0)),
    ):
        with pytest.raises(TrainingStoppedError, match=r"model\.norm\.weight .* not finite"):
            write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("warmup", "schedule"), [(4, "constant"), (0, "cosine"), (4, "cosine")])
def test_the_rate_rises_in_a_line_and_stays_or_falls_as_a_cosine(model, warmup, schedule):
    """To near zero at the stage's last step; and a gradient is cut to the norm that the algorithm gives."""
    trained = small_trainer(model, gradient_clip=0.7)
    given: list[tuple[float, float]] = []
    trained.optimizer.step = lambda rate, clip: given.append((rate, clip)) or 0.0
    own: dict[str, Any] = {"learning_rate": 1e-4, "warmup_steps": warmup, "steps": 9, "schedule": schedule}
    batch = groups(trained, count=1)
    for step in range(9):
        figures = trained.rl_step(batch, builders.rl_stage(**own), step)
        trained.sft_step([([7, 8], [0, 1])], SftStage(kind="sft", **own), step)
        fallen = 0.5 + 0.5 * math.cos(math.pi * (step - warmup) / (9 - warmup)) if schedule == "cosine" else 1.0
        rate = 1e-4 * ((step + 1) / warmup if step < warmup else fallen)
        assert figures.learning_rate == pytest.approx(rate)
        assert given[-2:] == [pytest.approx((rate, 0.7))] * 2


def test_the_penalty_is_from_the_policy_at_the_start_of_the_stage(model, tmp_path):
    trained = small_trainer(model, kl={"coefficient": 0.1})
    stage = builders.rl_stage(learning_rate=1e-2, warmup_steps=0)
    kls = []
    for number in range(2):
        trained.keep_reference(tmp_path / f"{number}.safetensors")
        kls += [trained.rl_step(groups(trained), stage, step).kl for step in range(2)]
    assert [each > 1e-4 for each in kls] == [False, True, False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_optimizer_is_adamw_on_clipped_gradients_with_a_rate_for_each_step(dtype):
    """The gradient is the sum over micro-batches; forgotten moments begin anew."""
    drawn = torch.Generator().manual_seed(0)
    sizes = {"a": (3, 4), "b": (5,), "frozen": (2,)}
    own = {name: torch.nn.Parameter(torch.randn(size, generator=drawn).to(dtype)) for name, size in sizes.items()}
    own["frozen"].requires_grad_(requires_grad=False)
    theirs = [torch.nn.Parameter(own[name].detach().float().clone()) for name in ("a", "b")]
    made = Optimizer(own.items(), weight_decay=0.3)
    for step, (rate, clip) in enumerate([(0.1, 100.0), (0.05, 0.5), (0.2, 0.5), (0.1, 3.0)]):
        if step % 3 == 0:
            made.reset()
            adam = torch.optim.AdamW(theirs, betas=(0.9, 0.999), weight_decay=0.3)
        made.zero_grad()
        adam.zero_grad()
        for _ in range(2):
            pulls = [torch.randn(each.shape, generator=drawn).to(dtype) for each in theirs]
            sum((own[name] * pull).sum() for name, pull in zip("ab", pulls, strict=True)).backward()
            sum((each * pull.float()).sum() for each, pull in zip(theirs, pulls, strict=True)).backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs, clip)
        assert made.step(rate, clip) == pytest.approx(float(norm), rel=1e-4)
        adam.param_groups[0]["lr"] = rate
        adam.step()
        for name, each in zip("ab", theirs, strict=True):
            assert torch.allclose(own[name].float(), each, rtol=1e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-4)


def test_supervised_steps_lower_the_loss_on_trained_tokens_alone(model):
    trained = small_trainer(model, microbatch_tokens=5)
    stage = SftStage(kind="sft", steps=30, batch=4, learning_rate=1e-2, warmup_steps=2)
    batch = [([7, 20, 30, 40, 50], [0, 0, 1, 1, 1]), ([8, 21, 31], [1, 1, 1])]
    plain = AutoModelForCausalLM.from_pretrained(model)
    said = [plain(torch.tensor([tokens])).logits[0].log_softmax(-1) for tokens, _ in batch]
    expected = -sum(said[row][at - 1, batch[row][0][at]] for row, at in ((0, 2), (0, 3), (0, 4), (1, 1), (1, 2))) / 5
    expected.backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in plain.parameters()))
    first = trained.sft_step(batch, stage, 0)
    assert first.tokens == 5
    assert (first.loss, first.gradient_norm) == pytest.approx((float(expected.detach()), norm), rel=1e-4)
    for step in range(1, 30):
        last = trained.sft_step(batch, stage, step)
    assert last.loss < first.loss / 4


@pytest.mark.parametrize("way", ["copied", "lent", "under way"])
@pytest.mark.parametrize(("cut", "target"), [(0, None), (1, None), (3, None), (3, 1e-4)])
def test_a_checkpoint_is_a_hugging_face_model_and_continues_bit_for_bit(model, tmp_path, cut, target, way):
    """Wherever it is cut, what is written is of that time, and another process that takes it up goes on alike."""
    trained, stage = small_trainer(model, updates_per_step=2, target_kl=target), builders.rl_stage(learning_rate=1e-3)
    trained.lends = way != "copied"
    batch, extra = groups(trained), {"watch": {"best": [0.5]}}
    for step in range(cut):
        trained.rl_step(batch, stage, step)
    torch.rand(3)
    staged = trained.stage(tmp_path / "checkpoint", Position(2, 1, 5), extra)
    expected = torch.rand(4)
    before = {name: tensor.clone() for name, tensor in trained.model.module.state_dict().items()}
    write, begun, goes_on = staged._write, threading.Event(), threading.Event()
    staged._write = lambda: (begun.set(), goes_on.wait(60.0), write())
    writing = threading.Thread(target=staged.write)
    following = threading.Thread(target=trained.rl_step, args=(batch, stage, cut))
    if way == "under way":
        writing.start()
        assert begun.wait(60.0)
    following.start()
    following.join(0.5 if way == "under way" else 60.0)
    assert following.is_alive() == (way == "under way")
    extra["watch"]["best"].append(0.6)
    goes_on.set()
    if way != "under way":
        writing.start()
    writing.join(60.0)
    following.join(60.0)
    tensors = [*tmp_path.glob("checkpoint/*.safetensors"), *tmp_path.glob("checkpoint/*.bin")]
    assert [path.name for path in tensors] == ["model.safetensors"], "loaders take all of these for weights"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint")
    assert AutoTokenizer.from_pretrained(tmp_path / "checkpoint").chat_template
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in before.items())
    resumed = small_trainer(model, updates_per_step=2, target_kl=target)
    resumed.rl_step(batch, stage, 0)  # it forgets what it did
    assert resumed.restore(tmp_path / "checkpoint") == (Position(2, 1, 5), {"watch": {"best": [0.5]}})
    assert torch.equal(torch.rand(4), expected)
    resumed.rl_step(batch, stage, cut)
    assert_same(everything(trained), everything(resumed))


def test_a_full_disk_leaves_no_half_checkpoint_and_no_half_weights(model, tmp_path):
    trained = small_trainer(model)
    trained.save(tmp_path / "version-1", Position(0, 0, 1))
    for size in (100, 10_000, 50_000):  # it may be any of the files that the disk refuses
        with no_file_longer_than(size):
            with pytest.raises(DiskError, match=r"version-2 cannot be written: File too large; make room"):
                trained.save(tmp_path / "version-2", Position(0, 0, 2))
            with pytest.raises(DiskError, match=r"w\.safetensors cannot be written: File too large"):
                write_weights(trained.copy_weights(0), tmp_path / "weights" / "w.safetensors")
    assert [path.name for path in tmp_path.rglob("*") if path.name.endswith((".partial", "w.safetensors"))] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["version-1", "weights"]
    assert small_trainer(model).restore(tmp_path / "version-1")[0] == Position(0, 0, 1)
    trained.save(tmp_path / "version-2", Position(0, 0, 2))
    assert small_trainer(model).restore(tmp_path / "version-2")[0] == Position(0, 0, 2)


def test_half_a_checkpoint_is_none(tmp_path):
    assert read_position(tmp_path) is None
    (tmp_path / "training").mkdir()
    (tmp_path / STATE_FILE).write_text('{"stage": 1')
    assert read_position(tmp_path) is None
    (tmp_path / STATE_FILE).write_text(json.dumps({"stage": 1}))
    assert read_position(tmp_path) is None


def test_large_optimizer_states_are_written_in_several_files(model, tmp_path, monkeypatch):
    monkeypatch.setattr("agent_rl.learning.checkpoints.SHARD_BYTES", 30_000)
    trained = small_trainer(model)
    trained.rl_step(groups(trained), builders.rl_stage(), 0)
    trained.save(tmp_path / "checkpoint", Position(0, 0, 1))
    files = list((tmp_path / "checkpoint").rglob("optimizer-*.safetensors"))
    assert len(files) > 3
    assert all(path.stat().st_size < 40_000 for path in files)
    resumed = small_trainer(model)
    resumed.restore(tmp_path / "checkpoint")
    assert_same(everything(trained), everything(resumed))


INFINITE = float("inf")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("wrong", [[float("nan")], [INFINITE], [-INFINITE], [INFINITE, -INFINITE]])
def test_one_wrong_number_among_many_is_found(dtype, wrong):
    """And none where there is none, though the sum overflows or there is nothing to sum."""
    assert is_finite(torch.full((1000,), torch.finfo(dtype).max, dtype=dtype))
    assert not_finite([("empty", torch.zeros(0, 3)), ("whole", torch.ones(3, dtype=torch.int64))]) == []
    tensor = torch.linspace(-1, 1, 10_000).to(dtype).reshape(100, 100)
    assert is_finite(tensor)
    tensor[7, : len(wrong)] = torch.tensor(wrong, dtype=dtype)
    assert not is_finite(tensor)
    assert not is_finite(tensor.t())
