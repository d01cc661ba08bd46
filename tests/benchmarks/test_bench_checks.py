"""The benchmark of answer checking: its figures, from pairs of our own, and what it says without any."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.answer_pairs import Pair
from benchmarks.bench_checks import RIGHT, accuracy, judge
from benchmarks.command import call

PAIRS = [
    {"gold": "1/2", "pred": "0.5", "equal": True},
    {"gold": "2", "pred": "3", "equal": False},
    {"gold": "1, 2", "pred": "2, 1", "equal": False},
    {"gold": "3", "pred": "pi", "equal": True},
]


def test_figures_are_the_last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS), encoding="utf-8")
    generated = ["--near-misses", "200", "--equal-pairs", "100", "--seed", "5"]
    assert call("checks", ["--quick", "--pairs", str(pairs), "--misses", *generated]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["equivalence_right"] == 0.5
    assert figures["equivalence_false_positives"] == 1
    assert figures["checks_per_s"] > 0
    assert figures["math_verify_checks_per_s"] > 0
    assert 0 <= figures["math_verify_delimited_right"] <= 1
    assert (figures["near_misses"], figures["equal_pairs"]) == (20, 10)
    assert 0 <= figures["near_misses_accepted"] <= 20
    assert 0 <= figures["equal_pairs_accepted"] <= 1


@pytest.mark.slow
def test_without_pairs_accuracy_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("checks", ["--quick", "--pairs", str(tmp_path / "none.jsonl")]) == 0
    output = capsys.readouterr().out
    assert "accuracy is not measured" in output
    assert json.loads(output.splitlines()[-1])["equivalence_right"] is None


def test_accuracy_counts_misses_and_what_was_wrongly_accepted() -> None:
    pairs = [(pair["gold"], pair["pred"], bool(pair["equal"])) for pair in PAIRS]
    found, misses = accuracy(lambda gold, prediction: True, [(str(a), str(b), c) for a, b, c in pairs])
    assert found == (2, 4, 2)
    assert misses == [1, 2]


@pytest.mark.parametrize(
    ("gold", "prediction", "verdict"),
    [("5", "5", True), ("5", "6", False), ("5", "", False), (r"\{1\}", r"\{1\}", True), ("5", "5}", True)],
)
def test_generated_pairs_are_judged_as_rollouts_are(gold: str, prediction: str, verdict: bool) -> None:
    assert judge(Pair("", "", gold, prediction)) is verdict


def test_a_fault_of_the_checker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(gold: str, prediction: str) -> bool:
        raise KeyError

    monkeypatch.setattr("benchmarks.bench_checks.answers_equal", fail)
    assert judge(Pair("", "", "5", "6")) is None


def test_short_answers_hold_both_verdicts() -> None:
    assert len(RIGHT) == 30
    assert sum(RIGHT.values()) == 26
