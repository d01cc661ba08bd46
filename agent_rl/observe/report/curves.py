"""The run's figures as plots. Thousands of steps become a few hundred places."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from agent_rl.groups.measures import wilson_interval
from agent_rl.observe.charts.lines import Line, Measurement, Plot
from agent_rl.observe.charts.scales import bins, compact, percent, spread
from agent_rl.observe.report.records import Fate, Records, Row, figure

PLACES = 160
"""Places of a chart: more than a phone can show separately, and few enough for a small page."""

FATES = {
    "trained": ("trained", 1),
    "all_right": ("dropped: every rollout right", 3),
    "all_wrong": ("dropped: every rollout wrong", 2),
    "not_selected": ("dropped: no rollout selected", 7),
    "too_few_rollouts": ("dropped: too few rollouts", 5),
    "prompt_too_long": ("dropped: prompt too long", 7),
    "stale": ("dropped: stale", 4),
    "not_finite": ("dropped: its update was not finite", 7),
    "stage_boundary": ("dropped: its stage ended", 7),
    "open": ("open", 6),
}
"""The fates of groups in words, with colours."""


CURVE_NOTE = (
    "Band and whiskers: Wilson 95\u202f% intervals. A step's rollouts come in groups of one problem and resemble each "
    "other: the step's true interval is wider than the band. Held-out problems are asked once each way."
)
FATE_NOTE = (
    "Groups that each step decided. A group whose rollouts are all right, or all wrong, teaches nothing and is dropped."
)


def learning_curve(records: Records) -> Plot:
    """Success by step on training problems, and on held-out problems where they were evaluated."""
    places = bins(len(records.steps), PLACES)
    shares, lows, highs, titles = [], [], [], []
    for place in places:
        right, trials = successes(records, place)
        share = right / trials if trials else math.nan
        low, high = wilson_interval(round(right), trials) if trials else (math.nan, math.nan)
        shares.append(share)
        lows.append(low)
        highs.append(high)
        titles.append(f"{percent(share)} (95\u202f%: {spread(low, high)}, n = {trials:,})")
    lines = [Line("training problems, sampled", shares, 1, lows, highs)] if places else []
    marks = [
        Measurement(
            label=f"held-out problems, {way}",
            x=result.steps,
            value=success.share,
            low=success.low,
            high=success.high,
            colour=2 if way == "sampled" else 3,
            shape="circle" if way == "sampled" else "square",
            title=f"evaluation {result.name}, {way}, after {result.steps} steps: {percent(success.share)} "
            f"(95\u202f%: {spread(success.low, success.high)}{_trials(success.trials)})",
        )
        for result in records.evaluations
        for way, success in result.ways.items()
    ]
    return _by_step(
        records, "Success", lines, titles, CURVE_NOTE, share=True, span=(0.0, 1.0), marks=marks, places=places
    )


def successes(records: Records, steps: range) -> tuple[float, int]:
    """Numbers of right rollouts and of all rollouts in some steps."""
    right, trials = 0.0, 0
    for row in records.steps[steps.start : steps.stop]:
        rollouts, share = figure(row, "rollouts"), figure(row, "success")
        if rollouts > 0 and 0 <= share <= 1:
            right += share * rollouts
            trials += int(rollouts)
    return right, trials


def panels(records: Records) -> list[Plot]:
    """The smaller charts, in order of interest."""
    steps = records.steps
    rewards = [figure(row, "reward") for row in steps]
    kept = [records.kept_rewards.get(int(figure(row, "version")) - 1, math.nan) for row in steps]
    curves = [("all sampled rollouts", rewards, 1), ("those trained on, after resampling", kept, 2)]
    span = (0.0, 1.0) if all(0 <= reward <= 1 for reward in rewards if math.isfinite(reward)) else None
    plots = [_panel(records, "Reward", curves, "Mean reward of the rollouts.", span=span)]
    for name, unit, note, names in _PANELS:
        curves = [(label, [figure(row, key) for row in steps], n) for n, (label, key) in enumerate(names.items(), 1)]
        plots.append(_panel(records, name, curves, note, share=unit == "share", unit=unit.removeprefix("share")))
    for name, column, key, note in (
        ("Success by environment", "environments", "success", "Share of the sampled rollouts that succeeded."),
        ("Parts of the reward", "parts", "", "Means of the parts that the judgements name."),
    ):
        objects = [each if isinstance(each := row.get(column), dict) else {} for row in steps]
        labels = sorted({label for each in objects for label in each})
        curves = [(label, [_nested(each, label, key) for each in objects], n) for n, label in enumerate(labels, 1)]
        plots.append(_panel(records, name, curves, note, share=bool(key)))
    seconds = [figure(row, "seconds") for row in steps]
    between = [math.nan, *(later - earlier for earlier, later in pairwise(seconds))]
    training = [figure(row, "train_seconds") for row in steps]
    curves = [("from step to step", between, 1), ("of them training", training, 2)]
    plots.append(_panel(records, "Time of a step", curves, "The rest of a step's time the learner waits.", unit="s"))
    return [plot for plot in plots if plot.lines]


def _nested(row: Row, label: str, key: str) -> float:
    """A figure of an object in a row, or (with ``key``) of an object inside that object."""
    inner = row.get(label)
    return figure(row, label) if not key else figure(inner, key) if isinstance(inner, dict) else math.nan


_PANELS = (
    (
        "Tool errors",
        "share",
        "Calls that did not end in success. Resampling prefers correct rollouts with few of them.",
        {"of all calls": "tool_error_share", "of those in correct rollouts": "tool_error_share_correct"},
    ),
    (
        "Response length",
        "tokens",
        "Tokens after the prompt, tool responses included.",
        {"mean": "response_tokens"},
    ),
    ("Turns and tool calls", "", "Means over rollouts.", {"turns": "turns", "tool calls": "tool_calls"}),
    ("Truncated rollouts", "share", "Rollouts that ran out of tokens.", {"share": "truncated_share"}),
    ("Entropy", "nats", "Mean over trained tokens, at the rollouts' temperature.", {"of the policy": "entropy"}),
    (
        "Divergence from the reference policy",
        "nats",
        "Estimate of the KL penalty, as a mean over trained tokens.",
        {"of the policy": "kl"},
    ),
    (
        "Staleness",
        "versions",
        "How many versions a group's oldest token is behind the policy that trains on it.",
        {"mean": "staleness_mean", "highest": "staleness_max"},
    ),
    (
        "Clipped tokens",
        "share",
        "Share of trained tokens whose gradient was cut.",
        {"by the ratio's bounds": "clip_share", "by the correction's cap": "correction_capped_share"},
    ),
    (
        "Policy and engine",
        "nats",
        "Mean |log p(learner, before the step) - log p(engine, when sampled)|, and its two parts on a sample.",
        {
            "whole gap of log-probabilities": "policy_gap",
            "engine against learner, same weights": "mismatch_gap",
            "staleness": "staleness_gap",
        },
    ),
    ("Gradient norm", "", "Mean over a step's updates.", {"before clipping": "gradient_norm"}),
    ("Learning rate", "", "Warm-up and schedule of the stage.", {"rate": "learning_rate"}),
)
"""Name, unit (or share), note, and the figures of a step by label, in the order of the colours."""


def _panel(
    records: Records,
    name: str,
    curves: Sequence[tuple[str, Sequence[float], int]],
    note: str,
    *,
    unit: str = "",
    **options: Any,
) -> Plot:
    """Curves of means. Where a place pools several steps, a band shows their lowest and highest figure."""
    places = bins(len(records.steps), PLACES)
    lines = []
    for label, values, colour in curves:
        inside = [[v for v in values[place.start : place.stop] if math.isfinite(v)] for place in places]
        means = [sum(each) / len(each) if each else math.nan for each in inside]
        if not any(map(math.isfinite, means)):
            continue
        pooled = len(places) < len(records.steps)
        low = [min(each, default=math.nan) for each in inside] if pooled else None
        high = [max(each, default=math.nan) for each in inside] if pooled else None
        lines.append(Line(label, means, colour, low, high))
    say: Callable[[float], str] = percent if options.get("share") else lambda value: f"{compact(value)} {unit}".strip()
    titles = [", ".join(f"{line.label} {say(line.values[i])}" for line in lines) for i in range(len(places))]
    return _by_step(records, name, lines, titles, note, unit=unit, places=places, **options)


def _by_step(
    records: Records,
    name: str,
    lines: Sequence[Line],
    titles: Sequence[str],
    note: str,
    *,
    places: Sequence[range],
    stacked: bool = False,
    **options: Any,
) -> Plot:
    """A plot over RL steps. A bar begins where the bar before it ends."""
    return Plot(
        name=name,
        lines=lines,
        starts=[place.start + (not stacked) for place in places],
        ends=[place.stop for place in places],
        titles=[f"{_steps(place)}: {title}" for place, title in zip(places, titles, strict=True)],
        note=note,
        x_high=max(1.0, float(len(records.steps))),
        boundaries=boundaries(records),
        stacked=stacked,
        **options,
    )


def boundaries(records: Records) -> list[tuple[float, str]]:
    """Where RL stages begin, when there are several: (steps before, name)."""
    stages: list[tuple[float, str]] = []
    for index, row in enumerate(records.steps):
        name = str(row.get("stage"))
        if not stages or stages[-1][1] != name:
            stages.append((float(index), name))
    return stages if len(stages) > 1 else []


def fate_totals(fates: Sequence[Fate]) -> list[tuple[str, str, int, int]]:
    """(fate, words, colour, count) of every fate that occurred, in the order of FATES."""
    counts: dict[str, int] = {}
    for each in fates:
        counts[each.fate] = counts.get(each.fate, 0) + each.count
    order = [*FATES, *sorted(counts.keys() - FATES.keys())]
    return [(fate, *FATES.get(fate, (f"dropped: {fate}", 7)), counts[fate]) for fate in order if counts.get(fate)]


def fate_plot(records: Records) -> Plot | None:
    """Groups by fate and step; None when no step decided any group."""
    at = {
        int(figure(row, "version")) - 1: index for index, row in enumerate(records.steps) if figure(row, "version") > 0
    }
    known = [each for each in records.fates if each.step in at]
    if not known:
        return None
    places = bins(len(records.steps), PLACES)
    size = len(places[0])
    lines = []
    for fate, words, colour, _ in fate_totals(known):
        sums = [0.0] * len(places)
        for each in known:
            if each.fate == fate and each.step is not None:
                sums[at[each.step] // size] += each.count
        means = [total / len(place) for total, place in zip(sums, places, strict=True)]
        lines.append(Line(words, means, colour))
    titles = [
        ", ".join(f"{line.label} {compact(line.values[i])}" for line in lines if line.values[i])
        for i in range(len(places))
    ]
    return _by_step(records, "Groups by fate", lines, titles, FATE_NOTE, unit="groups", stacked=True, places=places)


def supervised_plot(losses: Sequence[tuple[float, float]], name: str) -> Plot | None:
    """The loss of a supervised stage."""
    if not losses:
        return None
    places = bins(len(losses), PLACES)
    means = [sum(loss for _, loss in losses[p.start : p.stop]) / len(p) for p in places]
    return Plot(
        name=f"Supervised loss, stage {name}",
        lines=[Line("cross-entropy of a batch", means, 1)],
        starts=[losses[place.start][0] for place in places],
        ends=[losses[place.stop - 1][0] for place in places],
        titles=[f"step {losses[p.start][0]:.0f}: {compact(mean)}" for p, mean in zip(places, means, strict=True)],
        note="As the learner reported it, about once a second.",
        unit="nats",
        x_label="supervised step",
    )


def _steps(place: range) -> str:
    return f"step {place.start + 1}" if len(place) == 1 else f"steps {place.start + 1} to {place.stop}"


def _trials(trials: int | None) -> str:
    return "" if trials is None else f", n = {trials:,}"
