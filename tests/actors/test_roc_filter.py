"""The RoC filter among stand-ins, in virtual time: durability, restarts, replays, checks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from actors.base import ask
from actors.roc_filter import RoCFilter
from actors.runtime.process import user_mistake
from actors.testing import Stage, running, stand_ins
from agent_rl.figures import StageFigures, SupervisedFigures, TrainingFigures
from agent_rl.files.disk import DiskError, disk_error
from agent_rl.messages import (
    Evaluation,
    EvaluationReady,
    GroupOutcome,
    GroupsProgress,
    GroupsUnfinished,
    Judgement,
    JudgementReply,
    Recorded,
    StageEntered,
    StageRecorded,
    StepReady,
    StepTrained,
    TagCounts,
    TrainingGroup,
    UnfinishedGroups,
)
from agent_rl.records.audit import audit
from agent_rl.records.journal import Journal
from tests import builders
from tests.actors.topologies import micro
from tests.full_disk import fill, no_file_longer_than, small_disk

RL = 2
FILTER = "roc_filter.0"
PAIRED = ("answers_opened", "answers_closed", "answers")


def simulate(main: Any, *arguments: Any) -> None:
    trio.run(main, *arguments, clock=MockClock(autojump_threshold=0))


async def enter(stage: Stage, *, version: int = 5, restored: bool = True, index: int = RL) -> StageRecorded:
    begun = 5 if index == RL else version
    return await stage["learner"].call("stages", FILTER)(StageEntered(index, begun, version, restored))


async def settle_group(
    stage: Stage,
    number: int,
    answers: list[str],
    *,
    version: int = 5,
    drawn: int | None = None,
    tags: Callable[[int], TagCounts] = lambda _: TagCounts(),
) -> list[str]:
    """Open a group and push a trajectory for each answer; the names that were acknowledged are added to the list."""
    group = replace(builders.opened(number, stage=RL, version=version), drawn=drawn)
    acknowledged: list[str] = []
    opened = stage["kv_scheduler"].push("groups", FILTER)
    await opened.send(group, on_ack=lambda: acknowledged.append(group.group))
    await opened.drained()  # as the scheduler does: no rollout is requested of a group the journal does not have
    for sample, answer in enumerate(answers):
        trajectory = builders.trajectory(group, sample, answer=answer, version=version)
        trajectory = replace(trajectory, tags=tags(sample))
        await (
            stage["rollout_generator"]
            .push("trajectories", FILTER)
            .send(trajectory, on_ack=lambda name=trajectory.rollout: acknowledged.append(name))
        )
    return acknowledged


async def test_a_group_goes_from_its_opening_to_the_learner(tmp_path: Path) -> None:
    topology = micro(tmp_path)
    async with stand_ins(topology, "roc_filter") as stage:
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage):
            assert (await enter(stage)).epoch == 1
            await settle_group(stage, 0, ["4", "5", "4", "5"])
            acknowledged = await settle_group(stage, 1, ["7"] * 4)
            group = await stage["learner"].receive(TrainingGroup)
            assert group.group == "s2-g000000"
            assert sorted(group.rewards.tolist()) == [0.0, 1.0]
            assert len(group.trajectories) == 2
            step = await stage["learner"].receive(StepReady)
            assert step == StepReady(RL, 5, ("s2-g000000",), step.figures)
            assert step.figures.sampled.success == 0.25
            assert step.figures.groups_trained == 1
            await trio.sleep(1)
            assert len(acknowledged) == 5
            trained = StepTrained(RL, 5, step.groups, TrainingFigures(loss=0.5))
            assert await stage["learner"].call("steps", FILTER)(trained) == Recorded()
    balance = audit(tmp_path)
    assert balance.balanced, balance.faults
    assert (balance.trained, balance.dropped, balance.open) == (1, {"equal_rewards": 1}, 0)
    (row,) = [line for line in (tmp_path / "metrics.jsonl").read_text().splitlines() if '"step"' in line]
    assert '"loss": 0.5' in row
    assert '"step": 1' in row


async def test_what_arrives_after_the_stop_is_left_to_the_next_process(tmp_path: Path) -> None:
    """The process lives on until its last status is acknowledged."""

    class Stopping(RoCFilter):
        stopped = trio.Event()

        async def stop(self) -> None:
            await super().stop()
            self.stopped.set()

    topology = micro(tmp_path)
    async with stand_ins(topology, "roc_filter") as stage, trio.open_nursery() as nursery:
        acknowledged: list[str] = []
        late = trio.Event()

        async def opens_late() -> None:
            await Stopping.stopped.wait()
            acknowledged.extend(await settle_group(stage, 0, ["4"]))

        async def never_heard(_: Any) -> None:
            await late.wait()

        nursery.start_soon(opens_late)
        async with running(Stopping, topology, "roc_filter", tmp_path, stage):
            await enter(stage)
            stage["supervisor.local"].reply = lambda _: never_heard(_) if Stopping.stopped.is_set() else None
        assert acknowledged == []
        late.set()
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, incarnation=2):
            await trio.sleep(5)
            assert acknowledged
    assert audit(tmp_path).open == 1


async def test_a_filter_that_dies_after_the_learner_went_back_sends_again_what_is_trained_again(tmp_path: Path) -> None:
    topology = micro(tmp_path)
    async with stand_ins(topology, "roc_filter") as stage:
        learner = stage["learner"]
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, kill=True):
            await enter(stage)
            await settle_group(stage, 0, ["4", "5", "4", "5"])
            await settle_group(stage, 1, ["7"] * 4)
            step = await learner.receive(StepReady)
            trained = StepTrained(RL, 5, step.groups, TrainingFigures(loss=0.5))
            await learner.call("steps", FILTER)(trained)
            await enter(stage)  # killed, and restored from the checkpoint before this step
        await trio.sleep(5)
        learner.forget()
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, incarnation=2, kill=True):
            assert (await learner.receive(TrainingGroup)).group == step.groups[0]
            assert (await learner.receive(StepReady)).version == 5
            await ask(learner.call("steps", FILTER), trained, timeout=30)
        learner.forget()
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, incarnation=3):
            await stage.started("roc_filter.0")
            await trio.sleep(5)
            assert not [each for each in learner.log if isinstance(each, StepReady)]
    assert audit(tmp_path).balanced


async def test_the_supervisor_knows_that_it_has_started_before_the_first_message_is_handled(tmp_path: Path) -> None:
    """Code that blocks the event loop in its first message is then no start that hangs."""
    states: list[set[str]] = []
    topology = micro(tmp_path)
    async with stand_ins(topology, "roc_filter") as stage, trio.open_nursery() as nursery:

        class Noting(RoCFilter):
            async def handle(self, message: Any) -> Any:
                states.append({status.state for status in stage["supervisor.local"].log})
                return await super().handle(message)

        nursery.start_soon(enter, stage)
        await trio.sleep(1)
        async with running(Noting, topology, "roc_filter", tmp_path, stage):
            await stage.started("roc_filter.0")
            await trio.sleep(5)
    assert "running" in states[0]


async def test_with_release_a_group_is_trained_by_its_tags_and_again_after_a_restart(tmp_path: Path) -> None:
    def tags(sample: int) -> TagCounts:
        return TagCounts(tool_responses=2, error_responses=2 - sample // 2, **dict.fromkeys(PAIRED, 1), turns=2)

    topology = micro(tmp_path)
    algorithm = topology.algorithm.model_copy(update={"resampling": "release"})
    topology = topology.model_copy(update={"algorithm": algorithm})
    async with stand_ins(topology, "roc_filter") as stage:
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, kill=True):
            await enter(stage)
            await settle_group(stage, 0, ["5", "4", "5", "4"], tags=tags)
            await settle_group(stage, 1, ["7"] * 4, tags=tags)
            group = await stage["learner"].receive(TrainingGroup)
            # of the right ones the fewest responses with "error", of the wrong ones the first
            assert [made.sample for made in group.trajectories] == [0, 3]
            step = await stage["learner"].receive(StepReady)
            assert step.groups == (group.group,)
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, incarnation=2):
            again = await stage["learner"].receive(TrainingGroup)
            assert [made.sample for made in again.trajectories] == [0, 3]
            trained = StepTrained(RL, 5, step.groups, TrainingFigures(loss=0.5))
            assert await ask(stage["learner"].call("steps", FILTER), trained, timeout=30) == Recorded()
    balance = audit(tmp_path)
    assert balance.balanced, balance.faults
    assert (balance.trained, balance.dropped, balance.open) == (1, {"equal_rewards": 1}, 0)


async def test_what_a_curriculum_observed_is_known_after_a_restart(tmp_path: Path) -> None:
    topology = micro(tmp_path)
    algorithm = topology.algorithm.model_copy(update={"curriculum": "frontier"})
    topology = topology.model_copy(update={"algorithm": algorithm})
    outcomes = (GroupOutcome(0, 7, 2, 4), GroupOutcome(1, 3, 0, 4))
    async with stand_ins(topology, "roc_filter") as stage:
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, kill=True):
            await enter(stage)
            await settle_group(stage, 0, ["4", "5", "4", "5"], drawn=7)
            await settle_group(stage, 1, ["7"] * 4, drawn=3)
            await stage["learner"].receive(StepReady)
            progress: GroupsProgress = await stage["kv_scheduler"].receive(GroupsProgress)
            while progress.outcomes != outcomes:
                progress = await stage["kv_scheduler"].receive(GroupsProgress)
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, incarnation=2):
            link = stage["kv_scheduler"].call("journal", FILTER)
            answer: GroupsUnfinished = await ask(link, UnfinishedGroups(RL), timeout=10)
            assert answer.outcomes == outcomes


async def test_a_restarted_filter_sends_a_ready_group_again_though_every_step_is_trained(tmp_path: Path) -> None:
    topology = micro(tmp_path)
    async with stand_ins(topology, "roc_filter") as stage:
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, kill=True):
            await enter(stage)
            for number in range(3):
                await settle_group(stage, number, ["4", "5", "4", "5"])
            step = await stage["learner"].receive(StepReady)
            await stage["learner"].call("steps", FILTER)(StepTrained(RL, 5, step.groups, TrainingFigures()))
        before = len(stage["learner"].log)
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, incarnation=2):
            await trio.sleep(1)
            assert [each.group for each in stage["learner"].log[before:]] == ["s2-g000002"]


async def test_an_executor_that_has_no_checker_is_asked_on(tmp_path: Path) -> None:
    topology = micro(tmp_path)
    async with stand_ins(topology, "roc_filter") as stage:
        asked = stage["tool_executor"].log

        def judge(wanted: Any) -> JudgementReply:
            if len(asked) < 8:
                return JudgementReply(wanted.rollout, None, "", "no checker")
            return JudgementReply(wanted.rollout, Judgement(0.75, success=True, parts={"a": 0.5}))

        stage["tool_executor"].reply = judge
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage) as actor:
            await enter(stage)
            await settle_group(stage, 0, ["\\sqrt{16}", "4", "5", "5"])
            await stage["learner"].receive(TrainingGroup)
            assert len(asked) == 8
            assert actor.status()[1].filter.checks_failed == 7
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, incarnation=2):
            await trio.sleep(5)  # a restart reads the judgement and asks nobody
        assert len(asked) == 8
    journal = Journal(tmp_path / "journal.sqlite")
    found = {each.sample: each.judgement for each in journal.trajectories("s2-g000000")}
    journal.close()
    assert found[0] == Judgement(0.75, success=True, parts={"a": 0.5})
    assert [found[sample].reward for sample in (1, 2, 3)] == [1.0, 0.0, 0.0]


async def test_a_judgement_of_an_open_group_is_read_again_after_a_restart_and_made_once(tmp_path: Path) -> None:
    topology = micro(tmp_path)
    async with stand_ins(topology, "roc_filter") as stage:
        stage["tool_executor"].reply = lambda wanted: JudgementReply(
            wanted.rollout, Judgement(0.25, success=False, format_penalty=0.5)
        )
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, kill=True):
            await enter(stage)
            await settle_group(stage, 0, ["\\sqrt{16}", "4", "5"])
            await trio.sleep(5)
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, incarnation=2):
            group = builders.opened(0, stage=2)
            link = stage["rollout_generator"].push("trajectories", "roc_filter.0")
            await link.send(builders.trajectory(group, 3, answer="5"))
            trained: TrainingGroup = await stage["learner"].receive(TrainingGroup)
            assert len(stage["tool_executor"].log) == 1
            assert set(trained.rewards.tolist()) <= {0.0, 0.25, 1.0}
    journal = Journal(tmp_path / "journal.sqlite")
    found = {each.sample: each.judgement for each in journal.trajectories("s2-g000000")}
    journal.close()
    assert found[0] == Judgement(0.25, success=False, format_penalty=0.5)


@pytest.mark.parametrize("at_once", [True, False])
def test_an_environment_that_fails_three_times_in_a_row_ends_the_run_with_its_place(
    tmp_path: Path, *, at_once: bool
) -> None:
    fault = "Mine.judge fails with ZeroDivisionError: no (mine.py, line 7)"

    async def main() -> None:
        topology = micro(tmp_path)
        async with stand_ins(topology, "roc_filter") as stage:
            stage["tool_executor"].reply = lambda wanted: JudgementReply(wanted.rollout, None, fault)
            async with running(RoCFilter, topology, "roc_filter", tmp_path, stage):
                await enter(stage)
                group = builders.opened(0, stage=2)
                await stage["kv_scheduler"].push("groups", "roc_filter.0").send(group)
                await trio.sleep(1)  # recorded
                for sample in range(3):
                    status = "environment_failed" if at_once else "finished"
                    made = builders.trajectory(group, sample, answer="\\sqrt{16}", status=status)
                    made = replace(made, reason=fault)
                    await stage["rollout_generator"].push("trajectories", "roc_filter.0").send(made)
                await trio.sleep(100)

    with pytest.raises(BaseExceptionGroup) as caught:
        simulate(main)
    said = user_mistake(caught.value) or ""
    assert f"environment 'arithmetic' failed at 3 rollouts in a row, the last time: {fault}; mend it" in said


def test_a_restarted_filter_goes_on_counting_the_faults_of_each_environment(tmp_path: Path) -> None:
    fault = "Mine.judge fails with ZeroDivisionError: no (mine.py, line 7)"

    async def fail(topology: Any, samples: range, incarnation: int) -> None:
        async with stand_ins(topology, "roc_filter") as stage:
            cls = running(RoCFilter, topology, "roc_filter", tmp_path, stage, kill=True, incarnation=incarnation)
            async with cls:
                await enter(stage)
                group = builders.opened(0, stage=RL)
                await stage["kv_scheduler"].push("groups", FILTER).send(group)
                await trio.sleep(1)
                for sample in samples:
                    made = replace(builders.trajectory(group, sample, status="environment_failed"), reason=fault)
                    await stage["rollout_generator"].push("trajectories", FILTER).send(made)
                await trio.sleep(5)

    topology = micro(tmp_path)
    simulate(fail, topology, range(2), 1)
    with pytest.raises(BaseExceptionGroup) as caught:
        simulate(fail, topology, range(2, 3), 2)
    assert f"failed at 3 rollouts in a row, the last time: {fault}" in (user_mistake(caught.value) or "")
    simulate(fail, topology, range(2, 4), 3)  # the environment is mended: the count begins anew


async def test_figures_by_environment_are_there_from_the_first_step_after_a_restart(tmp_path: Path) -> None:
    topology = micro(tmp_path)
    (entry,) = topology.environments
    topology = topology.model_copy(update={"environments": (entry, entry.model_copy(update={"name": "other"}))})
    async with stand_ins(topology, "roc_filter") as stage:
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, kill=True):
            await enter(stage)
            await settle_group(stage, 0, ["4", "5", "4", "5"])
            await trio.sleep(1)
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, incarnation=2):
            await settle_group(stage, 1, ["4", "5", "4", "5"])
            step = await stage["learner"].receive(StepReady)
            assert {name: of.rollouts for name, of in step.figures.environments.items()} == {"arithmetic": 8}


async def test_an_evaluation_is_reported_and_recorded(tmp_path: Path) -> None:
    topology = micro(tmp_path)
    async with stand_ins(topology, "roc_filter") as stage:
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage):
            await enter(stage, index=1, version=1)
            for number in range(6):
                purpose = "evaluate_sampled" if number < 3 else "evaluate_greedy"
                group = builders.opened(number, stage=1, samples=1, purpose=purpose)
                await stage["kv_scheduler"].push("groups", FILTER).send(group)
                await stage["kv_scheduler"].push("groups", FILTER).drained()
                answer = "4" if number < 4 else "3"
                await (
                    stage["rollout_generator"]
                    .push("trajectories", FILTER)
                    .send(builders.trajectory(group, 0, answer=answer))
                )
            done = await stage["learner"].receive(EvaluationReady)
            assert done.figures.sampled.success == 1.0
            assert done.figures.greedy.success == 1 / 3
    assert audit(tmp_path).evaluated == 6
    journal = Journal(tmp_path / "journal.sqlite")
    assert journal.evaluations()[1].sampled.success == 1.0
    journal.close()


async def test_a_skipped_step_is_recorded_and_a_restarted_learner_follows_it_without_an_update(tmp_path: Path) -> None:
    topology = micro(tmp_path)
    async with stand_ins(topology, "roc_filter") as stage:
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage):
            await enter(stage)
            for version in (5, 6):
                for number in (0, 1):
                    await settle_group(stage, 2 * (version - 5) + number, ["4", "5", "4", "5"], version=version)
            first, second = [await stage["learner"].receive(StepReady) for _ in range(2)]
            steps = stage["learner"].call("steps", FILTER)
            await steps(StepTrained(RL, 5, first.groups, TrainingFigures(skipped=True)))
            await steps(StepTrained(RL, 6, second.groups, TrainingFigures()))
            before = len(stage["learner"].log)
            await enter(stage, version=5)
            await trio.sleep(1)
            names = [m.group if isinstance(m, TrainingGroup) else m for m in stage["learner"].log[before:]]
            assert names[0] == StepReady(RL, 5, (), first.figures)
            assert names[1:] == [*second.groups, StepReady(RL, 6, second.groups, second.figures)]
            await steps(StepTrained(RL, 5, (), TrainingFigures()))
    balance = audit(tmp_path)
    assert balance.balanced, balance.faults
    assert (balance.trained, balance.dropped, balance.skipped_steps) == (2, {"not_finite": 2}, 1)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["skipped"], row["steps_skipped"]) for row in rows if row["kind"] == "step"] == [(1, 1), (0, 1)]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["steps"], summary["steps_skipped"], summary["groups_dropped_not_finite"]) == (2, 1, 2)


async def test_supervised_steps_that_were_skipped_are_in_the_summary(tmp_path: Path) -> None:
    topology = micro(tmp_path)
    async with stand_ins(topology, "roc_filter") as stage:
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage):
            left = StageFigures(stage=0, stage_seconds=1.0, supervised=SupervisedFigures(steps_skipped=2))
            await stage["learner"].call("stages", FILTER)(StageEntered(1, 1, 1, restored=True, left=left))
    assert json.loads((tmp_path / "summary.json").read_text())["sft_steps_skipped"] == 2


def test_on_a_full_disk_nothing_is_acknowledged_and_what_was_is_there_when_it_goes_on(tmp_path: Path) -> None:
    acknowledged: list[str] = []

    async def until_full(disk: Path) -> None:
        topology = micro(disk / "run")
        async with stand_ins(topology, "roc_filter") as stage:
            async with running(RoCFilter, topology, "roc_filter", disk / "run", stage):
                await enter(stage)
                fill(disk, but=60_000)
                groups = stage["kv_scheduler"].push("groups", FILTER)
                for number in range(999):
                    group = builders.opened(number, stage=RL)
                    await groups.send(group, on_ack=lambda name=group.group: acknowledged.append(name))
                    await groups.drained()
                    await (
                        stage["rollout_generator"]
                        .push("trajectories", FILTER)
                        .send(builders.trajectory(group, 0, tokens=200))
                    )
                await trio.sleep_forever()

    async def again(disk: Path) -> None:
        topology = micro(disk / "run")
        async with stand_ins(topology, "roc_filter") as stage:
            async with running(RoCFilter, topology, "roc_filter", disk / "run", stage, incarnation=2):
                journal = stage["kv_scheduler"].call("journal", FILTER)
                answer: GroupsUnfinished = await ask(journal, UnfinishedGroups(RL), timeout=10)
                assert {group.opened.group for group in answer.groups} >= set(acknowledged)
                assert answer.opened < 999

    with small_disk(tmp_path / "small", "600k") as disk:
        (disk / "run").mkdir()
        with pytest.raises(BaseExceptionGroup) as caught:
            simulate(until_full, disk)
        message = str(disk_error(caught.value, disk))
        full = r"/small/run/journal\.(sqlite|trajectories/\d+) cannot be written: No space left on device; make room on its disk"
        assert re.search(full, message), message
        assert acknowledged
        (disk / "filler").unlink()
        simulate(again, disk)
        assert audit(disk / "run").balanced


async def test_a_row_or_summary_that_the_disk_refuses_stops_the_filter_with_what_was_there_as_it_was(
    tmp_path: Path,
) -> None:
    topology = micro(tmp_path)
    async with stand_ins(topology, "roc_filter") as stage:
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage) as actor:
            await enter(stage)
            records = actor._records  # type: ignore[attr-defined]
            records.evaluation(Evaluation(1), builders.evaluated(1.0), 1.0)
            records.commit()
            records.write_summary(1.0)
            before = [(tmp_path / name).read_text() for name in ("metrics.jsonl", "summary.json")]
            records.evaluation(Evaluation(1), builders.evaluated(1.0), 2.0)
            actor._journal.commit()  # type: ignore[attr-defined]
            with no_file_longer_than(len(before[0]) + 10):
                with pytest.raises(DiskError, match=r"metrics\.jsonl cannot be written: File too large"):
                    records.commit()
            with no_file_longer_than(100):
                with pytest.raises(DiskError, match=r"summary\.json cannot be written: File too large"):
                    records.write_summary(2.0)
            assert [(tmp_path / name).read_text() for name in ("metrics.jsonl", "summary.json")] == before
    assert not list(tmp_path.glob(".*.partial"))


def test_a_prompt_too_long_is_named_once_counted_in_step_and_summary_and_survives_a_restart(tmp_path: Path) -> None:
    async def push_too_long(stage: Stage, number: int, samples: range) -> None:
        group = builders.opened(number, stage=RL, version=5)
        opened = stage["kv_scheduler"].push("groups", FILTER)
        await opened.send(group)
        await opened.drained()
        for sample in samples:
            made = builders.trajectory(group, sample, status="prompt_too_long", tokens=0)
            made = replace(made, reason="the prompt of problem p7 has 900 of the 512 tokens a sequence may have")
            link = stage["rollout_generator"].push("trajectories", FILTER)
            await link.send(made)
            await link.drained()

    async def main() -> list[Any]:
        topology = micro(tmp_path)
        with capture_logs() as logs:
            async with stand_ins(topology, "roc_filter") as stage:
                async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, kill=True):
                    await enter(stage)
                    await push_too_long(stage, 0, range(4))
                    await push_too_long(stage, 1, range(2))
                async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, incarnation=2):
                    await push_too_long(stage, 1, range(2, 4))
                    step = await stage["learner"].receive(StepReady)
                    assert (step.groups, step.figures.sampled.prompts_too_long) == ((), 8)
                    trained = StepTrained(RL, 5, (), TrainingFigures())
                    assert await ask(stage["learner"].call("steps", FILTER), trained, timeout=10) == Recorded()
        return logs

    logs = trio.run(main, clock=MockClock(autojump_threshold=0))
    said = [log for log in logs if "too long" in log["event"]]
    assert len(said) == 2  # once a process
    assert "problem p7 has 900" in said[0]["why"]
    balance = audit(tmp_path)
    assert balance.balanced, balance.faults
    assert balance.dropped == {"prompt_too_long": 2}
    assert json.loads((tmp_path / "summary.json").read_text())["groups_dropped_prompt_too_long"] == 2


async def push_failures(stage: Stage, number: int, *, samples: int = 4) -> None:
    """A group of which every attempt of every sample fails."""
    group = builders.opened(number, stage=RL, version=5)
    opened = stage["kv_scheduler"].push("groups", FILTER)
    await opened.send(group)
    await opened.drained()
    for sample in range(samples):
        for attempt in range(3):
            failed = builders.trajectory(group, sample, status="failed", attempt=attempt)
            failed = replace(failed, reason="tools unavailable: nobody answered")
            await stage["rollout_generator"].push("trajectories", FILTER).send(failed)


def test_a_step_whose_rollouts_all_failed_ends_the_run_and_the_next_start_samples_it_anew(tmp_path: Path) -> None:
    async def fail() -> None:
        topology = micro(tmp_path)
        async with stand_ins(topology, "roc_filter") as stage:
            async with running(RoCFilter, topology, "roc_filter", tmp_path, stage):
                await enter(stage)
                await push_failures(stage, 0)
                await push_failures(stage, 1)
                await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        simulate(fail)
    said = user_mistake(caught.value)  # what the supervisor is told, with the exit code 2
    assert said is not None
    assert "rollout_generator.0: tools unavailable: nobody answered; look at logs/rollout_generator.0.jsonl" in said
    assert json.loads((tmp_path / "summary.json").read_text())["groups_dropped_too_few_rollouts"] == 2

    async def go_on() -> None:
        topology = micro(tmp_path)
        async with stand_ins(topology, "roc_filter") as stage:
            async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, incarnation=2):
                await enter(stage)
                for number in (2, 3):
                    await settle_group(stage, number, ["4", "5", "4", "5"])
                step = await stage["learner"].receive(StepReady)
                assert (step.version, step.groups) == (5, ("s2-g000002", "s2-g000003"))
                announced = [each for each in stage["kv_scheduler"].log if isinstance(each, GroupsProgress)]
                assert announced[-1].uncounted == 2
        assert audit(tmp_path).balanced

    simulate(go_on)


def test_an_evaluation_whose_rollouts_all_failed_is_asked_anew(tmp_path: Path) -> None:
    evaluation = 1
    status = ["failed"]

    async def main() -> None:
        topology = micro(tmp_path)
        async with stand_ins(topology, "roc_filter") as stage:
            cls = running(RoCFilter, topology, "roc_filter", tmp_path, stage, incarnation=1 + (status[0] != "failed"))
            async with cls:
                await enter(stage, index=evaluation, version=0)
                for number in range(6):  # three problems, sampled and greedily
                    purpose = "evaluate_sampled" if number < 3 else "evaluate_greedy"
                    group = builders.opened(number, stage=evaluation, samples=1, purpose=purpose)
                    opened = stage["kv_scheduler"].push("groups", FILTER)
                    await opened.send(group)
                    await opened.drained()
                    for attempt in range(3 if status[0] == "failed" else 1):
                        each = builders.trajectory(group, 0, status=status[0], attempt=attempt)
                        await stage["rollout_generator"].push("trajectories", FILTER).send(each)
                result = await stage["learner"].receive(EvaluationReady)
                assert result.figures.sampled.success == 1.0

    with pytest.raises(BaseExceptionGroup) as caught:
        simulate(main)
    assert "too few rollouts of the last 6 groups" in (user_mistake(caught.value) or "")
    journal = Journal(tmp_path / "journal.sqlite")
    assert journal.evaluations() == {}
    assert len(list(journal.groups(stage=evaluation, states=("open",)))) == 6
    journal.close()
    status[0] = "finished"
    simulate(main)


@pytest.mark.parametrize(("knows", "ended"), [(True, False), (False, True)])
def test_checkers_that_judge_nothing_are_tried_with_an_answer_they_must_know(
    tmp_path: Path, knows: bool, ended: bool
) -> None:
    async def main() -> None:
        topology = micro(tmp_path)
        async with stand_ins(topology, "roc_filter") as stage:

            def judge(wanted: Any) -> JudgementReply:
                right = wanted.rollout == "control" and knows
                note = "symbolic" if right else "crashed"
                return JudgementReply(wanted.rollout, Judgement(float(right), right, note=note))

            stage["tool_executor"].reply = judge
            async with running(RoCFilter, topology, "roc_filter", tmp_path, stage):
                await enter(stage)
                for number in range(3):
                    await settle_group(stage, number, ["\\sqrt{16}"] * 4)
                await trio.sleep(100)

    if not ended:
        simulate(main)
        return
    with pytest.raises(BaseExceptionGroup) as caught:
        simulate(main)
    assert "they do not find a rollout right that is (crashed)" in (user_mistake(caught.value) or "")
