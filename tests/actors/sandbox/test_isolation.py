"""Levels of isolation: what each is, what is refused where it can't be had, and what takes its place."""

import errno
import importlib
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
import trio

from actors.sandbox.isolation import kernel, levels
from actors.sandbox.isolation.levels import (
    BLOCKS,
    LEVELS,
    UNUSED_USER,
    USERS,
    Visible,
    filter_program,
    outer_users,
    unavailable,
    visible,
)
from actors.sandbox.owner import interpreter
from actors.sandbox.owner.functions import places
from agent_rl.environments.task_files import named_in
from tests.actors.sandbox.running import eventually, execute_all, living, named, pids, require, sandboxed

ROOT = Path(__file__).resolve().parents[3]
UNSHARE = {"x86_64": 272, "aarch64": 97}
SCRIPT = """
import struct, sys
import trio
from actors.sandbox.isolation import kernel
from actors.sandbox.owner.client import Sandbox
from actors.sandbox.isolation.levels import IsolationError
forbidden, level = int(sys.argv[1]), sys.argv[2]
if forbidden:  # as a container's filter does
    rows = [(0x20, 0, 0, 0), (0x15, 0, 1, forbidden), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)]
    kernel.install_filter(b"".join(struct.pack("=HBBI", *row) for row in rows))
async def main():
    sandbox = Sandbox(isolation=level)
    async with trio.open_nursery() as nursery:
        await nursery.start(sandbox.run)
        result = await sandbox.execute("import os\\nprint(os.getuid())")
        print(sandbox.level, sandbox.reasons, result.outcome, result.stdout)
        nursery.cancel_scope.cancel()
try:
    trio.run(main)
except* IsolationError as group:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    print("REFUSED", group)
"""


def run_script(forbidden: int, level: str, user: int | None = None) -> str:
    command = [sys.executable, "-B", "-c", SCRIPT, str(forbidden), level]
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
        env=environment,
        user=user,
        group=user,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_where_namespaces_are_forbidden_the_next_level_is_taken_and_said():
    require("filtered")
    said = run_script(UNSHARE[platform.machine()], "host")
    assert said.startswith("filtered ['strong: [Errno 1] unshare: Operation not permitted'] success")


def test_a_level_that_was_asked_for_and_cannot_be_had_is_refused_with_its_remedy():
    said = run_script(UNSHARE[platform.machine()], "strong")
    assert said.startswith('REFUSED isolation = "strong" is not available on this host: [Errno 1] unshare')
    assert 'accept less with isolation = "host" or isolation = "filtered" or isolation = "limits"' in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_has_strong_isolation_too():
    require("strong")
    try:
        subprocess.run([sys.executable, "-c", "import trio"], user=4321, group=4321, check=True, capture_output=True)
    except (PermissionError, subprocess.CalledProcessError):
        pytest.skip("ordinary users can't run this Python")
    if not os.access(ROOT / "actors", os.R_OK):
        pytest.skip("ordinary users can't read the checkout")
    assert run_script(0, "strong", user=4321) == "strong [] success 1000\n\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has users to give away")
@pytest.mark.real_time
async def test_each_slot_of_root_is_a_user_of_its_own_on_the_host():
    if outer_users()[1] == 1:
        pytest.skip("this container has no unused users")
    async with sandboxed("strong") as sandbox, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(sandbox.execute, named("a-user-each") + "import time\ntime.sleep(60)")
        assert await eventually(lambda: living("a-user-each") == 3)
        users = {user_of(pid) for pid in pids("a-user-each")}
        assert len(users) == 3
        assert all(UNUSED_USER < user < UNUSED_USER + USERS * BLOCKS for user in users)
        nursery.cancel_scope.cancel()


