"""All that was sampled is what is trained: nothing is missing, nothing is repeated, and nothing else is trained.

A whole run on the clock of the machine: real scheduler, generators with real engines, filter with its journal, and
learner. Engines note each turn that they return; the learner notes what enters the model and the loss. In between are
turns with tool calls, preemption, rollouts that go on at another engine, new weights amid a turn, and turns that end by
length. A plain forward pass with the weights of each version judges the log-probabilities: it knows neither engines nor
caches nor moves.
"""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from actors.engines.base import Engine, TurnRequest, TurnResult
from actors.engines.reference import Reference
from actors.kv_scheduler import KVScheduler
from actors.learner import Learner
from actors.roc_filter import RoCFilter
from actors.roc_filter.replay import decode_stored
from actors.rollout_generator import RolloutGenerator
from agent_rl.config.addresses import supervisor_node
from agent_rl.environments.python_tools import PYTHON_TOOL
from agent_rl.learning.losses.base import MicroBatch
from agent_rl.messages import Judgement, RolloutRequest, ToolCall, ToolResult, TrainingGroup, Trajectory
from agent_rl.records.journal import read_journal
from agent_rl.rollout.episode import Episode
from agent_rl.rollout.parsing import ParsedCall
from agent_rl.rollout.prompts import ChatFormat
from agent_rl_contract.engine import eventually
from tests.actors.simulated_run import NEAR, SimulatedRun, Whole

STEPS, GROUPS, SAMPLES, TURNS, RESPONSE = 6, 2, 4, 5, 220
LEAVES, STAYS = "rollout_generator.0", "rollout_generator.1"
TOLERANCE = 1e-4


class Calls(ChatFormat):
    """A random model stops now and then, and most of its turns call the tool."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.stop_tokens |= frozenset(range(5, 95, 30))

    @classmethod
    def calls(cls, text: str) -> tuple[ParsedCall, ...]:
        return (ParsedCall(PYTHON_TOOL, {"code": text}),) if len(text) % 5 else ()


@dataclass(frozen=True, eq=False)
class Turn:
    """A turn that an engine returned, after the tokens ``context``."""

    generator: str
    context: list[int]
    result: TurnResult
    preempted: bool
    """Whether the engine preempted a turn meanwhile."""


@dataclass
class Row:
    """A sequence in a micro-batch of the learner: its tokens, and what the loss got for its response."""

    tokens: list[int]
    model: np.ndarray
    """bool over ``tokens``: the learner computes a log-probability."""
    batch: Mapping[str, np.ndarray]


@dataclass
class Notes:
    """What engines sampled, by rollout, and what the learner was given and trained, by step."""

    turns: dict[str, list[Turn]] = field(default_factory=lambda: defaultdict(list))
    given: list[Sequence[TrainingGroup]] = field(default_factory=list)
    trained: list[list[Row]] = field(default_factory=list)
    answers: list[tuple[ToolCall, ToolResult]] = field(default_factory=list)
    moved: set[str] = field(default_factory=set)

    def engine(self, made: Engine, generator: str) -> Engine:
        """Have the engine note its turns."""
        generate = made.generate

        async def noted(request: TurnRequest) -> TurnResult:
            before = made.figures.preempted
            result = await generate(request)
            preempted = made.figures.preempted > before
            self.turns[request.rollout].append(Turn(generator, list(request.tokens), result, preempted))
            return result

        made.generate = noted  # type: ignore[method-assign]
        return made

    def learner(self, trainer: Any) -> None:
        """Have the trainer note what enters a step, the model and the loss."""
        step, logprobs, loss = trainer.rl_step, trainer.model.logprobs, trainer.loss
        entered: list[tuple[Any, Any]] = []

        def noted_step(groups: Sequence[TrainingGroup], *given: Any) -> Any:
            self.given.append(groups)
            self.trained.append([])
            return step(groups, *given)

        def noted_logprobs(tokens: Any, places: Any, **options: Any) -> Any:
            entered[:] = zip(tokens, places, strict=True)
            return logprobs(tokens, places, **options)

        def noted_loss(batch: MicroBatch, settings: Any) -> Any:
            for at, (tokens, model) in enumerate(entered):
                found = {name: getattr(batch, name)[at].numpy() for name in ("mask", "behaviour", "turns")}
                self.trained[-1].append(Row(tokens.tolist(), model.numpy(), found))
            assert len(batch.mask) == len(entered)
            return loss(batch, settings)

        trainer.rl_step, trainer.model.logprobs, trainer.loss = noted_step, noted_logprobs, noted_loss

    def answer(self, message: Any) -> ToolResult | None:
        """The executor's answer to a call, another for each."""
        if not isinstance(message, ToolCall):
            return None
        made = ToolResult(message.call, "success", f"({len(self.answers)})", "", "", 0.0, 0.001)
        self.answers.append((message, made))
        return made


