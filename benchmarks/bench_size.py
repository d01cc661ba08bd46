"""Lines by room beside the ceilings of rooms.toml, and the product files that one trajectory passes.

Lines are those of Python files; in the product, templates count too, and what is vendored does not. ``--check`` fails
where a room is above its ceiling. ``--trajectory`` trains one group of a tiny model in a real run and counts the files
of the product with a call between the group's opening and its update. Rooms that serve processes, weights and figures
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

from benchmarks.command import Failure

ROOT = Path(__file__).parents[1]
CEILINGS = ROOT / "rooms.toml"
PRODUCT = ("agent_rl", "actors", "transport")
TEMPLATES = {".html", ".css", ".js", ".j2", ".sh", ".yaml"}
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
    """Fail where a room is above its ceiling."""
    trajectory: bool = False
    """Count the files that one trajectory passes, in a real run of half a minute."""


def main(options: Options) -> int:
    """Print the table, and compare it with the ceilings."""
    if not CEILINGS.is_file():
        raise Failure(f"{CEILINGS} is missing: `bench size` counts the lines of a checkout")
    ceilings: dict[str, int] = tomllib.loads(CEILINGS.read_text("utf-8"))
    rooms = lines_by_room()
    over = []
    for room in sorted(rooms.keys() | ceilings.keys()):
        lines, ceiling = rooms[room], ceilings.get(room, 0)
        print(f"{room:26}{lines:>8,}{ceiling:>10,}")
        over += [f"{room} has {lines:,} lines, its ceiling is {ceiling:,}"] * (lines > ceiling)
    for name, top in (("lines_product", PRODUCT), ("lines_benchmarks", ("benchmarks",)), ("lines_tests", ("tests",))):
        print(f"{name:26}{sum(lines for room, lines in rooms.items() if room.partition('/')[0] in top):>8,}")
    if options.trajectory:
        files = files_of_a_trajectory()
        print(f"{'files_of_a_trajectory':26}{len(files):>8,}")
        for room, count in sorted(Counter(_room(Path(name)) for name in files).items()):
            print(f"  {room:24}{count:>8,}")
    if options.check and over:
        raise Failure("; ".join(over) + ". Make the room lighter, or raise its ceiling in rooms.toml and say why")
    return 0


def lines_by_room() -> Counter[str]:
    """Lines of the files that git tracks, or would, by room: a package and a folder in it; tests as a whole."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PRODUCT, "benchmarks", "tests"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    counts: Counter[str] = Counter()
    for path in map(Path, listed.splitlines()):
        counted = path.suffix == ".py" or (path.parts[0] in PRODUCT and path.suffix in TEMPLATES)
        if counted and "vendor" not in path.parts and (ROOT / path).is_file():
            counts[_room(path)] += len((ROOT / path).read_bytes().splitlines())
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
