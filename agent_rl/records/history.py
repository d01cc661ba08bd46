"""Whether what a run directory holds is of one history: journal, checkpoints, and the rows of ``metrics.jsonl``.

::

    step trained --> journal committed and flushed --> learner told --> checkpoint written and flushed --> journal told --> compaction
                                                                                                       (kept_from)

So a checkpoint never knows a step that the journal lacks, whatever crashes, also when the machine loses power; the journal may
know more, and replays it. A checkpoint says the run's id and the last step recorded before it (`Mark`); the journal holds the
id, its steps, and from which version on it still has the rollouts. A row of metrics.jsonl is written after the flush as well.

Deciding is `disagreement`, pure. The supervisor asks it of the files before anything starts (`check_history`); the filter asks it
of what the learner says (`refuse_learner`), which may stand on another host's disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_rl.config.topology import Topology
from agent_rl.records.checkpoint_files import Position, read_state
from agent_rl.records.continuing import made_with, started_otherwise
from agent_rl.records.journal import EmptyJournalError, Journal, JournalError
from agent_rl.records.opening import JOURNAL, read_journal

MADE_WITH = "made_with"
"""The journal's fact that holds what the run was made with (see continuing.py), as topology.json does."""
METRICS, SUMMARY, CHECKPOINTS = "metrics.jsonl", "summary.json", "checkpoints"
ELSEWHERE = "or start again in another run.directory"


