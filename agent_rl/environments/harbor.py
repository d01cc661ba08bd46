"""Task folders in Harbor's format as problems of a harness: an instruction, files, and tests that decide.

::

    FOLDER/NAME/task.toml, instruction.md, environment/Dockerfile and files, tests/test.sh

With ``dockerfile = "build"`` and a container, each Dockerfile is built. Jails run no Dockerfile. Of
``environment/Dockerfile``, COPY and ADD of files below /app are done, and what changes nothing here is passed over. Any
other instruction is an error, unless ``dockerfile = "ignore"``. Then the host must have what the tasks need.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Literal

from agent_rl.environments.base import ChatMessages, Context, Environment, TaskError, TaskSource
from agent_rl.environments.harness import HarnessOutcome, outcome_of, packed
from agent_rl.environments.tasks import ListedTasks
from agent_rl.files.reading_json import read_bytes
from agent_rl.messages import Judgement, Problem, Transcript

WORK = PurePosixPath("/app")
NEEDED = ("task.toml", "instruction.md", "tests/test.sh")
PASSED_OVER = {"LABEL", "MAINTAINER", "CMD", "ENTRYPOINT", "EXPOSE", "SHELL"}
_ARCHIVE = re.compile(r"\.(tar|tgz|gz|bz2|xz|zst)\b")
"""Of names of files that ADD unpacks."""


class Harbor(Environment):
    """Tasks of one folder, held-out ones of another. The reward is what ``tests/test.sh`` writes.

    Write ``check = ["bash", "{tests}/test.sh"]`` in ``[environments.harness]``.
    """

    def __init__(
        self,
        *,
        seed: int,
        base: Path,
        folder: str,
        held_out: str = "",
        dockerfile: Literal["copy", "ignore", "build"] = "copy",
    ) -> None:
        """``folder``, ``held_out``: relative to ``base``. ``dockerfile``: what becomes of each task's Dockerfile.

        Raises TaskError for folders that cannot be used.
        """
        self._seed = seed
        self._dockerfile = dockerfile
        self._training = self._tasks(base / folder, "folder")
        self._held_out = self._tasks(base / held_out, "held_out") if held_out else []

    def _tasks(self, folder: Path, key: str) -> list[Problem]:
        if not folder.is_dir():
            raise TaskError(f"there is no folder {folder}; name one with a folder for each task", key=(key,))
        found = []
        for each in sorted(folder.iterdir()):
            if (each / "task.toml").is_file():
                try:
                    each.name.encode()
                    found.append(self._task(each))
                except (OSError, ValueError, RuntimeError) as error:  # of names, links, nesting and digits
                    raise TaskError(f"the task {str(each)!r} cannot be read: {error}; correct it") from error
        if not found:
            raise TaskError(f"no folder in {folder} has a task.toml; name one with a folder for each task", key=(key,))
        return found

    def _task(self, folder: Path) -> Problem:
        for name in NEEDED:
            if not (folder / name).is_file():
                raise TaskError(f"the task {folder} has no {name}; add it, or remove the folder")
        try:
            tomllib.loads(_text(folder / "task.toml"))
        except tomllib.TOMLDecodeError as error:
            raise TaskError(f"{folder / 'task.toml'}: {error}") from error
        environment = folder / "environment"
        built = self._dockerfile == "build"
        if built and not (environment / "Dockerfile").is_file():
            raise TaskError(f'the task {folder} has no environment/Dockerfile, and dockerfile = "build" needs one')
        payload: dict[str, object] = {
            "files": {} if built else self._files(environment),
            "tests": dict(_below(folder / "tests")),
        }
        payload |= {"image_folder": str(environment.absolute())} if built else {}
        return Problem(folder.name, _text(folder / "instruction.md"), payload=payload)

    def _files(self, folder: Path) -> dict[str, str]:
        """The files with which the task begins, by path below /app."""
        dockerfile = folder / "Dockerfile"
        if not dockerfile.is_file() or self._dockerfile == "ignore":
            return {name: text for name, text in _below(folder) if name != "Dockerfile"}
        found: dict[str, str] = {}
        at = WORK
        for number, name, rest in _instructions(dockerfile):
            where = f"{dockerfile}, line {number}"
            if name == "FROM":  # an image of its own, whatever was copied before
                found, at = {}, WORK
            elif name in {"WORKDIR", "COPY", "ADD"} and not (folder / ".dockerignore").exists():
                flags, words = _words(name, rest, where)
                match name, words:
                    case "WORKDIR", [path]:
                        at = at / path
                    case "COPY" | "ADD", [*sources, target] if sources:
                        for source in sources:
                            found |= _copied(folder, source, at, target, flags, where)
                    case _:
                        raise TaskError(f"{where}: {name} cannot be read; correct it")
            elif name not in PASSED_OVER:
                raise _refused(where, name)
        for made in map(PurePosixPath, found):
            if inside := next((str(each) for each in made.parents if str(each) in found), ""):
                raise TaskError(f"{dockerfile}: {made} lies in {inside}, which is a file; correct COPY")
            if any(len(part.encode()) > 255 or "\0" in part for part in made.parts):
                raise TaskError(f"{dockerfile}: {str(made)[:80]!r} is no path; correct COPY")
        return found

    def problems(self) -> TaskSource:
        """The tasks; the ids are the names of their folders."""
        return ListedTasks([self._training], self._held_out, seed=self._seed)

    def prompt(self, problem: Problem) -> ChatMessages:
        """The instruction."""
        return [{"role": "user", "content": problem.text}]

    def files(self, problem: Problem) -> Mapping[str, str]:
        """What the Dockerfile copies."""
        files: Mapping[str, str] = problem.payload["files"]
        return files

    def image_folder(self, problem: Problem) -> str:
        """The folder ``environment``, if its image is built."""
        return str(problem.payload.get("image_folder", ""))

    def check_files(self, problem: Problem) -> Mapping[str, str]:
        """The folder ``tests``."""
        tests: Mapping[str, str] = problem.payload["tests"]
        return tests

    async def judge(self, problem: Problem, transcript: Transcript, context: Context) -> Judgement:
        """By the reward's file; 0 without one. Raises TaskError when the harness has no check."""
        del problem, context
        if self.harness is None or not self.harness.check:
            raise TaskError(
                'its harness has no check: write check = ["bash", "{tests}/test.sh"] in [environments.harness]'
            )
        outcome = outcome_of(transcript)
        fault = "no program wrote it" if outcome is None else self.check_fault(outcome)
        if outcome is None or fault:
            return Judgement(0.0, success=False, note=fault)
        reward = read_reward(outcome.check_reward)
        return Judgement(reward, success=reward >= 1.0)

    def check_fault(self, outcome: HarnessOutcome) -> str:
        """A reward counts if the tests ended by themselves, with any status."""
        if not outcome.check_status.startswith("status "):
            return f"the tests came to no end: {outcome.check_status or 'they were not run'}"
        try:
            read_reward(outcome.check_reward)
        except ValueError as error:
            return f"{error}, and ended with {outcome.check_status}"
        return ""


