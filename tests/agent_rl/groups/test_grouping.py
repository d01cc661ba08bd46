"""The group book: what becomes of trajectories, groups, steps and evaluations."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from agent_rl.groups.book import GroupBook
from agent_rl.groups.instructions import (
    Closed,
    Dropped,
    Evaluated,
    EvaluationGroupDone,
    Instruction,
    Judge,
    Judged,
    Ready,
)
from agent_rl.groups.resampling import select_paper
from agent_rl.groups.statistics import RolloutFigures, rollout_means
from agent_rl.messages import Judgement, Retry, StageEntered
from agent_rl.scheduling.ids import rollout_seed
from tests import builders


def book(*, stage: int = 0, max_staleness: int = 1, several: bool = False, **changes: Any) -> GroupBook:
    made = GroupBook(
        algorithm_of=lambda _: builders.algorithm(max_staleness=max_staleness, **changes),
        stages=[builders.rl_stage(), builders.evaluate_stage()],
        seed=0,
        select=partial(select_paper, keep=2),
        several_environments=several,
    )
    made.enter(StageEntered(stage, 0, 0, restored=True), next_version=0)
    return made


def kinds(instructions: list[Instruction], kind: type) -> list[Any]:
    return [instruction for instruction in instructions if isinstance(instruction, kind)]


def settle(made: GroupBook, number: int, answers: list[str | None], *, version: int = 0) -> list[Instruction]:
    group = builders.opened(number)
    made.group_opened(group)
    instructions: list[Instruction] = []
    for sample, answer in enumerate(answers):
        instructions += made.trajectory(builders.trajectory(group, sample, answer=answer, version=version))
    return instructions


def test_a_complete_group_is_selected_and_ready() -> None:
    instructions = settle(book(), 0, ["4", "5", "4", None])
    assert [r.judgement.reward for r in kinds(instructions, Judged)] == [1.0, 0.0, 1.0, 0.0]
    (ready,) = kinds(instructions, Ready)
    assert len(ready.kept) == 2
    assert sorted(ready.rewards) == [0.0, 1.0]


def test_equal_rewards_are_dropped_yet_counted_towards_the_step() -> None:
    made = book()
    first = settle(made, 0, ["5"] * 4)
    (dropped,) = kinds(first, Dropped)
    assert (dropped.reason, dropped.success) == ("equal_rewards", 0.0)
    second = settle(made, 1, ["4", "5", "4", "5"])
    (closed,) = kinds(second, Closed)
    assert closed.step.trained == ("s0-g000001",)
    assert closed.step.decided == ("s0-g000000", "s0-g000001")
    assert closed.figures.sampled.success == 0.25
    assert closed.figures.sampled.rollouts == 8


def test_what_becomes_of_every_sampled_token_is_told() -> None:
    made = book(overlong="mask")
    settle(made, 0, ["5"] * 4)
    group = builders.opened(1)
    made.group_opened(group)
    sizes = {0: 10, 1: 20, 2: 30, 3: 40}
    instructions: list[Instruction] = []
    for sample, tokens in sizes.items():
        rollout = builders.trajectory(group, sample, answer="4" if sample < 2 else "5", tokens=tokens)
        excluded = {"side_call": 3} if sample == 0 else {}
        status = "truncated" if sample == 3 else "finished"
        transcript = replace(rollout.transcript, status=status)
        rollout = replace(rollout, written=tokens, excluded=excluded, transcript=transcript, judgement=None)
        instructions += made.trajectory(rollout, Judgement(float(sample < 2), success=sample < 2))
    ((ready,), (closed,)) = kinds(instructions, Ready), kinds(instructions, Closed)
    kept = {sample for sample, _ in ready.kept}
    found = dict(closed.figures.delivered)
    equal = found.pop("equal_rewards")
    assert found.pop("sampled") == 100 + equal
    own = {sample: tokens - 3 * (sample == 0) for sample, tokens in sizes.items()}
    expected = {
        "trained": sum(own[sample] for sample in kept if sample != 3),
        "overlong": own[3] if 3 in kept else 0,
        "not_selected": sum(own[sample] for sample in own if sample not in kept),
        "side_call": 3,
    }
    assert found == {name: count for name, count in expected.items() if count}


def test_an_answer_that_spans_two_turns_earns_nothing() -> None:
    made = book(samples=2)
    group = builders.opened(samples=2)
    made.group_opened(group)
    spanning = builders.trajectory(group, 0, texts=(r"<answer>\boxed{4}", "</answer>"))
    (rewarded,) = made.trajectory(spanning)
    assert (rewarded.judgement.reward, rewarded.judgement.format_penalty) == (0.0, 0.0)


def test_an_answer_that_text_cannot_decide_is_checked_and_late_verdicts_are_ignored() -> None:
    made = book(samples=2)
    group = builders.opened(samples=2)
    made.group_opened(group)
    trajectory = builders.trajectory(group, 0, answer="\\sqrt{16}")
    (wanted,) = made.trajectory(trajectory)
    assert wanted == Judge(trajectory, group.problem, rollout_seed(made.seed, group.group, 0, 0))
    right, wrong = Judgement(0.75, success=True, parts={"shape": 0.5}), Judgement(0.0, success=False)
    assert made.judged(group.group, 0, 0, right) == [Judged(group.group, 0, 0, right)]
    assert made.judged(group.group, 0, 0, wrong) == []
    assert made.judged("s0-g000099", 0, 0, wrong) == []


def test_what_an_environment_fails_to_judge_is_sampled_again_then_given_up() -> None:
    made = book(samples=2, rollout_attempts=2)
    group = builders.opened(samples=2)
    made.group_opened(group)
    unclear = [builders.trajectory(group, 0, answer="\\sqrt{16}", attempt=attempt) for attempt in range(2)]
    made.trajectory(unclear[0])
    assert made.failed(unclear[0], "a fault") == []
    assert [(retry.sample, retry.attempt) for retry in made.progress().retries] == [(0, 1)]
    assert made.judged(group.group, 0, 0, Judgement(1.0, success=True)) == []
    made.trajectory(unclear[1])
    made.failed(unclear[1], "a fault")
    (dropped,) = kinds(made.trajectory(builders.trajectory(group, 1)), Dropped)
    assert dropped.reason == "too_few_rollouts"


def test_classes_are_by_success_and_signal_by_reward() -> None:
    made = book(samples=4, keep=2, groups_per_step=1)
    group = builders.opened()
    made.group_opened(group)
    instructions = []
    for sample, reward in enumerate((0.0, 0.25, 0.25, 0.25)):
        made.trajectory(builders.trajectory(group, sample, answer="\\sqrt{16}"))
        instructions = made.judged(group.group, sample, 0, Judgement(reward, success=False))
    (ready,) = kinds(instructions, Ready)
    assert sorted(ready.rewards) == [0.0, 0.25]
    (closed,) = kinds(instructions, Closed)
    assert (closed.figures.sampled.success, closed.figures.sampled.reward) == (0.0, 0.1875)


def test_failures_are_retried_up_to_the_limit_then_the_sample_is_lost() -> None:
    made = book(samples=2, minimum_samples=2)
    group = builders.opened(samples=2)
    made.group_opened(group)
    made.trajectory(builders.trajectory(group, 1))
    for attempt in range(2):
        failed = builders.trajectory(group, 0, status="failed", attempt=attempt)
        assert made.wants(failed)
        assert made.trajectory(failed) == []
        assert made.progress().retries == (Retry(group.group, 0, attempt + 1, group.number),)
    last = made.trajectory(builders.trajectory(group, 0, status="failed", attempt=2))
    assert made.progress().retries == ()
    (dropped,) = kinds(last, Dropped)
    assert dropped.reason == "too_few_rollouts"


def test_a_group_with_a_lost_sample_is_still_used() -> None:
    made = book(samples=3, rollout_attempts=1)
    group = builders.opened(samples=3)
    made.group_opened(group)
    made.trajectory(builders.trajectory(group, 0, status="failed"))
    made.trajectory(builders.trajectory(group, 1, answer="4"))
    (ready,) = kinds(made.trajectory(builders.trajectory(group, 2, answer="9")), Ready)
    assert ready.kept == ((1, 0), (2, 0))


def test_duplicates_and_strangers_are_not_wanted() -> None:
    made = book()
    group = builders.opened()
    made.group_opened(group)
    arrived = builders.trajectory(group, 0)
    made.trajectory(arrived)
    assert not made.wants(arrived)
    assert not made.wants(builders.trajectory(builders.opened(7), 0))
    assert not made.wants(builders.trajectory(group, 99))
    assert made.group_opened(group) is False
    assert made.group_opened(builders.opened(stage=1)) is False


def test_staleness_counts_from_the_oldest_token_the_model_wrote() -> None:
    made = book(samples=2, groups_per_step=1, max_staleness=5)
    made._assembler.version = 7  # type: ignore[union-attr]
    group = builders.opened(samples=2, version=1)
    made.group_opened(group)
    made.trajectory(builders.trajectory(group, 0, answer="4", version=6))
    (closed,) = kinds(made.trajectory(builders.trajectory(group, 1, answer="5", version=3)), Closed)
    assert closed.step.staleness == (4,)


def test_stale_open_groups_are_dropped_and_reported() -> None:
    made = book(on_stale="drop", max_staleness=0, groups_per_step=1)
    straggler = builders.opened(0)
    made.group_opened(straggler)
    made.trajectory(builders.trajectory(straggler, 0, tokens=9))
    instructions = settle(made, 1, ["4", "5", "4", "5"])
    (dropped,) = kinds(instructions, Dropped)
    assert (dropped.group, dropped.reason, dropped.success) == (straggler.group, "stale", 1.0)
    assert made.progress().dropped_groups == (straggler.group,)
    assert made.progress().uncounted == 1
    for sample in range(1, 4):  # they come in cancelled; after the last nobody needs to be told any more
        assert made.progress().dropped_groups == (straggler.group,)
        late = replace(builders.trajectory(straggler, sample, status="cancelled"), seconds=5.0 + sample % 3)
        assert not made.wants(late)
        made.unwanted(late)
    assert made.progress().dropped_groups == ()
    (closed,) = kinds(settle(made, 2, ["4", "5", "4", "5"], version=1), Closed)
    assert (closed.figures.group_seconds, closed.figures.stale_group_seconds) == (0.1, 7.0)


def test_a_decided_group_with_tokens_that_are_too_old_is_dropped_when_the_step_closes() -> None:
    """Its opening promised newer ones: an engine served an older policy after a restart."""
    made = book(max_staleness=1, groups_per_step=1)
    made.enter(StageEntered(1, 0, 0, restored=False), next_version=0)
    made.enter(StageEntered(0, 0, 0, restored=False), next_version=5)
    assert kinds(settle(made, 0, ["4", "5", "4", "5"], version=3), Closed) == []
    assert made.progress().uncounted == 1
    instructions = settle(made, 1, ["4", "5", "4", "5"], version=4)
    (dropped,), (closed,) = kinds(instructions, Dropped), kinds(instructions, Closed)
    assert (dropped.group, dropped.reason, dropped.success, dropped.oldest) == ("s0-g000000", "stale", 0.5, 3)
    assert (closed.step.trained, closed.figures.staleness_max, closed.figures.staleness_limit) == (
        ("s0-g000001",),
        1,
        1,
    )
    assert made.progress().uncounted == 1


def test_a_stage_boundary_drops_what_is_open() -> None:
    made = book()
    made.group_opened(builders.opened(0))
    (dropped,) = made.enter(StageEntered(1, 3, 3, restored=False), next_version=3)
    assert dropped.reason == "stage_boundary"  # type: ignore[union-attr]
    assert made.open_groups == 0


def test_entering_the_same_stage_again_changes_nothing() -> None:
    made = book()
    made.group_opened(builders.opened(0))
    assert made.enter(StageEntered(0, 0, 0, restored=True), next_version=0) == []
    assert made.open_groups == 1


def test_what_is_missing_is_what_has_no_trajectory() -> None:
    made = book()
    group = builders.opened()
    made.group_opened(group)
    made.trajectory(builders.trajectory(group, 0))
    made.trajectory(builders.trajectory(group, 1, status="failed"))
    made.trajectory(builders.trajectory(group, 2, answer="\\sqrt{16}"))  # judged later, sampled already
    answer = made.unfinished(0)
    assert answer is not None
    assert answer.opened == 1
    assert answer.groups[0].missing == (Retry(group.group, 1, 1, group.number), Retry(group.group, 3, 0, group.number))
    assert made.unfinished(1) is None


def test_an_evaluation_ends_when_all_its_rollouts_are_judged() -> None:
    made = book(stage=1)
    done: list[Instruction] = []
    for number in range(6):
        purpose = "evaluate_sampled" if number < 3 else "evaluate_greedy"
        group = builders.opened(number, stage=1, samples=1, purpose=purpose)
        made.group_opened(group)
        assert not kinds(done, Evaluated)
        done += made.trajectory(builders.trajectory(group, 0, answer="4" if number in (0, 3, 4) else "1"))
    assert len(kinds(done, EvaluationGroupDone)) == 6
    (evaluated,) = kinds(done, Evaluated)
    assert evaluated.figures.sampled.success == 1 / 3
    assert evaluated.figures.greedy.success == 2 / 3
    low, high = evaluated.figures.greedy.low, evaluated.figures.greedy.high
    assert 0 < low < 2 / 3 < high < 1


def test_a_prompt_that_is_too_long_is_not_sampled_again_and_drops_its_group() -> None:
    made = book()
    group = builders.opened()
    made.group_opened(group)
    instructions: list[Instruction] = []
    for sample in range(4):
        assert not instructions
        instructions = made.trajectory(builders.trajectory(group, sample, status="prompt_too_long", tokens=0))
        assert made.progress().retries == ()
    (dropped,) = kinds(instructions, Dropped)
    assert (dropped.group, dropped.reason, dropped.order) == (group.group, "prompt_too_long", 1)
    (closed,) = kinds(
        settle(made, 1, ["4", "5", "4", "5"]), Closed
    )  # it counts towards the step as any decided group does
    assert closed.step.decided == (group.group, "s0-g000001")
    assert (
        closed.figures.sampled.prompts_too_long,
        closed.figures.sampled.rollouts,
        closed.figures.sampled.success,
    ) == (4, 4, 0.5)


def test_engines_that_differ_in_length_leave_a_group_what_fits() -> None:
    made = book()
    group = builders.opened()
    made.group_opened(group)
    for sample, answer in enumerate(["4", "5"]):
        made.trajectory(builders.trajectory(group, sample, answer=answer))
    made.trajectory(builders.trajectory(group, 2, status="prompt_too_long"))
    (ready,) = kinds(made.trajectory(builders.trajectory(group, 3, status="prompt_too_long")), Ready)
    assert ready.kept == ((0, 0), (1, 0))


def test_attempts_that_failed_are_counted_in_their_step_and_enter_nothing_else() -> None:
    made = book(groups_per_step=1, samples=2)
    group = builders.opened(samples=2)
    made.group_opened(group)
    for attempt in range(2):
        made.trajectory(builders.trajectory(group, 0, status="failed", attempt=attempt, tokens=1))
    made.trajectory(builders.trajectory(group, 0, answer="4", attempt=2))
    (closed,) = kinds(made.trajectory(builders.trajectory(group, 1, answer="5")), Closed)
    figures = closed.figures
    assert (figures.sampled.rollouts_failed, figures.sampled.rollouts, figures.sampled.response_tokens) == (2, 2, 6)


def test_an_evaluation_goes_on_without_a_problem_that_is_too_long() -> None:
    made = book(stage=1)
    done: list[Instruction] = []
    for number in range(6):
        purpose = "evaluate_sampled" if number < 3 else "evaluate_greedy"
        group = builders.opened(number, stage=1, samples=1, purpose=purpose)
        made.group_opened(group)
        status = "prompt_too_long" if number in (1, 4) else "finished"
        done += made.trajectory(builders.trajectory(group, 0, status=status))
    (evaluated,) = kinds(done, Evaluated)
    assert (evaluated.figures.sampled.lost, evaluated.figures.sampled.success) == (1, 2 / 3)


def two_environments(success: dict[str, list[bool]], *, several: bool = True) -> Any:
    """A book whose stage, one step of a group an environment, has had these rollouts judged."""
    made = book(groups_per_step=len(success), samples=2, several=several)
    closed: list[Closed] = []
    for number, (name, right) in enumerate(success.items()):
        group = builders.opened(number, samples=2)
        group = replace(group, problem=replace(group.problem, environment=name))
        made.group_opened(group)
        for sample, each in enumerate(right):
            rollout = builders.trajectory(group, sample, answer="4" if each else "5")
            closed += kinds(made.trajectory(rollout), Closed)
    (step,) = closed
    return step.figures


def test_a_step_tells_its_figures_by_environment_where_there_are_several() -> None:
    figures = two_environments({"sql": [True, False], "maths": [True, True]})
    assert figures.sampled.success == 0.75
    assert {name: (of.rollouts, of.success) for name, of in figures.environments.items()} == {
        "maths": (2, 1.0),
        "sql": (2, 0.5),
    }
    assert set(two_environments({"maths": [True, False]}).environments) == {"maths"}  # of two, one is in this step
    assert two_environments({"maths": [True, False]}, several=False).environments == {}


def test_an_evaluation_tells_its_success_by_environment_and_counts_what_was_lost_as_wrong() -> None:
    made = book(stage=0)
    made.stages = [builders.rl_stage(), builders.evaluate_stage(problems=3, greedy=False)]
    made.enter(StageEntered(1, 0, 0, restored=False), next_version=0)
    evaluated: list[Evaluated] = []
    for number, name in enumerate(["maths", "maths", "sql"]):
        group = builders.opened(number, stage=1, samples=1, purpose="evaluate_sampled")
        made.group_opened(replace(group, problem=replace(group.problem, environment=name)))
        for attempt in range(3):
            lost = number == 1
            rollout = builders.trajectory(
                group, 0, answer="4", attempt=attempt, status="failed" if lost else "finished"
            )
            if made.wants(rollout):
                evaluated += kinds(made.trajectory(rollout), Evaluated)
    (done,) = evaluated
    found = {name: (of.problems, of.success, of.lost) for name, of in done.figures.environments.items()}
    assert found == {"maths": (2, 0.5, 1), "sql": (1, 1.0, 0)}
    assert (done.figures.sampled.problems, done.figures.sampled.lost) == (3, 1)
    row = done.figures.row()
    assert (row["success_after_sampled"], row["success_after_sampled_sql"]) == (2 / 3, 1.0)


def test_parts_are_means_over_the_rollouts_that_have_them() -> None:
    rollout = RolloutFigures(1, 1, 0, 0, truncated=False, seconds=0.0, reward=1.0)
    means = rollout_means(
        [replace(rollout, parts={"tests": 0.5}), replace(rollout, parts={"tests": 1.0, "style": 2.0})]
    )
    assert means.parts == {"tests": 0.75, "style": 2.0}
