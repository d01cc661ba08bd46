"""The journal on disk: rows in a SQLite database, payloads of trajectories in files beside it.

Only this module knows SQLite.

::

    journal.sqlite           rows (WAL mode), each with a CRC-32 of its columns, which reading compares
    journal.trajectories/    a file per segment, payloads one after another; their places and checksums are in the rows

Payloads are not in the database. Removing 1 GB from the database took 12.5 s on the writer's own thread (2.1 s without
``secure_delete``); removing a file of 1 GB takes 0.1 s, in any thread (docs/measurements.md).

Durability: a commit survives the death of any process. With ``synchronous = NORMAL`` the last commits may be lost when
the machine loses power, but the journal stays consistent: the next start undoes the rows whose payloads were lost. A
flushed commit survives a loss of power.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from agent_rl.files.disk import DiskError
from agent_rl.files.file_systems import network_file_system
from agent_rl.records.journal_rows import ROWS, TABLES, FactRow, Row, row_crc

R = TypeVar("R", bound=Row)

BUSY_SECONDS = 5.0
"""How long to wait for a lock that another program holds."""
OPEN_FILES = 32
"""At most so many segments are open at once: the groups of one step are rarely in more."""
_ERRNO = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EROFS, sqlite3.SQLITE_IOERR: errno.EIO}


class JournalError(Exception):
    """The journal cannot be used; the message names the file and the remedy."""


class EmptyJournalError(JournalError):
    """The file holds no journal yet: the process that created it was killed."""


class SqliteStore:
    """Rows by type and key, and payloads by segment. Changes are one transaction until `commit`."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        """``read_only`` opens an existing journal and changes no file. Raises JournalError."""
        self.path = path
        self._begun = False
        self._failed: Exception | None = None
        self._seen: tuple[object, ...] = ()
        self._payloads = SegmentFiles(path.with_suffix(".trajectories"), read_only=read_only)
        self._killed = self._log_path.exists()
        with self._sound():
            self._db = _connect(path, read_only=read_only)
            self._db.text_factory = _text

    def _open(self, *, read_only: bool) -> bool:
        """Make the tables where there are none; returns whether that was so. Raises JournalError."""
        with self._sound():
            if not read_only:
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._db.execute("PRAGMA secure_delete = OFF")
            found = self._db.execute("SELECT type, name FROM sqlite_master").fetchall()
        if strange := [f"{kind} {name}" for kind, name in found if kind not in {"table", "index"}]:
            raise self._unusable(f"it has the {strange[0]}, which may have no end")
        if not found and read_only:
            raise EmptyJournalError(str(self._unusable("it holds nothing")))
        if not found:
            self._execute("BEGIN IMMEDIATE")
            self._begun = True
            for kind in ROWS:
                for statement in TABLES[kind].schema:
                    self._execute(statement)
        return not found

    def _guard(self) -> None:
        """From now on, `look` finds what another program changes."""
        with self._sound():
            self._db.execute("SELECT 1 FROM facts").fetchall()  # makes the log, where it is not there yet
        self._seen = self._identity()

    def close(self) -> None:
        """Commit and close. A journal that failed is only closed."""
        if self._failed is None:
            self.commit()
        self.abandon()

    def abandon(self) -> None:
        """Close without committing, as the end of the process would."""
        self._begun = False
        self._db.close()
        self._payloads.close()

    def fact(self, key: str) -> str | None:
        """A named fact, such as the epoch."""
        row = self._get(FactRow, key)
        return None if row is None else row.value

    def set_fact(self, key: str, value: str) -> None:
        """Set a named fact."""
        self._put(FactRow(key, value))

    # Writing ----------------------------------------------------------------------------------------------------------

    def commit(self, *, flush: bool = False) -> None:
        """Make all changes since the last commit durable; with ``flush`` also against a loss of power.

        Raises DiskError when the disk is full, with all changes undone. Raises JournalError when the file was replaced.
        """
        if flush:
            self.settle()  # first the payloads, so that no row of a flushed commit lacks its payload
        if self._begun:
            self.look()
            self._execute("COMMIT")
            self._begun = False
            if self._seen:
                self._seen = self._identity()
        if flush:
            self.settle()

    @property
    def dirty(self) -> bool:
        """Whether something waits for a commit."""
        return self._begun

    def settle(self) -> None:
        """Flush payloads and committed rows to the disk, from any thread. The next flush then has less to do."""
        try:
            self._payloads.settle()
            sync(self._log_path)
        except OSError as error:
            raise self._fail(DiskError(self.path, error.errno or 0)) from error

    def _put(self, row: Row) -> None:
        """Insert the row, or replace the one of its key."""
        table = TABLES[type(row)]
        values = table.values(row)
        self._write(table.put, [*values, row_crc(values)])

    def _delete(self, kind: type[Row], *key: str | int) -> None:
        """Delete the rows whose keys begin with these values."""
        where = " AND ".join(f"{column} = ?" for column in kind.KEY[: len(key)])
        self._write(f"DELETE FROM {kind.TABLE} WHERE {where}", key)  # noqa: S608 - constants

    def _append(self, segment: int, payload: bytes) -> int:
        """Append a payload to a segment, which is created if needed; return the payload's offset."""
        if self._failed is not None:
            raise self._failed
        try:
            return self._payloads.append(segment, payload)
        except OSError as error:
            raise self._fail(DiskError(self._payloads.path(segment), error.errno or 0)) from error

    def _let_go(self, segment: int) -> Callable[[], None]:
        """A function that removes a segment's payloads. It may take long, and may be called from any thread."""
        return self._payloads.remove(segment)

    def _write(self, sql: str, values: Sequence[object]) -> None:
        if not self._begun:
            self._execute("BEGIN")
            self._begun = True
        self._execute(sql, values)

    def _execute(self, sql: str, values: Sequence[object] = ()) -> None:
        """Run a statement that writes. After a fault SQLite may have undone the transaction, so no write may follow."""
        if self._failed is not None:
            raise self._failed
        try:
            self._db.execute(sql, values)
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError):
            raise  # an error in this program
        except sqlite3.Error as error:
            raise self._fail(self._fault(error)) from error

    def _fail(self, fault: Exception) -> Exception:
        self._failed = fault
        return fault

    # Reading ----------------------------------------------------------------------------------------------------------

    def _get(self, kind: type[R], *key: str | int) -> R | None:
        """The row of this key. Raises JournalError for a row that changed since it was written, as all readers do."""
        return next(iter(self._select(kind, **dict(zip(kind.KEY, key, strict=True)))), None)

    def _select(self, kind: type[R], **where: Any) -> list[R]:
        """The rows whose columns have these values, by key. A tuple means any of its values."""
        condition, values = _condition(where)
        query = f"SELECT * FROM {kind.TABLE}{condition} ORDER BY {', '.join(kind.KEY)}"  # noqa: S608 - constants
        with self._sound():
            found = self._db.execute(query, values).fetchall()
        return [self._row(kind, row) for row in found]

    def _row(self, kind: type[R], stored: tuple[Any, ...]) -> R:
        table = TABLES[kind]
        *values, crc = stored
        fault = f"{_named(kind, values)} is not what was written"
        if row_crc(values) != crc:
            raise self._unusable(fault)
        try:
            return kind(*map(table.value, table.columns, values))
        except (ValueError, TypeError) as error:
            raise self._unusable(f"{fault}: {error}") from error

    def _scan(self, kind: type[Row], columns: Sequence[str], **where: Any) -> Iterator[tuple[Any, ...]]:
        """Some columns of such rows in any order, without checksums: for counts."""
        table = TABLES[kind]
        condition, values = _condition(where)
        decoded = [column for column in columns if column in table.texts or column in table.truths]
        sound: set[tuple[type, ...]] = set()
        with self._sound():
            query = f"SELECT {', '.join(columns)} FROM {kind.TABLE}{condition}"  # noqa: S608 - constants
            for row in self._db.execute(query, values):
                shape = tuple(map(type, row))
                if shape not in sound:
                    for column, found in zip(columns, shape, strict=True):
                        if found not in table.stored[column]:
                            raise self._unusable(f"a row of the table {kind.TABLE} is not what was written")
                    sound.add(shape)
                try:
                    yield tuple(map(table.value, columns, row)) if decoded else row
                except ValueError as error:
                    raise self._unusable(f"a row of the table {kind.TABLE} is not what was written: {error}") from error

    def _fetch(self, segment: int, offset: int, size: int) -> bytes | None:
        """A payload; None when the segment is missing or too short."""
        try:
            return self._payloads.fetch(segment, offset, size)
        except OSError as error:
            raise self._unusable(f"{self._payloads.path(segment)}: {error.strerror}") from error

    def check_structure(self) -> None:
        """Let SQLite check the database's pages, which reads the whole file. Raises JournalError."""
        with self._sound():
            found = [str(row[0]) for row in self._db.execute("PRAGMA quick_check(1)")]
        if found != ["ok"]:
            raise self._unusable("; ".join(found).replace("\n", " "))

    # Read again, for the audit ----------------------------------------------------------------------------------------

    def verify(self) -> tuple[int, list[str]]:
        """Read every row again; return their number and the faults."""
        faults = [*self._structure_faults(), *self._schema_faults()]
        count = 0
        for kind in ROWS:
            try:
                with self._sound():
                    for *values, crc in self._db.execute(f"SELECT * FROM {kind.TABLE}"):  # noqa: S608 - constants
                        count += 1
                        if row_crc(values) != crc:
                            faults.append(f"{self.path}: {_named(kind, values)} is not what was written")
            except JournalError as error:
                faults.append(f"table {kind.TABLE}: {error}")
        return count, faults

    def _structure_faults(self) -> list[str]:
        """SQLite's findings about pages, trees and indexes; SQLite does not check the content of rows."""
        try:
            with self._sound():
                found = [" ".join(str(row[0]).split()) for row in self._db.execute("PRAGMA integrity_check(20)")]
        except JournalError as error:
            return [str(error)]
        return [f"{self.path}: {fault}" for fault in found if fault != "ok"]

    def _schema_faults(self) -> list[str]:
        """Tables and indexes that differ from this layout."""
        wanted = {statement for kind in ROWS for statement in TABLES[kind].schema}
        with self._sound():
            found = {str(sql) for (sql,) in self._db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
        return [f"{self.path}: the schema is not what was written: {sql[:60]}" for sql in sorted(wanted ^ found)]

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """Turn SQLite's errors about a damaged, locked or foreign file into a JournalError."""
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError):
            raise
        except UnicodeError as error:  # in the names of columns, or in a text
            raise self._unusable(str(error)) from error
        except sqlite3.Error as error:
            fault = self._fault(error)
            raise (JournalError(str(fault)) if isinstance(fault, DiskError) else fault) from error

    def _fault(self, error: sqlite3.Error) -> Exception:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # extended: the low byte is the kind
        if code in _ERRNO:
            return DiskError(self.path, _ERRNO[code])
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return JournalError(
                f"{self.path} is locked by another program for more than {BUSY_SECONDS:g} s; end that program, then "
                "start again"
            )
        for each in (self.path, self._log_path):
            if each.exists() and not os.access(each, os.R_OK, effective_ids=True):
                return JournalError(
                    f"{each} may not be read by this user; be the user {each.owner()}, or change its mode"
                )
        return self._unusable(str(error))

    def _unusable(self, what: str) -> JournalError:
        remedy = (
            f"move it, {self._log_path.name} and {self._payloads.folder.name} elsewhere and put back a whole copy of "
            "them, or start again in another run.directory"
        )
        return JournalError(f"{self.path}: not a usable journal ({what}); {remedy}")

    # Detecting that another program changed the files -----------------------------------------------------------------

    @property
    def _log_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}-wal")

    def look(self) -> None:
        """Check that the files are in place and no other program wrote to the database.

        The database file does not change between two commits: only a commit moves the log's content into it.
        """
        if self._failed is not None:
            raise self._failed
        if self._seen and self._identity() != self._seen:
            what = "changed by another program" if self.path.exists() else "removed"
            raise self._fail(self._gone(f"{self.path} was {what}"))
        if self._payloads.removed:
            raise self._fail(self._gone(f"a file of {self._payloads.folder} was removed"))

    def _gone(self, what: str) -> JournalError:
        return JournalError(
            f"{what} while the run was going; the run cannot go on without it. Move what is left elsewhere, put the "
            f"journal back with its {self._log_path.name}, or start again in another run.directory"
        )

    def _identity(self) -> tuple[object, ...]:
        try:
            file, log = self.path.stat(), self._log_path.stat()
        except OSError:
            return ("gone",)
        return file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, log.st_dev, log.st_ino


