"""Continuing a run: which settings must be the same as at its first start.

The run directory keeps those settings of the first start: the seed, the model, the environments, the size of groups and
steps, the stages already named, and the checksums of the files of data. Journal and checkpoints depend on them, so
another value is refused. Everything else (lengths of stages, limits, hosts, actors and their settings, how the
learner's ranks share the model) may change, and stages may be appended.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_rl.config.full import resolved_text
from agent_rl.config.hidden import redacted
from agent_rl.config.topology import Topology
from agent_rl.environments.base import TaskError
from agent_rl.environments.load import shown_settings
from agent_rl.environments.task_files import named_in, resolve
from agent_rl.files.disk import whole
from agent_rl.files.reading_json import read_json
from agent_rl.records.run_directory import RunRefused

FILE = "topology.json"
LAYOUT = "model.parallel"
"""How ranks share the model: earlier releases kept it, and any layout reads the checkpoints of any other."""


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
        raise RunRefused(f"{path} cannot be read ({error.strerror}); see to its disk and its permissions") from error


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
    path = directory / FILE
    data = {} if base is None else data_of(topology, base)
    now, said = made_with(topology) | data, ""
    if path.exists():
        try:
            before: Any = read_json(path)
        except OSError as error:
            raise RunRefused(
                f"{path} cannot be read ({error.strerror}); see to its disk and its permissions"
            ) from error
        except ValueError:
            before = None
        if not isinstance(before, dict):
            said = f"{path} was not readable, and is written again: the journal holds the same settings"
            before = {}
        elsewhere = {key: value for key, value in before.items() if key.startswith("data of ") and key not in data}
        now |= elsewhere
        fault = started_otherwise(path, before, now)
        if fault is not None:
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
