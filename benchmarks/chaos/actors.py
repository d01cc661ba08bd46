"""The classes of a run whose actors fail or are swapped: generators that record their turns, and actors of no model.

A run without a model has an engine that writes scripted turns, and a learner whose model is a list of trained groups.
Everything else is real: processes, links, scheduler, tools, filter, journal, and of the learner its recipe, checkpoints
and published policies. No process loads torch, so a process starts in a second.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import trio

from actors.base import Actor
from actors.engines.base import EngineError, TurnRequest, TurnResult
from actors.kv_scheduler import KVScheduler
from actors.learner import Learner
from actors.learner.model import TrainedModel
from actors.roc_filter import RoCFilter
from actors.rollout_generator import RolloutGenerator
from actors.rollout_generator.starting import RolloutGeneratorSettings
from actors.tool_executor import ToolExecutor
from actors.weights.files import Checkpoints
from actors.weights.settings import LearnerSettings
from agent_rl.config.topology import RlStage, SftStage
from agent_rl.figures import SupervisedFigures, TrainingFigures
from agent_rl.files.disk import whole
from agent_rl.learning.tiny import CALL_HEAD, CALL_TAIL, CHAT_TEMPLATE, END, PAD, UNKNOWN, character_tokenizer
from agent_rl.messages import PolicyVersion, RolloutRequest, TrainingGroup
from agent_rl.records.checkpoint_files import (
    STATE_FILE,
    Position,
    checksum_of_state,
    file_checksum,
    position_of,
    verify,
)
from agent_rl.records.model_card import Measured
from agent_rl.rollout.episode import Episode
from agent_rl_contract.scripted import ScriptedEngine

if TYPE_CHECKING:
    from actors.engines.base import Engine

LENGTH = 256
"""Tokens of a sequence."""
TURN_SECONDS = (0.03, 0.15)
"""The shortest and the longest turn."""
SUPERVISED_SECONDS = 0.02
"""Duration of a supervised step."""
TRAINED = "model.safetensors"
"""The file of a checkpoint that holds the trained groups as JSON; published policies have files of the same kind."""
BEGUN, ACKNOWLEDGED, FAULT = "begun", "acknowledged", "fault"


# Recorded turns ------------------------------------------------------------------------------------------------------


class Record:
    """Lines that several processes append to one file. What a killed process has written stays."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, *words: object) -> None:
        """Append a line."""
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


class RecordingSettings(RolloutGeneratorSettings):
    """Settings of a generator, and the file of its record."""

    record: Path


class RecordingEngine:
    """An engine that records the turns it begins; all else is the engine's own."""

    def __init__(self, engine: Engine, record: Record, process: str) -> None:
        self._engine = engine
        self._record = record
        self._process = process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: TurnRequest) -> TurnResult:
        """Write one turn."""
        self._record.add(BEGUN, self._process, request.rollout, len(request.tokens))
        return await self._engine.generate(request)


class RecordingGenerator(RolloutGenerator):
    """Records the turns of its engine, and the rollouts whose trajectory is acknowledged."""

    Settings: ClassVar[type[RolloutGeneratorSettings]] = RecordingSettings

    def _make_engine(self, directory: Path, settings: RolloutGeneratorSettings) -> Engine:
        assert isinstance(settings, RecordingSettings)
        self._record = Record(settings.record)
        self._process = f"{self.context.name}#{self.context.incarnation}"
        engine: Any = RecordingEngine(super()._make_engine(directory, settings), self._record, self._process)
        return engine  # type: ignore[no-any-return]

    async def handle(self, message: Any) -> Any:
        """Remember whose request is being taken in: `defer_ack` is called before anything is awaited."""
        self._taken_in = message.rollout if isinstance(message, RolloutRequest) else ""
        return await super().handle(message)

    def defer_ack(self) -> Callable[[], None]:
        """Record the rollout when its request is acknowledged, which is when its trajectory is."""
        acknowledge, rollout = super().defer_ack(), self._taken_in

        def record() -> None:
            self._record.add(ACKNOWLEDGED, self._process, rollout)
            acknowledge()

        return record


