"""Where groups may be made, how much they allow, what is said where there are none, and that none stays behind."""

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actors.sandbox.isolation.control_groups import (
    CONTROLLERS,
    KILLS,
    LIMITS,
    PEAKS,
    REST,
    ControlGroup,
    ControlGroups,
    _parent,
    memory_kills,
)
from actors.sandbox.owner.client import ExecutionLimits
from actors.sandbox.owner.interpreter import Ended, ending_of
from actors.sandbox.wire import CPU_TIMEOUT, NO_VERDICT, TIMEOUT
from agent_rl.files.cgroups import Hierarchy, hierarchies, memory_around, memory_here
from agent_rl.files.leftovers import sweep_one
from tests.actors.sandbox.running import groups_or_skip, sandboxed

UNIFIED = "24 1 0:21 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
SEPARATE = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
"""
IN_A_CONTAINER = SEPARATE.replace("0:32 / ", "0:32 /docker/4f ").replace(
    "/sys/fs/cgroup/memory", "/sys/fs/my\\040groups"
)
AS_NOBODY = """
import os, trio
from actors.sandbox.owner.client import Sandbox
from actors.sandbox.isolation.control_groups import ControlGroups, ControlGroupsError
os.setresuid(65534, 65534, 65534)
groups = ControlGroups()
groups.make(None, 100)
print(groups.limits, len(groups.lacking))
groups.remove()
async def main():
    await Sandbox(control_groups="required").run()
try:
    trio.run(main)
except ControlGroupsError as error:
    print("REFUSED", error)
