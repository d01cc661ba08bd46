"""One run directory as the page shows it, looked at again and again: each look reads only what was added.

The run may be under way, ended, crashed, or copied from another machine. Nothing is written into it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_rl.observe.report.catalogue import Catalogue, Changes, Key, columns, listed
from agent_rl.observe.report.graph import LATE_SECONDS, Wanted, graph, read_wanted
from agent_rl.observe.report.page import run_page
from agent_rl.observe.report.records import Records, RunFiles
from agent_rl.observe.report.samples import Samples, TokensToText, Transcripts, choose_samples, tokens_to_text
from agent_rl.records.audit import audit_journal
from agent_rl.records.continuing import METRICS, SUMMARY
from agent_rl.records.document import FILE as STATE
from agent_rl.records.health import RunHealth
from agent_rl.records.journal import JOURNAL, Decode, Journal, JournalError, read_journal
from agent_rl.records.reading import rollouts_of
from agent_rl.records.run_directory import END, in_use
from agent_rl.records.summary import TOOLS
from agent_rl.records.timeline import FILE as TIMELINE


class Watched:
    """A run directory. Raises ReportError when it is not one."""

    def __init__(self, directory: Path, decode: Decode) -> None:
        self.directory = directory
        self.catalogue = Catalogue(decode)
        self.records = Records(directory.name)
        self._files = RunFiles(directory)
        self._decode = decode
        self._alarms, self._alarmed = RunHealth(), -1
        """The alarms up to the step of this version."""
        self._samples = Samples()
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
        files, newest = _state_of(self.directory, METRICS, TIMELINE, END, SUMMARY), self._files.newest
        under_way, age = in_use(self.directory), math.nan if newest is None else time.time() - newest.wall
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
                self._look_for_alarms(journal)
        self._read = None if changes.more else state
        return changes

    def _look_for_alarms(self, journal: Journal) -> None:
        tools = journal.fact(TOOLS) != "0"
        for version in sorted(each for each in journal.closed_versions() if each > self._alarmed):
            step = journal.step(version)
            if step is None or not step.trained:
                return
            self._alarms.step(step.stage, step.figures, step.learner_figures, tools=tools)
            self._alarmed = version

    def _gather(self, *, whole: bool) -> None:
        """Make the records. ``whole``: also check that the journal balances, and choose samples of steps."""
        records = self.records = self._files.records()
        records.stage = int(self._stage) if self._stage is not None and self._stage.isdigit() else None
        records.fates, records.kept_rewards = self.catalogue.fates(), self.catalogue.kept_rewards()
        records.alarms, records.alarms_now = self._alarms.held, self._alarms.now
        try:
            if not (self.directory / JOURNAL).is_file():
                said = f"There is no {JOURNAL}: what became of the groups, and trajectories, cannot be shown."
                records.notes.append(said)
            elif whole or self._evaluated != len(records.evaluations):
                with self._journal() as journal:
                    if journal is not None:
                        if whole:
                            _audit(journal, records)
                        self._samples = choose_samples(journal, records, self._decode, ends=whole)
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
        self._fault, journal = "", None
        try:
            if (self.directory / JOURNAL).is_file():
                journal = read_journal(self.directory)
        except JournalError as error:
            self._fault = str(error)
        try:
            yield journal
        except JournalError as error:
            self._fault = str(error)
        finally:
            if journal is not None:
                journal.close()

    def page(self) -> dict[str, Any]:
        """The whole page as one object."""
        self._gather(whole=False)
        return self._page(None)

    def saved_page(self) -> dict[str, Any]:
        """The same with all trajectories in short rows, and as many whole ones as fit."""
        self._gather(whole=True)
        return self._page(columns() | listed(self.catalogue.everything()))

    def _page(self, rows: dict[str, Any] | None) -> dict[str, Any]:
        page = run_page(self.records, self._samples, self._transcripts(), self.now(), rows)
        if self.catalogue.full:
            said = f"The page lists {self.catalogue.count:,} trajectories; agent-rl export writes all of them."
            page["notes"].append(said)
        if self._to_text is None and self.catalogue.count:
            page["notes"].append("The run's tokenizer was not found: trajectories show only what the model wrote.")
        return page

    def now(self) -> dict[str, Any]:
        """What changes every second: the actors and their links."""
        topologies = (path.name for path in sorted(self.directory.glob("topology.*.toml")))
        state = _state_of(self.directory, STATE, *topologies)
        if state != self._wanted_state:
            self._wanted_state, self._wanted = state, read_wanted(self.directory)
        return graph(self._files.newest, self._wanted, under_way=in_use(self.directory))

    def _transcripts(self) -> Transcripts:
        if not self._asked_for_text:
            self._to_text = tokens_to_text(self.directory, self.records)
            self._asked_for_text = self._to_text is not None or self.records.finished
        return Transcripts(self._to_text)

    def body(self, key: Key) -> dict[str, Any] | None:
        """A trajectory with all that the journal knows of it; None when the journal no longer holds it.

        Raises ValueError for one that cannot be read.
        """
        with self._journal() as journal:
            found = [] if journal is None else list(rollouts_of(journal, key[0], self._decode, {key[1:]}))
        if self._fault:
            raise ValueError(self._fault)
        return self._transcripts().whole(found[0]) if found else None


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
        said = f"The trajectories of {left:,} groups have left the journal, as run.keep_trajectories says."
        records.notes.append(said)
    held, written = records.audit.steps, len(records.steps)
    if held != written:
        said = f"The journal holds {held} trained steps, {METRICS} {written}: the curves show the latter."
        records.notes.append(said)
    if not records.audit.balanced:
        faults = records.audit.faults[:5] or ["groups opened are not groups accounted for"]
        records.notes.append(f"The journal does not balance: {'; '.join(faults)}. Run agent-rl audit.")
