"""What a learner takes up that ended anywhere: the real walk, checkpoints and replay; a model that notes what it trains.

Virtual time. Whatever ends a process, and however often, what is trained in the end follows from the recipe and from the
filter's records alone (`Filter.expected`).
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from actors.learner import Learner
from actors.learner.model import TrainedModel
from actors.roc_filter.replay import decided_from, entered_before
from actors.runtime.process import user_mistake
from actors.weights.files import Checkpoints, weights_name
from agent_rl.config.topology import EvaluateStage, RlStage, SftStage, Topology
from agent_rl.figures import RolloutMeans, StepFigures, SupervisedFigures, TrainingFigures
from agent_rl.files.disk import remove, whole
from agent_rl.learning.batching import SupervisedBatches
from agent_rl.learning.finite import NotFiniteError, TrainingStoppedError
from agent_rl.learning.reference import StageStart
from agent_rl.messages import (
    CheckpointSaved,
    Evaluation,
    EvaluationReady,
    PolicyPublished,
    PolicyVersion,
    Recorded,
    StageEntered,
    StageRecorded,
    StepReady,
    StepTrained,
)
from agent_rl.records.checkpoint_files import STATE_FILE, Position, checksum_of_state, file_checksum, read_state, verify
from agent_rl.records.continuing import Known, Mark, Saved, disagreement
from agent_rl_contract.base import EVALUATE_STAGE, RL_STAGE, SFT_STAGE
from agent_rl_contract.builders import engine_load, evaluated, opened, training_group
from agent_rl_contract.stage import running, stand_ins
from tests.actors.topologies import micro

LEARNER, SEED = "learner.0", 3
RECIPE = [
    SFT_STAGE | {"steps": 21},
    RL_STAGE | {"name": "first", "steps": 7, "evaluate": {"every": 3, "problems": 2}, "collapse": {"window": 2}},
    EVALUATE_STAGE,
    RL_STAGE | {"name": "second", "steps": 5, "reset_optimizer": True},
    SFT_STAGE | {"name": "again", "steps": 2},
]
SKIPPED = {("format", 2), ("format", 9), ("first", 1), ("first", 4)}
"""Stages and steps that are not finite, whenever they are computed."""
EMPTY = {7}
"""Versions of steps without groups."""
SUCCESS = [0.5, 0.5, 0.3, 0.9, 0.7, 0.6]
KINDS = {"sft": SftStage, "rl": RlStage, "evaluate": EvaluateStage}
STAGES: list[Any] = [KINDS[str(each["kind"])].model_validate(each) for each in RECIPE]


@cache
def group(name: str) -> Any:
    stage, number = name.removeprefix("s").split("-g")
    return training_group(opened(int(number), stage=int(stage)), [1.0, 0.0])


class Noted:
    """A trainer whose weights are the list of what was trained, with all that a step depends on."""

    under_way, compute_bits, tokenizer, max_length = "", None, None, 100
    skipped = ""

    def __init__(self, world: World) -> None:
        self.world, self.weights, self.moments, self.kept = world, list[str](), 0, 0
        self.reference = StageStart(None)  # type: ignore[arg-type]

    def _train(self, stage: Any, step: int, what: str) -> None:
        # where no three steps in a row are left to a supervised stage, none begins to fail
        fails = stage.kind == "rl" or self.skipped == stage.name or step <= stage.steps - 3
        if (self.world.not_finite and fails) or (stage.name, step) in SKIPPED:
            self.skipped = stage.name
            raise NotFiniteError("of the test")
        self.moments += 1
        self.skipped, self.world.seconds = "", 0.7
        self.weights.append(f"{stage.name} {step}: {what}, {self.moments} moments")

    def sft_step(self, batch: Any, stage: Any, step: int) -> SupervisedFigures:
        self._train(stage, step, str([tokens for tokens, _ in batch]))
        return SupervisedFigures(loss=1.0)

    def rl_step(self, groups: Any, stage: Any, step: int) -> TrainingFigures:
        if groups:
            self._train(stage, step, f"{[each.group for each in groups]}, {self.kept} in the reference")
        return TrainingFigures(trained_tokens=len(groups), entropy=1.0 if groups else None)

    def enter(self, algorithm: Any) -> None:
        """Nothing depends on it."""

    def update_seconds(self, tokens: int) -> None:
        del tokens

    def reset_optimizer(self) -> None:
        self.moments = 0

    def copy_weights(self, version: int) -> Any:
        return list(self.weights)

    def keep_reference(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(str(len(self.weights)))
        self.kept = len(self.weights)

    def load_reference(self, path: Path) -> None:
        self.kept = int(path.read_text())

    def stage(self, directory: Path, position: Position, extra: Any) -> Any:
        text = json.dumps({"weights": self.weights, "moments": self.moments})
        state = {**asdict(position), "extra": json.loads(json.dumps(extra))}

        def write() -> None:
            with whole(directory, flushed=False) as partial:
                (partial / STATE_FILE).parent.mkdir(parents=True)
                (partial / "model").write_text(text)
                all_of_it = state | {"files": {"model": file_checksum(partial / "model")}}
                (partial / STATE_FILE).write_text(json.dumps(all_of_it | {"checksum": checksum_of_state(all_of_it)}))
                remove(directory)

        return SimpleNamespace(write=write)

    def restore(self, directory: Path) -> Any:
        verify(directory)
        found = json.loads((directory / "model").read_text())
        self.weights, self.moments = found["weights"], found["moments"]
        return read_state(directory)


class Filter:
    """The filter as the learner meets it: it closes steps two ahead, and sends again what the replay says."""

    def __init__(self, topology: Topology) -> None:
        self.kinds = [stage.kind for stage in topology.stages]
        self.rows: dict[int, Any] = {}
        self.facts: dict[str, Any] = {}
        self.evaluations: dict[int, dict[int, Any]] = {}
        self.epoch, self.recorded, self.promised, self.fresh, self.undone = 0, -1, 0, True, False
        self.kept_from: int | None = None
        self.entered: list[StageEntered] = []
        self.link: Any = None
        self.supervised: list[SupervisedFigures] = []

    # as `decided_from` and `entered_before` ask a journal

    def steps(self, *, stage: int) -> list[Any]:
        return [row for _, row in sorted(self.rows.items()) if row.stage == stage]

    def groups(self, *, stage: int, states: Any) -> list[Any]:
        return []

    def interim_evaluations(self, stage: int) -> dict[int, Any]:
        return self.evaluations.get(stage, {})

    def fact(self, name: str) -> Any:
        return self.facts.get(name)

    async def answer(self, message: Any) -> Any:
        match message:
            case StageEntered(stage, begun, version, restored):
                assert restored == self.fresh, "a new process says once that it was restored"
                self._compare(message)
                self.facts = {"stage": stage, "stage_version": begun, "learner_at": version}
                self.epoch, self.fresh = self.epoch + restored, False
                known = [row.version + 1 for row in self.steps(stage=stage)]
                if message.left is not None and message.left.supervised is not None:
                    self.supervised.append(message.left.supervised)
                await self._again(stage, version)
                await self._close(stage, version + 2)
                self.promised = max(known, default=version)
                return StageRecorded(self.epoch, "run", self.promised)
            case StepTrained(stage, version, groups, figures):
                row = self.rows[version]
                assert version == int(self.facts["learner_at"]), "each step once, in order"
                assert groups == (() if row.skipped else row.groups), version
                row.skipped |= figures.skipped
                self.undone |= figures.skipped and (STAGES[stage].name, version - row.begun) not in SKIPPED
                row.trained, self.facts["learner_at"] = True, version + 1
                self.recorded = max(self.recorded, version)
                begun = int(self.facts["stage_version"])
                at = version + 1 - begun
                if at in STAGES[stage].evaluation_steps:
                    self.evaluations.setdefault(stage, {}).setdefault(at, evaluated(0.5, f"at {at}"))
                    await self.link.send(EvaluationReady(Evaluation(stage, at), self.evaluations[stage][at]))
                await self._close(stage, version + 3)
            case CheckpointSaved(path, version, oldest):
                self.kept_from = max(self.kept_from or 0, oldest)
                saved = Checkpoints(Path(path).parent)
                assert oldest == min(each.version for each in saved.positions()), "an older checkpoint needs its steps"
                assert len([each for each in saved.positions() if not each.step]) <= 2
        return Recorded()

    def _compare(self, entered: StageEntered) -> None:
        known = Known(Path(), "run", int(self.facts.get("stage", -1)), self.recorded, self.kept_from, frozenset({2}))
        position = Position(entered.stage, entered.stage_version, entered.version)
        if entered.restored and (entered.run or self.kept_from is not None):
            assert entered.run, "a checkpoint names the run"
            fault = disagreement(known, Saved("", position, Mark(entered.run, entered.last_step)), self.kinds)
            assert fault is None, fault
            before = [row.version for row in self.rows.values() if row.version < entered.version]
            assert entered.last_step >= max(before, default=-1), "an older journal would not be noticed"
        assert not entered.restored or self.kept_from is None or entered.version >= self.kept_from

    async def _close(self, stage: int, upto: int) -> None:
        if self.kinds[stage : stage + 1] != ["rl"]:
            return
        begun = int(self.facts["stage_version"])
        for version in range(begun, min(upto, begun + STAGES[stage].steps)):
            if version in self.rows:
                continue
            names = () if version in EMPTY else tuple(f"s{stage}-g{2 * version + each:06d}" for each in range(2))
            sampled = RolloutMeans(success=SUCCESS[version % len(SUCCESS)], response_tokens=12.0)
            row = {"version": version, "stage": stage, "begun": begun, "groups": names, "trained": False}
            figures = StepFigures(sampled=sampled)
            self.rows[version] = SimpleNamespace(**row, skipped=False, figures=figures)
            for each in (StepReady(stage, version, names, figures), *map(group, reversed(names))):
                await self.link.send(each)

    async def _again(self, stage: int, version: int) -> None:
        for each in decided_from(self, stage, version):  # type: ignore[arg-type]
            await self.link.send(group(each) if isinstance(each, str) else each)
        if self.kinds[stage : stage + 1] == ["evaluate"]:
            await self.link.send(EvaluationReady(Evaluation(stage), evaluated(0.75)))

    async def restarted(self) -> None:
        """A new process of the filter sends what the learner may lack."""
        if (at := entered_before(self)) is not None:  # type: ignore[arg-type]
            await self._again(at.stage, at.version)

    def expected(self) -> dict[int, list[str]]:
        """The weights of each version, by the recipe and the records alone."""
        weights, moments, version, versions = list[str](), 0, 0, dict[int, list[str]]()
        for index, stage in enumerate(STAGES):
            moments = 0 if getattr(stage, "reset_optimizer", False) else moments
            batches, reference = batches_of(f"{SEED}/sft/{index}"), len(weights)
            for step in range(stage.steps if stage.kind != "evaluate" else 0):
                what = str([tokens for tokens, _ in next(batches)])
                trained = (stage.name, step) not in SKIPPED
                if stage.kind == "rl":
                    row = self.rows[version]
                    what, trained = (
                        f"{[*row.groups]}, {reference} in the reference",
                        bool(row.groups and not row.skipped),
                    )
                    versions[version] = list(weights)
                    version += 1
                moments += trained
                weights += [f"{stage.name} {step}: {what}, {moments} moments"] if trained else []
            if stage.kind == "sft":
                version, moments = version + 1, 0
            versions[version] = list(weights)
        return versions


def lessons(rng: random.Random) -> Any:
    """Demonstrations, some of them longer than others."""
    while True:
        yield rng.randint(1, 9)


def encode(length: int) -> Any:
    return [length] * length, [1] * length


def batches_of(seed: str) -> Any:
    rng = random.Random(seed)
    return SupervisedBatches(lessons(rng), lambda length: [encode(length)], batch=2, longest=math.inf, rng=rng)


def ended(learner: Learner) -> bool:
    """Whether it came to the recipe's end; one that has not started has no state."""
    return getattr(learner, "_state", "") == "finished"


