"""Which group is opened next, within which budget, and what its rollouts are asked for with."""

from dataclasses import replace
from itertools import count, product, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.config.selection import SelectStage, Solved
from agent_rl.messages import (
    Evaluation,
    GroupOutcome,
    GroupsUnfinished,
    InterimOpened,
    PolicyVersion,
    Retry,
    Sampling,
    UnfinishedGroup,
)
from agent_rl.scheduling.curriculum import InOrder
from agent_rl.scheduling.ids import group_id, rollout_id, rollout_seed, strand_seed
from agent_rl.scheduling.opening import Opening
from agent_rl_contract import builders
from tests.builders import evaluate_stage


def opening(*stages, seed=3, at=0, began=0, curriculum=None, **algorithm):
    """In stage ``at``, which began at version ``began``."""
    made = Opening(
        seed=seed,
        stages=stages or [builders.rl_stage()],
        algorithm_of=lambda _: builders.algorithm(**algorithm),
        problems=lambda stage, number, purpose: builders.problem(1000 * stage + number, answer=purpose),
        problem_count=lambda stage: 2 + stage,
        curricula=lambda _: curriculum,
    )
    assert made.published(builders.published(began, stage=at, stage_version=began))
    return made


def opens(made, served):
    """All groups that may be opened now."""
    return [group for _ in takewhile(lambda _: made.may_open(served), range(99)) if (group := made.open(served))]


def names(groups):
    return " ".join(group.group for group in groups)


@given(
    st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(1, 5), st.integers(0, 4)),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=5),
)
def test_as_many_groups_are_opened_as_the_budget_the_stage_and_uncounted_groups_permit(run, events):
    budget, size, steps, began = run
    made = opening(builders.rl_stage(steps=steps), began=began, max_staleness=budget, groups_per_step=size)
    served, numbers = began, count()
    assert made.open(None) is None
    for newer, made.uncounted in events:
        served += newer
        before, permitted = made.opened, min(budget + served - began + 1, steps) * size + made.uncounted
        groups = opens(made, served)
        assert made.opened == max(before, permitted) == before + len(groups)
        assert made.open(served) is None
        for group, number in zip(groups, numbers, strict=False):
            assert group == replace(made.group(number, None, served), policy=PolicyVersion(1, served))
            assert (group.group, group.number, group.drawn) == (group_id(0, number), number, None)
        numbers = count(made.opened)


def test_evaluations_within_a_stage_begin_once_every_engine_serves_their_step_and_take_turns_with_training():
    stage = builders.rl_stage(steps=6, evaluate={"every": 2, "problems": 2})
    for began in (0, 7):
        made = opening(stage, began=began, groups_per_step=1)
        opened = [names(opens(made, began + served)).replace("00000", "") for served in (0, 1, 2, 6)]
        assert opened == ["s0-g0 s0-g1", "s0-g2", "s0@2-g0 s0-g3 s0@2-g1", "s0-g4 s0@4-g0 s0-g5 s0@4-g1"]
    again = opening(stage, groups_per_step=1)
    again.restore(GroupsUnfinished(0, 5, (), (InterimOpened(2, 1), InterimOpened(4, 0)), uncounted=1))
    assert names(opens(again, 2)).replace("00000", "") == "s0@2-g1"
    assert names(opens(again, 4)).replace("00000", "") == "s0-g5 s0@4-g0 s0-g6 s0@4-g1"
    changed = opening(builders.rl_stage(steps=7, evaluate={"every": 3, "problems": 2}), began=9)
    changed.restore(GroupsUnfinished(0, 99, (), (InterimOpened(2, 2), InterimOpened(6, 1))))
    assert names(opens(changed, 20)).replace("00000", "") == "s0@3-g0 s0@3-g1 s0@6-g1", "those passed over are due"


