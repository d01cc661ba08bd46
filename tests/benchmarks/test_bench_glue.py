from __future__ import annotations

import json

from benchmarks.command import call


def test_our_glue_loses_nothing_when_its_reader_is_cancelled_again_and_again(capfd):
    assert call("glue", ["--seconds", "0.1", "--rounds", "1", "--messages", "1000"]) == 0
    figures = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert figures["ours_lost"] == 0
    assert all(figures[f"ours_per_s_{size}"] > 0 for size in ("1k", "8k", "1m"))
