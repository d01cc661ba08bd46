"""Choose what an entropy study looks at: trajectories from the start, the middle and the end, and a model for each.

::

    journal --> steps of RL whose trajectories are stored --> a moment for each step --> rollouts, drawn at random
    checkpoints --> for each moment, the model whose version is nearest to those that sampled its tokens

A moment is a trained RL step: the first, the middle or the last of the run. A stored step belongs to the moment nearest
to it. So the journal need not hold a moment's own step, but a moment without any stored step is missing from the study.
"""

from __future__ import annotations

import contextlib
import math
import random
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_rl.files.reading_json import read_json
from agent_rl.messages import Trajectory
from agent_rl.records.checkpoint_files import read_position
from agent_rl.records.continuing import FILE as SETTINGS
from agent_rl.records.journal import Journal, JournalError, read_journal
from agent_rl.records.rows import StepRow

Decode = Callable[[bytes], Any]
"""Decodes a message that the journal stores; raises ValueError when the bytes are not a message."""
ENTIRE = {"finished", "truncated", "turn_limit"}
"""Statuses of rollouts that the model ended, or that a limit ended."""

NEAR = 5
"""Versions between rollouts and model that need no note: the figure ``gap`` shows how little the policy changed."""


class AnalysisError(Exception):
    """The study is not possible; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A rollout of the study, with the text of its problem and, if the rollout was judged, its reward."""

    trajectory: Trajectory
    problem: str
    reward: float | None


@dataclass(frozen=True, slots=True)
class Moment:
    """Rollouts of a moment. Steps count the run's trained RL steps from 1; ``first`` and ``last`` of the rollouts."""

    name: str
    step: int
    first: int
    last: int
    stage: int
    rollouts: tuple[Drawn, ...]

    @property
    def versions(self) -> tuple[int, int]:
        """The oldest and the newest version of the policy that sampled a token of the rollouts."""
        oldest, newest = zip(*((each.trajectory.oldest, each.trajectory.newest) for each in self.rollouts), strict=True)
        return min(oldest), max(newest)


@dataclass(frozen=True, slots=True)
class Model:
    """Weights of a run: a checkpoint, or the model that the run began with (stage and version 0)."""

    version: int
    stage: int
    path: Path


@dataclass(slots=True)
class Sources:
    """What a run directory holds for a study."""

    moments: list[Moment] = field(default_factory=list)
    models: list[Model] = field(default_factory=list)
    supervised: frozenset[int] = frozenset()
    """The stages that train on conversations."""
    temperature: float = 1.0
    """The temperature of the run's rollouts."""
    notes: list[str] = field(default_factory=list)


