"""The group book: evaluations, the draw of a group, what its events alone do not show, and what ends a run."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.config.topology import Interim
from agent_rl.groups.book import GroupBook
from agent_rl.groups.instructions import Closed, Dropped, Evaluated, EvaluationGroupDone, Instruction, Outage, Ready
from agent_rl.groups.measures import mean_interval
from agent_rl.groups.outages import DOUBTS, MOST_LOST, TOO_LONG, CheckerTrust, EnvironmentTrust, LostGroups
from agent_rl.groups.resampling import select_paper
from agent_rl.groups.selection import InterimEvaluations
from agent_rl.groups.statistics import RolloutFigures
from agent_rl.messages import LOST, Evaluation, GroupOpened, GroupOutcome, InterimOpened, Judgement, StageEntered
from agent_rl.scheduling.curriculum import TOLD, Frontier
from agent_rl.scheduling.ids import group_id
from agent_rl_contract import builders
from tests.agent_rl.groups.test_book import Told, flat, means
from tests.builders import evaluate_stage


def book(
    *,
    stage: int = 0,
    max_staleness: int = 1,
    seed: int = 0,
    stages: Any = None,
    curriculum: Any = None,
    several: bool = False,
    **changes: Any,
) -> GroupBook:
    made = GroupBook(
        algorithm_of=lambda _: builders.algorithm(max_staleness=max_staleness, **changes),
        stages=stages or [builders.rl_stage(), evaluate_stage()],
        seed=seed,
        select=partial(select_paper, keep=2),
        curricula=lambda _: curriculum,
        several_environments=several,
    )
    made.enter(StageEntered(stage, 0, 0, restored=True), next_version=0)
    return made


def kinds(instructions: list[Instruction], kind: type) -> list[Any]:
    return [instruction for instruction in instructions if isinstance(instruction, kind)]


def settle(made: GroupBook, group: GroupOpened, ends: list[str]) -> list[Instruction]:
    """A group whose samples end so: with an answer, or lost, with this status at each attempt."""
    assert made.group_opened(group)
    instructions: list[Instruction] = []
    for sample, end in enumerate(ends):
        given = {"status": end} if end in LOST else {"answer": end}
        for attempt in range(2):
            each = builders.trajectory(group, sample, attempt=attempt, version=group.policy.version, **given)
            if made.wants(each):
                instructions += made.trajectory(each)
    return instructions


def test_the_draw_of_a_group_is_the_runs_and_the_groups_own():
    def kept(seed: int, number: int) -> Any:
        done = settle(book(seed=seed, samples=8), builders.opened(number, samples=8), ["4", "5"] * 4)
        return kinds(done, Ready)[0].kept

    runs, groups = [kept(seed, 0) for seed in range(6)], [kept(0, number) for number in range(6)]
    assert len(set(runs)) > 1 < len(set(groups))
    assert (runs[0], runs[1]) == (groups[0], kept(1, 0))


def test_the_journals_judgement_counts_before_the_trajectorys_own():
    made = book(groups_per_step=1)
    made.group_opened(group := builders.opened())
    for sample in range(4):
        done = made.trajectory(builders.trajectory(group, sample), Judgement(sample / 4, success=False))
    assert set(kinds(done, Ready)[0].rewards) < {0.0, 0.25, 0.5, 0.75}


def test_a_group_of_a_version_that_was_lost_with_the_power_is_due_by_the_version_of_the_next_step():
    made = book(groups_per_step=1, max_staleness=1)
    made.group_opened(lost := builders.opened(0, version=9))
    assert kinds(settle(made, builders.opened(1), ["4", "5", "4", "5"]), Closed)
    assert not kinds(settle(made, builders.opened(2, version=1), ["4", "5", "4", "5"]), Closed)
    assert made.waits_for() == (lost.group,)


def test_the_newest_outcomes_are_told_again_and_again_and_all_of_them_when_asked():
    outcomes = tuple(GroupOutcome(number, number, 1, 4) for number in range(TOLD + 3))
    made = book(curriculum=Frontier())
    for each in outcomes:
        made.observe(each)
    assert (made.progress().outcomes, made.unfinished(0).outcomes) == (outcomes[3:], outcomes)
    assert made.unfinished(1) is None
    made.enter(StageEntered(2, 3, 3, restored=False), next_version=3)  # after the last stage
    assert (made.progress().outcomes, made.unfinished(2).groups) == ((), ())


def test_figures_are_by_environment_where_the_run_has_several():
    for several in (True, False):
        made = book(groups_per_step=1, several=several)
        (closed,) = kinds(settle(made, builders.opened(samples=2), ["4", "5"]), Closed)
        assert list(closed.figures.environments) == ["arithmetic"] * several


@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_an_evaluation_says_what_follows_from_its_rollouts(seed, within):
    rng = random.Random(seed)
    problems, samples, greedy = rng.randint(1, 4), rng.randint(1, 3), not within and rng.random() < 0.5
    sizes = {"problems": problems, "samples": samples}
    stages = [builders.rl_stage(evaluate=Interim(every=2, **sizes)), evaluate_stage(**sizes, greedy=greedy)]
    made = book(stage=1 - within, stages=stages, rollout_attempts=2)
    evaluation = Evaluation(0, 2) if within else Evaluation(1)
    groups = [builders.opened(n, stage=1 - within, samples=samples, version=2, purpose="evaluate_sampled") for n in range(problems)]  # fmt: skip
    groups += [builders.opened(problems + n, stage=1, samples=1, purpose="evaluate_greedy") for n in range(problems * greedy)]  # fmt: skip
    groups = [replace(g, evaluation=evaluation, problem=replace(g.problem, text=rng.choice("xyz"), environment=rng.choice("ab"))) for g in groups]  # fmt: skip
    rng.shuffle(groups)
    told: list[tuple[GroupOpened, list[Told]]] = []
    for group in groups:
        assert made.group_opened(group)
        rollouts: list[Told] = []
        told.append((group, rollouts))
        done: list[Instruction] = []
        for sample in range(group.samples):
            for attempt in range(2):
                lost, versions = rng.random() < 0.4, sorted(rng.choices(range(2, 9), k=2))
                status = rng.choice(["failed", "prompt_too_long"]) if lost else rng.choice(["finished", "truncated"])
                given = {"attempt": attempt, "answer": rng.choice("45"), "status": status, "version": versions}
                each = builders.trajectory(group, sample, **given)
                if made.wants(each):
                    rollouts.append((each, each.judgement))
                    done += made.trajectory(each)
        assert kinds(done, EvaluationGroupDone) == [EvaluationGroupDone(group.group)]
        assert len(kinds(done, Evaluated)) == (group is groups[-1])
        if not within:
            judged = sum(judgement is not None for _, rollouts in told for _, judgement in rollouts)
            assert made.evaluation_progress == (judged, problems * (samples + greedy))
    (result,) = kinds(done, Evaluated)
    assert (result.evaluation, result.figures.greedy is None) == (evaluation, not greedy)

    def check(answers: Any, of: list[tuple[GroupOpened, list[Told]]]) -> None:
        each, n = [[t for t in rollouts if t[1]] for _, rollouts in of], of[0][0].samples
        right = [sum(judgement.success for _, judgement in group if judgement) / n for group in each]
        asked = [(group.problem.environment, group.problem.text) for group, _ in of]
        assert (answers.problems, answers.lost) == (len(of), n * len(of) - sum(map(len, each)))
        assert (answers.success, answers.low, answers.high) == pytest.approx(
            (sum(right) / len(of), *mean_interval(right, n, asked))
        )
        assert flat(answers.answered) == {**flat(means([*chain(*each)])), "rollouts_failed": 0, "prompts_too_long": 0}

    sampled = [each for each in told if each[0].purpose == "evaluate_sampled"]
    check(result.figures.sampled, sampled)
    if greedy:
        check(result.figures.greedy, [each for each in told if each not in sampled])
    names = {group.problem.environment for group, _ in sampled}
    assert set(result.figures.environments) == (names if len(names) > 1 else set())
    for name, answers in result.figures.environments.items():
        check(answers, [each for each in sampled if each[0].problem.environment == name])
    if within:
        versions = [made.unpack().versions for _, rollouts in told for made, judgement in rollouts if judgement]
        oldest, newest = min((o for o, _ in versions), default=None), max((n for _, n in versions), default=None)
        assert (result.figures.version_oldest, result.figures.version_newest) == (oldest, newest)
        assert made.unfinished(0).interim_opened == (InterimOpened(2, problems),)


# Evaluations within an rl stage ---------------------------------------------------------------------------------------

EVALUATED = builders.rl_stage(steps=6, evaluate=Interim(every=2, problems=3, samples=2, max_turns=2))


def test_an_evaluation_within_a_stage_is_no_group_of_a_step_and_ends_with_its_stage() -> None:
    made = book(stages=[EVALUATED])
    settle(made, builders.opened(), ["4", "5", "4", "5"])
    for number, version in ((0, 2), (2, 2), (1, 2), (0, 4)):
        group = builders.opened(number, samples=2, version=version, purpose="evaluate_sampled")
        group = replace(group, group=group_id(0, number, version), evaluation=Evaluation(0, version))
        done = settle(made, group, ["4", "5"] if version == 2 else [])
    assert (done, made.waiting_groups) == ([], 1), "that of training"
    answer = made.unfinished(0)
    assert answer is not None
    assert (answer.opened, answer.interim_opened) == (1, (InterimOpened(2, 3), InterimOpened(4, 1)))
    assert [each.opened.group for each in answer.groups] == [group_id(0, 0, 4)]
    dropped = made.enter(StageEntered(1, 6, 6, restored=False), next_version=6)
    assert [each.group for each in kinds(dropped, Dropped)] == [group_id(0, 0, 4)]


@given(st.permutations([at_step for at_step in EVALUATED.evaluation_steps for _ in range(3)]))
def test_whatever_the_order_each_is_complete_once(order):
    evaluations = InterimEvaluations(EVALUATED)
    rollout = RolloutFigures(
        1, 1, 0, 0, truncated=False, seconds=0.0, reward=1.0, success=True, purpose="evaluate_sampled"
    )
    seen: Counter[int] = Counter()
    for at_step in order:
        seen[at_step] += 1
        found = evaluations.group_done(at_step, [rollout] * 2)
        assert (found is not None) == (seen[at_step] == 3)
        if found:
            assert (found.name, found.sampled.success) == (f"rl@{at_step}", 1.0)


@pytest.mark.parametrize(("every", "steps"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4]), (5, [5]), (6, []), (7, [])])
def test_after_which_steps_a_stage_is_evaluated(every, steps):
    stage = builders.rl_stage(steps=6, evaluate=Interim(every=every, problems=1))
    assert list(stage.evaluation_steps) == steps
    assert json.loads(stage.interim(every).model_dump_json())["name"] == f"rl@{every}"


# What ends a run whose rollouts or checks are lost: a step's worth in a row, and nothing less ---------------------------

RL, EVALUATION, INTERIM = 0, 1, 2
INTERIM_STAGE = builders.rl_stage(evaluate=Interim(every=2, problems=2))


def lossy(stage: int = RL) -> GroupBook:
    stages = [builders.rl_stage(), evaluate_stage(greedy=False), INTERIM_STAGE]
    return book(stage=stage, stages=stages, rollout_attempts=2)


def lose(made: GroupBook, number: int, ends: list[str], *, purpose: Any = "train") -> list[Instruction]:
    stage = made.entered.stage
    return settle(made, builders.opened(number, stage=stage, samples=len(ends), purpose=purpose), ends)


def test_prompts_that_are_too_long_count_towards_steps_and_end_a_run_that_has_nothing_else():
    made = lossy()
    for number in range(TOO_LONG - 1):
        assert kinds(lose(made, number, ["prompt_too_long"] * 4), Outage) == []
    assert made.progress().uncounted == 0
    (outage,) = kinds(lose(made, TOO_LONG, ["prompt_too_long"] * 4), Outage)
    assert "shorten the problems" in outage.message


@pytest.mark.parametrize("status", ["failed", "prompt_too_long"])
def test_an_evaluation_without_any_answer_has_no_result(status):
    made = lossy(EVALUATION)
    for number in range(2):
        assert kinds(lose(made, number, [status], purpose="evaluate_sampled"), Outage) == []
    done = lose(made, 2, [status], purpose="evaluate_sampled")
    (outage,) = kinds(done, Outage)
    assert outage.again == ("s1-g000000", "s1-g000001", "s1-g000002")
    after = [each for each in done[done.index(outage) :] if isinstance(each, Evaluated)]
    assert done.index(outage) < done.index(after[0])  # so the shell, which ends at the outage, never records it


def test_evaluations_within_a_stage_and_its_training_groups_are_lost_to_the_same_outage():
    made = lossy(INTERIM)
    assert kinds(lose(made, 0, ["failed"], purpose="evaluate_sampled"), Outage) == []
    (outage,) = kinds(lose(made, 1, ["failed"] * 4), Outage)
    assert len(outage.again) == 2


def test_a_large_step_is_not_waited_for():
    lost = LostGroups(512, trains=True)
    failed = [builders.trajectory(builders.opened(), status="failed")]
    said = [lost.lost(f"g{number}", failed) for number in range(MOST_LOST)]
    assert [bool(each) for each in said] == [False] * (MOST_LOST - 1) + [True]


def test_checkers_are_tried_after_several_answers_in_a_row_and_not_after_as_many_in_all():
    trust = CheckerTrust()
    for _ in range(5):
        assert not any(trust.doubted() for _ in range(DOUBTS - 1))
        trust.judged()
    assert [trust.doubted() for _ in range(DOUBTS)][-1]


def test_the_rollouts_that_an_environment_loses_in_a_row_are_counted_once_each():
    trust = EnvironmentTrust()
    assert [trust.failed("a", rollout, "no") for rollout in ("1", "2", "2", "1")] == [""] * 4
    assert trust.failed("b", "1", "no") == ""
    assert (trust.judged("b"), trust.judged("b"), trust.faults) == (True, False, {"a": ["1", "2"]})
    assert "environment 'a' failed at 3 rollouts in a row, the last time: never" in trust.failed("a", "3", "never")
    assert trust.failed("a", "4", "no") == "", "the next run counts anew"
