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
from agent_rl.scheduling.policies.worst_case import WorstCase
from agent_rl_contract import (
    ExecutorContract,
    FilterContract,
    GeneratorContract,
    LearnerContract,
    RoleContract,
    SchedulerContract,
)
from tests.actors.ends import bench_of
from tests.actors.simulated_run import PlacesAtOnce


def broken(suite: type[RoleContract], actor: Any, promise: str, folder: Path, **attributes: Any) -> str:
    """Run the test of one promise on an actor that breaks it; what the test says."""
    with pytest.raises(AssertionError) as failure:
        getattr(bench_of(suite, actor, **attributes), promise)(folder)
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


def deaf_to(*kinds: type) -> dict[str, Any]:
    return {"heard": lambda self, message: None if isinstance(message, kinds) else message}


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


FILTERS: dict[str, list[tuple[Any, str]]] = {
    "nothing_is_acknowledged_before_it_is_durable": [({"defer_ack": lambda self: lambda: None}, "did not hold yet")],
    "a_complete_group_becomes_one_training_group": [
        (
            {"select": lambda self, group, rng: tuple(index for index, each in enumerate(group) if each.reward)},
            "only rollouts with the reward 1",
        ),
        ({"select": lambda self, group, rng: (0, *RoCFilter.select(self, group, rng))}, "each position once"),
        ({"select": lambda self, group, rng: ()}, "were not sent"),
        ({"selection": look_at_no_classes}, "are due"),
        (
            {"_trajectory": lambda self, made: RoCFilter._trajectory(self, replace(made, oldest=made.newest))},
            "the oldest token's is",
        ),
    ],
    "the_same_groups_are_selected_alike": [({"select": select_by_chance}, "kept different rollouts")],
    "steps_are_closed_in_order_with_groups_sent_before": [
        (
            {"_perform": lambda self, instructions: RoCFilter._perform(self, list(reversed(instructions)))},
            "not sent before it",
        )
    ],
    "equal_rewards_are_not_trained_and_count_towards_the_step": [
        ({"_perform": perform_no_empty_steps}, "no StepReady")
    ],
    "killed_at_any_time_it_loses_nothing_and_doubles_nothing": [({"_take_up": forget_the_journal}, "no StepReady")],
    "a_restarted_learner_is_sent_what_it_has_not_trained": [
        ({"_resend": lambda self, entered: None}, "due again"),
        ({"answered": keep_the_epoch}, "new epoch"),
    ],
    "unfinished_groups_are_told_with_what_they_lack": [({"answered": know_nothing_unfinished}, "the answer names 0")],
    "failed_rollouts_are_sampled_again_then_given_up": [({"_commit": ask_for_nothing_again}, "no retry")],
    "a_trajectory_that_comes_twice_counts_once": [({"_trajectory": count_twice}, "sample 3 is missing")],
    "answers_that_text_cannot_decide_are_judged_by_the_executor": [({"begun": trust_the_checker}, "rewards by sample")],
    "no_group_is_trained_beyond_the_staleness_budget": [({"begun": never_wait}, "after their oldest token")],
    "an_evaluation_is_ready_when_every_rollout_is_judged": [({"begun": evaluate_too_early}, "too early")],
}


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


def count_more(**more: int) -> dict[str, Any]:
    """Take engines for nine times as large as they say."""

    def heard(self: KVScheduler, message: Any) -> Any:
        if not isinstance(message, EngineLoad):
            return message
        return replace(message, kv_tokens_total=9 * message.kv_tokens_total, **more)

    return {"heard": heard}


def draw_by_chance(self: KVScheduler, stage: int, number: int, purpose: Any) -> Any:
    return KVScheduler.problem(self, stage, random.randrange(10**6), purpose)


SCHEDULERS: dict[str, list[tuple[Any, str]]] = {
    "groups_are_opened_within_the_staleness_budget_and_up_to_it": [
        ({"begun": spend(more=1)}, "may be"),
        ({"begun": spend(more=-1)}, "only"),
    ],
    "no_more_groups_are_opened_than_the_stage_trains": [({"begun": open_more_than_the_stage}, "for a step of 2")],
    "each_sample_is_requested_exactly_once": [
        (asking(lambda _, asked: [asked] * (1 + isinstance(asked, Assign))), "more than once"),
        (asking(without_the_last_sample), "never requested"),
    ],
    "rollouts_of_dropped_groups_are_called_off": [
        (asking(lambda _, asked: [] if isinstance(asked, Unwanted) else [asked]), "was told []")
    ],
    "a_group_is_recorded_before_its_rollouts_are_requested": [
        (asking(request_before_it_is_recorded), "before their group")
    ],
    "nothing_is_opened_before_the_filter_said_what_is_open": [(asking(start_from_nothing), "about the stages []")],
    "a_restarted_scheduler_asks_for_what_is_missing_and_for_nothing_else": [
        (asking(start_from_nothing), "asked for []")
    ],
    "failed_rollouts_are_requested_again_once": [(deaf_to(GroupsProgress), "requested 0 times")],
    "no_engine_is_promised_more_than_it_has": [(count_more(max_rollouts=99), "at once")],
    "what_a_group_is_about_follows_from_seed_and_number": [({"problem": draw_by_chance}, "different")],
    "a_new_stage_starts_afresh": [({"begun": serve_any_engine}, "no engine serves")],
}


