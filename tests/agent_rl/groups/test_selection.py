"""A select stage: every problem is sampled once, counted once, and kept or dropped by the rule."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.config.selection import Difficulty, SelectStage
from agent_rl.groups.book import GroupBook
from agent_rl.groups.instructions import Dropped, Outage, Sampled, Selected
from agent_rl.groups.selection import Selection
from agent_rl.messages import GroupOpened, StageEntered
from agent_rl_contract import builders
from tests.agent_rl.groups.test_grouping import book, kinds, settle

SAMPLES = 2


def select_stage(**changes) -> SelectStage:
    return SelectStage(
        **{"kind": "select", "name": "hard", "samples": SAMPLES, "max_response_tokens": 20, "max_turns": 3} | changes
    )


def sampled(number: int, problems: int = 4) -> GroupOpened:
    """The group of a problem."""
    opened = builders.opened(number, samples=SAMPLES, purpose="select")
    return replace(opened, evaluation=None, stage_groups=problems)


def selecting(stage: SelectStage) -> GroupBook:
    made = book(rollout_attempts=2)
    made.stages = [stage, builders.rl_stage()]
    made.entered = None
    made.enter(StageEntered(0, 0, 0, restored=True), next_version=0)
    return made


def test_problems_are_counted_one_by_one_and_those_always_solved_are_dropped():
    made = selecting(select_stage())
    instructions = [
        *settle(made, sampled(2), ["4", "4"]),
        *settle(made, sampled(0), ["4", "5"]),
        *settle(made, sampled(3), ["4", "failed"]),
    ]
    counts = {each.problem.number: each.problem for each in kinds(instructions, Sampled)}
    assert {number: each.solved.right for number, each in counts.items()} == {2: 2, 0: 1, 3: 1}
    assert (counts[3].solved.samples, counts[3].lost, counts[2].id) == (2, 1, "p2")
    assert kinds(instructions, Selected) == []
    assert made.evaluation_progress == (5, 8)
    (done,) = kinds(settle(made, sampled(1), ["5", "5"]), Selected)
    assert done.kept == (0, 1, 3)
    figures = done.figures
    assert (figures.problems, figures.kept, figures.dropped) == (4, 3, {"always_solved": 1})
    assert (figures.success, figures.lost, figures.response_tokens) == (0.5, 1, 6.0)
    assert made.close_evaluation() == [done]
    assert kinds(made.enter(StageEntered(1, 0, 0, restored=False), next_version=0), Dropped) == []


def test_where_nothing_is_kept_the_run_ends_with_the_key_to_change_and_another_rule_needs_no_new_sample():
    made = selecting(select_stage())
    last = [each for number in range(2) for each in settle(made, sampled(number, 2), ["4", "4"])]
    (outage,) = kinds(last, Outage)
    assert "stages.0: select stage 'hard' keeps none of its 2 problems (2 always solved)" in outage.message
    assert "change stages.0.keep and run again" in outage.message
    again = Selection(select_stage(keep=Difficulty(below=1.0, at_least=0.25)), problems=2)
    again.restore(*[each.problem for each in kinds(last, Sampled)])
    assert isinstance(again.result(0), Outage)
    some = settle(selecting(select_stage(keep=Difficulty(drop_unsolved=True))), sampled(0, 1), ["5", "5"])
    (outage,) = kinds(some, Outage)
    assert "1 never solved" in outage.message
    relaxed = Selection(select_stage(), problems=1)
    relaxed.restore(*[each.problem for each in kinds(some, Sampled)])
    result = relaxed.result(0)
    assert isinstance(result, Selected)
    assert result.kept == (0,)
    relaxed.stage = select_stage(keep=Difficulty(drop_unsolved=True))
    assert relaxed.result(0) == result, "what was recorded stays"


@pytest.mark.parametrize(
    "keep", [{}, {"below": 0.75}, {"at_least": 0.5}, {"drop_unsolved": True}, {"below": 0.6, "at_least": 0.2}]
)
@settings(deadline=None, max_examples=25)
@given(st.data())
def test_whatever_the_order_and_wherever_it_is_restarted_the_same_problems_are_kept(keep, data):
    answers = data.draw(st.lists(st.lists(st.sampled_from(["4", "5"]), min_size=2, max_size=2), min_size=1, max_size=6))
    order = data.draw(st.permutations(range(len(answers))))
    restart = data.draw(st.integers(0, len(answers)))
    stage, rule = select_stage(keep=keep), Difficulty(**keep)
    made, counted, last = selecting(stage), [], []
    for place, number in enumerate(order):
        if place == restart:
            made = selecting(stage)
            assert isinstance(made.whole, Selection)
            made.whole.restore(*counted)
        last = settle(made, sampled(number, len(answers)), answers[number])
        counted += [each.problem for each in kinds(last, Sampled)]
    assert sorted(each.number for each in counted) == list(range(len(answers)))
    shares = [right.count("4") / 2 for right in answers]
    kept = tuple(
        number
        for number, share in enumerate(shares)
        if rule.at_least <= share < rule.below and not (rule.drop_unsolved and share == 0)
    )
    if kept:
        (done,) = kinds(last, Selected)
        assert done.kept == kept
        assert done.figures.kept + sum(done.figures.dropped.values()) == done.figures.problems == len(answers)
    else:
        assert len(kinds(last, Outage)) == 1
