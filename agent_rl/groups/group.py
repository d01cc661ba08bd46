"""A group that is not decided: what is known of each of its samples."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent_rl.groups.resampling import Candidate
from agent_rl.groups.statistics import RolloutFigures
from agent_rl.messages import GroupOpened, Judgement, Retry, Trajectory, UnfinishedGroup


@dataclass(slots=True)
class SampleState:
    """One sample of a group. ``ended`` and ``judgement`` are of its newest attempt."""

    attempt: int = 0
    lost: bool = False
    """No attempt is left."""
    prompt_too_long: bool = False
    ended: RolloutFigures | None = None
    judgement: Judgement | None = None

    @property
    def settled(self) -> bool:
        """Whether the sample is judged or lost."""
        return self.lost or self.judgement is not None

    @property
    def figures(self) -> RolloutFigures:
        """The figures of a judged sample."""
        assert self.ended is not None
        assert self.judgement is not None
        return self.ended.judged(self.judgement)

    def candidate(self, position: int) -> Candidate:
        """A judged sample, as a selection sees it."""
        figures = self.figures
        assert self.judgement is not None
        return Candidate(
            sample=position,
            reward=figures.reward,
            turns=figures.turns,
            tool_calls=figures.calls,
            failed_calls=figures.failed_calls,
            format_penalty=self.judgement.format_penalty,
            tokens=figures.tokens,
            success=figures.success,
            tags=figures.tags,
        )


@dataclass(slots=True)
class UndecidedGroup:
    """The group's samples, and the attempts that were lost."""

    opened: GroupOpened
    samples: list[SampleState]
    lost: list[Trajectory] = field(default_factory=list)

    @property
    def running(self) -> set[int]:
        """The samples that an attempt may still be in flight of."""
        return {position for position, sample in enumerate(self.samples) if not sample.lost and sample.ended is None}

    @property
    def seconds(self) -> float:
        """How long the group's longest rollout took, of those that have ended."""
        return max((sample.ended.seconds for sample in self.samples if sample.ended is not None), default=0.0)

    def awaits(self, position: int, attempt: int) -> bool:
        """Whether a judgement of this attempt at a sample is still wanted."""
        sample = self.samples[position]
        return not sample.settled and sample.attempt == attempt

    def candidates(self) -> list[Candidate]:
        """The judged samples, as a selection sees them."""
        return [each.candidate(p) for p, each in enumerate(self.samples) if each.judgement is not None]

    def judged_figures(self) -> list[RolloutFigures]:
        """The figures of the judged samples."""
        return [sample.figures for sample in self.samples if sample.judgement is not None]

    def lost_figures(self) -> tuple[RolloutFigures, ...]:
        """The figures of the lost attempts."""
        return tuple(RolloutFigures.of(attempt, self.opened) for attempt in self.lost)

    def counted_figures(self) -> list[RolloutFigures]:
        """What an evaluation counts: the judged samples, or else one attempt that was lost."""
        return self.judged_figures() or list(self.lost_figures()[:1])

    def retry(self, position: int) -> Retry:
        """The request for a sample's next attempt."""
        opened = self.opened
        return Retry(opened.group, position, self.samples[position].attempt, opened.number, opened.evaluation)

    def unfinished(self) -> UnfinishedGroup | None:
        """The samples to request after a restart of the scheduler; None when none is missing."""
        missing = tuple(self.retry(p) for p, each in enumerate(self.samples) if not each.settled and each.ended is None)
        return UnfinishedGroup(self.opened, missing) if missing else None
