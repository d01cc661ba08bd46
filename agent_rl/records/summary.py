"""The summary of a run: figures, and remarks that a reader of the figures needs.

Pure: all is computed from the journal. A figure without data is None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent_rl.figures import SHARE_NAMES, EvaluationFigures, SelectionFigures
from agent_rl.records.audit import Audit
from agent_rl.records.health import Held, Watch
from agent_rl.records.journal import StepRow
from agent_rl.records.run_directory import memory_kills_in_words

REASONS = {
    "equal_rewards": "equal rewards",
    "not_selected": "a selection that kept none of their rollouts",
    "not_admitted": "the curriculum, which refused them",
    "too_few_rollouts": "too few rollouts that ended",
    "prompt_too_long": "a prompt longer than the model allows",
    "stale": "staleness",
    "stage_boundary": "the end of their stage",
    "not_finite": "a loss or gradient that was not finite",
}
"""Why groups were dropped, in words; a reason not named here is shown as it is."""


def summarise(
    audit: Audit,
    steps: Sequence[StepRow],
    evaluations: Mapping[int, EvaluationFigures],
    selections: Iterable[SelectionFigures] = (),
    *,
    seconds: float,
    rl_seconds: float,
    sft_steps_skipped: int,
    sft_steps: int = 0,
    sft_loss: float | None = None,
    checkpoint: str | None = None,
    checkpoints_damaged: int = 0,
    memory_kills: Mapping[str, int] | None = None,
    tools: bool = True,
) -> dict[str, Any]:
    """All figures by name, and ``remarks``.

    ``steps`` are those the learner took; seconds are wall-clock time of running. ``sft_loss`` is that of the last
    supervised stage's last batch, in nats; ``checkpoint`` is the newest one's path; ``memory_kills`` are by actor;
    ``tools``: whether an environment offers any.
    """
    updated = [step for step in steps if step.groups and not step.skipped]
    means = [step.figures.sampled for step in steps]
    sampled = sum(each.rollouts for each in means)
    correct = sum(round(each.success * each.rollouts) for each in means)
    tokens = sum(each.response_tokens * each.rollouts for each in means)
    groups = sum(len(step.groups) for step in updated)
    staleness = sum((step.figures.staleness_mean or 0.0) * len(step.groups) for step in updated)
    learnt = [step.learner_figures for step in updated if step.learner_figures is not None]
    summary: dict[str, Any] = {}
    for figures in evaluations.values():
        for way, answers in figures.ways().items():
            for name, (key, end) in SHARE_NAMES.items():
                if name != "lost" or answers.lost:
                    summary[f"{key}_{figures.name}_{way}{end}"] = getattr(answers, name)
    for way in ("sampled", "greedy"):
        measured = [each.ways()[way].success for each in evaluations.values() if way in each.ways()]
        if len(measured) > 1:
            summary[f"points_gained_{way}"] = round(100.0 * (measured[-1] - measured[0]), 1)
    for selection in selections:
        summary |= selection.row()
    summary |= {
        "minutes": round(seconds / 60.0, 2),
        "minutes_rl": round(rl_seconds / 60.0, 2),
        "steps": audit.steps,
        "steps_updated": len(updated),
        "steps_empty": audit.empty_steps,
        "steps_skipped": audit.skipped_steps,
    }
    if sft_steps:
        summary |= {"sft_steps": sft_steps, "sft_loss": sft_loss}
    if sft_steps_skipped:
        summary["sft_steps_skipped"] = sft_steps_skipped
    if checkpoints_damaged:
        summary["checkpoints_damaged"] = checkpoints_damaged
    if memory_kills:
        summary["memory_kills"] = sum(memory_kills.values())
    summary |= audit.figures()
    summary |= {f"groups_dropped_{reason}": count for reason, count in sorted(audit.dropped.items())}
    for name in sorted({name for step in steps for name in step.figures.environments}):
        figures_of = [step.figures.environments[name] for step in steps if name in step.figures.environments]
        summary[f"rollouts_sampled_{name}"] = sum(each.rollouts for each in figures_of)
        summary[f"rollouts_correct_{name}"] = sum(round(each.success * each.rollouts) for each in figures_of)
    summary |= {
        "rollouts_sampled": sampled,
        "rollouts_correct": correct,
        "rollouts_trained": sum(each.trained_rollouts for each in learnt),
        "tokens_sampled": round(tokens),
        "tokens_trained": sum(each.trained_tokens for each in learnt),
        "tokens_per_second_rl": round(tokens / rl_seconds, 1) if tokens and rl_seconds else None,
        "mean_staleness": staleness / groups if groups else None,
        "max_staleness": max((step.figures.staleness_max or 0 for step in updated), default=None),
    }
    for name in ("group_seconds", "stale_group_seconds"):
        seconds_of = [value for step in steps if (value := getattr(step.figures, name)) is not None]
        if audit.dropped.get("stale") and seconds_of:
            summary[name] = round(sum(seconds_of) / len(seconds_of), 3)
    if checkpoint is not None:
        summary["checkpoint"] = checkpoint
    killed = [memory_kills_in_words(memory_kills)] if memory_kills else []
    held = (each.remark() for each in alarms(steps, tools=tools))
    summary["remarks"] = [*killed, *remarks(summary, evaluations.values()), *held]
    return summary


def alarms(steps: Iterable[StepRow], *, tools: bool) -> list[Held]:
    """The alarms that there were."""
    watch = Watch()
    for step in steps:
        watch.step(step.stage, step.figures, step.learner_figures, tools=tools)
    return watch.held


def remarks(summary: Mapping[str, Any], evaluations: Iterable[EvaluationFigures]) -> list[str]:
    """Sentences about what is unusual in a run."""
    sentences = []
    rollouts, correct = summary["rollouts_sampled"], summary["rollouts_correct"]
    if rollouts and correct in {0, rollouts}:
        hint = "the tasks are too hard for the model, or its answers are not in the form asked for"
        sentences.append(
            f"{correct:,} of {rollouts:,} training rollouts correct: {'the tasks are too easy' if correct else hint}"
        )
    steps, without = summary["steps"], summary["steps"] - summary["steps_updated"]
    opened, dropped = summary["groups_opened"], summary["groups_dropped"]
    if opened and dropped > opened / 2:
        counts = {name: count for name, count in summary.items() if name.startswith("groups_dropped_")}
        most = max(counts, key=lambda name: counts[name])
        reason = most.removeprefix("groups_dropped_")
        all_of = f"{counts[most]:,} of {opened:,} groups were dropped for {REASONS.get(reason, reason)}"
        sentences.append(
            f"all {opened:,} groups were dropped for {REASONS.get(reason, reason)}"
            if counts[most] == opened
            else all_of
        )
    if steps and without == steps:
        sentences.append(f"no update was made in {without:,} of {steps:,} steps: nothing was learnt")
    elif without:
        sentences.append(f"no update was made in {without:,} of {steps:,} steps")
    for name, kind in (("steps_skipped", "steps"), ("sft_steps_skipped", "supervised steps")):
        if summary.get(name):
            sentences.append(f"{summary[name]:,} {kind} were skipped: their loss or gradient was not finite")
    if "stale_group_seconds" in summary:
        sentences.append(
            f"groups dropped for staleness had lasted {summary['stale_group_seconds']:.1f} s when they were dropped, "
            f"trained groups {summary.get('group_seconds', 0.0):.1f} s: training favours short rollouts; "
            'on_stale = "wait" does not'
        )
    if damaged := summary.get("checkpoints_damaged"):
        one = damaged == 1
        sentences.append(
            f"{damaged:,} damaged checkpoint{' was' if one else 's were'} skipped and renamed to "
            "checkpoints/damaged-*; the learner's log names the file and the fault"
        )
    for figures in evaluations:
        for way, answers in (("sampled", figures.sampled), ("greedy", figures.greedy)):
            if answers is not None and answers.lost:
                sentences.append(
                    f"{answers.lost:,} {way} answers of evaluation {figures.name!r} are missing and count as wrong"
                )
    return sentences
