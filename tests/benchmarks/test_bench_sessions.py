"""The benchmark of sessions: its figures, and that a cell which fails is no measurement."""

from __future__ import annotations

import json
import math

import pytest
import trio

from actors.sandbox.owner.client import Sandbox
from benchmarks.bench_sessions import KINDS, Kind, measure
from benchmarks.command import call


def test_figures_are_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    call("sessions", ["--rounds", "2"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(figures) == {f"{k}_{n}" for k in KINDS for n in ("cell_ms", "replay_ms", "snapshot_ms", "break_even")}
    assert all(figures[f"{kind}_cell_ms"] > 0 for kind in KINDS)
    assert all(math.isfinite(figures[f"{kind}_snapshot_ms"]) for kind in KINDS)  # a difference, which noise may turn


def test_a_cell_that_fails_is_no_measurement() -> None:
    async def run() -> None:
        sandbox = Sandbox()
        async with trio.open_nursery() as nursery:
            await nursery.start(sandbox.run)
            with pytest.raises(RuntimeError, match="a cell ended as error: Traceback"):
                await measure(sandbox, "x", Kind(("1/0",), "1"), 1)
            nursery.cancel_scope.cancel()

    trio.run(run)
