"""A restarted process is newer than its predecessor, whatever is done to the clock."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import pytest

from agent_rl.records.run_directory import RESTARTS, RunRefused, is_first, next_start, read_epoch, run_clock


def test_later_starts_are_higher_though_the_clock_is_set_back(tmp_path: Path) -> None:
    clock = iter([2_000_000_000.0, 5.0, 5.0, 1_000_000_000.0, 3_000_000_000.0])
    starts = [next_start(tmp_path, ["a"], lambda: next(clock)) for _ in range(5)]
    assert starts == [2_000_000_000, 2_000_000_001, 2_000_000_002, 2_000_000_003, 3_000_000_000]
    incarnations = [start * RESTARTS + restart for start in starts for restart in (0, 1, RESTARTS - 1)]
    assert all(one < other for one, other in itertools.pairwise(incarnations))
    assert [is_first(incarnation) for incarnation in incarnations] == [True, False, False] * 5
    assert max(incarnations) < 1 << 63


def test_hosts_that_share_a_directory_count_for_themselves(tmp_path: Path) -> None:
    assert next_start(tmp_path, ["a"], lambda: 100.0) == 100
    assert next_start(tmp_path, ["b"], lambda: 50.0) == 50
    assert next_start(tmp_path, ["a", "b"], lambda: 0.0) == 101  # both from one supervisor
    assert next_start(tmp_path, ["b"], lambda: 0.0) == 102
    assert next_start(tmp_path, ["a", "b"], lambda: 0.0) == 103


@pytest.mark.parametrize("written", ["", "many", "9" * 30, str(1 << 50)])
def test_after_a_disk_that_stopped_a_number_is_newer_than_the_file(tmp_path: Path, written: str) -> None:
    file = tmp_path / "starts.a"
    file.write_text(written)
    os.utime(file, (500, 500))
    assert next_start(tmp_path, ["a"], lambda: 100.0) == 501
    assert next_start(tmp_path, ["a"], lambda: 100.0) == 502


def test_a_folder_in_the_place_of_the_number_is_named(tmp_path: Path) -> None:
    (tmp_path / "starts.a").mkdir()
    with pytest.raises(RunRefused, match=r"starts\.a cannot be read \(it is no regular file\)"):
        next_start(tmp_path, ["a"])


def test_setting_the_clock_changes_no_runs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = run_clock(read_epoch())
    before = clock()
    assert abs(before - time.time()) < 1.0
    monkeypatch.setattr(time, "time", lambda: 5.0)
    assert 0.0 <= clock() - before < 10.0
