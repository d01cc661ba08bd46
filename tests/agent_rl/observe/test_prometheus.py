"""Metrics as text, read back with Prometheus' own parser."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from agent_rl.figures import RolloutMeans
from agent_rl.messages import Metric
from agent_rl.observe.prometheus import Histogram, MetricsBoard, counter, gauge
from tests import builders


def status(*metrics, actor="tool_executor.0", **figures):
    return builders.status(actor, *metrics, busy=3.5, cpu=4.5, **figures)


def read(*statuses, now=0.0):
    """The families by name, each with its samples as (name, labels, value)."""
    board = MetricsBoard()
    for each in statuses:
        board.observe(each, 0.0)
    families = list(text_string_to_metric_families(board.text(now)))
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    return {family.name: family for family in families}


def test_a_histogram_counts_and_a_bound_belongs_to_the_bucket_it_ends():
    histogram = Histogram((0.1, 1.0))
    for value in (0.0, 0.1, 0.11, 1.0, 7.0, 2000.0):
        histogram.observe(value)
    family = read(status(histogram.metric("wait_seconds", "Waiting.", kind="x")))["agent_rl_wait_seconds"]
    assert (family.type, family.documentation) == ("histogram", "Waiting.")
    labels = {"actor": "tool_executor.0", "role": "tool_executor", "kind": "x"}
    assert all(labels.items() <= sample.labels.items() for sample in family.samples)
    found = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    assert found == {
        ("agent_rl_wait_seconds_bucket", "0.1"): 2,
        ("agent_rl_wait_seconds_bucket", "1.0"): 4,
        ("agent_rl_wait_seconds_bucket", "+Inf"): 6,
        ("agent_rl_wait_seconds_count", None): 6,
        ("agent_rl_wait_seconds_sum", None): pytest.approx(2008.21),
    }


def test_every_actors_figures_and_times_are_there_and_the_newest_status_counts():
    old = status(counter("tool_calls_total", 1, "Calls.", outcome="success"), queue=7)
    new = status(
        counter("tool_calls_total", 5, "Calls.", outcome="success"), counter("tool_calls_total", 2, "", outcome="error")
    )
    other = status(counter("tool_calls_total", 9, "Calls.", outcome="error"), actor="tool_executor.1", queue=3)
    families = read(old, new, other, now=2.0)
    calls = {(s.labels["actor"], s.labels["outcome"]): s.value for s in families["agent_rl_tool_calls"].samples}
    assert calls == {
        ("tool_executor.0", "success"): 5,
        ("tool_executor.0", "error"): 2,
        ("tool_executor.1", "error"): 9,
    }
    assert families["agent_rl_tool_calls"].type == "counter"
    assert [(s.labels["actor"], s.value) for s in families["agent_rl_queue"].samples] == [("tool_executor.1", 3)]
    assert [s.value for s in families["agent_rl_status_age_seconds"].samples] == [2, 2]
    assert [s.value for s in families["agent_rl_busy_seconds"].samples] == [3.5, 3.5]
    assert {s.labels["state"] for s in families["agent_rl_state"].samples} == {"running"}


def test_numbers_that_are_none_are_spelt_as_the_format_does():
    families = read(status(gauge("a", math.nan, ""), gauge("b", math.inf, ""), gauge("c", -math.inf, "")))
    values = [families[f"agent_rl_{name}"].samples[0].value for name in "abc"]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf]


def test_a_name_with_two_kinds_has_the_first_and_the_scrape_stays_whole():
    families = read(
        status(gauge("calls_total", 1, ""), calls_total=2),
        status(counter("calls", 3, ""), actor="a.0"),
        status(actor="b.0"),
    )
    (calls,) = families["agent_rl_calls_total"].samples
    assert (calls.labels["actor"], calls.value) == ("tool_executor.0", 1)
    assert len(families["agent_rl_state"].samples) == 3


def test_a_metric_that_is_made_wrongly_is_left_out_and_the_rest_is_read():
    wrong = [
        Metric("a", "histogram", "", (1.0, 2.0), {}, (0.5,)),
        Metric("b", "histogram", "", (), {}, ()),
        Metric("c", "gauge", "", ()),
        Metric("d", "counter", "", (1.0, 2.0)),
    ]
    families = read(status(*wrong, gauge("e", 5, "")))
    assert {name.removeprefix("agent_rl_") for name in families} & set("abcde") == {"e"}


@given(st.text(), st.text(), st.text(min_size=1), st.floats(allow_nan=False))
def test_whatever_names_and_labels_say_can_be_read(name, label, figure, value):
    odd = Metric("x" + figure, "gauge", label, (value,), {name: label})
    families = read(status(gauge(f"x{name}", value, label, what=label), odd, **{figure: 1}))
    samples = [sample for family in families.values() for sample in family.samples]
    assert any(sample.value == value and sample.labels.get("what") == label for sample in samples)


def test_figures_of_environments_have_their_name_as_a_label():
    means = {"maths": RolloutMeans(success=0.25, parts={"tests": 0.5}), "sql": RolloutMeans(success=0.5)}
    families = read(status(actor="learner.0", stages=1, environments=means))
    found = {s.labels["environment"]: s.value for s in families["agent_rl_environment_success"].samples}
    assert found == {"maths": 0.25, "sql": 0.5}
    (part,) = families["agent_rl_environment_part"].samples
    assert (part.labels["environment"], part.labels["part"], part.value) == ("maths", "tests", 0.5)
