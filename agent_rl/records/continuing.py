"""Whether the run in a directory can go on: by its settings, and by its journal, checkpoints and ``metrics.jsonl``.

The directory keeps the settings of the first start on which journal and checkpoints depend: the seed, the model, the
environments, the size of groups and steps, the stages already named, and the checksums of the files of data. Another
value is refused. Everything else (lengths of stages, limits, hosts, actors and their settings, how the learner's ranks
share the model) may change, and stages may be appended.

::

    step trained --> journal flushed --> learner told --> checkpoint flushed --> journal told (kept_from) --> compaction

So a checkpoint never contains a step that the journal lacks, whatever crashes, also when the machine loses power. The
journal may contain later steps, and replays them. A checkpoint stores the run's id and the last step recorded before it
(`Mark`). The journal stores the id, its steps, and the version from which on it still has the rollouts. A row of
metrics.jsonl is written after the flush as well.

`disagreement` decides, and is pure. The supervisor applies it to the files before it starts any actor
(`check_history`). The filter applies it to the learner's report (`refuse_learner`), since the checkpoint may be on
another host's disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_rl.config.full import resolved_text
from agent_rl.config.hidden import redacted
from agent_rl.config.topology import RlStage, SftStage, Topology
from agent_rl.environments.base import TaskError
from agent_rl.environments.load import shown_settings
from agent_rl.environments.task_files import named_in, resolve
from agent_rl.files.disk import whole
from agent_rl.files.reading_json import open_file, read_json
from agent_rl.messages import StageEntered
from agent_rl.records.checkpoint_files import Position, read_state
from agent_rl.records.journal import JOURNAL, EmptyJournalError, Journal, JournalError, read_journal
from agent_rl.records.run_directory import RunRefused

METRICS, SUMMARY, CHECKPOINTS = "metrics.jsonl", "summary.json", "checkpoints"
SETTINGS, MADE_WITH = "topology.json", "made_with"
"""The file, and the journal's fact, with the settings that must not change."""
SFT_STEPS = "sft_steps_of_stage_{}"
"""The journal's fact with the steps of a supervised stage."""
LAYOUT = "model.parallel"
"""How ranks share the model: earlier releases kept it, and any layout reads the checkpoints of any other."""
ELSEWHERE = "or start again in another run.directory"

# Settings -------------------------------------------------------------------------------------------------------------


def made_with(topology: Topology) -> dict[str, Any]:
    """The settings that must not change, by their keys in the topology, and without secrets."""
    whole = topology.model_dump(mode="json")
    algorithm = whole["algorithm"]
    kept: dict[str, Any] = {"run.seed": whole["run"]["seed"]}
    kept |= {key: value for part, value in whole["model"].items() if (key := f"model.{part}") != LAYOUT}
    for index, entry in enumerate(whole["environments"]):
        entry["settings"] = shown_settings(topology.environments[index])
        kept |= {f"environments.{index}.{key}": value for key, value in entry.items()}
    kept |= {f"algorithm.{key}": algorithm[key] for key in ("groups_per_step", "samples", "keep")}
    for index, stage in enumerate(whole["stages"]):
        own = [
            f", {key} {stage[key]}" for key in ("groups_per_step", "samples") if stage["kind"] == "rl" and stage[key]
        ]
        kept[f"stages.{index}"] = f"{stage['kind']} stage named {stage['name']}{''.join(own)}"
        if stage["kind"] == "select":  # what is counted is of these problems, with so many samples of each
            kept[f"stages.{index}.samples"] = stage["samples"]
            kept |= {f"stages.{index}.filter.{key}": value for key, value in stage["filter"].items()}
    return kept