class SegmentFiles:
    """The segment files of a folder. The first payload creates the folder. One writer at a time."""

    def __init__(self, folder: Path, *, read_only: bool) -> None:
        self.folder = folder
        waiting = os.O_NONBLOCK  # for no writer of a pipe
        self._flags = os.O_CLOEXEC | waiting | (os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT)
        self._read_only = read_only
        self._files: dict[int, int] = {}
        self._unsettled: set[int] = set()

    def path(self, segment: int) -> Path:
        """The file of a segment."""
        return self.folder / f"{segment:08d}"

    def append(self, segment: int, payload: bytes) -> int:
        """Append a payload; return its offset in bytes. On OSError the file is unchanged."""
        file = self._file(segment)
        end = os.fstat(file).st_size
        try:
            written = 0
            while written < len(payload):  # after a partial write, the next write raises the reason
                written += os.pwrite(file, memoryview(payload)[written:], end + written)
        except OSError:
            os.ftruncate(file, end)
            raise
        self._unsettled.add(segment)
        return end

    def fetch(self, segment: int, offset: int, size: int) -> bytes | None:
        """A payload; None when the file is not there or does not reach so far. Raises OSError."""
        if segment not in self._files and not self.path(segment).exists():
            return None
        payload = os.pread(self._file(segment), size, offset)
        return payload if len(payload) == size else None

    def remove(self, segment: int) -> Callable[[], None]:
        """A function that removes the file, from any thread."""
        if segment in self._files:
            os.close(self._files.pop(segment))
        self._unsettled.discard(segment)
        return partial(self.path(segment).unlink, missing_ok=True)

    def ends(self) -> dict[int, int]:
        """The size of every segment in bytes."""
        if not self.folder.is_dir():
            return {}
        return {int(path.name): path.stat().st_size for path in self.folder.iterdir() if path.name.isdecimal()}

    def sweep(self, keep: Container[int]) -> None:
        """Remove the segments that are not in ``keep``: a killed process has left them."""
        for segment in self.ends():
            if segment not in keep:
                self.path(segment).unlink()

    def settle(self) -> None:
        """Flush all payloads to the disk, from any thread. Raises OSError."""
        for segment in list(self._unsettled):
            self._unsettled.discard(segment)  # before the flush: a write during it marks the segment again
            sync(self.path(segment))

    @property
    def removed(self) -> bool:
        """Whether another program removed a file that is open here."""
        return any(os.fstat(file).st_nlink == 0 for file in self._files.values())

    def close(self) -> None:
        """Close all files."""
        while self._files:
            os.close(self._files.popitem()[1])

    def _file(self, segment: int) -> int:
        file = self._files.pop(segment, None)
        if file is None:
            if len(self._files) >= OPEN_FILES:
                os.close(self._files.pop(next(iter(self._files))))
            if not self._read_only:
                self.folder.mkdir(exist_ok=True)
            file = os.open(self.path(segment), self._flags, 0o666)
        self._files[segment] = file  # moved to the end: the file used least recently is closed first
        return file


