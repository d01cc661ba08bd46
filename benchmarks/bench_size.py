"""Lines of the core, the kits, the benchmarks and the tests, and the product files that one trajectory passes.

The **core** is what a run imports: the closure of imports of ``agent-rl run``, of an actor's process and of all that is
built in, with the programs that these start by name. **Kits** are the product's other files. Lines are those of Python
files and of templates; what is vendored does not count. ``--check`` fails where one of the four is above its number in
``budget.toml``, and lowers a number that is above what is there. A commit that raises one says ``raise-budget:`` and
why, and lowers another. ``--trajectory`` trains one group of a tiny model in a real run and counts the files of the
product with a call between the group's opening and its update. Rooms that serve processes, weights and figures
(actors/runtime, actors/weights, agent_rl/observe) do not count, and what runs inside the sandbox is not seen.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
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
PASSED = Path(__file__).with_name("passed")
RUN_SECONDS = 300.0
TOPOLOGY = """
[run]
name = "one-group"
directory = "run"
[model.initialise]
hidden_size = 64
layers = 1
heads = 4
kv_heads = 2
head_dim = 16
mlp_size = 64
max_length = 256
[[environments]]
class = "parity:Parity"
[algorithm]
groups_per_step = 1
samples = 8
keep = 4
[[stages]]
kind = "sft"
name = "format"
steps = 150
batch = 16
learning_rate = 3e-3
[[stages]]
kind = "rl"
name = "rl"
steps = 1
learning_rate = 3e-4
max_response_tokens = 176
max_turns = 4
"""


@dataclass(frozen=True, slots=True)
class Options:
    """The command's options."""

    check: bool = False
    """Fail where lines are above their budget, and lower a budget that is above the lines."""
    trajectory: bool = False
    """Count the files that one trajectory passes, in a real run of half a minute."""


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
    if options.trajectory:
        files = files_of_a_trajectory()
        print(f"{'files_of_a_trajectory':26}{len(files):>8,}")
        for passed, count in sorted(Counter(_room(Path(name)) for name in files).items()):
            print(f"  {passed:24}{count:>8,}")
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


def files_of_a_trajectory() -> set[str]:
    """Train one group, and return the files of the product that it passed."""
    with tempfile.TemporaryDirectory(prefix="agent-rl-size-") as folder:
        seen, topology = Path(folder, "seen"), Path(folder, "one.toml")
        seen.mkdir()
        topology.write_text(TOPOLOGY, encoding="utf-8")
        python_path = os.pathsep.join(map(str, (ROOT, PASSED)))
        run = subprocess.run(
            [sys.executable, "-m", "actors.cli", "run", topology],
            env={**os.environ, "PYTHONPATH": python_path, "FILES_PASSED": str(seen)},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        if run.returncode or '"steps_updated": 1' not in run.stdout:
            raise Failure(f"the run trained no group:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
        return {name for file in seen.iterdir() for name in file.read_text("utf-8").splitlines()}
