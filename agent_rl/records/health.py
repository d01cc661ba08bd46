"""The health of an rl stage: alarms about its last steps, each with what to look at. Pure.

Runs may learn nothing for a silent reason. An alarm is about means over the last `WINDOW` steps, and holds until these
are sound again. The learner shows alarms while they hold; the summary names all there were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import fsum, isfinite
from typing import NamedTuple

from agent_rl.figures import StepFigures, TrainingFigures

WINDOW = 5
"""Steps of each mean."""
LEAST_ENTROPY, SURE_SUCCESS = 0.02, 0.8
"""Entropy in nats a token below which a policy samples nothing new, unless it succeeds at least this often."""
MOST_TRUNCATED, LENGTH_FACTOR = 1 / 3, 2.0
"""Share of rollouts that run out of tokens, and growth of responses since the stage's first window."""
LUCK_BEFORE, LUCK = 0.25, 0.5
"""Shares of right rollouts without a call that succeeded: in the stage's first window at most, and now."""
MOST_CLIPPED, MOST_KL, MOST_MISMATCH, LEAST_KEPT = 0.3, 1.0, 0.1, 0.5
"""Share of tokens, nats a token, nats a token, share of the adapters' change."""
LEAST_SUCCESS, LEAST_START = 0.02, 0.05
"""Share of right rollouts below which most groups have none: of a step, and of the evaluation before the stage."""
FALL_SHARE, LEAST_FALL = 0.5, 0.1
"""The share of the best window's success below which the present one has fallen, and the least fall."""
RAISED_WHEN = {
    "no_tool_calls": "nothing called a tool, though tools are offered",
    "low_success": "success and reward are below 2 %, or below 5 % in the evaluation before",
    "no_signal": "no group had a gradient, none because of staleness",
    "low_entropy": "entropy is below 0.02 nats a token, and success below 80 %",
    "truncated": "over a third of rollouts run out of tokens",
    "length": "responses are twice as long as at first",
    "luck": "over half of right rollouts had no successful call, at first less than a quarter",
    "numerics": "the numerics guard has found a fault",
    "clip_share, kl, mismatch, lora_delta_kept": "over 0.3 of tokens; 1 nat; 0.1 nats; below 0.5",
    "fall": "success fell by half from its best, and by 0.1",
}
"""The alarms, in the words of docs/training.md."""


class Alarm(NamedTuple):
    """What is wrong. ``text`` says it with figures, and what to look at."""

    name: str
    text: str


def too_low(success: float, reward: float, least: float = LEAST_SUCCESS) -> Iterator[Alarm]:
    """The alarm about so little success that rewards say hardly anything. Those between 0 and 1 say something."""
    if max(success, reward) < least:
        yield Alarm(
            "low_success",
            f"{success:.1%} of answers are right, too few to learn from: teach the form of calls and answers first (an "
            "sft stage), or choose easier problems",
        )


class Taken(NamedTuple):
    """A step: the filter's figures of its rollouts, and the learner's."""

    sampled: StepFigures
    trained: TrainingFigures


