"""``make test-all``: every step runs, whatever failed before it; the last line counts what passed, failed, was skipped.

A step of pytest counts its tests, by the results that it writes as XML; any other step counts as one. Steps that stand
together run side by side, since each of them leaves a core unused.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]
TWO, THREE = (("-n", count, "--dist", "worksteal") for count in "23")
NEW = ("--hypothesis-profile", "explore", "--trio-seed", str(random.randrange(10**6)))
STEPS: tuple[dict[str, tuple[str, ...]], ...] = (
    {"fast tests, new examples": (".venv", "-m", "pytest", *THREE, "-m", "not slow", *NEW)},
    {"slow tests": (".venv", "-m", "pytest", *TWO, "-m", "slow")},
    {
        "mutants of one half of the rooms": (".venv", "tests/mutants.py", "--part", "0"),
        "mutants of the other": (".venv", "tests/mutants.py", "--part", "1"),
        "oldest transformers": (
            *(".venv-oldest", "-m", "pytest", "-m", "not slow", "tests/actors/engines", "tests/actors/weights"),
            *("tests/actors/learner", "tests/agent_rl/learning", "tests/agent_rl/rollout"),
        ),
    },
    {
        "vLLM": (".venv-vllm", "-m", "pytest", "-W", "ignore", "tests/vllm"),
        "200 random faults": (
            *(".venv", "-m", "actors.cli", "bench", "chaos", "--scripted", "--faults", "200", "--seed", "0"),
        ),
    },
)


def main() -> int:
    """Run the steps; returns the exit code."""
    total: Counter[str] = Counter()
    print(f"new examples: {' '.join(NEW)}", flush=True)
    for together in STEPS:
        with ThreadPoolExecutor(len(together)) as threads:
            total += sum(threads.map(partial(step, live=len(together) == 1), together.items()), Counter())
    print(line(total))
    return 1 if total["failed"] else 0


def step(named: tuple[str, tuple[str, ...]], *, live: bool) -> Counter[str]:
    """Run a step, and print its output: while it is written, or when the step has ended."""
    (name, (environment, *arguments)), began = named, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output")
        with output.open("wb") as file:
            counts = run(
                ROOT / environment / "bin", arguments, Path(folder, "results.xml"), None if live else file.fileno()
            )
        printed = output.read_text("utf-8", "replace")
    print(f"{printed}== {name}: {line(counts)}, {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    return counts


def run(binaries: Path, arguments: list[str], results: Path, output: int | None) -> Counter[str]:
    """Run Python of an environment, and count its tests by outcome."""
    of_pytest = "pytest" in arguments
    command = [str(binaries / "python"), *arguments, *([f"--junitxml={results}"] if of_pytest else [])]
    path = os.pathsep.join((str(binaries), os.environ["PATH"]))
    offline = {"HF_HUB_OFFLINE": "1"} if ".venv-vllm" in binaries.parts else {}  # vLLM asks the hub for what is here
    environment = {**os.environ, "PATH": path, **offline}
    code = subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=output, check=False).returncode
    if not of_pytest:
        return Counter(failed=1) if code else Counter(passed=1)
    if not results.is_file():
        return Counter(failed=1)
    counts: Counter[str] = Counter()
    for suite in ET.parse(results).iter("testsuite"):
        tests, failed, skipped = (
            int(suite.get("tests", 0)),
            int(suite.get("failures", 0)) + int(suite.get("errors", 0)),
            int(suite.get("skipped", 0)),
        )
        counts += Counter(passed=tests - failed - skipped, failed=failed, skipped=skipped)
    return counts if code in {0, 1} else counts + Counter(failed=1)


def line(counts: Counter[str]) -> str:
    """What passed, failed and was skipped."""
    return f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"


if __name__ == "__main__":
    sys.exit(main())
