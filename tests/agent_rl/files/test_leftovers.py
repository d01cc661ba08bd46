"""What is claimed stays, what nobody holds is swept, and the janitor ends what a killed supervisor left."""

import fcntl
import os
import select
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from agent_rl.files.leftovers import Janitor, Unsafe, claim, claimed_directory, remove_tree, sweep, sweep_one


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary files go; /tmp itself belongs to whatever else runs here, which sweeping leaves alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def free(temporary):
    """A directory that was claimed, and that nobody holds any more."""
    directory, held = claimed_directory("groups")
    held.release()
    return directory


def test_a_held_directory_is_never_swept(temporary):
    directory, held = claimed_directory("sandbox")
    (directory / "file").write_text("x")
    assert directory.parent == temporary
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert directory not in sweep()
    assert directory.exists()
    held.release()
    assert directory in sweep()
    assert not directory.exists()


def test_a_link_to_what_is_no_control_group_any_more_keeps_nobody_from_sweeping(temporary, free):
    other = temporary / "elsewhere" / free.name
    other.mkdir(parents=True)
    (free / "memory").symlink_to(other)
    (free / "pids").symlink_to(temporary / "gone" / free.name)
    assert free in sweep()
    assert not free.exists()
    assert other.exists()


def test_what_another_process_sweeps_at_the_same_time_is_no_fault(free, monkeypatch):
    lock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda *given: (free.rmdir(), lock(*given)))  # the other was first
    assert not sweep_one(free)


def test_what_is_swept_while_it_is_claimed_is_made_again(temporary, monkeypatch):
    directory = temporary / "agent-rl.x"
    look, swept = Path.lstat, []

    def swept_once(path):
        if path == directory and not swept:
            swept.append(path)
            path.rmdir()
        return look(path)

    monkeypatch.setattr(Path, "lstat", swept_once)
    held = claim(directory)
    assert swept
    assert directory.is_dir()
    held.release()


def test_several_may_hold_one_directory(temporary):
    first, second = claim(temporary / "agent-rl.x"), claim(temporary / "agent-rl.x")
    first.release()
    assert not sweep_one(temporary / "agent-rl.x")
    second.release()
    assert sweep_one(temporary / "agent-rl.x")


def test_a_holder_that_is_killed_holds_no_more(temporary):
    code = (
        "import sys; from agent_rl.files.leftovers import claim; from pathlib import Path; "
        "held = claim(Path(sys.argv[1])); print('held', flush=True); input()"
    )
    directory = temporary / "agent-rl.run-x"
    command = [sys.executable, "-c", code, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        assert not sweep_one(directory)
        holder.kill()
    assert sweep_one(directory)


def test_a_directory_with_a_living_socket_stays(temporary):
    directory = temporary / "agent-rl.run"
    directory.mkdir()
    place = os.path.relpath(directory / "learner.0")  # short enough for a socket's path
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(place)
        listening.listen()
        assert not sweep_one(directory)
    assert sweep_one(directory)


def test_what_is_not_ours_alone_is_left_alone(temporary):
    (temporary / "agent-rl.file").touch()
    (temporary / "target").mkdir()
    (temporary / "agent-rl.link").symlink_to(temporary / "target")
    (temporary / "other").mkdir()
    assert [path for path in sweep() if path.parent == temporary] == []
    assert {path.name for path in temporary.iterdir()} == {"agent-rl.file", "agent-rl.link", "target", "other"}
    for name in ("agent-rl.file", "agent-rl.link"):
        with pytest.raises(Unsafe, match="not a directory of yours alone; remove it, or set TMPDIR"):
            claim(temporary / name)


def test_trees_without_permissions_are_removed_too(temporary):
    deep = temporary / "agent-rl.sandbox-x" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    deep.chmod(0o000)
    deep.parent.chmod(0o500)
    remove_tree(temporary / "agent-rl.sandbox-x")
    assert not (temporary / "agent-rl.sandbox-x").exists()


SUPERVISOR = """\
import subprocess, sys, time
from agent_rl.files.leftovers import Janitor, claimed_directory
janitor = Janitor()
directory, held = claimed_directory("run")
actor, ended = (subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2))
janitor.started(actor.pid)
janitor.started(ended.pid)
janitor.ended(ended.pid)
print(actor.pid, ended.pid, janitor._process.pid, directory, flush=True)
time.sleep(600)
"""


def test_the_janitor_ends_and_removes_what_a_killed_supervisor_left(temporary):
    command = [sys.executable, "-c", SUPERVISOR]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as supervisor:
        *pids, directory = supervisor.stdout.readline().split()
        actor, ended, janitor = map(os.pidfd_open, map(int, pids))
        assert Path(directory).is_dir()
        supervisor.kill()
    assert select.select([janitor], [], [], 10)[0], "the janitor did not end"
    assert select.select([actor], [], [], 10)[0], "a process group was left"
    assert not Path(directory).exists()
    assert not select.select([ended], [], [], 0)[0], "a number that was given back was killed"
    os.kill(int(pids[1]), 9)
    for descriptor in (actor, ended, janitor):
        os.close(descriptor)


def test_a_janitor_that_was_killed_is_no_trouble():
    janitor = Janitor()
    janitor._process.kill()
    janitor._process.wait()
    janitor.started(1 << 22)
    janitor.ended(1 << 22)
    janitor.dismiss()
