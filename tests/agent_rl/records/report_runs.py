"""Run directories for tests of the report, written by the code that writes them in production."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from actors.roc_filter.replay import decode_stored, encode_stored
from agent_rl.config.load import load_topology
from agent_rl.figures import StageFigures, SupervisedFigures, TrainingFigures
from agent_rl.groups.statistics import RolloutFigures, evaluation_figures, step_figures
from agent_rl.messages import (
    Evaluation,
    GroupOpened,
    Judgement,
    PolicyVersion,
    Problem,
    ToolCallRecord,
    Trajectory,
    Transcript,
)
from agent_rl.observe.report import read_page
from agent_rl.records.continuing import remember
from agent_rl.records.journal import Journal
from agent_rl.records.run_records import RunRecords
from agent_rl.records.timeline import TimelineFile
from agent_rl.scheduling.staleness import Step
from agent_rl_contract import builders
from tests.builders import evaluate_stage, status
from tests.end_to_end.topologies import write_micro

SFT, BEFORE, RL, AFTER = range(4)
BEGAN = 1_000_000.0
"""When synthetic runs begin, on the wall clock."""


def byte_tokenizer() -> Tokenizer:
    """One token a byte: any text survives."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@cache
def _tokens(words: str) -> tuple[int, ...]:
    return tuple(byte_tokenizer().encode(words).ids)


def trajectory(
    group: GroupOpened,
    sample: int,
    pieces: Sequence[str],
    *,
    calls: Sequence[ToolCallRecord] = (),
    status: Any = "finished",
) -> Trajectory:
    """What the model wrote and was told, in turn: pieces 0, 2, ... are its own."""
    encoded = [_tokens(piece) for piece in pieces]
    tokens = [token for piece in encoded for token in piece]
    mask = [int(index % 2 == 0) for index, piece in enumerate(encoded) for _ in piece]
    return builders.repacked(
        builders.trajectory(group, sample, answer=None),
        judgement=None,
        transcript=Transcript(tuple(pieces[::2]), tuple(calls), status=status),
        tokens=np.array(tokens, dtype=np.int32),
        loss_mask=np.array(mask, dtype=np.uint8),
        logprobs=np.zeros(len(tokens), dtype=np.float32),
        policies=np.tile(np.array([[1, group.policy.version]], dtype=np.int32), (len(tokens), 1)),
    )


def judgement(reward: float) -> Judgement:
    """Right with the whole reward alone."""
    return Judgement(reward, success=reward >= 1, parts={"share": float(reward)})


