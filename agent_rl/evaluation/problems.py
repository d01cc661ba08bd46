"""Which problems an evaluation asks: those of files, or the held-out ones of a topology."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from agent_rl.config.load import load_topology
from agent_rl.config.source import Files, Source, first_of
from agent_rl.environments.task_files import problem_of, read_rows, resolve
from agent_rl.environments.tasks import load_tasks
from agent_rl.evaluation.errors import EvaluationError


@dataclass(frozen=True, slots=True)
class AskedProblem:
    """A problem's place among others, with what its row says beside."""

    file: str
    id: str
    subject: str = ""
    level: str = ""


@dataclass(frozen=True, slots=True)
class Problems:
    """The problems in the order in which they are asked.

    ``tasks`` is what ``[tasks]`` of the evaluation's topology says of them, ``content`` what must not change while it goes on.
    """

    asked: tuple[AskedProblem, ...]
    tasks: Mapping[str, Any]
    content: Mapping[str, Any]


def chosen_problems(patterns: Sequence[str], topology: Files | None, count: int | None) -> Problems:
    """The first ``count`` problems (None: all) of the files that paths and globs name; without any, of the topology's.

    Raises TaskError for what is no file or no problem, TopologyError, and EvaluationError when there are fewer than asked for.
    """
    if patterns:
        return _of_files([path.absolute() for pattern in patterns for _, path in resolve(pattern, Path.cwd())], count)
    if topology is None:
        raise EvaluationError("name a MODEL and --data FILE..., or two results: --compare A B")
    tasks = load_topology(topology).tasks
    base = first_of(topology).absolute().parent
    if tasks.generator is None:
        if not tasks.evaluation_files:
            raise EvaluationError(f"{first_of(topology)} names no evaluation_files: give --data FILE...")
        found = [path.absolute() for pattern in tasks.evaluation_files for _, path in resolve(pattern, base)]
        return _of_files(found, count)
    source = load_tasks(tasks, seed=0, base=base)
    known = source.evaluation_count
    if count is None and known is None:
        raise EvaluationError(f"{tasks.generator} makes problems without end: say how many, --problems N")
    wanted = _checked(count or known or 0, known)
    asked = tuple(AskedProblem(tasks.generator, source.evaluation(number).id) for number in range(wanted))
    said = {"generator": tasks.generator, "settings": dict(tasks.settings)}
    return Problems(asked, said, said)


def prompt_in(topology: Files) -> str | None:
    """The prompt that a topology file names."""
    tasks = Source(topology).data.get("tasks")
    return tasks.get("prompt") if isinstance(tasks, dict) else None


def _of_files(files: Sequence[Path], count: int | None) -> Problems:
    asked = tuple(islice(_rows(files), count))
    if not asked:
        raise EvaluationError(
            f"{', '.join(path.name for path in files)}: there is no problem in it; give --data FILE..."
        )
    _checked(count or 0, len(asked))
    content = {str(path): hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in files}
    return Problems(asked, {"evaluation_files": [str(path) for path in files]}, content)


def _rows(files: Sequence[Path]) -> Iterator[AskedProblem]:
    for path in files:
        for where, row in read_rows(str(path), path):
            subject, level = (row.get(key) for key in ("subject", "level"))
            yield AskedProblem(path.name, problem_of(row, where).id, _label(subject), _label(level))


def _label(value: Any) -> str:
    """What a row says, 0 included; nothing where it says nothing."""
    return "" if value is None else str(value)


def _checked(wanted: int, known: int | None) -> int:
    if known is not None and wanted > known:
        raise EvaluationError(f"--problems asks for {wanted} problems, and there are {known}")
    return wanted