def _condition(where: dict[str, Any]) -> tuple[str, list[Any]]:
    """The WHERE clause for these values of columns (a tuple: any of its values), and its parameters."""
    parts: list[str] = []
    values: list[Any] = []
    for column, wanted in where.items():
        several = wanted if isinstance(wanted, tuple) else (wanted,)
        parts.append(f"{column} IN ({', '.join('?' * len(several))})" if isinstance(wanted, tuple) else f"{column} = ?")
        values += several
    return f" WHERE {' AND '.join(parts)}" if parts else "", values


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    if not read_only:
        with contextlib.suppress(OSError):  # SQLite says what is wrong
            path.touch(0o600)  # SQLite gives its log the same rights
        return sqlite3.connect(path, isolation_level=None, timeout=BUSY_SECONDS)
    # Without a log no program writes, and a reader must not create a log.
    settled = not path.with_name(f"{path.name}-wal").exists()
    if not settled and (kind := network_file_system(path)):
        what = f"is on a network file system ({kind}), and its run is under way or was killed"
        raise JournalError(f"{path} {what}: read it on the host that keeps it, or after the run has ended in order")
    name = f"{path.absolute().as_uri()}?{'immutable=1' if settled else 'mode=ro'}"
    return sqlite3.connect(name, isolation_level=None, timeout=BUSY_SECONDS, uri=True)


def _named(kind: type[Row], values: Sequence[object]) -> str:
    return f"the row {', '.join(map(str, values[: len(kind.KEY)]))} of the table {kind.TABLE}"


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def sync(path: Path) -> None:
    """Flush a file to the disk; a missing file is no error. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(file)
        finally:
            os.close(file)