class World:
    """A run: its processes one after the other, each of which an event ends, or something happens to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.topology = folder, micro(folder)
        run = self.topology.run.model_copy(update={"checkpoint_every": 2, "keep_checkpoints": 2, "seed": SEED})
        self.topology = self.topology.model_copy(update={"stages": tuple(STAGES), "run": run})
        self.filter = Filter(self.topology)
        self.checkpoints = folder / "checkpoints"
        self.saved: dict[Position, Any] = {}
        self.cards: list[Any] = []
        self.policies: list[tuple[PolicyVersion, Any]] = []
        self.event, self.left, self.seconds = "", -1, 0.01
        self.written: trio.Event | None = None

    async def point(self) -> None:
        """A process may be ended here."""
        self.left -= 1
        if not self.left:
            self.not_finite = self.event == "not finite"
            if not self.not_finite:
                self.over.set()
            if self.event in {"killed", "damaged"}:
                await trio.sleep_forever()

    def generator(self, message: Any) -> None:
        if isinstance(message, PolicyPublished):
            weights = json.loads((self.folder / "weights" / weights_name(message.policy)).read_text())
            assert message.policy.epoch == self.filter.epoch
            assert message.policy.version >= self.filter.promised, "engines have newer ones"
            assert not self.policies or message.policy >= self.policies[-1][0], "policies only rise"
            self.policies.append((message.policy, weights))

    async def live(self, incarnation: int, stage: Any) -> bool:
        """One process; returns whether it came to the recipe's end."""
        self.over, self.not_finite, self.filter.fresh, finished = trio.Event(), False, True, False
        named = {"world": self}
        kill = self.event in {"killed", "damaged"}
        try:
            async with running(
                type("Noting", (Noting,), named), self.topology, "learner", self.folder, stage,
                incarnation=incarnation, kill=kill,
            ) as learner:  # fmt: skip
                await self.over.wait()
                if self.event == "filter":
                    await self.filter.restarted()
                    self.over = trio.Event()
                    if not ended(learner):
                        await self.over.wait()
                finished = not kill and ended(learner)
        except BaseExceptionGroup as group:
            message = user_mistake(group) or str(group)
            assert re.search(r"3 steps of stage .* in a row", message), message
            assert f"goes on from {self._before(message)}, which" in message
        return finished

    def _before(self, message: str) -> str:
        """Where a run goes on that three steps have stopped; in an rl stage that is before the first of them."""
        positions = Checkpoints(self.checkpoints).positions()
        if not positions:
            return "the model the run began with"
        trained = [
            row.version + 1 for row in self.filter.rows.values() if row.trained and row.groups and not row.skipped
        ]
        if self.filter.kinds[positions[-1].stage] == "rl":
            row = self.filter.rows[positions[-1].version]
            assert row.skipped
            assert row.version >= max(trained, default=row.begun)
            assert f"(step {row.version - row.begun + 1}: " in message
        return f"the checkpoint {Checkpoints(self.checkpoints).path(positions[-1])}"

    async def story(self, events: Sequence[tuple[str, int]]) -> None:
        """A process for each event, which happens at the point of this number; one more that comes to the end."""
        async with stand_ins(self.topology, "learner", concurrency={"roc_filter": 16}) as stage:
            records, generator = stage["roc_filter"], stage["rollout_generator"]
            self.filter.link, records.reply = records.push("training", LEARNER), self.filter.answer
            generator.reply = self.generator
            generator.announce("load", LEARNER).set(engine_load(version=0, epoch=0))  # no file is deleted
            for incarnation, (self.event, self.left) in enumerate([*events, ("", -1)], 1):
                finished = await self.live(incarnation, stage)
                newest = Checkpoints(self.checkpoints).positions()[-2:]
                if self.event == "damaged" and len(newest) == 2:
                    (Checkpoints(self.checkpoints).path(newest[-1]) / "model").write_text("{}")
            assert finished
        self.check()

    def check(self) -> None:
        """What a user finds in the end."""
        expected = self.filter.expected()
        assert self.policies[-1][1] == expected[max(expected)]
        for policy, weights in self.policies:
            assert weights == expected[policy.version] or self.filter.undone, policy
        for figures in self.filter.supervised:
            name = {each.steps: each.name for each in STAGES if each.kind == "sft"}[figures.steps]
            assert figures.steps_skipped == sum(of == name for of, _ in SKIPPED)
        measured = [(each.name, each.version) for each in self.cards]
        assert measured == [("at 3", 4), ("at 6", 7), ("after", 8)]
        rows = [row for row in self.filter.steps(stage=1) if row.groups and not row.skipped]
        means = [(row.figures.sampled.success + other.figures.sampled.success) / 2 for row, other in pairwise(rows)]
        watch = self.saved[Position(2, 8, 8)]["watch"]
        assert [each[0] for each in watch["last"]] == [row.figures.sampled.success for row in rows[-2:]]
        assert watch["best"][0] == pytest.approx(max(means))
        assert watch["best_step"] == [row.version for row in rows[1:]][means.index(max(means))]
        assert not list(self.folder.rglob("*.partial"))
        assert not list(self.checkpoints.glob("*-step-*"))
        assert len(list(self.checkpoints.glob("best-*"))) <= 1