def test_each_rollout_is_asked_for_as_its_stage_and_purpose_say():
    shared = {"temperature": 0.7, "top_p": 0.5, "top_k": 7}
    interim = {"every": 1, "problems": 1, "samples": 5, "max_response_tokens": 99, **shared}
    stages = (
        builders.rl_stage(evaluate=interim),
        builders.rl_stage(max_response_tokens=11),
        evaluate_stage(samples=2, problems=2, **shared),
        SelectStage(kind="select", samples=3, max_response_tokens=30, max_turns=6, **shared),
    )
    trains, evaluates = Sampling(0.9, 20, 4, 0.8, 0), Sampling(0.7, 20, 4, 0.5, 7)
    greedily = ("evaluate_greedy", 1, replace(evaluates, temperature=0.0), Evaluation(2))
    expected = [
        [("train", 4, trains, None)] * 4
        + [("evaluate_sampled", 5, replace(evaluates, max_response_tokens=99), Evaluation(0, 1))],
        [("train", 4, replace(trains, max_response_tokens=11), None)] * 4,
        [("evaluate_sampled", 2, evaluates, Evaluation(2))] * 2 + [greedily] * 2,
        [("select", 3, replace(evaluates, max_response_tokens=30, max_turns=6), None)] * 5,
    ]
    for at, rows in enumerate(expected):
        made = opening(*stages, at=at, temperature=0.9, top_p=0.8)
        groups = opens(made, 0) + ([made.group(0, 1, 1)] if at == 0 else [])
        for group, row in zip(groups, rows, strict=True):
            request = made.request(group, sample=2, attempt=1)
            assert (group.purpose, group.samples, request.sampling, group.evaluation) == row
            assert group.problem == builders.problem(1000 * at + group.number, answer=group.purpose)
            assert group.stage_groups == (5 if group.purpose == "select" else None)
            assert (request.rollout, request.purpose) == (rollout_id(group.group, 2, 1), group.purpose)
            assert request.seed == rollout_seed(3, group.group, 2, 1)
            retry = Retry(group.group, 2, 1, group.number, group.evaluation)
            assert made.retry(retry, 0) == request
    assert opening(*stages, at=len(stages)).stage is None
    made = opening(stages[0], builders.rl_stage(evaluate={**interim, "samples": 6}))
    assert made.group(0, 1, 1).samples == 5
    made.published(builders.published(stage=1))
    assert made.group(0, 1, 1).samples == 6


def test_a_restarted_selection_opens_the_problems_that_had_no_group_yet():
    made = opening(SelectStage(kind="select", samples=2, max_response_tokens=9, max_turns=1))
    made.restore(GroupsUnfinished(0, 1, ()))
    assert names(opens(made, 0)) == "s0-g000001"


def test_every_rollout_and_branch_has_a_seed_of_its_own_and_the_same_in_each_release():
    groups = [group_id(*each) for each in product((0, 1, 11), (0, 1, 11), (None, 1, 11))]
    rollouts = list(product(groups, (0, 1, 11), (0, 1, 11)))
    seeds = {rollout_seed(run, *each) for run in (0, 1, 11) for each in rollouts}
    assert len(seeds) == 3 * len(rollouts)
    assert 2**62 < max(seeds) < 2**63
    assert len({rollout_id(*each) for each in rollouts}) == len(rollouts)
    branches = {strand_seed(seed, strand) for seed in (1, 2) for strand in range(9)}
    assert (len(branches), strand_seed(5, 0)) == (18, 5)
    assert (rollout_seed(1, "s0-g000002", 3, 4), strand_seed(5, 6)) == (8682809260497980950, 8661299371781265194)


class Draws(InOrder):
    """Leaves out two problems each time, and notes what it is given."""

    def __init__(self):
        self.fresh, self.random, self.known = [], [], []

    def choose(self, fresh, rng):
        self.fresh.append(fresh)
        self.random.append(rng.random())
        return fresh + 2

    def observe(self, problem, solved):
        self.known.append((problem, solved))