def read_reward(text: str) -> float:
    """The reward of ``reward.txt``, a number, or ``reward.json``, an object with ``reward`` or with one number.

    Raises ValueError for anything else.
    """
    if not text.strip():
        raise ValueError("the tests wrote no reward")
    try:
        found = json.loads(text)
        if isinstance(found, dict):
            found = found["reward"] if "reward" in found or len(found) != 1 else next(iter(found.values()))
        number = float(found)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"the tests wrote the reward {text.strip()[:100]!r}, which is no number") from error
    if not math.isfinite(number):
        raise ValueError(f"the tests wrote the reward {number}, which is not finite")
    return number


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"cannot read {path} as text: {error}") from error


def _refused(where: str, what: str) -> TaskError:
    remedy = 'needs a container; write dockerfile = "build" and a `container`, or "ignore"'
    return TaskError(f"{where}: {what} {remedy}")


def _file(path: Path, folder: Path, where: str = "", mode: int | None = None) -> str:
    """A file of a folder of the task, packed. Raises TaskError for one that lies elsewhere, and would be shown."""
    where = where or str(path)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise TaskError(f"{where}: {path} leads out of {folder}; copy what it leads to")
    try:
        mode = path.stat().st_mode if mode is None else mode
        return packed(read_bytes(path), executable=bool(mode & 0o111))
    except OSError as error:
        raise TaskError(f"{where}: cannot read {path}: {error}") from error


