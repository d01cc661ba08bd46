"""What the filter reads back from its journal: its own state, what the learner needs again, and groups to train."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import trio

from agent_rl.config.selection import Solved
from agent_rl.config.topology import EvaluateStage, Topology
from agent_rl.groups.book import DecidedGroup, GroupBook
from agent_rl.groups.instructions import NOT_SELECTED, STALE, TOO_FEW_ROLLOUTS, Instruction, SampledProblem, Selected
from agent_rl.groups.outages import OutageError
from agent_rl.groups.selection import Selection, StageEvaluation
from agent_rl.groups.statistics import RolloutFigures, fated
from agent_rl.messages import (
    Evaluation,
    EvaluationReady,
    GroupOpened,
    GroupOutcome,
    PolicyVersion,
    StageEntered,
    StepReady,
    TrainingGroup,
    Trajectory,
    Transcript,
)
from agent_rl.records.journal import GroupRow, Journal, JournalError
from agent_rl.records.journal_rows import SampledRow
from agent_rl.scheduling.ids import group_id
from transport import DecodeError, Registry, decode, encode

STORED = Registry(GroupOpened, Trajectory)
HEAD = struct.Struct(">I")
"""The number of bytes of the head."""


def encode_stored(message: GroupOpened | Trajectory) -> bytes:
    """The message as stored. A trajectory's judgement is left out: its row has it."""
    body = b""
    if isinstance(message, Trajectory):
        message, body = replace(message, judgement=None, body=b""), message.body
    (head,) = encode(message)  # one frame: there is no array
    return b"".join([HEAD.pack(len(head)), head, body])


def decode_stored(payload: bytes) -> Any:
    """The message again, a trajectory with its packed body. Raises JournalError for one of another version."""
    try:
        (size,) = HEAD.unpack_from(payload)
        message = decode([payload[HEAD.size : HEAD.size + size]], STORED)
    except (DecodeError, struct.error) as error:
        raise JournalError(
            f"the journal holds a message of another version of agent_rl ({error}): go on with that version, or start "
            "again in another run.directory"
        ) from error
    return replace(message, body=payload[HEAD.size + size :]) if isinstance(message, Trajectory) else message


LEARNER_AT = "learner_at"
"""The fact that names the version that the learner trains next, as it said last."""


def entered_before(journal: Journal) -> StageEntered | None:
    """Where the learner was when the last process of the filter ended; None before the first stage."""
    stage = journal.fact("stage")
    if stage is None:
        return None
    begun = int(journal.fact("stage_version") or 0)
    steps = journal.steps(stage=int(stage))
    untrained = (step.version for step in steps if not step.trained)
    version = min(untrained, default=steps[-1].version + 1 if steps else begun)
    if (said := journal.fact(LEARNER_AT)) is not None:
        version = min(version, int(said))  # it was restored, and trains steps again that are trained
    return StageEntered(int(stage), begun, version, restored=False)


def restore(book: GroupBook, journal: Journal, stage: int) -> Iterator[Sequence[Instruction]]:
    """Rebuild the book, which has just entered ``stage``, through the same events that built it; what each asks for."""
    steps = journal.steps(stage=stage)
    surplus = sum(len(step.decided) - book.algorithm.groups_per_step for step in steps)
    rows = list(journal.groups(stage=stage, states=("ready", "dropped", "trained")))
    opened = journal.opened_counts(stage)
    masked = book.algorithm.overlong == "mask"
    waiting = sorted((row for row in rows if row.decided_order and row.step is None), key=lambda row: row.decided_order)
    book.restore(
        [
            DecidedGroup(row.id, row.oldest, row.state == "ready", _figures(journal, row, masked=masked))
            for row in waiting
        ],
        opened=opened.pop(None, 0),
        last_order=max((row.decided_order for row in rows), default=0),
        surplus=surplus + sum(journal.uncounted(stage, reason) for reason in (STALE, TOO_FEW_ROLLOUTS)),
    )
    for sampled in () if isinstance(book.whole, Selection) else journal.sampled(stage):
        row = journal.group(group_id(stage, sampled.number))
        drawn = None if row is None else decode_stored(row.opened).drawn
        drawn = sampled.number if drawn is None else drawn
        book.observe(GroupOutcome(sampled.number, drawn, sampled.right, sampled.samples - sampled.lost))
    finished = journal.interim_evaluations(stage)
    if book.interim is not None:
        book.interim.opened.update({at_step: count for at_step, count in opened.items() if at_step is not None})
    if isinstance(book.whole, Selection):
        _restore_selection(book.whole, journal, stage)
    for row in journal.groups(stage=stage, states=("evaluated",)) if not isinstance(book.whole, Selection) else ():
        if isinstance(book.whole, StageEvaluation):
            book.whole.restore(_evaluated(journal, row))
        elif row.at_step is not None and book.interim is not None and row.at_step not in finished:
            book.interim.group_done(row.at_step, _evaluated(journal, row))
    for row in journal.groups(stage=stage, states=("open",)):
        book.group_opened(decode_stored(row.opened))
        for stored in journal.trajectories(row.id):
            yield book.trajectory(decode_stored(stored.payload), stored.judgement)
    yield book.close_steps()