def user_of(pid: int) -> int:
    """The user of a process whose files in /proc are root's, since it can't be looked into."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("Uid:")[2].split()[0])


@pytest.mark.parametrize("level", ["strong", "filtered"])
def test_calls_of_root_make_no_devices_and_programs_get_no_capabilities_back(level):
    require(level)
    look = "import ctypes\ncapabilities = (ctypes.c_uint32 * 6)()\n"
    look += (
        "ctypes.CDLL(None).capget((ctypes.c_uint32 * 2)(0x20080522, 0), capabilities)\n"
        "print(any(capabilities[:2]), flush=True)"
    )
    code = (
        "import os, stat, sys\nfor kind in (stat.S_IFCHR, stat.S_IFBLK):\n"
        "    try: os.mknod('device', 0o600 | kind, os.makedev(1, 11))\n    except OSError: print('refused')\n"
        f"{look}\nos.execv({os.path.realpath(sys.executable)!r}, ['python', '-c', {look!r}])"
    )
    [result] = execute_all([code], isolation=level)
    assert result.stdout == "refused\nrefused\nFalse\nFalse\n"


def test_the_filtered_level_reads_and_writes_little_where_there_is_landlock():
    require("filtered")
    if not kernel.landlock_version():
        pytest.skip("this kernel has no Landlock")
    code = (
        "import os\nfor path in ('/etc/shadow', '/proc/1/environ', '/root', '/home', '/tmp'):\n"
        "    try: (os.listdir if os.path.isdir(path) else open)(path); print('READ', path)\n"
        "    except OSError: pass\n"
        "try: open('/tmp/evil', 'w'); print('WRITTEN')\nexcept OSError: pass\n"
        "open('/dev/null', 'w').write('x')\nimport decimal, sqlite3"
    )
    [result] = execute_all([code], isolation="filtered")
    assert (result.outcome, result.stdout) == ("success", "")


def test_what_is_hidden_lies_over_what_is_shown_and_packages_within_over_that(tmp_path):
    project, packages, answers = (
        tmp_path / "project",
        tmp_path / "project/.venv/site",
        tmp_path / "project/.venv/site/a",
    )
    answers.mkdir(parents=True)
    (packages / "single.py").touch()
    (packages / "numpy").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    shown, hidden = (str(tmp_path / "link"), str(packages)), (str(project), str(answers), str(packages / "none"))
    found = visible(shown, hidden)
    plan = [
        (kind, str(Path(path).relative_to(tmp_path))) for kind, path in found.plan if path.startswith(str(tmp_path))
    ]
    assert plan == [
        ("bind", "link"),
        ("hide", "link/project"),
        ("bind", "project/.venv/site"),
        ("hide", "project/.venv/site/a"),
    ]
    assert set(found.readable) > {str(packages / "single.py"), str(packages / "numpy")}
    assert {*found.readable, *found.listed}.isdisjoint({str(project), str(answers), str(tmp_path / "link/project")})
    assert {path for path in found.listed if path.startswith(str(tmp_path))} == {str(tmp_path / "link"), str(packages)}


def test_what_is_removed_while_it_is_listed_is_not_shown():
    readable: list[str] = []
    levels._open_up("/removed", {"/removed/hidden": "hide"}, readable, [])
    assert readable == []


SIBLINGS = 2000
"""Beside what is hidden; their names are longer than an argument of a program may be."""
HIDDEN_READ = """
import os, sys
import latecomer
site = os.path.dirname(latecomer.__path__[0])
for folder in ("answers", "answers/deep", "."):
    try: names = os.listdir(f"{site}/{folder}")
    except OSError: continue
    for name in names:
        try:
            if 'secret' in open(f"{site}/{folder}/{name}").read(): print("READ", folder, name)
        except OSError: pass
for name in ("answers", "single"):
    try: print("IMPORTED", __import__(name).value)
    except (ImportError, AttributeError, OSError): pass
print(latecomer.value)
"""


@pytest.mark.parametrize("level", ["strong", "filtered"])
def test_packages_are_hidden_by_name_beside_others(monkeypatch, level):
    """A user's environment that is installed beside numpy, and this project where it is installed so."""
    require(level)
    if level == "filtered" and not kernel.landlock_version():
        pytest.skip("this kernel has no Landlock")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        check_hidden(monkeypatch, level, Path(folder) / "site")


