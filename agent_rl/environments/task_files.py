"""Problems read from JSONL (also gzipped) and parquet files, with errors that say where and what to do."""

from __future__ import annotations

import contextlib
import glob
import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from os.path import normpath
from pathlib import Path
from typing import IO, Any, cast

from pydantic_core import to_jsonable_python

from agent_rl.environments.base import TaskError, joined
from agent_rl.files.disk import disk_errno
from agent_rl.files.reading_json import JsonError, lines_of, open_file, parse_json
from agent_rl.messages import Problem

FORMATS = (".jsonl", ".jsonl.gz", ".parquet")
PARQUET_BATCH = 1024
FIELDS = frozenset({"id", "problem", "prompt", "answer"})
"""Columns that become fields of a problem."""
LABELS = ("subject", "level")
"""Columns that say of what kind a problem is; they become a problem's payload."""


def read_tasks(
    settings: Mapping[str, Sequence[str]], base: Path, *, columns: bool = False
) -> dict[str, list[tuple[Problem, ...]]]:
    """The problems of each pattern (a path or glob, relative to ``base``) of each setting, in the order named.

    A row holds ``problem`` and ``answer``, or verl's ``prompt`` (text, or chat messages of which the user's is taken)
    and ``reward_model.ground_truth``. An ``id`` is taken where there is one; otherwise file and line (or row) make it.
    The payload holds the file's name (with its folder's, where two files have the same name), ``LABELS`` where the row
    has them, and as ``system`` the text of the system messages of verl's ``prompt``. With ``columns`` it has every
    other column too, as JSON, and a row needs no answer.

    Raises TaskError for all patterns without a file or of an unknown format at once, and for the first file without
    tasks, row that is no task, or row with the id of another row of these files.
    """
    files: dict[tuple[str, int], list[tuple[str, Path]]] = {}
    errors = []
    for setting, patterns in settings.items():
        for index, pattern in enumerate(patterns):
            try:
                files[setting, index] = list(resolve(pattern, base, (setting, index)))
            except TaskError as error:
                errors.append(error)
    if errors:
        raise joined(errors)
    paths = {path for named in files.values() for _, path in named}
    names = [path.name for path in paths]
    labels = {path: path.name if len(set(names)) == len(names) else f"{path.parent.name}/{path.name}" for path in paths}
    places: dict[str, str] = {}
    problems: dict[str, list[tuple[Problem, ...]]] = {setting: [] for setting in settings}
    for key, named in files.items():
        problems[key[0]].append(tuple(_problems_of(named, key, places, labels, columns=columns)))
    return problems


def _problems_of(
    files: Sequence[tuple[str, Path]],
    key: tuple[str, int],
    places: dict[str, str],
    names: Mapping[Path, str],
    *,
    columns: bool,
) -> Iterator[Problem]:
    """The problems of files; ``places`` says where the problem of each id stands, ``names`` what a file is called."""
    for name, path in files:
        empty = True
        for where, row in read_rows(name, path):
            empty = False
            labels = _columns(row, where) if columns else {}
            labels |= {label: str(row[label]) for label in LABELS if row.get(label) is not None}
            problem = problem_of(row, where, answered=not columns)
            if system := _system_text(row):
                labels["system"] = system
            problem = replace(problem, payload={"file": names[path], **labels})
            if problem.id in places:
                if places[problem.id] == where:
                    raise TaskError(f"{name} is named a second time: each of its problems would be there twice", key)
                raise TaskError(
                    f"{where} has the id {problem.id!r:.80}, and {places[problem.id]} has it too; "
                    "give each problem an id of its own, or remove one of them",
                    key,
                )
            places[problem.id] = where
            yield problem
        if empty:
            raise TaskError(f"{name}: the file holds no tasks; remove it from the topology or fill it", key)


def resolve(pattern: str, base: Path, key: tuple[str, int] | tuple[()] = ()) -> Iterator[tuple[str, Path]]:
    """Name and path of each file of a path or glob, relative to ``base``. Raises TaskError when there is none."""
    matches = glob.glob(pattern, root_dir=base, recursive=True)  # noqa: PTH207 Path.glob refuses absolute patterns
    names = [pattern] if (base / pattern).is_file() else sorted(matches)
    if not names:
        raise TaskError(f"no file matches {normpath((base / pattern).absolute())}", key, missing=pattern)
    for name in names:
        if not name.endswith(FORMATS):
            raise TaskError(f"{name}: task files end in one of {', '.join(FORMATS)}", key)
        if not (base / name).is_file():
            raise TaskError(f"{name} is no regular file; name the files in it, or write it to one", key)
        yield name, base / name


def named_in(settings: Any, base: Path) -> Iterator[Path]:
    """The task files that are there of those that settings name, at any depth."""
    if isinstance(settings, str) and settings.endswith(FORMATS):
        with contextlib.suppress(TaskError):
            yield from (path for _, path in resolve(settings, base))
    elif isinstance(settings, Mapping | list | tuple):
        for value in settings.values() if isinstance(settings, Mapping) else settings:
            yield from named_in(value, base)