def targets(steps: int) -> dict[str, int]:
    """The moments of a run with so many steps, as indices of the steps."""
    if steps < 3:
        return dict(zip(("start", "end"), range(steps), strict=False))
    return {"start": 0, "middle": (steps - 1) // 2, "end": steps - 1}


def assign(moments: Mapping[str, int], stored: Iterable[int]) -> dict[str, list[int]]:
    """The stored steps of each moment, nearest first. A step as near to two moments belongs to the earlier one."""
    found: dict[str, list[int]] = {name: [] for name in moments}
    for step in stored:
        nearest = min(moments, key=lambda name: (abs(step - moments[name]), moments[name]))
        found[nearest].append(step)
    for name, steps in found.items():
        steps.sort(key=lambda step: (abs(step - moments[name]), step))
    return found


def nearest(models: Sequence[Model], versions: tuple[int, int], stage: int, supervised: Iterable[int]) -> Model | None:
    """The model whose version is nearest to the middle of these versions, which a stage's rollouts were sampled by.

    A model is left out where a supervised stage lies between the model and the rollouts. Of two models equally near,
    the one of the later version and stage is taken. None when no model is left.
    """
    fitting = [
        model
        for model in models
        if not any(min(model.stage, stage) <= each < max(model.stage, stage) for each in supervised)
    ]
    middle = sum(versions) / 2
    return min(fitting, key=lambda model: (abs(model.version - middle), -model.version, -model.stage), default=None)


def fitting_model(moment: Moment, sources: Sources) -> Model:
    """The model for a moment's rollouts; a distant one is noted. Raises AnalysisError where none is left."""
    oldest, newest = moment.versions
    model = nearest(sources.models, moment.versions, moment.stage, sources.supervised)
    if model is None:
        raise AnalysisError(
            f"no checkpoint is left for the rollouts of {moment.name} (versions {oldest} to {newest}): name a model "
            "with --model DIR"
        )
    if not oldest - NEAR <= model.version <= newest + NEAR:
        sources.notes.append(
            f"{moment.name} was sampled by versions {oldest} to {newest}, and the nearest model is version "
            f"{model.version} ({model.path.name}). For a nearer one, set run.checkpoint_every and run.keep_checkpoints "
            "before the next run"
        )
    return model


def read_sources(directory: Path, decode: Decode, *, rollouts: int, seed: int) -> Sources:
    """Draw at most ``rollouts`` rollouts for each moment, and list the models. The run may be under way.

    Raises JournalError for a journal that cannot be read, and AnalysisError when it holds no rollout of an RL step.
    """
    sources = Sources()
    settings = _settings(directory, sources)
    sources.supervised = frozenset(
        int(name.removeprefix("stages."))
        for name, words in settings.items()
        if name.startswith("stages.") and str(words).startswith("sft ")
    )
    sources.models = _models(directory, settings)
    sources.temperature = _temperature(directory)
    journal = read_journal(directory)
    try:
        _read_moments(journal, decode, sources, rollouts=rollouts, rng=random.Random(seed))
    finally:
        journal.close()
    return sources


def _read_moments(journal: Journal, decode: Decode, sources: Sources, *, rollouts: int, rng: random.Random) -> None:
    steps = [step for step in journal.steps() if step.trained]
    if not steps:
        raise AnalysisError(f"{journal.path}: the run has not trained an RL step, and the study is about RL steps")
    there = journal.stored_groups()
    stored = {index for index, step in enumerate(steps) if not there.isdisjoint(step.decided)}
    wanted = targets(len(steps))
    for name, indices in assign(wanted, stored).items():
        moment = _moment(journal, decode, steps, name, wanted[name], indices, there, rollouts, rng)
        if moment is None:
            sources.notes.append(
                f"{name} is missing: the journal holds no trajectory of a step near RL step {wanted[name] + 1}. Set "
                'run.keep_trajectories = "all", or to a number of steps, before the next run'
            )
            continue
        sources.moments.append(moment)
        if moment.first != moment.step or moment.last != moment.step:
            sources.notes.append(
                f"{name} is RL step {moment.step}, and its rollouts are of steps {moment.first} to {moment.last}, the "
                "nearest that the journal holds (see run.keep_trajectories)"
            )
        if len(moment.rollouts) < rollouts:
            sources.notes.append(
                f"{name} has {len(moment.rollouts)} rollouts, not {rollouts}: the journal holds no more (see "
                "run.keep_trajectories)"
            )
    if not sources.moments:
        raise AnalysisError(
            f"{journal.path} holds no trajectory of an RL step: the run kept none. Set run.keep_trajectories before "
            "the next run"
        )


def _moment(
    journal: Journal,
    decode: Decode,
    steps: Sequence[StepRow],
    name: str,
    at: int,
    indices: Sequence[int],
    there: set[str],
    rollouts: int,
    rng: random.Random,
) -> Moment | None:
    """Rollouts of the steps in order, until there are enough: of each step, equally many from each stored group."""
    chosen: list[tuple[int, Drawn]] = []
    for index in indices:
        missing = rollouts - len(chosen)
        if missing <= 0:
            break
        groups = sorted(there.intersection(steps[index].decided))
        share = -(-missing // len(groups))
        for group in rng.sample(groups, min(len(groups), missing)):
            chosen += [(index, each) for each in _rollouts(journal, decode, group, rng)[:share]]
    del chosen[rollouts:]
    if not chosen:
        return None
    used = [index for index, _ in chosen]
    drawn = tuple(each for _, each in chosen)
    return Moment(name, at + 1, min(used) + 1, max(used) + 1, steps[used[0]].stage, drawn)


def _rollouts(journal: Journal, decode: Decode, group: str, rng: random.Random) -> list[Drawn]:
    """A group's rollouts with text of the model, in random order."""
    row = journal.group(group)
    stored = [each for each in journal.trajectories(group) if each.status in ENTIRE]
    rng.shuffle(stored)
    try:
        problem = "" if row is None else str(decode(row.opened).problem.text)
        drawn = [Drawn(decode(each.payload), problem, each.reward) for each in stored]
    except ValueError as error:
        raise JournalError(f"{journal.path}: {group} cannot be read: {error}") from error
    return [each for each in drawn if each.trajectory.oldest is not None]


def _settings(directory: Path, sources: Sources) -> dict[str, Any]:
    try:
        settings = read_json(directory / SETTINGS)
    except (OSError, ValueError) as error:
        settings = None
        sources.notes.append(
            f"{directory / SETTINGS} cannot be read ({error}): whether a supervised stage came first is unknown"
        )
    return settings if isinstance(settings, dict) else {}


def _models(directory: Path, settings: Mapping[str, Any]) -> list[Model]:
    """The run's complete checkpoints between stages and RL steps, and the model that it began with, if on this disk."""
    found = []
    for pattern in ("version-*", "best-version-*"):
        for path in sorted((directory / "checkpoints").glob(pattern)):
            position = read_position(path)
            if position is not None and not position.step and (path / "config.json").is_file():
                found.append(Model(position.version, position.stage, path))
    began = [directory / "model"]
    if isinstance(named := settings.get("model.path"), str):
        began.append(Path(named).expanduser())
    found += [Model(0, 0, path) for path in began if (path / "config.json").is_file()]
    return found


def _temperature(directory: Path) -> float:
    """The temperature in the topology that the actors of the run read; 1 where there is none."""
    for path in sorted(directory.glob("topology.*.toml")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            temperature = float(tomllib.loads(path.read_text(encoding="utf-8"))["algorithm"]["temperature"])
            if 0 < temperature < math.inf:
                return temperature
    return 1.0
