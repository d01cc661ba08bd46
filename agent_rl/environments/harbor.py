"""Task folders in Harbor's format as problems of a harness: an instruction, files, and tests that decide.

::

    FOLDER/NAME/task.toml, instruction.md, environment/Dockerfile and files, tests/test.sh

With ``dockerfile = "build"`` and a container by docker, each Dockerfile is built. Jails run no Dockerfile. Of
``environment/Dockerfile``, COPY and ADD of files below /app are done, and what changes nothing here is passed over. Any
other instruction is an error, unless ``dockerfile = "ignore"``. Then the host must have what the tasks need.
"""

from __future__ import annotations

import json
import math
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Literal

from agent_rl.environments.base import ChatMessages, Context, Environment, TaskError, TaskSource
from agent_rl.environments.harness import outcome_of
from agent_rl.environments.tasks import ListedTasks
from agent_rl.messages import Judgement, Problem, Transcript

WORK = PurePosixPath("/app")
NEEDED = ("task.toml", "instruction.md", "tests/test.sh")
PASSED_OVER = {"FROM", "LABEL", "MAINTAINER", "CMD", "ENTRYPOINT", "EXPOSE", "SHELL"}


class Harbor(Environment):
    """Tasks of one folder, held-out ones of another. The reward is what ``tests/test.sh`` writes, else 0.

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
        found = [self._task(each) for each in sorted(folder.iterdir()) if (each / "task.toml").is_file()]
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
            "tests": dict(_texts(folder / "tests")),
        }
        payload |= {"image_folder": str(environment.absolute())} if built else {}
        return Problem(folder.name, _text(folder / "instruction.md"), payload=payload)

    def _files(self, folder: Path) -> dict[str, str]:
        """The files with which the task begins, by path below /app."""
        dockerfile = folder / "Dockerfile"
        if not dockerfile.is_file() or self._dockerfile == "ignore":
            return {name: text for name, text in _texts(folder) if name != "Dockerfile"}
        found: dict[str, str] = {}
        at = WORK
        for number, line in _instructions(_text(dockerfile)):
            instruction, *words = shlex.split(line, comments=True)
            where = f"{dockerfile}, line {number}"
            match instruction.upper(), [word for word in words if not word.startswith("--")]:
                case "WORKDIR", [path]:
                    at = at / path
                case "COPY" | "ADD", [*sources, target] if sources:
                    for source in sources:
                        found |= _copied(folder, source, at / target, whole=target.endswith("/"), where=where)
                case name, _ if name not in PASSED_OVER:
                    remedy = 'needs a container; write dockerfile = "build" and a `container`, or "ignore"'
                    raise TaskError(f"{where}: {name} {remedy}")
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
        """By the reward's file. Raises TaskError when that holds no number, or when the harness has no check."""
        del context
        if self.harness is None or not self.harness.check:
            raise TaskError(
                'its harness has no check: write check = ["bash", "{tests}/test.sh"] in [environments.harness]'
            )
        outcome = outcome_of(transcript)
        reward = read_reward(outcome.check_reward, f"the tests of {problem.id}") if outcome is not None else 0.0
        return Judgement(reward, success=reward >= 1.0)


def read_reward(text: str, source: str) -> float:
    """The reward of ``reward.txt``, a number, or ``reward.json``, an object with ``reward`` or with one number.

    It is 0 without such a file. Raises TaskError for anything else.
    """
    if not text.strip():
        return 0.0
    try:
        found = json.loads(text)
        if isinstance(found, dict):
            found = found["reward"] if "reward" in found or len(found) != 1 else next(iter(found.values()))
        number = float(found)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise TaskError(f"{source} wrote the reward {text.strip()[:100]!r}; it must be a number") from error
    if not math.isfinite(number):
        raise TaskError(f"{source} wrote the reward {number}; it must be finite")
    return number


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"cannot read {path} as text: {error}") from error


def _texts(folder: Path) -> Iterator[tuple[str, str]]:
    """All files below a folder, by path."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), _text(path)


def _instructions(text: str) -> Iterator[tuple[int, str]]:
    """The instructions of a Dockerfile with their lines; one may go on over several."""
    begun, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if not begun and (not line.strip() or line.lstrip().startswith("#")):
            continue
        first = first if begun else number
        if line.rstrip().endswith("\\"):
            begun += line.rstrip()[:-1] + " "
            continue
        yield first, begun + line
        begun = ""


def _copied(folder: Path, source: str, target: PurePosixPath, *, whole: bool, where: str) -> dict[str, str]:
    """What COPY makes of a source, by path below /app."""
    path = folder / source.lstrip("/")
    below = PurePosixPath(normpath(target))
    if not path.exists():
        raise TaskError(f"{where}: there is no {path}")
    if not below.is_relative_to(WORK):
        raise TaskError(f"{where}: {target} is not below {WORK}, where a program may write")
    into = below.relative_to(WORK)
    if path.is_dir():
        return {str(into / name): text for name, text in _texts(path) if name != "Dockerfile"}
    is_folder = whole or into == PurePosixPath() or str(target).endswith("/.")
    return {str(into / path.name if is_folder else into): _text(path)}