class NotingModel(TrainedModel):
    """The model of the learner, with a trainer that notes."""

    world: World

    def _load(self) -> Any:
        self.trainer = trainer = Noted(self.world)  # type: ignore[assignment]
        self.tools = False
        self._environments: Any = SimpleNamespace(tasks=lambda: SimpleNamespace(demonstrations=lessons))
        restored = self.checkpoints.restore(trainer.restore, lambda fault: None)
        return restored or (Position(0, 0, 0), {})

    def _demonstrated(self, shown: Any) -> list[Any]:
        return [encode(shown)]

    @staticmethod
    def _write(weights: Any, path: Path) -> None:
        with whole(path, flushed=False) as partial:
            partial.write_text(json.dumps(weights))

    async def _together(self, work: Any, thread: Any) -> Any:
        await self.world.point()
        if thread is self._writer and self.world.written is not None and self.world.filter.recorded > 0:
            await self.world.written.wait()
        done = await super()._together(work, thread)
        await trio.sleep(self.world.seconds)
        self.world.seconds = 0.01
        await self.world.point()
        return done

    async def save(self, position: Position, extra: Any, *given: Any, **named: Any) -> None:
        self.world.saved[position] = json.loads(json.dumps(extra))
        trainer: Any = self.trainer
        assert not (named["beside"] and trainer.skipped), "a stopped run goes on before the first skipped step"
        await super().save(position, extra, *given, **named)

    async def describe(self, position: Position, measured: Any) -> None:
        self.world.cards = list(measured)