def _restore_selection(selection: Selection, journal: Journal, stage: int) -> None:
    """What a select stage has counted, from its counts alone: the trajectories may have left."""
    first = journal.group(group_id(stage, 0))
    if first is not None:
        selection.problems = decode_stored(first.opened).stage_groups
    selection.restore(
        *(
            SampledProblem(
                stage, row.number, row.environment, row.problem, Solved(row.right, row.samples), row.lost, row.tokens
            )
            for row in journal.sampled(stage)
        )
    )
    if (result := journal.selection(stage)) is not None:
        selection.recorded = Selected(stage, result.kept, result.figures)


def sampled_row(problem: SampledProblem) -> SampledRow:
    """What the journal records of a problem that a select stage has counted."""
    return SampledRow(
        stage=problem.stage,
        number=problem.number,
        environment=problem.environment,
        problem=problem.id,
        right=problem.solved.right,
        samples=problem.solved.samples,
        lost=problem.lost,
        tokens=problem.tokens,
    )


def kept_problems(journal: Journal, topology: Topology, stage: int) -> dict[str, tuple[str, ...]] | None:
    """The ids by environment of the problems that a stage draws from; None where no select stage comes before it.

    Raises OutageError when that select stage has no result.
    """
    selection = topology.selection_before(stage)
    if selection is None or isinstance(topology.stages[stage], EvaluateStage):
        return None
    kept = journal.kept_problems(selection)
    if kept is None:
        name, of = topology.stages[stage].name, topology.stages[selection].name
        raise OutageError(
            f"stages.{stage}: stage {name!r} trains on what stage {of!r} keeps, and that stage has no result: "
            "run.max_minutes ended it, or it was written into the file when the run was past it; start again in "
            "another run.directory, with the newest checkpoint as model.path"
        )
    return kept


def decided_from(journal: Journal, stage: int, version: int) -> Iterator[str | StepReady | EvaluationReady]:
    """The messages that a learner at ``version`` lacks: groups (by id) before their step, then groups in no step.

    The results of evaluations within the stage follow: the learner waits for them before it leaves the stage.
    """
    steps = journal.steps(stage=stage)
    for step in steps:
        if step.version >= version:
            # A step that was skipped as not finite stays a step without an update.
            groups = () if step.skipped else step.groups
            yield from groups
            yield StepReady(step.stage, step.version, groups, step.figures)
    in_steps = {group for step in steps for group in step.groups}
    for row in journal.groups(stage=stage, states=("ready",)):
        if row.id not in in_steps:
            yield row.id
    for at_step, figures in journal.interim_evaluations(stage).items():
        yield EvaluationReady(Evaluation(stage, at_step), figures)


def training_group(journal: Journal, group: str) -> TrainingGroup | None:
    """The group as it is trained; None when it was dropped, at a stage boundary for instance."""
    row = journal.group(group)
    if row is None or row.state not in {"ready", "trained"}:
        return None
    payloads = {(each.sample, each.attempt): each.payload for each in journal.trajectories(group)}
    kept = [payloads[key] for key in row.kept if key in payloads]
    if len(kept) < len(row.kept):
        raise JournalError(
            f"{journal.path} no longer holds the rollouts of group {group}, which the learner needs again: its "
            "checkpoint is too old; put back a newer one, or start again in another run.directory"
        )
    return TrainingGroup(
        group=group,
        stage=row.stage,
        policy=PolicyVersion(0, row.oldest),
        trajectories=tuple(_for_training(decode_stored(payload)) for payload in kept),
        rewards=np.array(row.rewards, dtype=np.float32),
    )


def _for_training(trajectory: Trajectory) -> Trajectory:
    """A trajectory without its texts: its body is sent on as it is stored."""
    return replace(trajectory, transcript=Transcript((), status=trajectory.status))


def _figures(journal: Journal, row: GroupRow, *, masked: bool = False) -> tuple[RolloutFigures, ...]:
    """Of a group's rollouts that were lost or judged."""
    opened = decode_stored(row.opened)
    kept = dict(row.kept)
    found = [
        (RolloutFigures.of(decode_stored(each.payload), opened), each.judgement)
        for each in journal.trajectories(row.id)
    ]
    judged = (r if given is None else r.judged(given) for r, given in found if r.lost or given is not None)
    return tuple(fated(r, "trained" if r.sample in kept else row.reason or NOT_SELECTED, masked=masked) for r in judged)


def _evaluated(journal: Journal, row: GroupRow) -> list[RolloutFigures]:
    """What an evaluation counts of a group: what was judged, or else one attempt that was lost."""
    found = _figures(journal, row)
    return [rollout for rollout in found if not rollout.lost] or list(found[:1])


class ToLearner:
    """A queue of groups, steps and results of evaluations. A group is read from the journal when its turn comes."""

    def __init__(self, link: Any, journal: Journal, commit: Callable[[], None]) -> None:
        self._link, self._journal, self._commit = link, journal, commit
        self._queue, self._items = trio.open_memory_channel[str | StepReady | EvaluationReady](math.inf)

    def send(self, item: str | StepReady | EvaluationReady) -> None:
        """Send a group, by its id, or another message."""
        self._queue.send_nowait(item)

    def send_again(self, stage: int, version: int) -> None:
        """Send what the stage decided from ``version`` on: the learner or the filter is a new process."""
        for item in decided_from(self._journal, stage, version):
            self.send(item)

    async def run(self) -> None:
        """Send until cancelled."""
        async for item in self._items:
            if self._journal.dirty:
                self._commit()
            message = training_group(self._journal, item) if isinstance(item, str) else item
            if message is not None:
                await self._link.send(message)
