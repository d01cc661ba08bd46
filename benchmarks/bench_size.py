"""Lines of the core, the kits, the benchmarks and the tests.

The **core** is what a run imports: the closure of imports of ``agent-rl run``, of an actor's process and of all that is
built in, with the programs that these start by name. **Kits** are the product's other files. Lines are those of Python
files and of templates; what is vendored does not count. ``--check`` fails where one of the four is above its number in
``budget.toml``, and lowers a number that is above what is there. A commit that raises one says ``raise-budget:`` and
why, and lowers another.
"""

from __future__ import annotations

import subprocess
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from agent_rl.config.plugins import ALIASES
from benchmarks.command import Failure

ROOT = Path(__file__).parents[1]
BUDGET = "budget.toml"
PRODUCT = ("agent_rl", "actors", "transport")
TEMPLATES = {".html", ".css", ".js", ".j2", ".sh", ".yaml"}
ROOTS = ("actors.cli.__main__", "actors.cli.topologies", "actors.runtime.process")
STARTED = (
    "actors.runtime.lifeline",
    "actors.runtime.tracker",
    "actors.sandbox.inside.child",
    "actors.sandbox.inside.forks",
    "actors.sandbox.inside.program",
    "actors.sandbox.inside.server",
    "actors.sandbox.inside.warm_up",
    "actors.sandbox.programs.zygote",
    "actors.tool_executor.start_server",
    "actors.engines.vllm.scheduler",
    "actors.engines.vllm.worker",
)
"""Programs of a run that are started by name or by path."""
JUDGED = 20
"""So many of the last commits that changed the budget must have raised nothing without a word."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command's options."""

    check: bool = False
    """Fail where lines are above their budget, and lower a budget that is above the lines."""


def main(options: Options) -> int:
    """Print the lines, and compare them with the budget."""
    if not (ROOT / BUDGET).is_file():
        raise Failure(f"{ROOT / BUDGET} is missing: `bench size` counts the lines of a checkout")
    budget: dict[str, int] = tomllib.loads((ROOT / BUDGET).read_text("utf-8"))
    rooms = lines_by_room(core_modules())
    for room, lines in sorted(rooms.items()):
        print(f"{room[0]:12}{room[1]:26}{lines:>8,}")
    sums = {part: sum(lines for room, lines in rooms.items() if room[0] == part) for part in budget}
    for part, lines in sums.items():
        print(f"{f'lines_{part}':26}{lines:>8,}{budget[part]:>10,}")
    if options.check:
        over = [f"{part} has {sums[part]:,} lines, not {most:,}" for part, most in budget.items() if sums[part] > most]
        if over := over + raised_in_silence():
            raise Failure("; ".join(over) + ". Make it lighter, or raise one, lower another, and say raise-budget: WHY")
        if sums != budget:
            heading = (ROOT / BUDGET).read_text("utf-8").partition("\n")[0]
            numbers = (f"{part} = {lines}\n" for part, lines in sums.items())
            (ROOT / BUDGET).write_text(f"{heading}\n{''.join(numbers)}", encoding="utf-8")
            print(f"lowered {BUDGET}; commit it")
    return 0


def core_modules() -> set[str]:
    """The modules that a run imports or starts."""
    import grimp

    graph = grimp.build_graph(*PRODUCT, cache_dir=None)
    core = {*ROOTS, *STARTED, *(path.partition(":")[0] for kind in ALIASES.values() for path in kind.values())}
    return core.union(*(graph.find_upstream_modules(each) for each in core))


def raised_in_silence() -> list[str]:
    """Commits that raised a number of the budget without the word, or without lowering another."""
    faults = []
    for commit in _git("log", f"-{JUDGED}", "--format=%H", "--", BUDGET).split():
        before, after = (tomllib.loads(_git("show", f"{commit}{parent}:{BUDGET}")) for parent in ("^", ""))
        moved = [after.get(part, 0) - lines for part, lines in before.items()]
        spoken = "raise-budget:" in _git("show", "-s", "--format=%B", commit) and min(moved, default=0) < 0
        if max(moved, default=0) > 0 and not spoken:
            faults.append(f"commit {commit[:9]} raised {BUDGET}")
    return faults


def _git(*arguments: str) -> str:
    """What git says; nothing where there is no such commit or file."""
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True).stdout


def lines_by_room(core: set[str]) -> Counter[tuple[str, str]]:
    """Lines of the files that git tracks, or would, by part and room: a package and a folder in it; tests as a whole.

    Templates are of the core: the page's and the scripts'.
    """
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PRODUCT, "benchmarks", "tests"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    counts: Counter[tuple[str, str]] = Counter()
    for path in map(Path, listed.splitlines()):
        product = path.parts[0] in PRODUCT
        counted = path.suffix == ".py" or (product and path.suffix in TEMPLATES)
        if counted and "vendor" not in path.parts and (ROOT / path).is_file():
            module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
            of_core = path.suffix != ".py" or module in core or any(each.startswith(f"{module}.") for each in core)
            part = ("core" if of_core else "kits") if product else path.parts[0]
            counts[part, _room(path)] += len((ROOT / path).read_bytes().splitlines())
    return counts


def _room(path: Path) -> str:
    top = path.parts[0]
    if top in {"transport", "benchmarks", "tests"}:
        return top
    return "/".join(path.parts[:2]) if len(path.parts) > 2 else f"{top}/*.py"