class Noting(Learner):
    """The learner, which may be ended before and after each question to the filter too."""

    world: World

    @staticmethod
    def _import() -> None:
        """Nothing: torch is not needed."""

    def _make_model(self) -> TrainedModel:
        NotingModel.world = self.world
        return NotingModel(self.context)

    async def _ask(self, link: str, message: Any) -> Any:
        await self.world.point()
        answer = await super()._ask(link, message)
        await self.world.point()
        return answer

    async def _walk(self) -> None:
        await super()._walk()
        self.world.over.set()


EVENTS = ["killed", "stopped", "damaged", "not finite", "filter"]


@settings(max_examples=12)
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(1, 210)), max_size=4))
def test_whatever_ends_a_learner_it_trains_what_it_would_have_trained(events: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as folder:
        trio.run(World(Path(folder)).story, events, clock=MockClock(autojump_threshold=0))


async def test_a_checkpoint_that_a_skipped_step_puts_off_comes_with_the_next_trained_one(tmp_path: Path) -> None:
    await (world := World(tmp_path)).story([])
    # after every second step; that to version 6 was skipped
    assert [at.version for at in world.saved if at.stage == 1] == [1, 2, 4, 7, 8]
    assert len({at.stage for at in world.saved}) == len(STAGES) + 1


async def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.written = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.story, [])
        await trio.sleep(60.0)  # longer than all steps take
        assert [each.version for each in Checkpoints(world.checkpoints).positions()] == [1]
        assert world.filter.recorded == 7
        world.written.set()


