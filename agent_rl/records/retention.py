"""Which trajectories stay, and for how long.

Payloads are in segments. A group's trajectories are in the segment that was current when the group was opened, and
closing a step begins a new segment. So a segment holds about the groups of one step, and is removed as a whole
(`compaction`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_rl.records.journal_rows import EvaluationRow, GroupRow, SegmentRow, StepRow, TrajectoryRow
from agent_rl.records.sqlite import SqliteStore

SAMPLES_TRAINED, SAMPLES_DROPPED = 2, 1
"""Groups of a stage's first and last step that keep their trajectories."""
TRAIN, EVALUATE, INTERIM, SELECT, KEPT = "train", "evaluate", "interim", "select", "kept"
"""Tracks, each with its own segments, of groups that are removed together. ``kept`` holds the samples."""
SELECTED_TOGETHER = 256
"""Groups of a select stage in a segment, since no step closes there."""
GROUPS_AT_ONCE = 32
"""One piece of a compaction handles the trajectories of so many groups."""


class Retention(SqliteStore):
    """Puts payloads into segments, and removes the segments that nobody needs."""

    segment_bytes = 1 << 20
    """A segment with fewer bytes also takes the groups of the next step."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        super().__init__(path, read_only=read_only)
        self._current: dict[str, int] = {}
        self._filled: dict[int, int] = {}

    def compaction(self, steps: int = 0) -> Iterator[Callable[[], None] | None]:
        """Remove the trajectories that no replay needs and that are not of the last ``steps`` steps, by segment.

        These are the trajectories of groups that were dropped or trained before, of complete evaluations within an rl
        stage, and of problems that a select stage has counted. Evaluate stages and `samples` stay. Each item of the
        iterator is a bounded piece of work, after which the caller commits. An item that is a function has finished a
        segment: the caller calls `settle`, then the function, both in a thread, to remove the payloads. If the process
        dies in between, the next compaction or start continues.
        """
        before = int(self.fact("kept_from") or 0)
        if steps:
            before = min(before, self.last_step() + 1 - steps)
        samples, here = set(self.samples()), int(self.fact("stage") or 0)
        complete = set(self._scan(EvaluationRow, ("stage", "at_step")))
        self._current.pop(KEPT, None)
        waiting: set[str] = set()
        for segment in self._select(SegmentRow):
            if segment.track in waiting:
                continue  # groups opened later are needed longer
            columns = ("id", "state", "step", "stage", "at_step", "decided_order")
            groups = list(self._scan(GroupRow, columns, segment=segment.number))
            if segment.track == KEPT:
                if any(group in samples for group, *_ in groups):
                    continue
            elif not all(
                (segment.track == SELECT and rest[0] == "evaluated")
                or _spent(*rest, here=here, before=before, complete=complete)
                for _, *rest in groups
            ):
                waiting.add(segment.track)
                continue
            if self._current.get(segment.track) == segment.number:
                del self._current[segment.track]
            for start in range(0, len(groups), GROUPS_AT_ONCE):
                for group, *_ in groups[start : start + GROUPS_AT_ONCE]:
                    if group in samples:
                        self._spare(group)
                    else:
                        self._delete(TrajectoryRow, group)
                yield None
            self._delete(SegmentRow, segment.number)
            yield self._let_go(segment.number)

    def _spare(self, group: str) -> None:
        """Copy the payloads of a group into a segment of the track ``kept``."""
        row = self._get(GroupRow, group)
        assert row is not None
        kept = self._segment(KEPT)
        for each in self._select(TrajectoryRow, group_id=group):
            payload = self._fetch(row.segment, each.offset, each.size)
            if payload is None:  # an older copy of the journal was put back; a later compaction removed the file
                self._delete(TrajectoryRow, group)
                return
            offset, size, checksum = self._store(kept, payload)
            self._put(replace(each, offset=offset, size=size, checksum=checksum))
        self._put(replace(row, segment=kept))

    def samples(self) -> list[str]:
        """Groups whose trajectories stay for people to read, from each stage's first and last trained step.

        They are the first `SAMPLES_TRAINED` groups that the step trained and the first `SAMPLES_DROPPED` that it
        dropped.
        """
        versions: dict[int, list[int]] = {}
        for stage, version in self._scan(StepRow, ("stage", "version"), trained=True):
            versions.setdefault(stage, []).append(version)
        found: list[str] = []
        for version in sorted({end for each in versions.values() for end in (min(each), max(each))}):
            step = self._get(StepRow, version)
            assert step is not None
            found += step.groups[:SAMPLES_TRAINED]
            found += [group for group in step.decided if group not in set(step.groups)][:SAMPLES_DROPPED]
        return found

    def _segment(self, track: str) -> int:
        """The segment for new groups of a track."""
        if track not in self._current:
            number = max((number for (number,) in self._scan(SegmentRow, ("number",))), default=-1) + 1
            self._put(SegmentRow(number, track))
            self._current[track] = number
        return self._current[track]

    def _begin_segment(self, track: str) -> None:
        """Start another segment for later groups of a track, unless the current segment is small."""
        if self._filled.get(self._current.get(track, -1), 0) >= self.segment_bytes:
            self._filled.pop(self._current.pop(track))

    def _store(self, segment: int, payload: bytes) -> tuple[int, int, int]:
        """Append a payload to a segment; return its offset and size in bytes, and its CRC-32."""
        offset = self._append(segment, payload)
        self._filled[segment] = offset + len(payload)
        return offset, len(payload), zlib.crc32(payload)

    def last_step(self) -> int:
        """The version of the last step that was trained; -1 before the first."""
        return max((version for (version,) in self._scan(StepRow, ("version",), trained=True)), default=-1)


def _spent(
    state: str, step: int | None, stage: int, at_step: int | None, order: int, *, here: int, before: int, complete: Any
) -> bool:
    """Whether a group's trajectories are no longer needed when replays start at the version ``before``.

    A dropped group of the stage ``here``, where the run is, with an order of decision (``order``) will be in the
    figures of the next step. ``complete`` holds (stage, at_step) of evaluations.
    """
    match state:
        case "dropped":
            return step < before if step is not None else not (order and stage == here)
        case "trained":
            return step is not None and step < before
        case "evaluated":
            return (stage, at_step) in complete
    return False
