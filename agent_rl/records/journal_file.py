"""The journal's file: opened, written in transactions, flushed, checksummed row by row, and watched for other hands.

SQLite in WAL mode. Every row has a CRC-32 of its columns (`row_crc`), which triggers of the writing connection keep; reading
compares it, so that a flipped byte is never trained on. SQLite's own integrity check does not see flipped payloads.

Durability: a commit survives the death of any process; with ``synchronous = NORMAL`` the last commits may be lost when the
machine itself loses power, never the file's consistency. A flushed commit survives that too.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from agent_rl.files.disk import DiskError, disk_errno

T = TypeVar("T")

SCHEMA = """
CREATE TABLE IF NOT EXISTS groups (
    id TEXT PRIMARY KEY, stage INTEGER NOT NULL, number INTEGER NOT NULL, purpose TEXT NOT NULL,
    opened BLOB NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'ready', 'trained', 'evaluated', 'dropped')),
    reason TEXT NOT NULL DEFAULT '', step INTEGER, kept TEXT NOT NULL DEFAULT '[]', rewards TEXT NOT NULL DEFAULT '[]',
    oldest INTEGER NOT NULL DEFAULT 0, decided_order INTEGER NOT NULL DEFAULT 0,
    mean_length REAL NOT NULL DEFAULT 0, success REAL NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS groups_by_state ON groups (stage, state);
