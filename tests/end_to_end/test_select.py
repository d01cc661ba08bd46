"""A selection within a run, for real: each problem is sampled once, also when every process is killed in its middle,
and the stages after it draw from what was kept.
"""

from collections import Counter

import pytest

from actors.roc_filter.replay import decode_stored
from agent_rl.records.journal import JournalError
from agent_rl.records.journal_rows import SampledRow
from tests.end_to_end.processes import CALLS_TOOLS, ROOM, Run, Said
from tests.end_to_end.topologies import SELECT, write_selecting

SAMPLES = 4
PROBLEMS = 150
"""Of the test with kills: the restart of a learner takes seconds, in which others go on."""


def counted(run: Run) -> list[SampledRow]:
    """What the selection of the first stage has counted so far."""
    try:
        with run.journal() as journal:
            return journal.sampled(0)
    except JournalError:  # it is being made
        return []


def check_selected(run: Run, said: Said, *, problems: int, steps: int) -> None:
    """Every problem was sampled once, with all its samples; training drew from every second one."""
    balance = run.balanced()
    assert (balance.steps, balance.evaluated) == (steps, problems)
    (selection,) = run.told("selection")
    for figures in (selection, said.summary):
        assert figures["problems_sampled_hard"] == problems
        assert figures["problems_kept_hard"] == figures["problems_always_solved_hard"] == problems / 2
        assert (figures["success_hard"], figures["lost_hard"]) == (0.75, 0)
    with run.journal() as journal:
        groups = [decode_stored(row.opened) for row in journal.groups(stage=0, states=("evaluated",))]
        assert len({opened.problem.id for opened in groups}) == len(groups) == problems
        for opened in groups:
            samples = Counter(each.sample for each in journal.trajectories(opened.group) if each.judgement is not None)
            assert samples == dict.fromkeys(range(SAMPLES), 1), opened.group
        assert {row.right for row in journal.sampled(0)} == {SAMPLES // 2, SAMPLES}
        kept = {opened.problem.id for opened in groups if opened.number % 2}
        assert set((journal.kept_problems(0) or {})["maths"]) == kept
        states = ("trained", "dropped", "ready", "open")
        drawn = [decode_stored(row.opened).problem.id for row in journal.groups(stage=1, states=states)]
        assert drawn
        assert set(drawn) <= kept


KEEP_ALL = 'run.keep_trajectories="all"'
"""So that the test can count the trajectories of each problem."""
LONG = (*ROOM, "stages.1.max_response_tokens=400")


@pytest.mark.slow
def test_a_run_trains_on_what_it_has_selected_itself(tmp_path):
    """And a second selection samples only what the first one kept."""
    run = Run(*write_selecting(tmp_path, problems=16))
    again = SELECT.replace("hard", "harder").replace("samples = 4", "samples = 2")
    text = run.path.read_text()
    rl = text.split("[[stages]]")[-1].split("[actors.")[0]
    run.path.write_text(text.replace("[actors.", f"{again}[[stages]]{rl}[actors.", 1))
    summary = run.to_end().summary
    assert (summary["problems_sampled_hard"], summary["problems_kept_hard"]) == (16, 8)
    assert (summary["problems_sampled_harder"], summary["problems_kept_harder"]) == (8, 4)
    with run.journal() as journal:
        hard, harder = (set((journal.kept_problems(stage) or {})["maths"]) for stage in (0, 2))
        assert harder < hard
        states = ("trained", "dropped", "ready", "open")
        drawn = {decode_stored(row.opened).problem.id for row in journal.groups(stage=3, states=states)}
        assert drawn <= harder
    run.balanced(steps=4)


@pytest.mark.slow
def test_every_process_is_killed_in_the_middle_of_the_selection_and_no_problem_is_lost_or_sampled_twice(tmp_path):
    """Every rollout calls the executor, which takes its time, so that each process that is killed has work to lose."""
    run = Run(*write_selecting(tmp_path, problems=PROBLEMS, generator=CALLS_TOOLS)).start(KEEP_ALL, *LONG)

    def three_more() -> None:
        done = len(counted(run))
        run.wait(lambda: len(counted(run)) >= done + 3, "three problems more")
        assert len(counted(run)) < PROBLEMS, "the selection was over too soon"

    for role in ("kv_scheduler", "rollout_generator", "roc_filter", "learner", "tool_executor"):
        three_more()
        run.killed(role)
    three_more()
    run.process.kill()
    run.process.communicate()
    before = counted(run)
    assert 0 < len(before) < PROBLEMS
    said = run.to_end(KEEP_ALL, *LONG)
    assert [row for row in counted(run) if row.number in {each.number for each in before}] == before
    check_selected(run, said, problems=PROBLEMS, steps=2)


@pytest.mark.slow
def test_a_selection_that_keeps_nothing_ends_the_run_and_another_rule_goes_on_with_its_samples(tmp_path):
    run = Run(*write_selecting(tmp_path, problems=6))
    said = run.to_end(KEEP_ALL, "stages.0.keep.below=0.5", code=2).all
    assert "select stage 'hard' keeps none of its 6 problems (3 always solved, 3 too easy)" in said
    assert "change stages.0.keep and run again (nothing is sampled anew)" in said
    assert "Traceback" not in said
    before = counted(run)
    said = run.to_end(KEEP_ALL)
    assert counted(run) == before
    check_selected(run, said, problems=6, steps=2)