def test_a_draw_depends_on_seed_stage_and_number_and_on_nothing_else():
    stages = [builders.rl_stage(), builders.rl_stage()]
    drawn = {}
    for seed, at in [(0, 0), (0, 0), (1, 0), (0, 1)]:
        opens(opening(*stages, seed=seed, at=at, curriculum=(noted := Draws())), 0)
        assert drawn.setdefault((seed, at), noted.random) == noted.random
        assert len(set(noted.random)) == len(noted.random) == 4
    assert len({number for random in drawn.values() for number in random}) == 12


def test_a_curriculum_is_offered_the_first_problem_that_no_group_of_its_stage_had_also_after_a_restart():
    made = opening(builders.rl_stage(), builders.rl_stage(), curriculum=(noted := Draws()))
    assert [(group.number, group.drawn, group.problem.id) for group in opens(made, 0)][-1] == (3, 11, "p11")
    assert noted.fresh == [0, 3, 6, 9]
    made.observe([GroupOutcome(1, 5, 1, 4), GroupOutcome(2, 20, 2, 4), GroupOutcome(1, 5, 1, 4)])
    opens(made, 1)
    assert (noted.fresh[4:], noted.known) == ([21, 24], [(5, Solved(1, 4)), (20, Solved(2, 4))])
    missing = Retry("s0-g000001", 0, 1, 1, drawn=5)
    assert made.retry(missing, 1).problem == builders.problem(5, answer="train")

    again = opening(builders.rl_stage(), builders.rl_stage(), curriculum=(restored := Draws()))
    held = tuple(UnfinishedGroup(replace(builders.opened(at), drawn=at * 10), ()) for at in (2, 1))
    again.restore(GroupsUnfinished(0, 3, held, outcomes=(GroupOutcome(0, 4, 1, 4),)))
    opens(again, 0)
    assert (restored.fresh, restored.known) == ([21], [(4, Solved(1, 4))])
    assert again.published(builders.published(1, stage=1, stage_version=1))
    again.restore(GroupsUnfinished(1, 3, (), outcomes=(GroupOutcome(0, 6, 2, 4),)))
    opens(again, 1)
    assert (restored.fresh[1:], restored.known[1:]) == ([7], [(6, Solved(2, 4))]), "another stage begins anew"
    assert again.published(builders.published(1, stage=1, stage_version=1, epoch=2))
    again.restore(GroupsUnfinished(1, 0, ()))
    opens(again, 1)
    assert restored.fresh[2] == 0, "another epoch begins anew"


@pytest.mark.parametrize(("stage", "epoch", "enters"), [(0, 1, False), (1, 1, True), (0, 2, True), (1, 2, True)])
def test_another_stage_or_epoch_is_entered_and_counts_from_its_own_version(stage, epoch, enters):
    made = opening(builders.rl_stage(), builders.rl_stage(), began=2)
    opens(made, 4)
    assert made.oldest == PolicyVersion(1, 4)
    assert made.published(builders.published(6, stage=stage, stage_version=5, epoch=epoch)) == enters
    assert made.oldest == (PolicyVersion(epoch, 5) if enters else PolicyVersion(1, 4))


def test_what_is_retried_or_restored_is_of_the_newest_policy_under_which_a_group_was_opened():
    made = opening()
    versions = [PolicyVersion(1, 3), PolicyVersion(1, 5), PolicyVersion(1, 4), PolicyVersion(0, 9)]
    groups = [replace(builders.opened(at), policy=policy) for at, policy in enumerate(versions)]
    made.restore(GroupsUnfinished(0, 4, tuple(UnfinishedGroup(group, ()) for group in groups)))
    assert made.oldest == PolicyVersion(1, 5)
    assert made.group(9, None, None).policy == PolicyVersion(1, 5)
    assert made.group(9, None, 2).policy == PolicyVersion(1, 2)