@dataclass
class Turns:
    """By kind of fault: turns that were begun again, and turns under way at processes that the fault ended."""

    again: Counter[str] = field(default_factory=Counter)
    in_flight: Counter[str] = field(default_factory=Counter)


def read_turns(lines: Iterable[str]) -> Turns:
    """Count the turns of a record.

    A rollout that begins a turn with n tokens before it loses its earlier turns that began with n or more tokens:
    these are generated again. Each rollout that a process has begun and that was not acknowledged when the process
    ended has one turn under way, be it at the engine, at a tool, or on its way to the filter. A process has ended when
    its actor begins a turn in another one, or, for a rollout, when that begins again at another actor: the first may
    begin nothing any more.
    """
    turns = Turns()
    kind = "none"
    begun: dict[str, list[int]] = {}
    under_way: dict[str, dict[str, set[str]]] = {}
    """By actor and process: rollouts."""
    for line in lines:
        word, name, *rest = line.split()
        if word == FAULT:
            kind = name
        if word not in {BEGUN, ACKNOWLEDGED}:
            continue
        processes = under_way.setdefault(name.partition("#")[0], {})
        if name not in processes and processes:
            turns.in_flight[kind] += sum(map(len, processes.values()))
            processes.clear()
        rollouts = processes.setdefault(name, set())
        if word == ACKNOWLEDGED:
            rollouts.discard(rest[0])
            continue
        rollouts.add(rest[0])
        tokens, known = int(rest[1]), begun.setdefault(rest[0], [])
        if known and known[-1] >= tokens:
            for others in (each for of in under_way.values() for each in of.values() if each is not rollouts):
                turns.in_flight[kind] += rest[0] in others
                others.discard(rest[0])
        while known and known[-1] >= tokens:
            known.pop()
            turns.again[kind] += 1
        known.append(tokens)
    return turns


# A generator without a model -----------------------------------------------------------------------------------------