class LikelyContract(SchedulerContract):
    promises = "likely"


LIKELY: dict[str, list[tuple[Any, str]]] = {
    "no_engine_is_promised_more_than_it_has": [
        ({"policy": lambda self: PlacesAtOnce()}, "rollouts at once in an engine of 2 rows"),
        ({"policy": lambda self: WorstCase()}, "which fit at their longest"),
        (count_more(), "than the cache"),
    ]
}


# Generators -----------------------------------------------------------------------------------------------------------


def generator_with(**overrides: Any) -> type[RolloutGenerator]:
    """A generator whose episodes differ in these attributes."""
    episode = type("BrokenEpisode", (Episode,), overrides)

    class Other(RolloutGenerator):
        def make_episode(self, request: Any) -> Episode:
            made: Episode = episode(request, self._chat)
            return made

    return Other


def appending(**changes: Any) -> type[RolloutGenerator]:
    """A generator whose episodes append tokens with another mask, other log-probabilities or policies."""

    def append(self: Any, tokens: Any, logprobs: Any, policies: Any, *, mask: int) -> None:
        given = {"logprobs": logprobs, "policies": policies, "mask": mask}
        Strand.append(self, tokens, **given | {name: change(given[name]) for name, change in changes.items()})

    def begin(self: Any, *given: Any, **options: Any) -> None:
        Episode.__init__(self, *given, **options)
        self.strands = [type("Broken", (Strand,), {"append": append})(0, self.strands[0].shared)]

    return generator_with(__init__=begin)


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


def hear_no_later_policy(self: Any, message: Any) -> Any:
    return None if isinstance(message, PolicyPublished) and self._served.ready.is_set() else message


def hear_no_requests_at_first(self: Any, message: Any) -> Any:
    return message if self.context.incarnation == 1 or isinstance(message, PolicyPublished) else None


GENERATORS: dict[str, list[tuple[Any, str]]] = {
    "each_request_is_answered_by_one_trajectory_and_acknowledged_with_it": [
        ({"defer_ack": lambda self: lambda: None}, "before its"),
        ({"concurrency": 1}, "waits for"),
    ],
    "every_token_says_who_wrote_it_and_how_likely_it_was": [
        (appending(mask=lambda _: 1), "loss mask"),
        (appending(logprobs=np.zeros_like), "log-prob"),
        (appending(policies=lambda policies: policies + 1), "policy"),
        (generator_with(trajectory=without_tags), "the response has"),
    ],
    "tokens_go_in_as_they_came_out": [
        (generator_with(tokens_of=lambda self, strand: strand.tokens), "continue the prompt"),
        ({"begun": lambda self: vars(self._engine).update(release=lambda _: None)}, "was not told"),
    ],
    "the_same_request_gives_the_same_trajectory": [({"make_episode": make_by_chance}, "two different")],
    "calls_of_a_turn_run_at_once_and_come_back_in_order": [({"begun": make_one_call_at_a_time}, "waits for the first")],
    "what_goes_wrong_in_a_call_is_told_to_the_model": [({"chat_format": RaisingFormat}, "ValueError: not JSON")],
    "infrastructure_that_fails_is_no_fault_of_the_model": [({"_run": blame_the_model}, "'finished'")],
    "a_rollout_asked_for_twice_is_sampled_once_and_answers_both": [
        ({"_rollout": sample_twice}, "2 trajectories of one")
    ],
    "rollouts_nobody_wants_are_cancelled_and_others_go_on": [(deaf_to(GroupsUnwanted), "no Trajectory")],
    "a_policy_published_in_flight_shows_on_every_later_token": [
        ({"heard": hear_no_later_policy}, "waits for the rollout")
    ],
    "nothing_is_sampled_before_a_policy_is_published": [
        ({"begun": lambda self: self._served.ready.set()}, "nobody published")
    ],
    "a_rollout_ends_at_its_limits": [(generator_with(budget_of=lambda self, strand: 10_000), "1: 'finished'")],
    "killed_in_the_middle_it_answers_every_request_after_its_restart": [
        ({"heard": hear_no_requests_at_first}, "of the samples []")
    ],
}


