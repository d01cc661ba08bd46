"""Data sets of the Hugging Face hub as task files: a JSONL file for each split, with a record of its source beside it.

::

    hub, or its cache --> files of each split --> downloaded, checksums compared --> rows --> SPLIT.jsonl.fetched.json
                                                                                              SPLIT.jsonl

The library keeps downloads in its cache (``HF_HOME``), so a second start downloads only what the first did not finish.
A JSONL file appears whole, and after its record.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from agent_rl.data.review import Review, Tally, renamed
from agent_rl.data.rows import DataError, Row, json_line
from agent_rl.environments.maths.rewards import boxes_in
from agent_rl.environments.task_files import FORMATS, read_rows
from agent_rl.files.disk import whole
from agent_rl.models.hub import HubError, HubFiles, dataset_file, dataset_files

CONVERTED = "refs/convert/parquet"
"""The revision in which the hub itself keeps parquet copies of data sets in other formats."""
_SHARD = re.compile(r"[-_]\d{5,}(-of-\d+)?$")
_AFTER_HASHES = re.compile(r"####(?!.*####)\s*(.+?)\s*\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Request:
    """What is wanted of a data set. An empty ``config`` or ``revision`` is the default one; an empty ``split``, all."""

    dataset: str
    config: str = ""
    split: str = ""
    revision: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)


def fetch(request: Request, folder: Path, report: Callable[[str], object] = lambda _: None) -> dict[str, int]:
    """Write each split that is wanted to ``folder``. Returns how many rows were read, kept and, by reason, left out.

    A file that an earlier call wrote from the same source stays as it is. ``report`` gets a line about each file.

    Raises HubError for a data set that cannot be had, DataError for rows that are no problems and for files in the way,
    and TaskError for a file that cannot be read.
    """
    files, splits = _choose(request, report)
    tally = Tally()
    for split, paths in splits.items():
        out = folder / f"{split}.jsonl"
        source = {
            "dataset": request.dataset,
            "commit": files.commit,
            "files": {path: files.digests[path] for path in paths},
            "columns": dict(request.columns),
        }
        if _is_there(out, source):
            report(f"{out} is there already; its checksum is right")
            continue
        local = [(path, dataset_file(request.dataset, path, files, report)) for path in paths]
        review, digest, rows = Review(), hashlib.sha256(), 0
        with whole(out) as partial:
            with partial.open("wb") as file:
                for row in _problems(request, split, local, tally, review):
                    line = json_line(row, str(out))
                    digest.update(line)
                    file.write(line)
                    rows += 1
            with whole(_record_of(out)) as partial_record:
                record = source | {"rows": rows, "sha256": digest.hexdigest()}
                partial_record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        for note in review.found.lines():
            report(note)
        report(f"{out}: {rows:,} problems, sha256 {digest.hexdigest()}")
    return tally.figures()


def _choose(request: Request, report: Callable[[str], object]) -> tuple[HubFiles, dict[str, list[str]]]:
    """The files of the revision, and the paths of each split that is wanted."""
    files = dataset_files(request.dataset, request.revision)
    configs = configurations(files)
    if not configs and not request.revision:
        with suppress(HubError):  # not every data set has such copies
            files = dataset_files(request.dataset, CONVERTED)
            configs = configurations(files)
            report(f"{request.dataset} itself has no parquet or JSONL files; these are the hub's parquet copies of it")
    if not configs:
        raise DataError(
            f"{request.dataset} has no files that end in one of {', '.join(FORMATS)} (revision {files.commit}); "
            "read it with Hugging Face's `datasets`, and write JSONL with `problem` and `answer`"
        )
    config = request.config or next((name for name in (files.default, "default", "main") if name in configs), "")
    if not config and len(configs) == 1:
        config = next(iter(configs))
    if config not in configs:
        raise DataError(
            f"{request.dataset} has {f'no configuration {config}' if config else 'several configurations'}: "
            f"name one with --config: {', '.join(sorted(configs))}"
        )
    splits = configs[config]
    if len(configs) > 1:
        report(f"{request.dataset} has the configurations {', '.join(sorted(configs))}; this is {config}")
    if request.split and request.split not in splits:
        raise DataError(
            f"{request.dataset} ({config}) has no split {request.split}: it has {', '.join(sorted(splits))}"
        )
    return files, {request.split: splits[request.split]} if request.split else splits


def configurations(files: HubFiles) -> dict[str, dict[str, list[str]]]:
    """Paths by configuration and split: as the data set's card says, else by the names of folders and files."""
    named: dict[str, dict[str, list[str]]] = {}
    for entry in files.configs:
        parts = entry.get("data_files")
        if isinstance(parts, str | list) and parts:
            listed = parts if isinstance(parts, list) else [parts]
            for part in listed:
                split, patterns = (part.get("split"), part.get("path")) if isinstance(part, dict) else ("train", part)
                wanted = [patterns] if isinstance(patterns, str) else patterns or []
                paths = [path for path in files.digests if any(fnmatchcase(path, str(pattern)) for pattern in wanted)]
                _enter(named, str(entry.get("config_name", "default")), str(split), paths)
    if not named:
        for path in files.digests:
            *folders, name = PurePosixPath(path).parts
            stem = next((name.removesuffix(ending) for ending in FORMATS if name.endswith(ending)), "")
            split = folders.pop() if stem.isdigit() and folders else _SHARD.sub("", stem)
            _enter(named, "/".join(folders) if folders and folders != ["data"] else "default", split, [path])
    return named


