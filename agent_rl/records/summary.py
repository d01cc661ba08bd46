"""The summary of a run: figures, and remarks that a reader of the figures needs.

All is computed from the journal, but for damaged checkpoints and kills, of which the directory tells. A figure without
data is None, never 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agent_rl.figures import SHARE_NAMES, EvaluationFigures
from agent_rl.records.audit import audit_journal
from agent_rl.records.continuing import CHECKPOINTS, MADE_WITH, SFT_STEPS
from agent_rl.records.health import Held, RunHealth
from agent_rl.records.journal import Journal, StepRow
from agent_rl.records.run_directory import memory_kills_in_words, read_memory_kills

SECONDS = "seconds_used"
"""The journal's fact with the seconds of running in all starts so far."""
STAGE_SECONDS = "seconds_in_stage_{}"
SFT_SKIPPED, SFT_LOSS = "steps_skipped_of_stage_{}", "sft_loss_of_stage_{}"
"""Facts of the journal for each stage: wall-clock seconds; supervised steps skipped (not finite), their last loss."""
CHECKPOINT = "checkpoint"
"""The fact that names the newest checkpoint."""
TOOLS = "tools"
"""The fact that is 1 where an environment offers tools, else 0."""
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


def summary(directory: Path, journal: Journal) -> dict[str, Any]:
    """The run so far: figures by name, and ``remarks``. Seconds are wall-clock time of running."""
    audit, steps = audit_journal(journal), [step for step in journal.steps() if step.trained]
    evaluations, memory_kills, kinds = journal.evaluations(), read_memory_kills(directory), kinds_of(journal)
    seconds = float(journal.fact(SECONDS) or 0.0)
    rl_seconds = sum(fact_of(journal, STAGE_SECONDS, stage) for stage, kind in enumerate(kinds) if kind == "rl")
    sft_steps, sft_skipped = (
        int(sum(fact_of(journal, name, stage) for stage in range(len(kinds)))) for name in (SFT_STEPS, SFT_SKIPPED)
    )
    updated = [step for step in steps if step.groups and not step.skipped]
    means = [step.figures.sampled for step in steps]
    sampled = sum(each.rollouts for each in means)
    correct = sum(round(each.success * each.rollouts) for each in means)
    tokens = sum(each.response_tokens * each.rollouts for each in means)
    groups = sum(len(step.groups) for step in updated)
    staleness = sum((step.figures.staleness_mean or 0.0) * len(step.groups) for step in updated)
    learnt = [step.learner_figures for step in updated if step.learner_figures is not None]
    made: dict[str, Any] = {}
    for figures in evaluations.values():
        for way, answers in figures.ways().items():
            for name, (key, end) in SHARE_NAMES.items():
                if name != "lost" or answers.lost:
                    made[f"{key}_{figures.name}_{way}{end}"] = getattr(answers, name)
    for way in ("sampled", "greedy"):
        measured = [each.ways()[way].success for each in evaluations.values() if way in each.ways()]
        if len(measured) > 1:
            made[f"points_gained_{way}"] = round(100.0 * (measured[-1] - measured[0]), 1)
    for selection in journal.selections():
        made |= selection.row()
    made |= {
        "minutes": round(seconds / 60.0, 2),
        "minutes_rl": round(rl_seconds / 60.0, 2),
        "steps": audit.steps,
        "steps_updated": len(updated),
        "steps_empty": audit.empty_steps,
        "steps_skipped": audit.skipped_steps,
    }
    if sft_steps:
        losses = [journal.fact(SFT_LOSS.format(stage)) for stage in range(len(kinds))]
        made |= {"sft_steps": sft_steps, "sft_loss": next((float(loss) for loss in reversed(losses) if loss), None)}
    if sft_skipped:
        made["sft_steps_skipped"] = sft_skipped
    if damaged := len(list((directory / CHECKPOINTS).glob("damaged-*"))):
        made["checkpoints_damaged"] = damaged
    if memory_kills:
        made["memory_kills"] = sum(memory_kills.values())
    made |= audit.figures()
    made |= {f"groups_dropped_{reason}": count for reason, count in sorted(audit.dropped.items())}
    for name in sorted({name for step in steps for name in step.figures.environments}):
        figures_of = [step.figures.environments[name] for step in steps if name in step.figures.environments]
        made[f"rollouts_sampled_{name}"] = sum(each.rollouts for each in figures_of)
        made[f"rollouts_correct_{name}"] = sum(round(each.success * each.rollouts) for each in figures_of)
    made |= {
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
            made[name] = round(sum(seconds_of) / len(seconds_of), 3)
    if (saved := journal.fact(CHECKPOINT)) is not None:  # in this directory, which may have been moved, or elsewhere
        here = directory.absolute() / CHECKPOINTS / Path(saved).name
        made["checkpoint"] = str(here) if here.is_dir() else saved
    killed = [memory_kills_in_words(memory_kills)] if memory_kills else []
    held = (each.remark() for each in alarms(steps, tools=journal.fact(TOOLS) != "0"))
    made["remarks"] = [*killed, *remarks(made, evaluations.values()), *held]
    return made


def fact_of(journal: Journal, name: str, stage: int) -> float:
    """A number that the journal has as a fact of a stage; 0 where it has none."""
    return float(journal.fact(name.format(stage)) or 0.0)


def kinds_of(journal: Journal) -> list[str]:
    """The kinds of the recipe's stages."""
    settings = json.loads(journal.fact(MADE_WITH) or "{}")
    return [text.split()[0] for key, text in settings.items() if re.fullmatch(r"stages\.\d+", key)]


def alarms(steps: Iterable[StepRow], *, tools: bool) -> list[Held]:
    """The alarms that there were."""
    watch = RunHealth()
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
        share = "all" if counts[most] == opened else f"{counts[most]:,} of"
        sentences.append(f"{share} {opened:,} groups were dropped for {REASONS.get(reason, reason)}")
    if without:
        learnt = ": nothing was learnt" if without == steps else ""
        sentences.append(f"no update was made in {without:,} of {steps:,} steps{learnt}")
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
        sentences.append(
            f"{damaged:,} damaged checkpoint{' was' if damaged == 1 else 's were'} skipped and renamed to "
            "checkpoints/damaged-*; the learner's log names the file and the fault"
        )
    for figures in evaluations:
        for way, answers in (("sampled", figures.sampled), ("greedy", figures.greedy)):
            if answers is not None and answers.lost:
                sentences.append(
                    f"{answers.lost:,} {way} answers of evaluation {figures.name!r} are missing and count as wrong"
                )
    return sentences
