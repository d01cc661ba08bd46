"""The contract of learners: steps in order and once each, policies that only rise, checkpoints to go on from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import trio

from agent_rl.figures import RolloutMeans, StepFigures
from agent_rl.messages import (
    ActorStatus,
    CheckpointSaved,
    Evaluation,
    EvaluationReady,
    PolicyPublished,
    Recorded,
    StageEntered,
    StageRecorded,
    StepReady,
    StepTrained,
    TrainingGroup,
)
from agent_rl_contract.base import EVALUATE_STAGE, RL_STAGE, SFT_STAGE, RoleContract, trio_test
from agent_rl_contract.builders import engine_load, evaluated, opened, repacked, training_group
from agent_rl_contract.stage import Stage, stand_ins

if TYPE_CHECKING:
    from torch import Tensor

LEARNER = "learner.0"
STEPS = 3
RECIPE = [SFT_STAGE, {**EVALUATE_STAGE, "name": "before"}, {**RL_STAGE, "steps": STEPS}, EVALUATE_STAGE]
RL = 2
BEGUN = 1
"""The version RL begins at: the supervised stage counts as one."""


def groups_of(version: int, count: int = 2, *, alike: bool = False) -> tuple[TrainingGroup, ...]:
    """The groups of a step, each of four rollouts, two of them rewarded; ``alike``: every step has the same tokens."""
    groups = []
    for index in range(count):
        number = 2 * version + index
        rng = np.random.default_rng(index if alike else number)
        group = training_group(opened(number, stage=RL, version=version), [1.0, 0.0, 1.0, 0.0], tokens=12)
        trajectories = tuple(
            repacked(
                each,
                tokens=rng.integers(8, 90, each.response_length, dtype=np.int32),
                logprobs=np.where(each.unpack().loss_mask == 1, np.float32(-4.8), np.float32(0.0)),
            )
            for each in group.trajectories
        )
        groups.append(replace(group, trajectories=trajectories))
    return tuple(groups)


class Peers:
    """The filter and a generator as the learner meets them."""

    def __init__(self, stage: Stage, *, groups: Callable[[int], Sequence[TrainingGroup]]) -> None:
        self.stage = stage
        self.entered: list[StageEntered] = []
        self.trained: list[StepTrained] = []
        self.saved: list[CheckpointSaved] = []
        self.policies: list[PolicyPublished] = []
        self.recording = trio.Event()
        self.recording.set()
        self.weights: dict[int, dict[str, Tensor]] = {}
        """By version, once the run has finished."""
        self.epoch = self.closed = 0
        self._groups = groups
        stage["roc_filter"].reply = self._filter
        stage["rollout_generator"].reply = self._generator
        # It says that it serves the first policy for ever: no weight file may be deleted that it may still fetch.
        stage["rollout_generator"].announce("load", LEARNER).set(engine_load(version=0, epoch=0))

    async def _filter(self, message: Any) -> Any:
        match message:
            case StageEntered():
                self.entered.append(message)
                self.epoch += message.restored
                await self._send(message)
                return StageRecorded(self.epoch, version=self.closed)
            case StepTrained():
                self.trained.append(message)
                await self.recording.wait()
                return Recorded()
            case CheckpointSaved():
                self.saved.append(message)
                return Recorded()
        return None

    async def _send(self, entered: StageEntered) -> None:
        """Send the learner all messages of a stage at once, and not in the order in which it needs them."""
        link = self.stage["roc_filter"].push("training", LEARNER)
        kind = RECIPE[entered.stage]["kind"] if entered.stage < len(RECIPE) else ""
        if kind == "evaluate":
            await link.send(EvaluationReady(Evaluation(entered.stage), evaluated(0.5)))
        if kind == "rl" and entered.restored | (entered.version == BEGUN):
            for version in reversed(range(entered.version, BEGUN + STEPS)):
                groups = tuple(self._groups(version))
                await link.send(
                    StepReady(
                        RL,
                        version,
                        tuple(group.group for group in groups),
                        StepFigures(sampled=RolloutMeans(success=0.5)),
                    )
                )
                for group in reversed(groups):
                    await link.send(group)

    def _generator(self, message: Any) -> None:
        if isinstance(message, PolicyPublished):
            self.policies.append(message)

    async def record_in(self, seconds: float) -> None:
        """Answer the steps that are held."""
        await trio.sleep(seconds)
        self.recording.set()

    async def until(self, state: str) -> None:
        """Wait until the learner says that it is in this state."""
        with trio.move_on_after(600):
            while True:
                status = await self.stage["supervisor.local"].next(ActorStatus)
                if status.actor == LEARNER and status.state == state:
                    return
        raise AssertionError(f"the learner never said that it was {state}")

    async def until_trained(self, version: int) -> None:
        """Wait until a step was reported."""
        with trio.move_on_after(600):
            while all(step.version != version for step in self.trained):
                await self.stage["roc_filter"].next(StepTrained)
            return
        raise AssertionError(f"step {version} was never reported as trained")


class LearnerContract(RoleContract):
    """Derive and set ``actor``."""

    role: ClassVar[str] = "learner"

    @asynccontextmanager
    async def among_peers(
        self, folder: Path, *, groups: Callable[[int], Sequence[TrainingGroup]] = groups_of, **changes: Any
    ) -> AsyncIterator[tuple[Any, Peers]]:
        """The topology and the peers; the learner is started, and restarted, by the test."""
        topology = self.topology(folder, **{"stages": RECIPE, **changes})
        async with stand_ins(topology, self.role, concurrency={"roc_filter": 16}) as stage:
            yield topology, Peers(stage, groups=groups)

    @asynccontextmanager
    async def alive(self, folder: Path, **changes: Any) -> AsyncIterator[Peers]:
        """The peers, and the actor under test running among them."""
        async with self.among_peers(folder, **changes) as (topology, peers), self.running(topology, peers.stage):
            yield peers

    async def finish(self, folder: Path, **changes: Any) -> Peers:
        """A run of the whole recipe."""
        async with self.alive(folder, **changes) as peers:
            await peers.until("finished")
            peers.weights = {each.policy.version: read_weights(each) for each in peers.policies}
        return peers

    # The promises -----------------------------------------------------------------------------------------------------

    @trio_test
    async def test_the_recipe_is_walked_in_order_to_its_end(self, tmp_path: Path) -> None:
        """Each stage is entered once, the first as a new process; then the state is finished."""
        peers = await self.finish(tmp_path)
        stages = [entered.stage for entered in peers.entered]
        assert stages == [0, 1, 2, 3, 4], f"the stages were entered in the order {stages}"
        restored = [entered.restored for entered in peers.entered]
        assert restored == [True, False, False, False, False], f"restored, by stage: {restored}"
        versions = [entered.version for entered in peers.entered]
        assert versions == [0, 1, 1, BEGUN + STEPS, BEGUN + STEPS], f"versions, by stage: {versions}"
        assert peers.policies[-1].stage == len(RECIPE), "the last policy does not say that the recipe is done"

    @trio_test
    async def test_steps_are_trained_in_order_and_once_each(self, tmp_path: Path) -> None:
        """With exactly the groups the filter named, in whatever order they arrive."""
        peers = await self.finish(tmp_path)
        versions = [step.version for step in peers.trained]
        assert versions == [BEGUN + step for step in range(STEPS)], f"steps were trained in the order {versions}"
        for step in peers.trained:
            expected = tuple(group.group for group in groups_of(step.version))
            assert step.groups == expected, f"step {step.version} trained {step.groups}, not {expected}"

    @trio_test
    async def test_policies_only_rise_and_their_weights_can_be_fetched(self, tmp_path: Path) -> None:
        """One for each step, with a file that holds the model's tensors under its own names; each differs."""
        peers = await self.finish(tmp_path)
        order = [each.policy for each in peers.policies]
        assert order == sorted(order), f"an older policy follows a newer one: {order}"
        assert order[-1].version == BEGUN + STEPS, f"the last policy is of version {order[-1].version}"
        weights = peers.weights
        names = set(model(tmp_path).state_dict())
        for version, tensors in weights.items():
            assert set(tensors) <= names, f"policy {version} names tensors that the model does not have"
        for version in range(BEGUN, BEGUN + STEPS):
            if version in weights and version + 1 in weights:
                same = equal(weights[version], weights[version + 1])
                assert not same, f"step {version} changed nothing, though rewards differ"

    @trio_test
    async def test_a_step_is_recorded_before_the_next_is_trained(self, tmp_path: Path) -> None:
        """While the filter has not answered, no further policy is published."""
        async with self.among_peers(tmp_path) as (topology, peers):
            peers.recording = trio.Event()
            async with self.running(topology, peers.stage):
                await peers.until_trained(BEGUN)
                await self.settled()
                assert {step.version for step in peers.trained} == {BEGUN}, "the next step was trained meanwhile"
                newest = max(each.policy.version for each in peers.policies)
                assert newest <= BEGUN + 1, f"policy {newest} was published meanwhile"
                peers.recording.set()
                await peers.until("finished")

    @trio_test
    async def test_what_was_rewarded_becomes_likelier(self, tmp_path: Path) -> None:
        """Against what was not: the very point of the loss, whatever its form."""
        peers = await self.finish(tmp_path, groups=partial(groups_of, alike=True))
        weights = peers.weights
        first, last = min(version for version in weights if version >= BEGUN), max(weights)
        before = preference(tmp_path, weights[first], groups_of(BEGUN, alike=True))
        after = preference(tmp_path, weights[last], groups_of(BEGUN, alike=True))
        assert after > before, f"rewarded tokens were {before:.3f} nats likelier, and are {after:.3f} after training"

    @trio_test
    async def test_an_empty_step_is_counted_and_changes_nothing(self, tmp_path: Path) -> None:
        """All its groups had equal rewards: the version rises, the weights stay."""
        peers = await self.finish(tmp_path, groups=lambda _: ())
        groups = [step.groups for step in peers.trained]
        assert groups == [()] * STEPS, f"{STEPS} empty steps were due, trained were {groups}"
        weights = peers.weights
        assert BEGUN + STEPS in weights, "the policy of the last step was not published"
        assert equal(weights[max(weights)], weights[BEGUN]), "steps without groups changed the weights"

    @trio_test
    async def test_checkpoints_load_as_models(self, tmp_path: Path) -> None:
        """With their tokenizer, by transformers; the filter is told of each, and no more are kept than asked for."""
        peers = await self.finish(tmp_path)
        from transformers import AutoModelForCausalLM, AutoTokenizer

        kept = existing(peers.saved)
        assert kept, "no checkpoint is left"
        loaded = AutoModelForCausalLM.from_pretrained(kept[-1], trust_remote_code=False)
        AutoTokenizer.from_pretrained(kept[-1], trust_remote_code=False)
        weights = peers.weights
        assert equal(weights[max(weights)], dict(loaded.state_dict())), "the last checkpoint is not the last policy"
        assert len(set(kept)) <= 3, f"{len(set(kept))} checkpoints are kept, 3 were asked for"

    @trio_test
    async def test_killed_it_goes_on_from_its_checkpoint_to_the_same_weights(self, tmp_path: Path) -> None:
        """It says from which version on it needs the steps again, and raises its epoch.

        It publishes nothing before it has trained again what it had trained.
        """
        whole = await self.finish(tmp_path / "whole")
        folder = tmp_path / "killed"
        async with self.among_peers(folder) as (topology, peers):
            async with self.running(topology, peers.stage, kill=True):
                await peers.until_trained(BEGUN + 1)
            saved = max(each.version for each in peers.saved)
            peers.closed = BEGUN + 2
            async with self.running(topology, peers.stage, incarnation=2):
                await peers.until("finished")
                last = read_weights(peers.policies[-1])
        again = [entered for entered in peers.entered if entered.restored][1]
        assert again.stage == RL, f"it went on in stage {again.stage}, not {RL}"
        assert again.version >= saved, f"it went on from version {again.version} and had a checkpoint of {saved}"
        assert peers.policies[-1].policy.epoch == 2, "a restarted learner must take up the new epoch"
        oldest = min(each.policy.version for each in peers.policies if each.policy.epoch == 2)
        assert oldest >= peers.closed, f"it published version {oldest}, and engines have {peers.closed}"
        weights = whole.weights
        assert equal(last, weights[max(weights)]), "killed and restarted, it ends with other weights"

    @trio_test
    async def test_it_publishes_at_the_end_of_a_stage_of_which_more_steps_are_recorded(self, tmp_path: Path) -> None:
        """As after a stage was made shorter: else its evaluation would wait for ever."""
        async with self.among_peers(tmp_path) as (topology, peers):
            peers.closed = 99
            async with self.running(topology, peers.stage):
                await peers.until("finished")
            assert peers.policies, "nothing was published at the stage's end"

    @trio_test
    async def test_stopped_it_leaves_a_checkpoint_of_where_it_is(self, tmp_path: Path) -> None:
        """The next start goes on there, and trains nothing again."""
        sparing = {"name": "contract", "directory": tmp_path, "checkpoint_every": 50}  # none is due at that step
        async with self.among_peers(tmp_path, run=sparing) as (topology, peers):
            peers.recording = trio.Event()
            async with trio.open_nursery() as nursery, self.running(topology, peers.stage):
                await peers.until_trained(BEGUN)
                nursery.start_soon(peers.record_in, 1.0)  # the step's end is told after the stop, not before it
            stopped_at = peers.saved[-1].version
            done = {step.version for step in peers.trained}
            assert stopped_at == max(done) + 1, f"stopped after step {max(done)}, it saved version {stopped_at}"
            trained_before = len(peers.trained)
            async with self.running(topology, peers.stage, incarnation=2):
                await peers.until("finished")
            again = [step.version for step in peers.trained[trained_before:] if step.version in done]
            assert not again, f"the steps {again} were trained again"


