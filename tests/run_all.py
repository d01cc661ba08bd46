"""``make test-all``: every step runs, whatever failed before it; the last line counts what passed, failed, was skipped.

A step of pytest counts its tests, by the results that it writes as XML; any other step counts as one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]
TWO = ("-n", "2", "--dist", "worksteal")
STEPS = {
    "fast tests, new examples": (".venv", "pytest", *TWO, "-m", "not slow", "--hypothesis-profile", "explore"),
    "slow tests": (".venv", "pytest", *TWO, "-m", "slow"),
    "oldest transformers": (
        *(".venv-oldest", "pytest", *TWO, "-m", "not slow", "tests/actors/engines", "tests/actors/weights"),
        *("tests/actors/learner", "tests/agent_rl/learning", "tests/agent_rl/rollout", "tests/end_to_end"),
    ),
    "vLLM": (".venv-vllm", "pytest", "-W", "ignore", "tests/vllm"),
    "200 random faults": (".venv", "actors.cli", "bench", "chaos", "--scripted", "--faults", "200", "--seed", "0"),
}


def main() -> int:
    """Run the steps; returns the exit code."""
    total: Counter[str] = Counter()
    for name, (environment, *module) in STEPS.items():
        began = time.monotonic()
        counts = run(ROOT / environment / "bin", module)
        total += counts
        print(f"== {name}: {line(counts)}, {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    print(line(total))
    return 1 if total["failed"] else 0


def run(binaries: Path, module: list[str]) -> Counter[str]:
    """Run a module of an environment, and count its tests by outcome."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        of_pytest = module[0] == "pytest"
        command = [str(binaries / "python"), "-m", *module, *([f"--junitxml={results}"] if of_pytest else [])]
        path = os.pathsep.join((str(binaries), os.environ["PATH"]))
        offline = (
            {"HF_HUB_OFFLINE": "1"} if ".venv-vllm" in binaries.parts else {}
        )  # vLLM asks the hub for what is here
        code = subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": path, **offline}, check=False)
        if not of_pytest:
            return Counter(failed=1) if code.returncode else Counter(passed=1)
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
        return counts if code.returncode in {0, 1} else counts + Counter(failed=1)


def line(counts: Counter[str]) -> str:
    """What passed, failed and was skipped."""
    return f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"


if __name__ == "__main__":
    sys.exit(main())