"""


def test_version_2():
    found = hierarchies("0::/user.slice/run-1.scope\n", UNIFIED)
    top = Path("/sys/fs/cgroup")
    assert found == [Hierarchy(2, (), top / "user.slice/run-1.scope", top)]


@pytest.mark.parametrize(
    ("cgroup", "mounts", "found"),
    [
        (
            "8:pids:/\n4:memory:/jobs/7\n3:cpu,cpuacct:/\n9:name=systemd:/x\n",
            SEPARATE,
            {("memory",): "/memory/jobs/7", ("pids",): "/pids", ("cpu", "cpuacct"): "/cpu,cpuacct"},
        ),
        (
            "4:memory:/jobs/7\n0::/a:b\n",
            SEPARATE + UNIFIED.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),
            {("memory",): "/memory/jobs/7", (): "/unified/a:b"},
        ),
        ("4:memory:/docker/4f/x\n", IN_A_CONTAINER, {("memory",): "/sys/fs/my groups/x"}),
        ("4:memory:/docker\n", IN_A_CONTAINER, {}),
        ("0::/../..\n", "", {}),
    ],
    ids=["version 1", "both at once", "a part is seen", "another part is seen", "nothing is mounted"],
)
def test_where_the_groups_of_a_process_are(cgroup, mounts, found):
    own = {one.controllers: str(one.own) for one in hierarchies(cgroup, mounts)}
    own.pop(("name=systemd",), None)
    assert own == {name: path if path.startswith("/sys") else f"/sys/fs/cgroup{path}" for name, path in found.items()}


def test_a_process_has_the_least_that_is_allowed_around_it(tmp_path):
    own = tmp_path / "a" / "b"
    own.mkdir(parents=True)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    around = Hierarchy(2, (), own, tmp_path)
    assert memory_around(around) == machine
    (own / "memory.max").write_text("max\n")
    (tmp_path / "a" / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert memory_around(around) == 1_000_000
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/a/b\n")
    (tmp_path / "self/mountinfo").write_text(f"30 20 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw\n")
    assert memory_here(tmp_path) == 1_000_000
    assert memory_here(tmp_path / "nowhere") == machine


@pytest.mark.parametrize(
    ("user", "mark", "may"), [(0, None, False), (0, b"1", True), (0, b"0", False), (1000, None, True)], ids=str
)
def test_root_divides_no_group_that_is_somebody_elses(tmp_path, monkeypatch, user, mark, may):
    own = tmp_path / "session-1.scope"
    own.mkdir()
    for name in ("cgroup.type", "cgroup.procs", "cgroup.subtree_control"):
        (own / name).touch()

    def mark_of(path: Path, name: str) -> bytes:
        assert path == own
        if mark is None or name != "trusted.delegate":
            raise OSError(errno.ENODATA, "No data available")
        return mark

    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(os, "getxattr", mark_of)
    with contextlib.nullcontext() if may else pytest.raises(PermissionError, match="not marked as delegated"):
        assert _parent(Hierarchy(2, (), own, tmp_path), "memory") == own
    assert (own / REST).exists() == may
    assert _parent(Hierarchy(2, (), own, own), "pids") == own  # the uppermost there is, as in a container


def test_an_end_for_want_of_memory_is_told_from_others():
    def outcome(verdict: int, *, out_of_memory: bool) -> str:
        return ending_of(Ended(verdict, -9, 1.0, b"", b"", b"success\n", out_of_memory), 1000).outcome

    assert outcome(NO_VERDICT, out_of_memory=True) == outcome(CPU_TIMEOUT, out_of_memory=True) == "memory_limit"
    assert outcome(NO_VERDICT, out_of_memory=False) == "killed"
    assert outcome(TIMEOUT, out_of_memory=True) == "timeout"


@pytest.mark.parametrize(
    ("version", "own", "file", "where"),
    [
        (2, "0::/mine", "memory.events.local", "mine"),
        (2, f"0::/mine/{REST}", "memory.events.local", f"mine/{REST}"),
        (2, f"0::/mine/{REST}", "memory.events.local", "mine"),  # before an executor moved all processes
        (1, "4:memory:/mine", "memory.oom_control", "mine"),
    ],
)
def test_the_kernels_kills_for_want_of_memory_are_counted(tmp_path, version, own, file, where):
    kind, options = ("cgroup2", "rw") if version == 2 else ("cgroup", "rw,memory")
    assert memory_kills(tmp_path) == 0
    (tmp_path / "vmstat").write_text("pgfault 9\noom_kill 2\n")
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(own + "\n")
    (tmp_path / "self" / "mountinfo").write_text(f"30 24 0:27 / {tmp_path} rw - {kind} cgroup {options}\n")
    assert memory_kills(tmp_path) == 2  # those of the machine
    (tmp_path / where).mkdir(parents=True)
    (tmp_path / where / file).write_text("low 0\noom 7\noom_kill 3\n")
    assert memory_kills(tmp_path) == 3


@pytest.mark.real_time
async def test_groups_that_are_not_wanted_are_not_made():
    async with sandboxed(control_groups="off") as sandbox:
        assert ((await sandbox.execute("1")).outcome, sandbox.groups.to_join) == ("success", [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_who_was_delegated_no_group_goes_on_without_or_is_refused_when_that_is_configured():
    done = subprocess.run([sys.executable, "-c", AS_NOBODY], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    without, refused, _ = done.stdout.split("\n")
    assert without == f"{{}} {len(CONTROLLERS)}"
    assert refused.startswith('REFUSED control_groups = "required" is not available on this host: memory: ')
    assert "; pids: " in refused
    assert 'accept less with control_groups = "host" or "off"' in refused


@pytest.mark.real_time
async def test_the_groups_are_gone_with_the_sandbox():
    async with sandboxed(groups=[]) as sandbox:
        await sandbox.execute("import os\nif os.fork() == 0:\n    while True: pass")
        found = [Path(path).parent for path in sandbox.groups.to_join]
    assert len(found) >= 1
    assert not any(path.exists() for path in found)


def test_the_groups_of_a_killed_executor_are_swept_with_what_is_in_them():
    groups_or_skip()
    code = (
        "import subprocess\nfrom actors.sandbox.isolation.control_groups import ControlGroups\n"
        "groups = ControlGroups()\ngroups.make(1 << 29, 100)\n"
        "sleeper = subprocess.Popen(['sleep', '600'])\n"
        "for procs in groups.to_join: open(procs, 'w').write(str(sleeper.pid))\n"
        "print(groups._held[0], sleeper.pid, *groups.to_join, flush=True)\ninput()"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as executor:
        links, sleeper, *members = executor.stdout.readline().split()
        assert not sweep_one(Path(links))
        assert all(sleeper in Path(procs).read_text().split() for procs in members)
        executor.kill()
    assert sweep_one(Path(links))
    assert not any(Path(procs).parent.exists() for procs in members)


def test_limits_that_the_kernel_refuses_are_said(monkeypatch):
    groups_or_skip()
    monkeypatch.setattr("actors.sandbox.isolation.control_groups.LIMITS", dict.fromkeys(limit_keys(), ("no.such",)))
    groups = ControlGroups()
    try:
        groups.make(1 << 29, 100)
        assert groups.groups == []
        assert len(groups.lacking) == len(CONTROLLERS)
        made = list(groups_of(groups))
        assert made
    finally:
        groups.remove()
    assert not any(path.exists() for path in made)


def limit_keys() -> list[Any]:
    return [(version, controller) for version in (1, 2) for controller in CONTROLLERS]


def groups_of(groups: ControlGroups) -> list[Path]:
    return [path.readlink() for path in groups._held[0].iterdir()]


@pytest.mark.real_time
async def test_an_interpreter_that_finds_too_little_memory_says_so():
    said = pytest.RaisesExc(Exception, match="memory limit of all calls together")
    with pytest.RaisesGroup(said, flatten_subgroups=True):
        async with sandboxed(groups=["memory"], memory_bytes=4 << 20, limits=ExecutionLimits()):
            pytest.fail("it has started")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("peak", "kills", "neighbours", "starved"),
    [(300, 1, 1, True), (300, 0, 1, False), (395, 1, 1, False), (300, 1, 3, False), (100, 1, 3, True)],
)
def test_whose_fault_it_is_that_a_program_lacked_memory(tmp_path, version, peak, kills, neighbours, starved):
    groups = ControlGroups()
    groups.groups = [ControlGroup("memory", version, tmp_path, 1000), ControlGroup("pids", version, tmp_path, 9)]
    parts = groups.open(400)
    for _ in range(neighbours):
        groups.open(400)
    for directory in (each for part in parts for each in part):
        (directory / KILLS[version]).write_text("under_oom 0\noom_kill 0\n")
        (directory / PEAKS[version]).write_text("1")
        assert (directory / LIMITS[version, "memory"][0]).read_text() == "400"
    (parts[0][0] / KILLS[version]).write_text(f"oom_kill {kills}\n")
    (parts[0][0] / PEAKS[version]).write_text(str(peak))
    assert groups.starved(parts, 400) is starved
    assert groups.joins(parts[0]) == [str(tmp_path / "program-1" / "cgroup.procs")]