CREATE TABLE IF NOT EXISTS trajectories (
    group_id TEXT NOT NULL, sample INTEGER NOT NULL, attempt INTEGER NOT NULL, status TEXT NOT NULL, reward REAL,
    payload BLOB NOT NULL, PRIMARY KEY (group_id, sample, attempt)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS steps (
    version INTEGER PRIMARY KEY, stage INTEGER NOT NULL, trained INTEGER NOT NULL DEFAULT 0,
    groups TEXT NOT NULL, decided TEXT NOT NULL, figures TEXT NOT NULL, learner_figures TEXT NOT NULL DEFAULT '{}');
CREATE TABLE IF NOT EXISTS evaluations (stage INTEGER PRIMARY KEY, figures TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS interim_evaluations (
    stage INTEGER NOT NULL, number INTEGER NOT NULL, figures TEXT NOT NULL, PRIMARY KEY (stage, number));
CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
"""The tables, to each of which the column ``crc`` is added, and to them `RECORDS`."""
RECORDS = "CREATE TABLE records (number INTEGER PRIMARY KEY, row TEXT NOT NULL)"
KEYS = {
    "groups": ("id",),
    "trajectories": ("group_id", "sample", "attempt"),
    "steps": ("version",),
    "evaluations": ("stage",),
    "interim_evaluations": ("stage", "number"),
    "facts": ("key",),
    "records": ("number",),
}
"""The tables, and by which columns a row is named."""
LAYOUT = "2"
BUSY_SECONDS = 5.0
"""How long a lock that another program holds is waited for."""


class JournalError(Exception):
    """The journal cannot be used; the message names the file and the remedy."""


def row_crc(*values: object) -> int:
    """CRC-32 of a row's columns, each with its type: it finds every change of up to 32 bits in a row."""
    crc = 0
    for value in values:
        content = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
        crc = zlib.crc32(content, zlib.crc32(b"%s %d " % (type(value).__name__.encode(), len(content)), crc))
    return crc


class JournalFile:
    """One open journal. Methods change the current transaction; nothing is durable before `commit`."""

    def __init__(self, path: Path | None, *, read_only: bool = False) -> None:
        """``path`` None keeps the journal in memory, for simulations and tests.

        ``read_only`` opens one that exists, and leaves it and the files beside it as they are. Raises JournalError.
        """
        self.path = path or Path(":memory:")
        self._begun = False
        self._failed: Exception | None = None
        self._log: int | None = None
        self._seen: tuple[object, ...] = ()
        with self._sound():
            self._db = _connect(path, read_only=read_only)
            self._db.text_factory = _text
        try:
            self._columns: dict[str, tuple[str, ...]] = {}
            self._open(read_only=read_only)
        except BaseException:
            self._db.close()
            raise

    def _open(self, *, read_only: bool) -> None:
        with self._sound():
            if not read_only:
                if self.path != Path(":memory:"):
                    self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._db.executescript(SCHEMA)
                self._db.create_function("row_crc", -1, row_crc, deterministic=True)
            self._learn_columns()
        # Unchecked: other layouts have other columns.
        found = self._read("SELECT value FROM facts WHERE key = 'layout'") if self._columns["facts"] else []
        layout = found[0][0] if found else None
        if layout not in {None, LAYOUT}:
            raise JournalError(
                f"{self.path} was written by another version of agent_rl (layout {layout}, this version reads {LAYOUT}): "
                "use that version, or start again in another run.directory"
            )
        if read_only:
            return
        with self._sound():
            if layout is None:
                self._make()
            self._keep_checksums()
        self._watch()

    def _learn_columns(self) -> None:
        for table in KEYS:
            self._columns[table] = tuple(row[1] for row in self._db.execute(f"PRAGMA table_info({table})"))

    def _make(self) -> None:
        """Make a new file a journal."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(RECORDS)
        for table in KEYS:
            self._db.execute(f"ALTER TABLE {table} ADD COLUMN crc INTEGER")
        facts = [("layout", LAYOUT), ("run", secrets.token_hex(8))]
        self._db.executemany("INSERT OR REPLACE INTO facts (key, value) VALUES (?, ?)", facts)
        self._learn_columns()
        self._db.execute(f"UPDATE facts SET crc = row_crc({', '.join(self._columns['facts'][:-1])})")  # noqa: S608
        self._db.execute("COMMIT")

    def _keep_checksums(self) -> None:
        """Triggers of this connection alone: other programs can read the journal, and cannot write into it unnoticed.

        Not for trajectories: a trigger would write each payload twice, so their statements say ``row_crc`` themselves.
        """
        for table, keys in KEYS.items():
            if table == "trajectories":
                continue
            columns = self._columns[table][:-1]
            row = ", ".join(f"new.{column}" for column in columns)
            this = " AND ".join(f"{key} = new.{key}" for key in keys)
            for event in ("INSERT", f"UPDATE OF {', '.join(columns)}"):
                update = f"UPDATE {table} SET crc = row_crc({row}) WHERE {this}"  # noqa: S608 - constants above
                name = f"{table}_{event[:6]}"
                self._db.execute(f"CREATE TEMP TRIGGER {name} AFTER {event} ON {table} BEGIN {update}; END")

    def close(self) -> None:
        """Commit and close. A journal that failed is only closed."""
        if self._failed is None:
            self.commit()
        self.abandon()

    def abandon(self) -> None:
        """Close without committing, as the end of the process would."""
        self._begun = False
        self._db.close()
        if self._log is not None:
            os.close(self._log)
            self._log = None

    # Writing -----------------------------------------------------------------------------------------------------------

    def commit(self, *, flush: bool = False) -> None:
        """Make everything since the last commit durable; with ``flush`` also against a loss of power.

        Raises DiskError, and has undone all of it, when the disk is full; JournalError when the file is not ours any more.
        """
        if self._begun:
            self.look()
            self._execute("COMMIT")
            self._begun = False
            self._seen = self._identity()
        if flush and self._log is not None:
            try:
                os.fsync(self._log)
            except OSError as error:
                raise self._fail(DiskError(self.path, error.errno or 0)) from error

    @property
    def dirty(self) -> bool:
        """Whether something waits for a commit."""
        return self._begun

    def _write(self, sql: str, values: Sequence[object] = ()) -> int:
        if not self._begun:
            self._execute("BEGIN")
            self._begun = True
        return self._execute(sql, values).rowcount

    def _execute(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run a statement that writes. After a fault SQLite may have undone the transaction: nothing may follow it."""
        if self._failed is not None:
            raise self._failed
        try:
            return self._db.execute(sql, values)
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError):
            raise  # a fault of ours
        except sqlite3.Error as error:
            raise self._fail(self._fault(error)) from error

    def _fail(self, fault: Exception) -> Exception:
        self._failed = fault
        return fault

    # Reading -----------------------------------------------------------------------------------------------------------

    def _read(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        """Rows of any query, unchecked: counts and the like."""
        with self._sound():
            return self._db.execute(sql, values).fetchall()

    def rows(self, table: str, where: str = "", values: Sequence[object] = (), *, make: Callable[..., T]) -> list[T]:
        """What ``make`` makes of the columns of whole rows. Raises JournalError for a row that is not what was written."""
        columns = self._columns[table]
        if not columns:
            return []  # an empty file
        with self._sound():
            found = self._db.execute(f"SELECT {', '.join(columns)} FROM {table} {where}", values).fetchall()  # noqa: S608
        made = []
        for row in found:
            fault = f"{_named(table, row[: len(KEYS[table])])} is not what was written"
            *content, crc = row
            if row_crc(*content) != crc:
                raise self._unusable(fault)
            try:
                made.append(make(*content))
            except (ValueError, TypeError, KeyError) as error:
                raise self._unusable(f"{fault}: {error}") from error
        return made

    def check_structure(self) -> None:
        """Whether the file is a sound database, its pages in order. Reads all of it; raises JournalError."""
        found = [str(row[0]) for row in self._read("PRAGMA quick_check(1)")]
        if found != ["ok"]:
            raise self._unusable("; ".join(found).replace("\n", " "))

    # Read again, for the audit -----------------------------------------------------------------------------------------

    def structure_faults(self) -> list[str]:
        """What SQLite finds wrong with pages, trees and indexes; none of it in what rows hold."""
        try:
            found = [" ".join(str(row[0]).split()) for row in self._read("PRAGMA integrity_check(20)")]
        except JournalError as error:
            return [str(error)]
        return [f"{self.path}: {fault}" for fault in found if fault != "ok"]

    def schema_faults(self) -> list[str]:
        """Tables and indexes that are not those of this layout."""
        query = "SELECT type, name, tbl_name, sql FROM sqlite_master"
        sound = JournalFile(None)
        try:
            wanted, found = set(sound._read(query)), set(self._read(query))
        finally:
            sound.abandon()
        odd = sorted(str(name) for _, name, *_ in wanted ^ found)
        return [f"{self.path}: the schema of {name} is not what was written" for name in dict.fromkeys(odd)]

    def damaged_rows(self) -> tuple[int, list[str]]:
        """How many rows there are, and those that are not what was written."""
        count, faults = 0, []
        for table, keys in KEYS.items():
            columns = self._columns[table]
            if columns[-1:] != ("crc",):
                continue
            try:
                with self._sound():
                    for *row, crc in self._db.execute(f"SELECT {', '.join(columns)} FROM {table}"):  # noqa: S608 - constants
                        count += 1
                        if row_crc(*row) != crc:
                            faults.append(f"{self.path}: {_named(table, row[: len(keys)])} is not what was written")
            except JournalError as error:
                faults.append(f"table {table}: {error}")
        return count, faults

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """Turn what SQLite says of a damaged, locked or foreign file into a JournalError."""
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError):
            raise
        except UnicodeError as error:  # of the names of columns, or of a text read and asked for again
            raise self._unusable(str(error)) from error
        except sqlite3.Error as error:
            fault = self._fault(error)
            raise (JournalError(str(fault)) if isinstance(fault, DiskError) else fault) from error

    def _fault(self, error: sqlite3.Error) -> Exception:
        number = disk_errno(error)
        if number is not None:
            return DiskError(self.path, number)
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return JournalError(
                f"{self.path} is locked by another program for more than {BUSY_SECONDS:g} s; end that program, then start again"
            )
        return self._unusable(str(error))

    def _unusable(self, what: str) -> JournalError:
        remedy = f"put back a whole copy of it and remove {self.path.name}-wal, or start again in another run.directory"
        return JournalError(f"{self.path}: not a usable journal ({what}); {remedy}")

    # The file is ours --------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self.path == Path(":memory:"):
            return
        with self._sound():
            self._db.execute("SELECT 1 FROM facts").fetchall()  # makes the log, where it is not there yet
        self._log = os.open(self._log_path, os.O_RDONLY | os.O_CLOEXEC)
        self._seen = self._identity()

    @property
    def _log_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}-wal")

    def look(self) -> None:
        """Whether the file is where it was and nobody else wrote into it. Raises JournalError when not.

        Between two commits of ours the file does not change: only commits move what is in the log into it.
        """
        if self._failed is not None:
            raise self._failed
        if self._seen and self._identity() != self._seen:
            what = "changed by another program" if self.path.exists() else "removed"
            raise self._fail(
                JournalError(
                    f"{self.path} was {what} while the run was going; the run cannot go on without it. Put the journal back "
                    f"and remove {self._log_path.name}, or start again in another run.directory"
                )
            )

    def _identity(self) -> tuple[object, ...]:
        if self._log is None:
            return ()
        try:
            file, log = self.path.stat(), self._log_path.stat()
        except OSError:
            return ("gone",)
        return file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, log.st_dev, log.st_ino

    # Facts -------------------------------------------------------------------------------------------------------------

    def fact(self, key: str) -> str | None:
        """A named fact, such as the epoch."""
        return next(iter(self.rows("facts", "WHERE key = ?", (key,), make=lambda _, value: str(value))), None)

    def set_fact(self, key: str, value: str) -> None:
        """Set a named fact."""
        self._write("INSERT OR REPLACE INTO facts (key, value) VALUES (?, ?)", (key, value))


def _connect(path: Path | None, *, read_only: bool) -> sqlite3.Connection:
    if path is None or not read_only:
        name, uri = ":memory:" if path is None else str(path), False
    else:
        # Without a log nobody writes; a reader must then not make one.
        settled = not path.with_name(f"{path.name}-wal").exists()
        name, uri = f"{path.absolute().as_uri()}?{'immutable=1' if settled else 'mode=ro'}", True
    return sqlite3.connect(name, isolation_level=None, timeout=BUSY_SECONDS, uri=uri)


def _named(table: str, key: Sequence[object]) -> str:
    return f"the row {', '.join(map(str, key))} of the table {table}"


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")