class Judged(RoCFilter):
    """Every second sample is right, so that all groups are trained."""

    async def handle(self, message: Any) -> Any:
        if isinstance(message, Trajectory):
            right = bool(message.sample % 2)
            message = replace(message, judgement=Judgement(float(right), success=right))
        return await super().handle(message)


def sampled(row: Row, trajectory: Trajectory, notes: Notes, chat: ChatFormat) -> list[Turn]:
    """The turns that make up a trained sequence, in order: exactly what engines returned, and answers of tools between.

    Only rollouts that moved have turns that are not in it: the scheduler had not yet kept those, so they were written
    again.
    """
    prompt, body = trajectory.prompt_length, trajectory.unpack()
    mask, behaviour, turns = (row.batch[name][: len(row.tokens) - prompt] for name in ("mask", "behaviour", "turns"))
    assert row.tokens == [*body.prompt_tokens, *body.tokens]
    assert row.model.tolist() == [False] * prompt + mask.tolist()
    assert not any(values[len(mask) :].any() for values in row.batch.values()), "the loss gets more than the response"
    left, found = list(notes.turns[trajectory.rollout]), list[Turn]()
    for written, part in groupby(range(len(mask)), key=lambda at: bool(mask[at])):
        at = slice(min(places := list(part)), places[-1] + 1)
        before, tokens = row.tokens[: prompt + at.start], row.tokens[prompt + at.start : prompt + at.stop]
        if written:
            returned = [
                each
                for each in left
                if (each.context, each.result.tokens.tolist()) == (before, tokens)
                and np.array_equal(each.result.logprobs, behaviour[at])
                and np.array_equal(each.result.policies, body.policies[at])
            ]
            assert returned, f"no engine returned turn {len(found) + 1} of {trajectory.rollout} as it is trained"
            turn = returned[-1]
            assert set(turns[at]) == {len(found)}
            left.remove(turn)
            found.append(turn)
        else:
            text = chat.turn_text(found[-1].result.tokens[:-1].tolist())
            answers = [r for c, r in notes.answers if (c.rollout, c.arguments["code"]) == (trajectory.rollout, text)]
            assert tokens in [chat.response_tokens([answer.stdout]) for answer in answers]
            assert not behaviour[at].any()
    assert not left or trajectory.rollout in notes.moved
    return found


def judged(trajectory: Trajectory, references: Mapping[int, Reference]) -> Iterator[float]:
    """Each token of the model has the log-probability that the weights of its version give it.

    Yields how far the next version is from it at most, for each version of the trajectory.
    """
    body = trajectory.unpack()
    versions = np.where(body.loss_mask, body.policies[:, 1], -1)
    assert (trajectory.oldest, trajectory.newest) == (versions[versions >= 0].min(), versions.max())
    for version in set(versions.tolist()) - {-1}:
        own, other = (
            np.abs(references[v].logprobs(body.prompt_tokens.tolist(), body.tokens.tolist(), 1.0) - body.logprobs)
            for v in (version, version + 1)
        )
        assert own[versions == version].max() < TOLERANCE, f"{trajectory.rollout}: not by the weights of {version}"
        yield other[versions == version].max()