@dataclass(frozen=True, slots=True)
class Mark:
    """What a checkpoint knows of the journal: the id of the run, and the version of the last step that was recorded.

    ``run`` is empty where it is not known: before the first answer of the journal, and in checkpoints of older versions.
    """

    run: str = ""
    step: int = -1

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Mark:
        """The mark in what a checkpoint keeps beside its position."""
        return cls(**extra.get("history", {}))

    def kept(self) -> dict[str, Any]:
        """The mark as a checkpoint keeps it."""
        return {"history": asdict(self)}


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint: its name, where in the recipe it stands, and its mark."""

    name: str
    position: Position
    mark: Mark


@dataclass(frozen=True, slots=True)
class Known:
    """What the journal knows."""

    path: Path
    run: str
    stage: int
    """The last stage entered; -1 before the first."""
    step: int
    """The version of the last step trained; -1 before the first."""
    kept_from: int | None
    """No replay can start before this version; None while nothing was forgotten and no checkpoint was recorded."""
    evaluated: frozenset[int]


def known(journal: Journal) -> Known:
    """What a journal knows. Raises JournalError when it cannot be read."""
    kept_from = journal.fact("kept_from")
    return Known(
        journal.path,
        journal.fact("run") or "",
        int(journal.fact("stage") or 0) if journal.fact("stage") is not None else -1,
        journal.last_step(),
        None if kept_from is None else int(kept_from),
        frozenset(journal.evaluations()),
    )


def disagreement(journal: Known, checkpoint: Saved | None, kinds: Sequence[str]) -> str | None:
    """Why the run cannot go on from this checkpoint (None: there is none) with this journal, and what to do.

    ``kinds`` are those of the recipe's stages. None when both are of one history.
    """
    if checkpoint is None:
        if journal.kept_from is None:
            return None
        return f"{journal.path} knows of checkpoints, and there is none: put the folder {CHECKPOINTS} back, {ELSEWHERE}"
    name, mark, at = checkpoint.name, checkpoint.mark, checkpoint.position
    if mark.run and mark.run != journal.run:
        return (
            f"{name} is of run {mark.run}, and {journal.path} of run {journal.run}: put back the checkpoints or the journal that "
            f"belong together, {ELSEWHERE}"
        )
    if not mark.run:
        return (
            f"{name} names no run, so another version of agent_rl wrote it, or it is of another run: "
            f"put back this run's checkpoints, {ELSEWHERE}"
        )
    left = at.stage - 1
    unevaluated = 0 <= left < len(kinds) and kinds[left] == "evaluate" and left not in journal.evaluated
    if mark.step > journal.step or left > journal.stage or unevaluated:
        return (
            f"{journal.path} is older than {name}: {_reached(journal.step, journal.stage)}, and the checkpoint was written "
            f"{_reached(mark.step, at.stage)}. Put back the journal as it was then or later, {ELSEWHERE}"
        )
    if journal.kept_from is not None and at.version < journal.kept_from:
        return (
            f"{name} is too old for {journal.path}, which holds rollouts from version {journal.kept_from} on: put back a "
            f"checkpoint of that version or a later one, {ELSEWHERE}"
        )
    return None


def _reached(step: int, stage: int) -> str:
    return f"in stage {stage}, " + (f"after the step at version {step}" if step >= 0 else "before the first step")


def refuse_learner(journal: Journal, mark: Mark, position: Position, kinds: Sequence[str], *, begins: bool) -> None:
    """Hold what a restarted learner says of its checkpoint against the journal; ``begins`` says that it has none.

    A learner that names no run is one of an older version or of the user's own: its files were looked at, where they are here.
    Raises JournalError.
    """
    fault = None
    if begins:
        fault = disagreement(known(journal), None, kinds)
    elif mark.run:
        name = f"the learner's checkpoint of version {position.version}"
        fault = disagreement(known(journal), Saved(name, position, mark), kinds)
    if fault is not None:
        raise JournalError(fault)


def check_history(directory: Path, topology: Topology, hosts: Sequence[str] | None = None) -> None:
    """Refuse what would lose a run's history: a journal that is missing, empty, damaged, behind, or of another run.

    ``hosts`` are those whose disk this is; without it, the filter's. Checkpoints are looked at where they must be here: when the
    learner's host is one of them. Raises JournalError with the remedy.
    """
    entry = topology.actors.get("roc_filter")
    here = hosts if hosts is not None else [] if entry is None else [entry.host]
    if entry is None or entry.host not in here:
        return
    for name in (JOURNAL, METRICS, SUMMARY):
        if (directory / name).is_dir():
            raise JournalError(
                f"{directory / name} is a directory where the run writes a file: move it away, {ELSEWHERE}"
            )
    path = directory / JOURNAL
    rows = _row_count(directory / METRICS)
    saved = checkpoints(directory) if topology.main_host in here else []
    missing = not path.exists()
    try:
        journal = None if missing or not path.stat().st_size else read_journal(directory)
    except EmptyJournalError:  # the process that began to make it was killed
        journal = None
    if journal is None:
        witnesses = [each.name for each in saved[-1:]] + [f"{rows} rows in {METRICS}"] * (rows > 0)
        if witnesses:
            raise JournalError(
                f"{path} is {'missing' if missing else 'empty'}, and the run has a history: {' and '.join(witnesses)}. Put the "
                f"journal back (with {JOURNAL}-wal, if there is one), {ELSEWHERE}"
            )
        return
    try:
        if hosts is not None:
            journal.check_structure()
            if lost := journal.lost_steps():
                raise JournalError(f"{path} has lost steps ({lost[0]}): put back a whole copy of it, {ELSEWHERE}")
        knows = known(journal)
        recorded = journal.record_count()
        before = json.loads(journal.fact(MADE_WITH) or "{}")
    finally:
        journal.close()
    if otherwise := started_otherwise(path, before, made_with(topology)):
        raise JournalError(otherwise)
    if topology.main_host in here:
        kinds = [stage.kind for stage in topology.stages]
        strangers = [each for each in saved if each.mark.run and knows.run and each.mark.run != knows.run]
        newest = strangers[-1] if strangers else saved[-1] if saved else None
        fault = disagreement(knows, newest, kinds)
        if fault is not None and (newest is not None or not _any_folder(directory)):
            raise JournalError(fault)
    # Last, since removing the rows helps only where nothing else is wrong.
    if rows > recorded:
        raise JournalError(
            f"{_behind(path, rows, recorded)}. Put back the journal as it was then or later, {ELSEWHERE}; or remove {METRICS}, "
            "to go on from the journal and forget what came after"
        )


def faults_between(directory: Path, journal: Journal) -> list[str]:
    """Where a run directory's journal and what else is in it are not of one history, for an audit; no run may be under way.

    Checkpoints that are not here may be on another host. Raises JournalError when the journal cannot be read.
    """
    knows, recorded, rows = known(journal), journal.record_count(), _row_count(directory / METRICS)
    faults = [disagreement(knows, each, ()) for each in checkpoints(directory)[-1:]]
    if rows > recorded:
        faults.append(_behind(journal.path, rows, recorded))
    return [fault for fault in faults if fault is not None]


def _behind(path: Path, rows: int, recorded: int) -> str:
    return f"{path} is older than {METRICS}, which has {rows} rows where the journal has {recorded}"


def checkpoints(directory: Path) -> list[Saved]:
    """The checkpoints of a run directory that a run would go on from, oldest first; those that cannot be read are left out."""
    found = []
    for path in sorted((directory / CHECKPOINTS).glob("version-*")):
        state = read_state(path)
        if state is not None:
            position, extra = state
            found.append(Saved(f"{CHECKPOINTS}/{path.name}", position, Mark.of(extra)))
    return found


def _any_folder(directory: Path) -> bool:
    """Whether there are checkpoints at all; of those that are damaged the learner says which file it is."""
    return any((directory / CHECKPOINTS).glob("version-*"))


def _row_count(path: Path) -> int:
    """How many whole rows a file of JSON lines has."""
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0
