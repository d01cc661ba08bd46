"""Turns on a shared device: who must sleep, what the learner waits for, and when an engine wakes. In virtual time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import trio
from structlog.testing import capture_logs

from actors.engines.base import EngineRefusedError
from actors.learner.learner import DeviceTurns, still_on_device
from actors.rollout_generator.policy_updates import sleeper, still_asleep
from actors.rollout_generator.starting import RolloutGeneratorSettings, make_engine
from actors.weights.files import model_directory
from agent_rl.config.standard import DEVICE
from agent_rl.config.topology import Topology
from agent_rl.messages import DeviceTurn, Trajectory
from agent_rl_contract import builders
from agent_rl_contract.engine import eventually
from agent_rl_contract.scripted import ScriptedEngine
from agent_rl_contract.stage import running, stand_ins
from tests.actors.test_rollout_generator import scripted
from tests.actors.topologies import micro
from transport import PeerBack, PeerGone, PeerLeft, PeerReplaced, PeerSilent

GENERATOR, LEARNER = "rollout_generator.0", "learner.0"


def sharing(folder: Path) -> Topology:
    topology = micro(folder)
    actors = dict(topology.actors)
    for role in ("learner", "rollout_generator"):
        actors[role] = actors[role].model_copy(update={"share": "time"})
    links = {**actors["learner"].links, DEVICE: "rollout_generator"}
    actors["learner"] = actors["learner"].model_copy(update={"links": links})
    return topology.model_copy(update={"actors": actors})


def test_an_engine_sleeps_while_the_learner_of_its_device_trains_and_is_there() -> None:
    training, over = DeviceTurn(training=True), DeviceTurn(training=False)
    assert sleeper(training, LEARNER, shares=True) == LEARNER
    assert sleeper(training, LEARNER, shares=False) == sleeper(over, LEARNER, shares=True) == ""
    for event in (PeerGone(LEARNER, 20.0), PeerLeft(LEARNER), PeerReplaced(LEARNER, 2)):
        assert still_asleep(LEARNER, event) == ""
    for event in (PeerSilent(LEARNER, 5.0, ()), PeerBack(LEARNER, 5.0), PeerGone(GENERATOR, 20.0)):
        assert still_asleep(LEARNER, event) == LEARNER


def test_the_learner_trains_beside_none_but_engines_that_are_there_and_awake() -> None:
    named = ("g.0", "g.1", "g.2")
    assert still_on_device(named, gone=(), sharing=("g.0", "g.2")) == ("g.0", "g.2")
    assert still_on_device(("g.0",), gone=("g.0",), sharing=named) == still_on_device((), gone=(), sharing=named) == ()


class Turns:
    """The learner's turns, beside a generator whose engine takes ``seconds`` to fall asleep."""

    def __init__(self, stage: Any, topology: Topology, seconds: float) -> None:
        self.happened: list[str] = []
        self._seconds = seconds
        stage["rollout_generator"].reply = self._generator
        learner = stage["learner"]
        context: Any = SimpleNamespace(
            name=LEARNER,
            topology=topology,
            links={DEVICE: learner.announce(DEVICE, GENERATOR)},
            settings=SimpleNamespace(engine_sleep_seconds=30.0),
            node=learner.node,
            log=structlog.get_logger(),
            now=trio.current_time,
            wait=lambda message, thing: f"{message.__name__}: {thing}",
        )
        self.turns = DeviceTurns(context, self._give_back)

    async def _generator(self, message: Any) -> None:
        if isinstance(message, DeviceTurn):
            await trio.sleep(self._seconds if message.training else 0)
            self.happened.append("asleep" if message.training else "awake")

    async def _give_back(self) -> None:
        await trio.lowlevel.checkpoint()
        self.happened.append("freed")


