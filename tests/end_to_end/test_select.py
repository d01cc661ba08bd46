"""A selection within a run, for real: each problem is sampled once, also when every process is killed in its middle,
and the stages after it draw from what was kept.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from actors.roc_filter.replay import decode_stored
from agent_rl.records.journal import Journal, JournalError
from agent_rl.records.journal_rows import SampledRow
from tests.end_to_end.processes import (
    CALLS_TOOLS,
    ROOM,
    Said,
    balanced,
    finish,
    journal_of,
    kill,
    rows,
    runs_again,
    signal_actor,
    start,
    wait_for,
)
from tests.end_to_end.topologies import SELECT, write_selecting

SAMPLES = 4
PROBLEMS = 150
"""Of the test with kills: the restart of a learner takes seconds, in which others go on."""


def counted(directory: Path) -> list[SampledRow]:
    """What the selection of the first stage has counted so far."""
    try:
        journal = Journal(directory / "journal.sqlite", read_only=True)
    except JournalError:  # it is being made
        return []
    try:
        return journal.sampled(0)
    finally:
        journal.close()


def check_selected(directory: Path, said: Said, *, problems: int, steps: int) -> None:
    """Every problem was sampled once, with all its samples; training drew from every second one."""
    balance = balanced(directory)
    assert (balance.steps, balance.evaluated) == (steps, problems)
    (selection,) = [row for row in rows(directory / "metrics.jsonl") if row["kind"] == "selection"]
    summary = said.summary
    for figures in (selection, summary):
        assert figures["problems_sampled_hard"] == problems
        assert figures["problems_kept_hard"] == figures["problems_always_solved_hard"] == problems / 2
        assert (figures["success_hard"], figures["lost_hard"]) == (0.75, 0)
    with journal_of(directory) as journal:
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
def test_a_run_trains_on_what_it_has_selected_itself(tmp_path: Path) -> None:
    """And a second selection samples only what the first one kept."""
    path, directory = write_selecting(tmp_path, problems=16)
    again = SELECT.replace("hard", "harder").replace("samples = 4", "samples = 2")
    rl = path.read_text().split("[[stages]]")[-1].split("[actors.")[0]
    text = path.read_text().replace("[actors.", f"{again}[[stages]]{rl}[actors.", 1)
    path.write_text(text)
    said = finish(start(path))
    summary = said.summary
    assert (summary["problems_sampled_hard"], summary["problems_kept_hard"]) == (16, 8)
    assert (summary["problems_sampled_harder"], summary["problems_kept_harder"]) == (8, 4)
    with journal_of(directory) as journal:
        hard, harder = (set((journal.kept_problems(stage) or {})["maths"]) for stage in (0, 2))
        assert harder < hard
        states = ("trained", "dropped", "ready", "open")
        drawn = {decode_stored(row.opened).problem.id for row in journal.groups(stage=3, states=states)}
        assert drawn <= harder
    balanced(directory, steps=4)


@pytest.mark.slow
def test_every_process_is_killed_in_the_middle_of_the_selection_and_no_problem_is_lost_or_sampled_twice(
    tmp_path: Path,
) -> None:
    """Every rollout calls the executor, which takes its time, so that each process that is killed has work to lose."""
    path, directory = write_selecting(tmp_path, problems=PROBLEMS, generator=CALLS_TOOLS)
    process = start(path, KEEP_ALL, *LONG)
    for role in ("kv_scheduler", "rollout_generator", "roc_filter", "learner", "tool_executor"):
        done = len(counted(directory))
        wait_for(lambda done=done: len(counted(directory)) >= done + 3, f"three problems before {role} is killed")
        assert len(counted(directory)) < PROBLEMS, "the selection was over too soon"
        signal_actor(path, f"{role}.0")
        wait_for(lambda role=role: runs_again(directory, role), f"{role} to run again")
    done = len(counted(directory))
    wait_for(lambda: len(counted(directory)) >= done + 3, "three problems before the supervisor is killed")
    kill(process)
    before = counted(directory)
    assert 0 < len(before) < PROBLEMS
    said = finish(start(path, KEEP_ALL, *LONG))
    assert [row for row in counted(directory) if row.number in {each.number for each in before}] == before
    check_selected(directory, said, problems=PROBLEMS, steps=2)


@pytest.mark.slow
def test_a_selection_that_keeps_nothing_ends_the_run_and_another_rule_goes_on_with_its_samples(tmp_path: Path) -> None:
    path, directory = write_selecting(tmp_path, problems=6)
    said = finish(start(path, KEEP_ALL, "stages.0.keep.below=0.5"), 2)
    assert "select stage 'hard' keeps none of its 6 problems (3 always solved, 3 too easy)" in said.all
    assert "change stages.0.keep and run again (nothing is sampled anew)" in said.all
    assert "Traceback" not in said.all
    before = counted(directory)
    said = finish(start(path, KEEP_ALL))
    assert counted(directory) == before
    check_selected(directory, said, problems=6, steps=2)
