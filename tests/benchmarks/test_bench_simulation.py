"""The benchmark of simulations: both levels of one small step."""

import json

import pytest

from benchmarks.bench_simulation import Options, main
from benchmarks.command import WrongOptions


def test_it_prints_what_both_levels_say(capsys):
    main(Options(engines=1, groups=1))
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["simulation_s"] > figures["simulation_fast_s"] > 0
    assert figures["simulation_mib"] > 50
    for name in ("makespan_s", "group_run_p50_s"):
        assert figures[f"twin_over_fast.{name}"] == figures[f"twin.{name}"] / figures[f"fast.{name}"]
        assert 0.5 < figures[f"twin_over_fast.{name}"] < 2


@pytest.mark.parametrize("options", [Options(engines=0), Options(groups=0), Options(steps=0)])
def test_nothing_cannot_be_simulated(options):
    with pytest.raises(WrongOptions, match="at least 1"):
        main(options)
