"""The RoC filter among stand-ins, in virtual time: durability, restarts, replays, checks."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from actors.base import ask
from actors.roc_filter import RoCFilter
from agent_rl.config.topology import Interim, Topology
from agent_rl.figures import StageFigures, SupervisedFigures, TrainingFigures
from agent_rl.files.disk import DiskError, disk_error
from agent_rl.messages import (
    Evaluation,
    EvaluationReady,
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
from agent_rl.scheduling.ids import group_id
from agent_rl_contract import builders
from agent_rl_contract.filter_bench import FilterBench
from agent_rl_contract.stage import Stage, running, stand_ins
from tests.actors.ends import told_at_the_end
from tests.actors.topologies import micro
from tests.full_disk import fill, no_file_longer_than, small_disk

RL = 2
FILTER, BENCH = "roc_filter.0", FilterBench()
FAULT = "Mine.judge fails with ZeroDivisionError: no (mine.py, line 7)"
PAIRED = ("answers_opened", "answers_closed", "answers")


@asynccontextmanager
async def filtering(
    folder: Path, topology: Topology | None = None, *, reply: Callable[[Any], Any] = lambda _: None, **life: Any
) -> AsyncIterator[tuple[Stage, Any]]:
    """A filter among its peers, and an executor that answers so. ``life``: the filter's incarnation and its end."""
    topology = topology or micro(folder)
    async with stand_ins(topology, "roc_filter") as stage:
        stage["tool_executor"].reply = reply
        async with running(RoCFilter, topology, "roc_filter", folder, stage, **life) as actor:
            yield stage, actor


def rows_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The rows of a kind in metrics.jsonl."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


