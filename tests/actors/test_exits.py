"""A process that the kernel kills for lack of memory, in a control group with a limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from actors.sandbox.isolation.control_groups import KILLS, LIMITS
from agent_rl.files.cgroups import hierarchies

IN_GROUP = """
import os, subprocess, sys
from actors.exits import MemoryKills, describe_exit
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
kills = MemoryKills()
for code in ("import os; os.kill(os.getpid(), 9)", "b'x' * (256 << 20)"):
    status = subprocess.run([sys.executable, "-c", code]).returncode
    print(describe_exit(status, lacked_memory=kills.killed(status)))
"""


@pytest.fixture
def limited_group(tmp_path: Path):
    """A control group that may have 64 MiB; skips the test where none can be made."""
    found = hierarchies(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    own = next((each for each in found if (each.own / KILLS[each.version]).exists()), None)
    if own is None:
        pytest.skip("no hierarchy here counts kills for lack of memory")
    group = own.own / tmp_path.name
    try:
        group.mkdir()
        (group / LIMITS[own.version, "memory"][0]).write_text(str(64 << 20))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield group
    group.rmdir()


def test_the_kernels_kill_is_told_from_others(limited_group: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_GROUP, str(limited_group)], capture_output=True, text=True, timeout=60, check=True
    )
    killed, lacked_memory = done.stdout.splitlines()
    assert killed == "was killed by SIGKILL"
    assert lacked_memory.startswith("was killed by the kernel for lack of memory")
