"""Charts: bins keep the time that they are given, and pages and pictures show the lanes."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.simulation.gantt import (
    MOST_BINS,
    Bins,
    Box,
    Gantt,
    GanttError,
    Lane,
    boxes_of,
    check_paths,
    html,
    png,
    write,
)

CHART = Gantt(
    "a <run>", 100.0, [Lane("engine.0", "engine", [Box(0.0, 50.0, 0.5, "half"), Box(60.0, 70.0, 1.0, "full")])]
)


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e4), st.floats(0, 1)), max_size=20))
@settings(max_examples=30)
def test_bins_keep_all_time(spans):
    bins = Bins()
    for start, seconds, share in spans:
        bins.add(start, start + seconds, share)
    assert sum(bins.seconds) == pytest.approx(sum(seconds * share for _, seconds, share in spans), rel=1e-6, abs=1e-6)
    assert len(bins.seconds) <= MOST_BINS + 1
    assert all(busy >= 0 for busy in bins.seconds)


def test_boxes_join_bins_of_one_shade_and_leave_out_what_is_idle():
    bins = Bins(width=1.0)
    bins.add(2.0, 5.0)
    bins.add(8.0, 9.0, 0.5)
    assert [(box.start, box.end, box.shade) for box in boxes_of(bins, 20.0)] == [(2.0, 5.0, 1.0), (8.0, 9.0, 0.5)]


def test_a_page_shows_each_box_and_escapes_names():
    page = html(CHART)
    assert "a &lt;run&gt;" in page
    assert page.count("engine.0, ") == 2
    assert "<script" not in page


def test_a_picture_has_the_colours_of_the_lanes(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (path,) = write(CHART, [tmp_path / "chart.png"])
    colours = {colour for _, colour in image.open(path).getcolors(1 << 20)}
    assert {(44, 140, 80), (255, 255, 255)} <= colours


def test_without_pillow_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(GanttError, match=r"install agent_rl\[png\], or name a file that ends in \.html"):
        png(CHART, tmp_path / "chart.png")


def test_other_files_are_refused(tmp_path):
    with pytest.raises(GanttError, match=r"\.html or \.png"):
        check_paths([tmp_path / "chart.svg"])
