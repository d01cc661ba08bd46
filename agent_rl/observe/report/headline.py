"""The result of a run, its time and its load, in sentences that claim no more than the figures show."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agent_rl.figures import AnswerFigures, RolloutMeans
from agent_rl.groups.measures import wilson_interval
from agent_rl.observe.report.charts import successes
from agent_rl.observe.report.records import WAYS, Records, answers_to_all
from agent_rl.observe.words import NARROW_SPACE, duration, percent, spread
from agent_rl.records.reading import Evaluated
from agent_rl.records.run_directory import memory_kills_in_words

STEPS_COMPARED = 10
"""Without evaluations, the first and last steps are compared; this many steps each."""


@dataclass(frozen=True, slots=True)
class Headline:
    """The main sentence, further details, and whether the run has ended."""

    sentence: str
    details: tuple[str, ...]
    state: str
    finished: bool


def headline(records: Records) -> Headline:
    """The run in a few sentences."""
    in_time = f" in {duration(records.seconds)}" if math.isfinite(records.seconds) else ""
    evaluated = records.evaluations
    names = [each.figures.name for each in evaluated]
    since = len(records.steps) - (records.steps_before(evaluated[-1]) if evaluated else 0)
    losses = [end.figures.supervised.loss for end in records.ends if end.figures.supervised is not None]
    known = [loss for loss in losses if loss is not None]
    if len(evaluated) >= 2:
        sentence, details = _evaluated_twice(evaluated[0], evaluated[-1], in_time)
        details += [f'{since:,} RL steps after "{names[-1]}" were not evaluated.'] if since else []
    elif evaluated and not since:
        sentence = (
            f"Success on held-out problems is {percent(evaluated[0].figures.sampled.success)} (sampled){in_time}."
        )
        details = [*_rates(evaluated[0]), "There is one evaluation: nothing to compare it with."]
    elif records.steps:
        sentence, details = _trained(records, in_time)
        if evaluated:
            details += [f'Held-out problems were evaluated last in "{names[0]}", before {since:,} of the RL steps.']
            details += _rates(evaluated[0])
        else:
            details += ["Nothing was evaluated on held-out problems."]
    elif known:
        sentence = f"Supervised training{in_time}, to a loss of {known[-1]:.3g} on its last batch."
        details = ["No RL step was trained and nothing was evaluated: this says nothing about success on problems."]
    else:
        sentence, details = "Nothing was measured yet.", []
    remarks = records.remarks
    if records.memory_kills and not remarks:  # else the summary has said it
        remarks = (memory_kills_in_words(records.memory_kills),)
    details = [*(f"{words[0].upper()}{words[1:]}." for words in remarks), *details]
    if records.stopped:
        details.insert(0, f"The run was stopped: {records.stopped}")
    return Headline(sentence, tuple(details), state(records), records.finished)


def state(records: Records) -> str:
    """How far the run has come."""
    if records.stage is None or not records.stages:
        return "How far the run came is not recorded."
    if records.finished:
        return f"Finished: all {len(records.stages)} stages."
    stage = records.stages[records.stage]
    where = f"stage {records.stage + 1} of {len(records.stages)}, {stage.name} ({stage.kind})"
    return f"Not finished: the run stands in {where}, after {len(records.steps)} RL steps."


def interval(answers: AnswerFigures) -> str:
    """A share with its 95 % interval in brackets."""
    return f"{percent(answers.success)} ({spread(answers.low, answers.high)})"


def _evaluated_twice(first: Evaluated, last: Evaluated, in_time: str) -> tuple[str, list[str]]:
    ways = [way for way in WAYS if way in answers_to_all(first).keys() & answers_to_all(last).keys()]
    pairs = {way: (answers_to_all(first)[way], answers_to_all(last)[way]) for way in ways}
    change, _ = _change(*pairs[ways[0]])
    details = []
    for way, (before, after) in pairs.items():
        both = f'{interval(before)} in "{first.figures.name}", {interval(after)} in "{last.figures.name}"'
        doubt = _change(before, after)[1]
        details.append(f"{way.capitalize()}: {both}{_of(before, after)}.{doubt}{_lost(before, after)}")
    return f"Success on held-out problems {change} ({ways[0]}){in_time}.", details


def _change(before: AnswerFigures, after: AnswerFigures) -> tuple[str, str]:
    """The change in words, and a sentence where the intervals overlap."""
    verb = "rose" if after.low > before.high else "fell" if after.high < before.low else "went"
    doubt = " The intervals overlap: this run does not show a difference." if verb == "went" else ""
    return f"{verb} from {percent(before.success)} to {percent(after.success)}", doubt


def _rates(evaluation: Evaluated) -> list[str]:
    return [
        f'{way.capitalize()}: {interval(answers)} in "{evaluation.figures.name}"{_of(answers)}.{_lost(answers)}'
        for way, answers in answers_to_all(evaluation).items()
    ]


def _trained(records: Records, in_time: str) -> tuple[str, list[str]]:
    count = len(records.steps)
    compared = min(STEPS_COMPARED, max(1, count // 2))
    ends = [successes(records, place) for place in (range(compared), range(count - compared, count))]
    if not all(trials for _, trials in ends):
        return f"{count} RL steps{in_time}; how many rollouts were right is not recorded.", []
    first, last = (_share(right, trials) for right, trials in ends)
    if count == 1:
        return f"One RL step{in_time}: {percent(first.success)} of {first.problems:,} rollouts were right.", []
    change, doubt = _change(first, last)
    steps = "step" if compared == 1 else f"{compared} steps"
    early = f"First {steps}: 95{NARROW_SPACE}% {spread(first.low, first.high)}, n = {first.problems:,} rollouts"
    late = f"last: {spread(last.low, last.high)}, n = {last.problems:,}."
    return f"Success on training problems {change}{in_time}.", [f"{early}; {late}{doubt}"]


def _share(right: float, trials: int) -> AnswerFigures:
    low, high = wilson_interval(round(right), trials)
    share = right / trials
    return AnswerFigures(problems=trials, success=share, low=low, high=high, lost=0, answered=RolloutMeans())


def _of(*answers: AnswerFigures) -> str:
    """Number of trials, and the meaning of the brackets."""
    trials = sorted({each.problems for each in answers})
    return f"; n = {' and '.join(f'{count:,}' for count in trials)}, 95{NARROW_SPACE}% intervals in brackets"


def _lost(*answers: AnswerFigures) -> str:
    lost = sum(each.lost for each in answers)
    return f" {lost} rollouts failed for reasons of infrastructure and count as wrong." if lost else ""
