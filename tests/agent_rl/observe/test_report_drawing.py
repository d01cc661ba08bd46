"""The parts a report is made of: escaping, scales, charts, time on one axis."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agent_rl.groups import instructions as group_instructions
from agent_rl.observe.charts.lines import SMALL, Line, Measurement, Plot, line_chart, style
from agent_rl.observe.charts.markup import join, tag, text, visible
from agent_rl.observe.charts.scales import (
    Scale,
    axis_labels,
    bins,
    clock,
    compact,
    duration,
    extent,
    percent,
    spread,
    ticks,
    time_ticks,
)
from agent_rl.observe.report.activity import activity, binned, load, totals
from agent_rl.observe.report.curves import FATES
from tests.agent_rl.records.report_runs import Page

finite = st.floats(-1e12, 1e12)
HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "<!--",
    "]]>",
    "&lt;b&gt;",
    "&#60;b>",
    "a\x00b\x1b[31m",
    "\u202egnp.exe",
    "\ud800",
    "</pre></details></body></html>",
)


# Escaping -------------------------------------------------------------------------------------------------------------


class Heard(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.words = ""
        self.attributes: dict[str, str | None] = {}
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= dict(attrs)

    def handle_data(self, data: str) -> None:
        self.words += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


anything = st.one_of(st.text(), st.text(alphabet="<>&\"'/!-;#xscript= "), st.sampled_from(HOSTILE))


@given(anything)
def test_any_text_is_shown_as_that_text_and_opens_no_element(words: str) -> None:
    heard = Heard(tag("p", words, title=words))
    assert heard.tags == ["p"]
    assert heard.words == visible(words)
    assert heard.attributes == {"title": visible(words)}


@given(anything)
def test_what_is_shown_can_be_written_as_utf_8_and_holds_nothing_that_reorders_or_controls(words: str) -> None:
    shown = visible(words)
    shown.encode()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)
    assert visible(shown) == shown


def test_only_markup_made_here_passes_through() -> None:
    assert tag("b", tag("i", "<")) == "<b><i>&lt;</i></b>"
    assert join("<", text("<"), None) == "&lt;&lt;"
    assert tag("a", class_="x", stroke_width=1.26, id=None) == '<a class="x" stroke-width="1.3"></a>'


# Scales ---------------------------------------------------------------------------------------------------------------


@given(finite, st.floats(1e-9, 1e12), st.integers(1, 12))
def test_ticks_are_round_inside_and_about_as_many_as_wanted(low: float, width: float, count: int) -> None:
    high = low + width
    assume(width > 1e-6 * abs(low))
    found = ticks(low, high, count)
    assert len(found) <= count + 1
    slack = 1e-6 * (high - low) + 1e-6 * abs(low)
    assert all(low - slack <= mark <= high + slack for mark in found)
    assert found == sorted(set(found))


def test_ticks_of_axes_people_know() -> None:
    assert ticks(0, 1, 5) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(0, 110, 12) == pytest.approx([0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110])
    assert ticks(3, 3, 4) == [3]


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=20))
def test_an_axis_holds_every_finite_figure_and_is_never_empty(values: list[float]) -> None:
    low, high = extent(values)
    assert low < high
    known = [value for value in values if math.isfinite(value)]
    slack = 1e-6 * (high - low)
    assert all(low - slack <= value <= high + slack for value in known)
    if all(value >= 0 for value in known):
        assert low == 0


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), finite)
def test_a_scale_never_leaves_the_page(low: float, width: float, value: float) -> None:
    scale = Scale(low, low + width, 20.0, 300.0)
    assert 20.0 <= scale(value) <= 300.0
    assert scale(low) == 20.0
    assert scale(low + width) == 300.0


@given(st.integers(0, 5000), st.integers(1, 300))
def test_bins_take_every_place_once_and_are_not_too_many(count: int, limit: int) -> None:
    found = bins(count, limit)
    assert [place for each in found for place in each] == list(range(count))
    assert len(found) <= limit
    assert len({len(each) for each in found[:-1]}) <= 1


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (percent(0.1234), "12.3\u202f%"),
        (percent(0.0041), "0.41\u202f%"),
        (percent(0.0), "0.0\u202f%"),
        (percent(math.nan), "\u2013"),
        (spread(0.1, 0.2), "10.0 to 20.0\u202f%"),
        (compact(1234.5), "1,234"),
        (compact(0.01234), "0.0123"),
        (compact(2_500_000), "2.5\u202fM"),
        (compact(1.8e-6), "1.8e-06"),
        (compact(math.inf), "\u2013"),
        (duration(42), "42\u202fs"),
        (duration(385), "6.4 minutes"),
        (duration(7200), "2.0 hours"),
        (duration(86400 * 3), "3.0 days"),
        (clock(65), "1:05"),
        (clock(3661), "1:01:01"),
    ],
)
def test_figures_in_words(said: str, words: str) -> None:
    assert said == words


def test_axis_labels_have_the_decimals_their_distance_needs() -> None:
    assert axis_labels([0, 0.2, 0.4], share=True) == ["0\u202f%", "20\u202f%", "40\u202f%"]
    assert axis_labels([0, 0.005, 0.01], share=False) == ["0.000", "0.005", "0.010"]
    assert axis_labels([0, 5000, 10000], share=False) == ["0", "5k", "10k"]
    assert axis_labels([0, 1e-6], share=False) == ["0", "1e-06"]


@given(st.floats(0.5, 1e7), st.integers(2, 12))
def test_moments_are_within_the_run_and_not_too_many(seconds: float, count: int) -> None:
    marks = time_ticks(seconds, count)
    assert marks[0] == 0
    assert marks[-1] <= seconds
    assert len(marks) <= count + 2


# Charts ---------------------------------------------------------------------------------------------------------------


def plot(*lines: Line, **changes: object) -> Plot:
    count = len(lines[0].values)
    steps = [float(index + 1) for index in range(count)]
    titles = [f"step {index + 1}" for index in range(count)]
    return Plot("Thing", lines, steps, steps, titles, **changes)  # type: ignore[arg-type]


def drawn(chart: str, class_: str) -> list[str]:
    """The path data of elements of a class."""
    return [
        attributes["d"] or ""
        for name, attributes, _ in Page(chart).elements
        if name == "path" and class_ in (attributes.get("class") or "").split()
    ]


def test_a_curve_passes_through_its_figures_and_has_gaps_where_there_are_none() -> None:
    chart = line_chart(plot(Line("a", [0.0, 1.0, math.nan, 1.0, 0.0], 1), span=(0.0, 1.0), x_high=5))
    (curve,) = drawn(chart, "curve")
    strokes = [[tuple(map(float, point.split())) for point in part.split("L")] for part in curve.split("M")[1:]]
    assert [len(stroke) for stroke in strokes] == [2, 2]
    (first, second), (third, fourth) = strokes
    assert first[1] == fourth[1] == SMALL.height - 34  # the axis
    assert second[1] == third[1] == 10
    assert first[0] < second[0] < third[0] < fourth[0]


def test_a_single_step_is_a_dot_with_its_interval() -> None:
    chart = line_chart(plot(Line("a", [0.5], 1, [0.4], [0.6])))
    assert Page(chart).texts("circle") == [""]
    (band,) = drawn(chart, "band")
    assert band.endswith("Z")


def test_stacked_bars_lie_on_each_other() -> None:
    chart = line_chart(plot(Line("a", [2.0], 1), Line("b", [3.0], 2), stacked=True, span=(0.0, 5.0), x_high=1))
    lower, upper = (list(map(float, re.findall(r"[MVH ]([\d.]+)", bar))) for bar in drawn(chart, "bar"))
    axis, top = SMALL.height - 34, 10
    assert lower[1] == axis
    assert lower[2] == upper[1] == pytest.approx(axis + (top - axis) * 2 / 5, abs=0.1)
    assert upper[2] == top


@given(
    st.lists(st.floats(width=32), min_size=1, max_size=30),
    st.booleans(),
    st.text(max_size=8),
)
def test_any_figures_make_a_chart_whose_points_are_on_the_page(values: list[float], share: bool, name: str) -> None:
    line = Line(name, values, 1, values, values)
    mark = Measurement(name, 1.0, 0.5, 0.4, 0.6, 2, "circle", name)
    chart = line_chart(plot(line, share=share, marks=[mark], boundaries=[(0.0, name), (1.0, name)]))
    assert "nan" not in re.sub(r"<title>.*?</title>|aria-label=\"[^\"]*\"|<text.*?</text>", "", chart, flags=re.DOTALL)
    for each in drawn(chart, "curve") + drawn(chart, "band"):
        for x, y in re.findall(r"([\d.-]+) ([\d.-]+)", each):
            assert -2 <= float(x) <= SMALL.width
            assert 0 <= float(y) <= SMALL.height


def test_a_chart_says_in_words_what_it_draws() -> None:
    chart = line_chart(plot(Line("success", [0.25, 0.5, 0.75], 1), share=True))
    (svg,) = [attributes for name, attributes, _ in Page(chart).elements if name == "svg"]
    assert svg["role"] == "img"
    said = (svg["aria-label"] or "").replace("\u202f", " ")
    assert said == "Thing, by RL step. success: from 25.0 % to 75.0 %, lowest 25.0 %, highest 75.0 %."
    assert Page(chart).texts("title") == ["step 1", "step 2", "step 3"]


def test_text_can_be_read_and_curves_be_told_from_the_page_in_both_colour_schemes() -> None:
    schemes = re.findall(r":root \{(.*?)\}", style(), flags=re.DOTALL)
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6})", scheme)) for scheme in schemes[:2])
    assert light.keys() == dark.keys()
    for colours in (light, dark):
        grounds = ("page", "card", "warn-ground", "chip", "model-ground", "tool-ground")
        pairs = [(ink, ground, 4.5) for ink in ("ink", "quiet") for ground in grounds]
        pairs += [("good", "good-ground", 4.5), ("bad", "bad-ground", 4.5), ("accent", "page", 4.5)]
        pairs += [("accent", "model-ground", 4.5), ("bad", "tool-ground", 4.5)]
        pairs += [(f"c{index}", "card", 3.0) for index in range(1, 8)]
        for ink, ground, least in pairs:
            assert contrast(colours[ink], colours[ground]) >= least, (ink, ground)


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_every_reason_to_drop_a_group_has_words_of_its_own() -> None:
    reasons = {getattr(group_instructions, name) for name in dir(group_instructions) if name.isupper()}
    reasons = {reason for reason in reasons if isinstance(reason, str)}
    assert len(reasons) >= 4
    assert reasons - FATES.keys() == {group_instructions.EQUAL_REWARDS}  # it is told apart: all right, or all wrong


# Time -----------------------------------------------------------------------------------------------------------------


def row(
    wall: float, busy: float = 0.5, waiting_for: str = "", waited: float = 0.0, **more: object
) -> dict[str, object]:
    said = {"busy": busy, "cpu": busy, "waiting_for": waiting_for, "waited": waited}
    return {"wall": wall, "seconds": 1.0, "actors": {"learner.0": said}, **more}


def test_the_time_between_two_starts_of_a_run_is_left_out() -> None:
    active = activity([row(11.0), row(12.0), row(500.0), row(501.0, cores=2)])
    assert active.seconds == 4.0
    assert active.gaps == (2.0,)
    assert active.cores == 2
    assert active.place(11.5) == 1.5
    assert active.place(499.5) == 2.5
    assert active.place(300.0) == 2.0  # between the starts
    assert active.place(9999.0) == 4.0
    assert active.place(math.nan) is None


def test_shares_of_an_actors_time_by_whom_it_waited_for() -> None:
    active = activity(
        [row(1.0, 0.75, "roc_filter: step 12, 3 of its groups", 1.0), row(2.0, 0.25, "learner: a policy", 0.5)]
    )
    share = totals(active.spans)["learner.0"]
    assert share.busy == 0.5
    assert share.waiting == {"roc_filter": 0.125, "learner": 0.25}  # never more than what is left of busy
    assert share.words == {"roc_filter: step of its groups": 0.125, "learner: a policy": 0.25}
    assert load(active.spans) == 0.5


@given(st.lists(st.tuples(st.floats(0.5, 9.0), st.floats(0.0, 1.0)), min_size=1, max_size=60), st.integers(1, 20))
def test_fewer_spans_hold_the_same_busy_time(rows: list[tuple[float, float]], count: int) -> None:
    wall, timeline = 0.0, []
    for seconds, busy in rows:
        wall += seconds
        timeline.append(row(wall, busy) | {"seconds": seconds})
    active = activity(timeline)
    few = binned(active.spans, count)
    assert len(few) <= max(count, 1)
    assert few[-1].end == pytest.approx(active.seconds)

    def busy_seconds(spans: object) -> float:
        return sum((span.end - span.start) * span.actors["learner.0"].busy for span in spans)  # type: ignore[attr-defined]

    assert busy_seconds(few) == pytest.approx(busy_seconds(active.spans))


def test_many_replicas_are_one_lane_a_role() -> None:
    actors = {f"rollout_generator.{index}": {"busy": index % 2, "cpu": 1.0} for index in range(20)}
    active = activity([{"wall": 1.0, "seconds": 1.0, "actors": actors}])
    share = totals(active.spans)["rollout_generator"]
    assert active.lanes() == ["rollout_generator"]
    assert share.busy == pytest.approx(0.5)
    assert share.cpu == 20.0


def test_rows_that_make_no_sense_are_no_figures() -> None:
    strange = {"learner.0": {"busy": "much", "cpu": None, "waited": math.nan}, "roc_filter.0": 3}
    active = activity([{"wall": 1.0, "seconds": 1.0, "actors": strange}])
    assert active.lanes() == ["learner.0"]
    assert totals(active.spans)["learner.0"].busy == 0.0
    assert math.isnan(load([]))
