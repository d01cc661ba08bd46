"""A run directory as data: `agent_rl.load_run(path)`. The run may be under way, ended or crashed; nothing is changed.

Steps, evaluations, groups and trajectories come from the journal, which is consistent at every moment; the timeline
comes from its file, without a half-written last row. Trajectories are read one group at a time.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

from agent_rl.config.hidden import redacted
from agent_rl.figures import AnswerFigures, EvaluationFigures
from agent_rl.messages import GroupOpened, Judgement, Problem, Tokens, Transcript
from agent_rl.messages import Trajectory as Sampled
from agent_rl.records.continuing import MADE_WITH
from agent_rl.records.health import Held
from agent_rl.records.journal import Decode, Journal, read_journal, stored_decoder
from agent_rl.records.reading import Evaluated, Step, read_record, rollouts_of
from agent_rl.records.run_directory import in_use, read_end
from agent_rl.records.run_records import shown_figures
from agent_rl.records.summary import TOOLS, alarms, kinds_of, summary
from agent_rl.records.tables import Rows
from agent_rl.records.timeline import Moment, read_row, read_timeline

__all__ = ["Call", "Evaluation", "Group", "Held", "Moment", "Run", "Step", "Trajectory", "load_run"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Answers of one way in an evaluation: ``sampled``, ``greedy``, or ``sampled_NAME`` of an environment.

    ``at_step`` is None for an evaluate stage, else the steps of the rl stage before the evaluation.
    """

    name: str
    way: str
    stage: int
    at_step: int | None
    version: int | None
    """None in a run that has lost the row of metrics.jsonl; so are ``seconds`` and ``wall``."""
    answers: AnswerFigures
    seconds: float | None
    wall: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group of rollouts. ``step`` is the version of the step that decided the group."""

    id: str
    stage: int
    at_step: int | None
    number: int
    purpose: str
    fate: str
    """``open``, ``ready``, ``trained``, ``dropped`` or ``evaluated``."""
    reason: str
    """Why the group was dropped."""
    step: int | None
    kept: tuple[tuple[int, int], ...]
    """Sample and attempt of each rollout that is trained."""
    rewards: tuple[float, ...]
    """Rewards of those rollouts."""
    oldest: int
    """The oldest policy version of a token."""
    opened: GroupOpened = field(repr=False)
    problem: str
    """The problem's id; ``opened.problem`` is the problem."""
    environment: str
    samples: int
    """How many rollouts were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A rollout, with its group's fate. Columns of tables leave out texts, calls and tokens."""

    group: str
    stage: int
    at_step: int | None
    number: int
    purpose: str
    sample: int
    attempt: int
    status: str
    fate: str
    reason: str
    step: int | None
    kept: bool
    asked: Problem = field(repr=False)
    judgement: Judgement | None = field(repr=False)
    """None while the rollout is not judged; some never are."""
    stored: Sampled = field(repr=False)
    """The message of the generator, with its packed tokens."""

    problem: str
    """The problem's id; ``asked`` is the problem."""
    environment: str
    prompt_tokens: int
    response_tokens: int
    """Tokens after the prompt, tool responses included."""
    turns: int
    """Turns of the model."""
    tool_calls: int
    tool_errors: int
    """Calls that did not end in success."""
    oldest: int | None
    """The oldest policy version of a token that the model wrote."""
    newest: int | None
    rollout_seconds: float
    generator: str
    reward: float | None
    """None without a judgement; so are ``success`` and ``note``."""
    success: bool | None
    note: str | None
    """What the environment noted."""

    @property
    def transcript(self) -> Transcript:
        """Texts, calls and replies."""
        return self.stored.transcript

    def tokens(self) -> Tokens:
        """The arrays of tokens, masks, log-probabilities and policies."""
        return self.stored.unpack()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a tool: ``run_seconds`` are those of the tool's process, ``total_seconds`` those of the wait."""

    group: str
    sample: int
    attempt: int
    turn: int
    """Of the model, from 1."""
    tool: str
    outcome: str
    run_seconds: float
    total_seconds: float
    cut: bool
    success: bool | None
    """Of the rollout."""


