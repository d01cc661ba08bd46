"""Searches, for a number of devices, how to share them between engines and learner, and how far to sample ahead.

One setting after the other, each over a few values with the best of the others so far: the split of devices, then the
staleness budget, then the rollouts of an engine. So it finds a good setting, not surely the best one. The same input
gives the same order and the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from agent_rl.simulation.plan import Choice, Plan
from agent_rl.simulation.prediction import Prediction, predict

SHARES = (0.125, 0.1875, 0.25, 0.3125, 0.375, 0.5)
"""Shares of the devices that the learner gets."""
STALENESS = (0, 1, 2)
FACTORS = (0.5, 1.0, 2.0)
"""Of the rollouts that an engine runs at once."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A setting, and what it makes of a step."""

    choice: Choice
    made: Prediction

    @property
    def text(self) -> str:
        """The setting in words."""
        of = self.choice
        return (
            f"{of.engines} engines, learner of {of.ranks}, staleness {of.max_staleness}, {of.max_rollouts} rollouts an "
            "engine"
        )


def tune(planned: Callable[[Choice], Plan]) -> list[Tried]:
    """All settings that were tried, the fastest first. ``planned`` makes the plan of a setting."""
    plan = planned(Choice())
    tried: dict[Choice, Tried] = {}

    def best_of(choices: Sequence[Choice]) -> Choice:
        for choice in choices:
            if choice not in tried:
                tried[choice] = Tried(choice, predict(planned(choice)))
        return min(choices, key=lambda choice: tried[choice].made.step_s)

    first = plan.choice
    best = best_of([first, *splits(plan.devices, first, plan.width)])
    best = best_of([best, *(replace(best, max_staleness=staleness) for staleness in STALENESS)])
    best_of([best, *(replace(best, max_rollouts=max(1, int((best.max_rollouts or 1) * by))) for by in FACTORS)])
    return sorted(tried.values(), key=lambda each: (each.made.step_s, each.text))


def splits(devices: int, choice: Choice, width: int) -> list[Choice]:
    """The devices shared anew: an engine takes ``width`` of them, the learner the rest."""
    found = []
    for share in SHARES:
        engines = int((devices - max(1, round(devices * share))) / width)
        if engines >= 1:
            found.append(replace(choice, engines=engines, ranks=devices - engines * width))
    return list(dict.fromkeys(found))


def lines_of(tried: Sequence[Tried]) -> Iterator[str]:
    """The settings as text: all, then the best and the runner-up, and why."""
    yield "   s a step   learner idle   engines idle   setting"
    for each in tried:
        outcome = each.made.outcome
        yield f"{each.made.step_s:11,.1f}{outcome.learner_idle_share:15.1%}{outcome.idle_share:15.1%}   {each.text}"
    best = tried[0]
    yield ""
    yield f"best: {best.text}; dominated by {best.made.dominated_by}"
    if len(tried) > 1:
        second = tried[1]
        slower = second.made.step_s / best.made.step_s - 1
        yield f"runner-up: {second.text}; {slower:.1%} slower; dominated by {second.made.dominated_by}"