class Health:
    """Takes the steps of a stage, in order."""

    def __init__(self, *, tools: bool) -> None:
        """``tools``: whether the model is told of any. Those that agents list are seen in the figures."""
        self.steps = 0
        self._tools = tools
        self._last: deque[Taken] = deque(maxlen=WINDOW)
        self._first: tuple[float, float] | None = None
        """Length of responses, and share of luck, of the first window."""
        self._best = 0.0

    def step(self, sampled: StepFigures, trained: TrainingFigures | None) -> tuple[Alarm, ...]:
        """Take a step; return the alarms that hold after it. Steps in which nothing was sampled are ignored."""
        self.steps += 1
        self._tools = self._tools or sampled.lists_tools
        if sampled.sampled.rollouts:
            self._last.append(Taken(sampled, trained or TrainingFigures()))
        wrong = () if trained is None or not trained.mismatch_cause else (Alarm("numerics", trained.mismatch_cause),)
        if len(self._last) < WINDOW:
            return wrong
        length, luck = self._sampled("response_tokens"), self._sampled("unaided_share_correct")
        self._first = self._first or (length, luck)
        self._best = max(self._best, self._sampled("success"))
        return (*wrong, *self._alarms(length, luck, *self._first))

    def _alarms(self, length: float, luck: float, first_length: float, first_luck: float) -> Iterator[Alarm]:
        success, calls = self._sampled("success"), self._sampled("tool_calls")
        yield from too_low(success, self._sampled("reward"))
        if self._tools and calls == 0.0:
            yield Alarm(
                "no_tool_calls",
                f"no rollout of the last {WINDOW} steps called a tool, though tools are offered: read a trajectory; "
                "the model may not know the form of calls (an sft stage teaches it), or writes calls in another form",
            )
        decided = sum(taken.sampled.groups_decided for taken in self._last)
        stale = sum(taken.sampled.groups_dropped_stale for taken in self._last)
        if decided and not stale and not any(taken.sampled.groups_trained for taken in self._last):
            yield Alarm(
                "no_signal",
                f"all {decided:,} groups of the last {WINDOW} steps were without a gradient, at {success:.0%} success: "
                "choose problems that are neither always nor never solved (a select stage), or more "
                "samples a group",
            )
        entropy = self._trained(lambda figures: figures.entropy)
        if entropy is not None and entropy < LEAST_ENTROPY and success < SURE_SUCCESS:
            yield Alarm(
                "low_entropy",
                f"the policy's entropy is {entropy:.3g} nats a token at {success:.0%} success, so that samples repeat "
                "each other: fewer supervised steps before, a lower learning_rate, or a higher clip_high",
            )
        if (truncated := self._sampled("truncated_share")) > MOST_TRUNCATED:
            yield Alarm(
                "truncated",
                f"{truncated:.0%} of rollouts run out of tokens: raise max_response_tokens, or read whether the model "
                "repeats itself or does not end its turns",
            )
        if length > LENGTH_FACTOR * first_length > 0.0:
            yield Alarm(
                "length",
                f"responses grew from {first_length:.0f} to {length:.0f} tokens in this stage: read what the model "
                "added; a length penalty or a lower learning_rate holds it",
            )
        if self._tools and luck > LUCK and first_luck < LUCK_BEFORE and success > 0.0:
            yield Alarm(
                "luck",
                f"{luck:.0%} of right rollouts had no successful tool call, {first_luck:.0%} at first: the model "
                "guesses; read them, and whether answers can be guessed",
            )
        for name, most, of, remedy in (
            ("clip_share", MOST_CLIPPED, "of tokens are clipped", "a lower learning_rate or fewer updates"),
            ("kl", MOST_KL, "nats a token from the reference", "a lower learning_rate or a larger kl coefficient"),
        ):
            value = self._trained(lambda figures, name=name: getattr(figures, name))  # type: ignore[misc]
            if value is not None and value > most:
                yield Alarm(name, f"{value:.2g} {of}: the policy moves too far; {remedy}")
        gap = self._trained(lambda figures: figures.mismatch.mismatch_gap if figures.mismatch else None)
        if gap is not None and gap > MOST_MISMATCH:
            yield Alarm(
                "mismatch",
                f"engine and learner differ by {gap:.2g} nats a token at the same weights: compare their compute "
                "types, temperature, template and tokenizer",
            )
        kept = self._trained(lambda figures: figures.lora_delta_kept)
        if kept is not None and kept < LEAST_KEPT:
            remedy = 'bfloat16 has no smaller steps; write dtype = "float32" in [model], or raise the learning_rate'
            yield Alarm("lora_delta_kept", f"engines serve {kept:.0%} of what the adapters learned: {remedy}")
        if success < FALL_SHARE * self._best and self._best - success >= LEAST_FALL:
            yield Alarm(
                "fall",
                f"success fell to {success:.0%}, from {self._best:.0%} at best: take an earlier checkpoint with a "
                "lower learning_rate, and see the stage's `collapse` (docs/training.md)",
            )

    def _sampled(self, name: str) -> float:
        """The mean over the window, each step by its rollouts."""
        means = [taken.sampled.sampled for taken in self._last]
        return fsum(getattr(each, name) * each.rollouts for each in means) / sum(each.rollouts for each in means)

    def _trained(self, figure: Callable[[TrainingFigures], float | None]) -> float | None:
        """The mean over the steps that have the figure; None where fewer than half of them do."""
        found = [value for taken in self._last if (value := figure(taken.trained)) is not None and isfinite(value)]
        return fsum(found) / len(found) if 2 * len(found) >= WINDOW else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An alarm of an rl stage, from step ``first`` to step ``last`` of the stage; ``text`` is what it said last."""

    stage: int
    name: str
    first: int
    last: int
    text: str

    def remark(self) -> str:
        """A sentence for the summary."""
        return f"stages.{self.stage}, steps {self.first:,} to {self.last:,}: {self.text}"


class RunHealth:
    """The alarms of a run. Takes the steps of its rl stages, in order."""

    def __init__(self) -> None:
        self._stages: dict[int, Health] = {}
        self._held: dict[tuple[int, str], Held] = {}
        self.now: tuple[Alarm, ...] = ()
        """Those that hold after the last step."""

    @property
    def held(self) -> list[Held]:
        """Each alarm that there was, in the order in which they began."""
        return list(self._held.values())

    def step(self, stage: int, sampled: StepFigures, trained: TrainingFigures | None, *, tools: bool) -> None:
        """Take a step. ``tools``: whether the model is told of any."""
        health = self._stages.setdefault(stage, Health(tools=tools))
        self.now = health.step(sampled, trained)
        for name, text in self.now:
            before = self._held.get((stage, name))
            first = health.steps if before is None else before.first
            self._held[stage, name] = Held(stage=stage, name=name, first=first, last=health.steps, text=text)
