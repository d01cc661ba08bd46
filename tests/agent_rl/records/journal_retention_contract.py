"""The part of the journal's contract that says which trajectories stay, and helpers of all its tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agent_rl.figures import StepFigures, TrainingFigures
from agent_rl.messages import Evaluation
from agent_rl.records.audit import audit_journal
from agent_rl.records.journal import Journal, JournalError, open_journal
from agent_rl.records.retention import SELECTED_TOGETHER
from agent_rl.records.rows import SampledRow
from agent_rl.scheduling.ids import group_id
from agent_rl_contract.builders import evaluated

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


def forget(journal: Journal, *, keep: int = 0, pieces: int | None = None) -> int:
    """Carry out a compaction, or its first ``pieces``; returns how many there were."""
    done = 0
    for remove in journal.compaction(keep):
        journal.commit()
        if remove is not None:
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


class RetentionContract:
    """What `Journal.compaction` promises."""

    def open(self, folder: Path) -> Journal:
        """Open the journal of a folder: a new one, or the one that was committed there."""
        return open_journal(folder)

    def made(self, folder: Path) -> Journal:
        """A journal in which every step begins a new segment."""
        journal = self.open(folder)
        journal.segment_bytes = 1
        return journal

    def test_compaction_forgets_only_what_no_replay_needs(self, tmp_path: Path) -> None:
        """And from the first and the last step a few groups for people to read."""
        journal = self.made(tmp_path)
        names = []
        for version in range(4):
            groups = open_groups(journal, range(5 * version, 5 * version + 5))
            train(journal, version, groups[:3], groups[3:])
            names += groups
        open_ones = open_groups(journal, range(20, 22))
        journal.keep_from(2)
        assert journal.fact("kept_from") == "2"
        forget(journal)
        sampled = [names[0], names[1], names[3]]
        assert readable(journal, names) == sampled + names[10:]
        journal.keep_from(4)
        forget(journal)
        kept = [*sampled, names[15], names[16], names[18]]
        assert readable(journal, names) == kept == journal.samples()
        assert journal.left() == len(names) - len(kept)
        assert readable(journal, open_ones) == open_ones
        assert audit_journal(journal).balanced
        train(journal, 4, open_ones)
        journal.keep_from(5)
        forget(journal)
        assert readable(journal, [*names, *open_ones]) == sampled + open_ones
        journal.close()

    def test_more_steps_can_be_kept_for_reading(self, tmp_path: Path) -> None:
        """``keep`` counts the last steps trained; a replay's trajectories stay in any case."""
        journal = self.made(tmp_path)
        groups = []
        for version in range(6):
            groups += open_groups(journal, range(version, version + 1))
            train(journal, version, groups[-1:])
        journal.keep_from(1)
        forget(journal, keep=3)
        assert readable(journal, groups) == groups  # the first is a sample
        journal.keep_from(2)
        forget(journal, keep=3)
        assert readable(journal, groups) == [groups[0], *groups[2:]]
        journal.keep_from(6)
        forget(journal, keep=3)
        assert readable(journal, groups) == [groups[0], *groups[3:]]
        journal.close()

    def test_a_dropped_group_that_the_next_step_counts_stays_until_the_stage_is_left(self, tmp_path: Path) -> None:
        """One that no step counts, of too few rollouts or of a stage before, leaves at once."""
        journal = self.made(tmp_path)
        counted, other = open_groups(journal, 2)
        journal.drop(counted, "equal_rewards", 1.0, 0, 1)
        forget(journal)
        assert readable(journal, [counted, other]) == [counted, other]  # the other is open
        journal.drop(other, "stale", 1.0, 0, 0)
        forget(journal)
        assert readable(journal, [counted, other]) == [counted, other]  # a segment leaves as a whole
        journal.set_fact("stage", "1")
        journal.leave_stages(but=1, reason="stage_boundary")
        forget(journal)
        assert readable(journal, [counted, other]) == []
        journal.close()

    def test_evaluations_leave_when_they_are_complete_within_an_rl_stage_alone(self, tmp_path: Path) -> None:
        """Those of evaluate stages stay, to be read."""
        journal = self.made(tmp_path)
        stays = open_groups(journal, 2, stage=1, purpose="evaluate_greedy")
        first = open_groups(journal, 2, stage=2, purpose="evaluate_sampled", at_step=10)
        for group in (*stays, *first):
            journal.evaluated(group)
        journal.add_evaluation(Evaluation(1), evaluated(0.0))
        journal.add_evaluation(Evaluation(2, 10), evaluated(0.0))
        second = open_groups(journal, 2, stage=2, purpose="evaluate_sampled", at_step=20)
        journal.evaluated(second[0])
        forget(journal)
        assert readable(journal, [*stays, *first, *second]) == [*stays, *second]
        journal.close()

    def test_problems_of_a_select_stage_leave_as_they_are_counted(self, tmp_path: Path) -> None:
        """Segment by segment, while the stage goes on; the counts stay."""
        journal = self.made(tmp_path)
        early = open_groups(journal, 2, stage=3, purpose="select")
        late = open_groups(journal, range(SELECTED_TOGETHER, SELECTED_TOGETHER + 2), stage=3, purpose="select")
        for number, group in zip((0, 1, SELECTED_TOGETHER), (*early, late[0]), strict=True):
            journal.add_sampled(group, SampledRow(3, number, "maths", f"problem {number}", 1, 2, 0, 7))
        forget(journal)
        assert readable(journal, [*early, *late]) == late
        assert [row.number for row in journal.sampled(3)] == [0, 1, SELECTED_TOGETHER]
        journal.close()

    def test_a_compaction_that_was_cut_short_anywhere_is_ended_by_the_next(self, tmp_path: Path) -> None:
        """No sample is lost, and nothing else stays."""
        for cut in range(1, 99):
            folder = tmp_path / str(cut)
            folder.mkdir()
            journal = self.made(folder)
            names = []
            for version in range(3):
                names += open_groups(journal, range(4 * version, 4 * version + 4))
                train(journal, version, names[-4:])
            journal.keep_from(3)
            journal.commit()
            done = forget(journal, pieces=cut)
            journal.abandon()
            again = self.made(folder)
            forget(again)
            assert readable(again, names) == again.samples() == [names[0], names[1], names[8], names[9]]
            again.close()
            if done < cut:
                return
        raise AssertionError("a compaction of three steps does not end")

    def test_the_filter_goes_on_while_trajectories_leave(self, tmp_path: Path) -> None:
        """Whatever is written between two pieces of a compaction."""
        journal = self.made(tmp_path)
        names = open_groups(journal, 4)
        train(journal, 0, names)
        names += open_groups(journal, range(4, 8))
        train(journal, 1, names[4:])
        journal.keep_from(2)
        number = 8
        for remove in journal.compaction():
            names += open_groups(journal, range(number, number + 1))
            number += 1
            journal.commit()
            if remove is not None:
                remove()
        assert readable(journal, names) == [names[0], names[1], names[4], names[5], *names[8:]]
        assert number == 12
        journal.close()