# Checkpoints as `version/stage` or `version/stage:step`, with `*` under the name for the best one. Of its files one was
# changed (`!`), cut (`<`) or its state (`#`); or it has no state yet (`?`).


def place(folder: Path, word: str) -> tuple[Path, Position]:
    """The folder of a checkpoint, and its position."""
    version, stage, step = (int(number) for number in (*re.findall(r"\d+", word), 0)[:3])
    path = Checkpoints(folder).path(at := Position(stage, 1, version, step))
    return path.with_name(f"best-{path.name}" if "*" in word else path.name), at


def save(folder: Path, words: str) -> None:
    for word in words.split():
        path, at = place(folder, word)
        (path / STATE_FILE).parent.mkdir(parents=True)
        (path / "model").write_text("as written")
        state = {**asdict(at), "files": {"model": file_checksum(path / "model")}}
        state |= {"checksum": checksum_of_state(state), **({"version": at.version + 1} if "#" in word else {})}
        if "?" not in word:
            (path / STATE_FILE).write_text(json.dumps(state))
        (path / "model").write_text("as wrutten" if "!" in word else "as" if "<" in word else "as written")


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        ("", ""),
        ("2/1 4/1", "4/1"),
        ("9/1 10/1 100/1", "100/1"),
        ("4/1 4/2", "4/2"),
        ("0/0:30 0/0:4 0/0:100", "0/0:100"),
        ("0/0:30 1/1", "1/1"),
        ("1/1 1/1:3", "1/1:3"),
        ("2/1 4/1! 6/1<", "2/1"),
        ("2/1 4/1?", "2/1"),
        ("2/1 4/1#", "2/1"),
        ("*8/1 2/1", "2/1"),
        ("2/1! 4/1!", "stop"),
        ("*2/1 4/1!", "stop"),
    ],
)
def test_the_newest_whole_checkpoint_is_taken_up_and_what_is_not_whole_is_put_aside(
    tmp_path: Path, there: str, taken: str
) -> None:
    def take_up(path: Path) -> Path:
        verify(path)
        return path

    saved, refused = Checkpoints(tmp_path), [word for word in there.split() if word[-1] in "!<#?"]
    for words in (there, " ".join(refused)):  # what was put aside is saved again, and damaged again
        told: list[str] = []
        save(tmp_path, words)
        with pytest.raises(TrainingStoppedError) if taken == "stop" else nullcontext():
            assert saved.restore(take_up, told.append) == (place(tmp_path, taken)[0] if taken else None)
        asides = {path.name for path in tmp_path.glob("damaged-*")}
        assert asides == {f"damaged-{place(tmp_path, word)[0].name}" for word in refused}
        assert len(told) == len(refused)


