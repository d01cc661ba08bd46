"""Feeds trackers, on the filter's host: one process for each, which gets the new rows of ``metrics.jsonl``.

::

    filter's status: rows ----------> Tracking.observe --> _Feed: row --> tracker's process --> Tracker.record
    learner's status: supervised step --^                         `--- {} within a deadline --> RUN/trackers/NAME.json:
                                                                                               {"identity", "rows"}

The file is the queue: at most one row is in progress, and the other rows wait on disk. Supervised steps are in no row
until their stage ends: a tracker gets the newest step from the learner's status, which comes twice a second. A tracker
that raises, dies, hangs or cannot write is reported once, and gets no more rows until the next start. Nothing in the
run waits for a tracker.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import trio

from agent_rl.config.topology import Topology
from agent_rl.figures import ActorFigures
from agent_rl.files.disk import DiskError, whole
from agent_rl.files.leftovers import Janitor
from agent_rl.records.continuing import METRICS

FOLDER = "trackers"


class TrackerFailedError(Exception):
    """A tracker cannot continue; the message says why."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Time limits of a tracker, in seconds."""

    start: float = 120.0
    row: float = 60.0
    close: float = 20.0
    """After the end of the run: for the remaining rows and for closing."""


class Tracking:
    """The trackers of one run. A tracker's module is looked for beside the topology file ``path`` first."""

    def __init__(
        self, topology: Topology, path: Path, say: Callable[[str], object], deadlines: Deadlines | None = None
    ) -> None:
        self._say = say
        deadlines = deadlines or Deadlines()
        self._seconds_to_close = deadlines.close
        self._feeds = [_Feed(name, topology, path, deadlines) for name in topology.run.trackers]
        self._rows = -1
        self._supervised: dict[str, Any] = {}
        self._done = trio.Event()
        self._scope = trio.CancelScope()

    async def run(self, janitor: Janitor | None = None) -> None:
        """Feed every tracker until `finish`, or until it fails."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                for feed in self._feeds:
                    nursery.start_soon(self._keep, feed, janitor)
        self._done.set()

    def observe(self, figures: ActorFigures) -> None:
        """Take in the figures of an actor's status."""
        before, learner = (self._rows, self._supervised), figures.learner
        if figures.filter is not None:
            self._rows = figures.filter.rows
        if learner is not None and learner.loss is not None:
            self._supervised = {"kind": "stage", "stage": learner.stage, "steps": learner.step, "loss": learner.loss}
        if before != (self._rows, self._supervised):
            for feed in self._feeds:
                feed.supervised = self._supervised
                feed.wake()

    async def finish(self) -> None:
        """The run has ended: give the trackers time to take the remaining rows."""
        for feed in self._feeds:
            feed.ending = True
            feed.wake()
        with trio.move_on_after(self._seconds_to_close):
            await self._done.wait()
            return
        for feed in self._feeds:
            if not feed.ended:
                self._say(f"{feed} did not take the last rows within {self._seconds_to_close:g} s; {feed.remedy}")

    def abandon(self) -> None:
        """Kill the trackers' processes at once."""
        self._scope.cancel()

    async def _keep(self, feed: _Feed, janitor: Janitor | None) -> None:
        try:
            await feed.run(janitor)
        except (TrackerFailedError, DiskError, OSError, ValueError) as error:
            self._say(f"{feed} has stopped: {error}; {feed.remedy}")
        feed.ended = True


