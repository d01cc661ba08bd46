"""Which problems an evaluation asks: those of files, or the held-out ones of a topology's environments."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_rl.config.load import load_topology
from agent_rl.config.source import Files, Source, first_of
from agent_rl.config.topology import EnvironmentEntry
from agent_rl.environments.load import mixed_tasks, shown_settings
from agent_rl.environments.maths import Maths
from agent_rl.environments.task_files import resolve

FILES = "maths"
"""The environment that asks the problems of files."""


class EvaluationError(Exception):
    """The evaluation is not possible; the message says what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class Problems:
    """How many problems are asked, in order, and of which environments, as a topology file names them.

    ``content`` is what must not change while the evaluation goes on.
    """

    count: int
    environments: tuple[Mapping[str, Any], ...]
    content: Mapping[str, Any]


WANTED = "--data FILE..., or --topology FILE for the problems of its environments; or two results: --compare A B"
"""What a command that asks nothing could ask."""


def chosen_problems(
    patterns: Sequence[str], topology: Files | None, count: int | None, *, prompt: str | None = None, seed: int = 0
) -> Problems:
    """The first ``count`` problems (None: all) of the files that paths and globs name; without any, of the topology's.

    ``prompt`` is how the problems of files are put; None leaves it to the topology. ``seed`` is the evaluation's.
    Raises TaskError for what is no file or no problem, TopologyError, and EvaluationError when there are fewer than
    asked for.
    """
    entries: list[dict[str, Any]]
    if patterns:
        found = [str(path.absolute()) for pattern in patterns for _, path in resolve(pattern, Path.cwd())]
        entries = [{"class": FILES, "settings": {"evaluation_files": found}}]
    elif topology is None:
        raise EvaluationError(f"no problems are named: {WANTED}")
    else:
        loaded = load_topology(topology)
        base = first_of(topology).absolute().parent
        entries = [
            {**entry.model_dump(mode="json", by_alias=True, exclude_none=True), "base": str(base / entry.base)}
            for entry in loaded.environments
        ]
    for entry in entries:
        if entry["class"] == FILES and prompt is not None:
            entry["settings"] = {**entry["settings"], "prompt": prompt}
    environments = [EnvironmentEntry.model_validate(entry) for entry in entries]
    source = mixed_tasks(environments, seed=seed, base=Path.cwd())
    known = source.evaluation_count
    named = ", ".join(patterns) or str(first_of(topology) if topology else "")
    if known == 0:
        raise EvaluationError(f"{named}: there is no held-out problem in it; name other --data or --topology")
    if count is None and known is None:
        raise EvaluationError(f"{named}: its problems have no end; say how many, --problems N")
    wanted = count or known or 0
    if known is not None and wanted > known:
        raise EvaluationError(f"--problems asks for {wanted} problems, and there are {known}")
    digest = hashlib.sha256()
    for number in range(wanted):
        digest.update(json.dumps(asdict(source.evaluation(number)), sort_keys=True).encode())
    shown = [{**entry, "settings": shown_settings(made)} for entry, made in zip(entries, environments, strict=True)]
    return Problems(wanted, tuple(entries), {"environments": shown, "problems": digest.hexdigest()[:16]})


def prompt_in(topology: Files) -> str | None:
    """How a topology file has the problems of files put; None when it has none."""
    entries = Source(topology).data.get("environments")
    return prompt_of([entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else ())


def prompt_of(entries: Iterable[Mapping[str, Any]]) -> str | None:
    """The setting ``prompt`` of the first environment that has one, or whose class has one by default."""
    for entry in entries:
        settings = entry.get("settings")
        if isinstance(settings, dict) and isinstance(prompt := settings.get("prompt"), str):
            return prompt
        if entry.get("class") == FILES:
            return str(inspect.signature(Maths).parameters["prompt"].default)
    return None
