"""What a substitute does wrong only once a run is under way stops the run with the reason; mended, the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import structlog.testing
import trio

from actors.kv_scheduler import KVScheduler
from actors.roc_filter import RoCFilter
from actors.rollout_generator import RolloutGenerator
from agent_rl.messages import StepReady
from agent_rl.records.audit import audit
from agent_rl.rollout.prompts import ChatFormat
from agent_rl.scheduling.policies.base import Placement
from agent_rl.scheduling.policies.worst_case import WorstCase
from agent_rl_contract import FilterContract, GeneratorContract, SchedulerContract
from agent_rl_contract.builders import opened
from agent_rl_contract.filter_bench import RIGHT, WRONG, rollout
from tests.actors.ends import bench_of, told_at_the_end


class ChokesOnTheSecondGroup(RoCFilter):
    groups = 0

    def select(self, group: Any, rng: Any) -> tuple[int, ...]:
        self.groups += 1
        if self.groups == 2:
            return (0, {}[group[0].tokens])
        return super().select(group, rng)


async def test_a_selection_that_fails_names_the_group_and_the_line_and_a_mended_one_goes_on(tmp_path: Path) -> None:
    bench = bench_of(FilterContract, ChokesOnTheSecondGroup)
    with told_at_the_end() as told:
        async with bench.alive(tmp_path) as stage:
            await bench.enter(stage)
            for number in range(2):
                await bench.settle(stage, opened(number), [RIGHT, WRONG, WRONG, RIGHT])
            await trio.sleep(60)
    said = "ChokesOnTheSecondGroup.select fails for the group s0-g000001 of 4 rollouts with KeyError: 6"
    assert told[0].startswith(said)
    assert "(test_faulty_in_flight.py, line " in told[0]
    bench = bench_of(FilterContract, RoCFilter)
    async with bench.alive(tmp_path) as stage:
        await bench.enter(stage)
        for sample, answer in enumerate((RIGHT, WRONG, WRONG, RIGHT)):  # what was not acknowledged comes again
            await bench.give(stage, rollout(opened(1), sample, answer))
        step = await stage["learner"].receive(StepReady)
        assert set(step.groups) == {opened(0).group, opened(1).group}
        await bench.trained(stage, step)
    balance = audit(tmp_path)
    assert balance.balanced
    assert (balance.trained, balance.open) == (2, 0)


class SendsElsewhereLater(WorstCase):
    placed = 0

    def decide(self, now: float) -> Any:
        for place in super().decide(now):
            self.placed += 1
            yield place if self.placed < 9 else self.elsewhere(place.rollout)

    def elsewhere(self, rollout: str) -> Any:
        return Placement(rollout, "rollout_generator.9")


class ChokesOnTheNinth(SendsElsewhereLater):
    def elsewhere(self, rollout: str) -> Any:
        return [][self.placed]


async def placed(folder: Path, policy: type[WorstCase]) -> list[Any]:
    """What a scheduler with this policy has asked a generator for after a minute."""
    bench = bench_of(SchedulerContract, KVScheduler, settings={"policy": f"{__name__}:{policy.__name__}"})
    async with bench.alive(folder / policy.__name__) as peers:
        peers.publish()
        peers.load("rollout_generator.0")
        await trio.sleep(60)
    return peers.requests


async def test_a_policy_that_names_no_engine_is_contained_and_one_that_fails_names_the_line(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        seen = await placed(tmp_path, SendsElsewhereLater)
    assert len(seen) > 9, "a rollout that was placed nowhere was not placed elsewhere"
    what = next(entry["what"] for entry in logs if entry.get("fault") == "engine_unknown")
    assert "is placed on 'rollout_generator.9'; here: rollout_generator.0" in what
    with told_at_the_end() as told:
        await placed(tmp_path, ChokesOnTheNinth)
    assert told[0].startswith("ChokesOnTheNinth.decide fails with IndexError")
    assert "(test_faulty_in_flight.py, line " in told[0]


class ChokesOnEleven(ChatFormat):
    @classmethod
    def calls(cls, text: str) -> Any:
        return super().calls(text) if "11" not in text else [text.index("twelve")]


async def test_a_format_that_fails_shows_the_turn(tmp_path: Path) -> None:
    bench = bench_of(GeneratorContract, type("Choking", (RolloutGenerator,), {"chat_format": ChokesOnEleven}))
    with told_at_the_end() as told:
        async with bench.bench(tmp_path, lambda *_: "I say 11") as stage:
            await stage.ask()
            await trio.sleep(60)
    assert "ChokesOnEleven.calls fails for the turn 'I say 11' with ValueError: substring not found" in told[0]