def check_hidden(monkeypatch: pytest.MonkeyPatch, level: str, site: Path) -> None:
    for path in ("answers/__init__.py", "answers/held_out.jsonl", "answers/deep/more.jsonl", "single.py"):
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text("value = 'secret'\n")
    (site / "latecomer").mkdir()
    (site / "latecomer/__init__.py").write_text("value = 6 * 7")
    for number in range(SIBLINGS):
        (site / f"{number:x<80}").touch()
    found = sysconfig.get_path
    monkeypatch.setattr(
        sysconfig, "get_path", lambda name: str(site) if name in ("purelib", "platlib") else found(name)
    )

    def seen_before(*arguments: Iterable[str]) -> Visible:
        seen = visible(*arguments)
        (site / f"{0:x<80}").unlink(missing_ok=True)
        return seen

    monkeypatch.setattr(interpreter, "visible", seen_before)
    hidden = (str(site / "answers"), str(site / "single.py"))
    [result] = execute_all([HIDDEN_READ], isolation=level, hidden=hidden)
    assert (result.outcome, result.stdout) == ("success", "42\n"), result.stderr


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_packages_where_calls_have_their_own_files_can_be_imported_late_and_not_be_changed(monkeypatch, folder):
    require("strong")
    with tempfile.TemporaryDirectory(prefix="a folder of thé user", dir=folder) as top:
        package = Path(top, "deep", "site", "latecomer")
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "part.py").write_text("value = 6 * 7")
        Path(top).chmod(0o755)
        found = sysconfig.get_path
        monkeypatch.setattr(
            sysconfig, "get_path", lambda name: str(package.parent) if name in ("purelib", "platlib") else found(name)
        )
        late = "from latecomer import part\nprint(part.value, __import__('os').listdir('/tmp'))"
        shown = "__import__('latecomer').__path__[0]"
        changes = (f"open({shown} + '/evil.py', 'w')", f"os.chmod({shown}, 0o777)", f"os.mkdir({shown} + '/evil')")
        tries = [f"import os\ntry: {change}\nexcept OSError as error: print(error.errno)" for change in changes]
        monkeypatch.syspath_prepend(package.parent)
        first, *tried, second = execute_all([late, *tries, late], isolation="strong", warm_modules=["latecomer"])
        assert (first.outcome, first.stdout) == ("success", "42 []\n"), first.stderr
        assert [attempt.stdout for attempt in tried] == [f"{errno.EROFS}\n"] * 3
        assert second.stdout == first.stdout
        assert not (package / "evil.py").exists()


def test_every_level_but_the_weakest_has_a_filter():
    lengths = [len(filter_program(level)) for level in LEVELS]
    assert lengths[0] > 1000
    assert lengths[1] > 1000
    assert lengths[2] == 0
    assert 'isolation = "host"' in str(unavailable("limits", "x"))


def test_hidden_are_all_folders_of_a_namespace_and_the_task_files_that_settings_name(tmp_path, monkeypatch):
    for folder, package in (("one", "tools"), ("two", "env")):
        (tmp_path / folder / "acme_of_two" / package).mkdir(parents=True)
        (tmp_path / folder / "acme_of_two" / package / "__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path / folder)
    importlib.import_module("acme_of_two.env")
    found = places(["acme_of_two.env:E"])
    assert {str(tmp_path / folder / "acme_of_two") for folder in ("one", "two")} <= set(found)
    for name in ("held_out.jsonl", "train.parquet", "notes.txt"):
        (tmp_path / name).touch()
    settings = {
        "files": ["*.parquet", "none.jsonl"],
        "more": {"path": str(tmp_path / "held_out.jsonl")},
        "x": "notes.txt",
    }
    assert {path.name for path in named_in(settings, tmp_path)} == {"held_out.jsonl", "train.parquet"}