def _enter(named: dict[str, dict[str, list[str]]], config: str, split: str, paths: Sequence[str]) -> None:
    """Add the paths that can be read. A split names a file here, so a card must not make it a path elsewhere."""
    readable = sorted(path for path in paths if path.endswith(FORMATS))
    if readable and re.fullmatch(r"\w[\w.-]*", split):
        named.setdefault(config, {}).setdefault(split, []).extend(readable)


def _problems(
    request: Request, split: str, local: Sequence[tuple[str, Path]], tally: Tally, review: Review
) -> Iterator[Row]:
    number = 0
    for path, file in local:
        for where, raw in read_rows(f"{request.dataset}/{path}", file):
            row = as_problem(renamed(raw, request.columns, where))
            row = {"id": f"{request.dataset.rpartition('/')[2]}-{split}-{number}"} | row
            faults = [fault for fault in review.faults(row, where) if fault != "duplicate_id"]
            if number == 0 and faults and faults[0].startswith("without"):
                raise DataError(
                    f"{where} is {faults[0].replace('_', ' ')}; its columns are {', '.join(sorted(raw)):.300}: name "
                    "that hold problem and answer, as in --columns problem=query,answer=extra_info.gold"
                )
            number += 1
            if tally.add(faults[0] if faults else ""):
                yield row


def as_problem(row: Row) -> dict[str, Any]:
    r"""The row with ``problem`` and ``answer`` where it has them under other usual names.

    ``question`` is the problem; ``final_answer``, or the last ``\boxed{}`` of ``solution``, is the answer. An answer
    that ends in ``#### 18`` is a solution with the answer after the signs.
    """
    made = dict(row)
    if made.get("problem") is None and isinstance(made.get("question"), str):
        made = {"problem": made.pop("question")} | {key: value for key, value in made.items() if key != "problem"}
    if made.get("answer") is None and "reward_model" not in made:
        boxes = boxes_in(made["solution"]) if isinstance(made.get("solution"), str) else []
        answer = made.get("final_answer") or (boxes[-1][2] if boxes else None)
        if answer is not None:
            made["answer"] = answer
    if isinstance(made.get("answer"), str) and (after := _AFTER_HASHES.search(made["answer"])):
        made |= {"answer": after[1], "solution": made["answer"]}
    return made


def _record_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.fetched.json")


def _is_there(out: Path, source: Mapping[str, object]) -> bool:
    """Whether the file is there, unchanged, and from this source. Raises DataError when another file is in the way."""
    if not out.exists():
        return False
    other = "remove it, or name another --out"
    try:
        record = json.loads(_record_of(out).read_text(encoding="utf-8"))
        digest = record["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{out} exists, and no record beside it says that it was fetched: {other}") from error
    with out.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            raise DataError(
                f"{out} is not what was fetched: its checksum is not that of {_record_of(out).name}; {other}"
            )
    if {key: record.get(key) for key in source} != source:
        was = f"{record.get('dataset')} at {record.get('commit')}"
        raise DataError(f"{out} was fetched from other files or with other columns ({was}): {other}")
    return True