@pytest.mark.parametrize(
    ("there", "keep", "best", "left"),
    [
        ("2/1 4/1 6/1", 2, None, "4/1 6/1"),
        ("2/1 4/1", 3, None, "2/1 4/1"),
        ("2/1 4/1 6/1", 1, 2, "*2/1 6/1"),
        ("2/1 4/1 6/1", 1, 6, "6/1"),
        ("*2/1 4/1 6/1", 1, 4, "*4/1 6/1"),
        ("*2/1 4/1 6/1", 1, 2, "*2/1 6/1"),
        ("0/0:3 0/0:6 0/0:9", 1, None, "0/0:9"),
        ("0/0:6 1/1", 1, None, "1/1"),
        ("1/1 1/1:3 1/1:6", 1, None, "1/1 1/1:6"),
        ("0/0:3 1/1 2/2 2/2:3", 1, None, "2/2 2/2:3"),
        ("2/1? 4/1 6/1", 2, None, "2/1? 4/1 6/1"),
    ],
)
def test_the_newest_checkpoints_and_the_best_are_kept(
    tmp_path: Path, there: str, keep: int, best: int | None, left: str
) -> None:
    save(tmp_path, there)
    Checkpoints(tmp_path).remove_all_but(keep, best)
    assert {path.name for path in tmp_path.iterdir()} == {place(tmp_path, word)[0].name for word in left.split()}


