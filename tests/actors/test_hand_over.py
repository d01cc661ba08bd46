"""A rollout survives its generator: real scheduler and generators, which are killed and restarted in virtual time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from actors.engines.base import TurnRequest, TurnResult
from actors.kv_scheduler import REPORT_SECONDS, KVScheduler
from actors.rollout_generator import RolloutGenerator
from agent_rl.config.topology import Topology
from agent_rl.environments.python_tools import notebook
from agent_rl.messages import (
    EngineLoad,
    GroupOpened,
    GroupsUnfinished,
    Retry,
    ToolCall,
    ToolResult,
    Trajectory,
    TurnsCompleted,
    UnfinishedGroup,
    UnfinishedGroups,
)
from agent_rl.records.run_directory import RESTARTS
from agent_rl.scheduling.ids import rollout_id
from agent_rl_contract import builders
from agent_rl_contract.scripted import LOGPROB, ScriptedEngine
from agent_rl_contract.stage import Stage, running, stand_ins
from examples.quickstart.arithmetic import Arithmetic
from tests.actors.test_rollout_generator import ANSWER, NOTEBOOK, model
from tests.actors.topologies import micro

__all__ = ["model"]  # the fixture

CELLS = ("x = 41", "print(x)", "print(x + 1)")


def run_cell(call: ToolCall) -> ToolResult:
    """An executor's notebook, whose state are its cells, and which shows how many it has run."""
    cells = [*json.loads(call.state or b"[]"), call.arguments.get("code", "")]
    return ToolResult(call.call, "success", f"{39 + len(cells)}\n", "", "", 0.0, 0.001, json.dumps(cells).encode())