def summary_of(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


async def enter(stage: Stage, *, version: int = 5, restored: bool = True, index: int = RL) -> StageRecorded:
    begun = 5 if index == RL else version
    return await stage["learner"].call("stages", FILTER)(StageEntered(index, begun, version, restored))


async def unfinished(stage: Stage, index: int) -> GroupsUnfinished:
    link = stage["kv_scheduler"].call("journal", FILTER)
    found: GroupsUnfinished = await ask(link, UnfinishedGroups(index), timeout=30)
    return found


async def trained(stage: Stage, step: StepReady, **figures: Any) -> None:
    told = StepTrained(RL, step.version, step.groups, TrainingFigures(**figures))
    assert await ask(stage["learner"].call("steps", FILTER), told, timeout=30) == Recorded()


async def settle_group(stage: Stage, number: int, answers: str, *, version: int = 5) -> None:
    """A group whose rollouts end so, in the words of a story."""
    await happens(stage, f"{number}@{version}/0 {answers}", RL)


# What happens to the filter. `2@6/9 +f-t`: group 2 of version 6, whose problem is number 9; a rollout is right (+), wrong
# (-), truncated (t), to be judged (?), too long (l), or does not come (.); f: an attempt before it failed. `i`: of an
# evaluation within the stage. `v6`: the learner has trained to version 6.
STORIES = {
    "training": [
        "0@5/7 -t-?", "1@5/3 ----", "v6", "i0@6/0 +-", "2@6/9 f+f-+-", "3@6/8 ?-", "i1@6/0 ?.", "4@6/1 l+-+", "v7",
        "7@7/6 ?f+..", "6@7/4 llll", "i1@6/0 .-", "8@7/5 +f-+?", "7@7/6 ..+", "5@8/2 fffffffff-", "9@8/0 ?-",
    ],
    "refill": ["0@5/0 ----", "1@5/1 ++++", "2@5/2 +-+-", "3@5/3 +--+", "v6", "4@6/4 ----", "5@6/5 +-+-"],
    "evaluation": ["0@1/0 f+", "1@1/1 fff", "4@1/4 -", "5@1/5 ?", "2@1/2 l", "3@1/3 t"],
}  # fmt: skip


STATUSES = {"f": "failed", "t": "truncated", "l": "prompt_too_long", "e": "environment_failed"}
ANSWERS = {"+": "4", "t": "4", "?": "\\sqrt{16}"}


def of_story(folder: Path, resampling: str) -> Topology:
    """Two environments, evaluations within the rl stage, a curriculum, and groups that are dropped as stale."""
    folder.mkdir()
    topology = micro(folder)
    (entry,), stages = topology.environments, list(topology.stages)
    stages[RL] = stages[RL].model_copy(update={"evaluate": Interim(every=1, problems=2, samples=2)})
    algorithm = {
        "resampling": resampling,
        "refill": resampling == "none",
        "curriculum": "frontier",
        "on_stale": "drop",
        "max_staleness": 0,
        "overlong": "mask",
    }
    return topology.model_copy(
        update={
            "environments": (entry, entry.model_copy(update={"name": "other"})),
            "stages": tuple(stages),
            "algorithm": topology.algorithm.model_copy(update=algorithm),
        }
    )


async def happens(stage: Stage, event: str, index: int) -> None:
    if event.startswith("v"):
        step = await stage["learner"].receive(StepReady)
        while step.version + 1 < int(event[1:]):
            step = await stage["learner"].receive(StepReady)
        await trained(stage, step, loss=0.5)
        return
    within, number, version, drawn, rollouts = re.fullmatch(r"(i?)(\d)@(\d)/(\d) (.+)", event).groups()  # type: ignore[union-attr]
    evaluated, samples = within or index != RL, 2 if within else 4 if index == RL else 1
    purpose = ("evaluate_greedy" if int(number) > 2 else "evaluate_sampled") if evaluated else "train"
    group = builders.opened(int(number), stage=index, version=int(version), samples=samples, purpose=purpose)
    if within:
        group = replace(group, group=group_id(index, int(number), 1), evaluation=Evaluation(index, 1))
    problem = replace(group.problem, environment="other" if int(drawn) % 2 else "arithmetic")
    await BENCH.open(stage, replace(group, drawn=None if evaluated else int(drawn), problem=problem))
    sample = attempt = 0
    for end in rollouts:
        answer, versions = ANSWERS.get(end, "5"), (group.policy.version, group.policy.version + sample % 2)
        status = STATUSES.get(end, "finished")
        made = builders.trajectory(group, sample, answer=answer, attempt=attempt, status=status, version=versions)
        tags = TagCounts(tool_responses=2, error_responses=2 - sample // 2, **dict.fromkeys(PAIRED, 1), turns=2)
        if end != ".":
            await BENCH.give(stage, replace(made, tags=tags, reason=FAULT * (end == "e")))
        again = end == "f" and attempt < 2
        sample, attempt = (sample, attempt + 1) if again else (sample + 1, 0)


async def story(folder: Path, name: str, resampling: str, every: int) -> Any:
    """All that came of a story whose filter is killed after so many events."""
    topology, index, events = (of_story(folder, resampling), 1 if name == "evaluation" else RL, STORIES[name])
    async with stand_ins(topology, "roc_filter") as stage:
        stage["tool_executor"].reply = lambda wanted: JudgementReply(
            wanted.rollout, Judgement(0.25, success=False, format_penalty=0.5)
        )
        for at in range(0, len(events), every):
            async with running(RoCFilter, topology, "roc_filter", folder, stage, incarnation=at + 1, kill=True):
                if not at:
                    await enter(stage, index=index, version=1 if index == 1 else 5)
                for event in events[at : at + every]:
                    await happens(stage, event, index)
                    await trio.sleep(5)
                answer = await unfinished(stage, index)
        told: dict[Any, Any] = {}
        for each in stage["learner"].log:
            key = getattr(each, "group", None) or getattr(each, "evaluation", None) or each.version
            if isinstance(each, TrainingGroup):
                each = each.policy, each.rewards.tolist(), [(made.rollout, made.body) for made in each.trajectories]  # noqa: PLW2901
            assert told.setdefault(key, each) == each, "it is told otherwise than before the restart"
        progress = [each for each in stage["kv_scheduler"].log if isinstance(each, GroupsProgress)][-1]
        judged = sorted(each.rollout for each in stage["tool_executor"].log)
    balance = audit(folder)
    assert balance.balanced, balance.faults
    journal = Journal(folder / "journal.sqlite")
    rows = [
        replace(row, segment=0)
        for row in journal.groups(stage=index, states=("open", "ready", "dropped", "trained", "evaluated"))
    ]
    given = {row.id: [(*each[:3], each.judgement) for each in journal.trajectories(row.id)] for row in rows}
    journal.close()
    progress = replace(progress, dropped_groups=(), decided=0 if name == "evaluation" else progress.decided)
    metrics = Counter(json.loads(row)["kind"] for row in (folder / "metrics.jsonl").read_text().splitlines())
    return told, progress, answer, judged, rows, given, balance.lines(), metrics


@pytest.mark.parametrize(
    ("name", "resampling"),
    [("training", "paper"), ("training", "release"), ("refill", "none"), ("evaluation", "paper")],
)
def test_a_filter_that_is_killed_after_every_event_says_what_one_says_that_never_was(
    tmp_path: Path, name: str, resampling: str
) -> None:
    never, always = (
        trio.run(story, tmp_path / str(every), name, resampling, every, clock=MockClock(autojump_threshold=0))
        for every in (99, 1)
    )
    assert always == never


async def test_what_arrives_after_the_stop_is_left_to_the_next_process(tmp_path: Path) -> None:
    """The process lives on until its last status is acknowledged."""
    topology, stopped, acknowledged = micro(tmp_path), trio.Event(), list[str]()

    class Stopping(RoCFilter):
        async def stop(self) -> None:
            await super().stop()
            stopped.set()

    async with stand_ins(topology, "roc_filter") as stage, trio.open_nursery() as nursery:
        late = trio.Event()

        async def opens_late() -> None:
            await stopped.wait()
            await settle_group(stage, 0, "+")
            acknowledged.append("all")

        nursery.start_soon(opens_late)
        async with running(Stopping, topology, "roc_filter", tmp_path, stage):
            await enter(stage)
            stage["supervisor.local"].reply = lambda _: late.wait() if stopped.is_set() else None
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
            await settle_group(stage, 0, "+-+-")
            await settle_group(stage, 1, "----")
            step = await learner.receive(StepReady)
            await trained(stage, step)
            await enter(stage)  # killed, and restored from the checkpoint before this step
        await trio.sleep(5)
        learner.forget()
        async with running(RoCFilter, topology, "roc_filter", tmp_path, stage, incarnation=2, kill=True):
            assert (await learner.receive(TrainingGroup)).group == step.groups[0]
            assert (await learner.receive(StepReady)).version == 5
            await trained(stage, step)
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


@pytest.mark.parametrize("silent", [True, False])
async def test_an_executor_that_has_no_checker_or_says_nothing_is_asked_on(tmp_path: Path, *, silent: bool) -> None:
    asked: list[Any] = []

    async def judge(wanted: Any) -> JudgementReply:
        asked.append(wanted)
        if len(asked) < 8:
            await trio.sleep(301 * silent)  # longer than `check_timeout_seconds`
            return JudgementReply(wanted.rollout, None, "", "no checker")
        return JudgementReply(wanted.rollout, Judgement(0.75, success=True, parts={"a": 0.5}))

    async with filtering(tmp_path, reply=judge) as (stage, actor):
        await enter(stage)
        await settle_group(stage, 0, "?---")
        await trio.sleep(3000)
        assert 0.75 in (await stage["learner"].receive(TrainingGroup)).rewards
        assert (len(asked), actor.status()[1].filter.checks_failed) == (8, 7)


def at_fault(wanted: Any) -> JudgementReply:
    return JudgementReply(wanted.rollout, None, FAULT)


@pytest.mark.parametrize(
    "lives",
    [
        [("eee.", True)],
        [("???.", True)],
        [("ee", False), ("..e.", True), ("..ee", False)],  # the environment is mended: the count begins anew
        [("ee+", False), ("...e", False)],
        [("?e", False), ("..+", False), ("...e", False)],
    ],
)
async def test_an_environment_that_fails_three_times_in_a_row_ends_the_run_with_its_place_through_restarts(
    tmp_path: Path, lives: list[tuple[str, bool]]
) -> None:
    for incarnation, (rollouts, ends) in enumerate(lives, 1):
        with told_at_the_end() if ends else nullcontext([]) as said:
            async with filtering(tmp_path, incarnation=incarnation, kill=True, reply=at_fault) as (stage, _):
                await enter(stage)
                await settle_group(stage, 0, rollouts)
                await trio.sleep(5)
        wanted = f"environment 'arithmetic' failed at 3 rollouts in a row, the last time: {FAULT}; mend it"
        assert not ends or wanted in said[0]


async def test_a_skipped_step_is_recorded_and_a_restarted_learner_follows_it_without_an_update(tmp_path: Path) -> None:
    async with filtering(tmp_path) as (stage, _):
        await enter(stage)
        for number in range(4):
            await settle_group(stage, number, "+-+-", version=5 + number // 2)
        first, second = [await stage["learner"].receive(StepReady) for _ in range(2)]
        await trained(stage, first, skipped=True)
        await trained(stage, second)
        before = len(stage["learner"].log)
        await enter(stage, version=5)
        await trio.sleep(1)
        names = [m.group if isinstance(m, TrainingGroup) else m for m in stage["learner"].log[before:]]
        assert names[0] == StepReady(RL, 5, (), first.figures)
        assert names[1:] == [*second.groups, StepReady(RL, 6, second.groups, second.figures)]
        await trained(stage, replace(first, groups=()))
    balance = audit(tmp_path)
    assert balance.balanced, balance.faults
    assert (balance.trained, balance.dropped, balance.skipped_steps) == (2, {"not_finite": 2}, 1)
    assert [(row["skipped"], row["steps_skipped"]) for row in rows_of(tmp_path, "step")] == [(1, 1), (0, 1)]
    summary = summary_of(tmp_path)
    assert (summary["steps"], summary["steps_skipped"], summary["groups_dropped_not_finite"]) == (2, 1, 2)


async def test_supervised_steps_that_were_skipped_are_in_the_summary(tmp_path: Path) -> None:
    async with filtering(tmp_path) as (stage, _):
        left = StageFigures(stage=0, stage_seconds=1.0, supervised=SupervisedFigures(steps_skipped=2))
        await stage["learner"].call("stages", FILTER)(StageEntered(1, 1, 1, restored=True, left=left))
    assert summary_of(tmp_path)["sft_steps_skipped"] == 2


async def test_on_a_full_disk_nothing_is_acknowledged_and_what_was_is_there_when_it_goes_on(tmp_path: Path) -> None:
    acknowledged: list[str] = []

    async def until_full(disk: Path) -> None:
        async with filtering(disk / "run") as (stage, _):
            await enter(stage)
            fill(disk, but=60_000)
            for number in range(999):
                group = builders.opened(number, stage=RL)
                await BENCH.open(stage, group, partial(acknowledged.append, group.group))
                await BENCH.give(stage, builders.trajectory(group, 0, tokens=200))
            await trio.sleep_forever()

    with small_disk(tmp_path / "small", "600k") as disk:
        (disk / "run").mkdir()
        with pytest.raises(BaseExceptionGroup) as caught:
            await until_full(disk)
        message = str(disk_error(caught.value, disk))
        full = r"/small/run/journal\.(sqlite|trajectories/\d+) cannot be written: No space left on device; make room on its disk"
        assert re.search(full, message), message
        assert acknowledged
        (disk / "filler").unlink()
        async with filtering(disk / "run", incarnation=2) as (stage, _):
            answer = await unfinished(stage, RL)
            assert {group.opened.group for group in answer.groups} >= set(acknowledged)
            assert answer.opened < 999
        assert audit(disk / "run").balanced


async def test_a_row_or_summary_that_the_disk_refuses_stops_the_filter_with_what_was_there_as_it_was(
    tmp_path: Path,
) -> None:
    async with filtering(tmp_path) as (stage, actor):
        await enter(stage)
        records = actor._records
        records.evaluation(Evaluation(1), builders.evaluated(1.0), 1.0)
        records.commit()
        records.write_summary(1.0)
        before = [(tmp_path / name).read_text() for name in ("metrics.jsonl", "summary.json")]
        records.evaluation(Evaluation(1), builders.evaluated(1.0), 2.0)
        actor._journal.commit()
        with no_file_longer_than(len(before[0]) + 10):
            with pytest.raises(DiskError, match=r"metrics\.jsonl cannot be written: File too large"):
                records.commit()
        with no_file_longer_than(100):
            with pytest.raises(DiskError, match=r"summary\.json cannot be written: File too large"):
                records.write_summary(2.0)
        assert [(tmp_path / name).read_text() for name in ("metrics.jsonl", "summary.json")] == before
    assert not list(tmp_path.glob(".*.partial"))


async def test_a_step_whose_rollouts_all_failed_ends_the_run_and_the_next_start_samples_it_anew(tmp_path: Path) -> None:
    with told_at_the_end() as said:  # what the supervisor is told, with the exit code 2
        async with filtering(tmp_path) as (stage, _):
            await enter(stage)
            await settle_group(stage, 0, "f" * 12)
            await settle_group(stage, 1, "f" * 12)
            await trio.sleep_forever()
    assert "rollout_generator.0: failed; look at logs/rollout_generator.0.jsonl" in said[0]
    assert summary_of(tmp_path)["groups_dropped_too_few_rollouts"] == 2
    async with filtering(tmp_path, incarnation=2) as (stage, _):
        await enter(stage)
        for number in (2, 3):
            await settle_group(stage, number, "+-+-")
        step = await stage["learner"].receive(StepReady)
        assert (step.version, step.groups) == (5, ("s2-g000002", "s2-g000003"))
        announced = [each for each in stage["kv_scheduler"].log if isinstance(each, GroupsProgress)]
        assert announced[-1].uncounted == 2
    assert audit(tmp_path).balanced


async def test_an_evaluation_whose_rollouts_all_failed_is_asked_anew(tmp_path: Path) -> None:
    evaluation = 1

    async def evaluate(ends: str, incarnation: int) -> None:
        async with filtering(tmp_path, incarnation=incarnation) as (stage, _):
            await enter(stage, index=evaluation, version=0)
            for number in range(6):  # three problems, sampled and greedily
                await happens(stage, f"{number}@0/0 {ends}", evaluation)
            result = await stage["learner"].receive(EvaluationReady)
            assert result.figures.sampled.success == 1.0

    with told_at_the_end() as said:
        await evaluate("fff", 1)
    assert "too few rollouts of the last 6 groups" in said[0]
    journal = Journal(tmp_path / "journal.sqlite")
    assert journal.evaluations() == {}
    assert len(list(journal.groups(stage=evaluation, states=("open",)))) == 6
    journal.close()
    await evaluate("+", 2)


@pytest.mark.parametrize(
    ("knows", "note"),
    [(True, "crashed"), *((False, note) for note in ("crashed", "memory_limit", "output_limit", "timeout"))],
)
async def test_checkers_that_judge_nothing_are_tried_with_an_answer_they_must_know(
    tmp_path: Path, knows: bool, note: str
) -> None:
    def judge(wanted: Any) -> JudgementReply:
        right = wanted.rollout == "control" and knows
        return JudgementReply(wanted.rollout, Judgement(float(right), right, note="symbolic" if right else note))

    with nullcontext([]) if knows else told_at_the_end() as said:
        async with filtering(tmp_path, reply=judge) as (stage, _):
            await enter(stage)
            for number in range(3):
                await settle_group(stage, number, "????")
            await trio.sleep(100)
    assert knows or f"they do not find a rollout right that is ({note})" in said[0]


async def test_a_prompt_too_long_is_named_once_and_counted_in_step_and_summary(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with filtering(tmp_path) as (stage, _):
            await enter(stage)
            for number in range(2):
                await settle_group(stage, number, "llll")
            step = await stage["learner"].receive(StepReady)
            assert (step.groups, step.figures.sampled.prompts_too_long) == ((), 8)
            await trained(stage, step)
    assert sum("too long" in log["event"] for log in logs) == 1
    assert audit(tmp_path).dropped == {"prompt_too_long": 2}
    assert summary_of(tmp_path)["groups_dropped_prompt_too_long"] == 2
