"""What every filter promises: nothing is acknowledged before it is durable, and every group has exactly one fate."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import trio

from actors.base import ask
from agent_rl.config.plugins import resolve
from agent_rl.groups.resampling import quotas
from agent_rl.messages import (
    CheckpointSaved,
    EvaluationReady,
    GroupOpened,
    GroupsProgress,
    GroupsUnfinished,
    Judgement,
    JudgementReply,
    JudgementWanted,
    Retry,
    StepReady,
    TrainingGroup,
    Trajectory,
    UnfinishedGroups,
)
from agent_rl.records.audit import audit
from agent_rl_contract.base import PRODUCTION, RL_STAGE, trio_test
from agent_rl_contract.builders import oldest_token, opened
from agent_rl_contract.filter_bench import (
    EVALUATION,
    FILTER,
    RIGHT,
    RL,
    WRONG,
    FilterBench,
    journalled,
    mixed,
    rollout,
    trajectories,
)
from agent_rl_contract.stage import Stage


class FilterContract(FilterBench):
    """Derive and set ``actor``."""

    may_drop: ClassVar[bool] = False
    """Whether groups with both rewards may be left untrained: a selection that returns nothing for some."""

    @trio_test
    async def test_nothing_is_acknowledged_before_it_is_durable(self, tmp_path: Path) -> None:
        """When a group or a trajectory is acknowledged, another process finds it in the journal."""
        found: list[bool] = []

        def look_up(name: str) -> None:
            found.append(name in journalled(tmp_path))

        async with self.alive(tmp_path) as stage:
            await self.enter(stage)
            group = opened()
            await self.open(stage, group, partial(look_up, group.group))
            for sample, answer in enumerate((RIGHT, WRONG, WRONG, RIGHT)):
                made = rollout(group, sample, answer)
                await self.give(stage, made, partial(look_up, made.rollout))
            await self.settled()
        assert len(found) == 5, f"only {len(found)} of 5 messages were acknowledged"
        assert all(found), "a message was acknowledged that the journal did not hold yet"

    @trio_test
    async def test_a_complete_group_becomes_one_training_group(self, tmp_path: Path) -> None:
        """Of trajectories that were sampled for it, each at most once, with their rewards, of both kinds."""
        rng = random.Random(0)
        async with self.alive(tmp_path, algorithm={"max_staleness": 20, "samples": 8, "keep": 5}) as stage:
            await self.enter(stage)
            given: dict[str, list[Trajectory]] = {}
            for number in range(12):
                group, status = opened(number, samples=8), "truncated" if number % 2 else "finished"
                ends = {"status": status, "attempt": number % 3, "version": sorted(rng.choices(range(9), k=2))}
                given[group.group] = await self.settle(stage, group, mixed(rng, 8), **ends)
            await self.settled()
            groups = [m for m in stage["learner"].log if isinstance(m, TrainingGroup)]
            self.check_groups(groups, given, keep=5)

    def check_groups(self, groups: Sequence[TrainingGroup], given: dict[str, list[Trajectory]], *, keep: int) -> None:
        """What the learner was sent, held against what was sampled. A `select` of its own may keep other numbers."""
        own = getattr(self.actor, "select", None) is not resolve("actor", PRODUCTION[self.role]).select
        names = [group.group for group in groups]
        assert len(names) == len(set(names)), "a group was sent twice"
        lacking = sorted(set(given) - set(names))
        assert self.may_drop or not lacking, f"groups with both rewards were not sent: {lacking}"
        for group in groups:
            sampled = {made.rollout: made for made in given[group.group]}
            kept = [made.rollout for made in group.trajectories]
            assert set(kept) <= set(sampled), f"{group.group} holds rollouts that were not sampled for it"
            assert len(kept) == len(set(kept)), f"{group.group} holds a rollout twice"
            for made, reward in zip(group.trajectories, group.rewards.tolist(), strict=True):
                original = sampled[made.rollout]
                right = f"{{{RIGHT}}}" in original.transcript.text
                assert reward == float(right), f"{made.rollout} has the reward {reward}"
                assert made.status == original.status, f"{made.rollout} has the status {made.status}"
                assert made.body == original.body, f"the tokens of {made.rollout} were changed"
            assert set(group.rewards.tolist()) == {0.0, 1.0}, f"{group.group} has no signal: {group.rewards.tolist()}"
            good = sum(f"{{{RIGHT}}}" in made.transcript.text for made in sampled.values())
            places, found = quotas(good, len(sampled) - good, keep), (sum(group.rewards), len(kept))
            assert own or found == (places[0], keep), f"{group.group}: {found[0]} right of {found[1]}, {places} are due"
            oldest = oldest_token(*group.trajectories)
            assert group.policy.version == oldest, f"{group.group}: {group.policy}, the oldest token's is {oldest}"

    @trio_test
    async def test_equal_rewards_are_not_trained_and_count_towards_the_step(self, tmp_path: Path) -> None:
        """A step of nothing but such groups is closed, empty: a run ends whatever the rewards."""
        async with self.alive(tmp_path) as stage:
            await self.enter(stage)
            await self.settle(stage, opened(0), [RIGHT] * 4)
            await self.settle(stage, opened(1), [WRONG] * 4)
            step = await stage["learner"].receive(StepReady)
            assert (step.version, step.groups) == (0, ()), f"an empty step 0 was due, not {step}"
            sent = [m.group for m in stage["learner"].log if isinstance(m, TrainingGroup)]
            assert not sent, f"groups of equal rewards were sent to be trained: {sent}"

    @trio_test
    async def test_steps_are_closed_in_order_with_groups_sent_before(self, tmp_path: Path) -> None:
        """Versions count up by one; each group is in exactly one step, and went out before it."""
        async with self.alive(tmp_path) as stage:
            await self.enter(stage)
            await self.train(stage, range(8), steps=4)

    async def train(self, stage: Stage, numbers: Iterable[int], *, steps: int) -> None:
        """Settle groups two by two, and train the steps they make."""
        version = 0
        for number in numbers:
            await self.settle(stage, opened(number, version=version), [RIGHT, WRONG, WRONG, RIGHT], version=version)
            if number % 2:
                step = await stage["learner"].receive(StepReady)
                assert step.version == version, f"step {version} was due, step {step.version} came"
                log = stage["learner"].log
                sent = {m.group for m in log[: log.index(step)] if isinstance(m, TrainingGroup)}
                assert set(step.groups) <= sent, f"step {version} names groups that were not sent before it"
                await self.trained(stage, step)
                version += 1
        assert version == steps, f"{steps} steps were due, {version} came"
        in_steps = [g for m in stage["learner"].log if isinstance(m, StepReady) for g in m.groups]
        assert len(in_steps) == len(set(in_steps)), "a group is in two steps"
        assert self.may_drop or len(in_steps) == 2 * steps, f"{2 * steps} groups were due, {len(in_steps)} came"

    def test_no_group_is_trained_beyond_the_staleness_budget(self, tmp_path: Path) -> None:
        """Groups are decided in any order, some late. A step waits for groups that would grow too old. All come."""
        for budget in range(4):
            self.run(partial(self.train_at_random, tmp_path / f"budget-{budget}", budget))

    async def train_at_random(self, folder: Path, budget: int) -> None:
        """Twelve steps of two groups, opened as early as a scheduler may, decided as chance has it."""
        rng = random.Random(budget)
        async with self.alive(folder, algorithm={"max_staleness": budget}, stages=[{**RL_STAGE, "steps": 12}]) as stage:
            await self.enter(stage)
            version = number = 0
            pending: dict[int, GroupOpened] = {}
            while version < 12:
                while number < 2 * min(budget + version + 1, 12):
                    pending[number] = opened(number, version=version)
                    await self.open(stage, pending[number])
                    number += 1
                assert pending, f"with max_staleness {budget}, every group is decided and step {version} does not come"
                group = pending.pop(rng.choice(list(pending)))
                for sample, answer in enumerate((RIGHT, WRONG, WRONG, RIGHT)):
                    versions = sorted(rng.choices(range(group.policy.version, version + 1), k=2))
                    await self.give(stage, rollout(group, sample, answer, version=versions))
                await self.settled(0.5)
                self.check_staleness(stage["learner"].log, budget)
                for step in [m for m in stage["learner"].log if isinstance(m, StepReady) and m.version >= version]:
                    await self.trained(stage, step)
                    version = step.version + 1

    def check_staleness(self, log: Sequence[Any], budget: int) -> None:
        """How old each group was when it was trained, by the versions of its tokens."""
        groups = {message.group: message for message in log if isinstance(message, TrainingGroup)}
        for step in [message for message in log if isinstance(message, StepReady)]:
            ages = [step.version - oldest_token(*groups[name].trajectories) for name in step.groups]
            told, at = step.figures.staleness_max, f"step {step.version}"
            assert max(ages, default=0) <= budget, f"{at} trains groups {ages} versions after their oldest token"
            assert told == max(ages, default=None), f"{at} tells a staleness of {told}, its groups have {ages}"

    def test_killed_at_any_time_it_loses_nothing_and_doubles_nothing(self, tmp_path: Path) -> None:
        """Restarted, it goes on from the journal; what was not acknowledged comes again from the links."""
        for kill_at in range(1, 17, 3):
            self.run(partial(self.kill_and_go_on, tmp_path / f"killed-at-{kill_at}", kill_at))

    async def kill_and_go_on(self, folder: Path, kill_at: int) -> None:
        """Four groups in two steps, the filter killed while the trajectories come in."""
        async with self.among_stand_ins(folder, algorithm={"max_staleness": 4}) as (topology, stage):
            made = [rollout(opened(at // 4), at % 4, (RIGHT, WRONG, WRONG, RIGHT)[at % 4]) for at in range(16)]
            acknowledged: list[str] = []

            def give(each: Trajectory) -> Any:
                return self.give(stage, each, lambda: acknowledged.append(each.rollout))

            async with self.running(topology, stage, kill=True):
                await self.enter(stage)
                for number in range(4):
                    await self.open(stage, opened(number))
                for each in made[:kill_at]:
                    await give(each)
                await trio.sleep(0.003 * (kill_at % 5))
            async with self.running(topology, stage, incarnation=2):
                for each in made[kill_at:]:
                    await give(each)
                for version in range(2):
                    step = await stage["learner"].receive(StepReady)
                    while step.version < version:  # sent again: the learner may not have had it
                        step = await stage["learner"].receive(StepReady)
                    assert step.version == version, f"step {version} was due, step {step.version} came"
                    await self.trained(stage, step)
                await self.settled()
        lost = sorted({each.rollout for each in made} - set(acknowledged))
        assert not lost, f"killed after {kill_at} trajectories, these were never acknowledged: {lost}"
        steps: dict[int, tuple[str, ...]] = {}
        for message in stage["learner"].log:
            if isinstance(message, StepReady):
                again = steps.setdefault(message.version, message.groups)
                assert again == message.groups, f"step {message.version} was sent with other groups after the restart"
        trained = [group for groups in steps.values() for group in groups]
        assert len(trained) == len(set(trained)), f"killed after {kill_at} trajectories, a group is in two steps"
        assert self.may_drop or len(trained) == 4, (
            f"killed after {kill_at} trajectories, {4 - len(trained)} groups are lost"
        )
        balance = audit(folder)
        assert balance.balanced, "\n".join(balance.lines())
        assert balance.open == 0, f"killed after {kill_at} trajectories, {balance.open} groups stay open"

    @trio_test
    async def test_a_restarted_learner_is_sent_what_it_has_not_trained(self, tmp_path: Path) -> None:
        """From its checkpoint's version on, in order, under a new epoch; a step reported again is no second step."""
        async with self.alive(tmp_path) as stage:
            first = await self.enter(stage)
            await self.train(stage, range(6), steps=3)
            await stage["learner"].call("checkpoints", FILTER)(CheckpointSaved("c", 1, 1))
            sent = [m for m in stage["learner"].log if isinstance(m, StepReady) and m.version >= 1]
            before = len(stage["learner"].log)
            second = await self.enter(stage, version=1)
            assert second.epoch > first.epoch, "a restored learner needs a new epoch"
            await self.settled()
            again = [m for m in stage["learner"].log[before:] if isinstance(m, StepReady)]
            assert [step.version for step in again] == [1, 2], f"steps 1 and 2 were due again, not {again}"
            same = [step.groups for step in again] == [step.groups for step in sent]
            assert same, f"the steps were sent again with other groups: {again}"
            groups = {m.group for m in stage["learner"].log[before:] if isinstance(m, TrainingGroup)}
            assert groups == {group for step in again for group in step.groups}, f"sent again were {sorted(groups)}"
            await self.trained(stage, again[0])
        assert audit(tmp_path).steps == 3, "a step reported again was counted again"

    @trio_test
    async def test_unfinished_groups_are_told_with_what_they_lack(self, tmp_path: Path) -> None:
        """For a scheduler that keeps nothing: open groups, samples without a trajectory, and their attempts."""
        async with self.alive(tmp_path) as stage:
            await self.enter(stage)
            await self.settle(stage, opened(0), [RIGHT, WRONG, WRONG, RIGHT])
            await self.settle(stage, opened(1), [RIGHT, WRONG])
            await self.give(stage, rollout(opened(1), 2, WRONG, status="failed"))
            await self.settled()
            answer: GroupsUnfinished = await ask(
                stage["kv_scheduler"].call("journal", FILTER), UnfinishedGroups(RL), timeout=30
            )
            assert answer.opened == 2, f"2 groups were opened, the answer says {answer.opened}"
            assert len(answer.groups) == 1, f"1 group is unfinished, the answer names {len(answer.groups)}"
            group = answer.groups[0]
            assert group.opened == opened(1), f"unfinished is {group.opened}"
            missing = {Retry(opened(1).group, 2, 1, 1), Retry(opened(1).group, 3, 0, 1)}
            assert set(group.missing) == missing, f"{group.missing} is said to be missing"

    @trio_test
    async def test_failed_rollouts_are_sampled_again_then_given_up(self, tmp_path: Path) -> None:
        """Infrastructure that fails is no wrong answer: another attempt is announced, up to ``rollout_attempts``."""
        async with self.alive(tmp_path, algorithm={"rollout_attempts": 2, "groups_per_step": 1}) as stage:
            await self.enter(stage)
            group = opened()
            await self.settle(stage, group, [RIGHT, WRONG, RIGHT])
            await self.give(stage, rollout(group, 3, WRONG, status="failed"))
            await self.settled()
            progress = [m for m in stage["kv_scheduler"].log if isinstance(m, GroupsProgress)][-1]
            assert progress.retries == (Retry(group.group, 3, 1, group.number),), f"no retry of sample 3: {progress}"
            assert not any(isinstance(m, StepReady) for m in stage["learner"].log), "the step waits for it"
            await self.give(stage, rollout(group, 3, WRONG, status="cancelled", attempt=1))
            sent = await stage["learner"].receive(TrainingGroup)
            assert all(made.sample != 3 for made in sent.trajectories), "a failed rollout is trained on"

    @trio_test
    async def test_a_trajectory_that_comes_twice_counts_once(self, tmp_path: Path) -> None:
        """Both are acknowledged; the group is decided by one of them."""
        async with self.alive(tmp_path, algorithm={"groups_per_step": 1}) as stage:
            await self.enter(stage)
            made = await self.settle(stage, opened(), [RIGHT, WRONG, WRONG])
            for each in made:
                await self.give(stage, each)
            await self.settled()
            assert not any(isinstance(m, StepReady) for m in stage["learner"].log), "sample 3 is missing"
            await self.give(stage, rollout(opened(), 3, RIGHT))
            await stage["learner"].receive(StepReady)
            link = stage["rollout_generator"].push("trajectories", FILTER)
            await self.settled()
            assert link.unacknowledged() == 0, "a trajectory that came twice is not acknowledged"

    @trio_test
    async def test_answers_that_text_cannot_decide_are_judged_by_the_executor(self, tmp_path: Path) -> None:
        """And a check that fails itself is asked again; it is no verdict."""
        failures = iter(["the checker died", "", ""])

        def judge(message: Any) -> Any:
            assert isinstance(message, JudgementWanted), f"the executor was called with {message}"
            failure, right = next(failures), "\\sqrt{16}" in message.transcript.text
            judgement = None if failure else Judgement(0.75 * right, right, {"shape": 0.5}, 0.25, "symbolic", "4")
            return JudgementReply(message.rollout, judgement, "", failure)

        async with self.among_stand_ins(tmp_path, algorithm={"groups_per_step": 1}) as (topology, stage):
            stage["tool_executor"].reply = judge
            async with self.running(topology, stage):
                await self.enter(stage)
                await self.settle(stage, opened(), ["\\sqrt{16}", "\\sqrt{15}", WRONG, WRONG])
                await stage["learner"].receive(StepReady)
                groups = [m for m in stage["learner"].log if isinstance(m, TrainingGroup)]
        found = {each.sample: each.judgement for each in trajectories(tmp_path, opened().group)}
        rewards = {sample: given.reward for sample, given in found.items() if given is not None}
        assert rewards == {0: 0.75, 1: 0.0, 2: 0.0, 3: 0.0}, f"rewards by sample: {rewards}"
        sent = {made.sample: group.rewards[at] for group in groups for at, made in enumerate(group.trajectories)}
        assert sent.items() <= rewards.items(), f"sent were rewards by sample: {sent}"
        whole = Judgement(0.75, success=True, parts={"shape": 0.5}, format_penalty=0.25, note="symbolic", answer="4")
        assert found[0] == whole, f"the journal holds {found[0]}, which is not the whole judgement"

    def test_the_same_groups_are_selected_alike(self, tmp_path: Path) -> None:
        """Chance comes from the generator the selection is given: the same run selects the same rollouts again."""
        kept: list[list[list[str]]] = []

        async def main() -> None:
            rng = random.Random(1)
            folder = tmp_path / str(len(kept))
            async with self.alive(folder, algorithm={"max_staleness": 20, "samples": 8, "keep": 4}) as stage:
                await self.enter(stage)
                for number in range(8):
                    await self.settle(stage, opened(number, samples=8), mixed(rng, 8))
                await self.settled()
            groups = [m for m in stage["learner"].log if isinstance(m, TrainingGroup)]
            kept.append(sorted([made.rollout for made in group.trajectories] for group in groups))

        self.run(main)
        self.run(main)
        assert kept[0] == kept[1], "two runs of the same groups kept different rollouts"

    @trio_test
    async def test_an_evaluation_is_ready_when_every_rollout_is_judged(self, tmp_path: Path) -> None:
        """Once, with success sampled and greedy; nothing of it is trained."""
        async with self.alive(tmp_path) as stage:
            await self.enter(stage, EVALUATION)
            for number, answer in enumerate((RIGHT, WRONG, RIGHT, RIGHT)):
                purpose = "evaluate_sampled" if number < 2 else "evaluate_greedy"
                group = opened(number, stage=EVALUATION, samples=1, purpose=purpose)
                await self.settled(1)
                assert not any(isinstance(m, EvaluationReady) for m in stage["learner"].log), "too early"
                await self.settle(stage, group, [answer])
            ready = await stage["learner"].receive(EvaluationReady)
            success = tuple(answers.success for answers in ready.figures.ways().values())
            assert (ready.evaluation.stage, success) == (EVALUATION, (0.5, 1.0)), (
                f"in stage {ready.evaluation.stage}: {success}"
            )
            sent = [m.group for m in stage["learner"].log if isinstance(m, TrainingGroup)]
            assert not sent, f"groups of an evaluation were sent to be trained: {sent}"
