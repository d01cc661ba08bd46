"""The rules of the journal, as tests that `test_journal.py` collects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agent_rl.figures import SelectionFigures, StepFigures, TrainingFigures
from agent_rl.messages import Evaluation, Judgement
from agent_rl.records.audit import audit_journal
from agent_rl.records.rows import GroupRow, SampledRow
from agent_rl.scheduling.ids import group_id
from agent_rl_contract.builders import evaluated
from tests.agent_rl.records.journal_retention_contract import RetentionContract, open_groups, raises, readable


class JournalContract(RetentionContract):
    """The whole contract."""

    # Groups and steps -------------------------------------------------------------------------------------------------

    def test_a_settled_group_does_not_change_again(self, tmp_path: Path) -> None:
        """Whatever comes late."""
        journal = self.open(tmp_path)
        (group,) = open_groups(journal, 1)
        journal.drop(group, "stale", 0.0, 0, 0)
        journal.ready(group, [(0, 0)], [1.0], 0, 1)
        journal.evaluated(group)
        journal.open_group(group, 0, 0, "train", b"again")
        row = journal.group(group)
        assert row is not None
        assert (row.state, row.opened) == ("dropped", b"opened")
        for name in (group, "s0-g000009"):
            with raises("is not open"):
                journal.add_trajectory(name, 1, 0, "finished", b"")
        with raises("never closed"):
            journal.step_trained(9, TrainingFigures())
        journal.close()

    def test_the_audit_names_groups_that_break_the_rules(self, tmp_path: Path) -> None:
        """An open group in a step, a missing number, a group in two steps, a training group that was evaluated."""
        journal = self.open(tmp_path)
        a, b, c = open_groups(journal, 3)
        journal.ready(a, [(0, 0)], [1.0], 0, 1)
        for version in (0, 1):
            journal.close_step(version, 0, [a, b], [a, b], StepFigures())
            journal.step_trained(version, TrainingFigures())
        journal.evaluated(c)
        journal.open_group("s0-g000007", 0, 7, "train", b"")
        faults = "\n".join(audit_journal(journal).faults)
        for name, purpose, state in (("s0-a", "train", "dropped"), ("s0-b", "evaluate_greedy", "trained")):
            journal._put(GroupRow(name, 0, None, 3, purpose, b"", 0, state=state))
        faults += "\n".join(audit_journal(journal).faults)
        for fault in (
            "s0-a: dropped without a reason",
            "s0-b: trained without a step",
            "s0-b: an evaluation group marked trained",
            f"{b}: open, yet in a step",
            f"{a}: in the steps at versions 0 and 1",
            f"{c}: a training group marked evaluated",
            "stage 0: 4 groups recorded, but numbers reach 8",
        ):
            assert fault in faults, faults
        assert "NOT BALANCED" in audit_journal(journal).lines()
        assert journal.lost_steps() == []
        journal.close()

    def test_the_audit_tells_what_became_of_sampled_tokens(self, tmp_path: Path) -> None:
        """Trained by the learner's count, skipped, and waiting; a learner that trained others is a fault."""
        journal = self.open(tmp_path)
        sent = StepFigures(delivered={"sampled": 9, "trained": 5, "equal_rewards": 4}, branches={"again": 2})
        for version in range(3):
            (name,) = open_groups(journal, range(version, version + 1))
            journal.ready(name, [(0, 0)], [1.0], 0, 1)
            journal.close_step(version, 0, [name], [name], sent)
        journal.step_trained(0, TrainingFigures(trained_tokens=5))
        journal.step_trained(1, TrainingFigures(skipped=True), dropped_for="not_finite")
        balance = audit_journal(journal)
        assert balance.balanced, balance.faults
        parts = {"trained": 5, "equal_rewards": 12, "step_skipped": 5, "waiting": 5}
        assert (balance.delivered, balance.branches) == ({"sampled": 27, **parts}, {"again": 6})
        assert any("27 = 5 trained + 22 excluded (12 equal_rewards" in line for line in balance.lines())
        for told in (TrainingFigures(trained_tokens=4), TrainingFigures(trained_rollouts=1)):
            journal.step_trained(2, told)
            (fault,) = audit_journal(journal).faults
            assert fault == f"step 2: 5 tokens were sent to be trained, and {told.trained_tokens} were"

    def test_what_people_are_told(self, tmp_path: Path) -> None:
        """States of groups, the verdicts of an evaluation, and rows."""
        journal = self.open(tmp_path)
        a, b, right, wrong = open_groups(journal, 4)
        journal.ready(a, [(0, 0), (1, 0)], [1.0, 0.0], 0, 1)
        journal.ready(b, [(0, 0), (1, 0)], [1.0, 1.0], 0, 2)
        journal.drop(right, "equal_rewards", 1.0, 0, 3)
        journal.drop(wrong, "equal_rewards", 0.0, 0, 4)
        journal.close_step(7, 0, [a, b], [a, b, right, wrong], StepFigures())
        journal.step_trained(7, TrainingFigures())
        assert journal.closed_versions() == [7]
        states = {a: "trained", b: "trained", right: "dropped", wrong: "dropped"}
        assert {group: (state, step) for group, state, step in journal.group_states()} == {
            group: (state, 7) for group, state in states.items()
        }
        asked = open_groups(journal, 3, stage=1, purpose="evaluate_greedy")
        for group, reward in zip(asked, (1.0, 0.0), strict=False):
            journal.judge(group, 0, 0, Judgement(reward, success=reward > 0))
        for group in asked:
            journal.evaluated(group)
        assert journal.judged(1) == dict(zip(asked, (1.0, 0.0, 0.0), strict=True))
        journal.add_evaluation(Evaluation(1), evaluated(0.25))
        balance = audit_journal(journal)
        assert (balance.opened, balance.evaluated, balance.balanced) == (4, 3, True)
        journal.ask_again([asked[0], a])
        assert (journal.trajectories(asked[0]), readable(journal, asked)) == ([], asked[1:])
        for row in ("one", "two"):
            journal.add_record(row)
        assert (journal.records(), journal.record_count()) == (["one", "two"], 2)
        assert journal.group_ids() == [a, b, right, wrong, *asked]
        journal.close()

    def test_a_stage_and_the_evaluations_within_it_are_kept_apart_also_when_opened_again(self, tmp_path: Path) -> None:
        """Each counts its own groups and has its own result, whatever the stage has trained meanwhile."""
        journal = self.open(tmp_path)
        open_groups(journal, 5, stage=2)
        for at_step in (10, 20):
            open_groups(journal, 3, stage=2, purpose="evaluate_sampled", at_step=at_step)
            journal.evaluated(group_id(2, 0, at_step))
        assert journal.add_evaluation(Evaluation(2, 20), evaluated(0.5))
        assert journal.add_evaluation(Evaluation(1), evaluated(0.25))
        assert not journal.add_evaluation(Evaluation(2, 20), evaluated(0.75))  # the first result counts
        journal.close()
        again = self.open(tmp_path)
        assert again.opened_counts(2) == {None: 5, 10: 3, 20: 3}
        done = [(row.id, row.at_step) for row in again.groups(stage=2, states=("evaluated",))]
        assert done == [(group_id(2, 0, 10), 10), (group_id(2, 0, 20), 20)]
        assert (again.interim_evaluations(2), again.interim_evaluations(1)) == ({20: evaluated(0.5)}, {})
        assert again.evaluations() == {1: evaluated(0.25)}
        assert not again.add_evaluation(Evaluation(1), evaluated(0.0))
        open_groups(again, range(4, 5), stage=2, purpose="evaluate_sampled", at_step=10)
        (fault,) = audit_journal(again).faults
        assert fault == "stage 2, its evaluation after 10 steps: 4 groups recorded, but numbers reach 5"
        assert again.leave_stages(but=2, reason="boundary") == 0
        assert again.leave_stages(but=3, reason="boundary") == 5 + 2 + 2 + 1
        again.close()

    # Commits ----------------------------------------------------------------------------------------------------------

    def test_a_selection_is_recorded_once_and_a_problem_that_is_asked_again_counts_no_more(
        self, tmp_path: Path
    ) -> None:
        """Also when the journal was opened again."""
        journal = self.open(tmp_path)
        names = open_groups(journal, 4, stage=1, purpose="select")
        rows = [SampledRow(1, n, "maths" if n < 2 else "sql", f"p{n}", n, 4, 0, 9) for n in range(4)]
        for name, row in zip(names, rows, strict=True):
            journal.add_sampled(name, row)
        journal.add_sampled(names[0], replace(rows[0], right=4))
        journal.ask_again(names[3:])
        assert journal.sampled(1) == rows[:3]
        assert [row.id for row in journal.groups(stage=1, states=("open",))] == names[3:]
        assert journal.kept_problems(1) is None
        journal.add_sampled(names[3], rows[3])
        figures = SelectionFigures(
            name="hard", problems=4, kept=3, dropped={"always_solved": 1}, success=0.5, lost=0, response_tokens=9.0
        )
        assert journal.add_selection(1, (0, 1, 2), figures)
        assert not journal.add_selection(1, (0,), replace(figures, kept=1))
        assert audit_journal(journal).balanced
        journal.close()
        again = self.open(tmp_path)
        assert again.kept_problems(1) == {"maths": ("p0", "p1"), "sql": ("p2",)}
        assert (again.selections(), again.selection(2)) == ([figures], None)
        again.close()

    def test_facts_that_are_committed_survive_and_others_do_not(self, tmp_path: Path) -> None:
        """After the end of the process, at whatever moment."""
        first = self.open(tmp_path)
        run = first.fact("run")
        open_groups(first, 1)
        assert first.dirty
        first.commit(flush=True)
        assert not first.dirty
        first.set_fact("epoch", "5")
        first.abandon()
        second = self.open(tmp_path)
        assert (second.fact("epoch"), second.fact("run")) == (None, run)
        second.close()
