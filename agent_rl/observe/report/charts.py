"""The run's figures as charts, which the page draws. Thousands of steps become a few hundred places.

A chart is an object of the page's JSON. ``x`` has the place of each figure, ``words`` its figures exactly, for readers
who point at it or use the arrow keys, and ``alt`` the whole chart in words. None is a figure that is missing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from agent_rl.figures import MismatchFigures
from agent_rl.groups.measures import wilson_interval
from agent_rl.observe.report.records import WAYS, Records, answers_to_all, drawable
from agent_rl.observe.words import compact, percent, spread
from agent_rl.records.reading import Step

Chart = dict[str, Any]

PLACES = 160
"""The most places of a chart: more than a phone can show separately, and few enough for a small page."""

FATES = {
    "trained": ("trained", 1),
    "all_right": ("dropped: every rollout right", 3),
    "all_wrong": ("dropped: every rollout wrong", 2),
    "not_selected": ("dropped: no rollout selected", 7),
    "not_admitted": ("dropped: refused by the curriculum", 7),
    "too_few_rollouts": ("dropped: too few rollouts", 5),
    "prompt_too_long": ("dropped: prompt too long", 7),
    "stale": ("dropped: stale", 4),
    "not_finite": ("dropped: its update was not finite", 7),
    "stage_boundary": ("dropped: its stage ended", 7),
    "open": ("open", 6),
    "evaluated": ("evaluated", 6),
}
"""The fates of groups in words, with colours."""

Figure = Callable[[Step], float | None]
Floats = Sequence[float]


class Panel(NamedTuple):
    """Curves of the steps: the section of the page, title, unit (or ``share``), note, and each curve by its label."""

    section: str
    title: str
    unit: str
    note: str
    curves: Mapping[str, Figure]


def _mismatch(figure: Callable[[MismatchFigures], float]) -> Figure:
    return lambda step: None if step.training.mismatch is None else figure(step.training.mismatch)


PANELS = (
    Panel("learning", "Tool errors", "share",
          "Calls that did not end in success. Resampling prefers correct rollouts with few of them.",
          {"of all calls": lambda step: step.figures.sampled.tool_error_share,
           "of those in correct rollouts": lambda step: step.figures.sampled.tool_error_share_correct}),
    Panel("learning", "Response length", "tokens", "Tokens after the prompt, tool responses included.",
          {"mean": lambda step: step.figures.sampled.response_tokens}),
    Panel("learning", "Turns and tool calls", "", "Means over rollouts.",
          {"turns": lambda step: step.figures.sampled.turns,
           "tool calls": lambda step: step.figures.sampled.tool_calls}),
    Panel("learning", "Truncated rollouts", "share", "Rollouts that ran out of tokens.",
          {"share": lambda step: step.figures.sampled.truncated_share}),
    Panel("health", "Entropy", "nats", "Mean over trained tokens, at the rollouts' temperature.",
          {"of the policy": lambda step: step.training.entropy}),
    Panel("health", "Divergence from the reference policy", "nats",
          "Estimate of the KL penalty, as a mean over trained tokens.",
          {"of the policy": lambda step: step.training.kl}),
    Panel("staleness", "Staleness", "versions",
          "How many versions a group's oldest token is behind the policy that trains on it.",
          {"mean": lambda step: step.figures.staleness_mean, "highest": lambda step: step.figures.staleness_max}),
    Panel("health", "Clipped tokens", "share", "Share of trained tokens whose gradient was cut.",
          {"by the ratio's bounds": lambda step: step.training.clip_share,
           "by the correction's cap": lambda step: step.training.correction_capped_share}),
    Panel("health", "Policy and engine", "nats",
          "Mean |log p(learner, before the step) - log p(engine, when sampled)|, and its two parts on a sample.",
          {"whole gap of log-probabilities": lambda step: step.training.policy_gap,
           "engine against learner, same weights": _mismatch(lambda figures: figures.mismatch_gap),
           "staleness": _mismatch(lambda figures: figures.staleness_gap)}),
    Panel("health", "Adapters in bfloat16", "share", "Their change in published weights.",
          {"kept": lambda step: step.training.lora_delta_kept}),
    Panel("health", "Gradient norm", "", "Mean over a step's updates.",
          {"before clipping": lambda step: step.training.gradient_norm}),
    Panel("health", "Learning rate", "", "Warm-up and schedule of the stage.",
          {"rate": lambda step: step.training.learning_rate}),
    Panel("health", "Change by an update", "nats", "Divergence of a token.",
          {"mean over updates": lambda step: step.training.update_kl}),
)  # fmt: skip
"""A new figure of steps becomes a curve here."""

CURVE_NOTE = (
    "Band and whiskers: Wilson 95\u202f% intervals. A step's rollouts come in groups of one problem and resemble each "
    "other: the step's true interval is wider than the band. Held-out problems are asked once each way."
)
FATE_NOTE = (
    "Groups that each step decided. A group whose rollouts are all right, or all wrong, teaches nothing and is dropped."
)


def line(
    label: str, values: Floats, colour: int, low: Floats | None = None, high: Floats | None = None
) -> dict[str, Any]:
    """A curve, with a band around it where there is one. NaN leaves a gap."""
    return {"label": label, "colour": colour, "values": values, "low": low, "high": high}


def chart(
    title: str,
    lines: Sequence[dict[str, Any]],
    x: Sequence[float],
    words: Sequence[str],
    *,
    note: str = "",
    unit: str = "",
    share: bool = False,
    x_label: str = "RL step",
    **options: Any,
) -> Chart:
    """A chart. ``options``: ``span`` (of the y axis), ``x_high``, ``stacked``, ``marks``, ``boundaries``."""
    marked = [mark["words"] for mark in options.get("marks", ())]
    return {
        "title": f"{title} ({unit})" if unit else title,
        "lines": lines,
        "x": x,
        "words": words,
        "alt": f"{title}, by {x_label}. {'; '.join([*_in_words(lines, _say(unit, share=share)), *marked])}.",
        "note": note,
        "share": share,
        "x_label": x_label,
        **options,
    }


def _in_words(lines: Sequence[dict[str, Any]], say: Callable[[float], str]) -> list[str]:
    found = []
    for each in lines:
        known = [value for value in each["values"] if math.isfinite(value)]
        ends = [say(value) for value in (known[0], known[-1], min(known), max(known))] if known else []
        of = "from {} to {}, lowest {}, highest {}".format(*ends) if ends else "no figures"
        found.append(f"{each['label']}: {of}")
    return found


def _say(unit: str, *, share: bool) -> Callable[[float], str]:
    return percent if share else lambda value: f"{compact(value)} {unit}".strip()


def places_of(count: int) -> list[range]:
    """``count`` steps in at most `PLACES` runs of neighbours, of equal length except the last."""
    size = max(1, -(-count // PLACES))
    return [range(start, min(count, start + size)) for start in range(0, count, size)]


def learning_curve(records: Records) -> Chart:
    """Success by step on training problems, and on held-out problems where they were evaluated."""
    places = places_of(len(records.steps))
    shares, lows, highs, words = [], [], [], []
    for place in places:
        right, trials = successes(records, place)
        low, high = wilson_interval(round(right), trials) if trials else (math.nan, math.nan)
        shares.append(right / trials if trials else math.nan)
        lows.append(low)
        highs.append(high)
        words.append(f"{percent(shares[-1])} (95\u202f%: {spread(low, high)}, n = {trials:,})")
    lines = [line("training problems, sampled", shares, 1, lows, highs)] if places else []
    marks = [
        {
            "label": f"held-out problems, {way}",
            "x": after,
            "value": success.success,
            "low": success.low,
            "high": success.high,
            "colour": 2 + WAYS.index(way),
            "words": f"evaluation {result.figures.name}, {way}, after {after} steps: {percent(success.success)} "
            f"(95\u202f%: {spread(success.low, success.high)}, n = {success.problems:,})",
        }
        for result, after in ((each, records.steps_before(each)) for each in records.evaluations)
        for way, success in answers_to_all(result).items()
    ]
    return _by_step(records, "Success", lines, words, CURVE_NOTE, share=True, span=(0.0, 1.0), marks=marks)


def successes(records: Records, steps: range) -> tuple[float, int]:
    """Numbers of right rollouts and of all rollouts in some steps."""
    means = [step.figures.sampled for step in records.steps[steps.start : steps.stop]]
    known = [each for each in means if 0 <= each.success <= 1]
    return sum(each.success * each.rollouts for each in known), sum(each.rollouts for each in known)


def panels(records: Records) -> dict[str, list[Chart]]:
    """The smaller charts by section of the page, in order of interest."""
    steps = records.steps
    sampled = [step.figures.sampled for step in steps]
    rewards = [drawable(each.reward) for each in sampled]
    kept = [records.kept_rewards.get(step.version - 1, math.nan) for step in steps]
    curves = {"all sampled rollouts": rewards, "those trained on, after resampling": kept}
    span = (0.0, 1.0) if all(0 <= reward <= 1 for reward in rewards if math.isfinite(reward)) else None
    by_environment = [{name: of.success for name, of in step.figures.environments.items()} for step in steps]
    success, parts = _by_label(by_environment), _by_label([each.parts for each in sampled])
    succeeded = "Share of the sampled rollouts that succeeded."
    charts = {
        "learning": [
            _panel(records, "Reward", curves, "Mean reward of the rollouts.", span=span),
            _panel(records, "Success by environment", success, succeeded, share=True),
            _panel(records, "Parts of the reward", parts, "Means of the parts that the judgements name."),
        ]
    }
    for section, title, unit, note, figures in PANELS:
        curves = {label: [drawable(figure(step)) for step in steps] for label, figure in figures.items()}
        share = unit == "share"
        made = _panel(records, title, curves, note, share=share, unit="" if share else unit)
        charts.setdefault(section, []).append(made)
    between = (later.seconds - earlier.seconds for earlier, later in pairwise(steps))
    curves = {
        "from step to step": [math.nan, *map(drawable, between)],
        "of them training": [drawable(step.training.train_seconds) for step in steps],
    }
    waits = "The rest of a step's time the learner waits."
    charts["time"] = [_panel(records, "Time of a step", curves, waits, unit="s")]
    return {section: [each for each in found if each["lines"]] for section, found in charts.items()}


def _by_label(steps: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """A curve for each label that any step has."""
    labels = sorted({label for each in steps for label in each})
    return {label: [drawable(each.get(label)) for each in steps] for label in labels}


def caches(spans: Sequence[tuple[float, float]], uses: dict[str, list[tuple[float, float]]]) -> list[Chart]:
    """The KV cache of each engine in minutes of running time. ``uses``: (share in use, turns that wait) by engine."""
    middles = [(start + end) / 120 for start, end in spans]
    charts = []
    for name, values in uses.items():
        lines = [line("in use", [used for used, _ in values], 1)]
        words = [
            f"{minute:.1f} minutes: {percent(used)} in use, {compact(waiting)} turns wait"
            for minute, (used, waiting) in zip(middles, values, strict=True)
        ]
        note = "Share of the engine's KV cache. A cache that is always full makes turns wait, or preempts them."
        title = f"KV cache of {name}"
        charts.append(chart(title, lines, middles, words, note=note, share=True, x_label="minutes", span=(0.0, 1.0)))
    return charts


def _panel(records: Records, title: str, curves: dict[str, list[float]], note: str, **options: Any) -> Chart:
    """Curves of means. Where a place pools several steps, a band shows their lowest and highest figure."""
    places = places_of(len(records.steps))
    pooled = len(places) < len(records.steps)
    lines = []
    for colour, (label, values) in enumerate(curves.items(), 1):
        inside = [[v for v in values[place.start : place.stop] if math.isfinite(v)] for place in places]
        means = [sum(each) / len(each) if each else math.nan for each in inside]
        if any(map(math.isfinite, means)):
            low = [min(each, default=math.nan) for each in inside] if pooled else None
            high = [max(each, default=math.nan) for each in inside] if pooled else None
            lines.append(line(label, means, (colour - 1) % 7 + 1, low, high))
    say = _say(options.get("unit", ""), share=options.get("share", False))
    words = [", ".join(f"{each['label']} {say(each['values'][i])}" for each in lines) for i in range(len(places))]
    return _by_step(records, title, lines, words, note, **options)


def _by_step(
    records: Records, title: str, lines: Sequence[dict[str, Any]], words: Sequence[str], note: str, **options: Any
) -> Chart:
    places = places_of(len(records.steps))
    named = [f"step {p.start + 1}" if len(p) == 1 else f"steps {p.start + 1} to {p.stop}" for p in places]
    names = [step.stage for step in records.steps]
    stages = [(index + 0.5, name) for index, name in enumerate(names) if not index or names[index - 1] != name]
    return chart(
        title,
        lines,
        [(place.start + 1 + place.stop) / 2 for place in places],
        [f"{name}: {said}" for name, said in zip(named, words, strict=True)],
        note=note,
        x_high=max(1, len(records.steps)),
        boundaries=stages if len(stages) > 1 else [],
        **options,
    )


def fate_totals(fates: Sequence[tuple[int | None, str, int]]) -> list[tuple[str, str, int, int]]:
    """(fate, words, colour, count) of every fate that occurred, in the order of FATES."""
    counts: Counter[str] = Counter()
    for _, fate, count in fates:
        counts[fate] += count
    order = [*FATES, *sorted(counts.keys() - FATES.keys())]
    return [(fate, *FATES.get(fate, (f"dropped: {fate}", 7)), counts[fate]) for fate in order if counts.get(fate)]


def fate_chart(records: Records) -> Chart | None:
    """Groups by fate and step; None when no step decided any group."""
    at = {step.version - 1: index for index, step in enumerate(records.steps)}
    known = [each for each in records.fates if each[0] in at]
    if not known:
        return None
    places = places_of(len(records.steps))
    lines = []
    for fate, words, colour, _ in fate_totals(known):
        sums = [0] * len(places)
        for step, its_fate, count in known:
            if its_fate == fate and step is not None:
                sums[at[step] // len(places[0])] += count
        lines.append(line(words, [total / len(place) for total, place in zip(sums, places, strict=True)], colour))
    said = [
        ", ".join(f"{each['label']} {compact(each['values'][i])}" for each in lines if each["values"][i])
        for i in range(len(places))
    ]
    return _by_step(records, "Groups by fate", lines, said, FATE_NOTE, unit="groups", stacked=True)


def supervised_chart(losses: Sequence[tuple[float, float]], name: str) -> Chart | None:
    """The loss of a supervised stage, as (step, loss); None without any."""
    if not losses:
        return None
    places = places_of(len(losses))
    means = [sum(loss for _, loss in losses[place.start : place.stop]) / len(place) for place in places]
    return chart(
        f"Supervised loss, stage {name}",
        [line("cross-entropy of a batch", means, 1)],
        [(losses[place.start][0] + losses[place.stop - 1][0]) / 2 for place in places],
        [f"step {losses[p.start][0]:.0f}: {compact(mean)}" for p, mean in zip(places, means, strict=True)],
        note="As the learner reported it, about once a second.",
        unit="nats",
        x_label="supervised step",
    )