def check_run(notes: Notes, folder: Path, chat: ChatFormat) -> None:
    """Compare what engines sampled with the journal and with what was trained."""
    references = dict(published(folder))
    journal = read_journal(folder)
    met: Counter[str] = Counter()
    trained: set[str] = set()
    apart: list[float] = []
    for groups, rows in zip(notes.given, notes.trained, strict=True):
        assert [len(group.trajectories) for group in groups] == [SAMPLES] * GROUPS
        by_tokens = {tuple(row.tokens): row for row in rows}
        assert len(by_tokens) == len(rows) == SAMPLES * GROUPS
        for group in groups:
            stored = {s.rollout: s.body for s in (decode_stored(e.payload) for e in journal.trajectories(group.group))}
            for trajectory in group.trajectories:
                assert stored[trajectory.rollout] == trajectory.body
                assert trajectory.rollout not in trained, "trained twice"
                trained.add(trajectory.rollout)
                body = trajectory.unpack()
                turns = sampled(by_tokens[*body.prompt_tokens, *body.tokens], trajectory, notes, chat)
                apart += judged(trajectory, references)
                met["several turns"] += len(turns) > 2
                met["preempted"] += any(turn.preempted for turn in turns)
                met["moved"] += len({turn.generator for turn in turns}) > 1
                met["updates amid a turn"] += any(len(np.unique(turn.result.policies[:, 1])) > 1 for turn in turns)
                met["ended by length"] += turns[-1].result.finish == "length"
    journal.close()
    opened = {trajectory.group for groups in notes.given for group in groups for trajectory in group.trajectories}
    assert trained == {rollout for rollout in notes.turns if rollout.split("/")[0] in opened}
    assert np.median(apart) > 9 * TOLERANCE, "nothing tells two versions apart"  # a version may have a token or two
    assert len(met) == len(+met) == 5, f"this did not happen: {met}"


def published(folder: Path) -> Iterator[tuple[int, Reference]]:
    """The published policies, by version."""
    for file in sorted((folder / "weights").glob("policy-*.safetensors")):
        version = int(file.stem.rsplit("-", 1)[1])
        model = folder / f"of_version_{version}"
        model.mkdir()
        shutil.copy(folder / "model" / "config.json", model)
        shutil.copy(file, model / "model.safetensors")
        yield version, Reference(model)


def amid(run: SimulatedRun) -> int:
    """How many rollouts of the generator that is to leave have a completed turn, and go on."""
    generator = run[LEAVES]
    rollouts = generator._running._running.values()
    return sum(each.rollout in generator._kept._running and not each.sampled for each in rollouts)


async def check_all_that_was_sampled_is_trained(folder: Path, engine: str) -> None:
    """Run STEPS steps, in which a generator leaves, and compare."""
    notes = Notes()

    class Noted(RolloutGenerator):
        chat_format = Calls

        def make_episode(self, request: RolloutRequest) -> Episode:
            notes.moved |= {request.rollout} if request.placement_epoch else set()
            return super().make_episode(request)

        def _make_engine(self, *given: Any) -> Engine:
            return notes.engine(super()._make_engine(*given), self.context.name)

    class NotedLearner(Learner):
        async def start(self) -> None:
            await super().start()
            self._model.store.clean = lambda newest: None  # type: ignore[method-assign]
            notes.learner(self._model.trainer)

    sizes = {"hidden_size": 32, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 32, "mlp_size": 48}
    rl = {"kind": "rl", "steps": STEPS, "max_response_tokens": RESPONSE, "max_turns": TURNS}
    topology = Whole().topology(
        folder,
        replicas=2,
        model={"initialise": {**sizes, "max_length": 512}},
        algorithm={"groups_per_step": GROUPS, "samples": SAMPLES, "keep": SAMPLES, "max_staleness": 2},
        stages=[{**rl, "learning_rate": 1e-2, "warmup_steps": 0}],
    )
    classes = {"kv_scheduler": KVScheduler, "roc_filter": Judged, "rollout_generator": Noted, "learner": NotedLearner}
    cramped = {"engine": engine, "max_rollouts": 8, "kv_tokens": 640, "finish_seconds": 1e-3}
    topology.actors["rollout_generator"].settings.update(cramped)
    topology.actors["kv_scheduler"].settings["policy"] = "tests.actors.simulated_run:PlacesAtOnce"
    with trio.fail_after(400):
        async with trio.open_nursery() as nursery:
            run = SimulatedRun(topology, folder, nursery, classes)
            await run.stand_in(supervisor_node(NEAR))
            (await run.stand_in("tool_executor.0")).reply = notes.answer
            for name in ("roc_filter.0", "kv_scheduler.0", LEAVES, STAYS, "learner.0"):
                await run.start(name)
                await run.stage.started(name)  # in one process, transformers cannot load two models at once
            await eventually(lambda: len(notes.trained) >= 2 and amid(run) > 2, "three rollouts can move", 120.0)
            await run.stop(LEAVES)
            await eventually(lambda: run["learner.0"]._state == "finished", "the run ends", 120.0)
            await trio.to_thread.run_sync(check_run, notes, folder, run[STAYS]._chat)
            nursery.cancel_scope.cancel()


@pytest.mark.real_time
async def test_torch(tmp_path: Path) -> None:
    await check_all_that_was_sampled_is_trained(tmp_path, "torch")