def data_of(topology: Topology, base: Path) -> dict[str, list[str]]:
    """Name and SHA-256 of each file of data that is on this host, by what names it. Raises RunRefused.

    These are the task files in the settings of environments, the conversations of ``sft`` stages and lists of ids.
    """
    files = {
        f"environments.{index}": sorted(named_in(entry.settings, base / entry.base))
        for index, entry in enumerate(topology.environments)
    }
    for index, stage in enumerate(topology.stages):
        ids = None if (wanted := getattr(stage, "filter", None)) is None else wanted.ids
        found = [] if ids is None else [base / ids]
        with suppress(TaskError):  # a file that is missing is told by who reads it
            found += [path for pattern in getattr(stage, "data", ()) for _, path in resolve(pattern, base)]
        files[f"stages.{index}"] = [path for path in found if path.is_file()]
    return {f"data of {of}": list(map(_contents, paths)) for of, paths in files.items() if paths}


def _contents(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"
    except OSError as error:
        raise RunRefused(_unreadable(path, error)) from error


def _unreadable(path: Path, error: OSError) -> str:
    return f"{path} cannot be read ({error.strerror}); see to its disk and its permissions"


def started_otherwise(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """A message that lists the settings that changed, with the remedy; None when none changed."""
    before = {key: redacted(value) for key, value in before.items()}
    changed = [key for key, value in before.items() if key != LAYOUT and now.get(key) != value]
    if not changed:
        return None
    lines = [f"{key}: {_shown(before[key])} then, {_shown(now.get(key))} now" for key in changed]
    remedy = "undo these changes to continue it, or set another run.directory to start a new run"
    return "\n  ".join([f"{path} holds a run that was started with other settings:", *lines, remedy])


def remember(topology: Topology, directory: Path, base: Path | None = None) -> str:
    """Store the settings of a run's first start; compare those of a later start with them.

    With ``base``, the topology file's folder, also the contents of the files of data that are on this host.
    A file that a stopped disk has left empty or broken is written again: the journal holds the same settings, and
    `check_history` has compared them. Returns a line about that, or an empty text.

    Raises RunRefused, which names every setting that must not change, with both values and the remedy.
    """
    path = directory / SETTINGS
    data = {} if base is None else data_of(topology, base)
    now, said = made_with(topology) | data, ""
    if path.exists():
        try:
            before: Any = read_json(path)
        except OSError as error:
            raise RunRefused(_unreadable(path, error)) from error
        except ValueError:
            before = None
        if not isinstance(before, dict):
            said = f"{path} was not readable, and is written again: the journal holds the same settings"
            before = {}
        now |= {key: value for key, value in before.items() if key.startswith("data of ") and key not in data}
        if fault := started_otherwise(path, before, now):
            raise RunRefused(fault)
        if now.keys() == before.keys():
            return said
    with whole(path, others_write_it=True, private=True) as partial:  # the supervisors of several hosts start together
        partial.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
    return said


def write_resolved(topology: Topology, directory: Path, host: str, command: str) -> Path:
    """Store the resolved topology of this start.

    Actors read this copy, so later edits of the user's files have no effect. It holds secrets of settings as they are,
    for its owner only. ``host`` is the first host that the calling supervisor starts; ``command`` starts the run again.
    Raises DiskError.
    """
    path = directory / f"topology.{host}.toml"
    text = f"# What the actors of this run read; made by: {command}\n\n{resolved_text(topology)}"
    with whole(path, private=True) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def _shown(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value)


# History --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mark:
    """A checkpoint's reference to the journal: the run's id, and the version of the last step that was recorded.

    ``run`` is empty before the first answer of the journal.
    """

    run: str = ""
    step: int = -1

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Mark:
        """The mark in a checkpoint's extra data."""
        return cls(**extra.get("history", {}))

    def kept(self) -> dict[str, Any]:
        """The extra data that stores the mark."""
        return {"history": asdict(self)}


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint: its name, its position in the recipe, and its mark."""

    name: str
    position: Position
    mark: Mark


@dataclass(frozen=True, slots=True)
class Known:
    """The journal's side of the comparison."""

    path: Path
    run: str
    stage: int
    """The last stage entered; -1 before the first."""
    step: int
    """The version of the last step trained; -1 before the first."""
    kept_from: int | None
    """No replay can start before this version; None while no checkpoint was recorded."""
    evaluated: frozenset[int]


def known(journal: Journal) -> Known:
    """Read a journal's side of the comparison. Raises JournalError when the journal cannot be read."""
    run, stage, kept_from = (journal.fact(name) for name in ("run", "stage", "kept_from"))
    start = None if kept_from is None else int(kept_from)
    evaluated = frozenset(journal.evaluations())
    return Known(journal.path, run or "", -1 if stage is None else int(stage), journal.last_step(), start, evaluated)


def disagreement(journal: Known, checkpoint: Saved | None, kinds: Sequence[str]) -> str | None:
    """Why the run cannot continue from this checkpoint with this journal, and the remedy; None when it can.

    ``checkpoint`` is None when there is none. ``kinds`` are the kinds of the recipe's stages.
    """
    if checkpoint is None:
        if journal.kept_from is None:
            return None
        return f"{journal.path} records checkpoints, but there is none: put the folder {CHECKPOINTS} back, {ELSEWHERE}"
    name, mark, at = checkpoint.name, checkpoint.mark, checkpoint.position
    if mark.run and mark.run != journal.run:
        return (
            f"{name} belongs to run {mark.run}, and {journal.path} to run {journal.run}: put back checkpoints and "
            f"journal of one run, {ELSEWHERE}"
        )
    if not mark.run:
        return (
            f"{name} names no run: it belongs to another run or was written by another version of agent_rl: "
            f"put back this run's checkpoints, {ELSEWHERE}"
        )
    left = at.stage - 1
    unevaluated = 0 <= left < len(kinds) and kinds[left] == "evaluate" and left not in journal.evaluated
    if mark.step > journal.step or left > journal.stage or unevaluated:
        return (
            f"{journal.path} is older than {name}: the journal ends {_reached(journal.step, journal.stage)}, the "
            f"checkpoint was written {_reached(mark.step, at.stage)}. Put back the journal of that time or a later "
            f"one, {ELSEWHERE}"
        )
    if journal.kept_from is not None and at.version < journal.kept_from:
        return (
            f"{name} is too old for {journal.path}, which holds rollouts from version {journal.kept_from} on: put back "
            f"a checkpoint of that version or a later one, {ELSEWHERE}"
        )
    return None


def _reached(step: int, stage: int) -> str:
    return f"in stage {stage}, " + (f"after the step at version {step}" if step >= 0 else "before the first step")


def refuse_learner(journal: Journal, entered: StageEntered, kinds: Sequence[str]) -> None:
    """Compare the position that a restarted learner reports with the journal.

    A user's own learner may name no run; `check_history` has then checked its files if they are on this host.
    Raises JournalError.
    """
    position = Position(entered.stage, entered.stage_version, entered.version)
    fault = None
    if entered.run:
        name = f"the learner's checkpoint of version {position.version}"
        fault = disagreement(known(journal), Saved(name, position, Mark(entered.run, entered.last_step)), kinds)
    elif position == Position(0, 0, 0):
        fault = disagreement(known(journal), None, kinds)
    if fault is not None:
        raise JournalError(fault)


def check_history(directory: Path, topology: Topology, hosts: Sequence[str] | None = None) -> list[str]:
    """Refuse to start with a journal that is missing, empty, damaged, older than the checkpoints, or of another run.

    ``hosts`` are the hosts that use this disk (default: the filter's). Checkpoints are checked when the learner's host
    is one of them. Returns sentences about stages that ended with fewer steps than the topology gives them now.
    Raises JournalError with the remedy.
    """
    keeper = topology.journal_host
    here = hosts if hosts is not None else [keeper]
    if keeper is None or keeper not in here:
        return []
    for name in (JOURNAL, METRICS, SUMMARY):
        if (directory / name).is_dir():
            raise JournalError(
                f"{directory / name} is a directory where the run writes a file: move it away, {ELSEWHERE}"
            )
    path = directory / JOURNAL
    rows = _row_count(directory / METRICS)
    saved = checkpoints(directory) if topology.main_host in here else []
    missing = not path.exists()
    try:
        journal = None if missing or not path.stat().st_size else read_journal(directory)
    except EmptyJournalError:  # the process that began to make it was killed
        journal = None
    if journal is None:
        witnesses = [each.name for each in saved[-1:]] + [f"{rows} rows in {METRICS}"] * (rows > 0)
        if witnesses:
            raise JournalError(
                f"{path} is {'missing' if missing else 'empty'}, and the run has a history: {' and '.join(witnesses)}. "
                f"Put the journal back (with {JOURNAL}-wal, if there is one), {ELSEWHERE}"
            )
        return []
    with closing(journal):
        if hosts is not None:
            journal.check_structure()
            if lost := journal.lost_steps():
                raise JournalError(f"{path} has lost steps ({lost[0]}): put back a whole copy of it, {ELSEWHERE}")
        knows = known(journal)
        recorded = journal.record_count()
        before = json.loads(journal.fact(MADE_WITH) or "{}")
        short = list(_short_stages(journal, knows.stage, topology))
    if otherwise := started_otherwise(path, before, made_with(topology)):
        raise JournalError(otherwise)
    if topology.main_host in here:
        kinds = [stage.kind for stage in topology.stages]
        strangers = [each for each in saved if each.mark.run and knows.run and each.mark.run != knows.run]
        newest = strangers[-1] if strangers else saved[-1] if saved else None
        fault = disagreement(knows, newest, kinds)
        damaged = newest is None and any((directory / CHECKPOINTS).glob("version-*"))  # the learner names the file
        if fault is not None and not damaged:
            raise JournalError(fault)
    # This check is last, since its remedy (moving the rows away) helps only where nothing else is wrong.
    if rows > recorded:
        raise JournalError(
            f"{_behind(path, rows, recorded)}. Put back a later journal, {ELSEWHERE}; or move {METRICS} elsewhere, to "
            "continue from this journal and lose the later steps"
        )
    return short


def _short_stages(journal: Journal, entered: int, topology: Topology) -> Iterator[str]:
    """Stages before the one ``entered`` last that took fewer steps than the topology gives them: their time was up, or
    the user asks for more steps since.
    """
    for index, stage in enumerate(topology.stages[: max(entered, 0)]):
        if isinstance(stage, RlStage | SftStage):
            supervised = journal.fact(SFT_STEPS.format(index)) or stage.steps
            took = sum(step.trained for step in journal.steps(stage=index)) if stage.kind == "rl" else int(supervised)
            if took < stage.steps:
                yield (
                    f"stage {stage.name!r} ended after {took} of {stage.steps} steps, and no stage that has ended is "
                    f"entered again; to train on, add a stage at the end of the topology, as in [[stages]] "
                    f'kind = "{stage.kind}", steps = {stage.steps - took}'
                )


def faults_between(directory: Path, journal: Journal) -> list[str]:
    """How the journal, the newest checkpoint and metrics.jsonl contradict each other. No run may be under way.

    Missing checkpoints are no fault: they may be on another host. Raises JournalError when the journal cannot be read.
    """
    knows, recorded, rows = known(journal), journal.record_count(), _row_count(directory / METRICS)
    faults = [disagreement(knows, each, ()) for each in checkpoints(directory)[-1:]]
    if rows > recorded:
        faults.append(_behind(journal.path, rows, recorded))
    return [fault for fault in faults if fault is not None]


def _behind(path: Path, rows: int, recorded: int) -> str:
    return f"{path} is older than {METRICS}, which has {rows} rows where the journal has {recorded}"


def checkpoints(directory: Path) -> list[Saved]:
    """The readable checkpoints of a run directory, oldest first."""
    found = []
    for path in sorted((directory / CHECKPOINTS).glob("version-*")):
        if state := read_state(path):
            position, extra = state
            found.append(Saved(f"{CHECKPOINTS}/{path.name}", position, Mark.of(extra)))
    return found


def _row_count(path: Path) -> int:
    """How many whole rows a file of JSON lines has."""
    try:
        with open_file(path) as file:
            return file.read().count(b"\n")
    except OSError:
        return 0