class Gated(ScriptedEngine):
    """No rollout begins a third turn before the gate is open, if there is one."""

    def __init__(self, *arguments: Any, gate: trio.Event | None, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._gate = gate

    async def generate(self, request: TurnRequest) -> TurnResult:
        if self._gate is not None and self._turns.get(request.rollout, 0) == 2:
            await self._gate.wait()
        return await super().generate(request)


class Run:
    """Scheduler and generator, of which a test ends and starts processes, among stand-ins for the others."""

    stage: Stage
    topology: Topology

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engines: list[ScriptedEngine] = []
        self._began = trio.Event()

    def scheduler(self, incarnation: int = 1, cls: type[KVScheduler] = KVScheduler) -> Any:
        return running(cls, self.topology, "kv_scheduler", self.folder, self.stage, incarnation=incarnation, kill=True)  # fmt: skip

    def generator(self, incarnation: int = 1, *, replica: int = 0, kill: bool = True) -> Any:
        return running(RolloutGenerator, self.topology, "rollout_generator", self.folder, self.stage, replica=replica, incarnation=incarnation, kill=kill)  # fmt: skip

    def publish(self, version: int) -> None:
        replicas = self.topology.actors["rollout_generator"].replicas
        for target in ("kv_scheduler.0", *(f"rollout_generator.{replica}" for replica in range(replicas))):
            self.stage["learner"].announce(f"policy of {target}", target).set(builders.published(version))

    async def turn(self, number: int, engine: int = 1) -> None:
        """Wait until each of the two rollouts is within its turn ``number`` of those at the ``engine``."""
        while len(self.engines) < engine or len(self.engines[engine - 1].requests) < 2 * number:
            await self._began.wait()
        await trio.sleep(0.005)

    def write(self, _: int, request: TurnRequest) -> str:
        """The next turn of the model; who waits in `turn` hears of it."""
        self._began.set()
        self._began = trio.Event()
        done = self.engines[-1].decode(list(request.tokens)).count(NOTEBOOK.split("CODE")[0])
        return NOTEBOOK.replace("CODE", CELLS[done]) if done < len(CELLS) else ANSWER

    async def until(self, over: trio.Event, process: Any, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Run a process until the event."""
        async with process:
            task_status.started()
            await over.wait()

    async def trajectories(self) -> list[Trajectory]:
        made = [await self.stage["roc_filter"].receive(Trajectory) for _ in range(2)]
        await trio.sleep(5)
        everything = [each for each in self.stage["roc_filter"].log if isinstance(each, Trajectory)]
        assert len(everything) == 2, "a rollout came twice"
        return made

    def unfinished(self) -> list[str]:
        """The filter says from now on that both rollouts of the group are missing. Returns their ids."""
        filter_ = self.stage["roc_filter"]
        (group,) = (each for each in filter_.log if isinstance(each, GroupOpened))
        missing = tuple(Retry(group.group, sample, 0, 0) for sample in range(2))
        answer = GroupsUnfinished(0, 1, (UnfinishedGroup(group, missing),))
        filter_.reply = lambda asked: answer if isinstance(asked, UnfinishedGroups) else None
        return [rollout_id(each.group, each.sample, each.attempt) for each in missing]

    @property
    def turns(self) -> int:
        """Turns that were begun, by all engines."""
        return sum(len(engine.requests) for engine in self.engines)


@asynccontextmanager
async def a_run(
    folder: Path, model: Path, *, replicas: int = 1, host: str = "local", gate: trio.Event | None = None, **roles: Any
) -> AsyncIterator[Run]:
    """Two rollouts of one group; their model writes the cells one after another, then an answer.

    ``host``: that of the generators. ``roles``: settings by role.
    """
    run = Run(folder)
    engine = {"script": run.write, "made": run.engines.append, "gate": gate}
    gated = {"engine": "tests.actors.test_hand_over:Gated", "engine_settings": engine}
    topology = micro(
        folder,
        rollout_generator={**gated, **roles.get("rollout_generator", {})},
        kv_scheduler={"characters_per_token": 4.0, **roles.get("kv_scheduler", {})},
    )
    entries = topology.actors
    two = entries["rollout_generator"].model_copy(update={"replicas": replicas, "host": host})
    run.topology = topology = topology.model_copy(
        update={
            "actors": {**entries, "rollout_generator": two},
            "stages": (builders.rl_stage(steps=1, max_response_tokens=440, max_turns=5),),
            "algorithm": builders.algorithm(groups_per_step=1, samples=2, keep=2, max_staleness=0),
        }
    )
    (folder / "model").symlink_to(model)
    with trio.fail_after(3600):
        async with stand_ins(topology, "kv_scheduler", "rollout_generator", concurrency={"tool_executor": 8}) as stage:
            run.stage = stage
            stage["tool_executor"].reply = run_cell
            nothing = GroupsUnfinished(0, 0, ())
            stage["roc_filter"].reply = lambda asked: nothing if isinstance(asked, UnfinishedGroups) else None
            run.publish(3)
            yield run


@pytest.fixture(autouse=True)
def with_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arithmetic, "tools", (notebook,))


async def checked(run: Run, kept: int, at: str = "rollout_generator.0") -> list[Trajectory]:
    """Both rollouts of the notebook, whole: the first ``kept`` of four turns by version 3 and the others by version 4."""
    trajectories = await run.trajectories()
    for made in trajectories:
        assert (made.status, made.turns, made.attempt, made.generator) == ("finished", 4, 0, at)
        assert made.transcript.texts == (*(NOTEBOOK.replace("CODE", cell) for cell in CELLS), ANSWER)
        assert [(call.turn, call.response) for call in made.transcript.calls][1:] == [(2, "41"), (3, "42")]
        body = made.unpack()
        assert np.all(body.logprobs == np.where(body.loss_mask == 1, np.float32(LOGPROB), np.float32(0)))
        starts = np.flatnonzero(np.diff(body.loss_mask.astype(np.int8), prepend=0) == 1)
        assert [int(body.policies[start, 1]) for start in starts] == [3] * kept + [4] * (4 - kept)
    return trajectories


@pytest.mark.parametrize(
    ("options", "second", "kept"),
    [
        pytest.param({}, {"incarnation": 2}, 2, id="it is restarted"),
        pytest.param({"replicas": 2}, {"replica": 1}, 2, id="there is another"),
        pytest.param({"rollout_generator": {"keep_turns": False}}, {"incarnation": 2}, 0, id="no turns are kept"),
    ],
)
async def test_a_rollout_whose_generator_is_lost_goes_on_from_its_last_complete_turn(
    tmp_path: Path, model: Path, options: dict[str, Any], second: dict[str, int], kept: int
) -> None:
    async with a_run(tmp_path, model, **options) as run, run.scheduler() as scheduler:
        async with run.generator():
            await run.turn(3)
            first = run.engines[0].written
            assert (scheduler.status()[1].scheduler.kept_mib > 0) == bool(kept)
        run.publish(4)
        async with run.generator(**second):
            for made in await checked(run, kept, f"rollout_generator.{second.get('replica', 0)}"):
                before = [token for turn in first[made.rollout][:kept] for token in turn]
                assert made.unpack().tokens[made.unpack().loss_mask == 1].tolist()[: len(before)] == before
                calls = [call for call in run.stage["tool_executor"].log if call.rollout == made.rollout]
                states = [len(json.loads(call.state or b"[]")) for call in calls if not call.ends]
                assert states == [0, 1, *[0, 1, 2][kept:]]
        assert run.turns == 2 * (4 + 3 - kept)  # those under way once more
        longest = max(len(each.tokens) for each in run.engines[0].requests)
        assert not kept or {len(each.tokens) for each in run.engines[1].requests[:2]} == {longest}
        figures = scheduler.status()[1].scheduler
        assert (figures.rollouts_moved, figures.kept_mib) == (2, 0)


async def test_a_restarted_scheduler_gets_the_turns_of_running_rollouts_again(tmp_path: Path, model: Path) -> None:
    gate = trio.Event()
    async with a_run(tmp_path, model, gate=gate) as run, trio.open_nursery() as nursery:
        first, second = trio.Event(), trio.Event()
        await nursery.start(run.until, first, run.generator())
        async with run.scheduler():
            await run.turn(2)
        rollouts = run.unfinished()
        async with run.scheduler(2) as scheduler:
            while not hasattr(scheduler, "_scheduler"):  # noqa: ASYNC110 - its start makes it
                await trio.sleep(0.1)
            kept = scheduler._scheduler._kept
            while [len(kept.of(each)) for each in rollouts] != [2, 2]:  # noqa: ASYNC110 - another task fills it
                await trio.sleep(0.1)
            first.set()
            run.publish(4)
            await trio.sleep(1)  # the first process ends
            gate.set()
            await nursery.start(run.until, second, run.generator(2))
            await checked(run, 2)
            assert run.turns == 2 * 4
        second.set()


class HearsLate(KVScheduler):
    """The figures of the second generator come later than those of the first, though while they are waited for."""

    late: EngineLoad | None = None

    async def start(self) -> None:
        await super().start()
        self.until = trio.current_time() + REPORT_SECONDS / 2

    async def handle(self, message: Any) -> Any:
        if isinstance(message, EngineLoad) and self.sender == "rollout_generator.1":
            first, self.late = self.late is None, message
            if trio.current_time() < self.until:
                if first:
                    self.context.nursery.start_soon(self._hear_late)
                return None
        return await super().handle(message)

    async def _hear_late(self) -> None:
        await trio.sleep_until(self.until)
        await super().handle(self.late)


@pytest.mark.parametrize(("host", "incarnation"), [("local", 1), ("b", RESTARTS)])
async def test_a_restarted_scheduler_leaves_rollouts_where_they_run(
    tmp_path: Path, model: Path, host: str, incarnation: int
) -> None:
    """Though another generator has more room for them, and is heard earlier.

    Generators on another host go on when the scheduler's host starts again.
    """
    gate = trio.Event()
    policy = {"policy": "worst_case"}  # which moves nothing
    run_of = a_run(tmp_path, model, replicas=2, host=host, gate=gate, kv_scheduler=policy)
    async with run_of as run, trio.open_nursery() as nursery:
        over = trio.Event()
        await nursery.start(run.until, over, run.generator(replica=1))
        async with run.scheduler(0):
            await run.turn(2)
        await nursery.start(run.until, over, run.generator(replica=0))
        run.unfinished()
        async with run.scheduler(incarnation, HearsLate):
            await trio.sleep(10)
            gate.set()
            await checked(run, 4, "rollout_generator.1")
        assert run.turns == 2 * 4
        over.set()


@pytest.mark.parametrize("next_ones", [(1, 2), (RESTARTS, RESTARTS)], ids=["both", "the whole run"])
async def test_turns_survive_scheduler_and_generator_that_are_lost_at_once(
    tmp_path: Path, model: Path, next_ones: tuple[int, int]
) -> None:
    async with a_run(tmp_path, model) as run:
        async with run.scheduler(0), run.generator():
            await run.turn(3)
        run.unfinished()
        run.publish(4)
        async with run.scheduler(next_ones[0]) as scheduler, run.generator(next_ones[1]):
            await checked(run, 2)
        assert run.turns == 2 * 4 + 2  # those under way once more
        assert scheduler.status()[1].scheduler.kept_mib == 0


async def test_a_generator_that_leaves_sends_its_turns_first(tmp_path: Path, model: Path) -> None:
    """Though the scheduler takes them slowly."""
    gate, slow = trio.Event(), trio.Event()
    async with a_run(tmp_path, model, replicas=2, gate=gate, rollout_generator={"finish_seconds": 0.001}) as run:
        async with run.scheduler(0) as scheduler, trio.open_nursery() as nursery:
            over, last = trio.Event(), trio.Event()
            await nursery.start(run.until, over, run.generator(kill=False))
            await run.turn(1)
            handle = scheduler.handle

            async def slowly(message: Any) -> Any:
                if isinstance(message, TurnsCompleted):
                    await slow.wait()
                return await handle(message)

            scheduler.handle = slowly
            await trio.sleep(1)  # both rollouts are at the gate
            over.set()
            await trio.sleep(1)
            slow.set()
            await trio.sleep(1)
            gate.set()
            run.publish(4)
            await nursery.start(run.until, last, run.generator(replica=1))
            await checked(run, 2, "rollout_generator.1")
            last.set()
