"""One run directory as the page shows it, looked at again and again: each look reads only what was added.

The run may be under way, ended, crashed, or copied from another machine. Nothing is written into it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_rl.observe.report.alarms import Alarms
from agent_rl.observe.report.catalogue import Catalogue, Changes, Decode, Key, columns, listed, stored_rollouts
from agent_rl.observe.report.graph import LATE_SECONDS, Wanted, graph, read_wanted
from agent_rl.observe.report.page import run_page
from agent_rl.observe.report.records import METRICS, Records, RunFiles, figure
from agent_rl.observe.report.samples import TokensToText, Transcripts, tokens_to_text
from agent_rl.observe.report.stored import Samples, choose_samples
from agent_rl.records.audit import audit_journal
from agent_rl.records.document import FILE as STATE
from agent_rl.records.journal import JOURNAL, Journal, JournalError, read_journal
from agent_rl.records.run_directory import in_use
from agent_rl.records.timeline import FILE as TIMELINE


class Watched:
    """A run directory. Raises ReportError when it is not one."""

    def __init__(self, directory: Path, decode: Decode) -> None:
        self.directory = directory
        self.catalogue = Catalogue(decode)
        self.alarms = Alarms()
        self.samples = Samples()
        self.records = Records(directory.name)
        self._files = RunFiles(directory)
        self._decode = decode
        self._evaluated = -1
        self._read: object = None
        self._wanted: dict[str, Wanted] = {}
        self._wanted_state: object = None
        self._fault = ""
        self._stage: str | None = None
        self._to_text: TokensToText | None = None
        self._asked_for_text = False

    def signature(self) -> tuple[object, ...]:
        """Another value, once a file of the run has changed, the run began or ended, or a minute was silent."""
        files = _state_of(self.directory, METRICS, TIMELINE, "end.json", "summary.json")
        under_way, age = in_use(self.directory), time.time() - figure(self._files.newest() or {}, "wall")
        return files, self._journal_state(), under_way, under_way and age > LATE_SECONDS and age // 60

    def _journal_state(self) -> object:
        return _state_of(self.directory, JOURNAL, f"{JOURNAL}-wal")

    def look(self) -> Changes:
        """Read what was added."""
        self._files.look()
        changes = Changes({}, [])
        state = self._journal_state()
        if state == self._read:
            return changes
        with self._journal() as journal:
            if journal is not None:
                self._stage = journal.fact("stage")
                changes = self.catalogue.look(journal)
                self.alarms.look(journal)
        self._read = None if changes.more else state
        return changes

    def _gather(self, *, whole: bool) -> None:
        """Make the records. ``whole``: also check that the journal balances, and choose samples of steps."""
        records = self.records = self._files.records()
        records.set_stage(self._stage)
        records.fates, records.kept_rewards = self.catalogue.fates(), self.catalogue.kept_rewards()
        try:
            if not (self.directory / JOURNAL).is_file():
                said = f"There is no {JOURNAL}: what became of the groups, and trajectories, cannot be shown."
                records.notes.append(said)
            elif whole or self._evaluated != len(records.evaluations):
                with self._journal() as journal:
                    if journal is not None:
                        if whole:
                            _audit(journal, records)
                        self.samples = choose_samples(journal, records, self._decode, ends=whole)
                        self._evaluated = len(records.evaluations)
        except ValueError as error:
            records.notes.append(f"Trajectories cannot be read from the journal: {error}")
        if self._fault:
            records.journal_fault = self._fault
            records.notes.append(f"The journal cannot be read: {self._fault}")
        elif self.catalogue.unreadable:
            records.notes.append(f"Some trajectories cannot be read from the journal: {self.catalogue.unreadable}")

    @contextlib.contextmanager
    def _journal(self) -> Iterator[Journal | None]:
        """The journal, open for reading; None where there is none, or it cannot be read."""
        self._fault = ""
        if not (self.directory / JOURNAL).is_file():
            yield None
            return
        try:
            journal = read_journal(self.directory)
        except JournalError as error:
            self._fault = str(error)
            yield None
            return
        try:
            yield journal
        except JournalError as error:
            self._fault = str(error)
        finally:
            journal.close()

    def page(self) -> dict[str, Any]:
        """The whole page as one object."""
        self._gather(whole=False)
        return self._page(None)

    def saved_page(self) -> dict[str, Any]:
        """The same with all trajectories in short rows, and as many whole ones as fit."""
        self._gather(whole=True)
        return self._page(columns() | listed(self.catalogue.everything()))

    def _page(self, listed: dict[str, Any] | None) -> dict[str, Any]:
        transcripts = self.transcripts()
        page = run_page(self.records, self.samples, transcripts, self.alarms, self.now(), listed)
        if self.catalogue.full:
            said = f"The page lists {self.catalogue.count:,} trajectories; agent-rl export writes all of them."
            page["notes"].append(said)
        if self._to_text is None and self.catalogue.count:
            page["notes"].append("The run's tokenizer was not found: trajectories show only what the model wrote.")
        return page

    def now(self) -> dict[str, Any]:
        """What changes every second: the actors and their links."""
        state = _state_of(
            self.directory, STATE, *(path.name for path in sorted(self.directory.glob("topology.*.toml")))
        )
        if state != self._wanted_state:
            self._wanted_state, self._wanted = state, read_wanted(self.directory)
        return graph(self._files.newest(), self._wanted, under_way=in_use(self.directory))

    def transcripts(self) -> Transcripts:
        """Makes the blocks of trajectories."""
        if not self._asked_for_text:
            self._to_text = tokens_to_text(self.directory, self.records)
            self._asked_for_text = self._to_text is not None or self.records.finished
        return Transcripts(self._to_text)

    def body(self, key: Key) -> dict[str, Any] | None:
        """A trajectory with all that the journal knows of it; None when the journal no longer holds it.

        Raises ValueError for one that cannot be read.
        """
        with self._journal() as journal:
            found = [] if journal is None else stored_rollouts(journal, key[0], self._decode, {key[1:]})
        if self._fault:
            raise ValueError(self._fault)
        return self.transcripts().whole(found[0]) if found else None


def _state_of(directory: Path, *names: str) -> object:
    """Another value, once one of these files has changed."""
    found = []
    for name in names:
        with contextlib.suppress(OSError):
            status = (directory / name).stat()
            found.append((name, status.st_ino, status.st_size, status.st_mtime_ns))
    return found


def _audit(journal: Journal, records: Records) -> None:
    records.audit = audit_journal(journal)
    if left := records.audit.left:
        records.notes.append(
            f"The trajectories of {left:,} groups have left the journal, as run.keep_trajectories says."
        )
    written = len(records.steps)
    if records.audit.steps != written:
        records.notes.append(
            f"The journal holds {records.audit.steps} trained steps, {METRICS} {written}: the curves show the latter."
        )
    if not records.audit.balanced:
        faults = records.audit.faults[:5] or ["groups opened are not groups accounted for"]
        records.notes.append(f"The journal does not balance: {'; '.join(faults)}. Run agent-rl audit.")