def write_model(directory: Path) -> Path:
    """Write a directory that passes for a model: the tokenizer of the quickstart, and no weight. Needs no torch."""
    tokenizer = character_tokenizer()
    directory.mkdir(parents=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": UNKNOWN,
        "pad_token": PAD,
        "eos_token": END,
        "model_max_length": LENGTH,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    size = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": LENGTH}
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen3", **size}))
    header = json.dumps({"none": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}).encode()
    (directory / TRAINED).write_bytes(len(header).to_bytes(8, "little") + header)
    return directory


def share(*words: object) -> float:
    """A number in [0, 1) that is a function of the words, in every process."""
    return int.from_bytes(blake2b(" ".join(map(str, words)).encode(), digest_size=7).digest(), "big") / 2**56


def is_right(rollout: str) -> bool:
    """Whether a scripted rollout is: half of them are, by their names."""
    return share(rollout) < 0.5


def call_and_answer(text: str, answer: str) -> str:
    """The next turn after ``text``: a call of the tool, then the answer."""
    if "<tool_response>" in text:
        return f"<answer>\\boxed{{{answer}}}</answer>"
    return f"<tool_call>{CALL_HEAD}print({answer}){CALL_TAIL}</tool_call>"


def read_two_files(text: str, answer: str) -> str:
    """The next turn of `examples/coding_agent`: files are read, and a summary has the number."""
    if text.rpartition("<|user|>")[2].startswith("Please summarize"):
        return f"Got {answer}."
    second = re.search(r"\d{3} ([a-h])\b", text)
    if second and f"$ cat {second[1]}" not in text:
        return f"$ cat {second[1]}"
    first = re.search(r"Read ([a-h])\.", text)
    return f"$ cat {first[1]}" if first and "$ cat" not in text else f"It is {answer}."


class ScriptedTurns(ScriptedEngine):
    """Turns that are written without a model; those that `is_right` names lead to the right answer."""

    def __init__(
        self,
        directory: Path,
        answers: Mapping[str, str],
        rows: int,
        written: Callable[[str, str], str] = call_and_answer,
    ) -> None:
        """``answers``: the right answer of each rollout. ``written``: the turn after a text, with an answer."""

        def script(_: int, request: TurnRequest) -> str:
            rollout = request.rollout.partition("+")[0]  # which a branch has after its number
            answer = answers[rollout] + "0" * (not is_right(rollout))
            return written(self.decode(list(request.tokens)), answer)

        def pace(request: TurnRequest) -> float:
            shortest, longest = TURN_SECONDS
            return shortest + (longest - shortest) * share(request.rollout, request.seed, len(request.tokens))

        super().__init__(
            directory,
            initial_policy=PolicyVersion(0, 0),
            script=script,
            pace=pace,
            longest=LENGTH,
            rows=rows,
            cache_tokens=rows * LENGTH,
        )

    async def load_weights(self, path: Path, policy: PolicyVersion) -> None:
        """Serve the policy from now on. Raises EngineError when the file is not that of the policy."""
        try:
            version = json.loads(await trio.Path(path).read_bytes())["version"]
        except (OSError, ValueError, KeyError) as error:
            raise EngineError(f"{path} is no policy: {error}") from error
        if version != policy.version:
            raise EngineError(f"{path} holds version {version} instead of {policy.version}")
        self._policy = policy


class _Scripted(RolloutGenerator):
    """Turns of no model."""

    async def prepare(self) -> None:
        """Let transformers find no torch, which would take two seconds of every start."""
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
        self._answers: dict[str, str] = {}
        await super().prepare()

    def make_episode(self, request: RolloutRequest) -> Episode:
        """Remember the right answer."""
        self._answers[request.rollout] = request.problem.answer
        return super().make_episode(request)

    written = staticmethod(call_and_answer)

    def _make_engine(self, directory: Path, settings: Any) -> Any:
        return ScriptedTurns(directory, self._answers, settings.max_rollouts, self.written)


class ScriptedGenerator(RecordingGenerator, _Scripted):
    """Records the turns of its engine, which are scripted."""


class ScriptedAgentGenerator(ScriptedGenerator):
    """Turns for the agent of `examples/coding_agent`."""

    written = staticmethod(read_two_files)


# A learner without a model -------------------------------------------------------------------------------------------


class Trained:
    """In place of a trainer: the groups that the model was trained on, in order."""

    reference = None
    max_length = LENGTH
    under_way = ""
    compute_bits = None

    def __init__(self, seconds: float, hurry: Path | None = None) -> None:
        """``seconds``: of a step of reinforcement learning, until there is a file ``hurry``."""
        self._seconds = seconds
        self._hurry = hurry
        self.groups: list[str] = []

    def reset_optimizer(self) -> None:
        """There are no moments."""

    def update_seconds(self, tokens: int) -> None:
        """It measures no rate."""

    def enter(self, algorithm: Any) -> None:
        """No algorithm is followed."""

    def sft_step(self, batch: Sequence[int], stage: SftStage, step: int) -> SupervisedFigures:
        """Take the time of a step."""
        del stage
        time.sleep(SUPERVISED_SECONDS)
        return SupervisedFigures(loss=1.0 / (step + 1), gradient_norm=1.0, tokens=len(batch))

    def rl_step(self, groups: Sequence[TrainingGroup], stage: RlStage, step: int) -> TrainingFigures:
        """Take the groups down."""
        del stage, step
        if self._hurry is None or not self._hurry.exists():
            time.sleep(self._seconds)
        self.groups += [group.group for group in groups]
        rollouts = [rollout for group in groups for rollout in group.trajectories]
        tokens = sum(rollout.written - sum(rollout.excluded.values()) for rollout in rollouts)
        return TrainingFigures(trained_tokens=tokens, trained_rollouts=len(rollouts), loss=0.0, entropy=1.0)

    def copy_weights(self, version: int) -> Mapping[str, Any]:
        """The content of a published policy."""
        return {"version": version, "groups": len(self.groups)}

    def stage(self, directory: Path, position: Position, extra: Mapping[str, Any]) -> StagedGroups:
        """Copy what a checkpoint holds."""
        return StagedGroups(directory, position, json.dumps(dict(extra)), json.dumps(self.groups))

    def restore(self, directory: Path) -> tuple[Position, dict[str, Any]]:
        """Go on from a checkpoint. Raises CheckpointError."""
        state = verify(directory)
        self.groups = trained_groups(directory)
        return position_of(state), dict(state["extra"])


@dataclass(frozen=True, slots=True)
class StagedGroups:
    """A checkpoint that is to be written; ``extra`` and ``groups`` as JSON."""

    directory: Path
    position: Position
    extra: str
    groups: str

    def write(self) -> None:
        """Write it, completely or not at all."""
        with whole(self.directory) as partial:
            (partial / STATE_FILE).parent.mkdir(parents=True)
            (partial / TRAINED).write_text(self.groups)
            at = {name: getattr(self.position, name) for name in ("stage", "stage_version", "version", "step")}
            state = {**at, "extra": json.loads(self.extra), "files": {TRAINED: file_checksum(partial / TRAINED)}}
            (partial / STATE_FILE).write_text(json.dumps(state | {"checksum": checksum_of_state(state)}))


def trained_groups(checkpoint: Path) -> list[str]:
    """The groups that a checkpoint's model was trained on, in order."""
    groups: list[str] = json.loads((checkpoint / TRAINED).read_text())
    return groups


def read_trained(directory: Path) -> list[str]:
    """The groups that the newest model of a run directory was trained on, in order."""
    newest = Checkpoints(directory / "checkpoints").newest()
    return [] if newest is None else trained_groups(newest)


class _Batches:
    """An endless supply of empty batches."""

    drawn: ClassVar[list[int]] = []

    def __next__(self) -> tuple[int, ...]:
        return (1,)


class ScriptedModel(TrainedModel):
    """Checkpoints and published policies of a model that is no more than a list of groups."""

    trainer: Any
    tools = False

    def _load(self) -> tuple[Position, dict[str, Any]]:
        settings, log = self._context.settings, self._context.log
        self.trainer = Trained(settings.step_seconds, settings.hurry)
        restored = self.checkpoints.restore(
            self.trainer.restore, lambda fault: log.warning("damaged checkpoint", fault=fault)
        )
        return restored or (Position(0, 0, 0), {})

    @staticmethod
    def _write(weights: Any, path: Path) -> None:
        with whole(path) as partial:
            partial.write_text(json.dumps(weights))

    def batches(self, stage: SftStage, position: Position, drawn: list[int]) -> tuple[SftStage, Any]:
        """A supervised stage as it is, and its batches."""
        del position, drawn
        return stage, _Batches()

    async def describe(self, position: Position, measured: Sequence[Measured]) -> None:
        """A list of groups has no card."""

    async def begin_rl(self, position: Position) -> bool:
        """Whether no step was trained yet."""
        await trio.lowlevel.checkpoint()
        return position.version == position.stage_version


class ScriptedSettings(LearnerSettings):
    """Settings of a learner, and the pace of reinforcement learning."""

    step_seconds: float = 0.5
    """Duration of a step, so that the run lasts until all faults have come."""
    hurry: Path | None = None
    """Once this file exists, steps take no time."""


class ScriptedLearner(Learner):
    """The learner's recipe, over a `ScriptedModel`."""

    Settings: ClassVar[type[LearnerSettings]] = ScriptedSettings

    @staticmethod
    def _import() -> None:
        """Nothing trains."""

    def _make_model(self) -> TrainedModel:
        return ScriptedModel(self.context)


# Classes that take turns with the others in a run whose actors are swapped -------------------------------------------


class OtherScriptedGenerator(ScriptedGenerator):
    """Another class."""


class OtherExecutor(ToolExecutor):
    """Another class."""


class OtherScriptedLearner(ScriptedLearner):
    """Another class."""


# Classes that do not start -----------------------------------------------------------------------------------------


class _Broken(Actor):
    async def start(self) -> None:
        """Fail."""
        await trio.lowlevel.checkpoint()
        raise RuntimeError("it does not start")


class BrokenKvScheduler(_Broken, KVScheduler):
    """A class that does not start."""


class BrokenRocFilter(_Broken, RoCFilter):
    """A class that does not start."""


class BrokenLearner(_Broken, ScriptedLearner):
    """A class that does not start."""


class BrokenRolloutGenerator(_Broken, ScriptedGenerator):
    """A class that does not start."""


class BrokenToolExecutor(_Broken, ToolExecutor):
    """A class that does not start."""
