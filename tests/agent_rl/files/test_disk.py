"""A full disk is understood through each library, and leaves nothing half-written; and files of others that are none,
have no end, or are larger than any disk are one error each, at once.
"""

from __future__ import annotations

import errno
import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from agent_rl.config.load import load_topology
from agent_rl.config.source import TopologyError
from agent_rl.data.shuffle import _lines
from agent_rl.environments.base import TaskError
from agent_rl.environments.task_files import read_rows
from agent_rl.files.disk import (
    DiskError,
    LineFile,
    LossyLines,
    disk_errno,
    disk_error,
    older,
    rotate_open,
    sweep_partial,
    whole,
    writing,
)
from agent_rl.files.reading_json import read_json, read_text
from agent_rl.learning.tiny import build_tokenizer
from agent_rl.models.model_files import Unreadable, read_template
from agent_rl.records.journal import Journal, JournalError
from benchmarks.twin.profile import ProfileError, read_profile
from tests.full_disk import fill, no_file_longer_than, small_disk

BIG = {"a": torch.zeros(50_000)}


def write_bytes(path: Path) -> None:
    path.write_bytes(bytes(200_000))


WRITERS = {
    "python": write_bytes,
    "safetensors": lambda path: save_file(BIG, path),
    "tokenizers": lambda path: build_tokenizer(byte_fallback=True).backend_tokenizer.save(str(path)),
}


def test_other_errors_are_what_they_were(tmp_path: Path) -> None:
    for error in (ValueError("os error 28"), FileNotFoundError(errno.ENOENT, "no")):
        assert disk_errno(error) is None
        with pytest.raises(type(error)), writing(tmp_path):
            raise error


def test_a_full_disk_is_found_among_what_else_failed() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    group = BaseExceptionGroup("", [RuntimeError("x"), ExceptionGroup("", [full, ValueError("y")])])
    assert str(disk_error(group, Path("/run/mine"))).startswith("/run/mine cannot be written: No space left")
    known = DiskError(Path("/a/b"), errno.EDQUOT)
    assert disk_error(ExceptionGroup("", [known]), Path("/run")) is known
    assert "the run goes on" in str(known)
    assert "the run" not in known.reason
    assert disk_error(RuntimeError("x"), Path("/run")) is None
    stopped = OSError(errno.EROFS, "Read-only file system", "/a/b")
    assert str(disk_error(stopped, Path("/run"))).startswith("/a/b cannot be written: Read-only file system")
    assert disk_error(PermissionError(errno.EACCES, "no"), Path("/run")) is None  # of anything: no disk is blamed


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_what_is_written_whole_is_whole_or_as_before_and_a_full_disk_is_one_error(tmp_path: Path, writer) -> None:
    """Whatever the writer's library says of it, and also where it is a limit on the size of files."""
    with small_disk(tmp_path / "small", "8k") as disk, pytest.raises(DiskError) as caught, writing(disk / "thing"):
        writer(disk / "thing")
    assert str(caught.value).startswith(f"{tmp_path}/small/thing cannot be written: No space left on device; make room")
    assert "run again" in str(caught.value)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "thing").write_text("before")
    refused = pytest.raises(DiskError, match="thing cannot be written: ")
    with no_file_longer_than(4096), refused, whole(folder / "thing") as partial:
        writer(partial)
    assert [path.name for path in folder.iterdir()] == ["thing"]
    assert (folder / "thing").read_text() == "before"
    with whole(folder / "thing") as partial:
        writer(partial)
    assert (folder / "thing").stat().st_size > 1000


def test_what_is_written_whole_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """A file that is renamed first is empty after a loss of power."""
    happened = []
    fsync, replace = os.fsync, Path.replace
    name = lambda opened: Path(f"/proc/self/fd/{opened}").readlink().name  # noqa: E731
    monkeypatch.setattr(os, "fsync", lambda opened: (happened.append(name(opened)), fsync(opened)))
    monkeypatch.setattr(Path, "replace", lambda path, to: (happened.append("renamed"), replace(path, to)))
    with whole(tmp_path / "run" / "thing") as partial:
        partial.write_text("x")
    with whole(tmp_path / "run" / "folder") as partial:
        partial.mkdir()
        (partial / "inner").write_text("x")
    with whole(tmp_path / "run" / "lost", flushed=False) as partial:
        partial.write_text("x")
    of_file, of_folder = [".thing.partial", "renamed", "run"], ["inner", ".folder.partial", "renamed", "run"]
    assert happened == [*of_file, *of_folder, "renamed"]


def test_two_processes_may_write_the_same_path_at_the_same_moment(tmp_path, monkeypatch):
    with whole(tmp_path / "thing", others_write_it=True) as first:
        first.write_text("the same")
        with monkeypatch.context() as other:
            other.setattr("os.getpid", lambda: 1)
            with whole(tmp_path / "thing", others_write_it=True) as second:
                second.write_text("the same")
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]