def existing(saved: Sequence[CheckpointSaved]) -> list[Path]:
    """The checkpoints that are still there."""
    return [Path(each.path) for each in saved if Path(each.path).exists()]


def model(folder: Path) -> Any:
    """The model a run in ``folder`` started from."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder / "model", trust_remote_code=False)


def read_weights(published: PolicyPublished) -> dict[str, Tensor]:
    """The tensors of a published policy."""
    from safetensors.torch import load_file

    path = Path(url2pathname(urlsplit(published.uri).path))
    assert path.is_file(), f"policy {published.policy}: there is no file {path}"
    return load_file(path)


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether the tensors both name are the same."""
    import torch

    return all(torch.equal(tensor, other[name]) for name, tensor in one.items() if name in other)


def preference(folder: Path, weights: dict[str, Tensor], groups: Sequence[TrainingGroup]) -> float:
    """How much likelier, in nats a token, rewarded responses are than the others under these weights."""
    import torch

    policy = model(folder)
    policy.load_state_dict(weights, strict=False)
    means: dict[bool, list[float]] = {True: [], False: []}
    for group in groups:
        for made, reward in zip(group.trajectories, group.rewards.tolist(), strict=True):
            body = made.unpack()
            tokens = torch.from_numpy(np.concatenate([body.prompt_tokens, body.tokens]).astype(np.int64))
            with torch.no_grad():
                logprobs = policy(tokens[None]).logits[0, :-1].log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]
            response = logprobs[made.prompt_length - 1 :].numpy()
            means[reward > 0].append(float(response[body.loss_mask == 1].mean()))
    return float(np.mean(means[True]) - np.mean(means[False]))