@pytest.mark.parametrize(
    ("there", "version", "found"),
    [("2/1 4/1", 2, "2/1"), ("*2/1 4/1", 2, "*2/1"), ("2/1 2/2:3", 2, "2/1"), ("2/2:3", 2, ""), ("2/1", None, "")],
)
def test_the_checkpoint_of_a_version_is_found(tmp_path: Path, there: str, version: int | None, found: str) -> None:
    save(tmp_path, there)
    assert Checkpoints(tmp_path).of_version(version) == (place(tmp_path, found)[0] if found else None)


# Steps of a stage that began at version 3, by version; `t`: trained, `s`: skipped as not finite.


@pytest.mark.parametrize(
    ("steps", "said", "at", "again"),
    [
        ("", None, 3, ""),
        ("3 4", None, 3, "g3 [3] g4 [4]"),
        ("3t 4t", None, 5, ""),
        ("3t 4s 5", None, 5, "g5 [5]"),
        ("3t 4s 5 6", 4, 4, "[4] g5 [5] g6 [6]"),
        ("3t 4t", 3, 3, "g3 [3] g4 [4]"),
        ("3t 4", 9, 4, "g4 [4]"),
    ],
)
def test_a_learner_is_sent_what_it_lacks_in_the_order_in_which_it_was_decided(
    steps: str, said: int | None, at: int, again: str
) -> None:
    rows = [
        SimpleNamespace(version=int(word[0]), stage=2, trained=word[1:] != "", skipped="s" in word, figures=None)
        for word in steps.split()
    ]
    for row in rows:
        row.groups = (f"g{row.version}",)
    ready = [*(row.groups[0] for row in rows if not row.trained), "waiting"]
    journal: Any = SimpleNamespace(
        fact={"stage": "2", "stage_version": "3", "learner_at": said}.get,
        steps=lambda stage: [row for row in rows if row.stage == stage],
        groups=lambda stage, states: [SimpleNamespace(id=name) for name in ready],
        interim_evaluations=lambda stage: {4: evaluated(0.5)},
    )
    assert entered_before(journal) == StageEntered(2, 3, at, restored=False)
    sent = [
        each if isinstance(each, str) else f"[{each.version}]" if isinstance(each, StepReady) else each.evaluation
        for each in decided_from(journal, 2, at)
    ]
    assert sent == [*again.split(), "waiting", Evaluation(2, 4)]
    assert entered_before(SimpleNamespace(fact=lambda _: None)) is None  # type: ignore[arg-type]


def test_a_stage_begins_where_nothing_of_it_was_trained() -> None:
    at = Position(1, 4, 4)
    assert [each.begins_stage for each in (at, Position(1, 4, 5), Position(1, 4, 4, 1))] == [True, False, False]