# Executors ------------------------------------------------------------------------------------------------------------


def altering(call: Any = lambda call: call, result: Any = lambda result: result) -> dict[str, Any]:
    """Change calls before they run, and their results."""

    async def execute(self: ToolExecutor, asked: ToolCall) -> ToolResult:
        made: ToolResult = result(await ToolExecutor.execute(self, call(asked)))
        return made

    return {"execute": execute}


def raise_on_unknown_tools(call: ToolCall) -> ToolCall:
    if call.tool != PYTHON_TOOL:
        raise KeyError(call.tool)
    return call


def raise_on_missing_arguments(call: ToolCall) -> ToolCall:
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
EXECUTORS: dict[str, list[tuple[Any, str]]] = {
    "calls_are_answered_with_what_the_tool_returned": [
        (altering(result=lambda result: replace(result, call="another")), "under the name another"),
        (altering(result=lambda result: replace(result, stdout="42", value="")), "is not in"),
    ],
    "what_is_wrong_with_a_call_is_an_outcome": [
        (altering(call=raise_on_unknown_tools), "KeyError"),
        (altering(call=raise_on_missing_arguments), "KeyError"),
    ],
    "an_endless_call_is_over_at_its_deadline_and_holds_up_nobody": [
        (HasNoDeadline, "still ran"),
        ({"concurrency": 1}, "waited for an endless one"),
    ],
    "answers_are_judged_rightly": [({"answered": believe_everything}, "was judged True")],
    "a_tool_with_state_goes_on_from_the_snapshot_that_comes_with_the_call": [
        (altering(call=lambda call: replace(call, state=b"")), "does not go on")
    ],
    "it_runs_the_tools_of_the_environments": [
        ({"begun": lambda self: vars(self).update(_toolboxes={"arithmetic": {}})}, "declared and unknown")
    ],
}


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


LEARNERS: dict[str, list[tuple[Any, str]]] = {
    "the_recipe_is_walked_in_order_to_its_end": [({"_next_stage": skip_a_stage}, "in the order [0, 2, 3, 4]")],
    "steps_are_trained_in_order_and_once_each": [
        ({"_next_step": train_the_last_first}, "never said that it was finished")
    ],
    "policies_only_rise_and_their_weights_can_be_fetched": [
        ({"_publish": publish_once}, "the last policy is of version 1"),
        ({"_publish": forget_the_weights}, "there is no file"),
        ({"begun": learn(0.0)}, "changed nothing"),
    ],
    "a_step_is_recorded_before_the_next_is_trained": [({"_ask": do_not_wait}, "meanwhile")],
    "what_was_rewarded_becomes_likelier": [({"begun": learn(-1.0)}, "after training")],
    "an_empty_step_is_counted_and_changes_nothing": [({"_step": drift_in_empty_steps}, "changed the weights")],
    "checkpoints_load_as_models": [({"_checkpoint": save_nothing}, "no checkpoint is left")],
    "stopped_it_leaves_a_checkpoint_of_where_it_is": [({"stop": save_only_stages}, "it saved version")],
    "killed_it_goes_on_from_its_checkpoint_to_the_same_weights": [
        ({"begun": lambda self: vars(self).update(_position=Position(0, 0, 0))}, "it went on in stage 0"),
        ({"begun": lambda self: self._model.trainer.optimizer.reset()}, "other weights"),
    ],
}


BROKEN = [
    (suite, actor if isinstance(actor, type) else changed(role, **actor), promise, said)
    for suite, role, actors in (
        (FilterContract, RoCFilter, FILTERS),
        (SchedulerContract, KVScheduler, SCHEDULERS),
        (LikelyContract, KVScheduler, LIKELY),
        (GeneratorContract, RolloutGenerator, GENERATORS),
        (ExecutorContract, ToolExecutor, EXECUTORS),
        (LearnerContract, Learner, LEARNERS),
    )
    for promise, broken_by in actors.items()
    for actor, said in broken_by
]


@pytest.mark.parametrize(
    ("suite", "actor", "promise", "said"), BROKEN, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_broken_actor_fails(suite: Any, actor: Any, promise: str, said: str, tmp_path: Path) -> None:
    attributes = QUICK if suite is ExecutorContract else {}
    assert said in broken(suite, actor, f"test_{promise}", tmp_path, **attributes)