class SyntheticRun:
    """A run directory under way: stages sft, evaluation `before`, rl, evaluation `after`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        path, self.directory = write_micro(folder)
        path.write_text(path.read_text().replace("keep = 2", "keep = 4"))
        self.directory.mkdir()
        topology = load_topology(path)
        remember(topology, self.directory)
        (self.directory / "model").mkdir()
        byte_tokenizer().save(str(self.directory / "model" / "tokenizer.json"))
        self.journal = Journal(self.directory / "journal.sqlite")
        self.records = RunRecords(self.directory, self.journal, topology, BEGAN, BEGAN)
        self.wall = BEGAN
        self.version = 0
        self._number = 0

    def enter(self, stage: int, loss: float | None = None) -> None:
        """The learner enters a stage; ``loss`` is that of the supervised one before."""
        self.journal.set_fact("stage", str(stage))
        self.journal.set_fact("stage_version", str(self.version))
        if stage:
            supervised = None if loss is None else SupervisedFigures(steps=3, loss=loss)
            left = StageFigures(stage=stage - 1, stage_seconds=1.0, supervised=supervised)
            self.records.stage_left(left, self.wall)
        self._number = 0

    def step(
        self,
        rewards: Sequence[Sequence[float]],
        pieces: Sequence[str] = ("yes",),
        calls: Sequence[ToolCallRecord] = (),
        **figures: float,
    ) -> None:
        """A trained step whose groups had these rewards; those with equal ones are dropped, of others all are kept."""
        trained, decided, rollouts = [], [], []
        for of in rewards:
            group = self._open("train", samples=len(of))
            decided.append(group.group)
            for sample, reward in enumerate(of):
                made = trajectory(group, sample, pieces, calls=calls)
                rollouts.append(RolloutFigures.of(made, group).judged(judgement(reward)))
                self._store(made, reward)
            if len(set(of)) > 1:
                trained.append(group.group)
                self.journal.ready(group.group, [(sample, 0) for sample in range(len(of))], of, self.version, 1)
            else:
                self.journal.drop(group.group, "equal_rewards", of[0], self.version, 1)
        self.close_step(trained, decided, rollouts)
        self.wall += 1.0
        self.journal.step_trained(self.version, TrainingFigures(**{"entropy": 0.5, "policy_gap": 0.001, **figures}))
        self.records.step(self.version, self.wall)
        self.version += 1

    def close_step(self, trained: Sequence[str], decided: Sequence[str], rollouts: Sequence[RolloutFigures]) -> None:
        """The filter closes a step of these groups, of which some are to be trained."""
        step = Step(self.version, tuple(trained), tuple(decided), (), tuple(0 for _ in trained), 1)
        self.journal.close_step(self.version, RL, trained, decided, step_figures(rollouts, step))

    def evaluate(self, stage: int, rewards: Sequence[float], pieces: Sequence[str] = ("yes",)) -> None:
        """A whole evaluation: the same rewards sampled and greedy."""
        judged = []
        for purpose in ("evaluate_sampled", "evaluate_greedy"):
            for index, reward in enumerate(rewards):
                group = self._open(purpose, stage=stage, samples=1, problem=index)
                made = trajectory(group, 0, pieces)
                judged.append(RolloutFigures.of(made, group).judged(judgement(reward)))
                self._store(made, reward)
                self.journal.evaluated(group.group)
        name = "before" if stage == BEFORE else "after"
        figures = evaluation_figures(judged, evaluate_stage(name=name, problems=len(rewards)))
        self.journal.add_evaluation(Evaluation(stage), figures)
        self.wall += 1.0
        self.records.evaluation(Evaluation(stage), figures, self.wall)

    def whole(self) -> SyntheticRun:
        """A run from beginning to end."""
        self.enter(SFT)
        self.version = 1
        self.enter(BEFORE, loss=0.25)
        self.evaluate(BEFORE, [0, 0, 0, 1])
        self.enter(RL)
        self.step([[0, 1, 0, 0], [0, 0, 0, 0]])
        self.step([[0, 1, 1, 1], [1, 1, 1, 1]])
        self.step([[1, 1, 1, 0], [1, 1, 1, 1]])
        self.enter(AFTER)
        self.evaluate(AFTER, [1, 1, 0, 1])
        self.enter(4)
        return self

    def timeline(self, seconds: int = 8) -> SyntheticRun:
        """As many seconds in which the learner worked three quarters of the time, and waited else."""
        file = TimelineFile(self.directory, 0.0, lambda: BEGAN + self._at)
        for second in range(seconds + 1):
            self._at = float(second)
            for busy, waiting_for, actor in ((0.75, "roc_filter: step 3", "learner.0"), (0.5, "", "roc_filter.0")):
                figures = {"stages": 4, "stage": 0, "step": second, "loss": 4.0 - second / 4, "nan": float("nan")}
                total = busy * second
                file.observe(
                    status(actor, waiting_for=waiting_for, busy=total, cpu=total / 2, **figures), float(second)
                )
        return self

    def close(self) -> Path:
        """Write what a stopping filter writes; the run directory."""
        self.records.commit()
        self.records.write_summary(self.wall)
        self.journal.close()
        return self.directory

    def question(self, number: int) -> Problem:
        """What a group is asked."""
        return Problem(f"p{number}", f"What is {number}?", str(number))

    def _open(self, purpose: Any, *, stage: int = RL, samples: int, problem: int | None = None) -> GroupOpened:
        number, self._number = self._number, self._number + 1
        name = f"s{stage}-g{number:06d}"
        question = self.question(number if problem is None else problem)
        group = GroupOpened(name, stage, number, purpose, question, samples, PolicyVersion(1, self.version))
        self.journal.open_group(name, stage, number, purpose, encode_stored(group))
        return group

    def _store(self, made: Trajectory, reward: float) -> None:
        self.journal.add_trajectory(made.group, made.sample, 0, made.status, encode_stored(made))
        self.journal.judge(made.group, made.sample, 0, judgement(reward))


def whole(folder: Path) -> Path:
    """The directory of a whole run that has ended, with its timeline."""
    return SyntheticRun(folder).whole().timeline().close()


def played(folder: Path, *stages: Sequence[Any]) -> Path:
    """The directory of a run that entered these stages: each with the rewards of its steps, or of its evaluation. A
    step that is a pair has figures of its own.
    """
    made = SyntheticRun(folder)
    for stage, *parts in stages:
        made.enter(stage)
        for part in parts:
            if stage == RL:
                rewards, figures = part if isinstance(part, tuple) else (part, {})
                made.step(rewards, **figures)
            else:
                made.evaluate(stage, part)
    return made.close()


def report(directory: Path) -> Shown:
    """The report of a run directory, not written."""
    return Shown(read_page(directory, decode_stored)[1])


class Shown:
    """The JSON object of a report, read as people read the page."""

    def __init__(self, page: dict[str, Any]) -> None:
        self.page = page
        self.blocks = [block for section in page["sections"] for block in section["blocks"]]

    def headline(self) -> str:
        """The one sentence."""
        return plain(self.page["headline"])

    def notes(self) -> str:
        """The notes of the report about itself."""
        return "\n".join(self.page["notes"])

    def of(self, kind: str) -> list[Any]:
        """The content of all blocks of a kind."""
        return [block[kind] for block in self.blocks if kind in block]

    def charts(self) -> dict[str, dict[str, Any]]:
        """Every chart by its title."""
        return {chart["title"]: chart for charts in self.of("charts") for chart in charts}

    def words(self) -> list[str]:
        """The words of every place of every chart, timelines too."""
        return [plain(words) for chart in (*self.charts().values(), *self.of("lanes")) for words in chart["words"]]

    def rows(self) -> dict[str, list[Any]]:
        """Cells of all table rows, by their first cell."""
        rows = [row for table in self.of("table") for row in table["rows"]]
        return {
            cells[0]: [plain(cell) if isinstance(cell, str) else cell for cell in cells[1:]]
            for cells in ([row[0] if isinstance(row[0], str) else row[0][0], *row[1:]] for row in rows)
        }

    def rows_listed(self) -> list[dict[str, Any]]:
        """Every listed trajectory by column, with those of its group."""
        (explorer,) = self.of("explorer")
        columns = explorer["columns"]
        return [
            dict(zip(columns["group"], explorer["groups"][row[0]], strict=True))
            | dict(zip(columns["row"], row, strict=True))
            | {"key": ".".join(map(str, row[:3]))}
            for row in explorer["rows"]
        ]

    def listed(self, key: str) -> dict[str, Any]:
        """The listed trajectory of this key."""
        return next(row for row in self.rows_listed() if row["key"] == key)

    def bodies(self) -> dict[str, Any]:
        """The whole trajectories in the page, by key."""
        return self.of("explorer")[0]["bodies"]

    def everything(self) -> str:
        """All text."""
        return "\n".join(map(plain, strings(self.page)))


def strings(value: Any) -> Iterator[str]:
    """Every string within a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from strings(each)


def plain(words: str) -> str:
    """The words with plain spaces."""
    return words.replace("\u202f", " ")


def lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def metrics(directory: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl."""
    return lines(directory / "metrics.jsonl")