def read_rows(name: str, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The place of each row of a file (``name:line``; in parquet, the number of the row) and the row, one at a time."""
    return _parquet_rows(name, path) if path.suffix == ".parquet" else _json_rows(name, path)


def _json_rows(name: str, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        with _open_text(path) as lines:
            for number, line in enumerate(lines_of(lines), start=1):
                if not line.strip():
                    continue
                where = f"{name}:{number}"
                try:
                    row = parse_json(line.rstrip())
                except JsonError as error:
                    raise TaskError(f"{where}: {error}; each line must be one JSON object") from error
                if not isinstance(row, dict):
                    raise TaskError(f"{where}: a JSON {type(row).__name__}; each line must be one JSON object")
                yield where, row
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        of_disk = disk_errno(error) is not None
        remedy = "see to its disk and its permissions" if of_disk else "is it UTF-8 text, or gzip if it ends in .gz?"
        raise TaskError(f"{name}: cannot be read ({error}); {remedy}") from error


def _open_text(path: Path) -> IO[str]:
    open_file(path).close()  # it is no pipe
    if path.suffix == ".gz":
        return cast("IO[str]", gzip.open(path, "rt", encoding="utf-8-sig"))
    return path.open(encoding="utf-8-sig")


def _parquet_rows(name: str, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise TaskError(f"{name}: parquet needs pyarrow (pip install pyarrow), or convert the file to JSONL") from error
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=PARQUET_BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{name}:{number}", {key: _unpadded(value) for key, value in row.items()}
    except (OSError, ValueError, OverflowError, pa.ArrowException) as error:
        raise TaskError(
            f"{name}: cannot be read as parquet ({error}); write it again, or convert it to JSONL"
        ) from error


def _unpadded(value: Any) -> Any:
    """A value of parquet without the nulls that fill its structs, which have the keys of all rows."""
    if isinstance(value, dict):
        return {key: _unpadded(each) for key, each in value.items() if each is not None}
    return [_unpadded(each) for each in value] if isinstance(value, list) else value


def _columns(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The columns beside those that a `Problem` has fields for. Raises TaskError for what is no JSON."""
    found = {name: value for name, value in row.items() if name not in FIELDS}
    try:
        return cast("dict[str, Any]", to_jsonable_python(found))
    except ValueError as error:
        raise TaskError(f"{where}: a column is no JSON ({error}); leave it out, or write it as text") from error


def problem_of(row: Mapping[str, Any], where: str, *, answered: bool = True) -> Problem:
    """The problem in a row, ``answered`` or not. Raises TaskError, naming ``where`` it stands, when it is none."""
    identity = row.get("id")
    problem = Problem(
        id=where if identity is None else str(identity),
        text=text_of(row, where),
        answer=answer_of(row, where) if answered or row.get("answer", row.get("reward_model")) is not None else "",
    )
    for key, text in (("id", problem.id), ("problem", problem.text), ("answer", problem.answer)):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            message = f"{where}: the {key} holds {text[error.start]!r}, half of a surrogate pair, which is no character"
            raise TaskError(f"{message}; write the whole character") from error
    return problem


def text_of(row: Mapping[str, Any], where: str) -> str:
    """The problem's text. Raises TaskError when there is none."""
    text = row.get("problem")
    if text is None:
        text = row.get("prompt")
        if isinstance(text, list):
            text = _user_text(text, where)
    if text is None:
        raise TaskError(f"{where}: neither `problem` nor `prompt`; columns are {sorted(row)}")
    if not isinstance(text, str) or not text.strip():
        raise TaskError(f"{where}: the problem is {text!r:.100}; it must be text")
    return text


def _user_text(messages: list[Any], where: str) -> str:
    """The content of the one user message, beside system messages (`_system_text`)."""
    turns = [message for message in messages if isinstance(message, dict) and message.get("role") != "system"]
    if len(turns) != 1 or turns[0].get("role") != "user":
        roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
        raise TaskError(
            f"{where}: `prompt` has messages of roles {roles}; it must hold exactly one of the user's; "
            "write examples into its text, or return them from an environment's `prompt`"
        )
    content = turns[0].get("content")
    if not isinstance(content, str):
        raise TaskError(f"{where}: the content of `prompt`'s user message is {content!r:.100}; it must be text")
    return content


def _system_text(row: Mapping[str, Any]) -> str:
    """The content of the system messages of verl's ``prompt``; empty where the problem stands in another column."""
    prompt = row.get("prompt") if row.get("problem") is None else None
    there = [each for each in prompt if isinstance(each, dict)] if isinstance(prompt, list) else []
    messages = [each for each in there if each.get("role") == "system"]
    return "\n\n".join(text for each in messages if isinstance(text := each.get("content"), str) and text.strip())


def answer_of(row: Mapping[str, Any], where: str) -> str:
    """The gold answer as text. Raises TaskError when there is none."""
    answer = row.get("answer")
    if answer is None:
        reward_model = row.get("reward_model")
        answer = reward_model.get("ground_truth") if isinstance(reward_model, dict) else None
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    unknown = answer is None or isinstance(answer, list | dict | bool)
    unknown = unknown or (isinstance(answer, float) and not isfinite(answer))  # as tables write what is missing
    text = "" if unknown else str(answer).strip()
    if not text:
        found = f"{answer!r:.100}" if unknown else "empty"
        raise TaskError(f"{where}: `answer` (or `reward_model.ground_truth`) is {found}; it must be text or a number")
    return text
