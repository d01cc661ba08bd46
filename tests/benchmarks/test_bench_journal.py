"""The benchmark of the journal, small: what is to leave leaves, and packing is said to pack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_journal
from benchmarks.command import WrongOptions, call


def test_a_small_compaction_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("GROUPS", 8), ("SAMPLES", 4), ("WRITTEN_INTO_SQLITE", 2e6)):
        monkeypatch.setattr(bench_journal, name, value)
    assert call("journal", ["--gigabytes", "0.01", "--directory", str(tmp_path)]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["bytes_per_token"] < 0.4 * figures["bytes_per_token_before"]
    assert (figures["steps"], figures["journal_gb"] > 0.005) == (5.0, True)
    assert figures["left_gb"] < 0.4 * figures["journal_gb"]  # samples of the first and the last step
    assert 0 < figures["compaction_longest_s"] <= 5 * figures["compaction_s_per_step"] < 5.0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(WrongOptions, match=r"has no room for .* GB: name another --directory, or fewer --gigabytes"):
        bench_journal.compaction(1e9, tmp_path)
