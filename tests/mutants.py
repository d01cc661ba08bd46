"""``make mutants``: which of the faults in ``tests/mutants.toml`` do the tests of their own rooms find?

The list has rooms, each with its tests, and mutants: a file, a text that stands in it once, and the wrong text in its
place. Each mutant is written into a copy of the checkout, one after the other, and the tests of its room run there. Each
run is a fork of this process, which has imported the libraries that the list names (``preload``) and nothing of the
project. A mutant that no test can see says why (``unobservable``); one that is known to survive says what is missing
(``survives``).

The list fails where it is wrong itself: a file or a text that is gone, a room's tests that fail without a mutant, tests
that cannot be collected or do not end. It fails where a mutant survives and is not listed so, and where one is listed so
and is found: the number of survivors only falls.
"""

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
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Self

LIMIT = 120.0
"""Seconds that the tests of a mutant may take; a mutant with slower ones names its own ``limit``."""
PYTEST = (
    *("-x", "-q", "--no-header", "--tb=no", "--ff", "-p", "no:xdist"),  # neighbours are found by the same test
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # plugins that were imported before the fork
)
FOUND, SURVIVED, HANGS, BROKEN = "found", "survived", "do not end", "cannot be collected or crash"


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


@dataclass(frozen=True, slots=True)
class Listed:
    """What a list holds: the tests of each room, mutants, options of pytest, modules to import before the first fork."""

    rooms: dict[str, list[str]]
    mutants: list[Mutant]
    options: list[str]
    preload: list[str]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a list. Raises TypeError where a mutant has a field that is unknown, or lacks one."""
        given = tomllib.loads(path.read_text("utf-8"))
        mutants = [Mutant(**each) for each in given["mutant"]]
        return cls(given["rooms"], mutants, given.get("options", []), given.get("preload", []))

    def faults(self, root: Path) -> list[str]:
        """What is wrong with the list, before any test has run."""
        names = Counter(each.name for each in self.mutants)
        twice = [f"{name}: stands twice in the list" for name, count in names.items() if count > 1]
        return twice + [fault for each in self.mutants if (fault := misplaced(each, self.rooms, root))]


@cache
def parsed(text: str) -> str:
    """A module without its white space and comments."""
    return ast.dump(ast.parse(text))


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
        changed, same = ast.dump(ast.parse(text.replace(mutant.old, mutant.new))), parsed(text)
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


def run(tests: Sequence[str], folder: Path, limit: float) -> str:
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
        within = f" within {mutant.limit:.0f} s" * (outcome == HANGS)
        report.faults.append(f"{mutant.name}: with it the tests of {mutant.room} {outcome}{within}")
    elif outcome == FOUND:
        report.found += 1
        if mutant.survives:
            report.faults.append(f"{mutant.name}: is found now; take `survives` out of the list")
    else:
        report.survivors.append(mutant.name)
        if not mutant.survives:
            report.faults.append(f"{mutant.name}: survives the tests of {mutant.room}")


def examine(listed: Listed, root: Path) -> Report:
    """Run the mutants of a list."""
    report = Report(len(listed.mutants), faults=listed.faults(root))
    report.unobservable = sum(bool(each.unobservable) for each in listed.mutants)
    if report.faults:
        return report
    for name in listed.preload:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        copy_of(root, folder)
        for room, tests in listed.rooms.items():
            if mutants := [each for each in listed.mutants if each.room == room and not each.unobservable]:
                examine_room(room, [*listed.options, *tests], mutants, folder, report)
    return report


def examine_room(room: str, tests: Sequence[str], mutants: Sequence[Mutant], folder: Path, report: Report) -> None:
    """Run the mutants of a room in the copy, and print what came of them."""
    began = time.monotonic()
    if (outcome := run(tests, folder, 2 * LIMIT)) != SURVIVED:
        report.faults.append(f"{room}: without a mutant its tests {'fail' if outcome == FOUND else outcome}")
        return
    clean, outcomes = time.monotonic() - began, Counter[str]()
    for mutant in mutants:
        target = folder / mutant.file
        text = target.read_text("utf-8")
        write(target, text.replace(mutant.old, mutant.new))
        outcome = run(tests, folder, mutant.limit)
        write(target, text)
        judge(mutant, outcome, report)
        outcomes[outcome] += 1
    words = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    print(f"{room:16}{words:32}{time.monotonic() - began:6.0f} s; its tests alone {clean:.1f} s", flush=True)


def main() -> int:
    """Print a line for each room, what is wrong, and the counts; returns the exit code."""
    os.environ["OMP_NUM_THREADS"] = "1"
    here = Path(__file__)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", type=Path, default=here.with_name("mutants.toml"))
    parser.add_argument("--root", type=Path, default=here.parents[1], help="the checkout")
    parser.add_argument("--only", default="", help="mutants with this text in their room, file or fault")
    parser.add_argument("--part", type=int, default=None, help="one half of the rooms, 0 or 1; both by default")
    given = parser.parse_args()
    listed = Listed.read(given.list)
    chosen = [each for each in listed.mutants if given.only in f"{each.room} {each.name}"]
    if given.part is not None:
        chosen = [each for each in chosen if each.room in [*listed.rooms][given.part :: 2]]
    report = examine(replace(listed, mutants=chosen), given.root)
    for fault in report.faults:
        print(f"FAULT: {fault}")
    print(f"mutants {report.mutants}\nmutants_found {report.found}\nmutants_unobservable {report.unobservable}")
    print(f"mutants_surviving {len(report.survivors)}")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
