"""The learner benchmark: its figures, and that both sides compute the same sequences."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.command import call
from benchmarks.learner_sides import _pad

FIGURES = {
    "learner_over_hf_padded_quickstart",
    "learner_over_hf_sorted_quickstart",
    "learner_tokens_per_s_quickstart",
    "learner_peak_mib_quickstart",
    "hf_padded_peak_mib_quickstart",
}


@pytest.mark.slow
def test_a_quick_measurement_ends_with_its_figures(capfd):
    assert call("learner", ["--quick"]) == 0
    figures = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert figures.keys() >= FIGURES
    assert all(value > 0 for value in figures.values())
    assert figures["learner_peak_mib_quickstart"] > 100  # torch alone takes as much


@pytest.mark.slow
def test_memory_does_not_grow_with_lengths_that_are_ever_new(capfd):
    assert call("learner", ["--quick", "--growth", "100", "--rounds", "1"]) == 0
    figures = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert figures["learner_rss_growth_mib"] < 30
    assert figures["learner_rss_growth_unbounded_mib"] > 80


def test_rows_are_padded_on_the_right_and_trained_on_responses_alone():
    inputs, mask, labels = _pad([(torch.tensor([5, 6, 7]), 1), (torch.tensor([8, 9, 10, 11, 12]), 3)])
    assert inputs.tolist() == [[5, 6, 7, 0, 0], [8, 9, 10, 11, 12]]
    assert mask.tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert labels.tolist() == [[-100, 6, 7, -100, -100], [-100, -100, -100, 11, 12]]
