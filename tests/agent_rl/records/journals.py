"""What tests do with a journal: open groups, train them, and let trajectories leave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from agent_rl.figures import StepFigures, TrainingFigures
from agent_rl.records.journal import Journal, JournalError
from agent_rl.scheduling.ids import group_id

PAYLOAD = bytes(range(256)) * 8
STATES = ("open", "ready", "trained", "evaluated", "dropped")


@contextmanager
def raises(words: str) -> Iterator[None]:
    """The code within must raise a JournalError whose message contains ``words``."""
    try:
        yield
    except JournalError as error:
        message = str(error)
    else:
        message = "no error"
    assert words in message, f"{message} does not contain {words!r}"


def open_groups(
    journal: Journal, numbers: int | range, *, stage: int = 0, purpose: str = "train", at_step: int | None = None
) -> list[str]:
    """Open groups with one rollout each; return their ids."""
    names = []
    for number in range(numbers) if isinstance(numbers, int) else numbers:
        names.append(group_id(stage, number, at_step))
        journal.open_group(names[-1], stage, number, purpose, b"opened", at_step)
        journal.add_trajectory(names[-1], 0, 0, "finished", PAYLOAD + names[-1].encode())
    return names


def train(
    journal: Journal, version: int, groups: Sequence[str], dropped: Sequence[str] = (), *, stage: int = 0
) -> None:
    """Close a step of open groups, and record it as trained."""
    for group in groups:
        journal.ready(group, [(0, 0)], [1.0], 0, 1)
    for group in dropped:
        journal.drop(group, "equal_rewards", 1.0, 0, 1)
    journal.close_step(version, stage, groups, [*groups, *dropped], StepFigures())
    journal.step_trained(version, TrainingFigures())


def forget(journal: Journal, *, keep: int = 0, pieces: int | None = None, remove_files: bool = True) -> int:
    """Carry out a compaction, or its first ``pieces``; returns how many there were."""
    done = 0
    for remove in journal.compaction(keep):
        journal.commit()
        if remove is not None and remove_files:
            journal.settle()
            remove()
        done += 1
        if done == pieces:
            break
    return done


def readable(journal: Journal, groups: Sequence[str]) -> list[str]:
    """The groups whose trajectories the journal still holds, each payload byte for byte."""
    found = []
    for group in groups:
        for stored in journal.trajectories(group):
            assert stored.payload == PAYLOAD + group.encode(), f"the payload of {group} is another one"
            found.append(group)
    return found