class Run:
    """The data of one run directory. Nothing is kept in memory: every use reads the directory again."""

    def __init__(self, directory: Path, decode: Decode) -> None:
        """Raises JournalError when this is no run directory, or one of another release."""
        self.directory = directory
        self._decode = decode
        with self._journal() as journal:
            self.id = journal.fact("run") or ""
        self.steps = Rows(Step, self._steps)
        self.evaluations = Rows(Evaluation, self._evaluations)
        self.groups = Rows(Group, self._groups)
        self.trajectories = Rows(Trajectory, self._trajectories)
        self.calls = Rows(Call, self._calls)
        self.timeline = Rows(Moment, self._timeline)
        self.alarms = Rows(Held, self._alarms)

    def _journal(self) -> closing[Journal]:
        return closing(read_journal(self.directory))

    @property
    def state(self) -> str:
        """``running``, ``ended`` after the last stage, or ``stopped`` before it."""
        if in_use(self.directory):
            return "running"
        with self._journal() as journal:
            return "ended" if int(journal.fact("stage") or 0) >= len(kinds_of(journal)) else "stopped"

    @property
    def stopped_because(self) -> str:
        """Why the newest start stopped early; empty when that is not known or nothing was wrong."""
        return read_end(self.directory)

    @property
    def settings(self) -> dict[str, Any]:
        """All settings by dotted key, without secrets; those that must not change, in a copy without topology files."""
        files = sorted(self.directory.glob("topology.*.toml"))
        if files:
            return dict(_flat(redacted(tomllib.loads(files[0].read_text(encoding="utf-8")))))
        with self._journal() as journal:
            return dict(_flat(redacted(json.loads(journal.fact(MADE_WITH) or "{}"))))

    @property
    def summary(self) -> dict[str, Any]:
        """The figures of the run so far, as ``summary.json`` has them at its end."""
        with self._journal() as journal:
            return summary(self.directory, journal)

    def _steps(self) -> Iterator[Step]:
        with self._journal() as journal:
            # The last row of a version counts, in case a crash has repeated one.
            records = {row.version: row for row in _written(journal, Step)}
            rows = journal.steps()
        for row in rows:
            if row.learner_figures is not None and row.version + 1 in records:
                yield replace(records[row.version + 1], figures=shown_figures(row), training=row.learner_figures)

    def _evaluations(self) -> Iterator[Evaluation]:
        with self._journal() as journal:
            rows = _written(journal, Evaluated)
            found: list[tuple[int, int | None, EvaluationFigures]]
            found = [(stage, None, figures) for stage, figures in journal.evaluations().items()]
            interim = ((stage, journal.interim_evaluations(stage)) for stage in range(len(kinds_of(journal))))
            found += [(stage, at, figures) for stage, results in interim for at, figures in results.items()]
        by_name: dict[str, list[Evaluated]] = {}
        for row in sorted(rows, key=lambda row: row.version, reverse=True):
            by_name.setdefault(row.figures.name, []).append(row)
        for stage, at_step, figures in found:
            written = by_name[figures.name].pop() if by_name.get(figures.name) else None
            about = {name: getattr(written, name, None) for name in ("version", "seconds", "wall")}
            for way, answers in figures.ways().items():
                yield Evaluation(name=figures.name, way=way, stage=stage, at_step=at_step, answers=answers, **about)

    def _groups(self) -> Iterator[Group]:
        with self._journal() as journal:
            for row in filter(None, map(journal.group, journal.group_ids())):
                opened = self._decode(row.opened)
                yield Group(
                    fate=row.state,
                    opened=opened,
                    problem=opened.problem.id,
                    environment=opened.problem.environment,
                    samples=opened.samples,
                    **{name: getattr(row, name) for name in (*_SHARED, "id", "kept", "rewards", "oldest")},
                )

    def _trajectories(self) -> Iterator[Trajectory]:
        with self._journal() as journal:
            for group in journal.group_ids():
                yield from self._of_group(journal, group)

    def _of_group(self, journal: Journal, group: str) -> Iterator[Trajectory]:
        for each in rollouts_of(journal, group, self._decode):
            made, calls = each.trajectory, each.trajectory.transcript.calls
            judged: dict[str, Any] = {name: getattr(each.judgement, name, None) for name in _JUDGED}
            yield Trajectory(
                group=each.group.id,
                fate=each.group.state,
                kept=bool(each.kept),
                asked=each.problem,
                judgement=each.judgement,
                stored=made,
                problem=each.problem.id,
                environment=each.problem.environment,
                prompt_tokens=made.prompt_length,
                response_tokens=made.response_length,
                tool_calls=len(calls),
                tool_errors=sum(call.outcome != "success" for call in calls),
                rollout_seconds=made.seconds,
                **{name: getattr(each.group, name) for name in _SHARED},
                **{name: getattr(made, name) for name in _SAMPLED},
                **judged,
            )

    def trajectories_of(self, group: str) -> list[Trajectory]:
        """The rollouts of one group; empty when there are none, or when they have left the journal."""
        with self._journal() as journal:
            return list(self._of_group(journal, group))

    def solved(self, evaluation: Evaluation) -> dict[tuple[str, str], Fraction]:
        """The share of right answers to each problem (its text and answer) of an evaluation.

        Empty where the journal no longer holds the rollouts.
        """
        purpose, _, environment = evaluation.way.partition("_")
        found: dict[tuple[str, str], tuple[int, int]] = {}
        with self._journal() as journal:
            right, there = journal.judged(evaluation.stage), journal.stored_groups()
            for row in journal.groups(stage=evaluation.stage, states=("evaluated",)):
                if (row.purpose, row.at_step) != (f"evaluate_{purpose}", evaluation.at_step) or row.id not in there:
                    continue
                opened = self._decode(row.opened)
                if environment in {"", opened.problem.environment}:
                    key = opened.problem.text, opened.problem.answer
                    before = found.get(key, (0, 0))
                    found[key] = before[0] + int(right[row.id]), before[1] + opened.samples
        return {key: Fraction(*counts) for key, counts in found.items()}

    def _calls(self) -> Iterator[Call]:
        names = ("turn", "tool", "outcome", "run_seconds", "total_seconds", "cut")
        for each in self._trajectories():
            place = {name: getattr(each, name) for name in ("group", "sample", "attempt", "success")}
            for call in each.transcript.calls:
                yield Call(**place, **{name: getattr(call, name) for name in names})

    def _timeline(self) -> Iterator[Moment]:
        for row in read_timeline(self.directory):
            yield from read_row(row).actors.values()

    def _alarms(self) -> Iterator[Held]:
        with self._journal() as journal:
            steps, tools = [step for step in journal.steps() if step.trained], journal.fact(TOOLS) != "0"
        yield from alarms(steps, tools=tools)


_SHARED = ("stage", "at_step", "number", "purpose", "reason", "step")
_JUDGED = ("reward", "success", "note")
_SAMPLED = ("sample", "attempt", "status", "turns", "oldest", "newest", "generator")


def _written(journal: Journal, kind: type[T]) -> list[T]:
    """The rows of metrics.jsonl of this kind."""
    return [row for row in map(read_record, map(json.loads, journal.records())) if isinstance(row, kind)]


def load_run(path: str | Path) -> Run:
    """The data of a run directory. Raises JournalError when there is no run, or one of another release."""
    return Run(Path(path), stored_decoder())


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by dotted key. Tables of an array have their number in the key; lists of values stay whole."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if _tables(value) else None
    if inner is None or not value:
        yield key, value
        return
    for name, each in inner:
        yield from _flat(each, f"{key}.{name}" if key else str(name))


def _tables(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(each, dict) for each in value)
