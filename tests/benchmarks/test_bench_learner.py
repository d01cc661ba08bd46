"""The learner benchmark: its figures, and that both sides compute the same sequences."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import bench_learner
from benchmarks.bench_learner import save_model, side
from benchmarks.command import Failure, call
from benchmarks.learner_sides import Row, Setting, Spent, pad


@pytest.mark.slow
def test_a_quick_measurement_ends_with_its_figures(capfd):
    assert call("learner", ["--quick"]) == 0
    figures = json.loads(capfd.readouterr().out.splitlines()[-1])
    for figure in ("learner_over_best_hf_small", "learner_over_best_hf_last_small"):
        assert 0 < figures[f"{figure}_low"] <= figures[figure] <= figures[f"{figure}_high"]
        assert figures[f"{figure}_processor"] > 0
    assert figures["best_hf_small"] in SETTINGS
    assert figures["best_hf_last_small"].removesuffix("-last") in SETTINGS
    assert figures["learner_peak_mib_small"] > 100  # torch alone takes as much


SETTINGS = {f"{kind}-{batch}-{how}" for kind in ("padded", "sorted") for batch in (1, 8) for how in ("sdpa", "eager")}


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    model = tmp_path_factory.mktemp("model") / "model"
    save_model("quickstart", model)
    return Setting(
        model=model,
        sequences=6,
        scale=0.1,
        threads=1,
        device="cpu",
        dtype="float32",
        microbatch_tokens=256,
        vocabulary=100,
    )


@pytest.mark.parametrize("name", ["padded-1-sdpa", "sorted-4-eager", "padded-4-sdpa-last", "sorted-1-sdpa-last"])
def test_both_sides_compute_the_same_gradient(setting, name):
    work = setting.work(3)
    ours, other = side("ours", setting).update(work, 3), side(name, setting).update(work, 3)
    assert other.norm == pytest.approx(ours.norm, rel=1e-4)
    assert ours.norm > 0


class Fake:
    """A side whose updates take these seconds, one after the other."""

    def __init__(self, *seconds: float, norm: float = 1.0) -> None:
        self._seconds, self._norm = list(seconds), norm

    def update(self, work: object, seed: int) -> Spent:
        del work, seed
        seconds = self._seconds.pop(0)
        return Spent(seconds, seconds, self._norm)


def test_of_each_batch_the_faster_attention_is_measured_and_slow_batches_are_left_out(monkeypatch, setting):
    fakes = {
        "ours": Fake(5, 1, 1, 1),
        "padded-1-sdpa": Fake(1, 3, 3, 3),
        "padded-1-eager": Fake(9, 2, 2, 2),
        "padded-8-sdpa": Fake(1, 5),
        "padded-8-eager": Fake(1, 6),
    }
    monkeypatch.setattr(bench_learner, "side", lambda name, _: fakes[name])
    choices = [[f"padded-{batch}-{attention}" for attention in ("sdpa", "eager")] for batch in (1, 8)]
    spent = bench_learner.compare(setting, choices, 2)
    assert {name: [one.seconds for one in of] for name, of in spent.items()} == {
        "ours": [1, 1],
        "padded-1-eager": [2, 2],
    }


def test_other_gradients_are_not_compared(monkeypatch, setting):
    fakes = {"ours": Fake(1), "padded-1-sdpa": Fake(1, norm=1.1)}
    monkeypatch.setattr(bench_learner, "side", lambda name, _: fakes[name])
    with pytest.raises(Failure, match=r"gradients differ: norm 1\.0+ of ours, 1\.10+ of padded-1-sdpa"):
        bench_learner.compare(setting, [["padded-1-sdpa"]], 1)


@pytest.mark.slow
def test_memory_does_not_grow_with_lengths_that_are_ever_new(capfd):
    assert call("learner", ["--quick", "--growth", "100", "--rounds", "1"]) == 0
    figures = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert figures["learner_rss_growth_mib"] < 30
    assert figures["learner_rss_growth_unbounded_mib"] > 80


def test_rows_are_padded_on_the_right_and_trained_on_responses_alone():
    rows = [Row(torch.tensor([5, 6, 7]), 1, 1.0), Row(torch.tensor([8, 9, 10, 11, 12]), 3, -1.0)]
    inputs, mask, labels = pad(rows)
    assert inputs.tolist() == [[5, 6, 7, 0, 0], [8, 9, 10, 11, 12]]
    assert mask.tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert labels.tolist() == [[6, 7, -100, -100, -100], [-100, -100, 11, 12, -100]]


@pytest.mark.slow
def test_ranks_are_compared_with_one(capfd):
    assert call("learner", ["--ranks", "1,2,1x2", "--quick", "--rounds", "2"]) == 0
    figures = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert figures["ranks_gradient_difference"] <= 1e-5
    assert figures["ranks_update_difference"] <= 1e-2
    assert figures["memory_share_per_rank"] <= 1.1 / 2
    assert min(figures[f"tokens_per_s_ranks_{layout}"] for layout in ("1", "2", "1x2")) > 0


@pytest.mark.parametrize("layouts", ["1,two", "1,0x2", "1,2x2x2"])
def test_numbers_of_ranks_are_numbers(capfd, layouts):
    assert call("learner", ["--ranks", layouts, "--quick"]) == 2
    assert "write numbers of ranks" in capfd.readouterr().err
