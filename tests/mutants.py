"""``make mutants``: which of the faults in ``tests/mutants.toml`` do the tests of their own rooms find?

The list has rooms, each with its tests, and mutants: a file, a text that stands in it once, and the wrong text in its
place. Each mutant is written into a copy of the checkout, one after the other, and the tests of its room run there. Each
run is a fork of this process, which has imported the libraries but nothing of the project. A mutant that no test can see
says why (``unobservable``); one that is known to survive says what is missing (``survives``). The list fails where it is
wrong itself: a file or a text that is gone, tests that fail without a mutant, that cannot be collected, or that hang;
a mutant that survives and is not listed so; one that is listed so and is found.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

LIMIT = 120.0
"""Seconds that the tests of a mutant may take; a mutant with slower ones names its own ``limit``."""
PRELOADED = (
    "pytest",
    "hypothesis.stateful",
    "trio.testing",
    "numpy",
    "msgpack",
    "zmq",
    "pydantic",
    "structlog",
    "torch",
    "transformers",
)
PYTEST = (
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
    "-x",
    "-q",
    "--no-header",
    "--tb=no",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "--hypothesis-profile=mutants",
    "-m",
    "not slow",
)
FOUND, SURVIVED, HANGS, BROKEN = "found", "survived", "hangs", "cannot be collected"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault of one place."""

    room: str
    file: str
    fault: str
    """What a tired person would get wrong, in a line."""
    old: str
    new: str
    unobservable: str = ""
    survives: str = ""
    limit: float = LIMIT

    @property
    def name(self) -> str:
        return f"{self.file}: {self.fault}"


@dataclass(slots=True)
class Report:
    """What came of the list."""

    mutants: int = 0
    found: int = 0
    unobservable: int = 0
    survivors: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def read(path: Path) -> tuple[dict[str, list[str]], list[Mutant]]:
    """The tests of each room, and the mutants."""
    document = tomllib.loads(path.read_text("utf-8"))
    return document["rooms"], [Mutant(**each) for each in document["mutant"]]


def misplaced(mutant: Mutant, rooms: dict[str, list[str]], root: Path) -> str:
    """Why the list is wrong about a mutant; empty where it is right."""
    path = root / mutant.file
    if mutant.room not in rooms:
        return f"{mutant.name}: the list has no room {mutant.room!r}"
    if not path.is_file():
        return f"{mutant.name}: there is no such file"
    text = path.read_text("utf-8")
    if (times := text.count(mutant.old)) != 1:
        return f"{mutant.name}: its old text stands {times} times in the file; name a text that stands there once"
    try:
        changed, same = ast.dump(ast.parse(text.replace(mutant.old, mutant.new))), ast.dump(ast.parse(text))
    except SyntaxError as error:
        return f"{mutant.name}: the file with its new text is no Python: {error}"
    return f"{mutant.name}: its new text changes nothing" if changed == same else ""


def copy_of(root: Path, folder: Path) -> None:
    """Copy what git tracks, or would."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name)


def run(tests: list[str], folder: Path, limit: float) -> str:
    """Run tests in a fork, with all that they start in a session of its own, and end them after ``limit`` seconds."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.setsid()
        silent = os.open(os.devnull, os.O_RDWR)
        for each in range(3):
            os.dup2(silent, each)
        os.chdir(folder)
        sys.path[:] = [
            str(folder),
            *(each for each in sys.path if Path(each or ".").resolve() != Path(__file__).parent),
        ]
        os.environ["PYTHONPATH"] = str(folder)
        code = 3
        with contextlib.suppress(BaseException):
            import pytest

            code = int(pytest.main([*PYTEST, *tests]))
        os._exit(code)
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(child, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, limit)
    _, status = os.waitpid(child, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what the tests left behind
    code = os.waitstatus_to_exitcode(status)
    return {0: SURVIVED, 1: FOUND, -signal.SIGKILL: HANGS}.get(code, BROKEN)


def write(path: Path, text: str) -> None:
    """Write a module, and forget its compiled form: size and second of the change may be the same."""
    path.write_text(text, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def judge(mutant: Mutant, outcome: str, report: Report) -> None:
    """Count a mutant, and say what is wrong with it."""
    if outcome in {HANGS, BROKEN}:
        words = f"do not end within {mutant.limit:.0f} s" if outcome == HANGS else "cannot be collected or crash"
        report.faults.append(f"{mutant.name}: the tests of {mutant.room} {words} with it")
    elif outcome == FOUND:
        report.found += 1
        if mutant.survives:
            report.faults.append(f"{mutant.name}: is found now; take `survives` out of the list")
    else:
        report.survivors.append(mutant.name)
        if not mutant.survives:
            report.faults.append(f"{mutant.name}: survives the tests of {mutant.room}")


def examine(path: Path, root: Path, only: str = "") -> Report:
    """Run the mutants of a list whose room, file or fault has ``only`` in it."""
    rooms, mutants = read(path)
    mutants = [each for each in mutants if only in f"{each.room} {each.name}"]
    report = Report(len(mutants), faults=[fault for each in mutants if (fault := misplaced(each, rooms, root))])
    if report.faults:
        return report
    for each in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(each)
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        copy_of(root, folder)
        for room, tests in rooms.items():
            of_room = [each for each in mutants if each.room == room and not each.unobservable]
            began = time.monotonic()
            if of_room and (outcome := run(tests, folder, 2 * LIMIT)) != SURVIVED:
                report.faults.append(f"{room}: without any mutant, its tests {'fail' if outcome == FOUND else outcome}")
                continue
            clean, outcomes = time.monotonic() - began, Counter[str]()
            for mutant in of_room:
                target = folder / mutant.file
                text = target.read_text("utf-8")
                write(target, text.replace(mutant.old, mutant.new))
                outcome = run(tests, folder, mutant.limit)
                write(target, text)
                judge(mutant, outcome, report)
                outcomes[outcome] += 1
            seconds = time.monotonic() - began
            words = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
            if of_room:
                print(f"{room:24}{words or 'none':32}{seconds:6.0f} s, {clean:.1f} s without", flush=True)
    report.unobservable = sum(bool(each.unobservable) for each in mutants)
    return report


def main() -> int:
    """Print a line for each room, what is wrong, and the counts; returns the exit code."""
    os.environ["OMP_NUM_THREADS"] = "1"
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", type=Path, default=Path(__file__).with_name("mutants.toml"))
    parser.add_argument("--only", default="", help="mutants with this text in their room, file or fault")
    options = parser.parse_args()
    report = examine(options.list, Path(__file__).parents[1], options.only)
    for fault in report.faults:
        print(f"FAULT: {fault}")
    print(f"mutants {report.mutants}\nmutants_found {report.found}\nmutants_unobservable {report.unobservable}")
    print(f"mutants_surviving {len(report.survivors)}")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