class _Feed:
    """One tracker, its process, and the number of rows it has taken."""

    def __init__(self, name: str, topology: Topology, path: Path, deadlines: Deadlines) -> None:
        self._directory = topology.run.directory.absolute()
        self._deadlines = deadlines
        self.ending = self.ended = False
        self.supervised: dict[str, Any] = {}
        """The newest supervised step, as a row; empty before the first."""
        self._name = name
        self._first_line = {
            "tracker": name,
            "topology": str(path.absolute()),
            "directory": str(self._directory),
            "run": topology.run.name,
            "stages": [stage.name for stage in topology.stages],
        }
        file = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
        self._state = self._directory / FOLDER / f"{file}.json"
        self._log = self._directory / "logs" / f"tracker.{file}.stderr"
        self._more = trio.Event()
        self._at = 0
        """Offset in the file, in bytes, of the first row that is not read yet."""

    def __str__(self) -> str:
        return f"tracker {self._name!r}"

    @property
    def remedy(self) -> str:
        """What happens to the rows, and which log to read."""
        return f"the run goes on, and the next start delivers what {METRICS} has more; see {self._log}"

    def wake(self) -> None:
        """Signal that there may be new rows or a new supervised step, or that the run ends."""
        self._more.set()
        self._more = trio.Event()

    async def run(self, janitor: Janitor | None) -> None:
        """Start the tracker, send it every row in order, and close it. Raises TrackerFailedError and OSError."""
        state: dict[str, Any] = {"identity": secrets.token_hex(8), "rows": 0}
        self._state.parent.mkdir(exist_ok=True)
        if self._state.exists():
            try:
                state |= json.loads(self._state.read_text())
            except (ValueError, TypeError) as error:
                raise TrackerFailedError(f"{self._state} cannot be read ({error}); remove it") from error
        self._save(state)
        self._at = self._end_of(state["rows"])
        self._log.parent.mkdir(exist_ok=True)
        with self._log.open("ab") as log:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-P", "-m", "actors.runtime.tracker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        if janitor is not None:
            janitor.started(process.pid)
        try:
            answers = _Answers(process)
            await answers.ask({**self._first_line, "identity": state["identity"]}, self._deadlines.start, "to start")
            sent: dict[str, Any] = {}
            while True:
                more, ending = self._more, self.ending
                if sent != self.supervised:
                    sent = self.supervised
                    await answers.ask(sent, self._deadlines.row, "for a supervised step")
                for row in self._rows():
                    await answers.ask(row, self._deadlines.row, "for a row")
                    state["rows"] += 1
                    self._save(state)
                if ending:
                    break
                await more.wait()
            await answers.ask(None, self._deadlines.close, "to close")
        finally:
            with trio.CancelScope(shield=True):
                await _end(process)
            if janitor is not None:
                janitor.ended(process.pid)

    def _save(self, state: dict[str, Any]) -> None:
        with whole(self._state) as partial:
            partial.write_text(json.dumps(state) + "\n")

    def _end_of(self, rows: int) -> int:
        """Offset in the file, in bytes, after the first ``rows`` rows."""
        try:
            with (self._directory / METRICS).open("rb") as file:
                return sum(len(line) for line in islice(file, rows))
        except FileNotFoundError:
            return 0

    def _rows(self) -> Iterator[dict[str, Any]]:
        """The complete rows that are not read yet."""
        try:
            file = (self._directory / METRICS).open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._at += len(line)
                yield json.loads(line)


class _Answers:
    """Sends lines to the process of a tracker, and waits for its answers."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._read = b""

    async def ask(self, line: dict[str, Any] | None, seconds: float, what: str) -> None:
        """Send a line (None: close stdin), and wait for the answer. Raises TrackerFailedError."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            with trio.fail_after(seconds):
                if line is None:
                    await stdin.aclose()
                else:
                    await stdin.send_all(json.dumps(line).encode() + b"\n")
                while b"\n" not in self._read:
                    some = await stdout.receive_some()
                    if not some:
                        raise TrackerFailedError(f"its process ended with status {await self._process.wait()}")
                    self._read += some
        except trio.TooSlowError as error:
            raise TrackerFailedError(f"it took more than {seconds:g} s {what}") from error
        except trio.BrokenResourceError as error:
            raise TrackerFailedError("its process ended") from error
        answer, _, self._read = self._read.partition(b"\n")
        if fault := json.loads(answer).get("fault"):
            raise TrackerFailedError(fault)


async def _end(process: trio.Process) -> None:
    """Kill the rest of the process group, and collect the process."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def writes_rows(topology: Topology, hosts: Sequence[str]) -> bool:
    """Whether the filter runs on these hosts and the topology names trackers."""
    return bool(topology.run.trackers) and topology.journal_host in hosts