@pytest.mark.parametrize(
    ("seconds", "expected"), [(3.0, ["asleep", "trained", "freed", "awake"]), (1000.0, ["trained", "freed"])]
)
async def test_the_learner_trains_once_the_engine_is_asleep_or_its_time_is_up(
    tmp_path: Path, seconds: float, expected: list[str]
) -> None:
    with capture_logs() as logs:
        topology = sharing(tmp_path)
        async with stand_ins(topology, "none") as stage:
            turns = Turns(stage, topology, seconds)
            async with turns.turns.taken(needed=False):
                pass
            await trio.sleep(1.0)
            assert turns.happened == ["awake"]  # as generators begin asleep
            turns.happened.clear()
            began = trio.current_time()
            async with turns.turns.taken():
                assert 3.0 <= trio.current_time() - began <= 31.0
                turns.happened.append("trained")
            await trio.sleep(1.0)
            assert turns.happened == expected
    late = [log["generators"] for log in logs if log["log_level"] == "warning" and "generators" in log]
    assert late == ([] if "asleep" in expected else [[GENERATOR]])


async def test_a_turn_that_fails_is_given_back(tmp_path: Path) -> None:
    topology = sharing(tmp_path)
    async with stand_ins(topology, "none") as stage:
        turns = Turns(stage, topology, 0.0)
        with pytest.raises(ZeroDivisionError):
            async with turns.turns.taken():
                raise ZeroDivisionError
        await trio.sleep(1.0)
        assert turns.happened[-2:] == ["asleep", "awake"]


async def test_a_generator_begins_asleep_sleeps_amid_a_rollout_and_wakes_when_the_learner_is_lost(
    tmp_path: Path,
) -> None:
    """Told again by a learner that was only silent, it sleeps again; and the rollout ends as if nothing had been."""
    topology, made = sharing(tmp_path), list[ScriptedEngine]()
    generates = scripted(model_directory(topology, tmp_path), lambda *_: "<answer>4</answer>" * 9, made=made.append)
    async with (
        stand_ins(topology, "rollout_generator") as stage,
        running(generates, topology, "rollout_generator", tmp_path, stage) as actor,
    ):
        stage["learner"].announce("policy", GENERATOR).set(builders.published(3))
        await stage.started(GENERATOR)
        (engine,) = made
        assert engine.asleep, "until the learner has said that it does not train"
        assert actor.waiting_for().startswith("learner: ")
        device = stage["learner"].announce(DEVICE, GENERATOR)
        device.set(DeviceTurn(training=False))
        await device.acknowledged()
        assert not engine.asleep
        await eventually(lambda: engine.policy.version == 3, "in its turn")
        device.set(DeviceTurn(training=True))
        await device.acknowledged()
        assert engine.asleep
        await stage["kv_scheduler"].push("requests", GENERATOR).send(builders.request())
        await eventually(lambda: engine.requests, "in its turn")
        await trio.sleep(1.0)
        assert engine.figures.generated_tokens == 0
        assert actor.waiting_for().startswith("learner: ")
        actor.peer_changed(PeerGone(LEARNER, 20.0))
        await eventually(lambda: not engine.asleep, "in its turn")
        device.set(DeviceTurn(training=True))
        await device.acknowledged()
        assert engine.asleep
        device.set(DeviceTurn(training=False))
        trajectory = await stage["roc_filter"].receive(Trajectory)
        assert trajectory.status in {"finished", "truncated"}
        assert not engine.asleep


def test_an_engine_that_cannot_sleep_is_refused(tmp_path: Path) -> None:
    topology = sharing(tmp_path)
    settings = RolloutGeneratorSettings(engine="tests.actors.test_device_turns:Sleepless")
    with pytest.raises(EngineRefusedError, match="Sleepless cannot sleep, as it has no methods sleep and wake; add"):
        make_engine(tmp_path, settings, topology, GENERATOR, sleeps=True)
    assert isinstance(make_engine(tmp_path, settings, topology, GENERATOR), Sleepless)


class Sleepless:
    """An engine of a user without what sharing a device needs."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """As an engine is made."""