def _below(folder: Path, where: str = "", mode: int | None = None, of: Path | None = None) -> Iterator[tuple[str, str]]:
    """All files below a folder, by path. They must not lie outside the folder ``of``."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and path.is_dir():
            raise TaskError(f"{where or path}: {path} is a link to a folder; copy the folder")
        if path.is_file() or path.is_symlink():
            yield path.relative_to(folder).as_posix(), _file(path, of or folder, where, mode)


def _instructions(path: Path) -> Iterator[tuple[int, str, str]]:
    """The instructions of a Dockerfile: line, name, and what follows. An instruction may go on over several lines."""
    begun, first = "", 0
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            if not begun and re.fullmatch(r"#\s*escape\s*=\s*[^\\]", line.strip(), re.IGNORECASE):
                raise _refused(f"{path}, line {number}", "another escape character")
            continue
        first = first if begun else number
        if line.rstrip().endswith("\\"):
            begun += line.rstrip()[:-1] + " "
            continue
        name, *rest = f"{begun}{line}".split(maxsplit=1)
        yield first, name.upper(), "".join(rest).strip()
        begun = ""


def _words(name: str, rest: str, where: str) -> tuple[dict[str, str], list[str]]:
    """Options and words of an instruction, whose words may be JSON. Raises TaskError for those that are not done."""
    flags: dict[str, str] = {}
    while rest.startswith("--"):
        option, _, rest = rest.partition(" ")
        flags[option.partition("=")[0]], rest = option.partition("=")[2], rest.lstrip()
    if flags.keys() - {"--chown", "--link", "--chmod"}:
        raise _refused(where, f"{name} {min(flags.keys() - {'--chown', '--link', '--chmod'})}")
    try:
        words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    except ValueError as error:
        raise TaskError(f"{where}: {name} cannot be read: {error}; correct it") from error
    for word in map(str, words):
        if "$" in word or word.startswith("<<") or (name == "ADD" and ("://" in word or _ARCHIVE.search(word))):
            raise _refused(where, f"{name} of {word}")
    return flags, list(map(str, words))


def _copied(
    folder: Path, source: str, at: PurePosixPath, target: str, flags: Mapping[str, str], where: str
) -> dict[str, str]:
    """What COPY makes of a source, by path below /app."""
    path = folder / normpath(source.lstrip("/") or ".")
    below = PurePosixPath(normpath(at / target))
    if not path.exists() or ".." in path.relative_to(folder).parts:
        raise TaskError(f"{where}: there is no {path} in {folder}")
    if not below.is_relative_to(WORK):
        raise TaskError(f"{where}: {at / target} is not below {WORK}, where a program may write")
    mode = flags.get("--chmod")
    if mode is not None and not re.fullmatch("[0-7]{3,4}", mode):
        raise _refused(where, f"--chmod={mode}")
    given = None if mode is None else int(mode, 8)
    into = below.relative_to(WORK)
    if path.is_dir():
        return {str(into / name): text for name, text in _below(path, where, given, folder) if name != "Dockerfile"}
    is_folder = into == PurePosixPath() or target.endswith(("/", "/."))
    return {str(into / path.name if is_folder else into): _file(path, folder, where, given)}
