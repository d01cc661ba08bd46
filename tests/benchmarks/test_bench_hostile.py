from __future__ import annotations

import json

import pytest

from benchmarks.bench_hostile import WORST_RATIO, Heard, reaching
from benchmarks.command import call
from benchmarks.hostile import shares
from tests.actors.sandbox.running import groups_or_skip, require

FIGURES = {"attacks", "broken", "quiet_p95_ms", "neighbour_p95_ratio", "neighbour_timeouts", "neighbours_harmed"}


def test_the_attacks_on_shares_are_many_and_no_two_are_the_same():
    attacks = shares.ATTACKS
    assert len(attacks) >= 20
    assert len({attack.code for attack in attacks}) == len(attacks)
    assert not {attack.name for attack in attacks} & {attack.name for attack in reaching()}
    for attack in attacks:
        compile(attack.code, attack.name, "exec")


def test_the_p95_of_few_calls():
    assert Heard([0.1] * 96 + [2.0] * 4).p95 == pytest.approx(0.1)
    assert Heard([3.0]).p95 == 3.0
    assert Heard().p95 == 0.0


@pytest.mark.slow
def test_a_few_attacks_briefly(capsys):
    require("strong")
    code = call("hostile", ["--quick"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures.keys() >= FIGURES
    assert figures["attacks"] >= 2
    assert figures["quiet_p95_ms"] > 0
    assert code == (1 if figures["broken"] else 0)
    assert figures["neighbours_harmed"] == 0


@pytest.mark.slow
def test_many_processes_or_sessions_do_not_starve_neighbours(capsys):
    require("strong")
    groups_or_skip("cpu")
    call("hostile", ["--only", "spin-32", "sessions", "threads", "--seconds", "1.5"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (figures["neighbour_timeouts"], figures["neighbours_harmed"]) == (0, 0)
    assert figures["neighbour_p95_ratio"] < 2 * WORST_RATIO