def test_what_a_killed_writer_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / ".a.partial").mkdir()
    (tmp_path / ".a.partial" / "x").touch()
    (tmp_path / ".b.partial").touch()
    (tmp_path / "version-1").mkdir()
    sweep_partial(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["version-1"]
    sweep_partial(tmp_path / "not there")


# Lines ---------------------------------------------------------------------------------------------------------------


def test_a_line_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    lines = LineFile(tmp_path / "rows.jsonl")
    lines.append("first")
    with no_file_longer_than(20), pytest.raises(OSError, match="too large"):
        lines.append("x" * 100)  # the kernel takes the 14 bytes that fit
    assert (tmp_path / "rows.jsonl").read_text() == "first\n"
    lines.append("second")
    lines.close()
    assert (tmp_path / "rows.jsonl").read_text() == "first\nsecond\n"


@pytest.mark.parametrize("half", ["", "x", "x" * 10_000])
@pytest.mark.parametrize("before", ["", "one\n"])
def test_what_a_killed_writer_did_not_finish_is_cut_off(tmp_path: Path, before: str, half: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(before + half)
    lines = LineFile(path)
    assert path.read_text() == before
    lines.append("two")
    lines.close()
    assert path.read_text() == before + "two\n"


def test_lossy_lines_are_counted_and_the_loss_is_told_once_there_is_room(tmp_path: Path) -> None:
    lines = LossyLines(tmp_path / "rows.jsonl")
    assert lines.append("a")
    with no_file_longer_than(2):
        assert not lines.append("b")
        assert not lines.append("c")
    assert (lines.lost, lines.lost_in_all) == (2, 2)
    assert lines.append("d", about_lost="2 lost")
    assert (lines.lost, lines.lost_in_all) == (0, 2)
    lines.close()
    assert (tmp_path / "rows.jsonl").read_text() == "a\n2 lost\nd\n"


def test_lines_take_at_most_twice_their_limit(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for start in range(3):  # the next process goes on where the last one stood
        lines = LossyLines(path, limit=100)
        for number in range(50):
            assert lines.append(f"{1000 * start + number:09}")
        lines.close()
    assert sorted(found.name for found in tmp_path.iterdir()) == ["rows.jsonl", "rows.jsonl.1"]
    kept = older(path).read_text() + path.read_text()
    assert older(path).stat().st_size == 100
    assert [int(line) for line in kept.splitlines()] == [2000 + number for number in range(50)][-len(kept) // 10 :]


def test_a_file_that_others_write_is_emptied_and_what_it_held_kept(tmp_path: Path) -> None:
    path = tmp_path / "stderr"
    with path.open("ab", buffering=0) as held:
        held.write(b"x" * 99)
        assert not rotate_open(path, 100)
        held.write(b"y")
        assert rotate_open(path, 100)
        held.write(b"goes on")
    assert older(path).read_bytes() == b"x" * 99 + b"y"
    assert path.read_bytes() == b"goes on"
    with path.open("ab", buffering=0) as held, no_file_longer_than(3):
        assert not rotate_open(path, 5)
    assert path.read_bytes() == b"goes on"
    assert len(list(tmp_path.iterdir())) == 2
    assert not rotate_open(tmp_path / "nowhere", 5)


# The journal ---------------------------------------------------------------------------------------------------------


def add_groups(journal: Journal, numbers: range) -> None:
    for number in numbers:
        journal.open_group(f"s0-g{number:06d}", 0, number, "train", os.urandom(4000))


def add_until_refused(journal: Journal) -> None:
    for number in range(3, 99):
        add_groups(journal, range(number, number + 1))
        journal.commit()


def test_a_commit_that_the_disk_refuses_is_undone_whole_and_nothing_follows_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "400k") as disk:
        journal = Journal(disk / "journal.sqlite")
        add_groups(journal, range(3))
        journal.commit()
        filler = fill(disk, but=20_000)
        with pytest.raises(DiskError, match=r"journal\.sqlite cannot be written: No space left on device; make room"):
            add_until_refused(journal)
        kept = journal.opened_counts(0)[None]
        with pytest.raises(DiskError):
            add_groups(journal, range(200, 201))  # outside of a transaction it would count at once
        with pytest.raises(DiskError):
            journal.commit()
        journal.close()
        filler.unlink()
        again = Journal(disk / "journal.sqlite")
        assert again.opened_counts(0)[None] == kept < 99
        assert list(again.faults()) == []
        add_groups(again, range(kept, kept + 2))
        again.close()


def test_a_full_disk_at_the_start_is_not_taken_for_a_broken_journal(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "16k") as disk:
        fill(disk)
        with pytest.raises(JournalError, match="No space left on device") as caught:
            Journal(disk / "journal.sqlite")
        assert "afresh" not in str(caught.value)


# Files of others -----------------------------------------------------------------------------------------------------

READERS: dict[str, tuple[str, Callable[[Path], Any], type[Exception]]] = {
    "a topology": ("a.toml", load_topology, TopologyError),
    "rows": ("a.jsonl", lambda path: list(read_rows(str(path), path)), TaskError),
    "packed rows": ("a.jsonl.gz", lambda path: list(read_rows(str(path), path)), TaskError),
    "rows in random order": ("a.jsonl", lambda path: list(_lines(str(path), path)), TaskError),
    "a chat template": ("a.jinja", read_template, Unreadable),
    "a profile": ("a.toml", lambda path: read_profile(str(path)), ProfileError),
    "JSON": ("a.json", read_json, OSError),
    "a text": ("a.txt", read_text, OSError),
}


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a directory", "holes"])
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_one_error_at_once(tmp_path: Path, reader: str, kind: str) -> None:
    name, read, error = READERS[reader]
    path = tmp_path / name
    match kind:
        case "a pipe":
            os.mkfifo(path)
        case "a device":
            path.symlink_to("/dev/zero")
        case "a directory":
            path.mkdir()
        case _ if name.endswith(".gz"):
            path.write_bytes(gzip.compress(b"\0" * (65 << 20)))
        case _:
            with path.open("wb") as file:
                file.truncate(100 << 30)
    with pytest.raises(error):
        read(path)
