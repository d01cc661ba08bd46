"""The contract suites notice what they are for: an actor that breaks one promise fails the test of that promise."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import pytest

from actors.base import ask
from actors.kv_scheduler import KVScheduler
from actors.learner import Learner
from actors.roc_filter import RoCFilter
from actors.rollout_generator import RolloutGenerator, ToolsUnavailableError
from actors.tool_executor import ToolExecutor
from agent_rl.environments.python_tools import PYTHON_TOOL
from agent_rl.groups.instructions import Closed
from agent_rl.learning.trainer import Position
from agent_rl.messages import (
    EngineLoad,
    GroupsProgress,
    GroupsUnfinished,
    GroupsUnwanted,
    Judgement,
    JudgementReply,
    JudgementWanted,
    PolicyPublished,
    PolicyVersion,
    StageEntered,
    StageRecorded,
    StepTrained,
    TagCounts,
    ToolCall,
    ToolResult,
    Trajectory,
    UnfinishedGroups,
)
from agent_rl.rollout.episode import Episode, Strand
from agent_rl.rollout.prompts import ChatFormat
from agent_rl.scheduling.instructions import AskUnfinished, Assign, OpenGroup, Unwanted
from agent_rl_contract import (
    ExecutorContract,
    FilterContract,
    GeneratorContract,
    LearnerContract,
    RoleContract,
    SchedulerContract,
)


def broken(suite: type[RoleContract], actor: Any, promise: str, folder: Path, **attributes: Any) -> str:
    """Run the test of one promise on an actor that breaks it; what the test says."""
    subject = type("Broken", (suite,), {"actor": actor, **attributes})()
    with pytest.raises(AssertionError) as failure:
        getattr(subject, promise)(folder)
    return str(failure.value)


class Breaking:
    """What a role does wrong once it has begun, with a message that it hears, or with its answer."""

    def begun(self) -> None:
        """Nothing."""

    def heard(self, message: Any) -> Any:
        """The message that the role is to handle, or None."""
        return message

    def answered(self, message: Any, answer: Any) -> Any:
        return answer

    async def start(self) -> None:
        await super().start()  # type: ignore[misc]
        self.begun()

    async def handle(self, message: Any) -> Any:
        heard = self.heard(message)
        return None if heard is None else self.answered(heard, await super().handle(heard))  # type: ignore[misc]


def changed(role: type, **attributes: Any) -> type:
    """The role with other methods or attributes, among them those of `Breaking`."""
    return type("Changed", (Breaking, role), attributes)


# Filters --------------------------------------------------------------------------------------------------------------


def forget_the_journal(self: RoCFilter, entered: Any) -> bool:
    fresh = self._book.entered is None
    self._perform(self._book.enter(entered, next_version=entered.version))
    return fresh


def ask_for_nothing_again(self: RoCFilter, **flush: bool) -> None:
    RoCFilter._commit(self, **flush)
    self.context.link("progress").set(replace(self._book.progress(), retries=()))


def count_twice(self: RoCFilter, trajectory: Any) -> None:
    group = self._book._groups.get(trajectory.group)
    if group is not None and not self._book.wants(trajectory):
        free = next(position for position, sample in enumerate(group.samples) if sample.judgement is None)
        trajectory = replace(trajectory, sample=free)
    RoCFilter._trajectory(self, trajectory)


def trust_the_checker(self: RoCFilter) -> None:
    async def believed(wanted: Any) -> JudgementReply:
        made = wanted.trajectory
        message = JudgementWanted(made.rollout, wanted.problem, made.transcript)
        reply: JudgementReply = await self.context.link("checks")(message)
        return replace(reply, judgement=reply.judgement or Judgement(0.0, success=False))

    self._judging.reply = believed  # type: ignore[method-assign]


def never_wait(self: RoCFilter) -> None:
    of = self._book.algorithm_of
    self._book.algorithm_of = lambda stage: of(stage).model_copy(update={"on_stale": "train_corrected"})


def evaluate_too_early(self: RoCFilter) -> None:
    self._book.stages = [*self._book.stages[:1], self._book.stages[1].model_copy(update={"problems": 1})]


def select_by_chance(self: RoCFilter, group: Any, rng: Any) -> Any:
    return RoCFilter.select(self, group, random.Random())


def look_at_no_classes(self: RoCFilter) -> Any:
    return lambda group, rng: (0, next(at for at, each in enumerate(group) if each.reward != group[0].reward))


def perform_no_empty_steps(self: RoCFilter, instructions: Any) -> None:
    RoCFilter._perform(self, [i for i in instructions if not isinstance(i, Closed) or i.step.trained])


def keep_the_epoch(self: RoCFilter, message: Any, answer: Any) -> Any:
    return StageRecorded(1) if isinstance(message, StageEntered) else answer


def know_nothing_unfinished(self: RoCFilter, message: Any, answer: Any) -> Any:
    return replace(answer, groups=()) if isinstance(message, UnfinishedGroups) else answer


COMPLETE = "a_complete_group_becomes_one_training_group"
BUDGET = "groups_are_opened_within_the_staleness_budget_and_up_to_it"
FILTERS = [
    ({"defer_ack": lambda self: lambda: None}, "nothing_is_acknowledged_before_it_is_durable", "did not hold yet"),
    (
        {"select": lambda self, group, rng: tuple(index for index, each in enumerate(group) if each.reward)},
        COMPLETE,
        "only rollouts with the reward 1",
    ),
    ({"select": lambda self, group, rng: (0, *RoCFilter.select(self, group, rng))}, COMPLETE, "each position once"),
    ({"select": lambda self, group, rng: ()}, COMPLETE, "were not sent"),
    ({"select": select_by_chance}, "the_same_groups_are_selected_alike", "kept different rollouts"),
    ({"selection": look_at_no_classes}, COMPLETE, "are due"),
    (
        {"_trajectory": lambda self, made: RoCFilter._trajectory(self, replace(made, oldest=made.newest))},
        COMPLETE,
        "the oldest token's is",
    ),
    (
        {"_perform": lambda self, instructions: RoCFilter._perform(self, list(reversed(instructions)))},
        "steps_are_closed_in_order_with_groups_sent_before",
        "not sent before it",
    ),
    ({"_perform": perform_no_empty_steps}, "equal_rewards_are_not_trained_and_count_towards_the_step", "no StepReady"),
    ({"_take_up": forget_the_journal}, "killed_at_any_time_it_loses_nothing_and_doubles_nothing", "no StepReady"),
    ({"_resend": lambda self, entered: None}, "a_restarted_learner_is_sent_what_it_has_not_trained", "due again"),
    ({"answered": keep_the_epoch}, "a_restarted_learner_is_sent_what_it_has_not_trained", "new epoch"),
    ({"answered": know_nothing_unfinished}, "unfinished_groups_are_told_with_what_they_lack", "the answer names 0"),
    ({"_commit": ask_for_nothing_again}, "failed_rollouts_are_sampled_again_then_given_up", "no retry"),
    ({"_trajectory": count_twice}, "a_trajectory_that_comes_twice_counts_once", "sample 3 is missing"),
    ({"begun": trust_the_checker}, "answers_that_text_cannot_decide_are_judged_by_the_executor", "rewards by sample"),
    ({"begun": never_wait}, "no_group_is_trained_beyond_the_staleness_budget", "after their oldest token"),
    ({"begun": evaluate_too_early}, "an_evaluation_is_ready_when_every_rollout_is_judged", "too early"),
]


# Schedulers -----------------------------------------------------------------------------------------------------------


def spend(more: int) -> Any:
    """Open as many steps more than the budget allows."""

    def begun(self: KVScheduler) -> None:
        opening = self._scheduler._opening
        opening._algorithms = [
            each.model_copy(update={"max_staleness": each.max_staleness + more}) for each in opening._algorithms
        ]

    return begun


def open_more_than_the_stage(self: KVScheduler) -> None:
    opening, longer = self._scheduler._opening, {"steps": 9}
    opening._stages = [each.model_copy(update=longer) if each.kind == "rl" else each for each in opening._stages]


def serve_any_engine(self: KVScheduler) -> None:
    members = self._scheduler._members
    look = members._look

    def any_will_do(engine: Any) -> None:
        members._oldest = PolicyVersion(engine.load.policy.epoch, 0)
        look(engine)

    members._look = any_will_do  # type: ignore[method-assign]


def asking(change: Callable[[KVScheduler, Any], list[Any]]) -> dict[str, Any]:
    """``change`` does something to each instruction before it is performed."""

    def do(self: KVScheduler, instructions: Any) -> None:
        KVScheduler._do(self, [each for instruction in instructions for each in change(self, instruction)])

    return {"_do": do}


def request_before_it_is_recorded(self: KVScheduler, asked: Any) -> list[Any]:
    return [asked, *(self._scheduler.group_recorded(asked.opened.group) if isinstance(asked, OpenGroup) else ())]


def start_from_nothing(self: KVScheduler, asked: Any) -> list[Any]:
    if isinstance(asked, AskUnfinished):
        return self._scheduler.unfinished(GroupsUnfinished(asked.stage, 0, ()))
    return [asked]


def without_the_last_sample(self: KVScheduler, asked: Any) -> list[Any]:
    return [] if isinstance(asked, Assign) and asked.request.sample == 3 else [asked]


def never_retry(self: KVScheduler, message: Any) -> Any:
    return replace(message, retries=()) if isinstance(message, GroupsProgress) else message


def count_more_cache(self: KVScheduler, message: Any) -> Any:
    if not isinstance(message, EngineLoad):
        return message
    return replace(message, kv_tokens_total=9 * message.kv_tokens_total)


def count_more_cache_and_rows(self: KVScheduler, message: Any) -> Any:
    counted = count_more_cache(self, message)
    return counted if counted is message else replace(counted, max_rollouts=99)


def draw_by_chance(self: KVScheduler, stage: int, number: int, purpose: Any) -> Any:
    return KVScheduler.problem(self, stage, random.randrange(10**6), purpose)


SCHEDULERS = [
    ({"begun": spend(more=1)}, BUDGET, "may be"),
    ({"begun": spend(more=-1)}, BUDGET, "only"),
    ({"begun": open_more_than_the_stage}, "no_more_groups_are_opened_than_the_stage_trains", "for a step of 2"),
    (
        asking(lambda _, asked: [asked] * (1 + isinstance(asked, Assign))),
        "each_sample_is_requested_exactly_once",
        "more than once",
    ),
    (asking(without_the_last_sample), "each_sample_is_requested_exactly_once", "never requested"),
    (
        asking(lambda _, asked: [] if isinstance(asked, Unwanted) else [asked]),
        "rollouts_of_dropped_groups_are_called_off",
        "was told []",
    ),
    (
        asking(request_before_it_is_recorded),
        "a_group_is_recorded_before_its_rollouts_are_requested",
        "before their group",
    ),
    (
        asking(start_from_nothing),
        "nothing_is_opened_before_the_filter_said_what_is_open",
        "about the stages []",
    ),
    (
        asking(start_from_nothing),
        "a_restarted_scheduler_asks_for_what_is_missing_and_for_nothing_else",
        "asked for []",
    ),
    ({"heard": never_retry}, "failed_rollouts_are_requested_again_once", "requested 0 times"),
    ({"heard": count_more_cache_and_rows}, "no_engine_is_promised_more_than_it_has", "at once"),
    ({"problem": draw_by_chance}, "what_a_group_is_about_follows_from_seed_and_number", "different"),
    ({"begun": serve_any_engine}, "a_new_stage_starts_afresh", "no engine serves"),
]


@pytest.mark.parametrize(
    ("actor", "policy", "said"),
    [
        (KVScheduler, "tests.actors.simulated_run:PlacesAtOnce", "rollouts at once in an engine of 2 rows"),
        (KVScheduler, "worst_case", "which fit at their longest"),
        (changed(KVScheduler, heard=count_more_cache), "sticky", "than the cache"),
    ],
)
def test_a_policy_that_does_not_promise_what_is_likely_fails(
    actor: Any, policy: str, said: str, tmp_path: Path
) -> None:
    promise = "test_no_engine_is_promised_more_than_it_has"
    attributes = {"settings": {"policy": policy}, "promises": "likely"}
    assert said in broken(SchedulerContract, actor, promise, tmp_path, **attributes)


# Generators -----------------------------------------------------------------------------------------------------------


def generator_with(**overrides: Any) -> type[RolloutGenerator]:
    """A generator whose episodes differ in these attributes."""
    episode = type("BrokenEpisode", (Episode,), overrides)

    class Other(RolloutGenerator):
        def make_episode(self, request: Any) -> Episode:
            made: Episode = episode(request, self._chat)
            return made

    return Other


def appending(append: Any) -> type[RolloutGenerator]:
    """A generator whose episodes append tokens in another way."""

    def begin(self: Any, *given: Any, **options: Any) -> None:
        Episode.__init__(self, *given, **options)
        self.strands = [type("Broken", (Strand,), {"append": append})(0, self.strands[0].shared)]

    return generator_with(__init__=begin)


def all_the_models(self: Any, tokens: Any, logprobs: Any, policies: Any, *, mask: int) -> None:
    Strand.append(self, tokens, logprobs, policies, mask=1)


def without_logprobs(self: Any, tokens: Any, logprobs: Any, policies: Any, *, mask: int) -> None:
    Strand.append(self, tokens, np.zeros_like(logprobs), policies, mask=mask)


def of_a_later_policy(self: Any, tokens: Any, logprobs: Any, policies: Any, *, mask: int) -> None:
    Strand.append(self, tokens, logprobs, policies + 1, mask=mask)


def without_tags(self: Any, **outcome: Any) -> Trajectory:
    return replace(Episode.trajectory(self, **outcome), tags=TagCounts())


async def sample_twice(self: RolloutGenerator, request: Any) -> None:
    again = request.rollout in self._running
    await RolloutGenerator._rollout(self, replace(request, rollout=f"{request.rollout}-again") if again else request)


async def blame_the_model(self: RolloutGenerator, running: Any, episode: Episode, started: float) -> bool:
    try:
        return await RolloutGenerator._run(self, running, episode, started)
    except ToolsUnavailableError:
        episode.ended = "finished"
    return True


def make_one_call_at_a_time(self: RolloutGenerator) -> None:
    async def in_turn(episode: Episode, calls: Any) -> Any:
        done = [await self._loop.call(episode, index, call) for index, call in enumerate(calls)]
        return [text for text, _ in done], [record for _, record in done]

    self._loop.answer = in_turn  # type: ignore[method-assign]


class RaisingFormat(ChatFormat):
    @classmethod
    def calls(cls, text: str) -> Any:
        if "not json" in text:
            raise ValueError("not JSON")
        return super().calls(text)


def make_by_chance(self: RolloutGenerator, request: Any) -> Episode:
    return RolloutGenerator.make_episode(self, replace(request, seed=random.randrange(2**62)))


def hear_nobody_unwanted(self: Any, message: Any) -> Any:
    return None if isinstance(message, GroupsUnwanted) else message


def hear_no_later_policy(self: Any, message: Any) -> Any:
    return None if isinstance(message, PolicyPublished) and self._served.ready.is_set() else message


def hear_no_requests_at_first(self: Any, message: Any) -> Any:
    return message if self.context.incarnation == 1 or isinstance(message, PolicyPublished) else None


ANSWERED = "each_request_is_answered_by_one_trajectory_and_acknowledged_with_it"
WRITTEN = "every_token_says_who_wrote_it_and_how_likely_it_was"
EXACT = "tokens_go_in_as_they_came_out"
GENERATORS = [
    ({"defer_ack": lambda self: lambda: None}, ANSWERED, "before its"),
    ({"concurrency": 1}, ANSWERED, "waits for"),
    (appending(all_the_models), WRITTEN, "loss mask"),
    (appending(without_logprobs), WRITTEN, "log-prob"),
    (appending(of_a_later_policy), WRITTEN, "policy"),
    (generator_with(trajectory=without_tags), WRITTEN, "the response has"),
    (generator_with(tokens_of=lambda self, strand: strand.tokens), EXACT, "continue the prompt"),
    ({"begun": lambda self: vars(self._engine).update(release=lambda _: None)}, EXACT, "was not told"),
    ({"make_episode": make_by_chance}, "the_same_request_gives_the_same_trajectory", "two different"),
    ({"begun": make_one_call_at_a_time}, "calls_of_a_turn_run_at_once_and_come_back_in_order", "waits for the first"),
    ({"chat_format": RaisingFormat}, "what_goes_wrong_in_a_call_is_told_to_the_model", "ValueError: not JSON"),
    ({"_run": blame_the_model}, "infrastructure_that_fails_is_no_fault_of_the_model", "'finished'"),
    ({"_rollout": sample_twice}, "a_rollout_asked_for_twice_is_sampled_once_and_answers_both", "2 trajectories of one"),
    (
        {"heard": hear_nobody_unwanted},
        "rollouts_nobody_wants_are_cancelled_and_others_go_on",
        "no Trajectory",
    ),
    (
        {"heard": hear_no_later_policy},
        "a_policy_published_in_flight_shows_on_every_later_token",
        "waits for the rollout",
    ),
    (
        {"begun": lambda self: self._served.ready.set()},
        "nothing_is_sampled_before_a_policy_is_published",
        "nobody published",
    ),
    (generator_with(budget_of=lambda self, strand: 10_000), "a_rollout_ends_at_its_limits", "1: 'finished'"),
    (
        {"heard": hear_no_requests_at_first},
        "killed_in_the_middle_it_answers_every_request_after_its_restart",
        "of the samples []",
    ),
]


# Executors ------------------------------------------------------------------------------------------------------------


class Altering(ToolExecutor):
    """Changes calls before they run, and their results."""

    def call(self, call: ToolCall) -> ToolCall:
        return call

    def result(self, result: ToolResult) -> ToolResult:
        return result

    async def execute(self, call: ToolCall) -> ToolResult:
        return self.result(await super().execute(self.call(call)))


def raise_on_unknown_tools(self: Altering, call: ToolCall) -> ToolCall:
    if call.tool != PYTHON_TOOL:
        raise KeyError(call.tool)
    return call


def raise_on_missing_arguments(self: Altering, call: ToolCall) -> ToolCall:
    if call.tool == PYTHON_TOOL:
        assert len(call.arguments["code"])
    return call


class HasNoDeadline(ToolExecutor):
    async def start(self) -> None:
        self.context.settings = self.context.settings.model_copy(update={"wall_seconds": 60.0, "cpu_seconds": 60.0})
        await super().start()


def believe_everything(self: ToolExecutor, message: Any, answer: Any) -> Any:
    return replace(answer, judgement=Judgement(1.0, success=True)) if isinstance(message, JudgementWanted) else answer


QUICK = {"settings": {"wall_seconds": 0.5, "cpu_seconds": 1.0}, "deadline_seconds": 0.2}
RETURNED, OUTCOME = "calls_are_answered_with_what_the_tool_returned", "what_is_wrong_with_a_call_is_an_outcome"
OVER = "an_endless_call_is_over_at_its_deadline_and_holds_up_nobody"
EXECUTORS = [
    (
        changed(Altering, result=lambda self, result: replace(result, call="another")),
        RETURNED,
        "under the name another",
    ),
    (changed(Altering, result=lambda self, result: replace(result, stdout="42", value="")), RETURNED, "is not in"),
    (changed(Altering, call=raise_on_unknown_tools), OUTCOME, "KeyError"),
    (changed(Altering, call=raise_on_missing_arguments), OUTCOME, "KeyError"),
    (HasNoDeadline, OVER, "still ran"),
    ({"concurrency": 1}, OVER, "waited for an endless one"),
    ({"answered": believe_everything}, "answers_are_judged_rightly", "was judged True"),
    (
        changed(Altering, call=lambda self, call: replace(call, state=b"")),
        "a_tool_with_state_goes_on_from_the_snapshot_that_comes_with_the_call",
        "does not go on",
    ),
    (
        {"begun": lambda self: vars(self).update(_toolboxes={"arithmetic": {}})},
        "it_runs_the_tools_of_the_environments",
        "declared and unknown",
    ),
]


def test_an_executor_that_nothing_keeps_busy_skips_the_test_of_its_deadline_and_says_so(tmp_path: Path) -> None:
    class Quick(ExecutorContract):
        actor = ToolExecutor
        endless = None

    with pytest.raises(SkipTest, match="no tool of this executor can be kept busy"):
        Quick().test_an_endless_call_is_over_at_its_deadline_and_holds_up_nobody(tmp_path)


# Learners -------------------------------------------------------------------------------------------------------------


async def train_the_last_first(self: Learner) -> Any:
    await Learner._next_step(self)
    return self._arrivals.steps[max(self._arrivals.steps)]


async def skip_a_stage(self: Learner) -> None:
    await Learner._next_stage(self)
    if self._position.stage == 1:
        await Learner._next_stage(self)


async def publish_once(self: Learner) -> None:
    if self._position.version <= 1:
        await Learner._publish(self)


async def forget_the_weights(self: Learner) -> None:
    await Learner._publish(self)
    await self._model.publisher.settled()
    self._model.store.path(PolicyVersion(self._epoch, self._position.version)).unlink(missing_ok=True)


async def do_not_wait(self: Learner, link: str, message: Any) -> Any:
    if isinstance(message, StepTrained):
        self.context.nursery.start_soon(partial(ask, self.context.link(link), message, timeout=60))
        return None
    return await Learner._ask(self, link, message)


def learn(factor: float) -> Any:
    """Take so many times the objective; the trainer refuses such a loss when it is made."""

    def begun(self: Learner) -> None:
        loss = self._model.trainer.loss

        def changed(batch: Any, settings: Any) -> Any:
            terms = loss(batch, settings)
            return replace(terms, objective=factor * terms.objective)

        self._model.trainer.loss = changed

    return begun


async def drift_in_empty_steps(self: Learner, stage: Any, ready: Any) -> None:
    for parameter in self._model.trainer.model.module.parameters():
        parameter.data.add_(0.01)
    await Learner._step(self, stage, ready)


async def save_nothing(self: Learner, **how: Any) -> None:
    pass


async def save_only_stages(self: Learner) -> None:
    self._checkpoint = partial(save_nothing, self)  # type: ignore[method-assign]
    await Learner.stop(self)


LEARNERS = [
    ({"_next_stage": skip_a_stage}, "the_recipe_is_walked_in_order_to_its_end", "in the order [0, 2, 3, 4]"),
    (
        {"_next_step": train_the_last_first},
        "steps_are_trained_in_order_and_once_each",
        "never said that it was finished",
    ),
    (
        {"_publish": publish_once},
        "policies_only_rise_and_their_weights_can_be_fetched",
        "the last policy is of version 1",
    ),
    ({"_publish": forget_the_weights}, "policies_only_rise_and_their_weights_can_be_fetched", "there is no file"),
    (
        {"begun": learn(0.0)},
        "policies_only_rise_and_their_weights_can_be_fetched",
        "changed nothing",
    ),
    ({"_ask": do_not_wait}, "a_step_is_recorded_before_the_next_is_trained", "meanwhile"),
    ({"begun": learn(-1.0)}, "what_was_rewarded_becomes_likelier", "after training"),
    ({"_step": drift_in_empty_steps}, "an_empty_step_is_counted_and_changes_nothing", "changed the weights"),
    ({"_checkpoint": save_nothing}, "checkpoints_load_as_models", "no checkpoint is left"),
    ({"stop": save_only_stages}, "stopped_it_leaves_a_checkpoint_of_where_it_is", "it saved version"),
    (
        {"begun": lambda self: vars(self).update(_position=Position(0, 0, 0))},
        "killed_it_goes_on_from_its_checkpoint_to_the_same_weights",
        "it went on in stage 0",
    ),
    (
        {"begun": lambda self: self._model.trainer.optimizer.reset()},
        "killed_it_goes_on_from_its_checkpoint_to_the_same_weights",
        "other weights",
    ),
]


BROKEN = [
    (suite, actor if isinstance(actor, type) else changed(role, **actor), promise, said)
    for suite, role, actors in (
        (FilterContract, RoCFilter, FILTERS),
        (SchedulerContract, KVScheduler, SCHEDULERS),
        (GeneratorContract, RolloutGenerator, GENERATORS),
        (ExecutorContract, ToolExecutor, EXECUTORS),
        (LearnerContract, Learner, LEARNERS),
    )
    for actor, promise, said in actors
]


@pytest.mark.parametrize(
    ("suite", "actor", "promise", "said"), BROKEN, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_broken_actor_fails(suite: Any, actor: Any, promise: str, said: str, tmp_path: Path) -> None:
    attributes = QUICK if suite is ExecutorContract else {}
    assert said in broken(suite, actor, f"test_{promise}", tmp_path, **attributes)
